"""Exported towers: other programs give the vectors that we give."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from realmlm.cli import main
from realmlm.errors import BadInput
from realmlm.model.realm import Realm
from tests.calls import export_encoders
from tests.model.families import DEFAULT, FAMILIES
from tests.model.test_encoders import Subject, wear

QUESTIONS = ["who built the harbour of the town?", "where?", "the heron is a bird. " * 30]
PASSAGES = [("harbour", "it was built by the town, long ago."), ("", "herons."), ("the town", "a bird.")]
SAME = 1e-5


def expected(realm: Realm) -> tuple[np.ndarray, np.ndarray]:
    titles, texts = zip(*PASSAGES, strict=True)
    return realm.embed_queries(QUESTIONS).numpy(), realm.embed_passages(texts, titles).numpy()


def exported(realm: Realm, tmp_path: Path, form: str) -> Path:
    realm.save_pretrained(tmp_path / "model")
    export_encoders(model=tmp_path / "model", out=tmp_path / "out", format=form)
    return tmp_path / "out"


@pytest.fixture(params=[name for name in FAMILIES if name in DEFAULT])
def family(request: pytest.FixtureRequest, world: Path, tmp_path: Path) -> Subject:
    return Subject(FAMILIES[request.param], world, tmp_path)


VARIANTS: dict[str, dict[str, Any]] = {
    "cls, LayerNorm and 1/√d": {"pooling": "cls"},
    "mean, another epsilon": {"pooling": "mean", "norm_eps": 1e-12},
    "the paper's": {"pooling": "cls", "projection_norm": False, "share_towers": False},
}


@pytest.fixture(params=[*VARIANTS, "a learned scale", "the pooler"])
def realm(request: pytest.FixtureRequest, world: Path, tmp_path: Path) -> Realm:
    """BERTs of every kind of tower, worn as after training."""
    subject = Subject(FAMILIES["BERT"], world, tmp_path)
    if request.param == "the pooler":
        return Realm(subject.config(pooling="pooler"), subject.wordpieces).eval()
    if request.param in VARIANTS:
        return subject.worn_model(**VARIANTS[request.param])
    model = subject.model()
    model.learn_scale()
    wear(model)
    return model


# --- the modules, one by one --------------------------------------------------------------------------------


def by_modules(folder: Path, texts: list[Any]) -> np.ndarray:
    """What `modules.json` says, done with transformers and torch alone."""
    from transformers import AutoModel, AutoTokenizer

    modules = json.loads((folder / "modules.json").read_text("utf-8"))
    given = AutoTokenizer.from_pretrained(folder)(
        *map(list, zip(*texts, strict=True) if isinstance(texts[0], tuple) else [texts]),
        padding=True,
        truncation="longest_first",
        max_length=json.loads((folder / "sentence_bert_config.json").read_text("utf-8"))["max_seq_length"],
        return_tensors="pt",
    )
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(folder).eval()(**given).last_hidden_state
        vectors = hidden[:, 0]
        for module in modules[1:]:
            kind = module["type"].rpartition(".")[2]
            config = json.loads((folder / module["path"] / "config.json").read_text("utf-8"))
            if kind == "Pooling":
                assert sum(value is True for value in config.values()) == 1
                if config["pooling_mode_mean_tokens"]:
                    mask = given["attention_mask"][:, :, None]
                    vectors = (hidden * mask).sum(1) / mask.sum(1)
                continue
            weights = load_file(folder / module["path"] / "model.safetensors")
            if kind == "Dense":
                vectors = vectors @ weights["linear.weight"].T + weights["linear.bias"]
                tanh = config["activation_function"].endswith("Tanh")
                vectors = vectors.tanh() if tanh else vectors
            else:
                spread = (vectors.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
                centred = (vectors - vectors.mean(1, keepdim=True)) / spread
                vectors = centred * weights["norm.weight"] + weights["norm.bias"]
    return vectors.numpy()


def test_the_modules_of_a_tower_give_its_vectors(realm: Realm, tmp_path: Path) -> None:
    folder = exported(realm, tmp_path, "sentence-transformers")
    queries, passages = expected(realm)
    assert np.allclose(by_modules(folder / "query", QUESTIONS), queries, atol=SAME)
    assert np.allclose(by_modules(folder / "passages", PASSAGES), passages, atol=SAME)
    alone = by_modules(folder / "passages", ["it was built by the town, long ago."])
    untitled = realm.embed_passages(["it was built by the town, long ago."])
    assert np.allclose(alone, untitled.numpy(), atol=SAME)
    assert not np.allclose(alone, passages[:1], atol=1e-3), "titles are read"


def test_the_readme_says_how_titles_are_read(tiny_model_folder: Path, tmp_path: Path) -> None:
    export_encoders(model=tiny_model_folder, out=tmp_path / "out")
    readme = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert "`[CLS] title [SEP] text [SEP]`" in readme
    assert "inner product" in readme


def test_towers_that_are_given_more_than_tokens_are_refused(world: Path, tmp_path: Path) -> None:
    realm = Subject(FAMILIES["Longformer"], world, tmp_path).model()
    with pytest.raises(BadInput, match="'longformer' are told more than tokens"):
        exported(realm, tmp_path, "onnx")
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_document_tower_is_refused(tiny_model: Realm, tmp_path: Path) -> None:
    tiny_model.config = replace(tiny_model.config, stand_in="0" * 64)
    with pytest.raises(BadInput, match="came without a document tower"):
        exported(tiny_model, tmp_path, "onnx")


def test_the_command_has_two_words(tiny_model_folder: Path, tmp_path: Path, capsys: Any) -> None:
    main(["export", "encoders", "--model", str(tiny_model_folder), "--out", str(tmp_path / "out")])
    assert "query/ and passages/, vectors of 32 numbers" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["export", "nothing"])
    assert "no command 'export'; choose from: " in capsys.readouterr().err


# --- in other programs --------------------------------------------------------------------------------------


def by_sentence_transformers(folder: Path) -> Callable[[list[Any]], np.ndarray]:
    module = pytest.importorskip("sentence_transformers")
    return module.SentenceTransformer(str(folder), device="cpu").encode


def by_onnx(folder: Path) -> Callable[[list[Any]], np.ndarray]:
    """As the README of the folder says."""
    runtime = pytest.importorskip("onnxruntime")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tower = runtime.InferenceSession(str(folder / "model.onnx"))
    arrays = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}

    def vectors(texts: list[Any]) -> np.ndarray:
        read = tokenizer.encode_batch(texts)
        given = {
            one.name: np.array([getattr(each, arrays[one.name]) for each in read])
            for one in tower.get_inputs()
        }
        return tower.run(["vectors"], given)[0]

    return vectors


WAYS = {"sentence-transformers": by_sentence_transformers, "onnx": by_onnx}


def assert_same_vectors(realm: Realm, folder: Path, form: str) -> None:
    queries, passages = expected(realm)
    query, document = (WAYS[form](folder / name) for name in ("query", "passages"))
    assert np.allclose(query(QUESTIONS), queries, atol=SAME)
    assert np.allclose(document(PASSAGES), passages, atol=SAME)
    assert np.allclose(document([text for _, text in PASSAGES[1:2]]), passages[1:2], atol=SAME)


@pytest.mark.scale
@pytest.mark.parametrize("form", WAYS)
def test_another_program_gives_the_vectors_of_every_kind_of_tower(
    realm: Realm, form: str, tmp_path: Path
) -> None:
    pytest.importorskip(form.replace("-", "_"))
    assert_same_vectors(realm, exported(realm, tmp_path, form), form)


@pytest.mark.scale
@pytest.mark.parametrize("form", WAYS)
def test_another_program_gives_the_vectors_of_every_family(
    family: Subject, form: str, tmp_path: Path
) -> None:
    pytest.importorskip(form.replace("-", "_"))
    realm = family.worn_model(pooling=family.poolings[0])
    assert_same_vectors(realm, exported(realm, tmp_path, form), form)


@pytest.mark.scale
@pytest.mark.parametrize("form", WAYS)
def test_another_program_gives_the_vectors_of_the_bundled_model(form: str, tmp_path: Path) -> None:
    pytest.importorskip(form.replace("-", "_"))
    export_encoders(model="mini", out=tmp_path / "out", format=form)
    assert_same_vectors(Realm.from_pretrained("mini"), tmp_path / "out", form)
