"""Encoders of the transformers library as the parts of REALM: towers that embed, and a reader that predicts.

N sequences, L wordpieces, H hidden size, D vector size, M masks, V vocabulary, W span widths, S span hidden size.
"""

import inspect
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from realmlm.errors import BadInput
from realmlm.model.inputs import Inputs


def build_encoder(config: dict[str, Any], *, pooler: bool = False) -> Any:
    """An `AutoModel` encoder with fresh weights from a transformers config (`model_type` and its fields)."""
    from transformers import AutoConfig, AutoModel

    settings = dict(config)
    name = settings.pop("model_type")
    try:
        family = AutoConfig.for_model(name, **settings)
        if family.is_encoder_decoder:
            raise ValueError("it has a decoder as well")
        return AutoModel.from_config(family, **_pooling_layer(family, pooler))
    except (KeyError, ValueError) as error:
        why = str(error).split(". ")[0]  # what follows names some hundred families
        raise BadInput(f"transformers cannot build an encoder of the family '{name}' ({why}); try modernbert, bert or roberta") from error


def load_encoder(source: str | Path) -> Any:
    """A published encoder with its weights, from a folder or the hub."""
    from transformers import AutoConfig, AutoModel, logging

    logging.set_verbosity_error()  # it would report the pooler and the heads that REALM leaves out
    try:
        family = AutoConfig.from_pretrained(str(source))
        return AutoModel.from_pretrained(str(source), use_safetensors=True, **_pooling_layer(family, False))
    except (OSError, ValueError) as error:
        raise BadInput(
            f"no encoder to load at '{source}': a folder with config.json and model.safetensors, or a model name ({error})"
        ) from error


def _pooling_layer(family: Any, wanted: bool) -> dict[str, Any]:
    """Unless the towers use it (the published REALM's do), the family's pooler would be weights without a gradient."""
    from transformers import AutoModel

    accepted = inspect.signature(AutoModel._model_mapping[type(family)].__init__).parameters
    return {"add_pooling_layer": wanted} if "add_pooling_layer" in accepted else {}


def encoder_config(encoder: Any) -> dict[str, Any]:
    """The config that rebuilds this encoder with `build_encoder`."""
    record = encoder.config.to_diff_dict()
    record["model_type"] = encoder.config.model_type
    for irrelevant in ("transformers_version", "_name_or_path", "architectures", "dtype", "torch_dtype"):
        record.pop(irrelevant, None)
    return dict(record)


class Encoder(nn.Module):
    """Inputs to a vector per wordpiece, whatever the family; passes segment ids only where the family has them."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body: Any = body
        accepted = inspect.signature(body.forward).parameters
        self._segments = "token_type_ids" in accepted and getattr(body.config, "type_vocab_size", 0) > 1

    @property
    def hidden(self) -> int:
        return int(self.body.config.hidden_size)

    def forward(self, inputs: Inputs) -> Tensor:
        return self._run(inputs).last_hidden_state

    def pooled(self, inputs: Inputs, pooling: str) -> Tensor:
        """One vector a sequence [N, H]: its first ("cls"), that through the family's pooler ("pooler"), or the mean of all ("mean")."""
        output = self._run(inputs)
        if pooling == "pooler":
            return output.pooler_output
        hidden_NLH = output.last_hidden_state
        if pooling == "cls":
            return hidden_NLH[:, 0]
        weight_NL1 = inputs.attention_NL[:, :, None].to(hidden_NLH.dtype)
        return (hidden_NLH * weight_NL1).sum(1) / weight_NL1.sum(1)

    def _run(self, inputs: Inputs) -> Any:
        extra = {"token_type_ids": inputs.segments_NL} if self._segments else {}
        return self.body(input_ids=inputs.tokens_NL, attention_mask=inputs.attention_NL, **extra)


class Tower(nn.Module):
    """Embed(·) = W · encoder_CLS(·), with LayerNorm and a fixed scale if the config asks for them."""

    def __init__(self, encoder: Encoder, projection: nn.Linear, norm: nn.Module, *, pooling: str, scale: float) -> None:
        super().__init__()
        self.encoder, self.projection, self.norm = encoder, projection, norm
        self.pooling, self.scale = pooling, scale

    def forward(self, inputs: Inputs) -> Tensor:
        return self.norm(self.projection(self.encoder.pooled(inputs, self.pooling))).float() * self.scale


