"""What comes with the package, by name: a trained model, `mini`, and a small encyclopedia, `pocket`."""

import os
from pathlib import Path

from realmlm.errors import ArtefactMissing, BadInput

MINI = Path("mini")
"""The model that commands take where none is named."""
POCKET = Path("pocket")
"""The encyclopedia, where documents are named."""
MODEL = Path(__file__).parent / "mini"
TEXT = Path(__file__).parent / "pocket" / "encyclopedia.jsonl"


def model_place(model: str | Path = MINI) -> Path:
    """The folder of a model: the one named, or the bundled one for `mini`."""
    from realmlm.log import say
    from realmlm.storage.artefacts import MANIFEST  # numpy comes in only here

    if Path(model) != MINI:
        return Path(os.path.expanduser(model))
    if (MINI / MANIFEST).is_file():
        other = f"for the one in this folder, give its full path: {MINI.absolute()}"
        say(f"mini means the model that comes with realmlm; {other}")
    if not (MODEL / MANIFEST).is_file():
        lacks = f"this installation of realmlm lacks the model that comes with it ({MODEL})"
        raise ArtefactMissing(f"{lacks}; name yours: --model MODEL")
    return MODEL


def text_place(docs: str | Path) -> Path:
    """The folder or file named (~ is the user's own folder), or the bundled encyclopedia for `pocket`."""
    from realmlm.log import say

    if docs == "":  # which would be the working folder
        raise BadInput("'' names no folder or file with documents; the working folder is .")
    if Path(docs) != POCKET:
        return Path(os.path.expanduser(docs))
    if POCKET.exists():
        other = f"for the one here, give its full path: {POCKET.absolute()}"
        say(f"pocket means the encyclopedia that comes with realmlm; {other}")
    return TEXT
