"""Weights that stay packed, and the encoder that is built without transformers: the same to the bit."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel

from realmlm.corpus.store import Corpus
from realmlm.engine import Engine
from realmlm.model.bert import Bert
from realmlm.model.encoders import build_encoder, encoder_config
from realmlm.model.fingerprint import tower_fingerprint
from realmlm.model.int8 import Int8, hold_int8, named_weights, read_weights
from realmlm.model.realm import Realm
from tests.calls import create_model
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
    model = Realm.from_pretrained(folder / "wide")
    model.reader.encoder.body.set_input_embeddings(model.document.encoder.body.get_input_embeddings())
    model.save_pretrained(folder / "small", dtype="int8")
    return folder / "small"


@pytest.mark.parametrize("kind", ["linear", "embedding"])
def test_a_layer_in_8_bits_computes_what_the_wide_one_does(kind: str) -> None:
    rows = torch.randint(-127, 128, (5, 3), dtype=torch.int8)
    scale = torch.rand(5)
    layer = torch.nn.Linear(3, 5) if kind == "linear" else torch.nn.Embedding(5, 3)
    with torch.no_grad():
        layer.weight.copy_(rows.float() * scale[:, None])
    model = torch.nn.ModuleDict({"first": layer, "again": layer, "other": torch.nn.LayerNorm(3)})
    given = torch.rand(2, 3) if kind == "linear" else torch.tensor([[4, 0], [1, 1]])
    wide = layer(given)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    matrix = {"first.weight": (rows, scale), "other.weight": (rows[:1], scale[:1])}
    assert hold_int8(model, matrix) == {"first.weight"}
    assert isinstance(model["first"], Int8)
    assert model["again"] is model["first"]
    assert torch.equal(model["first"](given), wide)
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert [name for name, _ in named_weights(model)] == sorted(state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in named_weights(model))


def test_answers_are_the_same_to_the_bit(small: Path, knowledge: Corpus) -> None:
    wide = Realm.from_pretrained(small)
    held = Realm.from_pretrained(small, int8=True)
    assert any(isinstance(part, Int8) for part in held.modules())
    assert not any(isinstance(part, Int8) for part in wide.modules())
    assert not any(parameter.isnan().any() for parameter in held.parameters())
    assert held.size == wide.size
    assert held.reader.embedding is held.document.encoder.body.get_input_embeddings()
    assert tower_fingerprint(held.config, held.document) == tower_fingerprint(wide.config, wide.document)
    assert held.own_state().keys() == wide.own_state().keys()
    engines = [Engine(model, knowledge.folder, device="cpu") for model in (held, wide)]
    first, second = (engine.ask("Which bird is the symbol?") for engine in engines)
    assert first == second
    first, second = (engine.fill("the bird is a [MASK]") for engine in engines)
    assert first == second


def test_a_model_in_8_bits_can_be_saved_again(small: Path, tmp_path: Path) -> None:
    Realm.from_pretrained(small, int8=True).save_pretrained(tmp_path / "again")
    first = read_weights(small / "model.safetensors")
    second = read_weights(tmp_path / "again" / "model.safetensors")
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


# --- BERT ---------------------------------------------------------------------------------------------------


def both(**changes: Any) -> tuple[BertModel, Bert]:
    torch.manual_seed(0)
    theirs = BertModel(BertConfig(**SHAPE | changes), add_pooling_layer=False)
    ours = build_encoder(encoder_config(theirs), draw=False)
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
    create_model(corpus=knowledge.folder, out=tmp_path / "model", **TINY_MODEL | {"family": "bert"})
    model = Realm.from_pretrained(tmp_path / "model")
    model.save_pretrained(tmp_path / "small", dtype="int8")
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
