"""What each command does, given its settings: it works, prints results and says what it made."""

import dataclasses
import json
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

from realmlm import __version__
from realmlm import settings as kinds
from realmlm.batch import run_batch
from realmlm.errors import BadInput, RealmError, require
from realmlm.log import counted, printable, say
from realmlm.settings import together
from realmlm.storage.artefacts import refuse_existing
from realmlm.storage.files import read_text
from realmlm.storage.remote import shown

if TYPE_CHECKING:
    from realmlm.engine import Engine

# Work is imported where it is done: `realmlm --help` must not wait for torch.


def _world(settings: kinds.MakeWorld) -> None:
    from realmlm.worlds import write_world

    world = write_world(settings.out, settings.kind, seed=settings.seed)
    facts = f"{len(world.seen):,} facts to train on, {len(world.held_out):,} held out"
    say(f"{settings.out}: {len(world.passages):,} passages, {facts}")


def _corpus(settings: kinds.BuildCorpus) -> None:
    from realmlm.corpus.build import build_corpus

    counts = build_corpus(settings).manifest.counts
    made = f"{counted(counts['passages'], 'passage')} of {counted(counts['articles'], 'article')}"
    say(f"{shown(settings.out)}: {made}, {counted(counts['wordpieces'], 'wordpiece')}")


def _edit(settings: kinds.EditCorpus) -> None:
    from realmlm.corpus.store import Corpus
    from realmlm.sources.article import Article
    from realmlm.sources.files import read_articles

    corpus = Corpus.open(settings.corpus)
    replace = {}
    if settings.replace is not None:
        former = corpus[settings.replace]
        title = former.title if settings.title is None else settings.title
        replace = {settings.replace: Article(title, settings.text or "", former.source)}
    articles = list(read_articles(settings.add, on_bad=_refuse)) if settings.add else []
    corpus, added = corpus.edit(add=articles, replace=replace, remove=settings.remove)
    if (added or replace) and (settings.corpus / "spans").exists():
        before = "before that, finish runs that were interrupted on this corpus"
        command = f"realmlm spans {settings.corpus} ({before}: with other spans they cannot be resumed)"
        say(f"to train on the new text too, mark its spans: {command}")
    done = [f"added {', '.join(map(str, added))}"] if added else []
    done += [f"replaced {settings.replace}"] if replace else []
    done += [f"removed {', '.join(map(str, settings.remove))}"] if settings.remove else []
    say(f"{settings.corpus}: {'; '.join(done)}; {counted(len(corpus), 'passage')} now")


def _passages(settings: kinds.ListPassages) -> None:
    from realmlm.corpus.store import Corpus

    found = Corpus.open(settings.corpus).find(settings.find or "", limit=settings.limit)
    for passage in found:
        text = " ".join(passage.text.split())[:100]
        print(printable(f"{passage.id:8d}  {passage.title}  [{passage.source}]  {text}"))
    if not found:
        say(f"no passage of {settings.corpus} contains '{settings.find}'")


def _spans(settings: kinds.MarkSpans) -> None:
    from realmlm.corpus.spans import mark_spans, rule_tagger
    from realmlm.corpus.store import Corpus
    from realmlm.corpus.taggers import PhraseTagger, SpacyTagger, Tagger
    from realmlm.parallel import default_workers

    corpus = Corpus.open(settings.corpus)
    tagger: Tagger
    workers = settings.workers or default_workers()
    if settings.phrases is not None:
        lines = map(str.strip, read_text(settings.phrases).splitlines())
        tagger = PhraseTagger([line for line in lines if line])
    elif settings.learned is not None:
        from realmlm.model.tagger import LearnedTagger

        tagger = LearnedTagger(settings.learned)
        if tagger.on_gpu and settings.workers is None:
            workers = min(workers, 8)  # each holds a model on the GPU
    else:
        tagger = SpacyTagger(settings.spacy_model) if settings.tagger == "spacy" else rule_tagger(corpus)
    spans = mark_spans(corpus, tagger, workers=workers, engine=settings.engine)
    say(f"{shown(settings.corpus)}: {len(spans):,} sentences with spans worth masking")


def _clozes(settings: kinds.MakeClozes) -> None:
    from realmlm.corpus.questions import write_questions
    from realmlm.corpus.store import Corpus
    from realmlm.evaluation.clozes import make_clozes

    refuse_existing(settings.out)
    made = make_clozes(
        Corpus.open(settings.corpus),
        count=settings.count,
        max_query=settings.max_query,
        seed=settings.seed,
        recurring=settings.recurring,
    )
    write_questions(settings.out, made)
    say(f"{settings.out}: {len(made):,} masked sentences, for pretrain --hold-out and evaluate --questions")


def _tagger(settings: kinds.TrainTagger) -> None:
    from realmlm.model.tagger import train_tagger

    say(f"{settings.out}: F1 {100 * train_tagger(settings):.1f} on {settings.test}")


def _model(settings: kinds.MakeModel) -> None:
    from realmlm.model.create import create_model

    say(f"{settings.out}: {create_model(settings).size:,} parameters")


