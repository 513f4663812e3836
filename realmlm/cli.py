"""The command line: a command for each settings class, whose fields become its flags; errors caught once."""

import dataclasses
import os
import shlex
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

from realmlm import __version__
from realmlm import settings as kinds
from realmlm.batch import named_by
from realmlm.commands import COMMANDS, EMBEDDING, RESUMABLE
from realmlm.errors import ArtefactDamaged, BadInput, RealmError, is_out_of_memory, require
from realmlm.log import say
from realmlm.storage.artefacts import os_error


def overview() -> str:
    """The help of `realmlm` itself."""
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:{width}}  {paragraphs(kind)[0]}" for name, (kind, _) in COMMANDS.items()]
    what = "language models that retrieve before they predict, the retriever learned from text alone"
    stages = "corpus → spans → model → warmup → pretrain → finetune → ask"
    before = [f"realmlm {__version__}: {what}.", ""]
    before += ["usage: realmlm COMMAND …        realmlm COMMAND --help explains one", ""]
    quick = 'The quick way from documents to answers, with the bundled model: realmlm ask "…" --docs FOLDER'
    after = ["", quick, f"The full way to a model of your own: {stages}."]
    return "\n".join([*before, *lines, *after])


def paragraphs(kind: type) -> list[str]:
    """What the docstring of a command's settings says, paragraph by paragraph."""
    return [" ".join(text.split()) for text in (kind.__doc__ or "").strip().split("\n\n")]


def main(arguments: list[str] | None = None) -> None:
    """Run a command; a user's error is one message and exit code 2, never a traceback."""
    if arguments is None:  # a program of its own
        # processes that it starts import nothing from the working folder: it may hold someone else's files
        os.environ.setdefault("PYTHONSAFEPATH", "1")
        arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(overview())
        return
    if arguments[0] in ("--version", "-V"):
        print(f"realmlm {__version__}")
        return
    try:
        run_command(arguments[0], arguments[1:])
        if int(os.environ.get("WORLD_SIZE", 1)) > 1 and arguments[0] in RESUMABLE:
            os._exit(0)  # all is written; torch's threads have been seen to abort a rank while Python ends
    except RealmError as error:
        say(f"error: {error}", whoever=True)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        training = "in training raise `accumulate` or lower `batch`"
        cure = f"{training}, elsewhere lower --read or use a smaller model"
        say(f"error: out of memory; {cure}", whoever=True)
        sys.exit(2)
    except BrokenPipeError:
        os._exit(141)  # as a shell shows SIGPIPE: what was still to be done is not done
    except Exception as error:
        if (refused := os_error(error)) is None:
            raise
        cure = "check that the path exists, that you may write to it and that the disk is not full"
        say(f"error: {refused}; {cure}", whoever=True)
        sys.exit(2)
    except KeyboardInterrupt:
        runs = named_by(arguments, ("--out", "--resume")) if arguments[0] in RESUMABLE else []
        rest = ""
        if runs:
            rest = f"; continue with: {shlex.join(['realmlm', arguments[0], '--resume', str(runs[0])])}"
        elif arguments[0] in EMBEDDING:
            rest = "; what was embedded is kept, except for the last part"
        say(f"stopped{rest}")
        if arguments[0] == "serve":
            os._exit(130)  # a thread may still be loading, and torch aborts if Python ends beneath it
        sys.exit(130)


