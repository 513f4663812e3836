"""Joint pre-training otherwise: without the null document, pointing, glimpses, another text."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from realmlm.corpus.questions import Question, write_questions
from realmlm.corpus.spans import mark_spans, rule_tagger
from realmlm.corpus.store import Corpus
from realmlm.errors import BadInput
from realmlm.evaluation.clozes import make_clozes, measure_clozes
from realmlm.index.duplicates import SameWords, share_cut_otherwise
from realmlm.index.exact import ExactIndex, Hits
from realmlm.log import Clock, read_metrics
from realmlm.model.inputs import NULL, reader_inputs
from realmlm.model.marginal import answer_log_likelihood, span_log_probabilities, span_mask
from realmlm.model.realm import Realm
from realmlm.reading.answer import Answerer
from realmlm.reading.read import (
    MaskReading,
    join,
    places_of,
    point,
    pointing_log_likelihood,
    read_masks,
    standing,
)
from realmlm.reading.retrieve import Offered, embed_documents
from realmlm.settings import JointOptim, Loop, Pretrain, Refresh
from realmlm.sources.article import Article
from realmlm.train.data import SentenceSource, glimpse
from realmlm.train.objective import Numbers
from realmlm.train.objectives.joint import JointPretraining
from tests.calls import build_corpus, evaluate, run_pretrain
from tests.train.test_resume import joint_run

LOOP = Loop(threads=1, device="cpu", log_every=1)


def test_without_the_null_document_and_with_the_own_passage(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path
) -> None:
    plain = {"optim": JointOptim(steps=2, batch=8), "refresh": Refresh(every_steps=0), "k": 3}
    joint_run(
        tiny_model_folder, knowledge, tmp_path / "no-null", null_document=False, own_passage=True, **plain
    )
    row = json.loads((tmp_path / "no-null" / "metrics.jsonl").read_text().splitlines()[-1])
    assert "null_share" not in row
    assert "log_p" in row
    write_questions(tmp_path / "held.jsonl", make_clozes(knowledge, count=10, max_query=32, seed=0))
    asked: dict[str, Any] = {
        "corpus": knowledge.folder,
        "questions": tmp_path / "held.jsonl",
        "read": 3,
        "device": "cpu",
    }
    report = evaluate(
        model=tmp_path / "no-null" / "model", predictions=tmp_path / "predictions.jsonl", **asked
    )
    for line in (tmp_path / "predictions.jsonl").read_text("utf-8").splitlines():
        shares = {item["passage_id"]: item["retrieval_probability"] for item in json.loads(line)["evidence"]}
        assert shares.pop(None) == 0, "no weight when it is measured either"
        assert sum(shares.values()) == pytest.approx(1, abs=1e-3)
    assert np.isfinite(report.nats["retrieval utility"].value), "what it says by itself is known all the same"


def test_a_probe_stands_in_the_row_of_the_step_it_was_taken_at(
    tiny_model_folder: Path, knowledge: Corpus, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []

    def spy(answerer: Answerer, *others: Any, **how: Any) -> Any:
        seen.append(answerer.model.reader.mask_head.bias.detach().clone())
        return measure_clozes(answerer, *others, **how)

    monkeypatch.setattr("realmlm.train.objectives.joint.measure_clozes", spy)
    how = {
        "optim": JointOptim(steps=6, batch=8, lr=1e-2),
        "refresh": Refresh(every_steps=0),
        "loop": replace(LOOP, log_every=2),
    }
    joint_run(
        tiny_model_folder,
        knowledge,
        tmp_path / "run",
        probe=world / "clozes-held-out.jsonl",
        probe_every=3,
        **how,
    )
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [(row["step"], "recall@1" in row) for row in rows] == [(0, True), (2, False), (4, True), (6, True)]
    assert "worst" in rows[0]
    before, after = (
        Realm.from_pretrained(place).reader.mask_head.bias
        for place in (tiny_model_folder, tmp_path / "run" / "model")
    )
    assert torch.equal(seen[0], before), "what it began with"
    assert torch.equal(seen[-1], after), "the model as it was saved"
    assert len(seen) == 3


def test_a_probe_without_gold_passages_counts_those_with_the_hidden_words(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path
) -> None:
    write_questions(tmp_path / "probe.jsonl", make_clozes(knowledge, count=100, max_query=32, seed=0))
    still = {"optim": JointOptim(steps=1, batch=2), "refresh": Refresh(every_steps=0)}
    joint_run(tiny_model_folder, knowledge, tmp_path / "run", probe=tmp_path / "probe.jsonl", **still)
    began = read_metrics(tmp_path / "run" / "metrics.jsonl")[0]
    asked: dict[str, Any] = {
        "corpus": knowledge.folder,
        "questions": tmp_path / "probe.jsonl",
        "read": 0,
        "device": "cpu",
    }
    expected = evaluate(model=tiny_model_folder, **asked).recall[1].value / 100
    assert expected > 0
    assert began["recall@1"] == pytest.approx(expected, abs=0.011), (
        "one sentence may differ: the index keeps half precision"
    )
    assert "worst" not in began, "each is the only wording of what it says"


def test_joint_training_points_at_what_it_retrieves(towns: Corpus, towns_model: Path, tmp_path: Path) -> None:
    optim = JointOptim(steps=60, batch=16, lr=3e-3, retriever_lr=3e-3)
    still = Refresh(every_steps=0)
    joint = Pretrain(
        model=towns_model,
        corpus=towns.folder,
        out=tmp_path / "run",
        k=3,
        optim=optim,
        refresh=still,
        loop=LOOP,
        pointing=1.0,
    )
    run_pretrain(joint)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    first, last = (
        {name: np.mean([row[name] for row in part]) for name in ("held", "pointed")}
        for part in (rows[:10], rows[-10:])
    )
    assert 0 < first["held"] < 1
    assert last["pointed"] > 3 * first["pointed"]


def test_pointing_rewards_the_passages_that_have_the_words(towns: Corpus, towns_model: Path) -> None:
    """log Σ_z p(z|x) p(y where it stands|z,x), passage by passage, and its gradient by f(x,z)."""
    model = Realm.from_pretrained(towns_model)
    source = SentenceSource(towns, "salient", max_query=32, seed=0)
    masked = source.draw(0, 4).masked
    runs = masked.runs(model.config.max_answer)
    numbers = towns.ids.tolist()
    having = [
        next(n for n in numbers if len(places_of(words, towns.tokens(n), towns.wordpieces.lengthens)))
        for words in runs
        if words is not None
    ]
    lacking = [
        next(n for n in numbers if not len(places_of(words, towns.tokens(n), towns.wordpieces.lengthens)))
        for words in runs
        if words is not None
    ]
    offered = Offered(towns, np.array([having, lacking]).T, null=True)
    scores = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    inputs = join(model, masked.queries, offered)
    read = read_masks(model, inputs, masked.tensors(model.device)[0])
    gold = standing(
        [words for words in runs for _ in range(3)], offered.bodies_N, inputs, towns.wordpieces.lengthens
    )
    pointed, held = point(model.reader, read, gold)
    found, some = pointing_log_likelihood(scores, pointed, held)
    assert some.all()
    expected = (scores.softmax(-1)[:, 1] * pointed.view(4, 3)[:, 1].exp()).log()
    assert torch.allclose(found, expected, atol=1e-5)
    found.sum().backward()
    assert scores.grad is not None
    assert (scores.grad[:, 1] > 0).all()
    assert (scores.grad[:, [0, 2]] < 0).all()


def test_pointing_is_the_same_whatever_else_is_in_the_batch(
    towns: Corpus, towns_model: Path, tmp_path: Path
) -> None:
    model = Realm.from_pretrained(towns_model)
    pieces = model.wordpieces
    bodies = [np.array([20, 21, 5]), np.array([7, 20, 22, 20, 21, 30, 31, 32]), np.array([40, 41, 42, 43])]
    inputs = reader_inputs([np.array([9, pieces.mask, 10])] * 3, bodies, pieces, max_query=8, max_length=40)
    hidden = model.reader.encoder(inputs)
    gold = standing([np.array([20, 21])] * 3, bodies, inputs, np.zeros(len(pieces), dtype=bool))
    read = MaskReading(torch.zeros(0), hidden, inputs)
    log_p, held = point(model.reader, read, gold)
    scores, allowed = model.reader.spans_from(hidden, inputs)
    expected = answer_log_likelihood(span_log_probabilities(scores, allowed), span_mask(gold, allowed))
    assert held.tolist() == [True, True, False]
    assert torch.allclose(log_p[held], expected[held], atol=1e-5)
    assert not point(model.reader, read, gold[:0])[1].any()


def test_layers_are_compiled_once_each_when_asked(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path, monkeypatch: Any
) -> None:
    compiled: list[torch.nn.Module] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda layer, dynamic: compiled.append(layer))
    plain = {"optim": JointOptim(steps=1, batch=8), "refresh": Refresh(every_steps=0), "k": 3}
    joint_run(tiny_model_folder, knowledge, tmp_path / "plain", **plain)
    assert not compiled
    joint_run(tiny_model_folder, knowledge, tmp_path / "run", loop=replace(LOOP, compile=True), **plain)
    model = Realm.from_pretrained(tmp_path / "run" / "model")
    layers = len(model.reader.encoder.body.layers) + len(model.document.encoder.body.layers)
    assert len(compiled) == len({id(layer) for layer in compiled}) == layers


def test_a_glimpse_is_a_run_of_words_beside_what_is_hidden() -> None:
    rng = np.random.default_rng(0)
    tokens = np.arange(100, 140)
    for _ in range(200):
        positions = np.arange(start := int(rng.integers(38)), start + 2)
        seen = glimpse(np.delete(tokens, positions), start, rng)
        assert 6 <= len(seen) < 17
        assert not set(seen.tolist()) & set(tokens[positions].tolist())
        rest = [token for token in tokens.tolist() if token not in tokens[positions]]
        first = rest.index(seen[0])
        assert seen.tolist() == rest[first : first + len(seen)]
        assert first <= start <= first + len(seen)
    assert glimpse(tokens[[0, 2]], 1, rng).tolist() == [100, 102]


def test_a_text_cut_otherwise_from_the_same_documents_is_said(
    towns: Corpus, towns_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(towns.folder.parent / "towns.jsonl")
    short = build_corpus(
        [source], tmp_path / "corpus", tokenizer=str(towns.folder), max_wordpieces=12, workers=1
    )
    assert share_cut_otherwise(towns, short, SameWords(towns, short)) == 1
    mark_spans(short, rule_tagger(short))
    joint = {
        "model": towns_model,
        "corpus": towns.folder,
        "k": 3,
        "optim": JointOptim(steps=1, batch=2),
        "refresh": Refresh(every_steps=0),
    }
    for name, text, own, said in (
        ("short", short, False, True),
        ("own", short, True, False),
        ("same", towns, False, False),
    ):
        run_pretrain(Pretrain(**joint, text=text.folder, out=tmp_path / name, own_passage=own, loop=LOOP))  # type: ignore[arg-type]
        assert ("can retrieve themselves" in capsys.readouterr().err) == said


def test_the_own_passage_is_known_where_two_copies_were_edited_otherwise(
    towns: Corpus, tmp_path: Path
) -> None:
    added = [Article("", "A heron came."), Article("", "A badger went.")]
    text, corpus = (
        Corpus.open(Path(shutil.copytree(towns.folder, tmp_path / name))).edit(add=order)[0]
        for name, order in (("x", added), ("z", added[::-1]))
    )
    same = SameWords(corpus, text)(text.ids)
    assert same.shape == (len(text), 1)
    assert all(
        corpus[int(there)].text == text[number].text
        for number, there in zip(text.ids.tolist(), same[:, 0], strict=True)
    )


def test_all_copies_of_a_passage_are_known(towns: Corpus, tmp_path: Path) -> None:
    copies = [Article("A copy", towns[number].text) for number in (0, 2, 0)]
    corpus = (
        Corpus.open(Path(shutil.copytree(towns.folder, tmp_path / "z")))
        .edit(add=copies)[0]
        .edit(remove=[1])[0]
    )
    for text in (corpus, towns):
        own = SameWords(corpus, text)
        texts = {number: corpus[number].text for number in corpus.ids.tolist()}
        rows = own(text.ids).tolist()
        for number, row in zip(text.ids.tolist(), rows, strict=True):
            assert [there for there in row if there >= 0] == [
                there for there, words in texts.items() if words == text[number].text
            ]
        assert own.has(text.ids).tolist() == [max(row) >= 0 for row in rows]
        assert own.most == 3
        assert own(text.ids[3:5]).shape == (2, 1)


def test_no_copy_of_a_sentences_own_passage_is_retrieved(
    towns: Corpus, towns_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = [Article("A copy", towns[number].text) for number in towns.ids.tolist()]
    twice = Corpus.open(Path(shutil.copytree(towns.folder, tmp_path / "twice"))).edit(add=added)[0]
    mark_spans(twice, rule_tagger(twice))
    drawn = []
    retrieved = []
    search = ExactIndex.search
    draw = SentenceSource.draw

    def drawing(source: SentenceSource, first: int, count: int) -> Any:
        drawn.append(draw(source, first, count))
        return drawn[-1]

    def searching(
        index: ExactIndex, queries: torch.Tensor, k: int, *, exclude_QE: torch.Tensor | None = None
    ) -> Any:
        hits = search(index, queries, k, exclude_QE=exclude_QE)
        retrieved.append(hits.ids_QK.tolist())
        return hits

    monkeypatch.setattr(SentenceSource, "draw", drawing)
    monkeypatch.setattr(ExactIndex, "search", searching)
    joint: dict[str, Any] = {
        "k": 6,
        "optim": JointOptim(steps=4, batch=8),
        "refresh": Refresh(every_steps=0),
        "loop": LOOP,
    }
    run_pretrain(Pretrain(model=towns_model, corpus=twice.folder, text=None, out=tmp_path / "run", **joint))
    assert len(retrieved) == 4
    for sentences, rows in zip(drawn, retrieved, strict=False):
        for own, row in zip(sentences.passages.tolist(), rows, strict=True):
            assert len(row) == 5
            assert twice[own].text not in [twice[number].text for number in row]


def test_the_own_passage_is_known_in_another_corpus_of_the_same_text(
    towns: Corpus, towns_model: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    source = str(towns.folder.parent / "towns.jsonl")
    firsts = build_corpus(
        [source],
        tmp_path / "firsts",
        tokenizer=str(towns.folder),
        max_wordpieces=24,
        max_passages=1,
        workers=1,
    )
    same = SameWords(firsts, towns)(towns.ids)[:, 0]
    for number in towns.ids.tolist():
        there = towns[number].text in [firsts[other].text for other in firsts.ids.tolist()]
        assert (firsts[int(same[number])].text == towns[number].text) if there else same[number] == -1
    rest = build_corpus(
        [source],
        tmp_path / "rest",
        tokenizer=str(towns.folder),
        max_wordpieces=24,
        skip_passages=1,
        workers=1,
    )
    assert SameWords(firsts, rest).most == 0
    assert (
        share_cut_otherwise(firsts, rest, SameWords(firsts, rest))
        == share_cut_otherwise(towns, towns, SameWords(towns, towns))
        == 0
    )
    assert SameWords(towns, towns)(towns.ids)[:, 0].tolist() == towns.ids.tolist()

    excluded: list[int] = []
    search = ExactIndex.search

    def watched(
        index: ExactIndex, queries: torch.Tensor, k: int, *, exclude_QE: torch.Tensor | None = None
    ) -> Any:
        excluded.extend(exclude_QE.flatten().tolist() if exclude_QE is not None else [])
        return search(index, queries, k, exclude_QE=exclude_QE)

    monkeypatch.setattr(ExactIndex, "search", watched)
    held = [Question(text="Town0 bears a [MASK] on its arms.", answers=("heron",), id="0", source=0)]
    write_questions(tmp_path / "held.jsonl", held)
    optim = JointOptim(steps=6, batch=8)
    still = Refresh(every_steps=0)
    run_pretrain(
        Pretrain(
            model=towns_model,
            corpus=firsts.folder,
            text=towns.folder,
            out=tmp_path / "run",
            k=3,
            optim=optim,
            refresh=still,
            loop=LOOP,
            hold_out=tmp_path / "held.jsonl",
        )
    )
    assert {-1} < set(excluded) <= {-1, *firsts.ids.tolist()}
    assert 0 not in excluded, "no sentence of a held-out passage was drawn"


def test_the_query_tower_gets_glimpses_and_the_reader_the_sentence(knowledge: Corpus) -> None:
    plain, some = (
        SentenceSource(knowledge, "salient", max_query=32, seed=0, glimpses=share).draw(40, 60)
        for share in (0.0, 0.5)
    )
    assert [query.tolist() for query in plain.masked.queries] == [
        query.tolist() for query in some.masked.queries
    ]
    assert [seen.tolist() for seen in plain.seen] == [query.tolist() for query in plain.masked.queries]
    changed = sum(
        seen.tolist() != query.tolist() for seen, query in zip(some.seen, some.masked.queries, strict=True)
    )
    assert 15 < changed < 45


def test_what_is_hidden_and_shown_is_as_asked(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path, monkeypatch: Any
) -> None:
    with pytest.raises(BadInput, match="--masking salient"):
        Pretrain(corpus=knowledge.folder, out=tmp_path / "run", recurring=True, masking="uniform")
    plain = {"optim": JointOptim(steps=2, batch=8), "refresh": Refresh(every_steps=0), "k": 3}
    made: list[dict[str, Any]] = []
    begin = SentenceSource.__init__

    def noted(source: SentenceSource, *given: Any, **settings: Any) -> None:
        made.append(settings)
        begin(source, *given, **settings)

    monkeypatch.setattr(SentenceSource, "__init__", noted)
    joint_run(tiny_model_folder, knowledge, tmp_path / "run", recurring=True, glimpses=0.25, **plain)
    assert [(settings["recurring"], settings["glimpses"]) for settings in made] == [(True, 0.25)]


def test_what_explains_a_sentence_is_told_from_what_was_found_for_others(
    tiny_model: Realm, knowledge: Corpus
) -> None:
    model = tiny_model.eval()
    source = SentenceSource(knowledge, "salient", max_query=32, seed=0)
    drawn = source.draw(16, 4)
    own = SameWords(knowledge, knowledge)
    ids_BK = (torch.from_numpy(drawn.passages)[:, None] + torch.tensor([1, 2])) % len(knowledge)
    ids_BK[1, 0] = int(drawn.passages[0])  # found for the second: the first sentence's own
    read: list[tuple[Tensor, ...]] = []

    class Noting(JointPretraining):
        def likelihood(self, *given: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            read.append(given)
            return super().likelihood(*given)

    def loss(weight: float) -> tuple[float, Numbers]:
        settings = Pretrain(out=Path("unused"), k=3, in_batch=weight)
        live = SimpleNamespace(
            index=SimpleNamespace(search=lambda *_, **__: Hits(torch.zeros(4, 2), ids_BK)), asker=None
        )
        objective = Noting(settings, model, knowledge, source, live, own=own)  # type: ignore[arg-type]
        value, numbers = objective.loss(objective.draw(16, 4), 9999, Clock())
        return value.item(), numbers

    plain, without = loss(0.0)
    told, numbers = loss(0.5)
    retrieval_BK, token_BKM, valid_BM = read[-1]
    query_BD = model.query(model.query_inputs(drawn.seen))
    found = sorted(set(ids_BK.flatten().tolist()))
    vectors = {
        number: embed_documents(model, [knowledge.title_tokens(number)], [knowledge.tokens(number)])[0]
        for number in found
    }
    vectors[-1] = embed_documents(model, [NULL], [NULL])[0]
    total = 0.0
    share = 0.0
    for b, mine in enumerate(ids_BK.tolist()):
        f = {number: (query_BD[b] @ vector).item() for number, vector in vectors.items()}
        barred = {*own(drawn.passages)[b].tolist(), -1}
        among = [number for number in found if number not in barred]
        log_all = math.log(sum(math.exp(f[number]) for number in among))
        explained = [
            math.exp(f[number] + (token_BKM[b, k] * valid_BM[b]).sum().item())
            for k, number in enumerate([-1, *mine])
        ]
        for weight, number in zip(explained[1:], mine, strict=True):
            total -= weight / sum(explained) * (f[number] - log_all)
            share += math.exp(f[number] - log_all)
    assert retrieval_BK.shape == (4, 3)
    assert told - plain == pytest.approx(0.5 * total / 4, rel=1e-3)
    assert float(numbers["among"]) == pytest.approx(share / 4, rel=1e-4)
    assert "among" not in without


@pytest.mark.parametrize(
    ("changed", "swaps", "ages"),
    [
        ({"freeze_retriever": 5}, [0, 0, 0, 1], [0, 0, 0, 1]),
        ({"freeze_retriever": 4}, [0, 0, 0, 1], [0, 0, 1, 1]),
        ({"freeze_retriever": 0}, [0, 1, 2, 3], [1, 1, 1, 1]),
        ({"rate": 0.0}, [0, 0, 0, 0], [0, 0, 0, 0]),
        ({"rate": 0.0, "scale_lr": 1e-2}, [0, 0, 0, 0], [0, 0, 0, 0]),
    ],
)
def test_nothing_is_embedded_again_before_the_document_tower_has_moved(
    changed: dict[str, Any],
    swaps: list[int],
    ages: list[int],
    tiny_model_folder: Path,
    knowledge: Corpus,
    tmp_path: Path,
) -> None:
    optim = JointOptim(steps=8, batch=4, retriever_lr=changed.pop("rate", 1e-4))
    run = tmp_path / "run"
    refresh = Refresh(every_steps=2, process=False)
    loop = Loop(device="cpu", threads=1, log_every=2)
    settings = Pretrain(
        model=tiny_model_folder,
        corpus=knowledge.folder,
        out=run,
        k=3,
        optim=optim,
        refresh=refresh,
        loop=loop,
        **changed,
    )
    run_pretrain(settings)
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["swaps"] for row in rows] == swaps
    assert [row["index_age"] for row in rows] == ages


def test_a_copy_of_what_was_found_is_not_told_from_it(
    tiny_model: Realm, towns: Corpus, tmp_path: Path
) -> None:
    texts = [f"Place{n} bears a heron." for n in range(3)] * 2
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"title": str(n), "text": text}) + "\n" for n, text in enumerate(texts))
    )
    corpus = build_corpus(
        [tmp_path / "rows.jsonl"], tmp_path / "corpus", tokenizer=str(towns.folder), workers=1
    )
    settings = Pretrain(out=Path("unused"), k=2, in_batch=0.5)
    source: Any = None
    live: Any = SimpleNamespace(asker=None)
    objective = JointPretraining(settings, tiny_model, corpus, source, live)
    ids_U = torch.from_numpy(np.append(corpus.ids[:5], -1))  # 0 and 3 are copies, 1 and 4 too
    scores_BU = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]] * 2)
    place_BK = torch.tensor([[5, 0, 2], [5, 3, 4]])
    among_BK = objective._among(scores_BU, place_BK, ids_U, None)
    assert among_BK is not None
    for row, (own, others) in enumerate([([0, 2], [1, 4]), ([3, 4], [2])]):
        expected = scores_BU[row, own] - scores_BU[row, own + others].logsumexp(0)
        assert among_BK[row].tolist() == pytest.approx(expected.tolist(), abs=1e-6)


def test_passages_of_a_batch_are_told_apart_in_one_process_only(tiny_model: Realm, knowledge: Corpus) -> None:
    source = SentenceSource(knowledge, "salient", max_query=32, seed=0)
    settings = Pretrain(out=Path("unused"), in_batch=0.5)
    live: Any = SimpleNamespace(asker=None)
    objective = JointPretraining(settings, tiny_model, knowledge, source, live)
    objective.ranks = SimpleNamespace(count=2)  # type: ignore[assignment]
    with pytest.raises(BadInput, match="--in-batch"):
        objective.prepare(tiny_model)
