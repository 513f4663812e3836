"""How transformers' REALM (until 4.57) names its weights and settings, and how they are named here."""

from collections.abc import Iterable
from typing import Any

from realmlm.corpus.store import MAX_TITLE
from realmlm.errors import BadInput, Mismatch
from realmlm.model.realm import MOST_SPECIAL

# What a config leaves unsaid.
DEFAULTS: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "retriever_proj_size": 128,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_candidates": 8,
    "intermediate_size": 3072,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "span_hidden_size": 256,
    "max_span_width": 10,
    "reader_layer_norm_eps": 1e-3,
    "reader_beam_size": 5,
    "reader_seq_len": 320,
    "num_block_records": 13353718,
    "searcher_beam_size": 5000,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
SHAPED = (  # what two towers must have in common
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "max_position_embeddings",
    "type_vocab_size",
    "layer_norm_eps",
)
_ENCODER = (
    *SHAPED,
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
)

# Architecture -> the parts it consists of: what stands before the names of a part, and which part it is.
ARCHITECTURES = {
    "RealmEmbedder": {"": "embedder"},
    "RealmScorer": {"embedder.": "embedder", "query_embedder.": "query embedder"},
    "RealmKnowledgeAugEncoder": {"": "encoder"},
    "RealmReader": {"": "reader"},
    "RealmForOpenQA": {"embedder.": "query embedder", "reader.": "reader"},
}
BLOCKS = "block_emb"  # RealmForOpenQA's passage vectors

# (here, there); the reader's masked-LM head writes with the word embeddings, so its decoder has no weights of
# its own here.
_TOWER = (("encoder.body.", "realm."), ("projection.", "cls.dense."), ("norm.", "cls.LayerNorm."))
_MASKS = (
    ("encoder.body.", "realm."),
    ("mask_head.dense.", "cls.predictions.transform.dense."),
    ("mask_head.norm.", "cls.predictions.transform.LayerNorm."),
    ("mask_head.bias", "cls.predictions.bias"),
)
_SPANS = (
    ("span_head.start_end.", "qa_outputs.dense_intermediate."),
    ("span_head.norm.", "qa_outputs.layer_normalization."),
    ("span_head.output.", "qa_outputs.dense_output."),
)
NAMES = {"embedder": _TOWER, "query embedder": _TOWER, "encoder": _MASKS, "reader": _MASKS + _SPANS}

# Weights that no output depends on: an embedder's masked-LM head, a reader's pooler and untied decoder,
# buffers of old versions.
_BUFFERS = ("realm.embeddings.position_ids", "realm.embeddings.token_type_ids")
UNUSED = {
    "embedder": ("cls.predictions.", *_BUFFERS),
    "query embedder": ("cls.predictions.", *_BUFFERS),
    "encoder": ("cls.predictions.decoder.", "realm.pooler.", *_BUFFERS),
    "reader": ("cls.predictions.decoder.", "realm.pooler.", *_BUFFERS),
}


def their_name(part: str, ours: str) -> str | None:
    """The name of one of our weights (within its tower or reader) in their layout; None where they have no
    such weight."""
    return next(
        (theirs + ours.removeprefix(own) for own, theirs in NAMES[part] if ours.startswith(own)), None
    )


def is_unused(architecture: str, key: str) -> bool:
    parts = ARCHITECTURES[architecture].items()
    return any(key.startswith(tuple(prefix + name for name in UNUSED[part])) for prefix, part in parts)


