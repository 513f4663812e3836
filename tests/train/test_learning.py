"""It learns: on a world it has never seen told, a model trained from scratch finds the passage that holds the
answer, without labels."""

from pathlib import Path
from typing import Any

import pytest

from realmlm.corpus.store import Corpus
from realmlm.evaluation.scores import Report
from realmlm.log import read_metrics
from realmlm.settings import JointOptim, Loop, Optim, Refresh
from tests.calls import create_model, evaluate, finetune, pretrain, warm_up
from tests.conftest import TINY_MODEL

LOOP = Loop(log_every=20, threads=1, device="cpu")


@pytest.fixture(scope="module")
def runs(world: Path, knowledge: Corpus, sentences: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Warm-up, joint pre-training and fine-tuning on the tiny world, under a minute."""
    out = tmp_path_factory.mktemp("learning")
    create_model(
        corpus=knowledge.folder,
        out=out / "begin",
        **{**TINY_MODEL, "hidden": 64, "heads": 4, "projection": 64},
    )
    reading = Optim(steps=220, batch=48, lr=3e-3)
    finding = Optim(steps=120, batch=64, lr=2e-3)
    ways: dict[str, Any] = {"masking": "salient", "pairing": "own", "remove_sentence": 0.9}
    warm = warm_up(
        model=out / "begin",
        corpus=knowledge.folder,
        out=out / "warmup",
        **ways,
        reader=reading,
        retriever=finding,
        loop=LOOP,
    )
    joint = pretrain(
        model=warm,
        corpus=knowledge.folder,
        text=sentences.folder,
        out=out / "pretrain",
        k=5,
        masking="salient",
        marginal="joint",
        freeze_retriever=0,
        probe=world / "clozes-held-out.jsonl",
        probe_every=20,
        optim=JointOptim(steps=120, batch=24, lr=3e-3, retriever_lr=9e-4),
        refresh=Refresh(every_steps=20, process=False),
        loop=LOOP,
    )
    finetune(
        model=joint,
        corpus=knowledge.folder,
        questions=(world / "questions-train.jsonl",),
        out=out / "questions",
        read=3,
        candidates=100,
        closed_book=0.1,
        optim=JointOptim(steps=60, batch=16, lr=2e-3, retriever_lr=1e-3),
        refresh=Refresh(every_steps=0),
        loop=LOOP,
    )
    return out


def measured(
    runs: Path, world: Path, knowledge: Corpus, *, model: str, questions: str, retriever: str = "learned"
) -> Report:
    place: dict[str, Any] = {
        "model": runs / model / "model",
        "corpus": knowledge.folder,
        "questions": world / f"{questions}-held-out.jsonl",
    }
    return evaluate(**place, retriever=retriever, read=4, limit=150)


def test_retrieval_emerges_without_labels(runs: Path, world: Path, knowledge: Corpus) -> None:
    warm = measured(runs, world, knowledge, model="warmup", questions="clozes")
    joint = measured(runs, world, knowledge, model="pretrain", questions="clozes")
    alone = measured(runs, world, knowledge, model="pretrain", questions="clozes", retriever="none")
    print(warm.table(), joint.table(), alone.table(), sep="\n\n")
    assert joint.gold_recall[1].value > 80
    assert joint.gold_recall[1].low > warm.gold_recall[1].high + 10, (
        "joint training must improve on the warmed-up retriever"
    )
    assert joint.exact_match is not None
    assert alone.exact_match is not None
    assert joint.exact_match.value > 50, "the masked word is read off the passage"
    assert alone.exact_match.value < 25, "and cannot be known without it"


def test_the_metrics_show_it(runs: Path) -> None:
    before, *rows = read_metrics(runs / "pretrain" / "metrics.jsonl")
    assert rows[-1]["log_p"] > rows[0]["log_p"] + 1
    assert rows[-1]["utility"] > rows[0]["utility"] + 1
    assert rows[-1]["recall@1"] > before["recall@1"] + 0.3
    assert rows[-1]["swaps"] == 5


def test_questions_are_answered_from_passages(runs: Path, world: Path, knowledge: Corpus) -> None:
    report = measured(runs, world, knowledge, model="questions", questions="questions")
    print(report.table())
    assert report.gold_recall[1].value > 70
    assert report.exact_match is not None
    assert report.exact_match.value > 35
