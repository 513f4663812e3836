"""E-mails, and what came with them, as one would read them."""

import base64
import io
import mailbox
import random
import time
import zipfile
import zlib
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


def written(data: bytes) -> str:
    return read_mail(data).document.sections[0].text


def test_people_are_cut_after_one_of_them_wherever_the_limit_falls() -> None:
    for shift in range(1, 60):
        people = ", ".join(f'"Ferris, Z{number}" <z{number}@hall.example>' for number in range(99))
        data = f"From: Bo\nTo: {'x' * shift}@hall.example, {people}\n\nHello.\n".encode()
        _, to, hello = written(data).splitlines()
        assert to.startswith(f'To: {"x" * shift}@hall.example, "Ferris, Z0" <z0@hall.example>, ')
        assert to.endswith("@hall.example>, …")
        assert hello == "Hello."


def test_a_sender_of_any_length_is_named() -> None:
    first, hello = written(b"From: " + b"x" * 400 + b"@hall.example\n\nHello.\n").splitlines()
    assert first == f"From: {'x' * 300}, …"
    assert hello == "Hello."


@pytest.mark.parametrize(
    "header",
    [
        'To: "',
        "Cc: <",
        "To: " + "(" * 900,
        "Date: Tue, 03 Jun 99999999999 14:02:11 +0200",
        "Content-Type: text/plain; charset*",
        "Content-Type: text/plain; charset*; charset*0=x",
        "Content-Type: text/plain; charset=undefined",
        "Content-Type: text/plain; charset=rot13",
        "Content-Type: text/plain; charset=punycode",
        "Content-Type: multipart/mixed",
        "Content-Disposition: inline; filename*=undefined''x",
    ],
)
def test_no_malformed_header_costs_a_message(header: str) -> None:
    said = written(f"From: Bo\n{header}\n\nHello, hello.\n".encode()).splitlines()
    assert (said[0], said[-1]) == ("From: Bo", "Hello, hello.")


def test_any_header_cut_anywhere_costs_no_message() -> None:
    dice = random.Random(7)
    values = (
        '"Ferris, Zoë" <zoe@ferris.example>, all: a@b.c, d@e.f;, (who) "x\\"y" <g@h.i>',
        "Tue, 03 Jun 2025 14:02:11 +0200 (CEST)",
        "=?utf-8?q?Die_Miete?= =?gb2312?b?1tA=?= f=?x?=r",
        "text/plain; charset*0*=utf-8''utf; charset*1=-8; name=\"a.txt\"; format=flowed",
        "attachment; filename*=iso-8859-1'de'M%E4rz.txt; size=3",
        "quoted-printable",
    )
    names = ("From", "To", "Cc", "Date", "Subject", "Content-Type", "Content-Disposition")
    marks = "\"<>()[]:;@,\\=?*'% \t\0\x0cé1"
    for _ in range(400):
        lines = ["From: Bo"]
        for name in dice.sample((*names, "Content-Transfer-Encoding"), 3):
            value = list(dice.choice(values))[: dice.randrange(99)]
            for _ in range(dice.randrange(6)):
                value.insert(dice.randrange(len(value) + 1), dice.choice(marks))
            lines.append(f"{name}: {''.join(value)}")
        encoding = dice.choice(["utf-8", "latin-1"])
        alone = "\n".join([*lines, "", "Hello.", ""]).encode(encoding)
        top = b"From: Bo\nContent-Type: multipart/mixed; boundary=b\n\n--b\n"
        around = top + alone + b"--b\nContent-Type: message/rfc822\n\n" + alone + b"--b--\n"
        for data in (alone, around):
            found = read_mail(data)
            assert found.document.sections[0].text.startswith("From: Bo"), data
        assert found.attached[-1][0].endswith(".eml"), data
        assert found.attached[-1][1].split() == alone.split(), data


def part(kind: str, content: bytes | str = b"", *more: str) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return "\n".join([f"Content-Type: {kind}", *more, "", ""]).encode() + content + b"\n"


def multipart(kind: str, *parts: bytes) -> bytes:
    mark = f"b{zlib.crc32(b''.join(parts))}"
    inner = b"".join(f"--{mark}\n".encode() + one for one in parts)
    return part(f"multipart/{kind}; boundary={mark}", inner + f"--{mark}--".encode())


def of(content: bytes) -> tuple[list[str], list[tuple[str, bytes]]]:
    """The lines of a message with this content, and its files."""
    mail = read_mail(b"From: Bo\n" + content)
    return mail.document.sections[0].text.splitlines(), mail.attached


