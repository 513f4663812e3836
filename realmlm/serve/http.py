"""The service over HTTP as one application: routes, limits, and one shape for every error."""

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import Receive, Scope, Send

from realmlm import __version__
from realmlm.defaults import PATIENCE, QUEUE
from realmlm.engine import Engine
from realmlm.errors import BadInput, NotEnough, RealmError, Unavailable
from realmlm.log import say
from realmlm.page import ASSETS
from realmlm.parallel import in_background
from realmlm.serve.around import Around, Doors, Refusal, failure
from realmlm.serve.embeddings import embedding_routes
from realmlm.serve.log import Log, note
from realmlm.serve.meters import Meters
from realmlm.serve.routes import Straight, operation_routes, passage_routes, question_routes
from realmlm.serve.runs import run_routes
from realmlm.serve.shapes import Failure
from realmlm.serve.worker import Busy, Worker
from realmlm.serve.writers import Writers

CLOSE_S = 4.0  # seconds that what the model is still at may take once everybody was answered or told
AGAIN = "start the service again"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
RETRY_S = "5"  # seconds after which it may be there again
LOGGER = logging.getLogger("uvicorn.error")  # the server's own: what is said again and again is said seldom
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(frozen=True, kw_only=True)
class Running:
    """How a service is run."""

    patience_s: float = PATIENCE
    """Who would wait longer is refused at once."""
    token_reads: bool = False
    """Reading needs the token too."""
    hosts: tuple[str, ...] = ()
    """Names that it is addressed by, if others are to be refused."""
    log: Log | None = None
    """Where each request is written down."""
    lost: Callable[[BaseException], None] = lambda error: None
    """Called when this process cannot go on: its GPU failed for good."""


def create_app(
    engine: Engine,
    *,
    host: str = "",
    token: str | None = None,
    queue: int = QUEUE,
    batch: int | None = None,
    runs: Sequence[Path] = (),
    writers: int = 0,
    running: Running | None = None,
) -> FastAPI:
    """The service over an engine; a request is refused while `queue` others wait, and at most `batch` of them
    are answered together: as many as the engine reads for at once, unless it is said.

    With a token every change of a passage needs it. Where `host`, the address it listens at, is this
    machine's own, only what is addressed to this machine is answered: a page from elsewhere may let its own
    name point here. `runs` are folders with training runs to show. `writers` is how many processes make
    answers of what the model read: some beside a GPU, which then gets larger batches too (docs/service.md).
    """
    running = running or Running()
    doors = Doors(host=host, hosts=running.hosts, token=token, token_reads=running.token_reads)
    meters = Meters()
    worker = Worker(
        most_waiting=queue,
        most_together=engine.at_once if batch is None else batch,
        patience_s=running.patience_s,
        gather=writers > 0,
        on_batch=lambda size, waited: meters.on_batch(size, waited, worker.waiting),
        on_lost=lambda error: running.lost(NotEnough(f"the GPU is lost to this process ({error}); {AGAIN}")),
    )
    beside = Writers(engine.combiner, count=writers) if writers else None

    failures = (400, 401, 403, 404, 409, 413, 422, 503, 507)
    shapes: dict[int | str, dict[str, Any]] = {status: {"model": Failure} for status in failures}
    app = _App(
        title="realmlm",
        version=__version__,
        description="Answers with evidence, from passages that can be changed while it runs.",
        lifespan=_life(meters, worker, beside),
        responses=shapes,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # what has no such route is told so, like everything else
    )
    questions = question_routes(engine, worker, beside)
    embeddings = embedding_routes(engine, worker)
    for routes in (
        questions,
        embeddings,
        passage_routes(engine, worker, doors),
        run_routes(runs),
        operation_routes(engine, worker, meters),
    ):
        app.include_router(routes, dependencies=[Depends(_check_parameters)])
    app.mount("/page", StaticFiles(directory=ASSETS), name="page")

    app.get("/", include_in_schema=False, name="page")(_page)
    _add_error_handlers(app)
    # from the inside out
    app.add_middleware(Straight, routes=[*questions.routes, *embeddings.routes])
    expected = {kind: answer for kind, answer in app.exception_handlers.items() if kind is not Exception}
    app.add_middleware(ExceptionMiddleware, handlers=expected)
    app.add_middleware(Around, doors=doors, meters=meters, log=running.log)
    app.state.stop = worker.stop
    return app


