import re
import sys
import unicodedata

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from realmlm.corpus.questions import Question
from realmlm.errors import MissingExtra
from realmlm.evaluation import locate, matching
from realmlm.evaluation.locate import AnswerMatcher, Asked, required_literals
from realmlm.evaluation.matching import answer_spans, contains_answer

pytest.importorskip("ahocorasick")
# letters with and without accents, a ligature of case folding, symbols that decompose, marks to reorder, gaps
# of several kinds
ODD = [
    "e\u0301",
    "\u0323\u0307",
    "\u0307\u0323",
    "≠",
    "☎\ufe0f",
    "\u200b",
    "\u00a0",
    "\n",
    "가",
    "🚁",
    "new york",
    "New York City",
]
LETTERS = [*"abAB1 é,.-_ßİσςΣ", *ODD]
texts = st.lists(st.sampled_from(LETTERS), max_size=12).map("".join)
questions = st.lists(
    st.lists(texts, max_size=3).map(lambda answers: Question("q", tuple(answers))), max_size=4
)


def slow_words(text):
    """(word, start, end), one character at a time."""
    letters = [
        (letter, at) for at, original in enumerate(text) for letter in unicodedata.normalize("NFD", original)
    ]
    # canonical order of marks, as the whole text decomposed has it; positions stay
    letters = [
        (letter, at) for letter, (_, at) in zip(unicodedata.normalize("NFD", text), letters, strict=True)
    ]
    words: list[tuple[str, int, int]] = []
    within = False
    for letter, at in letters:
        kind = unicodedata.category(letter)[0]
        if kind in "LNM" and within:
            words[-1] = (words[-1][0] + letter, words[-1][1], at + 1)
        elif kind not in "ZC":
            words.append((letter, at, at + 1))
        within = kind in "LNM"
    return [(word.lower(), start, end) for word, start, end in words]


def slow_spans(text, answers):
    passage = slow_words(text)
    spans = set()
    for answer in answers:
        wanted = [word for word, _, _ in slow_words(answer)]
        if wanted:
            for first in range(len(passage) - len(wanted) + 1):
                window = passage[first : first + len(wanted)]
                if [word for word, _, _ in window] == wanted:
                    spans.add((window[0][1], window[-1][2]))
    return sorted(spans)


@given(texts, st.lists(texts, max_size=3))
@settings(max_examples=300)
def test_spans_against_one_character_at_a_time(text, answers):
    question = Question("q", tuple(answers))
    assert answer_spans(text, question) == slow_spans(text, answers)
    # found everywhere, and nowhere in particular
    wordless = any(not slow_words(answer) for answer in answers)
    assert contains_answer(text, question, recall="dpr") == (wordless or bool(slow_spans(text, answers)))


@given(st.text(max_size=30))
def test_words_of_any_text(text):
    words, bounds = matching._words(text)
    assert list(zip(words, bounds[0:-1:2], bounds[1::2], strict=True)) == slow_words(text)


@pytest.mark.parametrize(
    ("text", "answer", "found"),
    [
        ("He left New  York, today", "new york", ["New  York"]),
        ("Newt Yorkshire", "new york", []),
        ("the U.S. army", "u.s.", ["U.S."]),
        ("the US army", "u.s.", []),
        ("Caf\u00e9 Tove", "cafe\u0301", ["Caf\u00e9"]),
        ("Cafe\u0301 Tove", "caf\u00e9 tove", ["Cafe\u0301 Tove"]),
        ("a cafe", "café", []),
        ("na na na", "na na", ["na na", "na na"]),
        ("what? no!", "!", ["!"]),
        ("a 🚁 flies", "🚁", ["🚁"]),
        ("nothing", " \t", []),
    ],
)
def test_by_example(text, answer, found):
    assert [text[start:end] for start, end in answer_spans(text, Question("q", (answer,)))] == found


def slow_pattern_spans(text, pattern):
    """Of decomposed text; each of its characters belongs to the one it was made from."""
    owners = [at for at, letter in enumerate(text) for _ in unicodedata.normalize("NFD", letter)]
    spans = set()
    for found in re.finditer(
        unicodedata.normalize("NFD", pattern), unicodedata.normalize("NFD", text), re.IGNORECASE
    ):
        if owned := owners[found.start() : found.end()]:
            spans.add((min(owned), max(owned) + 1))
    return sorted(spans)


@given(texts, st.sampled_from(["b", "e", "é", "a.", "[^a]", "b|é|1", "\\w+", " ?a"]))
def test_places_of_patterns_in_the_text_as_it_was_given(text, pattern):
    assert answer_spans(text, Question("q", (pattern,), is_regex=True)) == slow_pattern_spans(text, pattern)


def test_patterns():
    question = Question("q", (r"cre?te|x*", "Greece"), is_regex=True)
    assert answer_spans("CRETE, xx Greece", question) == [(0, 5), (7, 9), (10, 16)]
    assert contains_answer("Sicily", question, recall="dpr")  # x* matches nothing, which is everywhere
    assert not answer_spans("Sicily", question)
    assert not answer_spans("(", Question("q", ("(",), is_regex=True))


# --- many texts at once -------------------------------------------------------------------------------------


def one_by_one(texts, asked):
    return [
        (index, place, start, end)
        for index, question in enumerate(asked)
        for place, text in enumerate(texts)
        for start, end in answer_spans(text, question)
    ]


def all_at_once(texts, questions):
    asked = Asked.by(questions)
    found = AnswerMatcher(asked.words, asked.patterns).find(texts)
    return sorted(
        (index, *found[place, 1:].tolist())
        for index, places in enumerate(asked.by_question(found[:, 0]))
        for place in places
    )


