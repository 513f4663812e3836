"""Answers as a terminal and as a notebook show them: what the passages say, then the answer and how sure."""

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from realmlm.reading.records import Answer, Evidence

# colours that are legible on light and dark ground
_TRACK = (
    "display:inline-block;vertical-align:middle;width:5em;height:.6em;border-radius:.3em;background:#8884"
)
_FILLED = "display:block;height:100%;border-radius:.3em;background:#4a90c4"
_UNREAD = "without reading anything"  # beside the null document
LITTLE = 0.01  # the share of an answer's probability that is not worth showing a passage for

OTHER = 0.02  # p(y|x) of another answer that is worth naming


def as_text(answer: "Answer", *, numbers: bool) -> str:
    """For a terminal: each passage that gives the answer, in the sentence that says it, then the answer.
    With `numbers` all passages and their probabilities, and the other answers that are not far-fetched."""
    lines = []
    for read in answer.evidence if numbers else _telling(answer):
        place = _UNREAD if read.passage_id is None else read.where()
        lines.append(f"  {_numbers(read)}   {place}" if numbers else f"  {place}")
        if read.passage_id is not None:
            before, span, after = read.quote()
            lines.append(f"      {before}{f'»{span}«' if span else ''}{after}")
    said = [answer.answer or "(no answer)"]
    said += [f"p = {answer.probability:.3f}"] if numbers or not answer.sure else []
    said += [_how_sure(answer)] if _how_sure(answer) else []
    others = [other for other in answer.others if other.probability >= OTHER] if numbers else []
    also = [f"or: {other.words}   p = {other.probability:.3f}" for other in others]
    return "\n".join([*lines, *([""] if lines else []), "   ".join(said), *also])


def as_html(answer: "Answer") -> str:
    """For a notebook: the same, the answer marked where it stands and the probabilities as bars, folded."""
    rows = []
    for read in _telling(answer):
        before, span, after = map(escape, read.quote())
        title = _UNREAD if read.passage_id is None else escape(read.where())
        mark = f'<mark style="background:#ffe59a;color:#1d2329">{span}</mark>' if span else ""
        rows.append(f'<b>{title}</b><div style="margin-left:1em">{before}{mark}{after}</div>')
    words = escape(answer.answer or "(no answer)")
    rows.append(f"<b>{words}</b> &nbsp; <i>{escape(_how_sure(answer))}</i>")
    bars = [f"<div>p = {answer.probability:.3f}</div>"]
    for read in answer.evidence:
        title = _UNREAD if read.passage_id is None else escape(read.where())
        both = _bar("p(z|x)", read.retrieval_probability) + _bar("p(y|z,x)", read.reading_probability)
        bars.append(f"<div>{both}{title}</div>")
    rows.append(f"<details><summary>numbers</summary>{''.join(bars)}</details>")
    return "".join(f'<div style="margin:.4em 0;text-align:left">{row}</div>' for row in rows)


def _how_sure(answer: "Answer") -> str:
    """A word, and what to know before believing it."""
    return ": ".join(filter(None, (answer.sure, answer.caution)))


def _telling(answer: "Answer") -> "list[Evidence]":
    """What an answer comes from; where nothing gives it, what was read first."""
    least = LITTLE * answer.probability
    telling = [
        read for read in answer.evidence if read.retrieval_probability * read.reading_probability > least
    ]
    return telling or list(answer.evidence[:1])


def _numbers(read: "Evidence") -> str:
    """p(z|x) and p(y|z,x), and what they were made of."""
    numbers = f"p(z|x) {read.retrieval_probability:.3f}   p(y|z,x) {read.reading_probability:.3f}"
    if read.vector_score is not None:
        numbers += f"   f {read.vector_score:.1f} + words {read.word_score:.1f}"
    return numbers if read.passage_logit is None else f"{numbers}   g(x,z) {read.passage_logit:+.1f}"


def _bar(name: str, probability: float) -> str:
    """A probability as a small bar."""
    filled = f'<span style="{_FILLED};width:{100 * probability:.0f}%"></span>'
    return f'{name} <span style="{_TRACK}">{filled}</span> {probability:.3f} &nbsp; '
