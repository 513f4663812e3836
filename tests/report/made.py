"""What the tests of reports are made with: runs, evaluations and predictions as files, and the page that is
made of them."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from realmlm.cli import main

EVIL = "</script><img src=x onerror=\"document.title='taken'\">"


def score(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 1.5, "high": value + 1.5}


def evaluation(**changed: Any) -> dict[str, Any]:
    known = {
        "questions": 1200,
        "retriever": "learned",
        "read": 4,
        "exact_match": score(60.0),
        "f1": None,
        "nats": {},
    }
    return {
        **known,
        "recall_definition": "dpr",
        "recall": {"1": score(40.25)},
        "gold_recall": {},
        "seconds": 1.0,
        **changed,
    }


def prediction(
    number: int,
    *,
    passage: str = "Nothing.",
    title: str = "",
    at: int = 7,
    rank: int | None = None,
    **changed: Any,
) -> dict[str, Any]:
    evidence = [
        {
            "passage_id": None,
            "title": "",
            "passage": "",
            "start": None,
            "end": None,
            "retrieval_probability": 0.2,
            "reading_probability": 0.1,
        },
        {
            "passage_id": at,
            "title": title,
            "passage": passage,
            "start": None,
            "end": None,
            "retrieval_probability": 0.8,
            "reading_probability": 0.5,
        },
    ]
    asked = {
        "id": str(number),
        "question": f"Question {number}?",
        "answers": [f"answer {number}"],
        "correct": False,
        "f1": 0.0,
        "log_p": None,
    }
    return {
        **asked,
        "utility": None,
        "first_passage_with_answer": rank,
        "answer": "wrong",
        "probability": 0.4,
        "evidence": evidence,
        "others": [],
        **changed,
    }


def write_lines(file: Path, rows: list[Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def make_run(folder: Path, rows: list[dict[str, Any]], **config: Any) -> Path:
    write_lines(folder / "metrics.jsonl", rows)
    (folder / "run.json").write_text(
        json.dumps({"stage": "pretrain", "config": {"out": str(folder), **config}})
    )
    return folder


def rows(count: int = 8, *, pace: float = 0.5) -> list[dict[str, Any]]:
    ages = [
        {"step": 10 * n, "loss": 6 - pace * n, "utility": n / 3, "index_age": 10 * (n % 4)}
        for n in range(1, count + 1)
    ]
    return [{**row, "seconds": {"read": 0.1}} for row in ages]


class Page(HTMLParser):
    """Tags as a browser would see them, the text of each kind of tag, and of all of the page outside scripts
    and styles."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(file.read_text("utf-8"))
        self.text = " ".join(
            " ".join(text) for tag, text in self.texts.items() if tag not in ("script", "style")
        )
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def cells(self) -> list[str]:
        return self.texts.get("td", [])


def report(*arguments: Any, out: Path) -> Page:
    main(["report", *map(str, arguments), "--out", str(out)])
    return Page(out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: Any, out: Path) -> str:
    existing = out.exists()
    with pytest.raises(SystemExit) as end:
        main(["report", *map(str, arguments), "--out", str(out)])
    assert end.value.code == 2
    assert out.exists() == existing
    assert not list(out.parent.glob(".*.part"))
    return capsys.readouterr().err
