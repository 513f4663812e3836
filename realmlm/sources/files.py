"""Finds the files with documents in folders, and reads them."""

import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from realmlm.errors import BadInput, RealmError
from realmlm.sources.article import Article
from realmlm.sources.bounds import LARGEST
from realmlm.sources.columnar import Columns
from realmlm.sources.readers import DECOMPRESS, NAMED, READERS, read_files
from realmlm.sources.reading import OnBad, SourceFile
from realmlm.storage.artefacts import is_made, read_manifest
from realmlm.storage.remote import mode_of, open_file, shown, url_of, walk

# texts that have no ending
_TEXTS = """
    README LICENSE LICENCE COPYING NOTICE AUTHORS CONTRIBUTORS CONTRIBUTING CHANGELOG CHANGES HISTORY NEWS
    INSTALL NOTES TODO FAQ
"""


def read_articles(sources: Sequence[Path], *, on_bad: OnBad) -> Iterator[Article]:
    """All articles of folders and files, in the order named and, within a folder, in that of the paths."""
    yield from read_files(find_files(sources, on_bad=on_bad)[0], on_bad=on_bad)


def apart(places: Sequence[Path]) -> list[Path]:
    """The files and folders named, each once and none that lies in another, so that no document is read
    twice. One that does not exist is refused."""
    for path in places:
        try:
            exists = path.exists()
        except OSError as error:  # no permission to look into the folder it is in
            raise BadInput(_unreadable(path, error)) from error
        if not exists:
            raise BadInput(f"{path} does not exist; name a folder with documents, or a file")
        if _is_corpus(path):
            raise BadInput(f"{path} is a corpus, not a folder with documents; search it with --corpus {path}")
    as_named = {path.resolve(): Path(os.path.abspath(path)) for path in reversed(places)}
    return sorted(named for path, named in as_named.items() if as_named.keys().isdisjoint(path.parents))


def _is_corpus(path: Path) -> bool:
    try:
        return read_manifest(path, kind="corpus").kind == "corpus"
    except (RealmError, OSError):
        return False


def find_files(
    sources: Sequence[Path], *, on_bad: OnBad, columns: Columns | None = None
) -> tuple[list[SourceFile], list[Path]]:
    """The files to read, and the files in folders that are of no known kind. Hidden files and folders are
    passed over, and folders within them that realmlm wrote; links are followed. `columns` are those of tables
    with the text, the title and the id."""
    files: list[SourceFile] = []
    unknown: list[Path] = []
    bases = _bases(sources)
    for source in map(Path, sources):
        base = bases[source]
        if not _is_text(os.path.basename(os.path.abspath(source))):
            on_bad(_misnamed(source))
            continue
        try:
            mode = mode_of(source)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            on_bad(BadInput(f"{shown(source)} does not exist" if missing else _unreadable(source, error)))
            continue
        if stat.S_ISDIR(mode):
            faults: list[RealmError] = []
            paths = sorted(_walk(source, faults.append))
            found = {path: _source_file(path, base) for path in paths}
            files += [file for file in found.values() if file and _is_text(file.name)]
            faults += [_misnamed(path) for path, file in found.items() if file and not _is_text(file.name)]
            unknown += [path for path, file in found.items() if not file]
            if not faults and not any(found.values()):
                nothing = f"{shown(source)} holds no file that can be read; readable kinds: {_kinds()}"
                faults.append(BadInput(nothing))
            for fault in faults:
                on_bad(fault)
        elif stat.S_ISREG(mode):
            file = _source_file(source, base, named=True)
            files += [file] if file else []
            if file is None:
                on_bad(
                    BadInput(f"{shown(source)} is of a kind that cannot be read; readable kinds: {_kinds()}")
                )
        else:
            on_bad(BadInput(f"{source} is neither a file nor a folder"))
    return [replace(file, columns=columns) for file in files] if columns else files, unknown


def _bases(sources: Sequence[Path]) -> dict[Path, Path]:
    """The folder from which on the names of a source's files are given: the one it is in; of sources that are
    called alike, one that all of them are in."""
    alike: dict[str, list[Path]] = {}
    for source in map(Path, sources):
        alike.setdefault(os.path.basename(os.path.abspath(source)), []).append(source)
    return {
        source: Path(os.path.commonpath([Path(os.path.abspath(other)).parent for other in others]))
        for others in alike.values()
        for source in others
    }


