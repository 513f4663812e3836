"""docs/own.md: what one changes in Python runs as it stands there, and is not mistaken for a run of the
command line."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from realmlm.cli import main
from realmlm.corpus.store import Corpus
from realmlm.log import read_metrics

ROOT = Path(__file__).parents[1]


def test_the_page_runs(
    knowledge: Corpus, tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "own.md").read_text("utf-8"), flags=re.DOTALL
    )
    (tmp_path / "own.py").write_text("\n\n".join(blocks), "utf-8")
    shutil.copytree(knowledge.folder, tmp_path / "corpus")
    shutil.copytree(tiny_model_folder, tmp_path / "warmup" / "model")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def program() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "own.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    first = program()
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("exact match") == 1, (
        "the refresher, which imports the program, does none of it again"
    )
    assert first.stderr.count("marking spans") == 1
    rows = read_metrics(tmp_path / "distilled" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [10, 20]
    assert all(row["kl"] > 0 and row["loss"] > -row["log_p"] for row in rows)
    assert "is already finished" in program().stderr, "called the same way, it is the same run"
    with pytest.raises(SystemExit) as stopped:
        main(["pretrain", "--resume", str(tmp_path / "distilled")])
    assert stopped.value.code == 2
    assert "started in Python ('pretrain with Distilled with AllSpans')" in capsys.readouterr().err
