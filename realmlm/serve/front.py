"""Listens while the model is loaded and passages are embedded for the first time, and says how far it is."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

from fastapi import FastAPI
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from realmlm.log import Progress, heard_by
from realmlm.page import ASSETS
from realmlm.parallel import in_background
from realmlm.serve.around import Around, Doors, failure
from realmlm.serve.log import Log
from realmlm.serve.meters import Meters

RETRY_S = "2"  # seconds after which who asks too early may ask again


class _Starting:
    """What is answered until then, and a listener that hears what is being done."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._files = StaticFiles(directory=ASSETS)

    def said(self, text: str) -> None:
        """Messages are for the terminal."""

    def doing(self, bar: Progress | None) -> None:
        self._bar = bar

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp
        if scope["path"] == "/livez":
            answer = JSONResponse({"status": "alive"})
        elif scope["path"] == "/":
            answer = FileResponse(ASSETS / "index.html")
        elif scope["path"].startswith("/page/"):
            answer = self._files
            scope = {**scope, "root_path": "/page"}
        else:
            bar = self._bar
            doing = "loading the model" if bar is None else bar.line(time.monotonic())
            share = None if bar is None or not bar.total else bar.done / bar.total
            why = f"the service is starting: {doing}"
            answer = failure(503, why, {"Retry-After": RETRY_S}, progress=share)
        try:
            await answer(scope, receive, send)
        except HTTPException as error:  # no such file
            await failure(error.status_code, str(error.detail))(scope, receive, send)


class Front:
    """An application that answers at once, and passes requests on to the service once that is loaded."""

    def __init__(
        self, load: Callable[[], FastAPI], *, doors: Doors, log: Log | None, at_once: bool = True
    ) -> None:
        """`load` makes the service; it is called in a thread of its own when the server has started. If it is
        not to answer `at_once`, the server listens only when the service is loaded."""
        self._load = load
        self._at_once = at_once
        self._starting = _Starting()
        self._app: ASGIApp = Around(self._starting, doors=doors, meters=Meters(), log=log)
        self._service: FastAPI | None = None
        self._entered = AsyncExitStack()
        self.failed: Callable[[BaseException], None] = lambda error: None
        """Called if it cannot be loaded."""

    @property
    def ready(self) -> bool:
        """Is the service loaded?"""
        return self._service is not None

    def stop(self, within_s: float) -> None:
        """Take no more questions; those that are not begun on within so many seconds are refused."""
        if self._service is not None:
            self._service.state.stop(within_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        await receive()
        loading = asyncio.ensure_future(self._open())
        if not self._at_once:
            await loading
        await send({"type": "lifespan.startup.complete"})
        await receive()
        loading.cancel()
        await self._entered.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _open(self) -> None:
        try:
            with heard_by(self._starting):
                service = await asyncio.shield(asyncio.wrap_future(in_background(self._load)))
            await self._entered.enter_async_context(service.router.lifespan_context(service))
        except Exception as error:
            self.failed(error)
        else:
            self._service = service
            self._app = service
