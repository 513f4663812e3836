"""Joint pre-training: masked language modelling through a search (section 3 of the paper), the index
refreshed as it goes.

B sentences, K passages each with the null document in column 0, N = B · K pairs, M masks, L wordpieces, H
hidden size, D vector size, V vocabulary.
"""

from collections import defaultdict
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from realmlm.config import Loop, Optim, Pretrain, Refresh, flat, record
from realmlm.corpus.masking import Masking
from realmlm.corpus.questions import Question, read_questions, spread
from realmlm.corpus.store import Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.evaluate.clozes import measure_clozes, source_copies
from realmlm.index.duplicates import SameWords, check_others, share_cut_otherwise
from realmlm.log import say
from realmlm.model.inputs import NULL, Inputs, Masked, joint_inputs, query_inputs
from realmlm.model.marginal import (
    hidden_log_p,
    joint_reading,
    marginal_log_likelihood,
    per_token_marginal,
    retrieval_utility,
)
from realmlm.model.realm import Realm
from realmlm.reading.retrieve import LearnedRetriever, check_readable, fresh_scores
from realmlm.train.data import MaskedSentences, SentenceSource
from realmlm.train.hold_out import held_out_passages
from realmlm.train.live import LiveIndex
from realmlm.train.loop import Clock, prepare, train_model
from realmlm.train.objectives.pointing import point, standing
from realmlm.train.run import Run

PROBE_LIMIT = 500  # sentences of a probe
# share of sentences above which a text is of the corpus's own documents; below it is what documents repeat
CUT_OTHERWISE = 0.1


