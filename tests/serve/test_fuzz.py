"""Requests made up from the service's own description, good and bad: nothing breaks it, and it answers as
described.

REALMLM_FUZZ=500 makes so many of each kind for every route.
"""

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the service is not installed: pip install 'realmlm[serve]'")
pytest.importorskip("schemathesis", reason="schemathesis is not installed")
import schemathesis
from hypothesis import HealthCheck, given, settings

from realmlm.corpus.store import Corpus
from realmlm.engine import Engine
from realmlm.serve.http import create_app

EXAMPLES = int(os.environ.get("REALMLM_FUZZ", "15"))
TAKES_ANYTHING = [
    "GET /runs",
    "GET /runs/{name}",
    "GET /v1/models/{name}",
    "GET /health",
    "GET /livez",
    "GET /readyz",
    "GET /metrics",
    "GET /v1/models",
    "GET /suggestions",
]  # no request to these is bad
TAKES_SOME = [
    "POST /ask",
    "POST /fill",
    "POST /search",
    "POST /embed",
    "POST /v1/embeddings",
    "GET /passages",
    "POST /passages",
    "GET /passages/{number}",
    "GET /passages/{number}/around",
    "PUT /passages/{number}",
    "DELETE /passages/{number}",
]


@pytest.fixture(scope="module")
def engine(tiny_model_folder: Path, knowledge: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    corpus = tmp_path_factory.mktemp("fuzz") / "corpus"
    shutil.copytree(knowledge.folder, corpus, ignore=shutil.ignore_patterns("index", "answers"))
    return Engine(tiny_model_folder, corpus, device="cpu")


@pytest.fixture
def described(engine: Engine) -> Any:
    config = schemathesis.Config.from_dict(
        {"checks": {"negative_data_rejection": {"expected-statuses": ["4xx"]}}}
    )  # 413 too
    return schemathesis.openapi.from_asgi("/openapi.json", create_app(engine), config=config)


def test_no_route_is_forgotten(described: Any) -> None:
    assert {operation.ok().label for operation in described.get_all_operations()} == {
        *TAKES_ANYTHING,
        *TAKES_SOME,
    }


@pytest.mark.parametrize(
    ("route", "mode"),
    [(route, "positive") for route in (*TAKES_ANYTHING, *TAKES_SOME)]
    + [(route, "negative") for route in TAKES_SOME],
)
def test_every_answer_is_as_described(described: Any, route: str, mode: str) -> None:
    """The request is good or bad by the description; a good one with a text may still be refused, for want of
    words in it."""
    requests = described.find_operation_by_label(route).as_strategy(
        generation_mode=schemathesis.GenerationMode(mode)
    )
    refusable = [schemathesis.checks.positive_data_acceptance] if route.startswith(("POST", "PUT")) else []
    seen: Counter[int] = Counter()

    @settings(max_examples=EXAMPLES, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(requests)
    def check(case: Any) -> None:
        response = case.call_and_validate(excluded_checks=refusable)
        seen[response.status_code] += 1
        assert "Traceback" not in response.text

    check()
    if mode == "positive" and not route.endswith("{name}"):
        assert min(seen) < 300, "none was accepted: this has tested nothing"
