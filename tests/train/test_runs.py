"""What a run keeps and what it lets go: failed starts, edits made meanwhile, Ctrl-C, a run that has ended."""

import dataclasses
import json
import os
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from realmlm import cli
from realmlm.corpus.questions import Question, write_questions
from realmlm.corpus.spans import mark_spans
from realmlm.corpus.store import Corpus
from realmlm.corpus.taggers import PhraseTagger
from realmlm.errors import ArtefactDamaged, Mismatch, NotEnough
from realmlm.log import read_metrics
from realmlm.settings import JointOptim, Loop, Optim, Pretrain, Refresh, Warmup, record
from realmlm.sources.article import Article
from realmlm.train import loop as training
from realmlm.train.callbacks import Callback
from realmlm.train.gold import locate_answers
from realmlm.train.run import Run, read_run, write_run
from realmlm.train.stages import pretrain as run_pretrain
from tests.calls import create_model, flat, pretrain, run_warmup
from tests.conftest import TINY_MODEL, world_corpus
from tests.train.steps import at_each_step, fail_at
from tests.train.test_resume import same, weights

LOOP = Loop(log_every=50, checkpoint_every=2, deterministic=True, threads=1, device="cpu")


@pytest.fixture
def own(world: Path, tmp_path: Path) -> Corpus:
    """A corpus that the test may edit."""
    return world_corpus(world, "knowledge", tmp_path / "own")


@pytest.fixture
def settings(tiny_model_folder: Path, own: Corpus, tmp_path: Path) -> Pretrain:
    optim = JointOptim(steps=6, batch=4, lr=1e-3)
    refresh = Refresh(every_steps=0)
    return Pretrain(
        model=tiny_model_folder,
        corpus=own.folder,
        out=tmp_path / "run",
        k=3,
        optim=optim,
        refresh=refresh,
        loop=LOOP,
    )


