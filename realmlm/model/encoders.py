"""Encoders of the transformers library as the parts of REALM: towers that embed, and a reader that predicts.

N sequences, L wordpieces, H hidden size, D vector size, M masks, V vocabulary, W span widths, S hidden size
of the span head.
"""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from realmlm.errors import BadInput
from realmlm.hub import say_revision, split_revision
from realmlm.model.attention import LONGEST
from realmlm.model.bert import Bert, BertSettings
from realmlm.model.inputs import Inputs
from realmlm.model.int8 import holds_int8
from realmlm.model.packed import Packed
from realmlm.model.packed_encoders import can_pack, encode
from realmlm.model.precision import WIDE
from realmlm.model.quick import QuickBert, fastest
from realmlm.model.words import WORDS, Words, WordsSettings

_SHAPES = 64  # kinds of call a layer may be compiled for; beyond them it would run as it is, and slower
_CAPABILITY = (8, 0)  # of a GPU: older ones have no bfloat16
SCORED_AT_ONCE = 512  # wordpieces whose spans are scored at once
_SCORED_AT_ONCE_GPU = 2**17
# what transformers raises for a config that it cannot build
_REFUSALS = (KeyError, ValueError, TypeError, AttributeError, AssertionError, NotImplementedError)
_LARGEST = 2**31  # of any whole number in a config
_MOST_LAYERS = 1000
_FORMER_NAMES = {  # of settings, which transformers still understands
    "global_attn_every_n_layers",
    "global_rope_theta",
    "local_rope_theta",
    "position_embedding_type",
    "rope_scaling",
    "rope_theta",
}
_UNDECLARED = {  # settings that DeBERTa reads, though its config does not declare them
    "attention_head_size",
    "conv_act",
    "conv_groups",
    "conv_kernel_size",
    "embedding_size",
    "norm_rel_ebd",
    "position_buckets",
    "share_att_key",
    "talking_head",
}
_CANNOT = {"convbert": "its convolutions read the padding", "fnet": "it cannot leave out the padding"}


def build_encoder(config: dict[str, Any], *, pooler: bool = False, draw: bool = True) -> Any:
    """An encoder from a transformers config (`model_type` and its fields), its weights drawn at random.

    With `draw=False` they are left undrawn, which takes less time than reading a checkpoint into them.
    """
    settings = dict(config)
    name = settings.pop("model_type", None)
    _refuse_impossible(settings)
    if name == WORDS:
        return Words(WordsSettings.of(settings), draw=draw)
    if not draw and name == "bert" and not pooler and (own := BertSettings.of(settings)):
        return Bert(own)
    from huggingface_hub.errors import StrictDataclassError

    try:
        family = _known_settings(name, settings)
        with nullcontext() if draw else _no_initial_weights():
            return _body(_auto_class(family).from_config(family, **pooling_layer(family, pooler)))
    except (*_REFUSALS, StrictDataclassError) as error:
        why = str(error).split(". ")[0]  # what follows names some hundred families
        raise BadInput(
            f"transformers cannot build an encoder of the family '{name}' ({why}); try modernbert, bert or "
            "roberta"
        ) from error


def _refuse_impossible(settings: dict[str, Any]) -> None:
    """Raise for sizes that no encoder has: building one would take all memory, or for ever."""
    for key, value in settings.items():
        if type(value) is int and value > (_MOST_LAYERS if "layers" in key or key == "n_layer" else _LARGEST):
            raise BadInput(f"no encoder can be built with {key} = {value}; is the config damaged?")


def _known_settings(name: str | None, settings: dict[str, Any]) -> Any:
    """The config of a family with those of these settings that it knows and no others: attn_implementation,
    say, may name a repository whose code would be fetched and run."""
    from transformers import AutoConfig

    usual = AutoConfig.for_model(name)
    known = (usual.to_dict().keys() | usual.attribute_map.keys() | _FORMER_NAMES) - {"model_type"}
    known |= _UNDECLARED if usual.model_type.startswith("deberta") else set()
    return AutoConfig.for_model(name, **{key: settings[key] for key in settings.keys() & known})


