"""Fitting the weight λ of hybrid search, f(x,z) + λ · BM25(x,z), to questions with answers.

Q questions, C candidates each.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from realmlm.corpus.questions import Question, read_questions, spread
from realmlm.corpus.store import Corpus
from realmlm.device import pick_device
from realmlm.evaluation.calibrate import write_again
from realmlm.evaluation.intervals import paired_interval
from realmlm.evaluation.matching import contains_answer
from realmlm.index.bm25 import BM25Index
from realmlm.index.exact import Index
from realmlm.index.hybrid import DEPTH, Candidates, candidates
from realmlm.log import progress
from realmlm.model.realm import Realm
from realmlm.reading.retrieve import check_readable, index_of, open_to_answer
from realmlm.settings import FitHybrid
from realmlm.storage.artefacts import refuse_existing, write_text

WEIGHTS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0)
ALONE = float("inf")  # BM25 without f
CUTOFFS = (1, 5, 20)
_AT_ONCE = 64  # questions


@dataclass(frozen=True)
class Searched:
    """The candidates of a file's questions, and which of them hold an answer."""

    found: Candidates
    holds_QC: torch.Tensor

    def recalls(self, weight: float) -> np.ndarray:
        """For each question, does an answer stand among the first passages of f + weight · BM25? [Q,
        cutoffs]."""
        found = self.found
        scores_QC = found.near_QC + weight * found.words_QC
        if weight == ALONE:
            scores_QC = found.words_QC.masked_fill(found.near_QC.isinf(), -torch.inf)
        depth = min(max(CUTOFFS), self.holds_QC.shape[1] // 2)
        held_QK = self.holds_QC.gather(1, found.order(scores_QC, depth))
        return np.stack([held_QK[:, :k].any(1).numpy() for k in CUTOFFS], axis=1)


def fit_hybrid(settings: FitHybrid) -> str:
    """Write the model again with the weight that finds most; gives a table of what every weight finds."""
    for place in (settings.out, settings.report):
        if place is not None:
            refuse_existing(place)
    if settings.report is not None:  # found out before the work
        settings.report.parent.mkdir(parents=True, exist_ok=True)
    realm = open_to_answer(settings.model, pick_device(settings.device))
    corpus = Corpus.open(settings.corpus)
    check_readable(realm, corpus, name=str(settings.model))
    asked = {file: _some(read_questions(file), settings.limit) for file in settings.questions}
    index = index_of(realm, corpus, path=settings.index).index
    words = BM25Index(corpus, device=realm.device)
    searched = [_search(realm, corpus, index, words, questions) for questions in asked.values()]
    weights = sorted({*WEIGHTS, *([] if settings.weight is None else [settings.weight])})
    found = {weight: [file.recalls(weight) for file in searched] for weight in (*weights, ALONE)}
    best = settings.weight
    if best is None:
        best = max(WEIGHTS, key=lambda weight: (_mean(found[weight]), -weight))
    write_again(settings.model, settings.out, hybrid=best, calibration=None)
    if settings.report is not None:
        names = [file.name for file in asked]
        write_text(settings.report, json.dumps(_record(found, names) | {"chosen": best}))
    return _table(found, list(asked), best)


def _some(questions: list[Question], limit: int | None) -> list[Question]:
    return questions if limit is None else [questions[place] for place in spread(len(questions), limit)]


@torch.inference_mode()
def _search(
    realm: Realm, corpus: Corpus, index: Index, words: BM25Index, questions: list[Question]
) -> Searched:
    parts = []
    holds = []
    with progress("searching", len(questions), unit="questions") as bar:
        for first in range(0, len(questions), _AT_ONCE):
            some = questions[first : first + _AT_ONCE]
            tokens = realm.wordpieces.encode_queries([question.text for question in some])
            vectors_QD = realm.query(realm.query_inputs(tokens).to(realm.device))
            found = candidates(index, words, vectors_QD, tokens, min(DEPTH, len(index)))
            parts.append([part.cpu() for part in (found.ids_QC, found.near_QC, found.words_QC)])
            holds.append(_holds(corpus, some, parts[-1][0].numpy()))
            bar.advance(len(some))
    return Searched(Candidates(*map(torch.cat, zip(*parts, strict=True))), torch.cat(holds))


def _holds(corpus: Corpus, questions: list[Question], ids_QC: np.ndarray) -> torch.Tensor:
    ids_U = np.unique(ids_QC)
    texts = dict(zip(ids_U.tolist(), corpus.texts(ids_U.tolist()), strict=True))
    rows = [
        [contains_answer(texts[number], question, recall="dpr") for number in ids]
        for question, ids in zip(questions, ids_QC.tolist(), strict=True)
    ]
    return torch.tensor(rows)


def _mean(recalls: list[np.ndarray]) -> float:
    """Over cutoffs, questions and files."""
    return float(np.mean([recalls_Q3.mean() for recalls_Q3 in recalls]))


def _record(found: dict[float, list[np.ndarray]], names: list[str]) -> dict[str, object]:
    def row(recalls: list[np.ndarray]) -> dict[str, list[float]]:
        return {
            name: (100 * recalls_Q3.mean(0)).round(2).tolist()
            for name, recalls_Q3 in zip(names, recalls, strict=True)
        }

    weights = {"BM25" if weight == ALONE else str(weight): row(found[weight]) for weight in found}
    return {"cutoffs": CUTOFFS, "recall": weights}


def _table(found: dict[float, list[np.ndarray]], files: list[Path], best: float) -> str:
    """Recall in percent by weight and file, and what the best weight gains."""
    lines = [f"recall@{'/'.join(map(str, CUTOFFS))}, percent, by the weight of BM25", ""]
    lines.append("  weight   mean   " + "   ".join(f"{file.stem[:18]:>18}" for file in files))
    for weight, recalls in found.items():
        name = "BM25" if weight == ALONE else f"{weight:g}"
        cells = [" / ".join(f"{value:.1f}" for value in 100 * file_Q3.mean(0)) for file_Q3 in recalls]
        mark = "*" if weight == best else " "
        row = "   ".join(f"{cell:>18}" for cell in cells)
        lines.append(f"{mark} {name:>6}   {100 * _mean(recalls):4.1f}   {row}")
    lines.append("")
    for name, other in (("f alone", 0.0), ("BM25 alone", ALONE)):
        ours, theirs = (np.concatenate(found[weight]).mean(1) for weight in (best, other))
        low, high = paired_interval(ours, theirs)
        gain = f"{100 * (ours - theirs).mean():+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
        lines.append(f"{best:g} over {name}: {gain}")
    return "\n".join(lines)
