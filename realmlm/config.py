"""Every setting of every command: typed, explained, checked once. The command line and its help are generated from it."""

from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from realmlm.settings import JointOptim, Loop, Optim, Positional, Refresh, arg, check, optional

MASKING = Literal["salient", "random-span", "uniform", "whole-word"]

# --- commands --------------------------------------------------------------------------------------------------------------------------


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
    """Files and folders: .txt .md .html .jsonl .csv .tsv, MediaWiki .xml; also .gz .bz2 .xz of these."""
    out: Path
    """Folder to make."""
    tokenizer: Annotated[str | None, optional("TEXT")] = None
    """A tokenizer.json, a folder with one (a model, another corpus), or the name of a model."""
    train_tokenizer: Annotated[int | None, optional("N")] = None
    """Train a tokenizer of this many wordpieces on the documents instead."""
    max_wordpieces: int = 288
    """Longest passage."""
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
    tagger: Literal["rules", "phrases", "spacy"] = "rules"
    """rules: our own, light; phrases: a list of yours; spacy: a spaCy model's entities."""
    phrases: Annotated[Path | None, optional("PATH")] = None
    """File with one phrase a line, for --tagger phrases."""
    spacy_model: str = "en_core_web_sm"
    """Name of the spaCy model, for --tagger spacy."""
    workers: Annotated[int | None, optional("N")] = None
    """Processes; default: one for each core."""

    def __post_init__(self) -> None:
        check((self.tagger == "phrases") == (self.phrases is not None), "--tagger phrases and --phrases FILE go together")
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
    seed: int = 0
    """Another seed, other sentences."""

    def __post_init__(self) -> None:
        check(self.count >= 1, f"count must be 1 or more, not {self.count}")


@dataclass(frozen=True, kw_only=True)
class Model:
    """Make a model to begin with: fresh weights, or a published encoder as towers and reader."""

    corpus: Path
    """The corpus whose tokenizer the model reads with."""
    out: Path
    """Folder to make."""
    checkpoint: Annotated[str | None, optional("TEXT")] = None
    """Folder or name of a published encoder (BERT and its like); the corpus must be made with its tokenizer."""
    family: str = "modernbert"
    """transformers' model_type of a fresh encoder; docs/encoders.md lists those that were tried."""
    layers: int = 6
    """Layers of a fresh encoder."""
    hidden: int = 512
    """Its hidden size."""
    heads: int = 8
    """Its attention heads."""
    dropout: float = 0.0
    """Its dropout, in training."""
    share_towers: bool = True
    """Query and document tower are one encoder with two projections."""
    projection: int = 128
    """Size of the vectors that are searched; that of a checkpoint's own vectors begins with exactly these (sentence encoders)."""
    projection_norm: bool = True
    """LayerNorm after each projection and scores divided by √size; without it the plain inner product of the paper."""
    pooling: Literal["cls", "mean"] = "mean"
    """What stands for a sequence: the vector of its [CLS] (the paper), or the mean of all."""
    max_query: int = 64
    """Wordpieces of a query that are read."""
    max_answer: int = 10
    """Longest answer span in wordpieces."""
    reading: Literal["paper", "released"] = "paper"
    """How spans of several passages are weighed: within each passage, or all together as in the authors' released code."""
    seed: int = 0
    """Seed of the fresh weights."""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "projection", "max_query", "max_answer"):
            check(getattr(self, name) >= 1, f"{name.replace('_', '-')} must be 1 or more, not {getattr(self, name)}")
        check(0 <= self.dropout < 1, f"dropout is a share from 0 to below 1, not {self.dropout}")
        check(self.hidden % self.heads == 0, f"hidden {self.hidden} is not a multiple of heads {self.heads}")


@dataclass(frozen=True, kw_only=True)
class ImportHf:
    """Bring in checkpoints of the published REALM: transformers' layout, or the authors' TensorFlow variables."""

    sources: Positional[Annotated[tuple[str, ...], arg(metavar="FOLDER_OR_NAME …", help_behavior_hint="(required)")]]
    """Folders or hub names, joined into one model: an embedder or scorer, an encoder or reader, or RealmForOpenQA, which is all of it."""
    out: Path
    """Folder of the model to make."""
    corpus: Annotated[Path | None, optional("PATH")] = None
    """Folder to make of RealmForOpenQA's block records; its block vectors become the index beside it."""
    tokenizer: Annotated[Path | None, optional("PATH")] = None
    """A tokenizer.json or vocab.txt, where none lies beside the weights."""
    dtype: Literal["float32", "float16"] = "float32"
    """Type of the stored block vectors; float16 takes half the space and is no longer exact."""
    seed: int = 0
    """Seed of the heads that no source brings."""

    def __post_init__(self) -> None:
        check(len(self.sources) > 0, "name at least one checkpoint: realmlm import-hf FOLDER_OR_NAME --out MODEL")


