"""The stages of training: warm-up, joint pre-training, fine-tuning, for Python and the command line alike.

Each takes its settings whole, has its run in the folder `settings.out`, goes on with it if it was cut off,
and gives the trained model, which also stands in the run's `model/`.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from realmlm.corpus.masking import Masking
from realmlm.corpus.questions import read_questions, spread
from realmlm.corpus.store import Corpus
from realmlm.errors import BadInput, Mismatch
from realmlm.index.duplicates import SameWords, check_others, share_cut_otherwise
from realmlm.index.exact import Index
from realmlm.log import say
from realmlm.model.realm import Realm
from realmlm.reading.retrieve import check_enough, check_readable, index_of
from realmlm.settings import (
    Finetune,
    Loop,
    Optim,
    Pretrain,
    TrainObjective,
    TrainTowers,
    Warmup,
    filled,
    record,
)
from realmlm.storage.artefacts import MANIFEST
from realmlm.train.callbacks import Callback
from realmlm.train.data import ClozePairs, ReadingPairs, SentenceSource, epoch_positions
from realmlm.train.gold import Gold, locate_answers
from realmlm.train.guard import Guard
from realmlm.train.hits import MOST_KEPT, Candidates, find_rivals, found_for, settled_matches, word_matches
from realmlm.train.hold_out import held_out_passages
from realmlm.train.live import LiveIndex
from realmlm.train.loop import fit, prepare
from realmlm.train.objective import Objective
from realmlm.train.objectives.contrast import PassageContrast
from realmlm.train.objectives.ict import InverseCloze
from realmlm.train.objectives.joint import JointPretraining
from realmlm.train.objectives.masked import MaskedReading
from realmlm.train.objectives.questions import QuestionAnswering
from realmlm.train.pairs import QuestionPairs, SpanPairs
from realmlm.train.run import Run, read_run
from realmlm.train.teaching import Teacher

PROBE_LIMIT = 500  # sentences of a probe
GUARD_LIMIT = 2000  # questions of a guard
# share of sentences above which a text is of the corpus's own documents; below it is what documents repeat
CUT_OTHERWISE = 0.1
PASSES = 10  # over the questions, where no number of steps is given
MOST_STEPS = 1000  # there
_PLAIN = (bool, int, float, str, tuple, type(None))  # what is the same in another process
GOOD_PART = 4  # of the questions: one in so many

AnyStage = TypeVar("AnyStage", Warmup, Pretrain, TrainTowers, Finetune)
OnQuestions = TypeVar("OnQuestions", TrainTowers, Finetune)


def pretrain(
    settings: Pretrain,
    *,
    model: Realm | None = None,
    corpus: Corpus | None = None,
    objective: Callable[..., JointPretraining] = JointPretraining,
    masking: Masking | None = None,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
) -> Realm:
    """Train retriever and reader together on text alone.

    `model` and `corpus` are taken in place of the ones that the settings name; the model itself is trained.
    `objective` and, in place of `settings.masking`, `masking` may be one's own (docs/own.md): the run then
    has a stage of its own name. With `resume`, a run that was cut off may go on with other settings.
    """
    settings = _with_corpus(settings, corpus)
    own_names = [_name(objective)] if objective is not JointPretraining else []
    own_names += _masking(masking)
    with _begin(settings, "pretrain", own_names, model, resume=resume) as run:
        run.pin_model(model)
        if run.finished:
            return _finished(run)
        device = prepare(settings.loop, run.ranks)
        scheme = masking or settings.masking
        marked = masking.needs_spans if masking else settings.masking == "salient"
        corpus = run.open_corpus(
            _named(settings) if corpus is None else corpus, spans=marked and settings.text is None
        )
        text = corpus if settings.text is None else run.open_corpus(settings.text, spans=marked)
        realm = _to_train(settings.model, model, device, corpus, text)
        realm.config = replace(realm.config, null_document=settings.null_document)
        if settings.scale_lr:
            realm.learn_scale()
        own = None if settings.own_passage else _own_places(corpus, text)
        check_others(corpus, own, k=settings.k, others=settings.k - settings.null_document)
        source = SentenceSource(
            text,
            scheme,
            max_query=realm.config.max_query,
            seed=settings.loop.seed,
            held_out=_held_out(run, text, settings.hold_out),
            recurring=settings.recurring,
            glimpses=settings.glimpses,
        )
        questions = read_questions(settings.probe) if settings.probe else []
        probe = [questions[place] for place in spread(len(questions), PROBE_LIMIT)] if questions else []
        for file in settings.guard:
            run.pin_file(file)
        asked = [question for file in settings.guard for question in read_questions(file)]
        by_own = settings.search_with == "index"
        with closing(
            LiveIndex(run, realm, corpus, refresh=settings.refresh, loop=settings.loop, asked_by_own=by_own)
        ) as live:
            taught = objective(settings, realm, corpus, source, live, own=own, probe=probe)
            if asked:
                taught.guard = Guard(
                    realm, corpus, [asked[place] for place in spread(len(asked), GUARD_LIMIT)]
                )
            fit(
                realm,
                taught,
                run,
                optim=settings.optim,
                loop=settings.loop,
                title="pre-training",
                callbacks=callbacks,
            )
            return _save(run, realm, corpus, callbacks)


def finetune(
    settings: Finetune,
    *,
    model: Realm | None = None,
    corpus: Corpus | None = None,
    objective: Callable[..., QuestionAnswering] = QuestionAnswering,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
) -> Realm:
    """Train a model to answer questions from the passages it retrieves; arguments as for `pretrain`."""
    settings = with_steps(_with_corpus(settings, corpus))
    own_names = [_name(objective)] if objective is not QuestionAnswering else []
    with _begin(settings, "finetune", own_names, model, resume=resume) as run:
        run.pin_model(model)
        if run.finished:
            return _finished(run)
        device = prepare(settings.loop, run.ranks)
        corpus = run.open_corpus(_named(settings) if corpus is None else corpus)
        for file in settings.questions:
            run.pin_file(file)
        if settings.teacher is not None:
            run.pin_file(settings.teacher / MANIFEST)
        realm = _to_train(settings.model, model, device, corpus)
        check_enough(corpus, settings.read)
        _set_reading(settings, realm)
        if settings.scale_lr:
            realm.learn_scale()
        learning = _what_learns(settings, realm, run)
        weight = realm.config.hybrid if settings.hybrid is None else settings.hybrid
        realm.config = replace(realm.config, hybrid=weight)
        asked = [question for file in settings.questions for question in read_questions(file)]
        titles = realm.config.title_answers
        gold = locate_answers(corpus, asked, candidates=settings.candidates, titles=titles)
        teacher = None
        if settings.teacher is not None:
            teacher = Teacher.of(settings.teacher, realm, gold.corpus, compiled=settings.loop.compile)
        numbers = _looked_up(settings, gold)
        given, index = _to_search(settings, realm, corpus, gold, numbers)
        rivals = None
        if settings.rivals:
            learns = settings.scale_lr > 0
            rivals = find_rivals(
                realm.eval(), corpus, gold, numbers, count=settings.rivals, scale_learns=learns
            )
        loop = replace(settings.loop, workers=0)  # what is drawn are numbers
        with closing(
            LiveIndex(run, realm, corpus, refresh=settings.refresh, loop=loop, frozen=index)
        ) as live:
            more = {} if rivals is None else {"rivals": rivals}
            taught = objective(settings, realm, corpus, live, gold, learning=learning, given=given, **more)
            taught.teacher = teacher
            fit(realm, taught, run, optim=settings.optim, loop=loop, title="fine-tuning", callbacks=callbacks)
            return _save(run, realm, corpus, callbacks)


def train_towers(
    settings: TrainTowers,
    *,
    model: Realm | None = None,
    corpus: Corpus | None = None,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
) -> Realm:
    """Train the towers from questions and the passages that answer them; arguments as for `pretrain`."""
    settings = with_steps(_with_corpus(settings, corpus))
    with _begin(settings, "towers", [], model, resume=resume) as run:
        run.pin_model(model)
        if run.finished:
            return _finished(run)
        device = prepare(settings.loop, run.ranks)
        corpus = run.open_corpus(_named(settings) if corpus is None else corpus)
        for file in settings.questions:
            run.pin_file(file)
        realm = _to_train(settings.model, model, device, corpus).eval()
        asked = [question for file in settings.questions for question in read_questions(file)]
        gold = locate_answers(corpus, asked, candidates=settings.candidates)
        hits_QC = found_for(settings.retriever, realm, corpus, gold, candidates=settings.candidates)
        pairs = QuestionPairs(gold, hits_QC, negatives=settings.negatives, seed=settings.loop.seed)
        if settings.scale_lr:
            realm.learn_scale()
        told = PassageContrast(
            realm,
            gold.corpus,
            pairs,
            optim=settings.optim,
            scale_lr=settings.scale_lr,
            bf16=settings.loop.bf16,
        )
        fit(realm, told, run, optim=settings.optim, loop=settings.loop, title="towers", callbacks=callbacks)
        return _save(run, realm, corpus, callbacks)


def warmup(
    settings: Warmup,
    *,
    model: Realm | None = None,
    corpus: Corpus | None = None,
    masking: Masking | None = None,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
) -> Realm:
    """Prepare a model for joint training; arguments as for `pretrain`.

    The reader learns to read passages by masked LM, then the retriever to find them by the inverse cloze
    task or by words that recur, each in a run of its own in `settings.out`.
    """
    settings = _with_corpus(settings, corpus)
    own_names = _masking(masking)
    if resume:
        _check_parts(settings)
    with _begin(settings, "warmup", own_names, model, resume=resume) as whole:
        whole.pin_model(model)
        if whole.finished:
            return _finished(whole)
        reader_done = (whole.folder / "reader" / "model").exists()
        marked = masking.needs_spans if masking else settings.masking == "salient"
        masks_spans = marked and settings.reader.steps > 0 and not reader_done
        masks_spans |= settings.retriever_objective == "recurring" and settings.retriever.steps > 0
        opened = whole.open_corpus(_named(settings) if corpus is None else corpus, spans=masks_spans)

        @cache
        def held_out() -> list[int]:
            return _held_out(whole, opened, settings.hold_out)

        def sentences(realm: Realm, scheme: str | Masking) -> SentenceSource:
            return SentenceSource(
                opened,
                scheme,
                max_query=realm.config.max_query,
                seed=settings.loop.seed,
                held_out=held_out(),
            )

        def reading(realm: Realm) -> MaskedReading:
            source = sentences(realm, masking or settings.masking)
            pairs = ReadingPairs(source, pairing=settings.pairing, seed=settings.loop.seed)
            return MaskedReading(settings, realm, opened, pairs)

        def finding(realm: Realm) -> Objective:
            if settings.towers_as_reader:
                realm.begin_towers_as_reader()
            if settings.scale_lr:
                realm.learn_scale()
            if settings.retriever_objective == "recurring":
                source = sentences(realm, "salient")
                spans = SpanPairs(
                    source,
                    seed=settings.loop.seed,
                    held_out=held_out(),
                    glimpses=settings.glimpses,
                    titled=settings.titled,
                )
                return PassageContrast(
                    realm,
                    opened,
                    spans,
                    optim=settings.retriever,
                    scale_lr=settings.scale_lr,
                    bf16=settings.loop.bf16,
                )
            pairs = ClozePairs(
                opened, remove=settings.remove_sentence, seed=settings.loop.seed, held_out=held_out()
            )
            return InverseCloze(settings, realm, pairs)

        realm = _to_train(settings.model, model, torch.device("cpu"), opened)
        if settings.towers_as_reader:  # said before the reader is trained
            realm.config.check_one_encoder()
        for name, make, optim in (
            ("reader", reading, settings.reader),
            ("retriever", finding, settings.retriever),
        ):
            if optim.steps:
                realm = _part(whole, name, make, realm, opened, optim, settings.loop, callbacks)
        return _save(whole, realm, opened, callbacks)


def _part(
    whole: Run,
    name: str,
    make: Callable[[Realm], Objective],
    realm: Realm,
    corpus: Corpus,
    optim: Optim,
    loop: Loop,
    callbacks: Sequence[Callback],
) -> Realm:
    """One of the two warm-ups, from a model on; gives the model it ends with."""
    with whole.part(name, stage=f"warmup-{name}") as run:
        if run.finished:
            return Realm.from_pretrained(run.folder / "model")
        realm = realm.to(prepare(loop, run.ranks))
        fit(realm, make(realm), run, optim=optim, loop=loop, title=f"warm-up, {name}", callbacks=callbacks)
        return _save(run, realm, corpus, ())


def train_objective(
    settings: TrainObjective,
    objective: Objective,
    *,
    model: Realm,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
) -> Realm:
    """Train any objective, in a run of its own that can be cut off and called again like every other
    stage."""
    stage = type(objective).__qualname__
    with Run.begin(settings.out, stage=stage, settings=settings, resume=resume) as run:
        if run.finished:
            return _finished(run)
        model.to(prepare(settings.loop, run.ranks))
        fit(model, objective, run, optim=settings.optim, loop=settings.loop, title=stage, callbacks=callbacks)
        return _save(run, model, None, callbacks)


# --- what the stages share ----------------------------------------------------------------------------------


def _with_corpus(settings: AnyStage, corpus: Corpus | None) -> AnyStage:
    """The settings with the folder of the corpus that is given."""
    if corpus is None or settings.corpus == corpus.folder.absolute():
        return settings
    if settings.corpus is not None:
        raise Mismatch(f"the settings name {settings.corpus}, but the corpus given is {corpus.folder}")
    return replace(settings, corpus=corpus.folder)


def _named(settings: Warmup | Pretrain | TrainTowers | Finetune) -> Path:
    if settings.corpus is None:
        raise BadInput("say which corpus: --corpus CORPUS; make one: realmlm corpus notes/ --out CORPUS")
    return settings.corpus


def _begin(settings: AnyStage, stage: str, own_names: list[str], model: Realm | None, *, resume: bool) -> Run:
    """The run of a stage. What only Python can give, a class or a model, is part of its stage's name: the
    command line sees that it cannot continue such a run."""
    _named(settings)
    names = [stage, *own_names, *(["a given model"] if model is not None else [])]
    return Run.begin(settings.out, stage=" with ".join(names), settings=settings, resume=resume)


def _name(thing: Any) -> str:
    """What a class, a partial of one or an object is called, with what it was given: a run with something
    else is another."""
    given: dict[str, Any] = {}
    if isinstance(thing, partial):
        given = {str(place): value for place, value in enumerate(thing.args)} | thing.keywords
        thing = thing.func
    elif not isinstance(thing, type):
        given = getattr(thing, "__dict__", {})
        thing = type(thing)
    if not isinstance(name := getattr(thing, "__qualname__", None), str):
        raise BadInput(f"an objective is a class, or a partial of one, not {thing!r}")
    shown = (f"{name}={value!r}" for name, value in given.items() if isinstance(value, _PLAIN))
    return f"{name}({', '.join(shown)})" if given else name


def _masking(masking: Masking | None) -> list[str]:
    """The name of someone's own masking, if it is one."""
    if masking is None:
        return []
    if isinstance(masking, type) or not all(hasattr(masking, name) for name in ("needs_spans", "choose")):
        raise BadInput(
            f"masking is an object with `needs_spans` and `choose` (docs/own.md), not {masking!r}; one of "
            "realmlm's own is named in the settings"
        )
    return [_name(masking)]


