"""Adapting a model to someone's own documents: measured before and after, saved only if it got better.

Without labels the query projection learns to find where else in the documents the hidden words of a sentence
stand; with questions of their own it learns these, and so does the reader. Some sentences, or some of the
questions, are held out to measure on. Passages and index stay as they are: minutes on a CPU are enough.
"""

import json
import os
import shutil
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from realmlm.corpus.build import build_corpus
from realmlm.corpus.documents import DOCUMENT_WORDPIECES
from realmlm.corpus.questions import Question, read_questions, write_questions
from realmlm.corpus.spans import Spans, mark_spans, rule_tagger
from realmlm.corpus.store import Corpus
from realmlm.device import pick_device
from realmlm.errors import BadInput, NotEnough, RealmError
from realmlm.evaluation.clozes import make_clozes
from realmlm.evaluation.intervals import paired_interval
from realmlm.evaluation.measure import measure
from realmlm.evaluation.scores import Outcome, Report, Score, summarise
from realmlm.log import duration, say
from realmlm.model.realm import ModelConfig, Realm
from realmlm.reading.answer import Answerer
from realmlm.reading.retrieve import LearnedRetriever, hybrid_of, index_of
from realmlm.settings import ADAPTING, Adapt, BuildCorpus, Finetune, JointOptim, Loop, Optim, together
from realmlm.sources.readers import apart
from realmlm.storage.artefacts import discard, open_artefact, refuse_existing, write_text
from realmlm.train.data import SentenceSource
from realmlm.train.hold_out import held_out_passages
from realmlm.train.loop import fit, prepare
from realmlm.train.objectives.adapt import CANDIDATES, FoundElsewhere
from realmlm.train.run import Run
from realmlm.train.stages import finetune

READ = 5  # passages
BATCH = 32
MOST_HELD_OUT = 150  # masked sentences
MOST_OF_A_PASSAGE = 4  # of them: what is held out is whole passages, and few passages tell little
SHARE_HELD_OUT = 5  # one of so many passages, or questions
FEWEST = 20  # held out, and steps
EPOCHS = 6  # times that every example is seen, at most


@dataclass(frozen=True)
class Verdict:
    """Measures of the same examples before and after, and the mean gain with its 95% interval."""

    before: Report
    after: Report
    gained: str
    gain: float
    low: float
    high: float

    @property
    def kept(self) -> bool:
        """Is the gain certain enough for the model to be saved?"""
        return self.low > 0

    @property
    def examples(self) -> str:
        """What was held out."""
        return "sentences" if self.before.nats else "questions"

    def rows(self) -> list[tuple[str, Score, Score]]:
        """Each measure before and after."""
        recall = [(k, score) for k, score in self.before.recall.items() if k <= READ]
        rows = [(f"recall@{k}", score, self.after.recall[k]) for k, score in recall]
        rows += [(f"{name}, nats", score, self.after.nats[name]) for name, score in self.before.nats.items()]
        if self.before.exact_match and self.after.exact_match:
            name = "exact match of hidden words" if self.before.nats else "exact match"
            rows.append((name, self.before.exact_match, self.after.exact_match))
        return rows

    def as_json(self) -> dict[str, Any]:
        """For `verdict.json`, which reports show."""
        rows = self.rows()
        measures = {name: {"before": asdict(first), "after": asdict(then)} for name, first, then in rows}
        gain = {name: getattr(self, name) for name in ("gained", "gain", "low", "high", "kept")}
        return {"held_out": self.before.questions, "measures": measures, **gain}

    def plainly(self) -> str:
        """The verdict in a sentence or two, without measures' names."""
        masked = bool(self.before.nats)
        sides = (self.before, self.after)
        scores = [report.recall[1] if masked else report.exact_match for report in sides]
        counts = [round((score.value if score else 0.0) * self.before.questions / 100) for score in scores]
        what = "a passage with the hidden words came first" if masked else "the answer was right"
        held_out = f"{self.before.questions} held-out {self.examples}"
        said = f"Of {held_out}, {what} for {counts[0]} before and {counts[1]} after."
        where = "Measured on sentences of the documents with words hidden, not on questions"
        return f"{said}\n{where}: answers may stay the same." if masked else said

    def table(self) -> str:
        """For a terminal."""
        lines = [self.plainly(), ""]
        lines += [f"{f'{self.before.questions} held out':28s} {'before':>20s} {'after':>22s}"]
        lines += [f"{name:28s} {before!s:>20s} {after!s:>22s}" for name, before, after in self.rows()]
        gain = f"{self.gained}: {self.gain:+.3f}  [{self.low:+.3f}, {self.high:+.3f}]"
        return "\n".join([*lines, "", gain])


