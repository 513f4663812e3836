"""Object stores: documents are read from URLs, results published there and opened from there, the same bytes."""

import gzip
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from realmlm.cli import main
from realmlm.corpus.questions import read_questions
from realmlm.corpus.store import Corpus
from realmlm.errors import (
    ArtefactDamaged,
    ArtefactExists,
    ArtefactMissing,
    BadInput,
    MissingExtra,
    RealmError,
)
from realmlm.index.store import open_index
from realmlm.model.realm import Realm
from realmlm.reading.retrieve import index_of
from realmlm.settings import Ask, BuildCorpus, EditCorpus
from realmlm.sources.article import Article
from realmlm.sources.files import find_files, read_articles
from realmlm.storage.artefacts import open_artefact, publish
from realmlm.storage.cache import cache_folder
from realmlm.storage.mirrors import here
from realmlm.storage.remote import mirror_of, shown, url_in, url_of
from tests.calls import build_corpus, evaluate


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def memory() -> Iterator[Any]:
    """A store in this process's memory, empty."""
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def refuse(error: RealmError) -> None:
    raise error


def contents(folder: Path) -> dict[str, bytes]:
    """All files that are not hidden."""
    files = (file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("."))
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def stored(files: Any, root: str) -> dict[str, bytes]:
    return {name.removeprefix(f"{root}/"): files.cat_file(name) for name in files.find(root)}


# --- places -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "url"),
    [
        ("s3://bucket/corpus", "s3://bucket/corpus"),
        ("s3://bucket/corpus/", "s3://bucket/corpus"),
        (Path("s3://bucket/corpus"), "s3://bucket/corpus"),
        ("memory://x", "memory://x"),
        ("notes/s3:/x", None),
        ("/tmp/a:/b", None),
        ("C:/notes", None),
    ],
)
def test_a_url_is_known_from_a_path(named: str | Path, url: str | None) -> None:
    assert url_in(named) == url
    if url:
        assert url_of(mirror_of(url)) == shown(mirror_of(url)) == url
    else:
        assert url_of(Path(named)) is None


def test_a_mirror_is_private_and_stays_in_the_cache(tmp_path: Path) -> None:
    place = mirror_of("s3://bucket/corpus")
    assert place == cache_folder() / "objects" / "s3:" / "bucket" / "corpus"
    assert (cache_folder() / "objects").stat().st_mode & 0o077 == 0
    for wrong in ("s3://../../x", "s3://bucket/../../x", "s3://bucket//x", "s3://./x"):
        with pytest.raises(BadInput, match="empty part, or one of dots"):
            mirror_of(wrong)
    assert url_of(Path("/elsewhere/realmlm/objects/s3:/bucket/corpus")) == "s3://bucket/corpus"


def test_where_a_url_means_nothing_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"^s3://bucket/corpus: name a place on this machine"):
        EditCorpus(corpus=Path("s3://bucket/corpus"), remove=(1,))
    with pytest.raises(BadInput, match=r"^s3://bucket/notes: name a place on this machine"):
        Ask(question="Who?", docs=(("s3://bucket/notes",),))  # type: ignore[arg-type]
    for name in ("file:///data/corpus", Path("file:///data/corpus"), "local:///data/corpus"):
        with pytest.raises(BadInput, match=r"is a place on this machine; name it by its path: /data/corpus$"):
            Corpus.open(name)
        with pytest.raises(BadInput, match=r"name it by its path: /data/corpus$"):
            Ask(question="Who?", corpus=Path(name))
    with pytest.raises(BadInput, match=r"^nosuch://x cannot be reached \(Protocol not known"):
        Corpus.open("nosuch://x")


def test_without_the_library_of_a_store_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingExtra, match=r"s3://bucket/corpus: .*pip install 'realmlm\[s3\]'"):
        Corpus.open("s3://bucket/corpus")


# --- documents ----------------------------------------------------------------------------------------------