def _finished(run: Run) -> Realm:
    say(f"{run.folder} is already finished")
    return Realm.from_pretrained(run.folder / "model")


def _to_train(place: Path, model: Realm | None, device: torch.device, *corpora: Corpus) -> Realm:
    """The model to begin with, on its device, if it can read the corpora."""
    realm = Realm.from_pretrained(place) if model is None else model
    for corpus in corpora:
        check_readable(realm, corpus, name="the given model" if model is not None else str(place))
    return realm.to(device)


def _save(run: Run, realm: Realm, corpus: Corpus | None, callbacks: Sequence[Callback]) -> Realm:
    realm.eval()
    if run.ranks.first:
        for callback in callbacks:
            callback.on_end(realm)
        parents = None if corpus is None else {"corpus": corpus.fingerprint}
        realm.save_pretrained(run.folder / "model", parents=parents)
    run.ranks.wait()
    return realm


def _held_out(run: Run, corpus: Corpus, hold_out: Path | None) -> list[int]:
    """The passages that must not be trained on; `hold_out` may not change while the run goes on."""
    found = held_out_passages(corpus, hold_out)
    run.pin_file(hold_out)
    return found


def _own_places(corpus: Corpus, text: Corpus) -> SameWords:
    """What is never retrieved for the sentences of a passage of the text."""
    own = SameWords(corpus, text)
    if text is not corpus and (share := share_cut_otherwise(corpus, text, own)) >= CUT_OTHERWISE:
        say(
            f"{share:.0%} of the passages of {text.folder} that are not in {corpus.folder} begin with a "
            "sentence that is: their sentences can retrieve themselves, which teaches nothing; cut both from "
            "the documents with the same --max-wordpieces"
        )
    return own


