"""What every reader of documents produces."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Article:
    """A document as it was read, before it is cut into passages."""

    title: str
    text: str
    source: str = ""
    has_rows: bool = False
    """Lines that look like rows of a table (`realmlm/rows.py`) are rows: none is cut where it fits."""
