"""Every kind of artefact, the commands that use them, and ways to damage them: for the tests and for
tools/campaign.py."""

import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from realmlm.cli import main
from realmlm.corpus.spans import mark_spans
from realmlm.corpus.store import Corpus
from realmlm.corpus.taggers import PhraseTagger
from realmlm.model.realm import Realm
from realmlm.model.snapshot import take_snapshot
from realmlm.settings import Finetune, JointOptim, Loop, Pretrain, Refresh
from realmlm.sources.article import Article
from realmlm.storage.artefacts import read_record, write_record
from realmlm.train.run import Run
from tests.calls import build_corpus, create_model, run_finetune, run_pretrain
from tests.conftest import TINY_MODEL

TOWNS = {
    "Orvane": "amber",
    "Tiskol": "salt",
    "Belmar": "copper",
    "Quillon": "linen",
    "Hestra": "barley",
    "Wimbel": "slate",
}
OPTIM = JointOptim(steps=3, batch=4, lr=1e-3, retriever_lr=1e-3)
LOOP = Loop(log_every=1, checkpoint_every=1, threads=1, device="cpu")
IN_LINE = Refresh(every_steps=2, process=False)


def make_laboratory(folder: Path) -> None:
    """Every kind of artefact, once: a corpus with an edit and spans, two indexes with an edit, a model, two
    runs cut off."""
    (folder / "notes").mkdir()
    for town, trade in TOWNS.items():
        (folder / "notes" / f"{town}.txt").write_text(
            f"{town} lies on a river. The people of {town} live by {trade}. It is old.\n"
        )
    corpus = build_corpus(
        [folder / "notes"], folder / "corpus", train_tokenizer=200, max_wordpieces=64, workers=1
    )
    mark_spans(corpus, PhraseTagger(TOWNS.values()), workers=1)
    create_model(corpus=corpus.folder, out=folder / "model", **TINY_MODEL)
    for command in (ask(folder), approximate(folder)):
        main(command)
    corpus.edit(add=[Article("Nerrow", "Nerrow is a new town. The people of Nerrow live by glass.")])
    for command in (ask(folder), approximate(folder)):
        main(command)
    questions = "".join(
        f'{{"question": "What do the people of {town} live by?", "answer": ["{trade}"]}}\n'
        for town, trade in TOWNS.items()
    )
    (folder / "questions.jsonl").write_text(questions)
    common: dict[str, Any] = {
        "model": folder / "model",
        "corpus": corpus.folder,
        "optim": OPTIM,
        "refresh": IN_LINE,
        "loop": LOOP,
    }
    with pytest.MonkeyPatch.context() as patch:
        # what an ended run lets go, one that was cut off still has
        patch.setattr(Run, "tidy", lambda run: None)
        run_pretrain(Pretrain(out=folder / "pretrain", k=3, **common))
        run_finetune(
            Finetune(
                out=folder / "finetune",
                questions=(folder / "questions.jsonl",),
                read=2,
                candidates=5,
                **common,
            )
        )
    for run in ("pretrain", "finetune"):
        shutil.rmtree(folder / run / "model")
    shutil.rmtree(folder / "pretrain" / "index" / "step-00000002")  # as if killed between snapshot and index
    write_snapshot = take_snapshot(Realm.from_pretrained(folder / "model"), step=2)
    write_snapshot(folder / "pretrain" / "snapshots" / "step-00000002")


def ask(folder: Path) -> list[str]:
    return [
        "ask",
        "What do they live by?",
        "--model",
        f"{folder}/model",
        "--corpus",
        f"{folder}/corpus",
        "--read",
        "2",
        "--device",
        "cpu",
    ]


def approximate(folder: Path) -> list[str]:
    return [
        "index",
        "--kind",
        "ivf",
        "--model",
        f"{folder}/model",
        "--corpus",
        f"{folder}/corpus",
        "--device",
        "cpu",
    ]


def evaluate(folder: Path) -> list[str]:
    return ["evaluate", "--questions", f"{folder}/questions.jsonl", *ask(folder)[2:]]


def spans(folder: Path) -> list[str]:
    return ["spans", f"{folder}/corpus", "--workers", "1"]


def edit(folder: Path) -> list[str]:
    return ["edit", f"{folder}/corpus", "--remove", "1"]


def edit_then_ask(folder: Path) -> list[str]:
    """An index that must take up a change of its corpus."""
    Corpus.open(folder / "corpus").edit(remove=[0])
    return ask(folder)