def test_a_failure_after_some_work_keeps_the_work(
    settings: Pretrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(5, NotEnough("no more"), monkeypatch)
    with pytest.raises(NotEnough):
        pretrain(**flat(settings))
    assert (settings.out / "checkpoints" / "step-00000004").is_dir(), (
        "no row was written yet, but two checkpoints were"
    )


def test_a_start_that_fails_leaves_nothing(settings: Pretrain, tmp_path: Path) -> None:
    with pytest.raises(NotEnough, match="lower --k"):
        pretrain(**{**flat(settings), "k": 10_000})
    assert not settings.out.exists()


def test_a_run_killed_while_it_wrote_its_record_can_be_begun_again(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".run.json.0a1b2c3d.part").write_text('{"stage": "pre')
    with Run.begin(tmp_path, stage="pretrain", settings=None):
        assert read_run(tmp_path)["stage"] == "pretrain"
    assert not list(tmp_path.glob("*.part"))


def test_edits_made_while_a_run_rests_do_not_change_it(
    settings: Pretrain, own: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = weights(pretrain(**{**flat(settings), "out": tmp_path / "whole"}))
    with monkeypatch.context() as patch:
        fail_at(5, NotEnough("power cut"), patch)
        with pytest.raises(NotEnough):
            pretrain(**flat(settings))
    own.edit(remove=own.ids[:100].tolist())
    assert same(weights(pretrain(**flat(settings))), whole)


def test_a_run_knows_its_corpus_whatever_folder_it_is_resumed_from(
    settings: Pretrain, own: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = weights(pretrain(**{**flat(settings), "out": tmp_path / "whole"}))
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        fail_at(5, NotEnough("power cut"), patch)
        with pytest.raises(NotEnough):
            pretrain(**{**flat(settings), "corpus": Path("own")})
    own.edit(remove=own.ids[:100].tolist())
    cli.main(["pretrain", "--resume", "run"])
    assert same(weights(settings.out / "model"), whole)


def test_a_run_does_not_go_on_with_other_spans(
    settings: Pretrain,
    own: Corpus,
    world: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    phrases = (world / "phrases.txt").read_text("utf-8").split("\n")
    with monkeypatch.context() as patch:
        fail_at(5, NotEnough("power cut"), patch)
        with pytest.raises(NotEnough):
            pretrain(**flat(settings))
    mark_spans(own, PhraseTagger(phrases[::2]))
    with pytest.raises(SystemExit):
        cli.main(["pretrain", "--resume", str(settings.out)])
    assert (
        f"the spans of {own.folder} were marked again since {settings.out} began" in capsys.readouterr().err
    )
    mark_spans(own, PhraseTagger(phrases))
    cli.main(["pretrain", "--resume", str(settings.out)])


def test_spans_that_are_not_masked_may_change(
    settings: Pretrain, own: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_at(5, NotEnough("power cut"), patch)
        with pytest.raises(NotEnough):
            pretrain(**{**flat(settings), "masking": "uniform"})
    warmup = cut_in_the_retriever(
        dataclasses.replace(settings, out=settings.out.with_name("warm")), monkeypatch, masking="salient"
    )
    mark_spans(own, PhraseTagger(["nothing"]))
    cli.main(["pretrain", "--resume", str(settings.out)])
    cli.main(["warmup", "--resume", str(warmup.out)])


@pytest.mark.parametrize(
    "flag", [("--corpus", "typo"), ("--model", "typo"), ("--probe", "typo"), ("--loop.device", "typo")]
)
def test_a_mistyped_flag_beside_resume_changes_nothing(
    settings: Pretrain, flag: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (NotEnough("before the first step"), NotEnough("before the last step")):
        with monkeypatch.context() as patch:
            fail_at(5 if "last" in str(error) else 0, error, patch)
            with pytest.raises(NotEnough):
                pretrain(**flat(settings))
        with pytest.raises(SystemExit):
            cli.main(["pretrain", "--resume", str(settings.out), *flag])
        assert read_run(settings.out)["config"] == record(settings)
    cli.main(["pretrain", "--resume", str(settings.out)])


@pytest.mark.parametrize(
    "flag", [("--masking", "uniform"), ("--k", "4"), ("--loop.seed", "1"), ("--text", "{own}")]
)
def test_what_a_run_learned_with_does_not_change(
    settings: Pretrain,
    own: Corpus,
    flag: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patch:
        fail_at(5, NotEnough("power cut"), patch)
        with pytest.raises(NotEnough):
            pretrain(**flat(settings))
    with pytest.raises(SystemExit) as end:
        cli.main(["pretrain", "--resume", str(settings.out), flag[0], flag[1].format(own=own.folder)])
    assert end.value.code == 2
    assert f"has already trained with other settings ({flag[0][2:]})" in capsys.readouterr().err
    cli.main(
        [
            "pretrain",
            "--resume",
            str(settings.out),
            "--optim.steps",
            "7",
            "--refresh.every-steps",
            "3",
            "--refresh.no-process",
        ]
    )
    assert read_run(settings.out)["config"]["optim"]["steps"] == 7


def test_a_run_that_has_made_no_step_may_change(
    settings: Pretrain, own: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was out of memory, say, after its probe. The first index is then that of the model it goes on
    with."""
    other = tmp_path / "other"
    create_model(corpus=own.folder, out=other, **(TINY_MODEL | {"seed": 7}))
    with monkeypatch.context() as patch:
        fail_at(0, NotEnough("out of memory"), patch)
        with pytest.raises(NotEnough):
            pretrain(**flat(settings))
    (settings.out / "metrics.jsonl").write_text('{"step": 0, "recall@1": 0.1}\n')
    cli.main(["pretrain", "--resume", str(settings.out), "--k", "4", "--model", str(other)])
    known = read_run(settings.out)["config"]
    assert (known["k"], known["model"]) == (4, str(other))
    anew = flat(settings) | {"k": 4, "model": other, "out": settings.out.with_name("anew")}
    assert same(weights(settings.out / "model"), weights(pretrain(**anew)))


def test_a_run_does_not_go_on_with_another_corpus(
    settings: Pretrain, own: Corpus, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_at(5, NotEnough("power cut"), patch)
        with pytest.raises(NotEnough):
            pretrain(**flat(settings))
    kept = own.folder.rename(own.folder.with_name("kept"))
    world_corpus(world, "sentences", own.folder)
    with pytest.raises(Mismatch, match=r"was rebuilt since .* began; restore it, or start another run"):
        pretrain(**flat(settings))
    shutil.rmtree(own.folder)
    kept.rename(own.folder)
    pretrain(**flat(settings))


def test_a_run_does_not_go_on_without_the_edits_it_knew(
    settings: Pretrain, own: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.edit(remove=[0])
    with monkeypatch.context() as patch:
        fail_at(5, NotEnough("power cut"), patch)
        with pytest.raises(NotEnough):
            pretrain(**flat(settings))
    shutil.rmtree(own.folder / "edits")
    with pytest.raises(ArtefactDamaged, match="had 1 edits and now has 0"):
        pretrain(**flat(settings))


def test_a_run_does_not_go_on_with_other_sentences_held_out(
    settings: Pretrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tmp_path / "held.jsonl"
    write_questions(held, [Question("Nothing of [MASK] stands there.", ("this",))])
    before = held.read_text()
    with monkeypatch.context() as patch:
        fail_at(5, NotEnough("power cut"), patch)
        with pytest.raises(NotEnough):
            pretrain(**flat(settings) | {"hold_out": held})
    held.write_text(before + before)
    with pytest.raises(Mismatch, match=r"held.jsonl was changed since"):
        pretrain(**flat(settings) | {"hold_out": held})


def test_a_run_begun_before_corpora_had_fingerprints_goes_on(
    settings: Pretrain, own: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_at(5, NotEnough("power cut"), patch)
        with pytest.raises(NotEnough):
            pretrain(**flat(settings))
    pins = settings.out / "corpora.json"
    spans = json.loads(pins.read_text())["pins"][f"{own.folder}/spans"]
    pins.write_text(json.dumps({str(own.folder): 0, f"{own.folder}/spans": spans}))
    pretrain(**flat(settings))
    assert json.loads(pins.read_text())["pins"][f"{own.folder}/manifest.json"] == own.fingerprint


def test_located_answers_belong_to_their_questions_and_edits(
    own: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = own[3].text
    question = Question("what?", (text.split()[0],))
    before = locate_answers(own, [question])
    assert len(before.spans(0, 3))
    with monkeypatch.context() as patch:
        patch.setattr("realmlm.train.gold.AnswerMatcher", None)  # found before: not looked for again
        locate_answers(own, [question])
        with pytest.raises(TypeError):
            locate_answers(own, [Question("what?", (text.split()[1],))])
    edited, _ = own.edit(replace={3: Article("x", "Nothing of the old text.")})
    assert not len(locate_answers(edited, [question]).spans(0, 3))


@pytest.mark.parametrize("while_told", [False, True])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_saves_the_step_and_the_run_goes_on_from_it(
    settings: Pretrain,
    sent: signal.Signals,
    while_told: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = dataclasses.replace(settings, loop=dataclasses.replace(LOOP, log_every=1))
    whole = weights(pretrain(**{**flat(settings), "out": tmp_path / "whole"}))
    before = signal.getsignal(sent)

    def interrupt(step: int) -> None:
        if step == 2:
            os.kill(os.getpid(), sent)

    class Told(Callback):
        def on_row(self, row: dict[str, Any]) -> None:
            interrupt(row["step"] - 1)

    with monkeypatch.context() as patch:
        if not while_told:
            at_each_step(interrupt, patch)
        with pytest.raises(KeyboardInterrupt):
            run_pretrain(settings, callbacks=[Told()] if while_told else [])
    assert Run(settings.out).checkpoints() == [2, 3]
    assert same(weights(pretrain(**flat(settings))), whole)
    assert signal.getsignal(sent) is before


def test_a_run_begun_before_a_setting_existed_goes_on(settings: Pretrain) -> None:
    pretrain(**flat(settings))
    known = read_run(settings.out)
    for lacking in ("recurring", "glimpses", "pointing"):
        del known["config"][lacking]
    del known["config"]["loop"]["compile"]
    write_run(settings.out, **known)
    assert cli.parse("pretrain", Pretrain, ["--resume", str(settings.out)]) == settings
    pretrain(**flat(settings))  # passed over: it is the same run
    with pytest.raises(Mismatch, match="holds another run"):
        pretrain(**flat(settings) | {"pointing": 1.0})


def test_a_run_that_has_ended_is_not_made_to_lie(
    settings: Pretrain, capsys: pytest.CaptureFixture[str]
) -> None:
    pretrain(**flat(settings))
    with pytest.raises(SystemExit) as end:
        cli.main(["pretrain", "--resume", str(settings.out), "--optim.steps", "40"])
    assert end.value.code == 2
    assert f"--model {settings.out}/model" in capsys.readouterr().err
    assert read_run(settings.out)["config"] == record(settings)


def cut_in_the_retriever(
    settings: Pretrain, monkeypatch: pytest.MonkeyPatch, masking: Any = "uniform"
) -> Warmup:
    """A warm-up whose reader has ended after 2 steps and whose retriever was cut off at 3 of 4."""
    optims: dict[str, Any] = {"reader": Optim(steps=2, batch=4), "retriever": Optim(steps=4, batch=4)}
    warmup = Warmup(
        model=settings.model, corpus=settings.corpus, out=settings.out, masking=masking, loop=LOOP, **optims
    )
    with monkeypatch.context() as patch:
        fail_at(3, NotEnough("power cut"), patch)
        with pytest.raises(NotEnough):
            run_warmup(warmup)
    return warmup


@pytest.mark.parametrize(
    "flag",
    [("--reader.steps", "40"), ("--reader.steps", "0"), ("--masking", "whole-word"), ("--pointing", "1")],
)
def test_a_part_that_has_ended_is_not_made_to_lie(
    settings: Pretrain,
    flag: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    warmup = cut_in_the_retriever(settings, monkeypatch)
    with pytest.raises(SystemExit) as end:
        cli.main(["warmup", "--resume", str(warmup.out), *flag])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert f"the reader's part of {warmup.out} is finished" in said
    assert "start another run" in said
    assert read_run(warmup.out)["config"] == record(warmup)


def test_the_part_that_still_runs_may_change(settings: Pretrain, monkeypatch: pytest.MonkeyPatch) -> None:
    warmup = cut_in_the_retriever(settings, monkeypatch)
    cli.main(["warmup", "--resume", str(warmup.out), "--retriever.steps", "6", "--loop.log-every", "1"])
    assert [row["step"] for row in read_metrics(warmup.out / "retriever" / "metrics.jsonl")] == [3, 4, 5, 6]
    known = read_run(warmup.out)["config"]
    assert (known["reader"]["steps"], known["retriever"]["steps"]) == (2, 6)


def test_a_part_that_was_left_out_cannot_be_made_later(
    settings: Pretrain, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The retriever's checkpoint has the reader it began with: what another one learned would be lost."""
    none = Optim(steps=0, batch=4)
    some = Optim(steps=4, batch=4)
    warmup = Warmup(
        model=settings.model, corpus=settings.corpus, out=settings.out, reader=none, retriever=some, loop=LOOP
    )
    fail_at(3, NotEnough("power cut"), monkeypatch)
    with pytest.raises(NotEnough):
        run_warmup(warmup)
    with pytest.raises(SystemExit):
        cli.main(["warmup", "--resume", str(warmup.out), "--reader.steps", "40"])
    assert "the reader's part" in capsys.readouterr().err
    assert read_run(warmup.out)["config"] == record(warmup)


def test_a_rows_speed_is_that_of_the_steps_since_the_clock_began(
    settings: Pretrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off at step 3 with a row every 4 steps, each step taking a second."""
    steps = [0]

    def count(_: int) -> None:
        steps[0] += 1

    at_each_step(count, monkeypatch)
    monkeypatch.setattr(
        training, "time", SimpleNamespace(monotonic=lambda: float(steps[0]), perf_counter=time.perf_counter)
    )
    loop = Loop(log_every=4, checkpoint_every=3, threads=1, device="cpu")
    changed = flat(settings) | {"loop": loop, "optim": JointOptim(steps=10, batch=4)}
    with monkeypatch.context() as patch:
        fail_at(3, NotEnough("power cut"), patch)
        with pytest.raises(NotEnough):
            pretrain(**changed)
    pretrain(**changed)
    rows = read_metrics(settings.out / "metrics.jsonl")
    assert [(row["step"], row["queries/s"]) for row in rows] == [(4, 4.0), (8, 4.0), (10, 4.0)]


def test_a_row_cut_off_in_its_middle_is_the_same_row(
    settings: Pretrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = dataclasses.replace(LOOP, log_every=4, checkpoint_every=3)
    pretrain(**{**flat(settings), "loop": loop, "out": tmp_path / "whole"})
    with monkeypatch.context() as patch:
        fail_at(3, NotEnough("power cut"), patch)
        with pytest.raises(NotEnough):
            pretrain(**{**flat(settings), "loop": loop})
    pretrain(**{**flat(settings), "loop": loop})
    rows, whole = (read_metrics(folder / "metrics.jsonl") for folder in (settings.out, tmp_path / "whole"))
    clocks = ("queries/s", "seconds")
    assert [{name: row[name] for name in row if name not in clocks} for row in rows] == [
        {name: row[name] for name in row if name not in clocks} for row in whole
    ]


def test_a_refresher_on_a_device_that_is_not_there_is_refused_at_once(settings: Pretrain) -> None:
    with pytest.raises(NotEnough, match="no device 'bogus'"):
        pretrain(**{**flat(settings), "refresh": Refresh(every_steps=4, device="bogus")})
    assert not settings.out.exists()
