"""What the comparisons of the study need: held-out sentences, recurring words, other objectives and other retrievers."""

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from realmlm.cli import main
from realmlm.config import Finetune, JointOptim, Loop, Optim, Pretrain, Refresh, Warmup
from realmlm.corpus.build import build_corpus
from realmlm.corpus.questions import Question, read_questions
from realmlm.corpus.spans import MarkedSentence, Spans, mark_spans
from realmlm.corpus.store import Corpus
from realmlm.corpus.taggers import PhraseTagger
from realmlm.errors import BadInput, NotEnough
from realmlm.evaluate.clozes import make_clozes
from realmlm.evaluate.report import evaluate
from realmlm.index.exact import ExactIndex
from realmlm.model.inputs import mask_queries, reader_inputs
from realmlm.model.marginal import answer_log_likelihood, best_span_log_likelihood, marked, span_log_probabilities
from realmlm.model.realm import Realm
from realmlm.train.examples import ClozePairs, ReadingPairs, Recurrences, SentenceSource, glimpse
from realmlm.train.finetune import Given, QuestionAnswering, run_finetune
from realmlm.train.gold import locate_answers
from realmlm.train.loop import Clock
from realmlm.train.pointing import point, standing
from realmlm.train.pretrain import run_pretrain
from realmlm.train.warmup import run_warmup
from tests.train.test_resume import joint_run

LOOP = Loop(threads=1, device="cpu", log_every=1)


