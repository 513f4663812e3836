import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realmlm.errors import NotEnough
from realmlm.index.bm25 import BM25Index

pytest.importorskip("bm25s")
WORDS = ["quill", "zarn", "Oltmar", "the", "and", "veld", "tove", "x", "1871"]
texts = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)
corpora = st.dictionaries(st.integers(0, 50), texts, min_size=1, max_size=12).filter(
    lambda corpus: any(terms(text) for text in corpus.values())
)


def terms(text):
    return [word for word in re.findall(r"\w\w+", text.lower()) if word not in ("the", "and")]


def plain_bm25(corpus, query, k1=1.5, b=0.75):
    """Lucene's variant in float64: idf = log(1 + (N - df + 1/2)/(df + 1/2)), tf/(tf + k1(1 - b + b
    length/mean length))."""
    split = {passage: terms(text) for passage, text in corpus.items()}
    mean = sum(map(len, split.values())) / len(split)
    scores = dict.fromkeys(split, 0.0)
    for word in terms(query):
        df = sum(word in words for words in split.values())
        for passage, words in split.items():
            if tf := words.count(word):
                scores[passage] += (
                    math.log(1 + (len(split) - df + 0.5) / (df + 0.5))
                    * tf
                    / (tf + k1 * (1 - b + b * len(words) / mean))
                )
    return scores


@given(corpora, st.lists(texts, max_size=4), st.data())
@settings(max_examples=100, deadline=None)
def test_against_plain_bm25(corpus, queries, data):
    k = data.draw(st.integers(1, len(corpus)))
    scores_QK, ids_QK = BM25Index(corpus.items()).search(queries, k)
    assert scores_QK.dtype == np.float32
    assert ids_QK.dtype == np.int64
    assert scores_QK.shape == ids_QK.shape == (len(queries), k)
    for query, scores, ids in zip(queries, scores_QK, ids_QK, strict=True):
        truth = plain_bm25(corpus, query)
        assert scores == pytest.approx([truth[passage] for passage in ids], abs=1e-5)
        assert scores == pytest.approx(sorted(truth.values(), reverse=True)[:k], abs=1e-5)
        assert all(
            first < second
            for first, second, a, b in zip(ids, ids[1:], scores, scores[1:], strict=False)
            if a == b
        )


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_ties_go_to_the_smallest_id(k, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    corpus = [(9, "quill zarn"), (3, "quill zarn"), (7, "veld tove"), (5, "quill zarn"), (1, "veld tove")]
    _, ids_QK = BM25Index(iter(corpus)).search(["quill", "veld", "", "unknown"], k)
    assert ids_QK.tolist() == [
        [3, 5, 9, 1, 7][:k],
        [1, 7, 3, 5, 9][:k],
        [1, 3, 5, 7, 9][:k],
        [1, 3, 5, 7, 9][:k],
    ]


def test_refuses():
    index = BM25Index([(1, "quill"), (2, "zarn")])
    with pytest.raises(NotEnough, match="3 passages asked for, the index holds 2"):
        index.search(["quill"], 3)
    with pytest.raises(NotEnough, match="no word to index in 1 passages"):
        BM25Index([(1, "the !")])
    with pytest.raises(NotEnough, match="no word to index"):
        BM25Index([])
