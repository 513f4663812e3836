"""Articles to a corpus: cut into passages on sentence borders, tokenised once, in parallel, in bounded
memory."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from realmlm.corpus.store import MAX_CHARACTERS, MAX_TITLE, Block, Corpus, SegmentWriter
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import BadInput, MissingExtra, RealmError
from realmlm.log import counted, progress, say
from realmlm.parallel import default_workers, ordered_map
from realmlm.sentences import split_sentences
from realmlm.sources.article import Article
from realmlm.sources.readers import OnBad, SourceFile, find_files, read_files
from realmlm.storage.artefacts import Draft, publish

if TYPE_CHECKING:  # settings need the command line's library, which asking does not
    from realmlm.settings import BuildCorpus

# P passages, A articles, T wordpieces

_CHUNK = 500_000  # characters of the articles handed to a worker at once
_IN_PROCESS = 4  # chunks; fewer are cut here, sooner than workers could start
_LINES = 512  # encoded at once: an Encoding takes some 200 bytes a wordpiece
_SAMPLE = 64_000_000  # characters a tokenizer is trained on at most
_UNKNOWN = 0.02  # share of wordpieces above which it is said that the tokenizer does not know them
_SAID = 20  # complaints shown one by one; the rest are counted


# --- cutting ------------------------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """A sentence, or a part of one that is too long: wordpieces [first, past) and characters [start, end) of
    the joined articles."""

    article: int
    first: int
    past: int
    start: int
    end: int


def cut_articles(
    articles: list[Article], wordpieces: Wordpieces, *, max_wordpieces: int, kept: slice = slice(None)
) -> Block:
    """Cut articles into passages of whole sentences, as many as fit into `max_wordpieces`; a longer sentence
    is cut between words.

    Of each article these passages are `kept`, or all.

    A passage's text is the article's from its first sentence to its last. Lines are tokenised one by one, so
    a passage's wordpieces are those of its text under any tokenizer that splits at white space (BERT's); one
    that marks the space before a word (byte-level, sentencepiece) may see the first word of a line otherwise
    when the passage is encoded alone. The same holds where a word longer than a passage was cut. What gives
    no wordpiece (an article of control characters) gives no passage.
    """
    text = "\n".join(article.text for article in articles)
    borders_A = np.cumsum([0] + [len(article.text) + 1 for article in articles])[:-1]
    lines = list(_lines(text))
    ids_T, chars_T2 = _tokenise(lines, wordpieces)
    pieces = _pieces(
        text, lines, borders_A, chars_T2, wordpieces.continues[ids_T] if len(ids_T) else ids_T, max_wordpieces
    )
    whole = (passage for passage in _pack(pieces, max_wordpieces) if passage[-1].past > passage[0].first)
    by_article = groupby(whole, key=lambda passage: passage[0].article)
    passages = [passage for _, several in by_article for passage in islice(several, kept.start, kept.stop)]
    return _block(articles, text, passages, ids_T, chars_T2, wordpieces)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines and where they start; one too long for a passage's character offsets is cut, at a space if it has
    one."""
    start = 0
    for line in text.split("\n"):
        at = 0
        while len(line) - at > MAX_CHARACTERS:
            space = line.rfind(" ", at + 1, at + MAX_CHARACTERS)
            cut = space if space > 0 else at + MAX_CHARACTERS
            yield start + at, line[at:cut]
            at = cut
        yield start + at, line[at:]
        start += len(line) + 1


def _tokenise(lines: list[tuple[int, str]], wordpieces: Wordpieces) -> tuple[np.ndarray, np.ndarray]:
    """Ids, and first and past-the-last character of each wordpiece in the joined text."""
    ids: list[np.ndarray] = [np.zeros(0, np.int64)]
    chars: list[np.ndarray] = [np.zeros((0, 2), np.int64)]
    for begin in range(0, len(lines), _LINES):
        some = lines[begin : begin + _LINES]
        encodings = wordpieces.encode_batch([line for _, line in some])
        ids.append(np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int64))
        pairs = chain.from_iterable(encoding.offsets for encoding in encodings)
        local_T2 = np.fromiter(chain.from_iterable(pairs), np.int64).reshape(-1, 2)
        starts_T = np.repeat([start for start, _ in some], [len(encoding) for encoding in encodings])
        chars.append(local_T2 + starts_T[:, None])
    return np.concatenate(ids), np.concatenate(chars)


