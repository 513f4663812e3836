"""The authors' TensorFlow names: each kind of checkpoint becomes the same weights as transformers' layout of
it."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from realmlm.errors import BadInput, MissingExtra
from realmlm.interop.layout import is_unused
from realmlm.interop.variables import read_variables, their_key, translate
from tests.calls import import_hf

CASE = Path(__file__).parent / "recorded" / "001"


@pytest.mark.parametrize(
    ("variable", "key"),
    [
        ("bert/embeddings/word_embeddings", "realm.embeddings.word_embeddings.weight"),
        ("bert/embeddings/LayerNorm/gamma", "realm.embeddings.LayerNorm.weight"),
        (
            "bert/encoder/layer_11/attention/self/query/kernel",
            "realm.encoder.layer.11.attention.self.query.weight",
        ),
        ("cls/predictions/transform/dense/bias", "cls.predictions.transform.dense.bias"),
        ("cls/predictions/output_bias", "cls.predictions.bias"),
        ("module/module/LayerNorm/beta", "embedder.cls.LayerNorm.bias"),
        ("module/module/dense/kernel", "embedder.cls.dense.weight"),
        ("module/module/module/bert/pooler/dense/kernel", "embedder.realm.pooler.dense.weight"),
        ("module/module/module/cls/predictions/output_bias", "embedder.cls.predictions.bias"),
        ("module/module/module/LayerNorm/gamma", "embedder.cls.LayerNorm.weight"),
        ("module/module/module/dense/bias", "embedder.cls.dense.bias"),
        (
            "module/module/module/module/bert/embeddings/position_embeddings",
            "embedder.realm.embeddings.position_embeddings.weight",
        ),
        (
            "module/module/module/module/cls/predictions/transform/LayerNorm/beta",
            "embedder.cls.predictions.transform.LayerNorm.bias",
        ),
        (
            "reader/module/bert/encoder/layer_0/output/dense/kernel",
            "reader.realm.encoder.layer.0.output.dense.weight",
        ),
        ("reader/module/cls/predictions/output_bias", "reader.cls.predictions.bias"),
        ("reader/dense/kernel", "reader.qa_outputs.dense_intermediate.weight"),
        ("reader/dense_1/bias", "reader.qa_outputs.dense_output.bias"),
        ("reader/layer_normalization/gamma", "reader.qa_outputs.layer_normalization.weight"),
        ("block_emb", "block_emb"),
        ("global_step", None),
        ("bert/embeddings/word_embeddings/AdamWeightDecayOptimizer", None),
        ("reader/dense/kernel/adam_m", None),
        ("cls/seq_relationship/output_weights", None),
    ],
)
def test_names(variable: str, key: str | None) -> None:
    assert their_key(variable) == key


def as_variables(name: str, *, embedder: str) -> dict[str, np.ndarray]:
    """A recorded checkpoint under the authors' names: those of a fine-tuned (three `module/`) or a
    pre-trained embedder."""
    variables = {}
    for key, tensor in load_file(CASE / name / "model.safetensors").items():
        if key == "block_emb":
            variables[key] = tensor.numpy()
            continue
        if "decoder" in key or key.startswith("query_embedder."):
            continue
        scope, _, last = key.rpartition(".")
        scope = scope.replace(".layer.", ".layer_")
        array = tensor.numpy()
        if last == "weight" and not scope.endswith("_embeddings"):
            last, array = ("kernel", array.T) if array.ndim == 2 else ("gamma", array)
        elif last == "bias":
            norm = scope.endswith(("LayerNorm", "layer_normalization"))
            last = "beta" if norm else "output_bias" if scope.endswith("predictions") else "bias"
        path = f"{scope.replace('.', '/')}/{last}"
        path = path.removesuffix("/weight") if "_embeddings/" in path else path
        for old, new in (
            ("reader/realm/", "reader/module/bert/"),
            ("reader/cls/", "reader/module/cls/"),
            ("reader/qa_outputs/dense_intermediate/", "reader/dense/"),
            ("reader/qa_outputs/dense_output/", "reader/dense_1/"),
            ("reader/qa_outputs/", "reader/"),
            ("embedder/realm/", f"{embedder}module/bert/"),
            ("embedder/cls/predictions/", f"{embedder}module/cls/predictions/"),
            ("embedder/cls/", embedder),
        ):
            path = new + path.removeprefix(old) if path.startswith(old) else path
        variables[path.replace("realm/", "bert/")] = array
    return variables


@pytest.mark.parametrize(
    ("name", "embedder", "architecture", "prefix"),
    [
        ("scorer", "module/module/", "RealmEmbedder", "embedder."),
        ("encoder", "", "RealmKnowledgeAugEncoder", ""),
        ("openqa", "module/module/module/", "RealmForOpenQA", ""),
    ],
)
def test_whole_checkpoints(name: str, embedder: str, architecture: str, prefix: str) -> None:
    found, config, tensors = translate(as_variables(name, embedder=embedder), name=name)
    assert found == architecture
    expected = {
        key.removeprefix(prefix): tensor
        for key, tensor in load_file(CASE / name / "model.safetensors").items()
        if key.startswith(prefix)
    }
    used = {key for key in expected if not is_unused(architecture, key)}
    assert used <= set(tensors)
    assert [key for key in used if not torch.equal(expected[key], tensors[key])] == []
    sizes = {
        "vocab_size": 90,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 56,
    }
    assert {key: config[key] for key in sizes} == sizes
    assert config.get("retriever_proj_size", 8) == 8
    assert config.get("span_hidden_size", 8) == 8


def test_something_else_is_refused() -> None:
    with pytest.raises(BadInput, match="no variables of REALM"):
        translate({"weights": np.zeros(3)}, name="other")


def test_tensorflow_is_asked_for_only_when_needed(tmp_path: Path) -> None:
    if importlib.util.find_spec("tensorflow") is None:
        with pytest.raises(MissingExtra, match=r"pip install 'realmlm\[tensorflow\]'"):
            read_variables(tmp_path)


def test_checkpoints_that_tensorflow_wrote(tmp_path: Path) -> None:
    """Runs where TensorFlow is installed: pip install 'realmlm[tensorflow]'."""
    v1 = pytest.importorskip("tensorflow", reason="TensorFlow is not installed").compat.v1
    for name, embedder, place in (
        ("scorer", "module/module/", "module/variables/variables"),
        ("encoder", "", "bert.ckpt-7"),
    ):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        with v1.Graph().as_default(), v1.Session() as session:
            for variable, array in as_variables(name, embedder=embedder).items():
                v1.get_variable(variable, initializer=array)
            v1.get_variable("global_step", initializer=3)
            session.run(v1.global_variables_initializer())
            v1.train.Saver().save(session, str(tmp_path / place), write_meta_graph=False)
    vocabulary = CASE / "scorer" / "vocab.txt"
    sources = (str(tmp_path / "module"), str(tmp_path / "bert.ckpt-7"))
    state = import_hf(sources, out=tmp_path / "a", tokenizer=vocabulary).state_dict()
    same = import_hf((str(CASE / "scorer"), str(CASE / "encoder")), out=tmp_path / "b").state_dict()
    assert [
        name for name in state if "span_head" not in name and not torch.equal(state[name], same[name])
    ] == []