def model_settings(config: dict[str, Any]) -> dict[str, Any]:
    """ModelConfig's fields from a RealmConfig."""
    full = DEFAULTS | {name: value for name, value in config.items() if value is not None}
    for name, usual in DEFAULTS.items():
        fits = isinstance(
            full[name], (int, float) if isinstance(usual, int | float) else str
        ) and not isinstance(full[name], bool)
        if not fits or (
            isinstance(usual, int)
            and not (isinstance(full[name], int) and full[name] >= (0 if name.endswith("_id") else 1))
        ):
            raise BadInput(f"config.json has {name} = {full[name]!r}; the published REALM's is {usual!r}")
    if full["pad_token_id"] >= full["vocab_size"] or full["hidden_size"] % full["num_attention_heads"]:
        raise BadInput(
            "config.json contradicts itself: the padding is no wordpiece, or the hidden size is no multiple "
            "of the heads"
        )
    kind = full.get("position_embedding_type") or "absolute"
    if kind != "absolute" or full.get("is_decoder"):
        raise BadInput(
            f"a REALM with {kind} positions, decoder {bool(full.get('is_decoder'))} cannot be imported: the "
            "published ones are BERT"
        )
    if full["reader_layer_norm_eps"] != DEFAULTS["reader_layer_norm_eps"]:
        raise BadInput(
            f"reader_layer_norm_eps {full['reader_layer_norm_eps']} cannot be imported, only "
            f"{DEFAULTS['reader_layer_norm_eps']}"
        )
    encoder = {"model_type": "bert", **{name: full[name] for name in _ENCODER}}
    positions = full["max_position_embeddings"]
    together = min(full["reader_seq_len"], positions)
    if together < 2 * MOST_SPECIAL or positions < MAX_TITLE + 2 * MOST_SPECIAL:
        raise BadInput(
            f"config.json has max_position_embeddings {positions}, reader_seq_len {full['reader_seq_len']}: "
            "too short to read"
        )
    return {
        "tower": encoder,
        "reader": encoder,
        "projection": full["retriever_proj_size"],
        "projection_norm": True,
        "norm_eps": full["layer_norm_eps"],
        "scale_scores": False,
        "pooling": "pooler",
        "max_query": min(64, positions - 3),
        "max_passage": min(together, positions - MAX_TITLE) - MOST_SPECIAL,
        "max_together": together,
        "max_answer": full["max_span_width"],
        "reading": "released",
        "span_hidden": full["span_hidden_size"],
    }


def their_config(settings: dict[str, Any], *, architecture: str, blocks: int | None) -> dict[str, Any]:
    """A RealmConfig from ModelConfig's fields; an error names what that layout has no place for."""
    kinds = ARCHITECTURES[architecture].values()
    embeds = any("embedder" in kind for kind in kinds)
    reads = any(kind in ("encoder", "reader") for kind in kinds)
    encoder = settings["tower"] if embeds else settings["reader"]
    needed = {"projection_norm": True, "scale_scores": False, "pooling": "pooler"} if embeds else {}
    needed |= {"reading": "released"} if "reader" in kinds else {}
    wrong = [f"{name} = {settings[name]}" for name, value in needed.items() if settings[name] != value]
    wrong += (
        [f"an encoder of the family {encoder.get('model_type')}"]
        if encoder.get("model_type") != "bert"
        else []
    )
    wrong += (
        ["another encoder in the reader than in the towers"]
        if embeds and reads and settings["reader"] != settings["tower"]
        else []
    )
    if architecture == "RealmScorer" and not settings["share_projection"]:
        wrong.append(
            "queries and documents embedded by different weights (transformers would load one for both): "
            "take RealmEmbedder"
        )
    if wrong:
        raise Mismatch(
            f"transformers' REALM layout has no place for this model: {'; '.join(wrong)}; only models of "
            "that layout fit"
        )
    return {
        "model_type": "realm",
        "architectures": [architecture],
        **{name: encoder.get(name, DEFAULTS[name]) for name in _ENCODER},
        "retriever_proj_size": settings["projection"],
        "max_span_width": settings["max_answer"],
        "reader_seq_len": settings["max_together"] or DEFAULTS["reader_seq_len"],
        "span_hidden_size": settings["span_hidden"],
        **(
            {}
            if blocks is None
            else {"num_block_records": blocks, "reader_beam_size": min(DEFAULTS["reader_beam_size"], blocks)}
        ),
    }


def listing(names: Iterable[str], *, most: int = 8) -> str:
    """Some names, and how many more."""
    names = sorted(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
