"""Settings of the stages that train a model."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from realmlm.bundled import MINI
from realmlm.defaults import READ
from realmlm.settings.base import DocumentPlaces, ModelPlace, Settings, arg, ensure, optional, required
from realmlm.settings.training import JointOptim, Loop, Optim, Refresh

MASKING = Literal["salient", "random-span", "uniform", "whole-word"]
TARGET = Literal["marginal", "posterior", "perplexity"]


@dataclass(frozen=True, kw_only=True)
class Warmup(Settings):
    """Prepare a model for joint training: the reader learns to read passages (masked LM), the retriever to
    find them (ICT, or words that recur)."""

    model: Annotated[ModelPlace, arg(aliases=("--from",))] = MINI
    """The model to start from."""
    corpus: Annotated[Path | None, required("PATH")] = None
    """The corpus; salient masking needs its spans marked."""
    out: Path
    """Folder for the run; the model is saved in its `model/`."""
    masking: MASKING = "salient"
    """Which wordpieces the reader must predict."""
    pairing: Literal["own", "sibling", "recurring", "null"] = "sibling"
    """What is read with the masked sentence: its own passage (learn to copy), another one from its article if
    there is one, often one that also has the hidden words (recurring), or nothing."""
    pointing: float = 0.0
    """Weight of pointing at the hidden words in the passage: the span head's warm-up for questions."""
    hold_out: Annotated[Path | None, optional("PATH")] = None
    """Masked sentences made by `realmlm clozes`; no sentence from their passages is trained on."""
    towers_as_reader: bool = False
    """Start ICT with the warmed-up reader's encoder in the towers; the paper starts all from one BERT."""
    retriever_objective: Literal["ict", "recurring"] = "ict"
    """What the retriever finds: the passage that a sentence was taken from (ICT), or another one of its title
    that has marked words of the sentence too, which half of the time are taken out of it (recurring)."""
    glimpses: float = 0.0
    """Words that recur: share of sentences cut to a few words around them, as short as a question."""
    titled: float = 0.0
    """Words that recur: share of sentences with the title of their document in front, so that they name what
    they are about, as a question does."""
    remove_sentence: float = 0.9
    """ICT: share of cases in which the sentence is removed from its passage."""
    scale_lr: float = 0.0
    """Peak learning rate of the scale of f(x,z); 0 leaves it as it is."""
    reader: Optim = field(default_factory=lambda: Optim(steps=2000, batch=64, lr=3e-4))
    """Masked LM; 0 steps skip it."""
    retriever: Optim = field(default_factory=lambda: Optim(steps=2000, batch=256))
    """ICT, or what takes its place; 0 steps skip it."""
    loop: Loop = field(default_factory=Loop)

    def check(self) -> None:
        ict = self.retriever
        skipped = self.towers_as_reader and not ict.steps
        ensure(not skipped, "towers-as-reader needs ICT: give it steps (--retriever.steps)")
        check_others(ict, "retriever")
        self.at_least(0, "pointing", "scale_lr")
        self.between(0, 1, "remove_sentence", "glimpses", "titled")
        pairs = self.retriever_objective == "recurring" or not (self.glimpses or self.titled)
        ensure(pairs, "glimpses and titled are about --retriever-objective recurring")


@dataclass(frozen=True, kw_only=True)
class Pretrain(Settings):
    """Train retriever and reader together on text alone: masked LM over retrieved passages, with the index
    refreshed along the way."""

    model: Annotated[ModelPlace, arg(aliases=("--from",))] = MINI
    """The warmed-up model."""
    corpus: Annotated[Path | None, required("PATH")] = None
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
    """joint: one passage explains all masks of a sentence (the paper); per-token: each may have its own."""
    recurring: bool = False
    """Hide only words that are also marked in another passage of the text."""
    glimpses: float = 0.0
    """Share of sentences of which the query tower sees only a few words around the gap, as in a question; the
    reader sees all."""
    pointing: float = 0.0
    """Weight of pointing at the hidden words in what was retrieved; this trains reader and retriever."""
    hold_out: Annotated[Path | None, optional("PATH")] = None
    """Masked sentences made by `realmlm clozes`; their passages are searched, but no sentence from them is
    trained on."""
    retriever_target: TARGET = "marginal"
    """What the retriever learns from: the marginal likelihood (the paper), the posterior of the passages
    (EMDR²), or how likely each makes the hidden words by itself (perplexity: Atlas)."""
    in_batch: float = 0.0
    """Weight of telling the passages that explain a sentence, by their posterior, from those found for all
    other sentences of the batch."""
    scale_lr: float = 0.0
    """Peak learning rate of the scale of f(x,z); 0 leaves it as it is."""
    freeze_retriever: int = 0
    """For this many steps at the start, train only the reader. The retriever's rate rises and falls with the
    reader's all the same: after them it begins where that one is."""
    search_with: Literal["current", "index"] = "current"
    """The query tower that searches: the one that learns (the paper), or a copy from the step that the index
    was made at, without dropout, which finds in it what it would have found then, however old it is. What was
    found is scored by the one that learns either way."""
    probe: Annotated[Path | None, optional("PATH")] = None
    """Held-out masked sentences (JSON lines), as `realmlm clozes` makes them or with gold passages, measured
    during training."""
    probe_every: int = 50
    """Steps between probes."""
    guard: Annotated[tuple[Path, ...], optional("PATH …")] = ()
    """Questions with answers, counted whenever an index is swapped in: each time an answer stands in the
    first 20 passages for fewer of them than at the start (by more than half a point), the retriever's
    learning rate is halved. Nothing is learned from them."""
    optim: JointOptim = field(default_factory=JointOptim)
    refresh: Refresh = field(default_factory=Refresh)
    loop: Loop = field(default_factory=Loop)

    def check(self) -> None:
        least = 1 + self.null_document
        counted = "k counts the null document and at least one passage"
        ensure(self.k >= least, f"{counted}: {least} or more, not {self.k}")
        self.between(0, 1, "glimpses")
        self.at_least(0, "pointing", "in_batch", "scale_lr")
        self.at_least(1, "probe_every")
        one = self.retriever_target == "marginal" or self.marginal == "joint"
        ensure(
            one,
            "with --marginal per-token every mask has a target of its own: take --retriever-target marginal",
        )
        marked = not self.recurring or self.masking == "salient"
        ensure(marked, "recurring is about marked words: use it with --masking salient")
        whole = self.search_with == "current" or not self.loop.shard
        ensure(whole, "--search-with index keeps a whole query tower: it does not go with --loop.shard")

    @classmethod
    def fixed_once_trained(cls) -> list[str]:
        return [name for name in super().fixed_once_trained() if name not in ("probe", "probe_every")]


