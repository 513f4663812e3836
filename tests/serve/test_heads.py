"""What comes before a request's body: bounded, whatever part of it grows, and refused in the one shape."""

import json
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

pytest.importorskip("fastapi", reason="the service is not installed: pip install 'realmlm[serve]'")
pytest.importorskip("httptools", reason="the service is not installed: pip install 'realmlm[serve]'")

from realmlm.engine import Engine
from realmlm.serve.around import MOST_HEAD
from realmlm.serve.heads import MOST_HEADERS
from realmlm.serve.http import create_app
from tests.serve.test_running import Served, engine, running, until  # noqa: F401

GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /ask HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def service(engine: Engine) -> Iterator[Served]:  # noqa: F811
    with running(lambda: create_app(engine, host="127.0.0.1")) as service:
        until(lambda: service.get("/readyz")[0] == 200)
        yield service


def said_to(service: Served, *parts: bytes) -> bytes:
    """All that is answered until the connection is closed."""
    with closing(socket.create_connection(("127.0.0.1", service.port))) as connection:
        connection.settimeout(5)
        said = b""
        try:
            for part in parts:
                connection.sendall(part)
            while more := connection.recv(65536):
                said += more
        except ConnectionError:
            pass
        return said


@pytest.mark.parametrize(
    ("begun", "grows"),
    [
        (b"GET /", b"a" * 1000),
        (GET + b"X-A: ", b"a" * 1000),
        (GET, b"a" * 1000),
        (GET, b"X-Abcdef: 1\r\n" * 10),
        (GET + b"A:", b" " * 1000),
        (b"", b"\r\n" * 500),
        (POST + b"5;a=", b"a" * 1000),
        (POST + b"0\r\nX-A: ", b"a" * 1000),
        (POST + b"0\r\n", b"X-Abcdef: 1\r\n" * 10),
        (GET + b"\r\n" + b"GET /", b"a" * 1000),
    ],
    ids=["url", "value", "name", "many", "spaces", "lines", "extension", "trailer", "trailers", "second"],
)
def test_what_goes_on_for_ever_is_cut_off(service: Served, begun: bytes, grows: bytes) -> None:
    with closing(socket.create_connection(("127.0.0.1", service.port))) as connection:
        connection.settimeout(5)
        connection.sendall(begun)
        with pytest.raises(ConnectionError):
            connection.sendall(grows * (2**24 // len(grows)))  # more than socket buffers hold
    assert service.get("/livez")[0] == 200


def test_as_much_as_may_be_is_taken_and_no_more(service: Served) -> None:
    long = b"X-A: " + b"a" * (MOST_HEAD - 200) + b"\r\n"
    end = b"Connection: close\r\n\r\n"
    assert said_to(service, GET + long + end).startswith(b"HTTP/1.1 200")
    assert said_to(service, GET, long, end).startswith(b"HTTP/1.1 200")
    assert said_to(service, GET + b"X-A: 1\r\n" * (MOST_HEADERS - 2) + end).startswith(b"HTTP/1.1 200")
    for too_much in (b"X-A: " + b"a" * MOST_HEAD + b"\r\n", b"X-A: 1\r\n" * MOST_HEADERS):
        said = said_to(service, GET + too_much + end)
        head, body = said.split(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 431 ")
        assert b"content-type: application/json" in head
        assert json.loads(body)["error"]["code"] == "too_large"


def test_every_request_of_a_connection_has_all_of_it(service: Served) -> None:
    long = GET + b"X-A: " + b"a" * (MOST_HEAD // 2) + b"\r\n"
    ten = (long + b"\r\n") * 9 + long + b"Connection: close\r\n\r\n"
    assert said_to(service, ten).count(b"HTTP/1.1 200") == 10


def test_a_body_in_parts_is_no_header_and_trailers_are_for_nobody(service: Served) -> None:
    words = b'{"question": "Who lit Orvane?"}'
    parts = b"".join(b"1;" + b"x" * 4000 + b"\r\n%c\r\n" % letter for letter in words)
    end = b"0\r\nX-A: 1\r\n\r\n" + GET + b"Connection: close\r\n\r\n"
    assert len(parts) > MOST_HEAD
    assert said_to(service, POST, parts, end).count(b"HTTP/1.1 200") == 2


def test_what_is_no_http_is_refused_in_the_one_shape(service: Served) -> None:
    for nonsense in (b"\x16\x03\x01\x02\x00\x01\x00\x01", b"GET / HTTP/1.1\r\nno header\r\n\r\n"):
        head, body = said_to(service, nonsense).split(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body)["error"]["code"] == "bad_input"
