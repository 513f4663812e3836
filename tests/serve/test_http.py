"""The service: every route, every limit, one shape of error, edits that stay."""

import argparse
import errno
import json
import math
import os
import re
import shlex
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the service is not installed: pip install 'realmlm[serve]'")
from fastapi.testclient import TestClient

from realmlm.corpus import build, documents
from realmlm.corpus.store import Corpus
from realmlm.engine import Engine
from realmlm.errors import ArtefactDamaged, ArtefactMissing, Mismatch, MissingExtra, NotEnough, Unavailable
from realmlm.serve import suggestions
from realmlm.serve.around import MOST_BODY, Doors
from realmlm.serve.http import Running, create_app
from realmlm.serve.log import Log
from realmlm.serve.shapes import MOST_CHARACTERS, MOST_TEXT
from realmlm.serve.worker import Busy
from realmlm.settings import Serve
from realmlm.sources.article import Article

TOKEN = "a long secret, ünsaid"


@pytest.fixture
def own_corpus(knowledge: Corpus, tmp_path: Path) -> Path:
    """A corpus that may be edited."""
    shutil.copytree(knowledge.folder, tmp_path / "corpus", ignore=shutil.ignore_patterns("index", "answers"))
    return tmp_path / "corpus"


@pytest.fixture
def client(tiny_model_folder: Path, own_corpus: Path) -> Iterator[TestClient]:
    with TestClient(
        create_app(Engine(tiny_model_folder, own_corpus, device="cpu")), raise_server_exceptions=False
    ) as client:
        yield client


def failed(response: Any, status: int) -> str:
    assert response.status_code == status
    assert set(response.json()) == {"error"}
    assert set(response.json()["error"]) == {"code", "message"}
    return str(response.json()["error"]["message"])


def test_a_question_is_answered_with_its_evidence(
    client: TestClient, tiny_model_folder: Path, own_corpus: Path
) -> None:
    body = client.post(
        "/ask", json={"question": "Which bird is the symbol of the town?", "read": 3, "without_reading": True}
    ).json()
    assert len(body["evidence"]) == 3
    assert sum(passage["retrieval_probability"] for passage in body["evidence"]) == pytest.approx(1, abs=1e-4)
    assert [other["probability"] for other in body["others"]] == sorted(
        [o["probability"] for o in body["others"]], reverse=True
    )
    assert body["without_reading"]["words"]
    direct = Engine(tiny_model_folder, own_corpus, device="cpu").ask(
        "Which bird is the symbol of the town?", read=3
    )
    assert (body["answer"], pytest.approx(body["probability"], abs=1e-5)) == (
        direct.answer,
        direct.probability,
    )
    for passage in body["evidence"]:
        if passage["start"] is not None:
            assert passage["passage"][passage["start"] : passage["end"]].lower() == body["answer"].lower()


def test_a_sentence_is_filled_in_mask_by_mask(client: TestClient) -> None:
    body = client.post("/fill", json={"sentence": "the town shows a [MASK] and a [MASK]", "read": 2}).json()
    assert len(body["masks"]) == 2
    assert [read["passage_id"] for read in body["evidence"]].count(None) == 1  # the null document
    shares = [read["retrieval_probability"] * read["reading_probability"] for read in body["evidence"]]
    assert len(shares) == 3
    assert shares == sorted(shares, reverse=True)
    for mask in body["masks"]:
        for side in ("read", "unread"):
            chances = [word["probability"] for word in mask[side]]
            assert chances == sorted(chances, reverse=True)
    assert failed(client.post("/fill", json={"sentence": "nothing is hidden here"}), 400).startswith(
        "nothing to fill in"
    )


def test_passages_are_read_found_added_replaced_removed_and_it_stays(
    client: TestClient, tiny_model_folder: Path, own_corpus: Path
) -> None:
    before = client.get("/health").json()["passages"]
    new = {"title": "Nerrow", "text": "The arms of Nerrow show a golden quince."}
    (added,) = client.post("/passages", json=new).json()
    assert client.get(f"/passages/{added['id']}").json() == added
    assert [
        found["id"] for found in client.get("/passages", params={"text": "golden QUINCE"}).json()["passages"]
    ] == [added["id"]]
    changed = client.put(
        f"/passages/{added['id']}", json=new | {"text": "The arms of Nerrow show a silver quince."}
    ).json()
    assert "silver" in changed["text"]
    assert client.delete("/passages/0").status_code == 204
    assert failed(client.get("/passages/0"), 404).startswith("there is no passage 0")
    assert failed(client.delete("/passages/0"), 404)
    assert failed(client.put("/passages/0", json=new), 404)
    assert client.get("/health").json()["passages"] == before
    again = Engine(tiny_model_folder, own_corpus, device="cpu")  # a restart
    assert "silver" in again.corpus[added["id"]].text
    assert 0 not in again.corpus
    assert added["id"] in again.index.ids.tolist()


