"""Settings of the commands that make, convert and index a model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from realmlm.bundled import MINI
from realmlm.defaults import ENGINE
from realmlm.settings.base import ModelPlace, Place, Positional, Settings, arg, ensure, optional, required


@dataclass(frozen=True, kw_only=True)
class MakeModel(Settings):
    """Make a model to start from: fresh weights, or a published encoder as towers and reader."""

    corpus: Path
    """The corpus whose tokenizer the model uses."""
    out: Path
    """Folder to create."""
    checkpoint: Annotated[str | None, optional("TEXT")] = None
    """Folder or hub name (NAME@REVISION) of a published encoder (BERT or similar), whose tokenizer the corpus
    must have."""
    family: str = "modernbert"
    """transformers' model_type of a fresh encoder; docs/encoders.md lists those that were tested."""
    layers: int = 6
    """Layers of a fresh encoder."""
    hidden: int = 512
    """Its hidden size."""
    heads: int = 8
    """Its attention heads."""
    dropout: float = 0.0
    """Its dropout, in training."""
    towers: Literal["encoder", "words"] = "encoder"
    """What the towers of a fresh model are: an encoder like the reader's; or words, a vector and a weight for
    each wordpiece, added up, which learn to find in minutes on a CPU (with --projection 384 or more)."""
    share_towers: bool = True
    """Query and document towers share one encoder, with two projections."""
    projection: int = 128
    """Size of the vectors to search; with a sentence encoder's own size, the model starts from its vectors.
    """
    projection_norm: bool = True
    """LayerNorm after each projection and scores divided by √size; without it, the paper's inner product."""
    pooling: Literal["cls", "mean"] = "mean"
    """What represents a sequence: the vector of its [CLS] (the paper), or the mean of all its vectors."""
    max_query: int = 64
    """How many wordpieces of a query are read."""
    max_answer: int = 10
    """Longest answer span, in wordpieces."""
    reading: Literal["paper", "together", "released"] = "paper"
    """How spans of several passages are weighed: within each passage (paper), or all together; the authors'
    released code does the latter, but answers with the best single span, where the other two add up every
    occurrence of an answer."""
    read_titles: bool = False
    """The reader reads a passage's title before its body; the paper's reads the body alone."""
    freeze_embeddings: bool = False
    """Word embeddings are never trained: a checkpoint's stay the same in towers and reader, and are stored
    once when compressed."""
    seed: int = 0
    """Seed for the fresh weights."""

    def check(self) -> None:
        self.at_least(1, "layers", "hidden", "heads", "projection", "max_query", "max_answer")
        why = "without a passage the reader is given the question and a mask for each wordpiece of the answer"
        limits = f"max-query ({self.max_query}) must be more than max-answer ({self.max_answer})"
        ensure(self.max_query > self.max_answer, f"{limits}: {why}")
        ensure(0 <= self.dropout < 1, f"dropout must be at least 0 and below 1, not {self.dropout}")
        summed = self.pooling == "mean" and self.checkpoint is None and not self.freeze_embeddings
        beside = "leave out --pooling, --checkpoint and --freeze-embeddings"
        ensure(self.towers == "encoder" or summed, f"towers of words are learned sums: {beside}")
        uneven = self.hidden % self.heads
        ensure(not uneven, f"hidden {self.hidden} is not a multiple of heads {self.heads}")


@dataclass(frozen=True, kw_only=True)
class TrainTagger(Settings):
    """Train a tagger of names on labelled sentences; `realmlm spans` then marks a corpus with it (--tagger
    learned)."""

    train: Path
    """Sentences as in CoNLL and WikiAnn: a word and its label (O, B-…, I-…) per line, an empty line between
    sentences."""
    test: Path
    """Other sentences, to measure F1 on."""
    out: Path
    """Folder to create."""
    checkpoint: str
    """Folder or name of a published encoder to start from."""
    tokenizer: Annotated[str | None, optional("TEXT")] = None
    """Its tokenizer, if that is elsewhere."""
    epochs: int = 3
    """Passes over the sentences."""
    batch: int = 32
    """Sentences per step."""
    lr: float = 2e-4
    """Peak learning rate."""
    seed: int = 0
    """Seed for the order and the fresh weights."""
    device: str = "auto"
    """Where to train."""

    def check(self) -> None:
        self.at_least(1, "epochs", "batch")
        self.at_least(0, "seed")
        self.above_zero("lr")


@dataclass(frozen=True, kw_only=True)
class Graft(Settings):
    """Join the towers of one model with the reader of another."""

    towers: ModelPlace
    """The model to take the query and document towers from."""
    reader: ModelPlace
    """The model to take the reader from."""
    out: Path
    """Folder to create."""


@dataclass(frozen=True, kw_only=True)
class Compress(Settings):
    """Write a model with smaller weights, for shipping; they are expanded again when it is loaded."""

    model: Positional[Annotated[ModelPlace, arg(metavar="MODEL")]]
    """The model."""
    out: Path
    """Folder to create."""
    dtype: Literal["int8", "float16"] = "int8"
    """int8: matrices row by row in 8 bits, biases and norms unchanged; float16: all in half precision."""


