"""The parts of a zip file, within bounds: nothing that it says of their sizes is believed."""

import io
import zipfile
from copy import copy
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from xml.parsers import expat

from realmlm.sources.bounds import LARGEST, Unreadable

_LARGEST_XML = 2**26  # bytes of XML, unpacked: its tree takes ten times as much
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # of others, zipfile unpacks all that there is at once
_LONGEST_NAMESPACE = 256  # characters: a tree has it in the name of every kind of element
_LONGEST_NAME = 1000  # characters of a part's name: it may be the beginning of many others
_TOO_MUCH = "unpacks to more than a document may hold; split it"


class Archive:
    """A document that is a zip file. All that is read of it, again or not, counts towards its limits."""

    def __init__(self, data: bytes) -> None:
        self._zip = zipfile.ZipFile(io.BytesIO(data))
        parts = self._zip.infolist()
        if any(part.compress_type not in _METHODS for part in parts):
            raise Unreadable("is compressed otherwise than such files are (by deflate); save it anew")
        if any(len(part.filename) > _LONGEST_NAME for part in parts):
            raise Unreadable(f"has parts with names of more than {_LONGEST_NAME} characters; save it anew")
        if sum(part.file_size for part in parts) > LARGEST:
            raise Unreadable(_TOO_MUCH)
        self._left = LARGEST
        self._xml_left = _LARGEST_XML

    def __contains__(self, name: str) -> bool:
        return name in self._zip.NameToInfo

    def read(self, name: str) -> bytes:
        part = self._zip.getinfo(name)
        self._left -= part.file_size
        if self._left < 0:
            raise Unreadable(_TOO_MUCH)
        return self._unpacked(part)

    def xml(self, name: str) -> Element:
        self.charge_xml(self._zip.getinfo(name).file_size)
        data = self.read(name)
        _refuse_multiplying(data)
        return ElementTree.fromstring(data)

    def charge_xml(self, size: int) -> None:
        """Count bytes of XML that are read, or would be if the file did not say that some are repeated."""
        self._xml_left -= size
        if self._xml_left < 0:
            raise Unreadable(_TOO_MUCH)

    def check(self) -> None:
        """Raise if there is too much XML, or any part is larger than it says: for a library that will unpack
        them whole."""
        parts = self._zip.infolist()
        self.charge_xml(sum(part.file_size for part in parts if part.filename.endswith((".xml", ".rels"))))
        for part in parts:
            self._unpacked(part)

    def _unpacked(self, part: zipfile.ZipInfo) -> bytes:
        """The bytes of a part. zipfile would unpack more than the part says there are, and then cut them off;
        so it is told of one more, and no more are asked for."""
        longer = copy(part)
        longer.file_size += 1
        with self._zip.open(longer) as stream:
            data = stream.read(longer.file_size)
        if len(data) > part.file_size:
            raise Unreadable(f"holds more in its part '{part.filename}' than it says; save it anew")
        return data


def _refuse_multiplying(xml: bytes) -> None:
    """Raise if XML may become much more than it is: by entities, which only a DOCTYPE of its own declares, or
    by a long namespace."""

    def doctype(name: str, system: str | None, public: str | None, declares: int) -> None:
        if declares:
            raise Unreadable("has a DOCTYPE with declarations of its own, which no such file has")

    def namespace(prefix: str | None, uri: str | None) -> None:
        if uri and len(uri) > _LONGEST_NAMESPACE:
            raise Unreadable(f"has a namespace of more than {_LONGEST_NAMESPACE} characters")

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartDoctypeDeclHandler = doctype
    parser.StartNamespaceDeclHandler = namespace
    parser.Parse(xml, True)
