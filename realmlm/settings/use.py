"""Settings of the commands that measure and use a model."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from realmlm.bundled import MINI
from realmlm.defaults import ENGINE, OVERLAPPING, PATIENCE, QUEUE, READ, SHARED
from realmlm.sentences import has_words
from realmlm.settings.base import (
    DocumentPlaces,
    IndexPlace,
    ModelPlace,
    Place,
    Positional,
    Settings,
    arg,
    ensure,
    optional,
    required,
)
from realmlm.storage.files import read_text


@dataclass(frozen=True, kw_only=True)
class Searching(Settings):
    """How passages are found, wherever a question is asked."""

    index: Annotated[IndexPlace | None, optional("PLACE")] = None
    """An index that `realmlm index` wrote elsewhere, or lance:PATH or postgres:DSN for one that `realmlm
    export vectors` wrote there; default: the exact one beside the corpus, built if there is none."""
    filter: Annotated[tuple[str, ...], optional("CONDITION …")] = ()
    """Find only passages whose metadata fulfils all conditions such as 'source = notes.md', 'title like Har%'
    or 'id < 100'; for an --index in another system."""
    hybrid: Annotated[float | None, optional("WEIGHT")] = None
    """Weight λ of word matching in the search, f + λ · BM25; default: the model's own, which `realmlm hybrid`
    fits; 0: none."""

    def check(self) -> None:
        self.at_least(0, "hybrid")
        shared = self.index is not None and self.index.partition(":")[0] in SHARED
        ensure(shared or not self.filter, "--filter is for an index in another system: --index lance:PATH")


@dataclass(frozen=True, kw_only=True)
class Evaluate(Searching):
    """Measure a model on questions: exact match, F1, recall of passages with the answer, each with a 95%
    interval; or its search on a BEIR folder: nDCG@10, MRR@10, recall."""

    model: ModelPlace = MINI
    """The model; mini is the one that comes with realmlm."""
    corpus: Annotated[Place | None, required("PATH")] = None
    """The corpus to search, or its URL."""
    questions: Annotated[Place | None, optional("PATH")] = None
    """Questions with answers, a file or its URL; sentences with [MASK] are filled in instead."""
    beir: Annotated[Path | None, optional("FOLDER")] = None
    """A BEIR folder (queries.jsonl, qrels/) in place of questions: documents are ranked, nothing is read. The
    corpus is made from the same folder, `realmlm corpus FOLDER`."""
    split: str = "test"
    """Which judgements of the BEIR folder: qrels/SPLIT.tsv."""
    retriever: Literal["learned", "bm25", "none"] = "learned"
    """learned: the model's own; bm25: word matching with the same reader; none: the null document only."""
    read: int = READ
    """Passages to read for each question; 0 measures retrieval alone."""
    rerank: int = 0
    """Retrieve and read this many passages, and answer from the --read of them that the reader finds best
    (p(z|x)); for models that weigh spans together or were trained with --passage-logit."""
    overlapping: Literal["merged", "separate"] = OVERLAPPING
    """Spans that overlap in one place, "Turing" in "Alan Turing", are one answer with their summed
    probability (merged), or each its own (separate)."""
    with_mask: bool = False
    """Search with a [MASK] after each question, like every query seen by a retriever that learned from text
    alone. Needs --read 0."""
    recall: Literal["dpr", "orqa"] = "dpr"
    """When a passage counts as holding an answer. dpr: the same words, ignoring case; orqa: the same
    characters, even inside words."""
    limit: Annotated[int | None, optional("N")] = None
    """Use only this many questions, evenly spread."""
    predictions: Annotated[Place | None, optional("PATH")] = None
    """File or URL for the predictions with their evidence, one JSON line each."""
    report: Annotated[Place | None, optional("PATH")] = None
    """File or URL for the report, as JSON."""
    json: bool = False
    """Print one JSON object instead of a table."""
    device: str = "auto"
    """Where the model runs."""
    engine: Literal["local", "ray"] = ENGINE
    """local: on this machine; ray: batches of questions on the Ray cluster at RAY_ADDRESS, or one started
    here. The answers are the same on machines of the same kind."""

    def check(self) -> None:
        super().check()
        free = self.engine == "local" or (self.device == "auto" and self.beir is None)
        ensure(free, "with --engine ray leave out --device and --beir: it answers --questions where it can")
        one = (self.questions is None) != (self.beir is None)
        ensure(one, "say what to measure on: either --questions FILE or --beir FOLDER")
        if self.beir is not None:
            ranks = self.retriever != "none" and not self.rerank
            ensure(ranks, "--beir measures a search: leave --retriever none and --rerank out")
            object.__setattr__(self, "read", 0)
        self.at_least(0, "read", "rerank")
        self.at_least(1, "limit")
        searches = self.retriever != "none" and self.read > 0
        ensure(searches or not self.rerank, "--rerank is for passages that are retrieved and read")
        fits = not self.with_mask or self.read == 0
        added = "a [MASK] is added to questions for the search, not for reading"
        ensure(fits, f"{added}: --with-mask needs --read 0")
        searched = self.index is None or self.retriever == "learned"
        ensure(searched, f"--retriever {self.retriever} searches no index; leave --index out")
        own = self.hybrid is None or self.retriever == "learned"
        ensure(own, f"--hybrid adds word matching to the model's own search, not to {self.retriever}")