_PARTS = {
    "reader": ("model", "masking", "pairing", "pointing", "reader"),
    "retriever": (
        "towers_as_reader",
        "retriever_objective",
        "remove_sentence",
        "scale_lr",
        "retriever",
    ),
}
"""The settings of a warm-up that are those of one of its parts."""


def _check_parts(settings: Warmup) -> None:
    """No setting of a finished part of a warm-up may change: its record would not be true."""
    folder = settings.out
    before = filled(Warmup, read_run(folder)["config"])
    now = record(settings)
    for part, names in _PARTS.items():
        changed = [name for name in names if before[name] != now[name]]
        over = (folder / part / "model").exists() or (part == "reader" and (folder / "retriever").exists())
        if changed and over and not (folder / "model").exists():
            raise BadInput(
                f"the {part}'s part of {folder} is finished, so its settings ({', '.join(changed)}) can no "
                "longer change; resume without them, or start another run with another --out"
            )


def with_steps(settings: OnQuestions) -> OnQuestions:
    """Where no number of steps is given: some passes over the questions, but no more than large sets need."""
    if settings.optim.steps:
        return settings
    batch = settings.optim.batch
    asked = sum(len(read_questions(file)) for file in settings.questions)
    steps = min(MOST_STEPS, math.ceil(PASSES * asked / batch))
    passes = f"{steps * batch / asked:.1f} passes over {asked:,} questions"
    say(f"{steps:,} steps of {batch}: {passes}; --optim.steps changes this")
    return replace(settings, optim=replace(settings.optim, steps=steps))


