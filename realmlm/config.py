"""Every setting of every command: typed, explained, checked once. The command line and its help are generated
from it."""

from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from realmlm.bundled import MINI
from realmlm.config_model import (
    Adapt,
    Compress,
    ExportHf,
    Finetune,
    Graft,
    ImportHf,
    Index,
    Model,
    Pretrain,
    Tagger,
    Warmup,
)
from realmlm.settings import (
    JointOptim,
    Loop,
    Optim,
    Positional,
    Refresh,
    UseAppendAction,
    arg,
    check,
    optional,
)

# Commands that make or train a model stand in config_model.py; here are those around it.
__all__ = [
    "Adapt",
    "Compress",
    "ExportHf",
    "Finetune",
    "Graft",
    "ImportHf",
    "Index",
    "JointOptim",
    "Loop",
    "Model",
    "Optim",
    "Pretrain",
    "Refresh",
    "Tagger",
    "Warmup",
]


@dataclass(frozen=True, kw_only=True)
class World:
    """Make a fictional world to test retrieval in: passages, sentences and questions whose answers appear
    nowhere else."""

    out: Path
    """Folder to create."""
    kind: Literal["tiny", "small", "hard"] = "small"
    """tiny: 150 entities, for tests; small: 1,000; hard: 1,500 with more facts, longer values and sentences
    that need no knowledge."""
    seed: int = 0
    """A different seed makes a different world."""

    def __post_init__(self) -> None:
        check(self.seed >= 0, f"seed must be 0 or more, not {self.seed}")


@dataclass(frozen=True, kw_only=True)
class Corpus:
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

    def __post_init__(self) -> None:
        check(
            len(self.sources) > 0,
            "name at least one file or folder: realmlm corpus notes/ --out CORPUS --train-tokenizer 16000",
        )
        one = (self.tokenizer is None) != (self.train_tokenizer is None)
        check(one, "choose a tokenizer: either --tokenizer FILE_OR_NAME or --train-tokenizer 16000")
        check(
            self.train_tokenizer is None or self.train_tokenizer >= 100,
            f"train-tokenizer must be 100 or more, not {self.train_tokenizer}",
        )
        check(
            self.max_passages is None or self.max_passages >= 1,
            f"max-passages must be 1 or more, not {self.max_passages}",
        )
        check(self.skip_passages >= 0, f"skip-passages must be 0 or more, not {self.skip_passages}")
        check(
            8 <= self.max_wordpieces <= 4096,
            f"max-wordpieces must be between 8 and 4096, not {self.max_wordpieces}",
        )


@dataclass(frozen=True, kw_only=True)
class Edit:
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

    def __post_init__(self) -> None:
        check((self.replace is None) == (self.text is None), "--replace ID and --text TEXT go together")
        check(
            self.text is None or bool(self.text.strip()),
            f"--text is empty; to take the passage away: --remove {self.replace}",
        )
        check(
            self.title is None or self.replace is not None,
            "--title is for a replaced passage: give --replace ID --text TEXT too",
        )
        check(
            bool(self.add or self.remove or self.replace is not None),
            "nothing to do: give --add FILE, --remove ID, or --replace ID --text TEXT",
        )


@dataclass(frozen=True, kw_only=True)
class Passages:
    """Show passages of a corpus with their ids, for `realmlm edit`."""

    corpus: Positional[Annotated[Path, arg(metavar="CORPUS")]]
    """The corpus."""
    find: Annotated[str | None, optional("TEXT")] = None
    """Only those with this in their title, text or source; case is ignored."""
    limit: int = 20
    """Show at most this many."""


@dataclass(frozen=True, kw_only=True)
class Spans:
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

    def __post_init__(self) -> None:
        check(
            (self.tagger == "phrases") == (self.phrases is not None),
            "--tagger phrases and --phrases FILE go together",
        )
        check(
            (self.tagger == "learned") == (self.learned is not None),
            "--tagger learned and --learned TAGGER go together",
        )
        check(self.workers is None or self.workers >= 1, f"workers must be 1 or more, not {self.workers}")


