"""Mutated documents for every reader, mutated question files and requests: an answer or a complaint, in time."""

import bz2
import gzip
import json
import lzma
import random
import resource
import shutil
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from realmlm.corpus.questions import read_questions
from realmlm.errors import RealmError
from realmlm.sources.files import read_articles

JSON = {"content-type": "application/json"}
LONGEST_S = 20.0  # for one input, of some kilobytes
MOST_MIB = 1024  # that memory may have grown by
PACKED: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}
PACKED[".xz"] = lzma.compress
PROSE = "The heron stands in the water. Its neck is long; it waits for 3 fish, at 4.50 € each. 日本語 é.\n"
DUMP = (
    "<mediawiki><siteinfo><namespaces><namespace key='6'>File</namespace></namespaces></siteinfo>"
    + "".join(
        f"<page><title>Page {number}</title><ns>0</ns><id>{number}</id><revision><text>'''Heron''' {{{{box|a=1}}}} "
        "[[bird|birds]] &lt;ref&gt;x&lt;/ref&gt; [http://a.b c]\n== Life ==\n* one\n{{| \n| x\n|}}</text></revision></page>"
        for number in range(5)
    )
)
SEEDS: dict[str, bytes] = {
    ".txt": (PROSE * 30).encode(),
    ".md": (
        "---\ntitle: Birds\n---\n# Herons\n\n"
        + PROSE
        + "\n- a\n- b\n\n|x|y|\n|-|-|\n|1|2|\n\n```\nfn()\n```\n"
    ).encode()
    * 5,
    ".html": (
        "<html><head><meta charset='utf-8'><title>Birds</title></head><body><ul><li>a<li>b</ul><table><tr><th>x"
        f"<th>y<tr><td>1<td>2</table><p>{PROSE}<b>bold</b><script>no()</script><!-- c --></body>" * 5
    ).encode(),
    ".rtf": (
        r"{\rtf1\ansi{\fonttbl{\f0 Times;}}\f0 " + r"The caf\'e9 \b opens\b0 .\par a\cell\row " * 20 + "}"
    ).encode(),
    ".eml": (
        "From: Zoë <z@x.y>\nTo: =?utf-8?q?B=C3=B6?=, b@c.d\nDate: Tue, 03 Jun 2025 14:02:11 +0200\nContent-Type: "
        f"multipart/mixed; boundary=b\n\n--b\nContent-Type: text/plain; charset=utf-8\n\n{PROSE}> quoted\n--b\n"
        "Content-Type: text/csv\nContent-Disposition: attachment; filename=a.csv\n\nname,office\nAda,Oslo\n--b--\n"
    ).encode(),
    ".mbox": f"From a Tue\nSubject: Herons\n\n{PROSE}\nFrom b Wed\nFrom: Bo\n\n<p>{PROSE}\n".encode() * 5,
    ".jsonl": (json.dumps({"title": "Herons", "text": PROSE, "id": 7}) + "\n").encode() * 10,
    ".csv": ("name,office\n" + 'Ada,"Oslo, Norway"\n' * 30).encode(),
    ".tsv": ("id\ttext\ttitle\n" + "1\tThe heron waits.\tHeron\n" * 30).encode(),
    ".xml": (DUMP + "</mediawiki>").encode(),
}
QUESTIONS = [
    b'{"question": "Who waits?", "answer": ["the heron"], "id": "1"}\n' * 20,
    b'[{"qId": "1", "qText": "Who waits?", "answers": ["the heron"]}]',
    b'{"data": [{"title": "t", "paragraphs": [{"context": "c", "qas": [{"question": "q", "answers": [{"text": "c"}]}]}]}]}',
    b"who waits?\t['the heron']\n" * 20,
    b"1\tfact\twho waits?\t(the )?heron\n" * 20,
]
BODIES: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/ask", {"question": "Who lives by salt?", "read": 2}),
    ("POST", "/fill", {"sentence": "The people live by [MASK].", "read": 2}),
    ("POST", "/passages", {"title": "Heron", "text": "The heron waits."}),
    ("PUT", "/passages/1", {"title": "Heron", "text": "The heron waits."}),
    ("GET", "/passages?limit=3&text=heron", {}),
]
TOKENS = [
    b"<",
    b">",
    b"{{",
    b"}}",
    b"[[",
    b"<div>",
    b"\0",
    b"\xff\xfe",
    b'"',
    b"\n",
    b"\\",
    b"&#x0;",
    b"<!--",
    b"]]>",
    b"9" * 40,
]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, cut out, doubled, many times over, or put in."""
    for _ in range(rng.randint(1, 6)):
        start, end = sorted(rng.choices(range(len(data) + 1), k=2))
        match rng.randrange(6):
            case 0:
                data = data[:start] + bytes([rng.randrange(256)]) + data[start + 1 :]
            case 1:
                data = data[:start] + data[end:]
            case 2:
                data = data[:start] + data[start:end] * 2 + data[end:]
            case 3:
                data = data[:start] + rng.choice(TOKENS) * rng.choice((1, 1, 2, 2000)) + data[start:]
            case 4:
                data = data[:start] + rng.randbytes(rng.randint(1, 20)) + data[start:]
            case _:
                data = data[:start]
        data = data[: 2**17]
    return data


class Inputs:
    """Calls are cases."""

    def __init__(self, laboratory: Path, folder: Path) -> None:
        self._laboratory = laboratory
        self._folder = folder
        self._client: Any = None
        self._requests = 0

    def __call__(self, rng: random.Random) -> tuple[str, str | None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        begun = time.thread_time()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        make = rng.choices([self._document, self._questions, self._request], weights=[6, 2, 2])[0]
        try:
            what, wrong = make(rng)
        except Exception:
            what, wrong = make.__name__, traceback.format_exc(limit=-4)
        seconds = time.thread_time() - begun
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10) - before
        if wrong is None and (seconds > LONGEST_S or grown > MOST_MIB):
            wrong = f"took {seconds:.0f} s and {grown} MiB"
        return what, wrong

    def _document(self, rng: random.Random) -> tuple[str, str | None]:
        seeds = SEEDS | _office()
        kind = rng.choice(sorted(seeds))
        packing = rng.choice(["", "", *PACKED])
        data = PACKED[packing](mutated(seeds[kind], rng))
        if packing and rng.random() < 0.3:
            data = mutated(data, rng)
        file = self._folder / f"input{kind}{packing}"
        file.write_bytes(data)
        complaints: list[RealmError] = []
        articles = list(read_articles([file], on_bad=complaints.append))
        silent = not articles and not complaints
        return f"document {kind}", "neither an article nor a complaint" if silent else None

    def _questions(self, rng: random.Random) -> tuple[str, str | None]:
        file = self._folder / f"questions{rng.choice(['.txt', '.jsonl'])}"
        file.write_bytes(mutated(rng.choice(QUESTIONS), rng))
        try:
            questions = read_questions(file)
        except RealmError:
            return "questions", None
        return "questions", None if questions else "no question and no complaint"

    def _request(self, rng: random.Random) -> tuple[str, str | None]:
        self._requests += 1
        if self._client is None or self._requests % 500 == 0:  # each writes an edit
            self._client = _client(self._laboratory, self._folder)
        method, path, body = rng.choice(BODIES)
        data = mutated(json.dumps(body).encode(), rng) if rng.random() < 0.8 else json.dumps(body).encode()
        answer = self._client.request(method, path, content=data, headers=JSON)
        return (
            "request",
            f"{method} {path} {data!r}: {answer.status_code}" if answer.status_code >= 500 else None,
        )


def _office() -> dict[str, bytes]:
    """Documents of office programs, if their libraries are there."""
    if not _MADE:
        from tests.sources.test_office import docx, pdf, saved
        from tests.sources.test_sheets import xlsx
        from tests.sources.test_zipped import epub, odt, pptx, shape

        document = docx.Document()
        document.add_heading("Herons")
        document.add_paragraph(PROSE)
        document.add_table(2, 2).cell(0, 0).text = "x"
        _MADE[".pdf"] = pdf(["The heron is a bird.", "It waits."] * 5, title="Birds")
        _MADE[".docx"] = saved(document)
        _MADE[".odt"] = odt(f"<text:p>{PROSE}</text:p>")
        _MADE[".pptx"] = pptx(shape("Herons", "title") + shape(PROSE))
        _MADE[".epub"] = epub(f"<h1>Herons</h1><p>{PROSE}</p>")
        _MADE[".xlsx"] = xlsx(("Birds", [["name", "legs"], ["heron", 2], ["crane", 2.0]]))
    return _MADE


_MADE: dict[str, bytes] = {}


def _client(laboratory: Path, folder: Path) -> Any:
    from fastapi.testclient import TestClient

    from realmlm.engine import Engine
    from realmlm.serve.http import create_app
    from tests.laboratory import copy_of

    shutil.rmtree(folder / "copy", ignore_errors=True)
    copy = copy_of(laboratory, folder)
    engine = Engine(copy / "model", copy / "corpus", device="cpu")
    client = TestClient(create_app(engine, host="testserver"), raise_server_exceptions=False)
    client.__enter__()
    return client
