"""Training from Python: with objects or with names, as text or as paths, and what one hears of it."""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import realmlm
from realmlm.corpus.masking import SalientSpan
from realmlm.corpus.spans import mark_spans, rule_tagger
from realmlm.corpus.store import Corpus
from realmlm.corpus.taggers import PhraseTagger
from realmlm.errors import BadInput, Diverged, Mismatch
from realmlm.log import read_metrics
from realmlm.model.realm import Realm
from realmlm.settings import BuildCorpus, Finetune, JointOptim, Loop, Optim, Pretrain, Refresh, Warmup
from realmlm.train.callbacks import Callback, Enough
from realmlm.train.objective import Group
from realmlm.train.objectives.joint import JointPretraining
from realmlm.train.run import read_run
from tests.calls import build_corpus
from tests.conftest import world_corpus

LOOP = Loop(device="cpu", threads=1, log_every=1, checkpoint_every=1)
STILL = Refresh(every_steps=0)


class Heard(Callback):
    """Notes what it hears; stops the run after a step if asked to."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.rows: list[dict[str, Any]] = []
        self.checkpoints: list[tuple[int, str]] = []
        self.ended: list[Realm] = []
        self.begun: list[tuple[str, int]] = []  # each stage, and how many rows were heard before
        self._stop_after = stop_after

    def on_begin(self, stage: str) -> None:
        self.begun.append((stage, len(self.rows)))

    def on_row(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if row["step"] == self._stop_after:
            raise KeyboardInterrupt

    def on_checkpoint(self, step: int, folder: Path) -> None:
        self.checkpoints.append((step, folder.name))

    def on_end(self, model: Realm) -> None:
        self.ended.append(model)


class Threads(Callback):
    def __init__(self) -> None:
        self.seen: list[tuple[int, bool]] = []

    def on_row(self, row: dict[str, Any]) -> None:
        if row["step"] == 1:
            self.seen.append((torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()))


@pytest.mark.parametrize("fails", [False, True])
def test_a_stage_leaves_the_process_as_it_was(
    fails: bool, tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path
) -> None:
    """Runs beside a refresher used to begin each with a thread less than the one before."""
    how: dict[str, Any] = {"model": tiny_model_folder, "corpus": knowledge.folder, "k": 2}
    how |= {"optim": JointOptim(steps=2, batch=2)}
    seen = Threads()
    callbacks = [seen, Heard(stop_after=1)] if fails else [seen]
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for number, (deterministic, threads) in enumerate(((False, 0), (False, 0), (True, 2))):
            loop = replace(LOOP, deterministic=deterministic, threads=threads)
            settings = Pretrain(**how, out=tmp_path / str(number), refresh=Refresh(every_steps=9), loop=loop)
            with pytest.raises(KeyboardInterrupt) if fails else nullcontext():
                realmlm.pretrain(settings, callbacks=callbacks)
            assert torch.get_num_threads() == 3
            assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_num_threads(before)
    assert seen.seen == [(2, False), (2, False), (2, True)]


def test_the_bundled_model_is_where_training_begins_unless_another_is_named(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text(
        "\n\n".join(f"The harbour of Town{n} was built in 19{n:02d} by Ada Lund." for n in range(30))
    )
    corpus = build_corpus([notes], tmp_path / "corpus", tokenizer="mini", max_wordpieces=32, workers=1)
    mark_spans(corpus, rule_tagger(corpus), workers=1)
    settings = Pretrain(
        corpus=corpus.folder,
        out=tmp_path / "run",
        k=2,
        optim=JointOptim(steps=1, batch=1),
        refresh=STILL,
        loop=LOOP,
    )
    trained = realmlm.pretrain(settings)
    assert trained.config.tower == Realm.from_pretrained("mini").config.tower


def test_places_named_as_text_are_held_to_as_paths_are(
    tiny_model_folder: Path, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run goes on only with the spans it began with, however its corpus was named."""
    monkeypatch.chdir(tmp_path)
    own = world_corpus(world, "knowledge", tmp_path / "own")
    settings = Pretrain(
        model=str(tiny_model_folder),  # type: ignore[arg-type]
        corpus="own",  # type: ignore[arg-type]
        out="run",  # type: ignore[arg-type]
        k=3,
        optim=JointOptim(steps=3, batch=2),
        refresh=STILL,
        loop=LOOP,
    )
    assert settings.corpus == own.folder
    with pytest.raises(KeyboardInterrupt):
        realmlm.pretrain(settings, callbacks=[Heard(stop_after=2)])
    mark_spans(own, PhraseTagger(["the"]), workers=1)
    with pytest.raises(Mismatch, match=r"the spans of .*own were marked again"):
        realmlm.pretrain(settings)