class JointPretraining:
    """−log p(y|x) = −log Σ_z p(z|x) p(y|z,x), z from the top of a stale index, every score recomputed."""

    def __init__(
        self,
        model: Realm,
        wordpieces: Wordpieces,
        corpus: Corpus,
        source: SentenceSource,
        live: LiveIndex,
        *,
        k: int,
        null_document: bool,
        own: SameWords | None,
        marginal: str,
        pointing: float,
        freeze_retriever: int,
        probe: list[Question],
        probe_every: int,
    ) -> None:
        self._model = model
        self._wordpieces = wordpieces
        self._corpus = corpus
        self._source = source
        self._live = live
        self._null = null_document
        self._passages = k - null_document
        self._marginal = marginal
        self._freeze = freeze_retriever
        self._pointing = pointing
        self._probe = probe
        self._probe_every = probe_every
        self._probe_own = source_copies(corpus, probe)
        self._own = own

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {
            "reader": list(self._model.reader.parameters()),
            "retriever": self._model.retriever_parameters(),
        }

    def draw(self, first: int, count: int) -> tuple[MaskedSentences, Inputs]:
        """Masked sentences, and what the query tower is given of them."""
        drawn = self._source.draw(first, count)
        return drawn, query_inputs(drawn.seen, self._wordpieces, max_query=self._model.config.max_query)

    def loss(
        self, drawn: tuple[MaskedSentences, Inputs], step: int, clock: Clock
    ) -> tuple[Tensor, dict[str, Tensor]]:
        masked = drawn[0].masked.to(self._model.device)
        inputs = drawn[1].to(self._model.device)
        with clock("embed"):
            query_BD = self._model.query(inputs)
        with clock("search"):
            own_BE = None if self._own is None else self._own(drawn[0].passages)
            ids_BK = self._live.index.search(
                query_BD.detach().float(), self._passages, exclude_QE=own_BE
            ).ids_QK
        with clock("embed"):
            retrieval_BK = fresh_scores(
                self._model, self._wordpieces, self._corpus, query_BD, ids_BK, with_null=self._null
            )
            if step < self._freeze:
                retrieval_BK = retrieval_BK.detach()
        with clock("read"):
            passages = [number for row in ids_BK.tolist() for number in ([None] * self._null + row)]
            token_BKM, hidden_NLH, read = read_masks(
                self._model, self._wordpieces, self._corpus, masked, passages
            )
        loss, numbers = self.likelihood(retrieval_BK, token_BKM, masked.valid_BM)
        if not self._pointing:
            return loss, numbers
        with clock("point"):
            found_B, some_B = self._point(drawn[0].masked, passages, hidden_NLH, read, retrieval_BK)
        numbers |= {
            "held": some_B.float().mean(),
            "pointed": found_B.exp().masked_fill(~some_B, 0.0).sum() / some_B.sum().clamp(min=1),
        }
        return loss - self._pointing * found_B.masked_fill(~some_B, 0.0).mean(), numbers

    def _point(
        self,
        masked: Masked,
        passages: list[int | None],
        hidden_NLH: Tensor,
        read: Inputs,
        retrieval_BK: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """log Σ_z p(z|x) p(the hidden words where they stand|z,x) [B], and for which sentences a retrieved
        passage has them."""
        k = retrieval_BK.shape[1]
        longest = self._model.config.max_answer
        runs = [words for words in masked.runs(longest) for _ in range(k)]
        bodies = [NULL if number is None else self._corpus.tokens(number) for number in passages]
        point_N, held_N = point(self._model.reader, hidden_NLH, read, standing(runs, bodies, read))
        some_B = held_N.view(-1, k).any(-1)
        point_BK = point_N.view(-1, k).masked_fill(~some_B[:, None], 0.0)  # no gradient, no NaN
        return marginal_log_likelihood(retrieval_BK, point_BK), some_B

    def likelihood(
        self, retrieval_BK: Tensor, token_BKM: Tensor, valid_BM: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and numbers for the row from f(x,z) and log p(y_j|z,x), both with gradient: what an
        objective of one's own replaces."""
        reader_BK = joint_reading(token_BKM, valid_BM)
        joint_B = marginal_log_likelihood(retrieval_BK, reader_BK)
        trained_B = (
            joint_B if self._marginal == "joint" else per_token_marginal(retrieval_BK, token_BKM, valid_BM)
        )
        p_BK = retrieval_BK.softmax(-1)
        numbers = {"log_p": joint_B.mean(), "top_share": p_BK[:, int(self._null) :].max(-1).values.mean()}
        if self._null:
            # of all that was retrieved together
            utility_B = retrieval_utility(joint_B[:, None], reader_BK[:, 0])
            numbers |= {"utility": utility_B.mean(), "null_share": p_BK[:, 0].mean()}
        return -trained_B.mean(), numbers

    def before_step(self, step: int, clock: Clock) -> dict[str, Any]:
        with clock("refresh"):
            return self._live.before_step(step)

    def measure(self, done: int, clock: Clock) -> dict[str, Any]:
        """Held-out sentences through the index as it is now; of several wordings the worst is shown, for it
        fails all or nothing."""
        if not self._probe or done % self._probe_every:
            return {}
        with clock("probe"):
            return self._measure()

    def _measure(self) -> dict[str, Any]:
        training = self._model.training
        self._model.eval()
        retriever = LearnedRetriever(self._model, self._wordpieces, self._live.index)
        results = measure_clozes(
            self._model,
            self._wordpieces,
            self._corpus,
            retriever,
            self._probe,
            self._probe_own,
            read=self._passages,
        )
        self._model.train(training)
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

    def state(self) -> dict[str, Any]:
        return self._live.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self._live.load_state(state)


def read_masks(
    model: Realm, wordpieces: Wordpieces, corpus: Corpus, masked: Masked, passages: list[int | None]
) -> tuple[Tensor, Tensor, Inputs]:
    """log p(y_j|z,x) of the hidden wordpieces [B, K, M] with K passages for each sentence (None: the null
    document).

    And what the reader's encoder gave for every pair [N, L, H], and was given.
    """
    count = len(masked.queries)
    k = len(passages) // len(masked.queries)
    queries = [query for query in masked.queries for _ in range(k)]
    inputs = joint_inputs(queries, passages, corpus, wordpieces, model.config).to(model.device)
    hidden_NLH = model.reader.encoder(inputs)
    vocabulary_NMV = model.reader.masks_from(
        hidden_NLH, inputs, masked.positions_BM.repeat_interleave(k, dim=0)
    )
    token_NM = hidden_log_p(vocabulary_NMV, masked.targets_BM.repeat_interleave(k, dim=0))
    return token_NM.view(count, k, -1), hidden_NLH, inputs


def pretrain(
    *,
    model: Path,
    corpus: Path,
    out: Path,
    text: Path | None,
    k: int,
    null_document: bool = True,
    own_passage: bool = False,
    masking: str,
    marginal: str,
    recurring: bool = False,
    glimpses: float = 0.0,
    pointing: float = 0.0,
    hold_out: Path | None = None,
    freeze_retriever: int,
    probe: Path | None,
    probe_every: int,
    optim: Optim,
    refresh: Refresh,
    loop: Loop,
    objective: type[JointPretraining] = JointPretraining,
    scheme: Masking | None = None,
) -> Path:
    """Train retriever and reader together; gives the place of the model. A run that was cut off goes on if
    called the same way.

    `objective` and, in place of `masking`, `scheme` may be one's own (docs/own.md): the run then has a stage
    of its own name.
    """
    settings = {
        name: value for name, value in locals().items() if name not in ("objective", "scheme")
    }  # every other argument is one
    own_names = [objective.__qualname__] * (objective is not JointPretraining) + (
        [] if scheme is None else [type(scheme).__qualname__]
    )
    with Run.begin(Path(out), stage=" with ".join(["pretrain", *own_names]), config=record(settings)) as run:
        if run.finished:
            say(f"{out} is already finished; the model is in {run.folder / 'model'}")
            return run.folder / "model"
        device = prepare(loop)
        known = run.open_corpus(corpus)
        source_corpus = known if text is None else run.open_corpus(text)
        realm, wordpieces = Realm.from_pretrained(model, device=device)
        realm.config = replace(realm.config, null_document=null_document)
        for each in (known, source_corpus):
            check_readable(str(model), realm, wordpieces, each)
        own = None if own_passage else _own_places(known, source_corpus)
        check_others(known, own, k=k, others=k - null_document)
        held_out = held_out_passages(source_corpus, hold_out)
        run.pin_file(hold_out)
        source = SentenceSource(
            source_corpus,
            scheme=scheme or masking,
            wordpieces=wordpieces,
            max_query=realm.config.max_query,
            seed=loop.seed,
            held_out=held_out,
            recurring=recurring,
            glimpses=glimpses,
        )
        questions = read_questions(probe) if probe else []
        with closing(LiveIndex(run, realm, wordpieces, known, refresh=refresh, loop=loop)) as live:
            taught = objective(
                realm,
                wordpieces,
                known,
                source,
                live,
                k=k,
                null_document=null_document,
                own=own,
                marginal=marginal,
                pointing=pointing,
                freeze_retriever=freeze_retriever,
                probe=[questions[place] for place in spread(len(questions), PROBE_LIMIT)]
                if questions
                else [],
                probe_every=probe_every,
            )
            return train_model(
                realm,
                wordpieces,
                taught,
                run,
                corpus=known,
                optim=optim,
                loop=loop,
                device=device,
                title="pre-training",
            )


def _own_places(corpus: Corpus, text: Corpus) -> SameWords:
    """What is never retrieved for the sentences of a passage of the text."""
    own = SameWords(corpus, text)
    if text is not corpus and (share := share_cut_otherwise(corpus, text, own)) >= CUT_OTHERWISE:
        say(
            f"{share:.0%} of the passages of {text.folder} that are not in {corpus.folder} begin with a "
            "sentence that is: their "
            "sentences can retrieve themselves, which teaches nothing; cut both from the documents with the "
            "same --max-wordpieces"
        )
    return own


def run_pretrain(
    config: Pretrain, *, objective: type[JointPretraining] = JointPretraining, scheme: Masking | None = None
) -> Path:
    return pretrain(**flat(config), objective=objective, scheme=scheme)
