"""The data file of a sorted generation: its records in key order, cut into chunks that are read by themselves.

Each chunk is an Arrow IPC stream like a data file of `formats.data_file`; the file is one behind the other. Where they
begin, their checksums and the bounds of their keys are in the generation's manifest, so that a lookup finds by binary
search which chunks may hold a key and reads only these (docs/architecture/ingestion.md, "Raw log"; decision 0054).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from storage_core.cache.pieces import NOT_CACHED, CachedPieces, Piece
from storage_core.formats import data_file
from storage_core.formats.generation_manifest import Chunk
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows import bound_text, statistics

CHUNK_RECORDS = 8192
"""Records of a chunk: some hundred KB, which a store sends about as fast as a few bytes."""

CHUNKS_AT_ONCE = 8
"""Chunks that reading one after the other asks for at once: about a page of a history (`read.history_pages`)."""


def encode(folded: pa.Table, key: Sequence[str]) -> tuple[tuple[Chunk, ...], bytes]:
    """Return the chunks of the records, which ascend by key, and the bytes of the file. At least one chunk."""
    chunks: list[Chunk] = []
    parts: list[bytes] = []
    start = 0
    for at in range(0, max(folded.num_rows, 1), CHUNK_RECORDS):
        part = folded.slice(at, CHUNK_RECORDS)
        data, bounds = data_file.encode(part), statistics.compute(part.select(key))
        chunks.append(
            Chunk(
                start=start,
                length=len(data),
                checksum=data_file.checksum(data),
                min_key=bounds.min_values,
                max_key=bounds.max_values,
            )
        )
        parts.append(data)
        start += len(data)
    return tuple(chunks), b"".join(parts)


def decode(data: bytes, chunks: Sequence[Chunk], where: str) -> pa.Table:
    """Return the records of neighbouring chunks, in order, from the bytes they take. Raises `Corrupt`."""
    begin = chunks[0].start
    parts = [
        data_file.decode(data[each.start - begin : each.start - begin + each.length], each.checksum, where)
        for each in chunks
    ]
    return pa.concat_tables(parts)


def find(
    store: ObjectStore, where: str, chunks: Sequence[Chunk], wanted: pa.Table, *, cached: CachedPieces = NOT_CACHED
) -> Iterator[pa.Table]:
    """Yield the records of every chunk that may hold a wanted key, in order. One ranged GET per run of neighbours.

    None of a run that is cached. Raises `NotFound` without the file, `Corrupt` for a damaged chunk.
    """
    run: list[Chunk] = []
    for each in _holding(chunks, wanted):
        if run and each.start != run[-1].start + run[-1].length:
            yield _read(store, where, run, cached)
            run = []
        run.append(each)
    if run:
        yield _read(store, where, run, cached)


def read_from(store: ObjectStore, where: str, chunks: Sequence[Chunk], first: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield the chunks from number `first` on, one ranged GET per `CHUNKS_AT_ONCE`. Raises what `find` raises."""
    for start in range(first, len(chunks), CHUNKS_AT_ONCE):
        run = chunks[start : start + CHUNKS_AT_ONCE]
        data = store.get_range(where, run[0].start, run[-1].start + run[-1].length)
        for number, each in enumerate(run, start):
            offset = each.start - run[0].start
            yield number, decode(data[offset : offset + each.length], [each], where)


def _read(store: ObjectStore, where: str, run: Sequence[Chunk], cached: CachedPieces) -> pa.Table:
    pieces = [Piece(each.start, each.start + each.length, each.checksum) for each in run]
    held = [each for each in cached.read(store.uri, where, "", pieces) if each is not None]
    if len(held) == len(run):
        return decode(b"".join(held), run, where)
    data = store.get_range(where, run[0].start, run[-1].start + run[-1].length)
    records = decode(data, run, where)  # which verifies them
    begin = run[0].start
    fetched = [(piece, data[each.start - begin :][: each.length]) for piece, each in zip(pieces, run, strict=True)]
    cached.write(store.uri, where, "", fetched)
    return records


def _holding(chunks: Sequence[Chunk], wanted: pa.Table) -> list[Chunk]:
    """The chunks whose bounds admit a wanted key, in order, by the first column of the key: it ascends over them."""
    column = wanted.column(0)
    lows = _bounds([each.min_key for each in chunks], wanted.column_names[0], column.type)
    highs = _bounds([each.max_key for each in chunks], wanted.column_names[0], column.type)
    if lows is None or highs is None:
        return list(chunks)
    found: set[int] = set()
    for value in column.unique().to_pylist():
        if value != value:  # noqa: PLR0124  # NaN, the greatest value, compares with nothing
            return list(chunks)
        found.update(range(bisect_left(highs, value), bisect_right(lows, value)))
    return [chunks[number] for number in sorted(found)]


def _bounds(bounds: Sequence[Mapping[str, str]], name: str, kind: pa.DataType) -> list[bound_text.Value] | None:
    """The bounds of every chunk, ascending; None where one is not bounded, or by NaN, which orders nothing."""
    texts = [each.get(name) for each in bounds]
    if any(text is None for text in texts):
        return None
    values = [bound_text.decode(text, kind) for text in texts if text is not None]
    return None if any(value != value for value in values) else values  # noqa: PLR0124
