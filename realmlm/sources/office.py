"""Word documents to plain text in sections, through a maintained library.

Such files come from anywhere: one that is damaged, locked, scanned or far too large is refused with a reason,
in bounded time and memory.
"""

import io
import re
from collections.abc import Iterable, Iterator
from typing import Any

from realmlm.errors import require
from realmlm.sources.archive import Archive
from realmlm.sources.bounds import Unreadable, refuse_locked
from realmlm.sources.headings import Document, Heading, cut
from realmlm.sources.letters import clean
from realmlm.sources.markup import table_lines


def word_document(data: bytes) -> Document:
    """Title (of the document's properties, else its uppermost heading, else "") and text of a Word document,
    one line for each paragraph or row of a table."""
    docx = require("docx", extra="", why="reading Word documents")
    refuse_locked(data)
    try:
        Archive(data).check()
        document = docx.Document(io.BytesIO(data))
        stated = str(document.core_properties.title or "")
        stated = (
            "" if stated == "Word Document" else stated
        )  # python-docx's title where there are no properties
        return cut(clean(stated), _word_pieces(document))
    except (Unreadable, MemoryError):
        raise
    except Exception as error:  # errors of zip files and of XML, beside its own
        why = f"{type(error).__name__}: {error}"
        raise Unreadable(f"cannot be read as a Word document (.docx) ({why})") from error


def _word_pieces(document: Any) -> Iterator[Heading | str]:
    levels = _style_levels(document.styles)
    for element in document.element.body.iter(_word("p"), _word("tbl")):
        if next(element.iterancestors(_word("tbl")), None) is not None:  # it comes with its row
            continue
        if element.tag == _word("tbl"):
            yield from (f"{row}\n" for row in _word_table(element))
            continue
        line = _words(element)
        own = _outline_level(element)
        level = levels.get(element.style or "") if own is None else own
        yield f"{line}\n" if level is None else Heading(level, line)


def _style_levels(styles: Iterable[Any]) -> dict[str, int | None]:
    """The level of headings of each style: that of Word's own, 0 for its Title; or one that is given to it,
    or to the style that it is made from."""
    by_id = {style.style_id: style for style in styles}
    levels: dict[str, int | None] = {}
    for each in by_id:
        level = None
        chain: dict[str, None] = {}
        following: str | None = each
        while following is not None and following in by_id and following not in chain and level is None:
            chain[following] = None
            if following in levels:
                level = levels[following]
                break
            level = _own_level(by_id[following])
            following = by_id[following].element.basedOn_val
        levels |= dict.fromkeys(chain, level)
    return levels


def _own_level(style: Any) -> int | None:
    if named := re.fullmatch(r"Title|Heading (\d)", str(style.name)):
        return int(named[1] or 0)
    return _outline_level(style.element)


def _outline_level(element: Any) -> int | None:
    """The level in the outline that is given to a paragraph or a style, counted from 1; 9 is text in Word."""
    for given in element.iterfind(f"{_word('pPr')}/{_word('outlineLvl')}"):
        value = str(given.get(_word("val")))
        return int(value) + 1 if value in "012345678" else None
    return None


def _word_table(table: Any) -> list[str]:
    """A line for each row. The first is a header if the table says so, as Word's do by default."""

    def own(kind: str, within: Any) -> list[Any]:
        inside = within.iter(_word(kind))
        return [found for found in inside if next(found.iterancestors(within.tag)) is within]

    rows = [
        [" ".join(filter(None, map(_words, cell.iter(_word("p"))))) for cell in own("tc", row)]
        for row in own("tr", table)
    ]
    looks = [look.get(_word("firstRow")) for look in own("tblLook", table)]
    return table_lines(rows, header=bool(own("tblHeader", table)) or "1" in looks)


def _words(paragraph: Any) -> str:
    """The text of a paragraph, without text boxes anchored in it and without what was deleted or moved."""
    pieces = (
        _SIGNS.get(piece.tag, piece.text or "")
        for piece in paragraph.iter(_word("t"), *_SIGNS)
        if next(piece.iterancestors(_word("p"))) is paragraph
        and next(piece.iterancestors(*_LEFT_OUT), None) is None
    )
    return " ".join(clean("".join(pieces)).split())


def _word(name: str) -> str:
    return f"{{http://schemas.openxmlformats.org/wordprocessingml/2006/main}}{name}"


_SIGNS = {_word("tab"): " ", _word("br"): " ", _word("cr"): " ", _word("noBreakHyphen"): "-"}
# repeats the element beside it for older programs
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_LEFT_OUT = (_word("del"), _word("moveFrom"), _FALLBACK)
