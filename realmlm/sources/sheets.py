"""Spreadsheets, through a maintained library: what their cells say, sheet by sheet."""

import base64
import io
from datetime import date, datetime, time, timedelta
from itertools import chain
from typing import Any, NamedTuple

from realmlm.errors import require
from realmlm.sources.bounds import Unreadable, refuse_locked

SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods")
MOST_CHARACTERS = 50_000_000  # of all cells
_DIGITS = 15  # of a number, as spreadsheets show them


class Sheet(NamedTuple):
    """A sheet of a workbook; its rows have the same number of cells."""

    name: str
    rows: list[list[str]]
    damage: str = ""  # why it could not be read


def sheets(packed: str) -> list[Sheet]:
    """The sheets of a workbook, given in base64, that are not hidden and not empty."""
    calamine = require("python_calamine", extra="", why="reading spreadsheets")
    if not packed:
        return []
    data = base64.b64decode(packed)
    refuse_locked(data)
    try:
        book = calamine.CalamineWorkbook.from_filelike(io.BytesIO(data))
    except calamine.CalamineError as error:
        raise Unreadable(f"cannot be read as a spreadsheet ({error})") from error
    found = []
    size = 0
    for name in (sheet.name for sheet in book.sheets_metadata if _is_shown(sheet, calamine)):
        try:
            rows = [[_said(cell) for cell in row] for row in _cells(book.get_sheet_by_name(name))]
        except calamine.CalamineError as error:
            found.append(Sheet(name, [], f"cannot be read ({error})"))
            continue
        size += sum(len(cell) + 1 for row in rows for cell in row)
        if size > MOST_CHARACTERS:
            raise Unreadable(f"has more than {MOST_CHARACTERS:,} characters; split it")
        if any(map(any, rows)):
            found.append(Sheet(name, rows))
    return found


def _cells(sheet: Any) -> list[list[Any]]:
    """The cells of a sheet from its first that is not empty. Of those merged downwards each has the value."""
    cells: list[list[Any]] = sheet.to_python()
    top, left = sheet.start or (0, 0)
    wide: dict[int, list[range]] = {}  # the places of cells merged to the right, by their row
    for (first, column), (last, end) in sheet.merged_cell_ranges or ():
        row, place = first - top, column - left
        if not (0 <= row < len(cells) and 0 <= place < len(cells[row])):
            continue  # empty cells around the table
        if column == end:
            for below in cells[row + 1 : last - top + 1]:
                below[place] = cells[row][place]
        elif first == last and place > 0:
            wide.setdefault(row, []).append(range(place, min(end - left + 1, len(cells[row]))))
    for row, merged in wide.items():
        if _is_above_names(cells, row, merged):
            above, names = cells[row], cells[row + 1]
            cells[row + 1] = [name or over for over, name in zip(above, names, strict=True)]
            for places in merged:
                for place in places:
                    cells[row + 1][place] = f"{_said(above[places[0]])} {names[place]}"
            cells[row] = [""] * len(above)
    return cells


def _is_above_names(cells: list[list[Any]], row: int, wide: list[range]) -> bool:
    """Do cells of this row, merged to the right, stand over names of columns, as years over their months? Of
    a table's first row, two of them do, or one where the first column has its name below."""
    if row + 1 == len(cells) or any(sum(map(bool, other)) > 1 for other in cells[:row]):
        return False
    names = [str(name) for name in cells[row + 1]]
    named = all(names[place] for place in chain(*wide)) and not any(map(str.isdigit, "".join(names)))
    return named and (len(wide) > 1 or cells[row][0] in ("", cells[row + 1][0]))


def _is_shown(sheet: Any, calamine: Any) -> bool:
    kinds = calamine.SheetTypeEnum.WorkSheet, calamine.SheetVisibleEnum.Visible
    return (sheet.typ, sheet.visible) == kinds


def _said(cell: Any) -> str:
    """The value of a cell as text, dates and times in the form of ISO 8601."""
    match cell:
        case bool():
            return str(cell).upper()
        case float() if cell.is_integer() and abs(cell) < 2**53:
            return str(int(cell))
        case float():
            return f"{cell:.{_DIGITS}g}"
        case datetime():
            day, clock = _to_the_second(cell).isoformat(" ").split()
            return day if cell.time() == time() else f"{day} {_short(clock)}"
        case time():
            return _short(_to_the_second(datetime.combine(date.min, cell)).time().isoformat())
        case date():
            return cell.isoformat()
        case timedelta():
            seconds = round(abs(cell).total_seconds())
            sign = "-" * (cell < timedelta())
            return sign + _short(f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}")
        case _:
            return str(cell).strip()


def _to_the_second(moment: datetime) -> datetime:
    """Rounded: spreadsheets keep a moment as a fraction of a day, which is seldom whole seconds."""
    return (moment + timedelta(microseconds=500_000)).replace(microsecond=0)


def _short(clock: str) -> str:
    return clock.removesuffix(":00") if clock.count(":") == 2 else clock
