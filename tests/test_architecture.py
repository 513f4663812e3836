"""What holds the parts apart: who may import whom and read whose files, what is never used, what tests
replace, and that the core needs five libraries."""

import ast
import dataclasses
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import realmlm
from realmlm import settings

PACKAGE = Path(realmlm.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
ON_TOP = {"__init__", "__main__", "cli", "commands", "engine"}
FOUNDATION = {file.stem for file in PACKAGE.glob("*.py")} - ON_TOP | {"storage", "settings"}
MAY_IMPORT = {
    "storage": {"storage"},
    "settings": {"settings"},
    "sources": {"sources"},
    "corpus": {"sources", "corpus"},
    "worlds": {"corpus", "worlds"},
    "index": {"corpus", "index"},
    "model": {"corpus", "model"},
    "reading": {"corpus", "index", "model", "reading"},
    "interop": {"corpus", "sources", "index", "model", "reading", "interop"},
    "evaluation": {"corpus", "index", "model", "reading", "evaluation"},
    "train": {"corpus", "sources", "index", "model", "reading", "evaluation", "train"},
    "page": {"page"},
    "serve": {"corpus", "sources", "index", "model", "reading", "evaluation", "engine", "page", "serve"},
    "report": {"page", "reading.records", "report"},  # the records alone: nothing that needs torch
}
OPTIONAL = (
    "tyro",
    "rich",
    "platformdirs",
    "faiss",
    "ahocorasick",
    "mwparserfromhell",
    "selectolax",
    "markdown_it",
    "pypdf",
    "docx",
    "striprtf",
    "pyarrow",
    "spacy",
    "fastapi",
    "uvicorn",
    "prometheus_client",
    "triton",
    "onnx",
    "pyarrow",
    "lance",
    "psycopg",
    "ray",
    "s3fs",
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
    allowed = [f"realmlm.{rule}." for rule in MAY_IMPORT[folder] | FOUNDATION | {"__version__"}]
    return [name for name in imports(source) if part(name) and not f"{name}.".startswith(tuple(allowed))]


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_imports_go_one_way(file: Path) -> None:
    folder = file.relative_to(PACKAGE).parts[0]
    if folder in MAY_IMPORT:
        assert trespasses(folder, file.read_text("utf-8")) == []


def test_every_folder_has_its_rule_and_the_foundation_stands_alone() -> None:
    assert {
        file.relative_to(PACKAGE).parts[0] for file in FILES if len(file.relative_to(PACKAGE).parts) > 1
    } == set(MAY_IMPORT)
    for name in FOUNDATION - {"storage", "settings"}:
        inside = {
            place for found in imports((PACKAGE / f"{name}.py").read_text("utf-8")) if (place := part(found))
        }
        assert inside <= FOUNDATION | {"__version__"}, name


def test_the_rule_finds_a_trespass_also_inside_a_function() -> None:
    hidden = "def load():\n    from realmlm.model import realm\n    import realmlm.train.loop\n"
    assert trespasses("corpus", hidden) == ["realmlm.model.realm", "realmlm.train.loop"]
    assert trespasses("serve", hidden) == ["realmlm.train.loop"]


def test_a_rule_may_name_one_module() -> None:
    both = "from realmlm.reading.records import Evidence\nfrom realmlm.reading.answer import Answerer\n"
    assert trespasses("report", both) == ["realmlm.reading.answer.Answerer"]
    assert trespasses("serve", both) == []


# --- files --------------------------------------------------------------------------------------------------


def place_of(node: ast.AST, file: Path, names: dict[str, ast.expr]) -> Path | None:
    """The path that an expression made from `__file__` or from `importlib.resources.files` stands for, as far
    as it can be read off; None: it is no such expression."""

    def place(inner: ast.AST) -> Path | None:
        return place_of(inner, file, names)

    match node:
        case ast.Name(id="__file__"):
            return file
        case ast.Name(id=name) if name in names:
            return place_of(names[name], file, {other: names[other] for other in names if other != name})
        case ast.Attribute(value=ast.Name(id="realmlm"), attr="__file__"):
            return PACKAGE / "__init__.py"
        case ast.BinOp(left=left, op=ast.Div(), right=ast.Constant(value=str(word))):
            return (known := place(left)) and known / word
        case ast.Attribute(value=inner, attr="parent"):
            return (known := place(inner)) and known.parent
        case ast.Subscript(
            value=ast.Attribute(value=inner, attr="parents"), slice=ast.Constant(value=int(up))
        ):
            return (known := place(inner)) and known.parents[up]
        case ast.Call(func=function, args=args):
            called = ast.unparse(function).rpartition(".")[2]
            words = [str(word.value) for word in args if isinstance(word, ast.Constant)]
            if called == "files" and words[:1] and words[0].split(".")[0] == "realmlm":
                return PACKAGE.joinpath(*words[0].split(".")[1:])
            if called == "dirname":
                return (known := place(args[0])) and known.parent
            if called in ("Path", "str", "abspath", "realpath", "fspath", "join") and args:
                return (known := place(args[0])) and known.joinpath(*words)
            if isinstance(function, ast.Attribute) and (known := place(function.value)):
                return {
                    "joinpath": known.joinpath(*words),
                    "with_name": known.parent.joinpath(*words),
                }.get(called, known if called in ("resolve", "absolute") else None)
    return None


def reaches(file: Path, source: str) -> list[str]:
    """Places outside its own part that a file's paths lie in: another part, or the root, from which every part
    can be reached. What lies at the root beside the parts (mini/, pocket/) belongs to the root's modules."""
    tree = ast.parse(source)
    names = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    own = file.relative_to(PACKAGE).parts[0]
    found: set[str] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        place = place_of(node, file, names)
        if place is None:
            waiting += ast.iter_child_nodes(node)
            continue
        inside = os.path.relpath(place, PACKAGE)
        first = inside.split(os.sep)[0]
        if first != own and (own in MAY_IMPORT or first in (".", "..", *MAY_IMPORT)):
            found.add(inside)
    return sorted(found)


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_files_of_another_part_are_read_through_its_functions_alone(file: Path) -> None:
    assert reaches(file, file.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("line", "place"),
    [
        # what realmlm/report/html.py once had
        ('PAGE = Path(__file__).parent.parent / "serve" / "page"', "serve/page"),
        ('text = (Path(__file__).resolve().parents[1] / "serve/page").read_text()', "serve/page"),
        ('text = open(os.path.join(os.path.dirname(__file__), "..", "serve", "x"))', "serve/x"),
        ('text = (files("realmlm.serve") / "page" / name).read_text()', "serve/page"),
        ('text = Path(realmlm.__file__).with_name("serve").joinpath(name)', "serve"),
        ("text = (Path(__file__).parent.parent / name).read_text()", "."),
    ],
)
def test_a_read_in_another_part_is_found(line: str, place: str) -> None:
    assert reaches(PACKAGE / "report" / "html.py", line) == [place]
    assert reaches(PACKAGE / "report" / "html.py", f"def inside():\n    {line}\n") == [place]


def test_a_read_in_a_root_held_by_a_name_is_found_and_a_read_of_ones_own_is_not() -> None:
    by_name = 'ROOT = Path(__file__).parent.parent\ntext = (ROOT / "serve" / "page").read_text()'
    assert reaches(PACKAGE / "report" / "html.py", by_name) == [".", "serve/page"]
    own = 'ASSETS = Path(__file__).parent / "assets"\ntext = (ASSETS / name).read_text()'
    assert reaches(PACKAGE / "page" / "__init__.py", own) == []
    beside = 'MODEL = Path(__file__).parent / "mini"\nPAGE = Path(__file__).parent / "page"'
    assert reaches(PACKAGE / "bundled.py", beside) == ["page"]


# --- what is never used -------------------------------------------------------------------------------------


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


# --- what tests replace -------------------------------------------------------------------------------------

TESTS = Path(__file__).parent
MOST_PATCHES = 10  # of private names, in all tests together
PATCHING = ("setattr", "delattr", "patch", "object", "multiple")  # of builtins, pytest and unittest.mock
CHANGING = ("append", "add", "clear", "extend", "pop", "remove", "update")  # of lists, sets and dicts


def patches(source: str) -> list[str]:
    """The private names (one underscore) of realmlm's modules, classes and objects that a test replaces or
    fills otherwise, each time it does, scripts in its strings included. What hangs on a module imported from
    elsewhere is not ours; `self._name = …` of a class in a test is its own."""
    tree = ast.parse(source)
    foreign = {name for node in ast.walk(tree) for name in names_from_elsewhere(node)} | {"self", "cls"}
    spelled = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    found: list[object] = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=owner, attr=name, ctx=ast.Store() | ast.Del()):  # module._name = …
                found += [name] if root(owner) not in foreign else []
            case ast.Subscript(value=owner, slice=key, ctx=ast.Store() | ast.Del()):
                # vars(module)["_name"] = …, module._name[…] = …
                names = [getattr(key, "value", None), getattr(owner, "attr", None)]
                found += names if root(owner) not in foreign else []
            case ast.Call(func=ast.Attribute(value=ast.Attribute(value=owner, attr=name), attr=called)) if (
                called in CHANGING
            ):  # module._name.clear()
                found += [name] if root(owner) not in foreign else []
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)) if called in PATCHING:
                found += patched(node, foreign, spelled)
            case ast.Constant(value=str(text)) if "\n" in text:
                with suppress(SyntaxError):
                    found += patches(textwrap.dedent(text))
    return [str(name) for name in found if is_private(name)]


