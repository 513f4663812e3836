"""Rankings by relevance judgements: worked by hand, against a plain loop, and equal to trec_eval's numbers."""

import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")
from hypothesis import given
from hypothesis import strategies as st

from realmlm.cli import main
from realmlm.corpus.beir import read_beir
from realmlm.corpus.store import Corpus
from realmlm.engine import Engine
from realmlm.errors import BadInput
from realmlm.evaluation.ranking import RECALL_CUTS, measures, ndcg, ranked, recall, reciprocal_rank
from tests.calls import build_corpus, evaluate

IDS = st.text("abcé9", min_size=1, max_size=3)
SCORES = st.dictionaries(IDS, st.integers(-3, 3).map(float) | st.floats(-9, 9, width=32), max_size=40)
RELEVANCE = st.dictionaries(IDS, st.integers(-1, 3), min_size=1, max_size=20)


def test_worked_by_hand() -> None:
    relevance = {"a": 2, "b": 1, "c": 0, "d": -1}
    ranking = ["c", "a", "x", "b"]
    assert ndcg(ranking, relevance, 10) == pytest.approx(
        (2 / math.log2(3) + 1 / math.log2(5)) / (2 + 1 / math.log2(3))
    )
    assert ndcg(ranking, relevance, 1) == 0
    assert [reciprocal_rank(ranking, relevance, k) for k in (1, 2, 10)] == [0, 0.5, 0.5]
    assert [recall(ranking, relevance, k) for k in (1, 2, 3, 4)] == [0, 0.5, 0.5, 1]
    assert set(measures({}, relevance).values()) == {0.0}
    assert set(measures({"c": 1.0}, {"c": 0}).values()) == {0.0}


def test_of_equal_scores_the_last_id_is_first_as_in_trec_eval() -> None:
    assert ranked({"a": 1.0, "b": 1.0, "10": 1.0, "9": 2.0}) == ["9", "b", "a", "10"]
    assert ranked({"a": 1.0 + 1e-12, "b": 1.0}) == ["b", "a"]  # the same number in 32 bits


def a_run(seed: int) -> tuple[dict[str, float], dict[str, int]]:
    """Many ties, documents that nobody judged, judged ones that were not found."""
    draw = random.Random(seed)
    ids = [str(number) for number in range(150)]
    relevance = {document: draw.choice([-1, 0, 0, 1, 1, 2, 3]) for document in draw.sample(ids, 30)}
    found = draw.sample(ids, 120)
    skill = draw.choice([-1, 1, 2])
    return {
        document: float(draw.randrange(20) + skill * relevance.get(document, 0)) for document in found
    }, relevance


RECORDED = [
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.047619, 0.7619048],
    [0.4299184, 1.0, 0.0555556, 0.2222222, 0.2777778, 0.5, 0.8333333],
    [0.029949, 0.1428571, 0.0, 0.0, 0.0588235, 0.1764706, 0.8235294],
    [0.2242976, 1.0, 0.047619, 0.0952381, 0.1428571, 0.2380952, 0.7142857],
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0588235, 0.4117647],
    [0.7276587, 1.0, 0.1, 0.5, 0.6, 0.6, 1.0],
]


def test_equal_to_numbers_that_trec_eval_gave() -> None:
    """Recorded from pytrec_eval-terrier 0.5.11 with `by_pytrec_eval` below."""
    for seed, expected in enumerate(RECORDED):
        scores, relevance = a_run(seed)
        assert list(measures(scores, relevance).values()) == pytest.approx(expected, abs=1e-6)


def by_pytrec_eval(scores: Mapping[str, float], relevance: Mapping[str, int]) -> list[float]:
    """In the order of `measures`. MRR@10 is the reciprocal rank in a run cut to 10 documents."""
    pytrec_eval = pytest.importorskip("pytrec_eval", reason="pip install pytrec-eval-terrier")
    cuts = ",".join(map(str, RECALL_CUTS))
    judge = pytrec_eval.RelevanceEvaluator({"q": dict(relevance)}, {"ndcg_cut.10", f"recall.{cuts}"})
    whole = judge.evaluate({"q": dict(scores)})["q"]
    first = sorted(scores, key=lambda document: (scores[document], document), reverse=True)[:10]
    judge = pytrec_eval.RelevanceEvaluator({"q": dict(relevance)}, {"recip_rank"})
    cut = judge.evaluate({"q": {document: scores[document] for document in first}})["q"]
    return [whole["ndcg_cut_10"], cut["recip_rank"], *(whole[f"recall_{k}"] for k in RECALL_CUTS)]


def test_equal_to_pytrec_eval_on_whole_runs() -> None:
    for seed in range(300):
        scores, relevance = a_run(seed)
        assert list(measures(scores, relevance).values()) == by_pytrec_eval(scores, relevance)


@given(SCORES, RELEVANCE)
def test_equal_to_pytrec_eval(scores: dict[str, float], relevance: dict[str, int]) -> None:
    expected = by_pytrec_eval(scores, relevance)
    assert list(measures(scores, relevance).values()) == pytest.approx(expected, abs=1e-9)


# --- the commands -------------------------------------------------------------------------------------------


