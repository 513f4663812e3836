import multiprocessing
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realmlm.cli import main
from realmlm.corpus.build import cut_articles
from realmlm.corpus.store import Corpus, Passage, SegmentWriter
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import ArtefactDamaged, ArtefactMissing, BadInput, Mismatch
from realmlm.sources.article import Article
from realmlm.storage.arrays import ArrayWriter, map_arrays
from realmlm.storage.artefacts import open_artefact, publish

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDPIECES = Wordpieces.from_pieces([*LETTERS, *(f"##{letter}" for letter in LETTERS), "."])
MOST = 12


def write(folder, articles: list[Article]) -> Corpus:
    with publish(folder, kind="corpus") as draft:
        writer = SegmentWriter(draft.path, token_dtype=WORDPIECES.dtype)
        for article in articles:  # a block each: what is appended must join
            writer.append(cut_articles([article], WORDPIECES, max_wordpieces=MOST))
        writer.close()
        WORDPIECES.save(draft.path / "tokenizer.json")
        draft.config["max_wordpieces"] = MOST
    return Corpus.open(folder)


ARTICLES = [
    Article("One", "Abc def. Ghi jkl.", "a#1"),
    Article("Two", "Mno pqr stu vw. Xyz.", "a#2"),
    Article("", "é.", "b"),
]


@pytest.fixture
def corpus(tmp_path) -> Corpus:
    return write(tmp_path / "corpus", ARTICLES)


def test_passages_are_what_was_written(corpus):
    assert [corpus[number].text for number in corpus.ids] == [
        "Abc def.",
        "Ghi jkl.",
        "Mno pqr stu vw.",
        "Xyz.",
        "é.",
    ]
    assert [corpus[number].title for number in corpus.ids] == ["One", "One", "Two", "Two", ""]
    assert [corpus[number].source for number in corpus.ids] == ["a#1", "a#1", "a#2", "a#2", "b"]
    assert [corpus.siblings(number).tolist() for number in corpus.ids] == [[1], [0], [3], [2], []]
    for number in corpus.ids:
        encoding = WORDPIECES.tokenizer.encode(corpus[number].text, add_special_tokens=False)
        assert corpus.tokens(number).tolist() == encoding.ids
        assert [tuple(pair) for pair in corpus.token_chars(number).tolist()] == encoding.offsets
        assert corpus.title_tokens(number).tolist() == WORDPIECES.encode(corpus[number].title).tolist()
        assert corpus.sentences(number).tolist() == [0, len(encoding)]


def test_passages_are_found_by_title_text_and_source(corpus):
    def found(text: str, limit: int = 20) -> list[int]:
        return [passage.id for passage in corpus.find(text, limit=limit)]

    assert found("oNe") == [0, 1]  # a title
    assert found("STU") == [2]  # a text
    assert found("É") == [4]
    assert found("a#2") == [2, 3]  # a source
    assert found("") == [0, 1, 2, 3, 4]
    assert found("", limit=2) == [0, 1]
    assert found("Two Mno") == []  # no piece of two of them
    corpus, (new,) = corpus.edit(
        add=[Article("Straße", "Abc.")], replace={1: Article("One", "Stu.")}, remove=[2]
    )
    assert found("stu") == [1]
    assert found("STRASSE") == [new]
    assert found("abc") == [0, new]
    assert corpus.find("abc", limit=20)[1] == corpus[new]
    looked = iter([False, False, True])
    assert corpus.find("", limit=20, stop=lambda: next(looked)) == corpus.find("", limit=2)
    with pytest.raises(BadInput, match="a limit of 1 or more"):
        corpus.find("abc", limit=0)


@pytest.mark.parametrize(
    "name", ["notes/heron.txt", "Meeting #3.txt", "a #0123456789abcdef.txt", "a #0123456789ABCDEF", "a#1", ""]
)
def test_the_file_is_the_source_without_its_checksum(name):
    assert Passage(0, "", "", name).file == name
    assert Passage(0, "", "", f"{name} #0123456789abcdef").file == name


def test_the_command_shows_what_is_found(corpus, capsys):
    main(["passages", str(corpus.folder), "--find", "two", "--limit", "1"])
    assert capsys.readouterr().out.split() == ["2", "Two", "[a#2]", "Mno", "pqr", "stu", "vw."]
    main(["passages", str(corpus.folder), "--find", "nowhere"])
    assert "contains 'nowhere'" in capsys.readouterr().err


def test_what_is_not_there(corpus, tmp_path):
    for number in (-1, 5, 10**12):
        assert number not in corpus
        with pytest.raises(BadInput, match=f"no passage {number}"):
            corpus[number]
    with pytest.raises(ArtefactMissing, match="realmlm corpus"):
        Corpus.open(tmp_path / "none")