NOTE = part("text/plain", "Bring keys.", "Content-Disposition: attachment; filename=x.txt")
HELLO = part("text/plain", "Hello.")
PAGE = part("text/html", "<p>Hello, <b>page</b>.</p>")


@pytest.mark.parametrize(
    "content",
    [
        multipart("signed", multipart("mixed", HELLO, NOTE), part("application/pgp-signature", "abc")),
        multipart("mixed", multipart("mixed", HELLO, NOTE), part("image/png", "")),
        multipart("alternative", HELLO, multipart("mixed", PAGE, NOTE)),
        multipart("mixed", multipart("alternative", HELLO, multipart("related", PAGE, NOTE))),
        multipart("mixed", HELLO, part("text/plain; name=x.txt", "Bring keys.")),
    ],
)
def test_files_are_found_however_deep_they_lie(content: bytes) -> None:
    assert of(content) == (["From: Bo", "Attached: x.txt", "Hello."], [("x.txt", b"Bring keys.")])


def test_all_texts_of_a_message_are_read_in_order() -> None:
    scan = part("application/pdf; name=a.pdf", "%PDF")
    after = part("text/plain", "And now?\n> Then.")
    lines, files = of(multipart("mixed", HELLO, scan, after, part("text/html", "<p>Bo of the hall")))
    assert lines == ["From: Bo", "Attached: a.pdf", "Hello.", "And now?", "Bo of the hall"]
    assert files == [("a.pdf", b"%PDF")]


def test_a_page_is_read_where_the_plain_text_is_blank_or_the_only_one_is_in_it() -> None:
    blank = part("text/plain", " \n\xa0\n", "Content-Transfer-Encoding: 8bit")
    assert of(multipart("alternative", blank, PAGE))[0] == ["From: Bo", "Hello, page."]
    assert of(multipart("alternative", PAGE, HELLO))[0] == ["From: Bo", "Hello."]


def test_attached_files_without_a_name_are_called_by_their_kind() -> None:
    attached = "Content-Disposition: attachment"
    content = multipart("mixed", HELLO, part("text/csv", "a,b", attached), part("image/x", "z", attached))
    assert of(content)[1] == [("attached.csv", b"a,b"), ("attached", b"z")]
    alone = part("application/pdf; name==?utf-8?q?M=C3=A4rz=2Epdf?=", "%PDF")
    assert of(alone) == (["From: Bo", "Attached: März.pdf"], [("März.pdf", b"%PDF\n")])


def test_a_message_that_should_have_parts_and_has_none_is_text() -> None:
    for kind in ("multipart/mixed", "multipart/alternative; boundary=b"):
        assert of(part(kind, "Hello."))[0] == ["From: Bo", "Hello."]


@pytest.mark.parametrize("kind", ["text/plain; charset=koi8-r", "multipart/mixed", "message/x", "x/y"])
def test_a_forwarded_message_comes_as_it_was_written(kind: str) -> None:
    inner = "From: Zoë\nTo: a@b.c,\n  d@e.f\nSubject:".encode() + b" " + b"x" * 200 + b"\n"
    inner += part(kind, b"Zo\xeb\r\n") + b"\nFrom: Bo\x0c"
    [(name, content)] = of(multipart("mixed", HELLO, part("message/rfc822", inner)))[1]
    assert name == "x" * 200 + ".eml"
    assert content.split() == inner.split()  # lines may end otherwise


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        ("text/plain", "Zoë café".encode(), "Zoë café"),
        ("text/plain; charset=us-ascii", "Zoë café".encode(), "Zoë café"),
        ("text/plain; charset=us-ascii", "Zoë café".encode("latin-1"), "Zoë café"),
        ("text/plain; charset=utf-8", "Zoë “café”".encode("cp1252"), "Zoë “café”"),
        ("text/plain; charset=utf-8", "\ufeffZoë café".encode() + b" \xe2\x80", "Zoë café �"),
        ("text/plain; charset=klingon", "Zoë café".encode(), "Zoë café"),
        ("text/plain; charset=iso-8859-1", b"it\x92s \x93q\x94", "it’s “q”"),
        ("text/plain; charset=gb2312", "镕的中文".encode("gbk"), "镕的中文"),
        ("text/plain; charset=shift_jis", "①番 テスト".encode("cp932") + b" \x80", "①番 テスト \x80"),
        ("text/plain; charset=utf-7", b"caf+AOk-", "café"),
        ("text/html", "<meta charset=koi8-r><p>Привет".encode("koi8-r"), "Привет"),
        ("text/html", "<meta charset=iso-2022-jp><p>日本語".encode("iso-2022-jp"), "日本語"),
        ("text/html; charset=utf-8", "<meta charset=koi8-r><p>Привет".encode(), "Привет"),
    ],
)
def test_letters_are_those_that_were_written(kind: str, data: bytes, text: str) -> None:
    for how in ("8bit", "base64"):
        sent = base64.encodebytes(data) if how == "base64" else data
        assert of(part(kind, sent, f"Content-Transfer-Encoding: {how}"))[0] == ["From: Bo", text]


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
def test_letters_of_headers_that_came_as_they_are(encoding: str) -> None:
    mail = read_mail("From: Zoë <z@a.example>\nSubject: “Café”\n\nHello.\n".encode(encoding))
    assert mail.document.title == "“Café”"
    assert mail.document.sections[0].text.splitlines()[0] == "From: Zoë <z@a.example>"