def _pieces(
    text: str,
    lines: list[tuple[int, str]],
    borders_A: np.ndarray,
    chars_T2: np.ndarray,
    continues_T: np.ndarray,
    max_wordpieces: int,
) -> Iterator[_Piece]:
    spans = [(start + first, start + past) for start, line in lines for first, past in split_sentences(line)]
    if not spans:
        return
    starts_S = np.array([start for start, _ in spans])
    # a wordpiece belongs to the sentence its last character is in: the space before it may count as its first
    firsts_S = np.searchsorted(np.maximum.accumulate(chars_T2[:, 1]), starts_S, side="right")
    firsts_S[0] = 0
    articles = (np.searchsorted(borders_A, starts_S, side="right") - 1).tolist()
    firsts = [*firsts_S.tolist(), len(chars_T2)]
    for number, (start, end) in enumerate(spans):
        piece = _Piece(articles[number], firsts[number], firsts[number + 1], start, end)
        if piece.past - piece.first <= max_wordpieces:
            yield piece
        else:
            yield from _cut_piece(piece, text, chars_T2, continues_T, max_wordpieces)


def _cut_piece(
    piece: _Piece, text: str, chars_T2: np.ndarray, continues_T: np.ndarray, max_wordpieces: int
) -> Iterator[_Piece]:
    """Cut a sentence that is too long: before a word after white space, else before any word, else before any
    character."""

    def begins_character(token: int) -> bool:  # byte-level tokenizers make several wordpieces of one
        return bool(chars_T2[token, 0] >= chars_T2[token - 1, 1])

    def begins_word(token: int) -> bool:
        return begins_character(token) and not continues_T[token]

    def after_space(token: int) -> bool:
        start = chars_T2[token, 0]
        return begins_character(token) and (text[start - 1].isspace() or text[start].isspace())

    first = piece.first
    start = piece.start
    while piece.past - first > max_wordpieces:
        choices = range(first + max_wordpieces, first, -1)
        past = next(
            (
                token
                for good in (after_space, begins_word, begins_character)
                for token in choices
                if good(token)
            ),
            choices[0],
        )
        end = max(start, int(chars_T2[past, 0]))
        yield _Piece(piece.article, first, past, start, start + len(text[start:end].rstrip()))
        first = past
        start = piece.end - len(text[end : piece.end].lstrip())
    yield _Piece(piece.article, first, piece.past, start, piece.end)


def _pack(pieces: Iterable[_Piece], max_wordpieces: int) -> Iterator[list[_Piece]]:
    """Greedily: each passage takes the pieces that follow in its article while they fit."""
    passage: list[_Piece] = []
    for piece in pieces:
        if passage:
            head = passage[0]
            if (
                piece.article != head.article
                or piece.past - head.first > max_wordpieces
                or piece.end - head.start > MAX_CHARACTERS
            ):
                yield passage
                passage = []
        passage.append(piece)
    if passage:
        yield passage


