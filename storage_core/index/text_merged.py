"""Several full-text segments as one: tantivy merges its files, no text is read again (decision 0122).

Only `_row` says which row a document is, in a file of its own. That file is written anew for the rows that the
documents have in the merged segment; all others are the bytes that were there.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from storage_core.index import native_errors, text_files, text_tokenizers
from storage_core.index.covering import Renumbered
from storage_core.index.fulltext import tantivy_schema
from storage_core.index.text_composed import compose
from storage_core.index.text_files import META, ROW_FIELD
from storage_core.rows.keys import Positions
from storage_core.scratch import scratch_folder
from storage_core.settings.index import IndexDefinition

if TYPE_CHECKING:
    import tantivy


_HEAP_BYTES = 1_000_000_000  # an upper bound, as of `fulltext`: a writer that fills it makes two segments
_AT_ONCE = 100_000


def merge(parts: Sequence[Renumbered], definition: IndexDefinition) -> dict[str, bytes]:
    """Return the files of one segment over the rows of several, each with the new number of each of its rows.

    Numbers are those of all rows of the parts, each once. Tantivy makes one segment of those that are alike in size,
    and leaves others beside it. Memory: the files twice, and 40 bytes per row of one part; scratch files take as much.
    Raises `Corrupt` for a document that names no row of its part, or one that another names.
    """
    size = sum(len(data) for files, _ in parts for data in files.values())
    what = f"merged full-text segment of index {definition.name!r}"
    with native_errors.writing(what, room_bytes=2 * size), scratch_folder("fulltext") as root:
        directories = [_unpacked(root / f"part-{number}", files) for number, (files, _) in enumerate(parts)]
        target = root / "whole"
        compose(directories, target, definition)
        for directory, (_, rows) in zip(directories, parts, strict=True):
            _renumber(directory, target, rows, definition, scratch=root / "rows")
        _merge(target, definition)
        found = text_files.read_meta(target, definition)
        names = [name for each in found for name in text_files.names_of(each)]
        return {META: text_files.meta_of(found, definition).encode()} | {
            name: (target / name).read_bytes() for name in names
        }


def _unpacked(directory: Path, files: Mapping[str, bytes | memoryview]) -> Path:
    directory.mkdir()
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return directory


def _renumber(directory: Path, target: Path, rows: Positions, definition: IndexDefinition, *, scratch: Path) -> None:
    """Give the documents of one part, linked into `target`, their new rows."""
    import tantivy

    searcher = tantivy.Index.open(str(directory)).searcher()
    own = text_files.read_meta(directory, definition)
    named = [_rows_of(searcher, ordinal, count) for ordinal, count in enumerate(own.values())]
    every = np.concatenate([np.zeros(0, np.int64), *named])
    if not np.array_equal(np.sort(every), np.arange(len(rows))):
        raise text_files.corrupt(directory.name, f"its documents do not name its {len(rows)} rows once each")
    for segment, numbers in zip(own, named, strict=True):
        scratch.mkdir()
        _write_rows(scratch, rows[numbers], definition)
        (written,) = scratch.glob("*.fast")
        linked = target / next(name for name in text_files.names_of(segment) if name.endswith(".fast"))
        linked.unlink()  # a link: what is written over it would be the part's own
        shutil.move(written, linked)
        shutil.rmtree(scratch)


def _rows_of(searcher: tantivy.Searcher, ordinal: int, count: int) -> Positions:
    """The row that each document of a tantivy segment names, -1 for none."""
    import tantivy

    def values() -> Iterator[Positions]:
        for start in range(0, count, _AT_ONCE):
            addresses = [tantivy.DocAddress(ordinal, each) for each in range(start, min(count, start + _AT_ONCE))]
            found = searcher.fast_field_values(ROW_FIELD, addresses)
            yield np.array([each if isinstance(each, int) and each < 2**62 else -1 for each in found], np.int64)

    return np.concatenate([np.zeros(0, np.int64), *values()])


def _write_rows(directory: Path, rows: Positions, definition: IndexDefinition) -> None:
    """Write an index of documents that have a row each, and nothing else."""
    import tantivy

    schema = tantivy_schema(definition)
    writer = tantivy.Index(schema, path=str(directory), reuse=False).writer(heap_size=_HEAP_BYTES, num_threads=1)
    # tantivy takes one document object at a time, as when a segment is built; these have no text.
    for row in rows.tolist():
        document = tantivy.Document()
        document.add_unsigned(ROW_FIELD, row)
        writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()


def _merge(directory: Path, definition: IndexDefinition) -> None:
    """Have tantivy merge what its own policy puts together: at least eight segments of about one size."""
    import tantivy

    index = tantivy.Index.open(str(directory))
    text_tokenizers.register(index, definition)
    writer = index.writer(heap_size=_HEAP_BYTES, num_threads=1)
    writer.commit()
    writer.wait_merging_threads()
