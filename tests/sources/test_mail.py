"""E-mails, and what came with them, as one would read them."""

import io
import mailbox
import time
import zipfile
from contextlib import suppress
from email.message import EmailMessage
from pathlib import Path

import pytest

from realmlm.errors import BadInput, RealmError
from realmlm.sources.article import Article
from realmlm.sources.bounds import Unreadable
from realmlm.sources.files import read_articles
from realmlm.sources.mail import messages, read_mail


def read(file: Path) -> list[Article]:
    def on_bad(error: RealmError) -> None:
        raise error

    return list(read_articles([file], on_bad=on_bad))


def mail(subject: str = "Rent", text: str = "It rises in July.\n") -> EmailMessage:
    message = EmailMessage()
    message["From"] = "Zoë Ferris <zoe@ferris.example>"
    message["To"] = "board@hall.example"
    message["Subject"] = subject
    message["Date"] = "Tue, 03 Jun 2025 14:02:11 +0200"
    message.set_content(text)
    return message


def test_a_message_says_who_wrote_to_whom_and_when(tmp_path: Path) -> None:
    (tmp_path / "rent.eml").write_bytes(mail(subject="Die Miete für März").as_bytes())
    [article] = read(tmp_path / "rent.eml")
    assert article.title == "Die Miete für März"
    assert article.source == "rent.eml"
    assert article.text.splitlines() == [
        "From: Zoë Ferris <zoe@ferris.example>",
        "To: board@hall.example",
        "Date: Tuesday 3 June 2025, 14:02",
        "It rises in July.",
    ]


def test_quoted_lines_are_not_the_senders(tmp_path: Path) -> None:
    text = "In July.\n\nOn Monday Ann wrote:\n> When does it rise?\n>> Ask Zoë.\n"
    (tmp_path / "rent.eml").write_bytes(mail(text=text).as_bytes())
    own, quoted = read(tmp_path / "rent.eml")
    assert own.text.splitlines()[-2:] == ["In July.", "On Monday Ann wrote:"]
    assert (quoted.title, quoted.text) == ("Rent › quoted", "When does it rise?\nAsk Zoë.")


def test_of_a_message_in_two_forms_the_plain_one_is_read_else_the_page(tmp_path: Path) -> None:
    both = mail()
    both.add_alternative("<p>Never read.</p>", subtype="html")
    page = mail()
    page.set_content(
        "<h1>Order 4711</h1><p>Thank <b>you</b>.</p><h2>Parts</h2><p>A lamp.</p>", subtype="html"
    )
    for name, message in (("both.eml", both), ("page.eml", page)):
        (tmp_path / name).write_bytes(message.as_bytes())
    assert [article.text.splitlines()[-1] for article in read(tmp_path / "both.eml")] == ["It rises in July."]
    first, parts = read(tmp_path / "page.eml")
    assert first.text.endswith("\nOrder 4711\nThank you.")  # no word of a heading is lost
    assert (parts.title, parts.text) == ("Rent › Parts", "Parts\nA lamp.")


def test_files_that_came_with_it_are_read_as_their_kind_and_named(tmp_path: Path) -> None:
    message = mail()
    message.add_attachment("plot,rent\n4,30\n", subtype="csv", filename="../plots.csv")
    message.add_attachment(b"\x89PNG", maintype="image", subtype="png", filename="sea.png")
    inner = mail(subject="The first one", text="It stays as it is.\n")
    inner.add_attachment("# Rules\n\nNo fires.\n", subtype="markdown", filename="rules.md")
    message.add_attachment(inner)
    (tmp_path / "rent.eml").write_bytes(message.as_bytes())
    articles = read(tmp_path / "rent.eml")
    assert [(article.source, article.title, article.text.splitlines()[-1]) for article in articles] == [
        ("rent.eml", "Rent", "It rises in July."),
        ("rent.eml#.._plots.csv", ".._plots", "plot: 4; rent: 30"),
        ("rent.eml#The first one.eml", "The first one", "It stays as it is."),
        ("rent.eml#The first one.eml#rules.md", "Rules", "No fires."),
    ]
    assert "Attached: ../plots.csv, sea.png, The first one.eml" in articles[0].text


def test_an_attached_file_that_cannot_be_read_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    message = mail()
    message.add_attachment(b"%PDF-no", maintype="application", subtype="pdf", filename="scan.pdf")
    message.add_attachment("Bring keys.", filename="note.txt")
    (tmp_path / "rent.eml").write_bytes(message.as_bytes())
    complaints: list[RealmError] = []
    articles = list(read_articles([tmp_path / "rent.eml"], on_bad=complaints.append))
    assert [article.text for article in articles][1:] == ["Bring keys.\n"]
    assert [str(tmp_path / "rent.eml" / "scan.pdf") in str(complaint) for complaint in complaints] == [True]


