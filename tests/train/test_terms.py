"""Every term of what is learned, by hand: what the losses are made of, what a step moves and how far, and
what does not waver."""

import dataclasses
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from realmlm.corpus.questions import Question, write_questions
from realmlm.corpus.store import Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.errors import RealmError
from realmlm.evaluation.clozes import make_clozes
from realmlm.index.exact import ExactIndex
from realmlm.index.refresh import Refresher, serve_refreshes, step_folder
from realmlm.log import Clock, read_metrics
from realmlm.model.inputs import NULL, query_inputs, reader_inputs
from realmlm.model.realm import Realm
from realmlm.model.snapshot import DocumentEncoder
from realmlm.reading.retrieve import embed_documents
from realmlm.settings import Finetune, JointOptim, Loop, Optim, Pretrain, Refresh
from realmlm.train.data import SentenceSource
from realmlm.train.gold import locate_answers
from realmlm.train.objective import Group
from realmlm.train.objectives.adapt import FoundElsewhere
from realmlm.train.objectives.joint import JointPretraining
from realmlm.train.objectives.questions import QuestionAnswering
from realmlm.train.optimizer import make_optimizer
from tests.calls import create_model, run_finetune, run_pretrain
from tests.conftest import TINY_MODEL

Model = Realm
CLOCK = Clock()


# --- a step -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """Weights of reader and retriever at a step, and the norm of the gradient that moved them."""

    weights: dict[str, Tensor]
    norms: dict[str, float]


def steps_of(model: Path, corpus: Corpus, out: Path, optim: Optim, **changed: Any) -> list[Seen]:
    """What joint pre-training had before its first step and after each."""
    seen: list[Seen] = []

    class Watched(JointPretraining):
        def measure(self, done: int, clock: Clock) -> dict[str, Any]:
            weights = {}
            norms = {}
            for name, group in self.groups().items():
                parameters = group.parameters
                weights[name] = torch.cat([parameter.detach().flatten() for parameter in parameters])
                norms[name] = (
                    sum(
                        float(parameter.grad.square().sum())
                        for parameter in parameters
                        if parameter.grad is not None
                    )
                    ** 0.5
                )
            seen.append(Seen(weights, norms))
            return {}

    still = Refresh(every_steps=0)
    loop = Loop(threads=1, device="cpu")
    settings = Pretrain(
        model=model,
        corpus=corpus.folder,
        out=out,
        k=3,
        optim=optim,  # type: ignore[arg-type]
        refresh=still,
        loop=loop,
    )
    run_pretrain(dataclasses.replace(settings, **changed), objective=Watched)
    return seen


def test_a_frozen_retriever_rests_and_then_learns(towns: Corpus, towns_model: Path, tmp_path: Path) -> None:
    optim = JointOptim(steps=4, batch=4, lr=1e-3, retriever_lr=1e-3)
    seen = steps_of(towns_model, towns, tmp_path / "run", optim, freeze_retriever=2, pointing=1.0)
    moved = {
        name: [not torch.equal(seen[step].weights[name], seen[step + 1].weights[name]) for step in range(4)]
        for name in ("retriever", "reader")
    }
    assert moved == {"retriever": [False, False, True, True], "reader": [True] * 4}


def test_reader_and_retriever_learn_at_their_own_rates(
    towns: Corpus, towns_model: Path, tmp_path: Path
) -> None:
    """Adam's first step moves a weight by its learning rate, whatever the gradient."""
    optim = JointOptim(steps=1, batch=4, lr=1e-3, retriever_lr=1e-2, weight_decay=0.0)
    before, after = steps_of(towns_model, towns, tmp_path / "run", optim)
    moved = {name: float((after.weights[name] - before.weights[name]).abs().max()) for name in before.weights}
    assert moved == pytest.approx({"reader": 1e-3, "retriever": 1e-2}, rel=1e-2)


def test_the_gradients_of_reader_and_retriever_are_clipped_each(
    towns: Corpus, towns_model: Path, tmp_path: Path
) -> None:
    for clip in (1e3, 1e-2):
        _, after = steps_of(towns_model, towns, tmp_path / str(clip), JointOptim(steps=1, batch=4, clip=clip))
        if clip == 1e3:
            assert min(after.norms.values()) > 0.02, "there is something to clip"
    assert after.norms == pytest.approx({"reader": 1e-2, "retriever": 1e-2}, rel=1e-3)


