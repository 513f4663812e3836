"""Measuring a model on a question set: answers, retrieval, intervals; for the baselines too."""

import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

import numpy as np
import torch

from realmlm.cluster import joined
from realmlm.corpus.beir import read_beir
from realmlm.corpus.questions import Question, read_questions, spread
from realmlm.corpus.store import Corpus
from realmlm.device import pick_device
from realmlm.errors import BadInput, NotEnough
from realmlm.evaluation.beir import Ranked, rank_documents
from realmlm.evaluation.clozes import is_cloze, source_copies, widen_masks
from realmlm.evaluation.judge import Batch, Reading, judge, make_judge
from realmlm.evaluation.matching import Recall
from realmlm.evaluation.scores import CUTOFFS, Outcome, Report, summarise, summarise_ranking
from realmlm.index.shared import index_place
from realmlm.log import progress, say
from realmlm.model.marginal import marginal_log_likelihood
from realmlm.model.realm import Realm
from realmlm.parallel import ordered_map
from realmlm.reading.answer import Answer, Answerer, check_reranks
from realmlm.reading.retrieve import (
    BM25Retriever,
    LearnedRetriever,
    NoRetriever,
    Query,
    Retrieved,
    Retriever,
    check_enough,
    check_readable,
    hybrid_of,
    index_of,
    open_to_answer,
    retrieve,
)
from realmlm.settings import Evaluate
from realmlm.storage.artefacts import read_manifest, refuse_existing
from realmlm.storage.mirrors import write_result
from realmlm.storage.remote import shown

T = TypeVar("T")
SEARCHED_AT_ONCE = 256  # questions, where nothing is read
_FEW = 4  # batches; fewer are judged here, sooner than processes could start


def evaluate(
    settings: Evaluate,
    *,
    model: Realm | None = None,
    corpus: Corpus | None = None,
    retriever: Retriever | None = None,
    judges: int = 1,
) -> Report:
    """Measure a model on a question set, as `realmlm evaluate` does; the report and the predictions that the
    settings ask for are written, the report is given back too.

    `model` and `corpus` are taken in place of those that the settings name, `retriever` in place of the
    model's own. Beside a GPU, `judges` processes compare its answers with the right ones: the command has
    several; in a program of yours more than one needs `if __name__ == "__main__":`.
    """
    if settings.engine == "ray" and (model or corpus or retriever):
        raise BadInput("on a Ray cluster model and corpus are opened by name: leave out the objects")
    name = shown(settings.model) if model is None else "the given model"
    realm, corpus = _opened(settings, model, corpus, name=name)
    read = settings.read
    judged = _some(read_beir(settings.beir, settings.split), settings.limit) if settings.beir else []
    asked = _questions(settings) if settings.questions else []
    meaningless = read and settings.retriever != "none" and not realm.config.trained_on_questions
    if meaningless and not all(map(is_cloze, asked)):
        untrained = f"{name} was not trained on questions: its answers mean nothing yet"
        say(f"{untrained}. Measure retrieval alone (--read 0), or finetune it first.")
    check_can_write(settings)
    begun = time.monotonic()
    chosen = retriever or make_retriever(settings, realm, corpus)
    searched = settings.retriever if retriever is None else type(retriever).__qualname__
    hybrid = chosen.hybrid if isinstance(chosen, LearnedRetriever) else None
    weight = 0.0 if hybrid is None else hybrid.weight
    answerer = _answerer(settings, realm, corpus, chosen)
    rows: Iterable[dict[str, Any]]
    if settings.beir:
        ranked = list(rank_documents(answerer, judged, with_mask=settings.with_mask))
        report = summarise_ranking([one.measures for one in ranked], retriever=searched)
        rows = map(Ranked.as_json, ranked)
    else:
        how = partial(measure, read=read, recall=settings.recall, with_mask=settings.with_mask, judges=judges)
        elsewhere = partial(_open_answerer, settings) if settings.engine == "ray" else None
        outcomes = list(how(answerer, asked, elsewhere=elsewhere))
        report = summarise(outcomes, retriever=searched, read=read, recall=settings.recall)
        rows = map(_prediction, outcomes)
    if settings.predictions is not None:
        fingerprint = "given" if model else read_manifest(settings.model, kind="model").fingerprint
        made = {"model": fingerprint, "retriever": searched, "hybrid": weight}
        _write_predictions(settings, settings.predictions, rows, made)
    seconds = round(time.monotonic() - begun, 2)
    report = _described(
        replace(report, seconds=seconds, model=name, corpus=shown(corpus.folder), hybrid=weight), settings
    )
    if settings.report is not None:
        write_result(settings.report, json.dumps(report.as_json(), ensure_ascii=False))
    return report


