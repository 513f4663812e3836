"""Spreadsheets: what their rows say, and a reason for every file that has none."""

import base64
import io
import os
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realmlm.errors import BadInput, RealmError
from realmlm.sources import limited
from realmlm.sources.article import Article
from realmlm.sources.columnar import Columns
from realmlm.sources.files import find_files
from realmlm.sources.limited import spreadsheet
from realmlm.sources.readers import read_files

pytest.importorskip("python_calamine")

Cell = str | float | bool | tuple[str, float] | None
Sheet = tuple[str, Sequence[Sequence[Cell]]]
MAIN = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
RELATED = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
RELATIONS = '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
DATE, MOMENT, CLOCK, LASTING = (
    "d",
    "m",
    "c",
    "l",
)  # what a number stands for, before it: ("d", 46148) is 6 May 2026
FORMATS = {DATE: (1, 14), MOMENT: (2, 22), CLOCK: (3, 20), LASTING: (4, 46)}  # style, number format


def xlsx(*sheets: Sheet, hidden: Sequence[str] = ()) -> bytes:
    """A workbook as Excel writes it, by hand."""
    listed = "".join(
        f'<sheet name="{name}" sheetId="{number}" r:id="r{number}" state="{_state(name in hidden)}"/>'
        for number, (name, _) in enumerate(sheets, 1)
    )
    relations = "".join(
        f'<Relationship Id="r{number}" Type="{RELATED}/worksheet" Target="worksheets/sheet{number}.xml"/>'
        for number in range(1, len(sheets) + 1)
    )
    styles = "".join(f'<xf numFmtId="{form}"/>' for form in (0, *(form for _, form in FORMATS.values())))
    parts = {
        "[Content_Types].xml": "<Types/>",
        "_rels/.rels": f'{RELATIONS}<Relationship Id="r1" Type="{RELATED}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook {MAIN} xmlns:r="{RELATED}"><sheets>{listed}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'{RELATIONS}{relations}<Relationship Id="s" Type="{RELATED}/styles" Target="styles.xml"/></Relationships>',
        "xl/styles.xml": f"<styleSheet {MAIN}><cellXfs>{styles}</cellXfs></styleSheet>",
    }
    for number, (_, rows) in enumerate(sheets, 1):
        filled = "".join(
            f'<row r="{row}">{"".join(_cell(f"{chr(64 + column)}{row}", cell) for column, cell in enumerate(cells, 1))}</row>'
            for row, cells in enumerate(rows, 1)
        )
        parts[f"xl/worksheets/sheet{number}.xml"] = (
            f"<worksheet {MAIN}><sheetData>{filled}</sheetData></worksheet>"
        )
    return packed(parts)


def _state(hidden: bool) -> str:
    return "hidden" if hidden else "visible"


def _cell(place: str, cell: Cell) -> str:
    match cell:
        case None:
            return ""
        case bool():
            return f'<c r="{place}" t="b"><v>{int(cell)}</v></c>'
        case str():
            return f'<c r="{place}" t="inlineStr"><is><t>{cell}</t></is></c>'
        case (str() as kind, number):
            return f'<c r="{place}" s="{FORMATS[kind][0]}"><v>{number}</v></c>'
        case _:
            return f'<c r="{place}"><v>{cell}</v></c>'


