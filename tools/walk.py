"""Which modules one training step, one question and one question over HTTP pass through, and how often
control changes from one module to another: `python tools/walk.py` prints the table of CONTRIBUTING.md.

The step is a whole turn of the loop, with its row of metrics: 2 sentences, 3 passages each, pointing; on a
CPU, in a fictional world. More of both would count more wherever something is done one by one.
"""

import argparse
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import realmlm
from realmlm.corpus.build import build_corpus
from realmlm.corpus.spans import mark_spans
from realmlm.corpus.taggers import PhraseTagger
from realmlm.engine import Engine
from realmlm.model.create import create_model
from realmlm.settings import BuildCorpus, JointOptim, Loop, MakeModel, Pretrain, Refresh
from realmlm.train.callbacks import Callback
from realmlm.worlds import write_world


class Walk:
    """The modules of realmlm that control passes through, in order, while it is entered."""

    def __init__(self) -> None:
        self.modules: list[str] = []

    def __enter__(self) -> "Walk":
        threading.setprofile(self._note)  # threads that start from now on
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self._arrive(frame)
        elif event == "return":
            self._arrive(frame.f_back)

    def _arrive(self, frame: FrameType | None) -> None:
        """Control is in the nearest frame of realmlm, whatever library it calls."""
        while frame is not None and not _module(frame).startswith("realmlm"):
            frame = frame.f_back
        if frame is not None and (not self.modules or self.modules[-1] != _module(frame)):
            self.modules.append(_module(frame))

    def row(self, name: str) -> str:
        visits = Counter(self.modules)
        names = ", ".join(f"{module.removeprefix('realmlm.')} {visits[module]}" for module in sorted(visits))
        return f"| {name} | {len(visits)} | {len(self.modules) - 1} | {names} |"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


class OneStep(Callback):
    """Walks from the row of one step to the row of the next."""

    def __init__(self, walk: Walk, step: int) -> None:
        self._walk = walk
        self._step = step

    def on_row(self, row: dict[str, Any]) -> None:
        if row["step"] == self._step:
            self._walk.__enter__()
        elif row["step"] == self._step + 1:
            self._walk.__exit__()


def train(folder: Path, walk: Walk) -> None:
    world = folder / "world"
    write_world(world, "tiny", seed=0)
    corpus = build_corpus(
        BuildCorpus(
            sources=(world / "knowledge.jsonl",),
            out=folder / "corpus",
            tokenizer=str(world / "tokenizer.json"),
            max_wordpieces=64,
            workers=1,
        )
    )
    mark_spans(corpus, PhraseTagger((world / "phrases.txt").read_text("utf-8").split("\n")), workers=1)
    create_model(
        MakeModel(
            corpus=corpus.folder,
            out=folder / "model",
            layers=2,
            hidden=32,
            heads=2,
            projection=32,
            max_query=32,
        )
    )
    settings = Pretrain(
        model=folder / "model",
        out=folder / "run",
        k=3,
        pointing=1.0,
        optim=JointOptim(steps=5, batch=2),
        refresh=Refresh(every_steps=0),
        loop=Loop(log_every=1, threads=1, device="cpu"),
    )
    realmlm.pretrain(settings, corpus=corpus, callbacks=[OneStep(walk, 3)])


def over_http(engine: Engine, ask: Callable[[Any], None]) -> None:
    from fastapi.testclient import TestClient

    from realmlm.serve.http import create_app

    with TestClient(create_app(engine)) as client:
        ask(client)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        step, question, request = Walk(), Walk(), Walk()
        train(folder, step)
        engine = Engine(folder / "run" / "model", folder / "corpus", device="cpu")
        engine.ask("Who?")  # what is looked up once is not counted
        with question:
            engine.ask("Which bird is the symbol of the town?", read=2)

        def post(client: Any) -> None:
            reply = client.post("/ask", json={"question": "Which bird is the symbol?", "read": 2})
            assert reply.status_code == 200, reply.text

        with request:  # before the service's thread starts
            over_http(engine, post)
    print("| | modules | changes | visits of each |\n| --- | --- | --- | --- |")
    print(step.row("a step of `pretrain`"))
    print(question.row("`ask`"))
    print(request.row("a question over HTTP, with the start and end of the service"))


if __name__ == "__main__":
    main()