@dataclass(frozen=True, kw_only=True)
class Clozes:
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

    def __post_init__(self) -> None:
        check(self.count >= 1, f"count must be 1 or more, not {self.count}")


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure a model on questions: exact match, F1, recall of passages with the answer, each with a 95%
    interval."""

    model: Path = MINI
    """The model; mini is the one that comes with realmlm."""
    corpus: Path
    """The corpus to search."""
    questions: Path
    """Questions with answers; sentences with [MASK] are filled in instead."""
    retriever: Literal["learned", "bm25", "none"] = "learned"
    """learned: the model's own; bm25: word matching with the same reader; none: the null document only."""
    read: int = 5
    """Passages to read for each question; 0 measures retrieval alone."""
    with_mask: bool = False
    """Search with a [MASK] after each question, like every query seen by a retriever that learned from text
    alone. Needs --read 0."""
    recall: Literal["dpr", "orqa"] = "dpr"
    """When a passage counts as holding an answer. dpr: the same words, ignoring case; orqa: the same
    characters, even inside words."""
    index: Annotated[Path | None, optional("PATH")] = None
    """An index that `realmlm index` wrote elsewhere; default: the exact one kept beside the corpus, built if
    there is none."""
    limit: Annotated[int | None, optional("N")] = None
    """Use only this many questions, evenly spread."""
    predictions: Annotated[Path | None, optional("PATH")] = None
    """File for the predictions with their evidence, one JSON line each."""
    report: Annotated[Path | None, optional("PATH")] = None
    """File for the report, as JSON."""
    json: bool = False
    """Print one JSON object instead of a table."""
    device: str = "auto"
    """Where the model runs."""

    def __post_init__(self) -> None:
        check(self.read >= 0, f"read must be 0 or more, not {self.read}")
        check(
            not self.with_mask or self.read == 0,
            "a [MASK] is added to questions for the search, not for reading: --with-mask needs --read 0",
        )
        check(
            self.index is None or self.retriever == "learned",
            f"--retriever {self.retriever} searches no index; leave --index out",
        )
        check(self.limit is None or self.limit >= 1, f"limit must be 1 or more, not {self.limit}")


@dataclass(frozen=True, kw_only=True)
class Calibrate:
    """Teach a model how often its answers are right, from answers that `realmlm evaluate` has judged. Its
    weights do not change."""

    predictions: Annotated[tuple[Path, ...], arg(metavar="PATH …", help_behavior_hint="(required)")]
    """Predictions that `realmlm evaluate` wrote, with the same model and as many passages read (--read) as it
    will be used with."""
    out: Path
    """Folder to create."""
    model: Path = MINI
    """The model; mini is the one that comes with realmlm."""

    def __post_init__(self) -> None:
        check(
            len(self.predictions) > 0,
            "name at least one file: realmlm calibrate --predictions FILE --out MODEL",
        )