def packed(parts: dict[str, str]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, xml in parts.items():
            archive.writestr(name, xml)
    return stream.getvalue()


def changed(data: bytes, sheet: str, old: str, new: str) -> bytes:
    """A workbook with other XML in one of its sheets."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert old in parts[f"xl/worksheets/{sheet}"]
    parts[f"xl/worksheets/{sheet}"] = parts[f"xl/worksheets/{sheet}"].replace(old, new)
    return packed(parts)


def ods(*rows: Sequence[str]) -> bytes:
    """A sheet as LibreOffice writes it, by hand."""
    spaces = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
        for name in ("office", "table", "text")
    )
    filled = ""
    for row in rows:
        cells = (
            f'<table:table-cell office:value-type="string"><text:p>{cell}</text:p></table:table-cell>'
            for cell in row
        )
        filled += f"<table:table-row>{''.join(cells)}</table:table-row>"
    return packed(
        {
            "META-INF/manifest.xml": '<manifest:manifest xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"/>',
            "mimetype": "application/vnd.oasis.opendocument.spreadsheet",
            "content.xml": f'<office:document-content {spaces}><office:body><office:spreadsheet><table:table table:name="Sheet1">{filled}</table:table></office:spreadsheet></office:body></office:document-content>',
        }
    )


def read(path: Path, text: str | None = None) -> list[Article]:
    def strict(error: RealmError) -> None:
        raise error

    files, _ = find_files([path], on_bad=strict, columns=Columns(text=text))
    return list(read_files(files, on_bad=strict))


STAFF: list[list[Cell]] = [
    ["Staff of 2026"],
    [],
    ["Name", "startDate", "Salary", "Key?", "Seen", "Bell"],
    ["Ada", (DATE, 46148), 41250.5, True, (MOMENT, 46148.545138889), (CLOCK, 0.5)],
    ["Bo", (DATE, 46149), 12, None, None, None],
    [None, None, 0.30000000000000004, False, None, None],
]


def test_a_row_is_a_line_with_its_columns_names(tmp_path: Path) -> None:
    (tmp_path / "staff.xlsx").write_bytes(xlsx(("Sheet1", STAFF)))
    (article,) = read(tmp_path / "staff.xlsx")
    assert (article.title, article.source, article.has_rows) == ("staff", "staff.xlsx", True)
    assert article.text.split("\n") == [
        "Staff of 2026",
        "Name: Ada; start date: 2026-05-06; Salary: 41250.5; Key?: TRUE; Seen: 2026-05-06 13:05; Bell: 12:00",
        "Name: Bo; start date: 2026-05-07; Salary: 12",
        "Salary: 0.3; Key?: FALSE",
    ]


def test_several_sheets_have_their_names_and_hidden_ones_are_not_read(tmp_path: Path) -> None:
    prices: Sheet = ("Prices", [["Item", "Price"], ["putty", 4.2]])
    secret: Sheet = ("Old prices", [["Item", "Price"], ["putty", 3.9]])
    data = xlsx(
        prices,
        secret,
        ("Empty", []),
        ("Notes", [["title", "text"], ["Putty", "It dries."]]),
        hidden=["Old prices"],
    )
    (tmp_path / "shop.xlsx").write_bytes(data)
    assert [(article.title, article.text) for article in read(tmp_path / "shop.xlsx")] == [
        ("shop › Prices", "Item: putty; Price: 4.2"),
        ("Putty", "It dries."),
    ]
    (tmp_path / "one.xlsx").write_bytes(xlsx(prices))
    assert [article.title for article in read(tmp_path / "one.xlsx")] == ["one"]


# town, river; Oslo, Aker; Bonn, Rhine, as Excel 97 writes it: packed by zlib, in base64
OLD = """
eNrtWE1oE0EU/maTbX5s06SmQiuUULBq7UX04KWuLWhPtrUUFBE0NQuGhI2soujFas1REDwpXgq9eKl68Qc96M2DULGgIAiJHj0J
Cj20Wd+8ncVUc2jAFpX5wrx58+abnZedN2939s1CqjL7sLuKX7AfIdS8GFrqbIJKLGgkQf2eJ9WgjlLxNP4pxKK0kC0mnrW9jsg1
lOtdhYEH4ZckgU9UTuAsRkuOndlADLMPWSF9GCQpcJcsCXSxVx0sT7PczPI+M5+zPMCWGywHiVsRx7FgjfbvU1F8zOjlvgTkdR/z
mA9s2Y1OvJJRfOWm8Lkmhtx8tvh3dvSEWzEHWrcR27HdbLGCNC3gHL57GeBbsFNfZLR9Y+0CZF9abY80sN8ywsA0vFMc4GVswruQ
7AlhrJhbxl7ejbIQbbJ00TGBifwF26Xm2LliiaqhAreGSw53nsk7dlxmad7VyVW7uo2jvZVkDu2spzjmk5S3l+99fXt4atw6yZZp
zuR+vt8mXYSHq3IEDU7Ad1BCcvtZ7mJ5ja+6lfVulmmKVKr7xjuVcmiGOde5t4/m2cNYtLbX6TtIL3858qSn/NnaSfr8SPVyev69
NYteev7kaLz8zWBADIg7tyWeWkEtVG74yLLrtzwRNZLKd0891NqxgjirKZZ+S94dofiiAV8w31B8wfyQ4hsN+Abzw4rv331TPmeN
DjySnZS1fiIODQ0NDQ0NDQ0NjfWAUO/xIf+Uwe+k8rQQUd91VqjU9GeS/xYTKNHvPB1MD8Kh2sWlpuJnC0wRXEuscUzwvVDiKM3u
ooAp9qPQdPzSaU/U/581D0z+uS3U7Py1Zvxc5/l/APn9yQA=
"""


def test_those_of_excel_97_and_with_macros_are_read(tmp_path: Path) -> None:
    (tmp_path / "rivers.xls").write_bytes(zlib.decompress(base64.b64decode(OLD)))
    (tmp_path / "staff.xlsm").write_bytes(xlsx(("Sheet1", STAFF)))
    rivers, staff = read(tmp_path)
    assert rivers.text == "Town: Oslo; River: Aker\nTown: Bonn; River: Rhine"
    assert staff.text.startswith("Staff of 2026\nName: Ada; start date: 2026-05-06;")


def test_those_of_libreoffice_are_read(tmp_path: Path) -> None:
    (tmp_path / "rivers.ods").write_bytes(ods(["town", "river"], ["Oslo", "Aker"]))
    assert [article.text for article in read(tmp_path / "rivers.ods")] == ["town: Oslo; river: Aker"]


def test_columns_hold_documents_as_those_of_a_csv_file_do(tmp_path: Path) -> None:
    rows: list[list[Cell]] = [
        ["id", "title", "Body"],
        ["q1", "Putty", "It dries."],
        ["q2", "Glue", "It stays."],
    ]
    (tmp_path / "d.xlsx").write_bytes(xlsx(("Sheet1", rows)))
    articles = read(tmp_path / "d.xlsx", text="Body")
    assert [(article.title, article.text, article.source) for article in articles] == [
        ("Putty", "It dries.", "d.xlsx#q1"),
        ("Glue", "It stays.", "d.xlsx#q2"),
    ]
    with pytest.raises(BadInput, match="has no column 'Words': it has id, title, Body"):
        read(tmp_path / "d.xlsx", text="Words")
    (tmp_path / "e.xlsx").write_bytes(xlsx(("Sheet1", [["title", "text"], ["Putty", "It dries."], ["Glue"]])))
    with pytest.raises(BadInput, match=r"e.xlsx, row 3: has no text"):
        read(tmp_path / "e.xlsx")


def test_cells_merged_downwards_say_their_value_in_every_row(tmp_path: Path) -> None:
    rows: list[list[Cell]] = [
        ["Department", "Employee", "Room"],
        ["Repairs", "Jana Holt", 11],
        [None, "Otto Reiss", 12],
        ["Sales", "Ada Berg", 13],
    ]
    data = xlsx(("Sheet1", rows))
    merged = '</sheetData><mergeCells count="1"><mergeCell ref="A2:A3"/></mergeCells>'
    (tmp_path / "staff.xlsx").write_bytes(changed(data, "sheet1.xml", "</sheetData>", merged))
    (article,) = read(tmp_path / "staff.xlsx")
    assert article.text.split("\n") == [
        "Department: Repairs; Employee: Jana Holt; Room: 11",
        "Department: Repairs; Employee: Otto Reiss; Room: 12",
        "Department: Sales; Employee: Ada Berg; Room: 13",
    ]


@pytest.mark.parametrize("town_merged", [True, False])
def test_a_year_over_its_columns_stands_before_each_of_them(tmp_path: Path, town_merged: bool) -> None:
    rows: list[list[Cell]] = [
        ["Sales"],
        ["Town", 2024, None, 2025, None],
        [None, "Units", "Revenue", "Units", "Revenue"],
        ["Leeds", 14, 17400, 19, 23900],
    ]
    merges = "".join(
        f'<mergeCell ref="{place}"/>' for place in ("B2:C2", "D2:E2", "A1:E1", *["A2:A3"] * town_merged)
    )
    merged = f"</sheetData><mergeCells>{merges}</mergeCells>"
    data = changed(xlsx(("Sheet1", rows)), "sheet1.xml", "</sheetData>", merged)
    (tmp_path / "sales.xlsx").write_bytes(data)
    (article,) = read(tmp_path / "sales.xlsx")
    assert article.text.split("\n") == [
        "Sales",
        "Town: Leeds; 2024 Units: 14; 2024 Revenue: 17400; 2025 Units: 19; 2025 Revenue: 23900",
    ]


@pytest.mark.parametrize("place", ["A1:A2", "C1:D1", "H1:H9", "H4:J4", "C9:C12", "A9:D9", "D4:F4", "D5:D40"])
def test_merged_cells_around_a_table_change_nothing(tmp_path: Path, place: str) -> None:
    rows: list[list[Cell]] = [
        [],
        [],
        ["", "", "Name", "Town"],
        ["", "", "Ada", "Oslo"],
        ["", "", "Bo", "Bonn"],
    ]
    rows = [[cell or None for cell in row] for row in rows]
    merged = f'</sheetData><mergeCells><mergeCell ref="{place}"/></mergeCells>'
    for number, table in enumerate((rows, [])):
        data = changed(xlsx(("S", table), ("T", rows)), "sheet1.xml", "</sheetData>", merged)
        (tmp_path / f"{number}.xlsx").write_bytes(data)
    for article in read(tmp_path):
        assert article.text == "Name: Ada; Town: Oslo\nName: Bo; Town: Bonn"


def test_a_wide_name_above_what_is_no_name_stays_one(tmp_path: Path) -> None:
    rows: list[list[Cell]] = [["Name", "Contact", None], ["Ada", "Oslo", "Norway"], ["Bo", "Bonn", "Germany"]]
    merged = '</sheetData><mergeCells count="1"><mergeCell ref="B1:C1"/></mergeCells>'
    (tmp_path / "staff.xlsx").write_bytes(changed(xlsx(("S", rows)), "sheet1.xml", "</sheetData>", merged))
    (article,) = read(tmp_path / "staff.xlsx")
    assert article.text.split("\n") == [
        "Name: Ada; Contact: Oslo; Norway",
        "Name: Bo; Contact: Bonn; Germany",
    ]


def test_tables_below_each_other_have_headers_of_their_own(tmp_path: Path) -> None:
    rows: list[list[Cell]] = [
        ["Bay", "Mechanic", "Stand"],
        ["North", "Petra Voss", 1],
        [],
        ["South", "Ivo Zell", 2],
        [],
        ["Vans"],
        ["Van", "Registration", "MOT due"],
        ["Red", "KX 44", (DATE, 46148)],
    ]
    (tmp_path / "yard.xlsx").write_bytes(xlsx(("Sheet1", rows)))
    assert [article.text.split("\n") for article in read(tmp_path / "yard.xlsx")] == [
        ["Bay: North; Mechanic: Petra Voss; Stand: 1", "Bay: South; Mechanic: Ivo Zell; Stand: 2"],
        ["Vans", "Van: Red; Registration: KX 44; MOT due: 2026-05-06"],
    ]


def test_a_damaged_sheet_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    data = xlsx(("Good", [["Item", "Price"], ["putty", 4929000055556666.0]]), ("Bad", [["Item"], ["glue"]]))
    (tmp_path / "shop.xlsx").write_bytes(changed(data, "sheet2.xml", "</c></row>", "</c><row"))
    bad: list[RealmError] = []
    files, _ = find_files([tmp_path], on_bad=bad.append)
    articles = list(read_files(files, on_bad=bad.append))
    assert [article.text for article in articles] == ["Item: putty; Price: 4929000055556666"]
    assert len(bad) == 1
    assert "shop.xlsx: its sheet 'Bad' cannot be read" in str(bad[0])


@pytest.mark.parametrize("kind", ["xlsx", "docx"])
def test_one_with_a_password_says_so(tmp_path: Path, kind: str) -> None:
    locked = bytes.fromhex("d0cf11e0a1b11ae1") + bytes(1016) + "EncryptedPackage".encode("utf-16-le")
    (tmp_path / f"a.{kind}").write_bytes(locked + bytes(1024))
    with pytest.raises(BadInput, match="is locked with a password; save it without one"):
        read(tmp_path / f"a.{kind}")


def test_times_are_said_to_the_second(tmp_path: Path) -> None:
    second = 1 / 86_400
    moments: list[list[Cell]] = [
        ["Day", "Lap"],
        [(MOMENT, 46148 + 206 * second), (CLOCK, 206 * second)],
        [(MOMENT, 46148 + 221 * second), (CLOCK, 47_137 * second)],
        [(MOMENT, 46148.5), (CLOCK, 0.5)],
        [(DATE, 46148), (LASTING, 1.5 + 34 * second)],
    ]
    (tmp_path / "laps.xlsx").write_bytes(xlsx(("Sheet1", moments)))
    (article,) = read(tmp_path / "laps.xlsx")
    assert article.text.split("\n") == [
        "Day: 2026-05-06 00:03:26; Lap: 00:03:26",
        "Day: 2026-05-06 00:03:41; Lap: 13:05:37",
        "Day: 2026-05-06 12:00; Lap: 12:00",
        "Day: 2026-05-06; Lap: 36:00:34",
    ]


def test_a_book_of_too_many_characters_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "long.xlsx").write_bytes(
        xlsx(*((f"s{number}", [["x" * 30_000] * 26]) for number in range(80)))
    )
    with pytest.raises(BadInput, match=r"long.xlsx: has more than 50,000,000 characters"):
        read(tmp_path / "long.xlsx")


def test_what_is_no_spreadsheet_says_so(tmp_path: Path) -> None:
    whole = xlsx(("Sheet1", STAFF))
    for number, data in enumerate(
        (b"no zip file", whole[: len(whole) // 2], packed({"a.txt": "no workbook"}))
    ):
        (tmp_path / f"{number}.xlsx").write_bytes(data)
        with pytest.raises(BadInput, match="cannot be read as a spreadsheet"):
            read(tmp_path / f"{number}.xlsx")
    (tmp_path / "blank.xlsx").write_bytes(xlsx(("Sheet1", [])))
    with pytest.raises(BadInput, match="has no text"):
        read(tmp_path / "blank.xlsx")
    (tmp_path / "none.xlsx").write_bytes(b"")
    with pytest.raises(BadInput, match="is empty"):
        read(tmp_path / "none.xlsx")


def test_a_cell_far_away_takes_no_memory_for_all_before_it(tmp_path: Path) -> None:
    far = '<c r="XFD1048576" t="inlineStr"><is><t>far</t></is></c>'
    data = xlsx(("Sheet1", [["near"]]))
    last = f'<row r="1048576">{far}</row></sheetData>'
    (tmp_path / "far.xlsx").write_bytes(changed(data, "sheet1.xml", "</sheetData>", last))
    begun = time.monotonic()
    with pytest.raises(BadInput, match=r"far.xlsx: takes more than .* of memory to parse"):
        read(tmp_path / "far.xlsx")
    assert time.monotonic() - begun < limited.LONGEST_S


RUN = """
from realmlm.cli import main

if __name__ == "__main__":
    main()
"""


def test_a_folder_of_documents_runs_nothing(tmp_path: Path) -> None:
    """Neither the process that reads a spreadsheet nor the workers import what lies beside it."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "prices.xlsx").write_bytes(xlsx(("Sheet1", STAFF)))
    for number in range(70):  # more than one process cuts alone
        (docs / f"{number}.txt").write_text(f"The heron numbered {number} waits.")
    for module in ("base64", "json", "pickle", "python_calamine", "realmlm", "runpy"):
        (docs / f"{module}.py").write_text(f"open({str(tmp_path / module)!r}, 'w').close()\n")
    (tmp_path / "elsewhere").mkdir()
    program = tmp_path / "elsewhere" / "run.py"
    program.write_text(RUN)
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    arguments = ["corpus", ".", "--out", "../corpus", "--train-tokenizer", "300", "--workers", "2"]
    ran = subprocess.run(
        [sys.executable, program, *arguments], cwd=docs, env=surroundings, capture_output=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "docs", "elsewhere"]


TEXTS = st.text(alphabet="ab 1", min_size=1, max_size=5).filter(str.strip)


@settings(max_examples=10, deadline=None)
@given(
    st.integers(2, 4).flatmap(
        lambda width: st.lists(st.lists(TEXTS, min_size=width, max_size=width), min_size=2, max_size=4)
    )
)
def test_every_cell_is_read(rows: list[list[str]]) -> None:
    (sheet,) = spreadsheet(xlsx(("Sheet1", rows)))
    assert sheet.rows == [[cell.strip() for cell in row] for row in rows]
