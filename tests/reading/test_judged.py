"""Passages that the reader judges, and titles as answers: against plain sums over passages and spans."""

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from realmlm.corpus.questions import read_questions
from realmlm.corpus.store import Corpus
from realmlm.engine import Engine
from realmlm.errors import BadInput, Mismatch
from realmlm.evaluation.measure import measure
from realmlm.interop.layout import their_config
from realmlm.model.int8 import Int8Linear
from realmlm.model.quick import EIGHT_BITS
from realmlm.model.realm import Realm
from realmlm.model.resident import Resident
from realmlm.reading.answer import Answerer
from realmlm.reading.retrieve import LearnedRetriever, index_of
from tests.calls import build_corpus, create_model, graft
from tests.conftest import TINY_MODEL


def taught(model: Realm) -> Realm:
    """The model with a head that judges passages, as if it had learned."""
    model.learn_passage_logit()
    assert isinstance(model.reader.passage_head, nn.Linear)
    nn.init.normal_(model.reader.passage_head.weight, generator=torch.Generator().manual_seed(0))
    model.reader.passage_head.requires_grad_(False)
    return model


@pytest.fixture(params=["paper", "together"])
def model(request: pytest.FixtureRequest, knowledge: Corpus, tmp_path: Path) -> Realm:
    how = {**TINY_MODEL, "family": "bert", "read_titles": True, "reading": request.param}
    return taught(create_model(corpus=knowledge.folder, out=tmp_path / "plain", **how).eval())


def answering(model: Realm, corpus: Corpus, folder: Path, *, rerank: int = 0) -> Answerer:
    index = index_of(model, corpus, path=folder / "index", kind="exact", dtype=torch.float32).index
    return Answerer(model, corpus, LearnedRetriever(model, index), rerank=rerank)


def judged(answerer: Answerer, question: str, passage: int) -> float:
    """g(x,z) of one passage, read alone."""
    model = answerer.model
    tokens = (
        [answerer.query(question).tokens],
        [answerer.corpus.title_tokens(passage)],
        [answerer.corpus.tokens(passage)],
    )
    inputs = model.reader_inputs(*tokens)
    head = model.reader.passage_head
    assert isinstance(head, nn.Linear)
    return float(model.reader.encoder(inputs)[0, 0] @ head.weight[0] + head.bias[0])


def weight(answerer: Answerer, question: str, passage: int) -> float:
    """What the reader adds to f(x,z) of one passage, read alone."""
    model = answerer.model
    tokens = (
        [answerer.query(question).tokens],
        [answerer.corpus.title_tokens(passage)],
        [answerer.corpus.tokens(passage)],
    )
    scores, allowed = model.reader.spans(model.reader_inputs(*tokens))
    total = float(scores[allowed].logsumexp(0)) if model.config.weighs_together else 0.0
    return judged(answerer, question, passage) + total


