"""Question sets: the formats of the open-QA benchmarks (`FORMATS`), recognised by content, read into one
record.

Each may be compressed with gzip, xz or bzip2. Anything else is a BadInput that names the file and the line.
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
from realmlm.log import say
from realmlm.sources.bounds import LARGEST
from realmlm.storage.artefacts import write_text
from realmlm.storage.remote import open_file, shown

FORMATS = """\
  JSON lines   {"question": "…", "answer": ["…", …]} per line (NQ-open);
               "answers", "id", "gold" (passage ids) and "source" are also read, and
               "context", the paragraph that it is asked of, with "title" and "start"
  JSON         [{"qId": "…", "qText": "…", "answers": ["…", …]}, …] (WebQuestions)
  SQuAD        {"data": [{"paragraphs": [{"qas": [{"question": "…", "answers": [{"text": "…"}]}]}]}]}
  TSV          question<TAB>['answer', …] (DPR)
  TSV          id<TAB>type<TAB>question<TAB>regular expression (CuratedTREC)"""

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_LARGEST_VALUE = 2**26  # characters of one JSON value: in memory it may take thirty times as much
_NOTHING = re.compile(r"(?!)")  # matches nowhere
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
    """Ids of passages that contain the answer, if the set names them."""
    source: int | None = None
    """Id of the passage that a masked sentence was taken from; it is never retrieved for that sentence."""
    context: str = ""
    """The paragraph that it is asked of, if the set has it: fine-tuning reads it; nothing else does."""
    title: str = ""
    """That paragraph's title."""
    start: int | None = None
    """The character of the paragraph at which the first answer begins."""


@lru_cache(maxsize=16384)
def compile_answer(pattern: str) -> re.Pattern[str]:
    """An answer that is a regular expression, compiled as for evaluating CuratedTREC (DrQA, ORQA, REALM). As
    there, one that is not valid matches nothing; `read_questions` says so."""
    try:
        return re.compile(pattern, flags=re.IGNORECASE | re.MULTILINE)
    except (re.error, RecursionError, OverflowError):
        return _NOTHING


def spread(count: int, limit: int) -> list[int]:
    """At most `limit` of `count` positions, evenly spread: what is taken is composed like the whole."""
    return np.unique(np.linspace(0, count - 1, min(limit, count)).round().astype(int)).tolist()


def read_questions(path: str | Path) -> list[Question]:
    """All questions of a file, in its order; repeated answers of a question appear once."""
    path = Path(path)
    text = packed_text(path)
    read = _read_json if text.lstrip().startswith(("{", "[")) else _read_tsv
    questions = read(path, text)
    if not questions:
        raise _unknown(f"{path}: no question in it")
    return questions


def write_questions(path: Path, questions: Iterable[Question]) -> None:
    """Write questions as JSON lines that `read_questions` reads; answers must be strings, not patterns."""
    lines = []
    for question in questions:
        assert not question.is_regex
        row: dict[str, Any] = {"id": question.id, "question": question.text, "answer": question.answers}
        if question.source is not None:
            row["source"] = question.source
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(lines))


def packed_text(path: Path) -> str:
    """The text of a file that may be compressed, if it is not too large."""
    try:
        with open_file(path) as raw, _OPENERS.get(path.suffix, io.BufferedReader)(raw) as stream:
            data: bytes = stream.read(LARGEST + 1)
    except FileNotFoundError as error:
        raise BadInput(f"{shown(path)}: no such question file; check the path") from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise BadInput(
            f"{shown(path)}: cannot be read ({error}); check the file or fetch it again"
        ) from error
    if len(data) > LARGEST:
        raise BadInput(f"{path}: larger than {LARGEST >> 20} MiB; split it")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = f"byte {data[error.start]:#04x}"
        raise BadInput(f"{path}:{line}: not UTF-8 ({byte}); convert the file to UTF-8") from error


# --- JSON ---------------------------------------------------------------------------------------------------


def _read_json(path: Path, text: str) -> list[Question]:
    if len(text) > _LARGEST_VALUE and not _is_json(text.lstrip().partition("\n")[0]):
        raise BadInput(f"{path}: JSON larger than {_LARGEST_VALUE >> 20} MiB; write it as JSON lines")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        if getattr(error, "msg", "") == "Extra data":  # another value follows the first: JSON lines
            return list(_read_json_lines(path, text))
        raise _broken(path, getattr(error, "lineno", 1), f"not valid JSON ({error})") from error
    if isinstance(document, dict) and "data" in document:
        return list(_read_squad(path, document["data"]))
    records = document if isinstance(document, list) else [document]
    return [_from_record(f"{path}: entry {number}", record) for number, record in enumerate(records, 1)]


def _is_json(line: str) -> bool:
    try:
        json.loads(line[:_LARGEST_VALUE])
    except (ValueError, RecursionError):
        return False
    return True


def _read_json_lines(path: Path, text: str) -> Iterator[Question]:
    # not splitlines: JSON strings may contain U+2028 and similar
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise _broken(path, number, f"not valid JSON ({error})") from error
            yield _from_record(f"{path}:{number}", record)


