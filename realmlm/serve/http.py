"""The service: questions, masked sentences and passages over HTTP, described by OpenAPI; one shape for every error."""

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from realmlm import __version__
from realmlm.corpus.store import Article, Passage
from realmlm.errors import BadInput, RealmError
from realmlm.log import read_metrics
from realmlm.serve.engine import Engine
from realmlm.serve.worker import Busy, Worker

MOST_CHARACTERS = 2_000  # of a question or masked sentence
MOST_TEXT = 20_000  # of a passage
MOST_BODY = 128 * 1024  # bytes of a request
RETRY_S = 1  # what a full queue asks for
PAGE = Path(__file__).parent / "page"


# --- what goes over the wire ------------------------------------------------------------------------------------------------------------


class Problem(BaseModel):
    """What went wrong."""

    code: str = Field(examples=["bad_input"])
    message: str = Field(examples=["no passage 17; see GET /passages"])


class Failure(BaseModel):
    """Every error has this shape."""

    error: Problem


class Question(BaseModel):
    question: str = Field(min_length=1, max_length=MOST_CHARACTERS, examples=["Who painted the ceiling of the Sistine Chapel?"])
    read: int = Field(5, ge=1, le=50, description="Passages to read.")
    without_reading: bool = Field(False, description="Say also what the model answers without any passage.")


class Sentence(BaseModel):
    sentence: str = Field(
        min_length=1, max_length=MOST_CHARACTERS, examples=["The capital of France is [MASK]."], description="Each [MASK] is one wordpiece."
    )
    read: int = Field(5, ge=1, le=50, description="Passages to read.")


class Words(BaseModel):
    words: str
    probability: float


class Read(BaseModel):
    """A passage that was read; the null document has no id."""

    passage_id: int | None
    title: str
    passage: str
    start: int | None = Field(description="Where the answer stands in the passage, in characters; null: it does not.")
    end: int | None
    retrieval_probability: float = Field(description="p(z|x): how likely the passage was chosen.")
    reading_probability: float = Field(description="p(y|z,x): how likely it gives this answer.")


class Answered(BaseModel):
    answer: str
    probability: float = Field(description="p(y|x)")
    evidence: list[Read]
    others: list[Words] = Field(description="The next likeliest answers.")
    without_reading: Words | None = Field(None, description="The answer without any passage, where it was asked for.")


class Mask(BaseModel):
    read: list[Words] = Field(description="The likeliest wordpieces with retrieval.")
    unread: list[Words] = Field(description="The likeliest wordpieces without.")


class Filled(BaseModel):
    answer: str
    probability: float
    evidence: list[Read]
    masks: list[Mask]


class NewPassage(BaseModel):
    title: str = Field("", max_length=500, examples=["Orvane"])
    text: str = Field(min_length=1, max_length=MOST_TEXT, examples=["The lighthouse of Orvane was lit in 1731."])


class KnownPassage(BaseModel):
    id: int
    title: str
    text: str
    source: str


class Passages(BaseModel):
    total: int = Field(description="Passages there are.")
    passages: list[KnownPassage]


class Health(BaseModel):
    status: str = Field(examples=["ok"])
    version: str
    passages: int
    waiting: int


# --- the application ----------------------------------------------------------------------------------------------------------------------


