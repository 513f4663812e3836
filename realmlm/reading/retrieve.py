"""Retrieving: from queries to the passages that are read, and the scores f(x,z).

B queries, K passages each, U different passages among them, E passages never offered, D vector size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from realmlm.corpus.store import Corpus
from realmlm.corpus.wordpieces import check_same_tokenizer
from realmlm.defaults import ENGINE
from realmlm.errors import BadInput, Mismatch, NotEnough
from realmlm.index.bm25 import BM25Index
from realmlm.index.exact import Index
from realmlm.index.hybrid import Hybrid
from realmlm.index.keep import Kept, Wanted, kept_index
from realmlm.index.shared import SharedPlace, open_shared
from realmlm.model.encoders import Tower
from realmlm.model.inputs import NULL
from realmlm.model.marginal import inner_products
from realmlm.model.realm import Realm
from realmlm.model.snapshot import DocumentEncoder


@dataclass(frozen=True)
class Query:
    """A question or a sentence with [MASK], as text and as wordpieces."""

    text: str
    tokens: np.ndarray
    sources: tuple[int, ...] = ()  # the passage it was taken from, and its copies: they are never offered


@dataclass(frozen=True)
class Retrieved:
    """What a retriever offers for reading: passages best first, and their scores f(x,z)."""

    ids_BK: Tensor
    scores_BK: Tensor
    null_B: Tensor | None
    """f(x,∅): −inf where the null document has no weight, None where it is not offered at all."""
    words_BK: Tensor | None = None
    """λ · BM25(x,z), the part of the scores that shared words give; None where the search is not hybrid."""

    @property
    def near_BK(self) -> Tensor:
        """f(x,z), without what words give."""
        return self.scores_BK if self.words_BK is None else self.scores_BK - self.words_BK

    @property
    def parts_2BK(self) -> np.ndarray | None:
        """f(x,z) and λ · BM25(x,z), where the search is hybrid."""
        return None if self.words_BK is None else torch.stack([self.near_BK, self.words_BK]).numpy()

    def some(self, rows: np.ndarray, k: int) -> "Retrieved":
        """The first `k` passages of some of the queries."""
        null_B, words_BK = (None if part is None else part[rows] for part in (self.null_B, self.words_BK))
        words_BK = None if words_BK is None else words_BK[:, :k]
        return Retrieved(self.ids_BK[rows, :k], self.scores_BK[rows, :k], null_B, words_BK)

    @property
    def with_null_BK(self) -> Tensor:
        """The scores, with those of the null document in column 0 where it is offered."""
        null = [] if self.null_B is None else [self.null_B[:, None]]
        return torch.cat([*null, self.scores_BK], dim=1)


class Retriever(Protocol):
    """Chooses passages for queries: any callable of this form can take the place of the model's own.

    p(z|x) is the softmax of its scores, so they act as logits: ranks or cosines want a factor. Edits of the
    corpus are its own affair.
    """

    def __call__(self, queries: list[Query], k: int) -> Retrieved:
        """The `k` best passages of each query, best first, none of its `sources` among them: as many for each
        query, at most k."""


def retrieve(retriever: Retriever, queries: list[Query], k: int) -> Retrieved:
    """What a retriever offers, checked: it may be someone's own."""
    found = retriever(queries, k)
    if not isinstance(found, Retrieved):
        raise BadInput(
            f"{_name(retriever)} gave {type(found).__name__}; a retriever gives Retrieved(ids, scores, null)"
        )
    ids_BK = torch.as_tensor(found.ids_BK, device="cpu")
    scores_BK = torch.as_tensor(found.scores_BK, dtype=torch.float32, device="cpu")
    shape = (len(queries), min(k, ids_BK.shape[-1] if ids_BK.ndim else 0))
    if ids_BK.shape != shape or scores_BK.shape != shape or ids_BK.is_floating_point():
        raise BadInput(
            f"{_name(retriever)} gave ids {tuple(ids_BK.shape)} and scores {tuple(scores_BK.shape)} for "
            f"{len(queries)} queries and k = {k}; give whole ids and their scores, a row for each query, k "
            "at most"
        )
    if not scores_BK.isfinite().all():
        raise BadInput(f"{_name(retriever)} gave scores that are no numbers")
    for ids_K, query in zip(ids_BK.tolist(), queries, strict=True):
        if len(set(ids_K)) < len(ids_K) or not set(ids_K).isdisjoint(query.sources):
            raise BadInput(
                f"{_name(retriever)} gave passages {ids_K[:8]} where each must be another, and none of the "
                f"query's `sources` {list(query.sources)}, which it was taken from"
            )
    null_B = _beside(retriever, "null", found.null_B, (len(queries),))
    words_BK = _beside(retriever, "words", found.words_BK, shape)
    return Retrieved(ids_BK.to(torch.int64), scores_BK, null_B, words_BK)


