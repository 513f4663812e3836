"""Queries with relevance judgements as BEIR keeps them: a folder of corpus.jsonl, queries.jsonl and qrels/.

`realmlm corpus FOLDER` reads its documents; each passage's source ends with the id of its document.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from realmlm.corpus.questions import packed_text
from realmlm.corpus.store import Corpus
from realmlm.errors import BadInput

_PACKED = ("", ".gz", ".xz", ".bz2")
_IDENTITY = re.compile(
    r"\.(?:jsonl|ndjson|csv|tsv|xml|parquet|arrow)(?:\.(?:gz|xz|bz2))?#(.+)", re.IGNORECASE | re.DOTALL
)


@dataclass(frozen=True)
class JudgedQuery:
    """A query, and how relevant documents are for it, by their ids."""

    id: str
    text: str
    relevance: dict[str, int]


def read_beir(folder: Path, split: str) -> list[JudgedQuery]:
    """The queries of a split, those that have judgements, in the order of `queries.jsonl`."""
    judged = _relevance(folder, split)
    queries = [query for query in _queries(_existing(folder / "queries.jsonl")) if query[0] in judged]
    if unknown := sorted(judged.keys() - {number for number, _ in queries}):
        raise BadInput(f"{folder / 'queries.jsonl'} has no query '{unknown[0]}', which is judged in {split}")
    return [JudgedQuery(number, text, judged[number]) for number, text in queries]


def document_id(corpus: Corpus, number: int) -> str:
    """The id of the document that a passage comes from."""
    source = corpus.source(number)
    if (found := _IDENTITY.search(source)) is None:
        why = f"passage {number} of {corpus.folder} comes from {source or 'nowhere'}, where no id is named"
        raise BadInput(f"{why}; make the corpus from the same folder: realmlm corpus FOLDER --out CORPUS")
    return found[1]


def _existing(path: Path) -> Path:
    """This file, or its compressed form."""
    places = [path.with_name(path.name + ending) for ending in _PACKED]
    if (found := next((place for place in places if place.exists()), None)) is None:
        raise BadInput(f"{path} does not exist; a BEIR folder has corpus.jsonl, queries.jsonl and qrels/")
    return found


def _queries(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(packed_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            yield str(record["_id"]), str(record["text"])
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            wanted = 'a query is {"_id": "…", "text": "…"}'
            raise BadInput(f"{path}:{number}: {wanted} ({type(error).__name__}: {error})") from error


def _relevance(folder: Path, split: str) -> dict[str, dict[str, int]]:
    """By query and document."""
    qrels = folder / "qrels"
    there = sorted({file.name.partition(".tsv")[0] for file in qrels.glob("*.tsv*")})
    if there and split not in there:
        raise BadInput(f"{qrels} has no {split}.tsv; choose --split {' or '.join(there)}")
    path = _existing(qrels / f"{split}.tsv")
    judged: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for number, line in enumerate(packed_text(path).splitlines(), start=1):
        if not line.strip() or (number == 1 and line.startswith("query-id")):
            continue
        try:
            query, document, grade = line.split("\t")
            judged[query][document] = int(grade)
        except ValueError as error:
            raise BadInput(f"{path}:{number}: a line is query<TAB>document<TAB>whole number") from error
    if not judged:
        raise BadInput(f"{path}: no judgement in it")
    return dict(judged)
