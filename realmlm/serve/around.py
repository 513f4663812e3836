"""What surrounds every request, whatever its route: who is let in, how much may be sent, what every answer
carries, who has left meanwhile, and what is counted and logged."""

import asyncio
import hmac
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from realmlm.serve.log import NOTES, Log, note
from realmlm.serve.meters import Meters
from realmlm.settings import Serve

MOST_HEAD = 64 * 1024  # bytes of a request's address and headers
MOST_BODY = 256 * 1024  # bytes of a request: the longest passage, each character escaped (\ud83d\ude00)
MOST_TO_EMBED = 2**20  # bytes of a request with texts to embed, of which there may be many
EMBEDDING = ("/embed", "/v1/embeddings")
LOOK_S = 0.25  # seconds after which it is watched whether who asked is still there
LEFT = 499  # the status in log and numbers of a request that nobody waited for; it is never sent
LONGEST_ID = 128  # characters of a request's id that a client may give

_POLICY = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'"
_SAFE = (b"x-content-type-options", b"nosniff")  # every answer
_JSON = (b"content-type", b"application/json")
_PAGE = [  # what a browser shows; the server looks through every header, and answers are many
    (b"content-security-policy", f"{_POLICY}; frame-ancestors 'none'".encode()),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
]
_CODES = {
    400: "bad_input",
    401: "token_needed",
    403: "read_only",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    413: "too_large",
    421: "other_host",
    422: "bad_input",
    431: "too_large",
    503: "busy",
    507: "disk_full",
}


class Refusal(HTTPException):
    """One with a code of its own, and the field of the request that it is about."""

    def __init__(self, status: int, message: str, *, code: str, param: str) -> None:
        super().__init__(status, message)
        self.code = code
        self.param = param


