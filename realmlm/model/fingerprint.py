"""Identities of modules: equal where the weights are equal bit for bit and used alike."""

import hashlib
import json
from typing import Any

import torch
from torch import nn

from realmlm.model.config import ModelConfig
from realmlm.model.encoders import Tower
from realmlm.model.int8 import named_weights


def tower_fingerprint(config: ModelConfig, tower: Tower) -> str:
    """Identity of a tower, its weights bit for bit and how they are used; an index belongs to one."""
    used = (
        config.tower,
        config.pooling,
        config.projection_norm,
        config.norm_eps,
        config.max_document,
        tower.scale,
    )
    return fingerprint_of(tower, used)


def fingerprint_of(module: nn.Module, described: Any) -> str:
    """Identity of a module: its weights bit for bit, and what else describes it."""
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for name, tensor in named_weights(module):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
