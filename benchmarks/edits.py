"""How long does an edit take after many? `OMP_NUM_THREADS=1 python benchmarks/edits.py [--edits 1000]`

Adds, replaces and removes passages of the pocket encyclopedia one by one, as the service does with mini, and
prints after some edits how long the last ten took, how many files are held open, and in the end how long
opening the corpus and its index takes then. Exits with 1 if the fastest of the last ten took more than three
times as long as that of the first ten.
"""

import argparse
import datetime
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from realmlm.bundled import model_place, text_place
from realmlm.corpus.build import build_corpus
from realmlm.engine import Engine
from realmlm.settings import BuildCorpus
from realmlm.sources.article import Article

SHOWN = (10, 50, 100, 200, 500, 1000, 2000, 5000)


def edit(engine: Engine, number: int) -> None:
    article = Article("Nerrow", f"The arms of Nerrow show a quince and the number {number}.", "service")
    ids = engine.corpus.ids
    if number % 3 == 0:
        engine.edit(add=[article])
    elif number % 3 == 1:
        engine.edit(replace={int(ids[number % len(ids)]): article})
    else:
        engine.edit(remove=[int(ids[number % len(ids)])])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edits", type=int, default=1000)
    edits = parser.parse_args().edits
    with tempfile.TemporaryDirectory() as work:
        place = Path(work) / "corpus"
        model = model_place("mini")
        text = (text_place("pocket"),)
        build_corpus(
            BuildCorpus(sources=text, out=place, tokenizer=str(model), max_wordpieces=128, workers=1)
        )
        engine = Engine(model, place, device="cpu")
        seconds = list[float]()
        print(f"{datetime.date.today()}, {os.cpu_count()} cores, {len(engine.corpus):,} passages")
        for number in range(edits):
            begun = time.perf_counter()
            edit(engine, number)
            seconds.append(time.perf_counter() - begun)
            if number + 1 in (*SHOWN, edits):
                held = len(list(Path("/proc/self/fd").glob("*")))
                print(
                    f"edit {number + 1:5,}: {1000 * median(seconds[-10:]):5.0f} ms, {held:5,} files held",
                    flush=True,
                )
        begun = time.perf_counter()
        Engine(model, place, device="cpu")
        print(f"opened again, the model too, in {time.perf_counter() - begun:.1f} s")
    return int(min(seconds[-10:]) > 3 * min(seconds[:10]))


if __name__ == "__main__":
    sys.exit(main())
