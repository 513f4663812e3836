"""How much of a request is taken in before it is known what is asked: its address, its headers, and what may
follow a body that comes in parts (trailers). The parser would gather any amount of them."""

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from realmlm.serve.around import MOST_HEAD, failure

MOST_HEADERS = 100


class _TooLarge(Exception):
    """Ends the parser's work."""


class BoundedHeads(HttpToolsProtocol):
    """Refuses what is larger, and answers what is no HTTP in the shape that every error has.

    The parser tells of a header once the next one begins. So what it was given without a word in return is
    counted too, whatever it is.
    """

    _head = 0  # bytes of this request's address, names and values that the parser told of
    _count = 0  # of its headers
    _untold = 0  # bytes since the parser last told of anything but a header
    _told = False
    _whole = False  # has all that comes before the body been seen?
    _too_large = False

    def data_received(self, data: bytes) -> None:
        if self._too_large:  # what was sent before it heard of it
            return
        self._told = False
        super().data_received(data)
        self._untold = 0 if self._told else self._untold + len(data)
        if self._untold > MOST_HEAD and not self._too_large:
            self._too_large = True
            self.send_400_response("")

    def on_message_begin(self) -> None:
        self._told = True
        self._whole = False
        self._head = 0
        self._count = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._add(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count += 1
        self._add(len(name) + len(value))
        if not self._whole:  # trailers are for nobody here
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._told = True
        self._whole = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._told = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._told = True
        super().on_message_complete()

    def _add(self, size: int) -> None:
        self._head += size
        if self._head > MOST_HEAD or self._count > MOST_HEADERS:
            self._too_large = True
            raise _TooLarge

    def send_400_response(self, msg: str) -> None:
        """Also where it is too much. Who still waits for the answer to a request before this one would take
        this for it: there the connection ends without a word."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            own = self._whole and cycle.more_body and not cycle.response_started and not self.pipeline
            if not own:
                self.transport.abort()
                return
        if self._too_large:
            most = f"{MOST_HEAD // 1024} KiB of address and headers, and {MOST_HEADERS} headers"
            answer = failure(431, f"a request may have at most {most}")
        else:
            answer = failure(400, "this is not HTTP/1.1, or not all of it; send a request")
        head = [*answer.raw_headers, (b"connection", b"close")]
        lines = [STATUS_LINE[answer.status_code], *(b"%s: %s\r\n" % pair for pair in head), b"\r\n"]
        self.transport.write(b"".join([*lines, bytes(answer.body)]))
        self.transport.close()
