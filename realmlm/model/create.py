"""Making a model to begin with."""

from pathlib import Path
from typing import Any

from realmlm.corpus.store import MAX_TITLE, Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.model.realm import ModelConfig, new_model


def fresh_encoder(
    wordpieces: Wordpieces, *, family: str, layers: int, hidden: int, heads: int, dropout: float, positions: int
) -> dict[str, Any]:
    """A transformers config for an encoder of the given size, in the names most families share."""
    shape = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "max_position_embeddings": positions}
    special = {"pad_token_id": wordpieces.pad, "bos_token_id": wordpieces.cls, "eos_token_id": wordpieces.sep}
    # 1/√fan-in: with the usual 0.02 a narrow encoder hardly begins to learn in its first hundreds of steps (docs/log.md)
    config = {"model_type": family, "vocab_size": len(wordpieces), "initializer_range": round(hidden**-0.5, 4), **shape, **special}
    if family == "modernbert":  # gated feed-forward: two thirds of the usual width for the same weights; every layer sees all of a passage
        config |= {"cls_token_id": wordpieces.cls, "sep_token_id": wordpieces.sep, "global_attn_every_n_layers": 1}
        return config | {
            "intermediate_size": hidden * 2,
            "embedding_dropout": dropout,
            "mlp_dropout": dropout,
            "attention_dropout": dropout,
        }
    return config | {
        "intermediate_size": hidden * 4,
        "type_vocab_size": 2,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }


def create_model(
    *,
    corpus: Path,
    out: Path,
    checkpoint: str | None,
    family: str,
    layers: int,
    hidden: int,
    heads: int,
    dropout: float,
    share_towers: bool,
    projection: int,
    projection_norm: bool,
    pooling: str,
    max_query: int,
    max_answer: int,
    seed: int,
) -> str:
    """Write a model artefact; gives a line that says what was made."""
    known = Corpus.open(corpus)
    wordpieces = known.wordpieces
    positions = known.max_wordpieces + max(max_query, MAX_TITLE) + 8
    encoder: dict[str, Any] = {}
    if checkpoint is None:
        size = {"layers": layers, "hidden": hidden, "heads": heads, "dropout": dropout, "positions": positions}
        encoder = fresh_encoder(wordpieces, family=family, **size)  # type: ignore[arg-type]
    config = ModelConfig(
        tower=encoder,
        reader=encoder,
        share_towers=share_towers,
        projection=projection,
        projection_norm=projection_norm,
        pooling=pooling,  # type: ignore[arg-type]
        max_query=max_query,
        max_passage=known.max_wordpieces,
        max_answer=max_answer,
        span_hidden=256 if checkpoint else min(256, hidden),
    )
    model = new_model(config, wordpieces, checkpoint=checkpoint, seed=seed)
    model.save_pretrained(out, wordpieces)
    return f"{out}: {sum(parameter.numel() for parameter in model.parameters()):,} parameters"