def _from_record(where: str, record: Any) -> Question:
    if not isinstance(record, dict):
        found = type(record).__name__
        raise _unknown(f"{where}: expected an object with a question, found {found}")
    fields = {}
    for field, names in _RECORD_NAMES.items():
        present = [record[name] for name in names if name in record]
        if not present and field != "id":
            raise _unknown(f"{where}: neither {names[0]!r} nor {names[1]!r} in it")
        fields[field] = present[0] if present else ""
    gold = record.get("gold", [])
    if not isinstance(gold, list) or not all(type(passage) is int for passage in gold):
        raise BadInput(f"{where}: 'gold' must be a list of passage ids (whole numbers), found {gold!r}")
    source = record.get("source")
    if source is not None and type(source) is not int:
        raise BadInput(f"{where}: 'source' must be the id of a passage (a whole number), found {source!r}")
    question = _question(where, fields["text"], fields["answers"], id=str(fields["id"]), gold=tuple(gold))
    return _with_context(where, replace(question, source=source), record, start=record.get("start"))


def _read_squad(path: Path, data: Any) -> Iterator[Question]:
    """Versions 1.1 and 2.0. Questions without an answer, which 2.0 has on purpose, are left out: they cannot
    be scored by matching."""
    number = 0
    try:
        for article in data:
            for paragraph in article["paragraphs"]:
                for entry in paragraph["qas"]:
                    number += 1
                    if answers := [answer["text"] for answer in entry["answers"]]:
                        where = f"{path}: question {number}"
                        question = _question(where, entry["question"], answers, id=str(entry.get("id", "")))
                        told = {"title": article.get("title", ""), "context": paragraph.get("context", "")}
                        yield _with_context(
                            where, question, told, start=entry["answers"][0].get("answer_start")
                        )
    except (KeyError, TypeError, AttributeError) as error:
        raise _unknown(f"{path}: not nested as in SQuAD, after question {number} ({error!r})") from error


# --- tables -------------------------------------------------------------------------------------------------


def _read_tsv(path: Path, text: str) -> list[Question]:
    lines = text.split("\n")
    number, line = next(((number, line) for number, line in enumerate(lines, 1) if line.strip()), (0, ""))
    if not number:
        raise _unknown(f"{path}: the file is empty")
    _, row = next(_csv_rows(path, text), (0, []))
    if len(row) > 1 and row[1].lstrip().startswith("["):
        return list(_read_dpr(path, text))
    if line.count("\t") == 3:
        return list(_read_trec(path, lines))
    raise _unknown(f"{path}:{number}: unknown format")


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank: line number and columns."""
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
    # without the quoting of CSV: in questions and patterns a quotation mark is only that
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        columns = line.rstrip("\r").split("\t")
        if len(columns) != 4:
            expected = "id<TAB>type<TAB>question<TAB>regular expression"
            raise _broken(path, number, f"{len(columns)} columns instead of {expected}")
        name, _, text, pattern = columns
        if compile_answer(pattern) is _NOTHING:
            wrong = f"the answer {pattern!r} is not a valid regular expression"
            say(f"{path}:{number}: {wrong}, so that nothing can be right, as in the published evaluation")
        yield _question(f"{path}:{number}", text, [pattern], is_regex=True, id=name)


# --- all ----------------------------------------------------------------------------------------------------


def _question(
    where: str, text: Any, answers: Any, *, is_regex: bool = False, id: str = "", gold: tuple[int, ...] = ()
) -> Question:
    """The record, if its parts are of the right types. Blank answers are dropped: they would match everything
    or nothing."""
    if not isinstance(text, str) or not text.strip():
        raise BadInput(f"{where}: the question is {text!r}; it must be text; correct or remove it")
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        wrong = f"{where}: the answers are {str(answers)[:80]!r}; they must be a list of strings"
        raise BadInput(f"{wrong}; correct or remove them")
    different = tuple(dict.fromkeys(answer for answer in answers if answer.strip()))
    if not different:
        raise BadInput(f"{where}: the question has no answer; add one or remove the question")
    return Question(text=text, answers=different, is_regex=is_regex, id=id, gold=gold)


def _with_context(where: str, question: Question, told: dict[str, Any], *, start: Any) -> Question:
    """The question with the paragraph that it comes with, if any."""
    texts = {name: told.get(name, "") for name in ("context", "title")}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise BadInput(f"{where}: '{name}' must be text, found {text!r}; correct or remove it")
    if start is not None and type(start) is not int:
        raise BadInput(f"{where}: 'start' must be a place in the context (a whole number), found {start!r}")
    return replace(question, **texts, start=start) if texts["context"].strip() else question


def _unknown(what: str) -> BadInput:
    return BadInput(f"{what}; accepted formats:\n{FORMATS}")


def _broken(path: Path, line: int, what: str) -> BadInput:
    return BadInput(f"{path}:{line}: {what}; correct or remove the line")