def test_a_callback_that_has_enough_ends_training_and_the_model_is_saved(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path
) -> None:
    class Satisfied(Heard):
        def on_row(self, row: dict[str, Any]) -> None:
            super().on_row(row)
            if row["step"] == 2:
                raise Enough

    heard = Satisfied()
    optim = JointOptim(steps=5, batch=2)
    settings = Pretrain(out=tmp_path / "run", k=3, optim=optim, refresh=STILL, loop=LOOP)
    model = Realm.from_pretrained(tiny_model_folder)
    realmlm.pretrain(settings, model=model, corpus=knowledge, callbacks=[heard])
    assert [row["step"] for row in heard.rows] == [1, 2]
    assert len(heard.ended) == 1
    assert (tmp_path / "run" / "model" / "manifest.json").exists()


def test_objects_are_trained_and_every_row_is_heard(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path
) -> None:
    """A third group learns at a rate of its own."""

    class ThreeRates(JointPretraining):
        def groups(self) -> dict[str, Group]:
            groups = super().groups()
            head = list(self.model.reader.mask_head.parameters())
            rest = [
                weight for weight in groups["reader"].parameters if all(weight is not one for one in head)
            ]
            return {**groups, "reader": Group(rest, 1e-4), "head": Group(head, 1e-2)}

    model = Realm.from_pretrained(tiny_model_folder)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    settings = Pretrain(
        out=tmp_path / "run",
        k=3,
        optim=JointOptim(steps=5, batch=4, weight_decay=0.0, warmup=0.0),
        refresh=STILL,
        loop=LOOP,
    )
    heard = Heard()
    trained = realmlm.pretrain(
        settings, model=model, corpus=knowledge, objective=ThreeRates, callbacks=[heard]
    )
    assert trained is model
    assert not trained.training
    assert [row["step"] for row in heard.rows] == [1, 2, 3, 4, 5]
    assert [row["loss"] for row in heard.rows] == [
        row["loss"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")
    ]
    assert heard.checkpoints == [(step, f"step-{step:08d}") for step in (1, 2, 3, 4)]
    assert heard.ended == [model]

    def moved(name: str) -> float:
        return float((model.state_dict()[name] - before[name]).abs().max())

    assert moved("reader.mask_head.dense.weight") > 10 * moved("reader.span_head.output.bias")
    assert moved("reader.mask_head.dense.weight") > 5e-3


def test_a_run_that_was_cut_off_goes_on_with_the_same_objects(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path
) -> None:
    def settings(out: str) -> Pretrain:
        optim = JointOptim(steps=4, batch=4)
        return Pretrain(out=tmp_path / out, k=3, optim=optim, refresh=STILL, loop=LOOP)

    def model() -> Realm:
        return Realm.from_pretrained(tiny_model_folder)

    whole = realmlm.pretrain(settings("whole"), model=model(), corpus=knowledge)
    with pytest.raises(KeyboardInterrupt):
        realmlm.pretrain(settings("cut"), model=model(), corpus=knowledge, callbacks=[Heard(stop_after=3)])
    again = realmlm.pretrain(settings("cut"), model=model(), corpus=knowledge)
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in whole.state_dict().items())
    finished = realmlm.pretrain(settings("cut"), model=model(), corpus=knowledge)
    assert all(
        torch.equal(tensor, finished.state_dict()[name]) for name, tensor in whole.state_dict().items()
    )


