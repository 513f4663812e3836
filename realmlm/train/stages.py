"""The stages of training: warm-up, joint pre-training, fine-tuning, for Python and the command line alike.

Each takes its settings whole, has its run in the folder `settings.out`, goes on with it if it was cut off,
and gives the trained model, which also stands in the run's `model/`.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from realmlm.corpus.masking import Masking
from realmlm.corpus.questions import read_questions, spread
from realmlm.corpus.store import Corpus
from realmlm.index.duplicates import SameWords, check_others, share_cut_otherwise
from realmlm.log import say
from realmlm.model.precision import check_trainable
from realmlm.model.realm import Realm
from realmlm.reading.retrieve import check_enough, check_readable
from realmlm.settings import Finetune, Optim, Pretrain, TrainObjective, TrainTowers, Warmup
from realmlm.storage.artefacts import MANIFEST
from realmlm.train.begin import begun, check_parts, name_of, named_corpus, names_of_masking, with_corpus
from realmlm.train.callbacks import Callback
from realmlm.train.data import ClozePairs, ReadingPairs, SentenceSource
from realmlm.train.finetuning import (
    questions_to_look_up,
    set_reading,
    what_is_searched,
    what_learns,
    with_steps,
)
from realmlm.train.gold import locate_answers
from realmlm.train.guard import Guard
from realmlm.train.hits import find_rivals, found_for
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
from realmlm.train.run import Run
from realmlm.train.teaching import Teacher

PROBE_LIMIT = 500  # sentences of a probe
GUARD_LIMIT = 2000  # questions of a guard
# share of a text's passages that are cut otherwise than the corpus's, from which on the user is told: fewer
# are only what documents repeat
TOLD_CUT_OTHERWISE = 0.1


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
    settings = with_corpus(settings, corpus)
    own_names = [name_of(objective)] if objective is not JointPretraining else []
    own_names += names_of_masking(masking)
    with begun(settings, "pretrain", own_names, model, resume=resume) as run:
        if run.finished:
            return _finished(run)
        device = prepare(settings.loop, run.ranks)
        scheme = masking or settings.masking
        marked = masking.needs_spans if masking else settings.masking == "salient"
        corpus = run.open_corpus(
            named_corpus(settings) if corpus is None else corpus, spans=marked and settings.text is None
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
    settings = with_steps(with_corpus(settings, corpus))
    own_names = [name_of(objective)] if objective is not QuestionAnswering else []
    with begun(settings, "finetune", own_names, model, resume=resume) as run:
        if run.finished:
            return _finished(run)
        files = [*settings.questions, *([settings.teacher / MANIFEST] if settings.teacher else [])]
        corpus, realm = _opened(run, settings, files, model=model, corpus=corpus)
        check_enough(corpus, settings.read)
        set_reading(settings, realm)
        if settings.scale_lr:
            realm.learn_scale()
        learning = what_learns(settings, realm, run)
        weight = realm.config.hybrid if settings.hybrid is None else settings.hybrid
        realm.config = replace(realm.config, hybrid=weight)
        asked = [question for file in settings.questions for question in read_questions(file)]
        titles = realm.config.title_answers
        gold = locate_answers(corpus, asked, candidates=settings.candidates, titles=titles)
        teacher = None
        if settings.teacher is not None:
            teacher = Teacher.of(settings.teacher, realm, gold.corpus, compiled=settings.loop.compile)
        numbers = questions_to_look_up(settings, gold)
        given, index = what_is_searched(settings, realm, corpus, gold, numbers)
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
    settings = with_steps(with_corpus(settings, corpus))
    with begun(settings, "towers", [], model, resume=resume) as run:
        if run.finished:
            return _finished(run)
        corpus, realm = _opened(run, settings, settings.questions, model=model, corpus=corpus)
        realm.eval()
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
    settings = with_corpus(settings, corpus)
    own_names = names_of_masking(masking)
    if resume:
        check_parts(settings)
    with begun(settings, "warmup", own_names, model, resume=resume) as whole:
        if whole.finished:
            return _finished(whole)
        reader_done = (whole.folder / "reader" / "model").exists()
        marked = masking.needs_spans if masking else settings.masking == "salient"
        masks_spans = marked and settings.reader.steps > 0 and not reader_done
        masks_spans |= settings.retriever_objective == "recurring" and settings.retriever.steps > 0
        opened = whole.open_corpus(named_corpus(settings) if corpus is None else corpus, spans=masks_spans)
        realm = _to_train(settings.model, model, torch.device("cpu"), opened)
        if settings.towers_as_reader:  # said before the reader is trained
            realm.config.check_one_encoder()
        warmups = _WarmUps(settings, whole, opened, masking)
        if settings.reader.steps:
            realm = warmups.part("reader", warmups.reading, realm, settings.reader, callbacks)
        if settings.retriever.steps:
            realm = warmups.part("retriever", warmups.finding, realm, settings.retriever, callbacks)
        return _save(whole, realm, opened, callbacks)


@dataclass(frozen=True)
class _WarmUps:
    """The two parts of a warm-up: what each of them learns, and its run."""

    settings: Warmup
    whole: Run
    """The run that has the parts' runs in it."""
    corpus: Corpus
    masking: Masking | None

    @cached_property
    def held_out(self) -> list[int]:
        """The passages that must not be trained on."""
        return _held_out(self.whole, self.corpus, self.settings.hold_out)

    def sentences(self, realm: Realm, scheme: str | Masking) -> SentenceSource:
        """Masked sentences of the corpus."""
        return SentenceSource(
            self.corpus,
            scheme,
            max_query=realm.config.max_query,
            seed=self.settings.loop.seed,
            held_out=self.held_out,
        )

    def reading(self, realm: Realm) -> Objective:
        """The reader's: masked LM over passages."""
        source = self.sentences(realm, self.masking or self.settings.masking)
        pairs = ReadingPairs(source, pairing=self.settings.pairing, seed=self.settings.loop.seed)
        return MaskedReading(self.settings, realm, self.corpus, pairs)

    def finding(self, realm: Realm) -> Objective:
        """The retriever's: words that recur, or the inverse cloze task."""
        settings = self.settings
        if settings.towers_as_reader:
            realm.begin_towers_as_reader()
        if settings.scale_lr:
            realm.learn_scale()
        if settings.retriever_objective == "recurring":
            return self._recurring(realm)
        pairs = ClozePairs(
            self.corpus, remove=settings.remove_sentence, seed=settings.loop.seed, held_out=self.held_out
        )
        return InverseCloze(settings, realm, pairs)

    def _recurring(self, realm: Realm) -> Objective:
        settings = self.settings
        spans = SpanPairs(
            self.sentences(realm, "salient"),
            seed=settings.loop.seed,
            held_out=self.held_out,
            glimpses=settings.glimpses,
            titled=settings.titled,
        )
        return PassageContrast(
            realm,
            self.corpus,
            spans,
            optim=settings.retriever,
            scale_lr=settings.scale_lr,
            bf16=settings.loop.bf16,
        )

    def part(
        self,
        name: str,
        learned: Callable[[Realm], Objective],
        realm: Realm,
        optim: Optim,
        callbacks: Sequence[Callback],
    ) -> Realm:
        """Train one part, from a model on; gives the model it ends with."""
        loop = self.settings.loop
        with self.whole.part(name, stage=f"warmup-{name}") as run:
            if run.finished:
                return Realm.from_pretrained(run.folder / "model")
            realm = realm.to(prepare(loop, run.ranks))
            objective = learned(realm)
            title = f"warm-up, {name}"
            fit(realm, objective, run, optim=optim, loop=loop, title=title, callbacks=callbacks)
            return _save(run, realm, self.corpus, ())


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
        check_trainable(model)
        model.to(prepare(settings.loop, run.ranks))
        fit(model, objective, run, optim=settings.optim, loop=settings.loop, title=stage, callbacks=callbacks)
        return _save(run, model, None, callbacks)


