"""Retrieval-augmented language models whose retriever is learned, without labels, from the text itself."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from realmlm.serve.engine import Engine

__version__ = "0.1.0"


def load(
    model: "str | Path",
    corpus: "str | Path | None" = None,
    *,
    docs: "str | Path | None" = None,
    index: "str | Path | None" = None,
    device: str = "auto",
) -> "Engine":
    """A model over a corpus or a folder of documents, ready to be asked: `realmlm.load("model", docs="notes").ask("…")`."""
    from realmlm.serve.engine import Engine  # torch comes in only here: the command line's help stays quick

    return Engine(model, corpus, docs=docs, index=index, device=device)