@dataclass(frozen=True, kw_only=True)
class Calibrate(Settings):
    """Teach a model how often its answers are right, from answers that `realmlm evaluate` has judged, and
    when to call one likely, unsure or not found. Its weights do not change."""

    predictions: Annotated[tuple[Path, ...], arg(metavar="PATH …")] = ()
    """Predictions that `realmlm evaluate` wrote, by this model and with the --read it will be used with;
    default: how often its answers are right stays as it was found before, and --thresholds are chosen."""
    thresholds: Annotated[tuple[Path, ...], arg(metavar="PATH …")] = ()
    """Predictions on other questions, such as people ask of their documents, on which is chosen from which
    confidence on an answer is likely; default: those of --predictions."""
    out: Path
    """Folder to create."""
    model: ModelPlace = MINI
    """The model; mini is the one that comes with realmlm."""

    def check(self) -> None:
        example = "realmlm calibrate --predictions FILE --out MODEL"
        ensure(bool(self.predictions or self.thresholds), f"name at least one file: {example}")


@dataclass(frozen=True, kw_only=True)
class FitHybrid(Settings):
    """Find out how much word matching helps a model's search: the weight λ of f + λ · BM25 with the best
    recall on questions. Its weights do not change."""

    corpus: Path
    """The corpus to search."""
    questions: Annotated[tuple[Path, ...], required("PATH …")]
    """Questions with answers, that nothing was trained on; each file counts alike."""
    out: Path
    """Folder to create for the model with this weight."""
    model: ModelPlace = MINI
    """The model; mini is the one that comes with realmlm."""
    index: Annotated[Path | None, optional("PATH")] = None
    """An index that `realmlm index` wrote elsewhere; default: the exact one beside the corpus, built if there
    is none."""
    limit: Annotated[int | None, optional("N")] = None
    """Use only this many questions of each file, evenly spread."""
    weight: Annotated[float | None, optional("WEIGHT")] = None
    """Store this weight in place of the one that finds most here: a larger one suits few documents."""
    report: Annotated[Path | None, optional("PATH")] = None
    """File for what every weight finds in each file, as JSON."""
    device: str = "auto"
    """Where the model runs."""

    def check(self) -> None:
        self.at_least(1, "limit")
        self.at_least(0, "weight")
        example = "realmlm hybrid --corpus CORPUS --questions FILE --out MODEL"
        ensure(len(self.questions) > 0, f"name at least one file: {example}")


@dataclass(frozen=True, kw_only=True)
class Align(Settings):
    """List the passages that explain each sentence of a text: the alignment of X and Z that pre-training
    finds by itself."""

    model: ModelPlace = MINI
    """The pre-trained model."""
    corpus: Path
    """The corpus Z to search."""
    out: Path
    """File to write, one JSON line per sentence: its hidden words, the passages, p(z|x) and p(z|x,y)."""
    text: Annotated[Path | None, optional("PATH")] = None
    """The corpus X whose marked sentences are aligned; default: Z, without each sentence's own passage."""
    k: int = 8
    """Passages for each sentence, including the null document."""
    limit: Annotated[int | None, optional("N")] = None
    """Use only this many sentences, evenly spread."""
    device: str = "auto"
    """Where the model runs."""

    def check(self) -> None:
        self.at_least(1, "limit")
        ensure(self.k >= 2, f"k counts the null document and at least one passage: 2 or more, not {self.k}")


