"""Adapting without labels: find where else in the documents the hidden words of a sentence stand.

B sentences, C candidates each, D vector size.
"""

import numpy as np
import torch
from torch import Tensor, nn

from realmlm.corpus.store import Corpus
from realmlm.index.duplicates import SameWords
from realmlm.index.exact import Index
from realmlm.log import Clock
from realmlm.model.inputs import Inputs
from realmlm.model.marginal import evidence_log_likelihood, inner_products
from realmlm.model.realm import Realm
from realmlm.reading.read import places_of
from realmlm.train.data import MaskedSentences, SentenceSource
from realmlm.train.objective import Group, Objective

CANDIDATES = 100


class FoundElsewhere(Objective):
    """−log p(passages with the hidden words | x) among candidates other than the sentence's own passage."""

    def __init__(
        self,
        model: Realm,
        corpus: Corpus,
        source: SentenceSource,
        index: Index,
        *,
        learning: list[nn.Parameter],
        lr: float,
    ) -> None:
        self.model = model
        self.corpus = corpus
        self.source = source
        self.index = index
        self._learning = Group(learning, lr)
        self._own = SameWords(corpus, corpus)

    def groups(self) -> dict[str, Group]:
        return {"retriever": self._learning}

    def prepare(self, model: Realm) -> None:
        """The calibration stays: scores hardly move (docs/decisions/010)."""

    def draw(self, first: int, count: int) -> tuple[MaskedSentences, Inputs]:
        drawn = self.source.draw(first, count)
        return drawn, self.model.query_inputs(drawn.masked.queries)

    def loss(
        self, drawn: tuple[MaskedSentences, Inputs], step: int, clock: Clock
    ) -> tuple[Tensor, dict[str, Tensor]]:
        sentences, inputs = drawn
        # only the projection learns: what it learns from should not waver
        self.model.query.encoder.eval()
        clock("embed")
        query_BD = self.model.query(inputs.to(self.model.device))
        clock("search")
        own_BE = self._own(sentences.passages)
        candidates = min(CANDIDATES, len(self.corpus) - self._own.most)
        hits = self.index.search(query_BD.detach().float(), candidates, exclude_QE=own_BE)
        ids_BC = hits.ids_QK.cpu()
        holds_BC = torch.from_numpy(self._holds(sentences, ids_BC.numpy())).to(self.model.device)
        candidate_BCD = self.index.vectors(ids_BC.flatten()).view(*ids_BC.shape, -1).to(query_BD)
        found_B = evidence_log_likelihood(inner_products(query_BD, candidate_BCD), holds_BC)
        return -found_B.mean(), {
            "recall@1": holds_BC[:, 0].float().mean(),
            "recall@5": holds_BC[:, :5].any(-1).float().mean(),
        }

    def _holds(self, sentences: MaskedSentences, ids_BC: np.ndarray) -> np.ndarray:
        """Which of the candidates have the hidden words, [B, C]."""
        ids_U, places = np.unique(ids_BC, return_inverse=True)
        bodies = self.corpus.tokens_of(ids_U).bodies
        rows = zip(sentences.masked.hidden(), places.reshape(ids_BC.shape), strict=True)
        lengthens = self.corpus.wordpieces.lengthens
        return np.array(
            [[len(places_of(words, bodies[place], lengthens)) > 0 for place in row] for words, row in rows]
        )
