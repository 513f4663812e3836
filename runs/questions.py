"""Questions to train on and to choose by: `python runs/questions.py RAW OUT`

RAW has the public question sets in one folder each: nq/{train.tsv,train-reading.jsonl.xz},
triviaqa/train.tsv, webquestions/{trainmodel,val}.json, curatedtrec/train.tsv,
squad/{train-qa,train-reading}.jsonl.xz, entityquestions/{train,dev}.jsonl.xz, opentrivia/train.jsonl.xz.
OUT gets questions/NAME-{train,reading,dev}.* for runs/small.sh and, for answering from few documents, small/:
300 paragraphs of SQuAD that nothing is trained on, and the questions asked of them; documents.jsonl has the
paragraphs around them too, all with a title. Small sets are repeated, large ones sampled: 217,000 questions
in all. questions/NAME-test.* are test questions, where RAW has them as test-a.*: to be measured once, at the
end. unseen/ has NQ's, TriviaQA's, WebQuestions' and CuratedTREC's once each, for models that have learned
from no question (runs/clean.sh).
"""

import argparse
import ast
import csv
import json
import lzma
import random
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lines import write

Row = dict[str, Any]
PARAGRAPHS = 300  # of SQuAD, kept apart
NEIGHBOURS = 2  # paragraphs before and after each of them, for a model to be calibrated on
DEV = 1000  # questions of a set, its last ones, where it has no dev set of its own
ENTITIES = 1500  # questions of EntityQuestions' dev set


def packed(path: Path) -> list[Row]:
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    for row in rows:
        answers = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
        within = row.get("context")
        row["answer"] = [a for a in answers if a.strip() and (within is None or a in within)]
    return [row for row in rows if row["answer"]]


def listed(path: Path, *, quoted: bool) -> list[Row]:
    """Tab-separated questions, their answers a Python list."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = (
            csv.reader(file, delimiter="\t") if quoted else (line.rstrip("\n").split("\t") for line in file)
        )
        return [{"question": question, "answer": ast.literal_eval(answers)} for question, answers in rows]


def open_form(rows: Iterable[Row]) -> list[Row]:
    return [{"question": row["question"], "answer": row["answer"]} for row in rows]


def letters(question: str) -> str:
    return re.sub(r"\W+", "", question.lower())


def beside(reading: list[Row], apart: set[str]) -> list[str]:
    """These paragraphs with those of the same articles around them."""
    order = list(dict.fromkeys(row["context"] for row in reading))
    places = [place for place, text in enumerate(order) if text in apart]
    near = {place + step for place in places for step in range(-NEIGHBOURS, NEIGHBOURS + 1)}
    return [order[place] for place in sorted(near) if 0 <= place < len(order)]


def title_of(text: str) -> str:
    """What might stand above a paragraph, as in people's documents: the name that is most often in it."""
    names = Counter(re.findall(r"(?<=[^.!?] )[A-Z][\w’'-]+(?: [A-Z][\w’'-]+)*", text))
    return names.most_common(1)[0][0] if names else " ".join(text.split()[:3])


def squad(raw: Path, out: Path, dice: random.Random) -> None:
    """Paragraphs kept apart, an open dev set, and the rest: with their paragraph, and a sample without."""
    reading = packed(raw / "squad/train-reading.jsonl.xz")
    paragraphs = sorted({row["context"] for row in reading})
    dice.shuffle(paragraphs)
    apart = sorted(paragraphs[:PARAGRAPHS])
    write(
        out / "small/paragraphs.jsonl",
        [{"id": f"p{number}", "title": "", "text": text} for number, text in enumerate(apart)],
    )
    near = beside(reading, set(apart))
    write(
        out / "small/documents.jsonl",
        [{"id": f"d{number}", "title": title_of(text), "text": text} for number, text in enumerate(near)],
    )
    asked = [row for row in reading if row["context"] in set(apart)]
    write(out / "small/small-dev.jsonl", open_form(asked))
    seen = {letters(row["question"]) for row in asked}
    others = [row for row in packed(raw / "squad/train-qa.jsonl.xz") if letters(row["question"]) not in seen]
    dice.shuffle(others)
    dev = others[:DEV]
    write(out / "questions/squad-dev.jsonl", dev)
    seen |= {letters(row["question"]) for row in dev}
    reading = [row for row in reading if letters(row["question"]) not in seen]
    # once under a title and once without: a passage that has none need not hold the answer
    under = [row | {"title": title_of(row["context"])} for row in reading]
    write(out / "questions/squad-reading.jsonl", under + reading)
    seen |= {letters(row["question"]) for row in reading}
    write(
        out / "questions/squad-train.jsonl",
        [row for row in others[DEV:] if letters(row["question"]) not in seen][:40000],
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("raw", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    raw, out = options.raw, options.out
    questions = out / "questions"
    dice = random.Random(17)
    squad(raw, out, dice)
    for name, times, rows in (
        ("nq", 4, listed(raw / "nq/train.tsv", quoted=False)),
        ("triviaqa", 3, listed(raw / "triviaqa/train.tsv", quoted=True)),
    ):
        write(questions / f"{name}-dev.jsonl", rows[-DEV:])
        write(questions / f"{name}-train.jsonl", times * rows[:-DEV])
        write(out / f"unseen/{name}.jsonl", rows[:-DEV])
    web = json.loads((raw / "webquestions/trainmodel.json").read_text(encoding="utf-8"))
    (questions / "webquestions-train.json").write_text(json.dumps(5 * web), encoding="utf-8")
    (out / "unseen/webquestions.json").write_text(json.dumps(web), encoding="utf-8")
    (questions / "webquestions-dev.json").write_bytes((raw / "webquestions/val.json").read_bytes())
    trec = (raw / "curatedtrec/train.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (questions / "curatedtrec-train.tsv").write_text("".join(5 * trec[:-300]), encoding="utf-8")
    (out / "unseen/curatedtrec.tsv").write_text("".join(trec[:-300]), encoding="utf-8")
    (questions / "curatedtrec-dev.tsv").write_text("".join(trec[-300:]), encoding="utf-8")
    write(questions / "nq-reading.jsonl", 3 * packed(raw / "nq/train-reading.jsonl.xz"))
    for name, place, count in (
        ("trivia-train", "opentrivia/train", 16000),
        ("entities-train", "entityquestions/train", 10000),
        ("entities-dev", "entityquestions/dev", ENTITIES),
    ):
        rows = open_form(packed(raw / f"{place}.jsonl.xz"))
        write(questions / f"{name}.jsonl", dice.sample(rows, min(count, len(rows))))
    for test in sorted(raw.glob("*/test-a.*")):
        (questions / f"{test.parent.name}-test{test.suffix}").write_bytes(test.read_bytes())


if __name__ == "__main__":
    main()