def test_every_stage_takes_objects_and_gives_a_realm(
    tiny_model_folder: Path, knowledge: Corpus, world: Path, tmp_path: Path
) -> None:
    realm = Realm.from_pretrained(tiny_model_folder)
    heard = Heard()
    one = Optim(steps=1, batch=4)
    settings = Warmup(out=tmp_path / "warm", reader=one, retriever=one, loop=LOOP)
    realm = realmlm.warmup(settings, model=realm, corpus=knowledge, callbacks=[heard])
    asked = Finetune(
        questions=(world / "questions-train.jsonl",),
        out=tmp_path / "qa",
        read=2,
        candidates=5,
        optim=JointOptim(steps=1, batch=4),
        loop=LOOP,
    )
    realm = realmlm.finetune(asked, model=realm, corpus=knowledge, callbacks=[heard])
    assert realm.config.trained_on_questions
    assert [sorted(row)[0] for row in heard.rows] == ["loss", "found", "closed_book"]
    given = " with a given model"
    assert heard.begun == [("warmup-reader", 0), ("warmup-retriever", 1), (f"finetune{given}", 2)]


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_weights_of_half_precision_are_not_trained(
    kind: torch.dtype, tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path
) -> None:
    model = Realm.from_pretrained(tiny_model_folder).to(kind)
    settings = Pretrain(out=tmp_path / "run", k=2, optim=JointOptim(steps=1, batch=2), loop=LOOP)
    with pytest.raises(BadInput, match=rf"weights are in {str(kind)[6:]} .*train model.float\(\)"):
        realmlm.pretrain(settings, model=model, corpus=knowledge)
    assert not (tmp_path / "run").exists(), "nothing is left of a run that could not begin"
    realmlm.pretrain(settings, model=model.float(), corpus=knowledge)


def test_a_corpus_is_named_once(knowledge: Corpus, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="say which corpus"):
        realmlm.pretrain(Pretrain(out=tmp_path / "run"))
    with pytest.raises(Mismatch, match="but the corpus given is"):
        realmlm.pretrain(Pretrain(out=tmp_path / "run", corpus=tmp_path / "other"), corpus=knowledge)
    assert not (tmp_path / "run").exists()


def test_what_tensorboard_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="pip install 'realmlm[tensorboard]'")
    from realmlm.train.callbacks import TensorBoard

    board = TensorBoard(tmp_path / "logs")
    told: list[tuple[str, float, int]] = []
    monkeypatch.setattr(board._writer, "add_scalar", lambda *scalar: told.append(scalar))
    board.on_row({"step": 2, "loss": 2.5})
    for stage in ("warmup-reader", "finetune with a given model"):
        board.on_begin(stage)
        board.on_row({"step": 3, "loss": 1.5, "seconds": {"read": 0.1}, "note": "words"})
    board.on_end(None)  # type: ignore[arg-type]
    assert told == [
        ("loss", 2.5, 2),
        ("warmup-reader/loss", 1.5, 3),
        ("warmup-reader/seconds/read", 0.1, 3),
        ("finetune/loss", 1.5, 3),
        ("finetune/seconds/read", 0.1, 3),
    ]
    assert any(name.startswith("events.") for name in os.listdir(tmp_path / "logs"))


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        (Pretrain, {"marginal": "tokens"}, "marginal must be one of joint, per-token, not 'tokens'"),
        (Pretrain, {"k": 3.0}, r"k must be a whole number, not 3\.0"),
        (Pretrain, {"null_document": 1}, "null_document must be True or False, not 1"),
        (Pretrain, {"optim": Optim()}, r"optim must be JointOptim\(…\)"),
        (Finetune, {"questions": (), "objective": "em"}, "objective must be one of marginal, hard-em"),
    ],
)
def test_settings_are_checked_in_python_too(
    kind: Any, given: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=says):
        kind(out=tmp_path, **given)


def test_one_place_will_do_where_several_may_be_given(tmp_path: Path) -> None:
    sources: Any = "notes"
    assert BuildCorpus(sources=sources, out=tmp_path, train_tokenizer=500).sources == (
        Path("notes").absolute(),
    )
    asked: Any = str(tmp_path / "asked.jsonl")
    assert Finetune(questions=asked, out=tmp_path).questions == (tmp_path / "asked.jsonl",)


def test_a_run_of_ones_own_goes_on_only_with_what_it_began_with(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path
) -> None:
    class Own(JointPretraining):
        pass

    settings = Pretrain(
        out=tmp_path / "run", k=3, optim=JointOptim(steps=3, batch=2), refresh=STILL, loop=LOOP
    )
    model = Realm.from_pretrained(tiny_model_folder)
    with pytest.raises(KeyboardInterrupt):
        realmlm.pretrain(
            settings, model=model, corpus=knowledge, objective=Own, callbacks=[Heard(stop_after=1)]
        )
    with pytest.raises(Mismatch, match=r"another run .*Own with a given model"):
        realmlm.pretrain(settings, model=model, corpus=knowledge, resume=True)
    whole = Realm.from_pretrained(tiny_model_folder)
    realmlm.pretrain(replace(settings, out=tmp_path / "whole"), model=whole, corpus=knowledge, objective=Own)
    left = model.query.projection.weight.detach().clone()
    with torch.no_grad():
        model.query.projection.weight.mul_(2)
    with pytest.raises(Mismatch, match=r"the model that is given has changed .* give it loaded afresh"):
        realmlm.pretrain(settings, model=model, corpus=knowledge, objective=Own)
    with torch.no_grad():
        model.query.projection.weight.copy_(left)
    # as the run left it, which is what the same program has when it begins again
    trained = realmlm.pretrain(settings, model=model, corpus=knowledge, objective=Own)
    assert all(torch.equal(weight, whole.own_state()[name]) for name, weight in trained.own_state().items())


