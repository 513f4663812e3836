"""A step with everything on the device is the step it stands in for: same loss, same numbers, same gradients."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from realmlm.corpus.questions import Question, read_questions
from realmlm.corpus.store import Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.index.duplicates import SameWords
from realmlm.index.exact import ExactIndex, Hits
from realmlm.log import Clock
from realmlm.model import packed_heads
from realmlm.model.inputs import document_inputs, mask_queries, query_inputs, reader_inputs
from realmlm.model.packed import Packed, Size
from realmlm.model.realm import Realm
from realmlm.model.resident import Queries, Resident
from realmlm.reading.packed import MaskedBatch, flatten, pair_size, read_spans_packed, rows_of, standing_in
from realmlm.reading.read import SpanReading, join, places_of, read_spans
from realmlm.reading.retrieve import Offered
from realmlm.settings import Finetune, JointOptim, Optim, Pretrain, Refresh, Warmup
from realmlm.sources.article import Article
from realmlm.train.asker import Asker
from realmlm.train.data import ReadingPairs, SentenceSource
from realmlm.train.gold import locate_answers
from realmlm.train.hits import Candidates, matches_of_fixed_towers
from realmlm.train.objective import Mean, Objective
from realmlm.train.objectives.contrast import PassageContrast
from realmlm.train.objectives.joint import JointPretraining
from realmlm.train.objectives.masked import MaskedReading
from realmlm.train.objectives.questions import QuestionAnswering
from realmlm.train.pairs import QuestionPairs
from realmlm.train.teaching import Teacher
from tests.calls import create_model
from tests.conftest import TINY_MODEL
from tests.train.test_teaching import foreign

CPU = torch.device("cpu")


def resident_of(model: Realm, corpus: Corpus) -> Resident:
    resident = Resident.of(corpus, model.config, model.wordpieces, device=CPU)
    assert resident is not None
    return resident


def same_sequences(packed: Packed, inputs: Any) -> None:
    """As many wordpieces, in the same order, whatever the padding."""
    whole = Packed.of(inputs)
    count = len(whole.tokens_T)
    for name in ("tokens_T", "columns_T", "segments_T", "rows_T"):
        assert torch.equal(getattr(packed, name)[:count], getattr(whole, name)), name
    for name in ("starts_N", "lengths_N", "second_N"):
        assert torch.equal(getattr(packed, name), getattr(whole, name)), name
    assert (packed.rows_T[count:] == len(whole)).all()


def test_what_is_joined_on_the_device_is_what_is_joined_on_the_host(
    tiny_model: Realm, knowledge: Corpus, tmp_path: Path
) -> None:
    shutil.copytree(knowledge.folder, tmp_path / "edited")
    corpus = Corpus.open(tmp_path / "edited")
    corpus, (added,) = corpus.edit(
        add=[Article("A new town", "The otter is the bird of the harbour.")],
        replace={3: Article("Three", "The mole lives in the tower.")},
        remove=[5],
    )
    ids = np.array([0, 3, added, 7, 3])
    queries = [corpus.tokens(number)[:9] for number in ids[::-1]]
    wordpieces = tiny_model.wordpieces
    bodies = [corpus.tokens(number) for number in ids]
    titles = [corpus.title_tokens(number) for number in ids]
    resident = resident_of(tiny_model, corpus)
    longest = tiny_model.config.max_document
    size = Size.fitting(sum(map(len, bodies)) + 200, grain=64, longest=longest)
    size = Size(size.total, longest, size.total)
    given = document_inputs(titles, bodies, wordpieces, max_length=longest)
    same_sequences(resident.documents(torch.from_numpy(ids), size), given)
    held = Queries.of(queries, width=8, device=CPU)
    same_sequences(resident.queries(held, size), query_inputs(queries, wordpieces, max_query=8))
    for read_titles in (False, True):
        for longest in (25, 300):
            config = SimpleNamespace(
                max_document=tiny_model.config.max_document, max_joint=longest, read_titles=read_titles
            )
            own = Resident(corpus.flat_tokens(), config, wordpieces, device=CPU)
            heads = titles if read_titles else None
            given = reader_inputs(queries, bodies, wordpieces, titles=heads, max_query=8, max_length=longest)
            rows = torch.arange(len(ids))
            packed = own.pairs(held, rows, torch.from_numpy(ids), size)
            same_sequences(packed, given)
            assert torch.equal(own.pair_lengths(held, rows, torch.from_numpy(ids)), packed.lengths_N)


def test_the_null_document_is_empty(tiny_model: Realm, knowledge: Corpus) -> None:
    nothing = np.zeros(0, dtype=np.int64)
    longest = tiny_model.config.max_document
    given = document_inputs([nothing], [nothing], tiny_model.wordpieces, max_length=longest)
    resident = resident_of(tiny_model, knowledge)
    same_sequences(resident.documents(torch.tensor([-1]), Size(9, longest, 9)), given)


Stepped = tuple[float, dict[str, float], dict[str, torch.Tensor]]
"""Loss, numbers and gradients."""


def stepped(model: Realm, objective: Objective, drawn: Any) -> Stepped:
    model.zero_grad()
    loss, numbers = objective.loss(drawn, 9999, Clock())
    loss.backward()
    learned = model.named_parameters()
    gradients = {name: weight.grad.clone() for name, weight in learned if weight.grad is not None}
    return float(loss.detach()), {name: float(Mean.of(value)) for name, value in numbers.items()}, gradients


def same_step(one: Stepped, other: Stepped) -> dict[str, float]:
    loss, numbers, gradients = one
    other_loss, other_numbers, other_gradients = other
    assert other_loss == pytest.approx(loss, rel=1e-6)
    assert other_numbers == pytest.approx(numbers, rel=1e-5, abs=1e-6)
    assert other_gradients.keys() == gradients.keys()
    whole = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
    for name, gradient in gradients.items():
        assert (other_gradients[name] - gradient).norm() < 1e-6 * whole, name
    return numbers


@pytest.mark.parametrize(
    ("family", "changed"),
    [
        ("modernbert", {"pointing": 1.0}),
        ("bert", {"pointing": 0.5, "glimpses": 0.5}),
        ("bert", {"pointing": 0.0, "marginal": "per-token"}),
        ("bert", {"pointing": 1.0, "null_document": False, "masking": "uniform"}),
        ("bert", {"pointing": 1.0, "own_passage": True}),
        ("bert", {"pointing": 1.0, "retriever_target": "perplexity", "scale_lr": 0.1}),
        ("bert", {"retriever_target": "posterior"}),
        ("bert", {"search_with": "index"}),
        ("bert", {"pointing": 1.0, "in_batch": 0.5}),
        ("bert", {"in_batch": 0.5, "null_document": False, "own_passage": True}),
    ],
)
def test_the_same_step(family: str, changed: dict[str, Any], knowledge: Corpus, tmp_path: Path) -> None:
    how = {**TINY_MODEL, "family": family, "read_titles": family == "bert"}
    model = create_model(corpus=knowledge.folder, out=tmp_path / "model", **how).eval()
    settings = Pretrain(out=Path("unused"), **{"k": 4, "masking": "salient", **changed})
    if settings.scale_lr:
        model.learn_scale()
    source = SentenceSource(knowledge, settings.masking, max_query=32, seed=0, glimpses=settings.glimpses)
    drawn = torch.from_numpy(source.draw(16, 6).passages)

    def search(query_BD: torch.Tensor, k: int, *, exclude_QE: torch.Tensor | None) -> Hits:
        """A passage that all are offered, and some that begin with the one a sentence was taken from."""
        ids = (drawn[:, None] + torch.arange(k)) % len(knowledge)
        ids[:, -1] = 0
        searched.append(query_BD)
        return Hits(torch.zeros(ids.shape), ids)

    searched: list[torch.Tensor] = []
    older = create_model(corpus=knowledge.folder, out=tmp_path / "older", **how | {"seed": 9}).eval()
    asker = Asker(older.query) if settings.search_with == "index" else None
    live = SimpleNamespace(index=SimpleNamespace(search=search), asker=asker)
    own = None if settings.own_passage else SameWords(knowledge, knowledge)

    def one_step(packed: bool) -> Stepped:
        objective = JointPretraining(settings, model, knowledge, source, live, own=own)  # type: ignore[arg-type]
        objective.resident = resident_of(model, knowledge) if packed else None
        return stepped(model, objective, objective.draw(16, 6))

    numbers = same_step(one_step(packed=False), one_step(packed=True))
    assert not settings.pointing or numbers["held"] > 0
    torch.testing.assert_close(*searched)
    with torch.no_grad():
        by_older_BD = older.query(older.query_inputs(source.draw(16, 6).seen))
    assert torch.allclose(searched[0], by_older_BD, atol=1e-5) == (asker is not None)


@pytest.mark.parametrize(("family", "pointing"), [("modernbert", 1.0), ("bert", 0.0)])
def test_the_same_warm_up(family: str, pointing: float, knowledge: Corpus, tmp_path: Path) -> None:
    how = {**TINY_MODEL, "family": family, "read_titles": family == "bert"}
    model = create_model(corpus=knowledge.folder, out=tmp_path / "model", **how).eval()
    source = SentenceSource(knowledge, "salient", max_query=32, seed=0)
    pairs = ReadingPairs(source, pairing="own", seed=0)
    settings = Warmup(out=Path("unused"), pointing=pointing)

    def one_step(packed: bool) -> Stepped:
        objective = MaskedReading(settings, model, knowledge, pairs)
        objective.resident = resident_of(model, knowledge) if packed else None
        return stepped(model, objective, objective.draw(16, 12))

    same_step(one_step(packed=False), one_step(packed=True))


def judging(model: Realm) -> Realm:
    """The model with a head that judges passages, as if it had learned."""
    model.learn_passage_logit()
    assert isinstance(model.reader.passage_head, nn.Linear)
    nn.init.normal_(model.reader.passage_head.weight, generator=torch.Generator().manual_seed(0))
    return model


@pytest.mark.parametrize("reading", ["paper", "together"])
@pytest.mark.parametrize("titles", ["unread", "read", "answers"])
def test_the_same_spans(
    reading: str, titles: str, knowledge: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = {**TINY_MODEL, "family": "bert", "read_titles": titles != "unread", "reading": reading}
    model = judging(create_model(corpus=knowledge.folder, out=tmp_path / "model", **how).eval())
    if titles == "answers":
        model.allow_title_answers()
    monkeypatch.setattr(packed_heads, "AT_ONCE", 50)
    ids_BK = knowledge.ids[:12].reshape(3, 4)
    queries = [knowledge.tokens(number)[:40] for number in (20, 21, 22)]
    scores_N = torch.linspace(0, 3, 12)
    with torch.no_grad():
        inputs = join(model, queries, Offered(knowledge, ids_BK, null=False))
        padded = read_spans(model, inputs, scores_N)
        resident = resident_of(model, knowledge)
        size = pair_size(model, knowledge, queries, ids_BK)
        held = Queries.of(queries, width=model.config.max_query, device=CPU)
        ids_N = torch.from_numpy(ids_BK)
        joined = resident.pairs(held, rows_of(ids_N), ids_N.flatten(), size)
        found = read_spans_packed(model, joined, scores_N)
    assert int(joined.lengths_N.sum()) <= size.total
    assert torch.allclose(found.weight_N, padded.weight_N, atol=1e-5)
    assert found.logit_N is not None
    assert padded.logit_N is not None
    assert found.logit_N.std() > 0.1
    assert torch.allclose(found.logit_N, padded.logit_N, atol=1e-5)
    for row, number in enumerate(ids_BK.flat):
        one, other = spans_of(padded, row), spans_of(found, row)
        assert one == pytest.approx(other, abs=1e-5)
        words = [knowledge.tokens(number)]
        words += [knowledge.title_tokens(number)] if titles == "answers" else []
        assert len(one) == sum(len(text) - width for text in words for width in range(min(10, len(text))))
        assert min(first for first, _ in one) == (0 if titles != "answers" else -len(words[1]))


def spans_of(reading: SpanReading, row: int) -> dict[tuple[int, int], float]:
    """log p of the spans of a passage, by first wordpiece and width."""
    columns_S, widths_S = (reading.log_NLW[row] > -torch.inf).nonzero().T
    firsts_S = reading.firsts(columns_S.expand(len(reading.log_NLW), -1))[row]
    log_p = reading.log_NLW[row, columns_S, widths_S].tolist()
    return dict(zip(zip(firsts_S.tolist(), widths_S.tolist(), strict=True), log_p, strict=True))


@pytest.mark.parametrize(
    "changed",
    [
        {"closed_book": 0.1},
        {"objective": "hard-em", "read_gold": True},
        {"refresh": Refresh(every_steps=5)},
        {"retriever": "bm25"},
        {"scale_lr": 0.1, "optim": JointOptim(retriever_lr=0)},
        {"in_batch": 0.5, "retriever_target": "posterior"},
        {"in_batch": 0.5, "retriever_target": "perplexity", "refresh": Refresh(every_steps=5)},
        {"passage_logit": True, "title_answers": True, "judging": 0.5},
        {"passage_logit": True, "title_answers": True, "reading": "paper"},
        {"passage_logit": True, "title_answers": True, "teacher": "given", "retriever_target": "teacher"},
        {"passage_logit": True, "title_answers": True, "teacher": "foreign", "retriever_target": "teacher"},
    ],
    ids=[
        "frozen index",
        "hard EM",
        "both towers",
        "matched words",
        "found once",
        "in batch",
        "in batch, both towers",
        "judged",
        "judged within passages",
        "taught",
        "taught in other wordpieces",
    ],
)
def test_the_same_fine_tuning(
    changed: dict[str, Any], knowledge: Corpus, world: Path, tmp_path: Path
) -> None:
    how = {**TINY_MODEL, "family": "bert", "read_titles": True, "reading": "together"}
    model = create_model(corpus=knowledge.folder, out=tmp_path / "model", **how).eval()
    asked = read_questions(world / "questions-train.jsonl")[:12]
    answer = asked[0].answers[0]
    asked.append(
        replace(asked[0], context=f"It is said that {answer} is meant, {answer} alone.", title="Said")
    )
    settings = Finetune(questions=(), out=Path("unused"), candidates=30, read=4, **changed)
    if settings.passage_logit:
        model = judging(model)
        model.allow_title_answers()
        asked.append(Question("Which place is this?", tuple(sorted(knowledge.titles()))))
        model.config = replace(model.config, reading=settings.reading or "together")
    gold = locate_answers(knowledge, asked, titles=settings.title_answers)
    vectors = torch.randn(len(knowledge), 32, generator=torch.Generator().manual_seed(0))
    live: Any = SimpleNamespace(index=ExactIndex(vectors, torch.from_numpy(knowledge.ids)))
    matched = None
    if settings.retriever == "bm25":
        ids = np.tile(knowledge.ids[:30], (len(gold), 1))
        matched = Candidates(ids, np.tile(np.linspace(3, 0, 30, dtype=np.float32), (len(gold), 1)))
    if settings.scale_lr:
        model.learn_scale()
        everyone = np.arange(len(gold))
        matched = matches_of_fixed_towers(
            model, live.index, knowledge, gold, everyone, candidates=30, scale_learns=True
        )

    teacher = None
    if settings.teacher:
        if settings.teacher.name == "foreign":
            pieces = Wordpieces.train([knowledge.text(number) for number in knowledge.ids[:40].tolist()], 150)
            other = judging(foreign(pieces, tmp_path))
        else:
            other = judging(
                create_model(corpus=knowledge.folder, out=tmp_path / "given", **how | {"seed": 7})
            )
        other.allow_title_answers()
        # it reads as long passages as its student, whatever it was made for
        other.config = replace(other.config, reading="paper", trained_on_questions=True, max_passage=300)
        teacher = Teacher(other, model, gold.corpus, name="teacher")
        assert teacher.same_wordpieces == (settings.teacher.name == "given")

    def one_step(packed: bool) -> Stepped:
        objective = QuestionAnswering(settings, model, knowledge, live, gold, learning=[], given=matched)
        objective.teacher = teacher
        objective.prepare(model)
        objective.resident = resident_of(model, gold.corpus) if packed else None
        return stepped(model, objective, np.arange(len(gold)))

    padded = one_step(packed=False)
    numbers = same_step(padded, one_step(packed=True))
    assert ("query.log_scale" in padded[2]) == (settings.scale_lr > 0)
    assert numbers["gold_read"] > 0
    assert ("judged" in numbers) == settings.passage_logit
    assert (numbers.get("from_teacher", 0) > 0) == bool(settings.teacher)


def test_the_same_fine_tuning_where_all_answers_are_patterns(
    knowledge: Corpus, world: Path, tmp_path: Path
) -> None:
    """As in CuratedTREC: what a pattern stands for is not known, so there is nothing to learn by heart."""
    how = {**TINY_MODEL, "family": "bert", "reading": "together"}
    model = create_model(corpus=knowledge.folder, out=tmp_path / "model", **how).eval()
    asked = [
        replace(question, answers=tuple(map(re.escape, question.answers)), is_regex=True)
        for question in read_questions(world / "questions-train.jsonl")[:6]
    ]
    settings = Finetune(questions=(), out=Path("unused"), candidates=len(knowledge), read=4, read_gold=True)
    gold = locate_answers(knowledge, asked, candidates=1)
    assert not any(map(len, gold.answers))
    vectors = torch.randn(len(knowledge), 32, generator=torch.Generator().manual_seed(0))
    live: Any = SimpleNamespace(index=ExactIndex(vectors, torch.from_numpy(knowledge.ids)))

    def one_step(packed: bool) -> Stepped:
        objective = QuestionAnswering(settings, model, knowledge, live, gold, learning=[])
        objective.prepare(model)
        objective.resident = resident_of(model, gold.corpus) if packed else None
        return stepped(model, objective, np.arange(len(gold)))

    numbers = same_step(one_step(packed=False), one_step(packed=True))
    assert numbers["gold_read"] > 0
    assert numbers["closed_book"] == 0


@pytest.mark.parametrize(("family", "pooling"), [("modernbert", "mean"), ("bert", "cls")])
def test_the_same_contrast(family: str, pooling: str, knowledge: Corpus, world: Path, tmp_path: Path) -> None:
    how = {**TINY_MODEL, "family": family, "pooling": pooling}
    model = create_model(corpus=knowledge.folder, out=tmp_path / "model", **how).eval()
    model.learn_scale()
    asked = read_questions(world / "questions-train.jsonl")[:12]
    asked.append(replace(asked[0], context=f"It is {asked[0].answers[0]}, they say.", title="Said"))
    gold = locate_answers(knowledge, asked)
    # all passages are found, but for one question: it has fewer wrong ones than are wanted
    hits = np.stack([np.roll(knowledge.ids, -7 * number) for number in range(len(gold))])
    hits[0] = knowledge.ids[gold.holds(0, knowledge.ids)][0]
    pairs = QuestionPairs(gold, hits, negatives=2, seed=0)

    def one_step(packed: bool) -> Stepped:
        objective = PassageContrast(model, gold.corpus, pairs, optim=Optim(), scale_lr=0.1, bf16=True)
        objective.resident = resident_of(model, gold.corpus) if packed else None
        return stepped(model, objective, objective.draw(0, len(gold)))

    padded = one_step(packed=False)
    same_step(padded, one_step(packed=True))
    assert padded[2]["query.log_scale"].abs() > 0


def test_hidden_words_stand_where_the_host_says(tiny_model: Realm, towns: Corpus, tmp_path: Path) -> None:
    """Runs of a corpus's own wordpieces, looked for in all its passages; every third makes words longer."""
    pieces = towns.wordpieces
    model = create_model(corpus=towns.folder, out=tmp_path / "model", **TINY_MODEL)
    bodies = towns.tokens_of(towns.ids).bodies
    rng = np.random.default_rng(0)
    queries = []
    hidden = []
    for _ in range(200):
        body = bodies[rng.integers(len(bodies))]
        start = int(rng.integers(len(body) - 4))
        queries.append(body)
        hidden.append(np.arange(start, start + int(rng.integers(1, 4))))
    masked = mask_queries(queries, hidden, pieces)
    widths = model.config.max_answer
    array, shape = flatten(masked, queries, np.full((200, 1), -1), max_query=32, widths=widths)
    batch = MaskedBatch.of(torch.from_numpy(array), shape)
    ids_BK = torch.from_numpy(towns.ids)[None].repeat(200, 1)
    resident = resident_of(model, towns)
    lengthens = rng.random(len(pieces)) < 1 / 3
    assert resident.lengthens_V.tolist() == pieces.lengthens.tolist()
    resident.lengthens_V = torch.from_numpy(lengthens)
    found_NJ = standing_in(resident, batch, ids_BK, widest=model.config.max_passage)
    rows = iter(found_NJ)
    less = 0
    for words in masked.runs(widths):
        assert words is not None
        for body in bodies:
            places = places_of(words, body, lengthens)
            assert next(rows).nonzero()[:, 0].tolist() == places.tolist()
            less += len(places_of(words, body, np.zeros_like(lengthens))) - len(places)
    assert less > 100
    assert found_NJ.sum() > 100
