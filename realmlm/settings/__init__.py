"""Every setting of every command and stage: typed, explained, checked once and in one place.

The command line and its help are made from these classes; stages take them whole from Python too:

```python
from realmlm.settings import JointOptim, Pretrain
realmlm.pretrain(Pretrain(corpus="corpus", out="run", optim=JointOptim(steps=500)))
```
"""

from realmlm.settings.base import Settings, filled, record, restore, together
from realmlm.settings.corpus import BuildCorpus, EditCorpus, ListPassages, MakeClozes, MakeWorld, MarkSpans
from realmlm.settings.model import (
    BuildIndex,
    Compress,
    ExportEncoders,
    ExportHf,
    ExportVectors,
    Graft,
    ImportHf,
    MakeModel,
    TrainTagger,
)
from realmlm.settings.stages import Adapt, Finetune, Pretrain, TrainTowers, Warmup
from realmlm.settings.training import JoinRun, JointOptim, Loop, Optim, Refresh, TrainObjective
from realmlm.settings.use import (
    Align,
    Ask,
    Calibrate,
    Evaluate,
    Examine,
    FitHybrid,
    MakeReport,
    ManageCache,
    RunBatch,
    Search,
    Serve,
)

STAGES: dict[str, type[Settings]] = {
    "warmup": Warmup,
    "pretrain": Pretrain,
    "towers": TrainTowers,
    "finetune": Finetune,
}
"""Commands whose runs can be resumed."""

__all__ = [
    "STAGES",
    "Adapt",
    "Align",
    "Ask",
    "BuildCorpus",
    "BuildIndex",
    "Calibrate",
    "Compress",
    "EditCorpus",
    "Evaluate",
    "Examine",
    "ExportEncoders",
    "ExportHf",
    "ExportVectors",
    "Finetune",
    "FitHybrid",
    "Graft",
    "ImportHf",
    "JoinRun",
    "JointOptim",
    "ListPassages",
    "Loop",
    "MakeClozes",
    "MakeModel",
    "MakeReport",
    "MakeWorld",
    "ManageCache",
    "MarkSpans",
    "Optim",
    "Pretrain",
    "Refresh",
    "RunBatch",
    "Search",
    "Serve",
    "Settings",
    "TrainObjective",
    "TrainTagger",
    "TrainTowers",
    "Warmup",
    "filled",
    "record",
    "restore",
    "together",
]
