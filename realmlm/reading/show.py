"""Answers as a terminal and as a notebook show them."""

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from realmlm.reading.records import Answer

# colours that are legible on light and dark ground
_TRACK = (
    "display:inline-block;vertical-align:middle;width:5em;height:.6em;border-radius:.3em;background:#8884"
)
_FILLED = "display:block;height:100%;border-radius:.3em;background:#4a90c4"
_UNREAD = "without reading anything"  # beside the null document


def as_text(answer: "Answer") -> str:
    """For a terminal: the answer, then each passage with its probabilities and the sentence that says it."""
    caution = f"   {answer.caution}" if answer.caution else ""
    lines = [f"{answer.answer or '(no answer)'}   p = {answer.probability:.3f}{caution}", ""]
    for read in answer.evidence:
        numbers = f"p(z|x) {read.retrieval_probability:.3f}   p(y|z,x) {read.reading_probability:.3f}"
        if read.vector_score is not None:
            numbers += f"   f {read.vector_score:.1f} + words {read.word_score:.1f}"
        if read.passage_id is None:
            lines.append(f"  {numbers}   {_UNREAD}")
            continue
        numbers += "" if read.passage_logit is None else f"   g(x,z) {read.passage_logit:+.1f}"
        before, span, after = read.quote()
        lines.append(f"  {numbers}   {read.where()}")
        lines.append(f"      {before}{f'»{span}«' if span else ''}{after}")
    return "\n".join(lines)


def as_html(answer: "Answer") -> str:
    """For a notebook: the same, the answer marked where it stands and the probabilities as bars."""
    words = escape(answer.answer or "(no answer)")
    rows = [f"<b>{words}</b> &nbsp; p = {answer.probability:.3f} &nbsp; <i>{escape(answer.caution)}</i>"]
    for read in answer.evidence:
        before, span, after = map(escape, read.quote())
        bars = _bar("p(z|x)", read.retrieval_probability) + _bar("p(y|z,x)", read.reading_probability)
        title = _UNREAD if read.passage_id is None else escape(read.where())
        mark = f'<mark style="background:#ffe59a;color:#1d2329">{span}</mark>' if span else ""
        rows.append(f'{bars}<b>{title}</b><div style="margin-left:1em">{before}{mark}{after}</div>')
    return "".join(f'<div style="margin:.4em 0;text-align:left">{row}</div>' for row in rows)


def _bar(name: str, probability: float) -> str:
    """A probability as a small bar."""
    filled = f'<span style="{_FILLED};width:{100 * probability:.0f}%"></span>'
    return f'{name} <span style="{_TRACK}">{filled}</span> {probability:.3f} &nbsp; '
