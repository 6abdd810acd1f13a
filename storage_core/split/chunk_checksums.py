"""Checksums of the column chunks of a split, in the metadata of its footer. That of the footer is in the log.

So a reader of a part of a split verifies that part and no more: the footer by the log's entry, each column chunk by
the footer (decision 0101). Pages have checksums of their own, but their headers have none.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from storage_core.errors import Corrupt
from storage_core.split.metadata import PREFIX

KEY: Final = PREFIX + "chunk_checksums"

_CHECKSUM: Final = np.dtype("<u8")


def entry(data: pa.Buffer, footer: pq.FileMetaData) -> dict[str, str]:
    """Return the metadata that `recorded` reads, of a file whose column chunks are in `data` where `footer` says."""
    view = memoryview(data)
    sums = [xxhash.xxh3_64_intdigest(view[start:end]) for start, end in places(footer).reshape(-1, 2).tolist()]
    return {KEY: base64.b64encode(np.array(sums, _CHECKSUM).tobytes()).decode()}


def recorded(metadata: Mapping[str, str], footer: pq.FileMetaData, path: str) -> npt.NDArray[np.uint64] | None:
    """Return the xxh3-64 of each column chunk by row group and leaf column; None where the file records none.

    Raises `Corrupt` naming `path` where they are not those of as many chunks as the footer has.
    """
    text = metadata.get(KEY)
    if text is None:
        return None
    shape = (footer.num_row_groups, footer.num_columns)
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), _CHECKSUM).reshape(shape)
    except ValueError as error:
        raise Corrupt(f"{path}: no checksums of {shape[0]} × {shape[1]} column chunks: {error}", key=path) from error


def places(footer: pq.FileMetaData, groups: Sequence[int] | None = None) -> npt.NDArray[np.int64]:
    """Return the first byte and the end of each column chunk in the file, by row group, or these, and leaf column."""
    chosen = range(footer.num_row_groups) if groups is None else groups
    metadata = [footer.row_group(group) for group in chosen]
    found = [place(group.column(index)) for group in metadata for index in range(footer.num_columns)]
    return np.array(found, np.int64).reshape(len(chosen), footer.num_columns, 2)


def place(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return the first byte and the end of a column chunk in the file. Some writers record 0 for no dictionary."""
    start = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
    return start, start + chunk.total_compressed_size