def _opened(
    settings: Evaluate, model: Realm | None, corpus: Corpus | None, *, name: str
) -> tuple[Realm, Corpus]:
    """Model and corpus, those given or those that the settings name, if they fit each other and the
    settings."""
    device = pick_device(settings.device)
    realm = open_to_answer(settings.model, device) if model is None else model.to(device).eval()
    if corpus is None and settings.corpus is None:
        raise BadInput("say what to search: --corpus CORPUS")
    corpus = Corpus.open(settings.corpus or "") if corpus is None else corpus
    check_readable(realm, corpus, name=name)
    check_enough(corpus, settings.read)
    check_reranks(realm, settings.rerank)
    return realm, corpus


def _answerer(settings: Evaluate, realm: Realm, corpus: Corpus, retriever: Retriever) -> Answerer:
    return Answerer(realm, corpus, retriever, rerank=settings.rerank, overlapping=settings.overlapping)


def _write_predictions(
    settings: Evaluate, file: Path, rows: Iterable[dict[str, Any]], made: dict[str, Any]
) -> None:
    """A line for each question; each says how it was made, too."""
    made = made | {"read": settings.read, "rerank": settings.rerank, "overlapping": settings.overlapping}
    lines = "".join(json.dumps(row | made, ensure_ascii=False) + "\n" for row in rows)
    write_result(file, lines)


def _described(report: Report, settings: Evaluate) -> Report:
    """The report with what the settings say about what was measured, and how."""
    return replace(
        report,
        question_file=shown(settings.questions or f"{settings.beir}, {settings.split}"),
        index="" if settings.index is None else shown(str(index_place(settings.index))),
        limit=settings.limit,
        with_mask=settings.with_mask,
        rerank=settings.rerank,
        overlapping=settings.overlapping,
    )


def check_can_write(settings: Evaluate) -> None:
    """Before the work: are the files that are asked for not there yet, and can they be written?"""
    for file in (settings.report, settings.predictions):
        if file is not None:
            refuse_existing(file)
            file.parent.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=file.parent).close()


def _questions(settings: Evaluate) -> list[Question]:
    asked = read_questions(settings.questions or "")
    if settings.recall == "orqa" and any(question.is_regex for question in asked):
        patterns = f"{settings.questions}: the answers are regular expressions"
        raise BadInput(f"{patterns}, for which ORQA has no recall; use --recall dpr")
    return _some(asked, settings.limit)


def _some(asked: list[T], limit: int | None) -> list[T]:
    """As many of the questions at most, evenly spread."""
    if limit is None or limit >= len(asked):
        return asked
    return [asked[place] for place in spread(len(asked), limit)]


def make_retriever(settings: Evaluate, model: Realm, corpus: Corpus) -> Retriever:
    """The retriever that the settings name: `learned`, `bm25` or `none`."""
    if settings.retriever == "none":
        return NoRetriever()
    if settings.retriever == "bm25":
        return BM25Retriever(corpus, device=model.device)
    place = None if settings.index is None else index_place(settings.index, settings.filter)
    kept = index_of(model, corpus, path=place)
    hybrid = hybrid_of(model, corpus, settings.hybrid, only=kept.found)
    return LearnedRetriever.settled(model, kept.index, hybrid)


