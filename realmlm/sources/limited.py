"""Parses large pages, all spreadsheets and all rich text in a process of its own, which is stopped when it
takes too long or too much memory.

The parsers are written in C or Rust, or are one regular expression: nothing else can stop them, and their
authors promise no bound on either. A spreadsheet of a few bytes may say that it has a cell in the last row
and column of millions.
"""

import base64
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from realmlm.sources import child, markup
from realmlm.sources.bounds import Unreadable
from realmlm.sources.headings import Document, Section
from realmlm.sources.sheets import Sheet, sheets

_SMALL = 2**18  # characters that are parsed here
LONGEST_S = 60  # of computing
_MEMORY = 2**32  # bytes


def html_document(html: str) -> Document:
    """`markup.html_document` within the limits."""
    title, sections = _limited(markup.html_document, html)
    return Document(title, [Section(tuple(path), text) for path, text in sections])


def spreadsheet(data: bytes) -> list[Sheet]:
    """`sheets.sheets` within the limits."""
    return [Sheet(*sheet) for sheet in _limited(sheets, base64.b64encode(data).decode(), small=0)]


def rich_text(marked: str) -> str:
    """`markup.rich_text` within the limits."""
    return str(_limited(markup.rich_text, marked, small=0))


def wiki_to_text(wikitext: str, *, hidden_links: frozenset[str]) -> str:
    """`markup.wiki_to_text` within the limits."""
    return str(_limited(markup.wiki_to_text, wikitext, hidden_links=hidden_links))


def _limited(parse: Callable[..., Any], marked: str, *, small: int = _SMALL, **options: Any) -> Any:
    if len(marked) <= small:
        return parse(marked, **options)
    parse("")  # complains here if its library is not installed
    command, surroundings = child.python(__name__)
    what = (parse.__module__, parse.__name__)
    given = json.dumps([*what, marked, options, LONGEST_S, _MEMORY], default=sorted).encode()
    ended = subprocess.run(command, input=given, capture_output=True, env=surroundings, check=False)
    if ended.returncode == 0:
        return json.loads(ended.stdout)
    said = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    if ended.returncode < 0 or "MemoryError" in said:
        limits = f"more than {LONGEST_S} s or {_MEMORY >> 30} GiB of memory"
        raise Unreadable(f"takes {limits} to parse; split it")
    raise Unreadable(said if ended.returncode == child.REFUSED else f"cannot be read ({said})")


def main() -> None:
    """In that process: parse what comes in, and write what comes of it."""
    module, name, marked, options, seconds, memory = json.loads(sys.stdin.buffer.read())
    child.limit(seconds, memory)
    try:
        parse = getattr(importlib.import_module(module), name)
        sys.stdout.write(json.dumps(parse(marked, **options)))
    except Unreadable as error:
        sys.stderr.write(str(error))
        sys.exit(child.REFUSED)