def test_a_replaced_passage_keeps_its_file_and_the_title_that_was_not_sent(
    client: TestClient, own_corpus: Path
) -> None:
    before = client.get("/passages/5").json()
    text = "The arms of Nerrow show a quince."
    assert before["title"]
    assert before["file"] not in ("", "service")
    assert client.put("/passages/5", json={"text": text}).json() == before | {"text": text}
    for title in ("Nerrow", ""):
        assert client.put("/passages/5", json={"title": title, "text": text}).json() == before | {
            "title": title,
            "text": text,
        }
    (added,) = client.post("/passages", json={"text": text}).json()
    assert (added["title"], added["source"]) == ("", "service")
    assert Corpus.open(own_corpus)[5].source == before["source"]


def test_it_says_whether_passages_can_be_changed(
    client: TestClient, tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.get("/health").json()["editable"] is True
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "heron.txt").write_text("The heron is the bird of the town.")
    engine = Engine(tiny_model_folder, docs=tmp_path / "heron.txt", device="cpu")
    with TestClient(create_app(engine), raise_server_exceptions=False) as of_documents:
        assert of_documents.get("/health").json()["editable"] is False


def test_bad_requests_have_one_shape(client: TestClient) -> None:
    assert "question" in failed(client.post("/ask", json={}), 422)
    assert "read" in failed(client.post("/ask", json={"question": "Who?", "read": 0}), 422)
    for given in ({"read": True}, {"read": "5"}, {"read": None}, {"without_reading": "yes"}, {"question": 7}):
        assert next(iter(given)) in failed(client.post("/ask", json={"question": "Who?"} | given), 422)
    failed(client.post("/ask", json={"question": "w" * (MOST_CHARACTERS + 1)}), 422)
    failed(client.post("/ask", content=b"not json", headers={"content-type": "application/json"}), 422)
    latin = '{"question": "Où?"}'.encode("latin-1")
    assert failed(client.post("/ask", content=latin), 400) == "the body is not UTF-8; send JSON in UTF-8"
    failed(client.post("/ask", json={"question": "\u0000"}), 400)
    failed(client.get("/nowhere"), 404)
    failed(client.get("/passages/x"), 422)
    failed(client.get("/passages/99999999999999999999999"), 404)
    refused = client.put("/ask", json={})
    assert (failed(refused, 405), refused.headers["allow"]) == ("Method Not Allowed", "POST")
    refused = client.patch("/passages/0", json={})
    assert (failed(refused, 405), set(refused.headers["allow"].split(", "))) == (
        "Method Not Allowed",
        {"GET", "PUT", "DELETE"},
    )
    refused = client.post("/")
    assert (failed(refused, 405), refused.headers["allow"]) == ("Method Not Allowed", "GET")
    assert client.post(
        "/ask", content=b'{"question": "Who?", "read": 2.0}', headers={"content-type": "application/json"}
    ).is_success
    assert failed(client.post("/passages", json={"text": "\u200b\u0007"}), 400).startswith(
        "the text contains no words"
    )
    assert failed(client.put("/passages/0", json={"text": "\u200b\u0007"}), 400).startswith(
        "the text contains no words"
    )
    failed(client.post("/passages", json={"text": ""}), 422)


def test_a_body_has_a_largest_size_whether_it_says_its_own_or_not(client: TestClient) -> None:
    question = b'{"question": "Who?"}'
    for most in (
        question.ljust(MOST_BODY),
        iter([question, *[b" " * 1024] * 255]),
    ):  # an iterator is sent in chunks
        assert client.post("/ask", content=most).is_success
    for more in (question.ljust(MOST_BODY + 1), iter([question, *[b" " * 1024] * 256])):
        assert (
            failed(client.post("/ask", content=more), 413) == f"a request may have at most {MOST_BODY} bytes"
        )
    assert 'realmlm_requests_total{route="/ask",status="413"} 2.0' in client.get("/metrics").text


def test_a_question_is_json_whatever_its_content_type_says(client: TestClient) -> None:
    for headers in (
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "text/plain"},
        {},
    ):
        assert client.post("/ask", content=b'{"question": "Who?"}', headers=headers).json()["answer"]
        assert client.post("/fill", content=b'{"sentence": "the [MASK]"}', headers=headers).json()["answer"]
        for change in (
            client.post,
            client.put,
        ):  # any web page can send a form here; that must not change what is known
            refused = change(
                "/passages" + "/0" * (change == client.put),
                content=b'{"text": "The heron."}',
                headers=headers,
            )
            assert (
                failed(refused, 422)
                == "the body is not marked as JSON; send it with -H 'content-type: application/json'"
            )
    assert (
        failed(client.post("/ask", content=b'{"question": }'), 422)
        == "the body is not JSON: Expecting value, at character 13"
    )
    assert failed(client.post("/ask", content=b"3"), 422).startswith("the body: ")


def test_the_quick_way_answers_as_fastapi_would(client: TestClient) -> None:
    """JSON in UTF-16 is JSON, but not what the quick way takes."""
    for path, asked in (
        ("/ask", {"question": "Où est «heron»?", "read": 2, "without_reading": True}),
        ("/fill", {"sentence": "the [MASK] of the town", "read": 2}),
    ):
        text = json.dumps(asked, ensure_ascii=False)
        one = {"x-request-id": "one"}
        quick, plain = (
            client.post(path, content=text.encode(code), headers=one) for code in ("utf-8", "utf-16")
        )
        assert quick.status_code == plain.status_code == 200
        assert quick.headers == plain.headers
        assert quick.content == plain.content


