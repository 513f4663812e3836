"""Tables 1 and 2 in miniature on real text, from what runs/text_study.sh has made. `python runs/text_table.py
FOLDER [dev|test]`

Each cell is a mean over all questions (or held-out sentences) and seeds, the seeds' own means in parentheses;
brackets are 95% intervals of the paired difference to the arm that is named, bootstrapped over questions,
after the mean over an arm's seeds was taken for each question: how much another seed would change is not in
them, the parentheses show it. An arm or seed that lacks a file is left out.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from world_table import T_95

from realmlm.evaluation.intervals import bootstrap_interval, paired_interval

ARMS = {
    "realm": "REALM, pointing",
    "realm-longer": "REALM, pointing, 2,000 steps",
    "plain": "REALM, the paper's loss alone",
    "realm-retriever": "REALM's retriever, baseline reader",
    "realm-reader": "baseline retriever, REALM's reader",
    "warmup": "baseline (warm-up only)",
    "frozen": "joint, retriever frozen",
    "ict": "ICT continued",
    "ict-longer": "ICT continued, twice as long, at a third of the rate",
    "uniform": "REALM, the paper's loss alone, uniform masks",
    "random-span": "REALM, the paper's loss alone, random-span masks",
    "recurring": "only words that recur",
    "glimpses": "REALM, pointing, queries half of the time a glimpse of the sentence",
    "tagger": "REALM, pointing, spans of the learned tagger",
    "stale": "REALM, pointing, index never refreshed",
    "no-null": "REALM, pointing, no null document",
    "same-text": "REALM, pointing, X = Z",
    "own-passage": "REALM, pointing, X = Z, own passage allowed",
    "news": "REALM, pointing, X = Wikinews",
    "bm25": "BM25",  # retrieval alone: no likelihood
}
ANSWERING = {
    "bm25": "BM25 + reader",
    "warmup": "ICT only (ORQA)",
    "warmup-closed-book": "its reader, passages taken away",
    "hard-em": "ICT only, hard EM",
    "ict": "ICT continued",
    "plain": "REALM, the paper's loss alone",
    "realm": "REALM, pointing",
    "realm-closed-book": "its reader, passages taken away",
    "realm-longer": "REALM, pointing, 2,000 steps",
    "glimpses": "REALM, pointing, glimpses",
    "news": "REALM, pointing, X = Wikinews",
    "warmup-projection": "ICT only, of the query tower only the projection learns",
    "realm-projection": "REALM, pointing, likewise",
    "realm-longer-projection": "REALM, pointing, 2,000 steps, likewise",
    "warmup-as-is": "ICT only, only the reader learns",
    "realm-as-is": "REALM, pointing, likewise",
    "realm-longer-as-is": "REALM, pointing, 2,000 steps, likewise",
    "realm-retriever-as-is": "REALM's retriever under the warm-up's reader, likewise",
}
Take = Callable[[dict[str, Any]], float]
Values = dict[str, np.ndarray]  # of every arm one value a seed and question [S, N]


def rows(file: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in file.read_text("utf-8").split("\n") if line
    ]  # a text may hold other breaks of lines


def measured(folder: Path, names: list[str], take: Take) -> Values:
    """One value a question for every arm and seed that has predictions of all these names."""
    by_arm: dict[str, list[np.ndarray]] = defaultdict(list)
    for place in sorted((folder / "study").iterdir()):
        files = [place / "predictions" / f"{name}.jsonl" for name in names]
        if all(file.exists() for file in files):
            by_arm[place.name.rpartition("-")[0]].append(
                np.array([take(row) for file in files for row in rows(file)])
            )
    return {arm: np.array(seeds) for arm, seeds in by_arm.items()}


def named(folder: Path, pattern: str) -> list[str]:
    return sorted({file.stem for file in (folder / "study").glob(f"*/predictions/{pattern}.jsonl")})


def question_sets(folder: Path, part: str) -> list[str]:
    return [name for name in named(folder, f"*-{part}") if not name.startswith("closed-book-")]


def exact_match(row: dict[str, Any]) -> float:
    return 100.0 * row["correct"]


def minutes(folder: Path, arm: str, *commands: str) -> str:
    """What these commands took by the clock, mean over the seeds that ran them; it includes whatever else the
    GPU did meanwhile."""
    logs = [rows(file) for file in sorted((folder / "study").glob(f"{arm}-[0-9]*/seconds.jsonl"))]
    spent = [sum(row["seconds"] for row in log if row["command"].startswith(commands)) for log in logs]
    return f"{np.mean([seconds for seconds in spent if seconds]) / 60:.1f}" if any(spent) else "–"


def within(depth: int) -> Take:
    return lambda row: (
        100.0 * (row["first_passage_with_answer"] is not None and row["first_passage_with_answer"] <= depth)
    )


def against(values: Values, arm: str, other: str, digits: int) -> str:
    if arm not in values or other not in values or arm == other:
        return ""
    low, high = paired_interval(values[arm].mean(0), values[other].mean(0))
    difference = (
        f"{values[arm].mean() - values[other].mean():+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
    )
    return difference.replace("-", "−")


def interval_of(values: np.ndarray) -> str:
    low, high = bootstrap_interval(values)
    return f"[{low:.1f}, {high:.1f}]"


def over_seeds(values: Values, arm: str, other: str) -> str:
    """The difference and half its 95% interval when seeds alone are counted, not questions (Welch's t)."""
    means = [values[name].mean(1) for name in (arm, other)]
    parts = [float(np.var(some, ddof=1)) / len(some) for some in means]
    freedom = int(
        sum(parts) ** 2 / sum(part**2 / (len(some) - 1) for part, some in zip(parts, means, strict=True))
    )
    return (
        f"{means[0].mean() - means[1].mean():+.1f} ± "
        f"{T_95.get(max(1, freedom), 1.96) * sum(parts) ** 0.5:.1f}"
    )


def mean(values: Values, arm: str, digits: int = 1) -> str:
    if arm not in values:
        return "–"
    seeds = [f"{seed.mean():.{digits}f}" for seed in values[arm]]
    return f"{values[arm].mean():.{digits}f}" + (f" ({', '.join(seeds)})" if len(seeds) > 1 else "")


def table_2(folder: Path) -> None:
    loss = measured(folder, ["held-out"], lambda row: -row["log_p"])
    held = measured(folder, ["held-out"], within(5))
    asked = measured(folder, named(folder, "zero-shot-*"), within(5))
    with_mask = measured(folder, named(folder, "with-mask-*"), within(5))
    sets = question_sets(folder, "dev")
    answered = measured(folder, sets, exact_match) if sets else {}
    columns = [
        "−log p(y\\|x), nats",
        "vs frozen",
        "recall@5: held-out sentences",
        "questions",
        "vs ICT continued",
        "and [MASK]",
        "EM, dev",
        "minutes",
    ]
    print(f"| | seeds | {' | '.join(columns)} |\n" + "| --- " * (len(columns) + 2) + "|")
    titles = ARMS | {arm: arm for arm in asked if arm not in ARMS}  # arms of one's own under their own names
    for arm, title in titles.items():
        if arm in asked:
            cells = [
                mean(loss, arm, 2),
                against(loss, arm, "frozen", 2),
                mean(held, arm),
                mean(asked, arm),
                against(asked, arm, "ict", 1),
            ]
            cells += [mean(with_mask, arm), mean(answered, arm), minutes(folder, arm, "pretrain", "warmup")]
            print(f"| {title} | {len(asked[arm])} | " + " | ".join(cells) + " |")
    sentences, questions = (next(iter(values.values())).shape[1] for values in (loss, asked))
    print(f"\n{sentences:,} held-out sentences, {questions:,} questions of the training sets, none seen.")
    for other in ("ict", "ict-longer", "warmup"):
        print(f"REALM − {ARMS[other]}, recall@5 of questions: {against(asked, 'realm', other, 1)}")
    if all(len(asked.get(arm, ())) > 1 for arm in ("realm", "ict")):
        print(f"REALM − {ARMS['ict']}, over seeds alone: {over_seeds(asked, 'realm', 'ict')}")
    names = named(folder, "zero-shot-*")
    by_name = {name: measured(folder, [name], within(5)) for name in names}
    print(
        f"\n| recall@5 | {' | '.join(name.removeprefix('zero-shot-') for name in names)} |\n"
        + "| --- " * (len(names) + 1)
        + "|"
    )
    for arm, title in titles.items():
        if arm in asked:
            print(
                f"| {title} | "
                + " | ".join(f"{values[arm].mean():.1f}" for values in by_name.values())
                + " |"
            )
    print()


def table_1(folder: Path, part: str) -> None:
    names = question_sets(folder, part)
    if not names:
        return
    closed = measured(folder, [f"closed-book-{name}" for name in names], exact_match)
    pooled = measured(folder, names, exact_match) | {
        f"{arm}-closed-book": values for arm, values in closed.items()
    }
    sizes = [next(iter(measured(folder, [name], exact_match).values())).shape[1] for name in names]
    heads = [f"{name.removesuffix(f'-{part}')} ({size:,})" for name, size in zip(names, sizes, strict=True)]
    print(
        "| | seeds | "
        + " | ".join(heads)
        + " | all | vs ORQA | minutes |\n"
        + "| --- " * (len(names) + 5)
        + "|"
    )
    for arm, title in (ANSWERING | {arm: arm for arm in pooled if arm not in ANSWERING}).items():
        if arm in pooled:
            by_set = np.split(pooled[arm].mean(0), np.cumsum(sizes)[:-1])
            cells = [f"{values.mean():.1f} {interval_of(values)}" for values in by_set]
            cells.append(f"{mean(pooled, arm)} {interval_of(pooled[arm].mean(0))}")
            baseline = next(
                (f"warmup-{how}" for how in ("projection", "as-is") if arm.endswith(how)), "warmup"
            )
            cells += [against(pooled, arm, baseline, 1), minutes(folder, arm, "finetune")]
            print(f"| {title} | {len(pooled[arm])} | " + " | ".join(cells) + " |")
    print(f"\nExact match on the {part} questions, percent with 95% intervals.")


if __name__ == "__main__":
    table_2(Path(sys.argv[1]))
    table_1(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "dev")
