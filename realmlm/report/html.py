"""A report as one HTML file that needs nothing beside itself: curves, tables, retrieval before and after.

Texts become text nodes of an element tree, never markup. The numbers of the curves are a block of JSON, drawn
by the same script as on the service's page (realmlm.page).
"""

import base64
import hashlib
import json
import re
from collections import Counter
from typing import Any
from xml.etree import ElementTree

from realmlm.errors import BadInput
from realmlm.log import counted
from realmlm.page import asset
from realmlm.reading.records import Evidence
from realmlm.report.predictions import Change, Prediction, compare, read_predictions
from realmlm.report.sources import (
    Evaluation,
    Interval,
    ShownRun,
    ShownVerdict,
    names_of,
    read_evaluation,
    read_run,
    read_verdict,
    short_path,
)
from realmlm.settings import MakeReport
from realmlm.storage.artefacts import refuse_existing, write_text

SHOWN = 3  # passages of an example, on each side
PIECE = 260  # characters of a passage

Node = ElementTree.Element

_DRAW = """
const runs = document.getElementById("runs");
if (runs) document.getElementById("curves").replaceChildren(...figures(JSON.parse(runs.textContent)));
"""


def write_report(settings: MakeReport) -> str:
    """Write the report; says what is in it. On an error nothing is written."""
    out = settings.out
    refuse_existing(out)
    sections: list[Node] = []
    parts = []
    title = out.stem
    if settings.runs:
        named = list(zip(settings.runs, names_of(settings.runs), strict=True))
        shown = [part for folder, name in named for part in read_run(folder, name)]
        verdicts = [verdict for folder, name in named if (verdict := read_verdict(folder, name))]
        sections += map(_verdict, verdicts)
        sections.append(_curves(shown))
        parts += [counted(len(shown), "run"), *([counted(len(verdicts), "verdict")] if verdicts else [])]
        title = ", ".join(run.name for run in shown)
    if files := settings.evaluations:
        sections.append(_evaluations(list(map(read_evaluation, files, names_of(files)))))
        parts.append(counted(len(files), "evaluation"))
    before = settings.before
    after = settings.after
    if before is not None and after is not None:
        change = compare(read_predictions(before), read_predictions(after), examples=settings.examples)
        if change.both == 0:
            different = f"{before} and {after} have no question in common"
            raise BadInput(f"{different}; evaluate both on the same --questions")
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
    script = asset("charts.js") + _DRAW
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
        _node("style", asset("style.css")),
    )
    body = _node(
        "body",
        _node("header", _node("h1", title)),
        _node("main", *sections),
        _node("script", script),
        class_="report",
    )
    whole = ElementTree.tostring(_node("html", head, body, lang="en"), "unicode", "html")
    return f"<!doctype html>\n{whole}\n"


def _curves(runs: list[ShownRun]) -> Node:
    said = ["Beside each name: the last value, or the one under the pointer."]
    if any(len(point) > 2 for run in runs for points in run.curves.values() for point in points):
        said.append("Long curves are drawn as the mean of every few rows, over their range.")
    unseen = _node("noscript", "The curves are drawn by JavaScript, which is switched off here.")
    data = [{"name": run.name, "place": number, "curves": run.curves} for number, run in enumerate(runs)]
    numbers = json.dumps(data).replace("<", "\\u003c")
    section = _node(
        "section",
        _node("h2", "Training"),
        _node("p", " ".join(said), class_="note"),
        _node("div", unseen, id="curves"),
        _node("script", numbers, type="application/json", id="runs"),
    )
    rows = []
    for name in dict.fromkeys(name for run in runs for name in run.settings if name != "out"):
        if len({json.dumps(run.settings[name]) for run in runs if name in run.settings}) > 1:
            cells = (_node("td", _shown(run.settings.get(name))) for run in runs)
            rows.append(_row(_node("th", name), *cells))
    if rows:
        head = _row(_node("td"), *(_node("th", run.name) for run in runs))
        section.append(_table("Settings in which the runs differ", [head], rows))
    return section


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "–"
    if isinstance(value, str):
        return short_path(value)
    return "–" if value is None else json.dumps(value)


def _number(value: float, form: str) -> str:
    return f"{value:{form}}".replace("-", "−")


def _row(*cells: Node) -> Node:
    return _node("tr", *cells)


def _table(caption: str, head: list[Node], rows: list[Node]) -> Node:
    table = _node("table", _node("caption", caption), _node("thead", *head), _node("tbody", *rows))
    # wider than a phone: it scrolls, with the keyboard too
    return _node("div", table, class_="wide", role="region", aria_label=caption, tabindex="0")