def _life(
    meters: Meters, worker: Worker, writers: Writers | None
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """What is done when the service begins and when it ends."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        meters.ready()
        yield
        # what is waiting is still answered
        closing = [asyncio.wrap_future(in_background(worker.close))]
        if writers is not None:
            closing.append(asyncio.wrap_future(in_background(writers.close)))
        hanging = (await asyncio.wait(closing, timeout=CLOSE_S))[1]
        if hanging:
            left = f"the model was still at work {CLOSE_S:.0f} s after the last answer"
            say(f"{left}; the service ends without it")

    return life


async def _page() -> FileResponse:
    return FileResponse(ASSETS / "index.html")


class _App(FastAPI):
    """Without FastAPI's own measuring of each request: the service has meters of its own."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await Starlette.__call__(self, scope, receive, send)


# --- errors -------------------------------------------------------------------------------------------------


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(Busy)
    async def busy(_: Request, error: Busy) -> JSONResponse:
        return failure(503, str(error), {"Retry-After": str(error.retry_s)})

    @app.exception_handler(OSError)
    async def of_the_system(_: Request, error: OSError) -> JSONResponse:
        """Nothing was stored: once an edit stands in the corpus, it succeeds."""
        if error.errno in FULL:
            return failure(507, "the disk is full, and nothing was changed; make room, then try again")
        if error.errno in READ_ONLY:
            return failure(403, f"nothing can be written here ({error.strerror}); change it where it can be")
        if isinstance(error, ConnectionError | TimeoutError):
            return _unavailable(error)
        raise error

    @app.exception_handler(BadInput)
    async def bad(_: Request, error: BadInput) -> JSONResponse:
        return failure(400, str(error))

    @app.exception_handler(RealmError)
    async def ours(_: Request, error: RealmError) -> JSONResponse:
        return _unavailable(error)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error.__cause__, UnicodeDecodeError):
            return failure(400, "the body is not UTF-8; send JSON in UTF-8")
        headers = dict(error.headers or {})
        # starlette names the methods of one function alone, not of the whole route
        if error.status_code == 405:
            route = getattr(request.scope.get("route"), "path_format", None)
            methods = ", ".join(method.upper() for method in app.openapi()["paths"].get(route, {}))
            headers["Allow"] = methods or headers.get("Allow", "")
        code, param = (error.code, error.param) if isinstance(error, Refusal) else ("", None)
        return failure(error.status_code, str(error.detail), headers, code=code, param=param)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return failure(422, _what_is_wrong(first), param=_where(first) or None)


def _where(first: dict[str, Any]) -> str:
    return ".".join(str(part) for part in first["loc"] if part != "body")


def _unavailable(error: Exception) -> JSONResponse:
    """What nobody who asks can cause or cure: a database that is gone, a damaged file. What it was, with its
    addresses and paths, is for those who run the service; the words of `Unavailable` alone are for all."""
    what = f"{type(error).__name__}: {error}"
    note(failed=what)
    LOGGER.error(what)
    why = "what the service needs cannot be reached or used at this moment; its log says more"
    if isinstance(error, Unavailable):
        why = str(error)
    return failure(503, why, {"Retry-After": RETRY_S}, code="unavailable")


def _what_is_wrong(first: dict[str, Any]) -> str:
    """The first of what pydantic and FastAPI found, in words that say what to do."""
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {first['ctx']['error']}, at character {first['loc'][-1]}"
    if isinstance(first["input"], bytes):
        return "the body is not marked as JSON; send it with -H 'content-type: application/json'"
    where = _where(first) or "the body"
    if first["type"] == "extra_forbidden":
        return f"{where}: there is no such field; /openapi.json lists them all"
    return f"{where}: {first['msg']}"


async def _check_parameters(request: Request) -> None:
    """Refuses parameters that the route does not have: a misspelt one would be passed over in silence."""
    taken = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in taken:
            instead = f"use {', '.join(taken)}" if taken else "this route takes none"
            raise HTTPException(422, f"{name}: there is no such parameter; {instead}")