@given(questions, st.lists(texts, max_size=4))
@settings(max_examples=500)
def test_matcher_finds_what_one_by_one_finds(asked, passages):
    assert all_at_once(passages, asked) == one_by_one(passages, asked)


@given(st.lists(st.text(max_size=20), min_size=1, max_size=4), st.data())
@settings(max_examples=300)
def test_matcher_finds_the_words_of_any_text(passages, data):
    """Answers are parts of the texts, whatever characters they are made of."""
    parts = st.sampled_from(passages).flatmap(
        lambda text: st.tuples(st.integers(0, len(text)), st.integers(0, len(text))).map(
            lambda span: text[min(span) : max(span)]
        )
    )
    asked = data.draw(st.lists(parts.map(lambda answer: Question("q", (answer,))), max_size=4))
    assert all_at_once(passages, asked) == one_by_one(passages, asked)


def test_every_character_makes_the_same_words_as_in_one_text():
    """Each assigned character, within and without a word, and in upper case."""
    points = [chr(code) for code in range(sys.maxunicode + 1)]
    assigned = [letter for letter in points if unicodedata.category(letter) not in ("Cn", "Co", "Cs")]
    passages = [
        "".join(f"a{letter} {letter}b{letter.upper()} " for letter in assigned[first : first + 256])
        for first in range(0, len(assigned), 256)
    ]
    flat = locate._flat_words(passages)
    letters = "".join(map(chr, flat.letters_C.tolist()))
    words = [letters[first:past] for first, past in zip(flat.first_W, flat.past_W, strict=True)]
    expected = [matching._words(text) for text in passages]
    assert words == [word for text_words, _ in expected for word in text_words]
    assert flat.starts_W.tolist() == [start for _, bounds in expected for start in bounds[0:-1:2]]
    assert flat.ends_W.tolist() == [end for _, bounds in expected for end in bounds[1::2]]
    assert flat.text_W.tolist() == [place for place, (found, _) in enumerate(expected) for _ in found]


def test_words_that_share_a_key_are_told_apart():
    """Σ letter · base^place modulo 2**64 is the same for a Thue-Morse word and its opposite, for any odd
    base."""
    bits = [number.bit_count() % 2 for number in range(2048)]
    word, opposite, third = ("".join(pair[bit] for bit in bits) for pair in ("ab", "ba", "ac"))
    for answers in ([word], [opposite], [word, opposite], [word, opposite, third]):
        asked = [Question("q", (f"x {answer}", f"{answer} y")) for answer in answers]
        passages = [f"x {word} y", f"x {opposite}", f"{third} y"]
        assert all_at_once(passages, asked) == one_by_one(passages, asked)
    keys = [locate._flat_words([text]).keys_W[0] for text in (word, opposite, third)]
    assert keys[0] == keys[1] != keys[2]


def test_answers_do_not_reach_over_the_border_of_two_texts():
    asked = [Question("q", ("a b",)), Question("q", ("b", "c"))]
    assert all_at_once(["c a", "b", "", "a b"], asked) == [
        (0, 3, 0, 3),
        (1, 0, 0, 1),
        (1, 1, 0, 1),
        (1, 3, 2, 3),
    ]
    assert all_at_once([], asked) == all_at_once(["a b"], []) == []


pieces = st.sampled_from(
    [
        "a",
        "b",
        "ab",
        "s",
        "k",
        "1",
        " ",
        ".",
        "|",
        "(",
        ")",
        "(?:",
        "?",
        "*",
        "+",
        "{2}",
        "{0,1}",
        "{,2}",
        "{",
        "}",
        "[ab]",
        "[^a]",
        "[]|]",
        r"\s",
        r"\(",
        r"\x61",
        "^",
        "$",
        "(?i)",
        "(?=a)",
        "]",
        "ä",
        "[äb]",
        r"\ä",
    ]
)


@given(
    st.lists(st.lists(pieces, min_size=1, max_size=7).map("".join), min_size=1, max_size=3),
    st.text(st.sampled_from(list("abAB1sk ſKäÅ\u0323\u0307(|]{")), max_size=12),
)
@settings(max_examples=600)
def test_matcher_tries_every_pattern_that_could_match(patterns, text):
    try:
        for pattern in patterns:
            re.compile(pattern)
    except re.error:
        assume(False)
    asked = [Question("q", (pattern,), is_regex=True) for pattern in patterns] + [
        Question("q", tuple(patterns), is_regex=True)
    ]
    assert all_at_once([text, "", text], asked) == one_by_one([text, "", text], asked)


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        ("Crete", {"crete"}),
        (r"New\s+York|Veld", {"york", "veld"}),
        (r"20\s?,?\s?(32|40)0 feet", {"0 feet"}),
        ("Janu?(ary)?", {"jan"}),
        ("Tove{0,1}n", {"tov"}),
        ("Tove*n+", {"tov"}),
        ("Tove|(a|b)", set()),
        ("(?i)Tove", set()),
        (r"\x54ove", set()),
        ("", set()),
    ],
)
def test_required_literals(pattern, literals):
    assert required_literals([pattern]) == literals


def test_fold_knows_every_character_that_matches_an_ascii_letter():
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    for letter in set(re.findall("[a-z0-9 ]", everything, re.IGNORECASE)):
        assert re.fullmatch(re.escape(letter.translate(locate._FOLD).lower()), letter, re.IGNORECASE)
        assert letter.translate(locate._FOLD).lower().isascii()


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "ahocorasick", None)
    with pytest.raises(MissingExtra, match=r"pip install 'realmlm\[match\]'"):
        all_at_once(["a"], [Question("q", ("a",), is_regex=True)])
    assert all_at_once(["a"], [Question("q", ("a",))]) == [(0, 0, 0, 1)]
