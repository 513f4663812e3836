import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realmlm.sentences import has_words, split_sentences

TEXTS = st.text(
    alphabet=st.sampled_from(list("aAbB19.!?\"'()“”。！」 \n\r\t\u00a0\u2028é́中🙂_")), max_size=80
) | st.text(max_size=60)


def sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in split_sentences(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The weir broke. Nobody saw it! Why? Rust.", ["The weir broke.", "Nobody saw it!", "Why?", "Rust."]),
        ("Dr. Oru met Prof. Tamsin Vey. They spoke.", ["Dr. Oru met Prof. Tamsin Vey.", "They spoke."]),
        ("J. R. Halloway wrote it. It sold.", ["J. R. Halloway wrote it.", "It sold."]),
        ("It is 3.14 m. The rest is 2.5 km.", ["It is 3.14 m.", "The rest is 2.5 km."]),
        (
            "See no. 5 and p. 12. He said no. Then he left.",
            ["See no. 5 and p. 12.", "He said no.", "Then he left."],
        ),
        (
            "Some birds, e.g. Gannets, dive. Others do not.",
            ["Some birds, e.g. Gannets, dive.", "Others do not."],
        ),
        ('She said "Go." Then (at last!) they went. (All of them.) Quiet.', None),
        ("1. Introduction\n2. Method. It works.", ["1. Introduction", "2. Method.", "It works."]),
        ("It ended in 1815. Then came rain.", ["It ended in 1815.", "Then came rain."]),
        ("iron. lower case goes on. 7 men came.", ["iron. lower case goes on.", "7 men came."]),
        ("天晴了。我们走！好吗？走。", ["天晴了。", "我们走！", "好吗？", "走。"]),
        ("a heading\r\n\r\nBody text", ["a heading", "Body text"]),
        ("Wait... What?! “Yes.” «Oui.»", ["Wait...", "What?!", "“Yes.”", "«Oui.»"]),
        ("Он пришёл. Она ушла. هذا. ذلك.", ["Он пришёл.", "Она ушла.", "هذا.", "ذلك."]),
        ("  \n ", []),
    ],
)
def test_examples(text, expected):
    if expected is None:
        expected = ['She said "Go."', "Then (at last!) they went.", "(All of them.)", "Quiet."]
    assert sentences(text) == expected


@given(TEXTS)
def test_spans_are_ordered_stripped_and_cover_all_but_white_space(text):
    spans = split_sentences(text)
    assert all(start < end for start, end in spans)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert all(text[start:end] == text[start:end].strip() for start, end in spans)
    covered = {position for start, end in spans for position in range(start, end)}
    assert {position for position, letter in enumerate(text) if not letter.isspace()} <= covered


@given(st.lists(TEXTS, max_size=5))
def test_lines_are_split_as_if_each_stood_alone(lines):
    assert sentences("\n".join(lines)) == [sentence for line in lines for sentence in sentences(line)]


@pytest.mark.parametrize(
    "text",
    ["." * 200_000, " " * 200_000, ". " * 100_000, ".(" * 100_000, '."' * 100_000, "! " + "(" * 200_000],
)
def test_time_is_linear_in_text_made_to_be_slow(text):
    begun = time.process_time()
    split_sentences(text)
    assert time.process_time() - begun < 2  # a quadratic scan takes minutes


@pytest.mark.parametrize("text", ["Who?", "7", "誰", "\U0001f600", "½", "C++"])
def test_it_has_words(text: str) -> None:
    assert has_words(text)


@pytest.mark.parametrize("text", ["", " ", "???", "…", "-- . «»", "+=$", "\u0301"])
def test_it_has_none(text: str) -> None:
    assert not has_words(text)
