"""What joint training at a size would take: `python tools/plan.py --passages 1e9 --encoder base --gpus 64`

Prints bytes, the time of a step, what the network carries, how long a refresh takes and how old the index
is, GPU hours and dollars. It reckons with rows that our own benchmarks measured on one H200 and on CPUs
(tools/plan.toml): what they say of one GPU is multiplied. Nothing here was measured on more than one GPU;
what is assumed and not measured, the network's speed and the price, is given by flags and said in the output.

Legend: N passages, D vector size, Q queries.
"""

import argparse
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

CONSTANTS = Path(__file__).with_name("plan.toml")
BYTES = 2  # of a number of a vector
ID = 8  # bytes of a passage's id
VOCABULARY = 30_522
MASKS = 2.0  # wordpieces that are hidden in a sentence
MOMENTS = 16  # bytes of a weight while it learns: itself, its gradient and two moments
ROOM = 0.8  # share of a GPU's memory for model and vectors; the rest is for activations
SMALLEST = 64  # sentences a GPU and step: speed is taken to be that of larger batches
GIB = 2**30


@dataclass(frozen=True)
class Encoder:
    """One of three of a model."""

    layers: int
    hidden: int

    @property
    def weights(self) -> float:
        """All of them, embeddings too."""
        return 12 * self.layers * self.hidden**2 + (VOCABULARY + 512) * self.hidden

    def forward(self, length: float) -> float:
        """Operations of encoding a sequence, as benchmarks/gpu.py counts them."""
        return 24 * self.layers * self.hidden**2 * length + 4 * self.layers * self.hidden * length**2

    def joint(self, passage: float, sentence: float, k: int) -> float:
        """Of a sentence in joint training: k − 1 passages and the null document."""
        towers = self.forward(sentence + 2) + (k - 1) * self.forward(passage)
        reader = (k - 1) * self.forward(passage + sentence) + self.forward(sentence + 3)
        return 3 * (towers + reader + k * MASKS * 2 * VOCABULARY * self.hidden)


ENCODERS = {"six": Encoder(6, 384), "mini": Encoder(12, 384), "base": Encoder(12, 768)}


