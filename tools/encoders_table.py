"""Write docs/encoders.md from a run of the encoders' suite over all families: `python
tools/encoders_table.py` (`make encoders`)."""

import datetime
import os
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch
import transformers

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "encoders.md"
SUITE = "tests/model/test_encoders.py"
CHECKS = {
    "inputs_are_those_of_the_familys_own_tokenizer": ("written as, segments", "layout"),
    "padding_changes_nothing": ("padding", "padding"),
    "joint_steps_lower_the_loss": ("joint loss", "loss"),
    "save_and_load_give_the_same_outputs": ("saved", "saved"),
    "a_checkpoint_reads_as_transformers_reads_it": ("checkpoint", "checkpoint"),
    "the_masked_lm_head_is_tied": ("head", "head"),
    "half_precision_is_finite": ("bf16", "half"),
}


class Results:
    """A pytest plugin that keeps what every check of every family recorded, and how long the family took."""

    def __init__(self) -> None:
        self.found: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        check, _, rest = report.nodeid.split("::test_")[-1].partition("[")
        family = rest.removesuffix("]")
        if check not in CHECKS:
            return
        self.seconds[family] += report.duration
        if report.failed:
            self.found[family][CHECKS[check][1]] = "**fails**"
        elif report.when == "call":
            self.found[family] |= {name: str(value) for name, value in report.user_properties}


def page(results: Results) -> str:
    """The table and what its columns mean."""
    from tests.model.families import FAMILIES, REFUSED

    machine = (
        f"{os.cpu_count()} CPU cores, one thread, torch {torch.__version__}, transformers "
        f"{transformers.__version__}"
    )
    lines = [
        "# Encoders",
        "",
        "Families of the transformers library that `realmlm model` makes towers and reader of: fresh ones "
        "(`--family TYPE`) or published",
        "ones (`--checkpoint`, the corpus made with its tokenizer). Inputs are written as the tokenizer's "
        "own post-processor writes them,",
        "so any tokenizer can go with a fresh encoder of any family; as BERT does where it has none "
        "(`--train-tokenizer`).",
        "",
        f"Made by `make encoders`, which runs `{SUITE}` for every family: tiny encoders, each with its own "
        "tokenizer.",
        f"{machine}, {datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d}.",
        "",
        "| family | type | "
        + " | ".join(title for title, _ in CHECKS.values())
        + " | pooling | s | remarks |",
        "| --- " * (len(CHECKS) + 5) + "|",
    ]
    for name, family in FAMILIES.items():
        found = results.found[name]
        cells = [found.get(key, "–") for _, key in CHECKS.values()]
        last = [found.get("pooling", "–"), f"{results.seconds[name]:.0f}", family.remark]
        lines.append(f"| {name} | `{family.model_type}` | {' | '.join([*cells, *last])} |")
    lines += [
        "",
        "- **written as, segments**: query x and passage z read together, and the segment id of each part; "
        "equal to what transformers' own",
        "  tokenizer of the family makes of the same texts, as are query and document (title, body) alone. "
        "Only families with segments",
        "  get the ids.",
        "- **padding**: largest change of a vector, a mask's log-probability or a span's score when longer "
        "inputs lie beside.",
        "- **joint loss**: −log p(y|x) of eight masked sentences before and after twelve steps of joint "
        "training on them.",
        "- **saved**: outputs after `save_pretrained` and `from_pretrained`, bit for bit.",
        "- **checkpoint**: largest difference from transformers' own model, loaded from its "
        "`save_pretrained`, on its tokenizer's inputs.",
        "- **head**: hidden size, size of the embeddings, vocabulary; the masked-LM head's output weights "
        "are the embeddings themselves.",
        "- **bf16**: largest change of a log-probability under bfloat16 autocast, everything finite, "
        "gradients too.",
        "- **pooling**: what can stand for a sequence (`--pooling`).",
        "",
        "Families that cannot work are refused with the reason:",
        "",
        "| type | why |",
        "| --- | --- |",
        *(f"| `{model_type}` | {reason} |" for model_type, reason in REFUSED.items()),
        "",
        "Others that transformers has a masked language model of are taken as they are, in the names most "
        "families share, and have not",
        "been through the suite.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    sys.path.insert(0, str(ROOT))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    results = Results()
    those = ["-m", "families or not families", "-k", "not the_table_has"]
    code = pytest.main([str(ROOT / SUITE), "-q", "-p", "no:cacheprovider", *those], plugins=[results])
    if results.found:
        PAGE.write_text(page(results), "utf-8")
        print(f"wrote {PAGE}")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