def measure(
    answerer: Answerer,
    questions: list[Question],
    *,
    read: int,
    recall: Recall,
    with_mask: bool = False,
    judges: int = 1,
    elsewhere: Callable[[str], Answerer] | None = None,
) -> Iterable[Outcome]:
    """Retrieve as deep as recall is measured, read the `read` best passages, and compare with the answers.
    Where passages are reranked, recall is that of their new order. `elsewhere` opens the same on a device, in
    the workers of a Ray cluster, which then do it."""
    alone = isinstance(answerer.retriever, NoRetriever)
    own = source_copies(answerer.corpus, questions)
    findable = len(answerer.corpus)
    if isinstance(answerer.retriever, LearnedRetriever):  # whose index may be told to find some alone
        findable = len(answerer.retriever.index)
    searchable = findable - max(map(len, own), default=0)
    if searchable < 1 and not alone:
        same = f"every passage of {answerer.corpus.folder} has the same words"
        raise NotEnough(f"{same}: none is left to search for a sentence of theirs")
    if read > findable and not alone:
        raise NotEnough(f"cannot read {read} passages: {findable} can be found; choose --read {findable}")
    depth = 0 if alone else min(max(*CUTOFFS, read, answerer.rerank), searchable)
    at_once = answerer.at_once if any(map(is_cloze, questions)) else answerer.spans_at_once
    at_once = at_once if read else SEARCHED_AT_ONCE
    slices = [slice(first, first + at_once) for first in range(0, len(questions), at_once)]
    parts = [(questions[some], own[some]) for some in slices]

    def read_ahead() -> Iterator[Batch]:
        """Batches that were read; a GPU is given the next one before it is waited for."""
        waiting = None
        for asked, sources in parts:
            queries = _queries(answerer, asked, sources, with_mask=with_mask)
            ahead = _read_batch(answerer, asked, queries, depth=depth, read=read)
            if waiting is not None:
                yield waiting()
            waiting = ahead
        if waiting is not None:
            yield waiting()

    if elsewhere is None:
        outcomes_of_parts = _judged(answerer, read_ahead(), recall=recall, judges=judges)
    else:
        how = (depth, read, recall, with_mask)
        outcomes_of_parts = _measured_elsewhere(elsewhere, how, parts)
    with (
        progress("evaluating", len(questions), unit="questions") as bar,
        closing(outcomes_of_parts) as judged,
    ):
        for outcomes in judged:
            yield from outcomes
            bar.advance(len(outcomes))


def _judged(
    answerer: Answerer, batches: Iterator[Batch], *, recall: Recall, judges: int
) -> Generator[list[Outcome], None, None]:
    """The outcomes of batches: beside a GPU by other processes, which one alone would keep waiting."""
    combiner = answerer.combiner
    if judges == 1 or answerer.model.device.type != "cuda":
        yield from (judge(combiner, batch, recall=recall) for batch in batches)
        return
    corpus = combiner.corpus
    how = (combiner.max_query, combiner.released, combiner.calibration, combiner.overlapping)
    setting = (corpus.folder, corpus.edits, *how, recall)
    yield from ordered_map(make_judge, setting, batches, workers=judges, few=_FEW)


_Part = tuple[list[Question], list[tuple[int, ...]]]
"""Questions that are answered together, and the passages each was taken from."""


def _measured_elsewhere(
    load: Callable[[str], Answerer], how: tuple[int, int, Recall, bool], parts: list[_Part]
) -> Generator[list[Outcome], None, None]:
    """The outcomes of batches, each by a worker of a Ray cluster, with as many threads as here."""
    threads = torch.get_num_threads()
    with joined() as cluster:
        setting = (load, cluster.device, threads, *how)
        yield from cluster.map(_measurer, setting, parts, **cluster.for_a_model(threads))


def _measurer(
    load: Callable[[str], Answerer],
    device: str,
    threads: int,
    depth: int,
    read: int,
    recall: Recall,
    with_mask: bool,
) -> Callable[[_Part], list[Outcome]]:
    torch.set_num_threads(threads)
    answerer = load(device)

    def measured(part: _Part) -> list[Outcome]:
        questions, own = part
        queries = _queries(answerer, questions, own, with_mask=with_mask)
        batch = _read_batch(answerer, questions, queries, depth=depth, read=read)()
        return judge(answerer.combiner, batch, recall=recall)

    return measured


