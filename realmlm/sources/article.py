"""What every reader of documents gives."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Article:
    """A document as read, before it is cut."""

    title: str
    text: str
    source: str = ""
