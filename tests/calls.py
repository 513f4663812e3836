"""The library's functions with settings spelled out as arguments; stages give the folder of their model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from realmlm import settings as kinds
from realmlm.corpus import build
from realmlm.corpus.store import Corpus
from realmlm.evaluation import align as aligning
from realmlm.evaluation import calibrate as calibrating
from realmlm.evaluation import measure
from realmlm.evaluation.scores import Report
from realmlm.interop import encoders, exporting, importing
from realmlm.model import create
from realmlm.model.realm import Realm
from realmlm.settings import Finetune, Pretrain, Settings, TrainTowers, Warmup
from realmlm.train import adapt as adapting
from realmlm.train import stages


def flat(settings: Settings) -> dict[str, Any]:
    return dict(vars(settings))


def build_corpus(sources: Sequence[str | Path], out: str | Path, **settings: Any) -> Corpus:
    return build.build_corpus(kinds.BuildCorpus(sources=tuple(map(Path, sources)), out=Path(out), **settings))


def create_model(**settings: Any) -> Realm:
    return create.create_model(kinds.MakeModel(**settings))


def graft(**settings: Any) -> str:
    return create.graft(kinds.Graft(**settings))


def evaluate(**settings: Any) -> Report:
    return measure.evaluate(kinds.Evaluate(**settings))


def align(**settings: Any) -> int:
    return aligning.align(kinds.Align(**settings))


def calibrate(**settings: Any) -> str:
    return calibrating.calibrate(kinds.Calibrate(**settings))


def import_hf(sources: Sequence[str], **settings: Any) -> Realm:

    return importing.import_hf(kinds.ImportHf(sources=tuple(sources), **settings))


def export_hf(model: Path, **settings: Any) -> None:

    exporting.export_hf(kinds.ExportHf(model=model, **settings))


def export_encoders(**settings: Any) -> str:
    return encoders.export_encoders(kinds.ExportEncoders(**settings))


def run_warmup(settings: Warmup, **given: Any) -> Path:
    stages.warmup(settings, **given)
    return settings.out / "model"


def run_pretrain(settings: Pretrain, **given: Any) -> Path:
    stages.pretrain(settings, **given)
    return settings.out / "model"


def run_finetune(settings: Finetune, **given: Any) -> Path:
    stages.finetune(settings, **given)
    return settings.out / "model"


def train_towers(**settings: Any) -> Path:
    stages.train_towers(TrainTowers(**settings))
    return Path(settings["out"]) / "model"


def warm_up(**settings: Any) -> Path:
    return run_warmup(Warmup(**settings))


def pretrain(**settings: Any) -> Path:
    return run_pretrain(Pretrain(**settings))


def finetune(**settings: Any) -> Path:
    return run_finetune(Finetune(**settings))


def run_adapt(settings: kinds.Adapt) -> adapting.Verdict:
    return adapting.adapt(settings)