def is_private(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(r"_[^\W_]\w*", name) is not None


def root(target: ast.expr) -> str:
    """The name that an expression begins with: `artefacts` of `artefacts.os`, `engine` of `type(engine)`."""
    names = [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]
    return next((name for name in names if name not in ("type", "vars")), "")


def names_from_elsewhere(node: ast.AST) -> list[str]:
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return []
    origin = node.module if isinstance(node, ast.ImportFrom) else None
    return [
        (alias.asname or alias.name).partition(".")[0]
        for alias in node.names
        if (origin or alias.name).partition(".")[0] not in ("realmlm", "tests")
    ]


def patched(call: ast.Call, foreign: set[str], spelled: list[Any]) -> list[Any]:
    """What a call of `monkeypatch.setattr`, `patch.object` and their kind replaces. Where the name is a
    variable, it may be any private name that the file spells."""
    named = [word.value for word in call.keywords if word.arg in ("target", "name", "attribute")]
    match [*call.args, *named]:
        case [ast.Constant(value=str(path)), *_]:
            return [path.rpartition(".")[2]] if path.startswith("realmlm.") else []
        case [owner, *_] if root(owner) in foreign:
            return []
        case [_, ast.Constant(value=str(name)), *_]:
            return [name]
        case [_]:
            return [word.arg for word in call.keywords]  # patch.multiple(module, _name=…)
        case [_, *_]:
            return [text.rpartition(".")[2] for text in spelled if isinstance(text, str)]
    return []


def test_few_private_names_are_replaced() -> None:
    found = {
        str(file.relative_to(TESTS)): names
        for file in sorted({*TESTS.rglob("*.py")} - {Path(__file__)})  # this one has them as examples
        if (names := patches(file.read_text("utf-8")))
    }
    assert sum(map(len, found.values())) <= MOST_PATCHES, found


@pytest.mark.parametrize(
    "line",
    [
        'monkeypatch.setattr(module, "_name", 1)',
        'monkeypatch.setattr("realmlm.train.loop._name", 1)',
        'monkeypatch.setattr(target=module, name="_name", value=1)',
        'monkeypatch.delattr(module, "_name")',
        'monkeypatch.setattr(type(engine), "_name", 1)',
        'setattr(engine.index, "_name", 1)',
        'patch.object(module, "_name", 1).start()',
        'with pytest.MonkeyPatch.context() as broken: broken.setattr(module, "_name", 1)',
        'with mock.patch.object(Engine, "_name"): pass',
        'with mock.patch("realmlm.engine._name"): pass',
        'with patch.object(other, "name"), patch.object(module, attribute="_name"): pass',
        "with patch.multiple(module, _name=1): pass",
        '@patch("realmlm.engine._name")\ndef test(): pass',
        "module._name = 1",
        "engine.index._name += 1",
        "engine.first, engine._name = 1, 2",
        "del module._name",
        'vars(module)["_name"] = 1',
        'module.__dict__["_name"] = 1',
        "module._name[place] = 1",
        "module._name.clear()",
        "SCRIPT = '''\n    from realmlm import module\n    module._name = 1\n    '''",
        'def test():\n    path = "realmlm.module._name"\n    monkeypatch.setattr(path, 1)',
        'def test():\n    for owner, name in [(module, "_name"), (module, "name")]: setattr(owner, name, 1)',
    ],
)
def test_a_replaced_private_name_is_found(line: str) -> None:
    imported = (
        "import os\nfrom unittest import mock\nfrom unittest.mock import patch\nfrom realmlm import module\n"
    )
    assert patches(imported + line) == ["_name"]


@pytest.mark.parametrize(
    "line",
    [
        'monkeypatch.setattr(module, "NAME", 1)',
        'monkeypatch.setattr("realmlm.module.name", 1)',
        'monkeypatch.setattr(module, "__name__", 1)',
        'monkeypatch.setattr(os, "_exit", 1)',
        'monkeypatch.setattr("os._exit", 1)',
        'patch.object(Engine, "ask")',
        "self._name = module._name",
        "self._names.append(module._name)",
        'client.patch("/passages/0", json={"_name": 1})',
    ],
)
def test_a_public_name_and_one_from_elsewhere_may_be_replaced(line: str) -> None:
    assert patches(f"import os\nfrom realmlm import module\n{line}") == []


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
from realmlm.settings import JointOptim, Loop, Pretrain, Refresh
from tests.calls import build_corpus, create_model, run_pretrain
from realmlm.corpus.questions import Question, read_questions
from realmlm.errors import MissingExtra
from realmlm.train.gold import locate_answers
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
questions = read_questions(folder / "world" / "questions-train.jsonl")
assert len(locate_answers(corpus, questions)) > 0
missing(lambda: locate_answers(corpus, [Question("Where?", ("Cre?te",), is_regex=True)]))
try:
    realmlm.cli.main(["world", "--out", "w"])
except SystemExit as end:
    print("exit", end.code)
"""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, cwd=PACKAGE.parent
    )


WITH_FASTAPI = (
    "around",
    "command",
    "embeddings",
    "front",
    "heads",
    "http",
    "listen",
    "meters",
    "processes",
    "routes",
    "runs",
    "shapes",
    "writers",
)  # of serve: they are FastAPI itself
# they are for GPUs
WITH_TRITON = (
    "fused",
    "kernels",
    "attention_kernels",
    "norm_kernels",
    "dropout_kernels",
    "span_kernels",
    "trial_kernels",
)


def test_the_core_imports_and_trains_with_five_libraries(tmp_path: Path) -> None:
    modules = [
        module_name(file) for file in FILES if file.stem not in ("__main__", *WITH_FASTAPI, *WITH_TRITON)
    ]
    done = run_python(REFUSE + f"MODULES, FOLDER = {modules!r}, {str(tmp_path)!r}\n" + CORE)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said == [
        f"{tmp_path}/note.md: reading Markdown needs 'markdown_it': "
        "pip install realmlm, or leave such input out with --skip-bad",
        "finding patterns in all passages needs 'ahocorasick': pip install 'realmlm[match]'",
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


def test_a_report_does_not_wait_for_torch() -> None:
    done = run_python(
        "import sys, realmlm.report.html\nprint({'torch', 'numpy', 'pydantic'} & set(sys.modules))"
    )
    assert done.stdout.split() == ["set()"], done.stderr


# --- settings and parameters --------------------------------------------------------------------------------

MOST_PARAMETERS = 8
SAME_BY_CHANCE = {
    ("save_pretrained", "dtype"),  # of weights, not of vectors
    ("write_weights", "dtype"),
    ("mark_spans", "workers"),  # none beside this process; of a service's own
}
ABSENT = (None, False, 0, 0.0, "", "auto")  # nothing was chosen


def is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A kernel of Triton has no records: all that it needs is a parameter."""
    return any(ast.unparse(decorator).startswith("triton.jit") for decorator in node.decorator_list)


def signatures() -> Iterator[tuple[str, list[tuple[str, ast.expr | None]]]]:
    """Every function of the package with its parameters and their defaults."""
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_kernel(node):
                given = node.args
                names = [parameter.arg for parameter in (*given.posonlyargs, *given.args)]
                defaults = [None] * (len(names) - len(given.defaults)) + list(given.defaults)
                pairs = list(zip(names, defaults, strict=True))
                pairs += [
                    (parameter.arg, default)
                    for parameter, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
                ]
                yield node.name, [pair for pair in pairs if pair[0] not in ("self", "cls")]


def test_no_function_takes_many_parameters() -> None:
    many = [name for name, parameters in signatures() if len(parameters) > MOST_PARAMETERS]
    assert many == []


def test_no_default_stands_in_two_places() -> None:
    """Neither in a signature what a setting has already, nor in two settings of one name unless they share a
    constant."""
    kinds = [kind for kind in vars(settings).values() if isinstance(kind, type)]
    fields: dict[str, set[object]] = {}
    for kind in kinds:
        if dataclasses.is_dataclass(kind):
            for field in dataclasses.fields(kind):
                if field.default is not dataclasses.MISSING and field.default not in ABSENT:
                    fields.setdefault(field.name, set()).add(field.default)
    twice = [
        f"{function}({name}={default.value!r})"
        for function, parameters in signatures()
        for name, default in parameters
        if isinstance(default, ast.Constant)
        and default.value in fields.get(name, ())
        and (function, name) not in SAME_BY_CHANCE
    ]
    assert fields["read"] == {5}, "the test looks at real settings"
    assert twice == []