def _set_reading(settings: Finetune, realm: Realm) -> None:
    """Let the model read questions as the settings say."""
    if settings.passage_logit:
        realm.learn_passage_logit()
    if settings.title_answers:
        realm.allow_title_answers()
    if settings.max_answer is not None:
        realm.allow_answers(settings.max_answer)
    reading = settings.reading or realm.config.reading
    realm.config = replace(realm.config, reading=reading, trained_on_questions=True)


def _what_learns(settings: Finetune, realm: Realm, run: Run) -> list[nn.Parameter]:
    """The retriever's weights that learn: the query side's if the index stays, none for the reader alone."""
    frozen = settings.refresh.every_steps == 0
    alone = settings.retriever == "bm25" or settings.optim.retriever_lr == 0
    saved = run.newest() if frozen and alone else None
    # an older run, which gave it one all the same
    untied = saved is not None and saved.weights.keys() != realm.own_state().keys()
    own_query = frozen and (untied or not alone)
    learning = realm.free_query(settings.query) if own_query else realm.retriever_parameters()
    for parameter in realm.retriever_parameters() if alone else []:
        parameter.requires_grad_(False)
    if settings.scale_lr and realm.query.log_scale is not None:
        realm.query.log_scale.requires_grad_(True)
    return learning


def _looked_up(settings: Finetune, gold: Gold) -> np.ndarray:
    """The numbers of the questions that passages are found for: those that will be asked, or all where they
    are a good part of them, for then runs with other seeds share what is found."""
    count = settings.optim.steps * settings.optim.batch
    drawn = np.unique(epoch_positions(len(gold), seed=settings.loop.seed, first=0, count=count))
    many = len(drawn) * GOOD_PART >= len(gold) and len(gold) * settings.candidates <= MOST_KEPT
    return np.arange(len(gold)) if many else drawn


def _to_search(
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
    found = settled_matches(
        realm.eval(), index, corpus, gold, numbers, candidates=most, scale_learns=settings.scale_lr > 0
    )
    return found, None  # nothing is searched again


def _always_finds_the_same(settings: Finetune, realm: Realm) -> bool:
    """Does a question find the same passages in a fixed index whenever it is asked, and is f(x,z) the same up
    to its scale? If the scale learns, f + λ · BM25 finds other ones; and where the passages of a batch are
    told apart, their vectors are needed."""
    scale_matters = realm.config.hybrid > 0 and settings.scale_lr > 0
    return settings.optim.retriever_lr == 0 and settings.in_batch == 0 and not scale_matters
