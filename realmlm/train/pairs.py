"""Queries, the passages that the towers are to find for them, and those they are to tell them from.

B queries, J passages for each of them, U different passages, Q questions, C hits of each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from realmlm.errors import NotEnough
from realmlm.log import progress, say
from realmlm.train.data import (
    Example,
    Recurrences,
    SentenceSource,
    document_title,
    epoch_positions,
    generator,
    glimpse,
)
from realmlm.train.gold import Gold

REMOVED = 0.5  # share of sentences that a recurring span is taken out of


@dataclass(frozen=True, eq=False)
class Contrasts:
    """Queries, and all passages of a batch: each is told from those of the others too."""

    queries: list[np.ndarray]
    ids_U: np.ndarray  # each passage once; −1 where there are no more, so that all batches have one size
    own_B: np.ndarray  # the place of the one that is to be found
    others_BU: np.ndarray  # those that it is to be told from

    @classmethod
    def of(cls, queries: list[np.ndarray], ids_BJ: np.ndarray, spared: Sequence[np.ndarray]) -> "Contrasts":
        """The passage in column 0 is to be found; −1 stands for none. `spared` are passages that a query is
        not told from, though they are there: they would be found rightly."""
        found = np.unique(ids_BJ[ids_BJ >= 0])
        ids_U = np.full(ids_BJ.size, -1)
        ids_U[: len(found)] = found
        others_BU = np.tile(ids_U >= 0, (len(queries), 1))
        for row, ids in enumerate(spared):
            others_BU[row, : len(found)] &= ~np.isin(found, ids)
        return cls(queries, ids_U, np.searchsorted(found, ids_BJ[:, 0]), others_BU)

    def share(self, rank: int, ranks: int) -> "Contrasts":
        """What one of several ranks has of it: some of the queries, and every so many of the passages to
        embed. `own_B` and `others_BU` are of all passages, those of the first rank first."""
        order_U = np.arange(len(self.ids_U)).reshape(-1, ranks).T.flatten()
        mine = slice(rank * len(self.queries) // ranks, (rank + 1) * len(self.queries) // ranks)
        own_B = order_U.argsort()[self.own_B[mine]]
        return Contrasts(self.queries[mine], self.ids_U[rank::ranks], own_B, self.others_BU[mine][:, order_U])


class Pairs(Protocol):
    """Where queries and passages come from."""

    def draw(self, first: int, count: int) -> Contrasts:
        """Those from position `first` on."""


class QuestionPairs:
    """Questions, each with a passage that answers it and some that do not, though they were found for it.

    The first is the paragraph that a question came with or else the best hit that holds an answer; the others
    are drawn from the hits that hold none. A hit of its own that holds an answer is no question's negative.
    """

    def __init__(self, gold: Gold, hits_QC: np.ndarray, *, negatives: int, seed: int) -> None:
        """`hits_QC` are passages found for each question, best first."""
        self._gold = gold
        self._hits_QC = hits_QC
        self._negatives = negatives
        self._seed = seed
        self._holds_QC = np.zeros(hits_QC.shape, dtype=bool)
        with progress("looking at what was found", len(gold), unit="questions") as bar:
            for number, ids_C in enumerate(hits_QC):
                self._holds_QC[number] = gold.holds(number, ids_C)
                bar.advance()
        best_Q = np.take_along_axis(hits_QC, self._holds_QC.argmax(1)[:, None], axis=1)[:, 0]
        self._own_Q = np.where(gold.given_Q >= 0, gold.given_Q, np.where(self._holds_QC.any(1), best_Q, -1))
        self.numbers = np.flatnonzero(self._own_Q >= 0)
        """The questions that there is a passage for."""
        say(f"{len(self):,} of {len(gold):,} questions have a passage to find")
        if len(self) < 2:
            raise NotEnough(
                "the towers learn to tell passages apart, but fewer than two questions have one; find more "
                "with --candidates, or give questions about these documents"
            )

    def __len__(self) -> int:
        return len(self.numbers)

    def draw(self, first: int, count: int) -> Contrasts:
        """The questions from position `first` on."""
        places = epoch_positions(len(self), seed=self._seed, first=first, count=count)
        numbers = self.numbers[places].tolist()
        ids_BJ = np.full((count, 1 + self._negatives), -1)
        spared = []
        for row, number in enumerate(numbers):
            hits_C = self._hits_QC[number]
            holds_C = self._holds_QC[number]
            lacking = hits_C[~holds_C]
            chosen = generator(self._seed, first + row).permutation(lacking)[: self._negatives]
            ids_BJ[row, 0] = self._own_Q[number]
            ids_BJ[row, 1 : 1 + len(chosen)] = chosen
            spared.append(np.append(hits_C[holds_C], self._own_Q[number]))
        return Contrasts.of([self._gold.questions[number] for number in numbers], ids_BJ, spared)


class SpanPairs:
    """Recurring spans (Spider: Ram et al. 2022): a sentence, and another passage of its title in which words
    that are marked in the sentence are marked too. No one labels anything.

    In half of the cases the words are taken out of the sentence: else matching them would be enough. It is
    told from a passage of its title without the words, if there is one. Some sentences are cut to a few words
    around the gap, and some are given the title: a question is as short, and names what it is about.
    """

    def __init__(
        self,
        source: SentenceSource,
        *,
        seed: int,
        held_out: Iterable[int] = (),
        glimpses: float = 0.0,
        titled: float = 0.0,
    ) -> None:
        """`held_out` are passages that must not be learned from; `glimpses` and `titled` are the shares of
        sentences that are cut, and given the title."""
        self._source = source
        self._seed = seed
        self._held_out = np.array(sorted(held_out), dtype=np.int64)
        self._glimpses = glimpses
        self._titled = titled
        self._recurrences = Recurrences(source.corpus, source.sentences)

    def draw(self, first: int, count: int) -> Contrasts:
        """The pairs from position `first` on."""
        queries = []
        ids_BJ = np.full((count, 2), -1)
        spared = []
        for row in range(count):
            rng = generator(self._seed + 3, first + row)
            example, another, having = self._recurrences.pair(self._source, rng)
            queries.append(self._query(example, rng))
            beside = np.setdiff1d(self._source.corpus.siblings(example.passage), having)
            beside = np.setdiff1d(beside, self._held_out)
            ids_BJ[row, 0] = another
            if len(beside):
                ids_BJ[row, 1] = rng.choice(beside)
            spared.append(having)  # its own passage among them
        return Contrasts.of(queries, ids_BJ, spared)

    def _query(self, example: Example, rng: np.random.Generator) -> np.ndarray:
        without = rng.random() < REMOVED
        tokens = np.delete(example.tokens, example.positions) if without else example.tokens
        if self._glimpses and rng.random() < self._glimpses:
            tokens = glimpse(tokens, int(example.positions[0]), rng)
        if self._titled and rng.random() < self._titled:
            tokens = np.concatenate([document_title(self._source.corpus, example.passage), tokens])
        return tokens
