"""What a look through a whole corpus found: looked for once, and kept beside the corpus for the next run that
wants it."""

import os
from collections.abc import Callable

import numpy as np

from realmlm.corpus.store import Corpus
from realmlm.errors import Mismatch
from realmlm.storage.arrays import map_arrays, save_arrays
from realmlm.storage.artefacts import open_artefact, publish
from realmlm.storage.locks import locked
from realmlm.storage.mirrors import here


def kept_beside(
    corpus: Corpus, kind: str, *, sought: str, fingerprint: str, find: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """The arrays of `CORPUS/KIND/FINGERPRINT-EDITS`, made by `find` if they are not there; `sought` names
    what the fingerprint is of. Where nothing can be written they are looked for each time."""
    parents = {"corpus": f"{corpus.fingerprint}+{corpus.edits}", sought: fingerprint}
    name = f"{fingerprint[:16]}-{corpus.edits}"
    if corpus.edits:  # others may come to have the same number, when someone removes some
        parents["state"] = corpus.state
        name += f"-{corpus.state[:8]}"
    folder = here(corpus.folder / kind / name)
    if not folder.exists() and not os.access(corpus.folder, os.W_OK):
        return find()
    if not folder.exists():
        with locked(folder.parent / f".{folder.name}.lock"):  # others may want the same at this moment
            if not folder.exists():
                with publish(folder, kind=kind) as draft:
                    save_arrays(draft.path / f"{kind}.safetensors", find())
                    draft.parents = parents
    if open_artefact(folder, kind=kind).parents != parents:
        raise Mismatch(f"{folder} was made for another corpus; remove it")
    return map_arrays(folder / f"{kind}.safetensors")
