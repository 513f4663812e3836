"""Passages with their vectors as Arrow's tables, for Lance and Parquet."""

from typing import Any

from realmlm.errors import require
from realmlm.index.shared import Batch


def _arrow() -> Any:
    return require("pyarrow", extra="parquet", why="a table of vectors")


def schema_of(dim: int) -> Any:
    """The columns, with vectors of so many numbers."""
    arrow = _arrow()
    texts = [(name, arrow.string()) for name in ("title", "text", "source")]
    return arrow.schema([("id", arrow.int64()), *texts, ("vector", arrow.list_(arrow.float32(), dim))])


def columns_of(batch: Batch) -> Any:
    """Some passages as a record batch."""
    arrow = _arrow()
    dim = batch.vectors_ND.shape[1]
    vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(batch.vectors_ND.ravel()), dim)
    columns = [arrow.array(batch.ids, arrow.int64())]
    columns += [arrow.array(texts, arrow.string()) for texts in (batch.titles, batch.texts, batch.sources)]
    return arrow.RecordBatch.from_arrays([*columns, vectors], schema=schema_of(dim))
