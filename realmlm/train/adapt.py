"""Adapting a model to someone's own documents, measured before and after on what was held out, and kept only
if it got better there.

What is held out are sentences of the documents with words hidden, or, with questions of their own, some of
these.

Without labels the query projection learns to find where else in the documents the hidden words of a sentence
stand; with questions of their own it learns these, and so does the reader. Passages and index stay as they
are: minutes on a CPU are enough.

B sentences, C candidates each, D vector size.
"""

import json
import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from realmlm.bundled import model_place, text_place
from realmlm.config import Adapt, JointOptim, Loop, Refresh, flat, record
from realmlm.config_model import ADAPTING
from realmlm.corpus.build import build_corpus
from realmlm.corpus.documents import DOCUMENT_WORDPIECES
from realmlm.corpus.questions import Question, read_questions, write_questions
from realmlm.corpus.spans import Spans, mark_spans, rule_tagger
from realmlm.corpus.store import Corpus
from realmlm.device import pick_device
from realmlm.errors import BadInput, NotEnough, RealmError
from realmlm.evaluate.clozes import make_clozes
from realmlm.evaluate.intervals import paired_interval
from realmlm.evaluate.measure import measure
from realmlm.evaluate.scores import Outcome, Report, Score, summarise
from realmlm.index.duplicates import SameWords
from realmlm.index.exact import Index
from realmlm.index.keep import index_for
from realmlm.log import duration, say
from realmlm.model.inputs import Inputs, query_inputs
from realmlm.model.marginal import evidence_log_likelihood, inner_products
from realmlm.model.realm import ModelConfig, Realm
from realmlm.reading.answer import Answerer
from realmlm.reading.retrieve import LearnedRetriever
from realmlm.settings import together
from realmlm.sources.readers import apart
from realmlm.storage.artefacts import discard, open_artefact, refuse_existing, write_text
from realmlm.train.data import MaskedSentences, SentenceSource, places_of
from realmlm.train.hold_out import held_out_passages
from realmlm.train.loop import Clock, Stateless, fit, prepare
from realmlm.train.objectives.questions import finetune
from realmlm.train.run import Run

READ = 5  # passages
CANDIDATES = 100
BATCH = 32
MOST_HELD_OUT = 150  # masked sentences
MOST_OF_A_PASSAGE = 4  # of them: what is held out is whole passages, and few passages tell little
SHARE_HELD_OUT = 5  # one of so many passages, or questions
FEWEST = 20  # held out, and steps
EPOCHS = 6  # times that every example is seen, at most


class FoundElsewhere(Stateless):
    """−log p(passages that have the hidden words | x) among the best candidates, a sentence's own passage and
    its copies left out."""

    def __init__(
        self, model: Realm, corpus: Corpus, source: SentenceSource, index: Index, learning: list[nn.Parameter]
    ) -> None:
        self._model = model
        self._corpus = corpus
        self._source = source
        self._index = index
        self._learning = learning
        self._own = SameWords(corpus, corpus)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"retriever": self._learning}

    def draw(self, first: int, count: int) -> tuple[MaskedSentences, Inputs]:
        drawn = self._source.draw(first, count)
        return drawn, query_inputs(
            drawn.masked.queries, self._corpus.wordpieces, max_query=self._model.config.max_query
        )

    def loss(
        self, drawn: tuple[MaskedSentences, Inputs], step: int, clock: Clock
    ) -> tuple[Tensor, dict[str, Tensor]]:
        sentences, inputs = drawn
        self._model.query.encoder.eval()  # only the projection learns: what it learns from should not waver
        with clock("embed"):
            query_BD = self._model.query(inputs.to(self._model.device))
        with clock("search"):
            own_BE = self._own(sentences.passages)
            candidates = min(CANDIDATES, len(self._corpus) - self._own.most)
            ids_BC = self._index.search(query_BD.detach().float(), candidates, exclude_QE=own_BE).ids_QK.cpu()
            holds_BC = self._holds(sentences, ids_BC).to(self._model.device)
        candidate_BCD = self._index.vectors(ids_BC.flatten()).view(*ids_BC.shape, -1).to(query_BD)
        found_B = evidence_log_likelihood(inner_products(query_BD, candidate_BCD), holds_BC)
        return -found_B.mean(), {
            "recall@1": holds_BC[:, 0].float().mean(),
            "recall@5": holds_BC[:, :5].any(-1).float().mean(),
        }

    def _holds(self, sentences: MaskedSentences, ids_BC: Tensor) -> Tensor:
        """Which of the candidates have the hidden words, [B, C]."""
        masked = sentences.masked
        hidden = [
            targets[valid].numpy() for targets, valid in zip(masked.targets_BM, masked.valid_BM, strict=True)
        ]
        rows = zip(hidden, ids_BC.tolist(), strict=True)
        return torch.tensor(
            [
                [len(places_of(words, self._corpus.tokens(number))) > 0 for number in ids]
                for words, ids in rows
            ]
        )


