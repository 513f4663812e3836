"""What bfloat16 on the CPU is worth: `python benchmarks/bfloat16.py --corpus CORPUS --questions FILE [--model
MODEL]`

The same questions in float32 and, where the CPU has it, in bfloat16, in turns so that what else the machine
does falls on both: milliseconds a question alone and sixteen together, milliseconds a passage embedded, how
many answers have the same words, the largest difference of p.
"""

import argparse
import datetime
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

from realmlm.corpus.questions import read_questions
from realmlm.device import cpu_has_bfloat16
from realmlm.engine import Engine
from realmlm.evaluation.answers import is_correct
from realmlm.model.encoders import Encoder
from realmlm.reading.retrieve import embed_documents

TURNS = 3
TOGETHER = 16
PASSAGES = 64


def milliseconds(do: Callable[[], object], things: int) -> float:
    begun = time.perf_counter()
    do()
    return 1000 * (time.perf_counter() - begun) / things


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=Path("mini"))
    options = parser.parse_args()
    asked = read_questions(options.questions)
    texts = [question.text for question in asked]
    engine = Engine(options.model, options.corpus, device="cpu")
    corpus = engine.corpus
    encoders = [module for module in engine.model.modules() if isinstance(module, Encoder)]
    passages = corpus.ids[:PASSAGES].tolist()
    titles = [corpus.title_tokens(number) for number in passages]
    bodies = [corpus.tokens(number) for number in passages]

    def embed() -> None:
        with torch.inference_mode():
            embed_documents(engine.model, titles, bodies)

    print(
        f"{datetime.date.today()}  {os.cpu_count()} cores, {torch.get_num_threads()} threads, native "
        f"bfloat16: {cpu_has_bfloat16()}"
    )
    answers = {}
    for turn in range(TURNS):
        for quick in (False, True):
            for encoder in encoders:
                encoder.quick = quick
            some = texts[turn * 2 * TOGETHER :][: 2 * TOGETHER] or texts
            alone = milliseconds(lambda some=some: [engine.ask(text) for text in some], len(some))  # type: ignore[misc]
            together = milliseconds(lambda some=some: engine.ask(some), len(some))  # type: ignore[misc]
            embedded = milliseconds(embed, len(passages))
            name = "bfloat16" if quick else "float32"
            print(
                f"{name:8s}  a question alone {alone:4.0f} ms, together {together:4.0f} ms, a passage "
                f"embedded {embedded:5.1f} ms"
            )
            if turn == 0:
                answers[quick] = engine.ask(texts)
    exact = {
        quick: sum(is_correct(a.answer, q) for a, q in zip(given, asked, strict=True))
        for quick, given in answers.items()
    }
    pairs = [
        (first, second)
        for first, second in zip(answers[False], answers[True], strict=True)
        if first.answer == second.answer
    ]
    difference = max((abs(first.probability - second.probability) for first, second in pairs), default=0.0)
    print(
        f"of {len(asked)} exact: {exact[False]} and {exact[True]}; the same words {len(pairs)}, p differs by "
        f"at most {difference:.3f}"
    )


if __name__ == "__main__":
    main()
