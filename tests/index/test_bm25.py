"""Word matching against a plain loop over words, for a corpus as it was made and after edits."""

import math
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from realmlm.corpus.build import cut_articles
from realmlm.corpus.store import Corpus, SegmentWriter
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import ArtefactDamaged, NotEnough
from realmlm.index import bm25
from realmlm.index.bm25 import BM25Index
from realmlm.index.words import Words
from realmlm.sources.article import Article
from realmlm.storage.artefacts import publish

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
PIECES = [
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
    "quill",
    "##olt",
    "ve",
    "##ld",
    "tov",
    ".",
    "-",
    "'",
]
WORDPIECES = Wordpieces.from_pieces(PIECES)
WORDS = ["quill", "zarn", "Oltmar", "quillolt", "veld.", "tove", "x", "1871", "veld-tove", "—"]
sentences = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
articles = st.builds(Article, st.sampled_from(["", "Zarn", "Old veld"]), sentences)
passages = st.lists(articles, min_size=1, max_size=10)


def write(folder: Path, made: list[Article]) -> Corpus:
    with publish(folder, kind="corpus") as draft:
        writer = SegmentWriter(draft.path, token_dtype=WORDPIECES.dtype)
        writer.append(cut_articles(made, WORDPIECES, max_wordpieces=64))
        writer.close()
        WORDPIECES.save(draft.path / "tokenizer.json")
        draft.config["max_wordpieces"] = 64
    return Corpus.open(folder)


def encoded(queries: list[str]) -> list[np.ndarray]:
    return [WORDPIECES.encode_query(query) for query in queries]


