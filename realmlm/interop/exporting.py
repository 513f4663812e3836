"""`realmlm export-hf`: a model of the published layout written back in it."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from realmlm.corpus.store import Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import NotEnough
from realmlm.interop.layout import ARCHITECTURES, BLOCKS, their_config, their_name
from realmlm.interop.records import write_records
from realmlm.interop.sources import RECORDS
from realmlm.model.realm import Realm
from realmlm.reading.retrieve import check_readable, index_of
from realmlm.settings import ExportHf
from realmlm.storage.artefacts import publish


def export_hf(settings: ExportHf) -> None:
    """Write a model in transformers' layout. With RealmForOpenQA the passages of a corpus and their vectors
    go along."""
    realm = Realm.from_pretrained(settings.model)
    corpus = Corpus.open(settings.corpus) if settings.corpus is not None else None
    if corpus is not None:
        check_readable(realm, corpus, name=str(settings.model))
        if not np.array_equal(corpus.ids, np.arange(len(corpus))):
            raise NotEnough(
                f"{corpus.folder} was edited: passages were removed, and this layout has no place for gaps; "
                "make the corpus again"
            )
    blocks = None if corpus is None else len(corpus)
    config = their_config(asdict(realm.config), architecture=settings.architecture, blocks=blocks)
    tensors = their_tensors(realm, settings.architecture)
    with publish(settings.out, kind="transformers-checkpoint") as draft:
        if corpus is not None:
            index = index_of(realm, corpus).index
            tensors[BLOCKS] = index.vectors(torch.from_numpy(corpus.ids)).float()
            texts = (corpus[number].text.encode() for number in corpus.ids.tolist())
            write_records(draft.path / RECORDS, texts, len(corpus))
        whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(whole, draft.path / "model.safetensors", {"format": "pt"})
        (draft.path / "config.json").write_text(json.dumps(config, indent=2), "utf-8")
        realm.wordpieces.save(draft.path / "tokenizer.json")
        _write_list(draft.path, realm.wordpieces)


def their_tensors(model: Realm, architecture: str, *, gradients: bool = False) -> dict[str, Tensor]:
    """The weights of one architecture (or their gradients) under its names; those that no output depends on
    are left out."""
    towers = {"embedder": "document", "query embedder": "query", "encoder": "reader", "reader": "reader"}
    tensors = {}
    for prefix, kind in ARCHITECTURES[architecture].items():
        if kind == "query embedder" and architecture == "RealmScorer" and model.config.share_projection:
            continue  # one embedder for both
        own = towers[kind] + "."
        for name, weight in model.named_parameters(remove_duplicate=False):
            theirs = their_name(kind, name.removeprefix(own)) if name.startswith(own) else None
            tensor = weight.grad if gradients else weight.detach()
            if theirs is not None and tensor is not None:
                tensors[prefix + theirs] = tensor.clone()
    return tensors


def _write_list(folder: Path, wordpieces: Wordpieces) -> None:
    """BERT's list of pieces and its settings, for tokenizers of old."""
    vocabulary = wordpieces.tokenizer.get_vocab()
    rules = json.loads(wordpieces.tokenizer.to_str()).get("normalizer") or {}
    if (
        rules.get("type") == "BertNormalizer"
        and "[UNK]" in vocabulary
        and sorted(vocabulary.values()) == list(range(len(vocabulary)))
    ):
        (folder / "vocab.txt").write_text(
            "".join(f"{piece}\n" for piece in sorted(vocabulary, key=vocabulary.__getitem__)), "utf-8"
        )
        settings = {"do_lower_case": rules["lowercase"], "strip_accents": rules["strip_accents"]}
        settings |= {
            "tokenize_chinese_chars": rules["handle_chinese_chars"],
            "tokenizer_class": "RealmTokenizer",
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
