"""Training in bfloat16: where, and that it learns the same."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from realmlm.corpus.store import Corpus
from realmlm.errors import NotEnough
from realmlm.log import read_metrics
from realmlm.model.precision import WIDE, half_precision
from realmlm.model.realm import Realm
from realmlm.model.snapshot import DocumentEncoder
from realmlm.settings import Loop, Optim, Warmup
from tests.calls import create_model, run_warmup, warm_up
from tests.conftest import TINY_MODEL
from tests.train.steps import fail_at

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def wide(knowledge: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one wide layer."""
    folder = tmp_path_factory.mktemp("wide") / "model"
    create_model(corpus=knowledge.folder, out=folder, **{**TINY_MODEL, "layers": 1, "hidden": WIDE})
    return folder


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that computes bfloat16 itself."""
    monkeypatch.setattr("realmlm.model.precision.cpu_has_bfloat16", lambda: True)


@pytest.mark.parametrize(
    ("device", "hidden", "has", "wanted", "half"),
    [
        ("cuda", 32, False, True, True),
        ("cuda", 32, False, False, False),
        ("cpu", WIDE, True, True, True),
        ("cpu", WIDE, True, False, False),
        ("cpu", WIDE - 1, True, True, False),
        ("cpu", WIDE, False, True, False),
    ],
)
def test_where_it_is_faster(
    device: str, hidden: int, has: bool, wanted: bool, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "cuda" and half and not torch.cuda.is_available():
        pytest.skip("no GPU here")
    monkeypatch.setattr("realmlm.model.precision.cpu_has_bfloat16", lambda: has)
    x = torch.ones(2, 2, device=device if torch.cuda.is_available() else "cpu")
    with half_precision(torch.device(device), hidden, wanted=wanted):
        assert (x @ x).dtype == (torch.bfloat16 if half else torch.float32)


@pytest.mark.usefixtures("quick")
def test_training_on_a_cpu_learns_the_same_in_bfloat16(wide: Path, knowledge: Corpus, tmp_path: Path) -> None:
    losses: dict[bool, torch.Tensor] = {}
    for bf16 in (True, False):
        part = Optim(steps=40, batch=8, lr=2e-3)
        warm = Warmup(
            model=wide,
            corpus=knowledge.folder,
            out=tmp_path / str(bf16),
            reader=part,
            retriever=replace(part, batch=16),
            loop=Loop(threads=1, device="cpu", log_every=1, bf16=bf16),
        )
        run_warmup(warm)
        rows = [
            row for name in ("reader", "retriever") for row in read_metrics(warm.out / name / "metrics.jsonl")
        ]
        losses[bf16] = torch.tensor([row["loss"] for row in rows if "loss" in row]).view(2, 40)
    assert not torch.equal(losses[True], losses[False]), "nothing was computed in bfloat16"
    assert (losses[True][:, -5:].mean(1) < losses[True][:, :5].mean(1) - 0.3).all()
    assert ((losses[True] - losses[False]).abs() < 0.02 * losses[False]).all()
    model = Realm.from_pretrained(tmp_path / "True" / "model")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.usefixtures("quick")
def test_a_run_in_bfloat16_that_was_cut_off_ends_with_the_same_bits(
    knowledge: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout: what is drawn after resuming is what would have been drawn."""
    wavering = {**TINY_MODEL, "layers": 1, "hidden": WIDE, "dropout": 0.1}
    create_model(corpus=knowledge.folder, out=tmp_path / "model", **wavering)

    def run(name: str) -> dict[str, torch.Tensor]:
        optim = Optim(steps=5, batch=8, lr=1e-3)
        loop = Loop(threads=1, device="cpu", checkpoint_every=3, deterministic=True)
        of = {"model": tmp_path / "model", "corpus": knowledge.folder, "out": tmp_path / name}
        return load_file(warm_up(**of, reader=optim, retriever=optim, loop=loop) / "model.safetensors")

    whole = run("whole")
    with monkeypatch.context() as patch:
        fail_at(4, NotEnough("power cut"), patch)
        with pytest.raises(NotEnough):
            run("cut")
    cut = run("cut")
    assert all(torch.equal(cut[name], tensor) for name, tensor in whole.items())


@pytest.mark.usefixtures("quick")
def test_only_an_index_of_training_is_rounded_on_a_cpu(wide: Path, knowledge: Corpus) -> None:
    model = Realm.from_pretrained(wide)
    ids = knowledge.ids[:8]
    exact = model.document(model.document_inputs(*knowledge.tokens_of(ids.tolist()))).detach()
    kept = DocumentEncoder.of(model)(knowledge, ids)
    training = DocumentEncoder.of(model, training=True)(knowledge, ids)
    assert torch.allclose(kept, exact, atol=1e-5)
    assert not torch.allclose(training, exact, atol=1e-5)
    assert torch.allclose(training, exact, atol=0.1 * float(exact.abs().max()))
    assert training.dtype == torch.float32


@pytest.mark.usefixtures("quick")
def test_what_the_norm_gives_is_rounded_no_more(wide: Path, knowledge: Corpus) -> None:
    model = Realm.from_pretrained(wide)
    inputs = model.document_inputs(*knowledge.tokens_of(knowledge.ids[:4].tolist()))
    with half_precision(CPU, WIDE):
        vectors = model.document(inputs)
    assert vectors.dtype == torch.float32
    assert not torch.equal(vectors, vectors.bfloat16().float())