def _block(
    articles: list[Article],
    text: str,
    passages: list[list[_Piece]],
    ids_T: np.ndarray,
    chars_T2: np.ndarray,
    wordpieces: Wordpieces,
) -> Block:
    kept = sorted({passage[0].article for passage in passages})
    numbers = {article: number for number, article in enumerate(kept)}
    texts = [text[passage[0].start : passage[-1].end].encode() for passage in passages]
    titles = [articles[number].title.encode() for number in kept]
    sources = [articles[number].source.encode() for number in kept]
    title_ids = [
        encoding.ids[:MAX_TITLE]
        for encoding in wordpieces.encode_batch([articles[number].title for number in kept])
    ]
    ranges = [(passage[0].first, passage[-1].past) for passage in passages]
    chars = [
        np.clip(chars_T2[first:past] - passage[0].start, 0, passage[-1].end - passage[0].start)
        for passage, (first, past) in zip(passages, ranges, strict=True)
    ]
    starts = [
        [piece.first - passage[0].first for piece in passage if piece.past > piece.first]
        for passage in passages
    ]
    return Block(
        texts=np.frombuffer(b"".join(texts), np.uint8),
        text_lengths=_lengths(texts),
        titles=np.frombuffer(b"".join(titles), np.uint8),
        title_lengths=_lengths(titles),
        sources=np.frombuffer(b"".join(sources), np.uint8),
        source_lengths=_lengths(sources),
        title_tokens=np.array(list(chain.from_iterable(title_ids)), wordpieces.dtype),
        title_token_lengths=_lengths(title_ids),
        articles=np.array([numbers[passage[0].article] for passage in passages], np.int64),
        tokens=np.concatenate([ids_T[:0], *(ids_T[first:past] for first, past in ranges)]).astype(
            wordpieces.dtype
        ),
        token_lengths=np.array([past - first for first, past in ranges], np.int64),
        token_chars=np.concatenate([chars_T2[:0], *chars]).astype(np.uint16),
        sentence_starts=np.array(list(chain.from_iterable(starts)), np.uint16),
        sentence_lengths=_lengths(starts),
    )


def _lengths(items: Sequence[Sequence[object]]) -> np.ndarray:
    return np.array([len(item) for item in items], np.int64)


# --- the whole corpus ---------------------------------------------------------------------------------------


def build_corpus(settings: "BuildCorpus") -> Corpus:
    """Read the sources, cut and tokenise them, and publish the corpus at `settings.out`: all of it, or
    nothing.

    A tokenizer is trained on every 2^n-th article, with the smallest n that keeps it to 64 million
    characters. The result does not depend on the number of processes.
    """
    faults = _Faults(settings.skip_bad)
    with publish(settings.out, kind="corpus") as draft:
        files, unknown = find_files(settings.sources, on_bad=faults)
        if unknown:
            say(other_kinds(unknown))
        if settings.train_tokenizer is not None:
            pieces = _train(files, settings.train_tokenizer, skip_bad=settings.skip_bad)
            had = f"trained on these sources, {settings.train_tokenizer} pieces asked for"
        else:
            place = Path(settings.tokenizer or "")
            pieces = Wordpieces.load(settings.tokenizer or "")
            had = f"loaded from {place.name if place.exists() else settings.tokenizer}"
        first = settings.skip_passages
        past = None if settings.max_passages is None else first + settings.max_passages
        writer = write_articles(
            draft,
            _read(files, "cutting", faults),
            pieces,
            max_wordpieces=settings.max_wordpieces,
            kept=slice(first, past),
            workers=settings.workers or default_workers(),
        )
        if not writer.passages:
            raise BadInput(
                f"no passage could be made from {', '.join(map(str, settings.sources))}; name files or "
                "folders with text in them"
            )
        draft.config |= {"sources": [source.name for source in settings.sources], "tokenizer": had}
        draft.counts["skipped"] = faults.count
    faults.conclude()
    return Corpus.open(settings.out)


def write_articles(
    draft: Draft,
    articles: Iterable[Article],
    wordpieces: Wordpieces,
    *,
    max_wordpieces: int,
    kept: slice = slice(None),
    workers: int,
) -> SegmentWriter:
    """Cut and tokenise articles into a corpus being written, with its tokenizer, counts and limits."""
    wordpieces.save(draft.path / "tokenizer.json")
    writer = SegmentWriter(draft.path, token_dtype=wordpieces.dtype)
    setting = (wordpieces.tokenizer.to_str(), max_wordpieces, kept)
    unknown = 0
    with closing(
        ordered_map(_cutter, setting, _chunks(articles), workers=workers, few=_IN_PROCESS)
    ) as blocks:
        for block in blocks:
            writer.append(block)
            unknown += int(np.count_nonzero(block.tokens == wordpieces.unk))
    writer.close()
    if unknown > _UNKNOWN * writer.wordpieces:
        say(
            f"{unknown / writer.wordpieces:.0%} of the wordpieces are unknown to the tokenizer: the model "
            "cannot see such words; use a "
            "model whose tokenizer knows their script, or train a tokenizer on them (realmlm corpus "
            "--train-tokenizer 16000)"
        )
    draft.config["max_wordpieces"] = max_wordpieces
    draft.counts |= {
        "passages": writer.passages,
        "articles": writer.articles,
        "wordpieces": writer.wordpieces,
    }
    draft.parents["tokenizer"] = wordpieces.fingerprint
    return writer


