"""Joint pre-training: masked language modelling through a search (section 3 of the paper).

B sentences, K passages each with the null document in column 0, N = B · K pairs, M masks, D vector size.
"""

from collections import defaultdict
from typing import Any

import numpy as np
from torch import Tensor

from realmlm.corpus.questions import Question
from realmlm.corpus.store import Corpus
from realmlm.evaluation.clozes import measure_clozes, source_copies
from realmlm.index.duplicates import SameWords
from realmlm.log import Clock
from realmlm.model.inputs import Inputs
from realmlm.model.marginal import (
    hidden_log_p,
    joint_reading,
    marginal_log_likelihood,
    mean_where,
    per_token_marginal,
    retrieval_utility,
)
from realmlm.model.realm import Realm
from realmlm.reading.answer import Answerer
from realmlm.reading.read import join, point, pointing_log_likelihood, read_masks, standing
from realmlm.reading.retrieve import LearnedRetriever, Offered, fresh_scores
from realmlm.settings import Pretrain
from realmlm.train.data import MaskedSentences, SentenceSource
from realmlm.train.live import LiveIndex
from realmlm.train.objective import Group, Objective


class JointPretraining(Objective):
    """−log p(y|x) = −log Σ_z p(z|x) p(y|z,x), z from the top of a stale index, every score recomputed."""

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
        self._passages = settings.k - settings.null_document
        self._probe = probe or []
        self._probe_own = source_copies(corpus, self._probe)

    def groups(self) -> dict[str, Group]:
        optim = self.settings.optim
        return {
            "reader": Group(list(self.model.reader.parameters()), optim.lr),
            "retriever": Group(self.model.retriever_parameters(), optim.retriever_lr),
        }

    def draw(self, first: int, count: int) -> tuple[MaskedSentences, Inputs]:
        """Masked sentences, and what the query tower is given of them."""
        drawn = self.source.draw(first, count)
        return drawn, self.model.query_inputs(drawn.seen)

    def loss(
        self, drawn: tuple[MaskedSentences, Inputs], step: int, clock: Clock
    ) -> tuple[Tensor, dict[str, Tensor]]:
        model = self.model
        sentences, inputs = drawn
        masked = sentences.masked
        positions_BM, targets_BM, valid_BM = masked.tensors(self._device)
        clock("embed")
        query_BD = model.query(inputs.to(self._device))
        clock("search")
        own_BE = None if self._own is None else self._own(sentences.passages)
        hits = self.live.index.search(query_BD.detach().float(), self._passages, exclude_QE=own_BE)
        offered = Offered(self.corpus, hits.ids_QK.cpu().numpy(), null=self._null)
        clock("embed")
        retrieval_BK = fresh_scores(model, query_BD, offered)
        if step < self.settings.freeze_retriever:
            retrieval_BK = retrieval_BK.detach()
        clock("read")
        inputs = join(model, masked.queries, offered)
        reading = read_masks(model, inputs.to(self._device), positions_BM)
        token_BKM = hidden_log_p(reading.log_BKMV, targets_BM)
        loss, numbers = self.likelihood(retrieval_BK, token_BKM, valid_BM)
        if not self.settings.pointing:
            return loss, numbers
        clock("point")
        runs = [words for words in masked.runs(model.config.max_answer) for _ in range(offered.k)]
        gold_N3 = standing(runs, offered.bodies_N, inputs)
        found_B, some_B = pointing_log_likelihood(retrieval_BK, *point(model.reader, reading, gold_N3))
        numbers |= {"held": some_B.float().mean(), "pointed": mean_where(some_B, found_B.exp())}
        return loss - self.settings.pointing * found_B.mean(), numbers

    def likelihood(
        self, retrieval_BK: Tensor, token_BKM: Tensor, valid_BM: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and metrics from f(x,z) and log p(y_j|z,x): what an objective of one's own replaces."""
        reader_BK = joint_reading(token_BKM, valid_BM)
        joint_B = marginal_log_likelihood(retrieval_BK, reader_BK)
        trained_B = joint_B
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
        """Measure the probe through the current index; if it has several wordings, the worst of them too."""
        if not self._probe or done % self.settings.probe_every:
            return {}
        clock("probe")
        training = self.model.training
        self.model.eval()
        answerer = Answerer(self.model, self.corpus, LearnedRetriever(self.model, self.live.index))
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

    def state(self) -> dict[str, Any]:
        return self.live.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self.live.load_state(state)
