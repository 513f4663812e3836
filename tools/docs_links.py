"""A hook of mkdocs: links from a page to files outside docs/ (code, recipes) lead into the repository."""

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """`[`runs/`](../runs)` on docs/pipeline.md becomes a link to runs/ of the repository."""
    folder = posixpath.dirname(page.file.src_uri)

    def outside(match: re.Match[str]) -> str:
        place = posixpath.normpath(posixpath.join("docs", folder, match[1]))
        return match[0] if place.startswith("docs/") else f"]({config['repo_url']}/blob/main/{place}"

    return _LINK.sub(outside, markdown)
