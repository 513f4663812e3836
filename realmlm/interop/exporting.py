"""`realmlm export-hf`: writes a model in the layout of transformers' REALM."""

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
from realmlm.interop.layout import ARCHITECTURES, BLOCKS, ROLES, their_config, their_name
from realmlm.interop.records import write_records
from realmlm.interop.sources import RECORDS
from realmlm.model.realm import Realm
from realmlm.reading.retrieve import check_readable, index_of
from realmlm.settings import ExportHf
from realmlm.storage.artefacts import publish


def export_hf(settings: ExportHf) -> None:
    """Write a model in transformers' layout, for RealmForOpenQA with the passages of a corpus and their
    vectors."""
    realm = Realm.from_pretrained(settings.model)
    corpus = Corpus.open(settings.corpus) if settings.corpus is not None else None
    if corpus is not None:
        check_readable(realm, corpus, name=str(settings.model))
        if not np.array_equal(corpus.ids, np.arange(len(corpus))):
            why = "passages were removed, and this layout has no place for gaps"
            raise NotEnough(f"{corpus.folder} was edited: {why}; make the corpus again")
    blocks = None if corpus is None else len(corpus)
    config = their_config(asdict(realm.config), architecture=settings.architecture, blocks=blocks)
    tensors = their_tensors(realm, settings.architecture)
    with publish(settings.out, kind="transformers-checkpoint") as draft:
        if corpus is not None:
            index = index_of(realm, corpus).index
            tensors[BLOCKS] = index.vectors(torch.from_numpy(corpus.ids)).float()
            texts = (corpus[number].text.encode() for number in corpus.ids.tolist())
            write_records(draft.path / RECORDS, texts, len(corpus))
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(tensors, draft.path / "model.safetensors", {"format": "pt"})
        (draft.path / "config.json").write_text(json.dumps(config, indent=2), "utf-8")
        realm.wordpieces.save(draft.path / "tokenizer.json")
        _write_list(draft.path, realm.wordpieces)


def their_tensors(model: Realm, architecture: str, *, gradients: bool = False) -> dict[str, Tensor]:
    """The weights of one architecture (or their gradients) under its names, without those that no output
    depends on."""
    tensors = {}
    for prefix, kind in ARCHITECTURES[architecture].items():
        if kind == "query embedder" and architecture == "RealmScorer" and model.config.share_projection:
            continue  # one embedder for both
        own = ROLES[kind] + "."
        for name, weight in model.named_parameters(remove_duplicate=False):
            theirs = their_name(kind, name.removeprefix(own)) if name.startswith(own) else None
            tensor = weight.grad if gradients else weight.detach()
            if theirs is not None and tensor is not None:
                tensors[prefix + theirs] = tensor.clone()
    return tensors


def _write_list(folder: Path, wordpieces: Wordpieces) -> None:
    """Write BERT's list of pieces and its settings, if the tokenizer is one of BERT's, for old versions that
    do not read `tokenizer.json`."""
    vocabulary = wordpieces.tokenizer.get_vocab()
    rules = json.loads(wordpieces.tokenizer.to_str()).get("normalizer") or {}
    complete = "[UNK]" in vocabulary and sorted(vocabulary.values()) == list(range(len(vocabulary)))
    if rules.get("type") == "BertNormalizer" and complete:
        pieces = "".join(f"{piece}\n" for piece in sorted(vocabulary, key=vocabulary.__getitem__))
        (folder / "vocab.txt").write_text(pieces, "utf-8")
        settings = {
            "do_lower_case": rules["lowercase"],
            "strip_accents": rules["strip_accents"],
            "tokenize_chinese_chars": rules["handle_chinese_chars"],
            "tokenizer_class": "RealmTokenizer",
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
