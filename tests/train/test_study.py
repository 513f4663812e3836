"""What the comparisons of the study need: held-out sentences, recurring words, a reader that points."""

import json
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from realmlm.cli import main
from realmlm.corpus.questions import read_questions
from realmlm.corpus.spans import MarkedSentence, Spans, mark_spans
from realmlm.corpus.store import Corpus
from realmlm.corpus.taggers import PhraseTagger
from realmlm.errors import BadInput, NotEnough
from realmlm.evaluation.clozes import make_clozes
from realmlm.model.inputs import mask_queries, reader_inputs
from realmlm.model.realm import Realm
from realmlm.reading.read import standing
from realmlm.reading.retrieve import LearnedRetriever, Query, Retrieved
from realmlm.settings import Evaluate, Finetune, JointOptim, Loop, Optim, Pretrain, Refresh, Warmup
from realmlm.train.data import ClozePairs, ReadingPairs, Recurrences, SentenceSource
from tests.calls import build_corpus, evaluate, run_finetune, run_pretrain, run_warmup

LOOP = Loop(threads=1, device="cpu", log_every=1)


# --- held out -----------------------------------------------------------------------------------------------


def test_held_out_sentences_hide_a_marked_span_and_name_their_passage(knowledge: Corpus) -> None:
    clozes = make_clozes(knowledge, count=30, max_query=32, seed=3)
    assert len({cloze.source for cloze in clozes}) == 30
    for cloze in clozes:
        assert cloze.source is not None
        assert cloze.text.count("[MASK]") == 1
        assert cloze.text.replace("[MASK]", cloze.answers[0]) in knowledge[cloze.source].text
    assert make_clozes(knowledge, count=30, max_query=32, seed=3) == clozes
    assert make_clozes(knowledge, count=30, max_query=32, seed=4) != clozes
    with pytest.raises(NotEnough, match="ask for fewer"):
        make_clozes(knowledge, count=10**6, max_query=32, seed=0)


def test_several_sentences_of_a_passage_can_be_held_out(knowledge: Corpus) -> None:
    clozes = make_clozes(knowledge, count=30, max_query=32, seed=3, each=2)
    of_passage = Counter(cloze.source for cloze in clozes)
    assert len(of_passage) == 30
    assert max(of_passage.values()) == 2
    assert len({(cloze.source, cloze.text) for cloze in clozes}) == len(clozes)
    one_each = {cloze.source for cloze in make_clozes(knowledge, count=30, max_query=32, seed=3)}
    assert one_each == set(of_passage), (
        "which passages they are does not depend on how many sentences are taken"
    )


def test_no_sentence_of_a_held_out_passage_is_drawn(knowledge: Corpus) -> None:
    held = set(knowledge.ids[::2].tolist())
    source = SentenceSource(knowledge, "salient", max_query=32, seed=0, held_out=held)
    assert not held & set(source.draw(0, len(source.sentences)).passages.tolist())
    plain = SentenceSource(knowledge, "uniform", max_query=32, seed=0, held_out=held)
    assert not held & set(plain.draw(0, len(plain.sentences)).passages.tolist())
    pairs = ClozePairs(knowledge, remove=0.9, seed=0, held_out=held)
    assert not held & set(pairs.draw(0, len(pairs)).passages.tolist())


def test_the_command_and_what_takes_its_file(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path
) -> None:
    file = tmp_path / "held-out.jsonl"
    main(["clozes", str(knowledge.folder), "--out", str(file), "--count", "20", "--max-query", "32"])
    asked = read_questions(file)
    assert [question.source for question in asked] == [
        cloze.source for cloze in make_clozes(knowledge, count=20, max_query=32, seed=0)
    ]
    with pytest.raises(SystemExit):
        main(["clozes", str(knowledge.folder), "--out", str(file)])
    predictions = tmp_path / "predictions.jsonl"
    report = evaluate(
        model=tiny_model_folder,
        corpus=knowledge.folder,
        questions=file,
        predictions=predictions,
        device="cpu",
        read=3,
    )
    rows = [json.loads(line) for line in predictions.read_text().splitlines()]
    for question, row in zip(asked, rows, strict=True):
        assert question.source not in [evidence["passage_id"] for evidence in row["evidence"]]
    assert report.nats["−log p(y|x)"].value == pytest.approx(
        -np.mean([row["log_p"] for row in rows]), abs=1e-3
    )
    alone = evaluate(
        model=tiny_model_folder, corpus=knowledge.folder, questions=file, retriever="none", device="cpu"
    )
    gained = alone.nats["−log p(y|x)"].value - report.nats["−log p(y|x)"].value
    assert report.nats["retrieval utility"].value == pytest.approx(gained, abs=1e-3)
    matched = evaluate(
        model=tiny_model_folder,
        corpus=knowledge.folder,
        questions=file,
        retriever="bm25",
        device="cpu",
        read=2,
    )
    assert "retrieval utility" not in matched.nats