@dataclass(frozen=True, kw_only=True)
class ExportHf:
    """Write a model in transformers' REALM layout (for transformers up to 4.57), where it has the parts of that layout."""

    model: Positional[Annotated[Path, arg(metavar="MODEL")]]
    """The model."""
    out: Path
    """Folder to make."""
    architecture: Literal["RealmEmbedder", "RealmScorer", "RealmKnowledgeAugEncoder", "RealmReader", "RealmForOpenQA"]
    """Which of its classes the folder is for."""
    corpus: Annotated[Path | None, optional("PATH")] = None
    """For RealmForOpenQA: the corpus whose passages and vectors go along."""


@dataclass(frozen=True, kw_only=True)
class Index:
    """Embed a corpus with a model's document tower and write the index that is searched."""

    model: Path
    """The model."""
    corpus: Path
    """The corpus."""
    out: Annotated[Path | None, optional("PATH")] = None
    """Folder to make, for --index; default: beside the corpus, where evaluate and ask find the exact one."""
    kind: Literal["exact", "ivf"] = "exact"
    """exact: every vector is compared; ivf: only those in the nearest lists, recall measured and shown."""
    dtype: Literal["float16", "float32"] = "float16"
    """Type of the stored vectors."""
    device: str = "auto"
    """Where to embed."""


@dataclass(frozen=True, kw_only=True)
class Warmup:
    """Prepare a model for joint training: the reader learns to read passages (masked LM), the retriever to find them (ICT)."""

    model: Annotated[Path, arg(aliases=("--from",))]
    """The model to begin with."""
    corpus: Path
    """The corpus; its spans are needed where masks are salient."""
    out: Path
    """Folder of the run; the model stands in its `model/`."""
    masking: MASKING = "salient"
    """Which wordpieces the reader must predict."""
    pairing: Literal["own", "sibling", "recurring", "null"] = "sibling"
    """What lies beside the masked sentence: its own passage (learn to copy), another one of its article if there is one, often one
    that has the hidden words too (recurring), or nothing."""
    pointing: float = 0.0
    """Weight of pointing at the hidden words where they stand in the passage: the span head's warm-up for questions."""
    hold_out: Annotated[Path | None, optional("PATH")] = None
    """Masked sentences made by `realmlm clozes`: no sentence of the passages they come from is trained on."""
    remove_sentence: float = 0.9
    """ICT: share of cases in which the sentence is taken out of its passage."""
    reader: Optim = field(default_factory=lambda: Optim(steps=2000, batch=64, lr=3e-4))
    """Masked LM; 0 steps leave it out."""
    retriever: Optim = field(default_factory=lambda: Optim(steps=2000, batch=256))
    """ICT; 0 steps leave it out."""
    loop: Loop = field(default_factory=Loop)

    def __post_init__(self) -> None:
        check(0 <= self.remove_sentence <= 1, f"remove-sentence is a share between 0 and 1, not {self.remove_sentence}")


@dataclass(frozen=True, kw_only=True)
class Pretrain:
    """Train retriever and reader together on text alone: masked LM through the search, the index refreshed as it goes."""

    model: Annotated[Path, arg(aliases=("--from",))]
    """The model, warmed up."""
    corpus: Path
    """The knowledge Z that is searched."""
    out: Path
    """Folder of the run; the model stands in its `model/`."""
    text: Annotated[Path | None, optional("PATH")] = None
    """The corpus X that masked sentences come from; default: Z itself, a sentence's own passage never retrieved."""
    k: int = 8
    """Passages read for each sentence, the null document among them."""
    null_document: bool = True
    """One of the k is the empty document, for sentences that need no passage."""
    own_passage: bool = False
    """A sentence may retrieve the passage it comes from."""
    masking: MASKING = "salient"
    """Which wordpieces are masked."""
    marginal: Literal["joint", "per-token"] = "joint"
    """joint: one passage explains all masks of a sentence (the paper); per-token: each mask may have its own."""
    hold_out: Annotated[Path | None, optional("PATH")] = None
    """Masked sentences made by `realmlm clozes`: the passages they come from are searched, but no sentence of theirs is trained on."""
    freeze_retriever: int = 0
    """First steps in which only the reader learns."""
    probe: Annotated[Path | None, optional("PATH")] = None
    """Held-out masked sentences with their gold passages (JSON lines), measured as training goes on."""
    probe_every: int = 50
    """Steps between two probes."""
    optim: JointOptim = field(default_factory=JointOptim)
    refresh: Refresh = field(default_factory=Refresh)
    loop: Loop = field(default_factory=Loop)

    def __post_init__(self) -> None:
        least = 1 + self.null_document
        check(self.k >= least, f"k counts the null document and at least one passage: {least} or more, not {self.k}")
        check(self.probe_every >= 1, f"probe-every must be 1 or more, not {self.probe_every}")


