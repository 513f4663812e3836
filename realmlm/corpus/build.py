"""Makes a corpus of articles: cut into passages on sentence borders, tokenised once, in bounded memory."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import closing
from functools import partial
from itertools import chain, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from realmlm.corpus.store import MAX_CHARACTERS, MAX_TITLE, Block, Corpus, SegmentWriter
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.defaults import ENGINE
from realmlm.errors import BadInput, MissingExtra, RealmError
from realmlm.log import counted, progress, say
from realmlm.parallel import default_workers, ordered_map
from realmlm.rows import rows
from realmlm.sentences import split_sentences
from realmlm.sources.article import Article
from realmlm.sources.bounds import PART
from realmlm.sources.columnar import Columns
from realmlm.sources.files import find_files
from realmlm.sources.readers import read_files
from realmlm.sources.reading import NoText, OnBad, SourceFile
from realmlm.storage.artefacts import Draft, publish
from realmlm.storage.remote import shown, size_of

if TYPE_CHECKING:  # settings need the command line's library, which asking does not
    from realmlm.settings import BuildCorpus

# P passages, A articles, T wordpieces

CHUNK = 500_000  # characters of the articles handed to a worker at once
_IN_PROCESS = 4  # with fewer chunks they are cut in this process, sooner than workers could start
_AT_ONCE = 2**18  # characters encoded at once: an Encoding takes some 200 bytes for each wordpiece
_LINES = 512  # and lines
_SAMPLE = 64_000_000  # characters a tokenizer is trained on at most
_UNKNOWN = 0.02  # share of unknown wordpieces above which the user is warned
_ROW = 3  # characters of a row for each wordpiece of a passage: it surely fits
_SHOWN = 20  # complaints shown one by one; the rest are counted


# --- cutting ------------------------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """A sentence, or a part of one that is too long for a passage: wordpieces [first, past) and characters
    [start, end) of the joined articles."""

    article: int
    first: int
    past: int
    start: int
    end: int


def cut_articles(
    articles: list[Article], wordpieces: Wordpieces, *, max_wordpieces: int, taken: slice = slice(None)
) -> Block:
    """Cut articles into passages, each of as many whole sentences as fit into `max_wordpieces`; a longer
    sentence is cut between words. `taken` says which passages of each document are wanted: articles in a row
    that come from one place are its sections.

    A passage's text is the article's from its first sentence to its last. Lines are tokenised one by one, so
    a passage's wordpieces are those of its text under any tokenizer that splits at white space (BERT's). One
    that marks the space before a word (byte-level, sentencepiece) may encode the first word of a line, or of
    a part of a word longer than a passage, otherwise when the passage is encoded alone. An article without a
    single wordpiece (of control characters, say) gives no passage.
    """
    text = "\n".join(article.text for article in articles)
    borders_A = np.cumsum([0] + [len(article.text) + 1 for article in articles])[:-1]
    lines = list(_lines(text))
    ids_T, chars_T2 = _tokenise(lines, wordpieces)
    continues_T = wordpieces.continues[ids_T] if len(ids_T) else ids_T
    sentences = list(_sentences(articles, lines, borders_A, longest=_ROW * max_wordpieces))
    pieces = _pieces(text, sentences, borders_A, chars_T2, continues_T, max_wordpieces)
    filled = (passage for passage in _fill(pieces, max_wordpieces) if passage[-1].past > passage[0].first)
    documents = list(_documents(articles))
    by_document = groupby(filled, key=lambda passage: documents[passage[0].article])
    passages = [passage for _, several in by_document for passage in islice(several, taken.start, taken.stop)]
    return _block(articles, text, passages, ids_T, chars_T2, wordpieces)


def _documents(articles: list[Article]) -> Iterator[int]:
    """The number of each article's document."""
    number = 0
    for place, article in enumerate(articles):
        number += not (article.source and article.source == articles[place - 1].source)
        yield number


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines and where they start. One too long for the character offsets of a passage is cut, if possible at
    a space."""
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
    """The id of each wordpiece, and its first and past-the-last character in the joined text."""
    ids: list[np.ndarray] = [np.zeros(0, np.int64)]
    chars: list[np.ndarray] = [np.zeros((0, 2), np.int64)]
    for some in _batches(lines):
        encodings = wordpieces.encode_batch([line for _, line in some])
        ids.append(np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int64))
        pairs = chain.from_iterable(encoding.offsets for encoding in encodings)
        local_T2 = np.fromiter(chain.from_iterable(pairs), np.int64).reshape(-1, 2)
        starts_T = np.repeat([start for start, _ in some], [len(encoding) for encoding in encodings])
        chars.append(local_T2 + starts_T[:, None])
    return np.concatenate(ids), np.concatenate(chars)


def _batches(lines: list[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Lines in batches of bounded size: a line may be as long as a passage's character offsets reach."""
    batch: list[tuple[int, str]] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line[1])
        if size >= _AT_ONCE or len(batch) == _LINES:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def _sentences(
    articles: list[Article], lines: list[tuple[int, str]], borders_A: np.ndarray, *, longest: int
) -> Iterator[tuple[int, int]]:
    """Where the sentences of the joined articles stand; a row of a table of at most so many characters is
    one."""
    for start, line in lines:
        if "; " in line and len(line) <= longest and any(rows(line)):
            article = articles[int(np.searchsorted(borders_A, start, side="right")) - 1]
            if article.has_rows:
                yield start, start + len(line)
                continue
        for first, past in split_sentences(line):
            yield start + first, start + past


