"""Joint pre-training: masked language modelling through a search (section 3 of the paper).

B sentences, K passages each with the null document in column 0, N = B · K pairs, M masks, D vector size.
"""

import math
from collections import defaultdict
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from realmlm.corpus.questions import Question
from realmlm.corpus.store import Corpus
from realmlm.errors import BadInput
from realmlm.evaluation.clozes import measure_clozes, source_copies
from realmlm.index.duplicates import SameWords, body_numbers
from realmlm.log import Clock
from realmlm.model.encoders import Tower
from realmlm.model.inputs import Inputs, send
from realmlm.model.marginal import (
    among_all,
    hidden_log_p,
    inner_products,
    joint_reading,
    marginal_log_likelihood,
    per_token_marginal,
    posterior,
    retrieval_utility,
    taught_apart,
)
from realmlm.model.realm import Realm
from realmlm.model.resident import Resident
from realmlm.reading.answer import Answerer
from realmlm.reading.packed import (
    MaskedBatch,
    Offer,
    Shape,
    embed_seen,
    embed_to_search,
    flatten,
    lay_out,
    offer,
    read_packed,
    rows_of,
    standing_in,
)
from realmlm.reading.read import join, point, pointing_log_likelihood, read_masks, standing
from realmlm.reading.retrieve import LearnedRetriever, Offered, scores_of_all
from realmlm.settings import Pretrain
from realmlm.train.data import MaskedSentences, SentenceSource
from realmlm.train.guard import Guard
from realmlm.train.live import LiveIndex
from realmlm.train.objective import (
    Group,
    Mean,
    Numbers,
    Objective,
    Staged,
    documents_learn,
    retriever_groups,
    scale_of,
)
from realmlm.train.recorded import Recorded, Work

Drawn = tuple[MaskedSentences, Inputs] | tuple[np.ndarray, Shape]
"""Masked sentences and what the query tower is given of them, or all of it in one array."""