def load_encoder(source: str | Path) -> Any:
    """A published encoder with its weights, from a folder or the hub."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig, logging

    logging.set_verbosity_error()  # it would report the pooler and the heads that REALM leaves out
    try:
        is_folder = Path(source).exists()
        name, revision = (str(source), "main") if is_folder else split_revision(str(source))
        stated = AutoConfig.from_pretrained(name, revision=revision)
        if not is_folder:
            commit = getattr(stated, "_commit_hash", None)
            say_revision(str(source), commit)
            revision = commit or revision  # the weights that belong to this config
        _refuse_impossible(stated.to_dict())
        family = _known_settings(stated.model_type, stated.to_dict())
        given = {"config": family, "revision": revision, "use_safetensors": True}
        given |= pooling_layer(family, False)
        return _body(_auto_class(family).from_pretrained(name, **given)).float()
    except (OSError, *_REFUSALS, StrictDataclassError) as error:
        if "`realm`" in str(error) or "'realm'" in str(error):
            command = f"realmlm import-hf {source}"
            raise BadInput(
                f"'{source}' is a checkpoint of the published REALM; bring it in with: {command}"
            ) from error
        raise BadInput(
            f"no encoder to load at '{source}': a folder with config.json and model.safetensors, or a model "
            f"name ({error})"
        ) from error


def _no_initial_weights() -> Any:
    try:
        from transformers.initialization import no_init_weights
    except ImportError:  # its place in the first releases of version 5
        from transformers.modeling_utils import no_init_weights
    return no_init_weights()


def _auto_class(family: Any) -> Any:
    """The transformers class that builds a family; one that does not read in both directions is refused."""
    from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoModel, AutoModelForTextEncoding

    if family.is_encoder_decoder:  # T5 and its like: the encoder alone
        if type(family) not in AutoModelForTextEncoding._model_mapping:
            raise ValueError("it has a decoder as well")
        return AutoModelForTextEncoding
    masked = type(family) in MODEL_FOR_MASKED_LM_MAPPING or family.model_type == "xlnet"
    if getattr(family, "is_decoder", False) or not masked:
        raise ValueError(
            "it is no masked language model: it reads from left to right, or something other than wordpieces"
        )
    if family.model_type in _CANNOT:
        raise ValueError(_CANNOT[family.model_type])
    return AutoModel


def _body(model: Any) -> Any:
    """The part of a model that reads wordpieces."""
    # T5 and its like hold their embeddings twice
    body = model.get_encoder() if hasattr(model, "shared") else model
    if hasattr(body, "entity_embeddings"):  # LUKE: half a million entities that no one reads here
        body.entity_embeddings = None
    # BigBird: its blocks are for longer inputs, and random; for short ones it does this itself
    if hasattr(body, "set_attention_type"):
        body.set_attention_type("original_full")
    return body


def pooling_layer(family: Any, wanted: bool) -> dict[str, Any]:
    """The family's pooler is built only if the towers use it, as the published REALM's do."""
    accepted = inspect.signature(_auto_class(family)._model_mapping[type(family)].__init__).parameters
    return {"add_pooling_layer": wanted} if "add_pooling_layer" in accepted else {}


def encoder_config(encoder: Any) -> dict[str, Any]:
    """The config that rebuilds this encoder with `build_encoder`."""
    record = encoder.config.to_diff_dict()
    record["model_type"] = encoder.config.model_type
    irrelevant = ("transformers_version", "_name_or_path", "architectures", "dtype", "torch_dtype")
    return {name: value for name, value in record.items() if name not in (*irrelevant, "is_encoder_decoder")}


def longest_input(body: Any) -> int | None:
    """Wordpieces an encoder can read at once, with special tokens; None if its positions are relative."""
    for name, module in body.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # RoBERTa and its like count positions from the padding's id on
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    stated = getattr(body.config, "max_position_embeddings", None)
    return stated if stated and stated > 0 else None


class Encoder(nn.Module):
    """Inputs to a vector per wordpiece, whatever the family."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body: Any = body
        accepted = inspect.signature(body.forward).parameters
        config = body.config
        # XLNet compares segment ids and has no table of them; XLM would look them up among its words
        self.takes_segments = "token_type_ids" in accepted and (
            getattr(config, "type_vocab_size", 0) > 1 or config.model_type == "xlnet"
        )
        """Is it told which of two texts a wordpiece is of?"""
        self._global = "global_attention_mask" in accepted
        self._sees_neighbours = getattr(config, "trigram_input", False)
        self._can_pack = isinstance(body, Words) or can_pack(body)
        self._half = config.model_type != "deberta"  # its mask, transformers writes it, overflows in bfloat16
        self.compiled = False
        """Are functions that compute what it computes to be compiled too?"""
        self.cut = False
        """Are its layers sharded over the ranks (`Realm.cut_layers`)? Then a layer's weights are whole only
        while it computes."""
        self.quick = False
        """Compute in bfloat16 without being asked by autocast, on a CPU in the way that is fastest there
        (`realmlm.model.quick`); the vectors are float32."""
        self.finely = False
        """Where the fastest way on a CPU is 8 bits, compute the products that this changes most in bfloat16:
        the reader needs it (`QuickBert`)."""
        self._quick_bert: QuickBert | None = None

    @property
    def hidden(self) -> int:
        """Size H of its vectors."""
        return int(self.body.config.hidden_size)

    @property
    def takes_tokens_alone(self) -> bool:
        """Do tokens, padding and segments say all that it is given?"""
        return not self._global and not self._sees_neighbours

    def compile_layers(self) -> None:
        """Let torch.compile fuse what a layer does; all layers are alike, so that one is compiled for all."""
        self.compiled = True
        torch._dynamo.config.recompile_limit = _SHAPES  # training or embedding, first layer or not, alignment
        for layer in self.layers:
            layer.compile(dynamic=True)

    @property
    def layers(self) -> nn.ModuleList:
        """What it is a stack of."""
        lists = [module for module in self.body.modules() if isinstance(module, nn.ModuleList)]
        return max(lists, key=len, default=nn.ModuleList())

    def packs(self, device: torch.device, longest: int) -> bool:
        """Does it read sequences of at most `longest` wordpieces end to end? In half precision on a GPU, and
        where the gradient need not be the same bits every time."""
        if self.cut or not self._can_pack or device.type != "cuda" or longest > LONGEST:
            return False
        if torch.are_deterministic_algorithms_enabled():
            return False
        half = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
        return (half or self.quick) and torch.cuda.get_device_capability(device) >= _CAPABILITY

    def forward(self, inputs: Inputs | Packed) -> Tensor:
        """A vector a wordpiece: [N, L, H], or [T, H] for sequences end to end."""
        if isinstance(inputs, Packed):
            return self._packed(inputs)
        length = inputs.tokens_NL.shape[1]
        if self.packs(inputs.tokens_NL.device, length):
            packed = Packed.of(inputs)
            return packed.padded(self._packed(packed), length)

        def padded(part: Inputs) -> Tensor:
            hidden_nLH = self._wide(self._run(part).last_hidden_state)
            return F.pad(hidden_nLH, (0, 0, 0, length - hidden_nLH.shape[1]))

        return self._in_groups(inputs, padded)

    def pooled(self, inputs: Inputs | Packed, pooling: str) -> Tensor:
        """One vector a sequence [N, H]: its [CLS], that through the pooler, the mean of all, or a sum."""
        if isinstance(self.body, Words):
            return self.body.of(inputs)
        if isinstance(inputs, Inputs) and self.packs(inputs.tokens_NL.device, inputs.tokens_NL.shape[1]):
            inputs = Packed.of(inputs)
        if isinstance(inputs, Packed):
            hidden_TH = self._packed(inputs)
            if pooling == "mean":
                return inputs.mean(hidden_TH)
            first_NH = inputs.first(hidden_TH)
            return self.body.pooler(first_NH[:, None]) if pooling == "pooler" else first_NH
        return self._in_groups(inputs, lambda part: self._pooled(part, pooling))

    def at(self, packed: Packed, places_R: Tensor) -> Tensor:
        """The vectors at these places of sequences end to end [R, H]."""
        return self._packed(packed, places_R)

    def _packed(self, packed: Packed, places_R: Tensor | None = None) -> Tensor:
        with self._precision(packed.tokens_T.device.type):
            return self._wide(encode(self.body, packed, compiled=self.compiled, places_R=places_R))

    def _in_groups(self, inputs: Inputs, encode: Callable[[Inputs], Tensor]) -> Tensor:
        """On a GPU encode sequences of like length together: less padding. So does a CPU in quick mode and in
        training, for its cache is small, unless the encoder is so narrow that groups take longer than that.
        """
        apart = inputs.on_gpu or self.quick or (self.training and self.hidden >= WIDE)
        groups = inputs.alike() if apart else []
        if len(groups) < 2:
            return encode(inputs)
        back_N = torch.from_numpy(np.argsort(np.concatenate(groups))).to(inputs.tokens_NL.device)
        return torch.cat([encode(inputs.rows(rows)) for rows in groups])[back_N]

    def _pooled(self, inputs: Inputs, pooling: str) -> Tensor:
        output = self._run(inputs)
        if pooling == "pooler":
            return self._wide(output.pooler_output)
        hidden_NLH = self._wide(output.last_hidden_state)
        if pooling == "mean":
            weight_NL1 = inputs.attention_NL[:, :, None].to(hidden_NLH.dtype)
            return (hidden_NLH * weight_NL1).sum(1) / weight_NL1.sum(1)
        return inputs.first(hidden_NLH)

    def _run(self, inputs: Inputs) -> Any:
        if self.quick and not inputs.on_gpu and not torch.is_grad_enabled() and (quick := self._quick()):
            return quick(inputs.tokens_NL, inputs.attention_NL, inputs.segments_NL)
        given: dict[str, Tensor] = {"input_ids": inputs.tokens_NL, "attention_mask": inputs.attention_NL}
        if self.takes_segments:
            given["token_type_ids"] = inputs.segments_NL
        # Longformer: query or title see all and are seen by all, as its authors do with questions
        if self._global:
            columns_L = torch.arange(inputs.tokens_NL.shape[1], device=inputs.tokens_NL.device)
            given["global_attention_mask"] = (columns_L < inputs.second_N[:, None]) * inputs.attention_NL
        # MobileBERT embeds three wordpieces together: the last one must see nothing where padding begins
        if self._sees_neighbours:
            words_NLH = self.body.get_input_embeddings()(given.pop("input_ids"))
            given["inputs_embeds"] = words_NLH * inputs.attention_NL[:, :, None].to(words_NLH.dtype)
        with self._precision(inputs.tokens_NL.device.type):
            return self.body(**given)

    def _quick(self) -> QuickBert | None:
        """What computes a BERT on a CPU that is not fastest in float32."""
        if self._quick_bert is None and isinstance(self.body, Bert):
            way = fastest(int8=holds_int8(self.body.encoder))
            self._quick_bert = QuickBert(self.body, way, finely=self.finely) if way else None
        return self._quick_bert

    def _precision(self, device: str) -> AbstractContextManager[object]:
        if self.quick and (_has_bfloat16() if device == "cuda" else fastest(int8=False)):
            return torch.autocast(device, dtype=torch.bfloat16, enabled=self._half)
        return nullcontext() if self._half else torch.autocast(device, enabled=False)

    def _wide(self, given: Tensor) -> Tensor:
        return given.float() if self.quick else given


