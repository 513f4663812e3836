"""Passages found for questions before training begins; kept beside the corpus for the next run.

Q questions, C passages each.
"""

import hashlib
from dataclasses import asdict

import numpy as np
import torch

from realmlm.corpus.lookups import kept_beside
from realmlm.corpus.store import Corpus
from realmlm.index.bm25 import BM25Index
from realmlm.log import progress
from realmlm.model.realm import Realm, fingerprint_of
from realmlm.reading.retrieve import LearnedRetriever, Query, index_of, retrieve
from realmlm.train.gold import Gold
from realmlm.train.objectives.questions import Candidates

_AT_ONCE = 256  # questions


def found_for(retriever: str, model: Realm, corpus: Corpus, gold: Gold, *, candidates: int) -> np.ndarray:
    """Passages found for each question, best first [Q, C], by the model (`learned`), `bm25`, or by `both` in
    turn."""
    names = ("bm25", "learned") if retriever == "both" else (retriever,)
    count = min(candidates, len(corpus))
    ranked = [_kept(name, model, corpus, gold, candidates=count) for name in names]
    return np.stack(ranked, axis=2).reshape(len(gold), -1).astype(np.int64)


def _kept(name: str, model: Realm, corpus: Corpus, gold: Gold, *, candidates: int) -> np.ndarray:
    made_by = name if name == "bm25" else fingerprint_of(model, asdict(model.config))
    sought = repr((made_by, candidates, gold.texts)).encode()

    def find() -> dict[str, np.ndarray]:
        if name == "bm25":
            found = word_matches(corpus, gold, candidates=candidates, device=model.device)
        else:
            found = own_matches(model, corpus, gold, candidates=candidates)
        return {"ids": found.ids.astype(np.int32)}

    fingerprint = hashlib.sha256(sought).hexdigest()
    return kept_beside(corpus, "hits", sought="questions", fingerprint=fingerprint, find=find)["ids"]


def word_matches(corpus: Corpus, gold: Gold, *, candidates: int, device: torch.device) -> Candidates:
    """BM25's candidates for every question."""
    index = BM25Index(corpus, device=device)
    parts = []
    with progress("matching words", len(gold), unit="questions") as bar:
        for first in range(0, len(gold), _AT_ONCE):
            some = gold.questions[first : first + _AT_ONCE]
            parts.append(index.search(some, candidates).hits)
            bar.advance(len(some))
    ids = torch.cat([hits.ids_QK.cpu() for hits in parts])
    return Candidates(ids.numpy(), torch.cat([hits.scores_QK.cpu() for hits in parts]).numpy())


def own_matches(model: Realm, corpus: Corpus, gold: Gold, *, candidates: int) -> Candidates:
    """The model's own candidates for every question."""
    own = LearnedRetriever.settled(model, index_of(model, corpus).index)
    queries = [Query(text, tokens) for text, tokens in zip(gold.texts, gold.questions, strict=True)]
    parts = []
    with progress("searching", len(queries), unit="questions") as bar:
        for first in range(0, len(queries), _AT_ONCE):
            parts.append(retrieve(own, queries[first : first + _AT_ONCE], candidates))
            bar.advance(len(parts[-1].ids_BK))
    ids = np.concatenate([found.ids_BK.numpy() for found in parts])
    return Candidates(ids, np.concatenate([found.scores_BK.numpy() for found in parts]))
