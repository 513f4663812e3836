"""The files that the service's page and `realmlm report` show their numbers with. `charts.js` (curves over
steps) and `style.css` belong to both; `index.html` and `app.js` are the service's page."""

from pathlib import Path

ASSETS = Path(__file__).parent / "assets"


def asset(name: str) -> str:
    """The text of one of the files."""
    return (ASSETS / name).read_text("utf-8")
