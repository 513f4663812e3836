"""Fine-tuning and answering here and in transformers 4.57.6, the last release with REALM, on the same CPU:
`python benchmarks/against_hf.py --peer-python PEER/bin/python --work work/hf`

The other side makes a checkpoint of the published layout (RealmForOpenQA, random weights, made-up blocks of
up to 288 wordpieces with random vectors of 128 numbers), we import it by `realmlm import-hf`, and both work
with the same threads on the same questions, in turns: 5 blocks read for an answer; in fine-tuning 5,000
candidates for the retriever and a step for every `--batch` questions. Prints questions a second of both, how
often the answers are the same, and where our time goes.

What they do: one question a call, in float32; every block is compared with it, in training the texts of 5,000
blocks are tokenised and searched for the answer anew, and what is read is padded to the longest. What we do:
many questions a call; wordpieces are stored and the places of answers found once; nothing is padded far, and
where the CPU has bfloat16, answers are computed in it.
"""

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from exact_search import cpu_name
from material import make_corpus, make_questions

from realmlm.corpus.questions import Question, read_questions
from realmlm.corpus.store import Corpus
from realmlm.device import release_memory
from realmlm.engine import Engine
from realmlm.interop.importing import import_hf
from realmlm.model.encoders import Encoder
from realmlm.model.quick import fastest
from realmlm.settings import Finetune, ImportHf, JointOptim, Loop
from realmlm.train.callbacks import Callback
from realmlm.train.stages import finetune

READ = 5  # their reader_beam_size
CANDIDATES = 5_000  # their searcher_beam_size
PEER = Path(__file__).resolve().with_name("against_hf_peer.py")


