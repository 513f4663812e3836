"""Settings of the commands that make and change a corpus."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from realmlm.bundled import MINI, model_place
from realmlm.defaults import SHOWN
from realmlm.settings.base import Positional, Settings, arg, ensure, optional


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
        ensure(self.seed >= 0, f"seed must be 0 or more, not {self.seed}")


@dataclass(frozen=True, kw_only=True)
class BuildCorpus(Settings):
    """Turn documents into a corpus: passages, cut at sentence boundaries and tokenised once."""

    sources: Positional[
        Annotated[tuple[Path, ...], arg(metavar="FILE_OR_FOLDER …", help_behavior_hint="(required)")]
    ]
    """Files and folders: .txt .md .html .pdf .docx .jsonl .csv .tsv, MediaWiki .xml; also compressed as .gz
    .bz2 .xz."""
    out: Path
    """Folder to create."""
    tokenizer: Annotated[str | None, optional("TEXT")] = None
    """A tokenizer.json, a folder with one (a model, another corpus), or the name of a model (mini, or one on
    the hub)."""
    train_tokenizer: Annotated[int | None, optional("N")] = None
    """Train a tokenizer of this many wordpieces on the documents instead."""
    max_wordpieces: int = 288
    """Longest passage, in wordpieces."""
    max_passages: Annotated[int | None, optional("N")] = None
    """Keep only the first N passages of each document."""
    skip_passages: int = 0
    """Leave out the first N passages of each document: the part that --max-passages N keeps."""
    skip_bad: bool = False
    """Leave out what cannot be read and count it, instead of stopping."""
    workers: Annotated[int | None, optional("N")] = None
    """Processes that cut and tokenise; default: one per core."""

    def check(self) -> None:
        ensure(
            len(self.sources) > 0,
            "name at least one file or folder: realmlm corpus notes/ --out CORPUS --train-tokenizer 16000",
        )
        if self.tokenizer == str(MINI):
            object.__setattr__(self, "tokenizer", str(model_place()))
        one = (self.tokenizer is None) != (self.train_tokenizer is None)
        ensure(one, "choose a tokenizer: either --tokenizer FILE_OR_NAME or --train-tokenizer 16000")
        ensure(
            self.train_tokenizer is None or self.train_tokenizer >= 100,
            f"train-tokenizer must be 100 or more, not {self.train_tokenizer}",
        )
        ensure(
            self.max_passages is None or self.max_passages >= 1,
            f"max-passages must be 1 or more, not {self.max_passages}",
        )
        ensure(self.skip_passages >= 0, f"skip-passages must be 0 or more, not {self.skip_passages}")
        ensure(
            8 <= self.max_wordpieces <= 4096,
            f"max-wordpieces must be between 8 and 4096, not {self.max_wordpieces}",
        )


@dataclass(frozen=True, kw_only=True)
class EditCorpus(Settings):
    """Add, replace or remove passages of a corpus without rebuilding it; indexes pick up the change when next
    used."""

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
        ensure(
            self.text is None or bool(self.text.strip()),
            f"--text is empty; to take the passage away: --remove {self.replace}",
        )
        ensure(
            self.title is None or self.replace is not None,
            "--title is for a replaced passage: give --replace ID --text TEXT too",
        )
        ensure(
            bool(self.add or self.remove or self.replace is not None),
            "nothing to do: give --add FILE, --remove ID, or --replace ID --text TEXT",
        )


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

    corpus: Positional[Annotated[Path, arg(metavar="CORPUS")]]
    """The corpus."""
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

    def check(self) -> None:
        ensure(
            (self.tagger == "phrases") == (self.phrases is not None),
            "--tagger phrases and --phrases FILE go together",
        )
        ensure(
            (self.tagger == "learned") == (self.learned is not None),
            "--tagger learned and --learned TAGGER go together",
        )
        ensure(self.workers is None or self.workers >= 1, f"workers must be 1 or more, not {self.workers}")


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
        ensure(self.count >= 1, f"count must be 1 or more, not {self.count}")
