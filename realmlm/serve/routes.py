"""The routes of the service in three groups: questions, passages, and the numbers for those who run it."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from inspect import signature
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from realmlm import __version__
from realmlm.corpus.store import Corpus, Passage
from realmlm.defaults import SHOWN
from realmlm.engine import Engine
from realmlm.errors import BadInput, ChangedMeanwhile, RealmError
from realmlm.reading.records import Words
from realmlm.serve.around import Doors
from realmlm.serve.log import note, note_work
from realmlm.serve.meters import Meters
from realmlm.serve.shapes import (
    Answered,
    ChangedPassage,
    Filled,
    FoundPassage,
    Health,
    KnownPassage,
    Liveness,
    NewPassage,
    Passages,
    Question,
    Search,
    Searched,
    Sentence,
    Suggested,
)
from realmlm.serve.suggestions import Suggestions
from realmlm.serve.worker import Results, Worker
from realmlm.serve.writers import Writers
from realmlm.sources.article import Article

_SOUGHT = "What title, text or source must contain; empty: the first ones."
AROUND = 5  # passages before one, and after it, that are shown with it
MOMENT_S = 0.5  # seconds that the numbers of the service wait for what changed to be taken up


async def _follow(engine: Engine, worker: Worker, *, most_s: float | None = None) -> None:
    """Take up what others changed, waiting at most so long; a busy worker takes it up before it answers."""
    if not worker.busy:
        await asyncio.wait([asyncio.wrap_future(worker.alone(engine.follow))], timeout=most_s)


# --- questions ----------------------------------------------------------------------------------------------


class Straight:
    """The way of questions, which many send at once: what is as described goes straight to its endpoint.

    FastAPI's own way takes most of a request's time, while the model waits: one thread of Python runs at a
    time. Whatever is not as described still goes that way, and is told what is wrong with it.

    The body is taken as JSON whatever its content type says: `curl -d` calls everything a form. Not for what
    changes passages: a form, unlike JSON, can be sent by any web page the browser has open.
    """

    def __init__(self, app: ASGIApp, *, routes: Sequence[BaseRoute]) -> None:
        """`app` takes FastAPI's way; `routes` are those that questions are sent to."""
        self._app = app
        asked = [route for route in routes if isinstance(route, APIRoute) and route.methods == {"POST"}]
        self._routes = {route.path: route for route in asked}
        self._kinds = {path: _asked(route.endpoint) for path, route in self._routes.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["path"]) if scope["type"] == "http" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        try:
            body = await Request(scope, receive).body()
        except ClientDisconnect:  # nobody waits for an answer
            return
        if (asked := _as_described(self._kinds[route.path], scope, body)) is not None:
            answer = await route.endpoint(asked)
            written = answer if isinstance(answer, bytes) else answer.model_dump_json()
            await Response(written, media_type="application/json")(scope, receive, send)
            return
        others = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
        scope["headers"] = [*others, (b"content-type", b"application/json")]

        async def once_more() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, once_more, send)


def _asked(endpoint: Callable[..., Any]) -> type[BaseModel]:
    """What an endpoint is asked with."""
    (asked,) = signature(endpoint).parameters.values()
    kind: type[BaseModel] = asked.annotation
    return kind


def _as_described(kind: type[BaseModel], scope: Scope, body: bytes) -> BaseModel | None:
    """What is asked, if all about the request is as it should be."""
    if scope["method"] != "POST" or scope["query_string"]:
        return None
    try:
        return kind.model_validate_json(body)
    except ValidationError:
        return None


