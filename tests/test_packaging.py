"""What is installed: the wheel's contents and metadata, and dependencies that are stated where they are needed."""

import ast
import email
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from importlib.metadata import version
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import realmlm
from realmlm.errors import MissingExtra
from realmlm.storage.cache import cache_folder
from tests.test_docs import load_tool

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
# distributions that are not called as what is imported from them
DISTRIBUTIONS = {
    "ahocorasick": "pyahocorasick",
    "docx": "python-docx",
    "lance": "pylance",
    "markdown_it": "markdown-it-py",
    "prometheus_client": "prometheus-client",
    "python_calamine": "python-calamine",
    "tensorflow": "tensorflow-cpu",
}


# --- the wheel ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the checkout, by setuptools as it is installed here, without network. realmlm cannot
    be imported meanwhile: what the wheel says of itself is read from the files alone."""
    if Version(version("setuptools")) < Version("77"):
        pytest.skip("the wheel is built by setuptools 77 or newer")
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    copytree(ROOT / "realmlm", source / "realmlm", ignore=ignore_patterns("__pycache__"))
    (source / "realmlm" / "mini" / ".verified.json").write_text("{}")  # as opening a large model leaves it
    out = tmp_path_factory.mktemp("dist")
    code = (
        "import sys; sys.modules['realmlm'] = sys.modules['torch'] = None\n"
        f"from setuptools.build_meta import build_wheel; build_wheel({str(out)!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def metadata(wheel: Path, names: set[str]) -> Message:
    file = next(name for name in names if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(zipfile.ZipFile(wheel).read(file))


def test_the_wheel_has_every_file_of_the_package_and_no_other(names: set[str]) -> None:
    tracked = {
        file.relative_to(ROOT).as_posix()
        for file in (ROOT / "realmlm").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and not file.name.startswith(".")
    }
    assert {name for name in names if ".dist-info/" not in name} == tracked
    assert {
        "realmlm/py.typed",
        "realmlm/page/assets/index.html",
        "realmlm/pocket/unanswerable.jsonl",
    } <= names


def test_a_folder_of_the_same_name_does_not_hide_an_editable_install(tmp_path: Path) -> None:
    """As a clone beside a script does: without a word, `import realmlm` would be that empty folder."""
    if Version(version("setuptools")) < Version("77"):
        pytest.skip("the wheel is built by setuptools 77 or newer")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    copytree(ROOT / "realmlm", source / "realmlm", ignore=ignore_patterns("__pycache__", "mini", "pocket"))
    build = f"from setuptools.build_meta import build_editable; build_editable({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, timeout=240, check=True)
    site = tmp_path / "site"
    zipfile.ZipFile(next(tmp_path.glob("*.whl"))).extractall(site)
    work = tmp_path / "work"
    (work / "realmlm").mkdir(parents=True)
    use = "import site, sys; site.addsitedir(sys.argv[1]); import realmlm; print(realmlm.__version__)"
    done = subprocess.run(
        # -S: the tests' own environment may hold an install of this project, which would be found
        [sys.executable, "-S", "-c", use, str(site)],
        cwd=work,
        capture_output=True,
        text=True,
        env={"PATH": "", "PYTHONPATH": ""},
    )
    assert done.stdout.strip() == realmlm.__version__, done.stderr


def test_mini_travels_with_its_card_and_licences(wheel: Path, names: set[str], metadata: Message) -> None:
    card = (ROOT / "docs" / "mini.md").read_bytes()
    assert zipfile.ZipFile(wheel).read("realmlm/mini/README.md") == card, (
        "run: cp docs/mini.md realmlm/mini/README.md"
    )
    assert (ROOT / "realmlm/mini/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert "Copyright (c) Microsoft Corporation" in (ROOT / "realmlm/mini/LICENSE-gte-small").read_text(
        "utf-8"
    )
    licences = {"LICENSE", "realmlm/mini/LICENSE", "realmlm/mini/LICENSE-gte-small"}
    assert set(metadata.get_all("License-File", [])) == licences
    assert {name.partition(".dist-info/licenses/")[2] for name in names} - {""} == licences


def test_the_version_stands_in_one_place(wheel: Path, metadata: Message, tmp_path: Path) -> None:
    assert "version" not in PROJECT
    assert metadata["Version"] == realmlm.__version__
    done = subprocess.run(
        [sys.executable, "-m", "realmlm", "--version"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == f"realmlm {metadata['Version']}\n", done.stderr


def test_it_says_where_it_lives_and_that_it_is_typed(metadata: Message) -> None:
    assert {url.split(",")[0] for url in metadata.get_all("Project-URL", [])} >= {
        "Homepage",
        "Documentation",
        "Issues",
    }
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert {
        "bm25",
        "match",
        "formats",
        "parquet",
        "documents",
        "serve",
        "spacy",
        "tensorboard",
        "tensorflow",
        "onnx",
        "lance",
        "postgres",
        "ray",
        "s3",
        "scale",
        "all",
        "docs",
        "dev",
    } == set(metadata.get_all("Provides-Extra", []))


# --- dependencies -------------------------------------------------------------------------------------------


def distributions(*extras: str) -> set[str]:
    """What `pip install 'realmlm[…]'` installs by name, extras within extras followed."""
    found = set()
    for text in [
        *PROJECT["dependencies"],
        *(text for extra in extras for text in PROJECT["optional-dependencies"][extra]),
    ]:
        requirement = Requirement(text)
        found |= (
            distributions(*requirement.extras) if requirement.name == PROJECT["name"] else {requirement.name}
        )
    return found


def required() -> Iterator[tuple[str, str]]:
    """Each library that is imported through `require`, with the extra its error names."""
    for file in (ROOT / "realmlm").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "require":
                extra = next(word.value for word in node.keywords if word.arg == "extra")
                yield ast.literal_eval(node.args[0]), ast.literal_eval(extra)


def test_the_extra_that_an_error_names_brings_the_library() -> None:
    found = set(required())
    assert len(found) > 10
    for module, extra in found:
        name = module.split(".")[0]
        assert DISTRIBUTIONS.get(name, name) in distributions(*([extra] if extra else [])), (module, extra)


def test_a_first_hour_needs_no_extra() -> None:
    """README's first page: documents of the kinds it names, and the questions of `finetune`."""
    assert distributions() >= {
        "huggingface_hub",
        "tyro",
        "platformdirs",
        "markdown-it-py",
        "selectolax",
        "pypdf",
        "python-docx",
        "python-calamine",
        "striprtf",
        "pyahocorasick",
    }