class _Failure(JSONResponse):
    """An error; where OpenAI's clients ask, with what else they look for in one."""

    def __init__(
        self, status: int, problem: dict[str, Any], headers: Mapping[str, str] | None, param: str | None
    ) -> None:
        super().__init__({"error": problem}, status_code=status, headers=headers)
        self._problem = problem
        self._given = headers
        self._param = param

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith("/v1/"):
            kind = "invalid_request_error" if self.status_code < 500 else "server_error"
            problem = {**self._problem, "type": kind, "param": self._param}
            whole = JSONResponse({"error": problem}, status_code=self.status_code, headers=self._given)
            await whole(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def failure(
    status: int,
    message: str,
    headers: Mapping[str, str] | None = None,
    *,
    code: str = "",
    param: str | None = None,
    progress: float | None = None,
) -> JSONResponse:
    """An error in the one shape that all have, with its status's code unless another is given; `param` is the
    field that it is about; `progress` from 0 to 1, where it is known how far it is."""
    problem: dict[str, Any] = {"code": code or _CODES.get(status, "failed"), "message": message}
    problem |= {} if progress is None else {"progress": progress}
    return _Failure(status, problem, headers, param)


@dataclass(frozen=True, kw_only=True)
class Doors:
    """Who is let in."""

    host: str = ""
    """The address it listens at. Where that is this machine's own, only what is addressed to this machine is
    answered: a page from elsewhere may let its own name point here."""
    hosts: tuple[str, ...] = ()
    """Names that it is addressed by; where there are some, others are refused at any address. A page from
    elsewhere has a name: addresses in numbers are let in where others can reach the service."""
    token: str | None = None
    """What every change of a passage needs."""
    token_reads: bool = False
    """Everything else needs it too, but the page's own files and whether the service is alive."""

    @classmethod
    def of(cls, settings: Serve) -> "Doors":
        """As the command says; where others than this machine can reach the service, a token that there is
        closes reading too, unless it is said to stay open."""
        token = settings.secret()
        elsewhere = not is_loopback(settings.host) and not settings.open_reads
        reads = settings.token_reads or (elsewhere and token is not None)
        return cls(host=settings.host, hosts=settings.allow_host, token=token, token_reads=reads)

    def refusal(self, path: str, host: str, given: bytes) -> JSONResponse | None:
        """Why a request is not let in, if it is not; `given` is its Authorization."""
        if not self._answers_to(host):
            if is_loopback(self.host):
                why = f"this service answers to localhost, not to '{host}'"
                return failure(421, f"{why}; a proxy must send Host: localhost")
            why = f"this service does not answer to '{host}'"
            return failure(421, f"{why}; whoever runs it names what it answers to with --allow-host")
        if self.token_reads and not _is_open(path) and not self.has_token(given):
            why = "this service needs its token: send it as 'Authorization: Bearer TOKEN'"
            return failure(401, why, {"WWW-Authenticate": "Bearer"})
        return None

    def _answers_to(self, host: str) -> bool:
        local = is_loopback(self.host)
        if is_loopback(host) or not (local or self.hosts):
            return True
        name = _name(host)
        named = {_name(one).rstrip(".") for one in self.hosts}
        return name.rstrip(".") in named or (not local and _is_address(name))

    def has_token(self, given: bytes) -> bool:
        """Is this Authorization the right one, or none needed?"""
        scheme, _, own = given.partition(b" ")
        right = self.token is None or hmac.compare_digest(own.strip(b" "), self.token.encode())
        return self.token is None or (right and scheme.lower() == b"bearer")


def _is_open(path: str) -> bool:
    return path in ("/", "/livez", "/readyz") or path.startswith("/page/")


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """Is this name or address, a port behind it or not, the machine's own?"""
    name = _name(host)
    return name == "localhost" or (_is_address(name) and ip_address(name).is_loopback)


def _name(host: str) -> str:
    """Without a port; nothing, if it is no name."""
    try:
        return urlsplit(f"//{host}" if host.count(":") < 2 or "]" in host else f"//[{host}]").hostname or ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class Around:
    """Stands between the server and the routes."""

    def __init__(self, app: ASGIApp, *, doors: Doors, meters: Meters, log: Log | None) -> None:
        self._app = app
        self._doors = doors
        self._meters = meters
        self._log = log
        self._run = secrets.token_hex(4)
        self._numbers = count(1)
        self._requests: set[_Request] = set()
        self._looking = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request = _Request(scope, receive, send, self._number(headers.get(b"x-request-id", b"")))
        if self._log is not None:
            NOTES.set({})
        wrong = ""
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_later(LOOK_S, self._look, ())
        self._requests.add(request)
        try:
            host = headers.get(b"host", b"").decode("latin-1")
            given = headers.get(b"authorization", b"")
            if (refusal := self._doors.refusal(scope["path"], host, given)) is not None:
                await refusal(request.scope, receive, request.send)
            else:
                await self._app(request.scope, request.receive, request.send)
        except asyncio.CancelledError:
            await request.cut_off()
        except Exception as error:
            kind = type(error).__name__
            wrong = f"{kind}: {error}"
            if not request.started:
                told = failure(500, f"something went wrong here ({kind}); the service's log says more")
                await told(request.scope, receive, request.send)
            raise
        finally:
            self._requests.discard(request)
            request.end()
            seconds = time.perf_counter() - request.begun
            route = getattr(request.scope.get("route"), "path", "other")
            self._meters.on_request(route, request.status, seconds)
            if self._log is not None:
                number = request.number.decode()
                self._log.request(scope, request.status, number=number, seconds=seconds, error=wrong)

    def _look(self, before: Iterable["_Request"]) -> None:
        """Watch those that were there before already; one timer for all, since most are answered sooner."""
        for request in self._requests.intersection(before):
            request.watch()
        self._looking = bool(self._requests)
        if self._looking:
            asyncio.get_running_loop().call_later(LOOK_S, self._look, list(self._requests))

    def _number(self, given: bytes) -> bytes:
        """The request's id: the client's own if it is fit to be repeated, else one that is unique here."""
        if len(given) <= LONGEST_ID and given.translate(None, b"-_.:").isalnum():
            return given
        return f"{self._run}-{next(self._numbers)}".encode()


class _Request:
    """A request on its way in and its answer on the way out."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, number: bytes) -> None:
        # HEAD is answered as GET is, without the body
        self.scope = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        self.number = number
        self.begun = time.perf_counter()
        self.status = 500
        self.started = False
        self._head = scope["method"] == "HEAD"
        self._receive = receive
        self._send = send
        self._size = 0
        self._left = False
        self._task: asyncio.Task[Any] | None = None
        self._waits = False  # for its answer
        self._watching: asyncio.Task[None] | None = None

    async def receive(self) -> Message:
        message = await self._receive()
        self._size += len(message.get("body", b""))
        most = MOST_TO_EMBED if self.scope["path"] in EMBEDDING else MOST_BODY
        if self._size > most:
            raise HTTPException(413, f"a request may have at most {most} bytes")
        if message["type"] == "http.request" and not message.get("more_body"):
            # all of it is here, and the server has nothing more to tell but that the client has left
            note(receive=time.perf_counter() - self.begun)
            self._task = asyncio.current_task()
            self._waits = True
        return message

    def watch(self) -> None:
        """See whether who asked is still there, from now on."""
        if self._waits and self._watching is None:
            self._watching = asyncio.ensure_future(self._until_left())

    async def _until_left(self) -> None:
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self.started and self._task is not None:
            self._left = True
            self._task.cancel()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.started = True
            headers = [*message["headers"], _SAFE, (b"x-request-id", self.number)]
            if _JSON not in headers:
                headers += _PAGE
            message = {**message, "headers": headers}
        elif self._head:
            message = {**message, "body": b""}
        await self._send(message)

    async def cut_off(self) -> None:
        """Whoever asked has left, or the service stops and can wait no longer."""
        if self._left:
            self.status = LEFT
        elif not self.started:
            refusal = failure(503, "the service is stopping; ask again in a moment", {"Retry-After": "1"})
            await refusal(self.scope, self._receive, self.send)

    def end(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
