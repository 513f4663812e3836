"""Vectors over HTTP: plainly, and as the official client of OpenAI asks for them."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the service is not installed: pip install 'realmlm[serve]'")
from fastapi.testclient import TestClient

from realmlm.corpus.store import Corpus
from realmlm.engine import Engine
from realmlm.serve.around import MOST_BODY, MOST_TO_EMBED
from realmlm.serve.embeddings import AT_ONCE
from realmlm.serve.http import Running, create_app
from realmlm.serve.log import Log
from tests.serve.test_http import failed
from tests.serve.test_running import running

TEXTS = ["Which bird is it?", "the symbol of [MASK]", "heron " * 500]
TOKEN = "a-long-secret"


@pytest.fixture(scope="module")
def engine(tiny_model_folder: Path, knowledge: Corpus) -> Engine:
    return Engine(tiny_model_folder, knowledge, device="cpu")


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[TestClient]:
    with TestClient(create_app(engine), raise_server_exceptions=False) as client:
        yield client


def close(given: Any, expected: Any) -> bool:
    return np.allclose(given, expected, atol=1e-4)


@pytest.mark.parametrize("tower", ["query", "passage"])
@pytest.mark.parametrize("count", [1, 3, AT_ONCE + 5])
def test_vectors_are_those_of_python(client: TestClient, engine: Engine, tower: Any, count: int) -> None:
    texts = [f"{TEXTS[number % 3]} {number}" for number in range(count)]
    given = client.post("/embed", json={"texts": texts, "tower": tower}).json()["vectors"]
    assert close(given, engine.embed(texts, kind=tower))


def test_passages_have_titles_and_score_as_the_search_does(client: TestClient, engine: Engine) -> None:
    best = engine.search(TEXTS[0], 1)[0]
    (query,) = client.post("/embed", json={"texts": TEXTS[:1], "tower": "query"}).json()["vectors"]
    titled = {"texts": [best.text], "titles": [best.title], "tower": "passage"}
    (passage,) = client.post("/embed", json=titled).json()["vectors"]
    assert np.dot(query, passage) == pytest.approx(best.score, abs=5e-3)  # kept in half precision
    (untitled,) = client.post("/embed", json=titled | {"titles": None}).json()["vectors"]
    assert not close(passage, untitled)
    assert "1 texts came with 2 titles" in failed(
        client.post("/embed", json=titled | {"titles": ["", ""]}), 400
    )
    assert "queries have no titles" in failed(client.post("/embed", json=titled | {"tower": "query"}), 400)


def test_one_text_or_several_as_numbers_or_bytes(client: TestClient, engine: Engine) -> None:
    wanted = {"input": TEXTS, "model": "realmlm-passage"}
    body = client.post("/v1/embeddings", json=wanted).json()
    assert [row["index"] for row in body["data"]] == [0, 1, 2]
    expected = engine.embed(TEXTS, kind="passage")
    assert close([row["embedding"] for row in body["data"]], expected)
    packed = client.post("/v1/embeddings", json=wanted | {"encoding_format": "base64"}).json()["data"]
    numbers = [np.frombuffer(base64.b64decode(row["embedding"]), dtype="<f4") for row in packed]
    assert close(numbers, expected)
    lengths = [len(engine.model.wordpieces.encode(text)) for text in TEXTS]
    read = sum(min(length, engine.model.config.max_passage) for length in lengths)
    assert read < sum(lengths)
    assert body["usage"] == {"prompt_tokens": read, "total_tokens": read}
    assert (body["object"], body["model"]) == ("list", "realmlm-passage")
    one = client.post("/v1/embeddings", json={"input": TEXTS[0], "model": "realmlm-query"}).json()
    assert close([row["embedding"] for row in one["data"]], engine.embed(TEXTS[:1]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": [17, 4]}, "numbers of tokens"),
        ({"input": [[17, 4], [3]]}, "numbers of tokens"),
        ({"input": []}, "at least 1 item"),
        ({"input": ["x"] * 2049}, "at most 2048 items"),
        ({"input": ""}, "at least 1 character"),
        ({"input": {"text": "x"}}, "valid list"),
        ({"dimensions": 7}, "vectors have 32 numbers, not 7"),
        ({"encoding_format": "hex"}, "'float' or 'base64'"),
        ({"model": 7}, "valid string"),
    ],
)
def test_what_cannot_be_embedded_is_told_why(
    client: TestClient, change: dict[str, Any], message: str
) -> None:
    response = client.post("/v1/embeddings", json={"input": "x", "model": "realmlm-query"} | change)
    assert response.status_code == (400 if "dimensions" in change else 422)
    error = response.json()["error"]
    assert message in error.pop("message")
    param = None if "dimensions" in change else error["param"]
    assert error == {"code": "bad_input", "type": "invalid_request_error", "param": param}
    assert param is None or param.split(".")[0] in change


def test_a_model_that_is_not_there_and_what_else_clients_send(client: TestClient) -> None:
    wanted = {"input": "x", "model": "realmlm-query"}
    expected = client.post("/v1/embeddings", json=wanted).json()
    more = {"user": "me", "encoding_format": None, "dimensions": None, "extra_body": {"truncate": "END"}}
    assert client.post("/v1/embeddings", json=wanted | more).json() == expected
    assert client.get("/v1/models/realmlm-query").json() == client.get("/v1/models").json()["data"][0]
    for response in (
        client.post("/v1/embeddings", json=wanted | {"model": "text-embedding-3-small"}),
        client.get("/v1/models/text-embedding-3-small"),
    ):
        assert response.status_code == 404
        error = response.json()["error"]
        assert "use realmlm-query or realmlm-passage" in error.pop("message")
        assert error == {"code": "model_not_found", "type": "invalid_request_error", "param": "model"}


def test_many_texts_may_be_sent_but_not_any_number(client: TestClient) -> None:
    body = json.dumps({"texts": ["heron " * 25] * 2048, "tower": "query"}).encode()
    assert MOST_BODY < len(body) < MOST_TO_EMBED
    assert len(client.post("/embed", content=body).json()["vectors"]) == 2048
    for route in ("/embed", "/v1/embeddings"):
        refused = client.post(route, content=body.ljust(MOST_TO_EMBED + 1))
        assert refused.status_code == 413
        assert str(MOST_TO_EMBED) in refused.json()["error"]["message"]


def test_it_waits_and_is_refused_as_questions_are(engine: Engine) -> None:
    app = create_app(engine)
    with TestClient(app, raise_server_exceptions=False) as client:
        client.post("/embed", json={"texts": ["x"], "tower": "query"})
        assert "realmlm_batch_size_count 1.0" in client.get("/metrics").text
        app.state.stop(0.0)
        refused = client.post("/v1/embeddings", json={"input": "x", "model": "realmlm-query"})
        assert refused.status_code == 503
        error = refused.json()["error"]
        assert error["message"].startswith("the service is stopping")
        assert error["type"] == "server_error"
        assert int(refused.headers["retry-after"]) >= 1


def test_the_official_client(engine: Engine, tmp_path: Path) -> None:
    openai = pytest.importorskip("openai", reason="pip install openai")
    pytest.importorskip("uvicorn", reason="the service is not installed: pip install 'realmlm[serve]'")
    log = Log(tmp_path / "log.jsonl", level="info")

    def load() -> Any:
        return create_app(engine, token=TOKEN, running=Running(token_reads=True, log=log))

    with running(load, log=log) as service:
        at = {"base_url": f"http://127.0.0.1:{service.port}/v1", "max_retries": 20}
        client = openai.OpenAI(api_key=TOKEN, **at)
        assert [model.id for model in client.models.list()] == ["realmlm-query", "realmlm-passage"]
        made = client.embeddings.create(model="realmlm-query", input=TEXTS)
        assert close([row.embedding for row in made.data], engine.embed(TEXTS))
        assert made.usage.prompt_tokens > 0
        plain = client.embeddings.create(model="realmlm-query", input=TEXTS[0], encoding_format="float")
        assert close(plain.data[0].embedding, made.data[0].embedding)
        with pytest.raises(openai.UnprocessableEntityError, match="numbers of tokens"):
            client.embeddings.create(model="realmlm-query", input=[[1, 2]])
        assert client.models.retrieve("realmlm-passage").id == "realmlm-passage"
        with pytest.raises(openai.NotFoundError, match="no model") as unknown:
            client.embeddings.create(model="text-embedding-3-small", input="x")
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.AuthenticationError, match="needs its token"):
            openai.OpenAI(api_key="another", **at).models.list()
    log.flush()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    made_of = [line for line in lines if line.get("path") == "/v1/embeddings"]
    assert [line["status"] for line in made_of] == [200, 200, 422, 404]
    assert {"receive", "wait", "work", "all"} == set(made_of[0]["ms"])
    assert "heron" not in (tmp_path / "log.jsonl").read_text()
