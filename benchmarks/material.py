"""Made-up material for benchmarks, as large as real text and made in seconds: passages that a tokenizer cuts
as they are stored, with their salient spans, and questions about them.

Words are drawn as in text (the n-th most frequent 1/n as often as the first). Every article has its own few
names of two words; each sentence has one of them, marked. So passages of an article can be found from each
other's sentences, and what a sentence hides stands in them.

P passages, A articles, T wordpieces, S sentences.
"""

import re
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from realmlm.bundled import model_place
from realmlm.corpus.questions import Question, write_questions
from realmlm.corpus.spans import Spans
from realmlm.corpus.store import Block, Corpus, SegmentWriter
from realmlm.corpus.taggers import KINDS
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.parallel import default_workers, ordered_map
from realmlm.storage.arrays import ArrayWriter
from realmlm.storage.artefacts import publish

PART = 65_536  # passages made at a time
ARTICLE = 8  # passages
NAMES = 4  # of an article
NAME = 2  # words
SENTENCE = 22  # wordpieces; the last of a passage has up to twice as many
RARE = 2_000  # words more frequent than this many are in no name


class Words:
    """The words of a tokenizer that are one wordpiece, the most frequent first, and how they are written."""

    def __init__(self, wordpieces: Wordpieces) -> None:
        vocabulary = wordpieces.tokenizer.get_vocab()
        plain = [word for word in vocabulary if re.fullmatch("[a-z]{3,12}", word)]
        words = [".", *sorted(plain, key=lambda word: vocabulary[word])]
        self.ids = np.array([vocabulary[word] for word in words], wordpieces.dtype)
        self.lengths = np.array([len(word) for word in words])
        spaced = [f"{word} ".encode().ljust(self.lengths.max() + 1) for word in words]
        self.letters = np.frombuffer(b"".join(spaced), np.uint8).reshape(len(words), -1)

    def draw(self, random: np.random.Generator, count: int, *, beyond: int = 1) -> np.ndarray:
        """Numbers of words, each about as often as in text; number 0, the full stop, is not drawn."""
        share = random.random(count, np.float32)
        return (beyond * (len(self.ids) / beyond) ** share).astype(np.int32).clip(max=len(self.ids) - 1)

    def write(self, numbers_T: np.ndarray, lengths_P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """UTF-8 of texts of so many words each, all in a row, and how many bytes each text has."""
        letters = self.letters[numbers_T]
        widths_T = self.lengths[numbers_T] + 1
        written = letters[np.arange(letters.shape[1]) < widths_T[:, None]]
        bytes_P = np.add.reduceat(widths_T, lengths_P.cumsum() - lengths_P)
        kept = np.ones(len(written), bool)
        kept[bytes_P.cumsum() - 1] = False  # no space after the last word
        return written[kept], bytes_P - 1


def make_corpus(folder: Path, passages: int, *, longest: int) -> Corpus:
    """A corpus with its spans, passages of 0.3 to 1 times `longest` wordpieces, 0.86 on average; the one in
    the folder if there is one."""
    if (folder / "spans").exists():
        return Corpus.open(folder)
    wordpieces = Wordpieces.load(model_place())
    words = Words(wordpieces)
    marks = []
    with publish(folder, kind="corpus") as draft:
        wordpieces.save(draft.path / "tokenizer.json")
        writer = SegmentWriter(draft.path, token_dtype=wordpieces.dtype)
        parts = [range(first, past) for first, past in pairwise([*range(0, passages, PART), passages])]
        made = ordered_map(_maker, (words, longest), parts, workers=default_workers(), few=2)
        with closing(made) as blocks:
            for block, marked in blocks:
                writer.append(block)
                marks.append(marked)
        writer.close()
        draft.config |= {"sources": ["made up"], "max_wordpieces": longest, "tokenizer": "mini's"}
        draft.counts |= {name: getattr(writer, name) for name in ("passages", "articles", "wordpieces")}
        draft.parents["tokenizer"] = wordpieces.fingerprint
    corpus = Corpus.open(folder)
    _write_spans(corpus, marks)
    return corpus


class _Marks(NamedTuple):
    """The sentences of some passages with their salient spans, one each."""

    passages_S: np.ndarray
    bounds_S2: np.ndarray
    spans_S2: np.ndarray


def _maker(words: Words, longest: int) -> Callable[[range], tuple[Block, _Marks]]:
    return lambda numbers: _block(words, numbers, longest)


def _block(words: Words, numbers: range, longest: int) -> tuple[Block, _Marks]:
    """The passages of these numbers."""
    random = np.random.default_rng([1, numbers.start])
    passages = len(numbers)
    least = round(0.3 * longest)
    lengths_P = (least + (longest - least + 1) * random.random(passages) ** 0.25).astype(np.int64)
    starts_P = lengths_P.cumsum() - lengths_P
    articles_P = np.arange(passages) // ARTICLE
    articles = int(articles_P[-1]) + 1
    sentences_P = np.maximum(1, lengths_P // SENTENCE)
    passage_S = np.repeat(np.arange(passages), sentences_P)
    start_S = SENTENCE * (np.arange(len(passage_S)) - (sentences_P.cumsum() - sentences_P)[passage_S])
    last_S = np.append(passage_S[1:] != passage_S[:-1], True)
    end_S = np.where(last_S, lengths_P[passage_S], start_S + SENTENCE)
    names_S = start_S + random.integers(1, SENTENCE - NAME, len(passage_S))
    numbers_T = words.draw(random, int(lengths_P.sum()))
    numbers_T[starts_P[passage_S] + end_S - 1] = 0  # a full stop
    names_AN2 = words.draw(random, articles * NAMES * NAME, beyond=RARE).reshape(articles, NAMES, NAME)
    name_S2 = names_AN2[articles_P[passage_S], random.integers(NAMES, size=len(passage_S))]
    for place in range(NAME):
        numbers_T[starts_P[passage_S] + names_S + place] = name_S2[:, place]
    widths_T = words.lengths[numbers_T] + 1
    begins_T = widths_T.cumsum() - widths_T
    begins_T -= np.repeat(begins_T[starts_P], lengths_P)
    texts, text_lengths_P = words.write(numbers_T, lengths_P)
    title_lengths_A = random.integers(2, 9, articles)
    titles_T = words.draw(random, int(title_lengths_A.sum()), beyond=RARE)
    titles, title_bytes_A = words.write(titles_T, title_lengths_A)
    block = Block(
        texts=texts,
        text_lengths=text_lengths_P,
        titles=titles,
        title_lengths=title_bytes_A,
        sources=np.zeros(0, np.uint8),
        source_lengths=np.zeros(articles, np.int64),
        title_tokens=words.ids[titles_T],
        title_token_lengths=title_lengths_A,
        articles=articles_P,
        tokens=words.ids[numbers_T],
        token_lengths=lengths_P,
        token_chars=np.stack([begins_T, begins_T + widths_T - 1], axis=1).astype(np.uint16),
        sentence_starts=start_S.astype(np.uint16),
        sentence_lengths=sentences_P,
    )
    bounds_S2 = np.stack([start_S, end_S], axis=1).astype(np.uint16)
    spans_S2 = np.stack([names_S, names_S + NAME], axis=1).astype(np.uint16)
    return block, _Marks(numbers.start + passage_S, bounds_S2, spans_S2)


def _write_spans(corpus: Corpus, marks: list[_Marks]) -> None:
    """The names as the corpus's salient spans, one a sentence."""
    with publish(corpus.folder / "spans", kind="spans") as draft:
        files = {"passages": (np.int64, ()), "bounds": (np.uint16, (2,)), "span_offsets": (np.int64, ())}
        files |= {"spans": (np.uint16, (2,)), "kinds": (np.uint8, ())}
        writers = {
            name: ArrayWriter(draft.path / f"{name}.safetensors", dtype, row=row)
            for name, (dtype, row) in files.items()
        }
        writers["span_offsets"].append([0])
        for marked in marks:
            spans = len(marked.spans_S2)
            writers["span_offsets"].append(writers["spans"].rows + np.arange(1, spans + 1))
            writers["passages"].append(marked.passages_S)
            writers["bounds"].append(marked.bounds_S2)
            writers["spans"].append(marked.spans_S2)
            writers["kinds"].append(np.zeros(spans))
        for writer in writers.values():
            writer.close()
        draft.config |= {"tagger": "made up", "corpus_edits": 0, "kinds": list(KINDS)}
        draft.counts |= {"sentences": writers["passages"].rows, "spans": writers["spans"].rows}
        draft.parents["corpus"] = corpus.fingerprint


def make_questions(file: Path, corpus: Corpus, count: int) -> Path:
    """Questions from words of a marked sentence, whose answer is its name, or in one of ten cases a word of
    it, which stands in hundreds of passages of a large corpus; the file there is if there is one."""
    if file.exists():
        return file
    random = np.random.default_rng(2)
    spans = Spans.open(corpus)
    questions = []
    for number in range(count):
        sentence = spans[int(random.integers(len(spans)))]
        tokens = corpus.tokens(sentence.passage)[sentence.start : sentence.end]
        start, end = sentence.spans[0]
        answer = tokens[start : end - int(random.random() < 0.1)]
        rest = np.delete(tokens, range(start, end))
        asked = corpus.wordpieces.decode(rest[:10])
        answers = (corpus.wordpieces.decode(answer),)
        questions.append(Question(text=f"what {asked}?", answers=answers, id=str(number)))
    write_questions(file, questions)
    return file