def _verdict(verdict: ShownVerdict) -> Node:
    means = "means with their 95% intervals, in percent where no unit is said"
    caption = f"{verdict.held_out:,} held out, before and after: {means}"
    head = _row(_node("td"), _node("th", "before"), _node("th", "after"))
    rows = [
        _row(_node("th", title), *(_score(side, nats=title.endswith("nats")) for side in sides))
        for title, sides in verdict.measures.items()
    ]
    gain, low, high = (_number(number, "+.3f") for number in verdict.gain)
    kept = "Better on these: the model was kept." if verdict.kept else "Not surely better: nothing was kept."
    said = f"{verdict.gained[:1].upper()}{verdict.gained[1:]}: {gain} [{low}, {high}]. "
    return _node(
        "section",
        _node("h2", f"Adapting: {verdict.name}"),
        _table(caption, [head], rows),
        _node("p", said, _node("b", kept)),
    )


def _evaluations(evaluations: list[Evaluation]) -> Node:
    columns = sorted({column for evaluation in evaluations for column in evaluation.scores})
    groups = Counter((column.place, column.group) for column in columns)
    above = _row(_node("td"), *(_node("th", group, colspan=str(wide)) for (_, group), wide in groups.items()))
    head = _row(_node("td"), *(_node("th", column.name) for column in columns))
    rows = []
    for evaluation in evaluations:
        name = _node("th", evaluation.name, *(_node("small", line) for line in evaluation.about))
        scores = (_score(evaluation.scores.get(one), nats=one.group == "nats") for one in columns)
        rows.append(_row(name, *scores))
    table = _table("Means with their 95% intervals", [above, head], rows)
    return _node("section", _node("h2", "Evaluation"), table)


def _score(score: Interval | None, *, nats: bool) -> Node:
    """A cell with a mean and its interval: nats to two digits, percent to one."""
    if score is None:
        return _node("td", "–")
    value, low, high = (_number(number, ".2f" if nats else ".1f") for number in score)
    return _node("td", value, _node("small", f"[{low}, {high}]"))


def _change(change: Change, names: list[str]) -> Node:
    section = _node("section", _node("h2", "Retrieval before and after"), class_="change")
    nearer, further = change.counts
    was, now = change.right
    summary = f"""{change.both:,} questions were put to {names[0]} (before) and to {names[1]} (after).
        The first passage with the answer came nearer for {nearer:,} and moved away for {further:,};
        {was:,} answers were right before and {now:,} after ({change.gained:,} gained, {change.lost:,} lost).
        Shown are questions for which p(z|x), the percentage beside a passage, changed most;
        at most one for each expected answer."""
    section.append(_node("p", " ".join(summary.split()), class_="note"))
    shown = {"The answer came nearer": change.nearer, "The answer moved away": change.further}
    for title, pairs in shown.items():
        if pairs:
            section.append(_node("h3", title))
            section.extend(_example(pair, names) for pair in pairs)
    return section


def _example(pair: tuple[Prediction, Prediction], names: list[str]) -> Node:
    expected = _node("p", "expected: ", _node("b", " / ".join(pair[0].answers)), class_="note")
    titles = (f"{when}: {name}" for when, name in zip(("before", "after"), names, strict=True))
    sides = _node("div", *map(_side, pair, titles), class_="sides")
    return _node("article", _node("h4", pair[0].question), expected, sides, class_="card")


def _side(side: Prediction, title: str) -> Node:
    word = "right" if side.correct else "wrong"
    right = _node("span", f"{'✓' if side.correct else '✗'} {word}", class_=word)
    told = [] if side.log_p is None else [f"log p(y|x) {_number(side.log_p, '.2f')}"]
    found = f"first passage with the answer: {side.rank}"
    told.append("no passage retrieved has the answer" if side.rank is None else found)
    return _node(
        "div",
        _node("h5", title),
        _node("p", _node("b", side.answer or "(no answer)"), " ", right),
        _node("p", "; ".join(told), class_="note"),
        _node("ol", *(_passage(one, side.answers) for one in side.read[:SHOWN])),
    )


def _passage(read: Evidence, answers: tuple[str, ...]) -> Node:
    p = read.retrieval_probability
    share = _node("span", f"{100 * p:.{0 if p >= 0.0995 else 1}f}%", class_="number", title="p(z|x)")
    if read.passage_id is None:
        return _node("li", _node("p", "nothing read (the null document) ", share, class_="title"))
    return _node(
        "li",
        _node("p", read.title or f"passage {read.passage_id}", " ", share, class_="title"),
        _node("p", *piece(read.passage, answers)),
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