def warmup(folder: Path) -> list[str]:
    steps = ["--reader.steps", "1", "--retriever.steps", "1", "--reader.batch", "2", "--retriever.batch", "2"]
    return [
        "warmup",
        "--model",
        f"{folder}/model",
        "--corpus",
        f"{folder}/corpus",
        "--out",
        f"{folder}/warmup",
        *steps,
    ]


def resume_pretrain(folder: Path) -> list[str]:
    return ["pretrain", "--resume", f"{folder}/pretrain"]


def resume_finetune(folder: Path) -> list[str]:
    return ["finetune", "--resume", f"{folder}/finetune"]


Command = Callable[[Path], list[str]]


def from_the_newest(resume: Command) -> Command:
    """Where there is no earlier checkpoint to go on from instead."""

    @wraps(resume)
    def alone(folder: Path) -> list[str]:
        arguments = resume(folder)
        shutil.rmtree(Path(arguments[-1]) / "checkpoints" / "step-00000001", ignore_errors=True)
        return arguments

    return alone


USES: list[tuple[str, str, Command]] = [
    ("corpus", "corpus", ask),
    ("corpus", "corpus", spans),
    ("corpus", "corpus", edit),
    ("corpus-edit", "corpus/edits/000001", ask),
    ("spans", "corpus/spans", warmup),
    ("model", "model", ask),
    ("model", "model", resume_pretrain),
    ("index", "corpus/index/*-exact", ask),
    ("index", "corpus/index/*-exact", evaluate),
    ("index", "corpus/index/*-exact", edit_then_ask),
    ("index", "corpus/index/*-ivf", approximate),
    ("index-edit", "corpus/index/*-exact/edits/000001", ask),
    ("index-edit", "corpus/index/*-exact/edits/000001", edit_then_ask),
    ("index-edit", "corpus/index/*-ivf/edits/000001", approximate),
    ("checkpoint", "pretrain/checkpoints/step-00000002", from_the_newest(resume_pretrain)),
    ("index", "pretrain/index/step-00000000", resume_pretrain),
    ("snapshot", "pretrain/snapshots/step-00000002", resume_pretrain),
    ("checkpoint", "finetune/checkpoints/step-00000002", from_the_newest(resume_finetune)),
    ("answers", "corpus/answers/*-1-????????", resume_finetune),
]


def copy_of(laboratory: Path, tmp_path: Path) -> Path:
    """A laboratory of one's own; its runs speak of its own files."""
    folder = tmp_path / "copy"
    shutil.copytree(laboratory, folder)
    for record in folder.glob("*/run.json"):
        write_record(
            record, json.loads(json.dumps(read_record(record)).replace(str(laboratory), str(folder)))
        )
    return folder


def flipped(whole: bytes) -> bytes:
    middle = len(whole) // 2
    return whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]


def cut(whole: bytes) -> bytes:
    return whole[:-1]


def zeroed(eighth: int, whole: bytes) -> bytes:
    at = len(whole) * eighth // 8
    return whole[:at] + b"\0" + whole[at + 1 :]


def emptied(whole: bytes) -> bytes:
    return b""


@contextmanager
def damaged(file: Path, damage: Callable[[bytes], bytes] | None) -> Iterator[None]:
    """The file with damage done to it, or gone; as it was, afterwards."""
    whole = file.read_bytes()
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage(whole))
    yield
    file.write_bytes(whole)


def run(command: list[str]) -> tuple[int, str]:
    """Exit code and what was said."""
    said = io.StringIO()
    with redirect_stderr(said), redirect_stdout(io.StringIO()):
        try:
            main(command)
        except SystemExit as end:
            return int(end.code or 0), said.getvalue()
    return 0, said.getvalue()


# --- manifests that someone made up, with checksums that match ------------------------------------------------

MADE_UP: list[Any] = [None, -1, 2**70, 1.5, "x", "../x\0", [], [{}], {}, {"x": None}, True]


def forgeries(record: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The places of a record at which something else could stand."""
    if path:
        yield path
    if isinstance(record, dict):
        for name in record:
            yield from forgeries(record[name], (*path, name))


def forge(manifest: Path, path: tuple[str, ...], value: Any, *, leave_out: bool = False) -> None:
    record = json.loads(manifest.read_bytes())
    del record["checksum"]
    place = record
    for name in path[:-1]:
        place = place[name]
    if leave_out:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    plain = json.dumps(record, sort_keys=True, ensure_ascii=False)
    record["checksum"] = hashlib.sha256(plain.encode()).hexdigest()
    manifest.write_text(json.dumps(record))
