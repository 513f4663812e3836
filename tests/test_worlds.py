"""Fictional worlds: the same by seed, every answer in its gold passage, held-out entities never told of in
training text."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from realmlm.errors import BadInput
from realmlm.worlds import KINDS, make_world, world_wordpieces, write_world
from realmlm.worlds.words import HARD_RELATIONS

WORDPIECES = world_wordpieces()


@pytest.mark.parametrize("kind", KINDS)
def test_every_fact_stands_in_its_passage_and_only_there(kind: str) -> None:
    world = make_world(kind, seed=3)
    for fact in (*world.seen, *world.held_out):
        title, text = world.passages[fact.passage]
        assert title == fact.entity
        assert fact.value in text
        assert fact.entity in text.split(". ")[0], "the first sentence names the entity"
    told = {(fact.entity, fact.relation.name): fact.passage for fact in (*world.seen, *world.held_out)}
    assert len(told) == len(world.seen) + len(world.held_out), "no fact is told twice"


@pytest.mark.parametrize("kind", KINDS)
def test_held_out_entities_are_never_spoken_of_in_training_text(kind: str) -> None:
    world = make_world(kind, seed=1)
    hidden = {fact.entity for fact in world.held_out}
    words = {
        word.strip(".,?!")
        for statement in world.sentences(np.random.default_rng(0))
        for word in statement.text.split()
    }
    words |= {
        word.strip(".,?!") for question in world.questions(held_out=False) for word in question.text.split()
    }
    assert hidden
    assert not hidden & words
    assert {fact.entity for fact in world.seen} & words


def test_knowledge_text_and_questions_are_worded_apart() -> None:
    for relation in HARD_RELATIONS:
        wordings = [*relation.knowledge, *relation.text, *relation.questions]
        assert len(set(wordings)) == len(wordings) == 8
        assert all("{e}" in wording for wording in wordings)
        assert all("{v}" in wording for wording in (*relation.knowledge, *relation.text))
        assert not any("{v}" in wording for wording in relation.questions)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_unknown_to_the_vocabulary(kind: str) -> None:
    world = make_world(kind, seed=2)
    texts = [text for _, text in world.passages[:300]] + [
        question.text for question in world.questions(held_out=True)[:300]
    ]
    assert not any(WORDPIECES.unk in WORDPIECES.encode(text) for text in texts)


def test_values_are_one_wordpiece_in_the_small_world_and_several_in_the_hard_one() -> None:
    assert {len(WORDPIECES.encode(fact.value)) for fact in make_world("small").held_out} == {1}
    assert max(len(WORDPIECES.encode(fact.value)) for fact in make_world("hard").held_out) >= 2


def test_hard_has_sentences_that_need_no_knowledge() -> None:
    sentences = make_world("hard").sentences(np.random.default_rng(0))
    share = np.mean([statement.passage is None for statement in sentences])
    assert share == pytest.approx(0.15, abs=0.01)


def test_a_world_is_the_same_in_every_process(tmp_path: Path) -> None:
    def digest(folder: Path) -> str:
        return hashlib.sha256(
            b"".join(
                file.read_bytes() for file in [*sorted(folder.glob("*.jsonl")), folder / "tokenizer.json"]
            )
        ).hexdigest()

    write_world(tmp_path / "here", "tiny", seed=5)
    code = f"from realmlm.worlds import write_world; write_world({str(tmp_path / 'there')!r}, 'tiny', seed=5)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONHASHSEED": "123", "PATH": ""})
    assert digest(tmp_path / "here") == digest(tmp_path / "there")
    write_world(tmp_path / "other", "tiny", seed=6)
    assert digest(tmp_path / "here") != digest(tmp_path / "other")


def test_files_agree_with_the_world(tmp_path: Path) -> None:
    world = write_world(tmp_path / "world", "tiny")
    rows = [
        json.loads(line) for line in (tmp_path / "world" / "clozes-held-out.jsonl").read_text().splitlines()
    ]
    assert len(rows) == 3 * len(world.held_out)
    for row in rows:
        assert row["question"].count("[MASK]") == 1
        assert row["answer"][0] in world.passages[row["gold"][0]][1]


def test_an_unknown_kind_lists_the_known() -> None:
    with pytest.raises(BadInput, match="tiny, small, hard"):
        make_world("huge")
