"""Rehearse the paper's size on generated data: `python tools/full_size.py --out work/full` prints what every
step takes.

A corpus of 13,353,718 passages, a model of three BERT-base encoders with random weights, an exact and an IVF
index. The passages are short (40 to 100 made-up words, each a wordpiece) and the vectors drawn around random
centres: embedding them all would take a GPU, and what is measured here is opening and searching. About 20 GB
of disk, 24 while it is made; what is there already is not made again.

Linux only. Each step runs in a process of its own, with the files dropped from the system's cache before it.
Peak memory includes the pages of mapped files that were touched; anonymous memory is what the process itself
holds when the step ends.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import torch

from realmlm import cli
from realmlm.corpus.store import Block, Corpus, SegmentWriter
from realmlm.corpus.wordpieces import BERT_SPECIAL, Wordpieces
from realmlm.engine import Engine
from realmlm.index.store import SHARD, ShardedBuild, index_info, open_index
from realmlm.log import progress, say
from realmlm.model.inputs import query_inputs
from realmlm.model.realm import Realm
from realmlm.model.snapshot import DocumentEncoder
from realmlm.storage.artefacts import publish

PASSAGES = 13_353_718
VOCABULARY = 30_522  # as BERT's
LETTERS = 6  # of every word: a text is then one look-up in a table
SENTENCE = 20  # words
ARTICLE = 4  # passages
CROWD = 800  # passages around each centre of the vectors


@dataclass(frozen=True)
class Size:
    """How large all of it is."""

    passages: int = PASSAGES
    layers: int = 12
    hidden: int = 768


# --- making -------------------------------------------------------------------------------------------------


def words() -> np.ndarray:
    """uint8 [words, letters]: made-up words of three syllables, all that BERT's vocabulary has place for
    beside the single letters."""
    syllables = np.array(
        [[ord(consonant), ord(vowel)] for consonant in "bdfghjklmnprstvz" for vowel in "aeiou"], np.uint8
    )
    numbers = np.random.default_rng(0).choice(
        len(syllables) ** 3, VOCABULARY - len(BERT_SPECIAL) - 52, replace=False
    )
    places = np.stack(np.unravel_index(numbers, (len(syllables),) * 3), axis=1)
    return syllables[places].reshape(-1, LETTERS)


def passages_block(first: int, count: int, table: np.ndarray) -> Block:
    """`count` passages from number `first` on, as the corpus stores them."""
    random = np.random.default_rng([1, first])
    lengths = random.integers(40, 101, count)
    total = int(lengths.sum())
    starts = np.cumsum(lengths) - lengths
    numbers = random.integers(len(table), size=total, dtype=np.uint16)
    spaced = np.concatenate([table, np.full((len(table), 1), ord(" "), np.uint8)], axis=1)
    letters = spaced[numbers].reshape(-1)
    kept = np.ones(len(letters), bool)
    kept[(starts + lengths) * (LETTERS + 1) - 1] = False  # no space after the last word
    place = np.arange(total) - np.repeat(starts, lengths)
    sentences = -(-lengths // SENTENCE)
    sentence = np.arange(sentences.sum()) - np.repeat(np.cumsum(sentences) - sentences, sentences)
    articles = -(-count // ARTICLE)
    titles = random.integers(len(table), size=articles, dtype=np.uint16)
    return Block(
        texts=letters[kept],
        text_lengths=lengths * (LETTERS + 1) - 1,
        titles=table[titles].reshape(-1),
        title_lengths=np.full(articles, LETTERS),
        sources=np.zeros(0, np.uint8),
        source_lengths=np.zeros(articles, np.int64),
        title_tokens=titles + np.uint16(len(BERT_SPECIAL)),
        title_token_lengths=np.ones(articles, np.int64),
        articles=np.arange(count) // ARTICLE,
        tokens=numbers + np.uint16(len(BERT_SPECIAL)),
        token_lengths=lengths,
        token_chars=(place[:, None] * (LETTERS + 1) + [0, LETTERS]).astype(np.uint16),
        sentence_starts=(sentence * SENTENCE).astype(np.uint16),
        sentence_lengths=sentences,
    )


def borders(passages: int) -> list[int]:
    return [*range(0, passages, SHARD), passages]


def make_corpus(out: Path, size: Size) -> None:
    table = words()
    pieces = Wordpieces.from_pieces(
        [*(bytes(word).decode() for word in table), *ascii_lowercase, *(f"##{a}" for a in ascii_lowercase)]
    )
    with (
        publish(out / "corpus", kind="corpus") as draft,
        progress("writing passages", size.passages, unit="passages") as bar,
    ):
        pieces.save(draft.path / "tokenizer.json")
        writer = SegmentWriter(draft.path, token_dtype=pieces.dtype)
        for first, past in pairwise(borders(size.passages)):
            writer.append(passages_block(first, past - first, table))
            bar.advance(past - first)
        writer.close()
        draft.config |= {"sources": ["generated"], "max_wordpieces": 288, "tokenizer": "made up"}
        draft.counts |= {
            "passages": writer.passages,
            "articles": writer.articles,
            "wordpieces": writer.wordpieces,
            "skipped": 0,
        }
        draft.parents["tokenizer"] = pieces.fingerprint


def make_model(out: Path, size: Size) -> None:
    shape = ["--layers", str(size.layers), "--hidden", str(size.hidden), "--heads", str(size.hidden // 64)]
    cli.main(
        [
            "model",
            "--corpus",
            f"{out}/corpus",
            "--out",
            f"{out}/model",
            "--family",
            "bert",
            "--no-share-towers",
            *shape,
        ]
    )


def question(out: Path) -> str:
    """The first words of the passage in the middle."""
    corpus = Corpus.open(out / "corpus")
    return " ".join(corpus[len(corpus) // 2].text.split()[:8])


@torch.inference_mode()
def towers(out: Path) -> tuple[str, torch.Tensor]:
    """The fingerprint of the document tower, and the vector that the query tower gives the question."""
    model = Realm.from_pretrained(out / "model")
    wordpieces = model.wordpieces
    inputs = query_inputs([wordpieces.encode(question(out))], wordpieces, max_query=model.config.max_query)
    return DocumentEncoder.of(model).fingerprint, model.query(inputs)[0]


def make_index(out: Path, kind: str) -> None:
    """Vectors around random centres, and around the question's: a trained tower would put some there."""
    corpus = Corpus.open(out / "corpus")
    (fingerprint, query_D) = towers(out)
    plan: dict[str, Any] = {
        "weights": fingerprint,
        "corpus": corpus.fingerprint,
        "corpus_edits": 0,
        "borders": borders(len(corpus)),
    }
    plan |= {"dim": len(query_D), "dtype": "float16", "kind": kind, "step": 0}
    build = ShardedBuild(out / f".{kind}.partial", plan)
    centres = torch.randn(len(corpus) // CROWD + 1, len(query_D), generator=torch.Generator().manual_seed(2))
    centres[0] = query_D * len(query_D) ** 0.5  # its length 1 made that of the others
    with progress("writing vectors", build.shards, unit="shards") as bar:
        for shard in build.missing():
            generator = torch.Generator().manual_seed(3 + shard)
            ids = torch.arange(*plan["borders"][shard : shard + 2])
            near = centres[torch.randint(len(centres), ids.shape, generator=generator)]
            build.put(shard, ids, near + torch.randn(near.shape, generator=generator))
            bar.advance()
    build.publish(out / kind)


# --- measuring ----------------------------------------------------------------------------------------------


def memory(name: str) -> float:
    """GiB of this process: VmHWM (peak), RssAnon."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 2**20


def read_gib() -> float:
    """What this process has had read from the disk."""
    return int(Path("/proc/self/io").read_text().split("read_bytes: ")[1].split()[0]) / 2**30


@contextmanager
def row(name: str) -> Iterator[None]:
    """Print what the block took, as a row of the table."""
    begun = time.monotonic()
    read = read_gib()
    yield
    seconds = time.monotonic() - begun
    cells = [
        name,
        f"{seconds:.2f}",
        f"{memory('VmHWM'):.2f}",
        f"{memory('RssAnon'):.2f}",
        f"{read_gib() - read:.2f}",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


def ask(out: Path, kind: str) -> None:
    asked = question(out)
    with row(f"open all for asking, {kind}"):
        engine = Engine(out / "model", out / "corpus", index=out / kind, device="cpu")
    with row(f"the first question, {kind}"):
        answer = engine.ask(asked, read=5)
    with row(f"the same again, {kind}"):
        engine.ask(asked, read=5)
    say(f"{kind}: read passages {[evidence.passage_id for evidence in answer.evidence]}")


def measured(name: str, work: Callable[[], object]) -> None:
    with row(name):
        _held = work()


MAKING: dict[str, Callable[[Path, Size], None]] = {
    "corpus": lambda out, size: measured("make the corpus", lambda: make_corpus(out, size)),
    "model": lambda out, size: measured("make the model", lambda: make_model(out, size)),
    "exact": lambda out, size: measured("make the exact index", lambda: make_index(out, "exact")),
    "ivf": lambda out, size: measured("make the IVF index", lambda: make_index(out, "ivf")),
}
USING: dict[str, Callable[[Path, Size], None]] = {
    "open-corpus": lambda out, size: measured("open the corpus", lambda: Corpus.open(out / "corpus")),
    "open-model": lambda out, size: measured("open the model", lambda: Realm.from_pretrained(out / "model")),
    "open-exact": lambda out, size: measured("open the exact index", lambda: open_index(out / "exact")),
    "open-ivf": lambda out, size: measured("open the IVF index", lambda: open_index(out / "ivf")),
    "ask-exact": lambda out, size: ask(out, "exact"),
    "ask-ivf": lambda out, size: ask(out, "ivf"),
}


def drop_from_cache(out: Path) -> None:
    """Ask the system to forget the files' pages, so that the next step reads them from the disk."""
    for file in out.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for what is generated")
    parser.add_argument("--passages", type=int, default=Size.passages)
    parser.add_argument("--layers", type=int, default=Size.layers)
    parser.add_argument("--hidden", type=int, default=Size.hidden, help="a multiple of 64")
    parser.add_argument("--step", choices=[*MAKING, *USING], help="this step alone, in this process")
    options = parser.parse_args()
    size = Size(options.passages, options.layers, options.hidden)
    if options.step:
        (MAKING | USING)[options.step](options.out, size)
        return
    record = options.out / "size.json"
    if record.exists() and json.loads(record.read_text()) != asdict(size):
        sys.exit(
            f"{options.out} holds what was made with {record.read_text()}; choose another folder or remove it"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(asdict(size)))
    print(
        "| step | seconds | peak GiB | anonymous GiB | read from disk GiB |\n| --- | --- | --- | --- | --- |",
        flush=True,
    )
    for step in [*(step for step in MAKING if not (options.out / step).exists()), *USING]:
        drop_from_cache(options.out)
        subprocess.run([sys.executable, *sys.argv, "--step", step], check=True)
    info = index_info(options.out / "ivf")
    print(f"\nIVF recall@1 and @8 {info.recall:.3f} or more; {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
