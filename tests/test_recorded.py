"""What the version before the redesign wrote (0.1.0, tests/recorded): models, a corpus with an edit, its index,
and a run that was cut off open, and go on, as if nothing had changed.

Thirty invented towns, one layer of 16 numbers; the run was stopped after five of six steps, with a checkpoint
at four. `expected` is the model of the same run undisturbed.
"""

import tarfile
from pathlib import Path

import pytest
import torch

from realmlm.cli import main
from realmlm.corpus.spans import Spans
from realmlm.corpus.store import Corpus
from realmlm.engine import Engine
from realmlm.index.store import index_info
from realmlm.model.realm import Realm


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    with tarfile.open(Path(__file__).parent / "recorded" / "0.1.0.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / "0.1.0"
    for name in ("run.json", "corpora.json"):
        file = folder / "run" / name
        file.write_text(file.read_text("utf-8").replace("@HERE@", str(folder)), "utf-8")
    return folder


def test_a_corpus_and_its_index_answer_without_embedding_anything(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = Corpus.open(recorded / "corpus")
    assert (len(corpus), corpus.edits) == (31, 1)
    assert len(Spans.open(corpus)) > 20
    (place,) = (recorded / "corpus" / "index").glob("[!.]*")
    assert index_info(place).passages == 31
    monkeypatch.setattr("realmlm.index.build.embed_passages", None)
    engine = Engine(recorded / "model", recorded / "corpus", device="cpu")
    assert len(engine.search("Town31", k=31)) == 31
    assert engine.fill("Town3 bears a [MASK] on its arms.", read=2).evidence
    assert "embedding" not in capsys.readouterr().err


def test_a_model_in_8_bits_is_the_model(recorded: Path) -> None:
    whole, small = (Realm.from_pretrained(recorded / name) for name in ("model", "small"))
    for name, tensor in whole.own_state().items():
        assert torch.allclose(tensor, small.own_state()[name], atol=0.02), name
    assert Realm.from_pretrained(recorded / "small", int8=True).size == whole.size


def test_a_run_that_was_cut_off_goes_on_to_the_same_weights(recorded: Path) -> None:
    main(["pretrain", "--resume", str(recorded / "run")])
    ended = Realm.from_pretrained(recorded / "run" / "model").own_state()
    expected = Realm.from_pretrained(recorded / "expected").own_state()
    assert ended.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.allclose(tensor, ended[name], atol=1e-6), name