@torch.no_grad()
def test_answers_are_sums_over_judged_passages_their_titles_and_their_bodies(
    model: Realm, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("realmlm.reading.answer.SPANS_KEPT", 10_000)
    monkeypatch.setattr("realmlm.reading.combine.OTHERS", 10_000)
    articles = {"Heron beasts": "heron otter heron", "": "otter heron", "Heron": "beasts and otter"}
    lines = [json.dumps({"title": title, "text": text}) for title, text in articles.items()]
    (tmp_path / "beasts.jsonl").write_text("\n".join(lines), "utf-8")
    corpus = build_corpus(
        [tmp_path / "beasts.jsonl"],
        tmp_path / "corpus",
        tokenizer=str(world / "tokenizer.json"),
        max_wordpieces=64,
        workers=1,
    )
    model.allow_title_answers()
    answerer = answering(model, corpus, tmp_path)
    query = answerer.query("Which animal is the symbol of Tekebra?")
    retrieved = answerer.retriever([query], 3)
    found = []  # weight of its passage, words, exp score
    for score, number in zip(retrieved.scores_BK[0].tolist(), retrieved.ids_BK[0].tolist(), strict=True):
        passage = corpus[number]
        title = corpus.title_tokens(number)
        inputs = model.reader_inputs([query.tokens], [title], [corpus.tokens(number)])
        scores, _ = model.reader.spans(inputs)
        logit = judged(answerer, query.text, number)
        body = int(inputs.second_N[0])
        texts = [(passage.text, corpus.token_chars(number), body)]
        texts += [(passage.title, corpus.title_chars(number), body - 1 - len(title))] if len(title) else []
        for text, chars, column in texts:
            for first in range(len(chars)):
                for last in range(first, min(first + 10, len(chars))):
                    value = scores[0, column + first, last - first].exp().item()
                    words = text[chars[first, 0] : chars[last, 1]].casefold()
                    found.append((number, float(np.exp(score + logit)), words, value))
    weights = {number: weight for number, weight, _, _ in found}
    masses: defaultdict[int, float] = defaultdict(float)
    for number, _, _, value in found:
        masses[number] += value
    share = {  # p(z|x)
        number: weight * (masses[number] if model.config.weighs_together else 1)
        for number, weight in weights.items()
    }
    total: defaultdict[str, float] = defaultdict(float)
    for number, _, words, value in found:
        total[words] += share[number] / sum(share.values()) * value / masses[number]
    (answer,) = answerer.ask([query.text], read=3)
    given = {answer.answer: answer.probability} | {other.words: other.probability for other in answer.others}
    said = {words.casefold(): p for words, p in given.items()}
    assert len(said) > 2  # of spans that overlap only the likeliest is named
    assert said == pytest.approx({words: total[words] for words in said}, abs=1e-5)
    assert answer.probability == pytest.approx(max(total.values()), abs=1e-5)
    for item in answer.evidence:
        assert item.passage_id is not None
        assert item.passage_logit == pytest.approx(judged(answerer, query.text, item.passage_id), abs=1e-4)
        assert item.retrieval_probability == pytest.approx(
            share[item.passage_id] / sum(share.values()), abs=1e-5
        )


@torch.no_grad()
def test_an_answer_in_a_title_alone_is_shown_as_the_title_writes_it(
    model: Realm, knowledge: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every span of a body is forbidden: what is left stands in the title."""
    model.allow_title_answers()
    allowed = type(model.reader.span_head).allowed

    def titles_alone(head: nn.Module, inputs: object, *, titles: bool = False) -> torch.Tensor:
        every = allowed(head, inputs, titles=True)  # type: ignore[arg-type]
        return every & ~allowed(head, inputs)  # type: ignore[arg-type]

    monkeypatch.setattr(type(model.reader.span_head), "allowed", titles_alone)
    answerer = answering(model, knowledge, tmp_path)
    (answer,) = answerer.ask(["Which town has a harbour?"], read=4)
    assert answer.answer
    assert any(answer.answer in item.title for item in answer.evidence)
    assert all(item.start is None for item in answer.evidence)
    assert answer.answer in str(answer)


@torch.no_grad()
def test_the_best_of_those_reranked_are_answered_from(
    model: Realm, knowledge: Corpus, tmp_path: Path
) -> None:
    questions = ["Which animal is the symbol of Tekebra?", "Who built the harbour?"]
    answerer = answering(model, knowledge, tmp_path, rerank=12)
    packed = answering(model, knowledge, tmp_path, rerank=12)
    packed.resident = Resident.of(knowledge, model.config, model.wordpieces, device=model.device)
    for question, answer, other in zip(
        questions, answerer.ask(questions, read=3), packed.ask(questions, read=3), strict=True
    ):
        retrieved = answerer.retriever([answerer.query(question)], 12)
        score = {
            number: f + weight(answerer, question, number)
            for number, f in zip(retrieved.ids_BK[0].tolist(), retrieved.scores_BK[0].tolist(), strict=True)
        }
        best = sorted(score, key=score.__getitem__, reverse=True)[:3]
        assert {item.passage_id for item in answer.evidence} == set(best) != set(list(score)[:3])
        assert sum(item.retrieval_probability for item in answer.evidence) == pytest.approx(1, abs=1e-5)
        # 3 passages: their weights within those, as if they alone had been retrieved
        assert answer.relevance == pytest.approx(float(retrieved.scores_BK.max()), abs=1e-5)
        assert (other.answer, other.probability) == (
            answer.answer,
            pytest.approx(answer.probability, abs=1e-5),
        )
    assert answerer.ask(questions[:1], read=12) == answering(model, knowledge, tmp_path).ask(
        questions[:1], read=12
    )
    filled = answerer.fill(["The history of Tekebra begins in [MASK]."], read=2)
    assert filled == answering(model, knowledge, tmp_path).fill(
        ["The history of Tekebra begins in [MASK]."], read=2
    ), "a sentence is no question: nothing judges its passages"


@torch.no_grad()
def test_recall_is_that_of_the_new_order(
    model: Realm, knowledge: Corpus, world: Path, tmp_path: Path
) -> None:
    asked = read_questions(world / "questions-held-out.jsonl")[:3]
    plain, reranked = (
        list(measure(answering(model, knowledge, tmp_path, rerank=rerank), asked, read=2, recall="dpr"))
        for rerank in (0, 20)
    )
    answerer = answering(model, knowledge, tmp_path)
    for question, old, new in zip(asked, plain, reranked, strict=True):
        retrieved = answerer.retriever([answerer.query(question.text)], len(old.found))
        ids = retrieved.ids_BK[0].tolist()
        rank = [
            -f - weight(answerer, question.text, number)
            for number, f in zip(ids[:20], retrieved.scores_BK[0].tolist(), strict=False)
        ]
        order = [ids[place] for place in np.argsort(rank)] + ids[20:]
        assert new.gold == [number in question.gold for number in order]
        assert old.gold == [number in question.gold for number in ids]
        assert new.answer is not None
        assert {item.passage_id for item in new.answer.evidence} == set(order[:2])


def test_a_model_that_does_not_judge_cannot_rerank(tiny_model_folder: Path, knowledge: Corpus) -> None:
    with pytest.raises(BadInput, match="fine-tune it with --passage-logit, or leave out --rerank"):
        Engine(tiny_model_folder, knowledge.folder, rerank=20, device="cpu")


def test_a_fresh_head_changes_nothing_and_is_stored(knowledge: Corpus, tmp_path: Path) -> None:
    how = {**TINY_MODEL, "family": "bert", "read_titles": True}
    model = create_model(corpus=knowledge.folder, out=tmp_path / "plain", **how).eval()
    before = answering(model, knowledge, tmp_path).ask(["Who built the harbour?"])
    state = torch.random.get_rng_state()
    model.learn_passage_logit()
    assert torch.equal(torch.random.get_rng_state(), state), "no weight is drawn"
    after = answering(model, knowledge, tmp_path).ask(["Who built the harbour?"])
    assert [item.passage_logit for item in before[0].evidence] == [None] * 5
    assert [item.passage_logit for item in after[0].evidence] == [0.0] * 5
    assert before[0].probability == after[0].probability
    assert "g(x,z)" not in before[0].text(numbers=True)
    assert after[0].text(numbers=True).count("g(x,z) +0.0") == 5
    taught(model).save_pretrained(tmp_path / "judging")
    again = Realm.from_pretrained(tmp_path / "judging")
    assert again.config.passage_logit
    head = again.reader.passage_head
    assert isinstance(head, nn.Linear)
    assert torch.equal(head.weight, model.own_state()["reader.passage_head.weight"])
    plain = Realm.from_pretrained(tmp_path / "plain")
    assert plain.reader.passage_head is None
    assert again.own_state().keys() - plain.own_state().keys() == {
        "reader.passage_head.weight",
        "reader.passage_head.bias",
    }
    graft(towers=tmp_path / "plain", reader=tmp_path / "judging", out=tmp_path / "graft")
    assert Realm.from_pretrained(tmp_path / "graft").config.passage_logit


def test_transformers_has_no_place_for_it(knowledge: Corpus, tmp_path: Path) -> None:
    how = {**TINY_MODEL, "family": "bert", "reading": "released"}
    model = create_model(corpus=knowledge.folder, out=tmp_path / "plain", **how)
    config = vars(model.config)
    assert their_config(config, architecture="RealmReader", blocks=None)
    with pytest.raises(Mismatch, match="passage_logit = True"):
        their_config(config | {"passage_logit": True}, architecture="RealmReader", blocks=None)


def test_what_cannot_be_judged_or_answered_is_refused(tiny_model: Realm) -> None:
    with pytest.raises(BadInput, match="reads no titles"):
        tiny_model.allow_title_answers()
    tiny_model.wordpieces.pair = replace(tiny_model.wordpieces.pair, cls=None)
    with pytest.raises(BadInput, match="leave out --passage-logit"):
        tiny_model.learn_passage_logit()


@torch.inference_mode()
def test_8_bits_judge_as_float32_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    taught(Realm.from_pretrained()).save_pretrained(tmp_path / "judging", dtype="int8")
    monkeypatch.setattr("realmlm.model.encoders.fastest", lambda int8: EIGHT_BITS if int8 else None)
    plain = Realm.from_pretrained(tmp_path / "judging")
    quick = Realm.from_pretrained(tmp_path / "judging", int8=True)
    quick.compute_quickly()
    assert isinstance(quick.reader.passage_head, Int8Linear)
    asked = [plain.wordpieces.encode(text) for text in ("Which bird wades?", "Who made a table in 1869?")]
    titles = [plain.wordpieces.encode(text) for text in ("Heron", "Dmitri Mendeleev")]
    bodies = [
        plain.wordpieces.encode("The heron is a long-legged wading bird of lakes and rivers."),
        plain.wordpieces.encode("In 1869 Mendeleev published a table of the elements."),
    ]
    pairs = [(one, other) for one in range(2) for other in range(2)]
    inputs = plain.reader_inputs(
        [asked[one] for one, _ in pairs], [titles[other] for _, other in pairs], [bodies[o] for _, o in pairs]
    )
    exact_N, quick_N = (
        model.reader.passage_logits(model.reader.encoder(inputs), inputs) for model in (plain, quick)
    )
    assert exact_N is not None
    assert quick_N is not None
    assert not torch.equal(exact_N, quick_N)
    assert torch.allclose(exact_N, quick_N, atol=0.05 * float(exact_N.std() + exact_N.abs().mean()))
