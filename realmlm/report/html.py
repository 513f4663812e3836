"""A report as one HTML file that needs nothing beside itself: curves of runs, evaluation tables, what was
retrieved before and after.

Texts become text nodes of an element tree, never markup. The numbers of the curves are a block of JSON that
serve/page/charts.js draws, as it does on the service's page.
"""

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from realmlm.errors import BadInput
from realmlm.log import counted
from realmlm.report.predictions import Change, Prediction, Read, compare, read_predictions
from realmlm.report.sources import (
    Evaluation,
    Interval,
    Run,
    Verdict,
    names_of,
    read_evaluation,
    read_run,
    read_verdict,
    short_path,
)
from realmlm.storage.artefacts import refuse_existing, write_text

PAGE = Path(__file__).parent.parent / "serve" / "page"
SHOWN = 3  # passages of an example, on each side
PIECE = 260  # characters of a passage

Node = ElementTree.Element

_DRAW = """
const runs = document.getElementById("runs");
if (runs) document.getElementById("curves").replaceChildren(...figures(JSON.parse(runs.textContent)));
"""


def write_report(
    *,
    runs: Sequence[Path],
    out: Path,
    evaluations: Sequence[Path],
    before: Path | None,
    after: Path | None,
    examples: int,
) -> str:
    """Write the report; says what is in it. On an error nothing is written."""
    refuse_existing(out)
    sections: list[Node] = []
    parts = []
    title = out.stem
    if runs:
        named = list(zip(runs, names_of(runs), strict=True))
        shown = [part for folder, name in named for part in read_run(folder, name)]
        verdicts = [verdict for folder, name in named if (verdict := read_verdict(folder, name))]
        sections += map(_verdict, verdicts)
        sections.append(_curves(shown))
        parts += [counted(len(shown), "run"), *([counted(len(verdicts), "verdict")] if verdicts else [])]
        title = ", ".join(run.name for run in shown)
    if evaluations:
        sections.append(
            _evaluations(
                [
                    read_evaluation(file, name)
                    for file, name in zip(evaluations, names_of(evaluations), strict=True)
                ]
            )
        )
        parts.append(counted(len(evaluations), "evaluation"))
    if before is not None and after is not None:
        change = compare(read_predictions(before), read_predictions(after), examples=examples)
        if change.both == 0:
            raise BadInput(
                f"{before} and {after} have no question in common; evaluate both on the same --questions"
            )
        sections.append(_change(change, names_of([before, after])))
        parts.append(f"{len(change.nearer) + len(change.further)} examples")
    out.parent.mkdir(parents=True, exist_ok=True)
    # half a surrogate pair is no text
    write_text(out, _document(title, sections).encode("utf-8", "replace").decode("utf-8"))
    return f"{out}: {', '.join(parts)}"


def _node(tag: str, *children: Node | str, **attributes: str) -> Node:
    """An element; strings become text, whatever they hold."""
    node = Node(tag, {name.strip("_").replace("_", "-"): value for name, value in attributes.items()})
    for child in children:
        if isinstance(child, Node):
            node.append(child)
        elif len(node):
            node[-1].tail = (node[-1].tail or "") + child
        else:
            node.text = (node.text or "") + child
    return node


