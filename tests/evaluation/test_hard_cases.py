"""Every measure on the table of hard cases, and on any text, against references written from the definitions
alone."""

import re
import unicodedata
from string import punctuation

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realmlm.corpus.questions import Question
from realmlm.evaluation import exact_match, regex_match
from realmlm.evaluation.locate import AnswerMatcher, Asked
from realmlm.evaluation.matching import answer_spans, contains_answer
from tests.evaluation.hard_cases import CASES, ENGINES, Case

regex = pytest.importorskip("regex")  # DPR's engine; transformers needs it, too
FLAGS = re.IGNORECASE | re.MULTILINE

# --- references: one answer at a time, as plainly as can be -------------------------------------------------


def decompose(text):
    return unicodedata.normalize("NFD", text)


def bare(text):
    """ORQA's normalisation: decomposed, lower case, no ASCII punctuation, no articles, single spaces; in this
    order."""
    text = decompose(text).lower()
    for sign in punctuation:
        text = text.replace(sign, "")
    runs = re.split(r"(\W+)", text)  # between two gaps stands a run of what `re` takes for letters
    return " ".join("".join(" " if run in ("a", "an", "the") else run for run in runs).split())


def equals(text, answer):
    return bare(text) == bare(answer)


def begins(text, pattern):
    """Without `match`: the pattern is found, and what is found begins where the text does."""
    try:
        return any(found.start() == 0 for found in re.finditer(rf"\A(?:{pattern})", text, FLAGS))
    except re.error:
        return re.compile(pattern, FLAGS).match(text) is not None  # flags within the pattern must come first


def split(text):
    """DPR's words: characters are classed by Unicode's first letter of their category."""
    kinds = [(letter, unicodedata.category(letter)[0]) for letter in decompose(text)]
    shape = "".join("w" if kind in "LMN" else " " if kind in "ZC" else "." for _, kind in kinds)
    return [decompose(text)[found.start() : found.end()].lower() for found in re.finditer(r"w+|\.", shape)]


def has_words(text, answer):
    words = split(text)
    wanted = split(answer)
    return any(words[first : first + len(wanted)] == wanted for first in range(len(words) + 1))


def has_pattern(text, pattern):
    """With DPR's engine, on decomposed text; what decomposition breaks is not found."""
    try:
        return regex.search(decompose(pattern), decompose(text), FLAGS) is not None
    except regex.error:
        return False


def has_characters(text, answer):
    return text.encode().find(answer.encode()) >= 0


REFERENCES = {"E": equals, "R": begins, "W": has_words, "P": has_pattern, "S": has_characters}


def reference(letter, text, answers):
    def holds(answer):
        try:
            return REFERENCES[letter](text, answer)
        except re.error:
            return False

    return any(map(holds, answers))


def measured(letter, text, answers):
    strings = Question("q", tuple(answers))
    patterns = Question("q", tuple(answers), is_regex=True)
    match letter:
        case "E":
            return exact_match(text, answers)
        case "R":
            return regex_match(text, answers)
        case "W":
            return contains_answer(text, strings, recall="dpr")
        case "P":
            return contains_answer(text, patterns, recall="dpr")
        case _:
            return contains_answer(text, strings, recall="orqa")


# --- the table ----------------------------------------------------------------------------------------------


def name(case):
    return ascii(f"{case.text} | {' | '.join(case.answers)}")


@pytest.mark.parametrize("case", CASES, ids=name)
def test_every_measure_says_what_the_table_says(case: Case) -> None:
    assert (
        "".join(_sign(letter, measured(letter, case.text, case.answers)) for letter in "ERWPS") == case.says
    ), case.why


@pytest.mark.parametrize("case", [*CASES, *ENGINES], ids=name)
def test_so_do_the_references(case: Case) -> None:
    said = "".join(_sign(letter, reference(letter, case.text, case.answers)) for letter in "ERWPS")
    assert said == case.says, case.why


@pytest.mark.parametrize("case", ENGINES, ids=name)
def test_where_the_engines_of_patterns_differ(case: Case) -> None:
    for letter in "ERWS":
        assert _sign(letter, measured(letter, case.text, case.answers)) in case.says
    assert measured("P", case.text, case.answers) == ("P" not in case.says), case.why


def _sign(letter: str, held: bool) -> str:
    return letter if held else "-"


def test_the_table_is_one() -> None:
    assert len({(case.text, *case.answers) for case in CASES}) == len(CASES) > 100
    for place, letter in enumerate("ERWPS"):
        assert {case.says[place] for case in CASES} <= {letter, "-"}
        assert 20 < sum(case.says[place] == letter for case in CASES) < len(CASES) - 20


# --- any text -----------------------------------------------------------------------------------------------

LETTERS = [
    *"abthe AN1.,'-_\n",
    *"éÉßẞΣςİſ²Ⅷ°–’국北🚁",
    *"\u0301\u0323\u00a0\u200b\u00ad\ufe0f",
    "the ",
    " a ",
]
PIECES = [*"aeÉé.^$| 1", "[eé]", "é?"]
texts = st.lists(st.sampled_from(LETTERS), max_size=8).map("".join)


@pytest.mark.parametrize("letter", ["E", "W", "S"])
@given(text=texts, answers=st.lists(texts, min_size=1, max_size=2))
@settings(max_examples=300)
def test_any_text_against_the_references(letter: str, text: str, answers: list[str]) -> None:
    assert measured(letter, text, answers) == reference(letter, text, answers)
    assert measured(letter, text + answers[0], answers) == reference(letter, text + answers[0], answers)


@given(text=texts, pattern=st.lists(st.sampled_from(PIECES), max_size=5).map("".join))
@settings(max_examples=300)
def test_any_pattern_against_the_references(text: str, pattern: str) -> None:
    for letter in "RP":
        assert measured(letter, text, [pattern]) == reference(letter, text, [pattern])


# --- training looks where evaluation looks ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_regex", "placeless"),
    [(False, {"", " ", "\u200b"}), (True, {"", "$", "x*", "(?=Crete)"})],
    ids=["strings", "patterns"],
)
def test_what_recall_finds_has_a_place_unless_nothing_is_what_it_finds(
    is_regex: bool, placeless: set[str]
) -> None:
    pytest.importorskip("ahocorasick")
    found_without_place = set()
    for case in CASES:
        question = Question("q", tuple(case.answers), is_regex=is_regex)
        spans = answer_spans(case.text, question)
        asked = Asked.by([question])
        found = AnswerMatcher(asked.words, asked.patterns).find([case.text])
        assert sorted({(start, end) for _, _, start, end in found.tolist()}) == spans
        assert all(case.text[start:end] for start, end in spans)
        if spans:
            assert contains_answer(case.text, question, recall="dpr"), case
        elif contains_answer(case.text, question, recall="dpr"):
            found_without_place.add(case.answers[0])
    assert found_without_place == placeless
