"""How quickly does a fresh encoder learn to copy from a passage? By family and initialisation, on the small
world.

`python benchmarks/fresh_encoders.py` prints the table of docs/decisions/006-fresh-encoders.md; about two
minutes on one core.
"""

import datetime
import os
import tempfile
from pathlib import Path

import torch

import realmlm
from realmlm.corpus.build import build_corpus
from realmlm.corpus.spans import mark_spans
from realmlm.corpus.store import Corpus
from realmlm.corpus.taggers import PhraseTagger
from realmlm.log import read_metrics
from realmlm.model.config import ModelConfig
from realmlm.model.create import fresh_encoder, new_model
from realmlm.settings import BuildCorpus, Loop, Optim, Warmup
from realmlm.worlds import write_world

CASES = (
    ("modernbert", 0.02),
    ("modernbert", 0.07),
    ("modernbert", 0.125),
    ("bert", 0.07),
    ("roberta-prelayernorm", 0.07),
)


def learned(corpus: Corpus, folder: Path, family: str, deviation: float) -> float:
    """Share of masked values right in the last of 300 steps of the reader's warm-up."""
    shape = {"layers": 2, "hidden": 64, "heads": 4, "dropout": 0.0, "positions": 110}
    encoder = fresh_encoder(corpus.wordpieces, family=family, **shape) | {"initializer_range": deviation}  # type: ignore[arg-type]
    config = ModelConfig(
        tower=encoder,
        reader=encoder,
        projection=64,
        pooling="mean",
        max_query=32,
        max_passage=64,
        span_hidden=64,
    )
    settings = Warmup(
        out=folder / "run",
        pairing="own",
        reader=Optim(steps=300, batch=64, lr=3e-3),
        retriever=Optim(steps=0),
        loop=Loop(log_every=50, threads=1, device="cpu"),
    )
    realmlm.warmup(settings, model=new_model(config, corpus.wordpieces), corpus=corpus)
    return float(read_metrics(folder / "run" / "reader" / "metrics.jsonl")[-1]["right"])


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        write_world(place / "world", "small")
        world = place / "world"
        corpus = build_corpus(
            BuildCorpus(
                sources=(world / "knowledge.jsonl",),
                out=place / "corpus",
                tokenizer=str(world / "tokenizer.json"),
                max_wordpieces=64,
            )
        )
        mark_spans(corpus, PhraseTagger((world / "phrases.txt").read_text("utf-8").split("\n")), workers=1)
        rows = [
            (family, deviation, learned(corpus, place / str(number), family, deviation))
            for number, (family, deviation) in enumerate(CASES)
        ]
    print(f"{datetime.date.today()}, {os.cpu_count()} CPU cores, one thread, one seed\n")
    print("| encoder | initialisation | masked value right |\n| --- | --- | --- |")
    for family, deviation, right in rows:
        print(f"| {family} | {deviation} | {right:.2f} |")


if __name__ == "__main__":
    main()
