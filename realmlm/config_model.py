"""Settings of the commands that make or train a model; `config.py` has the others."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from realmlm.bundled import MINI
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

ADAPTING = "adapting"  # where in its folder `adapt` keeps the run of its training
MASKING = Literal["salient", "random-span", "uniform", "whole-word"]


@dataclass(frozen=True, kw_only=True)
class Model:
    """Make a model to start from: fresh weights, or a published encoder as towers and reader."""

    corpus: Path
    """The corpus whose tokenizer the model uses."""
    out: Path
    """Folder to create."""
    checkpoint: Annotated[str | None, optional("TEXT")] = None
    """Folder or name of a published encoder (BERT or similar); the corpus must have been made with its
    tokenizer."""
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
    share_towers: bool = True
    """Query and document towers share one encoder, with two projections."""
    projection: int = 128
    """Size of the vectors to search; with that of a checkpoint's own vectors (sentence encoders), the model
    starts from exactly these."""
    projection_norm: bool = True
    """LayerNorm after each projection and scores divided by √size; without it, the paper's plain inner
    product."""
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

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "projection", "max_query", "max_answer"):
            check(
                getattr(self, name) >= 1,
                f"{name.replace('_', '-')} must be 1 or more, not {getattr(self, name)}",
            )
        check(
            self.max_query > self.max_answer,
            f"max-query ({self.max_query}) must be more than max-answer ({self.max_answer}): without a "
            "passage the reader is given the "
            "question and a mask for each wordpiece of the answer",
        )
        check(0 <= self.dropout < 1, f"dropout must be at least 0 and below 1, not {self.dropout}")
        check(self.hidden % self.heads == 0, f"hidden {self.hidden} is not a multiple of heads {self.heads}")


@dataclass(frozen=True, kw_only=True)
class Tagger:
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
    """Its tokenizer, if that is kept elsewhere."""
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

    def __post_init__(self) -> None:
        check(self.epochs >= 1, f"epochs must be 1 or more, not {self.epochs}")
        check(self.batch >= 1, f"batch must be 1 or more, not {self.batch}")
        check(self.lr > 0, f"lr must be more than 0, not {self.lr}")


@dataclass(frozen=True, kw_only=True)
class Graft:
    """Join the towers of one model with the reader of another."""

    towers: Path
    """The model to take the query and document towers from."""
    reader: Path
    """The model to take the reader from."""
    out: Path
    """Folder to create."""


@dataclass(frozen=True, kw_only=True)
class Compress:
    """Write a model with smaller weights, for shipping; they are expanded again when it is loaded."""

    model: Positional[Annotated[Path, arg(metavar="MODEL")]]
    """The model."""
    out: Path
    """Folder to create."""
    dtype: Literal["int8", "float16"] = "int8"
    """int8: matrices row by row in 8 bits, biases and norms unchanged; float16: everything in half precision.
    """


@dataclass(frozen=True, kw_only=True)
class ImportHf:
    """Import checkpoints of the published REALM: transformers' layout, or the authors' TensorFlow
    variables."""

    sources: Positional[
        Annotated[tuple[str, ...], arg(metavar="FOLDER_OR_NAME …", help_behavior_hint="(required)")]
    ]
    """Folders or hub names, joined into one model: an embedder or scorer, an encoder or reader, or
    RealmForOpenQA, which has all of it."""
    out: Path
    """Folder to create for the model."""
    corpus: Annotated[Path | None, optional("PATH")] = None
    """Folder to create for a corpus of RealmForOpenQA's block records; its block vectors become the index
    beside it."""
    tokenizer: Annotated[Path | None, optional("PATH")] = None
    """A tokenizer.json or vocab.txt, if there is none beside the weights."""
    dtype: Literal["float32", "float16"] = "float32"
    """Type of the stored block vectors; float16 takes half the space but is not exact."""
    seed: int = 0
    """Seed for heads that no source provides."""

    def __post_init__(self) -> None:
        check(
            len(self.sources) > 0,
            "name at least one checkpoint: realmlm import-hf FOLDER_OR_NAME --out MODEL",
        )


@dataclass(frozen=True, kw_only=True)
class ExportHf:
    """Write a model in transformers' REALM layout (for transformers up to 4.57), if it has the parts of that
    layout."""

    model: Positional[Annotated[Path, arg(metavar="MODEL")]]
    """The model."""
    out: Path
    """Folder to create."""
    architecture: Literal[
        "RealmEmbedder", "RealmScorer", "RealmKnowledgeAugEncoder", "RealmReader", "RealmForOpenQA"
    ]
    """Which of its classes the folder is for."""
    corpus: Annotated[Path | None, optional("PATH")] = None
    """For RealmForOpenQA: the corpus whose passages and vectors to include."""


@dataclass(frozen=True, kw_only=True)
class Index:
    """Embed a corpus with a model's document tower and write the index to search."""

    model: Path = MINI
    """The model; mini is the one that comes with realmlm."""
    corpus: Path
    """The corpus."""
    out: Annotated[Path | None, optional("PATH")] = None
    """Folder to create, for --index; default: beside the corpus, where evaluate and ask find the exact one.
    """
    kind: Literal["exact", "ivf"] = "exact"
    """exact: every vector is compared; ivf: only those in the nearest lists, with recall measured and shown.
    """
    dtype: Annotated[Literal["float16", "float32"] | None, optional("TYPE")] = None
    """Type of the stored vectors, float16 or float32; default: that of the existing index, else float16."""
    device: str = "auto"
    """Where to embed."""


