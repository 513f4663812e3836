"""Block records: every array of bytes is read, nothing else is, and nothing runs."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from realmlm.errors import BadInput
from realmlm.interop.records import count_records, read_records, write_records


def saved(file: Path, items: list[object], *, protocol: int | None = None, header: int | None = None) -> Path:
    array = np.empty(len(items), dtype=object)
    array[:] = items
    with open(file, "wb") as stream:
        count = len(items) if header is None else header
        np.lib.format.write_array_header_1_0(
            stream, {"descr": "|O", "fortran_order": False, "shape": (count,)}
        )
        pickle.dump(array, stream, protocol=protocol)
    return file


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(items=st.lists(st.binary(max_size=300), max_size=40), protocol=st.integers(3, 5))
def test_what_numpy_saved_is_read(tmp_path: Path, items: list[bytes], protocol: int) -> None:
    items = items + items[:3]  # the same objects again: a pickle names them instead of repeating them
    file = saved(tmp_path / "r.npy", list(items), protocol=protocol)
    assert list(read_records(file)) == items
    assert count_records(file) == len(items)


def test_numpy_itself_and_many_records(tmp_path: Path) -> None:
    items = [b"", b"a", b"a", *(f"text {number} ".encode() * (number % 90) for number in range(3000))]
    np.save(tmp_path / "r.npy", np.array(items, dtype=object))
    assert list(read_records(tmp_path / "r.npy")) == items


def test_what_is_written_numpy_loads(tmp_path: Path) -> None:
    items = [b"", b"one", "zwölf".encode(), b"x" * 70_000]
    write_records(tmp_path / "r.npy", items, len(items))
    assert np.load(tmp_path / "r.npy", allow_pickle=True).tolist() == items
    assert list(read_records(tmp_path / "r.npy")) == items


class Command:
    """What unpickles into the run of a command."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.file}",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_command_is_named_and_not_run(tmp_path: Path, protocol: int) -> None:
    file = tmp_path / "r.npy"
    trace = tmp_path / "ran"
    saved(file, [b"a harmless text", Command(trace)], protocol=protocol)
    with pytest.raises(
        BadInput, match=r"r\.npy is not a plain array of texts: .*(posix\.system|_codecs\.encode)"
    ):
        list(read_records(file))
    assert not trace.exists()
    np.load(file, allow_pickle=True)  # the file is what it is said to be
    assert trace.exists()


def test_a_pickle_that_is_the_command_itself(tmp_path: Path) -> None:
    with open(tmp_path / "r.npy", "wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "|O", "fortran_order": False, "shape": (1,)})
        pickle.dump(Command(tmp_path / "ran"), stream)
    with pytest.raises(BadInput, match=r"posix\.system"):
        list(read_records(tmp_path / "r.npy"))
    assert not (tmp_path / "ran").exists()


def test_a_command_after_the_texts(tmp_path: Path) -> None:
    file = saved(tmp_path / "r.npy", [b"one"])
    data = file.read_bytes()
    assert data.endswith(b".")
    file.write_bytes(data[:-1] + pickle.dumps(Command(tmp_path / "ran"))[2:])
    with pytest.raises(BadInput):
        list(read_records(file))


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ([b"a", "text"], "a string"),
        ([b"a", 3], "BININT1"),
        ([b"a", None], "NONE"),
        ([b"a", [b"b"]], "EMPTY_LIST"),
        ([b"a", bytearray(b"b")], "builtins.bytearray|BYTEARRAY8"),
        ([b"a", np.zeros(2)], "an object named before"),
    ],
)
def test_other_objects_are_refused(tmp_path: Path, items: list[object], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        list(read_records(saved(tmp_path / "r.npy", items)))


def test_other_arrays_are_refused(tmp_path: Path) -> None:
    for array, why in (
        (np.zeros(3), "float64"),
        (np.array([[b"a", b"b"]], dtype=object), "shape"),
        (np.array([b"a"]), "S1"),
    ):
        np.save(tmp_path / "r.npy", array)
        with pytest.raises(BadInput, match=why):
            list(read_records(tmp_path / "r.npy"))
    (tmp_path / "r.npy").write_bytes(b"not numpy at all")
    with pytest.raises(BadInput, match="not a numpy file"):
        count_records(tmp_path / "r.npy")


def test_a_file_that_is_cut_off_or_counts_wrong(tmp_path: Path) -> None:
    file = saved(tmp_path / "r.npy", [f"text {number}".encode() for number in range(50)])
    data = file.read_bytes()
    for length in range(len(data) - 300, len(data), 7):
        file.write_bytes(data[:length])
        with pytest.raises(BadInput):
            list(read_records(file))
    saved(file, [b"a", b"b"], header=3)
    with pytest.raises(BadInput, match="2 texts where its header says 3"):
        list(read_records(file))
