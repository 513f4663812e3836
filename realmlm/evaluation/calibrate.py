"""Fitting a model's calibration to answers whose rightness is known: what `realmlm evaluate` wrote."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from realmlm.errors import BadInput, Mismatch, NotEnough
from realmlm.log import say
from realmlm.reading.confidence import (
    CAUTIONED_RIGHT,
    CAUTIONED_WRONG,
    LEAST_OF_EACH,
    Calibration,
    choose_thresholds,
    fit_calibration,
)
from realmlm.reading.language import looks_english
from realmlm.reading.records import Answer, Evidence
from realmlm.reading.signs import Signs, signs_of
from realmlm.settings import Calibrate
from realmlm.storage.artefacts import Manifest, open_artefact, publish
from realmlm.storage.files import json_lines, read_text

PARTS = 5  # of the table: so many answers each, the least sure first
FOLDS = 5  # of the questions; each is judged by what the others say


@dataclass(frozen=True)
class Judged:
    """Answers with their signs, and whether they were right."""

    signs: list[Signs]
    right_N: np.ndarray
    questions: list[str]

    def some(self, rows_N: np.ndarray) -> "Judged":
        """Those of some rows."""
        rows = np.flatnonzero(rows_N).tolist()
        return Judged(
            [self.signs[row] for row in rows], self.right_N[rows], [self.questions[row] for row in rows]
        )

    def confidences(self, calibration: Calibration) -> np.ndarray:
        """How sure a calibration is of each."""
        return np.array([calibration.confidence(signs) for signs in self.signs])


def calibrate(settings: Calibrate) -> str:
    """Write the model again, calibrated; gives a table of what was promised and what held."""
    model = settings.model
    manifest = open_artefact(model, kind="model")
    before = manifest.config.get("calibration")
    if settings.predictions:
        asked = read_answers(settings.predictions, model=model, manifest=manifest)
        calibration = fit(asked)
    elif before:
        calibration = Calibration(**before)
    else:
        how = "realmlm calibrate --predictions FILE --out MODEL"
        raise BadInput(f"{model} was never calibrated, so there is nothing to set thresholds for; {how}")
    if settings.thresholds:
        asked = read_answers(settings.thresholds, model=model, manifest=manifest)
    found = with_thresholds(calibration, asked)
    rates = held_out_rates(asked, found if settings.thresholds else None)
    write_again(model, settings.out, calibration=asdict(found))
    return f"{table(found, asked)}\n\n{rates}"


def fit(answers: Judged) -> Calibration:
    """How sure to be, from how often such answers were right."""
    return fit_calibration(answers.signs, answers.right_N)


def with_thresholds(calibration: Calibration, answers: Judged) -> Calibration:
    """The same, with the thresholds between likely, unsure and not found."""
    likely, found = choose_thresholds(answers.confidences(calibration), answers.right_N)
    english = float(np.mean([looks_english(question) for question in answers.questions]))
    return replace(calibration, likely=likely, found=found, english=round(english, 4))


def held_out_rates(answers: Judged, known: Calibration | None) -> str:
    """How many right and wrong answers get which word where neither thresholds nor, unless the calibration is
    `known` from elsewhere, weights have seen the question."""
    _, place_N = np.unique(answers.questions, return_inverse=True)
    words_N = np.empty(len(place_N), dtype=object)
    for fold in range(FOLDS):
        held_out_N = place_N % FOLDS == fold
        rest = answers.some(~held_out_N)
        calibration = with_thresholds(known or fit(rest), rest)
        judged = answers.some(held_out_N).confidences(calibration)
        words_N[held_out_N] = [calibration.word(sure) for sure in judged]
    lines = [
        f"on questions not used for it ({FOLDS} parts, each by the others), called",
        "               likely   unsure   not found   with a caution",
    ]
    for name, chosen_N, wanted in (
        ("wrong", ~answers.right_N, f"at least {CAUTIONED_WRONG:.0%}"),
        ("right", answers.right_N, f"at most {CAUTIONED_RIGHT:.0%}"),
    ):
        called = [float((words_N[chosen_N] == word).mean()) for word in ("likely", "unsure", "not found")]
        likely, unsure, lost = called
        lines.append(
            f"{int(chosen_N.sum()):6,} {name}   {likely:6.1%}   {unsure:6.1%}   {lost:9.1%}   "
            f"{unsure + lost:6.1%} (wanted: {wanted})"
        )
    return "\n".join(lines)


def write_again(model: Path, out: Path, **changed: object) -> None:
    """The same model with some of its config changed."""
    manifest = open_artefact(model, kind="model")
    with publish(out, kind="model") as draft:
        for name in manifest.files:
            shutil.copyfile(model / name, draft.path / name)
        draft.config = {**manifest.config, **changed}
        draft.counts = manifest.counts
        draft.parents = manifest.parents


def read_answers(files: Sequence[Path], *, model: Path, manifest: Manifest) -> Judged:
    """All answers of these files; those made otherwise than the model will answer are refused."""
    rows: list[tuple[Signs, bool, str]] = []
    read: str | None = None
    weight = manifest.config.get("hybrid", 0.0)
    for file in files:
        named = True
        for number, row in json_lines(read_text(file)):
            try:
                asked = str(row.get("question", f"{file}:{number}"))
                rows.append((_signs(asked, row), bool(row["correct"]), asked))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise BadInput(
                    f"{file}:{number}: not an answer to a question; make such a file: realmlm evaluate … "
                    f"--predictions {file}"
                ) from error
            if row.get("model", manifest.fingerprint) != manifest.fingerprint:
                raise Mismatch(
                    f"{file}:{number}: an answer from another model, not {model}; "
                    f"make the file with this one: realmlm evaluate --model {model} … --predictions FILE"
                )
            if row.get("retriever", "learned") != "learned":
                raise Mismatch(
                    f"{file}:{number}: its passages were found with --retriever {row['retriever']}, whose "
                    "scores say nothing about the model's own retriever; make the file without --retriever"
                )
            if (used := row.get("hybrid", 0.0)) != weight:
                raise Mismatch(
                    f"{file}:{number}: its passages were found with --hybrid {used:g}, and the model's own "
                    f"weight is {weight:g}; make the file without --hybrid"
                )
            here = f"{row['read']} of {rerank}" if (rerank := row.get("rerank")) else row.get("read", read)
            read = here if read is None else read
            if here != read:
                raise Mismatch(
                    f"{file}:{number}: {here} passages were read for this answer, {read} for others; a "
                    "confidence holds for one way: make all files with the same --read and --rerank"
                )
            named &= "model" in row
        if not named:
            say(f"{file} does not say which model answered, as older files do not; assuming it was {model}")
    signs, right, asked_N = zip(*rows, strict=True) if rows else ((), (), ())
    if min(sum(right), len(right) - sum(right)) < LEAST_OF_EACH:
        raise NotEnough(
            f"{sum(right)} answers were right and {len(right) - sum(right)} wrong, and a calibration needs "
            f"{LEAST_OF_EACH} of each; evaluate on more questions"
        )
    return Judged(list(signs), np.array(right), list(asked_N))


def _signs(question: str, row: dict[str, Any]) -> Signs:
    """Of an answer as it was written; without its evidence, p and relevance are all there is."""
    answer = Answer(
        row.get("answer", ""),
        float(row["probability"]),
        tuple(Evidence(**one) for one in row.get("evidence", ())),
        relevance=float(row["relevance"]),
    )
    return signs_of(question, answer)


def table(found: Calibration, answers: Judged) -> str:
    """How well the confidence tells right from wrong, beside p alone, and how often it came true."""
    right_N = answers.right_N
    sure_N = answers.confidences(found)
    by_confidence = separation(sure_N, right_N)
    by_p = separation(np.array([signs.p for signs in answers.signs]), right_N)
    lines = [
        f"{len(sure_N):,} answers, {right_N.mean():.1%} right; of a right and a wrong one, the right one is "
        f"surer {by_confidence:.1%} of the time (by p alone {by_p:.1%})",
        "",
        "   answers   confidence   right",
    ]
    for part in np.array_split(np.argsort(sure_N, kind="stable"), PARTS):
        lines.append(f"{len(part):10,}   {sure_N[part].mean():10.1%}   {right_N[part].mean():5.1%}")
    return "\n".join(lines)


def separation(score_N: np.ndarray, right_N: np.ndarray) -> float:
    """How often a right answer scores higher than a wrong one, ties half: the area under the ROC curve."""
    values, place_N = np.unique(score_N, return_inverse=True)
    right_V, wrong_V = (np.bincount(place_N[chosen], minlength=len(values)) for chosen in (right_N, ~right_N))
    below_V = np.cumsum(wrong_V) - wrong_V
    return float((right_V * (below_V + wrong_V / 2)).sum() / (right_V.sum() * wrong_V.sum()))