def terms(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def plain(corpus: Corpus, query: str) -> dict[int, float]:
    """Lucene's variant in float64: idf = log(1 + (N − df + 1/2) / (df + 1/2)), tf / (tf + k1 (1 − b + b
    length / mean length))."""
    split = {n: [*terms(corpus[n].title), *terms(corpus[n].text)] for n in corpus.ids.tolist()}
    mean = sum(map(len, split.values())) / len(split)
    scores = dict.fromkeys(split, 0.0)
    for word in terms(query):
        df = sum(word in words for words in split.values())
        for number, words in split.items():
            if tf := words.count(word):
                length = 1 - bm25.B + bm25.B * len(words) / mean
                idf = math.log(1 + (len(split) - df + 0.5) / (df + 0.5))
                scores[number] += idf * tf / (tf + bm25.K1 * length)
    return scores


def check(index: BM25Index, corpus: Corpus, queries: list[str], k: int) -> None:
    ids = torch.from_numpy(corpus.ids).expand(len(queries), -1)
    found = index.search(encoded(queries), k, ask_QC=ids)
    assert found.hits.scores_QK.shape == found.hits.ids_QK.shape == (len(queries), k)
    assert torch.equal(index.scores(encoded(queries), ids), found.asked_QC)
    rows = zip(
        queries, found.hits.scores_QK.tolist(), found.hits.ids_QK.tolist(), found.asked_QC, strict=True
    )
    for query, scores, best, asked in rows:
        truth = plain(corpus, query)
        assert asked.tolist() == pytest.approx(list(truth.values()), abs=2e-3)
        known = dict(zip(corpus.ids.tolist(), asked.tolist(), strict=True))
        assert scores == [known[number] for number in best]
        assert best == sorted(known, key=lambda number: (-known[number], number))[:k]


@given(passages, st.lists(sentences, max_size=4), st.sampled_from([("cpu",), ()]), st.data())
@settings(max_examples=40)
def test_against_a_plain_loop_also_after_edits(
    made: list[Article], queries: list[str], one_by_one: tuple[str, ...], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        patch.setattr(bm25, "ONE_BY_ONE", one_by_one)
        corpus = write(Path(scratch) / "corpus", made)
        index = BM25Index(corpus)
        check(index, corpus, queries, data.draw(st.integers(1, len(corpus))))
        for _ in range(4):
            touched = data.draw(st.permutations(corpus.ids.tolist()))
            replaced = data.draw(st.integers(0, len(touched)))
            kept = data.draw(st.integers(replaced, len(touched)))
            new = data.draw(st.lists(articles, min_size=1, max_size=3))
            replacing = {number: data.draw(articles) for number in touched[:replaced]}
            corpus, _ = corpus.edit(add=new, replace=replacing, remove=touched[kept:])
            index.follow(corpus)
            check(index, corpus, queries, data.draw(st.integers(1, len(corpus))))
        check(BM25Index(corpus), corpus, queries, len(corpus))


def test_an_edit_counts_what_it_changed_not_all_edits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write(tmp_path / "corpus", [Article("", "quill zarn")] * 70)
    index = BM25Index(corpus)
    counted: list[int] = []
    count = bm25.count_words

    def noted(words: Words, corpus: Corpus, ids: np.ndarray) -> bm25.Postings:
        counted.append(len(ids))
        return count(words, corpus, ids)

    monkeypatch.setattr(bm25, "count_words", noted)
    for number in range(64):
        corpus, (new,) = corpus.edit(
            add=[Article("", f"veld {number}")],
            replace={number: Article("", "tove")},
            remove=[65] * (not number),
        )
        index.follow(corpus)
    assert sum(counted) < 64 * 3 * 8, "all that was edited, at each of 64 edits, were 64 · 64"
    corpus, _ = corpus.edit(remove=[0, new, 69])
    index.follow(corpus)
    check(index, corpus, ["quill", "tove zarn", "veld 5", "nowhere"], 9)


def test_many_passages_with_ties_over_groups(tmp_path: Path) -> None:
    """More than a group of ids, nearly all of them alike."""
    made = [Article("", "quill zarn" if n % 50 else "quill veld quill") for n in range(300)]
    corpus = write(tmp_path / "corpus", made)
    for k in (1, 3, 6, 7, 100, 300):
        check(BM25Index(corpus), corpus, ["quill", "zarn", "veld zarn", "nowhere", ""], k)


def test_what_is_excluded_is_not_found_and_what_is_hidden_still_has_a_score(tmp_path: Path) -> None:
    corpus = write(
        tmp_path / "corpus", [Article("", text) for text in ("quill", "quill", "zarn", "quill zarn")]
    )
    query = encoded(["quill"])
    exclude = torch.tensor([[0, -1]])
    assert BM25Index(corpus).search(query, 3, exclude_QE=exclude).hits.ids_QK.tolist() == [[1, 3, 2]]
    few = BM25Index(corpus, only=np.array([1, 2]))
    found = few.search(query, 2, ask_QC=torch.tensor([[0, 2]]))
    assert found.hits.ids_QK.tolist() == [[1, 2]]
    assert found.asked_QC.tolist() == [[found.hits.scores_QK[0, 0].item(), 0.0]]
    never_there = torch.tensor([[0, 3, 99, -1]])
    assert few.search(query, 2, exclude_QE=never_there).hits.ids_QK.tolist() == [[1, 2]]
    with pytest.raises(NotEnough, match="4 passages asked for, the index holds 3"):
        BM25Index(corpus).search(query, 4, exclude_QE=exclude)


def test_common_words_say_nothing_where_passages_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write(tmp_path / "corpus", [Article("", text) for text in ("quill", "quill", "zarn", "quill x")])
    monkeypatch.setattr(bm25, "FEW", 2)
    assert BM25Index(corpus).search(encoded(["quill zarn"]), 4).hits.ids_QK.tolist() == [[2, 0, 1, 3]]
    monkeypatch.setattr(bm25, "FEW", 3)
    scores = BM25Index(corpus).search(encoded(["quill zarn"]), 4).hits.scores_QK
    assert (scores > 0).all()


def test_a_long_passage_and_a_word_said_often(tmp_path: Path) -> None:
    """Beyond what is counted, more makes no difference."""
    with publish(tmp_path / "corpus", kind="corpus") as draft:
        writer = SegmentWriter(draft.path, token_dtype=WORDPIECES.dtype)
        texts = [" ".join(["quill"] * 40), " ".join(["quill"] * 31 + ["zarn"] * 9), " ".join(["x"] * 1500)]
        made = [Article("", text) for text in texts]
        writer.append(cut_articles(made, WORDPIECES, max_wordpieces=2000))
        writer.close()
        WORDPIECES.save(draft.path / "tokenizer.json")
        draft.config["max_wordpieces"] = 2000
    corpus = Corpus.open(tmp_path / "corpus")
    scores = BM25Index(corpus).search(encoded(["quill", "x"]), 3).hits
    assert scores.ids_QK.tolist() == [[0, 1, 2], [2, 0, 1]]
    assert scores.scores_QK[0, 0] == scores.scores_QK[0, 1] > 0


def test_words_are_kept_beside_the_corpus_and_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write(tmp_path / "corpus", [Article("", "quill zarn")])
    BM25Index(corpus)
    assert "counting words" in capsys.readouterr().err
    corpus, _ = corpus.edit(add=[Article("", "veld")])
    assert BM25Index(corpus).search(encoded(["veld"]), 2).hits.ids_QK.tolist() == [[1, 0]]
    assert "counting words" not in capsys.readouterr().err
    (kept,) = (corpus.folder / "bm25").glob("[!.]*/bm25.safetensors")
    kept.write_bytes(kept.read_bytes()[:-1] + b"\7")
    with pytest.raises(ArtefactDamaged):
        BM25Index(corpus)


def test_everything_removed_and_written_anew(tmp_path: Path) -> None:
    corpus = write(tmp_path / "corpus", [Article("", "quill"), Article("", "zarn")])
    index = BM25Index(corpus)
    corpus, _ = corpus.edit(add=[Article("", "veld quill")], remove=[0, 1])
    index.follow(corpus)
    check(index, corpus, ["quill", "zarn"], 1)
    assert len(index) == 1


def test_words_do_not_depend_on_how_they_were_cut() -> None:
    """Pieces that continue each other are one word, whatever stands between words."""
    words = Words(WORDPIECES)

    def numbers(text: str) -> list[int]:
        return words.of(WORDPIECES.encode_query(text))[0].tolist()

    assert numbers("quillolt") == words.of(WORDPIECES.encode("quil" + "lolt"))[0].tolist()
    spelled = [WORDPIECES.tokenizer.token_to_id(piece) for piece in ["q", *(f"##{x}" for x in "uillolt")]]
    assert numbers("quillolt") == words.of(np.array(spelled))[0].tolist()
    assert numbers("Veld-tove. x") == [*numbers("veld"), *numbers("TOVE"), *numbers("x")]
    assert numbers("quill [MASK] zarn") == [*numbers("quill"), *numbers("zarn")]
    assert numbers("— . '") == []
    assert len({*numbers("ab ba a b aab abb 12 21")}) == 8
    # a text that begins with a continuing piece begins a word all the same
    continuing = np.array([WORDPIECES.tokenizer.token_to_id("##ld")] * 2)
    assert len(words.of(continuing, np.array([0, 1]))[0]) == 2
    assert len(words.of(continuing)[0]) == 1