# --- what the stages share ----------------------------------------------------------------------------------


def _opened(
    run: Run,
    settings: Finetune | TrainTowers,
    files: Sequence[Path],
    *,
    model: Realm | None,
    corpus: Corpus | None,
) -> tuple[Corpus, Realm]:
    """Corpus and model of a stage that learns from questions; `files` may not change while the run goes
    on."""
    device = prepare(settings.loop, run.ranks)
    opened = run.open_corpus(named_corpus(settings) if corpus is None else corpus)
    for file in files:
        run.pin_file(file)
    return opened, _to_train(settings.model, model, device, opened)


def _finished(run: Run) -> Realm:
    say(f"{run.folder} is already finished")
    return Realm.from_pretrained(run.folder / "model")


def _to_train(place: Path, model: Realm | None, device: torch.device, *corpora: Corpus) -> Realm:
    """The model to begin with, on its device, if it can read the corpora."""
    realm = Realm.from_pretrained(place) if model is None else model
    for corpus in corpora:
        check_readable(realm, corpus, name="the given model" if model is not None else str(place))
    check_trainable(realm)
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
    if text is not corpus and (share := share_cut_otherwise(corpus, text, own)) >= TOLD_CUT_OTHERWISE:
        say(
            f"{share:.0%} of the passages of {text.folder} that are not in {corpus.folder} begin with a "
            "sentence that is: their sentences can retrieve themselves, which teaches nothing; cut both from "
            "the documents with the same --max-wordpieces"
        )
    return own