def _import_hf(settings: kinds.ImportHf) -> None:
    from realmlm.interop.importing import import_hf

    say(f"{settings.out}: {import_hf(settings).size:,} parameters")
    if settings.corpus is not None:
        say(f'{settings.corpus}: ready for realmlm ask "…" --model {settings.out} --corpus {settings.corpus}')


def _export_hf(settings: kinds.ExportHf) -> None:
    from realmlm.interop.exporting import export_hf

    export_hf(settings)
    say(f"{settings.out}: {settings.architecture}, for transformers up to 4.57")


def _export(settings: kinds.ExportEncoders | kinds.ExportVectors) -> None:
    from realmlm.interop.sharing import export

    say(export(settings))


def _graft(settings: kinds.Graft) -> None:
    from realmlm.model.create import graft

    say(graft(settings))


def _compress(settings: kinds.Compress) -> None:
    from realmlm.model.realm import Realm

    Realm.from_pretrained(settings.model).save_pretrained(settings.out, dtype=settings.dtype)
    folders = (settings.model, settings.out)
    sizes = [sum(file.stat().st_size for file in folder.iterdir()) / 2**20 for folder in folders]
    say(f"{settings.out}: {sizes[1]:.1f} MiB instead of {sizes[0]:.1f}")


def _index(settings: kinds.BuildIndex) -> None:
    import torch

    from realmlm.corpus.store import Corpus
    from realmlm.device import pick_device
    from realmlm.index.ivf import IVFIndex
    from realmlm.model.realm import Realm
    from realmlm.reading.retrieve import check_readable, index_of

    realm = Realm.from_pretrained(settings.model, device=pick_device(settings.device))
    corpus = Corpus.open(settings.corpus)
    check_readable(realm, corpus, name=str(settings.model))
    dtype = getattr(torch, settings.dtype) if settings.dtype else None
    index = index_of(
        realm, corpus, path=settings.out, kind=settings.kind, dtype=dtype, engine=settings.engine
    ).index
    made = f"{len(index):,} passages, {index.dim} numbers each"
    if isinstance(index, IVFIndex):
        made += (
            f"; recall against exact search {index.recall:.3f}, the worse of 1 and {index.settings.k} hits, "
            "for queries made of a quarter of the words of sentences from the passages"
        )
    say(made)


def _train(
    settings: kinds.Warmup | kinds.Pretrain | kinds.TrainTowers | kinds.Finetune, *, resume: bool
) -> None:
    from realmlm.train.stages import finetune, pretrain, train_towers, warmup

    if isinstance(settings, kinds.Warmup):
        warmup(settings, resume=resume)
    elif isinstance(settings, kinds.Pretrain):
        pretrain(settings, resume=resume)
    elif isinstance(settings, kinds.TrainTowers):
        train_towers(settings, resume=resume)
    else:
        finetune(settings, resume=resume)
    say(f"the model is in {settings.out / 'model'}")


def _refresher(settings: kinds.JoinRun) -> None:
    from realmlm.train.refresher import join_run

    say(join_run(settings))


def _adapt(settings: kinds.Adapt) -> None:
    from realmlm.train.adapt import adapt

    verdict = adapt(settings)
    print(printable(verdict.table()))
    if verdict.kept:
        named = ["--docs", *map(str, together(settings.docs)), "--model", str(settings.out / "model")]
        say(f'better on these {verdict.examples}, so it was kept: realmlm ask "…" {shlex.join(named)}')
    else:
        say(f"not reliably better, so nothing was kept: keep using {settings.model} for these documents")


_MOST_JUDGES = 8  # processes; each is done with some thousand questions a second


def _evaluate(settings: kinds.Evaluate) -> None:
    from realmlm.evaluation.measure import check_can_write, evaluate
    from realmlm.parallel import cores
    from realmlm.storage.mirrors import write_result

    check_can_write(settings)
    report = evaluate(dataclasses.replace(settings, report=None), judges=min(cores(), _MOST_JUDGES))
    print(json.dumps(report.as_json()) if settings.json else printable(report.table()), flush=True)
    if settings.report is not None:  # once it is on the screen
        write_result(settings.report, json.dumps(report.as_json(), ensure_ascii=False))


def _hybrid(settings: kinds.FitHybrid) -> None:
    from realmlm.evaluation.hybrid import fit_hybrid

    print(fit_hybrid(settings))
    say(f"{settings.out}: the same model, which searches by f + λ · BM25; calibrate it again")


def _calibrate(settings: kinds.Calibrate) -> None:
    from realmlm.evaluation.calibrate import calibrate

    print(printable(str(calibrate(settings))))
    say(f"{settings.out}: the same model; its answers now say how often such answers are right")


def _align(settings: kinds.Align) -> None:
    from realmlm.evaluation.align import align

    say(f"{settings.out}: {align(settings):,} sentences with the passages that explain them")


def _report(settings: kinds.MakeReport) -> None:
    from realmlm.report.html import write_report

    say(write_report(settings))


