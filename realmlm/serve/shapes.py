"""What goes over the wire: the requests the service takes and the answers it gives (OpenAPI)."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from realmlm.defaults import READ
from realmlm.reading.records import Evidence, MaskWords, Words

MOST_CHARACTERS = 2_000  # of a question or masked sentence
MOST_TEXT = 20_000  # of a passage


class Problem(BaseModel):
    """What went wrong."""

    code: str = Field(examples=["bad_input"])
    message: str = Field(examples=["no passage 17; see GET /passages"])


class Failure(BaseModel):
    """Every error has this shape."""

    error: Problem


class Request(BaseModel):
    """What is sent must be as described: no `true` for 1, no "5" for 5, nothing that is not named here."""

    model_config = ConfigDict(strict=True, extra="forbid")


def _whole(value: Any) -> Any:
    """JSON makes no difference between 5 and 5.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


_QUESTION = "Who painted the ceiling of the Sistine Chapel?"


class Question(Request):
    """A question to answer."""

    question: str = Field(min_length=1, max_length=MOST_CHARACTERS, examples=[_QUESTION])
    read: Whole = Field(5, ge=1, le=50, description="Passages to read.")
    without_reading: bool = Field(False, description="Also give the answer without any passage.")


class Sentence(Request):
    """A sentence with [MASK] to fill in."""

    sentence: str = Field(
        min_length=1,
        max_length=MOST_CHARACTERS,
        examples=["The capital of France is [MASK]."],
        description="Each [MASK] is one wordpiece.",
        json_schema_extra={"pattern": r"\[MASK\]"},  # what lacks one is refused with an explanation
    )
    read: Whole = Field(5, ge=1, le=50, description="Passages to read.")


class Reply(BaseModel):
    """The records of a reading as they are; what their fields mean is taken from the docstrings there."""

    model_config = ConfigDict(use_attribute_docstrings=True, json_schema_serialization_defaults_required=True)

    answer: str
    probability: float
    """p(y|x)"""
    evidence: tuple[Evidence, ...]


class Answered(Reply):
    """The answer to a question."""

    relevance: float | None
    """max f(x,z) over what was read; it falls where no passage is about the question."""
    confidence: float | None
    """How often such answers were right when the model was calibrated; null if it was not."""
    caution: str
    """A warning for whoever asked, if the documents may not say it; else empty."""
    others: tuple[Words, ...]
    """The next likeliest answers."""
    without_reading: Words | None = None
    """The answer without any passage, if asked for."""


class Filled(Reply):
    """What stands at the masks of a sentence."""

    caution: str
    """If the words are part of a longer word in the passage, that word; else empty."""
    masks: tuple[MaskWords, ...]


Text = Annotated[
    str, Field(min_length=1, max_length=MOST_TEXT, examples=["The lighthouse of Orvane was lit in 1731."])
]


class NewPassage(Request):
    """A passage to add."""

    title: str = Field("", max_length=500, examples=["Orvane"])
    text: Text


class ChangedPassage(Request):
    """What is to stand in place of a passage."""

    title: str | None = Field(
        None, max_length=500, examples=["Orvane"], description="Without one the passage keeps its title."
    )
    text: Text


class KnownPassage(BaseModel):
    """A passage that is searched."""

    id: int
    title: str
    text: str
    source: str
    file: str = Field(
        description="The file it comes from: its source without the checksum that it may carry."
    )


class Passages(BaseModel):
    """Passages that were found."""

    total: int = Field(description="How many passages there are.")
    passages: list[KnownPassage]


class Search(Request):
    """A question, or a sentence with [MASK], to find passages for."""

    question: str = Field(min_length=1, max_length=MOST_CHARACTERS, examples=[_QUESTION])
    k: Whole = Field(READ, ge=1, le=100, description="Passages to find.")


class FoundPassage(KnownPassage):
    """A passage that fits the question."""

    score: float = Field(description="f(x,z), with λ · BM25(x,z) added where the search is hybrid.")
    retrieval_probability: float = Field(description="p(z|x) among those found, no reader involved.")
    vector_score: float | None = Field(description="f(x,z), where the search is hybrid.")
    word_score: float | None = Field(description="λ · BM25(x,z), where the search is hybrid.")


class Searched(BaseModel):
    """The passages that fit a question best, best first."""

    found: list[FoundPassage]


class Liveness(BaseModel):
    """Whether the service is alive, or ready."""

    status: str = Field(examples=["ready"])


class Health(BaseModel):
    """The state of the service."""

    status: str = Field(examples=["ok"])
    version: str
    passages: int
    waiting: int
    editable: bool = Field(
        description="Can passages be changed here? Those of documents come from their files."
    )
    up_to_date: bool = Field(
        description=(
            "Have all changes in files or corpus been loaded? If not, they are being read, or the service's "
            "output says why not."
        )
    )