def test_what_is_pinned_is_in_the_stated_range_and_all_of_it_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {
        (wanted := Requirement(line)).name: next(iter(wanted.specifier)).version
        for line in lines
        if line and not line.startswith("#")
    }
    stated = [
        Requirement(text)
        for some in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
        for text in some
    ]
    for requirement in stated:
        if requirement.name not in (
            PROJECT["name"],
            "spacy",
            "tensorboard",
            "tensorflow-cpu",
        ):  # these two are not developed with
            assert requirement.specifier.contains(pinned[requirement.name]), requirement


def test_every_package_of_the_environment_has_its_checksums() -> None:
    lines = (ROOT / "hashes.txt").read_text("utf-8").replace("\\\n", "").splitlines()
    hashed = {}
    for line in lines:
        if not line.startswith("#"):
            package, *checksums = line.split()
            assert checksums
            assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in checksums), line
            name, _, hashed[name] = package.partition("==")
    tool = load_tool("hashes")
    direct = {canonicalize_name(name) for name in [*distributions("dev"), "setuptools"]}
    assert {name for name in direct if not tool.ELSEWHERE.fullmatch(name)} <= hashed.keys()
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        name, _, pinned = line.partition("==")
        assert hashed.get(canonicalize_name(name), pinned) == pinned, "run: tools/hashes.py > hashes.txt"


def test_checksums_are_those_of_the_versions_files() -> None:
    tool = load_tool("hashes")
    files = [
        "a_b-1.2-py3-none-any.whl",
        "a_b-1.20-py3-none-any.whl",
        "a_b-1.2.tar.gz",
        "a-1.2-py3-none-any.whl",
    ]
    files += ["a_b-1.2-cp311-cp311-manylinux_2_28_x86_64.whl", "a_b-1.2-cp311-cp311-win_amd64.whl"]
    page = "\n".join(f'<a href="x#sha256={number:064d}">{name}</a>' for number, name in enumerate(files))
    assert [int(one) for one in tool.checksums("a-b", "1.2", page)] == [0, 4]


def test_lowest_versions_are_pinned_for_the_tests() -> None:
    pins = load_tool("lowest").pins
    project = {
        "name": "own",
        "dependencies": ["torch>=2.6", "plain>=1.0,<2", "marked[python]>=0.3; python_version > '3'"],
        "optional-dependencies": {"a": ["first>=1"], "b": ["own[a,b]", "second>=2", "plain>=1.0,<2"]},
    }
    core = ["torch==2.6", "plain==1.0", "marked[python]==0.3; python_version > '3'"]
    assert pins(project, []) == core
    assert pins(project, ["b"], torch="2.13.0") == ["torch==2.13.0", *core[1:], "second==2", "first==1"]
    with pytest.raises(ValueError, match="'loose' states no lowest version"):
        pins({**project, "dependencies": ["loose"]}, [])
    for pin in pins(PROJECT, ["dev", "spacy", "tensorboard", "tensorflow"]):
        assert re.fullmatch(r"[\w.\[\]-]+==[\d.]+(; sys_platform.+)?", pin), pin


# --- the cache ----------------------------------------------------------------------------------------------


def test_the_cache_is_where_it_always_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache_folder() == tmp_path / "cache" / "realmlm"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for unset in ("", None):
        if unset is None:
            monkeypatch.delenv("XDG_CACHE_HOME")
        else:
            monkeypatch.setenv("XDG_CACHE_HOME", unset)
        if sys.platform == "linux":
            assert cache_folder() == tmp_path / "home" / ".cache" / "realmlm"
    assert not (tmp_path / "cache").exists()  # looking makes nothing


def test_without_the_library_of_the_cache_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    with pytest.raises(MissingExtra, match=r"needs 'platformdirs': pip install realmlm$"):
        cache_folder()
