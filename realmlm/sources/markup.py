"""Wiki, HTML and Markdown to plain text, the latter two in sections, each through a maintained parser (extra
`formats`)."""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from realmlm.errors import require
from realmlm.sources.bounds import LONGEST_S, Unreadable, balanced, parts, shallow
from realmlm.sources.headings import Document, Heading, cut, tidy

HIDDEN_LINKS = frozenset({"file", "image", "category"})
"""Namespaces whose links show no text in an article. Every wiki has these names, beside those in its own
language."""

_TAGS_WITHOUT_PROSE = """
    categorytree gallery graph imagemap inputbox math ref references score section table templatedata timeline
"""
_ELEMENTS_WITHOUT_PROSE = "head script style nav noscript template svg math iframe object select button"
_ELEMENTS_ON_THEIR_OWN_LINES = """
    address article aside blockquote body caption dd details dialog div dl dt fieldset figcaption figure
    footer form h1 h2 h3 h4 h5 h6 header hgroup hr li main ol p pre section summary table tbody td tfoot th
    thead tr ul br
"""
_HIDDEN_WIKI = frozenset(_TAGS_WITHOUT_PROSE.split())
_HIDDEN_HTML = frozenset(_ELEMENTS_WITHOUT_PROSE.split())
_BLOCKS = frozenset(_ELEMENTS_ON_THEIR_OWN_LINES.split())
_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*$\n?", re.DOTALL | re.MULTILINE)
_FRONT_TITLE = re.compile(r"^title:[ \t]*(.+?)[ \t]*$", re.MULTILINE)
LONGEST_NAME = 200  # characters of the name of a column: each row repeats it
_MARKDOWN_AT_ONCE = 2**20  # characters: their tokens take up to 500 bytes for each
# brackets in which only a template stood; switches like __NOTOC__
_WIKI_LEFTOVERS = re.compile(r" ?\(\s*+(?:[,;]\s*+)?\)|__[A-Z]+__")

_HUMP = re.compile(r"(?<=[a-z]{2})[A-Z]([a-z])?")  # of crsCode, stationID; not of pH


def wiki_to_text(wikitext: str, *, hidden_links: frozenset[str] = HIDDEN_LINKS) -> str:
    """The prose of a wiki page: links as their text, headings and paragraphs on lines of their own.

    Templates, tables, references, formulas, files and categories are left out. `hidden_links` are the
    namespaces of files and categories in lower case.
    """
    parser = require("mwparserfromhell", extra="formats", why="reading MediaWiki markup")
    pieces = _wiki_pieces(parser.parse(balanced(wikitext), skip_style_tags=False), parser.nodes, hidden_links)
    return tidy(_WIKI_LEFTOVERS.sub("", "".join(pieces)))


def _wiki_pieces(code: Any, nodes: Any, hidden_links: frozenset[str]) -> Iterator[str]:
    for node in code.nodes if code is not None else ():
        if isinstance(node, nodes.Text):
            yield str(node.value)
        elif isinstance(node, nodes.Wikilink):
            namespace, colon, _ = str(node.title).partition(":")
            if colon and namespace.strip().lower() in hidden_links:
                continue
            if node.text is not None:
                yield from _wiki_pieces(node.text, nodes, hidden_links)
            else:
                yield str(node.title).strip().lstrip(":")
        elif isinstance(node, nodes.ExternalLink):
            if node.title is not None:
                yield from _wiki_pieces(node.title, nodes, hidden_links)
        elif isinstance(node, nodes.Heading):
            yield "\n"
            yield from _wiki_pieces(node.title, nodes, hidden_links)
            yield "\n"
        elif isinstance(node, nodes.HTMLEntity):
            yield str(node.normalize() or "")
        elif isinstance(node, nodes.Tag):
            tag = str(node.tag).strip().lower()
            if tag in ("br", "hr"):
                yield "\n"
            elif tag not in _HIDDEN_WIKI:
                yield from _wiki_pieces(node.contents, nodes, hidden_links)


@lru_cache(maxsize=4096)
def in_words(name: str) -> str:
    """The name of a column as people say it: "crs_code" and "crsCode", as programs write them, are
    "crs code", "stationID" is "station ID". "WordPress" stays: it may be a name that people write so."""
    name = name.removesuffix(":").rstrip()
    if not name.isidentifier():
        return name
    apart = name
    if name[0].islower():
        apart = _HUMP.sub(lambda hump: " " + (hump[0].lower() if hump[1] else hump[0]), name)
    return " ".join(apart.replace("_", " ").split()) or name


def row_line(names: Sequence[str], cells: Sequence[str]) -> str:
    """A row of a table as one line, each cell after its column's name in words: "town: Oslo; river: Aker".
    Empty cells are left out, and so are names too long to be repeated in every row."""
    short = (in_words(name) if len(name) <= LONGEST_NAME else "" for name in names)
    pairs = ((name, " ".join(cell.split())) for name, cell in zip(short, cells, strict=True))
    line = "; ".join(f"{name}: {cell}" if name else cell for name, cell in pairs if cell)
    return line.replace(":; ", ": ")  # of a form: the name of what follows is a cell


def table_lines(rows: Sequence[Sequence[str]], *, header: bool) -> list[str]:
    """The rows of a table as lines; a `header`, the first, names the columns of rows of its length."""
    names = rows[0] if header and any(len(row) == len(rows[0]) for row in rows[1:]) else ()
    if any(len(name) > LONGEST_NAME for name in names):
        names = ()
    body = rows[1:] if names else rows
    return [row_line(names if len(row) == len(names) else [""] * len(row), row) for row in body]


