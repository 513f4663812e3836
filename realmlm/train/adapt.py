"""Adapting a model to someone's own documents: measured before and after, saved only if it got better.

Without labels the query projection learns to find where else in the documents the hidden words of a sentence
stand; with questions of their own it learns these, and so does the reader. Some sentences, or some of the
questions, are held out to measure on. Passages and index stay as they are: minutes on a CPU are enough, and
it is said before how they will be spent (`realmlm.train.budget`).
"""

import json
import math
import os
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from realmlm.corpus.build import build_corpus
from realmlm.corpus.documents import DOCUMENT_WORDPIECES, open_documents
from realmlm.corpus.questions import Question, read_questions, write_questions
from realmlm.corpus.spans import Spans, mark_spans, rule_tagger
from realmlm.corpus.store import Corpus
from realmlm.defaults import ADAPTING
from realmlm.device import pick_device
from realmlm.errors import BadInput, NotEnough, RealmError
from realmlm.evaluation.clozes import make_clozes
from realmlm.evaluation.measure import measure
from realmlm.evaluation.scores import Outcome
from realmlm.index.keep import count_lacking
from realmlm.log import Clock, counted, duration, say
from realmlm.model.realm import Realm
from realmlm.model.snapshot import DocumentEncoder
from realmlm.reading.answer import Answerer
from realmlm.reading.retrieve import LearnedRetriever, hybrid_of, index_of, open_to_answer
from realmlm.settings import Adapt, BuildCorpus, Finetune, JointOptim, Loop, Optim, together
from realmlm.sources.files import apart
from realmlm.storage.artefacts import discard, refuse_existing, write_text
from realmlm.train.budget import (
    FEWEST_STEPS,
    MEASURING,
    READ,
    SLOWER,
    TRIED,
    USED,
    Plan,
    UntilTime,
    make_plan,
    try_out,
)
from realmlm.train.data import SentenceSource
from realmlm.train.hold_out import held_out_passages
from realmlm.train.loop import fit, prepare
from realmlm.train.objectives.adapt import CANDIDATES, FoundElsewhere
from realmlm.train.run import Run
from realmlm.train.stages import finetune
from realmlm.train.verdict import Verdict, compare

T = TypeVar("T")

MOST_HELD_OUT = 150  # masked sentences
MOST_OF_A_PASSAGE = 4  # of them: what is held out is whole passages, and few passages tell little
SHARE_HELD_OUT = 5  # one of so many passages, or questions
FEWEST = 20  # held out
EPOCHS = 6  # times that every example is seen, at most


def adapt(settings: Adapt) -> Verdict:
    """Adapt to documents in about so many minutes; the model stands in `out/model` only if it got better."""
    begun = time.monotonic()
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise BadInput("adapting uses one process: leave out torchrun")
    asked = _own_questions(settings.questions) if settings.questions else []
    try:
        settings.out.mkdir(parents=True)  # ours from here on, and what is removed if this fails
    except FileExistsError:
        refuse_existing(settings.out)
        raise
    try:
        return _adapt(settings, asked, begun)
    except (RealmError, KeyboardInterrupt):
        # nothing half done: the same command can be given again
        shutil.rmtree(settings.out, ignore_errors=True)
        raise


