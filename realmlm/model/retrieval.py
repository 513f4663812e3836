"""Retrieving: from queries to the passages that are read, and the scores f(x,z) with gradient.

B queries, K passages each, U different passages among them, D vector size.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from realmlm.artefact import edit_place, locked, read_manifest
from realmlm.corpus.store import Corpus
from realmlm.corpus.wordpieces import Wordpieces, check_same_tokenizer
from realmlm.errors import ArtefactMissing, Mismatch, RealmError
from realmlm.index.encode import Known, build_index, embed_in_parts
from realmlm.index.exact import Index
from realmlm.index.same import SameContent
from realmlm.index.store import ShardedBuild, edits_contained, index_info, open_index, save_edit
from realmlm.log import say
from realmlm.model.inputs import NULL, document_inputs, query_inputs
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
    """What a retriever offers for reading: passages best first, their scores f(x,z), and f(x,∅): −inf where the
    null document has no weight, None where it is not offered at all."""

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

    def __init__(self, model: Realm, wordpieces: Wordpieces, index: Index, *, null_D: Tensor | None = None) -> None:
        self.model, self.wordpieces, self.index, self._null_D = model, wordpieces, index, null_D

    @classmethod
    def settled(cls, model: Realm, wordpieces: Wordpieces, index: Index) -> "LearnedRetriever":
        """Over a model whose weights change no more: the null document is embedded once, here."""
        return cls(model, wordpieces, index, null_D=null_vector(model, wordpieces))

    @torch.inference_mode()
    def __call__(self, queries: list[Query], k: int) -> Retrieved:
        inputs = query_inputs([query.tokens for query in queries], self.wordpieces, max_query=self.model.config.max_query)
        query_BD = self.model.query(inputs.to(self.model.device))
        null_D = null_vector(self.model, self.wordpieces) if self._null_D is None else self._null_D
        hits = self.index.search(query_BD, k, exclude_QE=sources(queries))
        null_B = (
            inner_products(query_BD, null_D[None])[:, 0] if self.model.config.null_document else torch.full((len(queries),), -torch.inf)
        )
        return Retrieved(hits.ids_QK.cpu(), hits.scores_QK.cpu(), null_B.cpu())


def embed_documents(model: Realm, wordpieces: Wordpieces, titles: list[np.ndarray], bodies: list[np.ndarray]) -> Tensor:
    """Embed_doc with gradient."""
    inputs = document_inputs(titles, bodies, wordpieces, max_length=model.config.max_document)
    return model.document(inputs.to(model.device))


@torch.no_grad()
def null_vector(model: Realm, wordpieces: Wordpieces) -> Tensor:
    """Embed_doc of the null document."""
    return embed_documents(model, wordpieces, [NULL], [NULL])[0]


def fresh_scores(
    model: Realm, wordpieces: Wordpieces, corpus: Corpus, query_BD: Tensor, ids_BK: Tensor, *, with_null: bool = True
) -> Tensor:
    """f(x,z) of the retrieved passages, recomputed with the current weights, gradient into both towers; the null document in column 0.

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
            f"{corpus.folder} has passages of up to {corpus.max_wordpieces} wordpieces, {model_name} reads {model.config.max_passage}; "
            f"make the corpus again with --max-wordpieces {model.config.max_passage}"
        )


