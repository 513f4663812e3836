"""What goes over the wire: the requests the service takes and the answers it gives (OpenAPI)."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from realmlm.defaults import READ
from realmlm.reading.records import Evidence, MaskWords, Words

MOST_CHARACTERS = 2_000  # of a question or masked sentence
MOST_TEXT = 20_000  # of a passage
MOST_TEXTS = 2_048  # to embed in one request


class Problem(BaseModel):
    """What went wrong."""

    code: str = Field(examples=["bad_input"])
    message: str = Field(examples=["no passage 17; see GET /passages"])
    type: str | None = Field(
        None, description="Of /v1: as OpenAI's clients know it.", examples=["invalid_request_error"]
    )
    param: str | None = Field(None, description="Of /v1: the field that it is about, if it is about one.")
    progress: float | None = Field(
        None, description="While the service starts: how much of what it is doing is done, from 0 to 1."
    )


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
    """What to know before believing it, for example that the documents may not say it; else empty."""
    sure: str
    """How sure, in a word, from the confidence: likely, unsure or not found; empty if there is none."""
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


Tower = Literal["query", "passage"]


class Texts(Request):
    """Texts to embed."""

    texts: list[Text] = Field(min_length=1, max_length=MOST_TEXTS)
    tower: Tower = Field(description="query: of questions; passage: of what is searched.")
    titles: list[Annotated[str, Field(max_length=500)]] | None = Field(
        None, max_length=MOST_TEXTS, description="Of passages, one for each text; those searched have theirs."
    )


class Vectors(BaseModel):
    """f(x,z) is the inner product of a query's vector and a passage's."""

    vectors: list[list[float]] = Field(description="One for each text, in the same order.")


def _as_texts(given: Any) -> Any:
    """One text or several, as a list."""
    if isinstance(given, list) and any(isinstance(part, int | list) for part in given):
        why = "these are numbers of tokens, and every model has its own; send the text itself"
        raise PydanticCustomError("tokens", f"{why} (LangChain: check_embedding_ctx_length=False)")
    return [given] if isinstance(given, str) else given


def _or_one(schema: dict[str, Any]) -> None:
    """In the description: several of them, or one alone."""
    several = {name: schema.pop(name) for name in ("type", "items", "minItems", "maxItems")}
    schema["anyOf"] = [several["items"], several]


class EmbeddingsWanted(Request):
    """Texts to embed, as OpenAI's clients send them; what else they send is not looked at."""

    model_config = ConfigDict(extra="ignore")

    input: Annotated[list[Text], BeforeValidator(_as_texts)] = Field(
        min_length=1,
        max_length=MOST_TEXTS,
        description="One text, or several. Lists of token numbers are refused.",
        json_schema_extra=_or_one,
    )
    model: str = Field(
        max_length=200,
        description="The tower: realmlm-query, of questions, or realmlm-passage, of what is searched.",
        json_schema_extra={"enum": ["realmlm-query", "realmlm-passage"]},  # any other is told so by its name
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64: 32-bit numbers, the least significant byte first; default: float."
    )
    dimensions: Whole | None = Field(None, ge=1, description="As many as the vectors have, or left out.")
    user: str | None = Field(None, description="Not looked at.")


class EmbeddedText(BaseModel):
    """The vector of a text."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """How many wordpieces were read."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(BaseModel):
    """The vectors of texts, as OpenAI's clients expect them."""

    object: Literal["list"] = "list"
    data: list[EmbeddedText]
    model: str
    usage: Usage


class EmbeddingModel(BaseModel):
    """A tower."""

    id: str = Field(examples=["realmlm-query"])
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "realmlm"


class EmbeddingModels(BaseModel):
    """The towers."""

    object: Literal["list"] = "list"
    data: list[EmbeddingModel]


class Suggested(BaseModel):
    """Questions to begin with."""

    made: bool = Field(description="Are these all? If not, they are being made.")
    questions: list[str] = Field(
        description="Made from sentences of the passages; each was asked, and answered from its sentence."
    )


class Liveness(BaseModel):
    """Whether the service is alive, or ready."""

    status: str = Field(examples=["ready"])


class Health(BaseModel):
    """The state of the service."""

    status: str = Field(examples=["ok"])
    version: str
    passages: int
    sources: list[str] = Field(description="The folders and files, or the corpus, that they come from.")
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
