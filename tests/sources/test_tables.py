"""Tables as people and programs write them."""

import csv
import io
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realmlm.sources.markup import html_document
from realmlm.sources.tables import Record, read_table

CELLS = st.text(alphabet=st.sampled_from('aB1 ,;\t"\n.é'), min_size=1, max_size=8).filter(str.strip)


def read(text: str, delimiters: str = ",;\t") -> list[Record]:
    def strict(what: str, line: int) -> None:
        raise ValueError(f"line {line}: {what}")

    return list(
        read_table(iter(enumerate(text.splitlines(keepends=True), 1)), delimiters=delimiters, on_bad=strict)
    )


def lines(text: str, delimiters: str = ",;\t") -> list[str]:
    """Those of a table that is one document."""
    (record,) = read(text, delimiters)
    assert record == Record(None, record.text)
    return record.text.split("\n")


def test_a_text_among_other_columns_is_a_document_that_begins_with_them():
    assert read("date,text\n2026-02-11,The valve was replaced.\n") == [
        Record(None, "date: 2026-02-11\nThe valve was replaced.", line=2),
    ]
    assert read("ID,Title,by,text\n7,Valve,Karl,It leaks.\n8,Pump,,\n,,,\n9,Door\n") == [
        Record("Valve", "ID: 7; by: Karl\nIt leaks.", "7", 2),
        Record("Pump", "ID: 8", "8", 3),
        Record("Door", "ID: 9", "9", 5),
    ]
    assert read("text,text\nOne.,Two.\n") == [Record(None, "text: Two.\nOne.", line=2)]


def test_a_corpus_is_its_texts_and_titles():
    for name in ("id", "_id"):
        assert read(f"{name},title,text\nq1,Egg,An egg.\n") == [Record("Egg", "An egg.", "q1", 2)]
    corpus = 'id\ttext\ttitle\n1\t"An, egg; or two."\tEgg\n2\tAn owl.\t\n'
    assert read(corpus, "\t") == [Record("Egg", "An, egg; or two.", "1", 2), Record("", "An owl.", "2", 3)]
    assert read("text\nAn owl.\n") == [Record(None, "An owl.", line=2)]
    with pytest.raises(ValueError, match="line 3: has 2 fields where the header has 3"):
        read("id,text,title\n1,An owl.,Owl\n2,An egg.\n")
    with pytest.raises(ValueError, match="line 2: has 2 fields where the header has 1"):
        read("text\nAn owl, too.\nAn egg, too.\n")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("Name;Amount, EUR;City\nKarl;44,20;Ulm\n", ["Name: Karl; Amount, EUR: 44,20; City: Ulm"]),
        ("Name;Amount, EUR\nKarl;44,20\n", ["Name: Karl; Amount, EUR: 44,20"]),
        ("Name;Amount\nKarl;44,20\nOtto;3,50\n", ["Name: Karl; Amount: 44,20", "Name: Otto; Amount: 3,50"]),
        ('name,tags\nKarl,"a;b;c"\nOtto,d;e;f\n', ["name: Karl; tags: a;b;c", "name: Otto; tags: d;e;f"]),
        ("name\tcity, land\nKarl\tUlm, DE\n", ["name: Karl; city, land: Ulm, DE"]),
        ("name;city;phone\nKarl\nOtto\n", ["name: Karl", "name: Otto"]),
        ("sep=;\nname;city\nKarl;Ulm\n", ["name: Karl; city: Ulm"]),
        ('"sep=|"\r\nname|city\r\nKarl|Ulm, DE\r\n', ["name: Karl; city: Ulm, DE"]),
        ("SEP=\t\nname\tcity\nKarl\tUlm\n", ["name: Karl; city: Ulm"]),
        ("note\nUlm, in the rain\n", ["note: Ulm; in the rain"]),
        ("note\nUlm\nBonn, later\nKiel\n", ["note: Ulm", "note: Bonn; later", "note: Kiel"]),
    ],
)
def test_what_separates_the_fields(table, expected):
    assert lines(table) == expected


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("crs_code", "crs code"),
        ("crsCode", "crs code"),
        ("stationID", "station ID"),
        ("Fare_Class", "Fare Class"),
        ("WordPress", "WordPress"),
        ("avgTempC", "avg temp C"),
        ("_row__number_", "row number"),
        ("pH", "pH"),
        ("McDonald", "McDonald"),
        ("ISBN", "ISBN"),
        ("Year(s)", "Year(s)"),
        ("built by McAlpineLtd", "built by McAlpineLtd"),
        ("__", "__"),
    ],
)
def test_names_of_programs_are_words(name, words):
    assert lines(f"{name},town\nPNZ,Penzance\n") == [f"{words}: PNZ; town: Penzance"]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        # a title that was filled up with empty fields
        (
            "Stock,May 2026,,\nItem,Shelf,Count,Reorder\nSpokes,S1,400,100\nGrips,S2,60,20\n",
            [
                "Stock; May 2026",
                "Item: Spokes; Shelf: S1; Count: 400; Reorder: 100",
                "Item: Grips; Shelf: S2; Count: 60; Reorder: 20",
            ],
        ),
        ("Price list,\nItem,Cost\nputty,4.2\n", ["Price list", "Item: putty; Cost: 4.2"]),
        # every row is filled up
        ("a,b,c,,\n1,2,3,,\n4,5,6,,\n", ["a: 1; b: 2; c: 3", "a: 4; b: 5; c: 6"]),
        # no header
        (
            "2026-01-02,Tesco,-45.20\n2026-01-03,Rent,-850.00\n",
            ["2026-01-02; Tesco; -45.20", "2026-01-03; Rent; -850.00"],
        ),
        ("country,2020-01-22,2020-01-23\nPeru,0,3\n", ["country: Peru; 2020-01-22: 0; 2020-01-23: 3"]),
        # a form
        (
            "Customer:,Brightwell Ltd\nAddress:,4 Mill Lane\n",
            ["Customer: Brightwell Ltd", "Address: 4 Mill Lane"],
        ),
        ("Name:,Town:\nAda,Oslo\n", ["Name: Ada; Town: Oslo"]),
    ],
)
def test_what_is_a_header(table, expected):
    assert lines(table) == expected


