"""What to call files and folders where several are shown."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from realmlm.defaults import ADAPTING

_PARTS = ("reader", "retriever", ADAPTING)  # of a run: alone they do not say of which


def short_names(places: Sequence[Path]) -> list[str]:
    """The last parts of each absolute path, as many as tell it from the others; part of a run: with the run's
    name."""
    deepest = max((len(place.parts) for place in places), default=0)
    endings = [Counter(place.parts[-count:] for place in places) for count in range(1, deepest + 1)]
    names = []
    for place in places:
        count = 2 if place.name in _PARTS else 1
        while count < len(place.parts) and endings[count - 1][place.parts[-count:]] > 1:
            count += 1
        names.append(str(Path(*place.parts[-count:])))
    return names