def run_command(name: str, arguments: list[str]) -> None:
    """Run one command with its arguments; raises what goes wrong."""
    if arguments and f"{name} {arguments[0]}" in COMMANDS:  # export encoders
        return run_command(f"{name} {arguments[0]}", arguments[1:])
    if name not in COMMANDS:
        raise BadInput(f"no command '{name}'; choose from: {', '.join(COMMANDS)}")
    kind, work = COMMANDS[name]
    words = list(takewhile(lambda argument: not argument.startswith("-"), arguments))
    if name in ("ask", "search") and len(words) > 1:
        question, *places = words
        if all(Path(place).exists() for place in places):
            named = shlex.join(["realmlm", name, question, "--docs", *places])
            raise BadInput(f"documents are named with --docs: {named}")
        raise BadInput(f'put the question in quotes: realmlm {name} "{" ".join(words)}" …')
    dashed = (word for word in arguments if word.startswith("-") and "." in word and os.path.exists(word))
    if (file := next(dashed, None)) is not None:
        raise BadInput(f"{file} looks like a flag; if the file here is meant: ./{file}")
    settings = parse(name, kind, arguments)
    if name in RESUMABLE:
        work(settings, resume=any(argument.startswith("--resume") for argument in arguments))
    else:
        work(settings)


def parse(name: str, kind: type, arguments: list[str]) -> Any:
    """Settings from flags; with `--resume RUN` from that run's own record, where flags take precedence."""
    split = (word.split("=", 1) if word.startswith("--resume=") else [word] for word in arguments)
    arguments = [part for parts in split for part in parts]
    if name not in RESUMABLE or "--resume" not in arguments:
        return _parse(name, kind, arguments)
    place = arguments.index("--resume")
    if place + 1 >= len(arguments):
        raise BadInput(f"--resume needs the folder of the run: realmlm {name} --resume RUN")
    folder = Path(arguments[place + 1])
    # the folder may have been moved
    recorded = dataclasses.replace(_recorded(name, kind, folder), out=folder)
    return _parse(name, kind, arguments[:place] + arguments[place + 2 :], default=recorded)


def plain_numbers() -> Any:
    """While it is entered, tyro says of what is no whole number that it is none, and of "" that it names no
    place: in Python it is the working folder."""
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec

    def from_words(words: list[str]) -> int:
        try:
            return int(words[0])
        except ValueError:
            raise ValueError(f"'{words[0]}' is not a whole number") from None

    whole = PrimitiveConstructorSpec(
        1, "INT", from_words, lambda value: type(value) is int, lambda value: [str(value)]
    )

    def named(words: list[str]) -> Path:
        if not words[0]:
            raise BadInput("'' names no file or folder; the working folder is .")
        return Path(words[0])

    place = PrimitiveConstructorSpec(
        1, "PATH", named, lambda value: isinstance(value, Path), lambda value: [str(value)]
    )
    registry = ConstructorRegistry()
    registry.primitive_rule(lambda info: whole if info.type is int else place if info.type is Path else None)
    return registry


def _parse(name: str, kind: type, arguments: list[str], **default: Any) -> Any:
    tyro = require("tyro", extra="all", why="the command line")
    more = "Continue an interrupted run: --resume RUN (with its own settings, unless flags override them)."
    description = "\n\n".join([*paragraphs(kind), *([more] if name in RESUMABLE else [])])
    with plain_numbers():
        return tyro.cli(kind, prog=f"realmlm {name}", description=description, args=arguments, **default)


def _recorded(name: str, kind: type, folder: Path) -> Any:
    from realmlm.train.run import read_run

    record = read_run(folder)
    stage = str(record.get("stage"))
    if stage.startswith(f"{name}-"):
        whole = folder.resolve().parent
        raise BadInput(f"{folder} is part of a run; resume the whole run: realmlm {name} --resume {whole}")
    if stage in COMMANDS and stage != name:
        command = f"realmlm {stage} --resume {folder}"
        raise BadInput(f"{folder} is a run of another command; resume it with: {command}")
    if isinstance(record.get("stage"), str) and stage != name:
        raise BadInput(f"{folder} was started in Python ('{stage}'); continue it there, with the same call")
    try:
        return kinds.restore(kind, record["config"])
    except (KeyError, TypeError, AttributeError) as error:
        damaged = f"{folder / 'run.json'} is damaged, or from another version of realmlm ({error!r})"
        raise ArtefactDamaged(f"{damaged}; start a new run") from error


if __name__ == "__main__":
    main()
