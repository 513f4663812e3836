"""The salient spans of a corpus: a tagger marks them once, and pre-training reads them sentence by sentence.

They are an artefact of their own, `CORPUS/spans` (docs/formats.md), which can be made again with another
tagger while the corpus stays.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from realmlm.corpus.store import Corpus
from realmlm.corpus.taggers import KINDS, Mention, RuleTagger, Tagger, lower_case_words
from realmlm.defaults import ENGINE
from realmlm.errors import BadInput, Mismatch
from realmlm.log import progress, say
from realmlm.parallel import ordered_map
from realmlm.storage.arrays import ArrayWriter, map_array
from realmlm.storage.artefacts import Manifest, open_artefact, publish
from realmlm.storage.mirrors import here
from realmlm.storage.remote import shown

# N sentences, M spans, S sentences of one passage

_CHUNK = 256  # passages a worker marks at once: some thousand sentences
# words; a shorter list, of a small corpus, lacks too many for the absence of one to mean anything
_ENOUGH_WORDS = 10_000
_SAMPLE = 20_000  # passages read to learn which words also occur without a capital: 5M words, 3 s


def digest(content: bytes) -> int:
    """63 bits that tell contents apart: among 80 million some two are alike once in 2,900 times. By
    CRC-32 some 750,000 pairs would be. It takes 1 µs."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") >> 1


@dataclass(frozen=True, eq=False)
class MarkedSentence:
    """A sentence, wordpieces `start` to `end` of its passage, and its salient spans, counted from `start`."""

    passage: int
    start: int
    end: int
    spans: np.ndarray  # [n, 2]


class Spans:
    """The sentences that have salient spans, by number, in the order of their passages."""

    def __init__(
        self,
        passages_N: np.ndarray,
        bounds_N2: np.ndarray,
        firsts_N: np.ndarray,
        pasts_N: np.ndarray,
        *,
        spans_M2: np.ndarray,
    ) -> None:
        self._passages_N = passages_N
        self._bounds_N2 = bounds_N2
        # sentence i has spans[firsts[i]:pasts[i]]
        self._firsts_N = firsts_N
        self._pasts_N = pasts_N
        self._spans_M2 = spans_M2

    @classmethod
    def open(cls, corpus: Corpus) -> "Spans":
        """The spans of a corpus, memory-mapped, without the passages edited since they were marked."""
        folder = here(corpus.folder / "spans")
        make = f"realmlm spans {shown(corpus.folder)}"
        manifest = open_artefact(folder, kind="spans", hint=f"mark them: {make}")
        if manifest.parents["corpus"] != corpus.fingerprint:
            other = f"{folder} was made for another corpus, not {corpus.folder}"
            raise Mismatch(f"{other}; mark the spans again: {make}")
        passages_N, bounds_N2, offsets, spans_M2 = (
            np.asarray(map_array(folder / f"{name}.safetensors"))
            for name in ("passages", "bounds", "span_offsets", "spans")
        )
        spans = cls(passages_N, bounds_N2, offsets[:-1], offsets[1:], spans_M2=spans_M2)
        stale = _changed(corpus, manifest.config["corpus_edits"])
        if stale:
            unmasked = f"{corpus.folder}: passages edited since the spans were marked are not masked"
            say(f"{unmasked}; mark them again: {make}")
        return spans.without(stale)

    def __len__(self) -> int:
        return len(self._passages_N)

    def without(self, passages: Iterable[int]) -> "Spans":
        """These sentences without those of some passages."""
        gone = np.array(sorted(set(passages)), dtype=np.int64)
        if not len(gone):
            return self
        stays_N = ~np.isin(self._passages_N, gone)
        columns = (self._passages_N, self._bounds_N2, self._firsts_N, self._pasts_N)
        return Spans(*(column[stays_N] for column in columns), spans_M2=self._spans_M2)

    def recurring(self, corpus: Corpus) -> "Spans":
        """These sentences with only the spans whose words are also marked in another passage that is not a
        copy of theirs. What any other span hides, no other passage can tell."""
        counts_N = self._pasts_N - self._firsts_N
        owners_M = np.repeat(np.arange(len(self)), counts_N)
        passages_M = self._passages_N[owners_M]
        spans_M2 = np.concatenate([self._spans_M2[:0], *map(self._marked, range(len(self)))])
        words = (
            digest(corpus.tokens(passage)[start:end].tobytes())
            for passage, (start, end) in zip(passages_M.tolist(), spans_M2.tolist(), strict=True)
        )
        words_M = np.fromiter(words, dtype=np.int64, count=len(spans_M2))
        marked_P, place_M = np.unique(passages_M, return_inverse=True)
        bodies = [digest(corpus.tokens(passage).tobytes()) for passage in marked_P.tolist()]
        bodies_M = np.array(bodies, dtype=np.int64)[place_M]
        once_a_body = np.unique(np.stack([words_M, bodies_M], axis=1), axis=0)[:, 0]
        different_words, bodies_with_them = np.unique(once_a_body, return_counts=True)
        recurs_M = np.isin(words_M, different_words[bodies_with_them > 1])
        pasts_N = np.cumsum(np.bincount(owners_M[recurs_M], minlength=len(self)))
        firsts_N = np.concatenate([np.zeros(1, dtype=np.int64), pasts_N[:-1]])
        some_N = pasts_N > firsts_N
        columns = (self._passages_N, self._bounds_N2, firsts_N, pasts_N)
        return Spans(*(column[some_N] for column in columns), spans_M2=spans_M2[recurs_M])

    def _marked(self, number: int) -> np.ndarray:
        return self._spans_M2[self._firsts_N[number] : self._pasts_N[number]]

    def take(self, numbers: Iterable[int]) -> list[MarkedSentence]:
        """Several sentences."""
        return [self[number] for number in numbers]

    def __getitem__(self, number: int) -> MarkedSentence:
        start, end = self._bounds_N2[number].tolist()
        spans_n2 = self._marked(number).astype(np.int64) - start
        return MarkedSentence(int(self._passages_N[number]), start, end, spans_n2)


