"""The command line: its help comes from the configs, runs are resumed by their own record, and the whole way
works from end to end."""

import ast
import dataclasses
import inspect
import json
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realmlm import __version__
from realmlm import settings as kinds
from realmlm.cli import main, overview, paragraphs, parse
from realmlm.commands import COMMANDS, RESUMABLE
from realmlm.corpus.store import Corpus
from realmlm.storage.artefacts import read_manifest
from realmlm.train.run import Run, read_run

# --- help ---------------------------------------------------------------------------------------------------


def field_docs(kind: type) -> Iterator[str]:
    """The text under each field of a config and of the configs within it, read from the source."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    for before, after in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(before, ast.AnnAssign)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            yield str(after.value.value)
    for hint in get_type_hints(kind).values():
        if dataclasses.is_dataclass(hint):
            yield from field_docs(hint)  # type: ignore[arg-type]


def plain(text: str) -> str:
    """Letters and signs alone: without white space and the lines of boxes, for help is wrapped."""
    return "".join(letter for letter in text if not letter.isspace() and letter not in "│╭╮╰╯─")


def test_the_overview_lists_every_command_with_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["-h"], ["help"], []):
        main(arguments)
        assert capsys.readouterr().out == overview() + "\n"
    lines = [line.strip() for line in overview().splitlines()]
    for name, (kind, _) in COMMANDS.items():
        summary = paragraphs(kind)[0]
        assert len(summary) > 20
        assert any(line.startswith(f"{name} ") and line.endswith(f" {summary}") for line in lines)
    assert any(line.endswith('realmlm ask "…" --docs FOLDER') for line in lines[-2:])


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_field(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    text = plain(capsys.readouterr().out)
    kind = COMMANDS[name][0]
    docs = [kind.__doc__ or "", *field_docs(kind)]
    assert len(docs) >= 3 or name == "doctor"  # which has nothing to set
    assert [doc for doc in docs if plain(doc) not in text] == []
    assert ("--resumeRUN" in text) == (name in RESUMABLE)


def test_help_says_how_long_a_token_must_be() -> None:
    assert any("at least 8 characters" in doc for doc in field_docs(kinds.Serve))


@pytest.mark.parametrize(
    "flags", [["ask", "Who?", "--read", "abc"], ["corpus", "a.txt", "--out", "b", "--max-passages", "abc"]]
)
def test_what_is_no_whole_number_is_said_to_be_none(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(flags)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert plain("'abc' is not a whole number") in plain(said.out + said.err)
    assert "invalid literal" not in said.out + said.err


def test_every_field_is_explained() -> None:
    for kind in {
        *(kind for kind, _ in COMMANDS.values()),
        kinds.Optim,
        kinds.JointOptim,
        kinds.Loop,
        kinds.Refresh,
    }:
        (definition,) = ast.parse(inspect.getsource(kind)).body
        assert isinstance(definition, ast.ClassDef)
        for before, after in zip(definition.body, definition.body[1:], strict=False):
            if isinstance(before, ast.AnnAssign) and not dataclasses.is_dataclass(
                get_type_hints(kind)[ast.unparse(before.target)]
            ):
                assert isinstance(after, ast.Expr), f"{kind.__name__}: {ast.unparse(before)}"


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    assert capsys.readouterr().out == f"realmlm {__version__}\n"


# --- settings as a record -----------------------------------------------------------------------------------

HERE = Path("some/where").absolute()
ONE_RATE = kinds.Optim(steps=7, batch=6, accumulate=3, lr=0.5, warmup=0.0, weight_decay=0.0, clip=2.0)
OPTIM = kinds.JointOptim(
    steps=7, batch=6, accumulate=3, lr=0.5, retriever_lr=0.25, warmup=0.0, weight_decay=0.0, clip=2.0
)
LOOP = kinds.Loop(
    log_every=2, checkpoint_every=3, seed=4, device="cpu", bf16=False, threads=2, deterministic=True
)
REFRESH = kinds.Refresh(every_steps=9, process=False, swap_after=3, device="cpu", dtype="float32")
PLACES: dict[str, Any] = {"model": HERE, "corpus": HERE / "c"}
EXAMPLES = [
    kinds.MakeWorld(out=HERE, kind="hard", seed=3),
    kinds.ExportEncoders(out=HERE, format="onnx"),
    kinds.JoinRun(run=HERE, corpus=HERE / "b", device="cpu"),
    kinds.ExportVectors(to=("lance", "vectors.lance"), corpus=HERE),
    kinds.BuildCorpus(
        sources=(HERE, HERE / "b"), out=HERE, tokenizer="bert", max_wordpieces=9, skip_bad=True, workers=2
    ),
    kinds.BuildCorpus(sources=(HERE,), out=HERE, train_tokenizer=500),
    kinds.EditCorpus(
        corpus=HERE, add=(HERE / "a", HERE / "b"), remove=(1, 2), replace=3, text="t", title="u"
    ),
    kinds.EditCorpus(corpus=HERE, remove=(1,)),
    kinds.MarkSpans(corpus=HERE, tagger="phrases", phrases=HERE, workers=1),
    kinds.MarkSpans(corpus=HERE),
    kinds.ListPassages(corpus=HERE, find="a", limit=3),
    kinds.MakeClozes(corpus=HERE, out=HERE, count=5, max_query=9, seed=1),
    kinds.MakeModel(corpus=HERE, out=HERE, checkpoint="bert", pooling="cls", share_towers=False, dropout=0.1),
    kinds.BuildIndex(**PLACES, out=HERE, kind="ivf", dtype="float32", device="cpu"),
    kinds.BuildIndex(**PLACES),
    kinds.ImportHf(
        sources=("google/realm-orqa-nq-openqa", "b"),
        out=HERE,
        corpus=HERE,
        tokenizer=HERE,
        dtype="float16",
        seed=2,
    ),
    kinds.ExportHf(model=HERE, out=HERE, architecture="RealmForOpenQA", corpus=HERE),
    kinds.TrainTagger(train=HERE, test=HERE, out=HERE, checkpoint="bert", tokenizer="bert", epochs=2, lr=0.1),
    kinds.Graft(towers=HERE, reader=HERE, out=HERE),
    kinds.Compress(model=HERE, out=HERE, dtype="float16"),
    kinds.Calibrate(model=HERE, predictions=(HERE, HERE / "p"), out=HERE),
    kinds.FitHybrid(model=HERE, corpus=HERE, questions=(HERE, HERE / "q"), out=HERE, limit=9),
    kinds.Align(**PLACES, out=HERE, text=HERE, k=3, limit=4, device="cpu"),
    kinds.MakeReport(
        runs=(HERE, HERE / "r"), out=HERE, evaluations=(HERE,), before=HERE, after=HERE / "b", examples=3
    ),
    kinds.Adapt(
        docs=((HERE, HERE / "d"), (HERE / "e",)),
        out=HERE,
        model=HERE,
        questions=(HERE, HERE / "q"),
        minutes=0.5,
        seed=3,
        device="cpu",
    ),
    kinds.RunBatch(file=HERE, log=HERE),
    kinds.Serve(
        **PLACES,
        index=str(HERE),
        host="0.0.0.0",
        port=80,
        token="a long one",
        runs=(HERE, HERE / "r"),
        queue=3,
        batch=2,
        device="cpu",
    ),
    kinds.Warmup(
        **PLACES,
        out=HERE,
        masking="uniform",
        pairing="own",
        remove_sentence=0.5,
        reader=ONE_RATE,
        retriever=ONE_RATE,
        loop=LOOP,
    ),
    kinds.Pretrain(
        **PLACES,
        out=HERE,
        text=HERE,
        k=3,
        marginal="per-token",
        probe=HERE,
        optim=OPTIM,
        refresh=REFRESH,
        loop=LOOP,
    ),
    kinds.Pretrain(**PLACES, out=HERE),
    kinds.TrainTowers(
        corpus=HERE, questions=(HERE,), out=HERE, retriever="both", negatives=3, optim=kinds.Optim(steps=2)
    ),
    kinds.Finetune(
        **PLACES,
        out=HERE,
        questions=(HERE, HERE / "q"),
        read=2,
        candidates=9,
        optim=OPTIM,
        refresh=REFRESH,
        loop=LOOP,
    ),
    kinds.Evaluate(**PLACES, beir=HERE, split="dev", read=0),
    kinds.Evaluate(
        **PLACES, questions=HERE, retriever="none", read=2, limit=3, predictions=HERE, json=True, device="cpu"
    ),
    kinds.Examine(),
    kinds.ManageCache(names=("a", "b"), clear=True),
    kinds.Ask(**PLACES, question="Who?", read=2, json=True),
    kinds.Ask(**PLACES, fill="It is [MASK]."),
    kinds.Ask(model=HERE, docs=((HERE,), (HERE / "d", HERE / "e")), question="Who?"),
    kinds.Search(**PLACES, question="Who?", k=2, json=True),
]


def test_the_examples_leave_no_command_out() -> None:
    assert {type(example) for example in EXAMPLES} == {kind for kind, _ in COMMANDS.values()}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_a_record_restores_what_it_was_made_of(example: Any) -> None:
    assert kinds.restore(type(example), json.loads(json.dumps(kinds.record(example)))) == example


@given(
    st.builds(
        kinds.Pretrain,
        model=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).map(
            lambda name: Path(name).absolute()
        ),
        corpus=st.just(HERE),
        out=st.just(HERE),
        text=st.none() | st.just(HERE),
        k=st.integers(2, 100),
        masking=st.sampled_from(["salient", "uniform"]),
        optim=st.builds(
            kinds.JointOptim,
            steps=st.integers(0, 10**9),
            lr=st.floats(0, 10, exclude_min=True),
            warmup=st.floats(0, 1),
        ),
        refresh=st.builds(
            kinds.Refresh, every_steps=st.integers(10, 99), swap_after=st.none() | st.integers(1, 9)
        ),
    )
)
def test_any_settings_survive_their_record(settings: kinds.Pretrain) -> None:
    assert kinds.restore(kinds.Pretrain, json.loads(json.dumps(kinds.record(settings)))) == settings


def begun(folder: Path) -> kinds.Pretrain:
    settings = kinds.Pretrain(**PLACES, out=folder, k=3, optim=OPTIM, refresh=REFRESH, loop=LOOP)
    Run.begin(folder, stage="pretrain", settings=settings).close()
    return settings


def test_resume_takes_the_runs_own_record_and_flags_go_before_it(tmp_path: Path) -> None:
    settings = begun(tmp_path / "run")
    run = str(tmp_path / "run")
    assert parse("pretrain", kinds.Pretrain, ["--resume", run]) == settings
    assert parse("pretrain", kinds.Pretrain, [f"--resume={run}"]) == settings
    changed = dataclasses.replace(settings, optim=dataclasses.replace(OPTIM, steps=9))
    for arguments in (["--resume", run, "--optim.steps", "9"], ["--optim.steps", "9", "--resume", run]):
        assert parse("pretrain", kinds.Pretrain, arguments) == changed
    assert read_run(tmp_path / "run")["config"]["optim"]["steps"] == 7  # parsing changes nothing


# --- from end to end ----------------------------------------------------------------------------------------

PASSAGES = 30
EVIDENCE = {
    "title",
    "passage",
    "passage_id",
    "file",
    "start",
    "end",
    "retrieval_probability",
    "reading_probability",
    "passage_logit",
    "vector_score",
    "word_score",
}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """world → corpus → spans → model → index, by commands alone; the first passages of a tiny world and
    questions about them."""
    folder = tmp_path_factory.mktemp("work")
    main(["world", "--out", f"{folder}/world", "--kind", "tiny"])
    (folder / "some.jsonl").write_text(
        "".join((folder / "world" / "knowledge.jsonl").open().readlines()[:PASSAGES])
    )
    for name in ("questions-held-out", "clozes-held-out"):
        lines = (folder / "world" / f"{name}.jsonl").read_text().splitlines()
        about = [line for line in lines if json.loads(line)["gold"][0] < PASSAGES]
        (folder / f"{name}.jsonl").write_text("\n".join(about))
    main(
        [
            "corpus",
            f"{folder}/some.jsonl",
            "--out",
            f"{folder}/corpus",
            "--tokenizer",
            f"{folder}/world",
            "--max-wordpieces",
            "64",
        ]
    )
    main(
        [
            "spans",
            f"{folder}/corpus",
            "--tagger",
            "phrases",
            "--phrases",
            f"{folder}/world/phrases.txt",
            "--workers",
            "1",
        ]
    )
    small = ["--layers", "1", "--hidden", "16", "--heads", "2", "--projection", "8", "--max-query", "32"]
    main(["model", "--corpus", f"{folder}/corpus", "--out", f"{folder}/model", *small])
    main(["index", "--model", f"{folder}/model", "--corpus", f"{folder}/corpus", "--device", "cpu"])
    return folder


def said(command: list[str], work: Path, capsys: pytest.CaptureFixture[str], corpus: str = "corpus") -> str:
    capsys.readouterr()
    main([*command, "--model", f"{work}/model", "--corpus", f"{work}/{corpus}", "--device", "cpu"])
    return capsys.readouterr().out


def check_answer(answer: dict[str, Any], *, evidence: int) -> None:
    assert set(answer) == {
        "answer",
        "probability",
        "evidence",
        "others",
        "relevance",
        "confidence",
        "caution",
        "sure",
    }
    assert isinstance(answer["answer"], str)
    assert 0 <= answer["probability"] <= 1
    assert len(answer["evidence"]) == evidence
    for item in answer["evidence"]:
        assert set(item) == EVIDENCE
        assert 0 <= item["retrieval_probability"] <= 1
        assert 0 <= item["reading_probability"] <= 1 + 1e-5
        assert (item["start"] is None) == (item["end"] is None)
        if item["start"] is not None:
            assert item["passage"][item["start"] : item["end"]].casefold() == answer["answer"].casefold()
    assert all(set(other) == {"words", "probability"} for other in answer["others"])  # as over HTTP
    assert sum(item["retrieval_probability"] for item in answer["evidence"]) == pytest.approx(1, abs=1e-5)
    joint = sum(item["retrieval_probability"] * item["reading_probability"] for item in answer["evidence"])
    assert answer["probability"] == pytest.approx(joint, abs=1e-6)  # p(y|x) = Σ p(z|x) p(y|z,x)


def test_ask_as_json(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(
        said(["ask", "Which animal is the symbol of Taremo?", "--read", "7", "--json"], work, capsys)
    )
    check_answer(answer, evidence=7)
    corpus = Corpus.open(work / "corpus")
    assert answer["answer"]
    assert answer["others"]
    assert any(item["start"] is not None for item in answer["evidence"])
    for item in answer["evidence"]:
        passage = corpus[item["passage_id"]]
        assert (item["title"], item["passage"]) == (passage.title, passage.text)


def test_fill_as_json_weighs_the_null_document(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(
        said(["ask", "--fill", "The symbol of Taremo is the [MASK].", "--read", "4", "--json"], work, capsys)
    )
    check_answer(answer, evidence=5)
    assert [item["passage_id"] for item in answer["evidence"]].count(None) == 1


def test_a_port_in_use_is_said_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("uvicorn", reason="the service is not installed: pip install 'realmlm[serve]'")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(SystemExit) as stopped:
            main(["serve", "--corpus", "nowhere", "--port", str(port)])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: port {port} is in use; choose another with --port"
    ]
    with pytest.raises(SystemExit):
        main(["serve", "--corpus", "nowhere", "--host", "192.0.2.1"])  # an address that no machine has
    assert "cannot listen on 192.0.2.1 port 8460" in capsys.readouterr().err


def test_ask_for_people(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["ask", "Which animal is the symbol of Taremo?", "--read", "2"]
    lines = said(asked, work, capsys).splitlines()
    assert "   p = 0." in lines[-1]  # it was not calibrated: there is no word for how sure
    assert any("»" in line for line in lines)
    assert not any("p(z|x)" in line for line in lines)
    lines = said([*asked, "--numbers"], work, capsys).splitlines()
    assert sum(line.startswith("  p(z|x) ") for line in lines) == 2


@pytest.mark.parametrize("name", ["questions-held-out", "clozes-held-out"])
@pytest.mark.parametrize("retriever", ["learned", "bm25", "none"])
def test_evaluate_agrees_with_its_predictions(
    name: str, retriever: str, work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predictions = tmp_path / "new" / "predictions.jsonl"
    flags = [
        "--questions",
        f"{work}/{name}.jsonl",
        "--retriever",
        retriever,
        "--read",
        "3",
        "--predictions",
        str(predictions),
    ]
    report = json.loads(said(["evaluate", *flags, "--json"], work, capsys))
    assert set(report) == {
        "questions",
        "retriever",
        "read",
        "exact_match",
        "f1",
        "nats",
        "recall_definition",
        "recall",
        "gold_recall",
        "ranking",
        "seconds",
        "model",
        "corpus",
        "question_file",
        "index",
        "limit",
        "with_mask",
        "hybrid",
        "rerank",
        "overlapping",
    }
    rows = [json.loads(line) for line in predictions.read_text().splitlines()]
    asked = [json.loads(line) for line in (work / f"{name}.jsonl").read_text().splitlines()]
    assert [row["question"] for row in rows] == [line["question"] for line in asked]
    assert (report["questions"], report["retriever"], report["read"]) == (len(asked), retriever, 3)

    def percent(values: list[float]) -> Any:
        return pytest.approx(100 * sum(values) / len(values), abs=0.01)

    assert report["exact_match"]["value"] == percent([row["correct"] for row in rows])
    assert report["f1"]["value"] == percent([row["f1"] for row in rows])
    assert set(report["recall"]) == (set() if retriever == "none" else {"1", "5", "20"})
    if name == "clozes-held-out":
        mean = sum(row["log_p"] for row in rows) / len(rows)
        assert report["nats"]["−log p(y|x)"]["value"] == pytest.approx(-mean, abs=1e-3)
        assert ("retrieval utility" in report["nats"]) == (retriever != "bm25")
        if retriever == "none":
            assert report["nats"]["retrieval utility"]["value"] == pytest.approx(0, abs=1e-5)
    for k, score in report["recall"].items():
        assert score["value"] == percent(
            [(row["first_passage_with_answer"] or 999) <= int(k) for row in rows]
        )
        assert 0 <= score["low"] <= score["value"] <= score["high"] <= 100
    for row in rows:
        measured = {"correct", "f1", "log_p", "utility", "first_passage_with_answer"}
        assert set(row) == {
            "id",
            "question",
            "answers",
            *measured,
            "answer",
            "probability",
            "evidence",
            "others",
            "relevance",
            "confidence",
            "caution",
            "sure",
            "model",
            "retriever",
            "hybrid",
            "read",
            "rerank",
            "overlapping",
        }
        assert (row["retriever"], row["read"]) == (retriever, 3)
        assert row["model"] == read_manifest(work / "model", kind="model").fingerprint
        assert (row["log_p"] is not None) == (name == "clozes-held-out")
        assert (row["utility"] is not None) == (name == "clozes-held-out" and retriever != "bm25")
        weighs_null = retriever == "none" or (retriever == "learned" and name == "clozes-held-out")
        assert len(row["evidence"]) == (0 if retriever == "none" else 3) + weighs_null


def test_a_run_goes_on_with_the_settings_that_flags_changed(work: Path, tmp_path: Path) -> None:
    loop = kinds.Loop(threads=1, device="cpu")
    optim = kinds.JointOptim(steps=1, batch=2)
    refresh = kinds.Refresh(process=False)
    places: dict[str, Any] = {"model": work / "model", "corpus": work / "corpus", "out": tmp_path / "run"}
    settings = kinds.Pretrain(**places, k=3, optim=optim, refresh=refresh, loop=loop)
    Run.begin(tmp_path / "run", stage="pretrain", settings=settings).close()
    main(["pretrain", "--resume", f"{tmp_path}/run", "--optim.steps", "2"])
    assert (tmp_path / "run" / "model").is_dir()


def test_an_index_that_is_not_there_or_not_searched_is_refused(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--questions", f"{work}/questions-held-out.jsonl"]
    nowhere = ["--index", f"{tmp_path}/nothere"]
    for arguments, reason in (
        (["evaluate", *asked, *nowhere], "no index in"),
        (["ask", "Who?", *nowhere], "no index in"),
        (
            ["evaluate", *asked, *nowhere, "--retriever", "bm25"],
            "--retriever bm25 searches no index; leave --index out",
        ),
    ):
        with pytest.raises(SystemExit) as stopped:
            said(arguments, work, capsys)
        assert stopped.value.code == 2
        assert f"error: {reason}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_evaluate_for_people(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(["evaluate", "--questions", f"{work}/questions-held-out.jsonl", "--limit", "4"], work, capsys)
    assert text.startswith("4 questions, retriever learned, 5 passages read")
    for row in ("exact match", "F1", "recall@1 (answer string, dpr)", "recall@5 (gold passage)"):
        assert row in text


def test_an_evaluation_says_first_what_it_cannot_write_and_prints_before_it_writes(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--questions", f"{work}/questions-held-out.jsonl", "--limit", "4"]
    (tmp_path / "kept.jsonl").write_text("mine")
    with monkeypatch.context() as patch:
        patch.setattr("realmlm.evaluation.measure.evaluate", None)  # never reached
        for made in (
            ["--predictions", f"{tmp_path}/kept.jsonl"],
            ["--report", f"{tmp_path}/kept.jsonl/report.json"],
        ):
            with pytest.raises(SystemExit) as end:
                said(["evaluate", *flags, *made], work, capsys)
            assert end.value.code == 2
            assert "kept.jsonl" in capsys.readouterr().err
    assert (tmp_path / "kept.jsonl").read_text() == "mine"

    def full(*anything: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("realmlm.storage.mirrors.write_result", full)
    with pytest.raises(SystemExit) as end:
        said(["evaluate", *flags, "--report", f"{tmp_path}/report.json"], work, capsys)
    assert end.value.code == 2
    assert "exact match" in capsys.readouterr().out


def test_an_edit_is_seen_at_the_next_question_and_the_index_is_not_made_again(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (index,) = (work / "corpus" / "index").glob("[!.]*")
    before = {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in index.glob("*.*")}
    (work / "new.txt").write_text("The otter is the animal of Nerrow.")
    main(
        [
            "edit",
            f"{work}/corpus",
            "--add",
            f"{work}/new.txt",
            "--remove",
            "0",
            "2",
            "--replace",
            "5",
            "--text",
            "Said anew.",
        ]
    )
    assert (
        f"mark its spans: realmlm spans {work}/corpus (before that, finish runs that were interrupted"
        in capsys.readouterr().err
    )
    answer = json.loads(said(["ask", "What is new?", "--read", str(PASSAGES - 1), "--json"], work, capsys))
    check_answer(answer, evidence=PASSAGES - 1)
    passages = {item["passage_id"]: item["passage"] for item in answer["evidence"]}
    assert {item["passage_id"]: item["file"] for item in answer["evidence"]}[5] == "some.jsonl:6"
    assert set(passages) == ({*range(PASSAGES)} - {0, 2}) | {PASSAGES}
    assert (passages[PASSAGES], passages[5]) == ("The otter is the animal of Nerrow.", "Said anew.")
    assert {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in index.glob("*.*")} == before
    assert [path.name for path in (index / "edits").iterdir()] == ["000001"]


@pytest.mark.parametrize(
    ("command", "rest"),
    [
        ("corpus notes --out c", ""),
        ("pretrain --model m --out runs/a --k 4", "; continue with: realmlm pretrain --resume runs/a"),
        ("warmup --out='two words=3'", "; continue with: realmlm warmup --resume 'two words=3'"),
        ("finetune --resume runs/b --optim.steps 9", "; continue with: realmlm finetune --resume runs/b"),
        ("ask Who?", "; what was embedded is kept, except for the last part"),
    ],
)
def test_what_was_stopped_speaks_of_going_on_where_there_is_something_to_go_on_with(
    command: str, rest: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("realmlm.cli.run_command", stopped)
    with pytest.raises(SystemExit) as end:
        main(shlex.split(command))
    assert end.value.code == 130
    assert capsys.readouterr().err == f"stopped{rest}\n"


def test_what_is_stopped_while_it_loads_shows_no_traceback() -> None:
    code = (
        "import sys\nclass Stopped:\n def find_spec(self, name, *_):\n  if name == 'realmlm.cli': raise "
        "KeyboardInterrupt\nsys.meta_path.insert(0, Stopped())\nfrom realmlm.__main__ import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


def test_a_file_that_looks_like_a_flag_is_named_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-dash.txt").write_text("The heron.")
    with pytest.raises(SystemExit) as end:
        main(["ask", "Who?", "--docs", "-dash.txt"])
    assert end.value.code == 2
    hint = "error: -dash.txt looks like a flag; if the file here is meant: ./-dash.txt\n"
    assert capsys.readouterr().err == hint


def test_work_that_a_closed_pipe_cut_off_is_not_called_done() -> None:
    code = (
        "import realmlm.cli as cli\ndef cut(*_): raise BrokenPipeError\ncli.run_command = "
        "cut\ncli.main(['pretrain'])"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 141


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), Exception("I/O error: No space left on device (os error 28)")],
)
def test_a_full_disk_is_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr("realmlm.cli.run_command", full)
    with pytest.raises(SystemExit) as end:
        main(["index"])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: [Errno 28] No space left on device; check that the path exists")


def test_escape_sequences_are_shown_not_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of documents, of their names, and in what is said of them."""
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a\x1b]0;title\x07.txt").write_text("The \x1b[31mheron\x9b2J stands in the water.")
    (notes / "b\x1b[2J.jsonl").write_text("no JSON")
    main(["corpus", str(notes), "--out", str(tmp_path / "corpus"), "--train-tokenizer", "100", "--skip-bad"])
    main(["passages", str(tmp_path / "corpus")])
    shown = capsys.readouterr()
    assert r"\x1b[31mheron\x9b2J" in shown.out
    assert r"a\x1b]0;title\x07.txt" in shown.out
    assert r"b\x1b[2J.jsonl" in shown.err
    assert not set("\x1b\x07\x9b") & set(shown.out + shown.err)
