"""Wiki, HTML and Markdown to plain text, each through a maintained parser (extra `formats`)."""

import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from realmlm.errors import require
from realmlm.sources.bounds import LONGEST_S, Unreadable, balanced, parts, shallow

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
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*$\n?", re.DOTALL | re.MULTILINE)
_FRONT_TITLE = re.compile(r"^title:[ \t]*(.+?)[ \t]*$", re.MULTILINE)
_MARKDOWN_AT_ONCE = 2**20  # characters: their tokens take up to 500 bytes for each
# brackets in which only a template stood; switches like __NOTOC__
_WIKI_LEFTOVERS = re.compile(r" ?\(\s*+(?:[,;]\s*+)?\)|__[A-Z]+__")


def wiki_to_text(wikitext: str, *, hidden_links: frozenset[str] = HIDDEN_LINKS) -> str:
    """The prose of a wiki page: links as their text, headings and paragraphs on lines of their own.

    Templates, tables, references, formulas, files and categories are left out. `hidden_links` are the
    namespaces of files and categories in lower case.
    """
    parser = require("mwparserfromhell", extra="formats", why="reading MediaWiki markup")
    pieces = _wiki_pieces(parser.parse(balanced(wikitext), skip_style_tags=False), parser.nodes, hidden_links)
    return _tidy(_WIKI_LEFTOVERS.sub("", "".join(pieces)))


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


def row_line(names: Sequence[str], cells: Sequence[str]) -> str:
    """A row of a table as one line, each cell after its column's name: "town: Oslo; river: Aker". Empty
    cells are left out."""
    pairs = ((name, " ".join(cell.split())) for name, cell in zip(names, cells, strict=True))
    return "; ".join(f"{name}: {cell}" if name else cell for name, cell in pairs if cell)


def table_lines(rows: Sequence[Sequence[str]], *, header: bool) -> list[str]:
    """The rows of a table as lines; a `header`, the first, names the columns of rows of its length."""
    names = rows[0] if header and any(len(row) == len(rows[0]) for row in rows[1:]) else ()
    body = rows[1:] if names else rows
    return [row_line(names if len(row) == len(names) else [""] * len(row), row) for row in body]


def html_to_text(html: str) -> tuple[str, str]:
    """Title (`<title>`, else the first `<h1>`, else "") and visible text of a page, a block a line."""
    parser = require("selectolax.lexbor", extra="formats", why="reading HTML")
    tree = parser.LexborHTMLParser(shallow(html))
    heading = tree.css_first("head > title") or tree.css_first("h1")
    title = " ".join(heading.text().split()) if heading is not None else ""
    return title, _tidy("".join(_html_pieces(tree.body))) if tree.body is not None else ""


def _html_pieces(body: Any) -> Iterator[str]:
    # A stack, for pages nest deeper than Python recurses. A string on it is the line break of a closing tag.
    stack: list[tuple[Any, bool]] = [(body, False)]
    while stack:
        node, verbatim = stack.pop()
        if isinstance(node, str):
            yield node
        elif node.is_text_node:
            yield node.text_content if verbatim else re.sub(r"\s+", " ", node.text_content)
        elif node.is_element_node and node.tag == "table" and (lines := _html_table(node)) is not None:
            yield "\n".join(["", *lines, ""])
        elif node.is_element_node and node.tag not in _HIDDEN_HTML:
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
    rows = [[_tidy("".join(_html_pieces(cell))) for cell in cells] for cells in found if cells]
    header = any(found) and all(cell.tag == "th" for cell in next(filter(None, found)))
    if not header and any("\n" in cell for row in rows for cell in row):
        return None
    captions = [_tidy("".join(_html_pieces(caption))) for caption in table.css("caption")]
    return [*captions, *table_lines(rows, header=header)]


def markdown_to_text(markdown: str) -> tuple[str, str]:
    """Title (of the front matter, else the first heading, else "") and text of a document, a block a line."""
    parser = require("markdown_it", extra="formats", why="reading Markdown")
    front = _FRONT_MATTER.match(markdown)
    stated = _FRONT_TITLE.search(front[1]) if front else None
    title = stated[1].strip("\"'") if stated else ""
    pieces: list[str] = []
    rows: list[list[str]] = []
    body = markdown[front.end() :] if front else markdown
    opened = ""  # the type of the token before
    for token in _markdown_tokens(parser.MarkdownIt("commonmark").enable("table"), body):
        if token.type == "inline":
            line = "".join(_inline_pieces(token.children))
            if opened == "heading_open":
                title = title or " ".join(line.split())
            if opened in ("td_open", "th_open"):
                rows[-1].append(line)
            else:
                pieces += [line, "\n"]
        elif token.type in ("fence", "code_block"):
            pieces.append(token.content)
        elif token.type == "html_block":
            pieces += [html_to_text(token.content)[1], "\n"]
        elif token.type == "tr_open":
            rows.append([])
        elif token.type == "table_close":
            pieces += [f"{row}\n" for row in table_lines(rows, header=True)]
            rows = []
        opened = token.type
    return title, _tidy("".join(pieces))


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


def _tidy(text: str) -> str:
    """One space between words, no empty lines."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)