def _pieces(
    text: str,
    spans: list[tuple[int, int]],
    borders_A: np.ndarray,
    chars_T2: np.ndarray,
    continues_T: np.ndarray,
    max_wordpieces: int,
) -> Iterator[_Piece]:
    """The sentences of the joined articles, which `spans` are, those that are too long in parts."""
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

    def begins_character(token: int) -> bool:  # byte-level tokenizers may use several wordpieces for one
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
        rules = (after_space, begins_word, begins_character)
        past = next((token for is_good in rules for token in choices if is_good(token)), choices[0])
        end = max(start, int(chars_T2[past, 0]))
        yield _Piece(piece.article, first, past, start, start + len(text[start:end].rstrip()))
        first = past
        start = piece.end - len(text[end : piece.end].lstrip())
    yield _Piece(piece.article, first, piece.past, start, piece.end)


def _fill(pieces: Iterable[_Piece], max_wordpieces: int) -> Iterator[list[_Piece]]:
    """Passages, each filled with the next pieces of its article while they fit."""
    passage: list[_Piece] = []
    for piece in pieces:
        head = passage[0] if passage else piece
        too_long = piece.past - head.first > max_wordpieces or piece.end - head.start > MAX_CHARACTERS
        if passage and (too_long or piece.article != head.article):
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
    numbers = sorted({passage[0].article for passage in passages})  # of the articles that gave a passage
    rows = {number: row for row, number in enumerate(numbers)}
    texts = [text[passage[0].start : passage[-1].end].encode() for passage in passages]
    titles = [articles[number].title for number in numbers]
    titles_utf_8 = [title.encode() for title in titles]
    sources = [articles[number].source.encode() for number in numbers]
    title_ids = [encoding.ids[:MAX_TITLE] for encoding in wordpieces.encode_batch(titles)]
    ids = [ids_T[passage[0].first : passage[-1].past] for passage in passages]
    chars = []
    starts = []
    for passage in passages:
        head = passage[0]
        last = passage[-1]
        chars.append(np.clip(chars_T2[head.first : last.past] - head.start, 0, last.end - head.start))
        starts.append([piece.first - head.first for piece in passage if piece.past > piece.first])
    return Block(
        texts=np.frombuffer(b"".join(texts), np.uint8),
        text_lengths=_lengths(texts),
        titles=np.frombuffer(b"".join(titles_utf_8), np.uint8),
        title_lengths=_lengths(titles_utf_8),
        sources=np.frombuffer(b"".join(sources), np.uint8),
        source_lengths=_lengths(sources),
        title_tokens=np.array(list(chain.from_iterable(title_ids)), wordpieces.dtype),
        title_token_lengths=_lengths(title_ids),
        articles=np.array([rows[passage[0].article] for passage in passages], np.int64),
        tokens=np.concatenate([ids_T[:0], *ids]).astype(wordpieces.dtype),
        token_lengths=_lengths(ids),
        token_chars=np.concatenate([chars_T2[:0], *chars]).astype(np.uint16),
        sentence_starts=np.array(list(chain.from_iterable(starts)), np.uint16),
        sentence_lengths=_lengths(starts),
    )


