"""Fine-tuning with towers that do not learn: what is found once before training is what every step would find."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from realmlm.corpus.store import Corpus
from realmlm.index.exact import ExactIndex
from realmlm.log import Clock
from realmlm.model.encoders import Tower
from realmlm.model.realm import Realm
from realmlm.settings import Finetune, JointOptim, Loop, Refresh
from realmlm.train import finetuning, stages
from realmlm.train.objectives.questions import QuestionAnswering
from tests.calls import create_model, run_finetune
from tests.conftest import TINY_MODEL
from tests.train.steps import fail_at

STEPS = 3


@pytest.fixture(scope="module")
def wavering(knowledge: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with dropout and a learned scale that is not 1."""
    folder = tmp_path_factory.mktemp("wavering")
    model = create_model(corpus=knowledge.folder, out=folder / "begin", **{**TINY_MODEL, "dropout": 0.3})
    model.learn_scale()
    assert model.query.log_scale is not None
    torch.nn.init.constant_(model.query.log_scale, 0.7)
    model.save_pretrained(folder / "model")
    return folder / "model"


@pytest.fixture(scope="module")
def asked(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions, some of which come with a paragraph."""
    rows = [json.loads(line) for line in (world / "questions-train.jsonl").read_text("utf-8").splitlines()]
    rows = [{"question": row["question"], "answer": row["answer"]} for row in rows[:14]]
    for number, row in enumerate(rows[::4]):
        row["context"] = f"Much is said of it. It is {row['answer'][0]}, they say, for the {number}th time."
    rows += [rows[1], rows[4]]  # asked twice
    file = tmp_path_factory.mktemp("asked") / "asked.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return file


@pytest.fixture
def untouched(knowledge: Corpus, tmp_path: Path) -> Corpus:
    """The corpus, beside which nothing is kept yet."""
    kept = shutil.ignore_patterns("hits", "rivals")
    return Corpus.open(shutil.copytree(knowledge.folder, tmp_path / "corpus", ignore=kept))


def settings(model: Path, corpus: Corpus, asked: Path, out: Path, **changed: Any) -> Finetune:
    usual: dict[str, Any] = {
        "read": 3,
        "candidates": 9,
        "optim": JointOptim(steps=STEPS, batch=4, lr=1e-3, retriever_lr=0),
        "scale_lr": 0.02,
        "refresh": Refresh(every_steps=0, dtype="float32"),
        "loop": Loop(threads=1, device="cpu", log_every=1, checkpoint_every=2, deterministic=True),
    }
    return Finetune(model=model, corpus=corpus.folder, questions=(asked,), out=out, **(usual | changed))


class Losses:
    """The losses of a run's steps in all their digits, and in which steps something was embedded or
    searched for."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: list[float] = []
        self.looked: set[int] = set()
        self.queries = 0  # searched for before the first step
        step = [-1]
        loss, search, embed = QuestionAnswering.loss, ExactIndex.search, Tower.forward

        def noting(objective: Any, numbers: np.ndarray, number: int, clock: Clock) -> Any:
            step[0] = number
            told = loss(objective, numbers, number, clock)
            self.seen.append(float(told[0].detach()))
            return told

        def searching(index: ExactIndex, query_QD: torch.Tensor, *given: Any, **how: Any) -> Any:
            self.looked.add(step[0])
            self.queries += len(query_QD) if step[0] < 0 else 0
            return search(index, query_QD, *given, **how)

        def embedding(tower: Tower, *given: Any) -> Any:
            self.looked.add(step[0])
            return embed(tower, *given)

        patch.setattr(QuestionAnswering, "loss", noting)
        patch.setattr(ExactIndex, "search", searching)
        patch.setattr(Tower, "forward", embedding)


def losses(given: Finetune, *, each_step: bool = False) -> tuple[Losses, Realm]:
    with pytest.MonkeyPatch.context() as patch:
        noted = Losses(patch)
        if each_step:
            patch.setattr(finetuning, "_always_finds_the_same", lambda *_: False)
        return noted, Realm.from_pretrained(run_finetune(given))


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"retriever_target": "posterior", "reading": "together", "read_gold": True},
        {"retriever_target": "perplexity", "scale_lr": 0.0},
        {"hybrid": 0.5, "scale_lr": 0.0},
        {"passage_logit": True, "optim": JointOptim(steps=2, batch=4, lr=1e-3, retriever_lr=0)},
        {"rivals": 2},
        {"rivals": 1, "hybrid": 0.5, "scale_lr": 0.0, "passage_logit": True},
    ],
    ids=[
        "scale",
        "posterior",
        "fixed scale",
        "hybrid",
        "judging, not all are asked",
        "rivals",
        "rivals, hybrid",
    ],
)
def test_losses_are_those_of_searching_at_each_step(
    changed: dict[str, Any], wavering: Path, knowledge: Corpus, asked: Path, tmp_path: Path
) -> None:
    once, made = losses(settings(wavering, knowledge, asked, tmp_path / "once", **changed))
    each, same = losses(settings(wavering, knowledge, asked, tmp_path / "each", **changed), each_step=True)
    assert once.looked <= {-1}, "before the first step, and not again"
    assert each.looked >= set(range(len(each.seen)))
    assert once.seen == pytest.approx(each.seen, abs=1e-6)
    assert len(once.seen) == changed.get("optim", JointOptim(steps=STEPS)).steps
    for name, weight in same.own_state().items():
        assert torch.allclose(made.own_state()[name], weight, atol=1e-5), name
    assert made.query.log_scale is not None
    moved = abs(made.query.log_scale.item() - 0.7) > 1e-3
    assert moved == (changed.get("scale_lr", 1.0) > 0)


