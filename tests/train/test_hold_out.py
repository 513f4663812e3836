"""What is held out is found by what it says: in the corpus it was made of, with an article more, in another
cut."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from realmlm.corpus.questions import Question, write_questions
from realmlm.corpus.spans import mark_spans
from realmlm.corpus.store import Corpus
from realmlm.corpus.taggers import PhraseTagger
from realmlm.evaluation.clozes import make_clozes
from realmlm.settings import JointOptim, Loop, Optim, Pretrain, Refresh, Warmup
from realmlm.sources.article import Article
from realmlm.train import hold_out
from realmlm.train.data import ClozePairs, SentenceSource
from realmlm.train.hold_out import held_out_passages
from tests.calls import build_corpus, run_pretrain, run_warmup

LOOP = Loop(threads=1, device="cpu", log_every=1)
SYLLABLES = [first + last for first in "bdfgklmnprst" for last in ("a", "e", "i", "o", "u", "an", "el", "or")]


@pytest.fixture(scope="module")
def articles() -> list[dict[str, str]]:
    """Articles of random words: no four in a row stand twice."""
    rng = random.Random(0)

    def sentence(words: int) -> str:
        drawn = ["".join(rng.choices(SYLLABLES, k=rng.randint(2, 3))) for _ in range(words)]
        return " ".join(drawn).capitalize() + "."

    made = [" ".join(sentence(rng.randint(7, 30)) for _ in range(12)) for _ in range(25)]
    return [{"title": f"T{number}", "text": text} for number, text in enumerate(made)]


@pytest.fixture(scope="module")
def build(articles: list[dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Corpus]:
    folder = tmp_path_factory.mktemp("cuts")
    (folder / "words.jsonl").write_text("\n".join(map(json.dumps, articles)))
    tokenizer = build_corpus(
        [folder / "words.jsonl"], folder / "first", train_tokenizer=600, workers=1
    ).folder

    def built(max_wordpieces: int, rows: list[dict[str, str]] = articles) -> Corpus:
        place = folder / f"corpus{len(list(folder.iterdir()))}"
        (folder / f"{place.name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return build_corpus(
            [folder / f"{place.name}.jsonl"],
            place,
            tokenizer=str(tokenizer),
            max_wordpieces=max_wordpieces,
            workers=1,
        )

    return built


@pytest.fixture(scope="module")
def whole(build: Callable[..., Corpus], articles: list[dict[str, str]]) -> Corpus:
    corpus = build(160)
    mark_spans(
        corpus,
        PhraseTagger(sorted({word for row in articles for word in row["text"].split()[3::9]})),
        workers=1,
    )
    return corpus


@pytest.fixture
def held(whole: Corpus, tmp_path: Path) -> Path:
    write_questions(tmp_path / "held.jsonl", make_clozes(whole, count=20, max_query=150, seed=0))
    return tmp_path / "held.jsonl"


def sentences(whole: Corpus) -> list[str]:
    return [
        cloze.text.replace("[MASK]", cloze.answers[0])
        for cloze in make_clozes(whole, count=20, max_query=150, seed=0)
    ]


def letters(text: str) -> str:
    return "".join(text.lower().split())


def test_in_the_corpus_it_was_made_of_it_is_the_passages_it_names(whole: Corpus, held: Path) -> None:
    clozes = make_clozes(whole, count=20, max_query=150, seed=0)
    assert held_out_passages(whole, held) == sorted(
        cloze.source for cloze in clozes if cloze.source is not None
    )
    assert held_out_passages(whole, None) == []


def test_every_copy_of_a_passage_is_held_out(
    build: Callable[..., Corpus], articles: list[dict[str, str]], whole: Corpus, held: Path
) -> None:
    twice = build(160, [*articles, *articles])  # the ids of the first copies are those that the file names
    expected = [
        number
        for number in twice.ids.tolist()
        if any(sentence in twice[number].text for sentence in sentences(whole))
    ]
    assert held_out_passages(twice, held) == expected
    assert len(expected) == 40


def test_a_sentence_cut_within_a_word_is_held_out_where_it_says_it_stands(
    whole: Corpus, tmp_path: Path
) -> None:
    text = whole[5].text.split(".")[0][1:]
    write_questions(
        tmp_path / "cut.jsonl",
        [Question(text.replace(text.split()[3], "[MASK]"), (text.split()[3],), source=5)],
    )
    assert held_out_passages(whole, tmp_path / "cut.jsonl") == [5]


def test_an_article_more_moves_every_id_and_hides_nothing(
    build: Callable[..., Corpus], articles: list[dict[str, str]], whole: Corpus, held: Path
) -> None:
    more = build(
        160, [{"title": "New", "text": "One more article stands here. It is about nothing."}, *articles]
    )
    expected = [
        number
        for number in more.ids.tolist()
        if any(sentence in more[number].text for sentence in sentences(whole))
    ]
    assert held_out_passages(more, held) == expected
    assert len(expected) == 20


def test_an_edit_of_a_held_out_passage_loses_nothing(
    build: Callable[..., Corpus], whole: Corpus, held: Path
) -> None:
    copy = build(160)
    moved = next(cloze.source for cloze in make_clozes(whole, count=20, max_query=150, seed=0))
    assert moved is not None
    edited, (new,) = copy.edit(remove=[moved], add=[Article("Moved", copy[moved].text)])
    expected = {cloze.source for cloze in make_clozes(whole, count=20, max_query=150, seed=0)} - {moved} | {
        new
    }
    assert set(held_out_passages(edited, held)) == expected


@pytest.mark.parametrize("max_wordpieces", [24, 60, 400])
@pytest.mark.parametrize("apart", [False, True])
def test_every_passage_that_overlaps_a_sentence_in_another_cut_is_found(
    build: Callable[..., Corpus],
    articles: list[dict[str, str]],
    whole: Corpus,
    held: Path,
    max_wordpieces: int,
    apart: bool,
) -> None:
    """Also where each passage is a document of its own, cut after so many words and not at the end of a
    sentence."""
    rows = articles
    if apart:
        words = [(row["title"], row["text"].split()) for row in articles]
        rows = [
            {"title": t, "text": " ".join(w[at : at + 17])} for t, w in words for at in range(0, len(w), 17)
        ]
    cut = build(max_wordpieces, rows)
    found = set(held_out_passages(cut, held))
    place = dict[int, tuple[str, int, int]]()
    at = dict[str, int]()
    text_of = {row["title"]: letters(row["text"]) for row in articles}
    for number in cut.ids.tolist():  # passages follow each other without a gap
        title = cut[number].title
        length = len(letters(cut[number].text))
        start = at.get(title, 0)
        assert text_of[title][start : start + length] == letters(cut[number].text)
        place[number] = (title, start, start + length)
        at[title] = start + length
    overlaps = dict.fromkeys(place, 0)
    for sentence in map(letters, sentences(whole)):
        title = next(title for title, text in text_of.items() if sentence in text)
        start = text_of[title].index(sentence)
        for number, (of, first, past) in place.items():
            overlaps[number] = max(
                overlaps[number], (of == title) * (min(past, start + len(sentence)) - max(first, start))
            )
    clearly = {number for number, length in overlaps.items() if length > 40}  # four of the words and more
    assert clearly <= found <= {number for number, length in overlaps.items() if length > 0}
    assert len(clearly) >= 15


@pytest.mark.parametrize(
    ("sentence", "answer", "texts", "expected"),
    [
        (
            "[MASK] works.",
            "Tetrahydrocannabinol",
            ["Nothing is here.", "Tetrahydrocannabinol works.", "It works."],
            [1],
        ),
        (
            "The town lies by a [MASK].",
            "river",
            ["The town lies by a lake.", "It is old. The town lies\nby a river. So it is."],
            [1],
        ),
        (
            "The town lies by a [MASK].",
            "river",
            ["So it is: the town lies by.", "Town lies by a river!", "Town lies by a sea."],
            [0, 1],
        ),
        (
            "東京は日本の[MASK]である。",
            "首都",
            ["有名な東京は日本の", "日本の首都である。人口が多い。", "東京は大きい。"],
            [0, 1],
        ),
    ],
)
def test_words_tell_a_sentence_from_one_like_it(
    build: Callable[..., Corpus],
    tmp_path: Path,
    sentence: str,
    answer: str,
    texts: list[str],
    expected: list[int],
) -> None:
    corpus = build(400, [{"title": "T", "text": text} for text in texts])
    write_questions(tmp_path / "few.jsonl", [Question(sentence, (answer,), source=7)])
    assert held_out_passages(corpus, tmp_path / "few.jsonl") == expected


def test_it_is_said_where_nothing_is_found(
    whole: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_questions(
        tmp_path / "other.jsonl", [Question("Which of them is [MASK] today?", ("this",), source=0)]
    )
    assert held_out_passages(whole, tmp_path / "other.jsonl") == []
    assert "nothing needs to be held out" in capsys.readouterr().err


@pytest.mark.parametrize("stage", ["warmup", "pretrain"])
def test_no_stage_trains_on_what_was_held_out_of_another_corpus(
    stage: str, towns: Corpus, towns_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {
            "title": "Town",
            "text": "A new town lies by the sea. People like it.\n\nIt has a port. It was built.",
        }
    ]
    rows += [json.loads(line) for line in (towns.folder.parent / "towns.jsonl").read_text().splitlines()]
    (tmp_path / "more.jsonl").write_text("\n".join(map(json.dumps, rows)))
    more = build_corpus(
        [tmp_path / "more.jsonl"],
        tmp_path / "more",
        tokenizer=str(towns.folder),
        max_wordpieces=24,
        workers=1,
    )
    mark_spans(more, PhraseTagger(["heron", "badger", "otter", "falcon", "beaver"]), workers=1)
    clozes = make_clozes(towns, count=6, max_query=32, seed=0)
    write_questions(tmp_path / "held.jsonl", clozes)
    given: list[set[int]] = []
    for kind in (SentenceSource, ClozePairs):
        begin = kind.__init__

        def noted(self: Any, corpus: Corpus, *rest: Any, begin: Any = begin, **settings: Any) -> None:
            given.append(set(settings["held_out"]))
            begin(self, corpus, *rest, **settings)

        monkeypatch.setattr(kind, "__init__", noted)
    common: dict[str, Any] = {
        "model": towns_model,
        "out": tmp_path / "run",
        "hold_out": tmp_path / "held.jsonl",
        "loop": LOOP,
    }
    once = Optim(steps=1, batch=4)
    if stage == "warmup":
        run_warmup(Warmup(corpus=more.folder, reader=once, retriever=once, **common))
    else:
        joint = JointOptim(steps=1, batch=4)
        run_pretrain(
            Pretrain(
                corpus=towns.folder,
                text=more.folder,
                k=3,
                optim=joint,
                refresh=Refresh(every_steps=0),
                **common,
            )
        )
    texts = [cloze.text.replace("[MASK]", cloze.answers[0]) for cloze in clozes]
    expected = {number for number in more.ids.tolist() if any(text in more[number].text for text in texts)}
    assert given == [expected] * (2 if stage == "warmup" else 1)
    assert len(expected) == 6


@pytest.mark.parametrize("few", [99, 1], ids=["here", "in other processes"])
def test_many_processes_find_what_a_plain_loop_finds(
    few: int, build: Callable[..., Corpus], whole: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold_out, "_CHUNK", 7)
    monkeypatch.setattr(hold_out, "_FEW", few)
    monkeypatch.setattr(hold_out, "default_workers", lambda: 2)
    corpus, _ = build(24).edit(remove=[3], add=[Article("New", sentences(whole)[0])])
    texts = [*sentences(whole), "Bada."]
    known = hold_out._Sentences(texts)
    expected = [number for number in corpus.ids.tolist() if known.overlap(corpus[number].text)]
    found = hold_out._search(corpus, texts)
    assert found.tolist() == expected
    assert found.dtype == np.int64
    assert int(corpus.ids[-1]) in expected
    assert 20 <= len(expected) < len(corpus)
    assert hold_out._search(corpus, ["No sentence of any passage is this."]).tolist() == []


def test_what_was_found_is_kept_beside_the_corpus(
    build: Callable[..., Corpus], held: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The next run does not look again; other sentences, and a corpus that was edited, are looked through."""
    other = build(100)
    found = held_out_passages(other, held)
    looked: list[int] = []
    kept = hold_out.kept_beside

    def looking(corpus: Corpus, name: str, **how: Any) -> dict[str, np.ndarray]:
        def look() -> dict[str, np.ndarray]:
            looked.append(len(corpus))
            return {"passages": np.zeros(0, dtype=np.int64)}

        return kept(corpus, name, **how | {"find": look})

    monkeypatch.setattr(hold_out, "kept_beside", looking)
    assert held_out_passages(other, held) == found
    assert found
    assert not looked
    fewer = tmp_path / "fewer.jsonl"
    fewer.write_text("".join(held.read_text().splitlines(keepends=True)[:3]))
    assert held_out_passages(other, fewer) == []
    assert looked == [len(other)]
    edited, _ = other.edit(add=[Article("New", "Something else stands here.")])
    assert held_out_passages(edited, held) == []
    assert looked == [len(other), len(edited)]
