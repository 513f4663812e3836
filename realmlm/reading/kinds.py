"""What kind of answer does a question ask for, and is an answer of that kind? A price is no telephone number.

Rules for English that know little and say nothing where they do not know: most questions ask for no kind that
can be told from the words of an answer.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from realmlm.reading.wholes import wholes

_NUMBERS = re.compile(
    r"\d|\b(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven"
    r"|eigh|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundreds?|thousands?|millions?|billions?"
    r"|trillions?|dozens?|half|quarter|thirds?|once|twice|double|triple|both|none|no|all|any|every|each|entire"
    r"|whole|free|unlimited|most|majority|minority|few|fewer|several|many|much|little|lots?|some|couple|pair"
    r"|single|an?|nothing|everything|decades?|centur(?:y|ies)|years?|months?|weeks?|days?|hours?|minutes?"
    r"|seconds?)\b",
    re.IGNORECASE,
)
_DAY = (
    r"\d|\b(?:jan|feb|mar|apr|may|june?|july?|aug|sept?|oct|nov|dec)(?:\b|[a-z]*ary\b|ch\b|il\b|ust\b"
    r"|\w*ber\b)|\b(?:mon|tues?|wednes|thurs?|fri|satur|sun)days?\b|\b(?:today|tomorrow|yesterday|christmas"
    r"|easter|eve|every|first|second|third|fourth|fifth|sixth|tenth|twentieth)\b"
)
_DAYS = re.compile(_DAY, re.IGNORECASE)
_TIMES = re.compile(
    rf"{_DAY}|\b(?:spring|summer|autumn|fall|winter|season|century|centuries|decade|decades|years?|months?"
    r"|weeks?|weekend|weekly|daily|monthly|yearly|annually|days?|hours?|minutes?|noon|midday|midnight|morning"
    r"|afternoon|evening|night|dawn|dusk|era|age|period|times?|reign|war|before|after|during|since|until|upon"
    r"|once|while|early|late|later|always|never|now|immediately|bc|bce|ad|ce|if|as|at|death|birth)\b",
    re.IGNORECASE,
)
_MEASURE = re.compile(
    r"\d\s?(?:(?:[kcm]?m|k?g|mg|[mcd]?l|lbs?|oz|km/h|mph|min|h|k?W|V|[kKMGT](?:i?B)?|bytes?|(?:minute|hour|day|week"
    r"|month|year)s?|miles?|lit(?:er|re)s?|cups?|grams?|spoons?)\b|°\w?)"
)
_AMOUNT = re.compile(
    r"(?<![\d.,])\d+(?:[.,]\d{3})*[.,]\d\d(?![\d.,]*\d)|\b(?:free|nothing|dollars?|euros?|pounds?|pence|cents?)\b",
    re.IGNORECASE,
)
# flight FI 454, bin B2-11; not R250 or RM 20, which are money, nor TO 300 in capitals
_CODE = re.compile(
    r"\b(?!RM?\d)[A-Z]{1,4}-?\d|\b(?!AT|BY|DM|FF|IN|KM|KR|NO|NT|OF|OR|RM|RS|SR|TO|UP|US)[A-Z]{2} \d{2,4}\b"
)
_TWO = re.compile(r"\d\s+[$£€¥₹]\s?\d")  # the end of something else, and a price
_IS = "(?:is|are|was|were|do|does|did|has|have|had|will|would|can|could|may|must|should)"
_ADDRESS = re.compile(r"\S@\S")
_LETTERS = re.compile(r"[^\W\d_]{3,}")
_SUBSTANCE = (
    "water|milk|flour|sugar|salt|butter|oil|fuel|petrol|gas|memory|ram|space|storage|energy|power|time|rain"
    "|snow|food|light|weight"
)


class _Kind(NamedTuple):
    asked: re.Pattern[str]
    holds: Callable[[str], bool]
    """Is an answer of this kind?"""
    may: Callable[[str], bool] = lambda answer: False
    """Could it be, if nothing better is there?"""
    repeats: bool = False
    """May it say nothing but words of the question? "Where was the Battle of Hastings?"."""


def _asks(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


def _has(answer: str, *kinds: str) -> bool:
    return any(whole.kind in kinds for whole in wholes(answer))


def _digits(answer: str) -> bool:
    digits = sum(map(str.isdigit, answer))
    return digits >= 3 and not _LETTERS.search(answer) and not _has(answer, "date", "price", "time")


def _sum(answer: str) -> bool:
    """A number that could be a sum of money."""
    if _CODE.search(answer) and not (_has(answer, "price") or _AMOUNT.search(answer)):
        return False
    return _number(answer) and not (_has(answer, "date", "time") or _MEASURE.search(answer))


def _price(answer: str) -> bool:
    """One that says so: with its currency, or with cents."""
    return _sum(answer) and bool(_has(answer, "price") or _AMOUNT.search(answer))


def _number(answer: str) -> bool:
    return bool(_NUMBERS.search(answer)) and not (
        _has(answer, "telephone") or _ADDRESS.search(answer) or _TWO.search(answer)
    )


def _time(answer: str) -> bool:
    return bool(_TIMES.search(answer)) and not (_has(answer, "price", "telephone") or _ADDRESS.search(answer))


def _name(answer: str) -> bool:
    """More than a number, a date, a price or a time."""
    for whole in reversed(wholes(answer)):
        if whole.kind != "name":
            answer = answer[: whole.start] + "0" + answer[whole.end :]
    return not re.search(r"\d", answer) or bool(_LETTERS.search(answer))


# the first that is asked for counts
_PRICE = _Kind(
    _asks(
        r"\bhow much (?:money|(?:is|are|was|were) (?:an?|the|one|each)\b)",
        r"\bhow much\b.*\b(?:costs?|pay|paid|charged?|spen[dt])\b",
        r"\bwhat (?:does|do|did|will|would)\b.*\b(?:costs?|pay|charge)\b(?! attention| tribute|.* with\b)",
        r"\bwhat(?: (?:is|was|are|were)|['’]s) (?:(?!of|for|that)[\w'’-]+ ){0,4}"
        r"(?:price|cost|fee|fare|rent|salary)\b(?! of living)",
    ),
    _price,
    _sum,
)
_KINDS = (
    _Kind(
        _asks(r"\be-?mail address", r"\bhow (?:can|do|may|should) \w+ e-?mail\b"),
        lambda answer: bool(_ADDRESS.search(answer)),
    ),
    _Kind(_asks(r"\burl\b", r"\bweb address\b"), lambda answer: bool(re.search(r"\w[./]\w", answer))),
    _Kind(
        _asks(
            r"\b(?:(?:tele)?phone|fax|mobile|cell|emergency) number\b",
            r"\b(?:what|which) number\b.*\b(?:call|ring|dial|phone)\b",
            r"\bhow (?:can|do|may|should) \w+ (?:(?:tele)?phone|ring)\b",
        ),
        lambda answer: _has(answer, "telephone"),
        _digits,
    ),
    _Kind(
        _asks(rf"\bhow much (?:\w+ )?(?:{_SUBSTANCE})\b"),
        lambda answer: _number(answer) and bool(_MEASURE.search(answer)),
        lambda answer: _number(answer) and not _has(answer, "price"),
    ),
    _PRICE,
    _Kind(
        _asks(
            r"\bhow (?:many|much|old|tall|high|far|deep|wide|heavy|long|large|big)\b",
            r"\bwhat (?:percent|percentage|proportion|fraction)\b",
            r"\bwhat (?:is|was) the (?:\w+ )?(?:population|percentage)\b",
        ),
        _number,
    ),
    _Kind(
        _asks(
            r"\b(?:what|which) (?:date|day)\b(?! of the week)",
            r"^(?:by|from|since|until) when\b",
            r"\bwhat (?:is|was) the (?:\w+ )?date\b",
        ),
        lambda answer: _time(answer) and bool(_DAYS.search(answer)),
        repeats=True,
    ),
    _Kind(
        _asks(rf"^(?:\w+ )?when {_IS}\b", r"\b(?:what|which) (?:year|day|month|decade|century|time)\b"),
        _time,
        repeats=True,
    ),
    _Kind(
        _asks(r"^(?:\w+ )?(?:whom?|whose|where)\b(?!.*\brank)", r"\bwhat (?:is|was) the name\b"),
        _name,
        repeats=True,
    ),
)


def asks_price(question: str) -> bool:
    """Does the question ask what something costs, or someone earns?"""
    return bool(_PRICE.asked.search(question))


def fits(question: str, answer: str) -> int:
    """Is the answer of the kind that the question asks for? 1: yes; −1: no; 0: it may be, or the question
    asks for none of these. A number that is in the question is none that it asks for."""
    kind = next((kind for kind in _KINDS if kind.asked.search(question)), None)
    if kind is None:
        return 0
    if not kind.repeats and repeats(question, answer):
        return -1
    return 1 if kind.holds(answer) else 0 if kind.may(answer) else -1


_WORD = re.compile(r"\w+")
_ARTICLES = frozenset(("a", "an", "the", "of", "and", "in"))


def repeats(question: str, answer: str) -> bool:
    """Does the answer say nothing but words of the question? "Who is the landlord?" "The landlord". Of
    "red or blue" it may."""
    said = {word.casefold() for word in _WORD.findall(answer)} - _ARTICLES
    asked = {word.casefold() for word in _WORD.findall(question)}
    return bool(said) and said <= asked and "or" not in asked