@pytest.mark.parametrize(
    "changed",
    [
        {"in_batch": 0.5},
        {"hybrid": 0.5},
        {"optim": JointOptim(steps=1, batch=4, retriever_lr=1e-4)},
        {"refresh": Refresh(every_steps=3, process=False)},
        {"most_kept": 12 * 9 - 1},
    ],
    ids=["in batch", "hybrid and a learning scale", "a learning tower", "refreshed", "too many to keep"],
)
def test_where_what_is_found_may_change_every_step_searches(
    changed: dict[str, Any],
    wavering: Path,
    knowledge: Corpus,
    asked: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = {"optim": JointOptim(steps=1, batch=12, retriever_lr=0), **changed}
    monkeypatch.setattr(finetuning, "MOST_KEPT", changed.pop("most_kept", 12 * 9))
    noted, _ = losses(settings(wavering, knowledge, asked, tmp_path / "run", **changed))
    assert 0 in noted.looked


def test_what_was_found_is_kept_and_a_run_goes_on_with_it_bit_for_bit(
    wavering: Path, untouched: Corpus, asked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optim = JointOptim(steps=3, batch=6, lr=1e-3, retriever_lr=0)  # each of the sixteen at least once
    noted, whole = losses(settings(wavering, untouched, asked, tmp_path / "whole", optim=optim))
    assert noted.queries == 14, "twice asked, once searched for"
    monkeypatch.setattr("realmlm.train.hits._search", None)  # found for the run before
    with monkeypatch.context() as patch:
        fail_at(2, KeyboardInterrupt(), patch)
        with pytest.raises(KeyboardInterrupt):
            run_finetune(settings(wavering, untouched, asked, tmp_path / "cut", optim=optim))
    _, again = losses(settings(wavering, untouched, asked, tmp_path / "cut", optim=optim))
    assert all(torch.equal(weight, again.own_state()[name]) for name, weight in whole.own_state().items())
    other = tmp_path / "other.jsonl"
    other.write_text(asked.read_text("utf-8").replace("Much is said", "Little is said"), "utf-8")
    with pytest.raises(TypeError):  # not callable: other paragraphs are scored anew
        run_finetune(settings(wavering, untouched, other, tmp_path / "other"))


def test_another_seed_uses_what_was_found_where_a_good_part_is_asked(
    wavering: Path, untouched: Corpus, asked: Path, tmp_path: Path
) -> None:
    def run(seed: int, steps: int) -> Losses:
        loop = Loop(seed=seed, threads=1, device="cpu", deterministic=True)
        optim = JointOptim(steps=steps, batch=2, lr=1e-3, retriever_lr=0)
        out = tmp_path / f"{seed}-{steps}"
        return losses(settings(wavering, untouched, asked, out, rivals=1, loop=loop, optim=optim))[0]

    assert run(3, 1).queries == 2, "two of sixteen are asked: no more is looked for"
    first = run(0, 2)
    assert first.queries == 14
    other = run(1, 2)
    assert not other.looked, "neither for what they find nor for rivals"
    assert first.seen != other.seen
    assert run(2, 1).queries


def test_it_goes_on_bit_for_bit_where_nothing_can_be_kept(
    wavering: Path, knowledge: Corpus, asked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scale has moved by then: scores without it must not. And a model that comes in training is searched
    with as it will be used, without dropout."""
    monkeypatch.setattr("realmlm.train.hits.kept_beside", lambda *_, find, **__: find())
    in_training = Realm.from_pretrained(wavering).train()
    whole = stages.finetune(settings(wavering, knowledge, asked, tmp_path / "whole"), model=in_training)
    with monkeypatch.context() as patch:
        fail_at(2, KeyboardInterrupt(), patch)
        with pytest.raises(KeyboardInterrupt):
            run_finetune(settings(wavering, knowledge, asked, tmp_path / "cut"))
    _, again = losses(settings(wavering, knowledge, asked, tmp_path / "cut"))
    assert all(torch.equal(weight, again.own_state()[name]) for name, weight in whole.own_state().items())
