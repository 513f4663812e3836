"""Fitting a model's calibration to answers whose rightness is known: what `realmlm evaluate` wrote."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from realmlm.errors import BadInput, Mismatch
from realmlm.log import say
from realmlm.reading.confidence import Calibration, fit_calibration
from realmlm.settings import Calibrate
from realmlm.storage.artefacts import Manifest, open_artefact, publish
from realmlm.storage.files import json_lines, read_text

PARTS = 5  # of the table: so many answers each, the least sure first


@dataclass(frozen=True)
class Judged:
    """Answers with p(y|x), the best f(x,z), and whether they were right."""

    probability_N: np.ndarray
    relevance_N: np.ndarray
    right_N: np.ndarray


def calibrate(settings: Calibrate) -> str:
    """Write the model again, calibrated; gives a table of what was promised and what held."""
    model = settings.model
    manifest = open_artefact(model, kind="model")
    answers = read_answers(settings.predictions, model=model, manifest=manifest)
    found = fit_calibration(answers.probability_N, answers.relevance_N, answers.right_N)
    write_again(model, settings.out, calibration=asdict(found))
    return table(found, answers)


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
    rows: list[tuple[float, float, bool]] = []
    read: str | None = None
    weight = manifest.config.get("hybrid", 0.0)
    for file in files:
        named = True
        for number, row in json_lines(read_text(file)):
            try:
                rows.append((float(row["probability"]), float(row["relevance"]), bool(row["correct"])))
            except (KeyError, TypeError, ValueError) as error:
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
    probability, relevance, right = zip(*rows, strict=True) if rows else ((), (), ())
    return Judged(np.array(probability), np.array(relevance), np.array(right, dtype=bool))


def table(found: Calibration, answers: Judged) -> str:
    """How well the confidence tells right from wrong, beside p alone, and how often it came true."""
    right_N = answers.right_N
    pairs = zip(answers.probability_N, answers.relevance_N, strict=True)
    sure_N = np.array([found.confidence(p, relevance) for p, relevance in pairs])
    by_confidence = separation(sure_N, right_N)
    by_p = separation(answers.probability_N, right_N)
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
