"""How fast the bundled model is on a CPU: `python benchmarks/cpu.py [--peer-python PYTHON] [--threads 2]
[--passages 10000 --cache FOLDER]`

Embedding: the encoder of mini's towers over passages of the pocket encyclopedia (some 80 words each), texts
in and mean vectors out, in float32, in bfloat16 and in 8 bits; and, if there is an interpreter with
sentence-transformers, onnxruntime and onnx, the same encoder and texts there. Asking: a question at a time
over the pocket encyclopedia and over made-up passages, 5 read, in float32 and in the way that is chosen here;
how many of the pocket questions are answered exactly. All in turns, so that what else the machine does falls
on all alike; medians.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from exact_search import cpu_name
from material import make_corpus
from safetensors.torch import save_file

from realmlm.bundled import TEXT
from realmlm.corpus.documents import DOCUMENT_WORDPIECES
from realmlm.corpus.questions import read_questions
from realmlm.engine import Engine
from realmlm.evaluation.answers import is_correct
from realmlm.model.encoders import Encoder
from realmlm.model.inputs import query_inputs
from realmlm.model.quick import BFLOAT16, EIGHT_BITS, QuickBert, Way, fastest
from realmlm.model.realm import Realm

TURNS = 5
TEXTS = 96
LONGEST = 256  # wordpieces
ASKED = 30  # questions timed
WAYS: dict[str, Way | None] = {"float32": None, "bfloat16": BFLOAT16, "8 bits": EIGHT_BITS}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-python", type=Path)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--passages", type=int, default=10_000)
    parser.add_argument("--cache", type=Path, default=Path("work/cpu"), help="for the made-up corpus")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    chosen = next(name for name, way in WAYS.items() if way is fastest(int8=True))
    load = f"load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    print(
        f"{datetime.date.today()}  {cpu_name()}, {options.threads} threads, {load}; chosen here: {chosen}\n"
    )
    embedding(options.peer_python, options.threads)
    asking(options.cache, options.passages)


def embedding(python: Path | None, threads: int) -> None:
    texts = [json.loads(line)["text"] for line in TEXT.read_text("utf-8").splitlines()[:TEXTS]]
    with tempfile.TemporaryDirectory() as place, peer(python, Path(place), texts, threads) as others:
        ways = {f"realmlm, {name}": ours(texts, way) for name, way in WAYS.items()}
        seconds: dict[str, list[float]] = {name: [] for name in (*ways, *others)}
        vectors: dict[str, np.ndarray] = {}
        for turn in range(TURNS + 1):  # the first warms up
            for name, way in {**ways, **others}.items():
                once, vectors[name] = way()
                seconds[name] += [once] if turn else []
    exact = vectors["realmlm, float32"]
    print(f"| {len(texts)} passages embedded | passages/s | cosine to float32, least |")
    print("| --- | --- | --- |")
    for name, taken in seconds.items():
        cosine = (vectors[name] * exact).sum(1) / np.linalg.norm(vectors[name], axis=1)
        cosine /= np.linalg.norm(exact, axis=1)
        print(f"| {name} | {len(texts) / statistics.median(taken):.1f} | {cosine.min():.5f} |")


Timed = Callable[[], tuple[float, np.ndarray]]


def ours(texts: list[str], way: Way | None) -> Timed:
    realm = Realm.from_pretrained(int8=way is EIGHT_BITS)
    encoder = realm.document.encoder
    encode = encoder.body if way is None else QuickBert(encoder.body, way)

    @torch.inference_mode()
    def embed() -> tuple[float, np.ndarray]:
        begun = time.perf_counter()
        tokens = [realm.wordpieces.encode(text) for text in texts]
        inputs = query_inputs(tokens, realm.wordpieces, max_query=LONGEST - 2)
        vectors_NH = torch.empty(len(texts), encoder.hidden)
        for rows in inputs.alike():
            some = inputs.rows(rows)
            hidden_NLH = encode(some.tokens_NL, some.attention_NL, some.segments_NL).last_hidden_state
            weight_NL1 = some.attention_NL[:, :, None]
            vectors_NH[rows] = (hidden_NLH * weight_NL1).sum(1) / weight_NL1.sum(1)
        return time.perf_counter() - begun, vectors_NH.numpy()

    return embed


@contextmanager
def peer(python: Path | None, folder: Path, texts: list[str], threads: int) -> Iterator[dict[str, Timed]]:
    """The same encoder and texts in another interpreter, waiting to be told what to embed."""
    if python is None:
        yield {}
        return
    realm = Realm.from_pretrained()
    body = realm.document.encoder.body
    save_file(dict(body.state_dict()), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(realm.config.tower | {"architectures": ["BertModel"]}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizerFast"}))
    realm.wordpieces.save(folder / "tokenizer.json")
    (folder / "texts.json").write_text(json.dumps(texts), "utf-8")
    command = [str(python), str(Path(__file__).with_name("cpu_peer.py")), str(folder), str(threads)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    orders = process.stdin
    answers = process.stdout
    assert orders is not None
    assert answers is not None

    def answer() -> Any:
        for line in answers:
            if line[0] in "[0123456789":  # libraries print too
                return json.loads(line)
        sys.exit("the other interpreter has ended")

    def embed(name: str) -> tuple[float, np.ndarray]:
        orders.write(f"{name}\n")
        orders.flush()
        return answer(), np.load(folder / f"{name}.npy")

    try:
        yield {name: partial(embed, name) for name in answer()}
    finally:
        orders.close()
        process.wait()


def asking(cache: Path, passages: int) -> None:
    asked = read_questions(TEXT.with_name("questions.jsonl"))
    made_up = make_corpus(cache / f"corpus-{passages}", passages, longest=DOCUMENT_WORDPIECES)
    model = Realm.from_pretrained(int8=True)
    model.compute_quickly()
    encoders = [module for module in model.modules() if isinstance(module, Encoder)]
    pocket = Engine(model, docs="pocket", device="cpu")
    engines = {
        "the pocket encyclopedia": pocket,
        f"{passages:,} passages": Engine(model, made_up, device="cpu"),
    }
    names = {True: "chosen", False: "float32"}
    exact: dict[bool, int] = {}
    seconds: dict[tuple[bool, str], list[float]] = {(quick, over): [] for quick in names for over in engines}
    for quick in names:
        set_quick(encoders, quick)
        answers = pocket.ask([question.text for question in asked])
        exact[quick] = sum(is_correct(*pair) for pair in zip((a.answer for a in answers), asked, strict=True))
    for question in asked[:ASKED]:
        for quick, over in seconds:
            set_quick(encoders, quick)
            begun = time.perf_counter()
            engines[over].ask(question.text)
            seconds[quick, over].append(time.perf_counter() - begun)
    columns = " | ".join(f"over {over}" for over in engines)
    print(f"\n| one question, 5 passages read | {columns} | of {len(asked)} pocket questions exact |")
    print("| --- | --- | --- | --- |")
    for quick, name in names.items():
        medians = [1000 * statistics.median(seconds[quick, over]) for over in engines]
        print(
            f"| realmlm, {name} | {' | '.join(f'{median:.0f} ms' for median in medians)} | {exact[quick]} |"
        )


def set_quick(encoders: list[Encoder], quick: bool) -> None:
    for encoder in encoders:
        encoder.quick = quick


if __name__ == "__main__":
    main()
