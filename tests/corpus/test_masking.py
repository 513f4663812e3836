"""Masking schemes: invariants for any sentence, and the distributions they promise."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realmlm.corpus.masking import NAMES, Masking, RandomSpan, RandomUniform, SalientSpan, WholeWord, masking
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import BadInput

WORDPIECES = Wordpieces.from_pieces(["ta", "##ri", "##no", "lu"])
FIRST = WORDPIECES.encode("ta")[0]
INNER = WORDPIECES.encode("tari")[1]
NO_SPANS = np.zeros((0, 2), dtype=np.int64)


def words_of(tokens: np.ndarray) -> list[list[int]]:
    words: list[list[int]] = []
    for position, token in enumerate(tokens.tolist()):
        if WORDPIECES.continues[token] and words:
            words[-1].append(position)
        else:
            words.append([position])
    return words


def draws(scheme: Masking, tokens: np.ndarray, spans: np.ndarray, count: int) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(7)
    return [tuple(scheme.choose(tokens, spans, rng).tolist()) for _ in range(count)]


@st.composite
def sentences(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.array(
        [INNER if inner else FIRST for inner in draw(st.lists(st.booleans(), min_size=1, max_size=60))]
    )
    length = len(tokens)
    pairs = draw(
        st.lists(st.tuples(st.integers(0, length - 1), st.integers(1, length)), min_size=1, max_size=6)
    )
    return tokens, np.array([(start, max(start + 1, end)) for start, end in pairs])


@settings(max_examples=150, deadline=None)
@given(sentences(), st.sampled_from(NAMES), st.integers(0, 2**32 - 1))
def test_every_scheme_keeps_the_promises(
    sentence: tuple[np.ndarray, np.ndarray], name: str, seed: int
) -> None:
    tokens, spans = sentence
    before = tokens.copy()
    scheme = masking(name, WORDPIECES)
    chosen = scheme.choose(tokens, spans, np.random.default_rng(seed)).tolist()
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(range(len(tokens)))
    assert 1 <= len(chosen) <= max(1, len(tokens) - 1)
    assert (tokens == before).all()
    assert chosen == scheme.choose(tokens, spans, np.random.default_rng(seed)).tolist(), (
        "the generator alone decides"
    )


@settings(max_examples=150, deadline=None)
@given(sentences(), st.sampled_from(["whole-word", "random-span"]), st.integers(0, 2**32 - 1))
def test_words_are_masked_whole_and_within_the_budget(
    sentence: tuple[np.ndarray, np.ndarray], name: str, seed: int
) -> None:
    tokens, _ = sentence
    words = words_of(tokens)
    budget = max(1, round(0.15 * len(tokens)))
    chosen = set(masking(name, WORDPIECES).choose(tokens, NO_SPANS, np.random.default_rng(seed)).tolist())
    masked = [word for word in words if chosen & set(word)]
    if len(words) > 1:  # of a single word one piece is left to read
        assert chosen == {position for word in masked for position in word}
    if name == "whole-word":
        assert len(chosen) <= budget or len(masked) == 1
    elif len(chosen) < len(tokens) - 1:
        assert len(chosen) >= budget
        assert len(chosen) - max(map(len, masked)) < budget


@settings(max_examples=150, deadline=None)
@given(sentences(), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_salient_takes_a_span_that_is_short_enough(
    sentence: tuple[np.ndarray, np.ndarray], longest: int, seed: int
) -> None:
    tokens, spans = sentence
    candidates = [list(range(a, b)) for a, b in spans.tolist()]
    allowed = [span for span in candidates if len(span) <= longest] or [min(candidates, key=len)]
    chosen = SalientSpan(max_masks=longest).choose(tokens, spans, np.random.default_rng(seed)).tolist()
    if len(chosen) == len(tokens) - 1 and list(range(len(tokens))) in allowed:
        return  # a span over everything loses one piece
    assert chosen in allowed


def near(observed: float, expected: float, count: int) -> bool:
    """Within 5 standard errors of a share."""
    return abs(observed - expected) < 5 * (expected * (1 - expected) / count) ** 0.5


def test_salient_chooses_uniformly_among_the_short_spans() -> None:
    spans = np.array([[0, 1], [3, 5], [8, 11], [12, 23]])
    got = draws(SalientSpan(), np.full(30, FIRST), spans, 3000)
    for first, past in spans[:3].tolist():
        assert near(got.count(tuple(range(first, past))) / 3000, 1 / 3, 3000)


def test_uniform_masks_the_rate_and_every_position_alike() -> None:
    got = draws(RandomUniform(), np.full(40, FIRST), NO_SPANS, 3000)
    assert {len(positions) for positions in got} == {6}
    for position in range(40):
        assert near(sum(position in positions for positions in got) / 3000, 6 / 40, 3000)


def test_whole_word_masks_words_of_one_size_alike() -> None:
    tokens = np.array([FIRST, INNER] * 20)
    got = draws(WholeWord(WORDPIECES), tokens, NO_SPANS, 3000)
    assert {len(positions) for positions in got} == {6}
    for word in range(20):
        assert near(sum(2 * word in positions for positions in got) / 3000, 3 / 20, 3000)


def simulated_runs(length: int, budget: int, coin: random.Random) -> int:
    """How many separate runs the described process gives in a sentence of one-piece words, by tossing
    coins."""
    masked: set[int] = set()
    while len(masked) < budget:
        size = 11
        while size > 10:
            size = 1
            while coin.random() < 0.8:
                size += 1
        start = coin.choice([position for position in range(length) if position not in masked])
        for position in range(start, min(start + size, length)):
            if len(masked) < budget:
                masked.add(position)
    return sum(position - 1 not in masked for position in masked)


def test_random_span_makes_runs_like_a_simulation() -> None:
    coin = random.Random(5)
    count = 1500
    expected = np.array([simulated_runs(100, 15, coin) for _ in range(count)])
    observed = np.array(
        [
            1 + (np.diff(got) > 1).sum()
            for got in draws(RandomSpan(WORDPIECES), np.full(100, FIRST), NO_SPANS, count)
        ]
    )
    assert abs(observed.mean() - expected.mean()) < 5 * ((observed.var() + expected.var()) / count) ** 0.5
    assert observed.var() == pytest.approx(expected.var(), rel=0.25)


def test_random_span_is_more_clustered_than_uniform() -> None:
    tokens = np.full(100, FIRST)
    neighbours = [
        np.mean([(np.diff(positions) == 1).mean() for positions in draws(scheme, tokens, NO_SPANS, 300)])
        for scheme in (RandomSpan(WORDPIECES), RandomUniform())
    ]
    assert neighbours[0] > 0.6
    assert neighbours[1] < 0.25


def test_only_salient_needs_spans_and_unknown_names_list_the_known() -> None:
    assert [name for name in NAMES if masking(name, WORDPIECES).needs_spans] == ["salient"]
    with pytest.raises(BadInput, match="'spans'; choose from: salient, random-span, uniform, whole-word"):
        masking("spans", WORDPIECES)
