"""Which Parquet encoding each column of a split gets: the smallest on a sample of its rows, as they will be stored.

docs/architecture/compaction.md, "Encodings are chosen". Sorting changes what is small: a series of counters wants
differences, names in order want their common beginnings left out, and a dictionary of them all only grows. Every file
records the choice, so that the merge of such files takes it over instead of measuring again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage_core.settings.split_codec import USUAL_CODEC, SplitCodec
from storage_core.split.metadata import PREFIX, json_object

ROWS_PER_PAGE: Final = 4096
"""What a lookup by page index decodes per column; smaller pages cost all other reads more (decision 0079)."""

VECTOR_PAGE_BYTES: Final = 65_536
"""What a search takes for one vector; so all pages of a file with vectors are cut."""

DICTIONARY_BYTES: Final = 65_536
"""Where a dictionary stops paying in so small a row group; Parquet's mebibyte would hold every value of a number."""

CHOSEN_DICTIONARY_BYTES: Final = 2**20
"""The same where dictionaries are chosen: so of values that come again, and texts have long ones."""

LEAST_ROWS: Final = 32_768
"""Of fewer rows that arrive a choice costs more than it saves: they are merged soon. What was chosen on fewer is no
choice for more."""

_SAMPLE_SLICES: Final = 4
_SAMPLE_ROWS: Final = ROWS_PER_PAGE
_WORTH_BYTES: Final = 0.25
"""What a string has to save to leave its dictionary, which a merge never decodes: several times the speed."""

_KEY: Final = "encodings"


class Encoding(StrEnum):
    """How the values of a column are written. `BYTE_STREAM_SPLIT` is none of them: Spark 4.2 cannot read it."""

    DICTIONARY = "DICTIONARY"
    PLAIN = "PLAIN"
    DELTA_BINARY_PACKED = "DELTA_BINARY_PACKED"
    DELTA_BYTE_ARRAY = "DELTA_BYTE_ARRAY"
    DELTA_LENGTH_BYTE_ARRAY = "DELTA_LENGTH_BYTE_ARRAY"


Encodings = Mapping[str, Encoding]
"""The choice per column; a column without one is written as Parquet's writers do, by dictionary while that is small."""


def candidates(type_: pa.DataType) -> tuple[Encoding, ...]:
    """Return the encodings to try for values of this type, the dictionary first; none where there is no choice.

    Those of booleans and of nested columns are Parquet's.
    """
    kinds = pa.types
    if kinds.is_dictionary(type_):
        return candidates(type_.value_type)
    always = (Encoding.DICTIONARY, Encoding.PLAIN)
    if kinds.is_integer(type_) or kinds.is_date(type_) or kinds.is_timestamp(type_):
        return (*always, Encoding.DELTA_BINARY_PACKED)
    if kinds.is_string(type_) or kinds.is_binary(type_):
        return (*always, Encoding.DELTA_LENGTH_BYTE_ARRAY, Encoding.DELTA_BYTE_ARRAY)
    return always if kinds.is_floating(type_) or kinds.is_decimal(type_) else ()


def choose(rows: pa.Table, total_rows: int, codec: SplitCodec = USUAL_CODEC) -> dict[str, Encoding]:
    """Return the encoding that is the smallest per column when `total_rows` rows like these are written in this order.

    Measured with the codec on 4 slices of a page each, each column by itself; 1 to 4 encodings of each. A dictionary is
    charged for as many rows as there are, by how its number of values grows over the sample; one of strings may take
    a quarter of a byte per row more than the smallest, from `LEAST_ROWS` rows on.
    """
    slices = _slices(rows)
    chosen: dict[str, Encoding] = {}
    for name in rows.column_names:
        tried = candidates(rows.schema.field(name).type)
        if tried:
            parts = [_plain(rows.column(name).slice(start, count)) for start, count in slices]
            chosen[name] = _smallest(parts, tried, total_rows, codec)
    return chosen


def inherited(inputs: Sequence[tuple[int, Mapping[str, str]]], schema: pa.Schema) -> dict[str, Encoding] | None:
    """Return the choice that most rows of the inputs were written with, given as (rows, metadata of the file).

    None, for a choice anew, where files of half the rows or more recorded none or have less than `LEAST_ROWS`, or none
    of them has a column that has one. A record of another release that names an unknown encoding counts as none.
    """
    votes: dict[str, dict[Encoding, int]] = {}
    voting = 0
    for rows, metadata in inputs:
        choice = recorded(metadata) if rows >= LEAST_ROWS else {}
        voting += rows if choice else 0
        for name, encoding in choice.items():
            ballot = votes.setdefault(name, {})
            ballot[encoding] = ballot.get(encoding, 0) + rows
    wanted = [field.name for field in schema if candidates(field.type)]
    if 2 * voting <= sum(rows for rows, _ in inputs) or any(name not in votes for name in wanted):
        return None
    # the name settles a tie, so that the same inputs give the same file
    return {name: max(votes[name], key=lambda each: (votes[name][each], each.value)) for name in wanted}