def test_a_mailbox_is_its_messages(tmp_path: Path) -> None:
    box = mailbox.mbox(tmp_path / "all.mbox")
    box.add(mail(text="From here on it rises.\n\nFrom July.\n"))
    second = mail(subject="Lamps")
    second.add_attachment("Nine pounds.", filename="price.txt")
    box.add(second)
    box.flush()
    assert b"\n>From July" in (tmp_path / "all.mbox").read_bytes()
    articles = read(tmp_path / "all.mbox")
    assert [(article.source, article.text.splitlines()[-1]) for article in articles] == [
        ("all.mbox#1", "From July."),
        ("all.mbox#2", "It rises in July."),
        ("all.mbox#2/price.txt", "Nine pounds."),
    ]


def test_one_bad_message_of_a_mailbox_is_one_complaint_with_its_line(tmp_path: Path) -> None:
    good = mail().as_bytes()
    (tmp_path / "all.mbox").write_bytes(
        b"From a Tue\n" + good + b"\nFrom b Tue\nno message\n\nFrom c Tue\n" + good
    )
    complaints: list[RealmError] = []
    articles = list(read_articles([tmp_path / "all.mbox"], on_bad=complaints.append))
    assert [article.source for article in articles] == ["all.mbox#1", "all.mbox#3"]
    line = 3 + good.count(b"\n")
    assert [f"all.mbox, line {line}: is not an e-mail" in str(one) for one in complaints] == [True]


def test_an_unknown_encoding_and_a_date_that_is_none_cost_no_message() -> None:
    data = b"From: Bo\nDate: last night\nContent-Type: text/plain; charset=klingon\n\nCaf\xc3\xa9 at nine.\n"
    [section] = read_mail(data).document.sections
    assert section.text == "From: Bo\nDate: last night\nCafé at nine."


def test_many_people_are_cut_short() -> None:
    message = mail()
    del message["To"]
    message["To"] = ", ".join(f"p{number}@hall.example" for number in range(500))
    text = read_mail(message.as_bytes()).document.sections[0].text
    assert text.splitlines()[1].endswith("@hall.example, …")
    assert len(text) < 500


@pytest.mark.parametrize("data", [b"Dear Ann,\n\nhello.\n", b"\n\n", b"\0" * 100, b"%PDF-1.4\n"])
def test_what_is_no_message_says_so(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.eml").write_bytes(data)
    with pytest.raises(BadInput, match=r"a\.eml: is not an e-mail: it begins without From, To"):
        read(tmp_path / "a.eml")
    (tmp_path / "a.mbox").write_bytes(data)
    with pytest.raises(BadInput, match=r"a\.mbox: is (not a file of e-mails|empty)"):
        read(tmp_path / "a.mbox")


def test_parts_far_within_one_another_are_refused() -> None:
    deep = b"".join(
        b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (number, number) for number in range(500)
    )
    with pytest.raises(Unreadable, match="deep within one another"):
        read_mail(b"From: a\n" + deep)


@pytest.mark.parametrize("header", ["To", "Content-Type"])
@pytest.mark.parametrize("piece", ["a@b.c, ", "a ", "a;", "<"])
def test_headers_of_any_length_take_no_time(header: str, piece: str) -> None:
    begun = time.monotonic()
    with suppress(Unreadable):
        read_mail(f"From: Bo\n{header}: {piece * 100_000}\n\nHello.\n".encode())
    assert time.monotonic() - begun < 5


def test_parts_without_number_are_refused() -> None:
    top = b"From: a\nContent-Type: multipart/mixed; boundary=b\n\n"
    begun = time.monotonic()
    for part in (b"--b\nContent-Type: " + b"a;" * 500 + b"\n\nx\n", b"--b\n\nx\n"):
        with pytest.raises(Unreadable, match="more than 1,000 parts"):
            read_mail(top + part * 2000)
    assert time.monotonic() - begun < 30


def test_an_archive_that_came_with_it_unpacks_to_no_more_than_alone(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("content.xml", b"<a>" + b" " * 2**27 + b"</a>")
    message = mail()
    message.add_attachment(stream.getvalue(), maintype="application", subtype="x", filename="a.odt")
    (tmp_path / "bomb.eml").write_bytes(message.as_bytes())
    with pytest.raises(BadInput, match="unpacks to more than a document may hold"):
        read(tmp_path / "bomb.eml")


def test_lines_of_any_length_end_a_message_at_its_own_end() -> None:
    data = b"From a\nSubject: x\n\n" + b"y" * 2**20 + b"\n\nFrom b\nSubject: z\n\n"
    assert [(line, len(found)) for line, found in messages(io.BytesIO(data))] == [
        (1, 2**20 + 14),
        (6, 12),
    ]