def _batch(settings: kinds.RunBatch) -> None:
    from realmlm.cli import run_command

    run_batch(settings.file, settings.log, run_command)


def _ask(settings: kinds.Ask) -> None:
    engine = _engine(settings)
    if settings.fill is not None:
        answer = engine.fill(settings.fill, read=settings.read)
    else:
        if not engine.model.config.trained_on_questions:
            untrained = f"{settings.model} was not trained on questions: its answers mean nothing yet"
            say(f"{untrained}. Use --fill, or `realmlm finetune` it first.")
        answer = engine.ask(settings.question or "", read=settings.read)
    if settings.json:
        print(json.dumps(dataclasses.asdict(answer), ensure_ascii=False))
    else:
        print(printable(answer.text(numbers=settings.numbers)))


def _search(settings: kinds.Search) -> None:
    found = _engine(settings).search(settings.question, settings.k)
    as_json = {"found": [one.as_json() for one in found]}
    print(json.dumps(as_json, ensure_ascii=False) if settings.json else printable("\n".join(map(str, found))))


def _engine(settings: kinds.Ask | kinds.Search | kinds.Serve) -> "Engine":
    from realmlm.engine import Engine
    from realmlm.index.shared import index_place

    return Engine(
        settings.model,
        settings.corpus,
        docs=together(settings.docs),
        index=index_place(settings.index, settings.filter) if settings.index else None,
        hybrid=settings.hybrid,
        rerank=0 if isinstance(settings, kinds.Search) else settings.rerank,
        device=settings.device,
    )


def _serve(settings: kinds.Serve) -> None:
    require("uvicorn", extra="serve", why="the service")
    require("fastapi", extra="serve", why="the service")
    require("prometheus_client", extra="serve", why="the service")
    if settings.workers > 1:
        from realmlm.serve.processes import serve_with_workers

        serve_with_workers(settings, _engine)
        return
    from realmlm.serve.command import serve

    serve(settings, lambda: _engine(settings))


def _cache(settings: kinds.ManageCache) -> None:
    from realmlm.corpus.cache import all_in_all, cached, clear, removed

    entries = cached()
    if unknown := sorted(set(settings.names) - {entry.name for entry in entries}):
        raise BadInput(f"nothing is cached as '{unknown[0]}'; realmlm cache lists what is")
    if not settings.clear:
        for entry in entries:
            print(printable(str(entry)))
        say(all_in_all(entries))
        return
    chosen = [entry for entry in entries if not settings.names or entry.name in settings.names]
    gone = [entry for entry in chosen if clear(entry)]
    if len(gone) < len(chosen):
        say(f"{len(chosen) - len(gone)} kept, which are being made or changed at this moment")
    say(removed(gone))


def _doctor(_: kinds.Examine) -> None:
    from realmlm.corpus.cache import all_in_all, cached
    from realmlm.doctor import examine

    print(f"realmlm {__version__}, {examine()}")
    print(f"\ndocuments: {all_in_all(cached())}; realmlm cache lists and clears them")


def _refuse(error: RealmError) -> None:
    raise BadInput(f"{error}; the corpus is unchanged: correct this and edit again") from None


COMMANDS: dict[str, tuple[type, Callable[..., None]]] = {
    "corpus": (kinds.BuildCorpus, _corpus),
    "edit": (kinds.EditCorpus, _edit),
    "passages": (kinds.ListPassages, _passages),
    "spans": (kinds.MarkSpans, _spans),
    "tagger": (kinds.TrainTagger, _tagger),
    "clozes": (kinds.MakeClozes, _clozes),
    "model": (kinds.MakeModel, _model),
    "warmup": (kinds.Warmup, _train),
    "pretrain": (kinds.Pretrain, _train),
    "towers": (kinds.TrainTowers, _train),
    "finetune": (kinds.Finetune, _train),
    "refresher": (kinds.JoinRun, _refresher),
    "index": (kinds.BuildIndex, _index),
    "import-hf": (kinds.ImportHf, _import_hf),
    "export-hf": (kinds.ExportHf, _export_hf),
    "export encoders": (kinds.ExportEncoders, _export),
    "export vectors": (kinds.ExportVectors, _export),
    "adapt": (kinds.Adapt, _adapt),
    "evaluate": (kinds.Evaluate, _evaluate),
    "hybrid": (kinds.FitHybrid, _hybrid),
    "calibrate": (kinds.Calibrate, _calibrate),
    "align": (kinds.Align, _align),
    "report": (kinds.MakeReport, _report),
    "ask": (kinds.Ask, _ask),
    "search": (kinds.Search, _search),
    "serve": (kinds.Serve, _serve),
    "graft": (kinds.Graft, _graft),
    "compress": (kinds.Compress, _compress),
    "batch": (kinds.RunBatch, _batch),
    "world": (kinds.MakeWorld, _world),
    "doctor": (kinds.Examine, _doctor),
    "cache": (kinds.ManageCache, _cache),
}
RESUMABLE = tuple(kinds.STAGES)
EMBEDDING = ("ask", "evaluate", "hybrid", "index", "search", "serve")  # may be at it for long
