"""Wordpieces: text to ids and back, with the special tokens of the tokenizer's own family."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import Encoding, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from realmlm.errors import BadInput, Mismatch

_SPECIAL = {
    "cls": ("[CLS]", "<s>", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
}
_ALPHABET = 1000  # characters a trained vocabulary may spell with
BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class Wordpieces:
    """A `tokenizers` tokenizer seen as REALM needs it: plain pieces with character offsets, special tokens apart."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.cls, self.sep, self.mask, self.pad, self.unk = (self._special(role) for role in _SPECIAL)

    def _special(self, role: str) -> int:
        for token in _SPECIAL[role]:
            number = self.tokenizer.token_to_id(token)
            if number is not None:
                return int(number)
        raise BadInput(
            f"the tokenizer has no {role} token (looked for {', '.join(_SPECIAL[role])}); masked language models need one: use another"
        )

    @classmethod
    def load(cls, source: str | Path) -> "Wordpieces":
        """From a `tokenizer.json`, a folder that holds one, or the name of a model on the hub."""
        file = Path(source)
        if file.is_dir():
            file = file / "tokenizer.json"
        if file.is_file():
            try:
                return cls(Tokenizer.from_file(str(file)))
            except BadInput:
                raise
            except Exception as error:  # the Rust library raises bare Exception
                raise BadInput(
                    f"{file} is not a tokenizers file ({error}); name another, or train one with --train-tokenizer 16000"
                ) from error
        try:
            return cls(Tokenizer.from_pretrained(str(source)))
        except BadInput:
            raise
        except Exception as error:
            raise BadInput(
                f"no tokenizer at '{source}': it is neither a file, nor a folder with tokenizer.json, nor a model that can be fetched "
                f"({type(error).__name__}); train one on your own text with --train-tokenizer 16000"
            ) from error

    @classmethod
    def train(cls, texts: Iterable[str], size: int) -> "Wordpieces":
        """A lower-casing WordPiece vocabulary of about `size` pieces, learned from `texts` (held in memory): the same in every process.

        The library's trainer breaks ties by numbers it gives to pieces in the order of a hash table, and so chose other pieces in
        each process. Given the characters it may use, and the pieces of one character as numbered tokens, it has no such choice left.
        """
        texts = list(texts)
        learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        learner.normalizer = normalizers.BertNormalizer(lowercase=True)
        learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        alphabet = _alphabet(texts, learner, size=min(_ALPHABET, size // 4))
        inner = [f"##{letter}" for letter in alphabet if len(learner.pre_tokenizer.pre_tokenize_str(f"a{letter}")) == 1]
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
        vocabulary = {piece: number for number, piece in enumerate([*BERT_SPECIAL, *pieces])}
        tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        tokenizer.add_special_tokens(list(BERT_SPECIAL))
        return cls(tokenizer)

    def save(self, file: Path) -> None:
        self.tokenizer.save(str(file))

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the vocabulary and its rules."""
        record = json.loads(self.tokenizer.to_str())
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        """The smallest type that holds every id."""
        return np.uint16 if len(self) <= 2**16 else np.uint32

    def encode(self, text: str) -> np.ndarray:
        """Ids of a text, without special tokens around it; special tokens written in the text ([MASK]) are kept."""
        return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)

    def encode_query(self, text: str) -> np.ndarray:
        """Ids of a question or sentence in which [MASK] stands for this tokenizer's own mask token."""
        return self.encode(text.replace("[MASK]", str(self.tokenizer.id_to_token(self.mask))))

    def encode_batch(self, texts: list[str]) -> list[Encoding]:
        """Encodings with ids and character offsets, in parallel where the library may."""
        return list(self.tokenizer.encode_batch(texts, add_special_tokens=False))

    def decode(self, ids: Iterable[int]) -> str:
        return str(self.tokenizer.decode([int(number) for number in ids], skip_special_tokens=True))

    @cached_property
    def continues(self) -> np.ndarray:
        """For every id: is it a piece that goes on with the word before it?"""
        pieces = sorted(self.tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
        names = [piece for piece, _ in pieces]
        if any(piece.startswith("##") for piece in names):
            flags = [piece.startswith("##") for piece in names]
        else:  # byte-level and sentencepiece vocabularies mark the beginning of a word instead
            flags = [not piece.startswith(("Ġ", "▁")) for piece in names]
        table = np.zeros(max(number for _, number in pieces) + 1, dtype=bool)
        table[[number for _, number in pieces]] = flags
        table[[self.cls, self.sep, self.mask, self.pad, self.unk]] = False
        return table


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
    if first.fingerprint != second.fingerprint:
        raise Mismatch(
            f"{first_name} and {second_name} were made with different tokenizers; make the corpus again with --tokenizer {second_name}, "
            f"or use a model that was trained with the corpus's own"
        )
