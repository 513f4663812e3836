"""The service over HTTP as one application: routes, limits, and one shape for every error."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from realmlm import __version__
from realmlm.defaults import QUEUE
from realmlm.engine import Engine
from realmlm.errors import RealmError
from realmlm.page import ASSETS
from realmlm.serve.routes import Meters, Straight, operation_routes, passage_routes, question_routes
from realmlm.serve.runs import run_routes
from realmlm.serve.shapes import Failure
from realmlm.serve.worker import Busy, Worker
from realmlm.serve.writers import Writers

MOST_BODY = 256 * 1024  # bytes of a request: the longest passage, each character escaped (\ud83d\ude00)
RETRY_S = 1  # what a full queue asks for


def create_app(
    engine: Engine,
    *,
    host: str = "",
    token: str | None = None,
    queue: int = QUEUE,
    batch: int | None = None,
    runs: Sequence[Path] = (),
    writers: int = 0,
) -> FastAPI:
    """The service over an engine; a request is refused while `queue` others wait, and at most `batch` of them
    are answered together: as many as the engine reads for at once, unless it is said.

    With a token every change of a passage needs it. Where `host`, the address it listens at, is this
    machine's own, only what is addressed to this machine is answered: a page from elsewhere may let its own
    name point here. `runs` are folders with training runs to show. `writers` is how many processes make
    answers of what the model read: some beside a GPU, which then gets larger batches too (docs/service.md).
    """
    meters = Meters()
    together = engine.at_once if batch is None else batch
    worker = Worker(most_waiting=queue, most_together=together, gather=writers > 0, on_batch=meters.on_batch)
    beside = Writers(engine.combiner, count=writers) if writers else None

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(worker.close)  # what is waiting is still answered
        if beside is not None:
            await asyncio.to_thread(beside.close)

    failures = (400, 401, 404, 413, 422, 503)
    shapes: dict[int | str, dict[str, Any]] = {status: {"model": Failure} for status in failures}
    app = FastAPI(
        title="realmlm",
        version=__version__,
        description="Answers with evidence, from passages that can be changed while it runs.",
        lifespan=life,
        responses=shapes,
        docs_url=None,
        redoc_url=None,
    )
    questions = question_routes(engine, worker, beside)
    for routes in (
        questions,
        passage_routes(engine, worker, token=token),
        run_routes(runs),
        operation_routes(engine, worker, meters),
    ):
        app.include_router(routes, dependencies=[Depends(_check_parameters)])
    app.mount("/page", StaticFiles(directory=ASSETS), name="page")

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(ASSETS / "index.html")

    _handle_errors(app)
    # from the inside out
    app.add_middleware(Straight, routes=questions.routes)
    expected = {kind: answer for kind, answer in app.exception_handlers.items() if kind is not Exception}
    app.add_middleware(ExceptionMiddleware, handlers=expected)
    app.add_middleware(_Around, meters=meters, loopback=is_loopback(host))
    return app


# --- errors and limits --------------------------------------------------------------------------------------

_CODES = {
    400: "bad_input",
    401: "token_needed",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    421: "other_host",
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
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error.__cause__, UnicodeDecodeError):
            return _failure(400, "the body is not UTF-8; send JSON in UTF-8")
        headers = dict(error.headers or {})
        # starlette names the methods of one function alone, not of the whole route
        if error.status_code == 405:
            route = getattr(request.scope.get("route"), "path_format", None)
            methods = ", ".join(method.upper() for method in app.openapi()["paths"].get(route, {}))
            headers["Allow"] = methods or headers.get("Allow", "")
        return _failure(error.status_code, str(error.detail), **headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return _failure(422, _what_is_wrong(error.errors()[0]))

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        kind = type(error).__name__
        return _failure(500, f"something went wrong here ({kind}); the service's log says more")


def _what_is_wrong(first: dict[str, Any]) -> str:
    """The first of what pydantic and FastAPI found, in words that say what to do."""
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {first['ctx']['error']}, at character {first['loc'][-1]}"
    if isinstance(first["input"], bytes):
        return "the body is not marked as JSON; send it with -H 'content-type: application/json'"
    where = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
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


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """Is this name or address, a port behind it or not, the machine's own?"""
    try:
        name = urlsplit(f"//{host}" if host.count(":") < 2 or "]" in host else f"//[{host}]").hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


class _Around:
    """Refuses what is too large or meant for another host, and counts and times every request."""

    def __init__(self, app: ASGIApp, *, meters: Meters, loopback: bool) -> None:
        self._app = app
        self._meters = meters
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        status = 500
        size = 0

        async def counting() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MOST_BODY:
                raise HTTPException(413, f"a request may have at most {MOST_BODY} bytes")
            return message

        async def noting(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        host = Headers(scope=scope).get("host", "")
        try:
            if self._loopback and not is_loopback(host):
                why = f"this service answers to localhost, not to '{host}'"
                refusal = _failure(421, f"{why}; a proxy must send Host: localhost")
                await refusal(scope, receive, noting)
            else:
                await self._app(scope, counting, noting)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._meters.requests.labels(route, status).inc()
            self._meters.seconds.labels(route).observe(time.perf_counter() - begun)
