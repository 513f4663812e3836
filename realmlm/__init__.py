"""Retrieval-augmented language models whose retriever is learned, without labels, from the text itself."""

from typing import TYPE_CHECKING

from realmlm.bundled import MINI, TEXT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from realmlm.engine import Engine

__version__ = "0.1.0"
__all__ = ["__version__", "load", "pocket"]

pocket = TEXT
"""The small encyclopedia that comes with realmlm, as a file."""


def load(
    model: "str | Path" = MINI,
    corpus: "str | Path | None" = None,
    *,
    docs: "str | Path | Sequence[str | Path]" = (),
    index: "str | Path | None" = None,
    device: str = "auto",
) -> "Engine":
    """A model, ready to read and to be asked: `realmlm.load().read("notes/").ask("…")`. Without a name it is
    the bundled one.

    `corpus` is one that `realmlm corpus` made, `docs` a folder or file of documents, or several, as in
    `.read(docs)`.
    """
    from realmlm.engine import Engine  # torch comes in only here: the command line's help stays quick

    return Engine(model, corpus, docs=docs, index=index, device=device)