@pytest.fixture
def beir(world: Path, tmp_path: Path) -> Path:
    """The tiny world as a BEIR folder: every passage a document, two of them long ones, and questions."""
    folder = tmp_path / "tiny"
    (folder / "qrels").mkdir(parents=True)
    documents = [json.loads(line) for line in (world / "knowledge.jsonl").read_text("utf-8").splitlines()]
    rows = [
        {"_id": f"d/{number}#é", "title": record["title"], "text": record["text"] * (60 if number < 2 else 1)}
        for number, record in enumerate(documents)
    ]
    rows.append({"_id": "q1", "title": "Only a title", "text": "", "metadata": {}})
    write_lines(folder / "corpus.jsonl", rows)
    queries = [
        {"_id": f"q{number}", "text": f"Which bird is the symbol of {documents[number]['title']}?"}
        for number in range(6)
    ]
    write_lines(folder / "queries.jsonl", queries)
    judged = [f"q{number}\td/{number}#é\t2\nq{number}\td/{number + 1}#é\t1" for number in range(5)]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(judged) + "\n")
    return folder


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def corpus_of(folder: Path, world: Path) -> Corpus:
    return build_corpus(
        [folder],
        folder.parent / "corpus",
        tokenizer=str(world / "tokenizer.json"),
        max_wordpieces=64,
        workers=1,
    )


def test_documents_of_a_beir_folder_keep_their_ids_and_queries_are_none(beir: Path, world: Path) -> None:
    corpus = corpus_of(beir, world)
    sources = [corpus.source(number) for number in corpus.ids.tolist()]
    ids = [json.loads(line)["_id"] for line in (beir / "corpus.jsonl").read_text("utf-8").splitlines()]
    assert list(dict.fromkeys(sources)) == [f"tiny/corpus.jsonl#{number}" for number in ids]
    assert len(sources) > len(ids) + 2  # the long ones are several passages
    assert corpus[int(corpus.ids[-1])].text == "Only a title"


@pytest.mark.parametrize("retriever", ["learned", "bm25"])
def test_evaluate_ranks_documents_by_their_best_passage(
    beir: Path, world: Path, tiny_model_folder: Path, retriever: str, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = corpus_of(beir, world)
    out = beir.parent / "ranked.jsonl"
    where = ["--model", str(tiny_model_folder), "--corpus", str(corpus.folder), "--device", "cpu"]
    main(
        [
            "evaluate",
            "--beir",
            str(beir),
            *where,
            "--retriever",
            retriever,
            "--predictions",
            str(out),
            "--json",
        ]
    )
    report = json.loads(capsys.readouterr().out)
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert [row["id"] for row in rows] == [f"q{number}" for number in range(5)]  # q5 is not judged
    assert report["questions"] == 5
    assert report["exact_match"] is None
    for name in ("nDCG@10", "MRR@10", "recall@1", "recall@100"):
        mean = sum(row[name] for row in rows) / len(rows)
        assert report["ranking"][name]["value"] == pytest.approx(100 * mean, abs=0.01)
    for row in rows:
        assert len(row["documents"]) == 100
        assert row["id"] not in row["documents"]  # a document with the query's own id
        assert measures(row["documents"], row["relevance"]) == {
            name: row[name] for name in measures({}, {"a": 1})
        }
    if retriever == "learned":
        engine = Engine(tiny_model_folder, corpus, device="cpu")
        best: dict[str, float] = {}
        for found in engine.search(rows[0]["question"], len(corpus)):
            best.setdefault(found.source.partition("#")[2], found.score)
        assert rows[0]["documents"] == pytest.approx(dict(list(best.items())[:100]), abs=1e-4)


def test_the_table_names_them(
    beir: Path, world: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = corpus_of(beir, world)
    where = ["--model", str(tiny_model_folder), "--corpus", str(corpus.folder), "--device", "cpu"]
    report = beir.parent / "report.json"
    main(["evaluate", "--beir", str(beir), *where, "--limit", "2", "--report", str(report)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("2 questions, retriever learned, nothing read")
    assert lines[2].startswith("nDCG@10 (judged documents) ")
    main(["report", "--evaluations", str(report), "--out", str(beir.parent / "report.html")])
    page = (beir.parent / "report.html").read_text("utf-8")
    assert "judged documents, %" in page
    assert "nDCG@10" in page


def test_what_is_wrong_with_a_beir_folder_is_named(beir: Path, world: Path, knowledge: Corpus) -> None:
    with pytest.raises(BadInput, match=r"has no dev.tsv; choose --split test"):
        read_beir(beir, "dev")
    qrels = beir / "qrels" / "test.tsv"
    qrels.write_text("q0\td/0#é\t1\n")  # without a header
    assert [query.relevance for query in read_beir(beir, "test")] == [{"d/0#é": 1}]
    qrels.write_text("q0\td/0#é\tyes\n")
    with pytest.raises(BadInput, match=r"test.tsv:1: a line is query<TAB>document<TAB>whole number"):
        read_beir(beir, "test")
    qrels.write_text("q77\td/0#é\t1\n")
    with pytest.raises(BadInput, match="has no query 'q77'"):
        read_beir(beir, "test")
    (beir / "queries.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(BadInput, match=r"queries.jsonl:1: a query is"):
        read_beir(beir, "test")
    (beir / "queries.jsonl").unlink()
    with pytest.raises(BadInput, match=r"a BEIR folder has corpus.jsonl, queries.jsonl and qrels/"):
        read_beir(beir, "test")


def test_a_corpus_without_ids_is_refused(beir: Path, knowledge: Corpus, tiny_model_folder: Path) -> None:
    with pytest.raises(BadInput, match="where no id is named; make the corpus from the same folder"):
        evaluate(model=tiny_model_folder, corpus=knowledge.folder, beir=beir, device="cpu")
    with pytest.raises(BadInput, match="either --questions FILE or --beir FOLDER"):
        evaluate(model=tiny_model_folder, corpus=knowledge.folder, device="cpu")