@dataclass(frozen=True, kw_only=True)
class Finetune:
    """Train a model to answer questions from the passages it retrieves."""

    model: Annotated[Path, arg(aliases=("--from",))]
    """The model, pre-trained."""
    corpus: Path
    """The corpus that is searched."""
    questions: Annotated[tuple[Path, ...], arg(metavar="PATH …", help_behavior_hint="(required)")]
    """Files of questions with answers: NQ-open .jsonl, DPR .tsv, WebQuestions .json, CuratedTREC .tsv, SQuAD .json."""
    out: Path
    """Folder of the run; the model stands in its `model/`."""
    retriever: Literal["learned", "bm25"] = "learned"
    """learned: the model's own, trained along; bm25: word matching, only the reader learns."""
    read: int = 5
    """Passages read for each question."""
    read_gold: bool = False
    """Where none of them holds the answer, the best candidate that does is read in the last one's place."""
    candidates: int = 5000
    """Passages over which the retriever is trained."""
    objective: Literal["marginal", "hard-em"] = "marginal"
    """marginal: every place where an answer stands counts (the paper); hard-em: in each passage the likeliest one alone."""
    closed_book: float = 0.1
    """Weight of what the reader learns to answer without any passage."""
    optim: JointOptim = field(default_factory=lambda: JointOptim(lr=1e-5, retriever_lr=1e-5))
    refresh: Refresh = field(default_factory=lambda: Refresh(every_steps=0))
    loop: Loop = field(default_factory=Loop)

    def __post_init__(self) -> None:
        check(1 <= self.read <= self.candidates, f"read ({self.read}) must lie between 1 and candidates ({self.candidates})")


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure a model on questions: exact match, F1, recall of passages with the answer, each with a 95% interval."""

    model: Path
    """The model."""
    corpus: Path
    """The corpus that is searched."""
    questions: Path
    """Questions with answers; sentences with [MASK] are filled in instead."""
    retriever: Literal["learned", "bm25", "none"] = "learned"
    """learned: the model's own; bm25: word matching with the same reader; none: the null document only."""
    read: int = 5
    """Passages read for each question; 0: retrieval alone is measured."""
    recall: Literal["dpr", "orqa"] = "dpr"
    """When a passage holds an answer. dpr: the same words, upper and lower case alike; orqa: the same characters, within words too."""
    index: Annotated[Path | None, optional("PATH")] = None
    """An index that `realmlm index` made elsewhere; default: the exact one kept beside the corpus, made if there is none."""
    limit: Annotated[int | None, optional("N")] = None
    """Take only this many questions, evenly spread."""
    predictions: Annotated[Path | None, optional("PATH")] = None
    """File for the predictions with their evidence, one JSON line each."""
    json: bool = False
    """Print one JSON object instead of a table."""
    device: str = "auto"
    """Where the model runs."""

    def __post_init__(self) -> None:
        check(self.read >= 0, f"read must be 0 or more, not {self.read}")
        check(self.limit is None or self.limit >= 1, f"limit must be 1 or more, not {self.limit}")


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Answer a question, or fill in a sentence, and show the passages it was read from."""

    question: Positional[Annotated[str | None, optional("QUESTION")]] = None
    """The question."""
    model: Path
    """The model."""
    corpus: Path
    """The corpus that is searched."""
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
            'ask one thing: realmlm ask "your question" … or --fill "a sentence with [MASK]"',
        )


def record(values: Any) -> Any:
    """Settings as JSON: records become objects, paths strings."""
    if is_dataclass(values):
        values = flat(values)
    if isinstance(values, dict):
        return {name: record(value) for name, value in values.items()}
    if isinstance(values, tuple | list):
        return [record(value) for value in values]
    return str(values.absolute()) if isinstance(values, Path) else values  # a run may be resumed from another folder


def restore(kind: Any, values: dict[str, Any]) -> Any:
    """The config that `record` wrote down."""
    hints, restored = get_type_hints(kind), {}
    for item in fields(kind):
        hint, value = hints[item.name], values[item.name]
        if is_dataclass(hint):
            value = restore(hint, value)
        elif value is not None and (hint is Path or Path in get_args(hint)):
            value = [Path(item) for item in value] if isinstance(value, list) else Path(value)
        restored[item.name] = tuple(value) if isinstance(value, list) else value
    return kind(**restored)


def flat(config: Any) -> dict[str, Any]:
    """A config as keyword arguments: its fields, nested settings kept as records."""
    return {item.name: getattr(config, item.name) for item in fields(config)}
