"""Weights that stay packed, and the encoder that is built without transformers: the same to the bit."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import BertConfig, BertModel

from realmlm.corpus.store import Corpus
from realmlm.engine import Engine
from realmlm.model.bert import Bert
from realmlm.model.create import create_model
from realmlm.model.encoders import build_encoder, encoder_config, undrawn
from realmlm.model.int8 import Packed, kept_packed, read_weights
from realmlm.model.realm import Realm, tower_fingerprint
from tests.conftest import TINY_MODEL

SHAPE = {
    "vocab_size": 90,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}


@pytest.fixture(scope="module", params=["bert", "modernbert"])
def small(
    request: pytest.FixtureRequest, knowledge: Corpus, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A model in 8 bits, its embeddings held once."""
    folder = tmp_path_factory.mktemp(request.param)
    settings: dict[str, Any] = TINY_MODEL | {"family": request.param, "freeze_embeddings": True}
    create_model(corpus=knowledge.folder, out=folder / "wide", **settings)
    model, wordpieces = Realm.from_pretrained(folder / "wide")
    model.reader.encoder.body.set_input_embeddings(model.document.encoder.body.get_input_embeddings())
    model.save_pretrained(folder / "small", wordpieces, dtype="int8")
    return folder / "small"


def test_a_packed_matrix_is_the_wide_one_wherever_it_is_used() -> None:
    rows = torch.randint(-127, 128, (5, 3), dtype=torch.int8)
    scale = torch.rand(5)
    packed = Packed.of(rows, scale)
    wide = rows.float() * scale[:, None]
    x = torch.rand(2, 3)
    ids = torch.tensor([[4, 0], [1, 1]])
    assert packed.shape == wide.shape
    assert packed.dtype == torch.float32
    assert torch.equal(F.linear(x, packed), F.linear(x, wide))
    assert torch.equal(F.embedding(ids, packed), F.embedding(ids, wide))
    assert torch.equal(x @ packed.transpose(0, 1), x @ wide.T)
    assert torch.equal(packed.detach().cpu() + 1, wide + 1)
    assert torch.equal(packed.to(torch.float64), wide.to(torch.float64))
    assert packed.to("cpu") is packed
    assert torch.equal(packed, packed.detach())
    assert not torch.equal(packed, Packed.of(rows, 2 * scale))
    assert isinstance(torch.nn.Parameter(packed), Packed)
    with torch._C.DisableTorchFunctionSubclass():
        assert bool(packed.isnan().all())  # what escapes is seen at once


def test_answers_are_the_same_to_the_bit(small: Path, knowledge: Corpus) -> None:
    wide, _ = Realm.from_pretrained(small)
    with kept_packed():
        packed, _ = Realm.from_pretrained(small)
    assert any(isinstance(weight, Packed) for weight in packed.parameters())
    assert not any(isinstance(weight, Packed) for weight in wide.parameters())
    assert packed.reader.embedding is packed.document.encoder.body.get_input_embeddings()
    assert tower_fingerprint(packed.config, packed.document) == tower_fingerprint(wide.config, wide.document)
    assert packed.own_state().keys() == wide.own_state().keys()
    engine = Engine(small, knowledge.folder, device="cpu")
    other = Engine(small, knowledge.folder, device="cpu")
    other.model = other._answerer.model = other._answerer.retriever.model = wide  # type: ignore[attr-defined]
    assert engine.ask("Which bird is the symbol?") == other.ask("Which bird is the symbol?")
    assert engine.fill("the bird is a [MASK]") == other.fill("the bird is a [MASK]")


def test_a_packed_model_can_be_saved_again(small: Path, tmp_path: Path) -> None:
    with kept_packed():
        packed, wordpieces = Realm.from_pretrained(small)
    packed.save_pretrained(tmp_path / "again", wordpieces)
    first = read_weights(small / "model.safetensors")
    second = read_weights(tmp_path / "again" / "model.safetensors")
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


# --- BERT ---------------------------------------------------------------------------------------------------


def both(**changes: Any) -> tuple[BertModel, Bert]:
    torch.manual_seed(0)
    theirs = BertModel(BertConfig(**SHAPE | changes), add_pooling_layer=False)
    with undrawn():
        ours = build_encoder(encoder_config(theirs))
    assert isinstance(ours, Bert)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("segments", [1, 2])
def test_bert_is_that_of_transformers_to_the_bit(training: bool, padded: bool, segments: int) -> None:
    """Vectors and gradients, with the same dropout."""
    tokens = torch.randint(0, 90, (5, 17))
    attention = torch.ones(5, 17, dtype=torch.int64)
    if padded:
        attention[1, 9:] = attention[3, 2:] = 0
    given = {"input_ids": tokens, "attention_mask": attention}
    given |= {"token_type_ids": torch.randint(0, 2, (5, 17))} if segments == 2 else {}
    found: list[tuple[torch.Tensor, dict[str, Any]]] = []
    for model in both(type_vocab_size=segments):
        torch.manual_seed(1)
        hidden = model.train(training)(**given).last_hidden_state
        (hidden * torch.linspace(-1, 1, 24)).sum().backward()
        found.append((hidden, {name: weight.grad for name, weight in model.named_parameters()}))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1].keys() == found[1][1].keys()
    assert all(torch.equal(gradient, found[1][1][name]) for name, gradient in found[0][1].items())


@pytest.mark.parametrize(
    "changes", [{"hidden_act": "gelu_new"}, {"is_decoder": True}, {"position_embedding_type": "relative_key"}]
)
def test_another_kind_of_bert_is_left_to_transformers(changes: dict[str, Any]) -> None:
    from realmlm.model.bert import BertSettings

    assert BertSettings.of(SHAPE | changes) is None
    assert BertSettings.of(SHAPE) is not None


def test_nothing_random_is_used_up_by_loading(small: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    Realm.from_pretrained(small)
    assert torch.equal(torch.rand(3), expected)


def test_loading_bert_waits_for_torch_alone(knowledge: Corpus, tmp_path: Path) -> None:
    """The imports of transformers' models and of torch's compiler would take longer than all the rest."""
    create_model(corpus=knowledge.folder, out=tmp_path / "model", **TINY_MODEL | {"family": "bert"})  # type: ignore[arg-type]
    model, wordpieces = Realm.from_pretrained(tmp_path / "model")
    model.save_pretrained(tmp_path / "small", wordpieces, dtype="int8")
    code = (
        "import json, sys, realmlm\nrealm = realmlm.load(sys.argv[1], sys.argv[2], "
        "device='cpu')\nrealm.ask('Which bird?')\n"
    )
    code += "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "small", knowledge.folder],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert not {"transformers", "sympy", "scipy", "sklearn", "tyro", "huggingface_hub"} & set(
        json.loads(done.stdout)
    )