@dataclass(frozen=True, kw_only=True)
class MakeReport(Settings):
    """Write a report as one HTML file: curves of runs, evaluation tables, retrieval before and after."""

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

    def check(self) -> None:
        ensure((self.before is None) == (self.after is None), "--before FILE and --after FILE go together")
        something = bool(self.runs or self.evaluations or self.before is not None)
        ensure(something, "nothing to report: name runs, --evaluations FILE, or --before FILE --after FILE")
        self.at_least(1, "examples")


@dataclass(frozen=True, kw_only=True)
class RunBatch(Settings):
    """Run the commands in a file one after another in one process; what already exists is not made again."""

    file: Positional[Annotated[Path, arg(metavar="FILE")]]
    """One command per line, without `realmlm`; # starts a comment; - reads standard input."""
    log: Annotated[Path | None, optional("PATH")] = None
    """File to append each command and its time in seconds to, one JSON line each."""


@dataclass(frozen=True, kw_only=True)
class Ask(Searching):
    """Answer a question, or fill in a sentence, and show the passages the answer was read from."""

    question: Positional[Annotated[str | None, optional("QUESTION")]] = None
    """The question."""
    model: ModelPlace = MINI
    """The model; mini is the one that comes with realmlm."""
    corpus: Annotated[Place | None, optional("PATH")] = None
    """The corpus to search, or its URL."""
    docs: Annotated[DocumentPlaces, optional("PATH …")] = ()
    """Folders and files of documents to search instead; they are cached, and only changed files are processed
    again. pocket is the small encyclopedia that comes with realmlm."""
    fill: Annotated[str | None, optional("TEXT")] = None
    """A sentence with [MASK] instead of a question; each [MASK] is one wordpiece."""
    read: int = READ
    """Passages to read."""
    rerank: int = 0
    """Retrieve and read this many passages, and answer from the --read of them that the reader finds best
    (p(z|x)); for models that weigh spans together or were trained with --passage-logit."""
    numbers: bool = False
    """Print all passages that were read, each with its weight p(z|x) and p(y|z,x), how likely it gives this
    answer; and p, the probability of the answer and of others that may be meant."""
    json: bool = False
    """Print one JSON object."""
    device: str = "auto"
    """Where the model runs."""

    def check(self) -> None:
        super().check()
        self.at_least(0, "rerank")
        asked = (self.question is None) != (self.fill is None)
        examples = 'realmlm ask "your question" --docs FOLDER; or --fill "a sentence with [MASK]"'
        ensure(asked, f"ask one thing, before any flags: {examples}")
        words = self.question is None or has_words(self.question)
        ensure(words, "the question is empty; ask with words: Who …?")
        ensure(self.read >= 1, f"cannot read {self.read} passages; choose --read 1 or more")
        one = (self.corpus is None) == any(self.docs)
        ensure(one, "say what to search: either --docs FOLDER or --corpus CORPUS")


@dataclass(frozen=True, kw_only=True)
class Search(Searching):
    """Find the passages that fit a question best, without reading them."""

    question: Positional[Annotated[str, arg(metavar="QUESTION")]]
    """The question, or a sentence with [MASK]."""
    model: ModelPlace = MINI
    """The model; mini is the one that comes with realmlm."""
    corpus: Annotated[Place | None, optional("PATH")] = None
    """The corpus to search, or its URL."""
    docs: Annotated[DocumentPlaces, optional("PATH …")] = ()
    """Folders and files of documents to search instead, as for `realmlm ask`."""
    k: int = READ
    """Passages to find."""
    json: bool = False
    """Print one JSON object."""
    device: str = "auto"
    """Where the model runs."""

    def check(self) -> None:
        super().check()
        self.at_least(1, "k")
        one = (self.corpus is None) == any(self.docs)
        ensure(one, "say what to search: either --docs FOLDER or --corpus CORPUS")


@dataclass(frozen=True, kw_only=True)
class Examine(Settings):
    """Show versions, devices, what is missing for which command, and how large the cache is."""


