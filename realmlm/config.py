"""Every setting of every command: typed, explained, checked once. The command line and its help are generated from it."""

from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from realmlm.bundled import MINI
from realmlm.config_model import Adapt, Compress, ExportHf, Finetune, Graft, ImportHf, Index, Model, Pretrain, Tagger, Warmup
from realmlm.settings import JointOptim, Loop, Optim, Positional, Refresh, UseAppendAction, arg, check, optional

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
    """Make a fictional world: passages, sentences and questions whose answers stand nowhere else. A laboratory for retrieval."""

    out: Path
    """Folder to make."""
    kind: Literal["tiny", "small", "hard"] = "small"
    """tiny: 150 entities, for tests; small: 1,000; hard: 1,500 with more facts, longer values and sentences that need no knowledge."""
    seed: int = 0
    """Another seed, another world."""

    def __post_init__(self) -> None:
        check(self.seed >= 0, f"seed must be 0 or more, not {self.seed}")


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Turn documents into a corpus: passages, cut on sentence borders and tokenised once."""

    sources: Positional[Annotated[tuple[Path, ...], arg(metavar="FILE_OR_FOLDER …", help_behavior_hint="(required)")]]
    """Files and folders: .txt .md .html .pdf .docx .jsonl .csv .tsv, MediaWiki .xml; also .gz .bz2 .xz of these."""
    out: Path
    """Folder to make."""
    tokenizer: Annotated[str | None, optional("TEXT")] = None
    """A tokenizer.json, a folder with one (a model, another corpus), or the name of a model (mini, or one of the hub)."""
    train_tokenizer: Annotated[int | None, optional("N")] = None
    """Train a tokenizer of this many wordpieces on the documents instead."""
    max_wordpieces: int = 288
    """Longest passage."""
    max_passages: Annotated[int | None, optional("N")] = None
    """Keep only the first so many passages of each document."""
    skip_passages: int = 0
    """Leave out the first so many passages of each document: the other part of what --max-passages keeps."""
    skip_bad: bool = False
    """Leave out what cannot be read and count it, instead of stopping."""
    workers: Annotated[int | None, optional("N")] = None
    """Processes that cut and tokenise; default: one for each core."""

    def __post_init__(self) -> None:
        check(len(self.sources) > 0, "name at least one file or folder: realmlm corpus notes/ --out CORPUS --train-tokenizer 16000")
        one = (self.tokenizer is None) != (self.train_tokenizer is None)
        check(one, "say where the wordpieces come from: either --tokenizer FILE_OR_NAME or --train-tokenizer 16000")
        check(
            self.train_tokenizer is None or self.train_tokenizer >= 100, f"train-tokenizer must be 100 or more, not {self.train_tokenizer}"
        )
        check(self.max_passages is None or self.max_passages >= 1, f"max-passages must be 1 or more, not {self.max_passages}")
        check(self.skip_passages >= 0, f"skip-passages must be 0 or more, not {self.skip_passages}")
        check(8 <= self.max_wordpieces <= 4096, f"max-wordpieces must lie between 8 and 4096, not {self.max_wordpieces}")


@dataclass(frozen=True, kw_only=True)
class Edit:
    """Add, replace or remove passages of a corpus without making it again; indexes take the change up at their next use."""

    corpus: Positional[Annotated[Path, arg(metavar="CORPUS")]]
    """The corpus."""
    add: Annotated[tuple[Path, ...], optional("PATH …")] = ()
    """Documents to add, of any kind that `realmlm corpus` reads."""
    remove: Annotated[tuple[int, ...], optional("ID …")] = ()
    """Ids of passages to remove."""
    replace: Annotated[int | None, optional("N")] = None
    """Id of a passage whose text becomes --text."""
    text: Annotated[str | None, optional("TEXT")] = None
    """The new text of the passage named by --replace."""
    title: Annotated[str | None, optional("TEXT")] = None
    """Its new title; default: the old one."""

    def __post_init__(self) -> None:
        check((self.replace is None) == (self.text is None), "--replace ID and --text TEXT go together")
        check(self.title is None or self.replace is not None, "--title names a passage that is replaced: give --replace ID --text TEXT too")
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
    """Only those with this in title, text or source; upper and lower case alike."""
    limit: int = 20
    """Show at most so many."""


@dataclass(frozen=True, kw_only=True)
class Spans:
    """Mark the spans of a corpus worth masking: names, dates, quantities."""

    corpus: Positional[Annotated[Path, arg(metavar="CORPUS")]]
    """The corpus."""
    tagger: Literal["rules", "phrases", "learned", "spacy"] = "rules"
    """rules: our own, light; phrases: a list of yours; learned: names found by a trained encoder; spacy: a spaCy model's entities."""
    phrases: Annotated[Path | None, optional("PATH")] = None
    """File with one phrase a line, for --tagger phrases."""
    learned: Annotated[Path | None, optional("PATH")] = None
    """A tagger that `realmlm tagger` made, for --tagger learned."""
    spacy_model: str = "en_core_web_sm"
    """Name of the spaCy model, for --tagger spacy."""
    workers: Annotated[int | None, optional("N")] = None
    """Processes; default: one for each core."""

    def __post_init__(self) -> None:
        check((self.tagger == "phrases") == (self.phrases is not None), "--tagger phrases and --phrases FILE go together")
        check((self.tagger == "learned") == (self.learned is not None), "--tagger learned and --learned TAGGER go together")
        check(self.workers is None or self.workers >= 1, f"workers must be 1 or more, not {self.workers}")


