"""Salient spans of a corpus: marked once by a tagger, kept beside it, read by number.

`CORPUS/spans` is an artefact of its own (docs/formats.md): it can be made again with another tagger while the
corpus stays.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np

from realmlm.corpus.store import Corpus
from realmlm.corpus.taggers import KINDS, Mention, RuleTagger, Tagger, lower_case_words
from realmlm.errors import BadInput, Mismatch
from realmlm.log import progress, say
from realmlm.parallel import ordered_map
from realmlm.storage.arrays import ArrayWriter, map_array
from realmlm.storage.artefacts import Manifest, open_artefact, publish

# N sentences, M spans, S sentences of one passage

_CHUNK = 256  # passages a worker marks at once: some thousand sentences
# a shorter list, of a small corpus, lacks too many words for their absence to mean anything
_ENOUGH_WORDS = 10_000
_SAMPLE = 20_000  # passages that are read to learn which words live without a capital: 5M words, 3 s


@dataclass(frozen=True, eq=False)
class MarkedSentence:
    """A sentence of a passage, wordpieces `start` to `end` of it, and its spans worth masking, counted from
    `start`."""

    passage: int
    start: int
    end: int
    spans: np.ndarray  # [n, 2]


class Spans:
    """Sentences by number, in the order of their passages."""

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
        """The spans of a corpus, memory-mapped; passages that edits have changed since they were marked are
        left out."""
        folder = corpus.folder / "spans"
        make = f"realmlm spans {corpus.folder}"
        manifest = open_artefact(folder, kind="spans", hint=f"mark them: {make}")
        if manifest.parents["corpus"] != corpus.fingerprint:
            raise Mismatch(
                f"{folder} was made for another corpus, not {corpus.folder}; mark the spans again: {make}"
            )
        passages_N, bounds_N2, offsets, spans_M2 = (
            np.asarray(map_array(folder / f"{name}.safetensors"))
            for name in ("passages", "bounds", "span_offsets", "spans")
        )
        rows = [passages_N, bounds_N2, offsets[:-1], offsets[1:]]
        stale = _changed(corpus, manifest.config["corpus_edits"])
        if stale:
            current_N = ~np.isin(passages_N, stale)
            rows = [array[current_N] for array in rows]
            say(
                f"{corpus.folder}: passages edited since the spans were marked are not masked; mark them "
                f"again: {make}"
            )
        return cls(*rows, spans_M2=spans_M2)

    def __len__(self) -> int:
        return len(self._passages_N)

    def without(self, passages: Iterable[int]) -> "Spans":
        """Only the sentences of other passages."""
        gone = np.array(sorted(set(passages)), dtype=np.int64)
        if not len(gone):
            return self
        kept_N = ~np.isin(self._passages_N, gone)
        rows = (array[kept_N] for array in (self._passages_N, self._bounds_N2, self._firsts_N, self._pasts_N))
        return Spans(*rows, spans_M2=self._spans_M2)

    def recurring(self, corpus: Corpus) -> "Spans":
        """Only the spans whose words are marked in another passage too, and not in copies of their own alone:
        what else is hidden, no other passage can tell."""
        counts_N = self._pasts_N - self._firsts_N
        owners_M = np.repeat(np.arange(len(self)), counts_N)
        passages_M = self._passages_N[owners_M]
        spans_M2 = np.concatenate([self._spans_M2[:0], *map(self._marked, range(len(self)))])
        words = (
            crc32(corpus.tokens(passage)[start:end].tobytes())
            for passage, (start, end) in zip(passages_M.tolist(), spans_M2.tolist(), strict=True)
        )
        words_M = np.fromiter(words, dtype=np.int64, count=len(spans_M2))
        marked_P, place_M = np.unique(passages_M, return_inverse=True)
        bodies_P = np.array(
            [crc32(corpus.tokens(passage).tobytes()) for passage in marked_P.tolist()], dtype=np.int64
        )
        once_per_body = np.unique(np.stack([words_M, bodies_P[place_M]], axis=1), axis=0)[:, 0]
        known, bodies = np.unique(once_per_body, return_counts=True)
        kept_M = np.isin(words_M, known[bodies > 1])
        pasts_N = np.cumsum(np.bincount(owners_M[kept_M], minlength=len(self)))
        firsts_N = np.concatenate([np.zeros(1, dtype=np.int64), pasts_N[:-1]])
        some_N = pasts_N > firsts_N
        rows = (array[some_N] for array in (self._passages_N, self._bounds_N2, firsts_N, pasts_N))
        return Spans(*rows, spans_M2=spans_M2[kept_M])

    def _marked(self, number: int) -> np.ndarray:
        return self._spans_M2[self._firsts_N[number] : self._pasts_N[number]]

    def take(self, numbers: Iterable[int]) -> list[MarkedSentence]:
        """Several sentences."""
        return [self[number] for number in numbers]

    def __getitem__(self, number: int) -> MarkedSentence:
        start, end = self._bounds_N2[number].tolist()
        return MarkedSentence(
            int(self._passages_N[number]), start, end, self._marked(number).astype(np.int64) - start
        )


def _changed(corpus: Corpus, marked_edits: int) -> list[int]:
    """Ids whose text is not the same with the corpus's own edits as with its first `marked_edits`."""
    fewer, more = sorted((corpus.edits, marked_edits))
    written, removed = Corpus(corpus.folder, corpus.manifest, more).changes_since(fewer)
    return written + removed