def test_documents_are_read_where_they_are(notes: Path, memory: Any) -> None:
    (notes / ".hidden.txt").write_text("no")
    (notes / "more.jsonl.gz").write_bytes(gzip.compress(b'{"title": "Eel", "text": "The eel swims."}\n'))
    (notes / "picture.png").write_bytes(b"png")
    rows = {"title": ["Crow"], "text": ["The crow flies."]}
    pytest.importorskip("pyarrow.parquet").write_table(
        pytest.importorskip("pyarrow").table(rows), notes / "rows.parquet"
    )
    memory.put(str(notes), "/in/notes", recursive=True)
    place = mirror_of("memory://in/notes")
    files, unknown = find_files([place], on_bad=refuse)
    here_files, here_unknown = find_files([notes], on_bad=refuse)
    assert [file.name for file in files] == [file.name for file in here_files]
    assert [path.name for path in unknown] == [path.name for path in here_unknown] == ["picture.png"]
    assert list(read_articles([place], on_bad=refuse)) == list(read_articles([notes], on_bad=refuse))
    one = list(read_articles([place / "heron.txt"], on_bad=refuse))
    assert one == list(read_articles([notes / "heron.txt"], on_bad=refuse))
    assert not place.exists(), "nothing was fetched"


def test_a_complaint_names_the_url(memory: Any) -> None:
    with pytest.raises(BadInput, match=r"^memory://none does not exist"):
        list(read_articles([mirror_of("memory://none")], on_bad=refuse))
    memory.pipe_file("/in/bad.jsonl", b'{"text": 3}\n')
    with pytest.raises(BadInput, match=r"^memory://in/bad.jsonl, line 1: "):
        list(read_articles([mirror_of("memory://in/bad.jsonl")], on_bad=refuse))
    with pytest.raises(BadInput, match=r"^memory://none.jsonl: no such question file"):
        read_questions(mirror_of("memory://none.jsonl"))


# --- results ------------------------------------------------------------------------------------------------


def test_a_corpus_goes_there_and_comes_from_there(world: Path, knowledge: Corpus, memory: Any) -> None:
    memory.put_file(str(world / "knowledge.jsonl"), "/in/knowledge.jsonl")
    how: dict[str, Any] = {"tokenizer": str(world / "tokenizer.json"), "max_wordpieces": 64, "workers": 1}
    settings = BuildCorpus(
        sources=("memory://in/knowledge.jsonl",),  # type: ignore[arg-type]
        out="memory://out/corpus",  # type: ignore[arg-type]
        **how,
    )
    built = build_corpus(settings.sources, settings.out, **how)
    own = ["manifest.json", *open_artefact(knowledge.folder, kind="corpus").files]  # others add to the folder
    expected = {name: contents(knowledge.folder)[name] for name in own}
    assert stored(memory, "/out/corpus") == expected
    shutil.rmtree(cache_folder())  # another machine
    opened = Corpus.open("memory://out/corpus")
    assert contents(opened.folder) == expected
    assert opened[3] == built[3]
    with pytest.raises(ArtefactExists, match=r"^memory://out/corpus already exists"):
        build_corpus(settings.sources, settings.out, **how)
    with pytest.raises(BadInput, match="memory://out/corpus cannot be edited where it is"):
        opened.edit(add=[Article("New", "Some new text.", "new")])


def test_what_is_there_now_is_opened(knowledge: Corpus, sentences: Corpus, memory: Any) -> None:
    memory.put(str(knowledge.folder), "/c", recursive=True)
    assert Corpus.open("memory://c").fingerprint == knowledge.fingerprint
    inode = (mirror_of("memory://c") / "manifest.json").stat().st_ino
    Corpus.open("memory://c")
    assert (mirror_of("memory://c") / "manifest.json").stat().st_ino == inode, "fetched once"
    memory.rm("/c", recursive=True)
    memory.put(str(sentences.folder), "/c", recursive=True)
    assert Corpus.open("memory://c").fingerprint == sentences.fingerprint
    memory.rm_file("/c/manifest.json")
    with pytest.raises(ArtefactMissing, match=r"^no corpus in memory://c; make one: .* --out memory://c$"):
        Corpus.open("memory://c")


