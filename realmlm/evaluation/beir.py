"""Measuring a search on BEIR's terms: documents ranked for judged queries."""

from collections.abc import Iterator
from dataclasses import dataclass

from realmlm.corpus.beir import JudgedQuery, document_id
from realmlm.corpus.store import Corpus
from realmlm.evaluation.ranking import RECALL_CUTS, measures
from realmlm.log import progress
from realmlm.reading.answer import Answerer
from realmlm.reading.retrieve import Query, retrieve

DEPTH = max(RECALL_CUTS)
_AT_ONCE = 256  # queries


@dataclass(frozen=True)
class Ranked:
    """The best documents for a query, with their scores, and what the judgements say of them."""

    query: JudgedQuery
    scores: dict[str, float]
    measures: dict[str, float]

    def as_json(self) -> dict[str, object]:
        return {
            "id": self.query.id,
            "question": self.query.text,
            "documents": self.scores,
            "relevance": self.query.relevance,
            **self.measures,
        }


def rank_documents(
    answerer: Answerer, queries: list[JudgedQuery], *, with_mask: bool = False
) -> Iterator[Ranked]:
    """The 100 best documents for each query. A document's score is that of its best passage. One that has the
    query's own id is left out, as BEIR does it: the query is taken from it."""
    documents = _Documents(answerer.corpus)
    ending = " [MASK]" if with_mask else ""
    with progress("searching", len(queries), unit="queries") as bar:
        for first in range(0, len(queries), _AT_ONCE):
            some = queries[first : first + _AT_ONCE]
            asked = answerer.queries([query.text + ending for query in some])
            for query, scores in zip(some, _search(answerer, asked, documents), strict=True):
                kept = [(document, score) for document, score in scores.items() if document != query.id]
                best = dict(kept[:DEPTH])
                yield Ranked(query, best, measures(best, query.relevance))
            bar.advance(len(some))


def _search(answerer: Answerer, queries: list[Query], documents: "_Documents") -> list[dict[str, float]]:
    """More than `DEPTH` documents for each query, best first, or all: as many passages as that takes."""
    found: list[dict[str, float]] = [{} for _ in queries]
    short = list(range(len(queries)))
    passages = 2 * DEPTH
    while short:
        passages = min(passages, len(answerer.corpus))
        retrieved = retrieve(answerer.retriever, [queries[row] for row in short], passages)
        for row, ids, scores in zip(
            short, retrieved.ids_BK.tolist(), retrieved.scores_BK.tolist(), strict=True
        ):
            found[row] = {}
            for number, score in zip(ids, scores, strict=True):
                found[row].setdefault(documents[number], score)
        whole = passages == len(answerer.corpus)
        short = [] if whole else [row for row in short if len(found[row]) <= DEPTH]
        passages *= 4
    return found


class _Documents(dict[int, str]):
    """The document of each passage, looked up once."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus

    def __missing__(self, number: int) -> str:
        self[number] = document_id(self._corpus, number)
        return self[number]
