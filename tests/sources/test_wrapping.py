"""What was wrapped is joined, and nothing else."""

import textwrap
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realmlm.sentences import split_sentences
from realmlm.sources.files import read_articles
from realmlm.sources.wrapping import unwrapped

PROSE = (
    "The main valve in the pump room was replaced on 11 February 2026 by Karl Meyer, who had come from Ulm "
    "in the morning. It had leaked "
    "since the frost of January, when the pipe behind it burst as well. The new one was made by Vitrum Ltd "
    "of Oslo and cost 440 euros, and "
    "it is to be looked at every spring. Spare seals lie in the second drawer of the workbench."
)
DEUTSCH = (
    "Das Hauptventil im Pumpenraum wurde am 11. Februar 2026 von Karl Meyer ersetzt, der am Morgen aus Ulm "
    "gekommen war. Seit dem Frost "
    "im Januar hatte es getropft, und auch das Rohr dahinter war geplatzt. Das neue Ventil kostete 440 Euro "
    "und soll in jedem Frühjahr "
    "geprüft werden. Ersatzdichtungen liegen in der zweiten Schublade der Werkbank."
)


def sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in split_sentences(text)]


@pytest.mark.parametrize("width", [60, 72, 79, 90])
@pytest.mark.parametrize("prose", [PROSE, DEUTSCH])
@pytest.mark.parametrize("indents", [("", ""), ("    ", ""), ("  ", "  "), ("- ", "  ")])
def test_wrapped_prose_has_the_sentences_it_had(prose, width, indents):
    wrapped = textwrap.fill(
        prose, width, initial_indent=indents[0], subsequent_indent=indents[1], break_on_hyphens=False
    )
    assert wrapped.count("\n") > 2
    expected = sentences(indents[0] + prose)
    for ends in ("\n", "\r\n"):
        assert sentences(unwrapped(wrapped.replace("\n", ends))) == expected
    # a heading and a signature stay by themselves
    note = f"Pump room\n{wrapped}\n\n{wrapped}\nKarl Meyer\nUlm"
    assert sentences(unwrapped(note)) == ["Pump room", *expected, *expected, "Karl Meyer", "Ulm"]


def test_lines_broken_by_hand_and_words_cut_at_their_ends():
    lines = [
        "We met at the boat house on the lake, all of us but",
        "Otto, and agreed that its well-known roof is to be re-",
        "paired in May, before the rain comes in again; Karl Meyer",
        "pays for it. No other roof in the town is as well-",
        "known.",
    ]
    assert unwrapped("\n".join(lines)) == (
        "We met at the boat house on the lake, all of us but Otto, and agreed that its well-known roof is to "
        "be repaired in May, before "
        "the rain comes in again; Karl Meyer pays for it. No other roof in the town is as well-known."
    )


@pytest.mark.parametrize(
    "text",
    [
        "Karl Meyer\nHauptstraße 5\n89073 Ulm\nGermany",
        "apples\nbananas\ncherries and pears",
        "- call the plumber about the valve in the pump room on Monday\n- ask for the price of a new one, "
        "and of the seals for it too\n"
        "- tell Otto that the water is off from eight until noon then",
        "1. call the plumber about the valve in the pump room on Monday\n2. ask for the price of a new one, "
        "and of the seals for it\n"
        "a) tell Otto that the water is off from eight until noon then",
        "Call the plumber about the valve in the pump room on Monday\nAsk for the price of a new one, and of "
        "the seals for it too\n"
        "Tell Otto that the water is off from eight until noon then",
        "Shall I compare thee to a summer's day?\nThou art more lovely and more temperate:\n"
        "Rough winds do shake the darling buds of May,\nAnd summer's lease hath all too short a date;",
        "so much depends\nupon\n\na red wheel\nbarrow\n\nglazed with rain\nwater",
        "2026-02-11 08:01 valve closed by the night shift, pressure at 3 bar\n"
        "2026-02-11 08:14 valve opened by the day shift, pressure at 4 bar",
        "valve      pump room     11 February 2026      Karl Meyer, Ulm, DE\n"
        "seals      workbench     second drawer         two of them are left",
        "valve\tpump room\t11 February 2026, in the morning\tKarl Meyer, Ulm\n"
        "seals\tworkbench\tsecond drawer, on the left side\ttwo are left",
        "def replace_valve(room, day, maker, price, by_whom, seals, spare_parts):\n"
        "    return room.replace(day, maker, price, by_whom, seals, spare)",
        "for (const valve of rooms.map(room => room.valves).flat().filter(Boolean)) {\n"
        "    await replaceValve(valve, maker, price, seals, day, man);",
        "> the main valve in the pump room was replaced on 11 February 2026\n"
        "> by Karl Meyer, who had come from Ulm in the morning with a new",
        "# the main valve in the pump room was replaced on 11 February 2026\n"
        "# by Karl Meyer, who had come from Ulm in the morning with a new",
        "We need all of these things for the trip on Saturday, to the lake:\nbread\nmilk",
        PROSE.replace(". ", ".\n"),
        "THE MAIN VALVE IN THE PUMP ROOM WAS REPLACED ON 11 FEBRUARY 2026\nBY KARL MEYER, WHO HAD COME FROM "
        "ULM IN THE MORNING",
    ],
)
def test_what_is_no_wrapped_prose_stays_line_by_line(text):
    assert unwrapped(text) == text
    assert unwrapped(text.replace("\n", "\r\n")) == text.replace("\n", "\r\n")


@given(
    st.text(alphabet=st.sampled_from(list("abcA1. ,-\n\r\t")), max_size=400)
    | st.lists(st.sampled_from(PROSE.split()), max_size=80).map(
        lambda words: textwrap.fill(" ".join(words), 60)
    )
)
def test_only_line_ends_change_and_joining_again_changes_nothing_that_is_seen(text):
    plain = unwrapped(text)
    letters = str.maketrans("", "", " \n\r\t-")
    assert plain.translate(letters) == text.translate(letters)
    assert plain.count("\n") <= text.count("\n")


def test_a_text_file_is_read_so(tmp_path):
    (tmp_path / "valve.txt").write_text(textwrap.fill(PROSE, 72))
    (article,) = read_articles([tmp_path], on_bad=print)
    assert article.text == PROSE


@pytest.mark.parametrize("line", ["a" * 100, "the word " * 8 + "- ", "a-" * 30, " " * 99 + "a"])
def test_time_is_linear(line):
    begun = time.process_time()
    unwrapped("\n".join([line] * 20_000))
    unwrapped(line * 20_000)
    assert time.process_time() - begun < 5  # a quadratic scan takes minutes