@dataclass(frozen=True, kw_only=True)
class Warmup:
    """Prepare a model for joint training: the reader learns to read passages (masked LM), the retriever to
    find them (ICT)."""

    model: Annotated[Path, arg(aliases=("--from",))] = MINI
    """The model to start from."""
    corpus: Path
    """The corpus; salient masking needs its spans marked."""
    out: Path
    """Folder for the run; the model is saved in its `model/`."""
    masking: MASKING = "salient"
    """Which wordpieces the reader must predict."""
    pairing: Literal["own", "sibling", "recurring", "null"] = "sibling"
    """What is read with the masked sentence: its own passage (learn to copy), another one from its article if
    there is one, often one that also has the hidden words (recurring), or nothing."""
    pointing: float = 0.0
    """Weight of pointing at the hidden words where they occur in the passage: the span head's warm-up for
    questions."""
    hold_out: Annotated[Path | None, optional("PATH")] = None
    """Masked sentences made by `realmlm clozes`; no sentence from their passages is trained on."""
    towers_as_reader: bool = False
    """Start ICT with the warmed-up reader's encoder in the towers; the paper starts all three from one BERT.
    """
    remove_sentence: float = 0.9
    """ICT: share of cases in which the sentence is removed from its passage."""
    reader: Optim = field(default_factory=lambda: Optim(steps=2000, batch=64, lr=3e-4))
    """Masked LM; 0 steps skip it."""
    retriever: Optim = field(default_factory=lambda: Optim(steps=2000, batch=256))
    """ICT; 0 steps skip it."""
    loop: Loop = field(default_factory=Loop)

    def __post_init__(self) -> None:
        check(
            not self.towers_as_reader or self.retriever.steps > 0,
            "towers-as-reader needs ICT: give it steps (--retriever.steps)",
        )
        check(
            self.retriever.steps == 0 or self.retriever.batch > self.retriever.accumulate,
            f"ICT tells a passage from others in its part: retriever.batch {self.retriever.batch} in "
            f"{self.retriever.accumulate} parts "
            "leaves no others; lower --retriever.accumulate or raise --retriever.batch",
        )
        check(self.pointing >= 0, f"pointing must be 0 or more, not {self.pointing}")
        check(
            0 <= self.remove_sentence <= 1,
            f"remove-sentence must be between 0 and 1, not {self.remove_sentence}",
        )


@dataclass(frozen=True, kw_only=True)
class Pretrain:
    """Train retriever and reader together on text alone: masked LM over retrieved passages, with the index
    refreshed along the way."""

    model: Annotated[Path, arg(aliases=("--from",))] = MINI
    """The warmed-up model."""
    corpus: Path
    """The corpus Z to search."""
    out: Path
    """Folder for the run; the model is saved in its `model/`."""
    text: Annotated[Path | None, optional("PATH")] = None
    """The corpus X that masked sentences come from; default: Z itself. A sentence's own passage is never
    retrieved, if Z has it cut the same way."""
    k: int = 8
    """Passages read for each sentence, including the null document."""
    null_document: bool = True
    """One of the k is the empty document, for sentences that need no passage."""
    own_passage: bool = False
    """Let a sentence retrieve the passage it comes from."""
    masking: MASKING = "salient"
    """Which wordpieces are masked."""
    marginal: Literal["joint", "per-token"] = "joint"
    """joint: one passage explains all masks of a sentence (the paper); per-token: each mask may have its own.
    """
    recurring: bool = False
    """Hide only words that are also marked in another passage of the text."""
    glimpses: float = 0.0
    """Share of sentences of which the query tower sees only a few words around the gap, as in a question; the
    reader sees all."""
    pointing: float = 0.0
    """Weight of pointing at the hidden words where they occur in what was retrieved; this trains both reader
    and retriever."""
    hold_out: Annotated[Path | None, optional("PATH")] = None
    """Masked sentences made by `realmlm clozes`; their passages are searched, but no sentence from them is
    trained on."""
    freeze_retriever: int = 0
    """For this many steps at the start, train only the reader."""
    probe: Annotated[Path | None, optional("PATH")] = None
    """Held-out masked sentences (JSON lines), as `realmlm clozes` makes them or with gold passages, measured
    during training."""
    probe_every: int = 50
    """Steps between probes."""
    optim: JointOptim = field(default_factory=JointOptim)
    refresh: Refresh = field(default_factory=Refresh)
    loop: Loop = field(default_factory=Loop)

    def __post_init__(self) -> None:
        least = 1 + self.null_document
        check(
            self.k >= least,
            f"k counts the null document and at least one passage: {least} or more, not {self.k}",
        )
        check(0 <= self.glimpses <= 1, f"glimpses must be between 0 and 1, not {self.glimpses}")
        check(self.pointing >= 0, f"pointing must be 0 or more, not {self.pointing}")
        check(
            not self.recurring or self.masking == "salient",
            "recurring is about marked words: use it with --masking salient",
        )
        check(self.probe_every >= 1, f"probe-every must be 1 or more, not {self.probe_every}")