@dataclass
class KeptIndex:
    """An index that is open here and kept on disk, at some number of the corpus's edits; it follows those that come."""

    index: Index
    path: Path
    corpus: Corpus
    """As the index contains it."""
    _encode: DocumentEncoder

    def follow(self, corpus: Corpus) -> bool:
        """Take up what was edited since. False: what is on disk is not what is open here; it has to be opened again."""
        with locked(_lock(self.path)):
            if not self.path.exists() or edits_contained(self.path) != self.corpus.edits:
                return False
            self.take_up(corpus, quiet=True)
        return True

    def take_up(self, corpus: Corpus, *, quiet: bool = False) -> None:
        """Embed and keep what the index lacks; cut off, it goes on where it was. The lock must be held."""
        if self.corpus.edits < corpus.edits:
            written, removed = corpus.changes_since(self.corpus.edits)
            build = self._embedded(corpus, written, removed, quiet=quiet) if written else None
            vectors = build.vectors() if build else torch.empty(0, self.index.dim)
            changed = {"added_ids": torch.tensor(written), "added_vectors": vectors, "removed_ids": torch.tensor(removed)}
            save_edit(self.path, self.index, **changed, corpus_edits=corpus.edits)
            if build:
                build.discard()
            self.corpus = corpus

    def _embedded(self, corpus: Corpus, written: list[int], removed: list[int], *, quiet: bool) -> ShardedBuild:
        ids, known = np.array(written, dtype=np.int64), None
        if removed:  # of a document that changed, or moved, most passages come back with new ids
            known = SameContent(corpus, ids, dim=self._encode.dim)
            known.look_in(self.corpus, np.array(removed, dtype=np.int64), self.index)
        places = [edit_place(corpus.folder, number + 1) for number in range(self.corpus.edits, corpus.edits)]
        edits = [read_manifest(place, kind="corpus-edit").fingerprint for place in places]
        plan = {"corpus_edits": corpus.edits, "edits": edits, "kind": "exact", "step": 0}
        return embed_in_parts(self.path, corpus, ids, self._encode, plan=plan, dtype=self.index.dtype, quiet=quiet, known=known)


def index_for(
    model: Realm,
    wordpieces: Wordpieces,
    corpus: Corpus,
    *,
    path: Path | None = None,
    kind: str | None = None,
    dtype: torch.dtype | None = None,
) -> Index:
    """The index of this corpus by this model's document tower, as `kept_index` opens it."""
    return kept_index(model, wordpieces, corpus, path=path, kind=kind, dtype=dtype).index


def kept_index(
    model: Realm,
    wordpieces: Wordpieces,
    corpus: Corpus,
    *,
    path: Path | None = None,
    kind: str | None = None,
    dtype: torch.dtype | None = None,
    others: Path | None = None,
) -> KeptIndex:
    """The index of this corpus by this model's document tower: opened, built if there is none, brought up to the corpus's edits.

    Without a path it is kept beside the corpus under the tower's fingerprint: models that differ only in query tower or reader share it.
    An index that is there may be of either kind and of any dtype unless one is asked for; a new one is exact and float16 unless told
    otherwise. At a `path` a new one is made only where its kind is asked for. It takes the vectors of passages that stand word for word in
    corpora of the folder `others`, from the indexes beside those.
    """
    if path is not None and kind is None and not path.exists():
        raise ArtefactMissing(f"no index in {path}; make one: realmlm index --model MODEL --corpus {corpus.folder} --out {path}")
    encode = DocumentEncoder.of(model, wordpieces)
    path = path or index_place(corpus, encode.fingerprint, kind or "exact")
    with locked(_lock(path)):  # others may want the same index at this moment
        if not path.exists():
            beside, new = index_place(corpus, encode.fingerprint, "exact"), dtype or torch.float16
            known = _same_ids(open_index(beside)) if beside != path and _serves(beside, corpus, new) else None
            if known is None and corpus.manifest.config.get("vectors") == encode.fingerprint:
                less = f"is less precise than {_name(new)} or lacks edits" if beside.exists() else "is gone"
                raise Mismatch(
                    f"{beside}, the vectors that {corpus.folder} was imported with, {less}, and cannot be made again; import it again"
                )
            if known is None:
                same = _same_content(corpus, encode, new, others) if others else None
                lacking = len(corpus) if same is None else same.lacking
                taken = f", {len(corpus) - lacking:,} are known" if lacking < len(corpus) else ""
                say(f"no index of {corpus.folder} by this model yet: embedding {lacking:,} passages into {path}{taken}")
                known = same
            queries_QD = _sample_queries(model, wordpieces, corpus) if kind == "ivf" else None
            build_index(path, corpus, encode, kind=kind or "exact", dtype=new, queries_QD=queries_QD, known=known)
        info = index_info(path, expect_weights=encode.fingerprint, expect_corpus=corpus.fingerprint)
        made = "exact" if info.recall is None else "ivf"
        if kind is not None and made != kind:
            raise Mismatch(f"{path} holds an index of the kind {made}, not {kind}; choose another --out, or remove it first")
        if dtype is not None and info.dtype != _name(dtype):
            raise Mismatch(
                f"{path} holds vectors in {info.dtype}, not {_name(dtype)}; remove it to have it made anew, or go on with {info.dtype}"
            )
        if info.corpus_edits > corpus.edits:
            raise Mismatch(
                f"{path} contains {info.corpus_edits} edits of {corpus.folder}, which has {corpus.edits} now; remove the index first"
            )
        contained = corpus if info.corpus_edits == corpus.edits else Corpus(corpus.folder, corpus.manifest, info.corpus_edits)
        kept = KeptIndex(open_index(path, device=str(model.device)), path, contained, encode)
        if contained is not corpus:
            written, removed = corpus.changes_since(info.corpus_edits)
            say(f"{path}: taking up {len(written)} new and {len(removed)} removed passages")
            kept.take_up(corpus)
        return kept