class Meters:
    """What `GET /metrics` shows."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("realmlm_requests", "Requests by route and status.", ["route", "status"], registry=self.registry)
        self.seconds = Histogram("realmlm_request_seconds", "Seconds from request to answer.", ["route"], registry=self.registry)
        sizes = (1, 2, 4, 8, 16, 32, 64)
        self.batch = Histogram("realmlm_batch_size", "Requests that were answered together.", buckets=sizes, registry=self.registry)
        self.waited = Histogram("realmlm_queue_seconds", "Seconds that a batch waited.", registry=self.registry)
        self.waiting = Gauge("realmlm_waiting", "Requests that wait.", registry=self.registry)
        self.passages = Gauge("realmlm_passages", "Passages that are searched.", registry=self.registry)

    def on_batch(self, size: int, waited: float) -> None:
        self.batch.observe(size)
        self.waited.observe(waited)


def create_app(engine: Engine, *, token: str | None = None, queue: int = 256, batch: int = 16, runs: Sequence[Path] = ()) -> FastAPI:
    """The service over an engine. With a token every change of a passage needs it; a queue of `queue` requests is full.

    `runs` are folders with training runs to show.
    """
    meters = Meters()
    worker = Worker(most_waiting=queue, most_together=batch, on_batch=meters.on_batch)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(worker.close)  # what is waiting is still answered

    shapes: dict[int | str, dict[str, Any]] = {status: {"model": Failure} for status in (400, 401, 404, 413, 422, 503)}
    app = FastAPI(
        title="realmlm",
        version=__version__,
        description="Answers with evidence, from passages that can be changed while it runs.",
        lifespan=life,
        responses=shapes,
        docs_url=None,
        redoc_url=None,
    )
    _handle_errors(app)
    _meter_and_limit(app, meters)

    async def result(work: Callable[[list[Any]], list[Any]], item: Any, *, key: Any) -> Any:
        return await asyncio.wrap_future(worker.together(work, item, key=key))

    async def alone(work: Callable[[], Any]) -> Any:
        return await asyncio.wrap_future(worker.alone(work))

    def allowed(authorization: Annotated[str | None, Header()] = None) -> None:
        if token is not None and not hmac.compare_digest(authorization or "", f"Bearer {token}"):
            raise HTTPException(401, "changing passages needs the service's token: send it as 'Authorization: Bearer TOKEN'")

    def watched() -> dict[str, Path]:
        """Name of each run -> its metrics; a folder may hold several runs."""
        files = [file for folder in runs for file in sorted(folder.glob("**/metrics.jsonl"))]
        return {
            ("/".join(file.parent.parts[-2:]) if file.parent.name in ("reader", "retriever") else file.parent.name): file for file in files
        }

    def passage_or_404(number: int) -> Passage:
        if number not in engine.corpus:
            raise HTTPException(404, f"there is no passage {number}; GET /passages finds those there are")
        return engine.corpus[number]

    @app.post("/ask", summary="Answer a question")
    async def ask(asked: Question) -> Answered:
        read = min(asked.read, len(engine.corpus))
        answer = await result(lambda items: engine.ask_all(items, read=read), asked.question, key=("ask", read))
        shown = Answered(**_answer(answer), others=[Words(words=words, probability=p) for words, p in answer.others])
        if asked.without_reading:
            known = await result(engine.ask_without_reading, asked.question, key="ask without reading")
            shown.without_reading = Words(words=known.answer, probability=known.probability)
        return shown

    @app.post("/fill", summary="Fill in a masked sentence")
    async def fill(asked: Sentence) -> Filled:
        read = min(asked.read, len(engine.corpus))
        answer, masks = await result(lambda items: engine.fill_all(items, read=read), asked.sentence, key=("fill", read))
        return Filled(**_answer(answer), masks=[Mask(read=_words(mask.read), unread=_words(mask.unread)) for mask in masks])

    @app.get("/passages", summary="Find passages")
    async def find(
        text: Annotated[str, Query(max_length=200, description="What title or text must contain; empty: the first ones.")] = "",
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
    ) -> Passages:
        found = await asyncio.to_thread(engine.find, text, limit=limit)
        return Passages(total=len(engine.corpus), passages=[KnownPassage(**asdict(passage)) for passage in found])

    @app.get("/passages/{number}", summary="Read a passage")
    async def read_passage(number: int) -> KnownPassage:
        return KnownPassage(**asdict(passage_or_404(number)))

    @app.post("/passages", summary="Add a passage", status_code=201, dependencies=[Depends(allowed)])
    async def add(new: NewPassage) -> list[KnownPassage]:
        """A text that is too long becomes several passages."""
        added = await alone(lambda: engine.edit(add=[Article(new.title, new.text, "service")]))
        if not added:
            raise BadInput("the text has no words in it")
        return [KnownPassage(**asdict(engine.corpus[number])) for number in added]

    @app.put("/passages/{number}", summary="Replace a passage", dependencies=[Depends(allowed)])
    async def replace(number: int, new: NewPassage) -> KnownPassage:
        passage_or_404(number)
        await alone(lambda: engine.edit(replace={number: Article(new.title, new.text, "service")}))
        return KnownPassage(**asdict(passage_or_404(number)))

    @app.delete("/passages/{number}", summary="Remove a passage", status_code=204, dependencies=[Depends(allowed)])
    async def remove(number: int) -> None:
        passage_or_404(number)
        if len(engine.corpus) == 1:
            raise BadInput("the last passage cannot be removed; replace it")
        await alone(lambda: engine.edit(remove=[number]))

    @app.get("/runs", summary="Training runs that are shown")
    async def list_runs() -> list[str]:
        return sorted(name for name, file in watched().items() if file.is_file())

    @app.get("/runs/{name:path}", summary="The metrics of a run, row by row")
    async def read_run(name: str) -> list[dict[str, Any]]:
        file = watched().get(name)
        if file is None or not file.is_file():
            raise HTTPException(404, f"there is no run '{name}'; GET /runs names those there are")
        return await asyncio.to_thread(read_metrics, file)

    @app.get("/health", summary="Is it there?")
    async def health() -> Health:
        return Health(status="ok", version=__version__, passages=len(engine.corpus), waiting=worker.waiting)

    @app.get("/metrics", summary="Numbers for Prometheus", response_class=Response)
    async def metrics() -> Response:
        meters.waiting.set(worker.waiting)
        meters.passages.set(len(engine.corpus))
        return Response(generate_latest(meters.registry), media_type=CONTENT_TYPE_LATEST)

    if PAGE.is_dir():
        app.mount("/page", StaticFiles(directory=PAGE), name="page")

        @app.get("/", include_in_schema=False)
        async def page() -> FileResponse:
            return FileResponse(PAGE / "index.html")

    return app


def _answer(answer: Any) -> dict[str, Any]:
    return {"answer": answer.answer, "probability": answer.probability, "evidence": [Read(**asdict(one)) for one in answer.evidence]}


def _words(pairs: tuple[tuple[str, float], ...]) -> list[Words]:
    return [Words(words=words, probability=p) for words, p in pairs]


# --- errors and limits -----------------------------------------------------------------------------------------------------------------

_CODES = {
    400: "bad_input",
    401: "token_needed",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    422: "bad_input",
    503: "busy",
}


def _failure(status: int, message: str, **headers: str) -> JSONResponse:
    body = {"error": {"code": _CODES.get(status, "failed"), "message": message}}
    return JSONResponse(body, status_code=status, headers=headers or None)


def _handle_errors(app: FastAPI) -> None:
    @app.exception_handler(Busy)
    async def busy(_: Request, error: Busy) -> JSONResponse:
        return _failure(503, str(error), **{"Retry-After": str(RETRY_S)})

    @app.exception_handler(RealmError)
    async def ours(_: Request, error: RealmError) -> JSONResponse:
        return _failure(400, str(error))

    @app.exception_handler(HTTPException)
    async def known(_: Request, error: HTTPException) -> JSONResponse:
        headers = {"WWW-Authenticate": "Bearer"} if error.status_code == 401 else {}
        return _failure(error.status_code, str(error.detail), **headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        return _failure(422, f"{where or 'the body'}: {first['msg']}")

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        return _failure(500, f"something failed here ({type(error).__name__}); the service's log says more")


def _meter_and_limit(app: FastAPI, meters: Meters) -> None:
    @app.middleware("http")
    async def around(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        begun = time.perf_counter()
        length = request.headers.get("content-length", "0")
        unknown = not length.isdigit() or "transfer-encoding" in request.headers
        if request.method in ("POST", "PUT", "PATCH") and (unknown or int(length) > MOST_BODY):
            response: Response = _failure(413, f"a request has at most {MOST_BODY} bytes, and says how many")
        else:
            response = await call(request)
        route = getattr(request.scope.get("route"), "path", "other")
        meters.requests.labels(route, response.status_code).inc()
        meters.seconds.labels(route).observe(time.perf_counter() - begun)
        return response