@dataclass(frozen=True, kw_only=True)
class Adapt:
    """Adapt a model to your own documents in minutes, without labels or with your questions.

    The result is kept only if it does better on what is held out: sentences with words hidden, or one in five
    of your questions.
    """

    docs: UseAppendAction[
        Annotated[tuple[tuple[Path, ...], ...], arg(metavar="PATH …", help_behavior_hint="(required)")]
    ]
    """Folders and files of documents, as for `realmlm ask`."""
    out: Path
    """Folder to create; the adapted model, if kept, is in its `model/`."""
    model: Path = MINI
    """The model to start from; mini is the one that comes with realmlm."""
    questions: Annotated[tuple[Path, ...], arg(metavar="PATH …")] = ()
    """Files of your own questions with answers: the model is fine-tuned on them; one in five is held out."""
    minutes: float = 4.0
    """About how long to train on this machine; reading and embedding the documents, and measuring before and
    after, take extra time."""
    seed: int = 0
    """Seed for what is held out and for the order."""
    device: str = "auto"
    """Where to train."""

    def __post_init__(self) -> None:
        check(any(self.docs), "say what to adapt to: --docs FOLDER")
        check(self.minutes > 0, f"minutes must be more than 0, not {self.minutes}")


@dataclass(frozen=True, kw_only=True)
class Finetune:
    """Train a model to answer questions from the passages it retrieves.

    --optim.steps 0, the default, means ten passes over the questions, in at most 1,000 steps.
    """

    model: Annotated[Path, arg(aliases=("--from",))] = MINI
    """The pre-trained model."""
    corpus: Path
    """The corpus to search."""
    questions: Annotated[tuple[Path, ...], arg(metavar="PATH …", help_behavior_hint="(required)")]
    """Files of questions with answers: NQ-open .jsonl, DPR .tsv, WebQuestions .json, CuratedTREC .tsv, SQuAD
    .json."""
    out: Path
    """Folder for the run; the model is saved in its `model/`."""
    retriever: Literal["learned", "bm25"] = "learned"
    """learned: the model's own, which is trained too; bm25: word matching, only the reader learns."""
    read: int = 5
    """Passages read for each question."""
    read_gold: bool = False
    """If none of them holds the answer, read the best candidate that does in place of the last one."""
    candidates: int = 5000
    """Passages per question over which the retriever is trained."""
    query: Literal["tower", "projection"] = "tower"
    """What learns to embed questions while the index is fixed: the query tower, or only its projection
    (towers still share an encoder)."""
    objective: Literal["marginal", "hard-em"] = "marginal"
    """marginal: every occurrence of an answer counts (the paper); hard-em: only the likeliest one in each
    passage."""
    closed_book: float = 0.1
    """Weight of learning to answer without any passage."""
    optim: JointOptim = field(default_factory=lambda: JointOptim(steps=0, lr=1e-5, retriever_lr=1e-5))
    refresh: Refresh = field(default_factory=lambda: Refresh(every_steps=0))
    loop: Loop = field(default_factory=Loop)

    def __post_init__(self) -> None:
        moving = self.refresh.every_steps > 0
        check(
            not (moving and self.query == "projection"),
            "--query projection is for a fixed index; leave out --refresh.every-steps",
        )
        check(self.closed_book >= 0, f"closed-book must be 0 or more, not {self.closed_book}")
        check(
            1 <= self.read <= self.candidates,
            f"read ({self.read}) must be between 1 and candidates ({self.candidates})",
        )
