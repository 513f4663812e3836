"""The promise of runs/world.sh, three seeds (minutes each): `make test-slow`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SEEDS = (0, 1, 2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_retrieval_emerges_on_the_small_world_whatever_the_seed(tmp_path: Path) -> None:
    warm = []
    joint = []
    for seed in SEEDS:
        out = tmp_path / str(seed)
        paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        subprocess.run(
            ["bash", "runs/world.sh", str(out)],
            cwd=ROOT,
            check=True,
            env={**os.environ, "SEED": str(seed), "PATH": paths},
        )
        table = {name: cloze for name, (cloze, _) in json.loads((out / "table.json").read_text()).items()}
        joint.append(table["REALM"]["gold_recall"]["1"]["value"])
        warm.append(table["warm-up only (ICT, ORQA)"]["gold_recall"]["1"]["value"])
        assert joint[-1] >= 90
        assert table["REALM"]["exact_match"]["value"] >= 85, "the masked value, with retrieval"
        assert table["no retrieval"]["exact_match"]["value"] <= 10, "and without"
    spread = max(max(joint) - min(joint), max(warm) - min(warm))
    assert min(joint) - max(warm) > spread