def _beside(retriever: Retriever, name: str, given: Any, shape: tuple[int, ...]) -> Tensor | None:
    if given is None:
        return None
    numbers = torch.as_tensor(given, dtype=torch.float32, device="cpu")
    if numbers.shape != shape or numbers.isnan().any():
        raise BadInput(
            f"{_name(retriever)} gave {name} {tuple(numbers.shape)} or numbers that are none; give {shape}"
        )
    return numbers


def _name(retriever: Retriever) -> str:
    return getattr(retriever, "__qualname__", type(retriever).__qualname__)


class NoRetriever:
    """Offers the null document only: what the reader knows by itself."""

    def __call__(self, queries: list[Query], k: int) -> Retrieved:
        count = len(queries)
        return Retrieved(torch.zeros(count, 0, dtype=torch.int64), torch.zeros(count, 0), torch.zeros(count))


class LearnedRetriever:
    """The model's own towers over an index, as they are at each call: they may be in training."""

    def __init__(
        self,
        model: Realm,
        index: Index,
        *,
        null_D: Tensor | None = None,
        hybrid: Hybrid | None = None,
        tower: Tower | None = None,
    ) -> None:
        """`null_D` is the null document's vector if it will not change; else it is embedded at each call.
        With `hybrid` the scores are f(x,z) + λ · BM25(x,z). `tower` embeds the queries, if it is not the
        model's own."""
        self.model = model
        self.index = index
        self.hybrid = hybrid
        self._null_D = null_D
        self._tower = tower

    @classmethod
    def settled(cls, model: Realm, index: Index, hybrid: Hybrid | None = None) -> "LearnedRetriever":
        """Over a model whose weights change no more."""
        return cls(model, index, null_D=null_vector(model), hybrid=hybrid)

    @property
    def calibrated(self) -> bool:
        """Does it score as the model's calibration expects?"""
        return (self.hybrid.weight if self.hybrid else 0.0) == self.model.config.hybrid

    @torch.inference_mode()
    def __call__(self, queries: list[Query], k: int) -> Retrieved:
        query_BD = embed_queries(self.model, [query.tokens for query in queries], tower=self._tower)
        null_D = null_vector(self.model) if self._null_D is None else self._null_D
        null_B = torch.full((len(queries),), -torch.inf)
        if self.model.config.null_document:
            null_B = inner_products(query_BD, null_D[None])[:, 0].cpu()
        if self.hybrid is None:
            hits = self.index.search(query_BD, k, exclude_QE=_sources(queries))
            return Retrieved(hits.ids_QK.cpu(), hits.scores_QK.cpu(), null_B)
        tokens = [query.tokens for query in queries]
        found = self.hybrid.search(self.index, query_BD, tokens, k, exclude_QE=_sources(queries))
        words_BK = self.hybrid.weight * found.words_QC.cpu()
        # words choose between passages: against the null document they count as much as the best match
        null_B = null_B + words_BK.amax(1)
        return Retrieved(found.ids_QC.cpu(), found.near_QC.cpu() + words_BK, null_B, words_BK)


class BM25Retriever:
    """Word matching in place of the learned retriever; p(z|x) is the softmax of its scores."""

    def __init__(self, corpus: Corpus, *, device: torch.device | str = "cpu") -> None:
        self._index = BM25Index(corpus, device=device)

    def __call__(self, queries: list[Query], k: int) -> Retrieved:
        tokens = [query.tokens for query in queries]
        hits = self._index.search(tokens, k, exclude_QE=_sources(queries)).hits
        return Retrieved(hits.ids_QK.cpu(), hits.scores_QK.cpu(), None)


def _sources(queries: list[Query]) -> Tensor:
    """The passages that are not offered to each query [B, E], −1 where there are no more."""
    most = max((len(query.sources) for query in queries), default=0)
    rows = [[*query.sources, *[-1] * (most - len(query.sources))] for query in queries]
    return torch.tensor(rows, dtype=torch.int64).view(len(queries), most)


