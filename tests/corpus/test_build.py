import gzip
import json
import multiprocessing
import re
import signal
import subprocess
import sys
import time
from itertools import accumulate, chain, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Encoding, Tokenizer, decoders, models, pre_tokenizers

from realmlm.corpus import build
from realmlm.corpus.build import cut_articles, sample_texts
from realmlm.corpus.store import MAX_CHARACTERS, Block
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import ArtefactExists, BadInput, MissingExtra
from realmlm.sentences import split_sentences
from realmlm.sources.article import Article
from realmlm.storage.artefacts import MANIFEST
from tests.calls import build_corpus

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
WORDPIECES = Wordpieces.from_pieces(
    [*LETTERS, *(f"##{letter}" for letter in LETTERS), *".!?,()\"'-。中文", "the", "##er", "ri", "##ver"]
)


def byte_level() -> Wordpieces:
    """A tokenizer that sees bytes: several wordpieces a character, the space before a word its own piece."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {
        piece: number for number, piece in enumerate(["<s>", "</s>", "<pad>", "<unk>", "<mask>", *letters])
    }
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return Wordpieces(tokenizer)


SENTENCES = st.lists(
    st.sampled_from(
        [
            "The river ran.",
            "Abc.",
            "He saw 3.14 m.",
            "中文。",
            "(Why?)",
            "a\n",
            "\n",
            "\n\u200b\n",
            "No!",
            "Über Weg!",
            "\u00a0",
        ]
    ),
    max_size=25,
)
PROSE = SENTENCES.map(" ".join)
ODD = st.text(alphabet=st.sampled_from(list("abA.!? \n\r\t中。🙂é\u0301\u200b\u00a0-")), max_size=120)
TEXTS = PROSE | ODD


def texts_of(block: Block) -> list[str]:
    ends = [0, *accumulate(block.text_lengths.tolist())]
    return [bytes(block.texts[start:end]).decode() for start, end in pairwise(ends)]


def cut(flat: np.ndarray, lengths: np.ndarray) -> list[list]:
    return [part.tolist() for part in np.split(flat, np.cumsum(lengths)[:-1])] if len(lengths) else []


def plain_cut(text: str, most: int) -> list[tuple[str, list[list[int]]]]:
    """The truth for texts without too long sentences: text and sentences of each passage, one sentence at a
    time."""
    passages: list[tuple[int, int, list[list[int]]]] = []
    for start, end in split_sentences(text):
        tokens = WORDPIECES.encode(text[start:end]).tolist()
        if passages and sum(map(len, passages[-1][2])) + len(tokens) <= most:
            passages[-1] = (passages[-1][0], end, [*passages[-1][2], tokens])
        else:
            passages.append((start, end, [tokens]))
    return [
        (text[start:end], [tokens for tokens in sentences if tokens])
        for start, end, sentences in passages
        if any(sentences)
    ]


@given(st.lists(PROSE, max_size=4), st.integers(14, 60))
def test_cutting_agrees_with_one_sentence_at_a_time(texts, most):
    block = cut_articles(
        [Article(f"t{number}", text) for number, text in enumerate(texts)], WORDPIECES, max_wordpieces=most
    )
    expected = [plain_cut(text, most) for text in texts]
    assume(
        all(len(tokens) <= most for passages in expected for _, sentences in passages for tokens in sentences)
    )
    assert texts_of(block) == [text for passages in expected for text, _ in passages]
    tokens = cut(block.tokens, block.token_lengths)
    assert tokens == [
        list(chain.from_iterable(sentences)) for passages in expected for _, sentences in passages
    ]
    starts = [
        [0, *accumulate(map(len, sentences))][:-1] for passages in expected for _, sentences in passages
    ]
    assert cut(block.sentence_starts, block.sentence_lengths) == starts
    kept = [passages for passages in expected if passages]
    assert block.articles.tolist() == [number for number, passages in enumerate(kept) for _ in passages]
    titles = (
        [bytes(title).decode() for title in np.split(block.titles, np.cumsum(block.title_lengths)[:-1])]
        if kept
        else []
    )
    assert titles == [f"t{number}" for number, passages in enumerate(expected) if passages]


@given(TEXTS, st.integers(2, 40))
def test_passages_hold_everything_in_order_and_are_encoded_as_themselves(text, most):
    block = cut_articles([Article("", text)], WORDPIECES, max_wordpieces=most)
    passages = texts_of(block)
    assert (block.token_lengths <= most).all()
    assert (block.token_lengths > 0).all()
    assert all(passage == passage.strip() for passage in passages)
    if passages:
        assert "".join("".join(passages).split()) == "".join(text.split())
    encodings = WORDPIECES.encode_batch(passages)
    tokens = cut(block.tokens, block.token_lengths)
    chars = cut(block.token_chars, block.token_lengths)
    for passage, ids, pairs, encoding in zip(passages, tokens, chars, encodings, strict=True):
        # no word was cut
        if not WORDPIECES.continues[ids[0]] and max(map(len, passage.split())) <= most // 2:
            assert ids == encoding.ids
            assert [tuple(pair) for pair in pairs] == encoding.offsets


@given(TEXTS, st.integers(8, 40))
def test_a_byte_level_tokenizer_loses_nothing_either(text, most):
    wordpieces = byte_level()
    block = cut_articles([Article("", text)], wordpieces, max_wordpieces=most)
    passages = texts_of(block)
    assert "".join("".join(passages).split()) == "".join(text.split())
    assert (block.token_lengths <= most).all()
    decoded = ["".join(wordpieces.decode(ids).split()) for ids in cut(block.tokens, block.token_lengths)]
    assert decoded == ["".join(passage.split()) for passage in passages]
    for passage, pairs in zip(passages, cut(block.token_chars, block.token_lengths), strict=True):
        assert all(0 <= start <= end <= len(passage) for start, end in pairs)


@pytest.mark.parametrize(
    "text",
    ["a" * 200_000, "ab " * 60_000, "x " + "中" * 70_000, " " * 70_000 + "a", "\u200b" * 70_000 + " a"],
)
def test_passages_stay_within_character_offsets(text):
    block = cut_articles([Article("", text)], WORDPIECES, max_wordpieces=2**16 - 1)
    passages = texts_of(block)
    assert max(map(len, passages)) <= MAX_CHARACTERS
    for passage, pairs in zip(passages, cut(block.token_chars, block.token_lengths), strict=True):
        assert pairs[-1][1] <= len(passage)
    visible = "".join(text.split()).replace("\u200b", "")
    assert "".join("".join(passages).split()).replace("\u200b", "") == visible


def test_nothing_gives_an_empty_block():
    for articles in ([], [Article("t", "")], [Article("t", "\u200b \n")]):
        block = cut_articles(articles, WORDPIECES, max_wordpieces=8)
        assert len(block.articles) == len(block.titles) == len(block.tokens) == 0
        assert block.token_chars.shape == (0, 2)


def test_titles_are_cut_short():
    block = cut_articles([Article("a " * 50, "b")], WORDPIECES, max_wordpieces=8)
    assert block.title_token_lengths.tolist() == [32]


@given(st.lists(st.text(max_size=9), max_size=40), st.integers(9, 60))
def test_samples_are_evenly_spread_and_as_large_as_may_be(texts, most):
    kept = sample_texts(texts, most=most)
    steps = [step for step in (1, 2, 4, 8, 16, 32, 64) if sum(map(len, texts[::step])) <= most]
    assert kept == texts[:: steps[0]]


# --- whole corpora ------------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path) -> Path:
    path = tmp_path / "notes.jsonl"
    lines = [
        {
            "id": n,
            "title": f"Note {n}",
            "text": f"River {n} runs to the sea. It is {n} km long.\nNobody swims in it.",
        }
        for n in range(60)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def test_a_corpus_holds_its_articles_and_does_not_depend_on_workers(tmp_path, source, monkeypatch):
    whole = build_corpus([source], tmp_path / "whole", train_tokenizer=150, max_wordpieces=16)
    monkeypatch.setattr(build, "CHUNK", 300)
    for workers in (1, 2):
        build_corpus(
            [source], tmp_path / f"{workers}", train_tokenizer=150, max_wordpieces=16, workers=workers
        )
        assert files_of(tmp_path / f"{workers}") == files_of(tmp_path / "whole")
        assert not multiprocessing.active_children()
    manifest = whole.manifest
    assert manifest.config["sources"] == ["notes.jsonl"]
    wordpieces = sum(len(whole.tokens(number)) for number in whole.ids)
    assert manifest.counts == {"passages": len(whole), "articles": 60, "wordpieces": wordpieces, "skipped": 0}
    assert manifest.parents == {"tokenizer": whole.wordpieces.fingerprint}
    assert whole[0].title == "Note 0"
    assert whole[0].source == "notes.jsonl#0"
    together = " ".join(whole[number].text for number in whole.ids if whole[number].title == "Note 7")
    assert together == "River 7 runs to the sea. It is 7 km long. Nobody swims in it."


def test_bad_input_leaves_nothing_or_is_counted(tmp_path, source, capsys):
    with open(source, "a") as stream:
        stream.write("broken\n")
    WORDPIECES.save(tmp_path / "tokenizer.json")
    before = set(tmp_path.iterdir())
    for options in ({"train_tokenizer": 150}, {"tokenizer": str(tmp_path / "tokenizer.json")}):
        with pytest.raises(BadInput, match=r"notes\.jsonl, line 61: .*--skip-bad"):
            build_corpus([source], tmp_path / "out", **options)
        assert set(tmp_path.iterdir()) == before
    corpus = build_corpus([source], tmp_path / "out", train_tokenizer=150, skip_bad=True)
    assert corpus.manifest.counts["skipped"] == 1
    assert capsys.readouterr().err.count("line 61") == 1


BAD = {
    "bytes.txt": bytes(range(256)),
    "zeros.txt": bytes(64),
    "half.txt.gz": gzip.compress(b"The heron stands still. " * 99, mtime=0)[:-9],
    "no.txt.xz": b"not packed",
    "lines.jsonl": b"broken",
    "wordless.jsonl": b'{"title": "Heron", "text": 3}',
    "old.jsonl": b'{"text": "\xe9"}',
    "row.csv": b'title,text\nHeron,"never closed',
    "wide.csv": b"title,text\na,b,c\n",
    "cut.xml": b"<mediawiki><page>",
    "other.xml": b"<feed/>",
    "cut.pdf": b"%PDF-1.7",
    "cut.docx": b"PK\x03\x04",
    "letter.odt": b"PK\x03\x04",
    "gone.txt": None,
}


@pytest.mark.parametrize("name", BAD)
def test_every_bad_file_is_named_with_the_flag_that_leaves_it_out(tmp_path, name, capsys):
    bad = tmp_path / name
    good = tmp_path / "good.txt"
    good.write_text("The heron stands still.")
    WORDPIECES.save(tmp_path / "tokenizer.json")
    if (data := BAD[name]) is not None:
        bad.write_bytes(data)
    for options in ({"train_tokenizer": 150}, {"tokenizer": str(tmp_path / "tokenizer.json")}):
        with pytest.raises(
            BadInput, match=rf"{re.escape(str(bad))}.*; correct it, or leave such input out with --skip-bad$"
        ):
            build_corpus([good, bad], tmp_path / "out", workers=1, **options)
    corpus = build_corpus(
        [good, bad], tmp_path / "out", tokenizer=str(tmp_path / "tokenizer.json"), workers=1, skip_bad=True
    )
    assert (len(corpus), corpus.manifest.counts["skipped"]) == (1, 1)
    assert f"left out: {bad}" in capsys.readouterr().err


EMPTY = {
    "nothing.txt": b"",
    "nothing.md": b"\n",
    "hidden.html": b"<script>1</script>",
    "nothing.jsonl": b"\n",
    "wordless.jsonl": b'{"title": "Heron", "text": " "}',
    "nothing.csv": b"",
    "nothing.docx": b"",
    "nothing.ods": b"",
}


@pytest.mark.parametrize("skip_bad", [False, True])
def test_what_has_no_text_is_noted_and_stops_nothing(tmp_path, skip_bad, capsys):
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "good.txt").write_text("The heron stands still.")
    for name, data in EMPTY.items():
        (notes / name).write_bytes(data)
    corpus = build_corpus([notes], tmp_path / "out", train_tokenizer=150, workers=1, skip_bad=skip_bad)
    assert (len(corpus), corpus.manifest.counts["skipped"]) == (1, len(EMPTY))
    said = capsys.readouterr().err
    assert [said.count(f"left out: {notes / name}") for name in EMPTY] == [1] * len(EMPTY)


def test_a_file_whose_library_is_missing_is_named_with_both_ways_on(tmp_path, monkeypatch, capsys):
    for library in ("pypdf", "docx", "selectolax.lexbor", "markdown_it", "mwparserfromhell"):
        monkeypatch.setitem(sys.modules, library, None)
    WORDPIECES.save(tmp_path / "tokenizer.json")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "good.txt").write_text("The heron stands still.")
    for kind in ("md", "html", "pdf", "docx"):
        bad = tmp_path / "notes" / f"bad.{kind}"
        bad.write_text("# Heron\n\nIt stands still.")
        with pytest.raises(
            MissingExtra,
            match=rf"bad\.{kind}: reading .*pip install realmlm, or leave such input out with --skip-bad$",
        ):
            build_corpus([bad], tmp_path / "out", train_tokenizer=150)
    corpus = build_corpus(
        [tmp_path / "notes"],
        tmp_path / "out",
        tokenizer=str(tmp_path / "tokenizer.json"),
        workers=1,
        skip_bad=True,
    )
    assert (len(corpus), corpus.manifest.counts["skipped"]) == (1, 4)
    assert capsys.readouterr().err.count("pip install") == 4


def test_settings_that_cannot_work(tmp_path, source):
    with pytest.raises(BadInput, match="choose a tokenizer"):
        build_corpus([source], tmp_path / "out")
    with pytest.raises(BadInput, match="between 8 and 4096, not 7"):
        build_corpus([source], tmp_path / "out", train_tokenizer=150, max_wordpieces=7)
    (tmp_path / "odd.txt").write_text("\u200b")
    WORDPIECES.save(tmp_path / "tokenizer.json")
    with pytest.raises(BadInput, match="no passage"):
        build_corpus([tmp_path / "odd.txt"], tmp_path / "out", tokenizer=str(tmp_path))
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    with pytest.raises(ArtefactExists):
        build_corpus([source], tmp_path / "out", train_tokenizer=150)
    assert not (tmp_path / "out" / MANIFEST).exists()


def test_words_that_the_tokenizer_does_not_know_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    WORDPIECES.save(tmp_path / "tokenizer.json")
    how = {"tokenizer": str(tmp_path / "tokenizer.json"), "workers": 1}
    for name, text, says in (
        ("most", "本 文 文 本 本 本 本 本 本 本", "80% of the wordpieces are unknown to the tokenizer"),
        ("few", "the " * 99 + "本", ""),
    ):
        (tmp_path / f"{name}.txt").write_text(text, "utf-8")
        build_corpus([tmp_path / f"{name}.txt"], tmp_path / name, **how)
        said = capsys.readouterr().err
        assert says in said
        assert ("--train-tokenizer" in said) == bool(says)


INTERRUPTED = """
import sys
from realmlm.corpus import build
from realmlm.settings import BuildCorpus
if __name__ == "__main__":
    build.CHUNK = 2000
    build.build_corpus(BuildCorpus(sources=(sys.argv[1],), out=sys.argv[2], tokenizer=sys.argv[3], workers=2))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for child processes in /proc")
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_build_leaves_no_process(tmp_path, sign):
    (tmp_path / "big.jsonl").write_text((json.dumps({"text": "The river runs. " * 500}) + "\n") * 4000)
    (tmp_path / "script.py").write_text(INTERRUPTED)
    WORDPIECES.save(tmp_path / "tokenizer.json")
    names = [str(tmp_path / name) for name in ("script.py", "big.jsonl", "out", "tokenizer.json")]
    process = subprocess.Popen(
        [sys.executable, *names], stderr=subprocess.DEVNULL, preexec_fn=_hear_interrupts
    )
    children: list[int] = []
    until = time.monotonic() + 30
    while len(children) < 3 and time.monotonic() < until:  # two workers and the tracker of their semaphores
        time.sleep(0.05)
        children = [
            int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ]
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(sign)
    process.wait(timeout=30)
    while any(map(_lives, children)) and time.monotonic() < until:
        time.sleep(0.05)
    assert len(children) == 3
    assert not any(map(_lives, children))
    assert not (tmp_path / "out").exists()
    assert sign == signal.SIGKILL or not list(tmp_path.glob(".out*"))


