"""What all settings have in common: they are frozen, checked once, and their places are absolute.

A command's flags and their help are made from the fields of its settings and the texts under them.
"""

import os
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from realmlm.bundled import model_place, text_place
from realmlm.defaults import SHARED
from realmlm.errors import BadInput
from realmlm.storage.remote import mirror_of, url_in

try:
    from tyro.conf import Positional, UseAppendAction, arg
except ImportError:  # the command line's library; training without it takes these classes as they are
    Item = TypeVar("Item")
    Positional = Annotated[Item, ()]  # type: ignore[misc]
    UseAppendAction = Annotated[Item, ()]  # type: ignore[misc]

    def arg(*, metavar: str = "", help_behavior_hint: str = "", aliases: tuple[str, ...] = ()) -> Any:  # type: ignore[no-redef]
        return metavar


Place = Annotated[Path, "anywhere"]
"""A file or folder, or a URL (s3://bucket/corpus): then it is the folder of the cache that stands for it."""
ModelPlace = Annotated[Path, "model"]
"""The folder of a model, or its URL; `mini` stands for the one that comes with realmlm."""
DocumentPlace = Annotated[Path, "documents"]
"""A folder or file of documents; `pocket` stands for the encyclopedia that comes with realmlm."""
IndexPlace = Annotated[str, "index"]
"""The folder of an index, or `lance:PATH` or `postgres:DSN`, where another system holds it."""
DocumentPlaces = UseAppendAction[tuple[tuple[DocumentPlace, ...], ...]]
"""What a flag such as --docs names: it may be given several times, each time with several places."""
STANDARD_INPUT = Path("-")


def optional(metavar: str) -> Any:
    """How a setting that may be left out is shown in the help."""
    return arg(metavar=metavar, help_behavior_hint="(optional)")


def required(metavar: str) -> Any:
    """How a setting is shown in the help that a command line cannot do without, though Python can."""
    return arg(metavar=metavar, help_behavior_hint="(required)")


def ensure(condition: bool, message: str) -> None:
    """Raise BadInput with this message unless the condition holds."""
    if not condition:
        raise BadInput(message)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of all settings: places may be given as text and become absolute; then all is checked."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for name, resolve in _places(type(self)).items():
            value = getattr(self, name)
            if isinstance(value, str | Path) and get_origin(hints[name]) is tuple:
                value = (value,)  # one, where several may be given
            object.__setattr__(self, name, _each(resolve, value))
        for name, hint in hints.items():
            _check_type(name, hint, getattr(self, name))
        self.check()

    def check(self) -> None:
        """Raise BadInput for what cannot be."""

    def at_least(self, least: int, *names: str, within: str = "") -> None:
        """Check that each of these settings is unset or at least so much; `within` is a prefix of their
        flags."""
        for name in names:
            value = getattr(self, name)
            flag = within + name.replace("_", "-")
            ensure(value is None or value >= least, f"{flag} must be {least} or more, not {value}")

    def above_zero(self, *names: str) -> None:
        """Check that each of these settings is more than 0."""
        for name in names:
            ensure(getattr(self, name) > 0, f"{name} must be more than 0, not {getattr(self, name)}")

    def between(self, low: int, high: int, *names: str) -> None:
        """Check that each of these settings lies between the two, both allowed."""
        for name in names:
            value = getattr(self, name)
            flag = name.replace("_", "-")
            ensure(low <= value <= high, f"{flag} must be between {low} and {high}, not {value}")

    @classmethod
    def fixed_once_trained(cls) -> list[str]:
        """The settings that a run may not change once it has learned: all but `out` and the nested ones,
        which say how weights move, how the index follows and how the loop runs."""
        hints = get_type_hints(cls)
        return [name for name in hints if name != "out" and not is_dataclass(hints[name])]


