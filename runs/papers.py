"""Questions about papers as people have them, to learn reading them: `python runs/papers.py OUT`

runs/papers has folders of made-up papers (leases, minutes, price lists, manual pages, news) with questions as
people ask them, both written for this by a language model; `unanswerable.jsonl` are those that no paper of
the folder answers. Of each folder FOLDER in `learn`, OUT/questions/FOLDER-reading.jsonl gets the questions,
each with the passage that answers it and where. Of the others nothing is learned: `choose` is for comparing
models (its questions become OUT/small/papers-dev.jsonl), `calibrate` for how sure they are. With `--times N`
each question to learn is written N times, for a training that asks many others beside them.
"""

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lines import write

from realmlm.corpus.build import build_corpus
from realmlm.corpus.store import Passage
from realmlm.settings import BuildCorpus

PAPERS = Path(__file__).with_suffix("")
MARKUP = re.compile(r"[*_`]|<[^>]*>")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--times", type=int, default=1)
    options = parser.parse_args()
    for folder in sorted((PAPERS / "learn").iterdir()):
        write(
            options.out / "questions" / f"{folder.name}-reading.jsonl", options.times * list(lessons(folder))
        )
    write(options.out / "small" / "papers-dev.jsonl", questions(PAPERS / "choose" / "mixed"))


def questions(folder: Path) -> list[dict[str, Any]]:
    """Those that the papers of a folder answer."""
    text = (folder / "questions.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def lessons(folder: Path) -> Iterator[dict[str, Any]]:
    """The questions of a folder with their passages; without the few whose answer runs across two of them."""
    passages: dict[str, list[Passage]] = defaultdict(list)
    with TemporaryDirectory() as place:
        corpus = build_corpus(
            BuildCorpus(
                sources=(folder / "docs",),
                out=Path(place) / "corpus",
                tokenizer="mini",
                max_wordpieces=128,  # as the bundled model reads them
                workers=1,
            )
        )
        for passage in corpus.passages(range(len(corpus))):
            passages[Path(passage.file).name].append(passage)
    for question in questions(folder):
        if (line := with_passage(question, passages[question["file"]])) is not None:
            yield line


def with_passage(question: dict[str, Any], passages: Iterable[Passage]) -> dict[str, Any] | None:
    """The question with the passage, and the place in it, where most words of the told sentence stand around
    its answer; of several forms of the answer the first, which is the best."""
    answer = r"\s+".join(map(re.escape, MARKUP.sub("", question["answer"][0]).split()))
    # of rows and forms a passage has the words in another order, with the names of columns between them
    told = set(words(question["sentence"]))
    best: tuple[float, Passage, re.Match[str]] | None = None
    for passage in passages:
        for match in re.finditer(answer, passage.text):
            around = words(line_around(passage.text, *match.span(), room=len(question["sentence"])))
            share = len(told.intersection(around)) - 0.01 * len(around)
            if best is None or share > best[0]:
                best = share, passage, match
    if best is None:
        return None
    _, passage, match = best
    where = {"context": passage.text, "title": passage.title, "start": match.start()}
    return {"question": question["question"], "answer": [match[0]], **where}


def line_around(text: str, start: int, end: int, *, room: int) -> str:
    """The line of a text that these characters stand in, and of long ones only so much."""
    first = max(text.rfind("\n", 0, start) + 1, start - room)
    after = text.find("\n", end)
    return text[first : min(after if after >= 0 else len(text), end + room)]


def words(text: str) -> list[str]:
    return [word.casefold() for word in re.findall(r"\w+", MARKUP.sub("", text))]


if __name__ == "__main__":
    main()
