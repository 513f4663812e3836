"""The heads for masked words that published checkpoints bring: a reader that begins with one predicts from
the first step on, as the paper's, which began as BERT."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from realmlm.hub import split_revision
from realmlm.log import say

# what the families call the layer, its norm and the words' biases
_BERT = ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias")
_ROBERTA = ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias")
_NAMES = {
    **dict.fromkeys(("bert", "ernie", "big_bird", "deberta", "deberta-v2"), _BERT),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "mpnet"), _ROBERTA),
    "distilbert": ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    "electra": ("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.bias"),
    "albert": ("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
    "modernbert": ("head.dense", "head.norm", "decoder.bias"),
}


def load_mask_head(source: str | Path, family: Any) -> dict[str, Tensor] | None:
    """The weights of a `MaskHead` from a checkpoint of this family; None if it brings no head of that form: a
    layer, its norm, and the word embeddings themselves as output weights."""
    from transformers import AutoModelForMaskedLM

    if family.model_type not in _NAMES or not getattr(family, "tie_word_embeddings", True):
        return None
    name, revision = (str(source), "main") if Path(source).exists() else split_revision(str(source))
    how: dict[str, Any] = {"config": family, "revision": revision, "use_safetensors": True}
    how |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
    model, told = AutoModelForMaskedLM.from_pretrained(name, **how)
    fresh = {*told["missing_keys"], *(entry[0] for entry in told["mismatched_keys"])}
    there = {key: value.float() for key, value in model.state_dict().items() if key not in fresh}
    dense, norm, bias = _NAMES[family.model_type]
    if f"{dense}.weight" not in there or f"{norm}.weight" not in there:
        return None
    say(f"the reader's head for masked words is that of '{source}', too")
    width = len(there[f"{norm}.weight"])
    words = model.get_input_embeddings().num_embeddings
    return {
        "dense.weight": there[f"{dense}.weight"],
        "dense.bias": there.get(f"{dense}.bias", torch.zeros(width)),
        "norm.weight": there[f"{norm}.weight"],
        "norm.bias": there.get(f"{norm}.bias", torch.zeros(width)),
        "bias": there.get(bias, torch.zeros(words)),
    }
