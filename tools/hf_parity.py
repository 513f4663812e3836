"""Does an imported REALM compute what transformers' own did? Random checkpoints of transformers 4.57.6
against our import of them.

    python tools/hf_parity.py --peer-python PEER/bin/python                       one case, all sizes as flags
    python tools/hf_parity.py --peer-python PEER/bin/python --combinations 24 --write docs/parity.md

PEER is an environment with `pip install torch transformers==4.57.6`. The peer (tools/hf_peer.py) makes
scorer, encoder, reader and open-QA checkpoints with random weights, and says what they give; this side
imports them and compares. Every difference is the largest absolute one, in float32; 0 stands for equal bits
or equal texts. Exits with 1 if any is 1e-4 or more.

B queries, C candidates each, K passages read, M masks.
"""

import json
import platform
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from safetensors.torch import load_file, save_file
from torch import Tensor

from realmlm.engine import Engine
from realmlm.interop.exporting import their_tensors
from realmlm.interop.importing import import_hf
from realmlm.interop.layout import is_unused
from realmlm.interop.sources import open_source
from realmlm.model.inputs import Masked
from realmlm.model.marginal import (
    answer_log_likelihood,
    evidence_log_likelihood,
    hidden_log_p,
    inner_products,
    marginal_log_likelihood,
    per_token_marginal,
    span_log_probabilities,
    weighed_together,
)
from realmlm.model.realm import Realm
from realmlm.reading.read import read_masks
from realmlm.settings import ImportHf

PEER = Path(__file__).with_name("hf_peer.py")
BOUND = 1e-4


@dataclass(frozen=True)
class Spec:
    """The size of a case."""

    seed: int = 0
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    vocab: int = 500
    projection: int = 32
    """Size of the vectors that are searched, and of the span head's hidden layer."""
    candidates: int = 4
    """Documents scored for each masked sentence, the empty one among them."""
    positions: int = 128
    passage: int = 60
    """Longest passage in wordpieces."""
    width: int = 8
    """Longest answer in wordpieces."""
    blocks: int = 20
    """Passages of the open-QA collection."""


_SMALL: dict[str, int] = {
    "hidden": 16,
    "vocab": 90,
    "projection": 8,
    "positions": 56,
    "passage": 20,
    "blocks": 8,
}
RECORDED = [
    Spec(**_SMALL, seed=1, layers=1, heads=2, candidates=2, width=3),
    Spec(**_SMALL, seed=2, layers=2, heads=4, candidates=4, width=5),
    Spec(**_SMALL, seed=3, layers=3, heads=1, candidates=3, width=10),
]


def random_spec(seed: int) -> Spec:
    draw = random.Random(seed)
    heads = draw.choice([1, 2, 4, 8])
    return Spec(
        seed=seed,
        layers=draw.choice([1, 2, 3, 4, 6]),
        hidden=heads * draw.choice([16, 24, 32]),
        heads=heads,
        vocab=draw.choice([120, 300, 1000, 3000]),
        projection=draw.choice([8, 32, 64, 128]),
        candidates=draw.randint(2, 9),
        positions=draw.choice([80, 128, 256]),
        passage=draw.randint(20, 40),
        width=draw.randint(2, 10),
        blocks=draw.randint(5, 60),
    )


# --- one case -----------------------------------------------------------------------------------------------


def compare(case: Path, work: Path) -> dict[str, float]:
    """The largest absolute differences between what the peer wrote down in `case` and what our import gives;
    `work` is an empty folder."""
    torch.set_num_threads(1)
    inputs = json.loads((case / "inputs.json").read_text("utf-8"))
    outputs = load_file(case / "outputs.safetensors")
    differences: dict[str, float] = {}
    pretrained = (str(case / "scorer"), str(case / "encoder"))
    import_hf(ImportHf(sources=pretrained, out=work / "pretrained"))
    model = Realm.from_pretrained(work / "pretrained")
    differences |= dict(_pretraining(model, inputs["pretraining"], outputs))
    differences["scorer and encoder exported"] = _export_difference(
        model, {"RealmScorer": "scorer", "RealmKnowledgeAugEncoder": "encoder"}, case
    )
    import_hf(ImportHf(sources=(str(case / "reader"),), out=work / "reader"))
    model = Realm.from_pretrained(work / "reader")
    differences |= dict(_reading(model, inputs, outputs))
    openqa = ImportHf(sources=(str(case / "openqa"),), out=work / "openqa", corpus=work / "corpus")
    import_hf(openqa)
    engine = Engine(work / "openqa", work / "corpus", device="cpu")
    differences["open QA, answers"] = _answers(engine, inputs["answering"])
    differences["reader and open QA exported"] = max(
        _export_difference(model, {"RealmReader": "reader"}, case),
        _export_difference(engine.model, {"RealmForOpenQA": "openqa"}, case),
    )
    return differences


