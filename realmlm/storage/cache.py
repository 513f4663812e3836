"""Where things are kept that can be made or fetched again."""

import stat
from contextlib import suppress
from pathlib import Path

from realmlm.errors import require

_AS_MADE_BEFORE = 0o755  # mode of the cache that earlier releases made


def cache_folder() -> Path:
    """The user's cache, which is `$XDG_CACHE_HOME/realmlm` or else `~/.cache/realmlm` on Linux: corpora of
    documents, and what was fetched from object stores."""
    platformdirs = require("platformdirs", extra="", why="the cache of documents")
    return Path(platformdirs.user_cache_path("realmlm", appauthor=False))


def make_private(folder: Path) -> None:
    """The cache holds the text of documents that perhaps no one else may read: nor may they enter it. A
    folder that someone has opened to others on purpose stays as it is."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    elif stat.S_IMODE(folder.stat().st_mode) == _AS_MADE_BEFORE:
        with suppress(OSError):  # another user's
            folder.chmod(0o700)
