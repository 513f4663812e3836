"""What can go wrong for a user. Every message says what, where, and what to do next; the command line prints
it and exits with 2."""

import importlib
from types import ModuleType


class RealmError(Exception):
    """Base of every error a user can cause or cure."""


class BadInput(RealmError):
    """A source file, question set or flag cannot be used as it is."""


class ChangedMeanwhile(BadInput):
    """Someone else changed the same passage a moment before."""


class ArtefactMissing(RealmError):
    """A corpus, model, index or run is not where it was looked for."""


class ArtefactExists(RealmError):
    """What is to be made is there already; a batch goes on behind it."""


class ArtefactDamaged(RealmError):
    """A file of an artefact is cut off, altered or unreadable."""


class Mismatch(RealmError):
    """Two artefacts do not belong together (other tokenizer, other corpus, other weights), or a run and the
    settings to go on with it."""


class MissingExtra(RealmError):
    """An optional library is needed and not installed."""


class Diverged(RealmError):
    """Training went where there are no numbers."""


class NotEnough(RealmError):
    """Memory, a device or passages that a setting asks for are not there."""


class Unavailable(RealmError):
    """Another system that is needed, a database, cannot be reached or does not answer now; the same may
    succeed later. The message is for everyone who asks: it names no address."""


def require(module: str, *, extra: str, why: str) -> ModuleType:
    """Import an optional library, or say which extra brings it; "" is realmlm without extras."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        wanted = f"'realmlm[{extra}]'" if extra else "realmlm"
        raise MissingExtra(f"{why} needs '{module}': pip install {wanted}") from error


def is_out_of_memory(error: Exception) -> bool:
    """By name and text, for torch may not be there: its error on a GPU, or a bare RuntimeError on a CPU."""
    by_name = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return by_name or "can't allocate memory" in str(error)


# cuBLAS says the last two where there is too little memory for a handle
_RECOVERS = (
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "invalid argument",
)


def is_device_lost(error: BaseException | None) -> bool:
    """Did a GPU fail so that nothing can be done there in this process any more? By name and text, too."""
    while error is not None:
        text = str(error)
        lost = type(error).__name__ == "AcceleratorError" or "CUDA error" in text
        if lost and not any(harmless in text for harmless in _RECOVERS):
            return True
        error = error.__cause__
    return False
