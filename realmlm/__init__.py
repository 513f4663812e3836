"""Retrieval-augmented language models whose retriever is learned, without labels, from the text itself.

```python
import realmlm

engine = realmlm.load().read("notes/")
engine.ask("When was the treaty signed?")
```

Public names: `load`, `Engine`, `Answer`; `Realm`, `Corpus`, `Index`; `warmup`, `pretrain`,
`train_towers`, `finetune`, `adapt`, `evaluate`, each with its settings in `realmlm.settings`; `compare`,
of what two models were evaluated to; `pocket`.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from realmlm.bundled import TEXT

if TYPE_CHECKING:
    from realmlm.corpus.store import Corpus
    from realmlm.engine import Engine, load
    from realmlm.evaluation.compare import compare
    from realmlm.evaluation.measure import evaluate
    from realmlm.index.exact import Index
    from realmlm.model.realm import Realm
    from realmlm.reading.answer import Answer
    from realmlm.train.adapt import adapt
    from realmlm.train.stages import finetune, pretrain, train_towers, warmup

# torch reads it when it is loaded, which is later: threads that spin while they wait starve what else runs on
# the same cores, and are starved by it
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

__version__ = "0.1.0"
__all__ = [
    "Answer",
    "Corpus",
    "Engine",
    "Index",
    "Realm",
    "__version__",
    "adapt",
    "compare",
    "evaluate",
    "finetune",
    "load",
    "pocket",
    "pretrain",
    "train_towers",
    "warmup",
]

pocket = TEXT
"""The small encyclopedia that comes with realmlm, as a file."""

_LIVES_IN = {
    "Answer": "realmlm.reading.answer",
    "Corpus": "realmlm.corpus.store",
    "Engine": "realmlm.engine",
    "Index": "realmlm.index.exact",
    "Realm": "realmlm.model.realm",
    "adapt": "realmlm.train.adapt",
    "compare": "realmlm.evaluation.compare",
    "evaluate": "realmlm.evaluation.measure",
    "finetune": "realmlm.train.stages",
    "load": "realmlm.engine",
    "pretrain": "realmlm.train.stages",
    "train_towers": "realmlm.train.stages",
    "warmup": "realmlm.train.stages",
}


def __getattr__(name: str) -> Any:
    """Torch comes in only with the first name that needs it: the command line's help stays quick."""
    if name not in _LIVES_IN:
        raise AttributeError(f"module 'realmlm' has no attribute '{name}'")
    return getattr(importlib.import_module(_LIVES_IN[name]), name)


def __dir__() -> list[str]:
    return __all__
