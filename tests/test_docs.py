"""Documents that fail a test when they go stale: commands that parse, links that lead somewhere, help that is
current."""

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from realmlm import cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands(page: Path) -> list[str]:
    """Every `realmlm …` line in the page's code blocks, and every inline one with flags."""
    text = page.read_text("utf-8")
    blocks = "\n".join(re.findall(r"```\w*\n(.*?)```", text, flags=re.DOTALL))
    lines = [line.split("   #")[0].removeprefix("$ ").strip() for line in blocks.splitlines()]
    inline = [
        command
        for command in re.findall(r"`(realmlm [a-z]+ [^`]*--[^`]*)`", text)
        if not re.search(r"…|COMMAND|RUN|--help", command)
    ]
    return [line for line in [*lines, *inline] if line.startswith("realmlm ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_documents_parse(page: Path) -> None:
    for command in commands(page):
        _, name, *arguments = shlex.split(command)
        kind, _ = cli.COMMANDS[name]
        cli.parse(name, kind, arguments)


def test_the_readme_has_commands_to_check() -> None:
    assert len(commands(ROOT / "README.md")) > 8


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_page_of_commands_is_current() -> None:
    made = _tool("commands_doc").page()
    assert (ROOT / "docs" / "commands.md").read_text("utf-8") == made, "run: python tools/commands_doc.py"


def test_files_named_in_the_pipeline_exist() -> None:
    text = (ROOT / "docs" / "pipeline.md").read_text("utf-8")
    for folder, names in re.findall(r"`(realmlm/[a-z/]+)\{([a-z,]+)\}\.py`", text):
        for name in names.split(","):
            assert (ROOT / folder / f"{name}.py").exists(), name
    for path in re.findall(r"`((?:realmlm|runs|tests|tools)/[\w/]+\.(?:py|sh))`", text):
        assert (ROOT / path).exists(), path


def test_make_help_explains_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    named = set(re.search(r"\.PHONY: (.*)", makefile).group(1).split())  # type: ignore[union-attr]
    assert set(re.findall(r"^([a-z-]+):.*##", makefile, flags=re.MULTILINE)) == named


def _tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_table_is_still_to_be_filled_in(page: Path) -> None:
    assert not re.search(r"\b[A-Z]+_TABLE\b|TODO|TBD", page.read_text("utf-8"))
