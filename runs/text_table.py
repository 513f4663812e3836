"""Tables 1 and 2 in miniature on real text, from what runs/text_study.sh has made. `python runs/text_table.py FOLDER [dev|test]`

Each cell is a mean over all questions (or held-out sentences) and seeds, the seeds' own means in parentheses; brackets are 95% intervals of
the paired difference to the arm that is named, bootstrapped over questions, after the mean over an arm's seeds was taken for each
question: how much another seed would change is not in them, the parentheses show it.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from world_table import T_95

from realmlm.evaluate.intervals import bootstrap_interval, paired_interval

ARMS = {
    "realm": "REALM, pointing",
    "realm-longer": "the same, 2,000 steps",
    "plain": "REALM, the paper's loss alone",
    "realm-retriever": "REALM's retriever, baseline reader",
    "realm-reader": "baseline retriever, REALM's reader",
    "warmup": "baseline (warm-up only)",
    "frozen": "joint, retriever frozen",
    "ict": "ICT continued",
    "uniform": "uniform masks, the paper's loss alone",
    "random-span": "random-span masks, the paper's loss alone",
    "recurring": "only words that recur",
    "glimpses": "queries half of the time a glimpse of the sentence",
    "tagger": "spans of the learned tagger",
    "stale": "index never refreshed",
    "no-null": "no null document",
    "same-text": "X = Z",
    "own-passage": "X = Z, own passage allowed",
    "news": "X = Wikinews",
    "bm25": "BM25",  # retrieval alone: no likelihood
}
ANSWERING = {
    "bm25": "BM25 + reader",
    "warmup": "ICT only (ORQA)",
    "hard-em": "the same, hard EM",
    "warmup-closed-book": "the same, no passage",
    "plain": "REALM, the paper's loss alone",
    "realm": "REALM, pointing",
    "realm-closed-book": "the same, no passage",
    "realm-longer": "REALM, pointing, 2,000 steps",
    "glimpses": "REALM, pointing, glimpses",
    "news": "REALM, pointing, X = Wikinews",
    "warmup-projection": "ICT only, of the query tower the projection alone learns",
    "realm-projection": "REALM, pointing, the same",
    "warmup-as-is": "ICT only, the retriever as it is: only the reader learns",
    "realm-as-is": "REALM, pointing, the same",
    "realm-longer-as-is": "REALM, pointing, 2,000 steps, the same",
    "realm-retriever-as-is": "REALM's retriever under the warm-up's reader, the same",
}
Take = Callable[[dict[str, Any]], float]
Values = dict[str, np.ndarray]  # of every arm one value a seed and question [S, N]


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").split("\n") if line]  # a text may hold other breaks of lines


def measured(folder: Path, prefix: str, take: Take) -> tuple[Values, dict[str, int]]:
    """One value a question for every arm with predictions of such names; and the seeds of each. A seed that lacks some is left out."""
    by_arm: dict[str, list[np.ndarray]] = defaultdict(list)
    places = sorted((folder / "study").iterdir())
    found = {place: sorted((place / "predictions").glob(f"{prefix}*.jsonl")) for place in places}
    most = max(map(len, found.values()), default=0)
    for place, files in found.items():
        if files and len(files) == most:
            by_arm[place.name.rpartition("-")[0]].append(np.array([take(row) for file in files for row in rows(file)]))
    return {arm: np.array(seeds) for arm, seeds in by_arm.items()}, {arm: len(seeds) for arm, seeds in by_arm.items()}


def within(depth: int) -> Take:
    return lambda row: 100.0 * (row["first_passage_with_answer"] is not None and row["first_passage_with_answer"] <= depth)


def against(values: Values, arm: str, other: str, digits: int) -> str:
    if arm not in values or other not in values or arm == other:
        return ""
    low, high = paired_interval(values[arm].mean(0), values[other].mean(0))
    return f"{values[arm].mean() - values[other].mean():+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"


def over_seeds(values: Values, arm: str, other: str) -> str:
    """The difference and half its 95% interval when seeds alone are counted, not questions (Welch's t)."""
    means = [values[name].mean(1) for name in (arm, other)]
    parts = [float(np.var(some, ddof=1)) / len(some) for some in means]
    freedom = int(sum(parts) ** 2 / sum(part**2 / (len(some) - 1) for part, some in zip(parts, means, strict=True)))
    return f"{means[0].mean() - means[1].mean():+.1f} ± {T_95[max(1, freedom)] * sum(parts) ** 0.5:.1f}"


def mean(values: Values, arm: str, digits: int = 1) -> str:
    if arm not in values:
        return "–"
    seeds = [f"{seed.mean():.{digits}f}" for seed in values[arm]]
    return f"{values[arm].mean():.{digits}f}" + (f" ({', '.join(seeds)})" if len(seeds) > 1 else "")


def table_2(folder: Path) -> None:
    loss, seeds = measured(folder, "held-out", lambda row: -row["log_p"])
    held, _ = measured(folder, "held-out", within(5))
    asked, _ = measured(folder, "zero-shot", within(5))
    with_mask, _ = measured(folder, "with-mask", within(5))
    better = {arm: max(asked[arm], with_mask.get(arm, asked[arm]), key=np.mean) for arm in asked}
    columns = ["−log p(y\\|x), nats", "vs frozen", "recall@5: held-out sentences", "questions", "and [MASK]", "the better vs ICT continued"]
    print(f"| | seeds | {' | '.join(columns)} |\n" + "| --- " * 8 + "|")
    for arm, title in ARMS.items():
        if arm in loss:
            cells = [mean(loss, arm, 2), against(loss, arm, "frozen", 2), mean(held, arm)]
            cells += [mean(asked, arm), mean(with_mask, arm), against(better, arm, "ict", 1)]
            print(f"| {title} | {seeds[arm]} | " + " | ".join(cells) + " |")
    sentences, questions = (next(iter(values.values())).shape[1] for values in (loss, asked))
    print(f"\n{sentences:,} held-out sentences, {questions:,} questions of the training sets, none seen.")
    for other in ("ict", "warmup"):
        print(f"REALM − {ARMS[other]}, recall@5 of questions: {against(asked, 'realm', other, 1)}")
    if all(len(asked.get(arm, ())) > 1 for arm in ("realm", "ict")):
        print(f"REALM − {ARMS['ict']}, over seeds alone: {over_seeds(asked, 'realm', 'ict')}")
    names = sorted({file.stem.removeprefix("zero-shot-") for file in (folder / "study").glob("*/predictions/zero-shot-*.jsonl")})
    by_name = {name: measured(folder, f"zero-shot-{name}", within(5))[0] for name in names}
    print(f"\n| recall@5 | {' | '.join(names)} |\n" + "| --- " * (len(names) + 1) + "|")
    for arm, title in ARMS.items():
        if all(arm in values for values in by_name.values()):
            print(f"| {title} | " + " | ".join(f"{values[arm].mean():.1f}" for values in by_name.values()) + " |")
    print()


def table_1(folder: Path, part: str) -> None:
    files = {file.stem.removesuffix(f"-{part}") for file in (folder / "study").glob(f"*/predictions/*-{part}.jsonl")}
    names = sorted(name for name in files if not name.startswith("closed-book"))
    if not names:
        return
    scores: dict[str, Values] = {}
    seeds: dict[str, int] = {}
    for name in names:
        open_book, many = measured(folder, f"{name}-{part}", lambda row: 100.0 * row["correct"])
        closed, few = measured(folder, f"closed-book-{name}-{part}", lambda row: 100.0 * row["correct"])
        scores[name] = open_book | {f"{arm}-closed-book": values for arm, values in closed.items()}
        seeds |= many | {f"{arm}-closed-book": count for arm, count in few.items()}
    print("| | seeds | " + " | ".join(names) + " | all | vs ORQA |\n" + "| --- " * (len(names) + 4) + "|")
    for arm, title in ANSWERING.items():
        if all(arm in scores[name] for name in names):
            baseline = next((f"warmup-{how}" for how in ("projection", "as-is") if arm.endswith(how)), "warmup")
            known = [other for other in (arm, baseline) if all(other in scores[name] for name in names)]
            pooled = {other: np.concatenate([scores[name][other] for name in names], axis=1) for other in known}
            cells = []
            for name in [*names, ""]:
                values = scores[name][arm] if name else pooled[arm]
                low, high = bootstrap_interval(values.mean(0))
                cells.append(f"{mean(pooled, arm) if not name else f'{values.mean():.1f}'} [{low:.1f}, {high:.1f}]")
            print(f"| {title} | {seeds[arm]} | " + " | ".join(cells) + f" | {against(pooled, arm, baseline, 1)} |")
    print(f"\nExact match on the {part} questions, percent with 95% intervals.")


if __name__ == "__main__":
    table_2(Path(sys.argv[1]))
    table_1(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "dev")
