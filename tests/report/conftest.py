"""What a report may be given at its worst."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.report.made import EVIL, evaluation, make_run, prediction, rows, score, write_lines


@pytest.fixture
def evil(tmp_path: Path) -> list[Any]:
    """Everything a report shows, all of it trying to be markup."""
    run = make_run(tmp_path / EVIL.replace("/", ""), [{**row, EVIL: 1} for row in rows()], masking=EVIL)
    other = make_run(tmp_path / "other", rows(pace=0.1), masking="salient")
    (tmp_path / "e.json").write_text(
        json.dumps(evaluation(retriever=EVIL, recall_definition=EVIL, nats={EVIL: score(1)}))
    )
    texts: dict[str, Any] = {"question": EVIL, "answers": [EVIL], "answer": EVIL + "\ud800"}
    before = write_lines(tmp_path / "before.jsonl", [prediction(0, **texts)])
    after = write_lines(
        tmp_path / "after.jsonl", [prediction(0, passage=f"It is {EVIL} here.", title=EVIL, rank=1, **texts)]
    )
    return [run, other, "--evaluations", tmp_path / "e.json", "--before", before, "--after", after]
