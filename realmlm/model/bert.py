"""BERT's encoder without transformers, whose import takes longer than loading a small model.

N sequences, L wordpieces, H hidden size, A heads of C numbers.
"""

from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class BertSettings:
    """What shapes BERT's encoder, by transformers' names and with its defaults."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    hidden_act: str = "gelu"
    model_type: str = "bert"

    @classmethod
    def of(cls, settings: dict[str, Any]) -> "BertSettings | None":
        """Those of a config; None for a kind of BERT that only transformers builds."""
        own = cls(**{item.name: settings[item.name] for item in fields(cls) if item.name in settings})
        absolute = settings.get("position_embedding_type", "absolute") == "absolute"
        usual = absolute and not settings.get("is_decoder") and own.hidden_act == "gelu"
        return own if usual and own.hidden_size % own.num_attention_heads == 0 else None


@dataclass(frozen=True)
class Hidden:
    """What an encoder gives: a vector a wordpiece."""

    last_hidden_state: Tensor


class _Linear(nn.Linear):
    def reset_parameters(self) -> None:
        """Nothing is drawn: the weights are about to be read."""


class _Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        """Nothing is drawn: the weights are about to be read."""


class Bert(nn.Module):
    """BERT's encoder for models that are loaded: weights, their names and bits as transformers' BertModel
    has.

    Importing transformers takes 4.7 s and 110 MiB on two CPU cores, torch 2.1 s and 220 MiB.
    """

    def __init__(self, config: BertSettings) -> None:
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": _Embedding(config.vocab_size, size, padding_idx=config.pad_token_id),
                "position_embeddings": _Embedding(config.max_position_embeddings, size),
                "token_type_embeddings": _Embedding(config.type_vocab_size, size),
                "LayerNorm": nn.LayerNorm(size, eps=config.layer_norm_eps),
            }
        )
        layers = nn.ModuleList(BertLayer(config) for _ in range(config.num_hidden_layers))
        self.encoder = nn.ModuleDict({"layer": layers})
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings["word_embeddings"]

    def set_input_embeddings(self, words: nn.Module) -> None:
        self.embeddings["word_embeddings"] = words

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Hidden:
        parts = self.embeddings
        positions_1L = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        segments_NL = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        sum_NLH = parts["word_embeddings"](input_ids) + parts["token_type_embeddings"](segments_NL)
        hidden_NLH = self.dropout(parts["LayerNorm"](sum_NLH + parts["position_embeddings"](positions_1L)))
        allowed_N1LL = None
        if attention_mask.is_cuda or not bool(attention_mask.all()):  # a GPU would be waited for
            allowed_N1LL = attention_mask.bool()[:, None, None, :].expand(-1, 1, input_ids.shape[1], -1)
        for layer in self.encoder["layer"]:  # type: ignore[attr-defined]
            hidden_NLH = layer(hidden_NLH, allowed_N1LL)
        return Hidden(hidden_NLH)


class BertLayer(nn.Module):
    """Self-attention and feed-forward, each followed by LayerNorm over its sum with what came in."""

    def __init__(self, config: BertSettings) -> None:
        super().__init__()
        size = config.hidden_size
        inner = config.intermediate_size

        def close(width: int) -> nn.ModuleDict:
            norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
            return nn.ModuleDict({"dense": _Linear(width, size), "LayerNorm": norm})

        looks = nn.ModuleDict({name: _Linear(size, size) for name in ("query", "key", "value")})
        self.attention = nn.ModuleDict({"self": looks, "output": close(size)})
        self.intermediate = nn.ModuleDict({"dense": _Linear(size, inner)})
        self.output = close(inner)
        self._heads = config.num_attention_heads
        self._dropped = config.attention_probs_dropout_prob
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_NLH: Tensor, allowed_N1LL: Tensor | None) -> Tensor:
        looks: Any = self.attention["self"]
        parts = (looks[name](hidden_NLH) for name in ("query", "key", "value"))
        by_head = (part_NLH.unflatten(-1, (self._heads, -1)).transpose(1, 2) for part_NLH in parts)
        query_NALC, key_NALC, value_NALC = by_head
        dropped = self._dropped if self.training else 0.0
        seen_NALC = F.scaled_dot_product_attention(
            query_NALC, key_NALC, value_NALC, attn_mask=allowed_N1LL, dropout_p=dropped
        )
        hidden_NLH = self._add(self.attention["output"], seen_NALC.transpose(1, 2).flatten(-2), hidden_NLH)
        return self._add(self.output, F.gelu(self.intermediate["dense"](hidden_NLH)), hidden_NLH)

    def _add(self, part: Any, new: Tensor, hidden_NLH: Tensor) -> Tensor:
        return part["LayerNorm"](self.dropout(part["dense"](new)) + hidden_NLH)