@pytest.fixture(scope="module")
def towns(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Articles of several passages in which the same value is named twice."""
    folder = tmp_path_factory.mktemp("towns")
    beasts = ["heron", "badger", "otter", "falcon", "beaver"]
    rows = []
    for number, beast in enumerate(beasts * 2):
        name = f"Town{number}"
        text = f"{name} bears a {beast} on its arms. It lies by a river. People like it.\n\nThe {beast} of {name} is old. It was painted."
        rows.append(json.dumps({"title": name, "text": text}))
    (folder / "towns.jsonl").write_text("\n".join(rows))
    corpus = build_corpus([folder / "towns.jsonl"], folder / "corpus", train_tokenizer=300, max_wordpieces=24, workers=1)
    mark_spans(corpus, PhraseTagger(beasts), workers=1)
    return corpus


# --- held out -------------------------------------------------------------------------------------------------------------------------


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


def test_no_sentence_of_a_held_out_passage_is_drawn(knowledge: Corpus) -> None:
    held = set(knowledge.ids[::2].tolist())
    source = SentenceSource(knowledge, scheme="salient", wordpieces=knowledge.wordpieces, max_query=32, seed=0, held_out=held)
    assert not held & set(source.draw(0, len(source.sentences)).passages.tolist())
    plain = SentenceSource(knowledge, scheme="uniform", wordpieces=knowledge.wordpieces, max_query=32, seed=0, held_out=held)
    assert not held & set(plain.draw(0, len(plain.sentences)).passages.tolist())
    pairs = ClozePairs(knowledge, remove=0.9, seed=0, held_out=held)
    assert not held & set(pairs.draw(0, len(pairs)).passages.tolist())


def test_the_command_and_what_takes_its_file(tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path) -> None:
    file = tmp_path / "held-out.jsonl"
    main(["clozes", str(knowledge.folder), "--out", str(file), "--count", "20", "--max-query", "32"])
    asked = read_questions(file)
    assert [question.source for question in asked] == [cloze.source for cloze in make_clozes(knowledge, count=20, max_query=32, seed=0)]
    with pytest.raises(SystemExit):
        main(["clozes", str(knowledge.folder), "--out", str(file)])
    predictions = tmp_path / "predictions.jsonl"
    report = evaluate(model=tiny_model_folder, corpus=knowledge.folder, questions=file, predictions=predictions, device="cpu", read=3)
    rows = [json.loads(line) for line in predictions.read_text().splitlines()]
    for question, row in zip(asked, rows, strict=True):
        assert question.source not in [evidence["passage_id"] for evidence in row["evidence"]]
    assert report.nats["−log p(y|x)"].value == pytest.approx(-np.mean([row["log_p"] for row in rows]), abs=1e-3)
    alone = evaluate(model=tiny_model_folder, corpus=knowledge.folder, questions=file, retriever="none", device="cpu")
    gained = alone.nats["−log p(y|x)"].value - report.nats["−log p(y|x)"].value
    assert report.nats["retrieval utility"].value == pytest.approx(gained, abs=1e-3)
    matched = evaluate(model=tiny_model_folder, corpus=knowledge.folder, questions=file, retriever="bm25", device="cpu", read=2)
    assert "retrieval utility" not in matched.nats


def test_retrieval_alone_can_be_measured(tiny_model_folder: Path, knowledge: Corpus, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    questions = world / "questions-held-out.jsonl"
    read = evaluate(model=tiny_model_folder, corpus=knowledge.folder, questions=questions, device="cpu", limit=20)
    monkeypatch.setattr("realmlm.model.encoders.Reader.spans", None)  # must not be asked
    alone = evaluate(model=tiny_model_folder, corpus=knowledge.folder, questions=questions, device="cpu", limit=20, read=0)
    assert alone.recall == read.recall
    assert alone.exact_match is None
    assert "exact match" not in alone.table()


# --- the reader's warm-up ---------------------------------------------------------------------------------------------------------------


def test_recurring_words_stand_in_another_passage_of_the_title(towns: Corpus) -> None:
    source = SentenceSource(towns, scheme="salient", wordpieces=towns.wordpieces, max_query=32, seed=0)
    recurrences = Recurrences(towns, source.sentences)
    assert len(recurrences) == 10  # each town's beast; not the same beast of another town
    rng = np.random.default_rng(0)
    for _ in range(30):
        example, other = recurrences.pair(source, rng)
        assert other != example.passage
        assert towns[other].title == towns[example.passage].title
        hidden = towns.wordpieces.decode(example.tokens[example.positions])
        assert hidden in towns[other].text


def test_nothing_recurs_in_a_corpus_of_single_passages(knowledge: Corpus, tmp_path: Path, towns: Corpus) -> None:
    (tmp_path / "one.jsonl").write_text(json.dumps({"title": "One", "text": "One bears a heron on its arms."}))
    corpus = build_corpus([tmp_path / "one.jsonl"], tmp_path / "corpus", tokenizer=str(towns.folder), workers=1)
    mark_spans(corpus, PhraseTagger(["heron"]), workers=1)
    source = SentenceSource(corpus, scheme="salient", wordpieces=corpus.wordpieces, max_query=32, seed=0)
    with pytest.raises(NotEnough, match="--pairing sibling"):
        Recurrences(corpus, source.sentences)


def test_pairs_do_not_depend_on_the_parts_they_are_drawn_in(towns: Corpus) -> None:
    source = SentenceSource(towns, scheme="salient", wordpieces=towns.wordpieces, max_query=32, seed=0)
    pairs = ReadingPairs(source, pairing="recurring", seed=0)
    masked, passages = pairs.draw(0, 40)
    parts = [pairs.draw(0, 15), pairs.draw(15, 25)]
    assert [query.tolist() for part, _ in parts for query in part.queries] == [query.tolist() for query in masked.queries]
    assert [passage for _, part in parts for passage in part] == passages
    assert 0 < passages.count(None) < 12


def test_where_the_hidden_words_stand(towns: Corpus) -> None:
    pieces = towns.wordpieces
    query, body = np.array([9, 20, 21, 10]), np.array([20, 21, 5, 20, 22, 20, 21])
    masked = mask_queries([query, query, query], [np.array([1, 2]), np.array([0, 2]), np.array([1])], pieces)
    inputs = reader_inputs([*masked.queries], [body] * 3, pieces, max_query=8, max_length=40)
    gold = standing(masked.runs(4), [body] * 3, inputs)
    second = int(inputs.second_N[0])
    assert [(row, start - second, width) for row, start, width in gold.tolist()] == [
        (0, 0, 1),
        (0, 5, 1),
        (2, 0, 0),
        (2, 3, 0),
        (2, 5, 0),
    ]


def test_the_warm_up_teaches_to_point(towns: Corpus, tmp_path: Path) -> None:
    from realmlm.model.create import create_model
    from tests.conftest import TINY_MODEL

    create_model(corpus=towns.folder, out=tmp_path / "model", **TINY_MODEL)  # type: ignore[arg-type]
    optim, none = Optim(steps=40, batch=16, lr=3e-3), Optim(steps=0)
    common = {"model": tmp_path / "model", "corpus": towns.folder, "reader": optim, "retriever": none, "loop": LOOP}
    run_warmup(Warmup(out=tmp_path / "run", pairing="recurring", pointing=1.0, **common))  # type: ignore[arg-type]
    rows = [json.loads(line) for line in (tmp_path / "run" / "reader" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["held"] > 0.5
    assert np.mean([row["pointed"] for row in rows[-5:]]) > 2 * rows[0]["pointed"]


def test_the_towers_begin_as_the_reader_that_was_warmed_up(towns: Corpus, tmp_path: Path) -> None:
    from realmlm.model.create import create_model
    from tests.conftest import TINY_MODEL

    create_model(corpus=towns.folder, out=tmp_path / "model", **TINY_MODEL)  # type: ignore[arg-type]
    reader, retriever = Optim(steps=5, batch=8, lr=3e-3), Optim(steps=1, batch=8, lr=1e-9)
    common: dict[str, Any] = {"model": tmp_path / "model", "corpus": towns.folder, "reader": reader, "retriever": retriever, "loop": LOOP}
    for name, asked in (("plain", False), ("same", True)):
        model, _ = Realm.from_pretrained(run_warmup(Warmup(out=tmp_path / name, towers_as_reader=asked, **common)))
        read, found = (dict(part.encoder.named_parameters()) for part in (model.reader, model.document))
        matrices = [weight for weight in read if read[weight].ndim > 1]
        assert all(torch.allclose(read[weight], found[weight], atol=1e-6) for weight in matrices) == asked


def test_a_reader_of_titles_trains_and_answers(towns: Corpus, tmp_path: Path) -> None:
    from realmlm.model.create import create_model
    from realmlm.serve.engine import Engine
    from tests.conftest import TINY_MODEL

    create_model(corpus=towns.folder, out=tmp_path / "model", read_titles=True, **TINY_MODEL)  # type: ignore[arg-type]
    asked = tmp_path / "questions.jsonl"
    asked.write_text(json.dumps({"question": "Which bird?", "answer": ["heron"]}), "utf-8")
    common: dict[str, Any] = {"corpus": towns.folder, "loop": LOOP}
    optim = JointOptim(steps=3, batch=8)
    warm = Warmup(
        model=tmp_path / "model", out=tmp_path / "warm", pairing="recurring", pointing=1.0, reader=optim, retriever=optim, **common
    )
    joint = Pretrain(model=run_warmup(warm), out=tmp_path / "joint", k=3, optim=optim, refresh=Refresh(every_steps=0), **common)
    answering = Finetune(model=run_pretrain(joint), questions=(asked,), out=tmp_path / "asked", read=2, optim=optim, **common)
    answer = Engine(run_finetune(answering), towns.folder).ask("Which bird?", read=2)
    evidence = next(passage for passage in answer.evidence if passage.start is not None)
    assert evidence.passage[evidence.start : evidence.end].lower() == answer.answer.lower()


# --- pre-training otherwise -------------------------------------------------------------------------------------------------------------


def test_without_the_null_document_and_with_the_own_passage(tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path) -> None:
    plain = {"optim": JointOptim(steps=2, batch=8), "refresh": Refresh(every_steps=0), "k": 3}
    joint_run(tiny_model_folder, knowledge, tmp_path / "no-null", null_document=False, own_passage=True, **plain)
    row = json.loads((tmp_path / "no-null" / "metrics.jsonl").read_text().splitlines()[-1])
    assert "null_share" not in row
    assert "log_p" in row


def test_joint_training_points_at_what_it_retrieves(towns: Corpus, tmp_path: Path) -> None:
    from realmlm.model.create import create_model
    from tests.conftest import TINY_MODEL

    create_model(corpus=towns.folder, out=tmp_path / "model", **TINY_MODEL)  # type: ignore[arg-type]
    optim, still = JointOptim(steps=60, batch=16, lr=3e-3, retriever_lr=3e-3), Refresh(every_steps=0)
    joint = Pretrain(
        model=tmp_path / "model", corpus=towns.folder, out=tmp_path / "run", k=3, optim=optim, refresh=still, loop=LOOP, pointing=1.0
    )
    run_pretrain(joint)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    first, last = ({name: np.mean([row[name] for row in part]) for name in ("held", "pointed")} for part in (rows[:10], rows[-10:]))
    assert 0 < first["held"] < 1
    assert last["pointed"] > 3 * first["pointed"]


def test_pointing_is_the_same_whatever_else_is_in_the_batch(towns: Corpus, tmp_path: Path) -> None:
    from realmlm.model.create import create_model
    from tests.conftest import TINY_MODEL

    create_model(corpus=towns.folder, out=tmp_path / "model", **TINY_MODEL)  # type: ignore[arg-type]
    model, pieces = Realm.from_pretrained(tmp_path / "model")
    bodies = [np.array([20, 21, 5]), np.array([7, 20, 22, 20, 21, 30, 31, 32]), np.array([40, 41, 42, 43])]
    inputs = reader_inputs([np.array([9, pieces.mask, 10])] * 3, bodies, pieces, max_query=8, max_length=40)
    hidden = model.reader.encoder(inputs)
    gold = standing([np.array([20, 21])] * 3, bodies, inputs)
    log_p, held = point(model.reader, hidden, inputs, gold)
    scores, allowed = model.reader.spans_from(hidden, inputs)
    expected = answer_log_likelihood(span_log_probabilities(scores, allowed), marked(gold, allowed))
    assert held.tolist() == [True, True, False]
    assert torch.allclose(log_p[held], expected[held], atol=1e-5)
    assert not point(model.reader, hidden, inputs, gold[:0])[1].any()


def test_layers_are_compiled_once_each_when_asked(tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path, monkeypatch: Any) -> None:
    compiled: list[torch.nn.Module] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda layer, dynamic: compiled.append(layer))
    plain = {"optim": JointOptim(steps=1, batch=8), "refresh": Refresh(every_steps=0), "k": 3}
    joint_run(tiny_model_folder, knowledge, tmp_path / "plain", **plain)
    assert not compiled
    joint_run(tiny_model_folder, knowledge, tmp_path / "run", loop=replace(LOOP, compile=True), **plain)
    model, _ = Realm.from_pretrained(tmp_path / "run" / "model")
    layers = len(model.reader.encoder.body.layers) + len(model.document.encoder.body.layers)
    assert len(compiled) == len({id(layer) for layer in compiled}) == layers


def test_a_glimpse_is_a_run_of_words_beside_what_is_hidden() -> None:
    rng, tokens = np.random.default_rng(0), np.arange(100, 140)
    for _ in range(200):
        positions = np.arange(start := int(rng.integers(38)), start + 2)
        seen = glimpse(tokens, positions, rng)
        assert 6 <= len(seen) < 17
        assert not set(seen.tolist()) & set(tokens[positions].tolist())
        rest = [token for token in tokens.tolist() if token not in tokens[positions]]
        first = rest.index(seen[0])
        assert seen.tolist() == rest[first : first + len(seen)]
        assert first <= start <= first + len(seen)
    assert glimpse(tokens[:3], np.array([1]), rng).tolist() == [100, 102]


def test_the_query_tower_gets_glimpses_and_the_reader_the_sentence(knowledge: Corpus) -> None:
    common: dict[str, Any] = {"scheme": "salient", "wordpieces": knowledge.wordpieces, "max_query": 32, "seed": 0}
    plain, some = (SentenceSource(knowledge, glimpses=share, **common).draw(40, 60) for share in (0.0, 0.5))
    assert [query.tolist() for query in plain.masked.queries] == [query.tolist() for query in some.masked.queries]
    assert [seen.tolist() for seen in plain.seen] == [query.tolist() for query in plain.masked.queries]
    changed = sum(seen.tolist() != query.tolist() for seen, query in zip(some.seen, some.masked.queries, strict=True))
    assert 15 < changed < 45


def test_only_recurring_words_are_hidden(tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--masking salient"):
        Pretrain(corpus=knowledge.folder, out=tmp_path / "run", recurring=True, masking="uniform")
    plain = {"optim": JointOptim(steps=2, batch=8), "refresh": Refresh(every_steps=0), "k": 3}
    joint_run(tiny_model_folder, knowledge, tmp_path / "run", recurring=True, **plain)
    assert (tmp_path / "run" / "model").is_dir()


# --- fine-tuning otherwise --------------------------------------------------------------------------------------------------------------


def test_the_best_place_alone() -> None:
    span = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3]]).log()[:, :, None]
    gold = torch.tensor([[True, False, True], [False, False, False]])[:, :, None]
    assert best_span_log_likelihood(span, gold).exp().tolist() == pytest.approx([0.5, 0.0])
    assert answer_log_likelihood(span, gold).exp().tolist() == pytest.approx([0.8, 0.0])


def asking(model: Realm, knowledge: Corpus, questions: list[Question], **settings: object) -> QuestionAnswering:
    gold = locate_answers(knowledge, questions)
    usual = {
        "read": 2,
        "read_gold": False,
        "candidates": 9,
        "objective": "marginal",
        "closed_book": 0.0,
        "frozen_index": True,
        "learning": [],
    }
    given = settings.pop("given", None)
    if callable(given):
        given = given(gold)
    return QuestionAnswering(model, knowledge.wordpieces, knowledge, None, gold, seed=0, given=given, **(usual | settings))  # type: ignore[arg-type]


def test_a_passage_with_the_answer_takes_the_last_place_read(
    tiny_model_folder: Path, knowledge: Corpus, world: Path, tmp_path: Path
) -> None:
    model, _ = Realm.from_pretrained(tiny_model_folder)
    questions = read_questions(world / "questions-train.jsonl")[:6]

    def wrong_first(gold: object) -> Given:
        ids = np.stack([[*[p for p in knowledge.ids[:40].tolist() if p not in q.gold][:8], q.gold[0]] for q in questions])
        return Given(ids.astype(np.int64), np.tile(np.linspace(2, 0, 9, dtype=np.float32), (6, 1)))

    shares = {}
    for read_gold in (False, True):
        objective = asking(model, knowledge, questions, given=wrong_first, read_gold=read_gold)
        with torch.no_grad():
            _, row = objective.loss(objective.draw(0, 6), 0, Clock(torch.device("cpu")))
        shares[read_gold] = float(row["gold_read"])
        assert set(objective.groups()) == {"reader"}
    assert shares[True] == 1.0
    assert shares[False] < 0.7


@pytest.mark.parametrize("objective", ["marginal", "hard-em"])
def test_a_reader_is_trained_on_matched_words(
    objective: str, tiny_model_folder: Path, knowledge: Corpus, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ExactIndex, "search", None)  # no vector is compared
    settings = Finetune(
        model=tiny_model_folder,
        corpus=knowledge.folder,
        questions=(world / "questions-train.jsonl", world / "questions-held-out.jsonl"),
        out=tmp_path / "run",
        retriever="bm25",
        objective=objective,  # type: ignore[arg-type]
        read=2,
        candidates=5,
        optim=JointOptim(steps=2, batch=4),
        loop=LOOP,
    )
    before, (after, _) = Realm.from_pretrained(tiny_model_folder)[0], Realm.from_pretrained(run_finetune(settings))
    assert torch.equal(before.document.projection.weight, after.query.projection.weight) or torch.equal(
        before.query.projection.weight, after.query.projection.weight
    )
    assert not torch.equal(before.reader.span_head.output.weight, after.reader.span_head.output.weight)


def test_answers_without_a_letter_are_not_looked_for(knowledge: Corpus, tmp_path: Path) -> None:
    word = knowledge[0].text.split()[0]
    gold = locate_answers(knowledge, [Question("Who?", (".", word))])
    found = {knowledge.wordpieces.decode(knowledge.tokens(0)[a:b]) for a, b in gold.spans(0, 0).tolist()}
    assert found == {word.lower()}


def test_patterns_are_looked_up_in_the_passages_that_come_up(knowledge: Corpus, tmp_path: Path) -> None:
    """The same places, whether located before or when they are asked for."""
    words = [knowledge[number].text.split()[1] for number in (0, 5, 9)]
    questions = [Question(f"Which is it, {word}?", (f"{word}|nowhere at all",), is_regex=True) for word in words]
    questions.insert(1, Question("Which?", (words[0],)))
    before, later = locate_answers(knowledge, questions), locate_answers(knowledge, questions, candidates=2)
    assert sorted(before.texts) == sorted(later.texts)
    ids = torch.from_numpy(knowledge.ids[:60])
    for number, text in enumerate(later.texts):
        twin = before.texts.index(text)
        assert torch.equal(later.holds(number, ids), before.holds(twin, ids))
        assert all(later.spans(number, p).tolist() == before.spans(twin, p).tolist() for p in ids.tolist())
    assert [len(answer) for answer in later.answers][1:] == [0, 0, 0]
    only = locate_answers(knowledge, questions[2:], candidates=2)
    assert len(only) == 2


def test_training_on_patterns_alone(tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path) -> None:
    rows = [f"{n}\tkind\tWhich is number {n}?\t{knowledge[n].text.split()[1]}" for n in range(12)]
    (tmp_path / "asked.tsv").write_text("\n".join(rows) + "\n")
    settings = Finetune(
        model=tiny_model_folder,
        corpus=knowledge.folder,
        questions=(tmp_path / "asked.tsv",),
        out=tmp_path / "run",
        read=2,
        candidates=3,
        optim=JointOptim(steps=2, batch=4),
        loop=LOOP,
    )
    run_finetune(settings)
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["closed_book"] == 0
    assert np.isfinite(row["loss"])


def test_only_words_that_another_passage_has_are_hidden(towns: Corpus) -> None:
    spans, recurring = Spans.open(towns), Spans.open(towns).recurring(towns)

    def words(sentence: MarkedSentence) -> list[tuple[int, ...]]:
        tokens = towns.tokens(sentence.passage)[sentence.start : sentence.end]
        return [tuple(tokens[start:end].tolist()) for start, end in sentence.spans.tolist()]

    places = defaultdict(set)
    for number in range(len(spans)):
        for hidden in words(spans[number]):
            places[hidden].add(spans[number].passage)
    kept = {(recurring[number].passage, hidden) for number in range(len(recurring)) for hidden in words(recurring[number])}
    assert kept == {(passage, hidden) for hidden, passages in places.items() if len(passages) > 1 for passage in passages}
    assert len(make_clozes(towns, count=3, max_query=32, seed=0, recurring=True)) == 3


def test_nothing_is_left_where_nothing_recurs(knowledge: Corpus, tmp_path: Path, towns: Corpus) -> None:
    (tmp_path / "one.jsonl").write_text(json.dumps({"title": "One", "text": "One bears a heron on its arms."}))
    corpus = build_corpus([tmp_path / "one.jsonl"], tmp_path / "corpus", tokenizer=str(towns.folder), workers=1)
    assert len(mark_spans(corpus, PhraseTagger(["heron"]), workers=1).recurring(corpus)) == 0
