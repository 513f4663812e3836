"""Spreadsheets to documents, through a maintained library: a section for each sheet, a line for each row."""

import base64
import io
from collections.abc import Iterator
from datetime import date, datetime, time
from typing import Any

from realmlm.errors import require
from realmlm.sources.bounds import Unreadable
from realmlm.sources.headings import Document, Section
from realmlm.sources.tables import Record, records, usual_width

_DIGITS = 15  # of a number, as spreadsheets show them


def spreadsheet(packed: str) -> Document:
    """The sheets of a workbook that are not hidden, given in base64. Of several each has its name as heading;
    rows are read as those of a CSV file are."""
    calamine = require("python_calamine", extra="", why="reading spreadsheets")
    if not packed:
        return Document("", [])
    try:
        book = calamine.CalamineWorkbook.from_filelike(io.BytesIO(base64.b64decode(packed)))
        shown = [sheet.name for sheet in book.sheets_metadata if _is_shown(sheet, calamine)]
        tables = [(name, list(_records(book.get_sheet_by_name(name).to_python()))) for name in shown]
    except calamine.CalamineError as error:
        raise Unreadable(f"cannot be read as a spreadsheet ({error})") from error
    filled = [(name, table) for name, table in tables if table]
    return Document("", [section for name, table in filled for section in _sections(name, table, filled)])


def _is_shown(sheet: Any, calamine: Any) -> bool:
    kinds = calamine.SheetTypeEnum.WorkSheet, calamine.SheetVisibleEnum.Visible
    return (sheet.typ, sheet.visible) == kinds


def _sections(name: str, table: list[Record], sheets: list[Any]) -> Iterator[Section]:
    above = (name,) if len(sheets) > 1 else ()
    for record in table:
        yield Section((*above, record.title) if record.title else above, record.text)


def _records(cells: list[list[Any]]) -> Iterator[Record]:
    rows = [[_said(cell) for cell in row] for row in cells]
    width = usual_width(map(_trimmed, rows)) or max(map(len, rows), default=0)
    yield from records(enumerate(rows, 1), width, on_bad=_refuse)


def _trimmed(row: list[str]) -> list[str]:
    """Without the empty cells at its end."""
    return row[: max((place for place, cell in enumerate(row, 1) if cell), default=0)]


def _refuse(what: str, row: int) -> None:
    raise Unreadable(f"row {row} {what}")


def _said(cell: Any) -> str:
    """The value of a cell as text, dates and times in the form of ISO 8601."""
    match cell:
        case bool():
            return str(cell).upper()
        case float():
            return f"{cell:.{_DIGITS}g}"
        case datetime() if cell.time() == time():
            return cell.date().isoformat()
        case datetime():
            return cell.isoformat(" ", "minutes")
        case time():
            return cell.isoformat("minutes")
        case date():
            return cell.isoformat()
        case _:
            return str(cell).strip()