@dataclass(frozen=True)
class Verdict:
    """The same examples before and after, the mean gain on them with its 95% interval, and what was
    decided."""

    before: Report
    after: Report
    gained: str
    gain: float
    low: float
    high: float

    @property
    def kept(self) -> bool:
        return self.low > 0

    @property
    def examples(self) -> str:
        """What was held out."""
        return "sentences" if self.before.nats else "questions"

    def rows(self) -> list[tuple[str, Score, Score]]:
        """Each measure before and after."""
        rows = [
            (f"recall@{k}", score, self.after.recall[k])
            for k, score in self.before.recall.items()
            if k <= READ
        ]
        rows += [(f"{name}, nats", score, self.after.nats[name]) for name, score in self.before.nats.items()]
        if self.before.exact_match and self.after.exact_match:
            name = "exact match of hidden words" if self.before.nats else "exact match"
            rows.append((name, self.before.exact_match, self.after.exact_match))
        return rows

    def as_json(self) -> dict[str, Any]:
        """For `verdict.json`, which reports show."""
        measures = {
            name: {"before": asdict(before), "after": asdict(after)} for name, before, after in self.rows()
        }
        gain = {
            "gained": self.gained,
            "gain": self.gain,
            "low": self.low,
            "high": self.high,
            "kept": self.kept,
        }
        return {"held_out": self.before.questions, "measures": measures, **gain}

    def plainly(self) -> str:
        """What it is about, in words."""
        first, then = (
            report.recall[1] if report.nats else report.exact_match for report in (self.before, self.after)
        )
        counts = [
            round((score.value if score else 0.0) * self.before.questions / 100) for score in (first, then)
        ]
        what = (
            "a passage with the hidden words came first for"
            if self.before.nats
            else "the answer was right for"
        )
        said = (
            f"Of {self.before.questions} held-out {self.examples}, {what} {counts[0]} before and {counts[1]} "
            "after."
        )
        if not self.before.nats:
            return said
        return (
            f"{said}\nMeasured on sentences of the documents with words hidden, not on questions: answers "
            "may stay the same."
        )

    def table(self) -> str:
        """For a terminal."""
        lines = [self.plainly(), ""]
        lines += [f"{f'{self.before.questions} held out':28s} {'before':>20s} {'after':>22s}"]
        lines += [f"{name:28s} {before!s:>20s} {after!s:>22s}" for name, before, after in self.rows()]
        return "\n".join(
            [*lines, "", f"{self.gained}: {self.gain:+.3f}  [{self.low:+.3f}, {self.high:+.3f}]"]
        )


def adapt(
    *,
    docs: Sequence[Path],
    out: Path,
    model: Path,
    questions: tuple[Path, ...] = (),
    minutes: float,
    seed: int,
    device: str = "auto",
) -> Verdict:
    """Train on the documents for at most about so many minutes; the model stands in `out/model` if it got
    better, else nowhere."""
    place = model_place(model)
    asked = _own_questions(questions) if questions else []
    refuse_existing(out)
    try:
        return _adapt(
            place,
            apart([text_place(path) for path in docs]),
            out,
            asked,
            minutes=minutes,
            loop=Loop(seed=seed, device=device),
        )
    except (RealmError, KeyboardInterrupt):
        shutil.rmtree(out, ignore_errors=True)  # nothing half done: the same command can be given again
        raise