class Peer:
    """The other interpreter, which works when it is asked to."""

    def __init__(self, python: Path, checkpoint: Path) -> None:
        self._process = subprocess.Popen(
            [str(python), str(PEER), "serve", str(checkpoint)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.threads = int(self._said()["ready"])

    def _said(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("the other side ended; its complaint is above")
        record: dict[str, Any] = json.loads(line)
        return record

    def do(self, what: str, questions: list[Any]) -> tuple[float, list[Any]]:
        """Seconds that it took, and what it gave."""
        assert self._process.stdin is not None
        print(json.dumps({"do": what, "questions": questions}), file=self._process.stdin, flush=True)
        record = self._said()
        return record["seconds"], record["said"]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


class Rate:
    """Questions and the seconds they took."""

    def __init__(self) -> None:
        self.questions = 0
        self.seconds = 0.0

    def add(self, questions: int, seconds: float) -> None:
        self.questions += questions
        self.seconds += seconds

    @property
    def value(self) -> float:
        return self.questions / self.seconds


def prepare(options: argparse.Namespace) -> Path:
    """The checkpoint, and our model and corpus made of it; what is there is not made again."""
    work = options.work
    source = make_corpus(work / "source", options.blocks, longest=288)
    make_questions(work / "questions.jsonl", source, 512)
    checkpoint: Path = work / "checkpoint"
    if not checkpoint.exists():
        shape = {"layers": options.layers, "hidden": options.hidden, "heads": max(1, options.hidden // 64)}
        (work / "spec.json").write_text(json.dumps(shape))
        (work / "records.json").write_text(json.dumps([source[number].text for number in source.ids]))
        vocabulary = source.wordpieces.tokenizer.get_vocab()
        pieces = sorted(vocabulary, key=vocabulary.__getitem__)
        (work / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
        inputs = [str(work / name) for name in ("spec.json", "records.json", "vocab.txt")]
        subprocess.run([str(options.peer_python), str(PEER), "make", str(checkpoint), *inputs], check=True)
    if not (work / "model").exists():
        import_hf(ImportHf(sources=(str(checkpoint),), out=work / "model", corpus=work / "corpus"))
    return checkpoint


def answering(options: argparse.Namespace, peer: Peer, asked: list[Question]) -> dict[str, Rate]:
    """Answers of both, in turns; ours in float32 too, in which they must be the same."""
    engine = Engine(options.work / "model", options.work / "corpus", device="cpu")
    encoders = [module for module in engine.model.modules() if isinstance(module, Encoder)]
    arms = {"float32": False} | ({"bfloat16": True} if fastest(int8=False) else {})
    rates = {name: Rate() for name in ("theirs", *arms)}
    same = dict.fromkeys(arms, 0)
    for turn in range(options.turns + 1):  # the first warms up
        first = turn * options.asked
        some = [question.text for question in asked[first : first + options.asked]]
        few = some[: options.few]
        seconds, theirs = peer.do("answer", few)
        if turn:
            rates["theirs"].add(len(few), seconds)
        for name, quick in arms.items():
            for encoder in encoders:
                encoder.quick = quick
            begun = time.perf_counter()
            answers = engine.ask(some, read=READ)
            if turn:
                rates[name].add(len(some), time.perf_counter() - begun)
                same[name] += sum(
                    best_span(engine, answer) == text for answer, text in zip(answers, theirs, strict=False)
                )
    for name, count in same.items():
        print(f"the same answers in {name}: {count} of {rates['theirs'].questions}")
    return rates


def best_span(engine: Engine, answer: Any) -> str:
    """The likeliest single span, which is their answer, as its wordpieces are written."""
    evidence = max(answer.evidence, key=lambda e: e.retrieval_probability * e.reading_probability)
    chars_T2 = engine.corpus.token_chars(evidence.passage_id)
    span_T = (chars_T2[:, 0] >= evidence.start) & (chars_T2[:, 1] <= evidence.end)
    return engine.model.wordpieces.decode(engine.corpus.tokens(evidence.passage_id)[span_T])


class InTurns(Callback):
    """Counts our steps of a row, then lets the other side make one before we go on."""

    def __init__(self, theirs: Callable[[], None], batch: int, turns: int) -> None:
        self.ours = Rate()
        self.phases: dict[str, float] = {}
        self._theirs = theirs
        self._batch = batch
        self._rows = turns + 1  # the first warms up
        self._since = 0.0

    def on_row(self, row: dict[str, Any]) -> None:
        if self._since:
            self.ours.add(self._batch, time.perf_counter() - self._since)
            self.phases = row["seconds"]
        self._rows -= 1
        if self._rows:
            self._theirs()
        self._since = time.perf_counter()


def fine_tuning(options: argparse.Namespace, peer: Peer, asked: list[Question]) -> tuple[Rate, InTurns]:
    theirs = Rate()
    pairs = [(question.text, question.answers[0]) for question in asked]

    def their_turn() -> None:
        some = [pairs[(theirs.questions + place) % len(pairs)] for place in range(options.few)]
        theirs.add(options.few, peer.do("learn", some)[0])

    peer.do("learn", pairs[:1])
    ours = InTurns(their_turn, options.batch, options.turns)
    run = options.work / "run"
    shutil.rmtree(run, ignore_errors=True)
    finetune(
        Finetune(
            model=options.work / "model",
            corpus=options.work / "corpus",
            questions=(options.work / "questions.jsonl",),
            out=run,
            read=READ,
            candidates=min(CANDIDATES, options.blocks),
            closed_book=0.0,  # they have no such term
            optim=JointOptim(steps=options.turns + 1, batch=options.batch, lr=1e-5, retriever_lr=1e-5),
            loop=Loop(device="cpu", log_every=1, checkpoint_every=10**6),
        ),
        callbacks=[ours],
    )
    return theirs, ours


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-python", type=Path, required=True, help="has torch and transformers 4.57.6")
    parser.add_argument("--work", type=Path, default=Path("work/hf"))
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16, help="questions of one of our steps")
    parser.add_argument("--asked", type=int, default=32, help="questions that we are asked in a turn")
    parser.add_argument("--few", type=int, default=4, help="questions that they are given in a turn")
    options = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # else one side's threads spin while it waits
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    options.work = options.work.absolute()
    checkpoint = prepare(options)
    asked = read_questions(options.work / "questions.jsonl")
    peer = Peer(options.peer_python, checkpoint)
    threads = f"{torch.get_num_threads()} threads here, {peer.threads} there"
    blocks = f"{options.layers} × {options.hidden}, {len(Corpus.open(options.work / 'corpus')):,} blocks"
    print(f"{datetime.date.today()}  {cpu_name()}, {threads}, {blocks}")
    try:
        answers = answering(options, peer, asked)
        print("\n| | theirs, questions/s | ours | ratio |\n| --- | --- | --- | --- |")
        for name, rate in answers.items():
            if name != "theirs":
                row(f"answering, {name}", answers["theirs"], rate)
        release_memory()
        theirs, ours = fine_tuning(options, peer, asked)
    finally:
        peer.close()
    row("fine-tuning", theirs, ours.ours)
    phases = ", ".join(f"{name} {value:.2f} s" for name, value in ours.phases.items())
    print(f"\nOur last step of {options.batch} questions: {phases}")


def row(name: str, theirs: Rate, ours: Rate) -> None:
    ratio = ours.value / theirs.value
    print(f"| {name} | {theirs.value:.3g} | {ours.value:.3g} | {ratio:.1f} |", flush=True)


if __name__ == "__main__":
    main()