def test_matrices_decay_and_biases_and_norms_do_not(towns_model: Path) -> None:
    model = Realm.from_pretrained(towns_model)
    groups = {
        "reader": Group(list(model.reader.parameters()), 0.1),
        "retriever": Group(model.retriever_parameters(), 0.1),
    }
    optimizer = make_optimizer(groups, Optim(lr=0.1, weight_decay=0.5))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        kept = 1.0 if name.endswith("bias") or "norm" in name else 1 - 0.1 * 0.5
        assert torch.allclose(parameter, kept * before[name], rtol=1e-6, atol=0), name


# --- the loss of pre-training -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("marginal", "p"),
    [
        ("joint", 0.25 * 0.8 * 0.1 + 0.75 * 0.2 * 0.6),
        ("per-token", (0.25 * 0.8 + 0.75 * 0.2) * (0.25 * 0.1 + 0.75 * 0.6)),
    ],
)
def test_the_passages_are_summed_over_once_a_sentence_or_once_a_mask(marginal: str, p: float) -> None:
    """Two passages and two masks; a third mask is padding."""
    scores = torch.tensor([[1.0, 3.0]]).log()
    tokens = torch.tensor([[[0.8, 0.1, 0.5], [0.2, 0.6, 0.5]]]).log()
    loss, row = joint_objective(SimpleNamespace(device=None), None, None, None, marginal=marginal).likelihood(
        scores, tokens, torch.tensor([[True, True, False]])
    )
    assert float(loss) == pytest.approx(-np.log(p), abs=1e-6)
    assert float(row["log_p"]) == pytest.approx(np.log(0.11), abs=1e-6)


