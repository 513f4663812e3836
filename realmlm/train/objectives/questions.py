"""Fine-tuning on questions: the reader by the marginal over spans of the passages it reads, the retriever
over many candidates.

B questions, K passages read, C candidates, L wordpieces, W span widths, M masks, D vector size.
"""

import math
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from realmlm.config import Finetune, JointOptim, Loop, Refresh, flat, record
from realmlm.corpus.questions import read_questions
from realmlm.corpus.store import Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import NotEnough
from realmlm.index.bm25 import BM25Index
from realmlm.index.keep import index_for
from realmlm.log import progress, say
from realmlm.model.inputs import Inputs, joint_inputs, mask_queries, query_inputs
from realmlm.model.marginal import (
    answer_log_likelihood,
    best_span_log_likelihood,
    evidence_log_likelihood,
    hidden_log_p,
    inner_products,
    joint_reading,
    marginal_log_likelihood,
    span_log_probabilities,
    span_mask,
    weighed_together,
)
from realmlm.model.realm import Realm
from realmlm.reading.retrieve import check_readable, fresh_scores
from realmlm.train.data import epoch_positions
from realmlm.train.gold import Gold, locate_answers
from realmlm.train.live import LiveIndex
from realmlm.train.loop import Clock, fit, prepare
from realmlm.train.run import Run

PASSES = 10  # over the questions, where no number of steps is given
MOST_STEPS = 1000  # there
_MATCHED = 256  # questions whose words are matched at once


@dataclass(frozen=True)
class Given:
    """For every question the candidates of a retriever that does not learn, best first, with their scores;
    both [questions, C]."""

    ids: np.ndarray
    scores: np.ndarray