class Offered:
    """The passages offered to each query, each looked up once however many queries it is offered to.

    An id below 0 stands for the null document; with `null` it is offered to every query, in column 0:

        ids_BK        place_BK     bodies
        [[7, 3],  →   [[0, 2, 1],  0: the null document, 1: passage 3,
         [3, 9]]       [0, 1, 3]]  2: passage 7, 3: passage 9
    """

    def __init__(self, corpus: Corpus, ids_BK: np.ndarray, *, null: bool) -> None:
        ids_U = np.unique(ids_BK[ids_BK >= 0])
        tokens = corpus.tokens_of(ids_U)
        self.ids_U = np.append(-1, ids_U)
        self.titles = [NULL, *tokens.titles]
        self.bodies = [NULL, *tokens.bodies]
        place_BK = np.where(ids_BK < 0, 0, np.searchsorted(ids_U, ids_BK) + 1)
        self.place_BK = np.pad(place_BK, ((0, 0), (int(null), 0)))
        self.k = self.place_BK.shape[1]
        self.titles_N = [self.titles[place] for place in self.place_BK.flat]  # of every (query, passage) pair
        self.bodies_N = [self.bodies[place] for place in self.place_BK.flat]


def embed_documents(model: Realm, titles: Sequence[np.ndarray], bodies: Sequence[np.ndarray]) -> Tensor:
    """Embed_doc with gradient."""
    return model.document(model.document_inputs(titles, bodies).to(model.device))


@torch.no_grad()
def null_vector(model: Realm) -> Tensor:
    """Embed_doc of the null document."""
    return embed_documents(model, [NULL], [NULL])[0]


def scores_of_all(model: Realm, query_BD: Tensor, offered: Offered) -> Tensor:
    """f(x,z) [B, U] of every query and all that is offered to any, by the current weights, with gradient: the
    index that found the passages is steps old."""
    return inner_products(query_BD, embed_documents(model, offered.titles, offered.bodies))


def index_of(
    model: Realm,
    corpus: Corpus,
    *,
    path: Path | SharedPlace | None = None,
    kind: str | None = None,
    dtype: torch.dtype | None = None,
    others: Path | None = None,
    follow: bool = False,
    engine: str = ENGINE,
) -> Kept:
    """The index of a corpus by a model's document tower, as `realmlm.index.keep.kept_index` says, or one that
    another system holds. With the engine ray a new one is embedded on a Ray cluster."""
    encode = DocumentEncoder.of(model)
    if isinstance(path, SharedPlace):
        return open_shared(path, corpus, encode, follow=follow)
    return kept_index(
        corpus,
        encode,
        embed_queries=partial(embed_queries, model),
        path=path,
        wanted=Wanted(kind=kind, dtype=dtype, elsewhere=encode.on("cpu").on if engine == "ray" else None),
        others=others,
        follow=follow,
    )


def open_to_answer(model: str | Path, device: torch.device) -> Realm:
    """A saved model that learns no more, and computes as quickly as the device can."""
    realm = Realm.from_pretrained(model, device=device, int8=device.type == "cpu")
    realm.compute_quickly()
    return realm


@torch.inference_mode()
def embed_queries(model: Realm, queries: Sequence[np.ndarray], *, tower: Tower | None = None) -> Tensor:
    """Embed_query of queries in wordpieces, where the model is; by another `tower`, if one is given."""
    return (tower or model.query)(model.query_inputs(queries).to(model.device))


def hybrid_of(
    model: Realm, corpus: Corpus, weight: float | None = None, *, only: np.ndarray | None = None
) -> Hybrid | None:
    """Word matching beside the model's own search, with this weight or the model's; None: its weight is 0.
    `only` these passages are found, None: all."""
    weight = model.config.hybrid if weight is None else weight
    return Hybrid(BM25Index(corpus, device=model.device, only=only), weight) if weight else None


def check_enough(corpus: Corpus, read: int) -> None:
    """A corpus must have as many passages as are to be read."""
    if read > len(corpus):
        has = f"{corpus.folder} has {len(corpus)}"
        raise NotEnough(f"cannot read {read} passages: {has}; lower --read or use a larger corpus")


def check_readable(model: Realm, corpus: Corpus, *, name: str = "the model") -> None:
    """A model can only read a corpus cut with its own tokenizer, in passages no longer than it reads."""
    check_same_tokenizer(corpus.wordpieces, model.wordpieces, first_name=str(corpus.folder), second_name=name)
    longest = model.config.max_passage
    if corpus.max_wordpieces > longest:
        raise Mismatch(
            f"{corpus.folder} has passages of up to {corpus.max_wordpieces} wordpieces, {name} reads "
            f"{longest}; make the corpus again with --max-wordpieces {longest}"
        )