def test_edits_are_fetched_too(knowledge: Corpus, memory: Any, tmp_path: Path) -> None:
    edited = Corpus.open(shutil.copytree(knowledge.folder, tmp_path / "edited"))
    memory.put(str(edited.folder), "/c", recursive=True)
    assert Corpus.open("memory://c").edits == 0
    edited, [number] = edited.edit(add=[Article("New", "Some new text.", "new")])
    memory.put(str(edited.folder / "edits"), "/c/edits", recursive=True)
    opened = Corpus.open("memory://c")
    assert opened[number].text == "Some new text."
    again = Corpus(Path("/other/realmlm/objects/memory:/c"), opened.manifest, opened.edits)
    assert again.folder == opened.folder
    assert again[number] == opened[number]


def test_an_edit_withdrawn_there_is_neither_read_nor_published_again(
    knowledge: Corpus, tiny_model: Realm, memory: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without = shutil.ignore_patterns("index")  # which others made of what they share
    edited = Corpus.open(shutil.copytree(knowledge.folder, tmp_path / "edited", ignore=without))
    memory.put(str(edited.folder), "/c", recursive=True)
    for text in ("Some new text.", "A second one."):
        edited, _ = edited.edit(add=[Article("New", text, "new")])
    memory.put(str(edited.folder / "edits"), "/c/edits", recursive=True)
    opened = Corpus.open("memory://c")
    assert opened.edits == 2
    memory.rm("/c/edits/000002", recursive=True)
    assert Corpus.open("memory://c").edits == 1
    with pytest.raises(ArtefactDamaged, match=r"^memory://c had 2 edits and now has 1; restore memory://c/e"):
        Corpus(opened.folder, opened.manifest, opened.edits)
    memory.rm("/c/edits", recursive=True)
    again = Corpus.open("memory://c")
    assert len(again) == len(knowledge)
    capsys.readouterr()
    assert len(index_of(tiny_model, again).index) == len(knowledge)
    assert "no index of memory://c by this model yet" in capsys.readouterr().err
    assert not any("edits" in name for name in stored(memory, "/c"))
    with pytest.raises(BadInput, match=r"^no passage 100000 in memory://c: .* realmlm passages memory://c$"):
        again[100000]


def test_a_copy_that_was_damaged_here_is_told_from_what_is_there(knowledge: Corpus, memory: Any) -> None:
    memory.put(str(knowledge.folder), "/c", recursive=True)
    copy = Corpus.open("memory://c").folder
    (copy / "texts.safetensors").write_bytes(b"")
    with pytest.raises(
        ArtefactDamaged, match=rf"remove {copy}, which is a copy: memory://c is fetched again$"
    ):
        Corpus.open("memory://c")


@pytest.mark.parametrize("damage", ["file", "manifest", "gone"])
def test_what_was_damaged_there_is_not_opened(damage: str, knowledge: Corpus, memory: Any) -> None:
    memory.put(str(knowledge.folder), "/c", recursive=True)
    name = "/c/manifest.json" if damage == "manifest" else "/c/texts.safetensors"
    data = bytearray(memory.cat_file(name))
    data[len(data) // 2] ^= 1
    memory.pipe_file(name, bytes(data))
    if damage == "gone":
        memory.rm_file(name)
    wrong = "missing" if damage == "gone" else "damaged"
    with pytest.raises(ArtefactDamaged, match=rf"^memory:/{name} is {wrong}"):
        Corpus.open("memory://c")
    assert not mirror_of("memory://c").exists()


def test_it_is_there_whole_or_not_at_all(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest comes last, and goes first where it is replaced."""
    sent: list[str] = []
    put_file = type(memory).put_file

    def cut_off(self: Any, local: str, remote: str, **more: Any) -> None:
        if len(sent) == 2:
            raise ConnectionError("the network is gone")
        sent.append(remote)
        put_file(self, local, remote, **more)

    def write(replace: bool) -> None:
        with publish(mirror_of("memory://a"), kind="index", replace=replace) as draft:
            for name in ("a", "manifest-like", "z"):
                (draft.path / name).write_text(name)

    write(replace=False)
    whole = stored(memory, "/a")
    assert sorted(whole) == ["a", "manifest-like", "manifest.json", "z"]
    monkeypatch.setattr(type(memory), "put_file", cut_off)
    with pytest.raises(OSError, match=r"cannot be reached \(ConnectionError: the network is gone\)"):
        write(replace=True)
    assert sorted(stored(memory, "/a")) == ["a", "manifest-like", "z"]
    assert not here("memory://a").exists()
    monkeypatch.undo()
    write(replace=False)
    assert stored(memory, "/a") == whole


def test_an_index_that_could_not_be_sent_is_sent_the_next_time(
    knowledge: Corpus, tiny_model_folder: Path, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_all(*_: object, **__: object) -> None:
        raise PermissionError("Access Denied")

    asked = ["index", "--model", str(tiny_model_folder), "--corpus", str(knowledge.folder)]
    with monkeypatch.context() as closed:
        closed.setattr(type(memory), "put_file", refuse_all)
        with pytest.raises(SystemExit) as end:
            main([*asked, "--out", "memory://index"])
    assert end.value.code == 2
    place = mirror_of("memory://index")
    assert not place.exists()
    embedded = (place.with_name(".index.partial") / "shard-00000.safetensors").stat().st_ino
    main([*asked, "--out", "memory://index"])
    assert (place / "shard-00000.safetensors").stat().st_ino == embedded
    assert "manifest.json" in stored(memory, "/index")


def test_an_index_and_a_report_go_there(
    world: Path, knowledge: Corpus, tiny_model_folder: Path, memory: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands as they are typed."""
    plain = {name: data for name, data in contents(knowledge.folder).items() if name.count("/") == 0}
    for name, data in plain.items():
        memory.pipe_file(f"/w/corpus/{name}", data)
    memory.put(str(tiny_model_folder), "/w/model", recursive=True)
    memory.put_file(str(world / "questions-held-out.jsonl"), "/w/questions.jsonl")
    main(["spans", "memory://w/corpus", "--workers", "1"])
    made = ["--model", "memory://w/model", "--corpus", "memory://w/corpus"]
    main(["index", *made])
    main(["index", *made, "--out", "memory://w/index", "--dtype", "float32"])
    weights = Realm.from_pretrained("memory://w/model")
    assert weights.config == Realm.from_pretrained(tiny_model_folder).config
    found = sorted({name.rpartition("/")[0] for name in stored(memory, "/w/corpus")} - {""})
    assert found[0].startswith("index/")
    assert found[1:] == ["spans"]
    shutil.rmtree(cache_folder())  # another machine
    capsys.readouterr()
    asked = ["--questions", "memory://w/questions.jsonl", "--limit", "40", "--read", "2"]
    kept = ["--report", "memory://w/report.json", "--predictions", "memory://w/predictions.jsonl"]
    main(["evaluate", *made, *asked, *kept])
    assert "embedding" not in capsys.readouterr().err, "the index was fetched"
    local = evaluate(
        model=tiny_model_folder,
        corpus=knowledge.folder,
        questions=world / "questions-held-out.jsonl",
        limit=40,
        read=2,
    )
    report = json.loads(memory.cat_file("/w/report.json"))
    assert report["corpus"] == "memory://w/corpus"
    assert report["model"] == "memory://w/model"
    differs = ("seconds", "model", "corpus", "question_file")
    assert {name: value for name, value in report.items() if name not in differs} == {
        name: value for name, value in json.loads(json.dumps(local.as_json())).items() if name not in differs
    }
    assert len(memory.cat_file("/w/predictions.jsonl").splitlines()) == 40
    with pytest.raises(SystemExit):
        main(["evaluate", *made, *asked, *kept])
    assert "memory://w/report.json already exists" in capsys.readouterr().err
    main(["evaluate", *made, *asked, "--index", "memory://w/index", "--read", "0"])
    assert str(open_index(mirror_of("memory://w/index")).dtype) == "torch.float32"
    words = [*made, *asked, "--retriever", "bm25"]
    main(["evaluate", *words])
    shutil.rmtree(cache_folder())
    assert "counting words" in capsys.readouterr().err
    main(["evaluate", *words])
    assert "counting words" not in capsys.readouterr().err, "they were fetched"
    main(["ask", "Where is it?", *made, "--json"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["evidence"]
