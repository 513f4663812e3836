"""Picks the pages out of a MediaWiki dump."""

from xml.parsers import expat

from realmlm.sources.markup import HIDDEN_LINKS

_DEEPEST = 64  # elements within one another
_LONGEST = 2**22  # characters of a page, and bytes of a tag or a comment; MediaWiki allows half of it
_NAMES = 1000  # names that the namespaces of files and categories may have


class NoDump(Exception):
    """Raised for XML that is not a MediaWiki dump."""


class Dump:
    """Collects the articles of a dump while its bytes are fed to `parser`; `take` hands over those found.

    No tree is built, so a dump of any size can be read. A DOCTYPE is refused: only there can entities be
    declared that expand without end or read other files.
    """

    _FIELDS = frozenset({("page", "title"), ("page", "ns"), ("page", "id"), ("revision", "text")})

    def __init__(self) -> None:
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self._refuse
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.hidden_links = HIDDEN_LINKS
        self.pages = 0
        self._fed = 0  # bytes
        self._size = 0  # characters gathered
        self._path: list[str] = []  # the elements that are open
        self._page: dict[str, str] = {}
        self._gathered: list[str] | None = None  # characters of the innermost element; None: not wanted
        self._done: list[dict[str, str]] = []

    def feed(self, chunk: bytes) -> None:
        """Read on. A tag or comment that never ends would be gone through again with each chunk."""
        self.parser.Parse(chunk)
        self._fed += len(chunk)
        if self._fed - self.parser.CurrentByteIndex > _LONGEST:
            raise NoDump(f"has a tag or comment of more than {_LONGEST >> 20} MiB: no dump has one")

    def take(self) -> list[dict[str, str]]:
        """The articles found since the last call: their title, id and text (wiki markup)."""
        done = self._done
        self._done = []
        return done

    def _refuse(self, *_: object) -> None:
        raise NoDump("has a DOCTYPE, which no MediaWiki dump has")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if not self._path and name != "mediawiki":
            raise NoDump(f"starts with <{name}>, not with <mediawiki>: it is not a MediaWiki dump")
        if len(self._path) == _DEEPEST:
            raise NoDump(f"has elements {_DEEPEST} deep within one another, which no MediaWiki dump has")
        if name == "page":
            self._page = {"title": "", "ns": "0", "id": "", "text": ""}
        elif name == "redirect":
            self._page["redirect"] = ""
        names_links = name == "namespace" and attributes.get("key") in ("6", "14")  # files, categories
        is_field = bool(self._path) and (self._path[-1], name) in self._FIELDS
        self._gathered = [] if names_links or is_field else None
        self._size = 0
        self._path.append(name)

    def _characters(self, data: str) -> None:
        if self._gathered is not None:
            self._gathered.append(data)
            self._size += len(data)
            if self._size > _LONGEST:
                raise NoDump(f"has a page of more than {_LONGEST >> 20} million characters; remove it")

    def _end(self, name: str) -> None:
        self._path.pop()
        if self._gathered is not None:
            gathered = "".join(self._gathered)
            self._gathered = None
            if name == "namespace" and len(self.hidden_links) < _NAMES:
                self.hidden_links |= {gathered.strip().lower()}
            elif name != "namespace":
                self._page[name] = gathered
        elif name == "page":
            self.pages += 1
            redirects = "redirect" in self._page or self._page["text"].lstrip()[:9].upper() == "#REDIRECT"
            if self._page["ns"].strip() == "0" and not redirects:
                self._done.append(self._page)
