"""What holds the parts apart: who may import whom, what is never used, and that the core needs five
libraries."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import realmlm

PACKAGE = Path(realmlm.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
ON_TOP = {"__init__", "__main__", "cli", "engine"}
FOUNDATION = {file.stem for file in PACKAGE.glob("*.py")} - ON_TOP | {"storage"}
MAY_IMPORT = {
    "storage": {"storage"},
    "sources": {"sources"},
    "corpus": {"sources", "corpus"},
    "worlds": {"corpus", "worlds"},
    "index": {"corpus", "index", "model"},
    "model": {"corpus", "model"},
    "reading": {"corpus", "index", "model", "reading"},
    "interop": {"corpus", "sources", "index", "model", "reading", "interop"},
    "evaluate": {"corpus", "index", "model", "reading", "evaluate"},
    "train": {"corpus", "sources", "index", "model", "reading", "evaluate", "train"},
    "serve": {"corpus", "sources", "index", "model", "reading", "evaluate", "engine", "serve"},
    "report": {"report"},
}
OPTIONAL = (
    "tyro",
    "rich",
    "faiss",
    "bm25s",
    "numba",
    "ahocorasick",
    "mwparserfromhell",
    "selectolax",
    "markdown_it",
    "pypdf",
    "docx",
    "spacy",
    "fastapi",
    "uvicorn",
    "prometheus_client",
)


def module_name(file: Path) -> str:
    return ".".join(("realmlm", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def imports(source: str) -> Iterator[str]:
    """Full names of all that a file imports, wherever in it. The package imports by full names only."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part(name: str) -> str | None:
    """The part of realmlm that a full name lies in."""
    pieces = name.split(".")
    return pieces[1] if pieces[0] == "realmlm" and len(pieces) > 1 else None


def trespasses(folder: str, source: str) -> list[str]:
    return [
        name
        for name in imports(source)
        if (place := part(name)) and place not in MAY_IMPORT[folder] | FOUNDATION | {"__version__"}
    ]


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_imports_go_one_way(file: Path) -> None:
    folder = file.relative_to(PACKAGE).parts[0]
    if folder in MAY_IMPORT:
        assert trespasses(folder, file.read_text("utf-8")) == []


def test_every_folder_has_its_rule_and_the_foundation_stands_alone() -> None:
    assert {
        file.relative_to(PACKAGE).parts[0] for file in FILES if len(file.relative_to(PACKAGE).parts) > 1
    } == set(MAY_IMPORT)
    for name in FOUNDATION - {"storage"}:
        inside = {
            place for found in imports((PACKAGE / f"{name}.py").read_text("utf-8")) if (place := part(found))
        }
        assert inside <= FOUNDATION, name


def test_the_rule_finds_a_trespass_also_inside_a_function() -> None:
    hidden = "def load():\n    from realmlm.model import realm\n    import realmlm.train.loop\n"
    assert trespasses("corpus", hidden) == ["realmlm.model.realm", "realmlm.train.loop"]
    assert trespasses("serve", hidden) == ["realmlm.train.loop"]


def forbidden(source: str) -> list[str]:
    """What runs code found in a file: pickle, torch.load of more than weights, eval, exec, numpy's pickled
    arrays."""
    found = [
        name
        for name in imports(source)
        if name.split(".")[0] in ("pickle", "cPickle", "dill", "joblib", "shelve", "marshal")
    ]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "torch.load" and any(
                ast.unparse(word) == "weights_only=True" for word in node.keywords
            ):
                continue
            found += [called] if called in ("eval", "exec", "torch.load", "torch.save", "__import__") else []
            found += [
                str(word.arg) for word in node.keywords if word.arg in ("allow_pickle", "trust_remote_code")
            ]
    return found


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_no_file_is_long_and_none_trusts_what_it_reads(file: Path) -> None:
    source = file.read_text("utf-8")
    assert forbidden(source) == []
    assert len(source.splitlines()) <= 560


def test_what_is_forbidden_is_found() -> None:
    assert forbidden(
        "import pickle\ntorch.load(f)\nmodel.eval()\neval(x)\nnp.load(f, allow_pickle=True)"
    ) == [
        "pickle",
        "torch.load",
        "eval",
        "allow_pickle",
    ]


# --- the core -----------------------------------------------------------------------------------------------

REFUSE = f"""
import sys

class Without:
    # A finder that does not find the optional libraries: as if they were not installed.
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in {OPTIONAL!r} else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)
"""

CORE = """
import importlib
from pathlib import Path
from tests.conftest import TINY_MODEL, world_corpus
import realmlm.cli
from realmlm.config import JointOptim, Loop, Pretrain, Refresh
from realmlm.corpus.build import build_corpus
from realmlm.corpus.questions import read_questions
from realmlm.errors import MissingExtra
from realmlm.model.create import create_model
from realmlm.train.gold import locate_answers
from realmlm.train.objectives.joint import run_pretrain
from realmlm.worlds import write_world

for module in MODULES:
    importlib.import_module(module)
folder = Path(FOLDER)
(folder / "note.txt").write_text("The lighthouse of Orvane was lit in 1731. It still burns.")
build_corpus([folder / "note.txt"], folder / "notes", train_tokenizer=200, workers=1)
write_world(folder / "world", "tiny", seed=1)
corpus = world_corpus(folder / "world", "knowledge", folder / "corpus")
create_model(corpus=corpus.folder, out=folder / "model", **TINY_MODEL)
optim, refresh, loop = JointOptim(steps=3, batch=4), Refresh(every_steps=2, process=False), Loop(log_every=1, threads=1, device="cpu")
settings = Pretrain(model=folder / "model", corpus=corpus.folder, out=folder / "run", k=3, optim=optim, refresh=refresh, loop=loop)
out = run_pretrain(settings)
assert (out / "model.safetensors").is_file()

def missing(work):
    try:
        work()
    except MissingExtra as error:
        print(error)

(folder / "note.md").write_text("# Orvane")
missing(lambda: build_corpus([folder / "note.md"], folder / "marked", train_tokenizer=200, workers=1))
missing(lambda: locate_answers(corpus, read_questions(folder / "world" / "questions-train.jsonl")))
try:
    realmlm.cli.main(["world", "--out", "w"])
except SystemExit as end:
    print("exit", end.code)
"""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, cwd=PACKAGE.parent
    )


WITH_FASTAPI = ("http", "routes", "runs", "shapes")  # of serve: they are FastAPI itself


def test_the_core_imports_and_trains_with_five_libraries(tmp_path: Path) -> None:
    modules = [module_name(file) for file in FILES if file.stem not in ("__main__", *WITH_FASTAPI)]
    done = run_python(REFUSE + f"MODULES, FOLDER = {modules!r}, {str(tmp_path)!r}\n" + CORE)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said == [
        f"{tmp_path}/note.md: reading Markdown needs 'markdown_it': "
        "pip install 'realmlm[formats]', or leave such input out with --skip-bad",
        "finding all answers in all passages needs 'ahocorasick': pip install 'realmlm[match]'",
        "exit 2",
    ]
    assert "the command line needs 'tyro': pip install 'realmlm[all]'" in done.stderr


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys\nfrom realmlm.cli import main\ntry: main(ARGUMENTS)\nexcept SystemExit: pass\n"
    code += "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    for arguments in (["--help"], ["pretrain", "--help"], ["--version"]):
        done = run_python(f"ARGUMENTS = {arguments!r}\n{code}")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "[]"