def _document(title: str, sections: list[Node]) -> str:
    script = (PAGE / "charts.js").read_text("utf-8") + _DRAW
    # no other script runs, whatever a text holds
    only_this = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{only_this}'"
    head = _node(
        "head",
        _node("meta", charset="utf-8"),
        _node("meta", http_equiv="Content-Security-Policy", content=policy),
        _node("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _node("meta", name="color-scheme", content="light dark"),
        _node("title", title),
        _node("style", (PAGE / "style.css").read_text("utf-8")),
    )
    body = _node(
        "body",
        _node("header", _node("h1", title)),
        _node("main", *sections),
        _node("script", script),
        class_="report",
    )
    return (
        "<!doctype html>\n"
        + ElementTree.tostring(_node("html", head, body, lang="en"), "unicode", "html")
        + "\n"
    )


def _curves(runs: list[Run]) -> Node:
    data = [{"name": run.name, "place": number, "curves": run.curves} for number, run in enumerate(runs)]
    section = _node("section", _node("h2", "Training"))
    said = ["Beside each name: the last value, or the one under the pointer."]
    if any(len(point) > 2 for run in runs for points in run.curves.values() for point in points):
        said.append("Long curves are drawn as the mean of every few rows, over their range.")
    section.append(_node("p", " ".join(said), class_="note"))
    section.append(
        _node(
            "div",
            _node("noscript", "The curves are drawn by JavaScript, which is switched off here."),
            id="curves",
        )
    )
    section.append(
        _node("script", json.dumps(data).replace("<", "\\u003c"), type="application/json", id="runs")
    )
    names = dict.fromkeys(name for run in runs for name in run.settings if name != "out")
    differ = [
        name
        for name in names
        if len({json.dumps(run.settings[name]) for run in runs if name in run.settings}) > 1
    ]
    if differ:
        head = _node("tr", _node("td"), *(_node("th", run.name) for run in runs))
        rows = [
            _node("tr", _node("th", name), *(_node("td", _shown(run.settings.get(name))) for run in runs))
            for name in differ
        ]
        section.append(_table("Settings in which the runs differ", [head], rows))
    return section


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "–"
    if isinstance(value, str):
        return short_path(value)
    return "–" if value is None else json.dumps(value)


def _table(caption: str, head: list[Node], rows: list[Node]) -> Node:
    table = _node("table", _node("caption", caption), _node("thead", *head), _node("tbody", *rows))
    # wider than a phone: it scrolls, with the keyboard too
    return _node("div", table, class_="wide", role="region", aria_label=caption, tabindex="0")


def _verdict(verdict: Verdict) -> Node:
    head = _node("tr", _node("td"), _node("th", "before"), _node("th", "after"))
    rows = [
        _node(
            "tr",
            _node("th", title),
            *(_score(side, digits=2 if title.endswith("nats") else 1) for side in sides),
        )
        for title, sides in verdict.measures.items()
    ]
    caption = (
        f"{verdict.held_out:,} held out, before and after: means with their 95% intervals, in percent where "
        "no unit is said"
    )
    gain, low, high = (f"{number:+.3f}".replace("-", "−") for number in verdict.gain)
    decided = (
        "Better on these: the model was kept." if verdict.kept else "Not surely better: nothing was kept."
    )
    said = _node(
        "p",
        f"{verdict.gained[:1].upper()}{verdict.gained[1:]}: {gain} [{low}, {high}]. ",
        _node("b", decided),
    )
    return _node("section", _node("h2", f"Adapting: {verdict.name}"), _table(caption, [head], rows), said)


def _evaluations(evaluations: list[Evaluation]) -> Node:
    columns = sorted({column for evaluation in evaluations for column in evaluation.scores})
    groups = Counter((column.place, column.group) for column in columns)
    above = [_node("td"), *(_node("th", group, colspan=str(wide)) for (_, group), wide in groups.items())]
    head = [_node("td"), *(_node("th", column.name) for column in columns)]
    rows = []
    for evaluation in evaluations:
        cells = [
            _score(evaluation.scores.get(column), digits=2 if column.group == "nats" else 1)
            for column in columns
        ]
        rows.append(
            _node(
                "tr",
                _node("th", evaluation.name, *(_node("small", line) for line in evaluation.about)),
                *cells,
            )
        )
    table = _table("Means with their 95% intervals", [_node("tr", *above), _node("tr", *head)], rows)
    return _node("section", _node("h2", "Evaluation"), table)


def _score(score: Interval | None, *, digits: int) -> Node:
    if score is None:
        return _node("td", "–")
    value, low, high = (f"{number:.{digits}f}".replace("-", "−") for number in score)
    return _node("td", value, _node("small", f"[{low}, {high}]"))


def _change(change: Change, names: list[str]) -> Node:
    section = _node("section", _node("h2", "Retrieval before and after"), class_="change")
    (nearer, further) = change.counts
    (was, now) = change.right
    summary = f"""{change.both:,} questions were put to {names[0]} (before) and to {names[1]} (after).
        The first passage with the answer came nearer for {nearer:,} and moved away for {further:,};
        {was:,} answers were right before and {now:,} after ({change.gained:,} gained, {change.lost:,} lost).
        Shown are questions for which p(z|x), the percentage beside a passage, changed most;
        at most one for each expected answer."""
    section.append(_node("p", " ".join(summary.split()), class_="note"))
    for title, pairs in (
        ("The answer came nearer", change.nearer),
        ("The answer moved away", change.further),
    ):
        if pairs:
            section.append(_node("h3", title))
            section.extend(_example(pair, names) for pair in pairs)
    return section


def _example(pair: tuple[Prediction, Prediction], names: list[str]) -> Node:
    expected = _node("p", "expected: ", _node("b", " / ".join(pair[0].answers)), class_="note")
    sides = [
        _side(side, f"{when}: {name}")
        for side, when, name in zip(pair, ("before", "after"), names, strict=True)
    ]
    return _node(
        "article",
        _node("h4", pair[0].question),
        expected,
        _node("div", *sides, class_="sides"),
        class_="card",
    )


def _side(side: Prediction, title: str) -> Node:
    verdict = _node(
        "span", "✓ right" if side.correct else "✗ wrong", class_="right" if side.correct else "wrong"
    )
    told = [] if side.log_p is None else [f"log p(y|x) {side.log_p:.2f}".replace("-", "−")]
    told.append(
        "no passage retrieved has the answer"
        if side.rank is None
        else f"first passage with the answer: {side.rank}"
    )
    made = _node(
        "div", _node("h5", title), _node("p", _node("b", side.answer or "(no answer)"), " ", verdict)
    )
    made.append(_node("p", "; ".join(told), class_="note"))
    made.append(_node("ol", *(_passage(one, side.answers) for one in side.read[:SHOWN])))
    return made


def _passage(read: Read, answers: tuple[str, ...]) -> Node:
    share = _node(
        "span", f"{100 * read.share:.{0 if read.share >= 0.0995 else 1}f}%", class_="number", title="p(z|x)"
    )
    if read.id is None:
        return _node("li", _node("p", "nothing read (the null document) ", share, class_="title"))
    return _node(
        "li",
        _node("p", read.title or f"passage {read.id}", " ", share, class_="title"),
        _node("p", *piece(read.text, answers)),
    )


def piece(text: str, answers: tuple[str, ...], *, most: int = PIECE) -> list[Node | str]:
    """A piece of a passage around an expected answer, which is marked; without one, its beginning."""
    text = " ".join(text.split())
    wanted = "|".join(re.escape(answer) for answer in answers if answer.strip())
    match = re.search(rf"(?<!\w)(?:{wanted})(?!\w)", text, flags=re.IGNORECASE) if wanted else None
    start, end = match.span() if match else (0, 0)
    first = 0 if end <= most * 3 // 4 else text.rfind(" ", 0, max(start - most // 2, 0)) + 1
    last = len(text) if len(text) <= first + most else max(text.rfind(" ", 0, first + most), end)
    before = ("… " if first else "") + text[first:start]
    after = text[end:last] + (" …" if last < len(text) else "")
    return [before, _node("mark", text[start:end]), after] if match else [before + after]