def _hear_interrupts() -> None:
    # a shell's background jobs are started deaf to it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_only_the_first_passages_of_a_document_are_kept(tmp_path: Path) -> None:
    sentences = [f"The tower number {number} stands by the river." for number in range(40)]
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"Of {name}. " + " ".join(sentences))
    sources = [tmp_path / "a.txt", tmp_path / "b.txt"]
    whole = build_corpus(sources, tmp_path / "whole", train_tokenizer=200, max_wordpieces=40, workers=1)
    few = build_corpus(
        sources, tmp_path / "few", tokenizer=str(whole.folder), max_wordpieces=40, max_passages=2, workers=1
    )
    rest = build_corpus(
        sources, tmp_path / "rest", tokenizer=str(whole.folder), max_wordpieces=40, skip_passages=2, workers=1
    )
    assert len(few) == 4 == len(whole) - len(rest)
    for title in ("a", "b"):
        every, first, other = (
            [corpus[number].text for number in corpus.ids.tolist() if corpus[number].title == title]
            for corpus in (whole, few, rest)
        )
        assert first == every[:2]
        assert other == every[2:]


class Watched(Wordpieces):
    """Notes how many characters and lines it is given at once."""

    def encode_batch(self, texts: list[str]) -> list[Encoding]:
        self.most = max(getattr(self, "most", (0, 0)), (sum(map(len, texts)), len(texts)))
        return super().encode_batch(texts)


