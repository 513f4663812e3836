"""Spans on disk against a plain loop over characters."""

import json
import multiprocessing
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realmlm.corpus.spans import Spans, _to_wordpieces, all_sentences, mark_spans, rule_tagger
from realmlm.corpus.store import Corpus
from realmlm.corpus.taggers import KINDS, Mention, PhraseTagger
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import ArtefactMissing, BadInput, Mismatch
from realmlm.sources.article import Article
from realmlm.storage.artefacts import open_artefact
from tests.calls import build_corpus

ARTICLES = {
    "Port Ellery": (
        "Port Ellery is a town on the Vorne. It was founded in 1612 by Anselm Tarrow. Ships come daily."
    ),
    "Anselm Tarrow": "Anselm Tarrow was a pilot. He died on 3 May 1640 in Port Ellery. Nobody wept.",
    "Salt marsh": "A salt marsh lies between land and sea. The Vorne has 40 km of it.",
}


def make_corpus(folder: Path, articles: dict[str, str]) -> Corpus:
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    wordpieces = Wordpieces.from_pieces(
        [*letters, *(f"##{letter}" for letter in letters), ".", "in", "the", "town", "elle"]
    )
    folder.mkdir()
    wordpieces.save(folder / "tokenizer.json")
    (folder / "articles.jsonl").write_text(
        "".join(json.dumps({"title": title, "text": text}) + "\n" for title, text in articles.items())
    )
    return build_corpus(
        [folder / "articles.jsonl"], folder / "corpus", tokenizer=str(folder / "tokenizer.json"), workers=1
    )


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return make_corpus(tmp_path / "notes", ARTICLES)


def slow_spans(
    mentions: list[Mention], sentence_start: int, chars: list[tuple[int, int]], begin: int, stop: int
) -> list[tuple[int, int]]:
    spans = []
    for mention in mentions:
        wanted = set(range(sentence_start + mention.start, sentence_start + mention.end))
        touched = [i for i in range(begin, stop) if wanted & set(range(*chars[i]))]
        if touched and len(touched) < stop - begin:
            spans.append((touched[0], touched[-1] + 1))
    return list(dict.fromkeys(spans))


def all_of(spans: Spans) -> list[tuple[int, int, int, list[list[int]]]]:
    return [
        (one.passage, one.start, one.end, one.spans.tolist()) for one in (spans[i] for i in range(len(spans)))
    ]


def surface(corpus: Corpus, spans: Spans) -> list[str]:
    found = []
    for sentence in (spans[i] for i in range(len(spans))):
        chars = corpus.token_chars(sentence.passage).tolist()
        for first, past in (sentence.spans + sentence.start).tolist():
            found.append(corpus[sentence.passage].text[chars[first][0] : chars[past - 1][1]])
    return found


def test_marks_what_the_tagger_finds_and_says_so(corpus: Corpus) -> None:
    spans = mark_spans(corpus, rule_tagger(corpus))
    expected = [
        "Port Ellery",
        "Vorne",
        "1612",
        "Anselm Tarrow",
        "Anselm Tarrow",
        "3 May 1640",
        "Port Ellery",
        "salt marsh",
        "Vorne",
        "40 km",
    ]
    assert surface(corpus, spans) == expected
    manifest = open_artefact(corpus.folder / "spans", kind="spans")
    assert manifest.config == {"tagger": "rules", "corpus_edits": 0, "kinds": list(KINDS)}
    assert manifest.counts == {"sentences": 6, "spans": 10, "name": 6, "date": 2, "quantity": 1, "term": 1}
    assert manifest.parents == {"corpus": corpus.fingerprint}


def test_a_mention_inside_a_wordpiece_widens_and_two_in_one_count_once(corpus: Corpus) -> None:
    class Halves:
        name = "halves"

        def tag(self, sentences):
            return [
                [Mention(6, 7, "name"), Mention(8, 9, "term")] if "Port Ellery is" in text else []
                for text in sentences
            ]

    assert surface(corpus, mark_spans(corpus, Halves())) == ["Elle"]


def test_a_sentence_is_never_one_span(corpus: Corpus) -> None:
    class Everything:
        name = "everything"

        def tag(self, sentences):
            return [[Mention(0, len(text), "name")] for text in sentences]

    assert len(mark_spans(corpus, Everything())) == 0
    assert len(Spans.open(corpus)) == 0


@pytest.mark.parametrize(
    ("mentions", "said"),
    [
        ([Mention(0, 4, "person")], "an unknown kind, 'person'; the kinds are: name, date, quantity, term"),
        ([Mention(3, 3, "name")], "marked 3 to 3 of the"),
        ([Mention(0, 10_000, "name")], "marked 0 to 10000 of the"),
        ([Mention(-2, 4, "name")], "count from 0 within the sentence"),
        ([(0, 4, "name")], "gave (0, 4, 'name'); give Mention(start, end, kind)"),
        ([Mention(cast(Any, 0.5), 4, "name")], "gave Mention(start=0.5, end=4, kind='name'); give Mention("),
        (None, "gave 0 lists of mentions for"),
    ],
)
def test_a_tagger_of_ones_own_is_told_what_it_does_wrong(corpus: Corpus, mentions: Any, said: str) -> None:
    class Own:
        name = "own"

        def tag(self, sentences: Sequence[str]) -> Any:
            return [] if mentions is None else [mentions for _ in sentences]

    with pytest.raises(BadInput, match=re.escape(said)):
        mark_spans(corpus, Own())


