"""A small world of towns for what the study needs."""

import json
from pathlib import Path

import pytest

from realmlm.corpus.spans import mark_spans
from realmlm.corpus.store import Corpus
from realmlm.corpus.taggers import PhraseTagger
from tests.calls import build_corpus, create_model
from tests.conftest import TINY_MODEL


@pytest.fixture(scope="session")
def towns(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Articles of several passages in which the same value is named twice."""
    folder = tmp_path_factory.mktemp("towns")
    beasts = ["heron", "badger", "otter", "falcon", "beaver"]
    rows = []
    for number, beast in enumerate(beasts * 2):
        name = f"Town{number}"
        text = (
            f"{name} bears a {beast} on its arms. It lies by a river. People like it.\n\nThe {beast} of "
            f"{name} is old. It was painted."
        )
        rows.append(json.dumps({"title": name, "text": text}))
    (folder / "towns.jsonl").write_text("\n".join(rows))
    corpus = build_corpus(
        [folder / "towns.jsonl"], folder / "corpus", train_tokenizer=300, max_wordpieces=24, workers=1
    )
    mark_spans(corpus, PhraseTagger(beasts), workers=1)
    return corpus


@pytest.fixture(scope="session")
def towns_model(towns: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of fresh weights for the towns."""
    folder = tmp_path_factory.mktemp("towns-model") / "model"
    create_model(corpus=towns.folder, out=folder, **TINY_MODEL)
    return folder