@dataclass(frozen=True, kw_only=True)
class ImportHf(Settings):
    """Import checkpoints of the published REALM, in transformers' layout or as TensorFlow variables."""

    sources: Positional[Annotated[tuple[str, ...], required("FOLDER_OR_NAME …")]]
    """Folders or hub names (NAME@REVISION), joined into one model: an embedder or scorer, an encoder or
    reader, or RealmForOpenQA, which has all of it."""
    out: Path
    """Folder to create for the model."""
    corpus: Annotated[Path | None, optional("PATH")] = None
    """Folder to create for RealmForOpenQA's block records as a corpus; their vectors become its index."""
    tokenizer: Annotated[Path | None, optional("PATH")] = None
    """A tokenizer.json or vocab.txt, if there is none beside the weights."""
    dtype: Literal["float32", "float16"] = "float32"
    """Type of the stored block vectors; float16 takes half the space but is not exact."""
    seed: int = 0
    """Seed for heads that no source provides."""

    def check(self) -> None:
        example = "realmlm import-hf FOLDER_OR_NAME --out MODEL"
        ensure(len(self.sources) > 0, f"name at least one checkpoint: {example}")


@dataclass(frozen=True, kw_only=True)
class ExportHf(Settings):
    """Write a model in transformers' REALM layout (up to 4.57), if it has the parts of that layout."""

    model: Positional[Annotated[ModelPlace, arg(metavar="MODEL")]]
    """The model."""
    out: Path
    """Folder to create."""
    architecture: Literal[
        "RealmEmbedder", "RealmScorer", "RealmKnowledgeAugEncoder", "RealmReader", "RealmForOpenQA"
    ]
    """Which of its classes the folder is for."""
    corpus: Annotated[Path | None, optional("PATH")] = None
    """For RealmForOpenQA: the corpus whose passages and vectors to include."""

    def check(self) -> None:
        fits = (self.architecture == "RealmForOpenQA") == (self.corpus is not None)
        how = "name them with --corpus; the other architectures hold none"
        ensure(fits, f"RealmForOpenQA holds the passages too: {how}")


@dataclass(frozen=True, kw_only=True)
class ExportEncoders(Settings):
    """Write a model's two towers for other programs, as sentence-transformers folders or as ONNX."""

    model: ModelPlace = MINI
    """The model; mini is the one that comes with realmlm."""
    out: Path
    """Folder to create, with `query` and `passages` in it and a README that says how they are used."""
    format: Literal["sentence-transformers", "onnx"] = "sentence-transformers"
    """sentence-transformers: folders that `SentenceTransformer(…)` loads; onnx: graphs from tokens to
    vectors."""


@dataclass(frozen=True, kw_only=True)
class ExportVectors(Settings):
    """Write the passages of a corpus with their vectors where other systems read them.

    Where a table holds them already, of the same model and corpus, only what edits changed is written; other
    vectors of this command's are replaced when all is done."""

    to: Annotated[tuple[Literal["lance", "postgres", "parquet"], str], required("SYSTEM PLACE")]
    """lance PATH: a Lance dataset; postgres DSN: a table in PostgreSQL with pgvector, called realmlm unless
    #TABLE follows; parquet PATH: one file. The first two can be searched: --index lance:PATH."""
    corpus: Path
    """The corpus."""
    model: ModelPlace = MINI
    """The model; mini is the one that comes with realmlm."""
    index: Annotated[Path | None, optional("PATH")] = None
    """An index that `realmlm index` wrote elsewhere; default: the exact one beside the corpus, built if there
    is none."""
    anew: bool = False
    """Write all of it anew in any case: the system's index is made again, columns that others added and
    grants are gone."""
    device: str = "auto"
    """Where to embed."""


@dataclass(frozen=True, kw_only=True)
class BuildIndex(Settings):
    """Embed a corpus with a model's document tower and write the index to search."""

    model: ModelPlace = MINI
    """The model; mini is the one that comes with realmlm."""
    corpus: Place
    """The corpus, or its URL."""
    out: Annotated[Place | None, optional("PATH")] = None
    """Folder to create, or its URL, for --index; default: beside the corpus, where evaluate and ask find an
    exact one."""
    kind: Literal["exact", "ivf"] = "exact"
    """exact: every vector is compared; ivf: only those in the nearest lists, with recall measured and
    shown."""
    dtype: Annotated[Literal["float16", "float32"] | None, optional("TYPE")] = None
    """Type of the stored vectors, float16 or float32; default: that of the existing index, else float16."""
    device: str = "auto"
    """Where to embed."""
    engine: Literal["local", "ray"] = ENGINE
    """local: on this machine; ray: on the Ray cluster at RAY_ADDRESS, or one started here for the purpose, on
    its GPUs if it has any. The index is the same, byte for byte, on machines of the same kind."""

    def check(self) -> None:
        free = self.engine == "local" or self.device == "auto"
        ensure(free, "leave out --device with --engine ray: the cluster's GPUs are used if it has any")