def question_routes(engine: Engine, worker: Worker, writers: Writers | None) -> APIRouter:
    """Asking a question and filling in a sentence; `writers` make the answers of plain questions."""
    routes = APIRouter()
    results = Results()

    async def together(work: Callable[[list[str]], list[Any]], text: str, *, key: Any) -> Any:
        note(question=text)
        done = worker.together(work, text, key=key)
        result = await results.result(done)
        note_work(done)
        return result

    @routes.post("/ask", summary="Answer a question", response_model=Answered)
    async def ask(asked: Question) -> Answered | bytes:
        written = writers is not None and not asked.without_reading

        def work(questions: list[str]) -> list[Any]:
            if writers is None or not written:
                return engine.ask(questions, read=asked.read)
            return engine.ask_through(writers.bodies, questions, read=asked.read)

        answer = await together(work, asked.question, key=("ask", written, asked.read))
        if isinstance(answer, bytes):
            return answer
        shown = Answered(**vars(answer))
        if asked.without_reading:
            alone = await together(engine.ask_without_reading, asked.question, key="ask without reading")
            shown.without_reading = Words(alone.answer, alone.probability)
        return shown

    @routes.post("/fill", summary="Fill in a masked sentence")
    async def fill(asked: Sentence) -> Filled:
        key = ("fill", asked.read)
        answer, masks = await together(
            lambda texts: engine.fill_with_words(texts, read=asked.read), asked.sentence, key=key
        )
        return Filled(**vars(answer), masks=masks)

    @routes.post("/search", summary="Find passages without reading them")
    async def search(asked: Search) -> Searched:
        def work(questions: list[str]) -> list[Any]:
            return engine.search(questions, asked.k)

        found = await together(work, asked.question, key=("search", asked.k))
        return Searched(found=[FoundPassage(**one.as_json()) for one in found])

    suggestions = Suggestions(engine, worker)

    @routes.get("/suggestions", summary="Questions that the passages can answer")
    async def suggested() -> Suggested:
        """Made in the background when they are first asked for, and again once passages have changed."""
        await _follow(engine, worker, most_s=MOMENT_S)
        return Suggested(made=suggestions.are_made(), questions=suggestions.questions)

    return routes


# --- passages -----------------------------------------------------------------------------------------------


class _Store:
    """The passages of an engine, as those who read and change them see them."""

    def __init__(self, engine: Engine, worker: Worker) -> None:
        self._engine = engine
        self._worker = worker
        self._seen = engine.corpus

    def newest(self) -> Corpus:
        """What is on disk; what is searched may be behind it, where the disk is full for example."""
        return self._engine.corpus.newest()

    async def to_read(self) -> Corpus:
        """What others stored a moment ago is seen however busy the model is; files are read by the worker."""
        if self._engine.follows_files:
            await _follow(self._engine, self._worker)
            return self._engine.corpus
        return await asyncio.to_thread(self._newest_to_read)

    def _newest_to_read(self) -> Corpus:
        """The newest for those who read; what cannot be taken up is told to those who ask questions."""
        seen, known = self._seen, self._engine.corpus
        if (seen.folder, seen.fingerprint) != (known.folder, known.fingerprint) or seen.edits < known.edits:
            seen = known
        with suppress(RealmError, OSError):
            seen = seen.newest()
        self._seen = seen
        return seen

    def article(self, title: str, text: str, source: str) -> Article:
        """What is to be added or to replace a passage, if it has words."""
        if not len(self._engine.model.wordpieces.encode(text)):
            raise BadInput("the text contains no words; write some")
        return Article(title, text, source)

    def change(self, number: int, edit: Callable[[], Any]) -> None:
        """Another process may have been faster; its words, which name folders, are not for clients."""
        try:
            edit()
        except BadInput as error:
            _existing(number, self.newest())
            if isinstance(error, ChangedMeanwhile):
                why = f"someone else changed passage {number} a moment ago"
                raise HTTPException(409, f"{why}; read it again, then change it") from None
            raise

    async def alone(self, work: Callable[[], Any]) -> Any:
        """Do what changes passages while nothing else is done, on their newest state. Checks belong into the
        work: before it others may change what was checked."""

        def on_newest() -> Any:
            self._engine.follow()
            return work()

        done = self._worker.alone(on_newest)
        result = await asyncio.wrap_future(done)
        note_work(done)
        return result


def _shown(passage: Passage) -> KnownPassage:
    return KnownPassage(**vars(passage), file=passage.file)


def _existing(number: int, corpus: Corpus) -> KnownPassage:
    if number not in corpus:
        raise HTTPException(404, f"there is no passage {number}; GET /passages lists those that exist")
    return _shown(corpus[number])


def _token_check(doors: Doors) -> Callable[..., None]:
    """A dependency of the routes that need the token."""

    def allowed(authorization: Annotated[str | None, Header()] = None) -> None:
        if not doors.has_token((authorization or "").encode("latin-1")):
            why = "changing passages needs the service's token: send it as 'Authorization: Bearer TOKEN'"
            raise HTTPException(401, why, headers={"WWW-Authenticate": "Bearer"})

    return allowed


