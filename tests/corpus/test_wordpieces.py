import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from realmlm.corpus.wordpieces import BERT_SPECIAL, Layout, Wordpieces, check_same_tokenizer
from realmlm.errors import BadInput, Mismatch

LETTERS = "abcdeft"
PIECES = [*LETTERS, *(f"##{letter}" for letter in LETTERS), ".", "fat", "##ed", "fe"]


def greedy(word: str, pieces: set[str]) -> list[str]:
    """WordPiece by its definition: the longest piece that fits, again and again, or nothing."""
    found: list[str] = []
    while word:
        mark = "##" if found else ""
        length = next((length for length in range(len(word), 0, -1) if mark + word[:length] in pieces), None)
        if length is None:
            return ["[UNK]"]
        found.append(mark + word[:length])
        word = word[length:]
    return found


@given(st.lists(st.text(alphabet=LETTERS + "z", min_size=1, max_size=8), max_size=6))
def test_encode_is_greedy_longest_match(words):
    wordpieces = Wordpieces.from_pieces(PIECES)
    numbers = {piece: number for number, piece in enumerate([*BERT_SPECIAL, *PIECES])}
    expected = [numbers[piece] for word in words for piece in greedy(word, set(PIECES))]
    assert wordpieces.encode(" ".join(words)).tolist() == expected
    assert wordpieces.encode(" ".join(words).upper()).tolist() == expected


def test_special_tokens_are_found_and_kept_in_text():
    wordpieces = Wordpieces.from_pieces(PIECES)
    assert [wordpieces.pad, wordpieces.unk, wordpieces.cls, wordpieces.sep, wordpieces.mask] == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert wordpieces.encode("a [MASK] b").tolist()[1] == wordpieces.mask
    with pytest.raises(BadInput, match="no cls token"):
        Wordpieces(Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")))


def test_continues_marks_inner_pieces():
    wordpieces = Wordpieces.from_pieces(PIECES)
    pieces = [*BERT_SPECIAL, *PIECES]
    assert wordpieces.continues.tolist() == [piece.startswith("##") for piece in pieces]


def test_what_makes_a_word_longer():
    """Byte-level vocabularies do not mark punctuation, nor the words of a writing without spaces."""
    wordpieces = Wordpieces.from_pieces(PIECES)
    assert (wordpieces.lengthens == wordpieces.continues).all()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    pieces = dict.fromkeys([*BERT_SPECIAL, *alphabet, "ĠBerlin", "er", "12"])
    level = Tokenizer(
        models.BPE({piece: number for number, piece in enumerate(pieces)}, [], unk_token="[UNK]")
    )
    level.decoder = decoders.ByteLevel()
    level.add_special_tokens([*BERT_SPECIAL])
    wordpieces = Wordpieces(level)
    for piece, longer in (
        ("er", True),
        ("12", True),
        ("B", True),
        (".", False),
        ("ĠBerlin", False),
        ("ä", False),
    ):
        number = level.token_to_id(piece)
        assert wordpieces.lengthens[number] == longer, piece
        assert wordpieces.continues[number] == (piece != "ĠBerlin")


def test_save_and_load_keep_the_fingerprint(tmp_path):
    wordpieces = Wordpieces.from_pieces(PIECES)
    wordpieces.save(tmp_path / "tokenizer.json")
    for source in (tmp_path, tmp_path / "tokenizer.json", str(tmp_path)):
        check_same_tokenizer(wordpieces, Wordpieces.load(source), first_name="a", second_name="b")
    with pytest.raises(Mismatch, match="b"):
        check_same_tokenizer(wordpieces, Wordpieces.from_pieces(PIECES[:-1]), first_name="a", second_name="b")


def test_loading_what_is_no_tokenizer(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadInput, match="not a tokenizers file"):
        Wordpieces.load(tmp_path)


def test_a_revision_is_asked_for_and_said(tmp_path, monkeypatch, capsys):
    commit = tmp_path / "0123abc"
    commit.mkdir()
    Wordpieces.from_pieces(PIECES).save(commit / "tokenizer.json")
    asked = []

    def fetch(name, file, *, revision):
        asked.append((name, revision))
        return str(commit / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetch)
    Wordpieces.load("someone/encoder@v1.2")
    assert capsys.readouterr().err == ""
    Wordpieces.load("someone/encoder")
    assert "name someone/encoder@0123abc" in capsys.readouterr().err
    assert asked == [("someone/encoder", "v1.2"), ("someone/encoder", "main")]


def test_ids_fit_the_dtype():
    assert Wordpieces.from_pieces(PIECES).dtype is np.uint16


TRAINING = """
import random
from realmlm.corpus.wordpieces import Wordpieces
choice = random.Random(0)
words = ["".join(choice.choices("abcdefghijklmnop", k=choice.randint(1, 9))) for _ in range(800)]
texts = [" ".join(choice.choices(words, k=30)) for _ in range(60)] + ["x" + chr(0x400 + i) + chr(0x1200 + i) for i in range(300)]
print(Wordpieces.train(texts, 1200).fingerprint)
"""


def test_training_gives_the_same_pieces_in_every_process():
    runs = [
        subprocess.run([sys.executable, "-c", TRAINING], capture_output=True, text=True, check=True).stdout
        for _ in range(3)
    ]
    assert len(set(runs)) == 1


def test_training_has_the_size_asked_for_and_knows_its_text():
    choice = random.Random(1)
    words = ["".join(choice.choices("abcdefgh", k=choice.randint(2, 7))) for _ in range(300)]
    texts = [" ".join(choice.choices(words, k=40)) for _ in range(50)]
    wordpieces = Wordpieces.train(texts, 200)
    assert len(wordpieces) == 200
    assert all(wordpieces.unk not in wordpieces.encode(text) for text in texts)
    assert wordpieces.decode(wordpieces.encode(texts[0])) == texts[0]


def test_mask_stands_for_the_tokenizers_own_mask() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {
        token: number
        for number, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", "it", "lies", "in"])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<mask>"])
    wordpieces = Wordpieces(tokenizer)
    assert wordpieces.encode_query("it lies in [MASK]").tolist() == [5, 6, 7, 4]


