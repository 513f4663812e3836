"""How many questions can be answered from their own article: `python runs/covered.py ARTICLES QUESTIONS`

ARTICLES is a folder of JSON lines with titles and texts, QUESTIONS a set whose questions come with the
title of theirs (nq/train-reading.jsonl.xz). Prints for how many of them ARTICLES has an article of that
title, and for how many it holds the answer. Other articles may say it too, and an article may have another
title by now: it is a measure of what can be hoped for, not a bound.
"""

import json
import lzma
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from realmlm.corpus.questions import Question
from realmlm.evaluation.matching import answer_spans


def rows(file: Path) -> Iterator[dict[str, Any]]:
    with (
        lzma.open(file, "rt", encoding="utf-8")
        if file.suffix == ".xz"
        else file.open(encoding="utf-8") as lines
    ):
        yield from map(json.loads, lines)


def main(articles: Path, questions: Path) -> None:
    text_of = {
        row["title"].casefold(): row["text"] for file in sorted(articles.iterdir()) for row in rows(file)
    }
    asked = list(rows(questions))
    there = [row for row in asked if row["title"].casefold() in text_of]
    said = [
        row
        for row in there
        if answer_spans(text_of[row["title"].casefold()], Question(row["question"], tuple(row["answer"])))
    ]
    for name, some in (("their article is there", there), ("and holds the answer", said)):
        print(f"{name:24s} {len(some):6,} of {len(asked):,}  {100 * len(some) / len(asked):.1f}%")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
