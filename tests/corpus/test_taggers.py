"""Taggers: invented sentences with the marks a person would make, and promises that hold for any text."""

import copy
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realmlm.corpus.taggers import (
    KINDS,
    Mention,
    PhraseTagger,
    RuleTagger,
    SpacyTagger,
    Tagger,
    lower_case_words,
)
from realmlm.errors import BadInput, MissingExtra

TITLES = [
    "Port Ellery",
    "Vorne (river)",
    "Solar eclipse",
    "eBoat",
    "The Wide and the Narrow",
    "Music",
    "Almost all",
    "1612",
    "List of boats",
]
COMMON = {"ships", "music", "long", "bread", "trade"}
RULES = RuleTagger(TITLES, COMMON)


def marked(tagger: Tagger, sentence: str) -> list[str]:
    return [
        f"{mention.kind}: {sentence[mention.start : mention.end]}" for mention in tagger.tag([sentence])[0]
    ]


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("She was born on 12 March 1874 at sea.", ["date: 12 March 1874"]),
        ("It sank on March 12, 1874, at dawn.", ["date: March 12, 1874"]),
        ("It sank on the 3rd of May and rose later.", ["date: 3rd of May"]),
        ("It rose in March 1874 and in June.", ["date: March 1874", "date: June"]),
        ("The log says 1874-03-12 and 12/3/1875.", ["date: 1874-03-12", "date: 12/3/1875"]),
        ("Trade grew in the late 1990s.", ["date: 1990s"]),
        (
            "It began in the 19th century, not the fourth century BC.",
            ["date: 19th century", "date: fourth century BC"],
        ),
        ("The wall fell in 44 BC or AD 79.", ["date: 44 BC", "date: AD 79"]),
        (
            "The siege of 1612 (see 1613) ended the war of 1609–1612.",
            ["date: 1612", "date: 1613", "date: 1609–1612"],
        ),
        ("There were 1500 crates and 2050 m of rope.", ["quantity: 2050 m"]),
        ("It closed on Sunday.", ["date: Sunday"]),
        ("They may march in fall.", []),
        (
            "It is 40 km long, 2.5–3 metres wide and 12% steeper.",
            ["quantity: 40 km", "quantity: 2.5–3 metres", "quantity: 12%"],
        ),
        (
            "It cost $4.5 million, then €300, then US$7.",
            ["quantity: $4.5 million", "quantity: €300", "quantity: US$7"],
        ),
        ("It took three years and 12,345 stones.", ["quantity: three years", "quantity: 12,345"]),
        ("It stood for thirty-four years.", ["quantity: thirty-four years"]),
        ("He read 7 books.", []),
    ],
)
def test_dates_and_quantities(sentence: str, expected: list[str]) -> None:
    assert marked(RULES, sentence) == expected


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("We met Anselm Tarrow there.", ["name: Anselm Tarrow"]),
        ("In the Republic of the Nine Isles all is well.", ["name: Republic of the Nine Isles"]),
        ("Then J. R. Tarrow and Mr. Vane came.", ["name: J. R. Tarrow", "name: Mr. Vane"]),
        ("We saw Tarrow's boat and O'Dell's oar.", ["name: Tarrow", "name: O'Dell"]),
        ("The U.K. and NATO agreed with I and II.", ["name: U.K.", "name: NATO"]),
        ("There Abd al-Mirra met Fr. Odo d'Arvel.", ["name: Abd al-Mirra", "name: Fr. Odo d'Arvel"]),
        ("It flew as Kestrel 12 once.", ["name: Kestrel 12"]),
        ("Near Paris 20 km remain.", ["name: Paris", "quantity: 20 km"]),
        ("Ships came late.", []),
        ("Long-term plans failed.", []),
        ("Tarrow came late.", ["name: Tarrow"]),
        ("McAdam came late.", ["name: McAdam"]),
        ('He said: "Bread is dear".', []),
        ("I'm sure He is.", []),
        ("An eBoat left as a solar eclipse began.", ["name: eBoat", "term: solar eclipse"]),
        ("Some music, almost all of it, was loud.", []),
        ("Read The Wide and the Narrow tonight.", ["name: The Wide and the Narrow"]),
        ("They fear the Second Great War.", ["name: Second Great War"]),
        ("The Éire of Ångström is small.", ["name: Éire of Ångström"]),
    ],
)
def test_names(sentence: str, expected: list[str]) -> None:
    assert marked(RULES, sentence) == expected


def test_without_a_word_list_only_titles_are_names_at_the_start() -> None:
    tagger = RuleTagger(TITLES)
    assert marked(tagger, "Vorne is a river.") == ["name: Vorne"]
    assert marked(tagger, "Tarrow came late.") == []


def test_a_sentence_that_is_nothing_but_a_name_has_no_mention() -> None:
    for sentence in ("Port Ellery", '"Port Ellery."', "12 March 1874.", ""):
        assert RULES.tag([sentence]) == [[]]
    assert PhraseTagger(["tide table"]).tag(["tide table!"]) == [[]]