def _same_ids(index: Index) -> Known:
    return lambda ids_N: (np.ones(len(ids_N), dtype=bool), index.vectors(torch.from_numpy(ids_N)))


def _same_content(corpus: Corpus, encode: DocumentEncoder, dtype: torch.dtype, others: Path) -> SameContent:
    """What the indexes beside corpora of this folder have of the same content, the former state of this corpus first."""
    same, tokenizer = SameContent(corpus, corpus.ids, dim=encode.dim), corpus.manifest.parents.get("tokenizer")
    places = others.glob(f"[!.]*/index/{encode.fingerprint[:16]}-exact")
    for path in sorted(places, key=lambda path: (not path.parts[-3].startswith(corpus.folder.name), path)):
        if not same.lacking:
            break
        try:
            info = index_info(path, expect_weights=encode.fingerprint)
            other, index = Corpus.open(path.parents[1], edits=info.corpus_edits), open_index(path)
            fits = other.fingerprint == info.corpus and index_info(path) == info  # no other process edited it meanwhile
        except (RealmError, OSError):  # or it removes it at this moment
            continue
        if fits and index.dtype == dtype and other.manifest.parents.get("tokenizer") == tokenizer:
            same.look_in(other, other.ids, index)
    return same


def _lock(path: Path) -> Path:
    return path.parent / f".{path.name}.lock"


def _serves(path: Path, corpus: Corpus, dtype: torch.dtype) -> bool:
    """Has an index of this corpus as it is now all vectors, none less precise than asked for?"""
    if not path.exists():
        return False
    info = index_info(path)
    return info.corpus == corpus.fingerprint and info.corpus_edits == corpus.edits and info.dtype in ("float32", _name(dtype))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def index_place(corpus: Corpus, weights: str, kind: str) -> Path:
    """Where the index of a corpus by the document tower of this fingerprint is kept unless another place is named."""
    state = "" if corpus.is_current else f"-after-{corpus.edits}-edits"
    return corpus.folder / "index" / f"{weights[:16]}-{kind}{state}"


@torch.inference_mode()
def _sample_queries(model: Realm, wordpieces: Wordpieces, corpus: Corpus, *, count: int = 256) -> Tensor:
    """First sentences of some passages, a random quarter of their words left, through the query tower: what an approximate index is
    measured with. Whole sentences lie nearer to their passages than questions do, a quarter of one about as far (docs/log.md)."""
    ids, generator = corpus.ids[np.linspace(0, len(corpus) - 1, min(count, len(corpus))).astype(np.int64)], np.random.default_rng(0)
    sentences = [corpus.tokens(number)[: corpus.sentences(number)[1]] for number in ids]
    quarters = [_some_words(tokens, wordpieces, share=0.25, generator=generator) for tokens in sentences]
    inputs = query_inputs(quarters, wordpieces, max_query=model.config.max_query)
    return model.query(inputs.to(model.device)).cpu()


def _some_words(tokens: np.ndarray, wordpieces: Wordpieces, *, share: float, generator: np.random.Generator) -> np.ndarray:
    """This share of the words, rounded up, in their order."""
    first = ~wordpieces.continues[tokens]
    first[0] = True
    words = int(first.sum())
    kept = generator.permutation(words) < share * words
    return tokens[kept[first.cumsum() - 1]]
