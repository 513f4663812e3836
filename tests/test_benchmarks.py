"""The benchmarks run: in miniature here, so that a number they print is one away at any time."""

import importlib
import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from realmlm.corpus.spans import Spans
from realmlm.corpus.store import Corpus
from realmlm.model.realm import Realm

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    """benchmarks/gpu.py, which imports what lies beside it."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("gpu")
    finally:
        sys.path.remove(str(BENCHMARKS))


def found_in(file: Path) -> dict[str, dict[str, dict[str, float]]]:
    """What was measured, by row; no row may have failed."""
    records = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    for record in records:
        assert "error" not in record, record
        assert all(cell["value"] > 0 for name, cell in record["found"].items() if name != "peak"), record
    return {record["row"]: record["found"] for record in records}


def run(work: Path, *rows: str) -> str:
    """The table that the program prints of these rows in miniature, each in a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--tiny", "--device", "cpu", "--work", str(work)]
    done = subprocess.run(
        [*command, "--rows", *rows], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_gpu_table_in_miniature(gpu: ModuleType, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    options = Namespace(work=tmp_path, out=results, tiny=True, device="cpu")
    rows = ["machine", "search-13m", "embed-six", "joint-modernbert-128", "evaluate"]
    for row in rows:
        gpu.run_row(row, options)
    found = found_in(results)
    assert list(found) == rows
    assert found["search-13m"]["64 queries"]["flops"] == 2 * 5_000 * 128 * 64
    table = gpu.table(results).splitlines()
    assert [line.split(" | ")[0] for line in table if "≥" in line] == [
        "| ModernBERT, batch 128",
        "| embedding 801,031 passages, six layers of 384",
        "| `evaluate`, six layers of 384, 20 passages read",
    ]
    corpus = Corpus.open(tmp_path / "passages")
    for number in (0, len(corpus) - 1):  # the material is what the tokenizer makes of its text
        encoding = corpus.wordpieces.tokenizer.encode(corpus[number].text, add_special_tokens=False)
        assert corpus.tokens(number).tolist() == encoding.ids
        assert corpus.token_chars(number).tolist() == [list(pair) for pair in encoding.offsets]
        title = corpus.wordpieces.encode(corpus[number].title)
        assert corpus.title_tokens(number).tolist() == title.tolist()
    lengths = [len(corpus.tokens(number)) for number in corpus.ids]
    assert 105 < np.mean(lengths) < 115
    spans = Spans.open(corpus)
    assert len(spans) == corpus.sentence_counts.sum()
    for number in (0, len(spans) - 1):
        sentence = spans[number]
        assert [sentence.start, sentence.end] in np.stack(
            [corpus.sentences(sentence.passage)[:-1], corpus.sentences(sentence.passage)[1:]], axis=1
        ).tolist()
        assert sentence.spans.min() >= 0
        assert sentence.spans.max() < sentence.end - sentence.start


def test_judged_answers_with_and_without_what_says_them(
    tiny_model: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tiny_model.save_pretrained(tmp_path / "model", dtype="int8")
    documents = [{"title": f"City {n}", "text": f"The symbol of city {n} is the heron."} for n in range(12)]
    documents += [{"title": "Wood", "text": f"There is a tree in wood {n}."} for n in range(8)]
    asked = [{"question": f"What is the symbol of city {n}?", "answer": ["heron"]} for n in range(3)]
    for name, rows in (("documents", documents), ("questions", asked)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [f"--{name}={tmp_path / name}.jsonl" for name in ("documents", "questions", "out")]
    monkeypatch.setattr(sys, "argv", ["unanswerable.py", str(tmp_path / "model"), *given])
    importlib.import_module("unanswerable").main()
    assert "3 questions" in capsys.readouterr().out
    judged = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    without = judged[-3:]
    assert not any(row["correct"] for row in without)
    assert [len(row["evidence"]) for row in without] == [5, 5, 5]
    assert not any("heron" in read["passage"] for row in without for read in row["evidence"])
    assert {row["read"] for row in judged} == {5}
    assert all(row["relevance"] is not None for row in judged)


@pytest.mark.slow
def test_a_row_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("in the way")
    table = run(tmp_path, "embed-six", "answers")
    (failed,) = (line for line in table.splitlines() if line.startswith("| embedding 801,031"))
    (measured,) = (line for line in table.splitlines() if line.startswith("| locating answers"))
    assert "| failed |" in failed
    assert "| failed |" not in measured


@pytest.mark.slow
def test_all_rows_of_the_gpu_table_in_miniature(tmp_path: Path) -> None:
    run(tmp_path, "search", "embed", "joint", "warmup", "evaluate", "answers", "serve", "refresh")
    assert len(found_in(tmp_path / "results.jsonl")) == 17
