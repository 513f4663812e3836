"""Things of several words in English texts, which an answer gives whole: "30 September 2026", "12 euros",
"0117 496 0182", "9 am to 5 pm", "Dr. Jane Smith"; and the borders that no answer runs across."""

import re
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from realmlm.sentences import split_sentences


class Whole(NamedTuple):
    """Characters [start, end) of a text that belong together."""

    start: int
    end: int
    kind: str


def _telephone(found: str) -> bool:
    number, _, _ = found.partition("x")  # what follows is an extension
    return 8 <= sum(map(str.isdigit, number)) <= 15


def _ascends(found: str) -> bool:
    """Is it a range of small numbers? A score, a pair of years or a date is none."""
    first, second = (float(number.replace(",", ".")) for number in re.findall(r"\d+(?:[.,]\d+)?", found)[:2])
    return first < second and first < 1000


_ = r"[ \xa0\u202f]"  # a space within a line
_NUMBER = r"\d+(?:[.,]\d+)*"
_MONTHS = (
    "Jan(?:uary)? Feb(?:ruary)? Mar(?:ch)? Apr(?:il)? May June? July? Aug(?:ust)? Sept?(?:ember)? "
    "Oct(?:ober)? Nov(?:ember)? Dec(?:ember)?"
)
_SHORT = "Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec"
_MONTH = rf"(?:(?:{'|'.join(_MONTHS.split())})\b|(?:{'|'.join(_SHORT.split())})\.)"
_WEEKDAYS = (
    "Mon(?:day)? Tue(?:s(?:day)?)? Wed(?:nesday)? Thu(?:rs(?:day)?)? Fri(?:day)? Sat(?:urday)? Sun(?:day)?"
)
_WEEKDAY = rf"(?:{'|'.join(_WEEKDAYS.split())})\b"
_DAY = r"(?:3[01]|[12]\d|0?[1-9])(?:st|nd|rd|th)?\b"
_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth"
_DAY_IN_WORDS = (  # but not a third of May
    rf"(?<!\b[Aa]{_})(?<!\b[Oo]ne{_})(?:(?:twenty-)?(?:{'|'.join(_ORDINALS.split())})|tenth|eleventh|twelfth"
    "|(?:thir|four|fif|six|seven|eigh|nine)teenth|twentieth|thirtieth|thirty-first)"
)
_YEAR = r"(?:1\d|20)\d\d\b"
_SIGN = "[$£€¥₹₩₽₺]"
_CODE = "(?:EUR|USD|GBP|CHF|JPY|CNY|INR|AUD|CAD|NZD|SEK|NOK|DKK|PLN|CZK)"
_COIN = (
    rf"(?:(?:US|Canadian|Australian){_})?(?:dollars?|euros?|pounds?(?:{_}sterling)?|cents?|pence|yen|yuan"
    "|rupees?|rou?bles?|francs|kron[eo]r|shillings?|guineas?|pesos?)"
)
_LARGE = rf"(?:{_}(?:hundred|thousand|million|billion|trillion|bn|m)\b)*"
_TIME = rf"(?:\d{{1,2}}(?:[:.]\d\d)?{_}?(?:[ap]m\b|[ap]\.m\.)|\d{{1,2}}:\d\d\b|noon\b|midnight\b)"
_PRICE = rf"(?:US|A|C|NZ)?{_SIGN}{_}?{_NUMBER}{_LARGE}"
_TO = rf"(?:{_}?[–—-]{_}?|{_}(?:to|until|till|through){_})"
_DASH = rf"{_}?[–—-]{_}?"
_ALONE = r"(?<![\w.,:/+-])"  # not within a word, a number or a code
_NOT_BEFORE = r"(?![\w@]|[.,:/-]\w)"
_ADDRESSED = (
    "(?:(?:Dr|Prof|Mrs?|Ms|Mx|Rev)\\.|(?:Dr|Prof|Professor|Mrs?|Ms|Mx|Miss|Rev|Reverend|Sir|Dame)\\b)"
)
_NAME = r"(?:[A-Z]\.|[A-Z]\w*(?:[’'-]\w+)*)"


class _Kind(NamedTuple):
    kind: str
    signs: str
    """One of these words is in every text that has one of the kind: a search for them is quick."""
    pattern: str
    holds: Callable[[str], bool] | None = None

    def found(self) -> "Callable[[str], list[Whole]]":
        signs = self.signs.split("|")
        search = re.compile(self.pattern).finditer

        def find(text: str) -> list[Whole]:
            if not any(sign in text for sign in signs):
                return []
            matches = (match for match in search(text) if self.holds is None or self.holds(match[0]))
            return [Whole(*match.span(), self.kind) for match in matches]

        return find


