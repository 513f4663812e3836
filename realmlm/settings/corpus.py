"""Settings of the commands that make and change a corpus."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from realmlm.bundled import MINI, model_place
from realmlm.defaults import ENGINE, SHOWN
from realmlm.settings.base import Place, Positional, Settings, arg, ensure, optional, required


@dataclass(frozen=True, kw_only=True)
class MakeWorld(Settings):
    """Make a fictional world to test retrieval in: passages, sentences and questions whose answers appear
    nowhere else."""

    out: Path
    """Folder to create."""
    kind: Literal["tiny", "small", "hard"] = "small"
    """tiny: 150 entities, for tests; small: 1,000; hard: 1,500 with more facts, longer values and sentences
    that need no knowledge."""
    seed: int = 0
    """A different seed makes a different world."""

    def check(self) -> None:
        self.at_least(0, "seed")


@dataclass(frozen=True, kw_only=True)
class BuildCorpus(Settings):
    """Turn documents into a corpus: passages, cut at sentence boundaries and tokenised once."""

    sources: Positional[Annotated[tuple[Place, ...], required("FILE_OR_FOLDER …")]]
    """Files and folders, or their URLs (s3://…): .txt .rst .org .log .md .html .pdf .docx .odt .rtf .pptx
    .odp .epub .eml .mbox .xlsx .xls .ods .jsonl .csv .tsv .parquet .arrow, MediaWiki .xml; also compressed
    (.gz .bz2 .xz). Of a BEIR folder its corpus.jsonl is read; a folder that `datasets` saved is read too."""
    out: Place
    """Folder to create, or its URL."""
    text_column: Annotated[str | None, optional("NAME")] = None
    """Column with the text, in Parquet and Arrow files, JSON lines and tables; default: text."""
    title_column: Annotated[str | None, optional("NAME")] = None
    """Column with the title; default: title, if there is one."""
    id_column: Annotated[str | None, optional("NAME")] = None
    """Column with the document's id; default: id, or _id, if there is one."""
    tokenizer: Annotated[str | None, optional("TEXT")] = None
    """A tokenizer.json or vocab.txt, a folder with one (a model, a corpus), or a model's name (mini, or
    NAME@REVISION on the hub)."""
    train_tokenizer: Annotated[int | None, optional("N")] = None
    """Train a tokenizer of this many wordpieces on the documents instead."""
    max_wordpieces: int = 288
    """Longest passage, in wordpieces."""
    max_passages: Annotated[int | None, optional("N")] = None
    """Take only the first N passages of each document; of one of more than two million characters, of each
    such part."""
    skip_passages: int = 0
    """Leave out the first N passages of each document: the part that --max-passages N takes."""
    skip_bad: bool = False
    """Leave out what cannot be read and count it, instead of stopping."""
    workers: Annotated[int | None, optional("N")] = None
    """Processes that cut and tokenise; default: one per core."""
    engine: Literal["local", "ray"] = ENGINE
    """local: these processes; ray: one for each core of the Ray cluster at RAY_ADDRESS, or of one started
    here. The corpus is the same."""

    def check(self) -> None:
        example = "realmlm corpus notes/ --out CORPUS --train-tokenizer 16000"
        ensure(len(self.sources) > 0, f"name at least one file or folder: {example}")
        if self.tokenizer == str(MINI):
            object.__setattr__(self, "tokenizer", str(model_place()))
        one = (self.tokenizer is None) != (self.train_tokenizer is None)
        ensure(one, "choose a tokenizer: either --tokenizer FILE_OR_NAME or --train-tokenizer 16000")
        self.at_least(100, "train_tokenizer")
        self.at_least(1, "max_passages")
        self.at_least(0, "skip_passages")
        self.between(8, 4096, "max_wordpieces")
        _check_engine(self.engine, self.workers)


@dataclass(frozen=True, kw_only=True)
class EditCorpus(Settings):
    """Add, replace or remove passages of a corpus without rebuilding it; indexes follow when next used."""

    corpus: Positional[Annotated[Path, arg(metavar="CORPUS")]]
    """The corpus."""
    add: Annotated[tuple[Path, ...], optional("PATH …")] = ()
    """Documents to add, of any kind that `realmlm corpus` reads."""
    remove: Annotated[tuple[int, ...], optional("ID …")] = ()
    """Ids of passages to remove."""
    replace: Annotated[int | None, optional("N")] = None
    """Id of a passage to replace with --text."""
    text: Annotated[str | None, optional("TEXT")] = None
    """The new text of the passage named by --replace."""
    title: Annotated[str | None, optional("TEXT")] = None
    """Its new title; default: the old one."""

    def check(self) -> None:
        ensure((self.replace is None) == (self.text is None), "--replace ID and --text TEXT go together")
        emptied = self.text is not None and not self.text.strip()
        ensure(not emptied, f"--text is empty; to take the passage away: --remove {self.replace}")
        replaces = self.replace is not None
        alone = self.title is not None and not replaces
        ensure(not alone, "--title is for a replaced passage: give --replace ID --text TEXT too")
        something = bool(self.add or self.remove or replaces)
        ensure(something, "nothing to do: give --add FILE, --remove ID, or --replace ID --text TEXT")


@dataclass(frozen=True, kw_only=True)
class ListPassages(Settings):
    """Show passages of a corpus with their ids, for `realmlm edit`."""

    corpus: Positional[Annotated[Path, arg(metavar="CORPUS")]]
    """The corpus."""
    find: Annotated[str | None, optional("TEXT")] = None
    """Only those with this in their title, text or source; case is ignored."""
    limit: int = SHOWN
    """Show at most this many."""


@dataclass(frozen=True, kw_only=True)
class MarkSpans(Settings):
    """Mark the spans of a corpus worth masking: names, dates, quantities."""

    corpus: Positional[Annotated[Place, arg(metavar="CORPUS")]]
    """The corpus, or its URL."""
    tagger: Literal["rules", "phrases", "learned", "spacy"] = "rules"
    """rules: built in, light; phrases: your own list; learned: names found by a trained encoder; spacy: a
    spaCy model's entities."""
    phrases: Annotated[Path | None, optional("PATH")] = None
    """File with one phrase per line, for --tagger phrases."""
    learned: Annotated[Path | None, optional("PATH")] = None
    """A tagger made by `realmlm tagger`, for --tagger learned."""
    spacy_model: str = "en_core_web_sm"
    """Name of the spaCy model, for --tagger spacy."""
    workers: Annotated[int | None, optional("N")] = None
    """Processes; default: one per core."""
    engine: Literal["local", "ray"] = ENGINE
    """local: these processes; ray: one for each core of the Ray cluster at RAY_ADDRESS, or of one started
    here. The spans are the same."""

    def check(self) -> None:
        _check_engine(self.engine, self.workers)
        here = self.engine == "local" or self.tagger != "learned"
        ensure(here, "--tagger learned works on this machine alone: leave out --engine ray")
        for name, value, kind in (("phrases", self.phrases, "FILE"), ("learned", self.learned, "TAGGER")):
            fits = (self.tagger == name) == (value is not None)
            ensure(fits, f"--tagger {name} and --{name} {kind} go together")


@dataclass(frozen=True, kw_only=True)
class MakeClozes(Settings):
    """Make masked sentences from a corpus, to hold out of training and fill in with `realmlm evaluate`: a
    measure of retrieval."""

    corpus: Positional[Annotated[Path, arg(metavar="CORPUS")]]
    """The corpus, with its spans marked."""
    out: Path
    """File for the sentences, one JSON line each."""
    count: int = 2000
    """How many; at most one per passage."""
    max_query: int = 64
    """Longest sentence, in wordpieces."""
    recurring: bool = False
    """Hide only words that are also marked in another passage, so that there is one to find."""
    seed: int = 0
    """A different seed picks different sentences."""

    def check(self) -> None:
        self.at_least(1, "count", "max_query")
        self.at_least(0, "seed")


def _check_engine(engine: str, workers: int | None) -> None:
    counted = engine == "local" or workers is None
    ensure(counted, "--workers are processes of this machine: leave it out with --engine ray")
    ensure(workers is None or workers >= 1, f"workers must be 1 or more, not {workers}")