def _adapt(
    model: Path, docs: list[Path], out: Path, asked: list[Question], *, minutes: float, loop: Loop
) -> Verdict:
    config = ModelConfig.of(open_artefact(model, kind="model").config, model)
    longest = min(DOCUMENT_WORDPIECES, config.max_passage)  # as `ask --docs` cuts them
    corpus = build_corpus(docs, out / "corpus", tokenizer=str(model), max_wordpieces=longest, skip_bad=True)
    if asked:
        order = np.random.default_rng(loop.seed).permutation(len(asked)).tolist()
        held_out = [asked[number] for number in order[: len(asked) // SHARE_HELD_OUT]]
        write_questions(out / "questions.jsonl", [asked[number] for number in order[len(held_out) :]])
    else:
        held_out = _masked_facts(corpus, loop.seed)
    write_questions(out / "held-out.jsonl", held_out)
    if not asked:
        _check_some_left(corpus, out / "held-out.jsonl")
    what = "questions" if asked else "sentences with words hidden"
    say(
        f"{len(held_out)} {what} are held out and measured before and after training; --minutes does not "
        "include this"
    )
    before, seconds = _measured(model, corpus, held_out, loop.device)
    say(f"measuring took {duration(seconds)}, and will take as long again after training")
    learn = _learn_questions if asked else _learn_to_find
    pair_seconds = seconds / (len(held_out) * (READ + 1))
    made = learn(model, corpus, out, minutes=minutes, pair_seconds=pair_seconds, loop=loop)
    after, _ = _measured(made, corpus, held_out, loop.device)
    verdict = _compare(before, after, labelled=bool(asked))
    write_text(out / "verdict.json", json.dumps(verdict.as_json(), ensure_ascii=False))
    if verdict.kept:
        made.rename(out / "model")
    else:
        discard(made)
    return verdict


def _own_questions(files: tuple[Path, ...]) -> list[Question]:
    asked = list(
        {question.text.casefold(): question for file in files for question in read_questions(file)}.values()
    )
    if any(question.is_regex for question in asked):
        raise BadInput("adapt cannot learn from answers that are patterns; use `realmlm finetune`")
    if len(asked) < FEWEST * SHARE_HELD_OUT:
        raise NotEnough(
            f"{len(asked)} questions are too few to learn from some and measure on others; "
            f"{FEWEST * SHARE_HELD_OUT} are needed"
        )
    return asked


def _masked_facts(corpus: Corpus, seed: int) -> list[Question]:
    """Sentences to hold out, with words hidden that another passage has too."""
    recurring = mark_spans(corpus, rule_tagger(corpus)).recurring(corpus)
    # copies are one
    passages = len({corpus.tokens(recurring[number].passage).tobytes() for number in range(len(recurring))})
    count = min(MOST_HELD_OUT, passages // SHARE_HELD_OUT)
    each = min(MOST_OF_A_PASSAGE, MOST_HELD_OUT // max(1, count))
    if count < FEWEST:
        enough = FEWEST * SHARE_HELD_OUT
        raise NotEnough(
            f"only {passages} passages name something that another passage also names, too few to learn from "
            f"({enough} would do). "
            f"Use the model as it is; with more documents, or with {enough} or more questions of your own "
            "(--questions), it can adapt"
        )
    return make_clozes(corpus, count=count, max_query=64, seed=seed, recurring=True, each=each)


def _check_some_left(corpus: Corpus, held_out: Path) -> None:
    """Is there something to learn from? Said before anything is measured."""
    if not len(Spans.open(corpus).recurring(corpus).without(held_out_passages(corpus, held_out))):
        raise NotEnough(
            "nothing is left to learn from once the held-out passages and their copies are left out: these "
            "documents repeat the same "
            "sentences. Use the model as it is; with other documents it can adapt"
        )


def _learn_to_find(
    model: Path, corpus: Corpus, out: Path, *, minutes: float, pair_seconds: float, loop: Loop
) -> Path:
    settings = dict(locals())
    with Run.begin(out / ADAPTING, stage="adapt", config=record(settings | {"corpus": corpus.folder})) as run:
        device = prepare(loop)
        realm, wordpieces = Realm.from_pretrained(model, device=device)
        calibration = realm.config.calibration
        held_out = held_out_passages(corpus, out / "held-out.jsonl")
        limits: dict[str, Any] = {
            "max_query": realm.config.max_query,
            "held_out": held_out,
            "recurring": True,
        }
        source = SentenceSource(corpus, scheme="salient", wordpieces=wordpieces, seed=loop.seed, **limits)
        learning = realm.free_query("projection")
        objective = FoundElsewhere(realm, corpus, source, index_for(realm, wordpieces, corpus), learning)
        seconds = BATCH * pair_seconds / 3  # a sentence is a third as long as sentence and passage together
        steps = _steps(minutes, seconds=seconds, examples=len(source.sentences))
        optim = JointOptim(steps=steps, batch=BATCH, retriever_lr=2e-4)
        fit(realm, objective, run, optim=optim, loop=_rows(loop, steps), device=device, title="adapting")
        # scores hardly move (docs/decisions/010)
        realm.config = replace(realm.config, calibration=calibration)
        realm.save_pretrained(run.folder / "model", wordpieces, parents={"corpus": corpus.fingerprint})
        return run.folder / "model"


def _learn_questions(
    model: Path, corpus: Corpus, out: Path, *, minutes: float, pair_seconds: float, loop: Loop
) -> Path:
    examples = len(read_questions(out / "questions.jsonl"))
    # going backwards takes twice as long as forwards
    steps = _steps(minutes, seconds=3 * BATCH * READ * pair_seconds, examples=examples)
    optim = JointOptim(steps=steps, batch=BATCH, lr=3e-5, retriever_lr=1e-4)
    return finetune(
        model=model,
        corpus=corpus.folder,
        questions=(out / "questions.jsonl",),
        out=out / ADAPTING,
        read=min(READ, len(corpus)),
        read_gold=True,
        candidates=min(CANDIDATES, len(corpus)),
        query="projection",
        closed_book=0.02,
        optim=optim,
        refresh=Refresh(every_steps=0),
        loop=_rows(loop, steps),
    )


def _steps(minutes: float, *, seconds: float, examples: int) -> int:
    """As many as the minutes allow, but no more than a few rounds over the examples."""
    steps = int(np.clip(minutes * 60 / seconds, FEWEST, max(FEWEST, EPOCHS * examples // BATCH)))
    enough = "; more minutes would only repeat them" if steps < minutes * 60 // seconds else ""
    say(
        f"{steps} steps of {BATCH} examples, out of {examples:,}: about "
        f"{max(1, round(steps * seconds / 60))} min of training{enough}"
    )
    return steps


def _rows(loop: Loop, steps: int) -> Loop:
    """Twenty rows of metrics in all, and no checkpoint before the end."""
    return Loop(seed=loop.seed, device=loop.device, log_every=max(1, steps // 20), checkpoint_every=steps)


@torch.inference_mode()
def _measured(
    model: Path, corpus: Corpus, questions: list[Question], device: str
) -> tuple[list[Outcome], float]:
    """What comes of each, and the seconds that answering took."""
    realm, wordpieces = Realm.from_pretrained(model, device=pick_device(device))
    retriever = LearnedRetriever.settled(realm, wordpieces, index_for(realm, wordpieces, corpus))
    begun = time.monotonic()
    outcomes = list(
        measure(
            Answerer(realm, wordpieces, corpus, retriever),
            questions,
            read=min(READ, len(corpus)),
            recall="dpr",
        )
    )
    return outcomes, time.monotonic() - begun


def _compare(before: list[Outcome], after: list[Outcome], *, labelled: bool) -> Verdict:
    """By the questions answered, or by the rank of the first passage that has the hidden words; sentences of
    one passage count as one."""

    def values(outcomes: list[Outcome]) -> list[float]:
        if labelled:
            return [float(outcome.correct) for outcome in outcomes]
        ranks: defaultdict[int | None, list[float]] = defaultdict(list)
        for outcome in outcomes:
            ranks[outcome.question.source].append(_reciprocal_rank(outcome.found))
        return [float(np.mean(of_passage)) for of_passage in ranks.values()]

    low, high = paired_interval(values(after), values(before))
    first, second = (
        summarise(outcomes, retriever="learned", read=READ, recall="dpr", seconds=0.0)
        for outcomes in (before, after)
    )
    gained = (
        "gain in share answered exactly"
        if labelled
        else "gain in mean reciprocal rank of the first passage with the hidden words"
    )
    return Verdict(first, second, gained, float(np.mean(values(after)) - np.mean(values(before))), low, high)


def _reciprocal_rank(found: list[bool]) -> float:
    return 1 / (found.index(True) + 1) if True in found else 0.0


def run_adapt(config: Adapt) -> Verdict:
    return adapt(**flat(config) | {"docs": together(config.docs)})
