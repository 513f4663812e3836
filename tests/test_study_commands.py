"""Commands that the study is made of: batch, graft, compress, align."""

import json
import runpy
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from realmlm.batch import run_batch
from realmlm.cli import main
from realmlm.corpus.spans import mark_spans
from realmlm.corpus.store import Corpus
from realmlm.corpus.taggers import PhraseTagger
from realmlm.errors import ArtefactExists, BadInput
from realmlm.index.duplicates import SameWords
from realmlm.model.int8 import read_weights, write_weights
from realmlm.model.realm import Realm
from realmlm.reading.answer import MOST_MASKS, Answerer
from realmlm.reading.retrieve import NoRetriever
from tests.calls import align, build_corpus, create_model, graft
from tests.conftest import TINY_MODEL


@pytest.fixture(scope="module")
def other_model(knowledge: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other") / "model"
    create_model(corpus=knowledge.folder, out=folder, **(TINY_MODEL | {"seed": 5, "hidden": 16}))
    return folder


def test_a_batch_goes_on_where_something_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "commands.txt"
    log = tmp_path / "log.jsonl"
    file.write_text(
        f"# two worlds\nworld --out {tmp_path}/a --kind tiny\n\nworld --out '{tmp_path}/b' --kind tiny "
        "--seed 1  # another\n"
    )
    (tmp_path / "a").mkdir()
    main(["batch", str(file), "--log", str(log)])
    assert f"already done, by an unknown line: {tmp_path}/a" in capsys.readouterr().err
    assert (tmp_path / "b" / "tokenizer.json").exists()
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [row["command"] for row in rows] == [f"world --out {tmp_path}/b --kind tiny --seed 1"]
    assert rows[0]["seconds"] >= 0


def test_a_batch_stops_at_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "commands.txt"
    file.write_text(f"spans {tmp_path}/nothing\nworld --out {tmp_path}/a --kind tiny\n")
    with pytest.raises(SystemExit) as end:
        main(["batch", str(file)])
    assert end.value.code == 2
    assert "no corpus in" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_a_batch_passes_over_only_the_line_that_made_what_is_there(
    tiny_model_folder: Path,
    knowledge: Corpus,
    world: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def batch(read: int) -> str:
        made = f"--report={tmp_path}/r/r.json --predictions {tmp_path}/p.jsonl"
        line = (
            f"evaluate --model {tiny_model_folder} --corpus {knowledge.folder} --questions "
            f"{world}/clozes-held-out.jsonl --limit 4"
        )
        (tmp_path / "commands.txt").write_text(f"{line} --device cpu --read {read} {made}\n")
        with suppress(SystemExit):
            main(["batch", str(tmp_path / "commands.txt")])
        return capsys.readouterr().err

    report = tmp_path / "r" / "r.json"
    assert "evaluate: " in batch(1)
    assert f"already done: {report}" in batch(1)
    said = batch(2)
    assert f"error: {report} was made by another line" in said
    assert "--read 1" in said
    report.unlink()
    assert "p.jsonl was made by another line" in batch(2)
    assert f"error: {report} is missing beside {tmp_path}/p.jsonl" in batch(1)
    (tmp_path / "p.jsonl").unlink()
    assert "evaluate: " in batch(2)
    assert json.loads(report.read_text("utf-8"))["read"] == 2
    assert "made by another line" in batch(1), "the line that made it last counts"


def test_a_place_may_be_named_with_an_equals_sign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "commands.txt"
    file.write_text(f"world --out {tmp_path}/seed=0 --kind tiny\nworld --out={tmp_path}/seed=1 --kind tiny\n")
    for _ in range(2):
        main(["batch", str(file)])
    said = capsys.readouterr().err
    assert all(f"already done: {tmp_path}/seed={seed}" in said for seed in (0, 1))

    def in_the_way(command: str, arguments: list[str]) -> None:
        raise ArtefactExists("something else is there")

    file.write_text(f"world --out {tmp_path}/none --kind tiny\n")
    with pytest.raises(ArtefactExists, match="something else is there"):
        run_batch(file, None, in_the_way)


def test_a_batch_runs_nothing_where_a_quote_is_open_and_goes_on_behind_help(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "commands.txt"
    file.write_text(f"world --out {tmp_path}/a --kind tiny\nworld --out '{tmp_path}/b\n")
    with pytest.raises(SystemExit) as end:
        main(["batch", str(file)])
    assert end.value.code == 2
    assert f"error: {file}, line 2: No closing quotation" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
    file.write_text(f"world --help\nworld --out {tmp_path}/a --kind tiny\n")
    main(["batch", str(file)])
    assert (tmp_path / "a").exists()
    file.write_text(f"world --nonsense\nworld --out {tmp_path}/b --kind tiny\n")
    with pytest.raises(SystemExit) as end:
        main(["batch", str(file)])
    assert end.value.code == 2
    assert not (tmp_path / "b").exists()


def test_a_batch_passes_over_a_run_that_has_ended_and_stops_at_another_in_its_place(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def batch(steps: int) -> str:
        small = (
            f"--k 3 --optim.steps {steps} --optim.batch 2 --refresh.every-steps 0 --loop.threads 1 "
            "--loop.device cpu"
        )
        train = (
            f"pretrain --model {tiny_model_folder} --corpus {knowledge.folder} --out {tmp_path}/run {small}"
        )
        (tmp_path / "commands.txt").write_text(f"{train}\nworld --out {tmp_path}/after-{steps} --kind tiny\n")
        main(["batch", str(tmp_path / "commands.txt")])
        return capsys.readouterr().err

    batch(1)
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text()
    said = batch(1)
    assert "run is already finished" in said
    assert f"already done: {tmp_path}/after-1" in said
    with pytest.raises(SystemExit) as end:
        batch(2)
    assert end.value.code == 2
    assert f"error: {tmp_path}/run holds another run" in capsys.readouterr().err
    assert not (tmp_path / "after-2").exists()
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == metrics


def test_a_graft_has_the_towers_of_one_and_the_reader_of_the_other(
    tiny_model_folder: Path, other_model: Path, tmp_path: Path
) -> None:
    graft(towers=tiny_model_folder, reader=other_model, out=tmp_path / "graft")
    towers, reader, both = (
        Realm.from_pretrained(folder) for folder in (tiny_model_folder, other_model, tmp_path / "graft")
    )
    state = both.state_dict()
    for source, parts in ((towers, ("document.", "query.")), (reader, ("reader.",))):
        for name, tensor in source.state_dict().items():
            if name.startswith(parts):
                assert torch.equal(state[name], tensor), name


# --- packing ------------------------------------------------------------------------------------------------


def test_packed_weights_are_close_and_small(tmp_path: Path) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(64, 48) * torch.logspace(-6, 2, 64)[:, None]
    bias = torch.randn(64)
    state = {"a": matrix, "b": bias, "again": matrix.clone(), "zero": torch.zeros(3, 4)}
    sizes = {}
    for dtype in ("float32", "float16", "int8"):
        write_weights(tmp_path / dtype, state, dtype=dtype)
        sizes[dtype] = (tmp_path / dtype).stat().st_size
        read = read_weights(tmp_path / dtype)
        assert set(read) == set(state)
        assert {tensor.dtype for tensor in read.values()} == {torch.float32}
        assert torch.equal(read["again"], read["a"])
        assert torch.equal(read["zero"], state["zero"])
        bound = {"float32": 0.0, "float16": 1e-3, "int8": 0.5 / 127 + 1e-6}[dtype]
        assert (
            (read["a"] - matrix).abs()
            <= bound * matrix.abs().amax(1, keepdim=True) + (6e-8 if dtype == "float16" else 0)
        ).all()
        assert torch.allclose(read["b"], bias, rtol=1e-3)
    assert sizes["int8"] < sizes["float16"] < sizes["float32"] / 2.5


def test_a_compressed_model_answers_alike(
    tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["compress", str(tiny_model_folder), "--out", str(tmp_path / "small")])
    assert "MiB instead of" in capsys.readouterr().err
    model = Realm.from_pretrained(tiny_model_folder)
    small = Realm.from_pretrained(tmp_path / "small")
    assert (tmp_path / "small" / "model.safetensors").stat().st_size < 0.4 * (
        tiny_model_folder / "model.safetensors"
    ).stat().st_size
    inputs = model.query_inputs([model.wordpieces.encode("the heron of the town")])
    with torch.no_grad():
        assert torch.cosine_similarity(model.query(inputs), small.query(inputs)).item() > 0.999


# --- alignment ----------------------------------------------------------------------------------------------


def test_an_alignment_names_passages_and_their_posterior(
    tiny_model_folder: Path, knowledge: Corpus, sentences: Corpus, tmp_path: Path
) -> None:
    places = {"model": tiny_model_folder, "corpus": knowledge.folder, "k": 4, "limit": 20, "device": "cpu"}
    assert align(**places, out=tmp_path / "own.jsonl", text=None) == 20
    rows = [json.loads(line) for line in (tmp_path / "own.jsonl").read_text().splitlines()]
    for row in rows:
        assert "[MASK]" in row["sentence"]
        assert row["hidden"] in knowledge[row["source"]].text.lower()
        assert len(row["passages"]) == 4
        assert row["source"] not in [passage["id"] for passage in row["passages"]]
        assert sum(passage["posterior"] for passage in row["passages"]) == pytest.approx(1, abs=1e-4)
        assert sum(passage["prior"] for passage in row["passages"]) == pytest.approx(1, abs=1e-4)
        order = [passage["posterior"] for passage in row["passages"]]
        assert order == sorted(order, reverse=True)
        null = next(passage for passage in row["passages"] if passage["id"] is None)
        assert null["log_p"] == row["log_p_without"]
    align(**places, out=tmp_path / "other.jsonl", text=sentences.folder)
    assert len((tmp_path / "other.jsonl").read_text().splitlines()) == 20
    with pytest.raises(ArtefactExists):
        align(**places, out=tmp_path / "own.jsonl", text=None)


def test_a_span_far_behind_in_a_sentence_is_aligned_too(
    tiny_model_folder: Path, knowledge: Corpus, world: Path, tmp_path: Path
) -> None:
    (tmp_path / "long.jsonl").write_text(
        json.dumps({"title": "", "text": "the town " * 25 + "shows a heron of the town."}), "utf-8"
    )
    long = build_corpus(
        [tmp_path / "long.jsonl"],
        tmp_path / "long",
        tokenizer=str(world / "tokenizer.json"),
        max_wordpieces=64,
        workers=1,
    )
    mark_spans(long, PhraseTagger(["heron"]), workers=1)
    model = tiny_model_folder
    out = tmp_path / "aligned.jsonl"
    assert (
        align(model=model, corpus=knowledge.folder, out=out, text=long.folder, k=4, limit=None, device="cpu")
        == 1
    )
    row = json.loads(out.read_text("utf-8"))
    assert row["hidden"] == "heron"
    assert row["sentence"].endswith("the town.") or row["sentence"].endswith("the town .")


def test_the_own_passage_is_left_out_of_another_cut_too(
    tiny_model_folder: Path, knowledge: Corpus, world: Path, tmp_path: Path
) -> None:
    lines = (world / "knowledge.jsonl").read_text("utf-8").splitlines(keepends=True)
    (tmp_path / "half.jsonl").write_text("".join(lines[::2]), "utf-8")
    how: dict[str, Any] = {"tokenizer": str(world / "tokenizer.json"), "max_wordpieces": 64, "workers": 1}
    half = build_corpus([tmp_path / "half.jsonl"], tmp_path / "half", **how)
    align(
        model=tiny_model_folder,
        corpus=half.folder,
        out=tmp_path / "aligned.jsonl",
        text=knowledge.folder,
        k=4,
        limit=60,
        device="cpu",
    )
    own = SameWords(half, knowledge)
    there = 0
    for line in (tmp_path / "aligned.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        copies = own(np.array([row["source"]]))[0].tolist()
        there += len(copies)
        assert not {*copies} & {passage["id"] for passage in row["passages"]}
    assert there > 20


def test_what_is_hidden_may_be_long(tiny_model: Realm, knowledge: Corpus) -> None:
    """More masks than someone may ask to be filled in: what is measured does not stop at them."""
    answerer = Answerer(tiny_model, knowledge, NoRetriever())
    long = " [MASK]" * (MOST_MASKS + 1)
    with pytest.raises(BadInput, match="too many to fill in"):
        answerer.fill([f"The town{long}."])
    query = answerer.query(f"The town{long}.")
    assert answerer.read_masks([query], answerer.retriever([query], 0)).masks == [MOST_MASKS + 1]


def test_frozen_embeddings_are_held_once_and_saved_for_each(knowledge: Corpus, tmp_path: Path) -> None:
    create_model(
        corpus=knowledge.folder,
        out=tmp_path / "model",
        **(TINY_MODEL | {"freeze_embeddings": True}),
    )
    first = Realm.from_pretrained(tmp_path / "model")
    words = first.document.encoder.body.get_input_embeddings().weight
    first.reader.embedding.weight.data = words.data.clone()  # as from one checkpoint
    first.save_pretrained(tmp_path / "same")
    model = Realm.from_pretrained(tmp_path / "same")
    assert model.reader.embedding is model.document.encoder.body.get_input_embeddings()
    assert not model.reader.embedding.weight.requires_grad
    model.save_pretrained(tmp_path / "again")
    assert set(model.own_state()) == set(first.own_state())
    again = Realm.from_pretrained(tmp_path / "again")
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_reports_are_put_beside_what_was_expected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare = runpy.run_path(str(Path(__file__).parents[1] / "runs" / "compare.py"))["compare"]

    def write(value: float) -> None:
        report = {
            "exact_match": {"value": value, "low": value - 9, "high": value + 9},
            "recall": {"5": {"value": 99.0, "low": 96.0, "high": 100.0}},
        }
        (tmp_path / "questions.json").write_text(json.dumps(report))

    write(84.0)
    assert compare("demo", tmp_path)
    write(20.0)
    assert not compare("demo", tmp_path)
    assert "other than expected" in capsys.readouterr().out
    assert not compare("mini_warm", tmp_path)
    said = capsys.readouterr().out
    assert "not measured" in said
    assert f"nothing was measured: no report of mini_warm in {tmp_path}" in said
    nats = {"value": 13.55, "low": 13.5, "high": 13.6}
    measured = {"nats": {"−log p(y|x)": nats}, "recall": {"5": {"value": 24.0, "low": 23.0, "high": 25.0}}}
    (tmp_path / "plain-0" / "reports").mkdir(parents=True)
    (tmp_path / "plain-0" / "reports" / "held-out.json").write_text(json.dumps(measured))
    assert compare("text_study", tmp_path)
    said = capsys.readouterr().out
    assert "13.46 ± 0.15     13.55 ± 0.05" in said
    assert "24.4 ± 1.9       24.0 ± 1.0" in said


def test_two_sets_of_predictions_are_compared_in_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, right in (("a", [True, True, False, True]), ("b", [True, False, False, False])):
        (tmp_path / name).mkdir()
        rows = [
            {
                "id": str(n),
                "question": "Who?",
                "correct": one,
                "first_passage_with_answer": 3 if one else None,
            }
            for n, one in enumerate(right)
        ]
        (tmp_path / name / "nq-dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / name / "held-out.jsonl").write_text("{}\n")
    main = runpy.run_path(str(Path(__file__).parents[1] / "runs" / "paired.py"))["main"]
    main([tmp_path / "a"], [tmp_path / "b"], ("nq",))
    said = capsys.readouterr().out
    assert "4 questions of nq-dev.jsonl" in said
    assert "exact match   75.00  25.00   +50.00" in said
    assert "recall@1       0.00   0.00   +0.00" in said
    main([tmp_path / "a", tmp_path / "b"], [tmp_path / "b"], ("nq",))
    assert "exact match   50.00  25.00   +25.00" in capsys.readouterr().out, "the mean over seeds"
    with pytest.raises(SystemExit, match="no predictions in common"):
        main([tmp_path / "a"], [tmp_path / "b"], ("webquestions",))
    with pytest.raises(SystemExit, match=r"held-out\.jsonl:1: not a prediction"):
        main([tmp_path / "a"], [tmp_path / "b"], ("held",))