def test_lower_case_words_are_counted_against_capitals() -> None:
    text = "boat Boat " + "Vorne " * 40 + "vorne"
    assert lower_case_words([text, "Oar", "the oar"]) == {"boat", "the", "oar"}


ALPHABET = [
    "Ann",
    "of",
    "the",
    "The",
    "1612",
    "12",
    "March",
    "km",
    "%",
    "$",
    "3",
    "oar",
    "U.S.",
    "'s",
    "(",
    ".",
    ",",
    "–",
    "\u00a0",
    "\n",
    "İ",
    "ǅ",
]
TEXT = st.one_of(
    st.text(max_size=40),
    st.lists(st.sampled_from(ALPHABET), max_size=15).map(" ".join),
    st.lists(st.sampled_from(ALPHABET)).map("".join),
)
TAGGERS: list[Tagger] = [
    RULES,
    RuleTagger(["Ann of", "March 12", "Oar the", "oar\nAnn", "Ann \0\0"], ["ann"]),
    PhraseTagger(["Ann", "Ann of", "of the", "12", "%", ".", "oar 3"]),
]


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXT, max_size=5), st.sampled_from(TAGGERS))
def test_every_tagger_keeps_the_promises(sentences: list[str], tagger: Tagger) -> None:
    found = tagger.tag(sentences)
    assert found == [tagger.tag([sentence])[0] for sentence in sentences], (
        "a sentence does not depend on its neighbours"
    )
    for sentence, mentions in zip(sentences, found, strict=True):
        last = 0
        for mention in mentions:
            assert last <= mention.start < mention.end <= len(sentence)
            assert mention.kind in KINDS
            assert any(
                letter.isalnum() or letter == "_"
                for letter in sentence[: mention.start] + sentence[mention.end :]
            )
            last = mention.end


def slow_phrases(phrases: list[str], sentence: str) -> list[tuple[int, int]]:
    def is_word(position: int) -> bool:
        return 0 <= position < len(sentence) and (sentence[position].isalnum() or sentence[position] == "_")

    def cuts(position: int) -> bool:
        return is_word(position - 1) and is_word(position)

    found = []
    position = 0
    while position < len(sentence):
        here = [phrase for phrase in phrases if sentence.startswith(phrase, position)]
        here = [phrase for phrase in here if not cuts(position) and not cuts(position + len(phrase))]
        if here:
            longest = max(map(len, here))
            found.append((position, position + longest))
            position += longest
        else:
            position += 1
    return found


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.text("ab+ ", min_size=1, max_size=4).map(str.strip).filter(bool), min_size=1, max_size=5),
    st.text("ab+ ", max_size=20),
)
def test_phrases_against_a_loop_over_every_position(phrases: list[str], sentence: str) -> None:
    sentence = f"{sentence} z"  # one word that no phrase covers
    assert [
        (mention.start, mention.end) for mention in PhraseTagger(phrases).tag([sentence])[0]
    ] == slow_phrases(phrases, sentence)


def test_phrases_keep_case_and_an_empty_list_is_an_error() -> None:
    tagger = PhraseTagger(["tide", "tide table", "C++"])
    assert marked(tagger, "A tide table in C++, Tide and tides.") == ["term: tide table", "term: C++"]
    with pytest.raises(BadInput, match="empty"):
        PhraseTagger([" "])


class Pipeline:
    """Looks like a spaCy pipeline: the entities are written into the sentence."""

    def pipe(self, sentences: Any) -> Any:
        for sentence in sentences:
            entities = [
                SimpleNamespace(
                    start_char=sentence.index(text), end_char=sentence.index(text) + len(text), label_=label
                )
                for text, label in (
                    ("Anselm", "PERSON"),
                    ("two", "CARDINAL"),
                    ("40 km", "QUANTITY"),
                    ("May 1640", "DATE"),
                )
                if text in sentence
            ]
            yield SimpleNamespace(ents=entities)


def load(model: str) -> Pipeline:
    if model != "en_small":
        raise OSError("no such model")
    return Pipeline()


def test_spacy_entities_become_our_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", SimpleNamespace(load=load))
    tagger = SpacyTagger("en_small")
    assert tagger.name == "spacy:en_small"
    assert marked(tagger, "Anselm rowed two boats 40 km in May 1640.") == [
        "name: Anselm",
        "quantity: 40 km",
        "date: May 1640",
    ]
    assert tagger.tag(["Anselm", "Anselm rowed."]) == [[], [Mention(0, 6, "name")]]
    with pytest.raises(BadInput, match="python -m spacy download en_large"):
        SpacyTagger("en_large")


def test_spacy_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(MissingExtra, match=r"realmlm\[spacy\]"):
        SpacyTagger("en_small")


def test_taggers_travel_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", SimpleNamespace(load=load))
    for tagger in (RULES, PhraseTagger(["oar"]), SpacyTagger("en_small")):
        other: Tagger = pickle.loads(pickle.dumps(copy.copy(tagger)))
        assert other.tag(["Anselm has an oar."]) == tagger.tag(["Anselm has an oar."])
