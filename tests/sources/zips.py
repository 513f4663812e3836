"""Zip files to test with."""

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping


def archive(parts: Mapping[str, str | bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as made:
        for name, text in parts.items():
            made.writestr(name, text)
    return stream.getvalue()


def unpacked(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as made:
        return {name: made.read(name) for name in made.namelist()}


def changed(data: bytes, name: str, old: str, new: str) -> bytes:
    """An archive, other words in place of some in one part."""
    parts = unpacked(data)
    assert old.encode() in parts[name]
    return archive(parts | {name: parts[name].replace(old.encode(), new.encode())})


def understated(data: bytes, name: str, size: int, checked: int) -> bytes:
    """An archive that says of a part that it has so many bytes, with the checksum of its first `checked`."""
    with zipfile.ZipFile(io.BytesIO(data)) as made:
        part = made.getinfo(name)
        checksum = zlib.crc32(made.read(name)[:checked])
    true = struct.pack("<III", part.CRC, part.compress_size, part.file_size)
    assert data.count(true) == 2  # before the part, and in the list of parts
    return data.replace(true, struct.pack("<III", checksum, part.compress_size, size))
