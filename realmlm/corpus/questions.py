"""Question sets: the formats of the open-QA benchmarks, read into one record. The format is recognised by the
content, not by the name.

FORMATS lists what is accepted; each may be packed with gzip, xz or bzip2. Anything else is a BadInput that
names the file and the line.
"""

import ast
import bz2
import csv
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from realmlm.errors import BadInput
from realmlm.storage.artefacts import write_text

FORMATS = """\
  JSON lines   {"question": "…", "answer": ["…", …]} per line (NQ-open);
               "answers", "id", "gold" (passage ids) and "source" are also read
  JSON         [{"qId": "…", "qText": "…", "answers": ["…", …]}, …] (WebQuestions)
  SQuAD        {"data": [{"paragraphs": [{"qas": [{"question": "…", "answers": [{"text": "…"}]}]}]}]}
  TSV          question<TAB>['answer', …] (DPR)
  TSV          id<TAB>type<TAB>question<TAB>regular expression (CuratedTREC)"""

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_RECORD_NAMES = {"text": ("question", "qText"), "answers": ("answer", "answers"), "id": ("id", "qId")}


@dataclass(frozen=True)
class Question:
    """A question and every answer that counts as right."""

    text: str
    answers: tuple[str, ...]
    """Strings, or regular expressions where `is_regex`."""
    is_regex: bool = False
    id: str = ""
    gold: tuple[int, ...] = ()
    """Ids of passages known to hold the answer, where the set tells."""
    source: int | None = None
    """Id of the passage a masked sentence was taken from; it is never offered for it."""