def _lengths(items: Sequence[Sized]) -> np.ndarray:
    return np.array([len(item) for item in items], np.int64)


# --- the whole corpus ---------------------------------------------------------------------------------------


def build_corpus(settings: "BuildCorpus") -> Corpus:
    """Read the sources, cut and tokenise them, and publish the corpus at `settings.out`: all of it, or
    nothing.

    A tokenizer is trained on every 2^n-th article, with the smallest n that gives at most 64 million
    characters. The result does not depend on the number of processes.
    """
    faults = _Faults(settings.skip_bad)
    with publish(settings.out, kind="corpus") as draft:
        columns = Columns(settings.text_column, settings.title_column, settings.id_column)
        files, unknown = find_files(settings.sources, on_bad=faults, columns=columns)
        if unknown:
            say(other_kinds(unknown))
        if settings.train_tokenizer is not None:
            wordpieces = _train(files, settings.train_tokenizer, skip_bad=settings.skip_bad)
            origin = f"trained on these sources, {settings.train_tokenizer} pieces asked for"
        else:
            place = Path(settings.tokenizer or "")
            wordpieces = Wordpieces.load(settings.tokenizer or "")
            origin = f"loaded from {place.name if place.exists() else settings.tokenizer}"
        articles = _read(files, "cutting", faults)
        first = settings.skip_passages
        past = None if settings.max_passages is None else first + settings.max_passages
        writer = write_articles(
            draft,
            articles,
            wordpieces,
            max_wordpieces=settings.max_wordpieces,
            taken=slice(first, past),
            workers=settings.workers or default_workers(),
            engine=settings.engine,
        )
        if not writer.passages:
            named = ", ".join(map(shown, settings.sources))
            raise BadInput(f"no passage could be made from {named}; name files or folders with text in them")
        draft.config |= {"sources": [source.name for source in settings.sources], "tokenizer": origin}
        draft.counts["skipped"] = faults.count
    faults.conclude()
    return Corpus.open(settings.out)


def write_articles(
    draft: Draft,
    articles: Iterable[Article],
    wordpieces: Wordpieces,
    *,
    max_wordpieces: int,
    taken: slice = slice(None),
    workers: int,
    engine: str = ENGINE,
) -> SegmentWriter:
    """Cut and tokenise articles into a corpus being written; its tokenizer, counts and limits are written,
    too. `taken` says which passages of each document are wanted."""
    wordpieces.save(draft.path / "tokenizer.json")
    writer = SegmentWriter(draft.path, token_dtype=wordpieces.dtype)
    setting = (wordpieces.tokenizer.to_str(), max_wordpieces, taken)
    unknown = 0
    chunks = _chunks(articles)
    cut = ordered_map(_cutter, setting, chunks, workers=workers, few=_IN_PROCESS, engine=engine)
    with closing(cut) as blocks:
        for block in blocks:
            writer.append(block)
            unknown += int(np.count_nonzero(block.tokens == wordpieces.unk))
    writer.close()
    if unknown > _UNKNOWN * writer.wordpieces:
        say(
            f"{unknown / writer.wordpieces:.0%} of the wordpieces are unknown to the tokenizer: the model "
            "cannot see such words; use a model whose tokenizer knows their script, or train a tokenizer on "
            "them (realmlm corpus --train-tokenizer 16000)"
        )
    draft.config["max_wordpieces"] = max_wordpieces
    draft.counts |= {name: getattr(writer, name) for name in ("passages", "articles", "wordpieces")}
    draft.parents["tokenizer"] = wordpieces.fingerprint
    return writer


