"""Small things every test can build on: a tiny world, its corpus and a tiny model."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from realmlm.corpus.spans import mark_spans
from realmlm.corpus.store import Corpus
from realmlm.corpus.taggers import PhraseTagger
from realmlm.model.realm import Realm
from realmlm.parallel import cores
from realmlm.worlds import write_world
from tests.browser import open_browser
from tests.calls import build_corpus, create_model

try:
    from hypothesis import settings
except ImportError:  # tests/test_gpu.py runs where only the core is installed
    pass
else:
    # no deadline: a busy machine must not fail a test; in CI the same examples every time
    settings.register_profile("realmlm", deadline=None, derandomize="CI" in os.environ)
    settings.load_profile("realmlm")

# tiny models: a second thread costs more than it brings, above all beside another process
torch.set_num_threads(1)

# minutes alone; begun last, they would keep one process busy while the others have nothing left to do
LONGEST = (
    "train/test_kill.py",
    "train/test_learning.py",
    "test_damage.py",
    "train/test_resume.py",
    "test_own.py",
    "test_campaign.py",
    "test_mini.py",
    "serve/test_page.py",
    "serve/test_running.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: for a third of the time a test waits for something."""
    return cores() + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest first, the others in their order."""
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish() -> None:
    """What was imported stays, so nobody need look through it for garbage, as every training does in the end."""
    gc.freeze()


TINY_MODEL = {
    "checkpoint": None,
    "family": "modernbert",
    "layers": 2,
    "hidden": 32,
    "heads": 2,
    "dropout": 0.0,
    "share_towers": True,
    "projection": 32,
    "projection_norm": True,
    "pooling": "mean",
    "max_query": 32,
    "max_answer": 10,
    "seed": 0,
}


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers on every CPU: all compute in float32, unless a test asks for another way."""
    monkeypatch.setattr("realmlm.model.encoders.fastest", lambda int8: None)
    monkeypatch.setattr("realmlm.model.precision.cpu_has_bfloat16", lambda: False)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a tiny world."""
    folder = tmp_path_factory.mktemp("world") / "world"
    write_world(folder, "tiny", seed=0)
    return folder


def world_corpus(world: Path, name: str, out: Path) -> Corpus:
    """A corpus of one of the world's files, its values marked."""
    corpus = build_corpus(
        [world / f"{name}.jsonl"], out, tokenizer=str(world / "tokenizer.json"), max_wordpieces=64, workers=1
    )
    mark_spans(corpus, PhraseTagger((world / "phrases.txt").read_text("utf-8").split("\n")), workers=1)
    return corpus


@pytest.fixture(scope="session")
def knowledge(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The tiny world's passages Z. Shared: do not edit it."""
    return world_corpus(world, "knowledge", tmp_path_factory.mktemp("knowledge") / "corpus")


@pytest.fixture(scope="session")
def sentences(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The tiny world's training text X. Shared: do not edit it."""
    return world_corpus(world, "sentences", tmp_path_factory.mktemp("sentences") / "corpus")


@pytest.fixture(scope="session")
def tiny_model_folder(knowledge: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "model"
    create_model(corpus=knowledge.folder, out=folder, **TINY_MODEL)
    return folder


@pytest.fixture
def tiny_model(tiny_model_folder: Path) -> Realm:
    return Realm.from_pretrained(tiny_model_folder)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with open_browser() as started:
        yield started


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / "heron.txt").write_text("The heron is the bird of the town.")
    (folder / "deep" / "badger.md").write_text("# Badger\n\nThe badger lives in the forest.")
    (folder / "table.csv").write_text("title,text\nOtter,The otter swims.\nFox,The fox runs.\n")
    return folder