def record(encodings: Encodings, rows: int) -> dict[str, str]:
    """Return the key-value metadata that `recorded` reads; nothing for no choice, or one that no merge would take."""
    if not encodings or rows < LEAST_ROWS:
        return {}
    return {PREFIX + _KEY: json.dumps(dict(encodings), sort_keys=True, ensure_ascii=False, separators=(",", ":"))}


def recorded(metadata: Mapping[str, str]) -> dict[str, Encoding]:
    """Return the choice that a file records; empty when it records none, or none that this release knows."""
    try:
        found = json_object(metadata, _KEY) or {}
        return {name: Encoding(value) for name, value in found.items()}
    except (ValueError, RecursionError):
        return {}


def by_dictionary(encodings: Encodings, name: str) -> bool:
    """Whether the column is written by dictionary, and is thus best read and taken as one."""
    return encodings.get(name, Encoding.DICTIONARY) is Encoding.DICTIONARY


def _slices(rows: pa.Table) -> list[tuple[int, int]]:
    """Evenly spread pieces of a page each, as (start, rows); everything where that is less."""
    if rows.num_rows <= _SAMPLE_SLICES * _SAMPLE_ROWS:
        return [(0, rows.num_rows)]
    starts = np.linspace(0, rows.num_rows - _SAMPLE_ROWS, _SAMPLE_SLICES).astype(np.int64)
    return [(int(start), _SAMPLE_ROWS) for start in starts]


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _smallest(
    parts: Sequence[pa.ChunkedArray], tried: Sequence[Encoding], total_rows: int, codec: SplitCodec
) -> Encoding:
    sample = pa.chunked_array([chunk for part in parts for chunk in part.chunks], parts[0].type)
    growth = _growth(parts, sample) if total_rows > len(sample) else 0.0
    factor = max(1.0, total_rows / max(1, len(sample)))
    sizes = {encoding: _estimate(_measured(sample, encoding, codec), factor, growth) for encoding in tried}
    if pa.types.is_string(sample.type) and total_rows >= LEAST_ROWS:
        sizes[Encoding.DICTIONARY] -= _WORTH_BYTES * total_rows
    return min(tried, key=lambda encoding: sizes[encoding])


def _growth(parts: Sequence[pa.ChunkedArray], sample: pa.ChunkedArray) -> float:
    """The exponent by which the number of distinct values grows with the rows (Heaps' law): 0 none, 1 in step."""
    every_other = pa.chunked_array([chunk for part in parts[::2] for chunk in part.chunks], sample.type)
    half, whole = (max(1, int(pc.count_distinct(each).as_py())) for each in (every_other, sample))
    return min(1.0, max(0.0, math.log(whole / half) / math.log(max(2.0, len(sample) / max(1, len(every_other))))))


def _measured(sample: pa.ChunkedArray, encoding: Encoding, codec: SplitCodec) -> pq.ColumnChunkMetaData:
    by_dictionary = encoding is Encoding.DICTIONARY
    collected: list[pq.FileMetaData] = []
    pq.write_table(
        pa.table([sample], names=["c"]),
        pa.BufferOutputStream(),
        compression=codec.name,
        compression_level=codec.effective_level,
        use_dictionary=by_dictionary,
        column_encoding=None if by_dictionary else {"c": encoding.value},
        max_rows_per_page=ROWS_PER_PAGE,
        dictionary_pagesize_limit=CHOSEN_DICTIONARY_BYTES,
        write_statistics=False,
        store_schema=False,
        metadata_collector=collected,
    )
    return collected[0].row_group(0).column(0)


def _estimate(column: pq.ColumnChunkMetaData, factor: float, growth: float) -> float:
    """The compressed bytes of `factor` times the sample, of which the dictionary grows by the power `growth`."""
    dictionary = column.data_page_offset - column.dictionary_page_offset if column.has_dictionary_page else 0
    pages = cast("int", column.total_compressed_size) - dictionary
    return float(dictionary * factor**growth + pages * factor)