class QuestionAnswering:
    """−log p(y|x) over the passages read, −log p(gold|x) over the candidates, and −log p(y|∅,x) for what the
    reader knows by itself."""

    def __init__(
        self,
        model: Realm,
        wordpieces: Wordpieces,
        corpus: Corpus,
        live: LiveIndex,
        gold: Gold,
        *,
        read: int,
        read_gold: bool,
        candidates: int,
        objective: str,
        closed_book: float,
        frozen_index: bool,
        learning: list[nn.Parameter],
        seed: int,
        given: "Given | None" = None,
    ) -> None:
        """`learning` are the retriever's weights that learn; `given` are the candidates of another retriever,
        in place of the model's."""
        self._model = model
        self._wordpieces = wordpieces
        self._corpus = corpus
        self._live = live
        self._gold = gold
        self._read = read
        self._read_gold = read_gold
        self._candidates = candidates
        self._memory = closed_book
        self._hard = objective == "hard-em"
        self._frozen = frozen_index
        self._seed = seed
        self._learning = learning
        self._given = given

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"reader": list(self._model.reader.parameters()), "retriever": self._learning}

    def draw(self, first: int, count: int) -> np.ndarray:
        """The numbers of the questions."""
        return epoch_positions(len(self._gold), seed=self._seed, first=first, count=count)

    def loss(self, numbers: np.ndarray, step: int, clock: Clock) -> tuple[Tensor, dict[str, Tensor]]:
        questions = [self._gold.questions[number] for number in numbers]
        ids_BC, holds_BC, scores_BC, first_B = self._retrieve(numbers, questions, clock)
        with clock("read"):
            retriever_B = evidence_log_likelihood(scores_BC, holds_BC)
            weight_BK, reader_BK, found_BK = self._read_spans(
                numbers, questions, ids_BC[:, : self._read], scores_BC[:, : self._read]
            )
            any_B = found_BK.any(-1)
            some_B = holds_BC.any(-1)
            # a question without its answer teaches nothing: no gradient, no NaN
            readable_BK = reader_BK.masked_fill(~any_B[:, None], 0.0)
            answer_B = marginal_log_likelihood(weight_BK, readable_BK)
            memory_B = self._closed_book(numbers, questions)
        # divided by all examples, not by those with an answer: so that a batch worked off in parts gives the
        # same gradient
        taught_B = (
            torch.where(any_B, answer_B, 0.0)
            + torch.where(some_B, retriever_B, 0.0)
            + self._memory * memory_B
        )
        loss = -taught_B.mean()
        return loss, {
            "log_p": _mean(answer_B, any_B),
            "retriever": _mean(retriever_B, some_B),
            "closed_book": memory_B.mean(),
            "gold_read": any_B.float().mean(),
            "recall@1": first_B.float().mean(),
        }

    def _retrieve(
        self, numbers: np.ndarray, questions: list[np.ndarray], clock: Clock
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Candidates in the order they are read, which hold an answer, f(x,z) with gradient, all [B, C]; and
        does the best hold one?"""
        if self._given is not None:
            ids_BC, scores_BC = (
                torch.from_numpy(table[numbers]) for table in (self._given.ids, self._given.scores)
            )
            ids_BC, order_BC, holds_BC, first_B = self._first_to_read(numbers, ids_BC)
            return (
                ids_BC,
                holds_BC.to(self._model.device),
                scores_BC.gather(1, order_BC).to(self._model.device),
                first_B,
            )
        inputs = query_inputs(questions, self._wordpieces, max_query=self._model.config.max_query).to(
            self._model.device
        )
        with clock("embed"):
            query_BD = self._model.query(inputs)
        with clock("search"):
            found_BC = self._live.index.search(query_BD.detach().float(), self._candidates).ids_QK.cpu()
            ids_BC, _, holds_BC, first_B = self._first_to_read(numbers, found_BC)
        with clock("embed"):
            candidate_BCD = self._live.index.vectors(ids_BC.flatten()).view(*ids_BC.shape, -1).to(query_BD)
            scores_BC = inner_products(query_BD, candidate_BCD)
            if not self._frozen:
                read_BK = ids_BC[:, : self._read]
                fresh_BK = fresh_scores(
                    self._model, self._wordpieces, self._corpus, query_BD, read_BK, with_null=False
                )
                scores_BC = torch.cat([fresh_BK, scores_BC[:, self._read :]], dim=1)
        return ids_BC, holds_BC.to(self._model.device), scores_BC, first_B

    def _first_to_read(self, numbers: np.ndarray, ids_BC: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Candidates in the order they are read, that order, which hold an answer, and does the one that was
        retrieved first?

        A question whose first passages do not hold its answer teaches the reader nothing: the best that does
        takes the last place.
        """
        holds_BC = torch.stack(
            [self._gold.holds(number, ids) for number, ids in zip(numbers, ids_BC, strict=True)]
        )
        order_BC = torch.arange(ids_BC.shape[1]).expand(ids_BC.shape).clone()
        if self._read_gold:
            missing_B = ~holds_BC[:, : self._read].any(-1) & holds_BC.any(-1)
            for row in missing_B.nonzero()[:, 0].tolist():
                best = int(holds_BC[row].int().argmax())
                order_BC[row, self._read - 1] = best
                order_BC[row, best] = self._read - 1
        return ids_BC.gather(1, order_BC), order_BC, holds_BC.gather(1, order_BC), holds_BC[:, 0]

    def _read_spans(
        self, numbers: np.ndarray, questions: list[np.ndarray], ids_BK: Tensor, scores_BK: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What weighs the passages, log p(y|z,x) (−inf where a passage does not hold the answer), and which
        hold it; all [B, K]."""
        k = ids_BK.shape[1]
        config = self._model.config
        repeated = [question for question in questions for _ in range(k)]
        inputs = joint_inputs(repeated, ids_BK.flatten().tolist(), self._corpus, self._wordpieces, config)
        gold_N3 = self._gold_spans(numbers, ids_BK, inputs)
        scores_NLW, allowed_NLW = self._model.reader.spans(inputs.to(self._model.device))
        gold_NLW = span_mask(gold_N3, allowed_NLW)
        likelihood = best_span_log_likelihood if self._hard else answer_log_likelihood
        reader_N = likelihood(span_log_probabilities(scores_NLW, allowed_NLW), gold_NLW)
        weight_BK = (
            weighed_together(scores_BK, scores_NLW, allowed_NLW) if config.weighs_together else scores_BK
        )
        return weight_BK, reader_N.view(-1, k), gold_NLW.flatten(1).any(-1).view(-1, k)

    def _gold_spans(self, numbers: np.ndarray, ids_BK: Tensor, inputs: Inputs) -> np.ndarray:
        """(pair, start, width − 1) of every place where an answer stands in what is read, [N, 3]."""
        pairs = [
            (number, passage)
            for number, ids in zip(numbers.tolist(), ids_BK.tolist(), strict=True)
            for passage in ids
        ]
        found = []
        for pair, ((number, passage), second) in enumerate(zip(pairs, inputs.second_N.tolist(), strict=True)):
            spans_n2 = self._gold.spans(number, passage)
            found += [(pair, start + second, end - start - 1) for start, end in spans_n2.tolist()]
        spans_N3 = np.array(found, dtype=np.int64).reshape(-1, 3)
        return spans_N3[
            (spans_N3[:, 1] < inputs.tokens_NL.shape[1]) & (spans_N3[:, 2] < self._model.config.max_answer)
        ]

    def _closed_book(self, numbers: np.ndarray, questions: list[np.ndarray]) -> Tensor:
        """log p(y|∅,x) [B]: the question followed by masks in the answer's place."""
        config = self._model.config
        device = self._model.device
        answers = [self._gold.answers[number][: config.max_answer] for number in numbers]
        texts = [
            np.concatenate([question[: config.max_query - len(a)], a])
            for question, a in zip(questions, answers, strict=True)
        ]
        places = [
            np.arange(len(text) - len(answer), len(text)) for text, answer in zip(texts, answers, strict=True)
        ]
        masked = mask_queries(texts, places, self._wordpieces).to(device)
        inputs = joint_inputs(masked.queries, [None] * len(texts), self._corpus, self._wordpieces, config).to(
            device
        )
        token_BM = hidden_log_p(self._model.reader.masks(inputs, masked.positions_BM), masked.targets_BM)
        return joint_reading(token_BM[:, None], masked.valid_BM)[:, 0]

    def before_step(self, step: int, clock: Clock) -> dict[str, Any]:
        with clock("refresh"):
            return {} if self._given is not None else self._live.before_step(step)

    def measure(self, done: int, clock: Clock) -> dict[str, Any]:
        return {}

    def state(self) -> dict[str, Any]:
        return self._live.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self._live.load_state(state)


def _mean(values_B: Tensor, valid_B: Tensor) -> Tensor:
    """Mean over the valid entries, for the row; 0 if there is none."""
    return torch.where(valid_B, values_B, 0.0).sum() / valid_B.sum().clamp(min=1)


def finetune(
    *,
    model: Path,
    corpus: Path,
    questions: tuple[Path, ...],
    out: Path,
    retriever: str = "learned",
    read: int,
    read_gold: bool = False,
    candidates: int,
    query: str = "tower",
    objective: str = "marginal",
    closed_book: float,
    optim: JointOptim,
    refresh: Refresh,
    loop: Loop,
) -> Path:
    """Train on questions; gives the place of the model. A run that was cut off goes on if called the same
    way."""
    settings = dict(locals())  # every argument is one
    with Run.begin(Path(out), stage="finetune", config=record(settings)) as run:
        if run.finished:
            say(f"{out} is already finished")
            return run.folder / "model"
        device = prepare(loop)
        known = run.open_corpus(corpus)
        for file in questions:
            run.pin_file(file)
        realm, wordpieces = Realm.from_pretrained(model, device=device)
        check_readable(str(model), realm, wordpieces, known)
        if read > len(known):
            raise NotEnough(
                f"cannot read {read} passages: {corpus} has {len(known)}; lower --read or use a larger corpus"
            )
        frozen = refresh.every_steps == 0
        learning = _what_learns(
            realm, run, query, frozen=frozen, alone=retriever == "bm25" or optim.retriever_lr == 0
        )
        realm.config = replace(realm.config, trained_on_questions=True)
        asked = [question for file in questions for question in read_questions(file)]
        gold = locate_answers(known, asked, candidates=candidates)
        given = (
            _word_matches(known, gold, candidates=min(candidates, len(known)))
            if retriever == "bm25"
            else None
        )
        # float16 is the usual: more is as good
        precise = torch.float32 if refresh.dtype == "float32" else None
        index = index_for(realm, wordpieces, known, dtype=precise) if frozen and given is None else None
        with closing(
            LiveIndex(run, realm, wordpieces, known, refresh=refresh, loop=loop, frozen=index)
        ) as live:
            taught = QuestionAnswering(
                realm,
                wordpieces,
                known,
                live,
                gold,
                read=read,
                read_gold=read_gold,
                candidates=min(candidates, len(known)),
                objective=objective,
                closed_book=closed_book,
                frozen_index=frozen,
                learning=learning,
                seed=loop.seed,
                given=given,
            )
            loop = replace(loop, workers=0)  # what is drawn are numbers
            fit(realm, taught, run, optim=optim, loop=loop, device=device, title="fine-tuning")
            realm.save_pretrained(run.folder / "model", wordpieces, parents={"corpus": known.fingerprint})
            return run.folder / "model"


def _what_learns(realm: Realm, run: Run, query: str, *, frozen: bool, alone: bool) -> list[nn.Parameter]:
    """The retriever's weights that learn, with a query side of their own where the index stays; none where
    the reader learns `alone`."""
    saved = run.newest() if frozen and alone else None
    # an older run, which gave it one all the same
    untied = saved is not None and saved.weights.keys() != realm.own_state().keys()
    learning = realm.free_query(query) if frozen and (untied or not alone) else realm.retriever_parameters()
    for parameter in realm.retriever_parameters() if alone else []:
        parameter.requires_grad_(False)
    return learning


def _word_matches(corpus: Corpus, gold: Gold, *, candidates: int) -> Given:
    """BM25's candidates for every question."""
    index = BM25Index.of(corpus)
    parts = []
    with progress("matching words", len(gold), unit="questions") as bar:
        for first in range(0, len(gold), _MATCHED):
            parts.append(index.search(gold.texts[first : first + _MATCHED], candidates))
            bar.advance(len(parts[-1][1]))
    return Given(np.concatenate([ids for _, ids in parts]), np.concatenate([scores for scores, _ in parts]))


def _steps(questions: tuple[Path, ...], *, batch: int) -> int:
    """Some passes over the questions, but no more steps than large sets need."""
    asked = sum(len(read_questions(file)) for file in questions)
    steps = min(MOST_STEPS, math.ceil(PASSES * asked / batch))
    say(
        f"{steps:,} steps of {batch}: {steps * batch / asked:.1f} passes over {asked:,} questions; "
        "--optim.steps changes this"
    )
    return steps


def run_finetune(config: Finetune) -> Path:
    optim = (
        config.optim
        if config.optim.steps
        else replace(config.optim, steps=_steps(config.questions, batch=config.optim.batch))
    )
    place = finetune(**flat(config) | {"optim": optim})
    say(f"the model is in {place}")
    return place