def _pretraining(
    model: Realm, given: dict[str, Any], expected: dict[str, Tensor]
) -> Iterator[tuple[str, float]]:
    queries = _arrays(given["queries"])
    titles = _arrays(given["titles"])
    bodies = _arrays(given["bodies"])
    count = len(queries)
    many = len(bodies) // len(queries)
    query_BD = model.query(model.query_inputs(queries))
    document_BCD = model.document(model.document_inputs(titles, bodies)).view(count, many, -1)
    scores_BC = inner_products(query_BD, document_BCD)
    yield "query embeddings", _largest(query_BD, expected["query"])
    yield "document embeddings", _largest(document_BCD, expected["documents"])
    yield "relevance scores", _largest(scores_BC, expected["relevance"])
    masked = _masked(queries, given["positions"], given["targets"])
    positions_BM, targets_BM, valid_BM = masked.tensors(model.device)
    joint = model.reader_inputs([query for query in queries for _ in range(many)], titles, bodies)
    token_BCM = hidden_log_p(read_masks(model, joint, positions_BM).log_BKMV, targets_BM)
    valid_B1M = valid_BM[:, None]
    yield "masked LM with a passage", _largest((token_BCM * valid_B1M)[:, :-1], expected["token"][:, :-1])
    yield "masked LM without", _largest((token_BCM * valid_B1M)[:, -1], expected["token"][:, -1])
    loss = -per_token_marginal(scores_BC, token_BCM, valid_BM).sum() / valid_BM.sum()
    yield "per-token marginal loss", _largest(loss, expected["marginal_loss"])
    loss.backward()
    yield (
        "its gradients",
        _gradients(model, expected, {"RealmScorer": "scorer", "RealmKnowledgeAugEncoder": "encoder"}),
    )


def _reading(
    model: Realm, inputs: dict[str, Any], expected: dict[str, Tensor]
) -> Iterator[tuple[str, float]]:
    bodies = _arrays(inputs["reading"]["bodies"])
    questions = _arrays([inputs["reading"]["question"]]) * len(bodies)
    joint = model.reader_inputs(questions, bodies, bodies)
    scores_KLW, allowed_KLW = model.reader.spans(joint)
    yield "span scores", max(_span_differences(scores_KLW, allowed_KLW, expected["span_logits"]))
    relevance_S = expected["reader_relevance"].clone().requires_grad_()
    first = int(joint.second_N[0])
    log_KLW = span_log_probabilities(scores_KLW, allowed_KLW)
    weight_1K = weighed_together(relevance_S[None, : len(bodies)], scores_KLW, allowed_KLW)
    for name in ("several", "one", "none"):
        gold_KLW = torch.zeros_like(allowed_KLW)
        for row, spans in enumerate(inputs[f"gold/{name}"]["spans"]):
            for start, end in spans:
                gold_KLW[row, first + start, end - start] = True
        holds_1S = torch.tensor(inputs[f"gold/{name}"]["holds"])[None]
        found = gold_KLW.any()
        reading_1K = answer_log_likelihood(log_KLW, gold_KLW)[None].masked_fill(~found, 0.0)
        reader_loss = -marginal_log_likelihood(weight_1K, reading_1K)[0] * found
        retriever_loss = -evidence_log_likelihood(relevance_S[None], holds_1S)[0] * holds_1S.any()
        losses = {"reader_loss": reader_loss, "retriever_loss": retriever_loss}
        yield (
            f"reader losses, {name} gold",
            max(_largest(losses[kind], expected[f"{kind}/{name}"]) for kind in losses),
        )
        if name == "several":
            (reader_loss + retriever_loss).backward(retain_graph=True)
            assert relevance_S.grad is not None
            of_weights = _gradients(model, expected, {"RealmReader": "reader"})
            yield (
                "their gradients",
                max(of_weights, _largest(relevance_S.grad, expected["gradient/relevance"])),
            )