@dataclass(frozen=True, kw_only=True)
class Align:
    """List the passages that explain each sentence of a text: the alignment of X and Z that pre-training
    finds by itself."""

    model: Path = MINI
    """The pre-trained model."""
    corpus: Path
    """The corpus Z to search."""
    out: Path
    """File to write, one JSON line per sentence: its hidden words, and the passages with p(z|x) and p(z|x,y).
    """
    text: Annotated[Path | None, optional("PATH")] = None
    """The corpus X whose sentences are aligned, with its spans marked; default: Z itself, leaving out each
    sentence's own passage."""
    k: int = 8
    """Passages for each sentence, including the null document."""
    limit: Annotated[int | None, optional("N")] = None
    """Use only this many sentences, evenly spread."""
    device: str = "auto"
    """Where the model runs."""

    def __post_init__(self) -> None:
        check(self.k >= 2, f"k counts the null document and at least one passage: 2 or more, not {self.k}")


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write a report as one HTML file: overlaid curves of runs, evaluation tables, what was retrieved before
    and after."""

    runs: Positional[Annotated[tuple[Path, ...], optional("RUN …")]] = ()
    """Folders of training runs, or made by `adapt`."""
    out: Path
    """File to write."""
    evaluations: Annotated[tuple[Path, ...], optional("PATH …")] = ()
    """Reports that `evaluate --report` wrote; one table row each."""
    before: Annotated[Path | None, optional("PATH")] = None
    """Predictions of the earlier model, written by `evaluate --predictions`."""
    after: Annotated[Path | None, optional("PATH")] = None
    """Predictions of the later model, for the same questions."""
    examples: int = 6
    """Show up to this many questions whose answer moved up in what was retrieved, and as many whose answer
    moved down."""

    def __post_init__(self) -> None:
        check((self.before is None) == (self.after is None), "--before FILE and --after FILE go together")
        check(
            bool(self.runs or self.evaluations or self.before is not None),
            "nothing to report: name runs, --evaluations FILE, or --before FILE --after FILE",
        )
        check(self.examples >= 1, f"examples must be 1 or more, not {self.examples}")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Run the commands in a file one after another in one process; what already exists is not made again."""

    file: Positional[Annotated[Path, arg(metavar="FILE")]]
    """One command per line, without `realmlm`; # starts a comment; - reads standard input."""
    log: Annotated[Path | None, optional("PATH")] = None
    """File to append each command and its time in seconds to, one JSON line each."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Answer a question, or fill in a sentence, and show the passages the answer was read from."""

    question: Positional[Annotated[str | None, optional("QUESTION")]] = None
    """The question."""
    model: Path = MINI
    """The model; mini is the one that comes with realmlm."""
    corpus: Annotated[Path | None, optional("PATH")] = None
    """The corpus to search."""
    docs: UseAppendAction[Annotated[tuple[tuple[Path, ...], ...], optional("PATH …")]] = ()
    """Folders and files of documents to search instead; they are cached, and only changed files are processed
    again. pocket is the small encyclopedia that comes with realmlm."""
    index: Annotated[Path | None, optional("PATH")] = None
    """An index that `realmlm index` wrote elsewhere; default: the exact one kept beside the corpus, built if
    there is none."""
    fill: Annotated[str | None, optional("TEXT")] = None
    """A sentence with [MASK] instead of a question; each [MASK] is one wordpiece."""
    read: int = 5
    """Passages to read."""
    json: bool = False
    """Print one JSON object."""
    device: str = "auto"
    """Where the model runs."""

    def __post_init__(self) -> None:
        check(
            (self.question is None) != (self.fill is None),
            'ask one thing, before any flags: realmlm ask "your question" --docs FOLDER; or --fill "a '
            'sentence with [MASK]"',
        )
        check(
            (self.corpus is None) == any(self.docs),
            "say what to search: either --docs FOLDER or --corpus CORPUS",
        )


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Answer questions over HTTP, many at once, with passages that can be changed and a web page at the same
    address."""

    model: Path = MINI
    """The model; mini is the one that comes with realmlm."""
    corpus: Annotated[Path | None, optional("PATH")] = None
    """The corpus to search; changes made through the service are saved in it."""
    docs: UseAppendAction[Annotated[tuple[tuple[Path, ...], ...], optional("PATH …")]] = ()
    """Folders and files of documents to search instead, as for `realmlm ask`; changes in them are picked up
    within seconds."""
    index: Annotated[Path | None, optional("PATH")] = None
    """An index that `realmlm index` wrote elsewhere; default: the exact one kept beside the corpus, built if
    there is none."""
    host: str = "127.0.0.1"
    """Address to listen on; the default serves this machine only."""
    port: int = 8460
    """Port to listen on."""
    token: Annotated[str | None, optional("TEXT")] = None
    """Token that requests to change a passage must carry (Authorization: Bearer …); at least 8 characters."""
    runs: Annotated[tuple[Path, ...], optional("PATH …")] = ()
    """Folders of training runs to show on the page."""
    queue: int = 256
    """How many requests may wait; any more are told to try again later."""
    batch: int = 16
    """Most requests answered together."""
    device: str = "auto"
    """Where the model runs."""

    def __post_init__(self) -> None:
        check(
            (self.corpus is None) == any(self.docs),
            "say what to search: either --docs FOLDER or --corpus CORPUS",
        )
        check(1 <= self.port <= 65535, f"port must be between 1 and 65535, not {self.port}")
        check(self.queue >= 1, f"queue must be 1 or more, not {self.queue}")
        check(self.batch >= 1, f"batch must be 1 or more, not {self.batch}")
        check(self.token is None or len(self.token) >= 8, "a token must have at least 8 characters")


STAGES: dict[str, Any] = {
    "warmup": Warmup,
    "pretrain": Pretrain,
    "finetune": Finetune,
}  # commands whose runs can be resumed


def record(values: Any) -> Any:
    """Settings as JSON: records become objects, paths strings."""
    if is_dataclass(values):
        values = flat(values)
    if isinstance(values, dict):
        return {name: record(value) for name, value in values.items()}
    if isinstance(values, tuple | list):
        return [record(value) for value in values]
    # a run may be resumed from another folder
    return str(values.absolute()) if isinstance(values, Path) else values


def filled(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """What `record` wrote down, with settings that came later at their defaults: all mean "as before".
    KeyError: one that is not known."""
    hints = get_type_hints(kind)
    whole = dict(values)
    if unknown := whole.keys() - hints.keys():
        raise KeyError(*unknown)
    for item in fields(kind):
        if is_dataclass(hints[item.name]) and item.name in values:
            whole[item.name] = filled(hints[item.name], values[item.name])
        elif item.default_factory is not MISSING:
            whole.setdefault(item.name, record(item.default_factory()))
        elif item.default is not MISSING:
            whole.setdefault(item.name, record(item.default))
    return whole


def restore(kind: Any, values: dict[str, Any]) -> Any:
    """The config that `record` wrote down."""
    hints = get_type_hints(kind)
    values = filled(kind, values)
    return kind(**{item.name: _restored(hints[item.name], values[item.name]) for item in fields(kind)})


def _restored(hint: Any, value: Any) -> Any:
    if is_dataclass(hint):
        return restore(hint, value)
    if isinstance(value, list):
        return tuple(_restored(get_args(hint)[0], item) for item in value)
    return Path(value) if value is not None and Path in (hint, *get_args(hint)) else value


def flat(config: Any) -> dict[str, Any]:
    """A config as keyword arguments: its fields, nested settings kept as records."""
    return {item.name: getattr(config, item.name) for item in fields(config)}