@dataclass(frozen=True, kw_only=True)
class Clozes:
    """Make masked sentences from a corpus to hold out of training: what `realmlm evaluate` fills in, as a measure of retrieval."""

    corpus: Positional[Annotated[Path, arg(metavar="CORPUS")]]
    """The corpus, its spans marked."""
    out: Path
    """File for the sentences, one JSON line each."""
    count: int = 2000
    """How many; at most one of a passage."""
    max_query: int = 64
    """Longest sentence in wordpieces."""
    recurring: bool = False
    """Hide only words that are marked in another passage too, so that there is one to find."""
    seed: int = 0
    """Another seed, other sentences."""

    def __post_init__(self) -> None:
        check(self.count >= 1, f"count must be 1 or more, not {self.count}")


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure a model on questions: exact match, F1, recall of passages with the answer, each with a 95% interval."""

    model: Path = MINI
    """The model; mini is the one that comes with realmlm."""
    corpus: Path
    """The corpus that is searched."""
    questions: Path
    """Questions with answers; sentences with [MASK] are filled in instead."""
    retriever: Literal["learned", "bm25", "none"] = "learned"
    """learned: the model's own; bm25: word matching with the same reader; none: the null document only."""
    read: int = 5
    """Passages read for each question; 0: retrieval alone is measured."""
    with_mask: bool = False
    """Search with a [MASK] behind each question: so looks every query that a retriever learned from text alone has seen. With --read 0."""
    recall: Literal["dpr", "orqa"] = "dpr"
    """When a passage holds an answer. dpr: the same words, upper and lower case alike; orqa: the same characters, within words too."""
    index: Annotated[Path | None, optional("PATH")] = None
    """An index that `realmlm index` made elsewhere; default: the exact one kept beside the corpus, made if there is none."""
    limit: Annotated[int | None, optional("N")] = None
    """Take only this many questions, evenly spread."""
    predictions: Annotated[Path | None, optional("PATH")] = None
    """File for the predictions with their evidence, one JSON line each."""
    report: Annotated[Path | None, optional("PATH")] = None
    """File to make of the report, as JSON."""
    json: bool = False
    """Print one JSON object instead of a table."""
    device: str = "auto"
    """Where the model runs."""

    def __post_init__(self) -> None:
        check(self.read >= 0, f"read must be 0 or more, not {self.read}")
        check(
            not self.with_mask or self.read == 0,
            "a [MASK] is put behind questions that are searched with, not read: --with-mask needs --read 0",
        )
        check(self.index is None or self.retriever == "learned", f"--retriever {self.retriever} searches no index; leave --index out")
        check(self.limit is None or self.limit >= 1, f"limit must be 1 or more, not {self.limit}")


@dataclass(frozen=True, kw_only=True)
class Calibrate:
    """Teach a model how often its answers are right: from answers that `realmlm evaluate` has judged. Its weights stay as they are."""

    predictions: Annotated[tuple[Path, ...], arg(metavar="PATH …", help_behavior_hint="(required)")]
    """Files of predictions that `realmlm evaluate` wrote, with the same model and as many passages read as it will read."""
    out: Path
    """Folder to make."""
    model: Path = MINI
    """The model; mini is the one that comes with realmlm."""

    def __post_init__(self) -> None:
        check(len(self.predictions) > 0, "name at least one file: realmlm calibrate --predictions FILE --out MODEL")


