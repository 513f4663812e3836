"""Fine-tuning where words help to find: they offer and weigh passages, and f alone learns."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from realmlm.corpus.questions import read_questions
from realmlm.corpus.store import Corpus
from realmlm.index.bm25 import BM25Index
from realmlm.index.exact import ExactIndex
from realmlm.log import Clock
from realmlm.model.realm import Realm
from realmlm.reading.retrieve import Offered
from realmlm.settings import Finetune, JointOptim, Loop, Refresh
from realmlm.train.gold import locate_answers
from realmlm.train.objective import Numbers
from realmlm.train.objectives.questions import QuestionAnswering
from tests.calls import create_model, run_finetune
from tests.conftest import TINY_MODEL
from tests.train.test_packed_step import Stepped, resident_of, same_step, stepped


@pytest.mark.parametrize("changed", [{}, {"refresh": Refresh(every_steps=5)}], ids=["frozen", "both towers"])
def test_the_same_step_packed_and_padded_with_words(
    changed: dict[str, Any], knowledge: Corpus, world: Path, tmp_path: Path
) -> None:
    how = {**TINY_MODEL, "family": "bert", "read_titles": True, "reading": "together"}
    model = create_model(corpus=knowledge.folder, out=tmp_path / "model", **how).eval()
    asked = read_questions(world / "questions-train.jsonl")[:12]
    answer = asked[0].answers[0]
    asked.append(replace(asked[0], context=f"It is said that {answer} is meant.", title="Said"))
    gold = locate_answers(knowledge, asked)
    settings = Finetune(questions=(), out=Path("unused"), candidates=30, read=4, **changed)
    vectors = torch.randn(len(knowledge), 32, generator=torch.Generator().manual_seed(0))
    live: Any = SimpleNamespace(index=ExactIndex(vectors, torch.from_numpy(knowledge.ids)))

    def one_step(weight: float, packed: bool) -> Stepped:
        model.config = replace(model.config, hybrid=weight)
        objective = QuestionAnswering(settings, model, knowledge, live, gold, learning=[])
        objective.prepare(model)
        objective.resident = resident_of(model, gold.corpus) if packed else None
        return stepped(model, objective, np.arange(len(gold)))

    with_words = same_step(one_step(1.0, packed=False), one_step(1.0, packed=True))
    without = same_step(one_step(0.0, packed=False), one_step(0.0, packed=True))
    assert with_words["recall@1"] > without["recall@1"]
    assert with_words["retriever"] > without["retriever"], "words tell which passages hold the answer"


def test_words_offer_passages_and_a_given_paragraph_has_its_score(
    tiny_model: Realm, knowledge: Corpus, world: Path
) -> None:
    model = tiny_model
    model.config = replace(model.config, hybrid=1000.0)
    asked = read_questions(world / "questions-train.jsonl")[:3]
    told = f"{asked[0].text} It is {asked[0].answers[0]}."
    asked[0] = replace(asked[0], context=told)
    gold = locate_answers(knowledge, asked)
    settings = Finetune(questions=(), out=Path("unused"), candidates=9, read=3, closed_book=0.0)
    vectors = torch.randn(len(knowledge), 32, generator=torch.Generator().manual_seed(0))
    live: Any = SimpleNamespace(index=ExactIndex(vectors, torch.from_numpy(knowledge.ids)))
    seen: list[np.ndarray] = []
    weighed: list[torch.Tensor] = []

    class Watched(Offered):
        def __init__(self, corpus: Corpus, ids_BK: np.ndarray, *, null: bool) -> None:
            seen.append(ids_BK)
            super().__init__(corpus, ids_BK, null=null)

    class Noting(QuestionAnswering):
        def _taught(self, *given: Any) -> tuple[torch.Tensor, Numbers]:
            weighed.append(given[2])
            return super()._taught(*given)

    objective = Noting(settings, model, knowledge, live, gold, learning=[])
    objective.prepare(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("realmlm.train.objectives.questions.Offered", Watched)
        objective.loss(np.arange(3), 0, Clock())
    words = BM25Index(gold.corpus, only=knowledge.ids)
    best = words.search(gold.questions, 3).hits.scores_QK
    found = words.scores(gold.questions, torch.from_numpy(seen[0]))
    assert torch.equal(found[1:], best[1:]), "with so much weight words alone decide"
    assert seen[0][0, 0] == gold.given_Q[0] not in knowledge.ids
    assert not np.isin(seen[0][1:], gold.given_Q[:1]).any(), "it is found for no other question"
    assert (weighed[0][0, :3] / 1000).tolist() == pytest.approx(found[0].tolist(), abs=0.1)
    assert found[0, 0] > found[0, 1]
    assert weighed[0].requires_grad


def test_the_weight_is_stored_and_goes_on(
    tiny_model_folder: Path, knowledge: Corpus, world: Path, tmp_path: Path
) -> None:
    def tuned(model: Path, out: str, **more: Any) -> Realm:
        settings = Finetune(
            model=model,
            corpus=knowledge.folder,
            questions=(world / "questions-train.jsonl",),
            out=tmp_path / out,
            read=2,
            candidates=5,
            optim=JointOptim(steps=2, batch=4),
            loop=Loop(device="cpu", log_every=1, checkpoint_every=1),
            **more,
        )
        return Realm.from_pretrained(run_finetune(settings))

    assert tuned(tiny_model_folder, "plain").config.hybrid == 0.0
    assert tuned(tiny_model_folder, "first", hybrid=0.5).config.hybrid == 0.5
    assert tuned(tmp_path / "first" / "model", "second").config.hybrid == 0.5
    assert tuned(tmp_path / "first" / "model", "third", hybrid=0.0).config.hybrid == 0.0