def test_what_an_objective_or_a_masking_was_given_belongs_to_its_run(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path
) -> None:
    class Scaled(JointPretraining):
        def __init__(self, *given: Any, strength: float, **more: Any) -> None:
            super().__init__(*given, **more)

    class Some(SalientSpan):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.count = count

    def run(out: str, strength: float, count: int, stop_after: int | None = None) -> None:
        realmlm.pretrain(
            Pretrain(out=tmp_path / out, k=3, optim=JointOptim(steps=2, batch=2), refresh=STILL, loop=LOOP),
            model=Realm.from_pretrained(tiny_model_folder),
            corpus=knowledge,
            objective=partial(Scaled, strength=strength),
            masking=Some(count),
            callbacks=[Heard(stop_after)],
        )

    with pytest.raises(KeyboardInterrupt):
        run("run", 1.0, 2, stop_after=1)
    with pytest.raises(Mismatch, match=r"Scaled\(strength=1.0\) with .*Some\(.*count=2\)"):
        run("run", 100.0, 2)
    with pytest.raises(Mismatch, match="another run"):
        run("run", 1.0, 3)
    run("run", 1.0, 2)
    with pytest.raises(BadInput, match="masking is an object with `needs_spans`"):
        realmlm.pretrain(
            Pretrain(out=tmp_path / "named"),
            model=Realm.from_pretrained(tiny_model_folder),
            corpus=knowledge,
            masking="uniform",  # type: ignore[arg-type]
        )


def test_a_run_that_goes_on_otherwise_says_how_it_began(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path
) -> None:
    def run(lr: float, stop_after: int | None = None, *, resume: bool = True) -> None:
        optim = JointOptim(steps=4, batch=2, lr=lr)
        realmlm.pretrain(
            Pretrain(out=tmp_path / "run", k=3, optim=optim, refresh=STILL, loop=LOOP),
            model=Realm.from_pretrained(tiny_model_folder),
            corpus=knowledge,
            callbacks=[Heard(stop_after)],
            resume=resume,
        )

    for lr, stop_after in ((1e-4, 1), (2e-4, 2), (2e-4, 3), (3e-4, None)):
        with pytest.raises(KeyboardInterrupt) if stop_after else nullcontext():
            run(lr, stop_after, resume=lr > 1e-4)
    record = read_run(tmp_path / "run")
    assert record["config"]["optim"]["lr"] == 3e-4
    assert [(past["until"], past["config"]["optim"]["lr"]) for past in record["before"]] == [
        (1, 1e-4),
        (3, 2e-4),
    ]


def test_callbacks_may_ask_the_model_and_change_nothing(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path
) -> None:
    class Asking(Callback):
        def on_row(self, row: dict[str, Any]) -> None:
            realmlm.load(model, knowledge, device="cpu").fill("The [MASK] lies on a river.")
            assert not model.training

        def on_end(self, trained: Realm) -> None:
            assert not trained.training

    def run(out: str, callbacks: Sequence[Callback]) -> dict[str, torch.Tensor]:
        settings = Pretrain(
            out=tmp_path / out, k=3, optim=JointOptim(steps=3, batch=2), refresh=STILL, loop=LOOP
        )
        return realmlm.pretrain(settings, model=model, corpus=knowledge, callbacks=callbacks).own_state()

    ended = []
    for out, callbacks in (("quiet", []), ("asking", [Asking()])):
        model = Realm.from_pretrained(tiny_model_folder)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.3
        ended.append(run(out, callbacks))
    assert all(torch.equal(weight, ended[1][name]) for name, weight in ended[0].items())


