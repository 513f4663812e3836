"""The benchmarks run: in miniature here, so that a number they print is one away at any time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from realmlm.corpus.spans import Spans
from realmlm.corpus.store import Corpus

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def run(program: str, *options: str | Path) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, str(BENCHMARKS / program), *map(str, options)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def measured(work: Path, *rows: str) -> dict[str, dict[str, dict[str, float]]]:
    """What these rows found in miniature; none may fail."""
    printed = run("gpu.py", "--tiny", "--device", "cpu", "--work", work, "--rows", *rows)
    records = [json.loads(line) for line in (work / "results.jsonl").read_text().splitlines()]
    assert [record for record in records if "error" in record] == []
    for record in records:
        assert all(cell["value"] > 0 for name, cell in record["found"].items() if name != "peak"), record
    names = ["exact top 8 of 13,353,718 × 128", "embedding 801,031 passages", "`evaluate`"]
    assert all(f"| {name}" in printed for name in names)
    return {record["row"]: record["found"] for record in records}


def test_the_gpu_table_in_miniature(tmp_path: Path) -> None:
    found = measured(tmp_path, "search-13m", "embed-mini", "joint-modernbert-128", "evaluate")
    assert set(found) == {"machine", "search-13m", "embed-mini", "joint-modernbert-128", "evaluate"}
    assert found["search-13m"]["64 queries"]["flops"] == 2 * 5_000 * 128 * 64
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


@pytest.mark.slow
def test_all_rows_of_the_gpu_table_in_miniature(tmp_path: Path) -> None:
    measured(tmp_path, "search", "embed", "joint", "warmup", "evaluate", "answers", "serve", "refresh")
