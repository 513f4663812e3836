"""`realmlm export vectors`: passages with their vectors where other systems read them."""

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from realmlm.corpus.store import Corpus
from realmlm.device import pick_device
from realmlm.errors import ArtefactMissing, Mismatch, require
from realmlm.index.arrow import columns_of, schema_of
from realmlm.index.keep import Kept, sample_queries
from realmlm.index.shared import Batch, Change, SharedPlace, State, batches, open_shared, write_shared
from realmlm.index.store import index_info
from realmlm.log import Progress, counted, progress
from realmlm.model.realm import Realm
from realmlm.model.snapshot import DocumentEncoder
from realmlm.reading.retrieve import check_readable, embed_queries, index_of
from realmlm.settings import ExportVectors
from realmlm.storage.artefacts import fsync_file, refuse_existing


def export_vectors(settings: ExportVectors) -> str:
    """Write the passages of a corpus and the vectors of its index; says what was made."""
    system, address = settings.to
    place = None if system == "parquet" else SharedPlace(system, address)
    if place is not None:
        place.open().check()  # before the work: can it be done at all?
    else:
        require("pyarrow", extra="parquet", why="a Parquet file")
        refuse_existing(Path(address))
    realm = Realm.from_pretrained(settings.model, device=pick_device(settings.device))
    opened = Corpus.open(settings.corpus)
    check_readable(realm, opened, name=str(settings.model))
    if place is not None and not settings.anew and (held := _taken_up(place, realm, opened, settings.index)):
        return held
    kept = index_of(realm, opened, path=settings.index, follow=True)
    corpus = kept.corpus
    state = State(
        weights=DocumentEncoder.of(realm).fingerprint,
        corpus=corpus.fingerprint,
        corpus_edits=corpus.edits,
        corpus_state=corpus.state,
        dim=kept.index.dim,
        dtype=str(kept.index.dtype).removeprefix("torch."),
    )
    made = f"{place or address}: {counted(len(corpus), 'passage')}, {state.dim} numbers each"
    queries_QD = embed_queries(realm, sample_queries(corpus)) if place else None
    with progress("writing", len(corpus), unit="passages") as bar:
        given = _counted(batches(corpus, corpus.ids, kept.index), bar)
        if place is None or queries_QD is None:
            _write_parquet(Path(address), given, state)
            return made
        state = write_shared(
            place, given, state, queries_QD=queries_QD, truth=kept.index, since=lambda done: since(kept, done)
        )
    measured = "the worse of 1 and 8 hits, for queries made of a quarter of the words of sentences"
    return f"{made}; recall against exact search {state.recall:.3f}, {measured}"


def _taken_up(place: SharedPlace, realm: Realm, corpus: Corpus, index: Path | None) -> str:
    """Write what a table lacks of edits, and say so; "": there is none of this corpus by this model."""
    encode = DocumentEncoder.of(realm)
    try:
        before = place.open().state()
        if (before.weights, before.corpus) != (encode.fingerprint, corpus.fingerprint):
            return ""
        if index is not None and index_info(index).dtype != before.dtype:
            return ""
        kept = open_shared(place, corpus, encode, follow=True)
    except (ArtefactMissing, Mismatch):  # nothing of ours, or with edits that are no more
        return ""
    edits = counted(kept.corpus.edits - before.corpus_edits, "edit")
    return f"{place}: {counted(len(kept.index), 'passage')} are there already, {edits} taken up"


def since(kept: Kept, edits: int) -> Change | None:
    """What edits of the corpus brought after the first so many, by now; None: there were none."""
    kept.follow(kept.corpus.newest())
    return Change.since(edits, kept.corpus, kept.index)


def _counted(given: Iterator[Batch], bar: Progress) -> Iterator[Batch]:
    for batch in given:
        yield batch
        bar.advance(len(batch.ids))


def _write_parquet(file: Path, given: Iterator[Batch], state: State) -> None:
    """One file, which is there when it is whole."""
    parquet = require("pyarrow.parquet", extra="parquet", why="a Parquet file")
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{uuid4().hex[:8]}.part")
    schema = schema_of(state.dim).with_metadata({"realmlm": state.to_json()})
    try:
        with parquet.ParquetWriter(temporary, schema) as writer:
            for batch in given:
                writer.write_batch(columns_of(batch).cast(schema))
        fsync_file(temporary)
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
