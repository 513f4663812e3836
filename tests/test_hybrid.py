"""Hybrid search in use: a weight that travels with the model, in every way of asking."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from realmlm.cli import main
from realmlm.corpus.questions import read_questions
from realmlm.corpus.store import Corpus
from realmlm.engine import Engine
from realmlm.errors import BadInput, Mismatch
from realmlm.evaluation.hybrid import fit_hybrid
from realmlm.index.bm25 import BM25Index
from realmlm.model.realm import Realm
from realmlm.reading.retrieve import LearnedRetriever, Query, hybrid_of, index_of, retrieve
from realmlm.settings import Evaluate, Finetune, FitHybrid
from realmlm.sources.article import Article
from realmlm.storage.artefacts import open_artefact
from tests.calls import calibrate, evaluate
from tests.evaluation.test_calibrate import ROWS, judged

QUESTION = "Which animal is the symbol of Tekebra?"


@pytest.fixture
def weighted(tiny_model: Realm, tmp_path: Path) -> Path:
    """A model with a weight of its own."""
    tiny_model.config = replace(tiny_model.config, hybrid=0.5, trained_on_questions=True)
    tiny_model.save_pretrained(tmp_path / "weighted")
    return tmp_path / "weighted"


def queries_of(model: Realm, texts: list[str]) -> list[Query]:
    return [Query(text, model.wordpieces.encode_query(text)) for text in texts]


def test_scores_are_the_sum_and_the_null_document_matches_as_well_as_the_best(
    weighted: Path, knowledge: Corpus
) -> None:
    model = Realm.from_pretrained(weighted).eval()
    index = index_of(model, knowledge).index
    queries = queries_of(model, [QUESTION, "The history of Taremo begins in [MASK]."])
    plain = retrieve(LearnedRetriever(model, index), queries, len(knowledge))
    both = retrieve(LearnedRetriever(model, index, hybrid=hybrid_of(model, knowledge)), queries, 9)
    words_BK = BM25Index(knowledge).scores([query.tokens for query in queries], both.ids_BK)
    assert both.words_BK is not None
    assert both.null_B is not None
    assert plain.null_B is not None
    assert torch.equal(both.words_BK, 0.5 * words_BK)
    assert words_BK.amax() > 1
    near = [
        dict(zip(*pair, strict=True))
        for pair in zip(plain.ids_BK.tolist(), plain.scores_BK.tolist(), strict=True)
    ]
    for row, ids in enumerate(both.ids_BK.tolist()):
        expected = [near[row][number] + 0.5 * words_BK[row, place].item() for place, number in enumerate(ids)]
        assert both.scores_BK[row].tolist() == pytest.approx(expected, abs=1e-4)
        assert expected == sorted(expected, reverse=True)
    assert both.null_B.tolist() == pytest.approx((plain.null_B + both.words_BK.amax(1)).tolist())
    some = both.some([1], 4)  # type: ignore[arg-type]
    assert torch.equal(some.ids_BK, both.ids_BK[1:, :4])
    assert some.words_BK is not None
    assert torch.equal(some.words_BK, both.words_BK[1:, :4])


def test_without_a_weight_it_is_the_search_by_vectors_alone(
    weighted: Path, tiny_model_folder: Path, knowledge: Corpus
) -> None:
    off = Engine(weighted, knowledge.folder, hybrid=0, device="cpu").ask(QUESTION)
    plain = Engine(tiny_model_folder, knowledge.folder, device="cpu").ask(QUESTION)
    assert off == plain
    assert off.evidence[0].vector_score is None
    assert "words" not in str(off)


@pytest.mark.parametrize("rerank", [0, 12])
def test_evidence_shows_both_parts(rerank: int, weighted: Path, knowledge: Corpus) -> None:
    model = Realm.from_pretrained(weighted)
    if rerank:
        torch.manual_seed(0)
        model.learn_passage_logit()
        assert isinstance(model.reader.passage_head, torch.nn.Linear)
        torch.nn.init.normal_(model.reader.passage_head.weight)
    engine = Engine(model, knowledge.folder, rerank=rerank, device="cpu")
    searched = engine.search(QUESTION, max(4, rerank))
    found = {one.id: one.score for one in searched}
    answer = engine.ask(QUESTION, read=4)
    filled = engine.fill("The history of Tekebra begins in [MASK].", read=4)
    for read in answer.evidence:
        assert read.passage_id is not None
        assert read.vector_score is not None
        assert read.word_score is not None
        assert read.vector_score + read.word_score == pytest.approx(found[read.passage_id])
    # f alone: BM25 grows with the corpus
    assert answer.relevance == pytest.approx(max(one.vector_score or 0.0 for one in searched))
    first = answer.evidence[0]
    assert f"f {first.vector_score:.1f} + words {first.word_score:.1f}" in answer.text(numbers=True)
    null = [read for read in filled.evidence if read.passage_id is None]
    assert [read.word_score for read in null] == [None]
    assert all(read.word_score is not None for read in filled.evidence if read.passage_id is not None)


def test_edits_are_found_by_their_words_at_once(weighted: Path, knowledge: Corpus, tmp_path: Path) -> None:
    shutil.copytree(knowledge.folder, tmp_path / "corpus", ignore=shutil.ignore_patterns("index", "answers"))
    engine = Engine(weighted, tmp_path / "corpus", hybrid=50.0, device="cpu")
    (number,) = engine.edit(add=[Article("Nerrow", "The arms of Nerrow show a quince.")])
    question = "What do the arms of Nerrow show?"
    assert engine.search(question, 1)[0].id == number
    again = Engine(weighted, tmp_path / "corpus", hybrid=50.0, device="cpu")
    assert again.ask(question) == engine.ask(question)
    engine.edit(replace={number: Article("Arms", "A shield.")})
    assert number not in [one.id for one in engine.search("Nerrow quince", 5)]
    engine.edit(remove=[number])
    assert number not in [one.id for one in engine.search("shield", 5)]


def test_a_weight_below_zero_is_refused(weighted: Path, knowledge: Corpus) -> None:
    with pytest.raises(BadInput, match="0 or more"):
        Engine(weighted, knowledge.folder, hybrid=-1.0, device="cpu")
    places: dict[str, Any] = {"questions": Path("q"), "corpus": Path("c"), "hybrid": 1.0}
    for kind in (Evaluate, Finetune):
        with pytest.raises(BadInput, match="not to bm25"):
            kind(
                **(places | {"out": Path("o"), "questions": ()} if kind is Finetune else places),
                retriever="bm25",
            )


def test_evaluate_says_with_which_weight_and_calibrate_wants_the_models_own(
    weighted: Path, knowledge: Corpus, world: Path, tmp_path: Path
) -> None:
    asked = {"model": weighted, "corpus": knowledge.folder, "questions": world / "questions-held-out.jsonl"}
    own = evaluate(**asked, read=2, limit=30, predictions=tmp_path / "own.jsonl")
    strong = evaluate(**asked, read=2, limit=30, hybrid=99.0, predictions=tmp_path / "strong.jsonl")
    words = evaluate(**asked, read=0, limit=30, retriever="bm25")
    plain = evaluate(**asked, read=0, limit=30, hybrid=0.0)
    assert (own.hybrid, strong.hybrid, plain.hybrid) == (0.5, 99.0, 0.0)
    assert "retriever learned + 0.5 · BM25, 2 passages" in own.table()
    assert "retriever learned, nothing" in plain.table()
    assert strong.recall == words.recall != plain.recall
    with pytest.raises(Mismatch, match=r"--hybrid 99, and the model's own weight is 0.5"):
        calibrate(model=weighted, predictions=[tmp_path / "strong.jsonl"], out=tmp_path / "calibrated")
    with pytest.raises(Mismatch, match=r"--hybrid 0, and the model's own weight is 0.5"):
        calibrate(
            model=weighted, predictions=[judged(tmp_path / "p.jsonl", ROWS)], out=tmp_path / "calibrated"
        )
    rows = [row | {"hybrid": 0.5} for row in ROWS]
    calibrate(model=weighted, predictions=[judged(tmp_path / "q.jsonl", rows)], out=tmp_path / "calibrated")
    at_home, abroad = (
        Engine(tmp_path / "calibrated", knowledge.folder, hybrid=weight, device="cpu").ask(QUESTION)
        for weight in (None, 0.4)
    )
    assert at_home.confidence is not None
    assert abroad.confidence is None, "fitted for another weight"


def test_the_weight_that_finds_most_is_stored_with_the_model(
    tiny_model_folder: Path,
    knowledge: Corpus,
    world: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Towers that learned nothing find little: words do all of it."""
    files = ["questions-train.jsonl", "questions-held-out.jsonl"]
    named = [str(world / file) for file in files]
    report = tmp_path / "report.json"
    command = [
        "hybrid",
        "--model",
        str(tiny_model_folder),
        "--corpus",
        str(knowledge.folder),
        "--limit",
        "40",
    ]
    command += ["--questions", *named, "--out", str(tmp_path / "model"), "--report", str(report)]
    main(command)
    table = capsys.readouterr().out
    found = json.loads(report.read_text())
    chosen = found["chosen"]
    assert open_artefact(tmp_path / "model", kind="model").config["hybrid"] == chosen > 0
    assert f"\n* {chosen:>6g} " in table
    assert f"{chosen:g} over f alone: +" in table
    for place, weight in (("BM25", {"retriever": "bm25"}), ("0.0", {}), (str(chosen), {"hybrid": chosen})):
        for file in files:
            asked = {"corpus": knowledge.folder, "questions": world / file, "read": 0, "limit": 40}
            plain = evaluate(model=tiny_model_folder, **asked, **weight)
            recalls = [plain.recall[k].value for k in (1, 5, 20)]
            assert found["recall"][place][file] == recalls, (place, file)
    means = {
        weight: sum(sum(recalls) for recalls in row.values())
        for weight, row in found["recall"].items()
        if weight != "BM25"
    }
    assert means[str(chosen)] == max(means.values())
    assert chosen == min(float(weight) for weight, mean in means.items() if mean == max(means.values()))
    with pytest.raises(BadInput, match="at least one file"):
        FitHybrid(corpus=knowledge.folder, questions=(), out=tmp_path / "other")
    fitted = Engine(tmp_path / "model", knowledge.folder, device="cpu")
    assert fitted.ask(read_questions(world / files[0])[0].text).evidence[0].word_score is not None


def test_a_weight_of_ones_own_is_stored_and_shown_among_the_others(
    tiny_model_folder: Path, knowledge: Corpus, world: Path, tmp_path: Path
) -> None:
    file = world / "questions-train.jsonl"
    given: dict[str, Any] = {
        "model": tiny_model_folder,
        "corpus": knowledge.folder,
        "questions": (file,),
        "limit": 20,
    }
    table = fit_hybrid(FitHybrid(**given, out=tmp_path / "model", weight=0.33))
    assert open_artefact(tmp_path / "model", kind="model").config["hybrid"] == 0.33
    assert "\n*   0.33 " in table
    assert "0.33 over f alone" in table
    with pytest.raises(BadInput, match="weight"):
        FitHybrid(**given, out=tmp_path / "other", weight=-1.0)


def test_a_model_is_not_written_over(tiny_model_folder: Path, knowledge: Corpus, world: Path) -> None:
    settings = FitHybrid(
        model=tiny_model_folder,
        corpus=knowledge.folder,
        questions=(world / "questions-train.jsonl",),
        out=tiny_model_folder,
    )
    with pytest.raises(Exception, match="already exists"):
        fit_hybrid(settings)