class MaskHead(nn.Module):
    """BERT's masked-LM head: transform, then the word embeddings themselves as output weights (tied)."""

    def __init__(self, hidden: int, embedding: nn.Embedding, *, eps: float, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation
        width = embedding.embedding_dim
        self.dense = nn.Linear(hidden, width)
        self.norm = nn.LayerNorm(width, eps=eps)
        self.bias = nn.Parameter(torch.zeros(embedding.num_embeddings))

    def forward(self, hidden_NMH: Tensor, embedding_VH: Tensor) -> Tensor:
        """log p(token) at the given positions only: [N, M, V]."""
        logits_NMV = F.linear(self.norm(self.activation(self.dense(hidden_NMH))), embedding_VH, self.bias)
        return logits_NMV.float().log_softmax(-1)


def _activation(config: Any) -> nn.Module:
    """The family's own activation: BERT's is gelu, the published REALM's its tanh approximation."""
    from transformers.activations import ACT2FN

    return ACT2FN[getattr(config, "hidden_act", "gelu")]


class SpanHead(nn.Module):
    """MLP([h_start; h_end]) for every span up to `max_width` wordpieces. The first layer is split so that no span is computed twice."""

    def __init__(self, hidden: int, *, width: int, max_width: int) -> None:
        super().__init__()
        self.start_end = nn.Linear(hidden, 2 * width)
        self.norm = nn.LayerNorm(width, eps=1e-3)
        self.output = nn.Linear(width, 1)
        self.max_width = max_width

    def forward(self, hidden_NLH: Tensor) -> Tensor:
        """Scores [N, L, W]: entry (l, w) is the span from l to l + w, both included; spans past the end repeat the last wordpiece."""
        length = hidden_NLH.shape[1]
        start_NLS, end_NLS = self.start_end(hidden_NLH).chunk(2, dim=-1)
        ends_LW = torch.arange(length, device=hidden_NLH.device)[:, None] + torch.arange(self.max_width, device=hidden_NLH.device)
        span_NLWS = start_NLS[:, :, None] + end_NLS[:, ends_LW.clamp(max=length - 1)]
        return self.output(self.norm(F.relu(span_NLWS)))[..., 0].float()

    def allowed(self, inputs: Inputs) -> Tensor:
        """Spans [N, L, W] that lie within the second part (the passage), without its closing [SEP]."""
        tokens_NL = inputs.segments_NL.bool()
        length = tokens_NL.shape[1]
        last_N = tokens_NL.sum(-1) + inputs.second_N - 2  # the last wordpiece of the body
        starts_L = torch.arange(length, device=tokens_NL.device)
        ends_LW = starts_L[:, None] + torch.arange(self.max_width, device=tokens_NL.device)
        return tokens_NL[:, :, None] & (ends_LW[None] <= last_N[:, None, None])


class Reader(nn.Module):
    """p(y|z,x): reads query and passage together; predicts masks while pre-training, spans for questions."""

    def __init__(self, encoder: Encoder, *, max_answer: int, span_hidden: int) -> None:
        super().__init__()
        self.encoder = encoder
        family = encoder.body.config
        eps = getattr(family, "layer_norm_eps", 1e-12)
        self.mask_head = MaskHead(encoder.hidden, self.embedding, eps=eps, activation=_activation(family))
        self.span_head = SpanHead(encoder.hidden, width=span_hidden, max_width=max_answer)

    @property
    def embedding(self) -> nn.Embedding:
        return self.encoder.body.get_input_embeddings()

    def masks(self, inputs: Inputs, positions_NM: Tensor) -> Tensor:
        """log p over the vocabulary [N, M, V] at the given positions of the query (counted without [CLS])."""
        hidden_NLH = self.encoder(inputs)
        rows_N1 = torch.arange(len(hidden_NLH), device=hidden_NLH.device)[:, None]
        return self.mask_head(hidden_NLH[rows_N1, positions_NM + 1], self.embedding.weight)

    def spans(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Scores and which are allowed, both [N, L, W], for all spans of the passage."""
        return self.span_head(self.encoder(inputs)), self.span_head.allowed(inputs)
