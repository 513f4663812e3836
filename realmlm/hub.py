"""Names on the Hugging Face hub: `NAME@REVISION`, where the revision is a commit, a tag or a branch."""

from realmlm.log import say

_NEWEST = "main"


def split_revision(source: str) -> tuple[str, str]:
    """Name and revision; without one, the newest."""
    name, _, revision = source.partition("@")
    return name, revision or _NEWEST


def say_revision(source: str, commit: str | None) -> None:
    """Tell what was taken where no revision was named: tomorrow it may be another."""
    name, revision = split_revision(source)
    if revision == _NEWEST and commit:
        say(f"{name}: the newest revision was taken; for the same again, name {name}@{commit}")
