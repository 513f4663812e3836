"""From judged answers to a model that says how sure it is."""

import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from realmlm.corpus.store import Corpus
from realmlm.errors import ArtefactExists, BadInput, Mismatch, NotEnough
from realmlm.evaluation.calibrate import separation
from realmlm.model.realm import Realm
from realmlm.reading.answer import Answerer
from realmlm.reading.confidence import CAUTIONED_RIGHT, CAUTIONED_WRONG, Calibration, choose_thresholds
from realmlm.reading.records import Evidence
from realmlm.reading.retrieve import BM25Retriever, LearnedRetriever, index_of
from realmlm.reading.signs import Signs
from realmlm.storage.artefacts import open_artefact
from tests.calls import calibrate, graft

Model = Realm
ROWS: list[Any] = [
    {"probability": p, "relevance": 10 * p + shift, "correct": p > 0.5}
    for p in (0.1, 0.3, 0.5, 0.7, 0.9)
    for shift in range(10)
]


@pytest.fixture
def model(tiny_model: Model, tmp_path: Path) -> Path:
    realm = tiny_model
    realm.save_pretrained(tmp_path / "model", dtype="int8")
    return tmp_path / "model"


def judged(file: Path, rows: list[Any]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_the_model_stays_and_learns_how_sure_it_is(model: Path, knowledge: Corpus, tmp_path: Path) -> None:
    said = calibrate(
        model=model, predictions=[judged(tmp_path / "p.jsonl", ROWS)], out=tmp_path / "calibrated"
    )
    assert said.startswith("50 answers, 40.0% right")
    assert "20 right" in said.splitlines()[-1]
    before, after = (open_artefact(folder, kind="model") for folder in (model, tmp_path / "calibrated"))
    assert before.files == after.files  # weights and tokenizer byte for byte
    assert before.config["calibration"] is None
    realm = Realm.from_pretrained(tmp_path / "calibrated")
    answerer = Answerer(
        realm,
        knowledge,
        LearnedRetriever(realm, index_of(realm, knowledge).index),
    )
    (answer,) = answerer.ask(["Which animal is the symbol of Tekebra?"], read=3)
    found = answerer.retriever([answerer.query("Which animal is the symbol of Tekebra?")], 3)
    assert answer.relevance == pytest.approx(found.scores_BK.max().item())
    expected = Calibration(**after.config["calibration"]).confidence(
        Signs(math.log(answer.probability), answer.relevance or 0.0)
    )
    assert answer.confidence == pytest.approx(expected)


def test_the_passage_logit_of_the_first_evidence_counts(model: Path, tmp_path: Path) -> None:
    """Where p and relevance say nothing, it alone tells right from wrong; other passages' do not count."""

    def read(logit: float) -> dict[str, Any]:
        return asdict(Evidence(0, "t", "text", None, None, 0.5, 0.5, passage_logit=logit))

    rows = [
        ROWS[n % 2]
        | {"answer": "a", "correct": n % 4 < 2, "evidence": [read(1 if n % 4 < 2 else -1), read(9)]}
        for n in range(80)
    ]
    said = calibrate(
        model=model, predictions=[judged(tmp_path / "p.jsonl", rows)], out=tmp_path / "calibrated"
    )
    assert "the right one is surer 100.0% of the time (by p alone 50.0%)" in said
    found = open_artefact(tmp_path / "calibrated", kind="model").config["calibration"]
    assert found["logit_weight"] > 1
    assert abs(found["relevance_weight"]) < 0.1


def test_word_matching_has_no_confidence(model: Path, knowledge: Corpus, tmp_path: Path) -> None:
    calibrate(model=model, predictions=[judged(tmp_path / "p.jsonl", ROWS)], out=tmp_path / "calibrated")
    realm = Realm.from_pretrained(tmp_path / "calibrated")
    (answer,) = Answerer(realm, knowledge, BM25Retriever(knowledge)).ask(
        ["Which animal is the symbol of Tekebra?"]
    )
    assert answer.confidence is None
    assert not answer.caution


def test_other_weights_need_another_calibration(model: Path, tmp_path: Path) -> None:
    calibrate(model=model, predictions=[judged(tmp_path / "p.jsonl", ROWS)], out=tmp_path / "calibrated")
    graft(towers=tmp_path / "calibrated", reader=model, out=tmp_path / "grafted")
    assert open_artefact(tmp_path / "grafted", kind="model").config["calibration"] is None


def test_what_is_not_a_judged_answer_is_named(model: Path, tmp_path: Path) -> None:
    for number, row in enumerate(
        ({"probability": 0.5, "correct": True}, ["x"], {"probability": "a", "relevance": 1, "correct": True})
    ):
        file = judged(tmp_path / f"{number}.jsonl", [*ROWS, row])
        with pytest.raises(BadInput, match=rf"{number}.jsonl:51: not an answer to a question"):
            calibrate(model=model, predictions=[file], out=tmp_path / "calibrated")
    assert not (tmp_path / "calibrated").exists()
    with pytest.raises(ArtefactExists):
        calibrate(model=model, predictions=[judged(tmp_path / "p.jsonl", ROWS)], out=model)


@pytest.mark.parametrize(("right", "wrong"), [(2, 1), (0, 0), (19, 60), (60, 19)])
def test_a_few_answers_are_not_enough(model: Path, tmp_path: Path, right: int, wrong: int) -> None:
    rows = [ROWS[-1]] * right + [ROWS[0]] * wrong
    few = f"^{right} answers were right and {wrong} wrong, and a calibration needs 20 of each"
    with pytest.raises(NotEnough, match=few):
        calibrate(model=model, predictions=[judged(tmp_path / "p.jsonl", rows)], out=tmp_path / "calibrated")
    assert not (tmp_path / "calibrated").exists()


def test_answers_of_another_model_are_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = open_artefact(model, kind="model").fingerprint
    named = judged(tmp_path / "named.jsonl", [row | {"model": own} for row in ROWS])
    calibrate(model=model, predictions=[named], out=tmp_path / "calibrated")
    assert not capsys.readouterr().err
    calibrate(model=tmp_path / "calibrated", predictions=[named], out=tmp_path / "again")  # the same weights
    calibrate(
        model=model, predictions=[named, judged(tmp_path / "older.jsonl", ROWS)], out=tmp_path / "older"
    )
    assert capsys.readouterr().err.count("does not say which model answered") == 1
    other = judged(tmp_path / "other.jsonl", [*ROWS, ROWS[0] | {"model": "0" * 64}])
    with pytest.raises(
        Mismatch,
        match=rf"other.jsonl:51: an answer from another model, not {model}; .*realmlm evaluate --model {model}",
    ):
        calibrate(model=model, predictions=[named, other], out=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_answers_from_other_scores_or_another_number_of_passages_are_refused(
    model: Path, tmp_path: Path
) -> None:
    learned = judged(tmp_path / "learned.jsonl", [row | {"retriever": "learned", "read": 5} for row in ROWS])
    calibrate(
        model=model,
        predictions=[learned, judged(tmp_path / "older.jsonl", ROWS)],
        out=tmp_path / "calibrated",
    )
    matched = judged(tmp_path / "matched.jsonl", [row | {"retriever": "bm25", "read": 5} for row in ROWS])
    with pytest.raises(
        Mismatch,
        match=r"matched.jsonl:1: its passages were found with --retriever bm25.* without --retriever",
    ):
        calibrate(model=model, predictions=[learned, matched], out=tmp_path / "refused")
    fewer = judged(tmp_path / "fewer.jsonl", [row | {"retriever": "learned", "read": 3} for row in ROWS])
    with pytest.raises(
        Mismatch, match=r"fewer.jsonl:1: 3 passages were read for this answer, 5 for others.* the same --read"
    ):
        calibrate(model=model, predictions=[learned, fewer], out=tmp_path / "refused")
    reranked = judged(tmp_path / "reranked.jsonl", [row | {"read": 5, "rerank": 20} for row in ROWS])
    with pytest.raises(Mismatch, match=r"5 of 20 passages were read for this answer, 5 for others.*--rerank"):
        calibrate(model=model, predictions=[learned, reranked], out=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def sure(calibration: Calibration, p: float) -> float:
    return calibration.confidence(Signs(math.log(p), 0.0))


def test_the_words_are_promised_for_questions_that_they_were_not_chosen_on(
    model: Path, tmp_path: Path
) -> None:
    """Where p tells right from wrong but for one answer in ten of each, both shares are kept; the file says so
    of every question by the others."""
    rng = np.random.default_rng(0)
    rows = [
        {
            "question": f"Who is {n}?",
            "probability": p,
            "relevance": 0.0,
            "correct": bool((p > 0.5) ^ (n % 10 == 0)),
        }
        for n, p in enumerate(rng.uniform(0.05, 0.95, 300))
    ]
    said = calibrate(
        model=model, predictions=[judged(tmp_path / "p.jsonl", rows)], out=tmp_path / "calibrated"
    )
    config = open_artefact(tmp_path / "calibrated", kind="model").config["calibration"]
    found = Calibration(**config)
    assert found.english == 1.0
    assert sure(found, 0.45) < found.likely <= sure(found, 0.55)
    wrong, right = said.splitlines()[-2:]
    shares = [float(re.findall(r"([\d.]+)% \(wanted", line)[0]) for line in (wrong, right)]
    assert shares[0] >= 80
    assert shares[1] <= 15
    # other questions move the thresholds alone
    others = [row | {"probability": row["probability"] ** 2} for row in rows]
    calibrate(
        model=tmp_path / "calibrated",
        thresholds=[judged(tmp_path / "others.jsonl", others)],
        out=tmp_path / "moved",
    )
    moved = Calibration(**open_artefact(tmp_path / "moved", kind="model").config["calibration"])
    assert (moved.bias, moved.p_weight) == (found.bias, found.p_weight)
    assert sure(moved, 0.2) < moved.likely <= sure(moved, 0.3)
    with pytest.raises(BadInput, match="was never calibrated"):
        calibrate(model=model, thresholds=[tmp_path / "others.jsonl"], out=tmp_path / "refused")


def test_thresholds_are_as_good_as_any_other() -> None:
    rng = np.random.default_rng(1)
    confidence = rng.integers(0, 40, 200) / 40
    right = rng.random(200) < confidence

    def slack(limit: float) -> float:
        wrong, lost = (confidence[chosen] < limit for chosen in (~right, right))
        return min(wrong.mean() - CAUTIONED_WRONG, CAUTIONED_RIGHT - lost.mean())

    likely, found = choose_thresholds(confidence, right)
    assert slack(likely) == pytest.approx(max(slack(limit) for limit in np.linspace(0, 1, 401)))
    assert (confidence[right] < found).mean() <= 0.05 < (confidence[right] < found + 1 / 40).mean()
    assert found <= likely


def test_separation_is_the_share_of_pairs_in_the_right_order() -> None:
    generator = np.random.default_rng(0)
    score = generator.integers(0, 9, 60) / 9
    right = generator.random(60) < 0.4
    pairs = [(a, b) for a in score[right] for b in score[~right]]
    assert separation(score, right) == pytest.approx(
        sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)
    )
