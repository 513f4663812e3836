"""What comes with the package: names that stand for places, commands and calls that need nothing else."""

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import realmlm
from realmlm import bundled
from realmlm.bundled import model_place, text_place
from realmlm.cli import main
from realmlm.corpus.store import Corpus
from realmlm.engine import Engine
from realmlm.errors import ArtefactMissing, BadInput
from realmlm.reading.records import Answer, Evidence, Words
from realmlm.sources.article import Article


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to stand in, with a cache beside it."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def mini(tiny_model_folder: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model in the place of the bundled one."""
    monkeypatch.setattr(bundled, "MODEL", tiny_model_folder)
    return tiny_model_folder


@pytest.fixture
def notes(elsewhere: Path) -> Path:
    (elsewhere / "notes").mkdir()
    (elsewhere / "notes" / "heron.txt").write_text("The heron is the bird of the town.")
    (elsewhere / "letter.txt").write_text("The badger lives in the forest.")
    return elsewhere / "notes"


# --- names --------------------------------------------------------------------------------------------------


def test_names_stand_for_places(mini: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert model_place() == model_place("mini") == model_place(Path("mini")) == mini
    assert model_place("other/mini") == Path("other/mini")
    assert text_place("pocket") == realmlm.pocket
    assert realmlm.pocket.is_file()
    assert capsys.readouterr().err == ""
    (elsewhere / "pocket").mkdir()
    assert text_place("pocket") == realmlm.pocket
    assert f"give its full path: {elsewhere / 'pocket'}\n" in capsys.readouterr().err
    assert text_place(elsewhere / "pocket") == elsewhere / "pocket"


def test_a_corpus_named_as_documents_says_which_flag_it_needs(
    mini: Path, knowledge: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["ask", "Which bird?"], ["adapt", "--out", "adapted"]):
        with pytest.raises(SystemExit):
            main([*command, "--docs", str(knowledge.folder)])
        assert (
            f"is a corpus, not a folder with documents; search it with --corpus {knowledge.folder}"
            in capsys.readouterr().err
        )


def test_a_model_of_that_name_here_is_named_by_its_path(
    mini: Path, notes: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "mini").mkdir()
    assert model_place() == mini
    assert capsys.readouterr().err == ""
    (elsewhere / "mini" / "manifest.json").write_text("{}")
    assert model_place() == mini
    assert f"give its full path: {elsewhere / 'mini'}\n" in capsys.readouterr().err
    main(["ask", "Which bird?", "--docs", "notes"])
    assert capsys.readouterr().err.count("full path") == 1
    assert model_place(elsewhere / "mini") == elsewhere / "mini"
    assert capsys.readouterr().err == ""


def test_an_installation_without_the_model_says_so(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bundled, "MODEL", elsewhere / "nowhere")
    with pytest.raises(ArtefactMissing, match="lacks the model that comes with it"):
        realmlm.load()
    with pytest.raises(SystemExit):
        main(["ask", "Which bird?", "--docs", "pocket"])
    assert "name yours: --model MODEL" in capsys.readouterr().err


# --- commands -----------------------------------------------------------------------------------------------


def test_ask_needs_a_folder_and_nothing_else(
    mini: Path, notes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["ask", "Which bird?", "--docs", "notes"])
    first = capsys.readouterr()
    assert "embedding 1 passages" in first.err
    main(["ask", "Which bird?", "--docs", "notes/", "--model", "mini"])
    second = capsys.readouterr()
    assert second.out == first.out
    assert "embedding" not in second.err
    main(["ask", "Which metal is liquid?", "--docs", "pocket", "--read", "2"])
    assert "embedding" in capsys.readouterr().err


def test_other_commands_take_the_bundled_model_too(
    mini: Path, notes: Path, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(
        [
            "corpus",
            "notes",
            "letter.txt",
            "--out",
            "corpus",
            "--tokenizer",
            "mini",
            "--max-wordpieces",
            "64",
            "--workers",
            "1",
        ]
    )
    main(["index", "--corpus", "corpus"])
    assert "2 passages" in capsys.readouterr().err
    (notes.parent / "questions.jsonl").write_text('{"question": "Which bird?", "answer": ["heron"]}\n')
    main(["evaluate", "--corpus", "corpus", "--questions", "questions.jsonl", "--read", "1"])
    main(["compress", "mini", "--out", "small"])
    arguments = [
        "--corpus",
        "corpus",
        "--questions",
        "questions.jsonl",
        "--out",
        "run",
        "--read",
        "1",
        "--candidates",
        "2",
    ]
    main(["finetune", *arguments, "--optim.steps", "1", "--optim.batch", "1", "--loop.device", "cpu"])
    assert str(mini) in (notes.parent / "run" / "run.json").read_text("utf-8")


# --- Python -------------------------------------------------------------------------------------------------


def test_load_read_ask(mini: Path, notes: Path) -> None:
    realm = realmlm.load(device="cpu")
    for early in (
        lambda: realm.ask("Which bird?"),
        lambda: realm.fill("a [MASK]"),
        lambda: realm.corpus,
        lambda: realm.find("heron"),
    ):
        with pytest.raises(BadInput, match=r"\.read\(realmlm\.pocket\)"):
            early()
    assert realm.read("notes") is realm
    assert [evidence.passage for evidence in realm.ask("Which bird?").evidence] == [
        "The heron is the bird of the town."
    ]
    assert realmlm.load(docs=notes, device="cpu").ask("Which bird?") == realm.ask("Which bird?")


def test_documents_may_lie_in_the_users_own_folder(
    mini: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(notes.parent))
    monkeypatch.chdir("/")
    assert len(realmlm.load(device="cpu").read("~/notes").corpus) == 1
    with pytest.raises(BadInput, match="~nobody-of-this-name/notes does not exist"):
        realmlm.load(docs="~nobody-of-this-name/notes", device="cpu")


def test_what_is_read_adds_up_and_follows_the_files(mini: Path, notes: Path) -> None:
    realm = realmlm.load(device="cpu").read("notes").read("letter.txt")
    assert len(realm.corpus) == 2
    (notes / "heron.txt").write_text("The stork is the bird of the town.")
    realm.read(notes)
    assert sorted(realm.corpus[number].text.split()[1] for number in realm.corpus.ids.tolist()) == [
        "badger",
        "stork",
    ]
    realm.read(notes / "heron.txt").read(notes.parent)  # within what is read, and around it
    assert len(realm.corpus) == 2
    with pytest.raises(BadInput, match="does not exist"):
        realm.read("nowhere")
    assert len(realm.corpus) == 2
    with pytest.raises(BadInput, match="change the files"):
        realm.edit(add=[Article("", "New.")])


def test_a_corpus_is_not_mixed_with_documents(mini: Path, notes: Path, knowledge: Corpus) -> None:
    realm = realmlm.load("mini", knowledge.folder, device="cpu")
    with pytest.raises(BadInput, match="realmlm edit"):
        realm.read("notes")
    with pytest.raises(BadInput, match="cannot be searched together"):
        realmlm.load("mini", knowledge.folder, docs="notes", device="cpu")
    assert isinstance(realm, Engine)


def test_several_places_are_read_at_once(mini: Path, notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    realm = realmlm.load(docs=["notes", "letter.txt"], device="cpu")
    assert len(realm.corpus) == 2
    assert capsys.readouterr().err.count("no index of") == 1  # not one by one
    with pytest.raises(BadInput, match="name a folder or file"):
        realmlm.load(device="cpu").read()


def test_documents_are_served_and_stay_as_they_are(
    mini: Path, notes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("uvicorn", reason="the service is not installed: pip install 'realmlm[serve]'")
    testclient = pytest.importorskip("fastapi.testclient")
    from realmlm.serve import command, front, listen

    served: list[Any] = []

    class Loading(front.Front):
        def __init__(self, load: Callable[[], Any], **how: Any) -> None:
            served.append(load())
            super().__init__(load, **how)

    monkeypatch.setattr(command, "Front", Loading)
    monkeypatch.setattr(listen.Server, "serve_at", lambda _, listener: listener.close())
    (notes / "photo.jpg").write_bytes(b"\0")
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        free = str(listener.getsockname()[1])
    main(["serve", "--docs", "notes", "letter.txt", "--host", "0.0.0.0", "--port", free, "--device", "cpu"])
    said = capsys.readouterr().err
    assert "can change the passages" not in said
    assert "2 passages of 2 files; 1 file of other kinds skipped: .jpg 1\n" in said
    with testclient.TestClient(served[0], raise_server_exceptions=False) as client:
        assert client.get("/health").json()["passages"] == 2
        assert len(client.post("/ask", json={"question": "Which bird?", "read": 2}).json()["evidence"]) == 2
        new = {"title": "", "text": "The stork brings letters."}
        for refused in (
            client.post("/passages", json=new),
            client.put("/passages/0", json=new),
            client.delete("/passages/0"),
        ):
            assert refused.status_code == 400
            assert refused.json()["error"] == {
                "code": "bad_input",
                "message": refused.json()["error"]["message"],
            }
            assert "change the files" in refused.json()["error"]["message"]
    for wrong in ([], ["--docs", "notes", "--corpus", "corpus"]):
        with pytest.raises(SystemExit):
            main(["serve", *wrong])
        assert "either --docs FOLDER or --corpus CORPUS" in capsys.readouterr().err


def test_more_passages_than_there_are_cannot_be_read(mini: Path, notes: Path) -> None:
    realm = realmlm.load(device="cpu").read("notes")
    assert len(realm.ask("Which bird?", read=7).evidence) == 1
    with pytest.raises(BadInput, match="1 or more"):
        realm.ask("Which bird?", read=0)


# --- an answer for people -----------------------------------------------------------------------------------

PASSAGE = "Zabriso lies on a hill.\nIt was founded in 1727 & <rebuilt> later."


def answer() -> Answer:
    start = PASSAGE.index("1727")
    read = Evidence(7, "Zabriso <town>", PASSAGE, start, start + 4, 0.75, 0.5)
    unread = Evidence(8, "", "x" * 300, None, None, 0.2, 0.0)
    return Answer("1727", 0.4, (read, unread, Evidence(None, "", "", None, None, 0.05, 0.1)))


def test_it_prints_the_words_how_sure_and_where_they_stand() -> None:
    passage = ["  Zabriso <town> (7)", "      It was founded in »1727« & <rebuilt> later."]
    unread = "  without reading anything"
    assert str(answer()).split("\n") == [*passage, unread, "", "1727   p = 0.400"]
    likely = replace(answer(), sure="likely")
    assert str(likely).split("\n") == [*passage, unread, "", "1727   likely"]
    assert likely.text(numbers=True).split("\n") == [
        "  p(z|x) 0.750   p(y|z,x) 0.500   Zabriso <town> (7)",
        "      It was founded in »1727« & <rebuilt> later.",
        "  p(z|x) 0.200   p(y|z,x) 0.000   passage (8)",
        f"      {'x' * 240}…",
        "  p(z|x) 0.050   p(y|z,x) 0.100   without reading anything",
        "",
        "1727   p = 0.400   likely",
    ]
    others = (Words("1757", 0.031), Words("a hill", 0.02), Words("later", 0.0199))
    assert replace(likely, others=others).text(numbers=True).split("\n")[-3:] == [
        "1727   p = 0.400   likely",
        "or: 1757   p = 0.031",
        "or: a hill   p = 0.020",
    ]
    assert str(replace(likely, others=others)) == str(likely)
    assert repr(answer()) == str(answer())
    assert str(Answer("", 0.0, ())) == "(no answer)   p = 0.000"
    unsure = replace(answer(), sure="not found", caution="the documents may not say this")
    assert str(unsure).endswith("\n\n1727   not found: the documents may not say this")
    assert "may not say" in unsure._repr_html_()
    assert "may not say" not in answer()._repr_html_()


def test_a_notebook_shows_the_same_and_nothing_is_taken_for_markup() -> None:
    html = answer()._repr_html_()
    assert "<rebuilt>" not in html
    assert "&amp; &lt;rebuilt&gt; later" in html
    assert ">1727</mark>" in html
    assert "Zabriso &lt;town&gt; (7)" in html
    assert "width:75%" in html
    assert "without reading anything" in html
    selectolax = pytest.importorskip("selectolax.lexbor")
    tree = selectolax.LexborHTMLParser(html)
    assert [mark.text() for mark in tree.css("mark")] == ["1727"]