def test_another_tagger_replaces_the_spans(corpus: Corpus) -> None:
    mark_spans(corpus, rule_tagger(corpus))
    mark_spans(corpus, PhraseTagger(["pilot"]))
    assert surface(corpus, Spans.open(corpus)) == ["pilot"]


def test_any_number_of_workers_gives_the_same(tmp_path: Path) -> None:
    many = {f"{title} {number}": text for number in range(200) for title, text in ARTICLES.items()}
    corpus = make_corpus(tmp_path / "many", many)  # more than one worker marks at once
    alone = mark_spans(corpus, rule_tagger(corpus))
    fingerprint = open_artefact(corpus.folder / "spans", kind="spans").fingerprint
    assert all_of(mark_spans(corpus, rule_tagger(corpus), workers=2)) == all_of(alone)
    assert open_artefact(corpus.folder / "spans", kind="spans").fingerprint == fingerprint
    assert not multiprocessing.active_children()


def test_words_recur_in_other_passages_not_in_copies_of_their_own(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "notes", ARTICLES | {"A copy": ARTICLES["Salt marsh"]})
    recurring = mark_spans(corpus, rule_tagger(corpus)).recurring(corpus)
    assert "40 km" not in surface(corpus, recurring), "only the copy has it too"
    assert "Port Ellery" in surface(corpus, recurring)


def test_changed_passages_are_not_served(corpus: Corpus) -> None:
    mark_spans(corpus, rule_tagger(corpus))
    edited, _ = corpus.edit(
        replace={1: Article("Anselm Tarrow", "Anselm Tarrow was a cook. He died in 1641.")}, remove=[2]
    )
    assert {sentence[0] for sentence in all_of(Spans.open(edited))} == {0}
    again = mark_spans(edited, rule_tagger(edited))
    assert "1641" in surface(edited, again)
    assert {sentence[0] for sentence in all_of(again)} == {0, 1}
    # the other way round: spans newer than the view of the corpus
    before = Corpus.open(corpus.folder, edits=0)
    assert {sentence[0] for sentence in all_of(Spans.open(before))} == {0}


def test_missing_and_foreign_spans_are_errors(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(ArtefactMissing, match=f"realmlm spans {corpus.folder}"):
        Spans.open(corpus)
    mark_spans(corpus, rule_tagger(corpus))
    other = make_corpus(tmp_path / "other", {"Sea": "The sea is wide. It is deep."})
    (corpus.folder / "spans").rename(other.folder / "spans")
    with pytest.raises(Mismatch, match=f"another corpus.*realmlm spans {other.folder}"):
        Spans.open(other)


def test_all_sentences_against_a_loop(corpus: Corpus) -> None:
    edited, _ = corpus.edit(add=[Article("More", "A new one. It has two.")], remove=[0])
    for shortest in (1, 8, 15, 1000):
        expected: list[tuple[int, int, int, list[list[int]]]] = []
        for number in edited.ids.tolist():
            borders = edited.sentences(number).tolist()
            for start, end in pairwise(borders):
                if end - start >= shortest:
                    expected.append((number, start, end, []))
        assert all_of(all_sentences(edited, min_wordpieces=shortest)) == expected


@st.composite
def passages(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[int], list[list[Mention]]]:
    """Wordpieces with gaps, borders of sentences, and mentions anywhere within the sentences."""
    widths = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=12))
    chars = []
    last = 0
    for gap, width in widths:
        chars.append((last + gap, last + gap + width))
        last += gap + width
    inner = draw(st.sets(st.integers(1, len(chars) - 1), max_size=3)) if len(chars) > 1 else set()
    borders = [0, *sorted(inner), len(chars)]
    mentions = []
    for begin, stop in pairwise(borders):
        length = chars[stop - 1][1] - chars[begin][0]
        pairs = draw(st.lists(st.tuples(st.integers(0, length - 1), st.integers(1, length)), max_size=4))
        mentions.append([Mention(a, max(a + 1, b), "name") for a, b in pairs])
    return chars, borders, mentions


@settings(max_examples=200, deadline=None)
@given(passages())
def test_characters_to_wordpieces_against_a_loop(
    passage: tuple[list[tuple[int, int]], list[int], list[list[Mention]]],
) -> None:
    chars, borders, mentions = passage
    bounds = list(pairwise(borders))
    starts = [chars[begin][0] for begin, _ in bounds]
    fast = _to_wordpieces(mentions, starts, np.array(chars, dtype=np.uint16), np.array(bounds))
    slow = [
        slow_spans(own, start, chars, *bound)
        for own, start, bound in zip(mentions, starts, bounds, strict=True)
    ]
    assert [list(spans) for spans in fast] == slow
