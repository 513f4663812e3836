"""What fine-tuning settles before its first step: how long, what learns, how to read, what is searched."""

import math
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from realmlm.corpus.questions import read_questions
from realmlm.corpus.store import Corpus
from realmlm.index.exact import Index
from realmlm.log import say
from realmlm.model.realm import Realm
from realmlm.reading.retrieve import index_of
from realmlm.settings import Finetune, TrainTowers
from realmlm.train.data import epoch_positions
from realmlm.train.gold import Gold
from realmlm.train.hits import MOST_KEPT, Candidates, matches_of_fixed_towers, word_matches
from realmlm.train.run import Run

# where no number of steps is given: passes over the questions, but no more steps than large sets need
DEFAULT_PASSES = 10
MOST_DEFAULT_STEPS = 1000
# where a run asks at least this share of the questions, passages are found for all of them
LOOK_UP_ALL_FROM = 0.25

OnQuestions = TypeVar("OnQuestions", TrainTowers, Finetune)


def with_steps(settings: OnQuestions) -> OnQuestions:
    """Where no number of steps is given: some passes over the questions, but no more than large sets need."""
    if settings.optim.steps:
        return settings
    batch = settings.optim.batch
    asked = sum(len(read_questions(file)) for file in settings.questions)
    steps = min(MOST_DEFAULT_STEPS, math.ceil(DEFAULT_PASSES * asked / batch))
    passes = f"{steps * batch / asked:.1f} passes over {asked:,} questions"
    say(f"{steps:,} steps of {batch}: {passes}; --optim.steps changes this")
    return replace(settings, optim=replace(settings.optim, steps=steps))


def set_reading(settings: Finetune, realm: Realm) -> None:
    """Let the model read questions as the settings say."""
    if settings.passage_logit:
        realm.learn_passage_logit()
    if settings.title_answers:
        realm.allow_title_answers()
    if settings.max_answer is not None:
        realm.allow_answers(settings.max_answer)
    reading = settings.reading or realm.config.reading
    realm.config = replace(realm.config, reading=reading, trained_on_questions=True)


def what_learns(settings: Finetune, realm: Realm, run: Run) -> list[nn.Parameter]:
    """The retriever's weights, ready to learn what the settings let learn: all of them where the index is
    refreshed; where it stays as it is, the query side's, which get a copy of their own; none where the reader
    learns alone."""
    frozen = settings.refresh.every_steps == 0
    alone = settings.retriever == "bm25" or settings.optim.retriever_lr == 0
    saved = run.newest() if frozen and alone else None
    # checkpoints of older versions have a query side of its own where the reader learns alone, too
    untied = saved is not None and saved.weights.keys() != realm.own_state().keys()
    own_query = frozen and (untied or not alone)
    learning = realm.free_query(settings.query) if own_query else realm.retriever_parameters()
    for parameter in realm.retriever_parameters() if alone else []:
        parameter.requires_grad_(False)
    if settings.scale_lr and realm.query.log_scale is not None:
        realm.query.log_scale.requires_grad_(True)
    return learning


def questions_to_look_up(settings: Finetune, gold: Gold) -> np.ndarray:
    """The numbers of the questions that passages are found for: those that will be asked, or all where they
    are a good part of them, for then runs with other seeds share what is found."""
    count = settings.optim.steps * settings.optim.batch
    drawn = np.unique(epoch_positions(len(gold), seed=settings.loop.seed, first=0, count=count))
    many = len(drawn) >= LOOK_UP_ALL_FROM * len(gold) and len(gold) * settings.candidates <= MOST_KEPT
    return np.arange(len(gold)) if many else drawn


def what_is_searched(
    settings: Finetune, realm: Realm, corpus: Corpus, gold: Gold, numbers: np.ndarray
) -> tuple[Candidates | None, Index | None]:
    """The candidates, if they can be found before training begins, or an index that stays as it is; neither
    where the index is refreshed."""
    most = min(settings.candidates, len(corpus))
    if settings.retriever == "bm25":
        return word_matches(corpus, gold, candidates=most, device=realm.device), None
    if settings.refresh.every_steps:
        return None, None
    # float16 is the usual: more is as good
    precise = torch.float32 if settings.refresh.dtype == "float32" else None
    index = index_of(realm, corpus, dtype=precise).index
    if not _always_finds_the_same(settings, realm) or len(numbers) * most > MOST_KEPT:
        return None, index
    found = matches_of_fixed_towers(
        realm.eval(), index, corpus, gold, numbers, candidates=most, scale_learns=settings.scale_lr > 0
    )
    return found, None  # nothing is searched again


def _always_finds_the_same(settings: Finetune, realm: Realm) -> bool:
    """Does a question find the same passages in a fixed index whenever it is asked, and is f(x,z) the same up
    to its scale? If the scale learns, f + λ · BM25 finds other ones; and where the passages of a batch are
    told apart, their vectors are needed."""
    scale_matters = realm.config.hybrid > 0 and settings.scale_lr > 0
    return settings.optim.retriever_lr == 0 and settings.in_batch == 0 and not scale_matters