def written(template: str, pair: str, special: list[str]) -> Wordpieces:
    tokenizer = Tokenizer(
        models.WordLevel({token: number for number, token in enumerate([*special, "it"])}, unk_token="<unk>")
    )
    tokenizer.add_special_tokens(special)
    ids = [(token, number) for number, token in enumerate(special)]
    tokenizer.post_processor = processors.TemplateProcessing(template, pair, ids)
    return Wordpieces(tokenizer)


def test_layouts_are_read_off_the_post_processor():
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "[MASK]", "<cls>", "<sep>"]
    roberta = written("<s> $A </s>", "<s> $A </s> </s> $B </s>", special)
    assert roberta.single == Layout(((0, 0),), (), ((2, 0),), first=0, second=0, cls=0)
    assert roberta.pair == Layout(((0, 0),), ((2, 0), (2, 0)), ((2, 0),), first=0, second=0, cls=0)
    assert (roberta.cls, roberta.sep, roberta.mask, roberta.segments) == (0, 2, 4, 1)
    xlnet = written("$A <sep> <cls>:2", "$A <sep> $B:1 <sep>:1 <cls>:2", special)
    assert xlnet.pair == Layout((), ((7, 0),), ((7, 1), (6, 2)), first=0, second=1, cls=-1)
    assert (xlnet.cls, xlnet.sep, xlnet.segments) == (6, 7, 3), "not <s> and </s>, which it has as well"
    t5 = written("$A </s>", "$A </s> $B </s>", ["<pad>", "</s>", "<unk>", "<extra_id_0>"])
    assert (t5.cls, t5.single.cls, t5.mask) == (None, None, 3)


def test_without_a_post_processor_inputs_are_written_as_bert_writes_them():
    wordpieces = Wordpieces.from_pieces(PIECES)
    plain = (wordpieces.single, wordpieces.pair)
    wordpieces.tokenizer.post_processor = processors.BertProcessing(("[SEP]", wordpieces.sep), ("[CLS]", 2))
    bert = Wordpieces(wordpieces.tokenizer)
    assert plain == (bert.single, bert.pair)


def test_a_vocabulary_that_marks_no_words_continues_none():
    wordpieces = written("<s> $A </s>", "<s> $A </s> $B </s>", ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    assert not wordpieces.continues.any()


def test_a_folder_with_a_list_of_pieces_alone_is_a_tokenizer_too(tmp_path: Path) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "her", "##on", "Her"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", "utf-8")
    for place in (tmp_path, tmp_path / "vocab.txt"):
        assert Wordpieces.load(place).encode("Heron heron").tolist() == [5, 6, 5, 6]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}', "utf-8")
    assert Wordpieces.load(tmp_path).encode("Heron heron").tolist() == [7, 6, 5, 6]
    (tmp_path / "tokenizer_config.json").write_text("{", "utf-8")
    with pytest.raises(BadInput, match=r"tokenizer_config\.json cannot be read as JSON"):
        Wordpieces.load(tmp_path)
