"""Documents that fail a test when they go stale: commands that parse, links that lead somewhere, help that is
current."""

import importlib.util
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import realmlm
from realmlm import cli
from realmlm.commands import COMMANDS

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
        if arguments and f"{name} {arguments[0]}" in COMMANDS:  # export encoders
            name = f"{name} {arguments.pop(0)}"
        kind, _ = COMMANDS[name]
        cli.parse(name, kind, arguments)


def test_the_readme_has_commands_to_check() -> None:
    assert len(commands(ROOT / "README.md")) > 8


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_tests_that_documents_name_exist() -> None:
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", (ROOT / "docs" / "reliability.md").read_text("utf-8"))
    assert len(named) > 40
    for file, test in named:
        assert f"def {test}(" in (ROOT / "tests" / file).read_text("utf-8"), f"{file}::{test}"


def test_the_page_of_commands_is_current() -> None:
    made = load_tool("commands_doc").page()
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


def load_tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_table_is_still_to_be_filled_in(page: Path) -> None:
    assert not re.search(r"\b[A-Z]+_TABLE\b|TODO|TBD", page.read_text("utf-8"))


# --- the API reference --------------------------------------------------------------------------------------


def test_every_name_in_the_api_reference_exists() -> None:
    text = "".join(page.read_text("utf-8") for page in PAGES if "api" in page.relative_to(ROOT).as_posix())
    names = re.findall(r"^::: ([\w.]+)$", text, flags=re.MULTILINE)
    assert len(names) > 10
    for name in names:
        pkgutil.resolve_name(name)
    for name in realmlm.__all__:
        assert f"realmlm.{name}" in text or name in ("__version__", "pocket", "Engine"), name


def test_the_documentation_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="pip install 'realmlm[docs]'")
    pytest.importorskip("mkdocstrings", reason="pip install 'realmlm[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert 'id="realmlm.engine.Engine.ask"' in (tmp_path / "api.html").read_text("utf-8")
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|link|img)[^>]*(?:src|href)=[\"']?(https?:[^\"' >]+)", page.read_text("utf-8")
        )
        assert loaded == [], page.name