def _changed(corpus: Corpus, marked_edits: int) -> list[int]:
    """Ids of the passages that changed between the first `marked_edits` edits and those of this corpus."""
    fewer, more = sorted((corpus.edits, marked_edits))
    written, removed = Corpus(corpus.folder, corpus.manifest, more).changes_since(fewer)
    return written + removed


def all_sentences(corpus: Corpus, *, min_wordpieces: int = 1) -> Spans:
    """Every sentence of at least `min_wordpieces`, without spans, for masking schemes that need none. Takes
    12 bytes for each sentence."""
    passages: list[np.ndarray] = [np.zeros(0, dtype=np.int64)]
    bounds: list[np.ndarray] = [np.zeros((0, 2), dtype=np.uint16)]
    for ids in _chunks(corpus.ids):
        borders = [corpus.sentences(number) for number in ids.tolist()]
        bounds_S2 = np.concatenate([_pairs(several) for several in borders])
        long_S = np.diff(bounds_S2)[:, 0] >= max(1, min_wordpieces)
        passages.append(np.repeat(ids, [len(several) - 1 for several in borders])[long_S])
        bounds.append(bounds_S2[long_S].astype(np.uint16))
    passages_N = np.concatenate(passages)
    zeros_N = np.broadcast_to(np.int64(0), len(passages_N))  # takes no memory
    none_M2 = np.zeros((0, 2), dtype=np.uint16)
    return Spans(passages_N, np.concatenate(bounds), zeros_N, zeros_N, spans_M2=none_M2)


# --- marking ------------------------------------------------------------------------------------------------


