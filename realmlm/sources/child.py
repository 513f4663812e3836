"""Parsing in a process of its own, with limits on its computing and its memory."""

import os
import resource
import sys

REFUSED = 3  # exit code: the document is refused, for the reason said


def python(module: str) -> tuple[list[str], dict[str, str]]:
    """Command and surroundings of a process that runs `main` of a module of ours. It imports nothing from the
    working folder: that may be a folder of documents, from anyone."""
    paths = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-P", "-c", f"from {module} import main; main()"]
    return command, {**os.environ, "PYTHONPATH": paths}


def limit(seconds: int, memory: int) -> None:
    """In that process: so many seconds of computing, so many bytes."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