class _Faults:
    """What is done with bad input: raise it, or say it and count it."""

    def __init__(self, skip: bool) -> None:
        self._skip = skip
        self.count = 0

    def __call__(self, error: RealmError) -> None:
        if not self._skip:
            cure = ", or" if isinstance(error, MissingExtra) else "; correct it, or"
            raise type(error)(f"{error}{cure} leave such input out with --skip-bad") from None
        self.count += 1
        if self.count <= _SAID:
            say(f"left out: {error}")

    def conclude(self) -> None:
        if self.count:
            say(
                f"{self.count:,} pieces of bad input left out"
                + (f"; the first {_SAID} are listed above" if self.count > _SAID else "")
            )


def other_kinds(unknown: list[Path]) -> str:
    """What is said of files that no reader knows."""
    suffixes = Counter(path.suffix.lower() or path.name for path in unknown).most_common(8)
    return f"{counted(len(unknown), 'file')} of other kinds skipped: " + ", ".join(
        f"{suffix} {count}" for suffix, count in suffixes
    )


def _read(
    files: Sequence[SourceFile], what: str, on_bad: OnBad, on_guess: Callable[[str], None] = say
) -> Iterator[Article]:
    with progress(what, sum(file.path.stat().st_size for file in files), unit="bytes") as bar:
        yield from read_files(files, on_bad=on_bad, on_bytes=bar.advance, on_guess=on_guess)


def _train(files: Sequence[SourceFile], size: int, *, skip_bad: bool) -> Wordpieces:
    def on_bad(error: RealmError) -> None:
        if not skip_bad:
            _Faults(skip=False)(error)  # counted and said when the articles are read again to be cut

    articles = _read(files, "reading for the tokenizer", on_bad, on_guess=lambda text: None)
    texts = sample_texts((article.text for article in articles), most=_SAMPLE)
    if not texts:
        raise BadInput("there is no text to train a tokenizer on; name files or folders with text in them")
    say(
        f"training a tokenizer of {size:,} pieces on {len(texts):,} articles, {sum(map(len, texts)):,} "
        "characters"
    )
    pieces = Wordpieces.train(texts, size)
    if len(pieces) < size:
        say(f"the text has only {len(pieces):,} pieces worth keeping")
    return pieces


def sample_texts(texts: Iterable[str], *, most: int) -> list[str]:
    """Every 2^n-th text with the smallest n that keeps their characters to `most`, in one pass that never
    holds much more."""
    kept: list[str] = []
    size = 0
    step = 1
    for number, text in enumerate(texts):
        if number % step == 0:
            kept.append(text[:most])
            size += len(kept[-1])
            while size > most:
                kept = kept[::2]
                step = 2 * step
                size = sum(map(len, kept))
    return kept


# --- in parallel --------------------------------------------------------------------------------------------


def _cutter(tokenizer: str, max_wordpieces: int, kept: slice) -> Callable[[list[Article]], Block]:
    wordpieces = Wordpieces(Tokenizer.from_str(tokenizer))
    return partial(cut_articles, wordpieces=wordpieces, max_wordpieces=max_wordpieces, kept=kept)


def _chunks(articles: Iterable[Article]) -> Iterator[list[Article]]:
    chunk: list[Article] = []
    size = 0
    for article in articles:
        chunk.append(article)
        size += len(article.text)
        if size >= _CHUNK:
            yield chunk
            chunk = []
            size = 0
    if chunk:
        yield chunk