def rule_tagger(corpus: Corpus) -> RuleTagger:
    """The rule tagger for a corpus: it knows its titles, and its words that also occur without a capital."""
    ids = corpus.ids
    titles = corpus.titles()
    sample = ids[:: max(1, len(ids) // _SAMPLE)]
    lower_case = lower_case_words(corpus[number].text for number in sample.tolist())
    return RuleTagger(titles, lower_case if len(lower_case) >= _ENOUGH_WORDS else None)


def mark_spans(corpus: Corpus, tagger: Tagger, *, workers: int = 1, engine: str = ENGINE) -> Spans:
    """Mark the salient spans of every sentence and publish them as `CORPUS/spans`, in place of earlier ones.

    A span consists of all wordpieces that a mention touches, and never of a whole sentence; sentences without
    one are left out. The result does not depend on the number of `workers` (processes; 1: this one), nor on
    the engine (local, ray).
    """
    with publish(corpus.folder / "spans", kind="spans", replace=True) as draft:
        files = {"passages": (np.int64, ()), "bounds": (np.uint16, (2,)), "span_offsets": (np.int64, ())}
        files |= {"spans": (np.uint16, (2,)), "kinds": (np.uint8, ())}
        writers = {
            name: ArrayWriter(draft.path / f"{name}.safetensors", dtype, row=row)
            for name, (dtype, row) in files.items()
        }
        writers["span_offsets"].append([0])
        by_kind = np.zeros(len(KINDS), dtype=np.int64)
        setting = (corpus.folder, corpus.manifest, corpus.edits, tagger)
        parts = _chunks(corpus.ids)
        marked = ordered_map(_marker, setting, parts, workers=workers, few=2, engine=engine)
        with closing(marked) as chunks, progress("marking spans", len(corpus), unit="passages") as bar:
            for done, marks in chunks:
                writers["span_offsets"].append(writers["spans"].rows + np.cumsum(marks.span_counts_N))
                writers["passages"].append(marks.passages_N)
                writers["bounds"].append(marks.bounds_N2)
                writers["spans"].append(marks.spans_M2)
                writers["kinds"].append(marks.kinds_M)
                by_kind += np.bincount(marks.kinds_M, minlength=len(KINDS))
                bar.advance(done)
        for writer in writers.values():
            writer.close()
        draft.config |= {"tagger": tagger.name, "corpus_edits": corpus.edits, "kinds": list(KINDS)}
        draft.counts |= {"sentences": writers["passages"].rows, "spans": writers["spans"].rows}
        draft.counts |= dict(zip(KINDS, by_kind.tolist(), strict=True))
        draft.parents["corpus"] = corpus.fingerprint
    return Spans.open(corpus)


@dataclass(frozen=True)
class _Marks:
    """The marked sentences of some passages, as a worker hands them back."""

    passages_N: np.ndarray
    bounds_N2: np.ndarray
    span_counts_N: np.ndarray
    spans_M2: np.ndarray
    kinds_M: np.ndarray


def _marker(
    folder: Path, manifest: Manifest, edits: int, tagger: Tagger
) -> Callable[[np.ndarray], tuple[int, _Marks]]:
    corpus = Corpus(folder, manifest, edits)
    return lambda ids: (len(ids), _mark(corpus, tagger, ids))


def _mark(corpus: Corpus, tagger: Tagger, ids: np.ndarray) -> _Marks:
    passages = []
    sentences = []
    for number in ids.tolist():
        text = corpus[number].text
        chars_T2 = corpus.token_chars(number)
        bounds_S2 = _pairs(corpus.sentences(number))
        starts = chars_T2[bounds_S2[:, 0], 0].tolist()
        ends = chars_T2[bounds_S2[:, 1] - 1, 1].tolist()
        sentences += [text[start:end] for start, end in zip(starts, ends, strict=True)]
        passages.append((number, np.asarray(chars_T2), bounds_S2, starts))
    mentions = iter(_tagged(tagger, sentences))
    rows: list[tuple[int, int, int, int]] = []
    spans: list[tuple[int, int]] = []
    kinds: list[int] = []
    for number, chars_T2, bounds_S2, starts in passages:
        found = [next(mentions) for _ in starts]
        by_sentence = _to_wordpieces(found, starts, chars_T2, bounds_S2)
        for (start, end), marked in zip(bounds_S2.tolist(), by_sentence, strict=True):
            if marked:
                rows.append((number, start, end, len(marked)))
                spans += marked
                kinds += marked.values()
    rows_N4 = np.array(rows, dtype=np.int64).reshape(-1, 4)
    spans_M2 = np.array(spans).reshape(-1, 2)
    return _Marks(rows_N4[:, 0], rows_N4[:, 1:3], rows_N4[:, 3], spans_M2, np.array(kinds, dtype=np.uint8))


def _tagged(tagger: Tagger, sentences: list[str]) -> list[list[Mention]]:
    """The mentions of each sentence. The tagger may be a user's own: what breaks the protocol is refused."""
    who = f"the tagger '{tagger.name}'"
    tagged = tagger.tag(sentences)
    if not isinstance(tagged, list) or len(tagged) != len(sentences):
        count = f"{len(tagged)} lists of mentions" if isinstance(tagged, list) else repr(tagged)
        raise BadInput(f"{who} gave {count} for {len(sentences)} sentences; give one list for each")
    for sentence, mentions in zip(sentences, tagged, strict=True):
        for mention in mentions:
            places = (mention.start, mention.end) if isinstance(mention, Mention) else (None,)
            if not all(isinstance(place, int | np.integer) for place in places):
                raise BadInput(f"{who} gave {mention!r}; give Mention(start, end, kind), in whole characters")
            if mention.kind not in KINDS:
                kinds = ", ".join(KINDS)
                raise BadInput(f"{who} gave an unknown kind, '{mention.kind}'; the kinds are: {kinds}")
            if not 0 <= mention.start < mention.end <= len(sentence):
                place = f"{mention.start} to {mention.end} of the {len(sentence)} characters of “{sentence}”"
                raise BadInput(f"{who} marked {place}; start and end count from 0 within the sentence")
    return tagged


def _to_wordpieces(
    mentions: list[list[Mention]], starts: list[int], chars_T2: np.ndarray, bounds_S2: np.ndarray
) -> list[dict[tuple[int, int], int]]:
    """The spans of each sentence of a passage, in wordpieces of the passage, with the number of their kind;
    of equal spans the first."""
    placed = [(start, mention) for start, own in zip(starts, mentions, strict=True) for mention in own]
    begins = [start + mention.start for start, mention in placed]
    ends = [start + mention.end for start, mention in placed]
    # from the first wordpiece that ends after the mention begins, to the first that begins where it has ended
    firsts = iter(np.searchsorted(chars_T2[:, 1], begins, side="right").tolist())
    pasts = iter(np.searchsorted(chars_T2[:, 0], ends, side="left").tolist())
    marked: list[dict[tuple[int, int], int]] = []
    for (begin, stop), several in zip(bounds_S2.tolist(), mentions, strict=True):
        spans: dict[tuple[int, int], int] = {}
        for mention in several:
            first = max(begin, next(firsts))
            past = min(stop, next(pasts))
            if begin < first < past or first < past < stop:
                spans.setdefault((first, past), KINDS.index(mention.kind))
        marked.append(spans)
    return marked


def _pairs(borders: np.ndarray) -> np.ndarray:
    return np.stack([borders[:-1], borders[1:]], axis=1)


def _chunks(ids: np.ndarray) -> Iterator[np.ndarray]:
    for first in range(0, len(ids), _CHUNK):
        yield ids[first : first + _CHUNK]
