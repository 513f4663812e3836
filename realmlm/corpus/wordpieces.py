"""Wordpieces: text to ids and back, with the special tokens that the tokenizer's family of models uses."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import Encoding, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from realmlm.errors import BadInput, Mismatch
from realmlm.hub import say_revision, split_revision

_SPECIAL = {
    "cls": ("[CLS]", "<s>", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>"),
    "mask": ("[MASK]", "<mask>", "<special1>", "<extra_id_0>"),  # the last two are XLM's and T5's
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
}
_ALPHABET = 1000  # characters a trained vocabulary may spell with
BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


Specials = tuple[tuple[int, int], ...]
"""Special tokens in a row, each with its segment id."""


@dataclass(frozen=True)
class Layout:
    """How a family of models writes one text or two: the special tokens around them and the segment ids."""

    before: Specials
    between: Specials
    after: Specials
    first: int = 0  # segment id of the first text
    second: int = 1  # and of the second
    cls: int | None = None  # position of the token whose vector stands for the whole; negative: from the end

    @cached_property
    def special(self) -> int:
        """How many special tokens there are."""
        return len(self.before) + len(self.between) + len(self.after)


class Wordpieces:
    """A tokenizer as REALM needs it: texts become plain pieces with character offsets, and special tokens are
    added separately.

    `single` and `pair` say how one text and two are written: as the tokenizer's own post-processor does, or
    as BERT does if it has none.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        tokenizer.no_truncation()
        tokenizer.no_padding()
        own = self._own_layouts()
        self.cls: int | None
        if own is None:
            self.cls = self._special("cls")
            self.sep = self._special("sep")
            start = ((self.cls, 0),)
            end = ((self.sep, 0),)
            self.single = Layout(start, (), end, second=0, cls=0)
            self.pair = Layout(start, end, ((self.sep, 1),), cls=0)
        else:
            self.single, self.pair, self.cls, self.sep = own
        style = str(self.tokenizer.id_to_token(self.sep))[0]  # LUKE has <mask> for words, [MASK] for entities
        self.mask, self.pad, self.unk = (self._special(role, style) for role in ("mask", "pad", "unk"))

    def _special(self, role: str, style: str = "[") -> int:
        """The id of the special token for a role, preferably one that begins with `style`."""
        for token in sorted(_SPECIAL[role], key=lambda token: token[0] != style):
            number = self.tokenizer.token_to_id(token)
            if number is not None:
                return int(number)
        missing = f"the tokenizer has no {role} token (looked for {', '.join(_SPECIAL[role])})"
        raise BadInput(f"{missing}; masked language models need one: use another")

    def _own_layouts(self) -> tuple[Layout, Layout, int | None, int] | None:
        """How the tokenizer's post-processor writes one text and two, its cls token if it has one, and its
        separator; None if it has no post-processor."""
        masks = (token for token in _SPECIAL["mask"] if self.tokenizer.token_to_id(token) is not None)
        any_text = next(masks, "a")
        (one, first, _) = self._around(any_text)
        (two, _, second) = self._around(any_text, any_text)
        separators = [token for token, _ in two[1] or two[2]]
        if not separators:
            return None
        cls = next((token for token, _ in (*one[0], *one[1]) if token not in separators), None)
        single = Layout(one[0], (), one[1], first, first, _place(cls, one[0], one[1]))
        pair = Layout(two[0], two[1], two[2], first, second, _place(cls, two[0], two[2]))
        return single, pair, cls, separators[0]

    def _around(self, first: str, second: str | None = None) -> tuple[list[Specials], int, int]:
        """The special tokens before, between and after the texts, and the segment ids of the first and the
        last text."""
        encoding = self.tokenizer.encode(first, second)
        parts: list[list[tuple[int, int]]] = [[], []] if second is None else [[], [], []]
        segments = [0] * (len(parts) - 1)
        texts_before = 0
        for token, segment, text in zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True):
            if text is None:
                parts[texts_before].append((token, segment))
            else:
                texts_before = text + 1
                segments[text] = segment
        return [tuple(part) for part in parts], segments[0], segments[-1]

    @property
    def segments(self) -> int:
        """How many segment ids there are."""
        specials = (*self.pair.before, *self.pair.between, *self.pair.after)
        return 1 + max(self.pair.first, self.pair.second, *(segment for _, segment in specials))

    @classmethod
    def load(cls, source: str | Path) -> "Wordpieces":
        """The tokenizer in a `tokenizer.json` or BERT's `vocab.txt`, in a folder that has one, or of a
        model on the hub."""
        file = Path(source)
        if file.is_dir():
            named = (file / name for name in ("tokenizer.json", "vocab.txt"))
            file = next((one for one in named if one.is_file()), file / "tokenizer.json")
        is_file = file.is_file()
        if file.suffix == ".txt":
            return _of_list(file)
        try:
            if is_file:
                return cls(Tokenizer.from_file(str(file)))
            return cls(Tokenizer.from_file(str(_fetched(str(source)))))
        except BadInput:
            raise
        except Exception as error:  # the Rust library raises bare Exception
            if is_file:
                cure = "name another, or train one with --train-tokenizer 16000"
                raise BadInput(f"{file} is not a tokenizers file ({error}); {cure}") from error
            raise BadInput(
                f"no tokenizer at '{source}': it is neither a file, nor a folder with tokenizer.json, nor a "
                f"model that can be fetched ({type(error).__name__}); train one on your own text with "
                "--train-tokenizer 16000"
            ) from error

    @classmethod
    def train(cls, texts: Iterable[str], size: int) -> "Wordpieces":
        """A lower-casing WordPiece tokenizer of about `size` pieces, learned from `texts` (held in memory);
        the same in every process.

        The library's trainer breaks ties by numbers that it gives to pieces in the order of a hash table, so
        it chose other pieces in each process. Told which characters to use, and given the pieces of one
        character as numbered tokens, it has no such choice left.
        """
        texts = list(texts)
        learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        learner.normalizer = normalizers.BertNormalizer(lowercase=True)
        split = pre_tokenizers.BertPreTokenizer()
        learner.pre_tokenizer = split
        alphabet = _alphabet(texts, learner, size=min(_ALPHABET, size // 4))
        inner = [f"##{letter}" for letter in alphabet if len(split.pre_tokenize_str(f"a{letter}")) == 1]
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            special_tokens=[*BERT_SPECIAL, *inner],
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        )
        learner.train_from_iterator(texts, trainer)
        return cls.from_pieces(sorted(set(learner.get_vocab()) - set(BERT_SPECIAL)))

    @classmethod
    def from_pieces(cls, pieces: Iterable[str]) -> "Wordpieces":
        """A lower-casing WordPiece tokenizer with exactly these pieces after BERT's five special tokens."""
        return cls.from_list([*BERT_SPECIAL, *pieces])

    @classmethod
    def from_list(
        cls,
        pieces: Sequence[str],
        *,
        lowercase: bool = True,
        accents: bool | None = None,
        chinese: bool = True,
    ) -> "Wordpieces":
        """BERT's tokenizer with these pieces, special tokens among them, numbered in this order.

        `accents` says whether accents are removed (None: if it lower-cases), `chinese` whether each Chinese
        character is a word.
        """
        vocabulary = {piece: number for number, piece in enumerate(pieces)}
        tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
        tokenizer.normalizer = normalizers.BertNormalizer(
            lowercase=lowercase, strip_accents=accents, handle_chinese_chars=chinese
        )
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        tokenizer.add_special_tokens([token for token in BERT_SPECIAL if token in vocabulary])
        return cls(tokenizer)

    def save(self, file: Path) -> None:
        """Write it as a `tokenizer.json`."""
        self.tokenizer.save(str(file))

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the vocabulary and its rules."""
        record = json.loads(self.tokenizer.to_str())
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        """The smallest type that holds every id."""
        return np.uint16 if len(self) <= 2**16 else np.uint32

    def encode(self, text: str) -> np.ndarray:
        """Ids of a text, without special tokens around it; special tokens written in it ([MASK]) stay."""
        return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)

    def encode_query(self, text: str) -> np.ndarray:
        """Ids of a question or sentence in which [MASK] stands for this tokenizer's own mask token."""
        return self.encode(self._with_mask(text))

    def encode_queries(self, texts: list[str]) -> list[np.ndarray]:
        """The same for several, made in parallel if the library may."""
        encodings = self.encode_batch([self._with_mask(text) for text in texts])
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    def _with_mask(self, text: str) -> str:
        return text.replace("[MASK]", str(self.tokenizer.id_to_token(self.mask)))

    def encode_batch(self, texts: list[str]) -> list[Encoding]:
        """Encodings with ids and character offsets, made in parallel if the library may."""
        return list(self.tokenizer.encode_batch(texts, add_special_tokens=False))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without special tokens."""
        return str(self.tokenizer.decode([int(number) for number in ids], skip_special_tokens=True)).strip()

    @cached_property
    def continues(self) -> np.ndarray:
        """For every id: is it a piece that continues the word before it?"""
        ids = self.tokenizer.get_vocab(with_added_tokens=True)
        flags = [piece.startswith("##") for piece in ids]
        if not any(flags):
            # byte-level and sentencepiece vocabularies mark the beginning of a word instead; others, nothing
            begins = [piece.startswith(("Ġ", "▁")) for piece in ids]
            flags = [not begin for begin in begins] if any(begins) else begins
        table = np.zeros(max(ids.values()) + 1, dtype=bool)
        table[list(ids.values())] = flags
        special = (self.cls, self.sep, self.mask, self.pad, self.unk)
        table[[number for number in special if number is not None]] = False
        return table

    @cached_property
    def lengthens(self) -> np.ndarray:
        """For every id: is the word before it only a part of a longer one? So says a piece that continues;
        where only beginnings are marked, one that begins with a letter of two cases or a digit, for
        punctuation and the words of a writing without spaces have no mark either."""
        if any(piece.startswith("##") for piece in self.tokenizer.get_vocab(with_added_tokens=True)):
            return self.continues
        table = self.continues.copy()
        for number in np.flatnonzero(table).tolist():
            first = self.tokenizer.decode([number])[:1]
            table[number] = first.isdigit() or first.lower() != first.upper()
        return table


def _place(cls: int | None, before: Specials, after: Specials) -> int | None:
    """The position of the cls token, counted from the end if it comes after the texts."""
    tokens_before = [token for token, _ in before]
    tokens_after = [token for token, _ in after]
    if cls in tokens_before:
        return tokens_before.index(cls)
    return tokens_after.index(cls) - len(tokens_after) if cls in tokens_after else None


def _alphabet(texts: Iterable[str], tokenizer: Tokenizer, *, size: int) -> list[str]:
    """The `size` most frequent characters after normalisation, ties to the smaller code point."""
    raw: Counter[str] = Counter()
    for text in texts:
        raw.update(text)
    counts: Counter[str] = Counter()
    for letter, count in raw.items():
        for normal in tokenizer.normalizer.normalize_str(letter):
            if not normal.isspace():
                counts[normal] += count
    return sorted(sorted(counts, key=lambda letter: (-counts[letter], letter))[:size])


def check_same_tokenizer(first: Wordpieces, second: Wordpieces, *, first_name: str, second_name: str) -> None:
    """Raise if two things that are to work together, such as a corpus and a model, differ in tokenizer."""
    if first.fingerprint != second.fingerprint:
        raise Mismatch(
            f"{first_name} and {second_name} were made with different tokenizers; make the corpus again with "
            f"--tokenizer {second_name}, or use a model that was trained with the corpus's own"
        )


def _fetched(source: str) -> Path:
    """The `tokenizer.json` of a model on the hub, at the revision that is named."""
    from huggingface_hub import hf_hub_download

    name, revision = split_revision(source)
    file = Path(hf_hub_download(name, "tokenizer.json", revision=revision))
    say_revision(source, file.parent.name)
    return file


def _of_list(file: Path) -> Wordpieces:
    """BERT's tokenizer from its list of pieces, one on each line, with the settings of a
    `tokenizer_config.json` beside it."""
    try:
        pieces = file.read_text("utf-8-sig").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} cannot be read as a list of wordpieces ({type(error).__name__})") from error
    if "[UNK]" not in pieces or len(set(pieces)) != len(pieces):
        raise BadInput(
            f"{file} is no list of BERT's wordpieces: it has no [UNK], or a piece twice; name another"
        )
    beside = file.with_name("tokenizer_config.json")
    try:
        settings = json.loads(beside.read_text("utf-8")) if beside.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{beside} cannot be read as JSON ({type(error).__name__}); fetch it again") from error
    if not isinstance(settings, dict):
        raise BadInput(f"{beside} holds no JSON object; fetch it again")
    lowercase = settings.get("do_lower_case", True)
    accents = settings.get("strip_accents")
    return Wordpieces.from_list(
        pieces,
        lowercase=lowercase is not False,
        accents=accents if isinstance(accents, bool) else None,
        chinese=settings.get("tokenize_chinese_chars", True) is not False,
    )
