"""Snapshots: the document tower alone, as the refresher takes it to embed the corpus."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import Mismatch
from realmlm.model.encoders import Encoder, Tower, build_encoder
from realmlm.model.inputs import document_inputs
from realmlm.model.realm import ModelConfig, Realm, new_tower, tower_fingerprint
from realmlm.storage.artefacts import open_artefact, publish


class DocumentEncoder:
    """Titles and bodies in wordpieces to vectors; what the index is built with."""

    def __init__(self, config: ModelConfig, tower: Tower, wordpieces: Wordpieces) -> None:
        self.tower = tower
        self._wordpieces = wordpieces
        self._max_document = config.max_document
        self.fingerprint = tower_fingerprint(config, tower)
        self._stands_in = self.fingerprint == config.stand_in
        self.dim = tower.projection.out_features
        self.device = next(tower.parameters()).device

    @classmethod
    def of(cls, model: Realm) -> "DocumentEncoder":
        """The document tower of a model, as it is now."""
        return cls(model.config, model.document, model.wordpieces)

    @torch.inference_mode()
    def __call__(self, titles: list[np.ndarray], bodies: list[np.ndarray]) -> Tensor:
        if self._stands_in:
            raise Mismatch(
                "this model cannot embed passages: RealmForOpenQA came without the embedder of its passages; "
                "import it again with that embedder named as well: realmlm import-hf OPENQA EMBEDDER …"
            )
        training = self.tower.training
        self.tower.eval()
        device = self.device
        inputs = document_inputs(titles, bodies, self._wordpieces, max_length=self._max_document).to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            vectors = self.tower(inputs)
        self.tower.train(training)
        return vectors.float()


def write_snapshot(folder: Path, model: Realm, *, step: int) -> None:
    """Hand the document tower's weights of this step over, atomically."""
    with publish(folder, kind="snapshot") as draft:
        state = model.document.state_dict().items()
        own = {name: tensor.detach().cpu().contiguous() for name, tensor in state}
        save_file(own, draft.path / "document.safetensors")
        model.wordpieces.save(draft.path / "tokenizer.json")
        (draft.path / "model.json").write_text(json.dumps(asdict(model.config)), "utf-8")
        draft.config = {"step": step, "weights": tower_fingerprint(model.config, model.document)}


def load_snapshot(folder: Path, device: str) -> DocumentEncoder:
    """The encoder of a snapshot, on a device."""
    open_artefact(folder, kind="snapshot")
    config = ModelConfig.of(json.loads((folder / "model.json").read_text("utf-8")), folder)
    with torch.random.fork_rng(devices=[]):  # the projection draws its weights
        body = build_encoder(config.tower, pooler=config.pooling == "pooler", draw=False)
        tower = new_tower(config, Encoder(body))
    tower.load_state_dict(load_file(folder / "document.safetensors"))
    return DocumentEncoder(config, tower.to(device).eval(), Wordpieces.load(folder / "tokenizer.json"))