@dataclass(frozen=True, kw_only=True)
class Adapt(Settings):
    """Adapt a model to your own documents in minutes, without labels or with your questions.

    The model is saved only if it does better on what is held out: sentences with words hidden, or one in five
    of your questions.
    """

    docs: Annotated[DocumentPlaces, required("PATH …")]
    """Folders and files of documents, as for `realmlm ask`."""
    out: Path
    """Folder to create; the adapted model, if it does better, is in its `model/`."""
    model: ModelPlace = MINI
    """The model to start from; mini is the one that comes with realmlm."""
    questions: Annotated[tuple[Path, ...], arg(metavar="PATH …")] = ()
    """Files of your own questions with answers: the model is fine-tuned on them; one in five is held out."""
    minutes: float = 4.0
    """About how long all of it may take on this machine: reading, embedding, measuring, training, measuring
    again. What each will take is said before it begins; passages must be embedded, even if that takes
    longer."""
    seed: int = 0
    """Seed for what is held out and for the order."""
    device: str = "auto"
    """Where to train."""

    def check(self) -> None:
        ensure(any(self.docs), "say what to adapt to: --docs FOLDER")
        self.at_least(0, "seed")
        self.above_zero("minutes")


@dataclass(frozen=True, kw_only=True)
class TrainTowers(Settings):
    """Train the towers to find the passages that answer questions, telling them from others (DPR).

    --optim.steps 0, the default, means ten passes over the questions, in at most 1,000 steps.
    """

    model: Annotated[ModelPlace, arg(aliases=("--from",))] = MINI
    """The model to start from; its reader stays as it is."""
    corpus: Annotated[Path | None, required("PATH")] = None
    """The corpus to search."""
    questions: Annotated[tuple[Path, ...], required("PATH …")]
    """Questions with answers, as for `finetune`. Those that come with their paragraph ("context") are to find
    that, all others the best passage found that holds an answer."""
    out: Path
    """Folder for the run; the model is saved in its `model/`."""
    retriever: Literal["learned", "bm25", "both"] = "learned"
    """What finds passages for the questions before training begins: the model as it is, word matching, or
    each of them."""
    candidates: int = 50
    """Passages it finds for each question, to choose from."""
    negatives: int = 1
    """Passages found for a question that do not hold its answer, drawn anew each time; beside them it is told
    from the passages of all other questions of the batch."""
    scale_lr: float = 0.0
    """Peak learning rate of the scale of f(x,z); 0 leaves it as it is."""
    optim: Optim = field(default_factory=lambda: Optim(steps=0, batch=128, lr=2e-5))
    loop: Loop = field(default_factory=Loop)

    def check(self) -> None:
        self.at_least(1, "candidates")
        self.at_least(0, "negatives", "scale_lr")
        check_others(self.optim, "optim")


def check_others(optim: Optim, name: str) -> None:
    """Passages are told apart within the parts of a batch, which must have several."""
    ensure(
        optim.steps == 0 or optim.batch > optim.accumulate,
        f"a passage is told from others in its part: {name}.batch {optim.batch} in {optim.accumulate} parts "
        f"leaves no others; lower --{name}.accumulate or raise --{name}.batch",
    )


