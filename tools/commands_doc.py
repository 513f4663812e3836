"""Write docs/commands.md from the typed configs: `python tools/commands_doc.py`. A test fails when the page
is out of date."""

import ast
import dataclasses
import inspect
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from realmlm import cli
from realmlm.commands import COMMANDS, RESUMABLE
from realmlm.settings import corpus, model, stages, training, use

PAGE = Path(__file__).resolve().parent.parent / "docs" / "commands.md"


def field_texts() -> dict[str, dict[str, str]]:
    """The docstring under each field of each config class."""
    texts: dict[str, dict[str, str]] = {}
    for node in ast.parse("".join(map(inspect.getsource, (training, corpus, model, stages, use)))).body:
        if isinstance(node, ast.ClassDef):
            fields: dict[str, str] = {}
            for item, after in zip(node.body, node.body[1:], strict=False):
                if (
                    isinstance(item, ast.AnnAssign)
                    and isinstance(after, ast.Expr)
                    and isinstance(after.value, ast.Constant)
                ):
                    assert isinstance(item.target, ast.Name)
                    fields[item.target.id] = str(after.value.value)
            for base in node.bases:
                fields = texts.get(ast.unparse(base), {}) | fields
            texts[node.name] = fields
    return texts


def rows(kind: Any, prefix: str = "") -> list[tuple[str, str, str]]:
    """(flag, default, meaning) of a config, nested settings with their prefix."""
    found = []
    texts = field_texts()[kind.__name__]
    hints = get_type_hints(kind, include_extras=True)
    for item in dataclasses.fields(kind):
        hint = hints[item.name]
        default = item.default
        if item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        if dataclasses.is_dataclass(hint):
            changed = dict(vars(default))
            found += [
                (flag, _shown(changed[flag.split(".")[-1].replace("-", "_")]), text)
                for flag, _, text in rows(hint, f"{item.name}.")
            ]
            continue
        positional = "Positional" in map(str, getattr(hint, "__metadata__", ()))
        flag = f"{item.name.upper()}" if positional else f"--{prefix}{item.name}".replace("_", "-")
        choices = get_args(hint) if str(get_origin(hint)) == "typing.Literal" else ()
        text = texts.get(item.name, "") + (f" One of: {', '.join(map(str, choices))}." if choices else "")
        needed = default is dataclasses.MISSING or any(
            getattr(mark, "help_behavior_hint", "") == "(required)"
            for mark in getattr(hint, "__metadata__", ())
        )
        found.append((flag, "required" if needed else _shown(default), text))
    return found


def _shown(value: Any) -> str:
    if value is None or value == ():
        return "–"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def page() -> str:
    lines = [
        "# Commands",
        "",
        "Made by `python tools/commands_doc.py` from the typed configs. `realmlm COMMAND --help` says the "
        "same.",
        "",
    ]
    for name, (kind, _) in COMMANDS.items():
        lines += [f"## realmlm {name}", "", "\n\n".join(cli.paragraphs(kind)), ""]
        if name in RESUMABLE:
            flags = (
                "flags for steps, rates, loop, refresh and probe override its settings, others are refused "
                "once it has trained"
            )
            lines += [f"`realmlm {name} --resume RUN` continues an interrupted run; {flags}.", ""]
        table = [f"| `{flag}` | {default} | {' '.join(text.split())} |" for flag, default, text in rows(kind)]
        if table:
            lines += ["| flag | default | meaning |", "| --- | --- | --- |", *table, ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    print(f"wrote {PAGE}")