@pytest.mark.parametrize("marginal", ["joint", "per-token"])
def test_the_marginal_that_is_asked_for_is_trained(
    marginal: str, knowledge: Corpus, tiny_model_folder: Path, tmp_path: Path
) -> None:
    steps_of(
        tiny_model_folder,
        knowledge,
        tmp_path / "run",
        JointOptim(steps=1, batch=8),
        masking="uniform",
        marginal=marginal,
    )
    (row,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert (abs(row["loss"] + row["log_p"]) < 1e-4) == (marginal == "joint")


def joint_objective(
    *parts: Any, marginal: str = "joint", probe: list[Question] | None = None
) -> JointPretraining:
    settings = Pretrain(out=Path("unused"), k=3, marginal=marginal, probe_every=1)  # type: ignore[arg-type]
    return JointPretraining(settings, *parts, probe=probe)


# --- the loss of fine-tuning --------------------------------------------------------------------------------

ASKED = [
    Question("Which beast is on the arms of Town3?", ("falcon", "river")),
    Question("What is Town1?", ("painted", "old")),
]
READ = 12
CLOSED_BOOK = 0.3


@pytest.fixture
def stale(towns: Corpus, towns_model: Path) -> tuple[Realm, ExactIndex]:
    """A model whose document tower has moved on since the index was made."""
    model = Realm.from_pretrained(towns_model)
    pieces = model.wordpieces
    index = ExactIndex(all_vectors(model, pieces, towns), torch.from_numpy(towns.ids))
    weight = model.document.projection.weight
    with torch.no_grad():
        weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    return model, index


@torch.no_grad()
def all_vectors(model: Realm, pieces: Wordpieces, corpus: Corpus) -> Tensor:
    return torch.cat(
        [embed_documents(model, [corpus.title_tokens(n)], [corpus.tokens(n)]) for n in corpus.ids.tolist()]
    )


def taught(
    model: Realm, index: ExactIndex, corpus: Corpus, *, frozen: bool = True, objective: str = "marginal"
) -> Tensor:
    """The loss of the questions that are asked."""
    settings = Finetune(
        questions=(),
        out=Path("unused"),
        read=READ,
        candidates=len(corpus),
        closed_book=CLOSED_BOOK,
        objective=objective,  # type: ignore[arg-type]
        refresh=Refresh(every_steps=0 if frozen else 500),
    )
    live: Any = SimpleNamespace(index=index)
    gold = locate_answers(corpus, ASKED)
    learned = QuestionAnswering(settings, model, corpus, live, gold, learning=[])
    loss, _ = learned.loss(np.arange(len(ASKED)), 0, CLOCK)
    return loss


@torch.no_grad()
def by_hand(
    model: Realm,
    index: ExactIndex,
    corpus: Corpus,
    *,
    frozen: bool = True,
    hard: bool = False,
    together: bool = False,
) -> float:
    """The same, question by question, passage by passage, span by span."""
    pieces = corpus.wordpieces
    losses = []
    for question in ASKED:
        tokens = pieces.encode(question.text)
        query = model.query(query_inputs([tokens], pieces, max_query=32))[0]
        f = {
            number: float(query @ index.vectors(torch.tensor([number]))[0]) for number in corpus.ids.tolist()
        }
        read = sorted(f, key=lambda number: -f[number])[:READ]
        if not frozen:
            fresh = all_vectors(model, pieces, corpus)
            f |= {number: float(query @ fresh[number]) for number in read}
        spans = {number: spans_of(model, corpus, tokens, number) for number in read}
        places = {
            number: [value for words, value in spans[number] if words in question.answers] for number in read
        }
        assert max(len(found) for found in places.values()) > 1, "an answer stands twice in a passage"
        weight = {
            number: np.exp(f[number]) * (sum(value for _, value in spans[number]) if together else 1)
            for number in read
        }
        answered = sum(
            weight[number]
            / sum(weight.values())
            * (max(found) if hard else sum(found))
            / sum(value for _, value in spans[number])
            for number, found in places.items()
            if found
        )
        holding = [
            number for number in f if any(answer in corpus[number].text for answer in question.answers)
        ]
        found = sum(np.exp(f[number]) for number in holding) / sum(np.exp(value) for value in f.values())
        assert 0 < len(holding) < len(corpus)
        losses.append(
            -np.log(answered)
            - np.log(found)
            - CLOSED_BOOK * known_by_heart(model, pieces, tokens, question.answers[0])
        )
    return float(np.mean(losses))


def spans_of(model: Realm, corpus: Corpus, tokens: np.ndarray, number: int) -> list[tuple[str, float]]:
    """The words of every span of a passage, and exp(score)."""
    inputs = reader_inputs([tokens], [corpus.tokens(number)], corpus.wordpieces, max_query=32, max_length=99)
    scores, allowed = model.reader.spans(inputs)
    chars = corpus.token_chars(number)
    text = corpus[number].text
    first = int(inputs.second_N[0])
    places = allowed[0].nonzero().tolist()
    return [
        (text[chars[s - first, 0] : chars[s - first + w, 1]], float(scores[0, s, w].exp())) for s, w in places
    ]


def known_by_heart(model: Realm, pieces: Wordpieces, tokens: np.ndarray, answer: str) -> float:
    """log p(y|∅,x): as many masks after the question as the answer has wordpieces."""
    hidden = pieces.encode(answer)
    inputs = reader_inputs(
        [np.array([*tokens, *[pieces.mask] * len(hidden)])], [NULL], pieces, max_query=32, max_length=99
    )
    log_p = model.reader.masks(inputs, torch.arange(len(tokens), len(tokens) + len(hidden))[None])[0]
    return float(sum(log_p[place, piece] for place, piece in enumerate(hidden.tolist())))


@pytest.mark.parametrize(
    ("reading", "objective"), [("paper", "marginal"), ("paper", "hard-em"), ("together", "marginal")]
)
def test_the_loss_of_questions_is_answer_evidence_and_memory(
    reading: Any, objective: str, stale: tuple[Realm, ExactIndex], towns: Corpus
) -> None:
    model, index = stale
    model.config = dataclasses.replace(model.config, reading=reading)
    loss = taught(model, index, towns, objective=objective)
    expected = by_hand(model, index, towns, hard=objective == "hard-em", together=reading == "together")
    assert loss.item() == pytest.approx(expected, abs=1e-4)


def test_the_objective_that_is_asked_for_is_trained(towns: Corpus, towns_model: Path, tmp_path: Path) -> None:
    write_questions(tmp_path / "asked.jsonl", ASKED)
    how: dict[str, Any] = {
        "questions": (tmp_path / "asked.jsonl",),
        "read": READ,
        "optim": JointOptim(steps=1, batch=2),
    }
    how |= {
        "model": towns_model,
        "corpus": towns.folder,
        "refresh": Refresh(every_steps=0),
        "loop": Loop(threads=1, device="cpu"),
    }
    losses = {}
    for objective, closed_book in (("marginal", 0.0), ("hard-em", 0.0), ("marginal", 1.0)):
        out = tmp_path / f"{objective}-{closed_book}"
        run_finetune(Finetune(out=out, objective=objective, closed_book=closed_book, **how))  # type: ignore[arg-type]
        (row,) = read_metrics(out / "metrics.jsonl")
        losses[objective, closed_book] = row["loss"]
    assert losses["hard-em", 0.0] > losses["marginal", 0.0] + 0.01, "one place is less likely than all"
    assert losses["marginal", 1.0] == pytest.approx(losses["marginal", 0.0] - row["closed_book"], abs=1e-4)


@pytest.mark.parametrize("frozen", [True, False])
def test_what_is_read_is_scored_anew_unless_the_index_is_frozen(
    frozen: bool, stale: tuple[Realm, ExactIndex], towns: Corpus
) -> None:
    model, index = stale
    loss = taught(model, index, towns, frozen=frozen)
    assert loss.item() == pytest.approx(by_hand(model, index, towns, frozen=frozen), abs=1e-4)
    assert abs(by_hand(model, index, towns, frozen=not frozen) - loss.item()) > 0.01
    loss.backward()
    query = model.query.projection.weight.grad
    document = model.document.projection.weight.grad
    assert query is not None
    assert query.abs().max() > 1e-3
    assert (document is None) == frozen


# --- what does not waver ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wavering_folder(towns: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wavering") / "model"
    create_model(corpus=towns.folder, out=folder, **(TINY_MODEL | {"dropout": 0.5}))
    return folder


@pytest.fixture
def wavering(wavering_folder: Path) -> Model:
    """A model in training, half of its activations dropped."""
    return Realm.from_pretrained(wavering_folder).train()


def test_passages_are_embedded_without_dropout_while_the_model_trains(wavering: Model, towns: Corpus) -> None:
    model = wavering
    titles = [towns.title_tokens(0)]
    bodies = [towns.tokens(0)]
    first, second = (embed_documents(model, titles, bodies) for _ in range(2))
    assert not torch.allclose(first, second, atol=1e-2), "the model wavers"
    encode = DocumentEncoder.of(model)
    first, second = (encode(towns, np.zeros(1, dtype=np.int64)) for _ in range(2))
    assert torch.equal(first, second)
    assert model.document.training, "and trains on"


def test_a_probe_is_taken_without_dropout_and_training_goes_on(wavering: Model, towns: Corpus) -> None:
    model = wavering
    pieces = model.wordpieces
    live = SimpleNamespace(
        index=ExactIndex(all_vectors(model, pieces, towns), torch.from_numpy(towns.ids)), asker=None
    )
    modes: list[bool] = []
    for part in (model.query, model.document, model.reader.encoder):
        part.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    probe = make_clozes(towns, count=4, max_query=32, seed=0)
    row = joint_objective(model, towns, None, live, probe=probe).measure(0, CLOCK)
    assert {"recall@1", "right"} <= set(row)
    assert modes
    assert not any(modes)
    assert model.reader.training, "training goes on"


def test_adapting_learns_from_queries_that_do_not_waver(wavering: Model, towns: Corpus) -> None:
    model = wavering
    pieces = model.wordpieces
    index = ExactIndex(all_vectors(model, pieces, towns), torch.from_numpy(towns.ids))
    source = SentenceSource(towns, "salient", max_query=32, seed=0)
    objective = FoundElsewhere(model, towns, source, index, learning=model.free_query("projection"), lr=1e-3)
    drawn = objective.draw(0, 8)
    losses = []
    for _ in range(2):
        model.train()
        losses.append(objective.loss(drawn, 0, CLOCK)[0].item())
    assert losses[0] == losses[1]


# --- the refresher ------------------------------------------------------------------------------------------


def test_a_new_trainer_waits_for_the_refresher_of_the_last_one(
    towns: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It drops what that one may be embedding."""
    # a thread plays the process here
    monkeypatch.setattr("realmlm.index.refresh.die_with_parent", lambda: None)
    at_work = threading.Event()
    go_on = threading.Event()

    def load(snapshot: Path, device: str) -> Any:
        at_work.set()
        assert go_on.wait(60)
        raise RealmError("it ends")

    def refresh() -> None:
        with suppress(SystemExit):
            serve_refreshes(tmp_path, towns.folder, towns.edits, load, "cpu", torch.float32, 8)

    snapshot = step_folder(tmp_path / "snapshots", 3)
    snapshot.mkdir(parents=True)
    successor = Refresher(tmp_path, towns, load, device="cpu", dtype=torch.float32, process=True, shard=8)
    old = threading.Thread(target=refresh, daemon=True)
    new = threading.Thread(target=successor.forget_after, args=(2,), daemon=True)
    old.start()
    assert at_work.wait(60)
    new.start()
    new.join(0.2)
    assert new.is_alive()
    assert snapshot.exists()
    go_on.set()
    for thread in (old, new):
        thread.join(60)
    assert not snapshot.exists()