def test_what_is_not_known_is_refused(client: TestClient) -> None:
    assert failed(client.post("/ask", json={"question": "Who?", "reed": 2}), 422).startswith(
        "reed: there is no such field"
    )
    assert failed(client.post("/fill", json={"sentence": "the [MASK]", "question": "Who?"}), 422).startswith(
        "question: there is no"
    )
    assert failed(client.post("/passages", json={"text": "The heron.", "id": 3}), 422).startswith(
        "id: there is no such field"
    )
    assert (
        failed(client.get("/passages?query=heron"), 422)
        == "query: there is no such parameter; use text, limit"
    )
    assert (
        failed(client.post("/ask?read=2", json={"question": "Who?"}), 422)
        == "read: there is no such parameter; this route takes none"
    )
    assert failed(client.get("/runs?limit=2"), 422).startswith("limit: there is no such parameter")
    assert client.get("/?from=somewhere").is_success  # the page's address may carry what it likes


def test_the_longest_texts_are_taken(client: TestClient) -> None:
    longest = json.dumps({"title": "\U0001f600" * 500, "text": "\U0001f600" * MOST_TEXT}, ensure_ascii=True)
    added = client.post("/passages", content=longest, headers={"content-type": "application/json"})
    assert added.status_code == 201
    assert "".join(passage["text"] for passage in added.json()) == "\U0001f600" * MOST_TEXT
    assert client.post("/ask", json={"question": "\U0001f600" * MOST_CHARACTERS}).status_code == 200


def test_writing_needs_the_token_where_there_is_one(tiny_model_folder: Path, own_corpus: Path) -> None:
    with TestClient(create_app(Engine(tiny_model_folder, own_corpus, device="cpu"), token=TOKEN)) as client:
        new = {"title": "Nerrow", "text": "The arms of Nerrow show a quince."}
        for request in (
            client.post("/passages", json=new),
            client.put("/passages/0", json=new),
            client.delete("/passages/0"),
            client.post("/passages", json=new, headers={"Authorization": "Bearer wrong"}),
            client.post("/passages", json=new, headers={b"Authorization": b"Bearer \xff"}),
        ):
            assert "token" in failed(request, 401)
            assert request.headers["www-authenticate"] == "Bearer"
        assert client.get("/passages/0").status_code == 200
        assert client.post("/ask", json={"question": "Who?"}).status_code == 200
        assert (
            client.post(
                "/passages", json=new, headers={b"Authorization": f"Bearer {TOKEN}".encode()}
            ).status_code
            == 201
        )


def test_the_documents_curl_lines_work(tiny_model_folder: Path, own_corpus: Path) -> None:
    lines = re.findall(
        r"^curl .*",
        (Path(__file__).parents[2] / "docs" / "service.md").read_text("utf-8"),
        flags=re.MULTILINE,
    )
    routes = set()
    with TestClient(
        create_app(Engine(tiny_model_folder, own_corpus, device="cpu"), token="A-LONG-SECRET")
    ) as client:
        for line in lines:
            sent = argparse.ArgumentParser()
            sent.add_argument("address")
            sent.add_argument("-X", dest="method")
            sent.add_argument("-d", dest="body")
            sent.add_argument("-H", dest="headers", action="append", default=[])
            given = sent.parse_args(shlex.split(line)[1:])
            method = given.method or ("POST" if given.body else "GET")
            path = given.address.removeprefix("127.0.0.1:8460")
            headers = dict(
                [
                    ("Content-Type", "application/x-www-form-urlencoded"),
                    *(header.split(": ") for header in given.headers),
                ]
            )
            response = client.request(method, path, content=given.body, headers=headers)
            assert response.is_success, f"{line}: {response.text}"
            routes.add(f"{method} /{path.split('/')[1].split('?')[0]}")
    assert routes == {
        "GET /suggestions",
        "GET /livez",
        "GET /readyz",
        "GET /health",
        "GET /metrics",
        "GET /runs",
        "POST /ask",
        "POST /fill",
        "POST /search",
        "POST /embed",
        "POST /v1",
        "GET /v1",
    } | {f"{method} /passages" for method in ("GET", "POST", "PUT", "DELETE")}


def test_the_last_passage_stays_however_many_remove_at_once(
    tiny_model_folder: Path, own_corpus: Path
) -> None:
    engine = Engine(tiny_model_folder, own_corpus, device="cpu")
    engine.edit(remove=engine.corpus.ids[2:].tolist())
    with TestClient(create_app(engine)) as client, ThreadPoolExecutor(2) as pool:
        statuses = [
            response.status_code for response in pool.map(client.delete, ("/passages/0", "/passages/1"))
        ]
        assert sorted(statuses) == [204, 400]
        assert len(client.post("/ask", json={"question": "Who?"}).json()["evidence"]) == 1