def _span_differences(scores_KLW: Tensor, allowed_KLW: Tensor, logits_KS: Tensor) -> Iterator[float]:
    """Theirs are ordered by width, then by start."""
    length = scores_KLW.shape[1]
    at = 0
    for width in range(scores_KLW.shape[2]):
        starts = length - width
        theirs = logits_KS[:, at : at + starts]
        allowed = allowed_KLW[:, :starts, width]
        at += starts
        assert torch.equal(theirs > torch.finfo(torch.float32).min / 2, allowed), (
            f"other spans of width {width + 1} are allowed"
        )
        yield _largest(scores_KLW[:, :starts, width][allowed], theirs[allowed]) if allowed.any() else 0.0


def _answers(engine: Engine, given: dict[str, Any]) -> float:
    """How many answers are other texts. Theirs is the wordpieces' text: where a span begins within a word
    ours is the same without `##`."""
    wrong = 0
    for question, theirs in zip(given["questions"], given["answers"], strict=True):
        evidence = max(
            engine.ask(question, read=given["read"]).evidence,
            key=lambda e: e.retrieval_probability * e.reading_probability,
        )
        assert evidence.passage_id is not None
        chars_T2 = engine.corpus.token_chars(evidence.passage_id)
        span_T = (chars_T2[:, 0] >= evidence.start) & (chars_T2[:, 1] <= evidence.end)
        wrong += engine.model.wordpieces.decode(engine.corpus.tokens(evidence.passage_id)[span_T]) != theirs
    return float(wrong)


def _gradients(model: Realm, expected: dict[str, Tensor], checkpoints: dict[str, str]) -> float:
    """Largest difference over every weight that has a gradient there; it must have one here too."""
    largest = 0.0
    for architecture, folder in checkpoints.items():
        theirs = {
            name.removeprefix(f"gradient/{folder}/"): grad
            for name, grad in expected.items()
            if name.startswith(f"gradient/{folder}/")
        }
        ours = their_tensors(model, architecture, gradients=True)
        used = {
            name
            for name in theirs
            if not is_unused(architecture, name) and not name.startswith("query_embedder.")
        }
        assert used, f"no gradient of {folder}"
        largest = max(largest, *(_largest(ours[name], theirs[name]) for name in used))
    return largest


def _export_difference(model: Realm, checkpoints: dict[str, str], case: Path) -> float:
    """Weights of the source that are not the same bits when written back."""
    wrong = 0
    for architecture, folder in checkpoints.items():
        source = open_source(str(case / folder))
        ours = their_tensors(model, architecture)
        known = {name for name in source.tensors if name != "block_emb" and not is_unused(architecture, name)}
        known = {name for name in known if name in ours or not name.startswith("query_embedder.")}
        wrong += sum(name not in ours or not torch.equal(ours[name], source.tensors[name]) for name in known)
    return float(wrong)


def _masked(queries: list[np.ndarray], positions: list[list[int]], targets: list[list[int]]) -> Masked:
    most = max(map(len, positions))

    def table(rows: list[list[int]]) -> np.ndarray:
        return np.array([row + [0] * (most - len(row)) for row in rows])

    valid = table([[1] * len(row) for row in positions]).astype(bool)
    return Masked(queries, table(positions), table(targets), valid)


def _arrays(rows: list[list[int]]) -> list[np.ndarray]:
    return [np.array(row, dtype=np.int64) for row in rows]


def _largest(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.detach() - theirs.detach().view_as(ours)).abs().max())


# --- the command --------------------------------------------------------------------------------------------