class JointPretraining(Objective):
    """−log p(y|x) = −log Σ_z p(z|x) p(y|z,x), z from the top of a stale index, every score recomputed."""

    guard: Guard | None = None
    """Slows the retriever down where it forgets, if it is set before the first step."""

    def __init__(
        self,
        settings: Pretrain,
        model: Realm,
        corpus: Corpus,
        source: SentenceSource,
        live: LiveIndex,
        *,
        own: SameWords | None = None,
        probe: list[Question] | None = None,
    ) -> None:
        """`own` tells which passages a sentence may not retrieve, its own and copies; `probe` are held-out
        masked sentences to measure on."""
        self.settings = settings
        self.model = model
        self.corpus = corpus
        self.source = source
        self.live = live
        self._device = model.device
        self._own = own
        self._null = settings.null_document
        # for each passage, by id: copies have the same
        self._body_P = torch.from_numpy(body_numbers(corpus)).to(model.device) if settings.in_batch else None
        self._passages = settings.k - settings.null_document
        self._probe = probe or []
        self._probe_own = source_copies(corpus, self._probe)
        self.resident: Resident | None = None
        """The corpus on the device, where everything is read packed."""
        self._embed: Work = self._embed_seen
        self._offer: Work = self._offer_found

    @property
    def _searching(self) -> Tower | None:
        """The query tower that searches, if it is not the one that learns."""
        return None if self.live.asker is None else self.live.asker.tower

    def groups(self) -> dict[str, Group]:
        optim = self.settings.optim
        return {
            "reader": Group(list(self.model.reader.parameters()), optim.lr),
            **retriever_groups(
                self.model,
                self.model.retriever_parameters(),
                lr=optim.retriever_lr,
                scale_lr=self.settings.scale_lr,
            ),
        }

    def prepare(self, model: Realm) -> None:
        super().prepare(model)
        if self.settings.in_batch and self.ranks.count > 1:
            raise BadInput("--in-batch tells apart what one process has found: leave it out under torchrun")
        still = self.settings.freeze_retriever if documents_learn(model, self.groups()) else math.inf
        self.live.still_until = still
        mine = type(self).loss is JointPretraining.loss and type(self).draw is JointPretraining.draw
        if mine:
            encoders = model.encoders + ([] if self._searching is None else [self._searching.encoder])
            self.resident = lay_out(model, self.corpus, encoders, bf16=self.settings.loop.bf16)
        if self.resident is not None and self.settings.loop.compile and self.ranks.count == 1:
            self._embed = Recorded(self._embed_seen, self._device)
            self._offer = Recorded(self._offer_found, self._device)

    def draw(self, first: int, count: int) -> Drawn:
        """Masked sentences, and what the query tower is given of them; to be read packed, in one array."""
        drawn = self.source.draw(first, count)
        if self.resident is None:
            return drawn, self.model.query_inputs(drawn.seen)
        config = self.model.config
        own_BE = np.full((count, 1), -1)
        if self._own is not None:
            found_BE = self._own(drawn.passages).numpy()
            own_BE = np.pad(found_BE, ((0, 0), (0, self._own.most - found_BE.shape[1])), constant_values=-1)
        sizes = {"max_query": config.max_query, "widths": config.max_answer}
        return flatten(drawn.masked, drawn.seen, own_BE, **sizes)

    def loss(self, drawn: Drawn, step: int, clock: Clock) -> tuple[Tensor, Numbers]:
        if (staged := self.stage(drawn, step, clock)) is not None:
            clock("read")
            return self.compute(staged)
        frozen = self._freeze_or_thaw(step)
        model = self.model
        sentences, inputs = drawn
        assert isinstance(sentences, MaskedSentences)
        assert isinstance(inputs, Inputs)
        masked = sentences.masked
        positions_BM, targets_BM, valid_BM = masked.tensors(self._device)
        clock("embed")
        inputs = inputs.to(self._device)
        query_BD = model.query(inputs)
        searching_BD = query_BD.detach()
        if self._searching is not None:
            with torch.no_grad():
                searching_BD = self._searching(inputs)
        clock("search")
        own_BE = None if self._own is None else self._own(sentences.passages)
        hits = self.live.index.search(searching_BD.float(), self._passages, exclude_QE=own_BE)
        offered = Offered(self.corpus, hits.ids_QK.cpu().numpy(), null=self._null)
        clock("embed")
        scores_BU = scores_of_all(model, query_BD, offered)
        if frozen:
            scores_BU = scores_BU.detach()
        place_BK = torch.from_numpy(offered.place_BK).to(self._device)
        retrieval_BK = scores_BU.gather(1, place_BK)
        among_BK = self._among(scores_BU, place_BK, torch.from_numpy(offered.ids_U), own_BE)
        clock("read")
        inputs = join(model, masked.queries, offered)
        reading = read_masks(model, inputs.to(self._device), positions_BM)
        token_BKM = hidden_log_p(reading.log_BKMV, targets_BM)
        if not self.settings.pointing:
            return self._learned(retrieval_BK, token_BKM, valid_BM, None, among_BK)
        clock("point")
        runs = [words for words in masked.runs(model.config.max_answer) for _ in range(offered.k)]
        gold_N3 = standing(runs, offered.bodies_N, inputs, model.wordpieces.lengthens)
        pointed = point(model.reader, reading, gold_N3)
        return self._learned(retrieval_BK, token_BKM, valid_BM, pointed, among_BK)

    def _learned(
        self,
        retrieval_BK: Tensor,
        token_BKM: Tensor,
        valid_BM: Tensor,
        pointed: tuple[Tensor, Tensor] | None,
        among_BK: Tensor | None,
    ) -> tuple[Tensor, Numbers]:
        """The likelihood, that of pointing at the hidden words, if `point` gave it, and that of what explains
        a sentence among all passages of the batch, if `_among` gave theirs."""
        loss, likelihood = self.likelihood(retrieval_BK, token_BKM, valid_BM)
        numbers: dict[str, Tensor | Mean] = {**likelihood, **scale_of(self.model)}
        evidence_BK = joint_reading(token_BKM, valid_BM)
        if pointed is not None:
            some_B = pointed[1].view_as(retrieval_BK).any(-1)
            point_BK = pointed[0].view_as(retrieval_BK).masked_fill(~some_B[:, None], 0.0)
            evidence_BK = evidence_BK + self.settings.pointing * point_BK
            weight_BK, apart_B = self._apart(retrieval_BK, point_BK)
            found_B, some_B = pointing_log_likelihood(weight_BK, *pointed)
            numbers |= {"held": some_B.float().mean(), "pointed": Mean.where(some_B, found_B.exp())}
            learned_B = found_B - torch.where(some_B, apart_B, 0.0)
            loss = loss - self.settings.pointing * learned_B.mean()
        if among_BK is not None:
            explains_BK = posterior(retrieval_BK, evidence_BK).detach()[:, int(self._null) :]
            numbers["among"] = among_BK.logsumexp(-1).exp().mean()
            loss = loss - self.settings.in_batch * (explains_BK * among_BK).sum(-1).mean()
        return loss, numbers

    def _among(
        self, scores_BU: Tensor, place_BK: Tensor, ids_U: Tensor, own_BE: Tensor | None
    ) -> Tensor | None:
        """log p(z|x) of the passages offered to each sentence among those offered to any, without the null
        document, those that it may not retrieve, and copies of those offered to it."""
        if self._body_P is None:
            return None
        ids_U = ids_U.to(scores_BU.device)
        others_BU = (ids_U >= 0).expand_as(scores_BU)
        if own_BE is not None:
            others_BU = others_BU & (ids_U[:, None] != own_BE.to(ids_U.device)[:, None]).all(-1)
        place_BK = place_BK[:, int(self._null) :]
        body_U = self._body_P[ids_U]  # of −1 any: it is not counted
        copies_BU = (body_U[:, None] == body_U[place_BK][:, None]).any(-1)
        return among_all(scores_BU, place_BK, others_BU & ~copies_BU)

    def _apart(self, retrieval_BK: Tensor, reader_BK: Tensor) -> tuple[Tensor, Tensor]:
        return taught_apart(retrieval_BK, retrieval_BK, reader_BK, self.settings.retriever_target)

    def _freeze_or_thaw(self, step: int) -> bool:
        """Switch the towers' dropout off for a step at which the retriever does not learn, and on again once
        it does; True: it does not learn."""
        rates = (self.settings.optim.retriever_lr, self.settings.scale_lr)
        frozen = step < self.settings.freeze_retriever or not any(rates)
        towers = (self.model.query, self.model.document)
        if frozen:
            for tower in towers:
                tower.eval()
        elif self.model.training and not all(tower.training for tower in towers):
            self.model.train()
        return frozen

    # --- the same with everything on the device -------------------------------------------------------------

    def stage(self, drawn: Drawn, step: int, clock: Clock) -> Staged | None:
        """Search for the passages of packed sentences, and find out how much there is to read."""
        resident = self.resident
        if resident is None:
            return None
        frozen = self._freeze_or_thaw(step)
        array, shape = drawn
        assert isinstance(array, np.ndarray)
        assert isinstance(shape, Shape)
        flat = send(torch.from_numpy(array), self._device)
        batch = MaskedBatch.of(flat, shape)
        clock("embed")
        query_BD = self._embed(Staged({"flat": flat}, (shape,), frozen))["query"]
        clock("search")
        hits = self.live.index.search(query_BD, self._passages, exclude_QE=batch.passages_BE)
        ids_BK = F.pad(hits.ids_QK.to(self._device), (int(self._null), 0), value=-1)
        found = self._offer(Staged({"flat": flat, "ids": ids_BK}, (shape,)))
        documents, pairs, held = found["needed"].tolist()
        config = self.model.config
        document_size = batch.fitting(documents, longest=config.max_document)
        pair_size = batch.fitting(pairs, longest=config.max_joint)
        sizes = (shape, document_size, pair_size, batch.room(held, of=ids_BK.numel()))
        return Staged(found | {"flat": flat}, sizes, frozen)

    def _embed_seen(self, staged: Staged) -> dict[str, Tensor]:
        batch = MaskedBatch.of(staged.tensors["flat"], *staged.sizes)
        return {"query": embed_to_search(self.model, self._laid_out(), batch, tower=self._searching)}

    def _offer_found(self, staged: Staged) -> dict[str, Tensor]:
        batch = MaskedBatch.of(staged.tensors["flat"], *staged.sizes)
        widest = self.model.config.max_passage
        return offer(self._laid_out(), batch, staged.tensors["ids"], widest=widest)._asdict()

    def _laid_out(self) -> Resident:
        assert self.resident is not None
        return self.resident

    def compute(self, staged: Staged) -> tuple[Tensor, Numbers]:
        model = self.model
        resident = self._laid_out()
        shape, document_size, pair_size, room = staged.sizes
        batch = MaskedBatch.of(staged.tensors["flat"], shape)
        found = Offer(**{name: staged.tensors[name] for name in Offer._fields})
        vectors_UD = model.document(resident.documents(found.ids_U, document_size, there_N=found.there_U))
        query_BD = embed_seen(model, resident, batch)
        scores_BU = inner_products(query_BD, vectors_UD)
        if staged.way:  # the retriever holds still
            scores_BU = scores_BU.detach()
        retrieval_BK = scores_BU.gather(1, found.place_BK)
        ids_U = found.ids_U.where(found.there_U, -1)
        among_BK = self._among(scores_BU, found.place_BK, ids_U, batch.passages_BE)
        rows_N = rows_of(found.ids_BK)
        packed = resident.pairs(batch.queries, rows_N, found.ids_BK.flatten(), pair_size)
        standing_NJ = None
        if self.settings.pointing:
            standing_NJ = standing_in(resident, batch, found.ids_BK, widest=model.config.max_passage)
        k = found.ids_BK.shape[1]
        token_SK, _, pointed = read_packed(model.reader, packed, batch, standing_NJ, k=k, room=room)
        token_BKM, valid_BM = batch.by_mask(token_SK)
        return self._learned(retrieval_BK, token_BKM, valid_BM, pointed, among_BK)

    def likelihood(
        self, retrieval_BK: Tensor, token_BKM: Tensor, valid_BM: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and metrics from f(x,z) and log p(y_j|z,x): what an objective of one's own replaces.

        With `--loop.compile` it is recorded: numbers of Python stay as they were then; what changes from step
        to step must be a tensor on the device.
        """
        reader_BK = joint_reading(token_BKM, valid_BM)
        weight_BK, apart_B = self._apart(retrieval_BK, reader_BK)
        joint_B = marginal_log_likelihood(weight_BK, reader_BK)
        trained_B = joint_B - apart_B
        if self.settings.marginal == "per-token":
            trained_B = per_token_marginal(retrieval_BK, token_BKM, valid_BM)
        p_BK = retrieval_BK.softmax(-1)
        numbers = {"log_p": joint_B.mean(), "top_share": p_BK[:, int(self._null) :].max(-1).values.mean()}
        if self._null:
            utility_B = retrieval_utility(joint_B[:, None], reader_BK[:, 0])  # of all retrieved together
            numbers |= {"utility": utility_B.mean(), "null_share": p_BK[:, 0].mean()}
        return -trained_B.mean(), numbers

    def before_step(self, step: int) -> dict[str, Any]:
        return self.live.before_step(step)

    def measure(self, done: int, clock: Clock) -> dict[str, Any]:
        """Measure the probe through the current index, and the guard's questions through a new one."""
        if self.guard is None:
            return self._probed(done, clock)
        clock("probe")
        return self.guard.look(self.live.index, self.live.swaps, self._searching) | self._probed(done, clock)

    def _probed(self, done: int, clock: Clock) -> dict[str, Any]:
        """If the probe has several wordings, the worst of them too."""
        if not self._probe or done % self.settings.probe_every:
            return {}
        clock("probe")
        training = self.model.training
        self.model.eval()
        retriever = LearnedRetriever(self.model, self.live.index, tower=self._searching)
        answerer = Answerer(self.model, self.corpus, retriever)
        with self.model.whole():
            results = measure_clozes(answerer, self._probe, self._probe_own, read=self._passages)
        self.model.train(training)
        by_wording = defaultdict(list)
        for question, result in zip(self._probe, results, strict=True):
            if ":" in question.id:  # wording:number, as `realmlm world` writes them
                by_wording[question.id.split(":")[0]].append(result.found_first)
        numbers = {
            "recall@1": round(float(np.mean([result.found_first for result in results])), 4),
            "right": round(float(np.mean([result.right for result in results])), 4),
        }
        if by_wording:
            numbers["worst"] = round(min(float(np.mean(found)) for found in by_wording.values()), 4)
        return numbers

    def remarks(self, last_row: dict[str, Any]) -> list[str]:
        if last_row.get("null_share", 0) <= 0.9:
            return []
        return [
            "nearly everything goes to the null document: retrieval was not learned. Warm up longer, lower "
            "--optim.retriever-lr, or cut the documents into smaller passages (--max-wordpieces), so that "
            "there is something to retrieve besides a sentence's own."
        ]

    def slowed(self) -> dict[str, float]:
        return {} if self.guard is None else {"retriever": self.guard.factor}

    def state(self) -> dict[str, Any]:
        return self.live.state() | ({} if self.guard is None else {"guard": self.guard.state()})

    def load_state(self, state: dict[str, Any]) -> None:
        self.live.load_state(state)
        if self.guard is not None:
            self.guard.load_state(state["guard"])

    def kept(self) -> dict[str, Tensor]:
        return {} if self.live.asker is None else self.live.asker.kept()
