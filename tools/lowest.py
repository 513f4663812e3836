"""The lowest versions that pyproject.toml states, as pins for pip: every `>=` becomes `==`.

    python tools/lowest.py > lowest.txt                  # the dependencies and everything the tests use
    python tools/lowest.py --torch 2.13.0 > lowest.txt   # another torch, where the lowest cannot be installed

`make test-lowest` runs the suite with them. Which torch is pinned is said on stderr, because the lowest one
may not be what was tested. Needs nothing but Python.
"""

import argparse
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
_NAME = re.compile(r"([\w.-]+)(?:\[([\w,-]*)\])?")
_LOWEST = re.compile(r">=\s*([\w.]+)[^;]*")


def pins(project: dict[str, Any], extras: list[str], *, torch: str = "") -> list[str]:
    """`transformers>=5.0,<6` becomes `transformers==5.0`; extras within extras are followed."""
    found: dict[str, None] = {}
    for requirement in _requirements(project, extras):
        match = _NAME.match(requirement)
        if match is None or ">=" not in requirement:
            raise ValueError(f"pyproject.toml: '{requirement}' states no lowest version; write NAME>=VERSION")
        lowest = f"torch=={torch}" if torch and match[1] == "torch" else _LOWEST.sub(r"==\1", requirement)
        found[lowest] = None  # each once, in order
    return list(found)


def _requirements(project: dict[str, Any], extras: list[str]) -> Iterator[str]:
    yield from project["dependencies"]
    waiting = list(extras)
    followed = set[str]()
    while waiting:
        extra = waiting.pop(0)
        if extra in followed:
            continue
        followed.add(extra)
        for requirement in project["optional-dependencies"][extra]:
            own = _NAME.match(requirement)
            if own and own[1] == project["name"]:
                waiting += (own[2] or "").split(",")
            else:
                yield requirement


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("extras", nargs="*", help="extras of realmlm to pin as well (dev)")
    parser.add_argument(
        "--torch",
        default=os.environ.get("LOWEST_TORCH", ""),
        help="pin this torch instead of the lowest (or LOWEST_TORCH in the environment)",
    )
    arguments = parser.parse_args()
    project = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]
    lowest = pins(project, arguments.extras or ["dev"], torch=arguments.torch)
    stated = next(pin for pin in pins(project, []) if pin.startswith("torch=="))
    used = next(pin for pin in lowest if pin.startswith("torch=="))
    shortfall = "" if used == stated else f" (the lowest stated, {stated}, is not tested here)"
    print(f"lowest versions: with {used}{shortfall}", file=sys.stderr)
    print("\n".join(lowest))


if __name__ == "__main__":
    main()