class Measured:
    """The constants, fitted to some of the rows."""

    def __init__(self, file: Path = CONSTANTS) -> None:
        self.rows: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))
        self.machine = self.rows["machine"]
        self.text = self.rows["text"]

    def fitted(self, kind: str, **which: object) -> list[dict[str, Any]]:
        """The rows of a kind that constants are fitted to."""
        named = [row for row in self.rows[kind] if row.get("fit")]
        return [row for row in named if all(row.get(name) == value for name, value in which.items())]

    @cached_property
    def _search(self) -> np.ndarray:
        """Seconds: of a search, of a byte, of an operation, of a query."""
        rows = self.fitted("search")
        terms = np.array([self._terms(row["passages"], row["dim"], row["queries"]) for row in rows])
        scale = np.abs(terms).max(0)
        return np.linalg.solve(terms / scale, np.array([row["ms"] / 1000 for row in rows])) / scale

    @staticmethod
    def _terms(passages: float, dim: int, queries: int) -> list[float]:
        return [1, passages * dim * BYTES, 2.0 * passages * dim * (queries - 1), queries - 1]

    def search_s(self, passages: float, dim: int, queries: int) -> float:
        """Exact search on one GPU, the best 8."""
        return float(self._terms(passages, dim, queries) @ self._search)

    def embedded_per_s(self, encoder: str, length: float) -> float:
        """Passages of so many wordpieces embedded by one GPU, written and published."""
        (row,) = self.fitted("embed", encoder=encoder)
        known = ENCODERS[encoder].forward(self.text[row["length"]])
        return float(row["per_s"] * known / ENCODERS[encoder].forward(length))

    def learned_per_s(self, encoder: str, length: float, *, k: int) -> float:
        """Sentences of joint training on one GPU that does nothing else, search left out."""
        (row,) = self.fitted("learn", encoder=encoder)
        one = ENCODERS[encoder]
        sentence = self.text["sentence"]
        at = self.text[row["length"]]
        known = one.joint(at, sentence, 8) if row["work"] == "joint" else 3 * one.forward(at + sentence)
        return float(row["per_s"] * known / one.joint(length, sentence, k))

    def grown(self, what: str, passages: float, *, power: float = 1.0) -> float:
        """A row of growth at another size."""
        (row,) = self.fitted("growth")
        return float(row[what] * (passages / row["passages"]) ** power)

    def ivf_s(self, passages: float) -> float:
        """A query of an IVF index on a CPU thread: √N, and below a million passages what a search costs."""
        (row,) = self.fitted("growth")
        return self.grown("ivf", max(passages, row["passages"]), power=0.5)

    def part_ms(self, ranks: int) -> float:
        """Of the processor, to search a rank's part on CPUs."""
        (row,) = self.fitted("ranks")
        return float(row["ms"] / ranks)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What is to be done, and with what."""

    passages: float
    dim: int
    encoder: str
    length: float
    gpus: int
    refreshers: int
    batch: int
    k: int
    steps: int
    gbit: float


@dataclass(frozen=True)
class Plan:
    """What a cluster takes, reckoned from what was measured."""

    cluster: Cluster
    measured: Measured

    @property
    def trainers(self) -> int:
        return self.cluster.gpus - self.cluster.refreshers

    @property
    def vectors(self) -> float:
        """Bytes of vectors and ids."""
        return self.cluster.passages * (self.cluster.dim * BYTES + ID)

    @property
    def weights(self) -> float:
        """Of two towers and the reader."""
        return 3 * ENCODERS[self.cluster.encoder].weights

    @property
    def gpu_bytes(self) -> float:
        """What lies on a trainer's GPU beside activations."""
        return self.vectors / self.trainers + MOMENTS * self.weights

    @property
    def sent_bytes(self) -> float:
        """By each trainer in a step: gradients in float32 around a ring, queries, and hits of all parts."""
        cluster = self.cluster
        others = (self.trainers - 1) / self.trainers
        hits = cluster.batch * cluster.k * (4 + ID)
        return others * (2 * 4 * self.weights + 4 * cluster.batch * cluster.dim + hits)

    @property
    def learn_s(self) -> float:
        cluster = self.cluster
        rate = self.measured.learned_per_s(cluster.encoder, cluster.length, k=cluster.k)
        beside = self.measured.rows["beside"]["speed"] if cluster.refreshers == 0 else 1.0
        return cluster.batch / self.trainers / rate / beside

    @property
    def search_s(self) -> float:
        """Every trainer searches its part for the queries of all."""
        return self.measured.search_s(
            self.cluster.passages / self.trainers, self.cluster.dim, self.cluster.batch
        )

    @property
    def network_s(self) -> float:
        """Nothing is sent while gradients are made (docs/decisions/014-ranks.md)."""
        return 8 * self.sent_bytes / (self.cluster.gbit * 1e9)

    @property
    def step_s(self) -> float:
        return self.learn_s + self.search_s + self.network_s

    @property
    def embed_s(self) -> float:
        """All passages once. Beside training on the same GPUs a refresher is taken to have what the trainer
        leaves: the trainer's part was measured, not the refresher's."""
        cluster = self.cluster
        gpus = cluster.refreshers or cluster.gpus * (1 - self.measured.rows["beside"]["speed"])
        return cluster.passages / self.measured.embedded_per_s(cluster.encoder, cluster.length) / gpus

    @property
    def publish_s(self) -> float:
        """Each refresher writes what it embedded."""
        several = self.cluster.refreshers or self.cluster.gpus
        return self.measured.grown("publish", self.cluster.passages) / several

    @property
    def refresh_s(self) -> float:
        """From a snapshot to the index of it."""
        return self.embed_s + self.publish_s

    @property
    def age_steps(self) -> tuple[float, float]:
        """Of the index: when it comes in, and before the next does."""
        once = self.refresh_s / self.step_s
        return once, 2 * once

    @property
    def hours(self) -> float:
        return self.cluster.steps * self.step_s / 3600


