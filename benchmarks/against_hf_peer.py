"""The other side of benchmarks/against_hf.py, run by an interpreter with transformers 4.57: RealmForOpenQA as
its documentation shows it, one question a call.

    python against_hf_peer.py make FOLDER SPEC.json RECORDS.json VOCABULARY   a checkpoint with random weights
    python against_hf_peer.py serve FOLDER                                    a JSON object a line, in and out
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import logging
from transformers.models.deprecated.realm import (
    RealmConfig,
    RealmForOpenQA,
    RealmRetriever,
    RealmTokenizerFast,
)


def make(folder: Path, spec: dict[str, Any], texts: list[str], vocabulary: Path) -> None:
    """A checkpoint of the published layout: weights and vectors of blocks are random."""
    torch.manual_seed(0)
    tokenizer = RealmTokenizerFast(str(vocabulary))
    config = RealmConfig(
        vocab_size=len(tokenizer),
        hidden_size=spec["hidden"],
        num_hidden_layers=spec["layers"],
        num_attention_heads=spec["heads"],
        intermediate_size=4 * spec["hidden"],
        num_block_records=len(texts),
    )
    model = RealmForOpenQA(config)
    model.block_emb = torch.randn_like(model.block_emb)
    model.save_pretrained(folder, safe_serialization=False)  # as for the published ones
    tokenizer.save_pretrained(folder)
    np.save(folder / "block_records.npy", np.array([text.encode() for text in texts], dtype=object))


class Peer:
    """Answers questions and learns from them as the documentation of RealmForOpenQA shows."""

    def __init__(self, folder: Path) -> None:
        os.environ["TRUST_REMOTE_CODE"] = "True"  # the records are a pickle
        self.tokenizer = RealmTokenizerFast.from_pretrained(folder)
        retriever = RealmRetriever.from_pretrained(folder)
        self.model = RealmForOpenQA.from_pretrained(folder, retriever=retriever)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)

    def answer(self, questions: list[str]) -> list[str]:
        self.model.eval()
        answers = []
        for question in questions:
            with torch.no_grad():
                ids = self.tokenizer([question], return_tensors="pt")
                _, answer = self.model(**ids, return_dict=False)
            answers.append(self.tokenizer.decode(answer))
        return answers

    def learn(self, questions: list[tuple[str, str]]) -> list[float]:
        """One step; the gradients of all questions are added up, for a call takes one."""
        self.model.train()
        losses = []
        for question, answer in questions:
            ids = self.tokenizer([question], return_tensors="pt")
            answer_ids = self.tokenizer([answer], add_special_tokens=False).input_ids
            reader, _ = self.model(**ids, answer_ids=answer_ids, return_dict=False)
            (reader.loss / len(questions)).backward()
            losses.append(float(reader.loss))
        self.optimizer.step()
        self.optimizer.zero_grad()
        return losses


def serve(folder: Path) -> None:
    peer = Peer(folder)
    print(json.dumps({"ready": torch.get_num_threads()}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        begun = time.perf_counter()
        said: list[Any] = getattr(peer, asked["do"])(asked["questions"])
        print(json.dumps({"seconds": time.perf_counter() - begun, "said": said}), flush=True)


if __name__ == "__main__":
    logging.set_verbosity_error()
    if sys.argv[1] == "make":
        spec = json.loads(Path(sys.argv[3]).read_text())
        make(Path(sys.argv[2]), spec, json.loads(Path(sys.argv[4]).read_text()), Path(sys.argv[5]))
    else:
        serve(Path(sys.argv[2]))