@pytest.mark.parametrize("line", ["river " * 100_000, "river\n" * 100_000])
def test_no_more_than_some_hundred_thousand_characters_are_tokenised_at_once(line: str) -> None:
    watched = Watched(WORDPIECES.tokenizer)
    block = cut_articles([Article("", line)], watched, max_wordpieces=100)
    assert block.token_lengths.sum() == 2 * 100_000
    assert watched.most[0] < 2**18 + MAX_CHARACTERS
    assert watched.most[1] <= 512


def test_a_row_of_a_table_is_not_cut(tmp_path: Path, world: Path) -> None:
    rows = [f"No {number},It is old. It is grey. It is kept." for number in range(12)]
    (tmp_path / "things.csv").write_text("\n".join(["Name,Note", *rows]))
    line = "Name: No 3; Note: It is old. It is grey. It is kept."
    (tmp_path / "other.jsonl").write_text(json.dumps({"text": "\n".join([line] * 12)}))
    tokenizer = str(world / "tokenizer.json")
    cut = {}
    for name in ("things.csv", "other.jsonl"):
        corpus = build_corpus(
            [tmp_path / name], tmp_path / f"{name}-corpus", tokenizer=tokenizer, max_wordpieces=40, workers=1
        )
        cut[name] = [corpus[number].text for number in corpus.ids.tolist()]
    assert len(cut["things.csv"]) > 1
    assert all(line.endswith("kept.") for text in cut["things.csv"] for line in text.split("\n"))
    assert any(not text.endswith("kept.") for text in cut["other.jsonl"]), "no table: cut as ever"
