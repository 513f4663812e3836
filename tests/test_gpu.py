"""What only a GPU can show; skipped where there is none. `pytest tests/test_gpu.py` on a machine that has
one."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from realmlm.corpus.store import Corpus
from realmlm.corpus.wordpieces import Wordpieces
from realmlm.index.exact import ExactIndex
from realmlm.log import Clock, read_metrics
from realmlm.model.realm import Realm
from realmlm.settings import JointOptim, Loop, Pretrain, Refresh
from realmlm.train.asker import Asker
from realmlm.train.data import SentenceSource
from realmlm.train.objective import Staged
from realmlm.train.objectives.joint import JointPretraining
from realmlm.train.recorded import Recorded
from tests.calls import create_model, finetune, pretrain
from tests.conftest import TINY_MODEL
from tests.train.test_resume import Cut, cut_at, same, weights
from tests.train.test_teaching import foreign, made_teacher

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_exact_search_on_the_gpu_is_exact(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(50_000, 64, generator=generator).to(dtype)
    queries = torch.randn(33, 64, generator=generator)
    vectors[40_000:40_050] = vectors[7]  # ties: the smallest id first
    queries[0] = vectors[7].float() * 3
    index = ExactIndex(vectors, torch.arange(50_000), device="cuda")
    hits = index.search(queries.cuda(), 9, exclude_QE=torch.full((33, 1), 40_003))
    truth = queries.double() @ vectors.double().T
    truth[:, 40_003] = -torch.inf
    best = truth.topk(9).values
    assert torch.allclose(hits.scores_QK.cpu().double(), best, rtol=1e-3, atol=1e-2)
    assert torch.allclose(truth.gather(1, hits.ids_QK.cpu()), best, rtol=1e-3, atol=1e-2)
    assert hits.ids_QK[0].tolist() == [7, 40_000, 40_001, 40_002, 40_004, 40_005, 40_006, 40_007, 40_008]


def run(folder: Path, stage: Any, *, deterministic: bool, **settings: Any) -> Path:
    loop = Loop(log_every=1, checkpoint_every=3, deterministic=deterministic, threads=1, device="cuda")
    return stage(
        out=folder, optim=JointOptim(steps=10, batch=8, lr=1e-3, retriever_lr=1e-3), loop=loop, **settings
    )


@pytest.fixture
def joint(tiny_model_folder: Path, knowledge: Corpus, sentences: Corpus) -> dict[str, Any]:
    places = {"model": tiny_model_folder, "corpus": knowledge.folder, "text": sentences.folder}
    how = {
        "k": 4,
        "masking": "salient",
        "marginal": "joint",
        "freeze_retriever": 0,
        "probe": None,
        "probe_every": 5,
    }
    return {**places, **how}


def test_joint_training_with_the_refresher_on_the_same_gpu(joint: dict[str, Any], tmp_path: Path) -> None:
    run(
        tmp_path / "run", pretrain, deterministic=False, **joint, refresh=Refresh(every_steps=3, swap_after=2)
    )
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert rows[-1]["swaps"] == 2
    assert all(torch.isfinite(torch.tensor(row["loss"])) for row in rows)


def test_resume_on_the_gpu_is_exact_in_deterministic_mode(
    joint: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**joint, "refresh": Refresh(every_steps=4, process=False)}
    whole = weights(run(tmp_path / "whole", pretrain, deterministic=True, **settings))
    cut_at({5}, monkeypatch)
    with pytest.raises(Cut):
        run(tmp_path / "cut", pretrain, deterministic=True, **settings)
    assert same(weights(run(tmp_path / "cut", pretrain, deterministic=True, **settings)), whole)


def test_questions_on_the_gpu(
    tiny_model_folder: Path, knowledge: Corpus, world: Path, tmp_path: Path
) -> None:
    places = {
        "model": tiny_model_folder,
        "corpus": knowledge.folder,
        "questions": (world / "questions-train.jsonl",),
    }
    for name, refresh in (
        ("frozen", Refresh(every_steps=0)),
        ("refreshed", Refresh(every_steps=4, process=False)),
    ):
        run(
            tmp_path / name,
            finetune,
            deterministic=False,
            **places,
            read=3,
            candidates=50,
            closed_book=0.1,
            refresh=refresh,
        )
        rows = read_metrics(tmp_path / name / "metrics.jsonl")
        assert all(torch.isfinite(torch.tensor(row["loss"])) for row in rows)


def test_compiled_layers_learn_the_same(joint: dict[str, Any], tmp_path: Path) -> None:
    def losses(name: str, compiled: bool) -> list[float]:
        loop = Loop(log_every=1, threads=1, device="cuda", compile=compiled, bf16=False)
        optim = JointOptim(steps=3, batch=8, lr=1e-4, retriever_lr=1e-4)
        pretrain(out=tmp_path / name, optim=optim, loop=loop, refresh=Refresh(every_steps=0), **joint)
        return [row["loss"] for row in read_metrics(tmp_path / name / "metrics.jsonl")]

    assert losses("compiled", True) == pytest.approx(losses("plain", False), rel=1e-3)


def test_packed_sequences_are_read_as_padded_ones(
    tiny_model_folder: Path, knowledge: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    from realmlm.model.encoders import Encoder
    from realmlm.model.realm import Realm
    from realmlm.reading.read import join
    from realmlm.reading.retrieve import Offered

    model = Realm.from_pretrained(tiny_model_folder, device="cuda")
    numbers = knowledge.ids[:200]
    offered = Offered(knowledge, numbers[:, None], null=False)
    inputs = join(model, [knowledge.tokens(number)[:9] for number in numbers], offered).to(model.device)
    seen = inputs.attention_NL.bool()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert model.reader.encoder.packs(model.device, inputs.tokens_NL.shape[1])
        together = model.reader.encoder(inputs)[seen].float()
        monkeypatch.setattr(Encoder, "packs", lambda *_: False)
        padded = model.reader.encoder(inputs)[seen].float()
    assert (together - padded).norm() < 0.02 * padded.norm()


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_packed_step_is_a_padded_one_within_what_bfloat16_allows(
    family: str, knowledge: Corpus, tmp_path: Path
) -> None:
    how = {**TINY_MODEL, "family": family, "read_titles": True}
    model = create_model(corpus=knowledge.folder, out=tmp_path / "model", **how).cuda().eval()
    source = SentenceSource(knowledge, "salient", max_query=32, seed=0)
    vectors = torch.randn(len(knowledge), 32, generator=torch.Generator().manual_seed(0))
    index = ExactIndex(vectors, torch.from_numpy(knowledge.ids), device="cuda")
    settings = Pretrain(out=Path("unused"), k=4, pointing=1.0, own_passage=True)
    gradients = []
    losses = []
    for packed in (False, True):
        live = SimpleNamespace(index=index, asker=None)
        objective = JointPretraining(settings, model, knowledge, source, live)  # type: ignore[arg-type]
        if packed:
            objective.prepare(model)
            assert objective.resident is not None
        model.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss, _ = objective.loss(objective.draw(0, 64), 9999, Clock())
        loss.backward()
        learned = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
        gradients.append(torch.cat(learned))
        losses.append(float(loss.detach()))
    assert losses[1] == pytest.approx(losses[0], rel=5e-3)
    assert (gradients[1] - gradients[0]).norm() < 0.05 * gradients[0].norm()


@pytest.mark.parametrize("frozen", [0, 4])
def test_recorded_steps_learn_what_steps_as_they_are_learn(
    frozen: int, joint: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    joint = {**joint, "freeze_retriever": frozen, "scale_lr": 1e-3, "search_with": "index", "pointing": 1.0}

    def losses(name: str, compiled: bool) -> list[float]:
        loop = Loop(log_every=1, threads=1, device="cuda", compile=compiled)
        optim = JointOptim(steps=12, batch=8, lr=1e-3, retriever_lr=1e-4)
        pretrain(out=tmp_path / name, optim=optim, loop=loop, refresh=Refresh(every_steps=0), **joint)
        return [row["loss"] for row in read_metrics(tmp_path / name / "metrics.jsonl")]

    assert losses("recorded", True) == pytest.approx(losses("plain", False), rel=2e-2)
    assert "not recorded" not in capsys.readouterr().err


def test_what_is_recorded_finds_the_tower_of_a_new_index(tiny_model: Realm) -> None:
    """`--search-with index`: the copy that searches is filled in place, as its recordings expect."""
    asker = Asker(tiny_model.to("cuda").query)

    def project(staged: Staged) -> dict[str, torch.Tensor]:
        return {"vectors": asker.tower.projection(staged.tensors["given"])}

    recorded = Recorded(project, torch.device("cuda"))
    staged = Staged({"given": torch.randn(4, asker.tower.projection.in_features, device="cuda")}, ())
    with torch.no_grad():
        before = [recorded(staged)["vectors"].clone() for _ in range(3)][-1]
        tiny_model.query.projection.weight.add_(1.0)
        asker.note(tiny_model.query)
        assert torch.equal(recorded(staged)["vectors"], before)
        asker.use()
        after = recorded(staged)["vectors"].clone()
        torch.testing.assert_close(after, tiny_model.query.projection(staged.tensors["given"]))
    assert not torch.allclose(after, before)


def test_work_that_cannot_be_recorded_is_done_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    weight = torch.ones(1000, device="cuda", requires_grad=True)

    def work(staged: Staged) -> dict[str, torch.Tensor]:
        dropped = torch.nn.functional.dropout(staged.tensors["x"] * weight, 0.5)
        dropped.sum().backward()
        return {"mean": torch.tensor(float(dropped.mean()))}  # asks the device, which a recording cannot

    recorded = Recorded(work, torch.device("cuda"))
    means = [float(recorded(Staged({"x": torch.ones(1000, device="cuda")}, ()))["mean"]) for _ in range(4)]
    assert "not recorded" in capsys.readouterr().err
    assert all(0.8 < mean < 1.2 for mean in means)
    assert len(set(means)) == 4  # dropout still draws
    assert torch.rand(3, device="cuda").isfinite().all()


def test_recorded_fine_tuning_judges_as_it_does_step_by_step(
    knowledge: Corpus, world: Path, tmp_path: Path
) -> None:
    how = {**TINY_MODEL, "family": "bert", "read_titles": True, "reading": "together"}
    create_model(corpus=knowledge.folder, out=tmp_path / "model", **how)

    def rows(name: str, **changed: Any) -> list[dict[str, Any]]:
        finetune(
            model=tmp_path / "model",
            corpus=knowledge.folder,
            questions=(world / "questions-train.jsonl",),
            out=tmp_path / name,
            read=20,
            candidates=50,
            passage_logit=True,
            title_answers=True,
            optim=JointOptim(steps=12, batch=8, lr=1e-3, retriever_lr=1e-4),
            loop=Loop(log_every=1, threads=1, device="cuda", **changed),
        )
        return read_metrics(tmp_path / name / "metrics.jsonl")

    plain = rows("plain", bf16=False)
    for name, changed in (("packed", {}), ("recorded", {"compile": True})):
        made = list(zip(rows(name, **changed), plain, strict=True))
        for one, other in made:
            assert one["judged"] == pytest.approx(other["judged"], rel=5e-2)
        # a question embedded in bfloat16 may read another passage of two that score alike
        same = [one["loss"] == pytest.approx(other["loss"], rel=3e-2) for one, other in made]
        assert sum(same) >= 9, made


@pytest.mark.parametrize("teacher", [None, "same", "foreign"])
def test_recorded_fine_tuning_with_what_was_found_before_and_a_teacher(
    teacher: str | None, knowledge: Corpus, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = {**TINY_MODEL, "family": "bert", "read_titles": True, "reading": "together"}
    create_model(corpus=knowledge.folder, out=tmp_path / "model", **how)
    if teacher == "same":
        made_teacher(knowledge, tmp_path)
    elif teacher == "foreign":
        texts = [knowledge.text(number) for number in knowledge.ids[:40].tolist()]
        foreign(Wordpieces.train(texts, 150), tmp_path)

    def rows(name: str, **changed: Any) -> list[dict[str, Any]]:
        finetune(
            model=tmp_path / "model",
            corpus=knowledge.folder,
            questions=(world / "questions-train.jsonl",),
            out=tmp_path / name,
            read=20,
            candidates=50,
            passage_logit=True,
            scale_lr=1e-2,
            teacher=tmp_path / "teacher" if teacher else None,
            optim=JointOptim(steps=12, batch=8, lr=1e-3, retriever_lr=0),
            loop=Loop(log_every=1, threads=1, device="cuda", **changed),
        )
        return read_metrics(tmp_path / name / "metrics.jsonl")

    plain = rows("plain", bf16=False)
    assert len({row["scale"] for row in plain}) == 12, "the scale learns"
    for name, changed in (("packed", {}), ("recorded", {"compile": True})):
        for one, other in zip(rows(name, **changed), plain, strict=True):
            assert one["recall@1"] == other["recall@1"], "the same passages"
            assert one["loss"] == pytest.approx(other["loss"], rel=3e-2)
            assert one["scale"] == pytest.approx(other["scale"], rel=1e-2)
            assert one.keys() == other.keys()
            assert ("from_teacher" in one) == (teacher is not None)
    assert "not recorded" not in capsys.readouterr().err
