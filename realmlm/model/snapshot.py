"""Snapshots: the document tower alone, as the refresher takes it to embed the corpus."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from realmlm.corpus.store import Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.model.config import ModelConfig
from realmlm.model.encoders import Encoder, Tower, build_encoder
from realmlm.model.fingerprint import tower_fingerprint
from realmlm.model.inputs import Inputs, document_inputs, send
from realmlm.model.packed import Packed, Size
from realmlm.model.precision import half_precision
from realmlm.model.realm import Realm, new_tower, no_embedder
from realmlm.model.resident import Resident
from realmlm.storage.artefacts import open_artefact, publish


class DocumentEncoder:
    """Passages to vectors; what the index is built with. `training`: for an index that training makes anew
    again and again, on a CPU too in bfloat16 where that is faster."""

    def __init__(
        self, config: ModelConfig, tower: Tower, wordpieces: Wordpieces, *, training: bool = False
    ) -> None:
        self.tower = tower
        self._wordpieces = wordpieces
        self._max_document = config.max_document
        self.fingerprint = tower_fingerprint(config, tower)
        self._stands_in = self.fingerprint == config.stand_in
        self.dim = tower.projection.out_features
        self.device = next(tower.parameters()).device
        self._config = config
        self._half = training or self.device.type == "cuda"
        self._laid_out: tuple[Corpus, Resident | None] | None = None  # the last corpus

    @classmethod
    def of(cls, model: Realm, *, training: bool = False) -> "DocumentEncoder":
        """The document tower of a model, as it is now."""
        return cls(model.config, model.document, model.wordpieces, training=training)

    def on(self, device: str) -> "DocumentEncoder":
        """A copy of it on a device."""
        return DocumentEncoder(self._config, deepcopy(self.tower).to(device), self._wordpieces)

    @torch.inference_mode()
    def __call__(self, corpus: Corpus, ids_N: np.ndarray) -> Tensor:
        if self._stands_in:
            raise no_embedder()
        training = [module for module in self.tower.modules() if module.training]
        self.tower.eval()
        with half_precision(self.device, self.tower.encoder.hidden, wanted=self._half):
            vectors_ND = self.tower(self._inputs(corpus, ids_N))
        for module in training:  # not all of a tower: an encoder that does not learn has no dropout
            module.training = True
        return vectors_ND.float()

    def _inputs(self, corpus: Corpus, ids_N: np.ndarray) -> Inputs | Packed:
        if self.tower.encoder.packs(self.device, self._max_document):
            if self._laid_out is None or self._laid_out[0] is not corpus:
                resident = Resident.of(corpus, self._config, self._wordpieces, device=self.device)
                self._laid_out = (corpus, resident)
            if (laid_out := self._laid_out[1]) is not None:
                total = int((corpus.lengths_of(ids_N) + self._wordpieces.pair.special).sum())
                size = Size(total, self._max_document, 0)
                return laid_out.documents(send(torch.from_numpy(ids_N), self.device), size)
        tokens = corpus.tokens_of(ids_N.tolist())
        inputs = document_inputs(*tokens, self._wordpieces, max_length=self._max_document)
        return inputs.to(self.device)


def take_snapshot(model: Realm, *, step: int) -> Callable[[Path], None]:
    """Copy the document tower's weights where they are, on the GPU if there: they may be trained on at once.

    What is returned publishes the copy in the folder it is given; another thread may call it.
    """
    config = model.config
    wordpieces = model.wordpieces
    taken = {name: tensor.detach().clone() for name, tensor in model.document.state_dict().items()}

    def write(folder: Path) -> None:
        with publish(folder, kind="snapshot") as draft:
            on_host = {name: _on_host(tensor) for name, tensor in taken.items()}
            save_file(on_host, draft.path / "document.safetensors")
            wordpieces.save(draft.path / "tokenizer.json")
            (draft.path / "model.json").write_text(json.dumps(asdict(config)), "utf-8")
            draft.config = {"step": step}

    return write


def _on_host(tensor: Tensor) -> Tensor:
    """The same in the host's memory, page-locked: else a copy from a GPU holds up what others give it."""
    if not tensor.is_cuda:
        return tensor.contiguous()
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)


def load_snapshot(folder: Path, device: str) -> DocumentEncoder:
    """The encoder of a snapshot, on a device."""
    open_artefact(folder, kind="snapshot")
    config = ModelConfig.of(json.loads((folder / "model.json").read_text("utf-8")), folder)
    with torch.random.fork_rng(devices=[]):  # the projection draws its weights
        body = build_encoder(config.tower, pooler=config.pooling == "pooler", draw=False)
        tower = new_tower(config, Encoder(body))
    tower.load_state_dict(load_file(folder / "document.safetensors"))
    wordpieces = Wordpieces.load(folder / "tokenizer.json")
    return DocumentEncoder(config, tower.to(device).eval(), wordpieces, training=True)
