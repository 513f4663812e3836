"""How transformers' REALM (until 4.57) names weights and settings, and how they are named here."""

from collections.abc import Iterable
from typing import Any

from realmlm.corpus.store import MAX_TITLE
from realmlm.errors import BadInput, Mismatch
from realmlm.model.config import MOST_SPECIAL

# The values of settings that a config does not name.
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

# The parts that each architecture consists of: the prefix of a part's names, and which part it is.
ARCHITECTURES = {
    "RealmEmbedder": {"": "embedder"},
    "RealmScorer": {"embedder.": "embedder", "query_embedder.": "query embedder"},
    "RealmKnowledgeAugEncoder": {"": "encoder"},
    "RealmReader": {"": "reader"},
    "RealmForOpenQA": {"embedder.": "query embedder", "reader.": "reader"},
}
ROLES = {"embedder": "document", "query embedder": "query", "encoder": "reader", "reader": "reader"}
"""What each part becomes here: the document tower, the query tower or the reader."""
BLOCKS = "block_emb"  # RealmForOpenQA's passage vectors

# (name here, name there). The output weights of the reader's masked-LM head are the word embeddings.
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

# Weights that no output depends on: an embedder's masked-LM head, a reader's pooler and untied decoder, and
# buffers of old versions.
_BUFFERS = ("realm.embeddings.position_ids", "realm.embeddings.token_type_ids")
_IN_EMBEDDERS: tuple[str, ...] = ("cls.predictions.", *_BUFFERS)
_IN_READERS: tuple[str, ...] = ("cls.predictions.decoder.", "realm.pooler.", *_BUFFERS)
UNUSED = {part: _IN_READERS if role == "reader" else _IN_EMBEDDERS for part, role in ROLES.items()}


def their_name(part: str, ours: str) -> str | None:
    """The name in their layout of one of our weights (named within its tower or reader); None if they have no
    such weight."""
    pairs = NAMES[part]
    return next((theirs + ours.removeprefix(own) for own, theirs in pairs if ours.startswith(own)), None)


def is_unused(architecture: str, key: str) -> bool:
    """Is this a weight of theirs that no output depends on?"""
    parts = ARCHITECTURES[architecture].items()
    return any(key.startswith(tuple(prefix + name for name in UNUSED[part])) for prefix, part in parts)


def _is_like(value: Any, name: str) -> bool:
    """Is a setting's value of the same type as its default, and if a whole number, not too small?"""
    usual = DEFAULTS[name]
    if isinstance(value, bool):
        return False
    if isinstance(usual, int):
        return isinstance(value, int) and value >= (0 if name.endswith("_id") else 1)
    return isinstance(value, int | float if isinstance(usual, float) else str)


def model_settings(config: dict[str, Any]) -> dict[str, Any]:
    """The fields of our ModelConfig for one of their configs (RealmConfig)."""
    full = DEFAULTS | {name: value for name, value in config.items() if value is not None}
    for name, usual in DEFAULTS.items():
        if not _is_like(full[name], name):
            raise BadInput(f"config.json has {name} = {full[name]!r}; the published REALM's is {usual!r}")
    if full["pad_token_id"] >= full["vocab_size"] or full["hidden_size"] % full["num_attention_heads"]:
        why = "the padding is no wordpiece, or the hidden size is no multiple of the heads"
        raise BadInput(f"config.json contradicts itself: {why}")
    kind = full.get("position_embedding_type") or "absolute"
    if kind != "absolute" or full.get("is_decoder"):
        other = f"a REALM with {kind} positions, decoder {bool(full.get('is_decoder'))}"
        raise BadInput(f"{other} cannot be imported: the published ones are BERT")
    eps = "reader_layer_norm_eps"
    if full[eps] != DEFAULTS[eps]:
        raise BadInput(f"{eps} {full[eps]} cannot be imported, only {DEFAULTS[eps]}")
    encoder = {"model_type": "bert", **{name: full[name] for name in _ENCODER}}
    positions = full["max_position_embeddings"]
    together = min(full["reader_seq_len"], positions)
    if together < 2 * MOST_SPECIAL or positions < MAX_TITLE + 2 * MOST_SPECIAL:
        lengths = f"max_position_embeddings {positions}, reader_seq_len {full['reader_seq_len']}"
        raise BadInput(f"config.json has {lengths}: too short to read")
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
    """Their config (RealmConfig) for the fields of our ModelConfig; an error names what it has no place for.
    `blocks` is the number of passages that go along."""
    kinds = ARCHITECTURES[architecture].values()
    embeds = any("embedder" in kind for kind in kinds)
    reads = any(kind in ("encoder", "reader") for kind in kinds)
    encoder = settings["tower"] if embeds else settings["reader"]
    needed: dict[str, Any] = {}
    if embeds:
        needed |= {"projection_norm": True, "scale_scores": False, "learned_scale": False}
        needed |= {"pooling": "pooler"}
    if "reader" in kinds:
        needed |= {"reading": "released", "passage_logit": False, "title_answers": False}
    wrong = [f"{name} = {settings[name]}" for name, value in needed.items() if settings[name] != value]
    if encoder.get("model_type") != "bert":
        wrong.append(f"an encoder of the family {encoder.get('model_type')}")
    if embeds and reads and settings["reader"] != settings["tower"]:
        wrong.append("another encoder in the reader than in the towers")
    if architecture == "RealmScorer" and not settings["share_projection"]:
        wrong.append(
            "queries and documents embedded by different weights (transformers would load one for both): "
            "take RealmEmbedder"
        )
    if wrong:
        misfit = f"transformers' REALM layout has no place for this model: {'; '.join(wrong)}"
        raise Mismatch(f"{misfit}; only models of that layout fit")
    config = {
        "model_type": "realm",
        "architectures": [architecture],
        **{name: encoder.get(name, DEFAULTS[name]) for name in _ENCODER},
        "retriever_proj_size": settings["projection"],
        "max_span_width": settings["max_answer"],
        "reader_seq_len": settings["max_together"] or DEFAULTS["reader_seq_len"],
        "span_hidden_size": settings["span_hidden"],
    }
    if blocks is not None:
        config |= {"num_block_records": blocks, "reader_beam_size": min(DEFAULTS["reader_beam_size"], blocks)}
    return config


def listing(names: Iterable[str], *, most: int = 8) -> str:
    """Some names, and how many more."""
    names = sorted(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