def all_sentences(corpus: Corpus, *, min_wordpieces: int = 1) -> Spans:
    """Every sentence of at least so many wordpieces, with no spans: for schemes that need none. 12 bytes a
    sentence."""
    passages: list[np.ndarray] = [np.zeros(0, dtype=np.int64)]
    bounds: list[np.ndarray] = [np.zeros((0, 2), dtype=np.uint16)]
    for ids in _chunks(corpus.ids):
        borders = [corpus.sentences(number) for number in ids.tolist()]
        bounds_S2 = np.concatenate([_pairs(several) for several in borders])
        long_S = np.diff(bounds_S2)[:, 0] >= max(1, min_wordpieces)
        passages.append(np.repeat(ids, [len(several) - 1 for several in borders])[long_S])
        bounds.append(bounds_S2[long_S].astype(np.uint16))
    passages_N = np.concatenate(passages)
    none_N = np.broadcast_to(np.int64(0), len(passages_N))  # takes no memory
    return Spans(
        passages_N, np.concatenate(bounds), none_N, none_N, spans_M2=np.zeros((0, 2), dtype=np.uint16)
    )


# --- marking ------------------------------------------------------------------------------------------------


def rule_tagger(corpus: Corpus) -> RuleTagger:
    """The rules with what this corpus knows: its titles, and the words it also writes without a capital."""
    ids = corpus.ids
    titles = corpus.titles()
    sample = ids[:: max(1, len(ids) // _SAMPLE)]
    lower_case = lower_case_words(corpus[number].text for number in sample.tolist())
    return RuleTagger(titles, lower_case if len(lower_case) >= _ENOUGH_WORDS else None)


def mark_spans(corpus: Corpus, tagger: Tagger, *, workers: int = 1) -> Spans:
    """Mark every sentence and publish the result as `CORPUS/spans`, in place of an earlier one.

    Kept are the sentences with a span. A span is made of all wordpieces that its mention touches, and never
    of a whole sentence. The result does not depend on the number of `workers` (processes; 1: this one).
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
        marked = ordered_map(_marker, setting, _chunks(corpus.ids), workers=workers, few=2)
        with closing(marked) as chunks, progress("marking spans", len(corpus), unit="passages") as bar:
            for done, marks in chunks:
                writers["span_offsets"].append(writers["spans"].rows + np.cumsum(marks.span_counts_N))
                for name, rows in (
                    ("passages", marks.passages_N),
                    ("bounds", marks.bounds_N2),
                    ("spans", marks.spans_M2),
                ):
                    writers[name].append(rows)
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
        for (start, end), marked in zip(
            bounds_S2.tolist(), _to_wordpieces(found, starts, chars_T2, bounds_S2), strict=True
        ):
            if marked:
                rows.append((number, start, end, len(marked)))
                spans += marked
                kinds += marked.values()
    rows_N4 = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return _Marks(
        rows_N4[:, 0],
        rows_N4[:, 1:3],
        rows_N4[:, 3],
        np.array(spans).reshape(-1, 2),
        np.array(kinds, dtype=np.uint8),
    )


def _tagged(tagger: Tagger, sentences: list[str]) -> list[list[Mention]]:
    """What a tagger, which may be someone's own, says of the sentences, if it keeps to what was agreed."""
    tagged = tagger.tag(sentences)
    if len(tagged) != len(sentences):
        raise BadInput(
            f"the tagger '{tagger.name}' gave {len(tagged)} lists of mentions for {len(sentences)} "
            "sentences; give one for each"
        )
    for sentence, mentions in zip(sentences, tagged, strict=True):
        for mention in mentions:
            if mention.kind not in KINDS:
                raise BadInput(
                    f"the tagger '{tagger.name}' gave an unknown kind, '{mention.kind}'; the kinds are: "
                    f"{', '.join(KINDS)}"
                )
            if not 0 <= mention.start < mention.end <= len(sentence):
                place = f"{mention.start} to {mention.end} of the {len(sentence)} characters of"
                raise BadInput(
                    f"the tagger '{tagger.name}' marked {place} “{sentence}”; start and end count from 0 "
                    "within the sentence"
                )
    return tagged


def _to_wordpieces(
    mentions: list[list[Mention]], starts: list[int], chars_T2: np.ndarray, bounds_S2: np.ndarray
) -> list[dict[tuple[int, int], int]]:
    """For each sentence of a passage its spans, in wordpieces of the passage, with their kinds; of equal
    spans the first."""
    chars = [
        (start + mention.start, start + mention.end)
        for start, several in zip(starts, mentions, strict=True)
        for mention in several
    ]
    # the first that ends after it
    firsts = iter(np.searchsorted(chars_T2[:, 1], [start for start, _ in chars], side="right").tolist())
    # the first that starts behind it
    pasts = iter(np.searchsorted(chars_T2[:, 0], [end for _, end in chars], side="left").tolist())
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