def _walk(source: Path, on_bad: OnBad) -> Iterator[Path]:
    """The files in a folder and below it. Linked folders come last and none is entered twice: links may form
    a circle."""
    tops = [source]
    entered = set[Path]()
    root = Path(os.path.realpath(source))

    def on_error(error: OSError) -> None:
        on_bad(BadInput(_unreadable(error.filename, error)))

    for top in tops:
        for name, subfolders, names in walk(top, onerror=on_error):
            folder = Path(name)
            place = Path(os.path.realpath(name))
            if place in entered:
                subfolders.clear()
                continue
            entered.add(place)
            if folder != source and is_made(folder, names):  # no documents, though there are texts in it
                subfolders.clear()
                continue
            if _is_beir(names, subfolders):  # its queries and judgements are no documents
                names = [file for file in names if file.startswith("corpus.jsonl")]
                subfolders.remove("qrels")
            if {"state.json", "dataset_info.json"}.issubset(names):  # saved by `datasets`
                names = _data_files(folder / "state.json", names)
            shown = sorted(subfolder for subfolder in subfolders if not subfolder.startswith("."))
            subfolders[:] = filter(_is_text, shown)
            for subfolder in shown:
                if not _is_text(subfolder):
                    on_bad(_misnamed(folder / subfolder))
            for link in (folder / subfolder for subfolder in subfolders):
                target = Path(os.path.realpath(link))
                if not link.is_symlink() or target in entered:
                    continue
                if target in place.parents or target in root.parents:
                    circle = f"{link} is a link to {target}, a folder that contains it; remove the link"
                    on_bad(BadInput(circle))
                else:
                    tops.append(link)
            for file in names:
                if file.startswith((".", "~$")):  # ~$: the lock file of an office program
                    continue
                path = folder / file
                try:
                    if url_of(path) or (path.is_file() and not _leads_beside(path, place, names)):
                        yield path
                except OSError as error:
                    on_bad(BadInput(_unreadable(path, error)))


def _leads_beside(path: Path, folder: Path, names: Sequence[str]) -> bool:
    """Is it a link to a file of the same kind beside it, which is read itself?"""
    if not path.is_symlink():
        return False
    target = Path(os.path.realpath(path))
    is_shown = target.name in names and not target.name.startswith(".")
    return target.parent == folder and is_shown and target.suffix.lower() == path.suffix.lower()


def _is_beir(names: Sequence[str], subfolders: Sequence[str]) -> bool:
    """Does a folder hold a dataset in the form of BEIR?"""
    plain = {name.removesuffix(ending) for name in names for ending in ("", *DECOMPRESS)}
    return plain.issuperset({"corpus.jsonl", "queries.jsonl"}) and "qrels" in subfolders


def _data_files(state: Path, names: Sequence[str]) -> list[str]:
    """Of a dataset's folder, the files with the data: beside them may lie what was made of them since."""
    try:
        with open_file(state) as stream:
            listed = {file["filename"] for file in json.loads(stream.read(LARGEST))["_data_files"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return list(names)
    return [name for name in names if name in listed]


def _is_text(name: str) -> bool:
    """Is a file's name text, or are there bytes in it that are not UTF-8?"""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _misnamed(path: Path) -> BadInput:
    shown = os.fsencode(path).decode(errors="backslashreplace")
    return BadInput(f"{shown} has a name that is not UTF-8; rename it")


def _unreadable(path: str | Path, error: OSError) -> str:
    return f"{shown(path)} cannot be read ({error.strerror})"


def _source_file(path: Path, base: Path, *, named: bool = False) -> SourceFile | None:
    """A file to read, None if it is of no known kind. One without an ending is text if it was `named` or is
    called as texts are."""
    suffix = path.suffix.lower()
    compression = suffix if suffix in DECOMPRESS else ""
    stem = Path(path.stem if compression else path.name)
    kind = stem.suffix.lower()
    if not kind and (named or stem.name.upper() in _TEXTS.split()):
        kind = ".txt"
    name = Path(os.path.abspath(path)).relative_to(base).as_posix()
    known = kind in READERS or (named and kind in NAMED)
    return SourceFile(path, name, kind, compression) if known else None


def _kinds() -> str:
    return f"{' '.join(READERS)}, each also with {' '.join(DECOMPRESS)}"