_MONTH_SIGNS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_MONEY_SIGNS = "$|£|€|¥|₹|₩|₽|₺|EUR|USD|GBP|CHF|JPY|CNY|INR|AUD|CAD|NZD|SEK|NOK|DKK|PLN|CZK"
_COIN_SIGNS = "dollar|euro|pound|cent|pence|yen|yuan|rupee|ble|franc|kron|shilling|guinea|peso"
_TIME_SIGNS = ":|am|pm|a.m.|p.m.|noon|midnight"
_PARTICLES = "(?:von|van|de|der|den|du|da|di|la|le|al|bin)"
_IN = rf"(?:{_}|[-./])"  # between the digits of a telephone number
_EXTENSION = rf"(?:,?{_}(?:ext(?:ension|n)?\b\.?|x){_}?\d{{1,5}}\b)?"
# what is within another comes before it
_KINDS = (
    _Kind(
        "date",
        _MONTH_SIGNS,
        rf"\b(?:{_WEEKDAY},?{_}(?:the{_})?)?(?:{_DAY}{_}(?:of{_})?|{_DAY_IN_WORDS}{_}of{_}){_MONTH}"
        rf"(?:,?{_}{_YEAR})?"
        rf"|\b(?:{_WEEKDAY},?{_})?{_MONTH}{_}{_DAY}(?:,?{_}{_YEAR})?"
        rf"|\b{_MONTH},?{_}{_YEAR}",
    ),
    _Kind("price", _MONEY_SIGNS, rf"{_ALONE}(?:{_PRICE}|{_CODE}{_}?{_NUMBER}{_LARGE})"),
    _Kind(
        "price",
        f"{_MONEY_SIGNS}|{_COIN_SIGNS}",
        rf"{_ALONE}{_NUMBER}{_LARGE}(?:{_}?{_SIGN}|{_}?{_CODE}\b|{_}{_COIN}\b)",
    ),
    _Kind("time", _TIME_SIGNS, rf"{_ALONE}{_TIME}"),
    _Kind("range", _TIME_SIGNS, rf"{_ALONE}(?:{_TIME}{_TO}|\d{{1,2}}(?:[:.]\d\d)?{_DASH}){_TIME}"),
    _Kind(
        "range",
        f"day|Mon|Tue|Wed|Thu|Fri|Sat|Sun|{_MONTH_SIGNS}",
        rf"\b(?:{_WEEKDAY}{_TO}{_WEEKDAY}|{_MONTH}{_TO}{_MONTH})",
    ),
    _Kind(
        "range", "–|—|-", rf"{_ALONE}\d{{1,3}}(?:[.,]\d+)?{_DASH}\d{{1,3}}(?:[.,]\d+)?{_NOT_BEFORE}", _ascends
    ),
    _Kind("range", _MONEY_SIGNS, rf"{_ALONE}{_PRICE}{_DASH}(?:{_SIGN})?{_NUMBER}{_LARGE}"),
    _Kind(
        "telephone",
        "+",
        rf"(?<![\w+])\+\d{{1,3}}(?:{_}?\(0\))?(?:{_IN}?\(?\d{{2,}}\)?)+\b{_EXTENSION}",
        _telephone,
    ),
    _Kind(
        "telephone",
        "0",
        rf"{_ALONE}(?:(?:\(0\d{{1,5}}\)|0\d{{1,5}})(?:{_IN}{{1,2}}\d{{2,8}}){{1,5}}"
        rf"|1[389]00(?:{_IN}\d{{3}}){{2}})\b{_EXTENSION}",
        _telephone,
    ),
    _Kind(
        "telephone",
        "-|.| ",
        rf"{_ALONE}(?:1[-. ])?(?:\(\d{{3}}\){_}?|\d{{3}}[-. ])\d{{3}}[-. ]\d{{4}}\b{_EXTENSION}",
    ),
    _Kind("telephone", "xt", rf"\b[Ee]xt(?:n\b\.?|\b\.?|ension{_}(?:no\.?|number)){_}?\d{{2,5}}\b"),
    _Kind(
        "name",
        "Dr|Prof|Mr|Ms|Mx|Miss|Rev|Sir|Dame",
        rf"\b(?<!Notre ){_ADDRESSED}(?:{_}(?:{_PARTICLES}{_})*{_NAME}){{1,4}}",
    ),
)
_FIND = tuple(kind.found() for kind in _KINDS)
ALL = frozenset(kind.kind for kind in _KINDS)
"""All kinds of such things."""


def wholes(text: str) -> list[Whole]:
    """The things of several words in a text; what is within another comes before it."""
    return [whole for find in _FIND for whole in find(text)]


