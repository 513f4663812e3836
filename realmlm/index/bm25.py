"""Word matching: BM25 (Lucene's variant) over the words of passages, without any text being read.

What is kept on disk is which passages have which words, how often, and how long they are; the corpus's
statistics are looked up when a query comes, so that after an edit scores are those of an index made anew.
Scores are sums of whole numbers (1/4096 each): the same on every device, whatever the order of adding up.

Q queries, K hits each, C passages scored besides, E passages never among the hits, N ids, P postings, V
words, T words of all queries.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from realmlm.corpus.lookups import kept_beside
from realmlm.corpus.store import Corpus
from realmlm.errors import NotEnough
from realmlm.index.exact import Hits, drop, each_once
from realmlm.index.words import Words
from realmlm.log import progress

K1 = 0.9  # how soon more of the same word counts no more
B = 0.4  # how much a long passage's words count less
UNIT = 4096  # a score of 1
MOST_COUNTED = 31  # times that a word counts in a passage
LONGEST = 1023  # words that a passage's length counts
COMMON = 0.3  # share of passages above which a word says nothing
FEW = 1000  # passages with a word, up to which it is not common
GROUP = 64  # ids of which the best is looked at first
_CHUNK = 8192  # passages whose words are counted at once
ONE_BY_ONE = ("cpu",)  # devices that add up a query's words one by one; others those of many queries at once
_SCRATCH = 2**26  # scores there
_FORMAT = "1"  # of what is kept beside a corpus


@dataclass(frozen=True)
class Postings:
    """Which passages have which words: those of word v are the postings from offsets[v] up to, not including,
    offsets[v + 1]."""

    words_V: np.ndarray  # numbers of words (`Words`), ascending
    offsets_V: np.ndarray
    ids_P: np.ndarray  # ascending within a word
    codes_P: np.ndarray  # how often the passage has it, and how many words it has in all: see `_code`
    totals_2: np.ndarray  # passages, and their words

    def find(self, words_T: np.ndarray) -> np.ndarray:
        """The places of words, −1 where no passage has it."""
        if not len(self.words_V):
            return np.full(len(words_T), -1)
        places_T = np.minimum(np.searchsorted(self.words_V, words_T), len(self.words_V) - 1)
        return np.where(self.words_V[places_T] == words_T, places_T, -1)

    def passages_with(self, words_T: np.ndarray) -> np.ndarray:
        """How many passages have each of these words."""
        places_T = self.find(words_T)
        return np.where(places_T < 0, 0, self.offsets_V[places_T + 1] - self.offsets_V[places_T])


def _code(counts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Both in 15 bits."""
    return (np.minimum(counts, MOST_COUNTED) * (LONGEST + 1) + lengths).astype(np.int16)


def count_words(
    words: Words, corpus: Corpus, ids: np.ndarray, *, advance: Callable[[int], object] = lambda passages: None
) -> Postings:
    """The postings of these passages, given in ascending order."""
    chunks = []
    for first in range(0, len(ids), _CHUNK):
        chunks.append(_count(words, corpus, ids[first : first + _CHUNK]))
        advance(min(_CHUNK, len(ids) - first))
    total = sum(chunk.total for chunk in chunks)
    words_V = np.unique(np.concatenate([np.zeros(0, np.uint64), *(chunk.words for chunk in chunks)]))
    places = [np.searchsorted(words_V, chunk.words) for chunk in chunks]
    offsets_V = np.zeros(len(words_V) + 1, dtype=np.int64)
    for place, chunk in zip(places, chunks, strict=True):
        offsets_V[place + 1] += chunk.counts
    np.cumsum(offsets_V, out=offsets_V)
    ids_P = np.empty(offsets_V[-1], dtype=np.int32)
    codes_P = np.empty(offsets_V[-1], dtype=np.int16)
    next_V = offsets_V[:-1].copy()
    for place in places:
        chunk = chunks.pop(0)
        within = np.arange(len(chunk.ids)) - np.repeat(np.cumsum(chunk.counts) - chunk.counts, chunk.counts)
        into = np.repeat(next_V[place], chunk.counts) + within
        ids_P[into] = chunk.ids
        codes_P[into] = chunk.codes
        next_V[place] += chunk.counts
    return Postings(words_V, offsets_V, ids_P, codes_P, np.array([len(ids), total]))


