"""An index that is searched by the query tower of the step it was made at."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from realmlm.corpus.store import Corpus
from realmlm.index.exact import ExactIndex
from realmlm.model.realm import Realm
from realmlm.settings import Loop, Refresh
from realmlm.train.asker import Asker
from tests.train.test_resume import OPTIM, joint_run, same, weights


def searched(patch: pytest.MonkeyPatch, *given: Any, **how: Any) -> list[torch.Tensor]:
    """The queries that a run searches with, step by step."""
    seen = []
    search = ExactIndex.search

    def noting(index: ExactIndex, query_QD: torch.Tensor, *more: Any, **further: Any) -> Any:
        seen.append(query_QD.clone())
        return search(index, query_QD, *more, **further)

    with patch.context() as during:
        during.setattr(ExactIndex, "search", noting)
        joint_run(*given, **how)
    return seen


def test_an_old_index_is_asked_as_when_it_was_made(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(name: str, rate: float, search_with: str) -> list[torch.Tensor]:
        optim = dataclasses.replace(OPTIM, retriever_lr=rate)
        never = Refresh(every_steps=0)
        how = {"optim": optim, "refresh": never, "search_with": search_with}
        return searched(monkeypatch, tiny_model_folder, knowledge, tmp_path / name, **how)

    still = asked("still", 1e-9, "index")
    own = asked("own", 1e-2, "index")
    current = asked("current", 1e-2, "current")
    assert len(still) == len(own) == len(current) == OPTIM.steps * OPTIM.accumulate
    assert all(torch.equal(mine, unmoved) for mine, unmoved in zip(own, still, strict=True))
    assert not torch.allclose(current[-1], still[-1], atol=1e-2)


def test_with_an_index_of_every_step_nothing_differs(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path
) -> None:
    each = Refresh(every_steps=1, process=False)
    made = [
        joint_run(tiny_model_folder, knowledge, tmp_path / name, refresh=each, search_with=name)
        for name in ("current", "index")
    ]
    assert same(*map(weights, made))


def test_what_is_kept_is_both_towers(tiny_model: Realm) -> None:
    def moved(by: float) -> None:
        with torch.no_grad():
            for parameter in tiny_model.query.parameters():
                parameter.add_(by)

    asker = Asker(tiny_model.query)
    first = [parameter.clone() for parameter in tiny_model.query.parameters()]
    moved(1.0)
    asker.note(tiny_model.query)
    second = [parameter.clone() for parameter in tiny_model.query.parameters()]
    moved(1.0)
    resumed = Asker(tiny_model.query)
    with torch.no_grad():
        for name, tensor in resumed.kept().items():
            tensor.copy_(asker.kept()[name])
    places = [parameter.data_ptr() for parameter in resumed.tower.parameters()]
    assert all(map(torch.equal, resumed.tower.parameters(), first))
    resumed.use()
    assert all(map(torch.equal, resumed.tower.parameters(), second))
    assert places == [parameter.data_ptr() for parameter in resumed.tower.parameters()]
    assert not any(parameter.requires_grad for parameter in resumed.tower.parameters())
    assert not resumed.tower.training


def test_guard_and_probe_ask_with_it_too(
    tiny_model_folder: Path,
    knowledge: Corpus,
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everything is searched for in an index of the first step: with its tower, each time the same."""
    clozes = world / "clozes-held-out.jsonl"
    asked: dict[str, list[torch.Tensor]] = {}
    for rate in (1e-9, 1e-2):
        never = {"refresh": Refresh(every_steps=0), "search_with": "index"}
        looked = {"guard": (world / "questions-train.jsonl",), "probe": clozes, "probe_every": 5}
        how = {"optim": dataclasses.replace(OPTIM, retriever_lr=rate), **never, **looked}
        asked[str(rate)] = searched(monkeypatch, tiny_model_folder, knowledge, tmp_path / str(rate), **how)
    still, moved = asked.values()
    assert len(still) == len(moved) > OPTIM.steps * OPTIM.accumulate
    assert all(torch.equal(mine, unmoved) for mine, unmoved in zip(moved, still, strict=True))


def test_a_whole_tower_is_not_kept_of_layers_that_are_cut(tiny_model_folder: Path, knowledge: Corpus) -> None:
    with pytest.raises(Exception, match="search-with index"):
        joint_run(tiny_model_folder, knowledge, Path("run"), search_with="index", loop=Loop(shard=True))
