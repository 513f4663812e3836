"""The model that comes with realmlm: it answers, it is small, and it can be trained on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

import realmlm
from realmlm.bundled import MODEL
from realmlm.cli import main
from realmlm.corpus.questions import read_questions
from realmlm.engine import Engine

TITLES = (
    "Socrates",
    "Antonio Stradivari",
    "Dodo",
    "Don Quixote",
    "Giraffe",
    "Blue whale",
    "Nintendo",
    "Eiffel Tower",
    "Australia",
    "Penicillin",
)
SHORT = ["--optim.steps", "2", "--optim.batch", "2", "--loop.threads", "1", "--loop.device", "cpu"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten articles of the pocket encyclopedia, their spans marked."""
    folder = tmp_path_factory.mktemp("mini")
    articles = [
        line for line in realmlm.pocket.read_text("utf-8").splitlines() if json.loads(line)["title"] in TITLES
    ]
    (folder / "some.jsonl").write_text("\n".join(articles), "utf-8")
    main(
        [
            "corpus",
            str(folder / "some.jsonl"),
            "--out",
            str(folder / "corpus"),
            "--tokenizer",
            "mini",
            "--max-wordpieces",
            "64",
            "--workers",
            "1",
        ]
    )
    main(["spans", str(folder / "corpus"), "--workers", "1"])
    asked = [
        line
        for line in (realmlm.pocket.parent / "questions.jsonl").read_text("utf-8").splitlines()[:100]
        if json.loads(line)["title"] in TITLES
    ]
    (folder / "questions.jsonl").write_text("\n".join(asked), "utf-8")
    return folder / "corpus"


def test_it_is_small_and_in_eight_bits() -> None:
    assert sum(file.stat().st_size for file in MODEL.iterdir()) < 56 * 2**20
    with safe_open(MODEL / "model.safetensors", "pt") as weights:
        assert any(weights.get_slice(name).get_dtype() == "I8" for name in weights.keys())  # noqa: SIM118


def test_it_answers_with_the_place_and_fills_in(corpus: Path) -> None:
    realm = Engine("mini", corpus, device="cpu")
    answer = realm.ask("Which poison was used to put Socrates to death?", read=3)
    assert answer.answer == "hemlock"
    best = max(answer.evidence, key=lambda evidence: evidence.retrieval_probability)
    assert best.title == "Socrates"
    assert best.passage[best.start : best.end] == "hemlock"
    assert answer.probability > 0.9
    assert realm.fill("The Eiffel Tower stands in [MASK].", read=3).answer == "paris"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
def test_loading_is_quick_and_light() -> None:
    """Measured in a process of its own; the promise is 3 s and 300 MiB, seconds are not asserted on a machine
    that others use too."""
    code = "import sys, realmlm; realmlm.load(); print(open('/proc/self/status').read(), *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    peak = next(line for line in done.stdout.splitlines() if line.startswith("VmHWM"))
    assert int(peak.split()[1]) < 300 * 1024
    assert "sympy" not in done.stdout.split()  # torch imports it where weights are drawn or shapes guarded


def test_training_goes_on_from_it(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = corpus.parent / "questions.jsonl"
    main(
        [
            "pretrain",
            "--from",
            "mini",
            "--corpus",
            str(corpus),
            "--out",
            str(tmp_path / "joint"),
            "--k",
            "3",
            "--refresh.no-process",
            *SHORT,
        ]
    )
    pretrained = ["--from", str(tmp_path / "joint" / "model"), "--corpus", str(corpus)]
    main(
        [
            "finetune",
            *pretrained,
            "--questions",
            str(asked),
            "--out",
            str(tmp_path / "qa"),
            "--read",
            "2",
            "--candidates",
            "4",
            *SHORT,
        ]
    )
    capsys.readouterr()
    main(
        [
            "evaluate",
            "--model",
            str(tmp_path / "qa" / "model"),
            "--corpus",
            str(corpus),
            "--questions",
            str(asked),
            "--device",
            "cpu",
            "--json",
        ]
    )
    report = json.loads(capsys.readouterr().out)
    assert report["questions"] == len(read_questions(asked)) > 3
    assert report["exact_match"]["value"] >= 50  # two steps spoil nothing
