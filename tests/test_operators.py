"""For those who run it: what is installed, what is cached, and how a service is given its token."""

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from realmlm import device, doctor
from realmlm.cli import main
from realmlm.corpus.cache import cached, clear
from realmlm.engine import Engine
from realmlm.errors import BadInput
from realmlm.index import exact
from realmlm.model import attention
from realmlm.settings import Serve
from realmlm.storage.locks import locked

# --- doctor -------------------------------------------------------------------------------------------------


def test_the_doctor_names_versions_devices_and_the_cache(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    main(["doctor"])
    said = capsys.readouterr().out
    for name in doctor.CORE:
        assert name in said
    assert f"Python {sys.version.split()[0]}" in said
    assert "cores" in said
    assert f"0 cached, 0.0 MiB, in {tmp_path / 'realmlm'}" in said


def test_the_doctor_says_what_is_missing_for_which_command(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"uvicorn": None, "tensorflow": None}
    find = doctor.importlib.util.find_spec
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: there.get(name, find("sys")))
    told = [line.strip() for line in doctor.examine().splitlines()]
    missing = told[told.index("missing") + 1 :]
    assert [line.split()[0] for line in missing] == ["uvicorn", "tensorflow"]
    assert missing[0].endswith("the service: serve; pip install 'realmlm[serve]'")
    there.clear()
    assert "nothing is missing for any command" in doctor.examine()


def test_the_doctor_says_that_triton_lacks_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: find_spec("sys"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/gcc" if name == "gcc" else None)
    assert "compiler" not in doctor.examine()
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "triton is installed, but there is no C compiler" in doctor.examine()
    assert "apt install gcc libc6-dev" in doctor.examine()


@pytest.fixture
def gpu_without_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Triton as it is where nothing can be compiled."""

    def refused() -> None:
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")

    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: find_spec("sys"))
    monkeypatch.setattr(device, "build_one", refused)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    cached_answers = (device._builds_kernels, exact._fused)
    for answer in cached_answers:
        answer.cache_clear()
    yield
    for answer in cached_answers:
        answer.cache_clear()


def test_where_no_kernel_can_be_built_it_is_said_once_and_gone_the_plain_way(
    gpu_without_compiler: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "INTERPRETED", False)
    on_gpu: Any = SimpleNamespace(dtype=torch.float16, is_cuda=True)
    for _ in range(2):
        assert not attention.for_kernels(on_gpu)
        assert exact._fused() is None
    (said,) = capsys.readouterr().err.splitlines()
    assert "no kernels can be built for the GPU (Failed to find C compiler" in said
    assert "slower; install a C compiler" in said


def test_what_is_compiled_asks_whether_there_are_kernels(gpu_without_compiler: None) -> None:
    torch.compiler.assume_constant_result(device.builds_kernels)  # as for layers
    asked = torch.compile(lambda x: x + device.builds_kernels(), backend="eager", fullgraph=True)
    assert asked(torch.ones(1)).item() == 1


# --- cache --------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tiny_model_folder: Path, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for place in (notes, notes / "heron.txt"):
        Engine(tiny_model_folder, docs=place, device="cpu")
    return tmp_path / "cache" / "realmlm" / "documents"


def test_what_is_cached_is_listed_and_cleared(
    cache: Path, notes: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    main(["cache"])
    listed = capsys.readouterr()
    assert [line.split()[-1] for line in listed.out.splitlines()] == ["notes", "heron.txt"]
    assert "4 passages" in listed.out
    assert "2 cached" in listed.err
    whole, one = (line.split()[0] for line in listed.out.splitlines())
    with pytest.raises(SystemExit):
        main(["cache", one])
    assert "--clear" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["cache", "nothing", "--clear"])
    assert "nothing is cached as 'nothing'" in capsys.readouterr().err
    main(["cache", one, "--clear"])
    assert [entry.name for entry in cached()] == [whole]
    main(["cache", "--clear"])
    assert cached() == []
    assert [place for place in cache.iterdir() if place.suffix != ".lock"] == []
    again = Engine(tiny_model_folder, docs=notes, device="cpu")
    assert len(again.corpus) == 4
    assert len(cached()) == 1


def test_what_is_being_made_is_kept_and_what_is_damaged_can_be_cleared(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    busy, damaged = cached()
    (damaged.place / "manifest.json").write_text("half")
    with locked(cache / f".{busy.name}.lock"):
        assert not clear(busy)
        main(["cache", "--clear"])
    assert "1 kept" in capsys.readouterr().err
    assert [entry.name for entry in cached()] == [busy.name]


# --- tokens -------------------------------------------------------------------------------------------------


def serve(**settings: Any) -> Serve:
    return Serve(corpus=Path("corpus"), **settings)


def test_a_token_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REALMLM_TOKEN", raising=False)
    file = tmp_path / "token"
    file.write_text("from-a-file\nand more\n")
    assert serve().secret() is None
    assert serve(token="as-it-is").secret() == "as-it-is"
    assert serve(token_file=file).secret() == "from-a-file"
    monkeypatch.setenv("REALMLM_TOKEN", "from-the-environment")
    assert serve().secret() == "from-the-environment"
    assert serve(token_file=file).secret() == "from-a-file"
    assert serve(token="as-it-is", token_reads=True).secret() == "as-it-is"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"token": "as-it-is", "token_file": "token"}, "not both"),
        ({"token": "short"}, "at least 8"),
        ({"token_file": "nowhere"}, "no such file"),
        ({"token_reads": True}, "needs a token"),
        ({"token": "as-it-is", "token_reads": True, "open_reads": True}, "not both"),
        ({"patience": 0.0}, "more than 0"),
    ],
)
def test_tokens_that_cannot_be_are_refused(
    settings: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REALMLM_TOKEN", raising=False)
    with pytest.raises(BadInput, match=why):
        serve(**settings).secret()
    monkeypatch.setenv("REALMLM_TOKEN", "short")
    with pytest.raises(BadInput, match="at least 8"):
        serve().secret()
    monkeypatch.setenv("REALMLM_TOKEN", "")
    with pytest.raises(BadInput, match="REALMLM_TOKEN is set, and empty"):
        serve().secret()
    assert serve(token="as-it-is").secret() == "as-it-is"
