"""What every reader of documents produces."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Article:
    """A document as it was read, before it is cut into passages."""

    title: str
    text: str
    source: str = ""
