"""The reader's warm-up: masked language modelling with a passage given, not retrieved.

A reader that cannot read would ruin the retriever in joint training. B sentences with a passage each, M
masks.
"""

import numpy as np
import torch
from torch import Tensor

from realmlm.corpus.store import Corpus
from realmlm.log import Clock
from realmlm.model.inputs import Inputs, Masked, send
from realmlm.model.marginal import hidden_log_p
from realmlm.model.realm import Realm
from realmlm.model.resident import Resident
from realmlm.reading.packed import (
    MaskedBatch,
    Shape,
    flatten,
    lay_out,
    read_packed,
    rows_of,
    standing_in,
)
from realmlm.reading.read import join, point, read_masks, standing
from realmlm.reading.retrieve import Offered
from realmlm.settings import Warmup
from realmlm.train.data import ReadingPairs
from realmlm.train.objective import Group, Mean, Numbers, Objective, Staged

Drawn = tuple[Masked, Inputs, np.ndarray | None] | tuple[np.ndarray, Shape]
"""Masked sentences, what is read with them, and where the hidden words stand in it; or all in one array."""


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
        self.resident: Resident | None = None
        """The corpus on the device, where everything is read packed."""

    def groups(self) -> dict[str, Group]:
        return {"reader": Group(list(self.model.reader.parameters()), self.settings.reader.lr)}

    def prepare(self, model: Realm) -> None:
        super().prepare(model)
        if type(self).loss is MaskedReading.loss and type(self).draw is MaskedReading.draw:
            bf16 = self.settings.loop.bf16
            self.resident = lay_out(model, self.corpus, [model.reader.encoder], bf16=bf16)

    def draw(self, first: int, count: int) -> Drawn:
        masked, passages = self.pairs.draw(first, count)
        config = self.model.config
        if self.resident is not None:
            sizes = {"max_query": config.max_query, "widths": config.max_answer}
            return flatten(masked, masked.queries, passages[:, None], **sizes)
        offered = Offered(self.corpus, passages[:, None], null=False)
        inputs = join(self.model, masked.queries, offered)
        if not self.settings.pointing:
            return masked, inputs, None
        runs = masked.runs(config.max_answer)
        return masked, inputs, standing(runs, offered.bodies_N, inputs, self.model.wordpieces.lengthens)

    def loss(self, drawn: Drawn, step: int, clock: Clock) -> tuple[Tensor, Numbers]:
        if (staged := self.stage(drawn, step, clock)) is not None:
            clock("read")
            return self.compute(staged)
        masked, inputs, gold_N3 = drawn  # type: ignore[misc]
        model = self.model
        positions_BM, targets_BM, valid_BM = masked.tensors(model.device)
        clock("read")
        reading = read_masks(model, inputs.to(model.device), positions_BM)
        token_BM = hidden_log_p(reading.log_BKMV, targets_BM)[:, 0]
        right_BM = reading.log_BKMV[:, 0].argmax(-1) == targets_BM
        if gold_N3 is None:
            return self._likelihood(token_BM, right_BM, valid_BM, None)
        clock("point")
        return self._likelihood(token_BM, right_BM, valid_BM, point(model.reader, reading, gold_N3))

    def _likelihood(
        self, token_BM: Tensor, right_BM: Tensor, valid_BM: Tensor, pointed: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Numbers]:
        """From log p(y_j|z,x), whether y_j is the likeliest, and what `point` gives."""
        masks_B = valid_BM.sum(-1)
        loss_B = -(token_BM * valid_BM).sum(-1) / masks_B
        numbers: dict[str, Tensor | Mean] = {"right": ((right_BM & valid_BM).sum(-1) / masks_B).mean()}
        if pointed is None:
            return loss_B.mean(), numbers
        point_B, held_B = pointed
        point_B = torch.where(held_B, point_B, 0.0)
        numbers |= {"held": held_B.float().mean(), "pointed": Mean.where(held_B, point_B.exp())}
        return (loss_B - self.settings.pointing * point_B).mean(), numbers

    # --- the same with everything on the device -------------------------------------------------------------

    def stage(self, drawn: Drawn, step: int, clock: Clock) -> Staged | None:
        """Find out how much there is to read."""
        resident = self.resident
        if resident is None:
            return None
        array, shape = drawn  # type: ignore[misc]
        flat = send(torch.from_numpy(array), resident.device)
        batch = MaskedBatch.of(flat, shape)
        ids_B1 = batch.passages_BE
        config = self.model.config
        needed = resident.pair_lengths(batch.queries, rows_of(ids_B1), ids_B1[:, 0]).sum()
        held = standing_in(resident, batch, ids_B1, widest=config.max_passage).any(1).sum()
        needed_n, held_n = torch.stack([needed, held]).tolist()
        size = batch.fitting(needed_n, longest=config.max_joint)
        return Staged({"flat": flat}, (shape, size, batch.room(held_n, of=len(ids_B1))))

    def compute(self, staged: Staged) -> tuple[Tensor, Numbers]:
        resident = self.resident
        assert resident is not None
        reader = self.model.reader
        shape, size, room = staged.sizes
        batch = MaskedBatch.of(staged.tensors["flat"], shape)
        ids_B1 = batch.passages_BE
        packed = resident.pairs(batch.queries, rows_of(ids_B1), ids_B1[:, 0], size)
        standing_BJ = None
        if self.settings.pointing:
            standing_BJ = standing_in(resident, batch, ids_B1, widest=self.model.config.max_passage)
        token_S1, right_S1, pointed = read_packed(reader, packed, batch, standing_BJ, k=1, room=room)
        token_B1M, valid_BM = batch.by_mask(token_S1)
        right_B1M, _ = batch.by_mask(right_S1)
        return self._likelihood(token_B1M[:, 0], right_B1M[:, 0], valid_BM, pointed)