def main(
    peer_python: Annotated[Path, tyro.conf.arg(metavar="PATH")],
    spec: Annotated[Spec, tyro.conf.arg(name="")] = Spec(),  # noqa: B008
    combinations: int = 0,
    write: Path | None = None,
    record: Path | None = None,
) -> None:
    """Compare our import of transformers' REALM with transformers 4.57.6.

    Args:
        peer_python: An interpreter with transformers 4.57.6.
        combinations: Take so many random sizes instead of the one the flags give.
        write: A page for the table.
        record: Make the small cases that the tests compare with, in this folder, instead.
    """
    specs = [random_spec(spec.seed + number) for number in range(combinations)] or [spec]
    specs = RECORDED if record else specs
    with tempfile.TemporaryDirectory() as temporary:
        cases = record or Path(temporary) / "cases"
        (Path(temporary) / "specs.json").write_text(json.dumps([asdict(one) for one in specs]))
        if not peer_python.exists():
            sys.exit(
                f"there is no {peer_python}; make one: python -m venv PEER && PEER/bin/pip install torch "
                "transformers==4.57.6"
            )
        done = subprocess.run(
            [peer_python, PEER, Path(temporary) / "specs.json", cases], capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(
                f"the peer failed; has {peer_python} transformers 4.57.6 and torch?\n{done.stderr[-2000:]}"
            )
        results = [
            compare(cases / f"{number:03d}", Path(temporary) / f"work-{number}")
            for number in range(len(specs))
        ]
    if record:
        _slim(record)
    worst = {name: max(result[name] for result in results) for name in results[0]}
    print("\n".join(f"{name:32s} {_number(value)}" for name, value in worst.items()))
    if write is not None:
        write.write_text(_page(specs, results, worst), "utf-8")
    bad = {name: value for name, value in worst.items() if not value < BOUND}
    print(
        f"{len(specs)} combinations, "
        + (f"too far apart: {', '.join(bad)}" if bad else f"all below {BOUND:g}")
    )
    sys.exit(1 if bad else 0)


def _slim(cases: Path) -> None:
    """Leave what a comparison needs: weights as safetensors, one list of wordpieces for each checkpoint."""
    for file in [
        *cases.glob("*/*/tokenizer.json"),
        *cases.glob("*/*/special_tokens_map.json"),
        *cases.glob("*/vocab.txt"),
    ]:
        file.unlink()
    for file in cases.glob("*/*/pytorch_model.bin"):
        weights = torch.load(file, weights_only=True)
        save_file(
            {name: tensor.clone() for name, tensor in weights.items()},
            file.with_name("model.safetensors"),
            {"format": "pt"},
        )
        file.unlink()


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}"


def _page(specs: list[Spec], results: list[dict[str, float]], worst: dict[str, float]) -> str:
    command = (
        f"python tools/hf_parity.py --peer-python PEER/bin/python --combinations {len(specs)} --write "
        "docs/parity.md"
    )
    command = command.replace(
        "--combinations 1 ", " ".join(f"--{name} {value}" for name, value in asdict(specs[0]).items()) + " "
    )
    here = (
        f"{date.today()}, CPU ({platform.machine()}), float32, torch {torch.__version__.split('+')[0]} here."
    )
    head = [
        "# Parity with transformers' REALM",
        "",
        f"Made by `{command}`,",
        f"where PEER has torch and transformers 4.57.6, the last release with REALM. {here}",
        "",
        "Random checkpoints of scorer, encoder, reader and open QA are made by transformers, imported here "
        "by the code behind",
        "`realmlm import-hf`, and compared: the largest absolute difference over all combinations. Answers "
        "and exported weights are",
        "counted where they differ at all.",
        "",
        "| compared | largest difference |",
        "| --- | --- |",
        *(f"| {name} | {_number(value)} |" for name, value in worst.items()),
        "",
        "The combinations, with the largest difference of each:",
        "",
    ]
    names = list(asdict(specs[0]))
    table = [
        "| " + " | ".join([*names, "largest"]) + " |",
        "| " + " | ".join(["---"] * (len(names) + 1)) + " |",
    ]
    for spec, result in zip(specs, results, strict=True):
        table.append(
            "| " + " | ".join([*map(str, asdict(spec).values()), _number(max(result.values()))]) + " |"
        )
    return "\n".join(head + table) + "\n"


if __name__ == "__main__":
    tyro.cli(main)
