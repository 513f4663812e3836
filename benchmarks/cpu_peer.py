"""Other encoders' side of `benchmarks/cpu.py`, run by an interpreter that has sentence-transformers,
onnxruntime and onnx; it needs nothing of realmlm.

`python benchmarks/cpu_peer.py FOLDER THREADS` writes its models into the folder, which has a BERT encoder as
transformers saves it and the texts, says which ways it has, and then embeds all texts in the way that each
line of its input names: it answers with the seconds, vectors lie in the folder.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 32
LONGEST = 256


def main() -> None:
    folder = Path(sys.argv[1])
    threads = int(sys.argv[2])
    texts = json.loads((folder / "texts.json").read_text("utf-8"))
    ways = {**sentence_transformers(folder, threads), **onnxruntime(folder, threads)}
    print(json.dumps(list(ways)), flush=True)
    for line in sys.stdin:
        way = line.strip()
        begun = time.perf_counter()
        vectors = ways[way](texts)
        seconds = time.perf_counter() - begun
        np.save(folder / f"{way}.npy", vectors)
        print(json.dumps(seconds), flush=True)


def sentence_transformers(folder: Path, threads: int) -> dict[str, Callable[[list[str]], np.ndarray]]:
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    torch.set_num_threads(threads)
    encoder: Any = Transformer(str(folder), max_seq_length=LONGEST)
    model = SentenceTransformer(
        modules=[encoder, Pooling(encoder.get_word_embedding_dimension())], device="cpu"
    )
    export(encoder.auto_model, folder / "float32.onnx")
    return {"sentence-transformers": lambda texts: model.encode(texts, batch_size=BATCH)}


def export(encoder: Any, file: Path) -> None:
    import torch

    names = ["input_ids", "attention_mask", "token_type_ids"]

    class Vectors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            return self.encoder(**dict(zip(names, given, strict=True))).last_hidden_state

    some = torch.ones(2, 16, dtype=torch.int64)
    axes = {name: {0: "batch", 1: "length"} for name in (*names, "hidden")}
    given: dict[str, Any] = {
        "input_names": names,
        "output_names": ["hidden"],
        "dynamic_axes": axes,
        "opset_version": 17,
    }
    encoder.config._attn_implementation = "eager"
    torch.onnx.export(Vectors().eval(), (some, some, some), str(file), dynamo=False, **given)


def onnxruntime(folder: Path, threads: int) -> dict[str, Callable[[list[str]], np.ndarray]]:
    """In float32 and in 8 bits, each as exported and as onnxruntime's own optimizer for BERT rewrites it."""
    from onnx import TensorProto
    from onnxruntime import InferenceSession, SessionOptions
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model
    from tokenizers import Tokenizer

    config = json.loads((folder / "config.json").read_text("utf-8"))
    fused = optimize_model(
        str(folder / "float32.onnx"),
        model_type="bert",
        num_heads=config["num_attention_heads"],
        hidden_size=config["hidden_size"],
    )
    fused.save_model_to_file(str(folder / "float32, fused.onnx"))
    for name in ("", ", fused"):
        source = str(folder / f"float32{name}.onnx")
        kinds = {"DefaultTensorType": TensorProto.FLOAT}  # of what onnxruntime's own operators give
        target = str(folder / f"8 bits{name}.onnx")
        quantize_dynamic(source, target, weight_type=QuantType.QInt8, extra_options=kinds)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(LONGEST)
    tokenizer.enable_padding()
    options = SessionOptions()
    options.intra_op_num_threads = threads

    def embed(session: InferenceSession, texts: list[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda number: -len(texts[number]))  # like lengths together
        vectors = np.zeros((len(texts), config["hidden_size"]), np.float32)
        for first in range(0, len(texts), BATCH):
            some = order[first : first + BATCH]
            encoded = tokenizer.encode_batch([texts[number] for number in some])
            mask = np.array([each.attention_mask for each in encoded], np.int64)
            given = {
                "input_ids": np.array([each.ids for each in encoded], np.int64),
                "attention_mask": mask,
                "token_type_ids": np.zeros_like(mask),
            }
            (hidden,) = session.run(None, given)
            vectors[some] = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        return vectors

    def way(name: str) -> Callable[[list[str]], np.ndarray]:
        session = InferenceSession(str(folder / f"{name}.onnx"), options, providers=["CPUExecutionProvider"])
        return lambda texts: embed(session, texts)

    names = ("float32", "float32, fused", "8 bits", "8 bits, fused")
    return {f"onnxruntime, {name}": way(name) for name in names}


if __name__ == "__main__":
    main()
