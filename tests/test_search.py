"""Passages without reading: one shape in Python, in the command and over HTTP."""

import json
from pathlib import Path

import pytest
import torch

from realmlm.cli import main
from realmlm.corpus.store import Corpus
from realmlm.engine import Engine
from realmlm.errors import BadInput

QUESTION = "Which bird is the symbol of the town?"


@pytest.fixture(scope="module")
def engine(tiny_model_folder: Path, knowledge: Corpus) -> Engine:
    return Engine(tiny_model_folder, knowledge, device="cpu")


def test_the_best_passages_by_inner_product(engine: Engine) -> None:
    passages = [engine.corpus[number] for number in engine.corpus.ids.tolist()]
    vectors = engine.embed(
        [p.text for p in passages], kind="passage", titles=[passage.title for passage in passages]
    )
    scores = (vectors @ engine.embed([QUESTION])[0]).tolist()
    best = sorted(zip(scores, passages, strict=True), key=lambda pair: (-pair[0], pair[1].id))[:4]
    found = engine.search(QUESTION, 4)
    assert [(one.id, one.title, one.text, one.file) for one in found] == [
        (passage.id, passage.title, passage.text, passage.file) for _, passage in best
    ]
    assert [one.score for one in found] == pytest.approx(
        [score for score, _ in best], abs=5e-3
    )  # kept in half precision
    weights = torch.tensor([score for score, _ in best]).softmax(0).tolist()
    assert [one.retrieval_probability for one in found] == pytest.approx(weights, abs=5e-3)
    assert {(one.vector_score, one.word_score) for one in found} == {(None, None)}


def test_several_are_searched_for_together_and_more_than_there_are_is_all(engine: Engine) -> None:
    texts = [QUESTION, "the symbol of [MASK]"]
    together = engine.search(texts, 3)
    assert [[one.id for one in found] for found in together] == [
        [one.id for one in engine.search(text, 3)] for text in texts
    ]
    assert engine.search([]) == []
    assert len(engine.search(QUESTION, 10**6)) == len(engine.corpus)
    with pytest.raises(BadInput, match="empty"):
        engine.search(" ")


def test_a_hybrid_search_shows_both_parts(tiny_model_folder: Path, knowledge: Corpus) -> None:
    for one in Engine(tiny_model_folder, knowledge, hybrid=2.0, device="cpu").search(QUESTION, 3):
        assert one.vector_score is not None
        assert one.word_score is not None
        assert one.vector_score + one.word_score == pytest.approx(one.score)
        assert f"f {one.vector_score:.1f} + words {one.word_score:.1f}" in str(one)


def test_command_and_service_give_what_python_gives(
    tiny_model_folder: Path, knowledge: Corpus, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--model", str(tiny_model_folder), "--corpus", str(knowledge.folder), "--device", "cpu"]
    main(["search", QUESTION, "--k", "2", "--json", *where])
    expected = {"found": [one.as_json() for one in engine.search(QUESTION, 2)]}
    assert json.loads(capsys.readouterr().out) == expected
    main(["search", QUESTION, "--k", "2", *where])
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith("  p(z|x) 0.") for line in lines] == [True, False] * 2
    assert expected["found"][0]["title"] in lines[0]

    pytest.importorskip("fastapi", reason="the service is not installed: pip install 'realmlm[serve]'")
    from fastapi.testclient import TestClient

    from realmlm.serve.http import create_app

    with TestClient(create_app(engine), raise_server_exceptions=False) as client:
        assert client.post("/search", json={"question": QUESTION, "k": 2}).json() == expected
        assert client.post("/search", json={"question": QUESTION, "k": 0}).status_code == 422
        assert client.post("/search", json={"question": " "}).status_code == 400
        counted = client.get("/metrics").text
    assert 'realmlm_requests_total{route="/search",status="200"} 1.0' in counted


def test_several_words_are_told_to_be_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["search", "which", "bird"])
    assert 'put the question in quotes: realmlm search "which bird" …' in capsys.readouterr().err