@dataclass(frozen=True, kw_only=True)
class Align:
    """Say for the sentences of a text which passages explain them: the alignment of X and Z that pre-training finds by itself."""

    model: Path = MINI
    """The model, pre-trained."""
    corpus: Path
    """The corpus Z that is searched."""
    out: Path
    """File to make: for each sentence its hidden words and the passages with p(z|x) and p(z|x,y), one JSON line."""
    text: Annotated[Path | None, optional("PATH")] = None
    """The corpus X whose sentences are aligned, its spans marked; default: Z itself, a sentence's own passage left out."""
    k: int = 8
    """Passages for each sentence, the null document among them."""
    limit: Annotated[int | None, optional("N")] = None
    """Take only this many sentences, evenly spread."""
    device: str = "auto"
    """Where the model runs."""

    def __post_init__(self) -> None:
        check(self.k >= 2, f"k counts the null document and at least one passage: 2 or more, not {self.k}")


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write a report as one HTML file: curves of runs over one another, evaluation tables, what was retrieved before and after."""

    runs: Positional[Annotated[tuple[Path, ...], optional("RUN …")]] = ()
    """Folders of training runs, or that `adapt` made."""
    out: Path
    """File to make."""
    evaluations: Annotated[tuple[Path, ...], optional("PATH …")] = ()
    """Reports that `evaluate --report` wrote; a row of the table each."""
    before: Annotated[Path | None, optional("PATH")] = None
    """Predictions that `evaluate --predictions` wrote, of the model before."""
    after: Annotated[Path | None, optional("PATH")] = None
    """Predictions for the same questions, of the model after."""
    examples: int = 6
    """Questions shown whose answer came nearer between the two, and as many from which it moved away."""

    def __post_init__(self) -> None:
        check((self.before is None) == (self.after is None), "--before FILE and --after FILE go together")
        check(
            bool(self.runs or self.evaluations or self.before is not None),
            "nothing to report: name runs, --evaluations FILE, or --before FILE --after FILE",
        )
        check(self.examples >= 1, f"examples must be 1 or more, not {self.examples}")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Run the commands of a file one after the other in one process; what is there already is not made again."""

    file: Positional[Annotated[Path, arg(metavar="FILE")]]
    """One command a line, without `realmlm`; # begins a comment; - reads from standard input."""
    log: Annotated[Path | None, optional("PATH")] = None
    """File to which each command and its seconds are appended, one JSON line each."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Answer a question, or fill in a sentence, and show the passages it was read from."""

    question: Positional[Annotated[str | None, optional("QUESTION")]] = None
    """The question."""
    model: Path = MINI
    """The model; mini is the one that comes with realmlm."""
    corpus: Annotated[Path | None, optional("PATH")] = None
    """The corpus that is searched."""
    docs: UseAppendAction[Annotated[tuple[tuple[Path, ...], ...], optional("PATH …")]] = ()
    """Folders and files of documents instead; what is made of them is kept in a cache, and only what changed is made again. pocket is the
    small encyclopedia that comes with realmlm."""
    index: Annotated[Path | None, optional("PATH")] = None
    """An index that `realmlm index` made elsewhere; default: the exact one kept beside the corpus, made if there is none."""
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
            'ask one thing, before all else: realmlm ask "your question" --docs FOLDER; or --fill "a sentence with [MASK]"',
        )
        check((self.corpus is None) == any(self.docs), "say what is searched: either --docs FOLDER or --corpus CORPUS")


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Answer over HTTP: questions of many people at once, passages that can be changed, a page at the same address."""

    model: Path = MINI
    """The model; mini is the one that comes with realmlm."""
    corpus: Annotated[Path | None, optional("PATH")] = None
    """The corpus that is searched; changes made through the service are kept in it."""
    docs: UseAppendAction[Annotated[tuple[tuple[Path, ...], ...], optional("PATH …")]] = ()
    """Folders and files of documents instead, as for `realmlm ask`; what changes in them is known within seconds."""
    index: Annotated[Path | None, optional("PATH")] = None
    """An index that `realmlm index` made elsewhere; default: the exact one kept beside the corpus, made if there is none."""
    host: str = "127.0.0.1"
    """Address to listen at; this machine alone, unless told otherwise."""
    port: int = 8460
    """Port to listen at."""
    token: Annotated[str | None, optional("TEXT")] = None
    """What a change of a passage must be sent with (Authorization: Bearer …)."""
    runs: Annotated[tuple[Path, ...], optional("PATH …")] = ()
    """Folders of training runs that the page shows."""
    queue: int = 256
    """Requests that may wait; more are told to come back."""
    batch: int = 16
    """Requests answered together at most."""
    device: str = "auto"
    """Where the model runs."""

    def __post_init__(self) -> None:
        check((self.corpus is None) == any(self.docs), "say what is searched: either --docs FOLDER or --corpus CORPUS")
        check(1 <= self.port <= 65535, f"port must lie between 1 and 65535, not {self.port}")
        check(self.queue >= 1, f"queue must be 1 or more, not {self.queue}")
        check(self.batch >= 1, f"batch must be 1 or more, not {self.batch}")
        check(self.token is None or len(self.token) >= 8, "a token has at least 8 characters")


STAGES: dict[str, Any] = {"warmup": Warmup, "pretrain": Pretrain, "finetune": Finetune}  # commands whose runs can be gone on with


def record(values: Any) -> Any:
    """Settings as JSON: records become objects, paths strings."""
    if is_dataclass(values):
        values = flat(values)
    if isinstance(values, dict):
        return {name: record(value) for name, value in values.items()}
    if isinstance(values, tuple | list):
        return [record(value) for value in values]
    return str(values.absolute()) if isinstance(values, Path) else values  # a run may be resumed from another folder


def filled(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """What `record` wrote down, with settings that came later at their defaults: all mean "as before". KeyError: one that is not known."""
    hints, whole = get_type_hints(kind), dict(values)
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
    hints, values = get_type_hints(kind), filled(kind, values)
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