# questions that are answered by a part of such a thing
_OF_PARTS = (
    (
        "date",
        re.compile(
            r"\b(?:what|which)\b[\w\s]{0,20}\b(?:years?|months?|decade|century|day of)\b"
            r"|\bhow (?:many|old|long)\b",
            re.IGNORECASE,
        ),
    ),
    ("price", re.compile(r"\bhow many\b", re.IGNORECASE)),
    (
        "range",
        re.compile(
            r"\b(?:begins?|began|starts?|started|closes?|closed|ends?|ended|finish|until|since|earliest|latest"
            r"|least|most|minimum|maximum)\b|\b(?:does|do|did)\b.*\bopen\b",
            re.IGNORECASE,
        ),
    ),
)


def kept_whole(question: str) -> frozenset[str]:
    """The kinds of things that an answer to this question gives whole: of a date, what year asks for a
    part."""
    return ALL - {kind for kind, asks_part in _OF_PARTS if asks_part.search(question)}


_WRAPPED = 55  # characters of a line that may have been broken within a sentence
_MAY_END = re.compile(r"[\n\r\u2028\u2029;.!?。！？]")  # perhaps a clause or a line of a list
_CLAUSE = re.compile(r";(?=\s)")
_BREAK = re.compile(r"^[^\n]*\n", re.MULTILINE)
# after a number or a code it belongs to the sentence; that of "D.C." or "5p.m." stays
_STOP = re.compile(r"(?:\d|(?:^|\s)[\w/-]*\d[\w/-]*)[.,;:]\Z")
_LONGEST_CODE = 40  # characters
_MARK = re.compile(r"[ \t]*((?:\d{1,3}\.)*\d{1,3}[.)])(?=\s)")
_FILE_NAME = re.compile(r"\.\w{2,4}$")
_NEAR = 60  # characters on both sides of a span in which the whole of it is looked for


def borders(text: str) -> list[int]:
    """The places between sentences, clauses that a semicolon divides, and lines of a list."""
    ends = {end for _, end in split_sentences(text)[:-1]}
    clauses = {clause.start() for clause in _CLAUSE.finditer(text)}
    return sorted(ends - {end - 1 for end in _wrapped_ends(text)} | clauses)


def _wrapped_ends(text: str) -> set[int]:
    """Where lines end that may have been broken within a sentence, each with its line break."""
    lines = _BREAK.finditer(text)
    return {line.end() for line in lines if len(line[0]) > _WRAPPED and line[0][-2] not in ".!?:;"}


def marks(text: str) -> list[tuple[int, int]]:
    """The numbers before headings and items of lists, "3." of "3. Rent": they count, and answer nothing."""
    found = [mark for place in _beginnings(text) if (mark := _MARK.match(text, place))]
    wrapped = _wrapped_ends(text) if found else ()
    return [mark.span(1) for mark in found if mark.start() not in wrapped]


def headings(title: str, text: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Where a passage has the heading of its section, in its title, the last of "Programme › Fees", and as
    the first lines of its text. A document's own title is none, nor is it after the name of a file."""
    path = title.split(" › ")
    if len(path) < 2 + bool(_FILE_NAME.search(path[0])):
        return [], []
    in_text = []
    start = 0
    for line in text.split("\n"):
        if line.strip() not in path[1:]:
            break
        in_text.append((start, start + len(line)))
        start += len(line) + 1
    return [(len(title) - len(path[-1]), len(title))], in_text


def _beginnings(text: str) -> Iterator[int]:
    """Where lines and the parts of a path of headings begin."""
    yield 0
    for before in ("\n", " › "):
        place = text.find(before)
        while place >= 0:
            yield place + len(before)
            place = text.find(before, place + 1)


def within_borders(start: int, end: int, text: str) -> tuple[int, int]:
    """The longest part of a span that runs across no border, the first of several."""
    may_cross = text[start:end].endswith((" ", "\t")) or _MAY_END.search(text, start, end)
    inside = [place for place in borders(text) if start < place < end] if may_cross else []
    if not inside:
        return start, end
    parts = [
        (past - len(text[first:past].lstrip("; \n\t")), past)
        for first, past in zip([start, *inside], [*inside, end], strict=True)
    ]
    return max(parts, key=lambda part: part[1] - part[0])


def made_whole(start: int, end: int, text: str, kept: Collection[str] = ALL) -> tuple[int, int]:
    """The span within its borders, made longer by the things of these kinds that it begins or ends within,
    without the stop after a number or a code."""
    start, end = within_borders(start, end, text)
    if end > start + 1 and not text[end : end + 1].isdigit():
        end -= bool(_STOP.search(text[max(start, end - _LONGEST_CODE) : end]))
    near = max(0, start - _NEAR)
    near = text.find(" ", near, start) + 1 if near else 0
    for first, past, kind in wholes(text[near : end + _NEAR]):
        if kind in kept:
            start = near + first if first < start - near < past else start
            end = near + past if first < end - near < past else end
    return start, end