def test_retrieval_alone_can_be_measured(
    tiny_model_folder: Path, knowledge: Corpus, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = world / "questions-held-out.jsonl"
    read = evaluate(
        model=tiny_model_folder, corpus=knowledge.folder, questions=questions, device="cpu", limit=20
    )
    monkeypatch.setattr("realmlm.reading.answer.Answerer.read_spans", None)  # must not be asked
    alone = evaluate(
        model=tiny_model_folder, corpus=knowledge.folder, questions=questions, device="cpu", limit=20, read=0
    )
    assert alone.recall == read.recall
    assert alone.exact_match is None
    assert "exact match" not in alone.table()


def test_questions_can_be_searched_with_as_masked_sentences(
    tiny_model_folder: Path, knowledge: Corpus, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Query] = []
    search = LearnedRetriever.__call__

    def searched(self: LearnedRetriever, queries: list[Query], k: int) -> Retrieved:
        seen.extend(queries)
        return search(self, queries, k)

    monkeypatch.setattr(LearnedRetriever, "__call__", searched)
    questions = world / "questions-held-out.jsonl"
    mask = knowledge.wordpieces.mask
    evaluate(
        model=tiny_model_folder, corpus=knowledge.folder, questions=questions, device="cpu", limit=5, read=0
    )
    report = evaluate(
        model=tiny_model_folder,
        corpus=knowledge.folder,
        questions=questions,
        device="cpu",
        limit=5,
        read=0,
        with_mask=True,
    )
    assert (report.question_file, report.limit, report.with_mask) == (str(questions), 5, True)
    assert report.table().startswith("5 questions with a [MASK] after each")
    for plain, masked in zip(seen[:5], seen[5:], strict=True):
        assert masked.tokens.tolist() == [*plain.tokens.tolist(), mask]
    with pytest.raises(BadInput, match="--with-mask needs --read 0"):
        Evaluate(corpus=knowledge.folder, questions=questions, with_mask=True)


# --- the reader's warm-up -----------------------------------------------------------------------------------


def test_recurring_words_stand_in_another_passage_of_the_title(towns: Corpus) -> None:
    source = SentenceSource(towns, "salient", max_query=32, seed=0)
    recurrences = Recurrences(towns, source.sentences)
    assert len(recurrences) == 10  # each town's beast; not the same beast of another town
    rng = np.random.default_rng(0)
    for _ in range(30):
        example, other, having = recurrences.pair(source, rng)
        assert {example.passage, other} <= set(having.tolist())
        assert other != example.passage
        assert towns[other].title == towns[example.passage].title
        hidden = towns.wordpieces.decode(example.tokens[example.positions])
        assert hidden in towns[other].text


def test_words_recur_under_other_headings_of_a_document(tmp_path: Path, towns: Corpus) -> None:
    (tmp_path / "arms.md").write_text("# One\n\nOne bears a heron.\n\n## Coins\n\nThe heron is on coins.\n")
    corpus = build_corpus([tmp_path / "arms.md"], tmp_path / "corpus", tokenizer=str(towns.folder), workers=1)
    mark_spans(corpus, PhraseTagger(["heron"]), workers=1)
    source = SentenceSource(corpus, "salient", max_query=32, seed=0)
    assert [corpus[number].title for number in corpus.ids.tolist()] == ["One", "One › Coins"]
    assert len(Recurrences(corpus, source.sentences)) == 1


def test_a_copy_of_a_passage_is_no_other_one(towns: Corpus, tmp_path: Path) -> None:
    """To find it, or to read the hidden words off it, would teach nothing but to repeat."""
    arms = "One bears a heron on its arms."
    texts = [arms, arms, "The heron is on coins.", "Two bears an otter.", "Two bears an otter."]
    rows = [{"title": "One" if "heron" in text else "Two", "text": text} for text in texts]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = tmp_path / "corpus"
    corpus = build_corpus([tmp_path / "rows.jsonl"], folder, tokenizer=str(towns.folder), workers=1)
    mark_spans(corpus, PhraseTagger(["heron", "otter"]), workers=1)
    source = SentenceSource(corpus, "salient", max_query=32, seed=0)
    recurrences = Recurrences(corpus, source.sentences)
    assert len(recurrences) == 1, "the heron; the otter is in copies alone"
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(40):
        example, other, having = recurrences.pair(source, rng)
        seen.add((example.passage, other))
        assert sorted(having.tolist()) == corpus.ids[:3].tolist(), "copies are not told apart from it either"
    first, copy, coins = corpus.ids[:3].tolist()
    assert seen == {(first, coins), (copy, coins), (coins, first), (coins, copy)}


def test_nothing_recurs_in_a_corpus_of_single_passages(
    knowledge: Corpus, tmp_path: Path, towns: Corpus
) -> None:
    (tmp_path / "one.jsonl").write_text(
        json.dumps({"title": "One", "text": "One bears a heron on its arms."})
    )
    corpus = build_corpus(
        [tmp_path / "one.jsonl"], tmp_path / "corpus", tokenizer=str(towns.folder), workers=1
    )
    mark_spans(corpus, PhraseTagger(["heron"]), workers=1)
    source = SentenceSource(corpus, "salient", max_query=32, seed=0)
    with pytest.raises(NotEnough, match="--pairing sibling"):
        Recurrences(corpus, source.sentences)


def test_pairs_do_not_depend_on_the_parts_they_are_drawn_in(towns: Corpus) -> None:
    source = SentenceSource(towns, "salient", max_query=32, seed=0)
    pairs = ReadingPairs(source, pairing="recurring", seed=0)
    masked, passages = pairs.draw(0, 40)
    parts = [pairs.draw(0, 15), pairs.draw(15, 25)]
    assert [query.tolist() for part, _ in parts for query in part.queries] == [
        query.tolist() for query in masked.queries
    ]
    assert [passage for _, part in parts for passage in part] == passages.tolist()
    assert 0 < (passages == -1).sum() < 12


def test_where_the_hidden_words_stand(towns: Corpus) -> None:
    pieces = towns.wordpieces
    query = np.array([9, 20, 21, 10])
    body = np.array([20, 21, 5, 20, 22, 20, 21])
    masked = mask_queries([query, query, query], [np.array([1, 2]), np.array([0, 2]), np.array([1])], pieces)
    inputs = reader_inputs([*masked.queries], [body] * 3, pieces, max_query=8, max_length=40)
    gold = standing(masked.runs(4), [body] * 3, inputs, np.zeros(len(pieces), dtype=bool))
    second = int(inputs.second_N[0])
    assert [(row, start - second, width) for row, start, width in gold.tolist()] == [
        (0, 0, 1),
        (0, 5, 1),
        (2, 0, 0),
        (2, 3, 0),
        (2, 5, 0),
    ]


def test_the_warm_up_teaches_to_point(towns: Corpus, towns_model: Path, tmp_path: Path) -> None:
    optim = Optim(steps=40, batch=16, lr=3e-3)
    none = Optim(steps=0)
    common = {"model": towns_model, "corpus": towns.folder, "reader": optim, "retriever": none, "loop": LOOP}
    run_warmup(Warmup(out=tmp_path / "run", pairing="recurring", pointing=1.0, **common))  # type: ignore[arg-type]
    rows = [
        json.loads(line) for line in (tmp_path / "run" / "reader" / "metrics.jsonl").read_text().splitlines()
    ]
    assert rows[0]["held"] > 0.5
    assert np.mean([row["pointed"] for row in rows[-5:]]) > 2 * rows[0]["pointed"]


def test_the_towers_begin_as_the_reader_that_was_warmed_up(
    towns: Corpus, towns_model: Path, tmp_path: Path
) -> None:
    reader = Optim(steps=5, batch=8, lr=3e-3)
    retriever = Optim(steps=1, batch=8, lr=1e-9)
    common: dict[str, Any] = {
        "model": towns_model,
        "corpus": towns.folder,
        "reader": reader,
        "retriever": retriever,
        "loop": LOOP,
    }
    for name, asked in (("plain", False), ("same", True)):
        model = Realm.from_pretrained(
            run_warmup(Warmup(out=tmp_path / name, towers_as_reader=asked, **common))
        )
        read, found = (dict(part.encoder.named_parameters()) for part in (model.reader, model.document))
        matrices = [weight for weight in read if read[weight].ndim > 1]
        assert all(torch.allclose(read[weight], found[weight], atol=1e-6) for weight in matrices) == asked


def test_towers_of_another_kind_cannot_begin_as_the_reader(
    towns_model: Path, towns: Corpus, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=r"--retriever\.steps"):
        Warmup(corpus=towns.folder, out=tmp_path / "none", towers_as_reader=True, retriever=Optim(steps=0))
    model = Realm.from_pretrained(towns_model)
    model.config = replace(model.config, tower={**model.config.tower, "norm_eps": 1e-3})
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(BadInput, match="different encoders"):
        run_warmup(
            Warmup(
                model=tmp_path / "model",
                corpus=towns.folder,
                out=tmp_path / "run",
                towers_as_reader=True,
                loop=LOOP,
            )
        )
    assert not (tmp_path / "run" / "reader").exists(), "said before the reader was trained"


def test_a_reader_of_titles_trains_and_answers(towns: Corpus, tmp_path: Path) -> None:
    from realmlm.engine import Engine
    from tests.calls import create_model
    from tests.conftest import TINY_MODEL

    create_model(corpus=towns.folder, out=tmp_path / "model", read_titles=True, **TINY_MODEL)
    asked = tmp_path / "questions.jsonl"
    asked.write_text(json.dumps({"question": "Which bird?", "answer": ["heron"]}), "utf-8")
    common: dict[str, Any] = {"corpus": towns.folder, "loop": LOOP}
    optim = JointOptim(steps=3, batch=8)
    warm = Warmup(
        model=tmp_path / "model",
        out=tmp_path / "warm",
        pairing="recurring",
        pointing=1.0,
        reader=optim,
        retriever=optim,
        **common,
    )
    joint = Pretrain(
        model=run_warmup(warm),
        out=tmp_path / "joint",
        k=3,
        optim=optim,
        refresh=Refresh(every_steps=0),
        **common,
    )
    answering = Finetune(
        model=run_pretrain(joint), questions=(asked,), out=tmp_path / "asked", read=2, optim=optim, **common
    )
    answer = Engine(run_finetune(answering), towns.folder).ask("Which bird?", read=2)
    evidence = next(passage for passage in answer.evidence if passage.start is not None)
    assert evidence.passage[evidence.start : evidence.end].lower() == answer.answer.lower()


def test_only_words_that_another_passage_has_are_hidden(towns: Corpus) -> None:
    spans = Spans.open(towns)
    recurring = Spans.open(towns).recurring(towns)

    def words(sentence: MarkedSentence) -> list[tuple[int, ...]]:
        tokens = towns.tokens(sentence.passage)[sentence.start : sentence.end]
        return [tuple(tokens[start:end].tolist()) for start, end in sentence.spans.tolist()]

    places = defaultdict(set)
    for number in range(len(spans)):
        for hidden in words(spans[number]):
            places[hidden].add(spans[number].passage)
    kept = {
        (recurring[number].passage, hidden)
        for number in range(len(recurring))
        for hidden in words(recurring[number])
    }
    assert kept == {
        (passage, hidden) for hidden, passages in places.items() if len(passages) > 1 for passage in passages
    }
    assert len(make_clozes(towns, count=3, max_query=32, seed=0, recurring=True)) == 3


def test_nothing_is_left_where_nothing_recurs(knowledge: Corpus, tmp_path: Path, towns: Corpus) -> None:
    (tmp_path / "one.jsonl").write_text(
        json.dumps({"title": "One", "text": "One bears a heron on its arms."})
    )
    corpus = build_corpus(
        [tmp_path / "one.jsonl"], tmp_path / "corpus", tokenizer=str(towns.folder), workers=1
    )
    assert len(mark_spans(corpus, PhraseTagger(["heron"]), workers=1).recurring(corpus)) == 0
