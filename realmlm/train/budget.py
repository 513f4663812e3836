"""What an adapting will take on this machine, planned before it begins: a few passages are embedded, a few
examples answered and a step's queries embedded, all of them timed, and the minutes are divided up.

Passages must all be embedded, whatever it takes. Of what is left, measuring before and after gets a share,
training the rest.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from realmlm.corpus.questions import Question, spread
from realmlm.corpus.store import Corpus
from realmlm.evaluation.clozes import is_cloze, measure_clozes
from realmlm.index.exact import ExactIndex
from realmlm.log import counted, duration
from realmlm.model.realm import Realm
from realmlm.model.snapshot import DocumentEncoder
from realmlm.reading.answer import Answerer
from realmlm.reading.retrieve import LearnedRetriever
from realmlm.train.callbacks import Callback, Enough

READ = 5  # passages
BATCH = 32  # examples of a step
SMALLEST_BATCH = 8  # where there is no time for STEPS steps of more
STEPS = 20
FEWEST_STEPS = 5
TRIED_PASSAGES = 64
TOGETHER = 16  # of them, embedded at once
TRIED = 6  # examples
MEASURING = 0.5  # the share of the time left after embedding that measuring takes at most, before and after
SLOWER = 1.4  # so much longer than planned it may take; then as much is measured as was done until then
USED = 0.9  # of the minutes: the rest is for loading models, writing, and a machine that gets busier


@dataclass(frozen=True)
class Speeds:
    """Seconds on this machine."""

    passage: float
    """Of a passage that is embedded."""
    example: float
    """Of a held-out example: a question answered, or a sentence filled in and asked as a question too."""
    learned: float
    """Of an example in a step of training."""


@dataclass(frozen=True)
class Plan:
    """What is done in the time, and how long each part will take, in seconds."""

    minutes: float
    spent_s: float  # so far
    lacking: int  # passages without vectors
    embedding_s: float
    measured: int  # examples
    measuring_s: float
    steps: int
    batch: int
    training_s: float
    what: str  # of the examples

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.spent_s + self.embedding_s + 2 * self.measuring_s + self.training_s

    def table(self) -> str:
        """For a terminal, before it begins."""
        vectors = f"{self.lacking:,} passages" if self.lacking else "all passages are embedded already"
        rows = [
            ("reading the documents", self.spent_s, "done"),
            ("embedding", self.embedding_s, vectors),
            ("measuring", self.measuring_s, counted(self.measured, self.what)),
            ("training", self.training_s, f"{self.steps} steps of {self.batch}"),
            ("measuring again", self.measuring_s, "the same"),
            ("in all", self.seconds, f"of {duration(60 * self.minutes)} (--minutes)"),
        ]
        lines = [f"  {name:24s}{duration(seconds):>12s}   {said}" for name, seconds, said in rows]
        if self.seconds > 60 * self.minutes:
            least = f"no fewer than {counted(self.measured, self.what)} and {self.steps} steps tell anything"
            once = "passages are embedded once, and kept for the next time; " if self.lacking else ""
            lines.append(f"  longer than --minutes, for {once}{least}")
        return "\n".join(["what it will take, going by speeds measured just now:", *lines])


def make_plan(
    speeds: Speeds,
    *,
    minutes: float,
    spent_s: float,
    lacking: int,
    measured: tuple[int, int],
    learned: int,
    what: str,
) -> Plan:
    """Divide the minutes up, of which `spent_s` are over: the fewest and the most examples that may be
    `measured`, and how often one may be `learned` from. Where time is short, batches are smaller before steps
    are fewer."""
    embedding_s = lacking * speeds.passage
    left = USED * 60 * minutes - spent_s - embedding_s
    examples = _within(MEASURING / 2 * left / speeds.example, *measured)
    measuring_s = examples * speeds.example
    time_for = (left - 2 * measuring_s) / speeds.learned
    batch = _within(time_for / STEPS, SMALLEST_BATCH, BATCH)
    steps = _within(time_for / batch, FEWEST_STEPS, max(FEWEST_STEPS, learned // batch))
    training_s = steps * batch * speeds.learned
    return Plan(minutes, spent_s, lacking, embedding_s, examples, measuring_s, steps, batch, training_s, what)


def _within(number: float, least: int, most: int) -> int:
    return int(max(least, min(most, number)))


@torch.inference_mode()
def try_out(realm: Realm, corpus: Corpus, examples: list[list[Question]], *, labelled: bool) -> Speeds:
    """How quick it is here, with an index of a few passages alone; `examples` are some of those that are to
    be measured, each with all that is asked of it."""
    encode = DocumentEncoder.of(realm)
    ids_N = corpus.ids[spread(len(corpus), TRIED_PASSAGES)]
    ids_N = ids_N[np.argsort(corpus.lengths_of(ids_N))]  # as an index is built: passages of a length together
    parts = np.array_split(ids_N, max(1, len(ids_N) // TOGETHER))
    encode(corpus, parts[0])  # the first time takes longer
    passages_s, vectors_ND = _timed(lambda: torch.cat([encode(corpus, part).cpu() for part in parts]))
    index = ExactIndex(vectors_ND, torch.from_numpy(ids_N), device=realm.device)
    answerer = Answerer(realm, corpus, LearnedRetriever(realm, index))
    read = min(READ, len(ids_N))

    def answer(some: list[list[Question]]) -> None:
        asked = [question for each in some for question in each]
        sentences = [question for question in asked if is_cloze(question)]
        measure_clozes(answerer, sentences, [() for _ in sentences], read=read)
        answerer.ask([question.text for question in asked if not is_cloze(question)], read=read)

    answer(examples[:1])
    examples_s, _ = _timed(lambda: answer(examples))
    example_s = examples_s / len(examples)
    if labelled:
        learned_s = 4 * example_s  # reading, going backwards, and answering without a passage
    else:
        texts = [each[0].text for each in examples]
        queries = [realm.wordpieces.encode_query(text) for text in (texts * BATCH)[:BATCH]]
        queries_s, _ = _timed(lambda: realm.query(realm.query_inputs(queries).to(realm.device)).cpu())
        learned_s = 1.5 * queries_s / BATCH  # with the search, and what the projection learns
    return Speeds(passages_s / len(ids_N), example_s, learned_s)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.monotonic()
    result = work()
    return max(1e-6, time.monotonic() - begun), result


class UntilTime(Callback):
    """Ends training when its time is over, but not before some steps."""

    def __init__(self, until: float) -> None:
        """`until` as `time.monotonic` tells the time."""
        self._until = until

    def on_row(self, row: dict[str, Any]) -> None:
        if row["step"] >= FEWEST_STEPS and time.monotonic() >= self._until:
            raise Enough