def passage_routes(engine: Engine, worker: Worker, doors: Doors) -> APIRouter:
    """Finding and reading passages, and changing them, which needs the token where there is one."""
    routes = APIRouter()
    allowed = _token_check(doors)
    store = _Store(engine, worker)

    @routes.get("/passages", summary="Find passages")
    async def find(
        text: Annotated[str, Query(max_length=200, description=_SOUGHT)] = "",
        limit: Annotated[int, Query(ge=1, le=100)] = SHOWN,
    ) -> Passages:
        corpus = await store.to_read()
        gone = threading.Event()
        try:
            found = await asyncio.to_thread(corpus.find, text, limit=limit, stop=gone.is_set)
        finally:  # of millions of passages it would go on for minutes after its client has left
            gone.set()
        return Passages(total=len(corpus), passages=[_shown(passage) for passage in found])

    @routes.get("/passages/{number}", summary="Read a passage")
    async def read_passage(number: int) -> KnownPassage:
        return _existing(number, await store.to_read())

    @routes.get("/passages/{number}/around", summary="Read a passage where it stands")
    async def read_around(
        number: int, count: Annotated[int, Query(ge=1, le=50)] = AROUND
    ) -> list[KnownPassage]:
        """The passage between those before and after it in its file, up to so many on either side."""
        corpus = await store.to_read()
        _existing(number, corpus)
        return [_shown(passage) for passage in engine.around(number, count=count, corpus=corpus)]

    @routes.post("/passages", summary="Add a passage", status_code=201, dependencies=[Depends(allowed)])
    async def add(new: NewPassage) -> list[KnownPassage]:
        """A text that is too long becomes several passages."""

        def work() -> list[KnownPassage]:
            added = engine.edit(add=[store.article(new.title, new.text, "service")])
            return [_existing(number, store.newest()) for number in added]

        return await store.alone(work)

    @routes.put("/passages/{number}", summary="Replace a passage", dependencies=[Depends(allowed)])
    async def replace(number: int, new: ChangedPassage) -> KnownPassage:
        """It still comes from the same file."""

        def work() -> KnownPassage:
            former = _existing(number, store.newest())
            title = former.title if new.title is None else new.title
            new_one = store.article(title, new.text, former.source)
            store.change(number, lambda: engine.edit(replace={number: new_one}))
            return _existing(number, store.newest())

        return await store.alone(work)

    @routes.delete(
        "/passages/{number}", summary="Remove a passage", status_code=204, dependencies=[Depends(allowed)]
    )
    async def remove(number: int) -> None:
        def work() -> None:
            _existing(number, store.newest())
            if len(store.newest()) == 1:
                raise BadInput("the last passage cannot be removed; replace it")
            store.change(number, lambda: engine.edit(remove=[number]))

        await store.alone(work)

    return routes


# --- operations ---------------------------------------------------------------------------------------------


def operation_routes(engine: Engine, worker: Worker, meters: Meters) -> APIRouter:
    """The state of the service, for those who run it."""
    routes = APIRouter()

    @routes.get("/livez", summary="Is the process alive?")
    async def alive() -> Liveness:
        """Answered at once, also while the model is loaded."""
        return Liveness(status="alive")

    @routes.get("/readyz", summary="Can it answer?")
    async def ready() -> Liveness:
        """503 while the model is loaded and passages are embedded for the first time, with how far it is;
        while the model hangs or keeps failing; and once the service stops."""
        if not worker.takes_more:
            raise HTTPException(503, "the service is stopping")
        if why := worker.trouble():
            if not worker.busy:  # nobody may ask any more: this tells when it is over
                worker.together(engine.ask, "What is this?", key=object())
            raise HTTPException(503, why)
        return Liveness(status="ready")

    @routes.get("/health", summary="Is it running?")
    async def health() -> Health:
        await _follow(engine, worker, most_s=MOMENT_S)
        return Health(
            status="ok",
            version=__version__,
            passages=len(engine.corpus),
            sources=engine.sources,
            waiting=worker.waiting,
            editable=engine.editable,
            up_to_date=engine.up_to_date,
        )

    @routes.get("/metrics", summary="Numbers for Prometheus", response_class=Response)
    async def metrics() -> Response:
        await _follow(engine, worker, most_s=MOMENT_S)
        shown = meters.shown(
            waiting=worker.waiting, passages=len(engine.corpus), up_to_date=engine.up_to_date
        )
        return Response(shown, media_type=CONTENT_TYPE_LATEST)

    return routes
