"""The alignment of X and Z: for masked sentences of a text, which passages explain what is hidden, p(z|x,y).

B sentences, K passages each with the null document in column 0.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from realmlm.corpus.masking import SalientSpan, window
from realmlm.corpus.questions import spread
from realmlm.corpus.spans import Spans
from realmlm.corpus.store import Corpus
from realmlm.device import pick_device
from realmlm.index.duplicates import SameWords, check_others
from realmlm.log import progress
from realmlm.model.inputs import mask_queries
from realmlm.model.marginal import marginal_log_likelihood, posterior
from realmlm.model.realm import Realm
from realmlm.reading.answer import Answerer
from realmlm.reading.retrieve import LearnedRetriever, Query, check_readable, index_of, retrieve
from realmlm.settings import Align
from realmlm.storage.artefacts import refuse_existing, write_text


def align(settings: Align) -> int:
    """Write the alignment as JSON lines; gives the number of sentences."""
    out = settings.out
    refuse_existing(out)
    realm = Realm.from_pretrained(settings.model, device=pick_device(settings.device))
    corpus = Corpus.open(settings.corpus)
    source = corpus if settings.text is None else Corpus.open(settings.text)
    for each in (corpus, source):
        check_readable(realm, each, name=str(settings.model))
    sentences = Spans.open(source)
    own = SameWords(corpus, source)
    k = settings.k
    check_others(corpus, own, k=k, others=k - 1)
    answerer = Answerer(realm, corpus, LearnedRetriever.settled(realm, index_of(realm, corpus).index))
    numbers = spread(len(sentences), len(sentences) if settings.limit is None else settings.limit)
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    with progress("aligning", len(numbers), unit="sentences") as bar:
        for first in range(0, len(numbers), answerer.at_once):
            some = numbers[first : first + answerer.at_once]
            rows = _rows(answerer, source, sentences, own, some, k=k)
            lines += [json.dumps(row, ensure_ascii=False) for row in rows]
            bar.advance(len(some))
    write_text(out, "".join(f"{line}\n" for line in lines))
    return len(lines)


def _rows(
    answerer: Answerer, source: Corpus, sentences: Spans, own: SameWords, numbers: list[int], *, k: int
) -> Iterator[dict[str, Any]]:
    masking = SalientSpan()
    texts = []
    places = []
    sources = []
    for number in numbers:
        sentence = sentences[number]
        whole = source.tokens(sentence.passage)[sentence.start : sentence.end].astype(np.int64)
        chosen = masking.choose(whole, sentence.spans, np.random.default_rng(number))
        tokens, positions = window(whole, chosen, answerer.model.config.max_query)
        texts.append(tokens)
        places.append(positions)
        sources.append(sentence.passage)
    targets = [tokens[positions] for tokens, positions in zip(texts, places, strict=True)]
    masked = mask_queries(texts, places, answerer.model.wordpieces).queries
    pairs = zip(masked, own(np.array(sources)), strict=True)
    queries = [Query("", tokens, sources=tuple(row.tolist())) for tokens, row in pairs]
    retrieved = retrieve(answerer.retriever, queries, k - 1)
    read = answerer.read_masks(queries, retrieved)
    reading_BK = read.log_likelihood(targets)
    prior_BK = read.log_p_BK
    log_p_B = marginal_log_likelihood(prior_BK, reading_BK)
    posterior_BK = posterior(prior_BK, reading_BK)
    wordpieces = answerer.model.wordpieces
    numbers_BK = (prior_BK.exp().tolist(), posterior_BK.tolist(), reading_BK.tolist())
    for row, (prior, after, reading) in enumerate(zip(*numbers_BK, strict=True)):
        ids: list[int | None] = [None, *retrieved.ids_BK[row].tolist()]
        ordered = sorted(zip(ids, prior, after, reading, strict=True), key=lambda item: -item[2])
        passages = []
        for passage, p, q, log_p in ordered:
            title = "" if passage is None else answerer.corpus[passage].title
            passages.append({"id": passage, "title": title, "prior": p, "posterior": q, "log_p": log_p})
        tokens = queries[row].tokens.tolist()
        yield {
            "sentence": wordpieces.tokenizer.decode(tokens, skip_special_tokens=False),
            "hidden": wordpieces.decode(targets[row]),
            "source": sources[row],
            "log_p": log_p_B[row].item(),
            "log_p_without": reading[0],
            "passages": passages,
        }
