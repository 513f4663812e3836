"""What transformers 4.57.6 computed, recorded once (tools/hf_parity.py --record), against our import."""

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
CASES = sorted((HERE / "recorded").iterdir())


@pytest.fixture(scope="module")
def parity() -> ModuleType:
    place = importlib.util.spec_from_file_location("hf_parity", HERE.parents[1] / "tools" / "hf_parity.py")
    assert place is not None
    assert place.loader is not None
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


def test_there_are_recorded_cases() -> None:
    assert len(CASES) == 3


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_import_computes_what_the_original_did(parity: ModuleType, case: Path, tmp_path: Path) -> None:
    differences = parity.compare(case, tmp_path)
    assert len(differences) == 15
    assert {name: value for name, value in differences.items() if not value < 1e-4} == {}


@pytest.mark.parametrize(
    ("file", "setting", "seen"),
    [
        ("scorer/config.json", ("layer_norm_eps", 1e-3), "query embeddings"),
        ("scorer/config.json", ("hidden_act", "relu"), "document embeddings"),
        ("encoder/config.json", ("hidden_act", "relu"), "masked LM without"),
        ("encoder/config.json", ("num_attention_heads", 8), "masked LM with a passage"),
        ("reader/config.json", ("num_attention_heads", 8), "span scores"),
    ],
)
def test_the_comparison_sees_a_small_change(
    parity: ModuleType, tmp_path: Path, file: str, setting: tuple[str, object], seen: str
) -> None:
    case = tmp_path / "case"
    shutil.copytree(CASES[1], case)
    config = json.loads((case / file).read_text())
    assert config.get(setting[0]) != setting[1]
    (case / file).write_text(json.dumps(config | dict([setting])))
    assert parity.compare(case, tmp_path)[seen] > 1e-3


def test_the_comparison_sees_one_changed_weight(parity: ModuleType, tmp_path: Path) -> None:
    case = tmp_path / "case"
    shutil.copytree(CASES[0], case)
    weights = load_file(case / "reader" / "model.safetensors")
    weights["qa_outputs.dense_output.weight"][0, 0] += 0.01
    save_file(weights, case / "reader" / "model.safetensors")
    differences = parity.compare(case, tmp_path)
    assert differences["span scores"] > 1e-4
    assert differences["query embeddings"] < 1e-5


def test_the_recorded_weights_are_not_those_a_model_begins_with() -> None:
    weights = load_file(CASES[0] / "scorer" / "model.safetensors")
    assert not torch.equal(weights["embedder.cls.LayerNorm.weight"], torch.ones(8))
    assert weights["embedder.cls.dense.bias"].abs().min() > 0