WORDS = st.sampled_from(["Abc.", "De fg.", "Hij.", "K lm no."])
EDITS = st.lists(
    st.tuples(
        st.lists(WORDS, max_size=2),
        st.lists(st.tuples(st.integers(0, 8), WORDS), max_size=2),
        st.lists(st.integers(0, 8), max_size=2),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=12, deadline=None)
@given(EDITS)
def test_edits_agree_with_a_dictionary(tmp_path_factory, edits):
    corpus = write(tmp_path_factory.mktemp("edit") / "corpus", ARTICLES)
    truth = {number: corpus[number].text for number in corpus.ids.tolist()}
    history = [dict(truth)]
    following = len(truth)
    for add, replace, remove in edits:
        present = sorted(truth)
        gone = {present[position % len(present)] for position in remove} if present else set()
        new = {present[position % len(present)]: text for position, text in replace} if present else {}
        new = {number: text for number, text in new.items() if number not in gone}
        corpus, ids = corpus.edit(
            add=[Article("new", text) for text in add],
            replace={number: Article("re", text) for number, text in new.items()},
            remove=gone,
        )
        assert ids == list(range(following, following + len(add)))
        following += len(add)
        truth = {
            number: text
            for number, text in (truth | new | dict(zip(ids, add, strict=True))).items()
            if number not in gone
        }
        history.append(dict(truth))
        assert corpus.ids.tolist() == sorted(truth)
        assert {number: corpus[number].text for number in corpus.ids.tolist()} == truth
        assert all(
            np.array_equal(corpus.tokens(number), WORDPIECES.encode(text)) for number, text in truth.items()
        )
        assert corpus.sentence_counts.tolist() == [
            len(corpus.sentences(number)) - 1 for number in sorted(truth)
        ]
        assert [number for number in range(following + 2) if number in corpus] == sorted(truth)
    for count, then in enumerate(history):
        earlier = Corpus.open(corpus.folder, edits=count)
        assert {number: earlier[number].text for number in earlier.ids.tolist()} == then
        written, removed = corpus.changes_since(count)
        caught_up = {number: text for number, text in then.items() if number not in removed} | {
            n: truth[n] for n in written
        }
        assert caught_up == truth
    assert corpus.fingerprint == Corpus.open(corpus.folder, edits=0).fingerprint


def test_edits_that_are_gone_are_missed(corpus):
    corpus.edit(remove=[0])
    shutil.rmtree(corpus.folder / "edits")
    with pytest.raises(ArtefactDamaged, match=r"had 1 edits and now has 0; restore .*edits"):
        Corpus.open(corpus.folder, edits=1)


@pytest.mark.parametrize(
    ("ids", "removed", "complaint"),
    [
        ([2**33], [], f"adds passage {2**33}, where {{past}} is next"),
        ([2**47], [0], f"adds passage {2**47}, where {{past}} is next"),
        (["past"], [2**33], f"removes passage {2**33}, which never was"),
        ([0], ["past"], "removes passage {past}, which never was"),
    ],
)
def test_whoever_wrote_an_edit_does_not_choose_how_large_arrays_are(corpus, ids, removed, complaint):
    past = len(corpus)
    corpus.edit(add=[Article("New", "Abc def.")])
    place = corpus.folder / "edits" / "000001"
    arrays = (place / "edit.safetensors").read_bytes()
    with publish(place, kind="corpus-edit", replace=True) as draft:
        (draft.path / "edit.safetensors").write_bytes(arrays)
        numbers = {"ids": ids, "removed": removed}
        draft.config |= {name: [past if n == "past" else n for n in some] for name, some in numbers.items()}
    with pytest.raises(ArtefactDamaged, match=complaint.format(past=past)):
        len(Corpus.open(corpus.folder).ids)


def test_articles_of_edits_are_their_own(corpus):
    edited, (new, *_) = corpus.edit(
        add=[Article("New", "Abc def. Ghi jkl.")], replace={0: Article("Re", "Mno.")}
    )
    assert [edited.siblings(number).tolist() for number in (0, 1, 2, new)] == [[], [], [3], []]
    assert edited[0].title == "Re"
    assert edited.title_tokens(new).tolist() == WORDPIECES.encode("New").tolist()


def test_an_edit_with_a_file_for_each_array_is_read_too(corpus):
    edited, _ = corpus.edit(
        add=[Article("New", "Abc def. Ghi jkl.")], replace={3: Article("Re", "Mno.")}, remove=[0]
    )
    state = {number: edited[number] for number in edited.ids.tolist()}
    place = corpus.folder / "edits" / "000001"
    arrays = map_arrays(place / "edit.safetensors")
    manifest = open_artefact(place, kind="corpus-edit")
    with publish(place, kind="corpus-edit", replace=True) as draft:  # as it was written once
        draft.config |= manifest.config
        for name, array in arrays.items():
            writer = ArrayWriter(draft.path / f"{name}.safetensors", array.dtype, row=array.shape[1:])
            writer.append(array)
            writer.close()
    assert len(list(place.glob("*.safetensors"))) == len(list(corpus.folder.glob("*.safetensors")))
    older = Corpus.open(corpus.folder)
    assert {number: older[number] for number in older.ids.tolist()} == state
    newer, (new,) = older.edit(add=[Article("", "Xyz.")])
    assert (newer[new].text, newer[3].text) == ("Xyz.", "Mno.")


def test_an_edit_happens_whole_or_not_at_all(corpus):
    long = "Abcd efgh. Ijkl mnop. Qrst uvwx."
    cases: list[tuple[dict[str, Any], str]] = [
        ({"replace": {0: Article("", long)}}, "must fit in one passage"),
        ({"replace": {0: Article("", long), 1: Article("", "\u200b")}}, "must fit in one passage"),
        (
            {"replace": {0: Article("", long), 1: Article("", "\u200b"), 2: Article("", "\u200b")}},
            "must fit in one passage",
        ),
        ({"remove": [5]}, "no passage 5"),
        ({"add": [Article("", "Abc.")], "replace": {9: Article("", "Abc.")}}, "no passage 9"),
        ({"remove": [1], "replace": {1: Article("", "Abc.")}}, "both"),
    ]
    for options, says in cases:
        with pytest.raises(BadInput, match=says):
            corpus.edit(**options)
    assert Corpus.open(corpus.folder).edits == 0


def test_an_edit_is_laid_over_what_others_edited_since(corpus):
    theirs, (first,) = corpus.edit(add=[Article("", "Abc.")], replace={1: Article("", "Stu.")}, remove=[0])
    for earlier in (corpus, Corpus.open(corpus.folder, edits=0)):
        for options in ({"remove": [0]}, {"replace": {1: Article("", "Vwx.")}}):
            with pytest.raises(
                BadInput, match=r"passage [01] of .* was edited since .*; open it again, then edit"
            ):
                earlier.edit(**options)
    ours, (second,) = corpus.edit(add=[Article("", "Def.")], remove=[2])
    assert (first, second) == (5, 6)
    for known in (ours, Corpus.open(corpus.folder)):
        assert {number: known[number].text for number in known.ids.tolist()} == {
            1: "Stu.",
            3: "Xyz.",
            4: "é.",
            5: "Abc.",
            6: "Def.",
        }
    assert (theirs.newest().ids.tolist(), ours.newest() is ours) == (ours.ids.tolist(), True)


def add_one_by_one(folder: Path, who: str) -> list[int]:
    """What an editor does who does not know of the others; the ids that were promised."""
    corpus = Corpus.open(folder)
    ids = []
    for letter in LETTERS[:12]:
        corpus, added = corpus.edit(add=[Article(who, f"{who} {letter}.")])
        ids += added
    return ids


def test_nothing_is_lost_where_several_edit_at_once(corpus):
    names = ("abc", "def", "ghi")
    with ProcessPoolExecutor(len(names), mp_context=multiprocessing.get_context("spawn")) as pool:
        promised = dict(
            zip(names, pool.map(add_one_by_one, [corpus.folder] * len(names), names), strict=True)
        )
    now = Corpus.open(corpus.folder)
    assert sorted(number for ids in promised.values() for number in ids) == now.ids[5:].tolist()
    for who, ids in promised.items():
        assert [now[number].text for number in ids] == [f"{who} {letter}." for letter in LETTERS[:12]]


def test_a_corpus_that_was_made_anew_must_be_opened_again(corpus):
    edited, _ = corpus.edit(remove=[0])
    shutil.rmtree(corpus.folder / "edits")
    with pytest.raises(Mismatch, match="open it again"):
        edited.edit(remove=[1])
    shutil.rmtree(corpus.folder)
    other = write(corpus.folder, ARTICLES[:2])
    with pytest.raises(Mismatch, match="open it again"):
        corpus.edit(remove=[1])
    other.edit(remove=[1])
    with pytest.raises(Mismatch, match="another corpus"):
        corpus.newest()
    assert Corpus.open(corpus.folder).ids.tolist() == [0, 2, 3]


def test_a_corpus_that_cannot_be_written_is_opened_and_searched(corpus):
    edited, _ = corpus.edit(remove=[0])
    (corpus.folder / ".edits.lock").unlink()
    corpus.folder.chmod(0o555)
    try:
        known = Corpus.open(corpus.folder)
        assert (known.newest() is known, known.ids.tolist(), len(known.find("xyz", limit=3))) == (
            True,
            edited.ids.tolist(),
            1,
        )
        assert not (corpus.folder / ".edits.lock").exists()
    finally:
        corpus.folder.chmod(0o755)


def test_arrays_cannot_be_written_back(corpus):
    before = corpus.tokens(0).tolist()
    corpus.tokens(0)[:] = 0
    assert Corpus.open(corpus.folder).tokens(0).tolist() == before
    assert np.asarray(corpus.ids).dtype == np.int64
