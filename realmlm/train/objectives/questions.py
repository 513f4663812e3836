"""Fine-tuning on questions: the reader by spans of the passages it reads, the retriever over many candidates.

B questions, K passages read, C candidates, N = B · K pairs, L wordpieces, W span widths, M masks, D vector
size.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from realmlm.corpus.store import Corpus
from realmlm.index.exact import Index
from realmlm.log import Clock
from realmlm.model.inputs import Inputs, mask_queries
from realmlm.model.marginal import (
    answer_log_likelihood,
    best_span_log_likelihood,
    evidence_log_likelihood,
    hidden_log_p,
    inner_products,
    joint_reading,
    marginal_log_likelihood,
    mean_where,
    span_mask,
)
from realmlm.model.realm import Realm
from realmlm.model.snapshot import DocumentEncoder
from realmlm.reading.read import join, read_masks, read_spans
from realmlm.reading.retrieve import Offered, fresh_scores
from realmlm.settings import Finetune
from realmlm.train.data import epoch_positions
from realmlm.train.gold import Gold
from realmlm.train.live import LiveIndex
from realmlm.train.objective import Group, Objective

_EMBEDDED = 512  # paragraphs at once


@dataclass(frozen=True)
class Candidates:
    """Candidates of a retriever that does not learn, best first, and their scores [questions, C]."""

    ids: np.ndarray
    scores: np.ndarray


@dataclass(frozen=True)
class _Retrieved:
    """What was found for the questions of a batch."""

    ids_BK: np.ndarray  # the passages that are read
    offered: Offered  # the same, looked up
    scores_BC: Tensor  # f(x,z) of all candidates, those that are read first, with gradient
    holds_BC: Tensor  # which of them hold an answer
    first_B: np.ndarray  # does the one that was retrieved first hold one?


class QuestionAnswering(Objective):
    """−log p(y|x) over the passages read, −log p(gold|x) over the candidates, and −log p(y|∅,x)."""

    def __init__(
        self,
        settings: Finetune,
        model: Realm,
        corpus: Corpus,
        live: LiveIndex,
        gold: Gold,
        *,
        learning: list[nn.Parameter],
        given: Candidates | None = None,
    ) -> None:
        """`learning` are the retriever's weights that learn; `given` are another retriever's candidates."""
        self.settings = settings
        self.model = model
        self.corpus = corpus
        self.live = live
        self.gold = gold
        self._learning = learning
        self._given = given
        self._candidates = min(settings.candidates, len(corpus))
        self._told_GD: Tensor | None = None  # vectors of the paragraphs that questions came with
        self._first_told = 0  # the first one's id

    def prepare(self, model: Realm) -> None:
        """Embed the paragraphs that questions came with: no index has them."""
        super().prepare(model)
        told_G = np.unique(self.gold.given_Q[self.gold.given_Q >= 0])
        if len(told_G) and self._given is None:
            encode = DocumentEncoder.of(model)
            self._first_told = int(told_G[0])
            ids_G = np.arange(self._first_told, int(told_G[-1]) + 1)
            parts = np.array_split(ids_G, -(-len(ids_G) // _EMBEDDED))
            self._told_GD = torch.cat([encode(self.gold.corpus, some) for some in parts])

    def groups(self) -> dict[str, Group]:
        optim = self.settings.optim
        return {
            "reader": Group(list(self.model.reader.parameters()), optim.lr),
            "retriever": Group(self._learning, optim.retriever_lr),
        }

    def draw(self, first: int, count: int) -> np.ndarray:
        """The numbers of the questions."""
        return epoch_positions(len(self.gold), seed=self.settings.loop.seed, first=first, count=count)

    def loss(self, numbers: np.ndarray, step: int, clock: Clock) -> tuple[Tensor, dict[str, Tensor]]:
        questions = [self.gold.questions[number] for number in numbers]
        found = self._retrieve(numbers, questions, clock)
        clock("read")
        retriever_B = evidence_log_likelihood(found.scores_BC, found.holds_BC)
        weight_BK, reader_BK = self._read(numbers, questions, found)
        any_B = (reader_BK > -torch.inf).any(-1)
        some_B = found.holds_BC.any(-1)
        # a question without its answer teaches nothing: no gradient, no NaN
        readable_BK = reader_BK.masked_fill(~any_B[:, None], 0.0)
        answer_B = marginal_log_likelihood(weight_BK, readable_BK)
        memory_B = self._closed_book(numbers, questions)
        # divided by all examples, not those with an answer: a batch in parts must give the same gradient
        taught_B = torch.where(any_B, answer_B, 0.0) + torch.where(some_B, retriever_B, 0.0)
        loss = -(taught_B + self.settings.closed_book * memory_B).mean()
        return loss, {
            "log_p": mean_where(any_B, answer_B),
            "retriever": mean_where(some_B, retriever_B),
            "closed_book": memory_B.mean(),
            "gold_read": any_B.float().mean(),
            "recall@1": torch.from_numpy(found.first_B).float().mean(),
        }

    def _retrieve(self, numbers: np.ndarray, questions: list[np.ndarray], clock: Clock) -> _Retrieved:
        model = self.model
        read = self.settings.read
        if self._given is not None:
            ids_BC, order_BC, holds_BC, first_B = self._first_to_read(numbers, self._given.ids[numbers])
            offered = Offered(self.gold.corpus, ids_BC[:, :read], null=False)
            given_BC = np.take_along_axis(self._given.scores[numbers], order_BC, axis=1)
            told_B = self.gold.given_Q[numbers] >= 0
            given_BC[told_B, 0] = given_BC[told_B].max(1)  # as good as the best: no one has scored it
            scores_BC = torch.from_numpy(given_BC).to(model.device)
        else:
            clock("embed")
            query_BD = model.query(model.query_inputs(questions).to(model.device))
            index = self.live.index
            clock("search")
            hits = index.search(query_BD.detach().float(), self._candidates)
            ids_BC, _, holds_BC, first_B = self._first_to_read(numbers, hits.ids_QK.cpu().numpy())
            offered = Offered(self.gold.corpus, ids_BC[:, :read], null=False)
            clock("embed")
            scores_BC = inner_products(query_BD, self._vectors(index, ids_BC).to(query_BD))
            if self.settings.refresh.every_steps:  # the document tower learns too
                fresh_BK = fresh_scores(model, query_BD, offered)
                scores_BC = torch.cat([fresh_BK, scores_BC[:, read:]], dim=1)
        holds = torch.from_numpy(holds_BC).to(model.device)
        return _Retrieved(ids_BC[:, :read], offered, scores_BC, holds, first_B)

    def _first_to_read(
        self, numbers: np.ndarray, ids_BC: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Candidates in the order they are read, that order, which hold an answer, and whether the first
        found does.

        Reading teaches nothing where no passage holds the answer: with `read_gold` the best that does takes
        the last place. A question that came with its paragraph reads that one and the best that do not hold
        the answer.
        """
        pairs = zip(numbers.tolist(), ids_BC, strict=True)
        holds_BC = np.stack([self.gold.holds(number, ids) for number, ids in pairs])
        first_B = holds_BC[:, 0].copy()
        order_BC = np.broadcast_to(np.arange(ids_BC.shape[1]), ids_BC.shape).copy()
        read = self.settings.read
        if self.settings.read_gold:
            missing_B = ~holds_BC[:, :read].any(-1) & holds_BC.any(-1)
            for row in np.flatnonzero(missing_B):
                best = holds_BC[row].argmax()
                order_BC[row, [read - 1, best]] = order_BC[row, [best, read - 1]]
        given_B = self.gold.given_Q[numbers]
        ids_BC = ids_BC.copy()
        for row in np.flatnonzero(given_B >= 0):  # it takes the place of the last candidate
            ids_BC[row, -1] = given_B[row]
            holds_BC[row, -1] = True
            lacking = np.flatnonzero(~holds_BC[row])[: read - 1]
            rest = np.setdiff1d(np.arange(ids_BC.shape[1] - 1), lacking)
            order_BC[row] = np.concatenate([[ids_BC.shape[1] - 1], lacking, rest])
        ordered_ids = np.take_along_axis(ids_BC, order_BC, axis=1)
        return ordered_ids, order_BC, np.take_along_axis(holds_BC, order_BC, axis=1), first_B

    def _vectors(self, index: Index, ids_BC: np.ndarray) -> Tensor:
        """Of candidates [B, C, D]: the index's, or in column 0 those of given paragraphs."""
        if self._told_GD is None:
            return index.vectors(torch.from_numpy(ids_BC.flatten())).view(*ids_BC.shape, -1)
        told_B = ids_BC[:, 0] >= self._first_told
        there_BC = ids_BC.copy()
        there_BC[told_B, 0] = self.corpus.ids[0]  # one that the index has
        vectors_BCD = index.vectors(torch.from_numpy(there_BC.flatten())).view(*ids_BC.shape, -1).clone()
        places = torch.from_numpy(ids_BC[told_B, 0] - self._first_told).to(self._told_GD.device)
        rows = torch.from_numpy(np.flatnonzero(told_B)).to(vectors_BCD.device)
        vectors_BCD[rows, 0] = self._told_GD[places].to(vectors_BCD)
        return vectors_BCD

    def _read(
        self, numbers: np.ndarray, questions: list[np.ndarray], found: _Retrieved
    ) -> tuple[Tensor, Tensor]:
        """What weighs the passages, and log p(y|z,x), −inf without the answer in the passage; both [B, K]."""
        scores_BK = found.scores_BC[:, : self.settings.read]
        inputs = join(self.model, questions, found.offered)
        gold_N3 = self._gold_spans(numbers, found.ids_BK, inputs)
        reading = read_spans(self.model, inputs.to(self.model.device), scores_BK.flatten())
        gold_NLW = span_mask(gold_N3, reading.allowed_NLW)
        hard = self.settings.objective == "hard-em"
        likelihood = best_span_log_likelihood if hard else answer_log_likelihood
        reader_N = likelihood(reading.log_NLW, gold_NLW)
        return reading.weight_N.view_as(scores_BK), reader_N.view_as(scores_BK)

    def _gold_spans(self, numbers: np.ndarray, ids_BK: np.ndarray, inputs: Inputs) -> np.ndarray:
        """(pair, start, width − 1) of every place where an answer stands in what is read, [spans, 3]."""
        pairs = zip(numbers.repeat(ids_BK.shape[1]).tolist(), ids_BK.flatten().tolist(), strict=True)
        found = []
        for pair, ((number, passage), second) in enumerate(zip(pairs, inputs.second_N.tolist(), strict=True)):
            spans_n2 = self.gold.spans(number, passage)
            found += [(pair, start + second, end - start - 1) for start, end in spans_n2.tolist()]
        spans_N3 = np.array(found, dtype=np.int64).reshape(-1, 3)
        fits_N = spans_N3[:, 1] < inputs.tokens_NL.shape[1]
        return spans_N3[fits_N & (spans_N3[:, 2] < self.model.config.max_answer)]

    def _closed_book(self, numbers: np.ndarray, questions: list[np.ndarray]) -> Tensor:
        """log p(y|∅,x) [B]: the question followed by masks in the answer's place."""
        config = self.model.config
        device = self.model.device
        answers = [self.gold.answers[number][: config.max_answer] for number in numbers]
        texts = []
        places = []
        for question, answer in zip(questions, answers, strict=True):
            texts.append(np.concatenate([question[: config.max_query - len(answer)], answer]))
            places.append(np.arange(len(texts[-1]) - len(answer), len(texts[-1])))
        masked = mask_queries(texts, places, self.model.wordpieces)
        positions_BM, targets_BM, valid_BM = masked.tensors(device)
        alone = Offered(self.corpus, np.full((len(texts), 1), -1), null=False)
        inputs = join(self.model, masked.queries, alone).to(device)
        token_B1M = hidden_log_p(read_masks(self.model, inputs, positions_BM).log_BKMV, targets_BM)
        return joint_reading(token_B1M, valid_BM)[:, 0]

    def before_step(self, step: int) -> dict[str, Any]:
        return {} if self._given is not None else self.live.before_step(step)

    def state(self) -> dict[str, Any]:
        return self.live.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self.live.load_state(state)
