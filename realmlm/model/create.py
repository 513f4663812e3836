"""Making a model to begin with, and joining the parts of two."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from realmlm.corpus.store import MAX_TITLE, Corpus
from realmlm.corpus.wordpieces import Wordpieces, check_same_tokenizer
from realmlm.errors import BadInput, Mismatch
from realmlm.model.config import ModelConfig
from realmlm.model.encoders import Tower, encoder_config, load_encoder, longest_input
from realmlm.model.mask_heads import load_mask_head
from realmlm.model.realm import Realm
from realmlm.model.words import WORDS
from realmlm.settings import Graft, MakeModel

# positions are counted from the padding's id on
_COUNT_FROM_PADDING = {"camembert", "longformer", "luke", "mpnet", "roberta", "xlm-roberta"}
_FEWEST = 16  # wordpieces of a passage that are worth reading


def fresh_encoder(
    wordpieces: Wordpieces,
    *,
    family: str,
    layers: int,
    hidden: int,
    heads: int,
    dropout: float,
    positions: int,
) -> dict[str, Any]:
    """A transformers config for an encoder of the given size that reads up to `positions` wordpieces."""
    # 1/√fan-in: with the usual 0.02 a narrow encoder hardly learns in its first hundred steps (docs/log.md)
    spread = round(hidden**-0.5, 4)
    config = {"model_type": family, "vocab_size": len(wordpieces)}
    config |= {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    config |= {"pad_token_id": wordpieces.pad, "bos_token_id": wordpieces.cls, "eos_token_id": wordpieces.sep}
    if family == "t5":
        return config | {"d_kv": hidden // heads, "d_ff": hidden * 4, "dropout_rate": dropout}
    if family == "xlnet":
        config |= {"initializer_range": spread, "d_head": hidden // heads, "d_inner": hidden * 4}
        return config | {"dropout": dropout}
    first = max(wordpieces.pad, 1) + 1 if family in _COUNT_FROM_PADDING else 0
    config["max_position_embeddings"] = positions + first
    if family == "xlm":
        config |= {"init_std": spread, "embed_init_std": spread}
        return config | {"dropout": dropout, "attention_dropout": dropout}
    config["initializer_range"] = spread
    if family == "distilbert":
        return config | {"hidden_dim": hidden * 4, "dropout": dropout, "attention_dropout": dropout}
    if family == "modernbert":
        # every layer sees all of a passage; gated feed-forward has two thirds of the usual width
        config |= {"cls_token_id": wordpieces.cls, "sep_token_id": wordpieces.sep}
        config |= {"global_attn_every_n_layers": 1, "intermediate_size": hidden * 2}
        return config | {"embedding_dropout": dropout, "mlp_dropout": dropout, "attention_dropout": dropout}
    config |= {"intermediate_size": hidden * 4, "type_vocab_size": max(2, wordpieces.segments)}
    config |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return config | _own_settings(family, hidden=hidden, positions=positions)


def _own_settings(family: str, *, hidden: int, positions: int) -> dict[str, Any]:
    """What a family needs beside its size where transformers' defaults do not fit a fresh encoder."""
    narrow = min(128, hidden // 2)
    window = min(512, positions + positions % 2)  # Longformer pads its inputs to a multiple of this
    deberta = {"type_vocab_size": 0, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
    own: dict[str, dict[str, Any]] = {
        "albert": {"embedding_size": narrow},
        "electra": {"embedding_size": narrow},
        "mobilebert": {
            "embedding_size": narrow,
            "intermediate_size": hidden,
            "intra_bottleneck_size": hidden // 4,
            "normalization_type": "layer_norm",  # it has none by default, for it was distilled, not trained
        },
        "deberta": deberta,
        "deberta-v2": {**deberta, "position_biased_input": False, "share_att_key": True}
        | {"position_buckets": 256, "norm_rel_ebd": "layer_norm"},
        "longformer": {"attention_window": window},
        "luke": {"entity_vocab_size": 1, "use_entity_aware_attention": False},
    }
    return own.get(family, {})


def new_model(
    config: ModelConfig, wordpieces: Wordpieces, *, checkpoint: str | None = None, seed: int = 0
) -> Realm:
    """A model to begin with: fresh weights by seed, or all three encoders from a published checkpoint."""
    if config.pooling != "mean" and wordpieces.single.cls is None:
        lacking = "the tokenizer has no token that could stand for a sequence, as [CLS] does for BERT"
        raise BadInput(f"{lacking}; use --pooling mean")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if checkpoint is None:
            return Realm(config, wordpieces)
        tower = load_encoder(checkpoint)
        reader = load_encoder(checkpoint)
        embedded = tower.get_input_embeddings().num_embeddings
        if embedded < len(wordpieces):
            raise BadInput(
                f"'{checkpoint}' knows {embedded} wordpieces, the corpus's tokenizer has {len(wordpieces)}; "
                f"make the corpus with --tokenizer {checkpoint}"
            )
        _check_tokenizer(checkpoint, wordpieces)
        title = MAX_TITLE + len(wordpieces.pair.between) if config.read_titles else 0
        longest = config.max_passage + max(config.max_query + title, MAX_TITLE) + wordpieces.pair.special
        positions = longest_input(tower) or longest
        if positions < longest:
            left = positions - longest + config.max_passage
            smaller = f"make the corpus again with --max-wordpieces {left}"
            if left < _FEWEST:
                smaller = "choose a smaller --max-query"
            raise BadInput(
                f"'{checkpoint}' reads {positions} wordpieces, query and passage together take {longest}; "
                f"{smaller}"
            )
        full = replace(config, tower=encoder_config(tower), reader=encoder_config(reader))
        model = Realm(full, wordpieces, tower=tower, reader=reader)
        if head := load_mask_head(checkpoint, reader.config):
            model.reader.mask_head.load_state_dict(head)
        if config.projection == model.document.encoder.hidden:  # begin in a sentence encoder's own space
            for side in (model.document, model.query):
                _begin_as_given(side)
        return model


def _begin_as_given(tower: Tower) -> None:
    """Let a tower's projection change nothing, to begin with."""
    nn.init.eye_(tower.projection.weight)
    nn.init.zeros_(tower.projection.bias)


def _check_tokenizer(checkpoint: str, wordpieces: Wordpieces) -> None:
    """The corpus must be cut with the checkpoint's own tokenizer, where the checkpoint brings one."""
    try:
        own = Wordpieces.load(checkpoint)
    except BadInput:
        return
    if own.tokenizer.get_vocab() != wordpieces.tokenizer.get_vocab() or own.pair != wordpieces.pair:
        made = f"the corpus was made with another tokenizer than '{checkpoint}'"
        raise Mismatch(f"{made}; make it again with --tokenizer {checkpoint}")


_LENGTHS = ("max_query", "max_passage", "max_together", "max_answer")
_OF_READER = (
    *(*_LENGTHS, "reader", "reading", "read_titles", "span_hidden"),
    *("passage_logit", "title_answers", "trained_on_questions"),
)
"""What of a model's config describes its reader."""


def graft(settings: Graft) -> str:
    """Join the towers of one model with the reader of another; gives a line that says what was made."""
    towers = settings.towers
    reader = settings.reader
    first = Realm.from_pretrained(towers)
    second = Realm.from_pretrained(reader)
    check_same_tokenizer(first.wordpieces, second.wordpieces, first_name=str(towers), second_name=str(reader))
    for name in ("max_query", "max_passage"):
        if getattr(first.config, name) != getattr(second.config, name):
            raise Mismatch(
                f"{towers} and {reader} read inputs of different length ({name}); they do not belong together"
            )
    of_reader = {name: getattr(second.config, name) for name in _OF_READER}
    first.config = replace(first.config, **of_reader, calibration=None)
    first.reader = second.reader
    first.save_pretrained(settings.out)
    return f"{settings.out}: towers of {towers}, reader of {reader}"


def _word_vectors(wordpieces: Wordpieces, size: int) -> dict[str, Any]:
    """The config of towers that add up a vector for each wordpiece."""
    return {"model_type": WORDS, "vocab_size": len(wordpieces), "hidden_size": size}


def _begin_with_words(model: Realm, corpus: Corpus) -> None:
    """Towers of words search by the rare words of a text before they have learned anything."""
    for tower in (model.document, model.query):
        _begin_as_given(tower)
    for encoder in {model.document.encoder, model.query.encoder}:
        encoder.body.begin_with_rarity(corpus)


def create_model(settings: MakeModel) -> Realm:
    """Make and save a model to begin with."""
    corpus = Corpus.open(settings.corpus)
    longest = corpus.max_wordpieces
    beside = max(settings.max_query + MAX_TITLE * settings.read_titles, MAX_TITLE)
    encoder: dict[str, Any] = {}
    if settings.checkpoint is None:
        encoder = fresh_encoder(
            corpus.wordpieces,
            family=settings.family,
            layers=settings.layers,
            hidden=settings.hidden,
            heads=settings.heads,
            dropout=settings.dropout,
            positions=longest + beside + 8,
        )
    words = settings.towers == "words"
    config = ModelConfig(
        tower=_word_vectors(corpus.wordpieces, settings.projection) if words else encoder,
        reader=encoder,
        share_towers=settings.share_towers,
        projection=settings.projection,
        projection_norm=settings.projection_norm,
        pooling=settings.pooling,
        max_query=settings.max_query,
        max_passage=longest,
        max_answer=settings.max_answer,
        reading=settings.reading,
        read_titles=settings.read_titles,
        freeze_embeddings=settings.freeze_embeddings,
        span_hidden=256 if settings.checkpoint else min(256, settings.hidden),
    )
    model = new_model(config, corpus.wordpieces, checkpoint=settings.checkpoint, seed=settings.seed)
    if words:
        _begin_with_words(model, corpus)
    model.save_pretrained(settings.out)
    return model