@pytest.mark.parametrize("checkpoint_every", [1, 10])
def test_a_run_that_diverges_ends_and_keeps_what_was_good(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path, checkpoint_every: int
) -> None:
    class Diverging(JointPretraining):
        def likelihood(self, *given: Any) -> Any:
            loss, numbers = super().likelihood(*given)
            self.steps = getattr(self, "steps", 0) + 1
            return loss * (torch.nan if self.steps > 4 else 1), numbers

    settings = Pretrain(
        out=tmp_path / "run",
        k=3,
        optim=JointOptim(steps=6, batch=2),
        refresh=STILL,
        loop=replace(LOOP, log_every=5, checkpoint_every=checkpoint_every),
    )
    model = Realm.from_pretrained(tiny_model_folder)
    with pytest.raises(Diverged, match=r"the loss is nan before step .*lower the learning rate"):
        realmlm.pretrain(settings, model=model, corpus=knowledge, objective=Diverging)
    assert not (tmp_path / "run" / "model").exists()
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert kept == (["step-00000003", "step-00000004"] if checkpoint_every == 1 else [])


@pytest.mark.parametrize(
    ("learned", "says"),
    [
        (lambda loss, numbers: loss, "gives a loss, a tensor, and a dict"),
        (lambda loss, numbers: (loss.expand(3), numbers), r"one number .* not of the shape \(3,\)"),
        (lambda loss, numbers: (loss.detach(), numbers), "not without a gradient"),
        (lambda loss, numbers: (loss, {"kl": torch.zeros(2)}), "'kl' is not one number"),
        (lambda loss, numbers: (loss, {"index_age": loss}), "a row has its own 'index_age'"),
        (lambda loss, numbers: (loss, {"queries/s": loss}), "a row has its own 'queries/s'"),
    ],
)
def test_what_an_objective_gives_is_checked(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path, learned: Any, says: str
) -> None:
    class Wrong(JointPretraining):
        def loss(self, *given: Any) -> Any:
            return learned(*super().loss(*given))

    optim = JointOptim(steps=1, batch=2)
    settings = Pretrain(out=tmp_path / "run", k=3, optim=optim, refresh=STILL, loop=LOOP)
    with pytest.raises(BadInput, match=says):
        realmlm.pretrain(
            settings, model=Realm.from_pretrained(tiny_model_folder), corpus=knowledge, objective=Wrong
        )


class Warm(JointPretraining):
    """Scores divided by a temperature that is learned, beside the model."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.temperature = torch.nn.Parameter(torch.zeros(()))

    def groups(self) -> dict[str, Group]:
        return {**super().groups(), "temperature": Group([self.temperature], 0.1)}

    def likelihood(self, retrieval_BK: Any, token_BKM: Any, valid_BM: Any) -> Any:
        loss, numbers = super().likelihood(retrieval_BK / self.temperature.exp(), token_BKM, valid_BM)
        return loss, {**numbers, "temperature": float(self.temperature)}


def test_what_an_objective_learns_beside_the_model_survives_a_stop(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path
) -> None:
    def run(out: str, stop_after: int | None = None) -> list[float]:
        optim = JointOptim(steps=4, batch=4)
        settings = Pretrain(out=tmp_path / out, k=3, optim=optim, refresh=STILL, loop=LOOP)
        heard = Heard(stop_after)
        try:
            realmlm.pretrain(
                settings,
                model=Realm.from_pretrained(tiny_model_folder),
                corpus=knowledge,
                objective=Warm,
                callbacks=[heard],
            )
        except KeyboardInterrupt:
            assert heard.checkpoints[-1][0] == stop_after, "what was done is saved first"
        return [row["temperature"] for row in heard.rows]

    whole = run("whole")
    assert [*run("cut", 2), *run("cut")] == whole
    assert len(set(whole)) == 4


def test_a_name_of_the_rows_own_is_refused(
    tiny_model_folder: Path, knowledge: Corpus, tmp_path: Path
) -> None:
    class Overwriting(JointPretraining):
        def likelihood(self, *given: Any) -> Any:
            loss, _ = super().likelihood(*given)
            return loss, {"step": loss}

    settings = Pretrain(out=tmp_path / "run", k=3, refresh=STILL, loop=LOOP)
    with pytest.raises(BadInput, match="a row has its own 'step'"):
        realmlm.pretrain(
            settings,
            model=Realm.from_pretrained(tiny_model_folder),
            corpus=knowledge,
            objective=Overwriting,
        )