def adapt(settings: Adapt) -> Verdict:
    """Train on documents for about so many minutes; the model stands in `out/model` only if it got better."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise BadInput("adapting uses one process: leave out torchrun")
    asked = _own_questions(settings.questions) if settings.questions else []
    refuse_existing(settings.out)
    try:
        return _adapt(settings, asked)
    except (RealmError, KeyboardInterrupt):
        # nothing half done: the same command can be given again
        shutil.rmtree(settings.out, ignore_errors=True)
        raise


def _adapt(settings: Adapt, asked: list[Question]) -> Verdict:
    out = settings.out
    model = settings.model
    config = ModelConfig.of(open_artefact(model, kind="model").config, model)
    longest = min(DOCUMENT_WORDPIECES, config.max_passage)  # as `ask --docs` cuts them
    docs = tuple(apart(together(settings.docs)))
    how = BuildCorpus(
        sources=docs, out=out / "corpus", tokenizer=str(model), max_wordpieces=longest, skip_bad=True
    )
    corpus = build_corpus(how)
    if asked:
        order = np.random.default_rng(settings.seed).permutation(len(asked)).tolist()
        held_out = [asked[number] for number in order[: len(asked) // SHARE_HELD_OUT]]
        write_questions(out / "questions.jsonl", [asked[number] for number in order[len(held_out) :]])
    else:
        held_out = _masked_facts(corpus, settings.seed)
    write_questions(out / "held-out.jsonl", held_out)
    if not asked:
        _check_some_left(corpus, out / "held-out.jsonl")
    what = "questions" if asked else "sentences with words hidden"
    measured = f"{len(held_out)} {what} are held out and measured before and after training"
    say(f"{measured}; --minutes does not include this")
    before, seconds = _measured(model, corpus, held_out, settings.device)
    say(f"measuring took {duration(seconds)}, and will take as long again after training")
    learn = _learn_questions if asked else _learn_to_find
    made = learn(settings, corpus, pair_seconds=seconds / (len(held_out) * (READ + 1)))
    after, _ = _measured(made, corpus, held_out, settings.device)
    verdict = _compare(before, after, labelled=bool(asked))
    write_text(out / "verdict.json", json.dumps(verdict.as_json(), ensure_ascii=False))
    if verdict.kept:
        made.rename(out / "model")
    else:
        discard(made)
    return verdict


def _own_questions(files: tuple[Path, ...]) -> list[Question]:
    read = [question for file in files for question in read_questions(file)]
    asked = list({question.text.casefold(): question for question in read}.values())
    if any(question.is_regex for question in asked):
        raise BadInput("adapt cannot learn from answers that are patterns; use `realmlm finetune`")
    enough = FEWEST * SHARE_HELD_OUT
    if len(asked) < enough:
        few = f"{len(asked)} questions are too few to learn from some and measure on others"
        raise NotEnough(f"{few}; {enough} are needed")
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
            f"({enough} would do). Use the model as it is; with more documents, or with {enough} or more "
            "questions of your own (--questions), it can adapt"
        )
    return make_clozes(corpus, count=count, max_query=64, seed=seed, recurring=True, each=each)


def _check_some_left(corpus: Corpus, held_out: Path) -> None:
    """Is there something to learn from? Said before anything is measured."""
    if not len(Spans.open(corpus).recurring(corpus).without(held_out_passages(corpus, held_out))):
        raise NotEnough(
            "nothing is left to learn from once the held-out passages and their copies are left out: these "
            "documents repeat the same sentences. Use the model as it is; with other documents it can adapt"
        )


def _learn_to_find(settings: Adapt, corpus: Corpus, *, pair_seconds: float) -> Path:
    """Train the query projection on the documents themselves; gives the place of the model."""
    with Run.begin(settings.out / ADAPTING, stage="adapt", settings=settings) as run:
        device = prepare(Loop(seed=settings.seed, device=settings.device))
        realm = Realm.from_pretrained(settings.model, device=device)
        source = SentenceSource(
            corpus,
            "salient",
            max_query=realm.config.max_query,
            seed=settings.seed,
            held_out=held_out_passages(corpus, settings.out / "held-out.jsonl"),
            recurring=True,
        )
        learning = realm.free_query("projection")
        optim = Optim(batch=BATCH, lr=2e-4)
        index = index_of(realm, corpus).index
        objective = FoundElsewhere(realm, corpus, source, index, learning=learning, lr=optim.lr)
        seconds = BATCH * pair_seconds / 3  # a sentence is a third as long as sentence and passage together
        steps = _steps(settings.minutes, seconds=seconds, examples=len(source.sentences))
        loop = _rows(settings, steps)
        fit(realm, objective, run, optim=replace(optim, steps=steps), loop=loop, title="adapting")
        realm.save_pretrained(run.folder / "model", parents={"corpus": corpus.fingerprint})
        return run.folder / "model"


def _learn_questions(settings: Adapt, corpus: Corpus, *, pair_seconds: float) -> Path:
    """Fine-tune on the questions that are not held out; gives the place of the model."""
    questions = settings.out / "questions.jsonl"
    seconds = 3 * BATCH * READ * pair_seconds  # going backwards takes twice as long as forwards
    steps = _steps(settings.minutes, seconds=seconds, examples=len(read_questions(questions)))
    out = settings.out / ADAPTING
    finetune(
        Finetune(
            model=settings.model,
            corpus=corpus.folder,
            questions=(questions,),
            out=out,
            read=min(READ, len(corpus)),
            read_gold=True,
            candidates=min(CANDIDATES, len(corpus)),
            query="projection",
            closed_book=0.02,
            optim=JointOptim(steps=steps, batch=BATCH, lr=3e-5, retriever_lr=1e-4),
            loop=_rows(settings, steps),
        )
    )
    return out / "model"


def _steps(minutes: float, *, seconds: float, examples: int) -> int:
    """As many as the minutes allow, but no more than a few rounds over the examples."""
    steps = int(np.clip(minutes * 60 / seconds, FEWEST, max(FEWEST, EPOCHS * examples // BATCH)))
    enough = "; more minutes would only repeat them" if steps < minutes * 60 // seconds else ""
    about = max(1, round(steps * seconds / 60))
    say(f"{steps} steps of {BATCH} examples, out of {examples:,}: about {about} min of training{enough}")
    return steps


def _rows(settings: Adapt, steps: int) -> Loop:
    """Twenty rows of metrics in all, and no checkpoint before the end."""
    return Loop(
        seed=settings.seed, device=settings.device, log_every=max(1, steps // 20), checkpoint_every=steps
    )


@torch.inference_mode()
def _measured(
    model: Path, corpus: Corpus, questions: list[Question], device: str
) -> tuple[list[Outcome], float]:
    """What comes of each, and the seconds that answering took."""
    realm = Realm.from_pretrained(model, device=pick_device(device))
    retriever = LearnedRetriever.settled(realm, index_of(realm, corpus).index, hybrid_of(realm, corpus))
    begun = time.monotonic()
    answerer = Answerer(realm, corpus, retriever)
    outcomes = list(measure(answerer, questions, read=min(READ, len(corpus)), recall="dpr"))
    return outcomes, time.monotonic() - begun


def _compare(before: list[Outcome], after: list[Outcome], *, labelled: bool) -> Verdict:
    """By the questions answered, or by the rank of the first passage with the hidden words; sentences of one
    passage count as one."""

    def values(outcomes: list[Outcome]) -> list[float]:
        if labelled:
            return [float(outcome.correct) for outcome in outcomes]
        ranks: defaultdict[int | None, list[float]] = defaultdict(list)
        for outcome in outcomes:
            found = outcome.found
            ranks[outcome.question.source].append(1 / (found.index(True) + 1) if True in found else 0.0)
        return [float(np.mean(of_passage)) for of_passage in ranks.values()]

    low, high = paired_interval(values(after), values(before))
    first, second = (
        summarise(outcomes, retriever="learned", read=READ, recall="dpr") for outcomes in (before, after)
    )
    ranked = "mean reciprocal rank of the first passage with the hidden words"
    gained = f"gain in {'share answered exactly' if labelled else ranked}"
    return Verdict(first, second, gained, float(np.mean(values(after)) - np.mean(values(before))), low, high)
