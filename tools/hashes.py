"""Writes hashes.txt: every package that `make install` brings, at the version it is developed with, and the
SHA-256 checksums of its files, for `pip install --require-hashes`.

Run it in that environment after constraints.txt has changed:  .venv/bin/python tools/hashes.py > hashes.txt
"""

import re
import urllib.request
from collections.abc import Iterator
from importlib.metadata import distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

INDEX = "https://pypi.org/simple"
ROOTS = ["realmlm[dev]", "setuptools"]  # setuptools builds the project itself
# torch comes from several places, a build for each kind of machine; CUDA's libraries come with some of them
ELSEWHERE = re.compile(r"realmlm|torch|triton|nvidia-.*|cuda-.*")
# files for CPython on Linux and macOS, or for any machine
WANTED = re.compile(r"-(?:none|abi3|cp31[1-4])-(?:any|(?:manylinux|macosx)[\w.]*)\.whl$")
LINK = re.compile(r">([^<]+)</a>")
HEAD = """\
# Every package of `make install` but torch, with checksums of its files, for `make install-hashed`.
# Made by tools/hashes.py from an environment that constraints.txt describes.
"""


def closure(requirements: list[str]) -> dict[str, str]:
    """The versions installed here of what these requirements need, and of what that needs, by name."""
    versions: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    left = [(Requirement(text), "") for text in requirements]
    while left:
        wanted, extra = left.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(wanted.name)
        found = distribution(name)
        for part in ["", *wanted.extras]:
            if (name, part) not in seen:
                seen.add((name, part))
                left += [(Requirement(text), part) for text in found.requires or ()]
        versions[name] = found.version
    return {name: versions[name] for name in sorted(versions) if not ELSEWHERE.fullmatch(name)}


def checksums(name: str, version: str, page: str) -> Iterator[str]:
    """The checksums of this version's files on the index's page of a package."""
    for line in page.splitlines():
        link, checksum = LINK.search(line), re.search(r"#sha256=([0-9a-f]{64})", line)
        if link is None or checksum is None or not WANTED.search(link[1]):
            continue
        package, number = link[1].split("-")[:2]
        if canonicalize_name(package) == name and number == version:
            yield checksum[1]


def main() -> None:
    """Print the list."""
    print(HEAD, end="")
    for name, version in closure(ROOTS).items():
        with urllib.request.urlopen(f"{INDEX}/{name}/", timeout=60) as answer:
            found = sorted(checksums(name, version, answer.read().decode()))
        if not found:
            raise SystemExit(f"{name} {version}: no file of it on {INDEX}")
        print(" \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{one}" for one in found)]))


if __name__ == "__main__":
    main()
