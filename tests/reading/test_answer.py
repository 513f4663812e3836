"""Answers against the plain sum over passages and spans, one passage at a time."""

import json
import string
import sys
from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from realmlm.corpus.store import Corpus, Passage
from realmlm.errors import BadInput
from realmlm.model.inputs import NULL, reader_inputs
from realmlm.model.realm import Realm
from realmlm.model.resident import Resident
from realmlm.model.snapshot import DocumentEncoder
from realmlm.reading.answer import Answerer
from realmlm.reading.combine import GAPS, OTHERS, Spans, Way, combine, merge_overlapping, same_words
from realmlm.reading.kinds import fits
from realmlm.reading.language import looks_english
from realmlm.reading.records import Evidence
from realmlm.reading.retrieve import (
    LearnedRetriever,
    NoRetriever,
    Offered,
    Query,
    Retrieved,
    embed_documents,
    index_of,
    scores_of_all,
)
from realmlm.reading.units import all_widened, units, widened
from tests.calls import build_corpus

Model = Realm


@pytest.fixture
def answerer(tiny_model: Model, knowledge: Corpus, tmp_path: Path) -> Answerer:
    model = tiny_model
    index = index_of(model, knowledge, path=tmp_path / "index", kind="exact", dtype=torch.float32).index
    return Answerer(model, knowledge, LearnedRetriever(model, index))