def report(plan: Plan, dollars: float | None) -> str:
    """All of it, for people."""
    cluster, measured = plan.cluster, plan.measured
    fits = plan.gpu_bytes < ROOM * measured.machine["memory"] * GIB
    fitting = "" if fits else f"  DOES NOT FIT into {ROOM:.0%} of {measured.machine['memory']} GiB"
    young, old = plan.age_steps
    gpu_hours = cluster.gpus * plan.hours
    cost = f"{dollars * gpu_hours:,.0f} at an assumed {dollars:g} a GPU hour" if dollars else "give --dollars"
    small = "" if cluster.batch >= SMALLEST * plan.trainers else f"; no batch below {SMALLEST} was measured"
    share = f"learning {plan.learn_s:.3g} s, search {plan.search_s:.3g} s, network {plan.network_s:.3g} s"
    exact_ms = 1000 * measured.search_s(cluster.passages, cluster.dim, 1)
    beside = "none: the trainers' own GPUs embed" if cluster.refreshers == 0 else str(cluster.refreshers)
    lines = {
        "passages": f"{cluster.passages:,.0f}, vectors of {cluster.dim} numbers, float16",
        "corpus on disk": f"{measured.grown('corpus', cluster.passages):,.3g} GB",
        "vectors": f"{plan.vectors / 1e9:,.3g} GB",
        "GPUs that train": f"{plan.trainers}; {plan.gpu_bytes / GIB:,.3g} GiB of vectors and model{fitting}",
        "GPUs that refresh": beside,
        "a step": f"{plan.step_s:.3g} s for {cluster.batch} sentences ({share}){small}",
        "network per step": f"{plan.sent_bytes / 1e9:.3g} GB each, at an assumed {cluster.gbit:g} Gbit/s",
        "a refresh": f"{plan.refresh_s / 60:,.3g} min ({plan.publish_s / 60:,.2g} of them writing)",
        "age of the index": f"{young:,.0f} to {old:,.0f} steps",
        "all steps": f"{cluster.steps:,} in {plan.hours:,.3g} h, {gpu_hours:,.4g} GPU hours",
        "dollars": cost,
        "a question, exact": f"{exact_ms:,.3g} ms on one GPU, if {plan.vectors / GIB:,.3g} GiB fit there",
        "a question, IVF": f"{1000 * measured.ivf_s(cluster.passages):.3g} ms of a CPU thread",
    }
    width = max(map(len, lines))
    return "\n".join(f"{name:{width}}  {text}" for name, text in lines.items())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    measured = Measured()
    parser.add_argument("--passages", type=float, required=True)
    parser.add_argument("--dim", type=int, default=128, help="numbers of a vector")
    parser.add_argument("--encoder", choices=ENCODERS, default="base")
    parser.add_argument(
        "--length", type=float, default=measured.text["block"], help="wordpieces of a passage"
    )
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--refreshers", type=int, help="of the GPUs; default: a fifth, as the paper has it")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--gbit", type=float, default=400, help="of the network of a GPU; not measured")
    parser.add_argument("--dollars", type=float, help="for a GPU hour; not measured")
    options = vars(parser.parse_args())
    dollars = options.pop("dollars")
    if options["refreshers"] is None:
        options["refreshers"] = options["gpus"] // 5
    if not 0 <= options["refreshers"] < options["gpus"]:
        parser.error("some of the GPUs must train: --refreshers is 0 or more, and less than --gpus")
    print(report(Plan(Cluster(**options), measured), dollars))


if __name__ == "__main__":
    main()
