"""Fictional worlds, to measure exactly whether a model learns to retrieve.

The entities of a world do not exist, so only its passages tell anything about them, and for every sentence
and question it is known which passage has the answer. A small model learns in a world from scratch, on a CPU,
in minutes. Some entities are held out: they appear in passages only, so what is measured on them was learned,
not memorised.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import BadInput
from realmlm.storage.artefacts import publish
from realmlm.worlds.words import COMMON, HARD_RELATIONS, RELATIONS, SYLLABLES, Relation


@dataclass(frozen=True, kw_only=True)
class WorldSettings:
    """How large and how hard a world is."""

    entities: int
    relations: tuple[Relation, ...]
    facts_a_passage: int
    common_share: float = 0.0  # of the training sentences, those that need no passage
    held_out_share: float = 0.2  # of the entities


KINDS = {
    "tiny": WorldSettings(entities=150, relations=RELATIONS[:4], facts_a_passage=2),
    "small": WorldSettings(entities=1000, relations=RELATIONS, facts_a_passage=3),
    "hard": WorldSettings(entities=1500, relations=HARD_RELATIONS, facts_a_passage=3, common_share=0.15),
}


@dataclass(frozen=True)
class Fact:
    """Something that is true in the world, and the number of the passage that says it."""

    entity: str
    relation: Relation
    value: str
    passage: int


@dataclass(frozen=True)
class Statement:
    """A sentence or question about a fact. In a sentence, `{v}` stands where the value does."""

    text: str
    answer: str
    passage: int | None
    template: str


@dataclass(frozen=True)
class World:
    """A whole world: passages (title, text), and the facts of the entities that the training text is about
    and of those held out."""

    passages: list[tuple[str, str]]
    seen: list[Fact]
    held_out: list[Fact]
    common_share: float

    def sentences(self, rng: np.random.Generator) -> list[Statement]:
        """The training text X in random order: every fact of the seen entities in every wording of X, and
        sentences that need no passage."""
        sentences = _statements(self.seen, "text")
        for number in range(int(self.common_share / (1 - self.common_share) * len(sentences))):
            text, value = COMMON[number % len(COMMON)]
            sentences.append(Statement(text, value, None, f"common/{number % len(COMMON)}"))
        return [sentences[number] for number in rng.permutation(len(sentences))]

    def clozes(self) -> list[Statement]:
        """Sentences in the same wordings about the entities held out."""
        return _statements(self.held_out, "text")

    def questions(self, *, held_out: bool) -> list[Statement]:
        """Questions about the entities held out, or about the seen ones."""
        return _statements(self.held_out if held_out else self.seen, "questions")


def make_world(kind: str, *, seed: int = 0) -> World:
    """A world of a kind (`tiny`, `small`, `hard`); the same kind and seed give the same world, anywhere."""
    if kind not in KINDS:
        raise BadInput(f"no world '{kind}'; there are {', '.join(KINDS)}")
    settings = KINDS[kind]
    rng = np.random.default_rng([seed, 7])
    names = _names(settings.entities, rng)
    held_out = set(names[: int(settings.held_out_share * len(names))])
    passages: list[tuple[str, str]] = []
    facts: list[Fact] = []
    for name in (names[number] for number in rng.permutation(len(names))):
        order = rng.permutation(len(settings.relations))
        for first in range(0, len(order), settings.facts_a_passage):
            own = []
            for number in order[first : first + settings.facts_a_passage]:
                relation = settings.relations[number]
                own.append(Fact(name, relation, str(rng.choice(relation.values)), len(passages)))
            passages.append((name, _tell(own, rng)))
            facts += own
    seen = [fact for fact in facts if fact.entity not in held_out]
    return World(passages, seen, [fact for fact in facts if fact.entity in held_out], settings.common_share)


def write_world(out: str | Path, kind: str, *, seed: int = 0) -> World:
    """Write a world as the files that other commands read."""
    world = make_world(kind, seed=seed)
    folder = Path(out)
    with publish(folder, kind="world") as draft:
        sentences = world.sentences(np.random.default_rng([seed, 8]))
        tables = {
            "knowledge": ({"title": title, "text": text} for title, text in world.passages),
            "sentences": ({"text": _capital(said.text.replace("{v}", said.answer))} for said in sentences),
            "clozes-held-out": _questions(world.clozes()),
            "questions-train": _questions(world.questions(held_out=False)),
            "questions-held-out": _questions(world.questions(held_out=True)),
        }
        for name, rows in tables.items():
            lines = [json.dumps(row) for row in rows]
            (draft.path / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines), "utf-8")
            draft.counts[name] = len(lines)
        phrases = {fact.value for fact in (*world.seen, *world.held_out)} | {value for _, value in COMMON}
        (draft.path / "phrases.txt").write_text("".join(phrase + "\n" for phrase in sorted(phrases)), "utf-8")
        world_wordpieces().save(draft.path / "tokenizer.json")
        draft.config = {"kind": kind, "seed": seed}
    return world


def world_wordpieces() -> Wordpieces:
    """The vocabulary of all worlds: every word of the templates and values, and syllables for names."""
    texts = [f"{text} {value}" for text, value in COMMON] + ["it"]
    for relation in HARD_RELATIONS:
        texts += [*relation.knowledge, *relation.text, *relation.questions, *relation.values]
    words = {word for text in texts for word in _plain(text).split()}
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)] + [str(digit) for digit in range(10)]
    marks = list(".,?!'-")
    pairs = [first + second for first in SYLLABLES[::5] for second in SYLLABLES[::7]]
    starts = {*words, *letters, *marks, *SYLLABLES, *pairs}
    inner = {f"##{piece}" for piece in (*letters, *SYLLABLES, *pairs)}
    return Wordpieces.from_pieces(sorted(starts) + sorted(inner))


def _names(count: int, rng: np.random.Generator) -> list[str]:
    values = [value for relation in HARD_RELATIONS for value in relation.values]
    taken = {word for value in values for word in _plain(value).split()}
    names: dict[str, None] = {}
    while len(names) < count:
        name = "".join(rng.choice(SYLLABLES, size=3))
        if name not in taken:
            names[name.capitalize()] = None
    return list(names)


def _tell(facts: list[Fact], rng: np.random.Generator) -> str:
    """A passage that says these facts: its first sentence names the entity, half of the others say "it"."""
    sentences = []
    for number, fact in enumerate(facts):
        template = str(rng.choice(fact.relation.knowledge))
        name = fact.entity if number == 0 or rng.random() < 0.5 else "it"
        sentences.append(_capital(template.replace("{e}", name).replace("{v}", fact.value)))
    return " ".join(sentences)


def _statements(facts: list[Fact], wordings: Literal["text", "questions"]) -> list[Statement]:
    """Each fact in every wording of the training text, or of questions."""
    statements = []
    for fact in facts:
        for number, template in enumerate(getattr(fact.relation, wordings)):
            text = template.replace("{e}", fact.entity)
            name = f"{fact.relation.name}/{number}"
            statements.append(Statement(text, fact.value, fact.passage, name))
    return statements


def _questions(statements: list[Statement]) -> Iterator[dict[str, object]]:
    """The lines of a question set. Ids begin with the wording, so that scores can be compared by wording."""
    for number, statement in enumerate(statements):
        text = _capital(statement.text.replace("{v}", "[MASK]"))
        yield {
            "id": f"{statement.template}:{number}",
            "question": text,
            "answer": [statement.answer],
            "gold": [statement.passage],
        }


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _plain(text: str) -> str:
    text = text.replace("{e}", " ").replace("{v}", " ")
    return "".join(letter if letter.isalnum() or letter == " " else f" {letter} " for letter in text).lower()
