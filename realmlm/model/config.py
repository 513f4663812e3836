"""What a model is made of, as it stands beside its weights."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from realmlm.corpus.store import MAX_TITLE
from realmlm.errors import ArtefactDamaged, BadInput, Mismatch
from realmlm.model.words import WORDS

# special tokens of two texts in the family with most of them, RoBERTa: <s> x </s></s> z </s>
MOST_SPECIAL = 4


def _fits(value: Any, kind: Any) -> bool:
    """Is a value of a config's file of the kind that its field has? Whole numbers there are sizes."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is UnionType:
        return any(_fits(value, one) for one in get_args(kind))
    if get_origin(kind) is dict:
        of = get_args(kind)[1]
        return isinstance(value, dict) and (of is Any or all(_fits(one, of) for one in value.values()))
    if kind is int:
        return type(value) is int and 0 < value < 2**31
    return type(value) in (int, float) if kind is float else isinstance(value, kind)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What a model is made of; it travels with the weights."""

    tower: dict[str, Any] = field(default_factory=dict)
    """transformers config of the encoder in the query and the document tower."""
    reader: dict[str, Any] = field(default_factory=dict)
    """transformers config of the reader's encoder."""
    share_towers: bool = True
    """Query and document tower are one encoder with two projections."""
    share_projection: bool = False
    """One projection as well, so that one module embeds both."""
    projection: int = 128
    """Size of the vectors that are searched."""
    projection_norm: bool = True
    """LayerNorm after each projection; without it the plain inner product of the paper."""
    norm_eps: float = 1e-5
    """Its epsilon."""
    scale_scores: bool = True
    """Scores of such normed vectors are divided by √size."""
    learned_scale: bool = False
    """Scores are multiplied by exp of a weight of the query tower, `query.log_scale`, as well."""
    pooling: Literal["cls", "mean", "pooler"] = "cls"
    """What stands for a sequence: its first vector, the mean of all, or the first through the pooler."""
    max_query: int = 64
    """Wordpieces of a query that are read."""
    max_passage: int = 288
    """Wordpieces of a passage's body that are read."""
    max_together: int | None = None
    """Wordpieces of query and passage read together, special tokens too; None: all that the limits allow."""
    max_answer: int = 10
    """Longest answer span in wordpieces."""
    freeze_embeddings: bool = False
    """Word embeddings never learn: a checkpoint's stay the same in towers and reader."""
    reading: Literal["paper", "together", "released"] = "paper"
    """paper: spans are weighed within their passage, and an answer's places add up; together: spans of all
    passages are weighed together; released, as in the authors' code: together, and the best single place
    counts (docs/decisions/001)."""
    read_titles: bool = False
    """The reader reads a passage's title before its body; the paper's reads the body alone."""
    null_document: bool = True
    """The null document has a weight among the passages of a masked sentence; pre-training decides."""
    trained_on_questions: bool = False
    """Fine-tuning has taught the span head; before that its answers to questions mean nothing."""
    passage_logit: bool = False
    """The reader also says whether a passage answers the question at all, g(x,z); fine-tuning decides."""
    title_answers: bool = False
    """Spans of a passage's title can be answers too, where titles are read; fine-tuning decides."""
    span_hidden: int = 256
    """Hidden size of the MLP that scores spans."""
    stand_in: str | None = None
    """Fingerprint of an imported query tower in place of a document tower that did not come: it embeds no
    passage."""
    hybrid: float = 0.0
    """λ: passages are searched by f(x,z) + λ · BM25(x,z) (docs/decisions/013); 0: by f alone."""
    calibration: dict[str, float] | None = None
    """What `realmlm calibrate` found for these weights (realmlm.reading.confidence); training forgets it."""

    @classmethod
    def of(cls, record: dict[str, Any], where: Path) -> "ModelConfig":
        """The config that stands in `where`."""
        if unknown := sorted(record.keys() - cls.__dataclass_fields__.keys()):
            names = ", ".join(unknown)
            raise Mismatch(f"{where} has settings this version does not know ({names}); upgrade realmlm")
        kinds = get_type_hints(cls)
        if record.get("reader", {}).get("model_type") == WORDS:
            raise ArtefactDamaged(f"{where} has a reader of words, which reads nothing: do not trust it")
        if wrong := [name for name, value in record.items() if not _fits(value, kinds[name])]:
            cure = "do not trust it, or make it again"
            raise ArtefactDamaged(f"{where} says what cannot be of {', '.join(wrong)}: {cure}")
        return cls(**record)

    @property
    def weighs_together(self) -> bool:
        """Spans of all passages share one softmax."""
        return self.reading != "paper"

    def check_one_encoder(self) -> None:
        """The towers can begin as the reader only if both are encoders of one kind."""
        if self.tower != self.reader:
            why = "towers and reader of this model are different encoders"
            raise BadInput(f"{why}: the towers cannot begin as the reader")

    @cached_property
    def max_document(self) -> int:
        """Wordpieces of title and body that the document tower reads."""
        return self.max_passage + MAX_TITLE + MOST_SPECIAL

    @cached_property
    def max_joint(self) -> int:
        """Wordpieces of query and passage that the reader reads together."""
        title = MAX_TITLE + 2 if self.read_titles else 0
        return self.max_together or self.max_passage + self.max_query + MOST_SPECIAL + title
