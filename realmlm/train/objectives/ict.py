"""The retriever's warm-up: the inverse cloze task (Lee et al. 2019).

Without it joint training sends everything to the null document. B sentences and their passages, N passages of
all ranks' sentences.
"""

import numpy as np
import torch
from torch import Tensor

from realmlm.log import Clock
from realmlm.model.inputs import Inputs
from realmlm.model.marginal import in_batch_contrast, inner_products
from realmlm.model.realm import Realm
from realmlm.settings import Warmup
from realmlm.train.data import ClozePairs
from realmlm.train.objective import Group, Objective, retriever_groups, scale_of

Drawn = tuple[Inputs, Inputs, np.ndarray]
"""Sentences, passages, and numbers of the passages' words: a copy of a sentence's own is no negative."""


class InverseCloze(Objective):
    """−log p(z|x) among the passages of the batch."""

    def __init__(self, settings: Warmup, model: Realm, pairs: ClozePairs) -> None:
        self.settings = settings
        self.model = model
        self.pairs = pairs

    def groups(self) -> dict[str, Group]:
        towers = self.model.retriever_parameters()
        rates = {"lr": self.settings.retriever.lr, "scale_lr": self.settings.scale_lr}
        return retriever_groups(self.model, towers, **rates)

    def draw(self, first: int, count: int) -> Drawn:
        pairs = self.pairs.draw(first, count)
        documents = self.model.document_inputs(pairs.titles, pairs.bodies)
        return self.model.query_inputs(pairs.sentences), documents, pairs.contents

    def loss(self, drawn: Drawn, step: int, clock: Clock) -> tuple[Tensor, dict[str, Tensor]]:
        queries, documents, contents = drawn
        device = self.model.device
        clock("embed")
        query_BD = self.model.query(queries.to(device))
        vectors_ND = self.ranks.gather(self.model.document(documents.to(device)))
        contents_N = self.ranks.gather(torch.from_numpy(contents)).to(device)
        scores_BN = inner_products(query_BD, vectors_ND)
        loss_B, found_B = in_batch_contrast(scores_BN, contents_N, first=self.ranks.rank * len(contents))
        return loss_B.mean(), {"found": found_B.float().mean(), **scale_of(self.model)}