@lru_cache(maxsize=16384)
def compile_answer(pattern: str) -> re.Pattern[str]:
    """An answer that is a regular expression, with the flags under which CuratedTREC is evaluated (DrQA,
    ORQA, REALM)."""
    try:
        return re.compile(pattern, flags=re.IGNORECASE | re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadInput(
            f"the answer {pattern!r} is not a valid regular expression ({error}); correct it or leave the "
            "question out"
        ) from error


def spread(count: int, limit: int) -> list[int]:
    """At most `limit` of `count` positions, evenly spread: a smaller set of like composition."""
    return np.unique(np.linspace(0, count - 1, min(limit, count)).round().astype(int)).tolist()


def read_questions(path: str | Path) -> list[Question]:
    """All questions of a file, in its order; repeated answers of a question appear once."""
    path = Path(path)
    text = _read_text(path)
    read = _read_json if text.lstrip().startswith(("{", "[")) else _read_tsv
    questions = read(path, text)
    if not questions:
        raise BadInput(f"{path}: no question in it; accepted formats:\n{FORMATS}")
    return questions


def write_questions(path: Path, questions: Iterable[Question]) -> None:
    """As JSON lines that `read_questions` reads; answers must be strings, not patterns."""
    rows = []
    for question in questions:
        assert not question.is_regex
        source = {} if question.source is None else {"source": question.source}
        rows.append(
            {"id": question.id, "question": question.text, "answer": list(question.answers), **source}
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _read_text(path: Path) -> str:
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as stream:
            data: bytes = stream.read()
    except FileNotFoundError as error:
        raise BadInput(f"{path}: no such question file; check the path") from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise BadInput(f"{path}: cannot be read ({error}); check the file or fetch it again") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise BadInput(
            f"{path}:{line}: not UTF-8 (byte {error.object[error.start]:#04x}); convert the file to UTF-8"
        ) from error


# --- JSON ---------------------------------------------------------------------------------------------------


def _read_json(path: Path, text: str) -> list[Question]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        # the first value was whole and another follows: JSON lines
        if getattr(error, "msg", "") == "Extra data":
            return list(_read_json_lines(path, text))
        raise _broken(path, getattr(error, "lineno", 1), f"not valid JSON ({error})") from error
    if isinstance(document, dict) and "data" in document:
        return list(_read_squad(path, document["data"]))
    records = document if isinstance(document, list) else [document]
    return [_from_record(f"{path}: entry {number}", record) for number, record in enumerate(records, 1)]


def _read_json_lines(path: Path, text: str) -> Iterator[Question]:
    # not splitlines: JSON strings may hold U+2028 and its like
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise _broken(path, number, f"not valid JSON ({error})") from error
            yield _from_record(f"{path}:{number}", record)


def _from_record(where: str, record: Any) -> Question:
    if not isinstance(record, dict):
        raise BadInput(
            f"{where}: expected an object with a question, found {type(record).__name__}; accepted "
            f"formats:\n{FORMATS}"
        )
    found = {}
    for field, names in _RECORD_NAMES.items():
        present = [record[name] for name in names if name in record]
        if not present and field != "id":
            raise BadInput(
                f"{where}: neither {names[0]!r} nor {names[1]!r} in it; accepted formats:\n{FORMATS}"
            )
        found[field] = present[0] if present else ""
    gold = record.get("gold", [])
    if not isinstance(gold, list) or not all(type(passage) is int for passage in gold):
        raise BadInput(f"{where}: 'gold' must be a list of passage ids (whole numbers), found {gold!r}")
    source = record.get("source")
    if source is not None and type(source) is not int:
        raise BadInput(f"{where}: 'source' must be the id of a passage (a whole number), found {source!r}")
    question = _question(where, found["text"], found["answers"], id=str(found["id"]), gold=tuple(gold))
    return replace(question, source=source)


def _read_squad(path: Path, data: Any) -> Iterator[Question]:
    """Versions 1.1 and 2.0. Questions without an answer (2.0 has them on purpose) cannot be scored by
    matching and are left out."""
    number = 0
    try:
        for article in data:
            for paragraph in article["paragraphs"]:
                for entry in paragraph["qas"]:
                    number += 1
                    if answers := [answer["text"] for answer in entry["answers"]]:
                        yield _question(
                            f"{path}: question {number}",
                            entry["question"],
                            answers,
                            id=str(entry.get("id", "")),
                        )
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"{path}: not nested as in SQuAD, after question {number} ({error!r}); accepted "
            f"formats:\n{FORMATS}"
        ) from error


# --- tables -------------------------------------------------------------------------------------------------


def _read_tsv(path: Path, text: str) -> list[Question]:
    lines = text.split("\n")
    number, line = next(((number, line) for number, line in enumerate(lines, 1) if line.strip()), (0, ""))
    if not number:
        raise BadInput(f"{path}: the file is empty; accepted formats:\n{FORMATS}")
    _, row = next(_csv_rows(path, text), (0, []))
    if len(row) > 1 and row[1].lstrip().startswith("["):
        return list(_read_dpr(path, text))
    if line.count("\t") == 3:
        return list(_read_trec(path, lines))
    raise BadInput(f"{path}:{number}: unknown format; accepted formats:\n{FORMATS}")


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """(line, columns) of the rows that are not blank."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter="\t")
    try:
        yield from ((reader.line_num, row) for row in reader if "".join(row).strip())
    except csv.Error as error:
        raise _broken(path, reader.line_num, f"not a readable row ({error})") from error


def _read_dpr(path: Path, text: str) -> Iterator[Question]:
    for number, row in _csv_rows(path, text):
        if len(row) != 2:
            raise _broken(path, number, f"{len(row)} columns instead of question<TAB>['answer', …]")
        try:
            answers = ast.literal_eval(row[1].strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
            raise _broken(path, number, "the answers are not a list such as ['one', 'two']") from error
        yield _question(f"{path}:{number}", row[0], answers)


def _read_trec(path: Path, lines: Iterable[str]) -> Iterator[Question]:
    # no csv quoting here: questions and patterns use quotation marks as themselves
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        columns = line.rstrip("\r").split("\t")
        if len(columns) != 4:
            raise _broken(
                path,
                number,
                f"{len(columns)} columns instead of id<TAB>type<TAB>question<TAB>regular expression",
            )
        name, _, text, pattern = columns
        try:
            compile_answer(pattern)
        except BadInput as error:
            raise BadInput(f"{path}:{number}: {error}") from error
        yield _question(f"{path}:{number}", text, [pattern], is_regex=True, id=name)


# --- all ----------------------------------------------------------------------------------------------------


def _question(
    where: str, text: Any, answers: Any, *, is_regex: bool = False, id: str = "", gold: tuple[int, ...] = ()
) -> Question:
    """The record, if the parts are what they should be. Blank answers are dropped: they would match
    everything or nothing."""
    if not isinstance(text, str) or not text.strip():
        raise BadInput(f"{where}: the question is {text!r}; it must be text; correct or remove it")
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise BadInput(
            f"{where}: the answers are {str(answers)[:80]!r}; they must be a list of strings; correct or "
            "remove them"
        )
    kept = tuple(dict.fromkeys(answer for answer in answers if answer.strip()))
    if not kept:
        raise BadInput(f"{where}: the question has no answer; add one or remove the question")
    return Question(text=text, answers=kept, is_regex=is_regex, id=id, gold=gold)


def _broken(path: Path, line: int, what: str) -> BadInput:
    return BadInput(f"{path}:{line}: {what}; correct or remove the line")
