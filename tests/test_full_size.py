"""The rehearsal at full size, at a small one: what it generates is a corpus like any other, and opening reads
none of what it opens."""

import importlib.util
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest
import torch

from realmlm.corpus.store import Corpus
from realmlm.engine import Engine
from realmlm.index.ivf import IVFIndex
from realmlm.index.store import open_index
from realmlm.sources.article import Article
from realmlm.storage import artefacts
from tests.index.test_store import resident_kb

PASSAGES = 20_000
pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux tells what is resident")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "full_size", Path(__file__).resolve().parent.parent / "tools" / "full_size.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def made(tool: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("full")
    for step in tool.MAKING.values():
        step(out, tool.Size(PASSAGES, layers=1, hidden=64))
    return out


def test_generated_passages_are_what_the_tokenizer_makes_of_their_text(made: Path) -> None:
    corpus = Corpus.open(made / "corpus")
    assert len(corpus) == len(corpus.ids) == PASSAGES
    for number in (0, 1, PASSAGES // 2, PASSAGES - 1):
        encoding = corpus.wordpieces.tokenizer.encode(corpus[number].text, add_special_tokens=False)
        assert corpus.tokens(number).tolist() == encoding.ids
        assert corpus.token_chars(number).tolist() == [list(pair) for pair in encoding.offsets]
        assert corpus.title_tokens(number).tolist() == corpus.wordpieces.encode(corpus[number].title).tolist()
        assert corpus.sentences(number)[[0, 1, -1]].tolist() == [0, 20, len(encoding.ids)]


def test_the_size_of_a_corpus_is_known_without_its_ids(tool: ModuleType, tmp_path: Path) -> None:
    tool.make_corpus(tmp_path, tool.Size(50))
    corpus = Corpus.open(tmp_path / "corpus")
    sizes = [len(corpus)]
    for edit in (
        {"remove": [3, 7]},
        {"add": [Article("", corpus[0].text)] * 2},
        {"replace": {0: Article("", corpus[1].text)}, "remove": [51]},
    ):
        corpus, _ = corpus.edit(**edit)
        assert "ids" not in vars(corpus)
        sizes.append(len(corpus))
        assert len(corpus.ids) == sizes[-1]
    assert sizes == [50, 48, 50, 49]


def test_opening_what_was_just_made_hashes_nothing_and_reads_no_vector_and_no_text(made: Path) -> None:
    with (
        patch.object(artefacts, "ALWAYS_HASHED", 0),
        patch.object(artefacts, "sha256_of", side_effect=AssertionError),
    ):
        corpus = Corpus.open(made / "corpus")
        exact = open_index(made / "exact")
        approximate = open_index(made / "ivf")
    assert len(corpus) == len(exact) == len(approximate) == PASSAGES
    assert resident_kb(made / "corpus", "") == resident_kb(made / "exact", "") == 0
    assert resident_kb(made / "ivf", "vectors") == resident_kb(made / "ivf", "ids") == 0
    approximate.search(torch.ones(1, exact.dim), 5)
    assert 0 < resident_kb(made / "ivf", "vectors") < 2**-10 * PASSAGES * exact.dim * 2


def test_every_step_prints_its_row(tool: ModuleType, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in tool.USING.values():
        step(made, tool.Size(PASSAGES))
    rows = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[0] for row in rows] == [
        "| open the corpus",
        "| open the model",
        "| open the exact index",
        "| open the IVF index",
        *(
            f"| {part}, {kind}"
            for kind in ("exact", "ivf")
            for part in ("open all for asking", "the first question", "the same again")
        ),
    ]
    assert all(0 <= float(cell) < 100 for row in rows for cell in row.strip("| ").split(" | ")[1:])


def test_both_kinds_give_passages_of_the_corpus(tool: ModuleType, made: Path) -> None:
    asked = tool.question(made)
    engines = {
        kind: Engine(made / "model", made / "corpus", index=made / kind, device="cpu")
        for kind in ("exact", "ivf")
    }
    assert isinstance(engines["ivf"].index, IVFIndex)
    found = {
        kind: [evidence.passage_id for evidence in engine.ask(asked).evidence]
        for kind, engine in engines.items()
    }
    assert len(found["exact"]) == len(found["ivf"]) == 5
    engines["ivf"].index.nprobe = len(engines["ivf"].index.centroids_LD)
    assert [evidence.passage_id for evidence in engines["ivf"].ask(asked).evidence] == found["exact"]