def _adapt(settings: Adapt, asked: list[Question], begun: float) -> Verdict:
    out = settings.out
    realm = open_to_answer(settings.model, pick_device(settings.device))
    longest = min(DOCUMENT_WORDPIECES, realm.config.max_passage)  # as `ask --docs` cuts them
    docs = tuple(apart(together(settings.docs)))
    how = BuildCorpus(
        sources=docs, out=out / "corpus", tokenizer=str(settings.model), max_wordpieces=longest, skip_bad=True
    )
    corpus = build_corpus(how)
    labelled = bool(asked)
    if labelled:
        order = np.random.default_rng(settings.seed).permutation(len(asked)).tolist()
        held_out = [asked[number] for number in order[: len(asked) // SHARE_HELD_OUT]]
        write_questions(out / "questions.jsonl", [asked[number] for number in order[len(held_out) :]])
        examples = len(asked) - len(held_out)
    else:
        held_out = _masked_facts(corpus, settings.seed)
        examples = _left_to_learn(corpus, held_out, out)
    answers = not labelled and realm.config.trained_on_questions
    embed, lacking = _embedding(realm, corpus, docs, max_wordpieces=longest)
    speeds = try_out(realm, corpus, _also_asked(held_out[:TRIED], answers=answers), labelled=labelled)
    make_own = partial(
        make_plan,
        speeds,
        minutes=settings.minutes,
        measured=(min(FEWEST, len(held_out)), len(held_out)),
        learned=EPOCHS * examples,
        what="held-out question" if labelled else "held-out sentence",
    )
    say(make_own(spent_s=time.monotonic() - begun, lacking=lacking).table())
    embed()
    del realm
    plan = make_own(spent_s=time.monotonic() - begun, lacking=0)  # as long as that really took
    held_out = held_out[: plan.measured]
    write_questions(out / "held-out.jsonl", held_out)
    say(f"{counted(len(held_out), plan.what)} are measured before and after training")
    end = begun + USED * 60 * settings.minutes
    asked_of_each = _also_asked(held_out, answers=answers)
    measuring = time.monotonic()
    until = measuring + SLOWER * MEASURING / 2 * (end - measuring)
    before = _measured(settings.model, corpus, asked_of_each, settings, until=until)
    measuring_s = time.monotonic() - measuring
    learn = _learn_questions if labelled else _learn_to_find
    made = learn(settings, corpus, plan, until=end - measuring_s)
    after = _measured(made, corpus, asked_of_each[: len(before) // len(asked_of_each[0])], settings)
    verdict = compare(before, after, labelled=labelled)
    write_text(out / "verdict.json", json.dumps(verdict.as_json(), ensure_ascii=False))
    if verdict.kept:
        made.rename(out / "model")
    else:
        discard(made)
    say(f"it took {duration(time.monotonic() - begun)} in all")
    return verdict


def _embedding(
    realm: Realm, corpus: Corpus, docs: tuple[Path, ...], *, max_wordpieces: int
) -> tuple[Callable[[], None], int]:
    """What gives all passages their vectors, and how many have none yet.

    They are taken from the cache of `ask --docs` and, where they are lacking, embedded into it: asking does
    not embed them again. Where nothing can be cached, they are embedded beside the corpus alone.
    """
    said = set[str]()  # what the first opening has said the second does not repeat

    def index_cached(index: Callable[[Corpus], T]) -> T:
        with ExitStack() as held:
            cached = open_documents(
                docs, realm.wordpieces, max_wordpieces=max_wordpieces, held=held, said=said
            )
            return index(cached)

    def look(cached: Corpus) -> tuple[Path, int]:
        others = cached.folder.parent
        return others, count_lacking(cached, DocumentEncoder.of(realm), others=others)

    others: Path | None = None
    lacking = len(corpus)
    with suppress(RealmError, OSError):
        others, lacking = index_cached(look)

    def embed() -> None:
        if others is not None:
            index_cached(lambda cached: index_of(realm, cached, others=others))
        index_of(realm, corpus, others=others)

    return embed, lacking


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


def _left_to_learn(corpus: Corpus, held_out: list[Question], out: Path) -> int:
    """How many sentences there are to learn from. Where there is none, that is said before anything is
    measured."""
    write_questions(out / "held-out.jsonl", held_out)
    gone = held_out_passages(corpus, out / "held-out.jsonl")
    left = len(Spans.open(corpus).recurring(corpus).without(gone))
    if not left:
        raise NotEnough(
            "nothing is left to learn from once the held-out passages and their copies are left out: these "
            "documents repeat the same sentences. Use the model as it is; with other documents it can adapt"
        )
    return left


def _also_asked(held_out: list[Question], *, answers: bool) -> list[list[Question]]:
    """What each held-out example is measured on: itself and, with `answers`, a masked sentence also as a
    question. "The mill was built by [MASK]." is asked as "The mill was built by what?"."""
    if not answers:
        return [[example] for example in held_out]
    return [
        [cloze, replace(cloze, text=cloze.text.replace("[MASK]", "what").rstrip(" .:;!?") + "?")]
        for cloze in held_out
    ]


def _learn_to_find(settings: Adapt, corpus: Corpus, plan: Plan, *, until: float) -> Path:
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
        optim = Optim(batch=plan.batch, lr=2e-4)
        index = index_of(realm, corpus).index
        objective = FoundElsewhere(realm, corpus, source, index, learning=learning, lr=optim.lr)
        seconds = _step_seconds(objective, plan.batch)
        steps = _steps(seconds, plan, until=until, examples=len(source.sentences))
        fit(
            realm,
            objective,
            run,
            optim=replace(optim, steps=steps),
            loop=_rows(settings, steps),
            title="adapting",
            callbacks=[UntilTime(until)],
        )
        realm.save_pretrained(run.folder / "model", parents={"corpus": corpus.fingerprint})
        return run.folder / "model"


def _learn_questions(settings: Adapt, corpus: Corpus, plan: Plan, *, until: float) -> Path:
    """Fine-tune on the questions that are not held out; gives the place of the model."""
    questions = settings.out / "questions.jsonl"
    seconds = plan.training_s / plan.steps
    steps = _steps(seconds, plan, until=until, examples=len(read_questions(questions)))
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
            optim=JointOptim(steps=steps, batch=plan.batch, lr=3e-5, retriever_lr=1e-4),
            loop=_rows(settings, steps),
        ),
        callbacks=[UntilTime(until)],
    )
    return out / "model"


def _step_seconds(objective: FoundElsewhere, batch: int) -> float:
    """What a step takes, by the second of two; nothing is learned from them."""
    for _ in range(2):
        begun = time.monotonic()
        loss, _ = objective.loss(objective.draw(0, batch), 0, Clock())
        loss.backward()
        seconds = time.monotonic() - begun
    objective.model.zero_grad(set_to_none=True)
    return max(1e-6, seconds)


def _steps(seconds: float, plan: Plan, *, until: float, examples: int) -> int:
    """As many as there is time for, but no more than a few rounds over the examples."""
    time_for = int((until - time.monotonic()) / seconds)
    steps = int(np.clip(time_for, FEWEST_STEPS, max(FEWEST_STEPS, EPOCHS * examples // plan.batch)))
    enough = "; more would only repeat them" if steps < time_for else ""
    say(f"{steps} steps of {plan.batch} examples, out of {examples:,}: {duration(steps * seconds)}{enough}")
    return steps


def _rows(settings: Adapt, steps: int) -> Loop:
    """Twenty rows of metrics in all, and no checkpoint before the end."""
    return Loop(
        seed=settings.seed, device=settings.device, log_every=max(1, steps // 20), checkpoint_every=steps
    )


@torch.inference_mode()
def _measured(
    model: Path, corpus: Corpus, examples: list[list[Question]], settings: Adapt, *, until: float = math.inf
) -> list[Outcome]:
    """What comes of each, or, when the time is over, of the first ones: of whole examples, and no fewer than
    make sense."""
    realm = open_to_answer(model, pick_device(settings.device))
    retriever = LearnedRetriever.settled(realm, index_of(realm, corpus).index, hybrid_of(realm, corpus))
    answerer = Answerer(realm, corpus, retriever)
    each = len(examples[0])
    asked = [question for example in examples for question in example]
    outcomes: list[Outcome] = []
    for outcome in measure(answerer, asked, read=min(READ, len(corpus)), recall="dpr"):
        outcomes.append(outcome)
        whole = len(outcomes) % each == 0 and len(outcomes) >= FEWEST * each
        if whole and time.monotonic() > until:
            break
    return outcomes
