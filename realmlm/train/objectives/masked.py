"""The reader's warm-up: masked language modelling with a passage given, not retrieved.

A reader that cannot read would ruin the retriever in joint training. B sentences with a passage each, M
masks.
"""

import numpy as np
import torch
from torch import Tensor

from realmlm.corpus.store import Corpus
from realmlm.log import Clock
from realmlm.model.inputs import Inputs, Masked
from realmlm.model.marginal import hidden_log_p, mean_where
from realmlm.model.realm import Realm
from realmlm.reading.read import join, point, read_masks, standing
from realmlm.reading.retrieve import Offered
from realmlm.settings import Warmup
from realmlm.train.data import ReadingPairs
from realmlm.train.objective import Group, Objective

Drawn = tuple[Masked, Inputs, np.ndarray | None]
"""Masked sentences, what is read with them, and where the hidden words stand in it."""


class MaskedReading(Objective):
    """−log p(y|z,x) with a passage given, and where y stands in z −log of the probability of pointing at it.

    The first is the mean over a sentence's masks, so that a long span weighs no more than a word. Joint
    training takes the sum, for its marginal is over all of y: the two losses are on different scales.
    """

    def __init__(self, settings: Warmup, model: Realm, corpus: Corpus, pairs: ReadingPairs) -> None:
        self.settings = settings
        self.model = model
        self.corpus = corpus
        self.pairs = pairs

    def groups(self) -> dict[str, Group]:
        return {"reader": Group(list(self.model.reader.parameters()), self.settings.reader.lr)}

    def draw(self, first: int, count: int) -> Drawn:
        masked, passages = self.pairs.draw(first, count)
        offered = Offered(self.corpus, passages[:, None], null=False)
        inputs = join(self.model, masked.queries, offered)
        if not self.settings.pointing:
            return masked, inputs, None
        runs = masked.runs(self.model.config.max_answer)
        return masked, inputs, standing(runs, offered.bodies_N, inputs)

    def loss(self, drawn: Drawn, step: int, clock: Clock) -> tuple[Tensor, dict[str, Tensor]]:
        masked, inputs, gold_N3 = drawn
        model = self.model
        positions_BM, targets_BM, valid_BM = masked.tensors(model.device)
        clock("read")
        reading = read_masks(model, inputs.to(model.device), positions_BM)
        token_BM = hidden_log_p(reading.log_BKMV, targets_BM)[:, 0]
        right_BM = reading.log_BKMV[:, 0].argmax(-1) == targets_BM
        masks_B = valid_BM.sum(-1)
        loss_B = -(token_BM * valid_BM).sum(-1) / masks_B
        numbers = {"right": ((right_BM & valid_BM).sum(-1) / masks_B).mean()}
        if gold_N3 is None:
            return loss_B.mean(), numbers
        clock("point")
        point_B, held_B = point(model.reader, reading, gold_N3)
        point_B = torch.where(held_B, point_B, 0.0)
        numbers |= {"held": held_B.float().mean(), "pointed": mean_where(held_B, point_B.exp())}
        return (loss_B - self.settings.pointing * point_B).mean(), numbers