def test_passages_that_others_edited_can_be_edited_here(client: TestClient, own_corpus: Path) -> None:
    new = {"title": "Nerrow", "text": "The arms of Nerrow show a quince."}
    article = Article(new["title"], new["text"])
    theirs, (first,) = Corpus.open(own_corpus).edit(add=[article])
    assert (
        client.put(f"/passages/{first}", json=new | {"text": "The arms of Nerrow show a heron."}).status_code
        == 200
    )
    theirs, (second,) = theirs.edit(add=[article])
    assert client.delete(f"/passages/{second}").status_code == 204
    theirs, (third,) = theirs.edit(add=[article])
    assert [passage["id"] for passage in client.post("/passages", json=new).json()] == [third + 1]
    known = Corpus.open(own_corpus)
    assert [known[number].text for number in known.ids[-3:]] == [
        "The arms of Nerrow show a heron.",
        new["text"],
        new["text"],
    ]
    known.edit(remove=known.ids[:-1].tolist())
    assert "last passage" in failed(client.delete(f"/passages/{third + 1}"), 400)
    assert client.get("/health").json()["passages"] == 1


def test_of_two_who_change_the_same_passage_the_second_is_told_and_learns_no_folder(
    client: TestClient, own_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = build.cut_articles

    def faster(change: dict[str, Any]) -> None:
        """Someone else makes this change just before the next one."""

        def first(*given: Any, **more: Any) -> Any:
            monkeypatch.setattr(build, "cut_articles", cut)
            Corpus.open(own_corpus).edit(**change)
            return cut(*given, **more)

        monkeypatch.setattr(build, "cut_articles", first)

    faster({"remove": [3]})
    said = [failed(client.delete("/passages/3"), 404)]
    theirs = Article("Nerrow", "The arms of Nerrow show a quince.", "n")
    faster({"replace": {4: theirs}})
    said.append(failed(client.put("/passages/4", json={"text": "The arms show a heron."}), 409))
    assert client.get("/passages/4").json()["title"] == "Nerrow"
    faster({"replace": {4: theirs}})
    said.append(failed(client.delete("/passages/4"), 409))
    edit = Engine.edit

    def later(self: Engine, **changes: Any) -> Any:
        Corpus.open(own_corpus).edit(remove=[4])
        return edit(self, **changes)

    monkeypatch.setattr("realmlm.engine.Engine.edit", later)
    said.append(failed(client.delete("/passages/4"), 404))
    assert not any("/" in text.replace("GET /passages", "") for text in said)


def test_a_route_with_a_slash_behind_it_is_another_one(client: TestClient) -> None:
    for path in ("/health/", "/passages/", "/page"):
        assert failed(client.get(path, follow_redirects=False), 404)
    assert client.get("/page/app.js").status_code == 200


def test_the_scheme_of_a_token_may_be_written_in_any_case() -> None:
    doors = Doors(token=TOKEN)
    for right in ("Bearer ", "bearer ", "BEARER  "):
        assert doors.has_token((right + TOKEN).encode())
    for wrong in ("Basic ", "Bearer", "", "Bearer x"):
        assert not doors.has_token((wrong + TOKEN).encode())
    assert not doors.has_token(b"Bearer")


def test_what_others_edited_is_shown_without_a_question(
    client: TestClient, own_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("realmlm.serve.routes.MOMENT_S", 60)  # a busy machine may take longer
    before = client.get("/health").json()["passages"]
    theirs = Corpus.open(own_corpus)

    def add() -> int:
        nonlocal theirs
        theirs, (number,) = theirs.edit(add=[Article("Nerrow", "The arms of Nerrow show a quince.")])
        return number

    number = add()
    assert client.get("/health").json()["passages"] == before + 1
    add()
    found = client.get("/passages", params={"text": "a quince"}).json()
    assert (found["total"], len(found["passages"])) == (before + 2, 2)
    last = add()
    assert client.get(f"/passages/{last}").json()["title"] == "Nerrow"
    theirs, _ = theirs.edit(remove=[number])
    assert f"realmlm_passages {before + 2:.1f}" in client.get("/metrics").text


def test_what_others_stored_is_read_however_busy_the_model_is(
    tiny_model_folder: Path, own_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(tiny_model_folder, own_corpus, device="cpu")
    go, begun = threading.Event(), threading.Event()

    def slow(*_: Any, **__: Any) -> Any:
        begun.set()
        assert go.wait(20)
        return [answer]

    answer = engine.ask("Who?")
    monkeypatch.setattr(engine, "ask", slow)
    with TestClient(create_app(engine)) as client, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.post, "/ask", json={"question": "Who?"})
        assert begun.wait(20)
        theirs, (number,) = Corpus.open(own_corpus).edit(
            add=[Article("Nerrow", "The arms of Nerrow show a quince.", "n")]
        )
        assert client.get(f"/passages/{number}").json()["title"] == "Nerrow"
        assert [one["id"] for one in client.get(f"/passages/{number}/around").json()] == [number]
        assert client.get("/passages", params={"text": "a quince"}).json()["total"] == len(theirs)
        theirs.edit(remove=[number])
        failed(client.get(f"/passages/{number}"), 404)
        (own_corpus / "edits" / f"{theirs.edits + 2:06d}").mkdir()  # not readable
        failed(client.get(f"/passages/{number}"), 404)
        go.set()
        assert asked.result(20).status_code == 200


def test_files_that_change_are_shown_and_answered_from(
    tiny_model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(documents, "LOOK_S", 0)
    monkeypatch.setattr(documents, "LOOK_SHARE", 0)
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "heron.txt").write_text("The heron is the bird of the town.")
    with TestClient(
        create_app(Engine(tiny_model_folder, docs=notes, device="cpu")), raise_server_exceptions=False
    ) as client:
        health = client.get("/health").json()
        assert (health["passages"], health["up_to_date"]) == (1, True)
        (notes / "otter.txt").write_text("The otter swims.")
        assert [
            passage["file"]
            for passage in client.get("/passages", params={"text": "otter"}).json()["passages"]
        ] == ["notes/otter.txt"]
        (notes / "heron.txt").write_text("The stork is the bird of the town.")
        read = [
            passage["passage"]
            for passage in client.post("/ask", json={"question": "Which bird?"}).json()["evidence"]
        ]
        assert sorted(read) == ["The otter swims.", "The stork is the bird of the town."]
        shutil.rmtree(notes)
        for _ in range(2):
            assert client.post("/ask", json={"question": "Which bird?"}).status_code == 200
            health = client.get("/health").json()
            assert (health["passages"], health["up_to_date"]) == (2, False)
            assert "realmlm_up_to_date 0.0" in client.get("/metrics").text
        assert capsys.readouterr().err.count(f"{notes} does not exist") == 1
        assert "come from their files" in failed(
            client.post("/passages", json={"text": "The fox runs."}), 400
        )


def test_health_waits_neither_for_questions_nor_for_what_changed(
    tiny_model_folder: Path, own_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(tiny_model_folder, own_corpus, device="cpu")
    go = threading.Event()
    begun = threading.Event()

    def slow() -> None:
        begun.set()
        assert go.wait(20)

    monkeypatch.setattr(engine, "follow", slow)
    with TestClient(create_app(engine)) as client:
        assert client.get("/health").json()["waiting"] == 0  # it takes longer than a moment
        assert begun.is_set()
        for _ in range(20):  # nor do they queue up behind it
            assert client.get("/health").json()["waiting"] == 0
            assert (
                client.get("/passages", params={"limit": 1}).status_code
                == client.get("/passages/0").status_code
                == 200
            )
        go.set()


def test_a_full_queue_says_when_to_come_back(
    tiny_model_folder: Path, own_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(tiny_model_folder, own_corpus, device="cpu")
    go = threading.Event()
    begun = threading.Event()
    answer = engine.ask

    def slow(questions: list[str], *, read: int) -> Any:
        begun.set()
        assert go.wait(20)
        return answer(questions, read=read)

    monkeypatch.setattr(engine, "ask", slow)
    with TestClient(create_app(engine, queue=1, batch=1)) as client, ThreadPoolExecutor(3) as pool:
        first = pool.submit(client.post, "/ask", json={"question": "One?"})
        assert begun.wait(20)
        second = pool.submit(client.post, "/ask", json={"question": "Two?"})
        while client.get("/health").json()["waiting"] < 1:
            pass
        refused = client.post("/ask", json={"question": "Three?"})
        assert "requests are waiting" in failed(refused, 503)
        assert refused.headers["retry-after"] == "1"
        go.set()
        assert first.result(20).status_code == second.result(20).status_code == 200


def test_an_unexpected_failure_shows_no_traceback(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("realmlm.engine.Engine.ask", lambda *_, **__: 1 / 0)
    response = client.post("/ask", json={"question": "Who?"})
    assert failed(response, 500).startswith("something went wrong here (ZeroDivisionError)")
    assert "Traceback" not in response.text
    assert 'realmlm_requests_total{route="/ask",status="500"} 1.0' in client.get("/metrics").text


@pytest.mark.parametrize(
    "error",
    [
        NotEnough("cannot reach postgres:10.1.2.3/secret; check the address"),
        Mismatch("/srv/secret was rebuilt; start again"),
        ArtefactDamaged("/srv/secret is damaged"),
        ArtefactMissing("no table postgres:10.1.2.3/secret"),
        MissingExtra("secret needs 'psycopg'"),
        ConnectionRefusedError(errno.ECONNREFUSED, "refused", "10.1.2.3/secret"),
    ],
)
def test_what_no_client_can_cause_or_cure_is_no_bad_input_and_told_to_those_who_run_it(
    tiny_model_folder: Path,
    own_corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    log = Log(tmp_path / "log", level="error")
    engine = Engine(tiny_model_folder, own_corpus, device="cpu")

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(engine, "ask", fail)
    with TestClient(create_app(engine, running=Running(log=log)), raise_server_exceptions=False) as client:
        response = client.post("/ask", json={"question": "Who?"})
    failed(response, 503)
    assert response.json()["error"]["code"] == "unavailable"
    assert int(response.headers["retry-after"]) > 0
    assert not re.search("secret|10.1.2.3|/srv", response.text)
    assert "secret" in caplog.text
    log.flush()
    (line,) = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert (line["level"], line["status"], "secret" in line["error"]) == ("error", 503, True)


def test_a_model_that_keeps_failing_is_not_ready_until_it_answers_again(
    tiny_model_folder: Path, own_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(tiny_model_folder, own_corpus, device="cpu")
    lost: list[BaseException] = []
    app = create_app(engine, running=Running(lost=lost.append))
    with TestClient(app, raise_server_exceptions=False) as client:
        with monkeypatch.context() as patched:
            patched.setattr("realmlm.engine.Engine.ask", lambda *_, **__: 1 / 0)
            for ready in (200, 200, 200, 503):
                assert client.get("/readyz").status_code == ready
                failed(client.post("/ask", json={"question": "Who?"}), 500)
            assert "the model failed" in failed(client.get("/readyz"), 503)
            assert client.get("/livez").status_code == 200
        until = time.monotonic() + 20
        while client.get("/readyz").status_code != 200:  # nobody else asks
            assert time.monotonic() < until
            time.sleep(0.05)
        assert not lost

        def broken(*_: Any, **__: Any) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        monkeypatch.setattr("realmlm.engine.Engine.ask", broken)
        failed(client.post("/ask", json={"question": "Who?"}), 500)
        while not lost:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert "illegal memory access" in str(lost[0])


class Replaced(Mismatch, Unavailable):
    """As a shared index raises it."""


@pytest.mark.parametrize("kind", [Unavailable, Replaced])
def test_a_database_that_does_not_answer_says_so_in_its_own_words_without_its_address(
    tiny_model_folder: Path, own_corpus: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    engine = Engine(tiny_model_folder, own_corpus, device="cpu")

    def fail(*_: Any, **__: Any) -> None:
        raise kind("the database does not answer; try again later") from OSError("10.1.2.3/secret is gone")

    monkeypatch.setattr(engine, "ask", fail)
    with TestClient(create_app(engine), raise_server_exceptions=False) as client:
        response = client.post("/ask", json={"question": "Who?"})
    failed(response, 503)
    error = response.json()["error"]
    assert (error["code"], error["message"]) == (
        "unavailable",
        "the database does not answer; try again later",
    )
    assert int(response.headers["retry-after"]) > 0
    assert not re.search(r"secret|10\.1\.2\.3", response.text)


def test_numbers_and_description(client: TestClient) -> None:
    client.get("/health")
    client.post("/ask", json={"question": "Who?"})
    text = client.get("/metrics").text
    assert 'realmlm_requests_total{route="/ask",status="200"} 1.0' in text
    assert "realmlm_batch_size_count 1.0" in text
    assert "realmlm_up_to_date 1.0" in text
    described = client.get("/openapi.json").json()
    assert set(described["paths"]) == {
        "/ask",
        "/fill",
        "/search",
        "/embed",
        "/v1/embeddings",
        "/v1/models",
        "/v1/models/{name}",
        "/passages",
        "/passages/{number}",
        "/passages/{number}/around",
        "/suggestions",
        "/livez",
        "/readyz",
        "/health",
        "/metrics",
        "/runs",
        "/runs/{name}",
    }
    assert "examples" in json.dumps(described["components"]["schemas"]["Question"])


def test_runs_are_shown_and_nothing_else(tiny_model_folder: Path, own_corpus: Path, tmp_path: Path) -> None:
    for name, rows in (
        ("first", [{"step": 1, "loss": 2.0}]),
        ("warm/reader", [{"step": 5, "loss": 1.0}]),
        ("lost", [{"loss": math.nan}]),
    ):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "metrics.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    app = create_app(Engine(tiny_model_folder, own_corpus, device="cpu"), runs=[tmp_path / "runs"])
    with TestClient(app) as client:
        assert client.get("/runs").json() == ["first", "lost", "warm/reader"]
        assert client.get("/runs/lost").json() == [{"loss": None}]  # JSON knows no NaN
        assert client.get("/runs/first").json() == [{"step": 1, "loss": 2.0}]
        assert client.get("/runs/warm%2Freader").json() == [{"step": 5, "loss": 1.0}]
        for name in ("%2e%2e%2fcorpus", "first%2f..%2f..%2fcorpus", "none"):
            assert client.get(f"/runs/{name}").status_code in (404, 405)


def test_runs_of_one_name_are_shown_with_as_much_of_the_path_as_tells_them_apart(
    tiny_model_folder: Path, own_corpus: Path, tmp_path: Path
) -> None:
    names = ["a/x/joint", "b/x/joint", "b/stale", "a/warm/reader", "b/warm/reader", "a/adapted/adapting"]
    for step, name in enumerate(names):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "metrics.jsonl").write_text(json.dumps({"step": step}) + "\n")
    engine = Engine(tiny_model_folder, own_corpus, device="cpu")
    folder = tmp_path / "runs"
    with TestClient(
        create_app(engine, runs=[folder / "b", folder, folder / "b" / ".." / "b" / "x"])
    ) as client:
        shown = ["a/warm/reader", "a/x/joint", "adapted/adapting", "b/warm/reader", "b/x/joint", "stale"]
        assert client.get("/runs").json() == shown
        steps = [client.get(f"/runs/{name.replace('/', '%2F')}").json()[0]["step"] for name in shown]
        assert steps == [3, 0, 5, 4, 1, 2]


def test_the_page_loads_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    for file in ("style.css", "app.js"):
        assert f"/page/{file}" in page.text
        text = client.get(f"/page/{file}").text
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in text
    assert client.get("/page/../http.py").status_code == 404


@pytest.mark.parametrize(
    ("listens", "named", "status"),
    [
        ("127.0.0.1", "127.0.0.1:8460", 200),
        ("127.0.0.1", "localhost:8460", 200),
        ("::1", "[::1]:8460", 200),
        ("localhost", "localhost", 200),
        ("127.0.0.1", "evil.example:8460", 421),
        ("127.0.0.1", "localhost.evil.example", 421),
        ("127.0.0.1", "[", 421),
        ("0.0.0.0", "library.example", 200),
    ],
)
def test_at_loopback_only_what_is_addressed_to_this_machine_is_answered(
    tiny_model_folder: Path, own_corpus: Path, listens: str, named: str, status: int
) -> None:
    with TestClient(create_app(Engine(tiny_model_folder, own_corpus, device="cpu"), host=listens)) as client:
        answer = client.get("/passages", headers={"host": named})
    assert answer.status_code == status
    if status != 200:
        assert answer.json()["error"]["code"] == "other_host"


@pytest.mark.parametrize(
    ("listens", "named", "let_in"),
    [
        ("0.0.0.0", "library.example", True),
        ("0.0.0.0", "Library.Example:8460", True),
        ("0.0.0.0", "10.1.2.3:8460", True),  # probes and Prometheus
        ("0.0.0.0", "[fe80::1]:8460", True),
        ("0.0.0.0", "localhost:8460", True),
        ("0.0.0.0", "library.example.", True),
        ("0.0.0.0", "evil.example", False),
        ("0.0.0.0", "", False),
        ("127.0.0.1", "library.example", True),  # what a proxy may send
        ("127.0.0.1", "10.1.2.3:8460", False),
        ("127.0.0.1", "evil.example", False),
    ],
)
def test_only_what_is_addressed_to_a_name_that_is_allowed_is_answered(
    listens: str, named: str, let_in: bool
) -> None:
    settings = Serve(corpus=Path("corpus"), host=listens, allow_host=("Library.example:8460",))
    refusal = Doors.of(settings).refusal("/passages", named, b"")
    assert (refusal is None) == let_in
    assert refusal is None or refusal.status_code == 421
    assert Doors(host="0.0.0.0").refusal("/passages", "evil.example", b"") is None


# --- who is let in, and what every answer carries -----------------------------------------------------------


def test_with_token_reads_everything_but_the_page_and_the_probes_needs_the_token(
    tiny_model_folder: Path, own_corpus: Path
) -> None:
    engine = Engine(tiny_model_folder, own_corpus, device="cpu")
    app = create_app(engine, token=TOKEN, running=Running(token_reads=True))
    token = {b"Authorization": f"Bearer {TOKEN}".encode()}
    with TestClient(app) as client:
        for path in ("/livez", "/readyz", "/", "/page/app.js"):
            assert client.get(path).status_code == 200
        for path in ("/health", "/metrics", "/passages", "/passages/0", "/runs", "/openapi.json", "/nowhere"):
            refused = client.get(path)
            assert "token" in failed(refused, 401)
            assert refused.headers["www-authenticate"] == "Bearer"
            assert client.get(path, headers=token).status_code == (404 if path == "/nowhere" else 200)
        asked = {"question": "Who?"}
        assert "token" in failed(client.post("/ask", json=asked), 401)
        assert "token" in failed(client.post("/ask", json=asked, headers={"Authorization": "Bearer x"}), 401)
        assert client.post("/ask", json=asked, headers=token).is_success
        assert client.delete("/passages/0", headers=token).status_code == 204


@pytest.mark.parametrize(
    ("settings", "reads"),
    [
        ({"token": "as-it-is"}, False),
        ({"token": "as-it-is", "token_reads": True}, True),
        ({"token": "as-it-is", "host": "::1"}, False),
        ({"token": "as-it-is", "host": "0.0.0.0"}, True),
        ({"token": "as-it-is", "host": "library.example", "open_reads": True}, False),
        ({"host": "0.0.0.0"}, False),  # there is nothing to close it with, and the command says so
    ],
)
def test_a_token_closes_reading_by_itself_where_others_can_reach_the_service(
    settings: dict[str, Any], reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REALMLM_TOKEN", raising=False)
    assert Doors.of(Serve(corpus=Path("corpus"), **settings)).token_reads == reads


def test_every_answer_says_what_a_browser_may_do_with_it(client: TestClient) -> None:
    for path in ("/", "/page/app.js", "/livez", "/nowhere", "/passages/0"):
        answer = client.get(path)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-request-id"]
        if answer.headers["content-type"] == "application/json":
            continue
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy


@pytest.mark.parametrize("path", ["/", "/livez", "/health", "/passages", "/passages/0", "/page/app.js"])
def test_head_is_answered_as_get_without_the_body(client: TestClient, path: str) -> None:
    get, head = client.get(path), client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert get.content
    assert head.headers["content-type"] == get.headers["content-type"]
    assert head.headers["content-length"] == get.headers["content-length"]


# --- a full disk --------------------------------------------------------------------------------------------

QUINCE = {"title": "Nerrow", "text": "The arms of Nerrow show a quince."}


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_once_the_corpus_has_an_edit_it_succeeds_though_the_index_cannot_be_written(
    client: TestClient, own_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = client.get("/health").json()["passages"]
    with monkeypatch.context() as patched:
        patched.setattr("realmlm.index.keep.save_edit", full)
        added = client.post("/passages", json=QUINCE)
        assert added.status_code == 201
        ((number, text),) = ((passage["id"], passage["text"]) for passage in added.json())
        assert text == QUINCE["text"]
        changed = client.put(f"/passages/{number}", json={"text": "The arms of Nerrow show a heron."})
        assert (changed.status_code, changed.json()["title"]) == (200, "Nerrow")
        assert client.delete("/passages/0").status_code == 204
        assert failed(client.delete("/passages/0"), 404)
        assert client.post("/ask", json={"question": "Who?"}).is_success  # from what is searched
        health = client.get("/health").json()
        assert (health["passages"], health["up_to_date"]) == (before, False)
    assert client.post("/ask", json={"question": "Who?"}).is_success
    health = client.get("/health").json()
    assert (health["passages"], health["up_to_date"]) == (before, True)  # one more and one less
    assert client.get(f"/passages/{number}").json()["text"] == "The arms of Nerrow show a heron."
    assert len(Corpus.open(own_corpus)) == before


@pytest.mark.parametrize(("number", "status"), [(errno.ENOSPC, 507), (errno.EDQUOT, 507), (errno.EROFS, 403)])
def test_what_cannot_be_stored_says_so_and_changes_nothing(
    client: TestClient, own_corpus: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: int
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    before = len(Corpus.open(own_corpus))
    with monkeypatch.context() as patched:
        patched.setattr("realmlm.corpus.store.save_arrays", refused)
        for _ in range(2):
            assert failed(client.post("/passages", json=QUINCE), status)
    assert len(Corpus.open(own_corpus)) == before
    assert client.post("/passages", json=QUINCE).status_code == 201
    assert len(Corpus.open(own_corpus)) == before + 1


# --- what the page begins with -----------------------------------------------------------------------------


def test_suggestions_are_made_in_the_background_and_again_when_passages_change(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    states: list[int] = []

    def held(corpus: Corpus, ask: Any) -> Iterator[str]:
        states.append(corpus.edits)
        assert go.wait(60)
        if len(states) == 2:
            raise Busy("too many are waiting")
        yield f"{ask(['Which bird?'])[0].answer} {corpus.edits}"

    def made() -> list[str]:
        for _ in range(600):
            if (body := client.get("/suggestions").json())["made"]:
                return list(body["questions"])
            time.sleep(0.02)
        raise AssertionError("not made")

    monkeypatch.setattr(suggestions, "suggest", held)
    assert client.get("/suggestions").json() == {"made": False, "questions": []}
    assert client.post("/ask", json={"question": "Which bird?"}).status_code == 200  # nobody waits for them
    go.set()
    first = made()
    assert first[0].endswith(" 0")
    client.post("/passages", json={"text": "The bird is a heron."})
    assert client.get("/suggestions").json() == {"made": False, "questions": first}  # until there are others
    assert made()[0].endswith(" 1")  # where it could not be done, it is tried again
    assert states == [0, 1, 1]


def test_a_passage_is_read_between_those_of_its_file(client: TestClient) -> None:
    def around(number: int, **how: int) -> list[int]:
        return [passage["id"] for passage in client.get(f"/passages/{number}/around", params=how).json()]

    assert around(20) == list(range(15, 26))
    assert around(1, count=3) == [0, 1, 2, 3, 4]
    (added,) = client.post("/passages", json={"text": "The bird is a heron."}).json()
    assert around(added["id"]) == [added["id"]]
    client.delete("/passages/2")
    assert around(1, count=3) == [0, 1, 3, 4, 5]
    failed(client.get("/passages/2/around"), 404)
    failed(client.get("/passages/1/around?count=0"), 422)


def test_health_names_what_is_searched(
    client: TestClient, tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.get("/health").json()["sources"] == ["corpus"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("a/notes.txt", "b/notes.txt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("The heron is the bird of the town.")
    engine = Engine(tiny_model_folder, docs=[tmp_path / "a", tmp_path / "b" / "notes.txt"], device="cpu")
    assert sorted(engine.sources) == ["a", "notes.txt"]
