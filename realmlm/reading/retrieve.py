"""Retrieving: from queries to the passages that are read, and the scores f(x,z) with gradient.

B queries, K passages each, U different passages among them, D vector size.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from realmlm.corpus.store import Corpus
from realmlm.corpus.wordpieces import Wordpieces, check_same_tokenizer
from realmlm.errors import Mismatch
from realmlm.index.bm25 import BM25Index
from realmlm.index.exact import Hits, Index, drop
from realmlm.model.inputs import NULL, document_inputs, query_inputs
from realmlm.model.marginal import inner_products
from realmlm.model.realm import Realm


@dataclass(frozen=True)
class Query:
    """A question or a sentence with [MASK], as text and as wordpieces."""

    text: str
    tokens: np.ndarray
    sources: tuple[int, ...] = ()  # the passage it was taken from, and its copies: they are never offered


@dataclass(frozen=True)
class Retrieved:
    """What a retriever offers for reading: passages best first, their scores f(x,z), and f(x,∅): −inf where
    the null document has no weight, None where it is not offered at all."""

    ids_BK: Tensor
    scores_BK: Tensor
    null_B: Tensor | None


def sources(queries: list[Query]) -> Tensor:
    """The passages that are not offered to each query [B, E], −1 where there are no more."""
    most = max((len(query.sources) for query in queries), default=0)
    rows = [[*query.sources, *[-1] * (most - len(query.sources))] for query in queries]
    return torch.tensor(rows, dtype=torch.int64).view(len(queries), most)


class Retriever(Protocol):
    """Chooses passages for queries."""

    def __call__(self, queries: list[Query], k: int) -> Retrieved: ...


class NoRetriever:
    """Offers the null document only: what the reader knows by itself."""

    def __call__(self, queries: list[Query], k: int) -> Retrieved:
        count = len(queries)
        return Retrieved(torch.zeros(count, 0, dtype=torch.int64), torch.zeros(count, 0), torch.zeros(count))


class LearnedRetriever:
    """The model's own towers over an index, as they are at each call: they may be in training."""

    def __init__(
        self, model: Realm, wordpieces: Wordpieces, index: Index, *, null_D: Tensor | None = None
    ) -> None:
        self.model = model
        self.wordpieces = wordpieces
        self.index = index
        self._null_D = null_D

    @classmethod
    def settled(cls, model: Realm, wordpieces: Wordpieces, index: Index) -> "LearnedRetriever":
        """Over a model whose weights change no more: the null document is embedded once, here."""
        return cls(model, wordpieces, index, null_D=null_vector(model, wordpieces))

    @torch.inference_mode()
    def __call__(self, queries: list[Query], k: int) -> Retrieved:
        inputs = query_inputs(
            [query.tokens for query in queries], self.wordpieces, max_query=self.model.config.max_query
        )
        query_BD = self.model.query(inputs.to(self.model.device))
        null_D = null_vector(self.model, self.wordpieces) if self._null_D is None else self._null_D
        hits = self.index.search(query_BD, k, exclude_QE=sources(queries))
        null_B = (
            inner_products(query_BD, null_D[None])[:, 0]
            if self.model.config.null_document
            else torch.full((len(queries),), -torch.inf)
        )
        return Retrieved(hits.ids_QK.cpu(), hits.scores_QK.cpu(), null_B.cpu())


class BM25Retriever:
    """Word matching in place of the learned retriever; p(z|x) is the softmax of its scores."""

    def __init__(self, corpus: Corpus) -> None:
        self._index = BM25Index.of(corpus)

    def __call__(self, queries: list[Query], k: int) -> Retrieved:
        texts = [query.text.replace("[MASK]", " ") for query in queries]
        own_BE = sources(queries)
        scores, ids = self._index.search(texts, k + own_BE.shape[1])
        hits = drop(Hits(torch.from_numpy(scores), torch.from_numpy(ids)), own_BE, k)
        return Retrieved(hits.ids_QK, hits.scores_QK, None)


def embed_documents(
    model: Realm, wordpieces: Wordpieces, titles: list[np.ndarray], bodies: list[np.ndarray]
) -> Tensor:
    """Embed_doc with gradient."""
    inputs = document_inputs(titles, bodies, wordpieces, max_length=model.config.max_document)
    return model.document(inputs.to(model.device))


@torch.no_grad()
def null_vector(model: Realm, wordpieces: Wordpieces) -> Tensor:
    """Embed_doc of the null document."""
    return embed_documents(model, wordpieces, [NULL], [NULL])[0]


def fresh_scores(
    model: Realm,
    wordpieces: Wordpieces,
    corpus: Corpus,
    query_BD: Tensor,
    ids_BK: Tensor,
    *,
    with_null: bool = True,
) -> Tensor:
    """f(x,z) of the retrieved passages, recomputed with the current weights, gradient into both towers; the
    null document in column 0.

    A passage retrieved for several queries is embedded once.
    """
    ids_U, place_BK = torch.unique(ids_BK.cpu(), return_inverse=True)
    titles = [NULL, *(corpus.title_tokens(number) for number in ids_U.tolist())]
    bodies = [NULL, *(corpus.tokens(number) for number in ids_U.tolist())]
    scores_BU = inner_products(query_BD, embed_documents(model, wordpieces, titles, bodies))
    null_B1 = torch.zeros(len(ids_BK), int(with_null), dtype=torch.int64)
    return scores_BU.gather(1, torch.cat([null_B1, place_BK + 1], dim=1).to(scores_BU.device))


def check_readable(model_name: str, model: Realm, wordpieces: Wordpieces, corpus: Corpus) -> None:
    """A model can only read a corpus cut with its own tokenizer, in passages no longer than it reads."""
    check_same_tokenizer(corpus.wordpieces, wordpieces, first_name=str(corpus.folder), second_name=model_name)
    if corpus.max_wordpieces > model.config.max_passage:
        raise Mismatch(
            f"{corpus.folder} has passages of up to {corpus.max_wordpieces} wordpieces, {model_name} reads "
            f"{model.config.max_passage}; "
            f"make the corpus again with --max-wordpieces {model.config.max_passage}"
        )