@pytest.mark.parametrize(
    "title", ["Sales of 2026", "Sales of 2026;;", "Sales, all; of 2026", "\nSales of 2026\n\n;;;"]
)
def test_a_title_above_the_header_is_a_line(title):
    table = f"{title}\nname;city;land;sum\nKarl;Ulm;DE;44,20\nOtto;Bonn;DE;3\n"
    said = lines(table)
    assert said[0].startswith("Sales")
    assert said[1:] == [
        "name: Karl; city: Ulm; land: DE; sum: 44,20",
        "name: Otto; city: Bonn; land: DE; sum: 3",
    ]
    assert read("Notes\nid;text\n1;It leaks.\n") == [Record(None, "It leaks.", "1", 3), Record(None, "Notes")]


def test_rows_shorter_and_longer_than_the_header_are_kept():
    table = "name,city,phone\nKarl,Ulm,12\nOtto\nAda,Oslo\nBo,Bergen,13,at night\n"
    assert lines(table) == [
        "name: Karl; city: Ulm; phone: 12",
        "name: Otto",
        "name: Ada; city: Oslo",
        "name: Bo; city: Bergen; phone: 13; at night",
    ]


def test_in_a_tsv_only_tabs_separate():
    assert lines("a,b;c\td\n1,2;3\t4\n", "\t") == ["a,b;c: 1,2;3; d: 4"]
    assert lines("sep=;\tx\n1;2\t3\n", "\t") == ["sep=;: 1;2; x: 3"]


@given(
    st.integers(2, 4).flatmap(
        lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width), min_size=2, max_size=5)
    )
)
def test_tables_of_every_delimiter_say_the_same(rows):
    header = [f"c{number}" for number in range(len(rows[0]))]
    expected = [
        "; ".join(f"{name}: {' '.join(cell.split())}" for name, cell in zip(header, row, strict=True))
        for row in rows
    ]
    for delimiter in ",;\t":
        table = io.StringIO()
        csv.writer(table, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows([header, *rows])
        assert lines(table.getvalue()) == expected


@given(st.text(alphabet=st.sampled_from('ab ,;\t"\n\r=sep'), max_size=60))
def test_no_table_fails_otherwise_than_by_a_complaint(text):
    found = list(
        read_table(
            iter(enumerate(text.splitlines(keepends=True), 1)),
            delimiters=",;\t",
            on_bad=lambda what, line: None,
        )
    )
    assert all(record.text.strip() for record in found if record.line is None)


def test_a_large_table_is_not_held():
    rows = (f"{number},{'long' * 5000}\n" for number in range(2000))  # 40 MB
    tracemalloc.start()
    found = sum(1 for _ in read_table(enumerate(rows, 1), delimiters=",;", on_bad=lambda what, line: None))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found > 30
    assert peak < 5 * 2**20


def test_a_name_too_long_to_be_repeated_names_nothing() -> None:
    name = "n" * 5000
    text = f"town,{name}\n" + "".join(f"Town{number},Oslo\n" for number in range(1000))
    assert sum(len(line) for line in lines(text)) < 3 * len(text)
    assert "town: Town7; Oslo" in lines(text)
    page = html_document(
        f"<table><tr><th>town<th>{name}</tr>" + "<tr><td>Bern<td>Aare</tr>" * 1000 + "</table>"
    )
    (section,) = page.sections
    assert section.text.count(name) == 1
    assert section.text.split("\n")[-1] == "Bern; Aare"