def _open_answerer(settings: Evaluate, device: str) -> Answerer:
    """Model, corpus and retriever that the settings name, in a worker."""
    realm = open_to_answer(settings.model, pick_device(device))
    corpus = Corpus.open(settings.corpus or "")
    retriever = make_retriever(settings, realm, corpus)
    return _answerer(settings, realm, corpus, retriever)


def _queries(
    answerer: Answerer, questions: list[Question], own: list[tuple[int, ...]], *, with_mask: bool
) -> list[Query]:
    ending = " [MASK]" if with_mask else ""
    plain = iter(answerer.queries([item.text + ending for item in questions if not is_cloze(item)]))
    model = answerer.model
    return [
        widen_masks(question, sources, model.wordpieces, max_query=model.config.max_query)
        if is_cloze(question)
        else next(plain)
        for question, sources in zip(questions, own, strict=True)
    ]


def _read_batch(
    answerer: Answerer, questions: list[Question], queries: list[Query], *, depth: int, read: int
) -> Callable[[], Batch]:
    """Retrieve and read; a GPU may still be at it until what this gives is called."""
    retrieved = retrieve(answerer.retriever, queries, depth)
    known: dict[int, Reading] = {}
    spans = None
    cloze = np.array([is_cloze(question) for question in questions])
    asked = np.flatnonzero(~cloze)
    for rows in (np.flatnonzero(cloze), asked):
        if not len(rows) or not (read or depth == 0):
            continue
        ranked = max(read, answerer.rerank) if rows is asked else read
        offered = retrieved.some(rows, ranked)
        some = [queries[row] for row in rows]
        if rows is not asked:
            filled = _fill(answerer, [questions[row] for row in rows], some, offered)
            known |= dict(zip(rows.tolist(), filled, strict=True))
        elif offered.ids_BK.shape[1]:
            spans = answerer.read_passages(some, offered, read=read)
        else:
            known |= dict(zip(rows.tolist(), map(Reading, answerer.read_spans(some, offered)), strict=True))
    ids_BK = retrieved.ids_BK.numpy().copy()

    def arrived() -> Batch:
        if spans is None:
            return Batch(questions, ids_BK, known, asked.tolist(), None)
        ids_BR = spans.ids_BR().numpy()
        ids_BK[asked, : ids_BR.shape[1]] = ids_BR
        return Batch(questions, ids_BK, known, asked.tolist(), spans.arrays())

    return arrived


def _fill(
    answerer: Answerer, questions: list[Question], queries: list[Query], offered: Retrieved
) -> list[Reading]:
    """Answers, and how likely what is hidden was: with what was offered, and with the null document alone."""
    read = answerer.read_masks(queries, offered)
    targets = [answerer.model.wordpieces.encode(question.answers[0]) for question in questions]
    reading_BK = read.log_likelihood(targets)
    log_p_B = marginal_log_likelihood(read.scores_BK, reading_BK)
    utility_B = [None] * len(questions) if offered.null_B is None else (log_p_B - reading_BK[:, 0]).tolist()
    readings = []
    for row, answer in enumerate(answerer.fill_from(read, offered)):
        whole = len(targets[row]) == read.masks[row]  # else the masks do not stand for this answer
        readings.append(Reading(answer, log_p_B[row].item(), utility_B[row]) if whole else Reading(answer))
    return readings


def _prediction(outcome: Outcome) -> dict[str, Any]:
    """A line of the file of predictions."""
    question = outcome.question
    read = outcome.answer is not None
    return {
        "id": question.id,
        "question": question.text,
        "answers": question.answers,
        "correct": outcome.correct if read else None,
        "f1": outcome.f1 if read else None,
        "log_p": outcome.log_p,
        "utility": outcome.utility,
        "first_passage_with_answer": next((n for n, hit in enumerate(outcome.found, 1) if hit), None),
        **(_record(outcome.answer) if outcome.answer else {}),
    }


def _record(answer: Answer) -> dict[str, Any]:
    """`asdict` of an answer, without copying every text."""
    evidence = [vars(read) for read in answer.evidence]
    return vars(answer) | {"evidence": evidence, "others": [vars(other) for other in answer.others]}