@dataclass(frozen=True)
class _Counted:
    """The postings of some passages, by word."""

    words: np.ndarray
    counts: np.ndarray  # of each word's postings
    ids: np.ndarray
    codes: np.ndarray
    total: int  # words


def _count(words: Words, corpus: Corpus, ids: np.ndarray) -> _Counted:
    tokens = corpus.tokens_of(ids.tolist())
    texts = [text for both in zip(tokens.titles, tokens.bodies, strict=True) for text in both]
    ends = np.cumsum([len(text) for text in texts])
    tokens_T = np.concatenate(texts)
    firsts = np.concatenate([[0], ends[:-1]])
    numbers_W, at_W = words.of(tokens_T, firsts[firsts < len(tokens_T)])
    passage_W = np.searchsorted(ends[1::2], at_W, side="right")
    lengths = np.minimum(np.bincount(passage_W, minlength=len(ids)), LONGEST)
    order_W = np.argsort(numbers_W, kind="stable")  # passages stay in their order
    numbers_W = numbers_W[order_W]
    passage_W = passage_W[order_W]
    new_W = np.ones(len(order_W), dtype=bool)
    new_W[1:] = (numbers_W[1:] != numbers_W[:-1]) | (passage_W[1:] != passage_W[:-1])
    firsts = np.flatnonzero(new_W)
    times = np.diff(firsts, append=len(order_W))
    passage = passage_W[firsts]
    unique, counts = np.unique(numbers_W[firsts], return_counts=True)
    total = int(lengths.sum())
    return _Counted(unique, counts, ids[passage].astype(np.int32), _code(times, lengths[passage]), total)


@dataclass(frozen=True)
class Matches:
    """What a search found, and the scores of passages that were asked about besides."""

    hits: Hits
    asked_QC: Tensor


