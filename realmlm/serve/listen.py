"""The server: a port that is taken before anything is loaded, connections that do not linger, and an end at
which everybody who waits is told."""

import asyncio
import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any

import uvicorn

from realmlm.errors import BadInput
from realmlm.log import heard_by, say
from realmlm.serve.around import MOST_HEAD
from realmlm.serve.front import Front
from realmlm.serve.log import Log

HEADER_S = 10.0  # seconds that a connection may take until a request's header is whole
BODY_S = 30.0  # and its body
UNREAD_S = 60.0  # and that an answer may lie there without any of it being fetched
KEEP_ALIVE_S = 75  # between two requests; clients give up an idle connection before we do
HEARD_S = 0.05  # seconds in which what was sent before the service was told to stop is taken in
STOP_S = 20.0  # seconds in which what waits is still begun on after the service was told to stop
GRACE_S = 30  # and until all must have been answered
END_S = 5.0  # and then until the process is gone, whatever hangs
LOG_S = 1.0  # seconds that the end waits for the last lines of the log
WAITING = 2048  # connections that the system keeps until they are accepted
OTHER_FILES = 64  # descriptors that connections leave for corpus, index and log
ONCE_S = 60.0  # seconds in which a warning of the server is not repeated


def bind(host: str, port: int, *, shared: bool = False, listen: bool = True) -> socket.socket:
    """The socket to listen at; before the model is loaded, so that nobody waits in vain. A `shared` one has
    others of the same port beside it, in other processes."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        # connections that just ended do not matter
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(place)
        if listen:
            listener.listen(WAITING)  # who comes before the server does waits
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise BadInput(f"port {port} is in use; choose another with --port") from None
        refused = f"cannot listen on {host} port {port} ({error.strerror})"
        raise BadInput(f"{refused}; choose another --host or --port") from None
    return listener


class Server(uvicorn.Server):
    """Closes connections that send or fetch nothing, which uvicorn itself would keep for ever."""

    def __init__(
        self,
        front: Front,
        *,
        log: Log | None = None,
        own_process: bool = False,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """A process that is its `own` ends with it, even where something hangs. `beat` is called every second
        by what answers."""
        config = uvicorn.Config(
            front,
            http=_protocol(),
            h11_max_incomplete_event_size=MOST_HEAD,
            ws="none",
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
            # no line for each request: even those that are not written would be put together
            log_level="warning",
            access_log=False,
        )
        super().__init__(config)
        self.server_state.connections = _Connections(room_for_connections())  # type: ignore[assignment]
        for name in ("uvicorn.error", "asyncio"):
            logging.getLogger(name).addFilter(_Seldom())
        self._front = front
        self._log = log
        self._own_process = own_process
        self._beat = beat
        self._seen: dict[Any, tuple[Any, float]] = {}

    def serve_at(self, listener: socket.socket) -> None:
        """Serve until told to stop; raises what kept the service from being loaded."""
        errors: list[BaseException] = []

        def give_up(error: BaseException) -> None:
            errors.append(error)
            self.should_exit = True

        self._front.failed = give_up
        try:
            with nullcontext() if self._log is None else heard_by(self._log):
                self.run([listener])
        except KeyboardInterrupt:
            if not self._front.ready:
                raise
        finally:
            if self._log is not None:
                self._log.flush_within(LOG_S)
        if errors:
            raise errors[0]
        if not self._front.ready:  # where whoever started it ignores SIGINT, no interrupt comes
            raise KeyboardInterrupt

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            self._close_slow(time.monotonic())
            self._beat()
        return await super().on_tick(counter)

    def _close_slow(self, now: float) -> None:
        """Close those that are still where they were some seconds ago."""
        seen = {}
        connections: list[Any] = list(self.server_state.connections)
        for connection in connections:
            waits_for = _waits_for(connection)
            before, since = self._seen.get(connection, (None, now))
            seen[connection] = (waits_for, since if waits_for == before else now)
            if waits_for is not None and now - seen[connection][1] > waits_for[0]:
                connection.transport.abort()
        self._seen = seen

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._own_process:
            forced = threading.Timer(GRACE_S + END_S, _end)
            forced.daemon = True
            forced.start()
        # in a moment: what was sent before connections are closed, next, is heard and answered
        asyncio.get_running_loop().call_later(HEARD_S, self._front.stop, STOP_S)
        await super().shutdown(sockets)
        if self._log is not None:
            self._log.flush_within(LOG_S)  # the signal that stopped it ends the process next


def _end() -> None:
    say("the service could not stop as it should; its process is ended")
    os._exit(1)


def _protocol() -> Any:
    """What reads requests: httptools where it is installed, bounded here; h11 has a bound of its own."""
    if not find_spec("httptools"):
        return "h11"
    from realmlm.serve.heads import BoundedHeads

    return BoundedHeads


class _Connections(dict[Any, None]):
    """In place of the set that uvicorn keeps: in order, and where one comes for which the system has no more
    room, the oldest of those that ask nothing goes."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def add(self, connection: Any) -> None:
        if len(self) >= self._most:
            idle = (one for one in self if one.cycle is None or one.cycle.response_complete)
            if (oldest := next(idle, None)) is not None:
                del self[oldest]
                oldest.transport.abort()
        self[connection] = None

    def discard(self, connection: Any) -> None:
        self.pop(connection, None)


def _waits_for(connection: Any) -> tuple[Any, ...] | None:
    """What the next step of a connection depends on the client for, and how long that may take."""
    cycle = connection.cycle
    if unread := connection.transport.get_write_buffer_size():
        return UNREAD_S, "fetch", unread
    if cycle is None or cycle.response_complete:
        # between two requests uvicorn has a timer of its own
        return None if connection.timeout_keep_alive_task else (HEADER_S, "header", id(cycle))
    return (BODY_S, "body", id(cycle)) if cycle.more_body else None


def room_for_connections() -> int:
    """How many connections may be open; the system's limit is raised as far as it allows."""
    try:
        import resource
    except ImportError:  # Windows
        return 500
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or soft < hard:
        wanted = hard if hard != resource.RLIM_INFINITY else max(soft, 65_536)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return max(16, soft - OTHER_FILES)


class _Seldom(logging.Filter):
    """Lets a message through once a minute: many connections can fail alike within one."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        self._last = {text: at for text, at in self._last.items() if now - at < ONCE_S}
        # of an exception its kind, for its text may be another each time
        key = f"{record.msg} {record.exc_info[0] if record.exc_info else ''}"
        known = key in self._last
        self._last.setdefault(key, now)
        return not known
