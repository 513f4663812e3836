"""docs/own.md and docs/tutorial.md: what one does in Python runs as it stands there, and is not mistaken for a
run of the command line."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from realmlm.cli import main
from realmlm.corpus.questions import write_questions
from realmlm.corpus.store import Corpus
from realmlm.evaluation.clozes import make_clozes
from realmlm.log import read_metrics

ROOT = Path(__file__).parents[1]


def program_of(page: str) -> str:
    """The blocks of a page, one after the other."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    return "\n\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))


def run_program(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(program, "utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    command = [sys.executable, "program.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)


class Hits(BaseHTTPRequestHandler):
    """A service that finds the first passages, whatever is asked."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        hits = [{"id": number, "score": 7.25 - number} for number in range(asked["k"])]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(hits).encode())

    def log_message(self, *_: object) -> None:
        pass


def test_the_page_of_changes_runs(
    knowledge: Corpus, tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(knowledge.folder, tmp_path / "corpus")
    shutil.copytree(tiny_model_folder, tmp_path / "warmup" / "model")
    clozes = make_clozes(knowledge, count=5, max_query=32, seed=0)
    write_questions(tmp_path / "clozes.jsonl", clozes)
    with ThreadingHTTPServer(("127.0.0.1", 0), Hits) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        program = program_of("own.md").replace(":9200/", f":{service.server_port}/")
        first = run_program(tmp_path, program)
        assert first.returncode == 0, first.stderr
        assert "is already finished" in run_program(tmp_path, program).stderr, "the same call is the same run"
        service.shutdown()
    assert "7.25" in first.stdout, "the service was asked"
    assert first.stdout.count("exact match") == 1, (
        "the refresher, which imports the program, does none of it again"
    )
    assert first.stderr.count("marking spans") == 1
    rows = read_metrics(tmp_path / "distilled" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [10, 20]
    assert all(row["kl"] > 0 and row["loss"] > -row["log_p"] for row in rows)
    for run in ("spans", "neighbours"):
        assert read_metrics(tmp_path / run / "metrics.jsonl")[-1]["step"] == 5
    with pytest.raises(SystemExit) as stopped:
        main(["pretrain", "--resume", str(tmp_path / "distilled")])
    assert stopped.value.code == 2
    assert "started in Python ('pretrain with Distilled with AllSpans')" in capsys.readouterr().err


def test_the_tutorial_runs(knowledge: Corpus, world: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for number in knowledge.ids[:60].tolist():
        passage = knowledge[number]
        (tmp_path / "notes" / f"{number}.md").write_text(f"# {passage.title}\n\n{passage.text}\n", "utf-8")
    lines = (world / "questions-train.jsonl").read_text("utf-8").splitlines(keepends=True)
    (tmp_path / "questions.jsonl").write_text("".join(lines[:40]), "utf-8")
    done = run_program(tmp_path, program_of("tutorial.md"))
    assert done.returncode == 0, done.stderr
    assert "torch.Size([100, 2])" in done.stdout
    losses = re.search(r"losses \[([\d., ]+)\]", done.stdout)
    assert losses
    assert len(losses[1].split(",")) == 2, "a row every five steps"
    assert "exact match" in done.stdout
    assert re.search(r"40 questions\nexact match .*\[", done.stdout)
    for run in ("warmup", "pretrain", "qa"):
        assert (tmp_path / run / "model" / "model.safetensors").is_file()