@torch.no_grad()
def test_an_answer_is_the_sum_over_passages_and_places(
    tiny_model: Model, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two passages of the same words, in which some stand twice."""
    monkeypatch.setattr("realmlm.reading.answer.SPANS_KEPT", 10_000)
    monkeypatch.setattr("realmlm.reading.combine.OTHERS", 10_000)
    texts = ["heron otter heron", "otter heron otter heron"]
    (tmp_path / "beasts.jsonl").write_text(
        "\n".join(json.dumps({"title": "Beasts", "text": text}) for text in texts), "utf-8"
    )
    corpus = build_corpus(
        [tmp_path / "beasts.jsonl"],
        tmp_path / "corpus",
        tokenizer=str(world / "tokenizer.json"),
        max_wordpieces=64,
        workers=1,
    )
    model = tiny_model
    wordpieces = model.wordpieces
    index = index_of(model, corpus, dtype=torch.float32).index
    answerer = Answerer(model, corpus, LearnedRetriever(model, index))
    query = answerer.query("Which animal is the symbol of Tekebra?")
    retrieved = answerer.retriever([query], 2)
    total: defaultdict[str, float] = defaultdict(float)
    for weight, number in zip(
        retrieved.scores_BK[0].softmax(-1).tolist(), retrieved.ids_BK[0].tolist(), strict=True
    ):
        passage = corpus[number]
        chars = corpus.token_chars(number)
        inputs = reader_inputs(
            [query.tokens], [corpus.tokens(number)], wordpieces, max_query=32, max_length=99
        )
        scores, allowed = model.reader.spans(inputs)
        spans = [(s, w, scores[0, s, w].exp().item()) for s, w in allowed[0].nonzero().tolist()]
        for start, width, value in spans:
            first = start - int(inputs.second_N[0])
            words = passage.text[chars[first, 0] : chars[first + width, 1]]
            total[words] += weight * value / sum(value for *_, value in spans)
    (answer,) = answerer.ask([query.text], read=2)
    assert answer.answer == max(total, key=lambda words: total[words])
    found = {answer.answer: answer.probability} | {other.words: other.probability for other in answer.others}
    assert len(found) > 1  # of spans that overlap only the likeliest is named
    assert found == pytest.approx({words: total[words] for words in found}, abs=1e-5)
    assert sum(evidence.retrieval_probability for evidence in answer.evidence) == pytest.approx(1, abs=1e-5)
    mixed = sum(evidence.retrieval_probability * evidence.reading_probability for evidence in answer.evidence)
    assert answer.probability == pytest.approx(mixed, abs=1e-6)
    for evidence in answer.evidence:
        assert evidence.passage[evidence.start : evidence.end] == answer.answer


@torch.no_grad()
def test_words_without_reading_are_told_where_the_null_document_was_weighed(answerer: Answerer) -> None:
    query = answerer.sentence("The history of Tekebra begins in [MASK].")
    retrieved = answerer.retriever([query], 3)
    weighed, alone = (
        answerer.mask_words(answerer.read_masks([query], offered))[0][0]
        for offered in (retrieved, replace(retrieved, null_B=None))
    )
    assert len(weighed.unread) == len(weighed.read) == len(alone.read) == 5
    assert alone.unread == ()


def test_filling_in_is_the_mixture_over_passages_and_the_null_document(answerer: Answerer) -> None:
    sentence = "The history of Tekebra begins in [MASK]."
    query = answerer.query(sentence)
    retrieved = answerer.retriever([query], 3)
    assert retrieved.null_B is not None
    p = torch.cat([retrieved.null_B[:, None], retrieved.scores_BK], 1)[0].softmax(-1)
    place = int(np.flatnonzero(query.tokens == answerer.model.wordpieces.mask)[0])
    mixture = torch.zeros(len(answerer.model.wordpieces))
    for weight, body in zip(
        p, [NULL, *(answerer.corpus.tokens(number) for number in retrieved.ids_BK[0].tolist())], strict=True
    ):
        inputs = reader_inputs([query.tokens], [body], answerer.model.wordpieces, max_query=32, max_length=99)
        mixture += weight * answerer.model.reader.masks(inputs, torch.tensor([[place]]))[0, 0].exp()
    (answer,) = answerer.fill([sentence], read=3)
    assert answer.answer == answerer.model.wordpieces.decode([int(mixture.argmax())])
    assert answer.probability == pytest.approx(mixture.max().item(), rel=1e-3)
    assert None in [evidence.passage_id for evidence in answer.evidence], (
        "the null document is among the evidence"
    )


@torch.no_grad()
def test_retrieval_is_the_inner_product_over_all_passages(answerer: Answerer) -> None:
    query = answerer.query("Which food is Tekebra famous for?")
    encode = DocumentEncoder.of(answerer.model)
    corpus = answerer.corpus
    vector = answerer.model.query(answerer.model.query_inputs([query.tokens]))[0]
    scores = {n: float(vector @ encode(corpus, np.array([n]))[0]) for n in corpus.ids[:60].tolist()}
    retrieved = answerer.retriever([query], len(corpus))
    found = dict(zip(retrieved.ids_BK[0].tolist(), retrieved.scores_BK[0].tolist(), strict=True))
    for number, score in scores.items():
        assert found[number] == pytest.approx(score, abs=2e-3)


def test_scores_embed_each_passage_once_and_agree_with_one_by_one(answerer: Answerer) -> None:
    model = answerer.model
    corpus = answerer.corpus
    query = torch.randn(2, 32, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[3, 5, 7], [5, 3, 9]])
    offered = Offered(corpus, ids.numpy(), null=True)
    scores = scores_of_all(model, query, offered).gather(1, torch.from_numpy(offered.place_BK))
    assert scores.shape == (2, 4)
    for b in range(2):
        null = embed_documents(model, [NULL], [NULL])[0]
        assert scores[b, 0].item() == pytest.approx(float((query[b] @ null).detach()), abs=1e-4)
        for k, number in enumerate(ids[b].tolist()):
            document = embed_documents(model, [corpus.title_tokens(number)], [corpus.tokens(number)])[0]
            assert scores[b, k + 1].item() == pytest.approx(float((query[b] @ document).detach()), abs=1e-4)
    scores.sum().backward()
    assert model.document.projection.weight.grad is not None, "the gradient must reach the document tower"


def test_without_retrieval_only_the_null_document_is_read(tiny_model: Model, knowledge: Corpus) -> None:
    model = tiny_model
    alone = Answerer(model, knowledge, NoRetriever())
    (filled,) = alone.fill(["The history of Tekebra begins in [MASK]."])
    assert [evidence.passage_id for evidence in filled.evidence] == [None]
    assert filled.evidence[0].retrieval_probability == 1.0
    (asked,) = alone.ask(["Which food is Tekebra famous for?"])
    assert 0 <= asked.probability <= 1


@pytest.mark.parametrize("closed_book", [False, True])
def test_batches_answer_like_single_questions(answerer: Answerer, closed_book: bool) -> None:
    answerer = Answerer(answerer.model, answerer.corpus, NoRetriever()) if closed_book else answerer
    questions = [
        f"Which {kind} is Tekebra famous for?" for kind in ("food", "tree", "animal", "heron of the old town")
    ]
    together = answerer.ask(questions, read=3)
    apart = [answerer.ask([question], read=3)[0] for question in questions]
    for first, second in zip(together, apart, strict=True):
        assert first.probability == pytest.approx(second.probability, abs=1e-4)
        assert first.answer == second.answer


def test_the_null_document_follows_weights_that_move_and_is_embedded_once_where_they_stay(
    answerer: Answerer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = answerer.model
    moving = answerer.retriever
    assert isinstance(moving, LearnedRetriever)
    settled = LearnedRetriever.settled(model, moving.index)
    queries = [answerer.query("Which food is Tekebra famous for?")]
    assert torch.equal(null_scores(settled, queries), null_scores(moving, queries))
    weight = model.document.projection.weight
    with torch.no_grad():
        weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(
        null_scores(moving, queries),
        null_scores(LearnedRetriever.settled(model, moving.index), queries),
    )
    monkeypatch.setattr("realmlm.reading.retrieve.null_vector", None)
    null_scores(settled, queries)
    with pytest.raises(TypeError):
        null_scores(moving, queries)


def null_scores(retriever: LearnedRetriever, queries: list[Query]) -> torch.Tensor:
    null_B = retriever(queries, 3).null_B
    assert null_B is not None
    return null_B


def test_what_cannot_be_answered_says_so(answerer: Answerer) -> None:
    with pytest.raises(BadInput, match="empty"):
        answerer.ask([""])
    with pytest.raises(BadInput, match=r"no \[MASK\]"):
        answerer.fill(["Nothing is hidden here."])
    nothing = Retrieved(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(1, 0), torch.zeros(1))
    with pytest.raises(BadInput, match=r"no \[MASK\]"):
        answerer.fill_masks([Query("x", np.array([10]))], nothing)


@pytest.mark.parametrize(
    ("text", "span", "whole"),
    [
        ("It cost 11,400 pounds.", "11", "11,400"),
        ("It cost 11,400 pounds.", "400 pounds", "11,400 pounds"),
        ("about 3.14.", "3", "3.14"),
        ("In 1995, 300 came.", "1995", "1995"),
        ("In 1995, 300 came.", "300 came", "300 came"),
        ("from 1999 to 2001", "99 to 20", "1999 to 2001"),
        ("Chapter 2.Then", "2", "2"),
        ("no number", "number", "number"),
        ("٣٤٥ in Arabic", "٣", "٣٤٥"),
        ("It fell to -6.2 °C.", "6.2 °C", "-6.2 °C"),
        ("It fell to −6 degrees.", "6", "−6"),
        ("from 1939-45 on", "1939", "1939"),
        ("from 1939-45 on", "45", "45"),
        ("a mid-1990s song", "1990s", "1990s"),
        ("a 16-year-old girl", "16", "16"),
        ("London-based", "London", "London"),
        ("write to inge@hollowlane.org.", "hollowlane", "inge@hollowlane.org"),
        ("policy CG/2023/0098812,", "0098812", "CG/2023/0098812"),
        ("oil SAE 10W-30", "10", "10W-30"),
        ("in the U.S.A today", "U", "U"),
        ("It expires on 2027-01-31.", "2027", "2027-01-31"),
        ("due 31.12.2029, or so", "2029", "31.12.2029"),
        ("It opens at 10:15.", "10", "10:15"),
        ("a ratio of 2:1", "2", "2"),
        ("they won 3-2", "3", "3"),
        ("release v2.14.3-rc1 of it", "v2", "v2.14.3-rc1"),
        ("release 2.14.3-rc1 of it", "14", "2.14.3-rc1"),
        ("a 3.5-inch disk", "3.5", "3.5"),
        ("MAC 3c:a6:2f:00:11:9e", "3c", "3c:a6:2f:00:11:9e"),
        ("call 030/1234-567", "030", "030/1234-567"),
        ("up to +85 °C", "85 °C", "+85 °C"),
        (f"{'11.' * 4000}x 7", "7", "7"),  # and quickly
        (f"{'1-' * 4000}x 7", "7", "7"),
        (f"{'ab:' * 4000}x 7", "7", "7"),
        (f"{'a.' * 4000} 7", "7", "7"),
        (f"{'A1/' * 4000} 7", "7", "7"),
    ],
)
def test_an_answer_does_not_end_within_a_number_a_code_or_an_address(
    text: str, span: str, whole: str
) -> None:
    start = text.rindex(span)
    first, past = widened(start, start + len(span), text)
    assert text[first:past] == whole


@given(
    st.lists(st.sampled_from([*"aBv1½_.,:/-−+@ é\n", "11", "ab:", "a.b@c.de", "X1/Y2"]), max_size=12)
    .map("".join)
    .filter(bool),
    st.data(),
)
@settings(max_examples=500)
def test_a_span_is_made_longer_by_the_units_of_the_whole_text(text: str, data: st.DataObject) -> None:
    """Whether pieces of the text are looked at or all of it, for one span or for many."""
    spans = [(start, end) for start in range(len(text)) for end in range(start, len(text) + 1)]
    longer = []
    for start, end in spans:
        for first, past in units(text):
            start, end = first if first < start < past else start, past if first < end < past else end
        longer.append((start, end))
    assert [widened(start, end, text) for start, end in spans] == longer
    starts, ends = np.array(spans).T
    others = data.draw(st.lists(st.sampled_from(["", "1", "a+1", text]), max_size=2))
    found = all_widened(starts, ends, [*others, text, *others], np.full(len(spans), len(others)))
    assert list(zip(*(places.tolist() for places in found), strict=True)) == longer


@pytest.mark.parametrize(
    ("question", "several"),
    [
        ("Which board members were present at the meeting?", True),
        ("Which items does Harris & Sons supply?", True),
        ("In which towns do they have a shop?", True),
        ("What nine languages can it read aloud?", True),
        ("Who were the auditors?", True),
        ("To whom are the letters sent?", True),
        ("What are the names of the hens?", True),
        ("List the members of the board", True),
        ("Please name all members.", True),
        ("Who was the auditor?", False),
        ("Who were the Allies fighting?", False),
        ("What color do lions have?", False),
        ("At what time do offices have to close?", False),
        ("What number of soldiers were killed?", False),
        ("What percentage of voters did the party win?", False),
        ("Which insurer pays people who are off sick?", False),
        ("What do members do on Thursdays?", False),
        ("What are bogies on a train?", False),
        ("On which days does the ferry run?", False),
        ("Which bus does she take?", False),
        ("Which glass has the board chosen?", False),
        ("Which company supplies the electricity?", False),
        ("What happens if tenants do not pay?", False),
        ("Where is the list?", False),
    ],
)
def test_where_several_are_asked_for_it_is_said_that_there_may_be_more(
    question: str, several: bool, answerer: Answerer
) -> None:
    said = "there may be more than one: read them in the passage"
    (one,) = answerer.ask([question])
    assert one.caution == (said if several else "")
    assert one.sure == ""
    for words in ("Ada and Bo", "Ada, Bo"):  # it says so itself
        many = answerer.combiner._judged(replace(one, answer=words), question, 1, 0.0)
        assert many.caution == ""


def test_what_should_be_known_before_an_answer_is_believed_is_said(answerer: Answerer) -> None:
    plain, asked, long = answerer.ask(["Which animal is it?", " are cocks allowed?", "animal " * 70 + "?"])
    assert (plain.caution, asked.caution) == (
        "",
        "yes or no is for you to say: answers are words of a passage",
    )
    assert (
        long.caution
        == f"only the first {answerer.model.config.max_query} wordpieces of the question were read"
    )
    assert plain.sure == ""
    thresholds = {"likely": 0.5, "found": 0.2, "english": 1.0}
    for bias, word, caution in (
        (1.0, "likely", asked.caution),
        (-1.0, "unsure", f"check it in the passage; {asked.caution}"),
        (-9.0, "not found", f"the documents may not say this; {asked.caution}"),
    ):
        fitted = {"bias": bias, "p_weight": 0.0, "relevance_weight": 0.0, **thresholds}
        answerer.model.config = replace(answerer.model.config, calibration=fitted)
        english, german = answerer.ask(["Is it?", "Welches Tier ist es?"])
        assert (english.sure, english.caution) == (word, caution)
        assert "English only" in german.caution
    fitted["english"] = 0.5
    answerer.model.config = replace(answerer.model.config, calibration=fitted)
    assert "English" not in answerer.ask(["Welches Tier ist es?"])[0].caution  # it may know other languages


@pytest.mark.parametrize(
    ("question", "english"),
    [
        ("Who painted the Mona Lisa?", True),
        ("What is the capital of Los Angeles County?", True),
        ("Which la la song did der Rote Baron sing?", True),
        ("Stradivari Cremona", True),
        ("Wer malte die Mona Lisa?", False),
        ("Qui a peint la Joconde ?", False),
        ("¿Quién pintó la Mona Lisa?", False),
        ("Кто написал «Войну и мир»?", False),
        ("誰がモナ・リザを描きましたか", False),
        ("Wer war Kaiser in Rom?", False),
        ("", True),
    ],
)
def test_another_language_is_noticed_by_its_letters_or_commonest_words(question: str, english: bool) -> None:
    assert looks_english(question) == english


def test_the_passage_that_an_answer_comes_from_most_stands_first(answerer: Answerer) -> None:
    for answer in answerer.ask(
        ["Which animal is the symbol of Tekebra?", "When does its history begin?"], read=5
    ):
        shares = [
            evidence.retrieval_probability * evidence.reading_probability for evidence in answer.evidence
        ]
        assert shares == sorted(shares, reverse=True)


def test_punctuation_alone_is_no_answer_and_white_space_is_one_space() -> None:
    passage = Passage(3, "", "It came on 14\n October 1687.")
    starts = [passage.text.index("."), passage.text.index("14")]
    ends = [len(passage.text), passage.text.index(".")]
    spans = Spans(np.array([starts]), np.array([ends]), np.array([[0.7, 0.2]]))
    answer = combine([passage], np.ones(1), spans, Way(kept=None))
    assert (answer.answer, answer.probability, answer.others) == ("14 October 1687", 0.2, ())
    assert answer.evidence[0].quote() == ("It came on ", "14  October 1687", ".")
    released = combine([passage], np.ones(1), spans, Way(released=True, kept=None))
    assert (released.answer, released.probability) == (".", 0.7)


def test_an_answer_of_another_kind_gives_way_to_one_of_the_kind_that_is_asked_for() -> None:
    text = "The guesthouse costs €412.50, its telephone number is 0117 496 0382, and the owner is Solveig."
    passage = Passage(0, "", text)

    def said(question: str, *p: float) -> tuple[str, float, str]:
        places = [
            (text.index(words), text.index(words) + len(words)) for words in ("€412.50", "496", "Solveig")
        ]
        starts, ends = zip(*places, strict=True)
        spans = Spans(np.array([starts]), np.array([ends]), np.array([p]))
        answer = combine([passage], np.ones(1), spans, Way(fits=partial(fits, question)))
        (read,) = answer.evidence
        return answer.answer, answer.probability, read.passage[read.start : read.end]

    telephone = "What is the telephone number of the guesthouse?"
    assert said(telephone, 0.6, 0.3, 0.1) == ("0117 496 0382", 0.3, "0117 496 0382")
    assert said(telephone, 0.6, 0.01, 0.39) == ("€412.50", 0.6, "€412.50")  # hardly likely
    assert said("Who is Solveig?", 0.3, 0.0, 0.6) == ("Solveig", 0.6, "Solveig")
    assert said("How much is the other, if one is €412.50?", 0.6, 0.0, 0.2) == ("€412.50", 0.6, "€412.50")
    cost = "What does the guesthouse cost?"
    assert said(cost, 0.03, 0.0, 0.6) == ("€412.50", 0.03, "€412.50")
    assert said("Who owns it?", 0.6, 0.3, 0.1) == ("Solveig", 0.1, "Solveig")
    assert said("What is good about it?", 0.6, 0.3, 0.1) == ("€412.50", 0.6, "€412.50")


def test_more_or_less_of_an_answer_is_no_other_answer() -> None:
    text = "The first was the Soviet probe Venera 7, in 1970; Mars 3 came later. Venera 9 sent pictures."
    passage = Passage(0, "Landings on planets", text)

    def place(words: str) -> tuple[int, int]:
        return text.index(words), text.index(words) + len(words)

    names = ("Venera 7", "Soviet probe Venera 7", "Mars 3", "probe Venera 7, in 1970", "Venera 9")
    starts, ends = zip(*map(place, names), (-10, 0), (-7, 0), strict=True)  # the last two are in the title
    p = np.array([[0.4, 0.2, 0.1, 0.08, 0.05, 0.04, 0.03]])
    spans = Spans(np.array([starts]), np.array([ends]), p)
    answer = combine([passage], np.ones(1), spans, Way())
    assert (answer.answer, answer.probability) == ("Venera 7", 0.4)
    assert [other.words for other in answer.others] == ["Mars 3", "Venera 9", "on planets"]
    released = combine([passage], np.ones(1), spans, Way(released=True))
    assert [other.words for other in released.others][:2] == ["Soviet probe Venera 7", "Mars 3"]


def slow_combine(
    passages: list[Passage], p_K: list[float], spans: list[list[tuple[int, int, float]]]
) -> tuple[dict[str, float], list[float]]:
    """p(y|x) by words, one span after the other; and the best of those whose places do not overlap."""
    total: defaultdict[str, float] = defaultdict(float)
    place: dict[str, tuple[float, int, set[int]]] = {}  # the likeliest of each
    for number, (passage, weight, found) in enumerate(zip(passages, p_K, spans, strict=True)):
        for start, end, p in found:
            words = passage.text[start:end].casefold().strip(string.punctuation + " \t\n«»“”„‘’–—…")
            words = " ".join(words.split())
            total[words] += weight * p
            here = (weight * p, number, set(range(start, end)))
            place[words] = max(place.get(words, here), here, key=lambda item: item[0])
    total = defaultdict(float, {words: p for words, p in total.items() if words and p > 0})
    named: list[str] = []
    for words in sorted(total, key=total.__getitem__, reverse=True):
        _, number, taken = place[words]
        if not any(place[other][1] == number and place[other][2] & taken for other in named):
            named.append(words)
    return total, [total[words] for words in named[: 1 + OTHERS]]


@given(st.data())
@settings(max_examples=200)
def test_answers_are_summed_by_their_words(data: st.DataObject) -> None:
    pieces = st.sampled_from(
        ["heron", "Heron", "otter", "ß", "SS", " ", "  ", "\n", "\xa0", "\u3000", ",", "“", "—"]
    )
    texts = data.draw(st.lists(st.lists(pieces, min_size=1, max_size=8).map("".join), min_size=1, max_size=3))
    passages = [Passage(number, "", text) for number, text in enumerate(texts)]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    p_K = rng.dirichlet(np.ones(len(texts)))
    starts = np.array([[rng.integers(0, len(text)) for _ in range(6)] for text in texts])
    ends = np.array(
        [[rng.integers(a, len(t)) + 1 for a in row] for row, t in zip(starts, texts, strict=True)]
    )
    p_KS = -np.sort(-rng.random((len(texts), 6)), axis=1) * (rng.random((len(texts), 6)) < 0.8)
    spans = [
        list(zip(*rows, strict=True))
        for rows in zip(starts.tolist(), ends.tolist(), p_KS.tolist(), strict=True)
    ]
    total, best = slow_combine(passages, p_K.tolist(), spans)
    answer = combine(passages, p_K, Spans(starts, ends, p_KS), Way(merged=False, kept=None))
    named = [answer.probability, *(other.probability for other in answer.others)]
    assert named == pytest.approx(best or [0.0])
    places = [read.passage[read.start : read.end] for read in answer.evidence if read.start is not None]
    assert len(set(same_words(places))) == (1 if total else 0)
    shares = sum(read.retrieval_probability * read.reading_probability for read in answer.evidence)
    assert shares == pytest.approx(answer.probability)


def turing(text: str, *spans: tuple[str, float]) -> tuple[list[Passage], np.ndarray, Spans]:
    """Spans of a text, each the first with its words, with p(s|z,x)."""
    starts = np.array([[text.index(words) for words, _ in spans]])
    ends = starts + np.array([[len(words) for words, _ in spans]])
    return [Passage(0, "", text)], np.ones(1), Spans(starts, ends, np.array([[p for _, p in spans]]))


def test_spans_that_overlap_are_one_answer() -> None:
    read = turing(
        "Alan Turing, a mathematician, knew of Bartolomeo Cristofori.",
        *(("Alan Turing", 0.45), ("Turing", 0.23), ("Bartolomeo Cristofori", 0.14), ("Cristofori", 0.03)),
        *(("mathematician", 0.029), ("Bartolomeo", 0.027)),
    )
    answer = combine(*read, Way(merged=True))
    assert answer.answer == "Alan Turing"
    assert answer.probability == pytest.approx(0.68)
    assert answer.evidence[0].reading_probability == pytest.approx(0.68)
    assert (answer.evidence[0].start, answer.evidence[0].end) == (0, 11)
    assert [other.words for other in answer.others] == ["Bartolomeo Cristofori", "mathematician"]
    assert [other.probability for other in answer.others] == pytest.approx([0.197, 0.029])
    separate = combine(*read, Way(merged=False))
    assert [(separate.answer, separate.probability)] == [("Alan Turing", 0.45)]
    others = [(other.words, other.probability) for other in separate.others]
    assert others == [("Bartolomeo Cristofori", 0.14), ("mathematician", 0.029)]


def test_an_answer_is_whole_as_it_is_in_its_likeliest_place() -> None:
    """ "February" is one answer of two places, but the dates there are not one."""
    texts = ["It was signed on 28 February 2028.", "It was signed on 3 February 2025."]
    passages = [Passage(number, "", text) for number, text in enumerate(texts)]
    starts = np.array([[text.index("February")] for text in texts])
    spans = Spans(starts, starts + len("February"), np.array([[0.5], [0.9]]))
    answer = combine(passages, np.array([0.5, 0.5]), spans, Way())
    assert answer.answer == "3 February 2025"
    first = answer.evidence[0]
    assert first.start is not None
    assert first.passage[first.start : first.end] == answer.answer


def test_a_long_span_does_not_make_its_parts_one() -> None:
    read = turing("Paris, Rome and Oslo", ("Paris", 0.4), ("Oslo", 0.3), ("Paris, Rome and Oslo", 0.1))
    answer = combine(*read, Way(merged=True))
    assert (answer.answer, answer.probability) == ("Paris", pytest.approx(0.5))
    assert [(other.words, other.probability) for other in answer.others] == [("Oslo", 0.3)]


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 6), st.integers(1, 4), st.floats(0.01, 1)), max_size=10
    )
)
def test_merging_loses_no_probability_and_only_takes_what_overlaps(
    drawn: list[tuple[int, int, int, float]],
) -> None:
    places = [(number, start, start + width) for number, start, width, _ in drawn]
    p = [value for *_, value in drawn]
    words = [f"{number}:{start}-{end}" for number, start, end in places]
    total: defaultdict[str, float] = defaultdict(float)
    for word, value in zip(words, p, strict=True):
        total[word] += value
    merged = merge_overlapping(places, p, words, total)
    for word in set(merged):
        group = [place for place, of in enumerate(merged) if of == word]
        assert word in [words[place] for place in group]
        assert total[word] == max(total[words[place]] for place in group)
        assert len({places[place][0] for place in group}) == 1, "of one passage"
        reached = [places[group[0]]]
        for _ in group:  # all are connected
            reached = [
                places[b] for b in group if any(places[b][1] < y and x < places[b][2] for _, x, y in reached)
            ]
        assert len(reached) == len(group)


def test_every_white_space_is_a_gap() -> None:
    spaces = {chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()}
    assert set(GAPS) == spaces - {" "} | {"  "}


def test_long_quotes_are_cut_between_words_and_say_so() -> None:
    words = " ".join(f"word{number}" for number in range(200))
    passage = f"{words} here {words}"
    start = passage.index("here")
    before, span, after = Evidence(1, "", passage, start, start + 4, 1.0, 1.0).quote()
    assert span == "here"
    assert (before[:6], before[-8:], after[:6], after[-1]) == ("…word1", "word199 ", " word0", "…")
    assert max(len(before), len(after)) <= 241
    assert all(word.strip("…") in words.split() for word in (before + after).split())


def test_a_piece_of_a_word_is_said_to_be_one(answerer: Answerer, monkeypatch: pytest.MonkeyPatch) -> None:
    number = int(answerer.corpus.ids[0])
    passage = replace(answerer.corpus[number], text="Haruka Tanaka pays 38,750 a month to Paris.")
    monkeypatch.setattr(type(answerer.corpus), "__getitem__", lambda *_: passage)
    filled = {
        words: answerer._filled(words, [None, number], [0.1, 0.9], [0.1, 0.8])
        for words in ("ha", "750", "paris", "oslo")
    }
    assert [answer.caution.partition("”")[0] for answer in filled.values()] == [
        "perhaps a part of “Haruka",
        "perhaps a part of “38,750",
        "",
        "",
    ]
    assert filled["ha"].evidence[0].passage_id == passage.id, "what says so most comes first"


def test_what_a_document_says_cannot_steer_a_terminal() -> None:
    evidence = Evidence(1, "t\x1b[2J", "It \x1b]0;owned\x07 is here.", 15, 17, 1.0, 1.0, "a\x9b.txt")
    assert not any(
        ord(letter) < 32 or 127 <= ord(letter) < 160
        for letter in "".join(evidence.quote()) + evidence.where()
    )


def test_packed_reading_gives_the_same_answers(answerer: Answerer) -> None:
    questions = [
        "Which food is Tekebra famous for?",
        "Who?",
        "Where does the heron live in the town of Tekebra?",
    ]
    padded = answerer.ask(questions, read=7)
    model = answerer.model
    packed = Answerer(model, answerer.corpus, answerer.retriever)
    assert packed.resident is None, "not on a CPU"
    device = torch.device("cpu")
    packed.resident = Resident.of(answerer.corpus, model.config, model.wordpieces, device=device)
    for one, other in zip(padded, packed.ask(questions, read=7), strict=True):
        assert other.answer == one.answer
        assert other.probability == pytest.approx(one.probability, rel=1e-4)
        assert [item.passage_id for item in other.evidence] == [item.passage_id for item in one.evidence]
        assert [item.start for item in other.evidence] == [item.start for item in one.evidence]