def _check_type(name: str, hint: Any, value: Any) -> None:
    """Does a value fit the field's type? The command line sees to it; Python does not."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if value is None and type(None) in kinds:
        return
    for kind in kinds:
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        if choices:
            ensure(value in choices, f"{name} must be one of {', '.join(map(str, choices))}, not {value!r}")
        elif kind in (bool, int, float):
            fits = isinstance(value, int | float if kind is float else kind)
            fits = fits and isinstance(value, bool) == (kind is bool)
            ensure(fits, f"{name} must be {_KINDS[kind]}, not {value!r}")
        elif is_dataclass(kind):
            wanted: Any = kind
            ensure(isinstance(value, wanted), f"{name} must be {wanted.__name__}(…), not {value!r}")


_KINDS = {bool: "True or False", int: "a whole number", float: "a number"}

Resolve = Callable[[str | Path], Path | str]


def _places(kind: Any) -> dict[str, Resolve]:
    """The fields that hold places, each with how a place is made absolute."""
    hints = get_type_hints(kind, include_extras=True).items()
    return {name: resolve for name, hint in hints if (resolve := _resolver(hint))}


def _resolver(hint: Any) -> Resolve | None:
    if hint is Path:
        return _absolute
    metadata = getattr(hint, "__metadata__", ())
    if "anywhere" in metadata:
        return lambda name: _mirror(name) or _absolute(name)
    if "model" in metadata:
        return lambda name: _mirror(name) or model_place(name).absolute()
    if "documents" in metadata:
        return lambda name: text_place(_on_this_machine(name)).absolute()
    if "index" in metadata:
        return _index_place
    return next((found for part in get_args(hint) if (found := _resolver(part))), None)


def _on_this_machine(place: str | Path) -> str | Path:
    ensure(url_in(place) is None, f"{url_in(place)}: name a place on this machine, here URLs are not taken")
    return place


def _absolute(place: str | Path) -> Path:
    is_input = Path(_on_this_machine(place)) == STANDARD_INPUT
    return STANDARD_INPUT if is_input else Path(os.path.expanduser(place)).absolute()


def _mirror(place: str | Path) -> Path | None:
    """The folder that stands for a URL."""
    url = url_in(place)
    return mirror_of(url) if url else None


def _index_place(place: str | Path) -> str:
    """A folder becomes absolute; what another system is told stays as it is."""
    shared = str(place).partition(":")[0] in SHARED
    return str(place) if shared else str(_mirror(place) or _absolute(place))


def _each(resolve: Resolve, value: Any) -> Any:
    """Each place in a value, which may be one, several, or several groups of several."""
    if isinstance(value, tuple | list):
        return tuple(_each(resolve, item) for item in value)
    return None if value is None else resolve(value)


def together(named: tuple[tuple[Path, ...], ...]) -> list[Path]:
    """The places that a flag names, which may be given several times, each time with several."""
    return [place for places in named for place in places]


# --- as a record on disk ------------------------------------------------------------------------------------


def record(values: Any) -> Any:
    """Settings as JSON: settings within them become objects, places text."""
    if is_dataclass(values):
        return {item.name: record(getattr(values, item.name)) for item in fields(values)}
    if isinstance(values, tuple | list):
        return [record(value) for value in values]
    return str(values) if isinstance(values, Path) else values


def filled(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """What `record` wrote down, with settings that came later at their defaults, which mean "as before".

    Raises KeyError for a setting that this version does not have.
    """
    hints = get_type_hints(kind)
    whole = dict(values)
    if unknown := whole.keys() - hints.keys():
        raise KeyError(*unknown)
    for item in fields(kind):
        if is_dataclass(hints[item.name]) and item.name in values:
            whole[item.name] = filled(hints[item.name], values[item.name])
        elif item.default_factory is not MISSING:
            whole.setdefault(item.name, record(item.default_factory()))
        elif item.default is not MISSING:
            whole.setdefault(item.name, record(item.default))
    return whole


def restore(kind: Any, values: dict[str, Any]) -> Any:
    """The settings that `record` wrote down."""
    hints = get_type_hints(kind)
    whole = filled(kind, values)
    return kind(**{item.name: _restored(hints[item.name], whole[item.name]) for item in fields(kind)})


def _restored(hint: Any, value: Any) -> Any:
    if is_dataclass(hint):
        return restore(hint, value)
    return tuple(_restored(None, item) for item in value) if isinstance(value, list) else value