@cache
def _has_bfloat16() -> bool:
    """Do all GPUs here compute bfloat16 themselves?"""
    count = torch.cuda.device_count()
    return all(torch.cuda.get_device_capability(number) >= _CAPABILITY for number in range(count))


class Tower(nn.Module):
    """Embed(·) = W · encoder_CLS(·), with LayerNorm and a scale, fixed or learned, if so configured."""

    log_scale: nn.Parameter | None

    def __init__(
        self, encoder: Encoder, projection: nn.Linear, norm: nn.Module, *, pooling: str, scale: float
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.projection = projection
        self.norm = norm
        self.pooling = pooling
        self.scale = scale
        self.register_parameter("log_scale", None)

    def learn_scale(self) -> None:
        """Multiply all vectors by a number that is learned, as its logarithm; 1 to begin with."""
        if self.log_scale is None:
            self.log_scale = nn.Parameter(torch.zeros((), device=self.projection.weight.device))

    @property
    def factor(self) -> float:
        """What its vectors are multiplied by in all."""
        return self.scale if self.log_scale is None else self.scale * self.log_scale.exp().item()

    def forward(self, inputs: Inputs | Packed) -> Tensor:
        """A vector a sequence [N, D]."""
        projected_ND = self.projection(self.encoder.pooled(inputs, self.pooling))
        if projected_ND.dtype == torch.bfloat16:  # what the norm gives is rounded no more
            projected_ND = projected_ND.float()
        vectors_ND = self.norm(projected_ND).float() * self.scale
        return vectors_ND if self.log_scale is None else vectors_ND * self.log_scale.exp()


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
    names = ("hidden_act", "hidden_activation", "activation", "ff_activation", "dense_act_fn")
    name = next((getattr(config, name) for name in names if hasattr(config, name)), "gelu")
    if name == "gelu":
        return nn.GELU()
    from transformers.activations import ACT2FN

    return ACT2FN[name]


class SpanHead(nn.Module):
    """MLP([h_start; h_end]) for spans of up to `max_width` wordpieces, its first layer split in two."""

    def __init__(self, hidden: int, *, width: int, max_width: int) -> None:
        super().__init__()
        self.start_end = nn.Linear(hidden, 2 * width)
        self.norm = nn.LayerNorm(width, eps=1e-3)
        self.output = nn.Linear(width, 1)
        self.max_width = max_width

    def forward(self, hidden_NLH: Tensor) -> Tensor:
        """Scores [N, L, W]: entry (l, w) is the span from l to l + w; past the end it means nothing."""
        length = hidden_NLH.shape[1]
        start_NLS, end_NLS = self.start_end(hidden_NLH).chunk(2, dim=-1)
        padded_NLS = F.pad(end_NLS, (0, 0, 0, self.max_width - 1))
        # slices, not an index: the gradient of an index sorts it first
        shifted = (padded_NLS[:, width : width + length] for width in range(self.max_width))
        # one width at a time: all of them do not fit into a CPU's cache
        scores = [self.output(self.norm(F.relu(start_NLS + ends_NLS)))[..., 0] for ends_NLS in shifted]
        return torch.stack(scores, dim=2).float()

    def allowed(self, inputs: Inputs, *, titles: bool = False) -> Tensor:
        """Spans [N, L, W] within the second text (the passage), without the special tokens that close it;
        with `titles`, those within its title too."""
        device = inputs.tokens_NL.device
        close_N = inputs.attention_NL.sum(-1) - len(inputs.layout.after)  # past the body's last wordpiece
        starts_L = torch.arange(inputs.tokens_NL.shape[1], device=device)
        ends_LW = starts_L[:, None] + torch.arange(self.max_width, device=device)
        within_NLW = ends_LW < close_N[:, None, None]
        allowed_NLW = (starts_L >= inputs.second_N[:, None])[:, :, None] & within_NLW
        if not titles:
            return allowed_NLW
        past_N = inputs.second_N - len(inputs.layout.between)  # the title's last wordpiece
        in_title_NLW = (starts_L >= inputs.title_N[:, None])[:, :, None] & (ends_LW < past_N[:, None, None])
        return allowed_NLW | in_title_NLW & within_NLW


class Reader(nn.Module):
    """p(y|z,x): reads query and passage together; predicts masks while pre-training, spans for questions."""

    def __init__(
        self, encoder: Encoder, *, max_answer: int, span_hidden: int, passage_logit: bool = False
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.encoder.finely = True
        family = encoder.body.config
        eps = getattr(family, "layer_norm_eps", getattr(family, "norm_eps", 1e-12))  # the second: ModernBERT
        self.mask_head = MaskHead(encoder.hidden, self.embedding, eps=eps, activation=_activation(family))
        # T5's embeddings are large: its own output layer divides by √H as well
        if hasattr(family, "initializer_factor"):
            nn.init.constant_(self.mask_head.norm.weight, encoder.hidden**-0.5)
        self.span_head = SpanHead(encoder.hidden, width=span_hidden, max_width=max_answer)
        self.passage_head: nn.Module | None = None
        if passage_logit:
            self.add_passage_head()

    def add_passage_head(self) -> None:
        """A layer on [CLS] for g(x,z): it says 0 of every passage, and changes nothing, until it learns."""
        device = self.embedding.weight.device
        # no weights are drawn; nn.utils.skip_init would import sympy, a third of a second of every start
        head = nn.Linear(self.encoder.hidden, 1, device="meta")
        head.weight = nn.Parameter(torch.zeros(1, self.encoder.hidden, device=device))
        head.bias = nn.Parameter(torch.zeros(1, device=device))
        self.passage_head = head

    def passage_logits(self, hidden: Tensor, inputs: Inputs | Packed) -> Tensor | None:
        """g(x,z) [N], does the passage answer the question? From what the encoder gave at [CLS] (Karpukhin et
        al. 2020, eq. 5), always in float32; None if the reader has no head for it."""
        if self.passage_head is None:
            return None
        with torch.autocast(hidden.device.type, enabled=False):
            logit_N1: Tensor = self.passage_head(inputs.first(hidden).float())
            return logit_N1[:, 0]

    @property
    def embedding(self) -> nn.Embedding:
        """Its word embeddings, which the mask head predicts with too."""
        return self.encoder.body.get_input_embeddings()

    def masks(self, inputs: Inputs, positions_NM: Tensor) -> Tensor:
        """log p over the vocabulary [N, M, V] at these positions of the query, special tokens not counted."""
        return self.masks_from(self.encoder(inputs), inputs, positions_NM)

    def masks_from(self, hidden_NLH: Tensor, inputs: Inputs, positions_NM: Tensor) -> Tensor:
        """The same from what the encoder gave."""
        rows_N1 = torch.arange(len(hidden_NLH), device=hidden_NLH.device)[:, None]
        hidden_NMH = hidden_NLH[rows_N1, positions_NM + len(inputs.layout.before)]
        return self.mask_head(hidden_NMH, self.embedding.weight)

    def spans(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Scores and which are allowed, both [N, L, W], for all spans of the passage."""
        return self.spans_from(self.encoder(inputs), inputs)

    def spans_from(
        self, hidden_NLH: Tensor, inputs: Inputs, *, titles: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The same from what the encoder gave, with `titles` for spans of titles too; without gradient for a
        few pairs at a time, to save memory."""
        few = len(hidden_NLH)
        if not torch.is_grad_enabled():
            at_once = _SCORED_AT_ONCE_GPU if hidden_NLH.is_cuda else SCORED_AT_ONCE
            few = max(1, at_once // hidden_NLH.shape[1])
        scores_NLW = torch.cat([self.span_head(some_NLH) for some_NLH in hidden_NLH.split(few)])
        return scores_NLW, self.span_head.allowed(inputs, titles=titles)