@dataclass(frozen=True, kw_only=True)
class ManageCache(Settings):
    """List what is cached of documents that were searched, or clear it; it is made again when needed."""

    names: Positional[Annotated[tuple[str, ...], optional("NAME …")]] = ()
    """Entries to clear, as the list names them; default: all of them."""
    clear: bool = False
    """Remove them, except those that are being made or changed at this moment."""

    def check(self) -> None:
        listed = self.clear or not self.names
        ensure(listed, f"say that {', '.join(self.names)} is to be removed: realmlm cache NAME --clear")


@dataclass(frozen=True, kw_only=True)
class Serve(Searching):
    """Answer questions over HTTP, many at once, with passages that can be changed and a web page at the same
    address."""

    model: ModelPlace = MINI
    """The model; mini is the one that comes with realmlm."""
    corpus: Annotated[Path | None, optional("PATH")] = None
    """The corpus to search; changes made through the service are saved in it."""
    docs: Annotated[DocumentPlaces, optional("PATH …")] = ()
    """Folders and files of documents to search instead, as for `realmlm ask`; changes are seen within
    seconds."""
    host: str = "127.0.0.1"
    """Address to listen on; the default serves this machine only."""
    port: int = 8460
    """Port to listen on."""
    allow_host: Annotated[tuple[str, ...], optional("NAME …")] = ()
    """Names that requests may be addressed to, their Host; others are refused, but addresses in numbers and
    localhost. Default: any where --host is not this machine alone, else localhost."""
    token: Annotated[str | None, optional("TEXT")] = None
    """Token that requests to change a passage must carry (Authorization: Bearer …); at least 8 characters.
    Others on this machine can see it in the list of processes: better name a file, or set REALMLM_TOKEN."""
    token_file: Annotated[Path | None, optional("PATH")] = None
    """File with the token on its first line."""
    token_reads: bool = False
    """Reading and asking need the token too. Where --host is not this machine alone, they do anyway."""
    open_reads: bool = False
    """Let anyone read and ask without the token, whatever the --host."""
    runs: Annotated[tuple[Path, ...], optional("PATH …")] = ()
    """Folders of training runs to show on the page."""
    queue: int = QUEUE
    """How many requests may wait; any more are told to try again later."""
    patience: float = PATIENCE
    """Seconds that a request may wait; one that would wait longer is told at once when to try again."""
    batch: Annotated[int | None, optional("N")] = None
    """Most requests answered together; default: as many as the device reads for at once, 16 on a CPU, 96 on a
    GPU."""
    workers: int = 1
    """Processes that answer at this port, each with a model of its own, over one corpus and index (Linux)."""
    rerank: int = 0
    """Retrieve and read this many passages, and answer from those that the reader finds best
    (p(z|x)); for models that weigh spans together or were trained with --passage-logit."""
    log_file: Annotated[Path | None, optional("PATH")] = None
    """File to append a line of JSON to for each request; - is standard output."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level of these lines. error: what failed here; warning: what was refused, too; info: every
    request; debug: also whether the service is alive, and the page's files."""
    log_questions: bool = False
    """Write down what was asked, too."""
    device: str = "auto"
    """Where the model runs."""

    def check(self) -> None:
        super().check()
        one = (self.corpus is None) == any(self.docs)
        ensure(one, "say what to search: either --docs FOLDER or --corpus CORPUS")
        self.between(1, 65535, "port")
        self.at_least(1, "queue", "batch", "workers")
        self.at_least(0, "rerank")
        self.above_zero("patience")
        ensure(self.token is None or self.token_file is None, "give --token or --token-file, not both")
        ensure(not (self.token_reads and self.open_reads), "give --token-reads or --open-reads, not both")
        _check_length(self.token)

    def secret(self) -> str | None:
        """The token, wherever it is given: as it is, in a file, or in the environment."""
        token = self.token
        if self.token_file is not None:
            token = next(iter(read_text(self.token_file).splitlines()), "").strip()
        elif token is None:
            token = os.environ.get("REALMLM_TOKEN")
            ensure(token != "", "REALMLM_TOKEN is set, and empty: put the token into it, or unset it")
        _check_length(token)
        closed = not self.token_reads or token is not None
        ensure(closed, "--token-reads needs a token: give --token-file FILE")
        return token


def _check_length(token: str | None) -> None:
    ensure(token is None or len(token) >= 8, "a token must have at least 8 characters")