class BM25Index:
    """The words of a corpus, ready to be searched on any device; edits are taken up by `follow`."""

    def __init__(
        self, corpus: Corpus, *, device: torch.device | str = "cpu", only: np.ndarray | None = None
    ) -> None:
        """Of titles and bodies as they are now. The words of the corpus as it was made are counted once and
        kept beside it. `only` these passages are found, though all are scored; None: all."""
        self.device = torch.device(device)
        self._words = Words(corpus.wordpieces)
        self._made = Corpus(corpus.folder, corpus.manifest, 0)
        self._begin()
        self.follow(corpus, only=only)

    def _begin(self) -> None:
        """The corpus as it was made."""
        self._corpus = self._made
        self._parts = [_Part(self._kept(), self._made.ids, self.device)]

    def _kept(self) -> Postings:
        made = self._made
        fingerprint = hashlib.sha256(f"{_FORMAT} {made.wordpieces.fingerprint}".encode()).hexdigest()

        def find() -> dict[str, np.ndarray]:
            with progress("counting words", len(made), unit="passages") as bar:
                return vars(count_words(self._words, made, made.ids, advance=bar.advance))

        return Postings(**kept_beside(made, "bm25", sought="words", fingerprint=fingerprint, find=find))

    def follow(self, corpus: Corpus, *, only: np.ndarray | None = None) -> None:
        """Search this state of the corpus from now on, `only` these passages of it (None: all)."""
        if corpus.edits < self._corpus.edits:
            self._begin()
        before_N, there_N = _there(self._corpus, corpus)
        written_N = np.zeros_like(there_N)
        written_N[corpus.changes_since(self._corpus.edits)[0]] = True
        self._bury(np.flatnonzero(before_N & (written_N | ~there_N)))
        self._count_new(corpus, np.flatnonzero(there_N & (written_N | ~before_N)))
        self._corpus = corpus
        passages, words = np.sum([part.totals_2 for part in self._parts], axis=0).tolist()
        found_N = there_N if only is None else np.isin(np.arange(len(there_N)), only) & there_N
        self._passages = passages
        self._count = int(found_N.sum())
        self._size = -(-len(there_N) // GROUP) * GROUP
        absent = np.flatnonzero(~np.pad(found_N, (0, self._size - len(found_N))))
        self._absent = torch.from_numpy(absent).to(self.device)
        self._saturation = _saturation(words / max(1, passages)).to(self.device)

    def _bury(self, dead: np.ndarray) -> None:
        """Passages whose text is no more: what was counted of them no longer counts."""
        for part in self._parts:
            mine = np.intersect1d(dead, part.live, assume_unique=True)
            if len(mine):
                part.bury(mine, count_words(self._words, self._corpus, mine))

    def _count_new(self, corpus: Corpus, new: np.ndarray) -> None:
        """A part of these passages. It is joined with those before it that are no larger, so that many edits
        leave few parts, and a passage is counted again only as often as their size doubles."""
        base, *parts = self._parts
        while parts and len(parts[-1].live) <= len(new):
            new = np.union1d(parts.pop().live, new)
        if len(new):
            parts.append(_Part(count_words(self._words, corpus, new), new, self.device))
        self._parts = [base, *parts]

    def __len__(self) -> int:
        return self._count

    def search(
        self,
        queries: Sequence[np.ndarray],
        k: int,
        *,
        exclude_QE: Tensor | None = None,
        ask_QC: Tensor | None = None,
    ) -> Matches:
        """The k best passages of queries in wordpieces: best score first, then smallest id; without a common
        word the score is 0. None of `exclude_QE` is among them (−1: none). The scores of the passages
        `ask_QC` are given too."""
        none_Q0 = torch.empty(len(queries), 0, dtype=torch.int64)
        exclude_QE = each_once((none_Q0 if exclude_QE is None else exclude_QE).to(self.device))
        ask_QC = (none_Q0 if ask_QC is None else ask_QC).to(self.device)
        searchable = len(self)
        if exclude_QE.numel():
            there_QE = (exclude_QE >= 0) & (exclude_QE < self._size) & ~torch.isin(exclude_QE, self._absent)
            searchable -= int(there_QE.sum(1).max())
        if not 1 <= k <= searchable:
            count = f"{searchable:,}"
            raise NotEnough(f"{k} passages asked for, the index holds {count}; choose k from 1 to {count}")
        wanted = min(k + exclude_QE.shape[1], len(self))
        rows = self._at_once
        parts = [
            self._search(queries[first : first + rows], wanted, ask_QC[first : first + rows])
            for first in range(0, len(queries), rows)
        ]
        if not parts:
            nothing = torch.empty(0, k, device=self.device)
            return Matches(Hits(nothing, nothing.long()), ask_QC.float())
        scores_QK, ids_QK, asked_QC = (torch.cat(part) for part in zip(*parts, strict=True))
        hits = drop(Hits(scores_QK.float() / UNIT, ids_QK), exclude_QE, k)
        return Matches(hits, asked_QC.float() / UNIT)

    def scores(self, queries: Sequence[np.ndarray], ids_QC: Tensor) -> Tensor:
        """The scores of passages alone."""
        ids_QC = ids_QC.to(self.device)
        rows = self._at_once
        parts = [
            self._scores(queries[first : first + rows]).gather(1, ids_QC[first : first + rows])
            for first in range(0, len(queries), rows)
        ]
        return torch.cat([ids_QC[:0].int(), *parts]).float() / UNIT

    @property
    def _at_once(self) -> int:
        """Queries scored together."""
        return 1 if self.device.type in ONE_BY_ONE else max(1, _SCRATCH // self._size)

    def _search(self, queries: Sequence[np.ndarray], k: int, ask_QC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores_QN = self._scores(queries)
        asked_QC = scores_QN.gather(1, ask_QC)
        scores_QN[:, self._absent] = -1
        return *_best(scores_QN, k), asked_QC

    def _scores(self, queries: Sequence[np.ndarray]) -> Tensor:
        """Of every id, in units."""
        row_T, words_T, times_T = self._different(queries)
        asked = _Asked(row_T=row_T, words_T=words_T, weight_T=self._weights(words_T) * times_T)
        scores_QN = torch.zeros(len(queries), self._size, dtype=torch.int32, device=self.device)
        for part in self._parts:  # the newest last: what is dead in one may live in a later one
            part.add(scores_QN, asked, self._saturation)
        return scores_QN

    def _different(self, queries: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The different words of each query, all queries at once: the query's row, the word, how often."""
        ends = np.cumsum([len(query) for query in queries])
        tokens = np.concatenate(queries)
        firsts = np.concatenate([[0], ends[:-1]])
        words_W, at_W = self._words.of(tokens, firsts[firsts < len(tokens)])
        row_W = np.searchsorted(ends, at_W, side="right")
        order_W = np.lexsort((words_W, row_W))
        words_W = words_W[order_W]
        row_W = row_W[order_W]
        new_W = np.ones(len(order_W), dtype=bool)
        new_W[1:] = (words_W[1:] != words_W[:-1]) | (row_W[1:] != row_W[:-1])
        firsts_T = np.flatnonzero(new_W)
        return row_W[firsts_T], words_W[firsts_T], np.diff(firsts_T, append=len(order_W))

    def _weights(self, words_T: np.ndarray) -> np.ndarray:
        """How much each word says, its idf; nothing if it is common."""
        with_T = np.zeros(len(words_T), dtype=np.int64)
        for part in self._parts:
            with_T += part.passages_with(words_T)
        idf_T = np.log1p((self._passages - with_T + 0.5) / (with_T + 0.5))
        return np.where(with_T > max(FEW, COMMON * self._passages), 0, idf_T)


@dataclass(frozen=True)
class _Asked:
    """The different words of some queries."""

    row_T: np.ndarray  # the query
    words_T: np.ndarray
    weight_T: np.ndarray


def _there(*corpora: Corpus) -> list[np.ndarray]:
    """Which ids each has [N], as many for all."""
    many = max(int(corpus.ids.max(initial=-1)) + 1 for corpus in corpora)
    there = [np.zeros(many, dtype=bool) for _ in corpora]
    for there_N, corpus in zip(there, corpora, strict=True):
        there_N[corpus.ids] = True
    return there


class _Part:
    """Passages whose words were counted together, on a device; some are dead by now."""

    def __init__(self, postings: Postings, ids: np.ndarray, device: torch.device) -> None:
        self.postings = postings
        self.live = ids
        self.totals_2 = postings.totals_2  # of those that live
        self._dead = torch.zeros(0, dtype=torch.int64, device=device)
        # words of the dead, and how many of those have each
        self._words_G = np.zeros(0, np.uint64)
        self._passages_G = np.zeros(0, np.int64)
        self._ids_P = torch.from_numpy(postings.ids_P).to(device)
        self._codes_P = torch.from_numpy(postings.codes_P).to(device)

    def bury(self, dead: np.ndarray, postings: Postings) -> None:
        """Passages that live here, and their words."""
        self.live = np.setdiff1d(self.live, dead, assume_unique=True)
        self.totals_2 = self.totals_2 - postings.totals_2
        self._dead = torch.cat([self._dead, torch.from_numpy(dead).to(self._dead.device)])
        words = np.concatenate([self._words_G, postings.words_V])
        self._words_G, place = np.unique(words, return_inverse=True)
        passages = np.concatenate([self._passages_G, np.diff(postings.offsets_V)])
        self._passages_G = np.bincount(place, passages, len(self._words_G)).astype(np.int64)

    def passages_with(self, words_T: np.ndarray) -> np.ndarray:
        """How many that live have each of these words."""
        with_T = self.postings.passages_with(words_T)
        if len(self._words_G):
            places_T = np.minimum(np.searchsorted(self._words_G, words_T), len(self._words_G) - 1)
            with_T = with_T - self._passages_G[places_T] * (self._words_G[places_T] == words_T)
        return with_T

    def add(self, scores_QN: Tensor, asked: _Asked, saturation: Tensor) -> None:
        """Add to the scores what the words of queries give; those of the dead are 0."""
        self._add(scores_QN, asked, saturation)
        scores_QN[:, self._dead] = 0

    def _add(self, scores_QN: Tensor, asked: _Asked, saturation: Tensor) -> None:
        places_T = self.postings.find(asked.words_T)
        counting = np.flatnonzero((places_T >= 0) & (asked.weight_T > 0))
        starts = self.postings.offsets_V[places_T[counting]]
        ends = self.postings.offsets_V[places_T[counting] + 1]
        rows = asked.row_T[counting]
        weights = asked.weight_T[counting].astype(np.float32)
        if scores_QN.device.type in ONE_BY_ONE:
            for row, start, end, weight in zip(
                *map(np.ndarray.tolist, (rows, starts, ends, weights)), strict=True
            ):
                units = _units(saturation, self._codes_P[start:end], weight)
                scores_QN[row].index_add_(0, self._ids_P[start:end], units)
            return
        counts = torch.from_numpy(ends - starts)
        firsts = torch.from_numpy(starts) - (counts.cumsum(0) - counts)
        total = int(counts.sum())
        device = scores_QN.device
        word_M = torch.repeat_interleave(counts.to(device), output_size=total)
        at_M = firsts.to(device)[word_M] + torch.arange(total, device=device)
        units_M = _units(saturation, self._codes_P[at_M], torch.from_numpy(weights).to(device)[word_M])
        into_M = torch.from_numpy(rows).to(device)[word_M] * scores_QN.shape[1] + self._ids_P[at_M]
        scores_QN.view(-1).index_add_(0, into_M, units_M)


def _units(saturation: Tensor, codes: Tensor, weight: Tensor | float) -> Tensor:
    return (saturation.index_select(0, codes.int()) * weight).round_().int()


def _saturation(mean: float) -> Tensor:
    """By code: tf / (tf + k1 (1 − b + b length / mean length)), in units."""
    count, length = np.divmod(np.arange((MOST_COUNTED + 1) * (LONGEST + 1)), LONGEST + 1)
    part = count / (count + K1 * (1 - B + B * length / (mean or 1.0)))
    return torch.from_numpy((part * UNIT).astype(np.float32))


def _best(scores_QN: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best scores of each query and their ids, equal ones by the smallest id.

    The k best stand in the k groups of ids with the highest maxima, of equal ones the first.
    """
    groups_QGg = scores_QN.unflatten(1, (-1, GROUP))
    groups = groups_QGg.shape[1]
    first = torch.arange(GROUP, device=scores_QN.device)
    _, chosen_Qc = _first(groups_QGg.amax(2), torch.arange(groups, device=scores_QN.device), min(k, groups))
    ids_Qcg = chosen_Qc[:, :, None] * GROUP + first
    return _first(scores_QN.gather(1, ids_Qcg.flatten(1)), ids_Qcg.flatten(1), k)


def _first(scores: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The first k by score, then by id, both in one number that no other has."""
    best = (scores.long() * 2**32 - ids).topk(k).values
    top = -(-best >> 32)
    return top, top * 2**32 - best