def html_document(html: str) -> Document:
    """Title (`<title>`, else the uppermost heading, else "") and visible text of a page, a block a line."""
    tree = _html_tree(html)
    stated = tree.css_first("head > title")
    return cut(stated.text() if stated is not None else "", _html_pieces(tree.body))


def _html_tree(html: str) -> Any:
    parser = require("selectolax.lexbor", extra="", why="reading HTML")
    return parser.LexborHTMLParser(shallow(html))


def _html_text(node: Any) -> str:
    """All text in an element, headings too."""
    return tidy("".join(piece for piece in _html_pieces(node, plain=True) if isinstance(piece, str)))


def _html_pieces(body: Any, *, plain: bool = False) -> Iterator[Heading | str]:
    """The text and the headings in an element; if `plain`, headings are text like any other."""
    # A stack, for pages nest deeper than Python recurses. A string on it is the line break of a closing tag.
    stack: list[tuple[Any, bool]] = [(body, False)] if body is not None else []
    while stack:
        node, verbatim = stack.pop()
        if isinstance(node, str):
            yield node
        elif node.is_text_node:
            yield node.text_content if verbatim else re.sub(r"\s+", " ", node.text_content)
        elif not node.is_element_node or node.tag in _HIDDEN_HTML:
            continue
        elif node.tag == "table" and (lines := _html_table(node)) is not None:
            yield "\n".join(["", *lines, ""])
        elif node.tag in _HEADINGS and not plain:
            yield Heading(int(node.tag[1]), _html_text(node))
        else:
            if node.tag in _BLOCKS:
                yield "\n"
                stack.append(("\n", False))
            inside = verbatim or node.tag == "pre"
            stack += [(child, inside) for child in reversed(list(node.iter(include_text=True)))]


def _html_table(table: Any) -> list[str] | None:
    """The lines of a table: its caption, then its rows. None for one that only lays out a page, as tables or
    paragraphs in its cells show."""
    if any(child.css_first("table") is not None for child in table.iter()):
        return None
    found = [[cell for cell in row.iter() if cell.tag in ("td", "th")] for row in table.css("tr")]
    rows = [[_html_text(cell) for cell in cells] for cells in found if cells]
    header = any(found) and all(cell.tag == "th" for cell in next(filter(None, found)))
    if not header and any("\n" in cell for row in rows for cell in row):
        return None
    captions = [_html_text(caption) for caption in table.css("caption")]
    return [*captions, *table_lines(rows, header=header)]


def rich_text(marked: str) -> str:
    """The text of a file in Rich Text Format, given as its bytes' characters."""
    parser = require("striprtf.striprtf", extra="", why="reading Rich Text Format")
    if marked and not marked.lstrip().startswith("{\\rtf"):
        raise Unreadable("cannot be read as Rich Text Format (.rtf): it does not begin as one")
    lines = parser.rtf_to_text(marked, errors="ignore").splitlines()
    rows = (line.split("|") for line in lines)
    return "\n".join(row_line([""] * len(row), row) if row[-1] == "" else "|".join(row) for row in rows)


def markdown_document(markdown: str) -> Document:
    """Title (of the front matter, else the uppermost heading, else "") and text of a document, a block a
    line."""
    parser = require("markdown_it", extra="", why="reading Markdown")
    front = _FRONT_MATTER.match(markdown)
    stated = _FRONT_TITLE.search(front[1]) if front else None
    body = markdown[front.end() :] if front else markdown
    tokens = _markdown_tokens(parser.MarkdownIt("commonmark").enable("table"), body)
    return cut(stated[1].strip("\"'") if stated else "", _markdown_pieces(tokens))


def _markdown_pieces(tokens: Iterable[Any]) -> Iterator[Heading | str]:
    rows: list[list[str]] = []
    opened: Any = None  # the token before
    for token in tokens:
        if token.type == "inline":
            line = "".join(_inline_pieces(token.children))
            if opened.type in ("td_open", "th_open"):
                rows[-1].append(line)
            elif opened.type == "heading_open" and opened.level == 0:  # not in a list or a quotation
                yield Heading(int(opened.tag[1]), line)
            else:
                yield f"{line}\n"
        elif token.type in ("fence", "code_block"):
            yield token.content
        elif token.type == "html_block":
            yield from _html_pieces(_html_tree(token.content).body)
            yield "\n"
        elif token.type == "tr_open":
            rows.append([])
        elif token.type == "table_close":
            yield from (f"{row}\n" for row in table_lines(rows, header=True))
            rows = []
        opened = token


def _markdown_tokens(parser: Any, body: str) -> Iterator[Any]:
    """The tokens of a document. A large one is parsed in parts; where they meet, a list may end."""
    begun = time.monotonic()
    for part in parts(body, _MARKDOWN_AT_ONCE):
        if time.monotonic() - begun > LONGEST_S:
            raise Unreadable(f"takes more than {LONGEST_S:.0f} s to read; split it")
        yield from parser.parse(part)


def _inline_pieces(tokens: list[Any] | None) -> Iterator[str]:
    for token in tokens or ():
        if token.type in ("text", "code_inline", "text_special"):
            yield token.content
        elif token.type in ("softbreak", "hardbreak"):
            yield " " if token.type == "softbreak" else "\n"
        elif token.type == "image":
            yield from _inline_pieces(token.children)
