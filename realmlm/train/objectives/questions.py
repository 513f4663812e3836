"""Fine-tuning on questions: the reader by spans of the passages it reads, the retriever over many candidates.

B questions, K passages read, C candidates, N = B · K pairs, L wordpieces, W span widths, M masks, D vector
size.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from realmlm.corpus.store import Corpus
from realmlm.index.exact import Index
from realmlm.index.hybrid import Hybrid
from realmlm.log import Clock
from realmlm.model.inputs import Inputs, Masked, mask_queries, send
from realmlm.model.marginal import (
    answer_log_likelihood,
    best_span_log_likelihood,
    evidence_log_likelihood,
    hidden_log_p,
    inner_products,
    joint_reading,
    judged_log_likelihood,
    marginal_log_likelihood,
    posterior,
    span_mask,
    taught_apart,
)
from realmlm.model.packed import Size
from realmlm.model.realm import Realm
from realmlm.model.resident import Resident
from realmlm.reading.packed import (
    MaskedBatch,
    embed_seen,
    embed_to_search,
    flatten,
    lay_out,
    pair_size,
    read_packed,
    read_spans_packed,
    rows_of,
    title_columns,
)
from realmlm.reading.read import SpanReading, join, read_masks, read_spans
from realmlm.reading.retrieve import Offered, embed_documents
from realmlm.settings import Finetune
from realmlm.train.data import epoch_positions
from realmlm.train.gold import Gold
from realmlm.train.hits import Candidates, Rivals, given_vectors, hybrid_over
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
from realmlm.train.teaching import Teacher, lesson


@dataclass(frozen=True)
class _Retrieved:
    """What was found for the questions of a batch."""

    ids_BK: np.ndarray  # the passages that are read
    offered: Offered  # the same, looked up
    scores_BC: Tensor  # f(x,z) of all candidates, those that are read first, with gradient
    holds_BC: np.ndarray  # which of them hold an answer
    first_B: np.ndarray  # does the one that was retrieved first hold one?
    batch: tuple[Tensor, Tensor] | None  # f(x,z) of all that the batch reads, which of them hold an answer


class QuestionAnswering(Objective):
    """−log p(y|x) over the passages read, −log p(gold|x) over the candidates, −log p(y|∅,x) and, if the
    reader judges whether a passage answers the question, how well it does."""

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
        rivals: Rivals | None = None,
    ) -> None:
        """`learning` are the retriever's weights that learn; `given` are candidates found before: by another
        retriever, or by the model's own towers where they do not learn; `rivals` are paragraphs of other
        questions, for those that came with one."""
        self.settings = settings
        self.model = model
        self.corpus = corpus
        self.live = live
        self.gold = gold
        self._learning = learning
        self._given = given
        self._rivals = rivals
        self._candidates = min(settings.candidates, len(corpus))
        self._told_GD: Tensor | None = None  # vectors of the paragraphs that questions came with
        self.resident: Resident | None = None
        """The corpus on the device, where everything is read packed."""
        self.teacher: Teacher | None = None
        """Who else reads, for the model to learn from."""
        self._embed: Work = self._embed_seen
        self._hybrid: Hybrid | None = None

    def prepare(self, model: Realm) -> None:
        """Lay the corpus out on the device; embed the paragraphs that questions came with."""
        super().prepare(model)
        if type(self).loss is QuestionAnswering.loss:
            encoders = model.encoders + ([] if self.teacher is None else self.teacher.encoders)
            self.resident = lay_out(model, self.gold.corpus, encoders, bf16=self.settings.loop.bf16)
        if self._given is not None:
            return
        if not documents_learn(model, self.groups()):
            self.live.still_until = math.inf
        if self.resident is not None and self.settings.loop.compile and self.ranks.count == 1:
            self._embed = Recorded(self._embed_seen, model.device)
        self._hybrid = hybrid_over(model, self.corpus, self.gold)
        self._told_GD = given_vectors(model, self.gold)

    def groups(self) -> dict[str, Group]:
        optim = self.settings.optim
        return {
            "reader": Group(list(self.model.reader.parameters()), optim.lr),
            **retriever_groups(
                self.model, self._learning, lr=optim.retriever_lr, scale_lr=self.settings.scale_lr
            ),
        }

    def draw(self, first: int, count: int) -> np.ndarray:
        """The numbers of the questions."""
        return epoch_positions(len(self.gold), seed=self.settings.loop.seed, first=first, count=count)

    def loss(self, numbers: np.ndarray, step: int, clock: Clock) -> tuple[Tensor, Numbers]:
        if (staged := self.stage(numbers, step, clock)) is not None:
            clock("read")
            return self.compute(staged)
        questions = [self.gold.questions[number] for number in numbers]
        found = self._retrieve(numbers, questions, clock)
        clock("read")
        inputs, gold_N3 = self._to_read(numbers, questions, found)
        scores_N = found.scores_BC[:, : self.settings.read].flatten()
        reading = read_spans(self.model, inputs, scores_N)
        theirs = None
        if self.teacher is not None:
            texts = [self.gold.texts[number] for number in numbers]
            theirs = self.teacher.read(texts, found.ids_BK, inputs, reading, scores_N)
        gold_NLW = span_mask(gold_N3, reading.allowed_NLW)
        memory_B = self._closed_book(numbers)
        holds_BC = torch.from_numpy(found.holds_BC).to(self.model.device)
        loss, row = self._taught(reading, gold_NLW, found.scores_BC, holds_BC, memory_B, found.batch, theirs)
        return loss, {**row, "recall@1": torch.from_numpy(found.first_B).float().mean()}

    def _taught(
        self,
        reading: SpanReading,
        gold_NLW: Tensor,
        scores_BC: Tensor,
        holds_BC: Tensor,
        memory_B: Tensor,
        batch: tuple[Tensor, Tensor] | None,
        theirs: SpanReading | None,
    ) -> tuple[Tensor, Numbers]:
        """Loss and metrics from what was read and where answers stand in it, f(x,z) of the candidates and
        which of them hold an answer, log p(y|∅,x), the same two of all that the batch reads, and what a
        teacher read."""
        scores_BK = scores_BC[:, : self.settings.read]
        holds_BK = holds_BC[:, : self.settings.read]
        weight_BK = reading.weight_N.view_as(scores_BK)
        reader_BK = self._likelihood(reading.log_NLW, gold_NLW).view_as(scores_BK)
        retriever_B = evidence_log_likelihood(scores_BC, holds_BC)
        any_B = (reader_BK > -torch.inf).any(-1)
        some_B = holds_BC.any(-1)
        # a question without its answer teaches nothing: no gradient, no NaN
        readable_BK = reader_BK.masked_fill(~any_B[:, None], 0.0)
        teacher_BK = None
        if theirs is not None and self.settings.retriever_target == "teacher":
            known_BK = self._likelihood(theirs.log_NLW, gold_NLW).view_as(scores_BK)
            known_BK = known_BK.masked_fill((known_BK == -torch.inf).all(-1, keepdim=True), 0.0)
            teacher_BK = posterior(theirs.weight_N.view_as(scores_BK), known_BK)
        weight_BK, apart_B = taught_apart(
            weight_BK, scores_BK, readable_BK, self.settings.retriever_target, teacher_BK
        )
        answer_B = marginal_log_likelihood(weight_BK, readable_BK)
        # divided by all examples, not those with an answer: a batch in parts must give the same gradient
        taught_B = torch.where(any_B, answer_B - apart_B, 0.0) + torch.where(some_B, retriever_B, 0.0)
        taught_B = taught_B + self.settings.closed_book * memory_B
        if batch is not None:
            taught_B = taught_B + self.settings.in_batch * evidence_log_likelihood(*batch)
        more: dict[str, Tensor | Mean] = {}
        if theirs is not None:
            told_B, told = lesson(theirs, reading, self.settings.read)
            more |= told
            taught_B = taught_B - self.settings.teaching * told_B
        if reading.logit_N is not None:
            logit_BK = reading.logit_N.view_as(scores_BK)
            judged_B = judged_log_likelihood(logit_BK, holds_BK)
            taught_B = taught_B + self.settings.judging * judged_B
            best_B1 = weight_BK.argmax(-1, keepdim=True)
            more |= {
                "judged": judged_B.mean(),
                "reranked@1": Mean.where(holds_BK.any(-1), holds_BK.gather(1, best_B1)[:, 0].float()),
            }
        return -taught_B.mean(), {
            **scale_of(self.model),
            **more,
            "log_p": Mean.where(any_B, answer_B),
            "retriever": Mean.where(some_B, retriever_B),
            "closed_book": memory_B.mean(),
            "gold_read": any_B.float().mean(),
        }

    def _retrieve(self, numbers: np.ndarray, questions: list[np.ndarray], clock: Clock) -> _Retrieved:
        model = self.model
        read = self.settings.read
        batch = None
        if self._given is not None:
            ids_BC, given_BC, holds_BC, first_B = self._matched(numbers)
            offered = Offered(self.gold.corpus, ids_BC[:, :read], null=False)
            scores_BC = self._scaled(torch.from_numpy(given_BC).to(model.device))
        else:
            clock("embed")
            query_BD = model.query(model.query_inputs(questions).to(model.device))
            index = self.live.index
            clock("search")
            found_BC = self._search(index, query_BD.detach().float(), questions)
            ids_BC, _, holds_BC, first_B = self._first_to_read(numbers, found_BC)
            offered = Offered(self.gold.corpus, ids_BC[:, :read], null=False)
            clock("embed")
            vectors_BCD = self._vectors(index, ids_BC).to(query_BD)
            scores_BC = inner_products(query_BD, vectors_BCD)
            vectors_ND = vectors_BCD[:, :read].flatten(0, 1)
            if self.settings.refresh.every_steps:  # the document tower learns too
                vectors_UD = embed_documents(model, offered.titles, offered.bodies)
                place_BK = torch.from_numpy(offered.place_BK).to(vectors_UD.device)
                fresh_BK = inner_products(query_BD, vectors_UD).gather(1, place_BK)
                scores_BC = torch.cat([fresh_BK, scores_BC[:, read:]], dim=1)
                vectors_ND = vectors_UD[place_BK.flatten()]
            if (words_BC := self._words(questions, ids_BC)) is not None:
                scores_BC = scores_BC + words_BC.to(scores_BC.device)
            if self.settings.in_batch:
                known_B2N = torch.from_numpy(self._of_the_batch(ids_BC, holds_BC)).to(model.device)
                batch = _scored_together(query_BD, self.ranks.gather(vectors_ND), known_B2N)
        return _Retrieved(ids_BC[:, :read], offered, scores_BC, holds_BC, first_B, batch)

    def _of_the_batch(self, ids_BC: np.ndarray, holds_BC: np.ndarray) -> np.ndarray:
        """All passages that the batch reads, those of other questions too: does each count (once, if it is
        read several times), and does it hold the question's answer? [B, 2, N]. Only a candidate of its own
        can: a word that happens to stand elsewhere is no evidence."""
        read_BK = torch.from_numpy(ids_BC[:, : self.settings.read])
        ids_N = self.ranks.gather(read_BK).numpy().flatten()
        counts_N = np.zeros(len(ids_N), dtype=bool)
        counts_N[np.unique(ids_N, return_index=True)[1]] = True
        pairs = zip(ids_BC, holds_BC, strict=True)
        return np.stack([[counts_N, counts_N & np.isin(ids_N, ids[holds])] for ids, holds in pairs])

    def _search(self, index: Index, query_BD: Tensor, questions: list[np.ndarray]) -> np.ndarray:
        """The candidates [B, C], best first."""
        if self._hybrid is None:
            return index.search(query_BD, self._candidates).ids_QK.cpu().numpy()
        return self._hybrid.search(index, query_BD, questions, self._candidates).ids_QC.cpu().numpy()

    def _words(self, questions: list[np.ndarray], ids_BC: np.ndarray) -> Tensor | None:
        """λ · BM25 of candidates, without gradient; None where the search is not hybrid."""
        if self._hybrid is None:
            return None
        return self._hybrid.weight * self._hybrid.words.scores(questions, torch.from_numpy(ids_BC))

    def _matched(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Candidates found before in the order they are read, their scores, which hold an answer, and whether
        the first found does."""
        assert self._given is not None
        found_BC, scores_BC, given_B = self._given.of(numbers)
        ids_BC, order_BC, holds_BC, first_B = self._first_to_read(numbers, found_BC)
        scores_BC = np.take_along_axis(scores_BC, order_BC, axis=1)
        told_B = self.gold.given_Q[numbers] >= 0
        # as good as the best, if no one has scored it
        scores_BC[told_B, 0] = scores_BC[told_B].max(1) if given_B is None else given_B[told_B]
        if self._rivals is not None:
            for row in np.flatnonzero(told_B):
                _, rivals_R = self._rivals.of(numbers[row])
                scores_BC[row, 1 : 1 + len(rivals_R)] = rivals_R
        return ids_BC, scores_BC, holds_BC, first_B

    def _scaled(self, scores_BC: Tensor) -> Tensor:
        """Scores found before, by the learned scale of f(x,z) if they are without it."""
        scale = self.model.query.log_scale
        assert self._given is not None
        return scores_BC * scale.exp() if self._given.scale_learns and scale is not None else scores_BC

    def _first_to_read(
        self, numbers: np.ndarray, ids_BC: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Candidates in the order they are read, that order, which hold an answer, and whether the first
        found does.

        Reading teaches nothing where no passage holds the answer: with `read_gold` the best that does takes
        the last place. A question that came with its paragraph reads that one, its rivals, and the best that
        do not hold the answer.
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
        for row in np.flatnonzero(given_B >= 0):  # it and its rivals take the places of the last candidates
            told = [given_B[row], *(self._rivals.of(numbers[row])[0] if self._rivals is not None else [])]
            own = ids_BC.shape[1] - len(told)
            ids_BC[row, own:] = told
            holds_BC[row, own:] = np.arange(len(told)) == 0
            lacking = np.flatnonzero(~holds_BC[row, :own])[: read - len(told)]
            rest = np.setdiff1d(np.arange(own), lacking)
            order_BC[row] = np.concatenate([np.arange(own, ids_BC.shape[1]), lacking, rest])
        ordered_ids = np.take_along_axis(ids_BC, order_BC, axis=1)
        return ordered_ids, order_BC, np.take_along_axis(holds_BC, order_BC, axis=1), first_B

    def _vectors(self, index: Index, ids_BC: np.ndarray) -> Tensor:
        """Of candidates [B, C, D]: the index's, or those of given paragraphs."""
        if self._told_GD is None:
            return index.vectors(torch.from_numpy(ids_BC.flatten())).view(*ids_BC.shape, -1)
        first = self.gold.first_given
        told_BC = ids_BC >= first
        there_BC = np.where(told_BC, self.corpus.ids[0], ids_BC)  # one that the index has
        vectors_BCD = index.vectors(torch.from_numpy(there_BC.flatten())).view(*ids_BC.shape, -1).clone()
        places = torch.from_numpy(ids_BC[told_BC] - first).to(self._told_GD.device)
        told = torch.from_numpy(told_BC).to(vectors_BCD.device)
        vectors_BCD[told] = self._told_GD[places].to(vectors_BCD)
        return vectors_BCD

    def _to_read(
        self, numbers: np.ndarray, questions: list[np.ndarray], found: _Retrieved
    ) -> tuple[Inputs, np.ndarray]:
        """Questions joined with what was found, and where answers stand in it: (pair, column, width − 1) of
        each place [spans, 3]."""
        inputs = join(self.model, questions, found.offered)
        gold_N3 = self._gold_spans(numbers, found.ids_BK)
        gold_N3[:, 1] -= np.where(gold_N3[:, 1] < 0, len(inputs.layout.between), 0)  # the title ends before
        gold_N3[:, 1] += inputs.second_N.numpy()[gold_N3[:, 0]]
        gold_N3 = gold_N3[gold_N3[:, 1] < inputs.tokens_NL.shape[1]]
        return inputs.to(self.model.device), gold_N3

    @property
    def _likelihood(self) -> Callable[[Tensor, Tensor], Tensor]:
        hard = self.settings.objective == "hard-em"
        return best_span_log_likelihood if hard else answer_log_likelihood

    def _gold_spans(self, numbers: np.ndarray, ids_BK: np.ndarray) -> np.ndarray:
        """(pair, start, width − 1) of every place where an answer stands in a passage, [spans, 3]; starts are
        counted from the body's first wordpiece, those of the title are below 0."""
        pairs = zip(numbers.repeat(ids_BK.shape[1]).tolist(), ids_BK.flatten().tolist(), strict=True)
        found = []
        for pair, (number, passage) in enumerate(pairs):
            spans_n2 = self.gold.spans(number, passage)
            found += [(pair, start, end - start - 1) for start, end in spans_n2.tolist()]
        spans_N3 = np.array(found, dtype=np.int64).reshape(-1, 3)
        return spans_N3[spans_N3[:, 2] < self.model.config.max_answer]

    def _closed_book(self, numbers: np.ndarray) -> Tensor:
        """log p(y|∅,x) [B]: the question followed by masks in the answer's place."""
        device = self.model.device
        masked = self._without_passage(numbers)
        positions_BM, targets_BM, valid_BM = masked.tensors(device)
        alone = Offered(self.corpus, np.full((len(numbers), 1), -1), null=False)
        inputs = join(self.model, masked.queries, alone).to(device)
        token_B1M = hidden_log_p(read_masks(self.model, inputs, positions_BM).log_BKMV, targets_BM)
        return joint_reading(token_B1M, valid_BM)[:, 0]

    def _without_passage(self, numbers: np.ndarray) -> Masked:
        """The questions, each followed by masks in the answer's place."""
        config = self.model.config
        texts = []
        places = []
        for number in numbers:
            answer = self.gold.answers[number][: config.max_answer]
            question = self.gold.questions[number][: config.max_query - len(answer)]
            texts.append(np.concatenate([question, answer]))
            places.append(np.arange(len(question), len(texts[-1])))
        return mask_queries(texts, places, self.model.wordpieces)

    # --- the same with everything on the device -------------------------------------------------------------

    def stage(self, numbers: np.ndarray, step: int, clock: Clock) -> Staged | None:
        """Search for the candidates of packed questions, and find out where their answers stand."""
        resident = self.resident
        if resident is None:
            return None
        model = self.model
        device = resident.device
        config = model.config
        asked = [self.gold.questions[number] for number in numbers]
        masked = self._without_passage(numbers)
        array, shape = flatten(
            masked, asked, np.full((len(asked), 1), -1), max_query=config.max_query, widths=config.max_answer
        )
        flat = send(torch.from_numpy(array), device)
        tensors = {"flat": flat}
        if self._given is not None:
            ids_BC, scores_BC, holds_BC, first_B = self._matched(numbers)
            tensors["scores"] = send(torch.from_numpy(scores_BC), device)
        else:
            clock("embed")
            query_BD = self._embed(Staged({"flat": flat}, (shape,)))["query"]
            clock("search")
            found_BC = self._search(self.live.index, query_BD, asked)
            ids_BC, _, holds_BC, first_B = self._first_to_read(numbers, found_BC)
            if (words_BC := self._words(asked, ids_BC)) is not None:
                tensors["words"] = words_BC.to(device)
            clock("embed")
            tensors["vectors"] = self._vectors(self.live.index, ids_BC).to(device)
        if self.settings.in_batch:
            tensors["together"] = send(torch.from_numpy(self._of_the_batch(ids_BC, holds_BC)), device)
        ids_BK = ids_BC[:, : self.settings.read]
        tensors["ids"] = send(torch.from_numpy(np.ascontiguousarray(ids_BK)), device)
        tensors["holds"] = send(torch.from_numpy(holds_BC), device)
        tensors["first"] = send(torch.from_numpy(first_B), device)
        spans_S3 = self._gold_spans(numbers, ids_BK)
        grain = 4 * ids_BK.size
        nothing = np.array([ids_BK.size, 0, 0])  # a place of its own
        filled_S3 = np.tile(nothing, (-(-max(1, len(spans_S3)) // grain) * grain, 1))
        filled_S3[: len(spans_S3)] = spans_S3
        filled_S3[: len(spans_S3), 1] += title_columns(model)
        tensors["spans"] = send(torch.from_numpy(filled_S3), device)
        if self.teacher is not None:
            clock("teacher")
            tensors |= self.teacher.stage([self.gold.texts[number] for number in numbers], ids_BK)
        batch = MaskedBatch.of(flat, shape)
        size = pair_size(model, self.gold.corpus, asked, ids_BK)
        pairs = batch.fitting(size.total, longest=size.longest, more=size.filling)
        documents = None  # a size that no one asks for would only make for more recordings
        if self.settings.refresh.every_steps:
            lengths = int(self.gold.corpus.lengths_of(ids_BK.flatten()).sum())
            lengths += ids_BK.size * model.wordpieces.pair.special
            documents = batch.fitting(lengths, longest=config.max_document)
        return Staged(tensors, (shape, pairs, documents))

    def compute(self, staged: Staged) -> tuple[Tensor, Numbers]:
        model = self.model
        resident = self.resident
        assert resident is not None
        shape, pair_room, document_room = staged.sizes
        tensors = staged.tensors
        batch = MaskedBatch.of(tensors["flat"], shape)
        ids_BK = tensors["ids"]
        read = ids_BK.shape[1]
        together = None
        if "scores" in tensors:
            scores_BC = self._scaled(tensors["scores"])
        else:
            query_BD = embed_seen(model, resident, batch)
            scores_BC = inner_products(query_BD, tensors["vectors"].to(query_BD.dtype))
            vectors_ND = tensors["vectors"][:, :read].flatten(0, 1)
            if self.settings.refresh.every_steps:  # the document tower learns too
                vectors_ND = model.document(resident.documents(ids_BK.flatten(), document_room))
                fresh_BK = inner_products(query_BD, vectors_ND.unflatten(0, ids_BK.shape))
                scores_BC = torch.cat([fresh_BK, scores_BC[:, read:]], dim=1)
            if "words" in tensors:
                scores_BC = scores_BC + tensors["words"]
            if self.settings.in_batch:
                together = _scored_together(query_BD, self.ranks.gather(vectors_ND), tensors["together"])
        scores_BK = scores_BC[:, :read]
        packed = resident.pairs(batch.seen, rows_of(ids_BK), ids_BK.flatten(), pair_room)
        reading = read_spans_packed(model, packed, scores_BK.flatten())
        theirs = None
        if self.teacher is not None:
            theirs = self.teacher.read_packed(packed, tensors, reading, scores_BK.flatten())
        gold_NJW = torch.zeros_like(F.pad(reading.allowed_NLW, (0, 0, 0, 0, 0, 1)))
        gold_NJW = gold_NJW.index_put(tensors["spans"].unbind(1), torch.ones_like(gold_NJW[0, 0, 0]))[:-1]
        memory_B = self._recalled(resident, batch)
        gold_NJW = gold_NJW & reading.allowed_NLW
        loss, row = self._taught(reading, gold_NJW, scores_BC, tensors["holds"], memory_B, together, theirs)
        return loss, {**row, "recall@1": tensors["first"].float().mean()}

    def _recalled(self, resident: Resident, batch: MaskedBatch) -> Tensor:
        """log p(y|∅,x) [B]."""
        nothing_B1 = torch.full_like(batch.queries.lengths_B, -1)[:, None]
        count, width = batch.queries.tokens_BQ.shape
        longest = width + self.model.wordpieces.pair.special
        size = Size(count * longest, longest, count * longest)
        packed = resident.pairs(batch.queries, rows_of(nothing_B1), nothing_B1[:, 0], size)
        token_S1, _, _ = read_packed(self.model.reader, packed, batch, None, k=1, room=0)
        token_B1M, valid_BM = batch.by_mask(token_S1)
        return joint_reading(token_B1M, valid_BM)[:, 0]

    def _embed_seen(self, staged: Staged) -> dict[str, Tensor]:
        assert self.resident is not None
        batch = MaskedBatch.of(staged.tensors["flat"], *staged.sizes)
        return {"query": embed_to_search(self.model, self.resident, batch)}

    def before_step(self, step: int) -> dict[str, Any]:
        return {} if self._given is not None else self.live.before_step(step)

    def state(self) -> dict[str, Any]:
        return self.live.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self.live.load_state(state)


def _scored_together(query_BD: Tensor, vectors_ND: Tensor, known_B2N: Tensor) -> tuple[Tensor, Tensor]:
    """f(x,z) of all passages of the batch [B, N], −inf where one does not count, and which hold an answer."""
    counts_BN, holds_BN = known_B2N.unbind(1)
    return inner_products(query_BD, vectors_ND).masked_fill(~counts_BN, -torch.inf), holds_BN