@dataclass(frozen=True, kw_only=True)
class Finetune(Settings):
    """Train a model to answer questions from the passages it retrieves.

    --optim.steps 0, the default, means ten passes over the questions, in at most 1,000 steps.
    """

    model: Annotated[ModelPlace, arg(aliases=("--from",))] = MINI
    """The pre-trained model."""
    corpus: Annotated[Path | None, required("PATH")] = None
    """The corpus to search."""
    questions: Annotated[tuple[Path, ...], required("PATH …")]
    """Questions with answers: NQ-open .jsonl, DPR .tsv, WebQuestions .json, CuratedTREC .tsv, SQuAD .json.
    Those that come with the paragraph they are asked of ("context") read it, among passages without the
    answer."""
    out: Path
    """Folder for the run; the model is saved in its `model/`."""
    retriever: Literal["learned", "bm25"] = "learned"
    """learned: the model's own, which is trained too; bm25: word matching, only the reader learns."""
    hybrid: Annotated[float | None, optional("WEIGHT")] = None
    """Weight λ of word matching beside the model's own search: passages are offered and weighed by
    f + λ · BM25, and f learns. Stored with the model; default: the model's own."""
    read: int = READ
    """Passages read for each question."""
    read_gold: bool = False
    """If none of them holds the answer, read the best candidate that does in place of the last one."""
    rivals: int = 0
    """Of the passages that a question with its own paragraph reads, so many are paragraphs that other
    questions came with: the nearest that do not hold its answer. Else every such paragraph that is read holds
    it, which a reader that judges passages (--passage-logit) learns."""
    candidates: int = 5000
    """Passages per question over which the retriever is trained."""
    query: Literal["tower", "projection"] = "tower"
    """What learns to embed questions while the index is fixed: the query tower, or only its projection
    (towers still share an encoder)."""
    objective: Literal["marginal", "hard-em"] = "marginal"
    """marginal: every place of an answer counts (the paper); hard-em: only the likeliest in each passage."""
    retriever_target: Literal["marginal", "posterior", "perplexity", "teacher"] = "marginal"
    """What the retriever learns from the passages read: the marginal likelihood of the answer (the paper),
    their posterior (EMDR²), how likely each makes the answer by itself (perplexity: Atlas), or their
    posterior according to the --teacher. Over the candidates it learns in any case."""
    in_batch: float = 0.0
    """Weight of telling a question's passages from those of all other questions of the batch, as DPR does."""
    scale_lr: float = 0.0
    """Peak learning rate of the scale of f(x,z); 0 leaves it as it is."""
    closed_book: float = 0.1
    """Weight of learning to answer without any passage."""
    passage_logit: bool = False
    """The reader also learns to say of each passage whether it answers the question at all; that is then part
    of what passages weigh, and --rerank goes by it. A model that has learned it goes on with it."""
    judging: float = 1.0
    """Weight of learning which of the passages read hold the answer, beside what answering teaches of it."""
    title_answers: bool = False
    """Words of a passage's title can be answers too, if the model reads titles. A model that has learned it
    goes on with it."""
    teacher: Annotated[ModelPlace | None, optional("MODEL")] = None
    """A fine-tuned model, usually a larger one, that reads the same passages: what it thinks of spans and
    passages is learned too. With another tokenizer it is told and tells by characters, which takes longer."""
    teaching: float = 1.0
    """Weight of learning from the teacher."""
    reading: Annotated[Literal["paper", "together"] | None, optional("HOW")] = None
    """How spans of several passages are weighed from now on, within each passage (paper) or all together;
    default: as the model does."""
    max_answer: Annotated[int | None, optional("INT")] = None
    """Longest answer from now on, in wordpieces; default: as the model has it."""
    optim: JointOptim = field(default_factory=lambda: JointOptim(steps=0, lr=1e-5, retriever_lr=1e-5))
    refresh: Refresh = field(default_factory=lambda: Refresh(every_steps=0))
    loop: Loop = field(default_factory=Loop)

    def check(self) -> None:
        ensure(not self.loop.shard, "--loop.shard is for warmup, pretrain and towers, not for finetune")
        fixed = self.refresh.every_steps == 0 or self.query == "tower"
        ensure(fixed, "--query projection is for a fixed index; leave out --refresh.every-steps")
        self.at_least(0, "closed_book", "in_batch", "scale_lr", "hybrid", "judging", "teaching")
        self.at_least(1, "max_answer")
        self.between(0, self.read - 1, "rivals")
        found = not self.rivals or self.retriever == "learned"
        ensure(found, f"--rivals are found by the model's own search, not by {self.retriever}")
        taught = self.retriever_target != "teacher" or self.teacher is not None
        ensure(taught, "--retriever-target teacher needs one: --teacher MODEL")
        learned = self.retriever == "learned"
        own = self.hybrid is None or learned
        ensure(own, f"--hybrid adds word matching to the model's own search, not to {self.retriever}")
        teaches = self.retriever_target != "marginal" or self.in_batch > 0 or self.scale_lr > 0
        ensure(
            learned or not teaches, "BM25 cannot learn: leave out --retriever-target, --in-batch, --scale-lr"
        )
        fits = 1 <= self.read <= self.candidates
        ensure(fits, f"read ({self.read}) must be between 1 and candidates ({self.candidates})")
