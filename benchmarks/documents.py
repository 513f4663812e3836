"""How long does a person with a folder wait? `OMP_NUM_THREADS=2 python benchmarks/documents.py [--model
MODEL] [--files 1000]`

Makes a folder of mixed documents from the pocket encyclopedia and a fictional world, asks in a fresh process,
asks again in another, changes one file and asks a third time; prints where the seconds of each go. Exits with
1 if the second process embeds anything, or takes a second or more from the loaded model to the answer.
"""

import argparse
import datetime
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

QUESTION = "Which metal is liquid at room temperature?"
PHASES = ("start and imports", "model", "folder", "embedding", "answer", "next answer")


# --- the folder ---------------------------------------------------------------------------------------------


def pdf(title: str, text: str) -> bytes:
    """A PDF of one page in lines of some 90 characters, written out by hand."""
    lines = [title]
    words = text.encode("cp1252", "replace").decode("cp1252").split()
    while words:
        line = words.pop(0)
        while words and len(line) + len(words[0]) < 90:
            line += f" {words.pop(0)}"
        lines.append(line)
    shown = "".join(
        "({}) Tj T*\n".format(line.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)"))
        for line in lines
    )
    stream = zlib.compress(b"BT /F 10 Tf 14 TL 50 780 Td\n" + shown.encode("cp1252", "replace") + b"ET")
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Count 1/Kids[3 0 R]>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Resources<</Font<</F 4 0 R>>>>/Contents 5 0 R>>",
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>",
        f"<</Filter/FlateDecode/Length {len(stream)}>>stream\n".encode() + stream + b"\nendstream",
    ]
    data = b"%PDF-1.4\n"
    places = []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += f"{number} 0 obj\n".encode() + body + b"\nendobj\n"
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    return (
        data
        + (
            f"xref\n0 6\n0000000000 65535 f \n{table}trailer<</Size 6/Root 1 0 "
            f"R>>\nstartxref\n{len(data)}\n%%EOF"
        ).encode()
    )


def write_word(file: Path, title: str, text: str) -> None:
    import docx

    document = docx.Document()
    document.add_heading(title, 1)
    document.add_paragraph(text)
    document.save(str(file))


WRITERS: dict[str, Callable[[Path, str, str], Any]] = {
    "txt": lambda file, title, text: file.write_text(f"{title}\n\n{text}\n", "utf-8"),
    "md": lambda file, title, text: file.write_text(f"# {title}\n\n{text}\n", "utf-8"),
    "html": lambda file, title, text: file.write_text(
        f"<title>{escape(title)}</title><p>{escape(text)}</p>", "utf-8"
    ),
    "pdf": lambda file, title, text: file.write_bytes(pdf(title, text)),
    "docx": write_word,
    "jsonl": lambda file, title, text: file.write_text(
        json.dumps({"title": title, "text": text}) + "\n", "utf-8"
    ),
}


def make_folder(folder: Path, files: int) -> None:
    """So many documents of all kinds in turn: the encyclopedia's, then those about the entities of as many
    fictional worlds as it takes."""
    import realmlm
    from realmlm.worlds import make_world

    rows = [json.loads(line) for line in realmlm.pocket.read_text("utf-8").splitlines()]
    articles = {row["title"]: row["text"] for row in rows}
    worlds = (make_world("small", seed=seed) for seed in itertools.count())
    while len(articles) < files:
        entities: dict[str, str] = {}
        for title, text in next(worlds).passages:
            entities[title] = f"{entities[title]} {text}" if title in entities else text
        articles |= entities
    kinds = list(WRITERS)
    for number, (title, text) in enumerate(itertools.islice(articles.items(), files)):
        kind = kinds[number % len(kinds)]
        place = folder / f"shelf-{number % 10}"
        place.mkdir(parents=True, exist_ok=True)
        WRITERS[kind](place / f"{number:04d}.{kind}", title, text)


# --- one process that asks ----------------------------------------------------------------------------------


def ask(model: str, folder: str, begun: float) -> None:
    """Answer, and print the seconds of each phase as JSON; `begun` is when the process was started."""
    import realmlm
    from realmlm import engine

    seconds = {"start and imports": time.time() - begun}

    def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return work(*given, **options)
            finally:
                seconds[name] = time.perf_counter() - started

        return run

    engine.open_documents = timed("folder", engine.open_documents)
    engine.index_of = timed("embedding", engine.index_of)
    realm = timed("model", realmlm.load)(model, device="cpu")
    realm.read(folder)
    timed("answer", realm.ask)(QUESTION)
    timed("next answer", realm.ask)("What is the highest mountain?")
    print(json.dumps({"seconds": seconds, "passages": len(realm.corpus)}))


def measure(model: str, folder: Path, cache: Path) -> tuple[dict[str, float], int, bool]:
    """Seconds by phase of a fresh process, passages, and whether it embedded any."""
    command = [sys.executable, __file__, "--ask", str(folder), "--model", model, "--begun", repr(time.time())]
    settings = os.environ | {
        "XDG_CACHE_HOME": str(cache),
        "OMP_WAIT_POLICY": "passive",
    }  # as the command sets it
    done = subprocess.run(command, capture_output=True, text=True, env=settings, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    record = json.loads(done.stdout.splitlines()[-1])
    return record["seconds"], record["passages"], "embedding" in done.stderr or "taking up" in done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    parser.add_argument("--begun", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        ask(options.model, options.ask, options.begun)
        return 0
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "notes"
        cache = Path(work) / "cache"
        make_folder(folder, options.files)
        rows = [
            ("first time", *measure(options.model, folder, cache)),
            ("again", *measure(options.model, folder, cache)),
        ]
        changed = next(folder.rglob("*.txt"))
        changed.write_text("Mercury\n\nMercury is the metal that is liquid at room temperature.\n", "utf-8")
        rows.append(("one file changed", *measure(options.model, folder, cache)))
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    print(
        f"{datetime.date.today()}  {threads} threads  {options.files:,} files, {rows[0][2]:,} passages; "
        "seconds"
    )
    print(f"{'':18}" + "".join(f"{phase:>19}" for phase in PHASES))
    for name, seconds, _, _ in rows:
        print(f"{name:18}" + "".join(f"{seconds[phase]:19.2f}" for phase in PHASES))
    _, again, _, embedded = rows[1]
    return int(embedded or again["folder"] + again["embedding"] + again["answer"] >= 1)


if __name__ == "__main__":
    sys.exit(main())