def test_letters_of_encoded_words_beyond_what_they_declare() -> None:
    word = base64.b64encode("镕".encode("gbk")).decode()
    assert read_mail(f"Subject: =?GB2312?B?{word}?=\n\nHello.\n".encode()).document.title == "镕"


@pytest.mark.parametrize(
    ("kind", "data", "kept"),
    [
        ("text/plain; charset=koi8-r; name=a.txt", "Привет".encode("koi8-r"), "Привет".encode()),
        ("text/html; charset=iso-2022-jp; name=a.htm", "日本".encode("iso-2022-jp"), "日本".encode()),
        (
            "text/plain; charset=iso-8859-1; name=a.txt",
            "Zoë".encode(),
            "Zoë".encode(),
        ),  # states what is wrong
        ("text/plain; charset=iso-8859-1; name=a.txt", "Zoë".encode("utf-16"), "Zoë".encode("utf-16")),
        ("text/plain; charset=iso-8859-1; name=a.pdf", b"%PDF \xe9", b"%PDF \xe9"),
        ("text/plain; charset=us-ascii; name=a.txt", b"Zo\xeb", b"Zo\xeb"),  # the reader of files will guess
    ],
)
def test_attached_text_is_in_the_encoding_that_its_part_states(kind: str, data: bytes, kept: bytes) -> None:
    content = part(kind, base64.encodebytes(data), "Content-Transfer-Encoding: base64")
    [(_, found)] = of(multipart("mixed", HELLO, content))[1]
    assert found == kept


NESTED = b"From: a\n" + b"".join(
    b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (number, number) for number in range(45)
)


@pytest.mark.parametrize(
    ("data", "limit"),
    [
        (b"From: a\nContent-Type: multipart/mixed; boundary=b\n\n" + b"--b\n\n" * 400_000, "1,000 parts"),
        (b"From: a\nContent-Type: multipart/digest; boundary=b\n\n" + b"--b\n\n" * 400_000, "1,000 parts"),
        (b"From: a\nContent-Type: message/delivery-status\n\n" + b"a: b\n\n" * 300_000, "1,000 parts"),
        (b"From: a\n" + b"Content-Type: message/rfc822\n\n" * 60_000, "50 deep"),
        (NESTED + b"\n" * 1_000_000, "20,000,000 lines"),
        (NESTED + b"\r" * 2_000_000, "20,000,000 lines"),
        (b"From: a\n\n" + b"\n" * 20_000_000, "20,000,000 lines"),
    ],
)
def test_what_would_take_long_is_refused_before_it_does(data: bytes, limit: str) -> None:
    begun = time.process_time()
    with pytest.raises(Unreadable, match=limit):
        read_mail(data)
    assert time.process_time() - begun < 1


def test_large_files_and_many_parts_take_no_time() -> None:
    large = base64.encodebytes(bytes(2**25))
    scan = part("application/pdf; name=a.pdf", large, "Content-Transfer-Encoding: base64")
    notes = [part(f"text/plain; name={number}.txt", "x") for number in range(900)]
    begun = time.process_time()
    _, files = of(multipart("mixed", multipart("alternative", HELLO, PAGE), scan, *notes))
    assert time.process_time() - begun < 10
    assert [len(content) for _, content in files] == [2**25, *[1] * 900]