class _Faults:
    """Deals with bad input: raises the complaint, or with `skip` shows and counts it, as what is empty."""

    def __init__(self, skip: bool) -> None:
        self._skip = skip
        self.count = 0

    def __call__(self, error: RealmError) -> None:
        if not self._skip and not isinstance(error, NoText):
            cure = ", or" if isinstance(error, MissingExtra) else "; correct it, or"
            raise type(error)(f"{error}{cure} leave such input out with --skip-bad") from None
        self.count += 1
        if self.count <= _SHOWN:
            say(f"left out: {error}")

    def conclude(self) -> None:
        if self.count:
            more = f"; the first {_SHOWN} are listed above" if self.count > _SHOWN else ""
            say(f"{self.count:,} pieces of bad input left out{more}")


def other_kinds(unknown: list[Path]) -> str:
    """A message about files that no reader knows: how many of which suffixes."""
    suffixes = Counter(path.suffix.lower() or path.name for path in unknown).most_common(8)
    listed = ", ".join(f"{suffix} {count}" for suffix, count in suffixes)
    return f"{counted(len(unknown), 'file')} of other kinds skipped: {listed}"


def _read(
    files: Sequence[SourceFile], what: str, on_bad: OnBad, on_guess: Callable[[str], None] = say
) -> Iterator[Article]:
    with progress(what, sum(size_of(file.path) for file in files), unit="bytes") as bar:
        yield from read_files(files, on_bad=on_bad, on_bytes=bar.advance, on_guess=on_guess)


def _train(files: Sequence[SourceFile], size: int, *, skip_bad: bool) -> Wordpieces:
    def on_bad(error: RealmError) -> None:
        if not skip_bad and not isinstance(error, NoText):
            _Faults(skip=False)(error)  # others are counted when the files are read again to be cut

    articles = _read(files, "reading for the tokenizer", on_bad, on_guess=lambda text: None)
    texts = sample_texts((article.text for article in articles), most=_SAMPLE)
    if not texts:
        raise BadInput("there is no text to train a tokenizer on; name files or folders with text in them")
    characters = sum(map(len, texts))
    say(f"training a tokenizer of {size:,} pieces on {len(texts):,} articles, {characters:,} characters")
    wordpieces = Wordpieces.train(texts, size)
    if len(wordpieces) < size:
        say(f"the text has only {len(wordpieces):,} pieces worth keeping")
    return wordpieces


def sample_texts(texts: Iterable[str], *, most: int) -> list[str]:
    """Every 2^n-th text, with the smallest n that gives at most `most` characters; found in one pass that
    never holds many more."""
    sample: list[str] = []
    size = 0
    step = 1
    for number, text in enumerate(texts):
        if number % step == 0:
            sample.append(text[:most])
            size += len(sample[-1])
            while size > most:
                sample = sample[::2]
                step = 2 * step
                size = sum(map(len, sample))
    return sample


# --- in parallel --------------------------------------------------------------------------------------------


def _cutter(tokenizer: str, max_wordpieces: int, taken: slice) -> Callable[[list[Article]], Block]:
    wordpieces = Wordpieces(Tokenizer.from_str(tokenizer))
    return partial(cut_articles, wordpieces=wordpieces, max_wordpieces=max_wordpieces, taken=taken)


def _chunks(articles: Iterable[Article]) -> Iterator[list[Article]]:
    chunk: list[Article] = []
    size = 0
    for article in articles:
        ends = not chunk or article.source != chunk[-1].source  # the document before it
        if size >= CHUNK and (ends or size >= PART):
            yield chunk
            chunk = []
            size = 0
        chunk.append(article)
        size += len(article.text)
    if chunk:
        yield chunk
