r"""Summaries of the values of a column: bounds, a regular expression, and a fingerprint.

**Bounds** (`Statistics`). Every value is between the bounds, in the total order of `rows.codes`. The bounds are text
(`data.rows.bound_text`), because the log stores them as text (lessons 62, 64 and 66).

**Regular expressions** (`column_regex`). An anchored expression matches every value of a string column
(docs/architecture/compaction.md, "Split files"). The distinct values form a trie, and an edge of the trie ends where
the values branch. For example, `prod, production, staging` becomes `^(prod(|uction)|staging)$`. A part that would
exceed the limits below becomes `[\s\S]+`. The expression therefore always matches every value and stays short. The
texts in the expression have at most `MOST_TRANSITIONS` characters in total. The syntax of the expression has at most
about ten times `MOST_TRANSITIONS` characters. RE2, Java, Rust and Python read this syntax in the same way.

**Fingerprints** (`fingerprint_of`). A fingerprint identifies a multiset of rows, which a compaction must not change
(MC-1, MC-2, MC-4). Each cell is hashed with the name of its column. The hashes of a row's cells are summed and mixed,
and the results of all rows are summed. The order of rows and columns, the chunks and the dictionaries therefore have no
effect. A null does not change the sum, so a missing column equals a column without values. Values that are equal in the
total order have equal hashes. The zeros -0.0 and 0.0 therefore have one hash, and all NaN values have one hash. Strings
are hashed by multilinear hashing over their words (Lemire and Kaser, "Strongly universal string hashing is fast"), all
rows at once. The digest detects mistakes. The digest does not protect against an adversary and is not stored.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from storage_core.base.text import quoted
from storage_core.data.rows.bound_text import has_bounds, lower, upper
from storage_core.data.rows.codes import Mask, Unsigned, is_blob_or_text, null_mask, ordered_bits
from storage_core.data.rows.vectors import Floats, is_vector, matrix

# Bounds.

TRUNCATE_AT = 32

_FEW = 8


@dataclass(frozen=True, slots=True)
class Statistics:
    """The bounds of each column in text form, and the number of nulls of each column.

    A column without a bound on one side has no entry on that side. A bound is missing if the column has no values, if
    its type has no bounds, or if the maximum cannot be rounded up. A bound is also missing if an instant is outside of
    the years 1 to 9999. A missing entry is never used to prune.
    """

    min_values: dict[str, str] = field(default_factory=dict)
    max_values: dict[str, str] = field(default_factory=dict)
    null_counts: dict[str, int] = field(default_factory=dict)


class Running:
    """The statistics of rows that arrive in pieces. The statistics equal the result of `compute` for all rows."""

    __slots__ = ("_extremes", "_nulls")

    def __init__(self) -> None:
        self._extremes: dict[str, list[pa.Array]] = {}
        self._nulls: dict[str, int] = {}

    def add(self, table: pa.Table) -> None:
        """Add the next rows to the statistics. Every piece must have the same columns."""
        for name, column in zip(table.column_names, table.columns, strict=True):
            values, nulls = values_and_nulls(column)
            self._nulls[name] = self._nulls.get(name, 0) + nulls
            if has_bounds(values.type):
                low, high = _extremes(values)
                self._extremes.setdefault(name, []).append(pa.array([low, high], low.type))

    def result(self, truncate_at: int = TRUNCATE_AT) -> Statistics:
        """Return the statistics of all rows so far. Strings are cut after `truncate_at` code points."""
        statistics = Statistics(null_counts=dict(self._nulls))
        for name, pieces in self._extremes.items():
            low, high = _extremes(pa.chunked_array(pieces))
            for bounds, text in (
                (statistics.min_values, lower(low, truncate_at)),
                (statistics.max_values, upper(high, truncate_at)),
            ):
                if text is not None:
                    bounds[name] = text
        return statistics


def compute(table: pa.Table, truncate_at: int = TRUNCATE_AT) -> Statistics:
    """Return the statistics of every column. Strings are cut after `truncate_at` code points."""
    running = Running()
    running.add(table)
    return running.result(truncate_at)


def values_and_nulls(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, int]:
    """Return the values that occur, and the number of null rows. For a dictionary column, each value occurs once."""
    if not pa.types.is_dictionary(column.type):
        return column, column.null_count
    used: list[pa.Array] = []
    nulls = 0
    for chunk in column.chunks:
        nulls += chunk.null_count
        if chunk.dictionary.null_count:
            nulls += chunk.dictionary_decode().null_count - chunk.null_count
        used.append(_used(chunk))
    return pa.chunked_array(used, column.type.value_type), nulls


def used_values(column: pa.DictionaryArray) -> Mask:
    """Return a mask of the dictionary entries that rows use.

    Null rows use no entry. This function is several times faster than hashing the indices.
    """
    indices = (column.indices.drop_null() if column.indices.null_count else column.indices).to_numpy()
    changes = indices[1:] != indices[:-1]
    if np.count_nonzero(changes) < len(indices) // _FEW:  # in a sorted column, most neighbors are equal
        indices = np.append(indices[:1], indices[1:][np.flatnonzero(changes)])
    used = np.zeros(len(column.dictionary), np.bool_)
    used[indices.astype(np.int64)] = True
    return used


def _used(column: pa.DictionaryArray) -> pa.Array:
    """Return the dictionary values that rows use, without repetition. Null is included if a row is null."""
    if column.indices.null_count or len(column.dictionary) > len(column):
        return column.dictionary.take(pc.unique(column.indices))
    used = used_values(column)
    return column.dictionary if used.all() else column.dictionary.filter(pa.array(used))


def _extremes(values: pa.ChunkedArray) -> tuple[pa.Scalar, pa.Scalar]:
    if not pa.types.is_floating(values.type):
        bounds = pc.min_max(values.cast(pa.string()) if pa.types.is_string_view(values.type) else values)
        return bounds["min"], bounds["max"]
    if not values.null_count:  # numpy is many times faster, but its minimum and maximum are NaN if any value is NaN
        chunks = [chunk.to_numpy() for chunk in values.chunks if len(chunk)]
        ends = [end for chunk in chunks for end in (chunk.min(), chunk.max())]
        if ends and not np.isnan(ends).any():
            return pa.scalar(min(ends), values.type), pa.scalar(max(ends), values.type)
    unordered = pc.is_nan(values)
    bounds = pc.min_max(values.filter(pc.invert(unordered)))
    if not pc.any(unordered).as_py():
        return bounds["min"], bounds["max"]
    nan = pa.scalar(math.nan, values.type)
    return (bounds["min"] if bounds["min"].is_valid else nan), nan


# Regular expressions.

MOST_TRANSITIONS: Final = 128
"""The maximum number of characters from values in an expression. The log has one expression per column and split."""

MOST_PER_EDGE: Final = 64
"""The maximum number of characters on one edge of the trie.

With this limit, one long value cannot use all characters of the expression.
"""

MOST_DISTINCT: Final = 4096
"""The maximum number of distinct values. If there are more values, the expression contains only their common prefix.

More values would not fit into the limits, so it is not necessary to sort them.
"""

_ANYTHING: Final = r"[\s\S]+"
_SYNTAX: Final = re.compile(r"[\\.+*?()|\[\]{}^$]")


@dataclass(frozen=True, slots=True)
class _Edge:
    """An edge of the trie with the text `label`. The edge leads to the node of `values[low:high]`.

    These values agree in their first `depth` characters. If `cut` is True, the values of the node have a longer common
    prefix than the label of the edge shows.
    """

    label: str
    low: int
    high: int
    depth: int
    cut: bool


_Opened = dict[_Edge, list[_Edge]]


def column_regex(values: Iterable[str], most_transitions: int = MOST_TRANSITIONS) -> str | None:
    """Return the expression that matches these values. Return None if there are no values.

    Equal sets of values result in equal text, in any order of the values.
    """
    ordered = sorted(set(values))  # the order by code points equals the order by UTF-8 bytes
    if not ordered:
        return None
    root = _edge(ordered, (0, len(ordered)), 0, most_transitions)
    opened = _open(ordered, root, most_transitions - len(root.label))
    return f"^{_escaped(root.label)}{_tail(ordered, root, opened)}$"


class ColumnRegexes:
    """The regular expressions of all string columns among `names`, computed from rows that arrive in pieces.

    Each distinct value is processed once per piece, regardless of the number of rows. At most `MOST_DISTINCT` values of
    a column are stored.
    """

    __slots__ = ("_columns", "_names")

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._columns: dict[str, _Seen] = {}

    def add(self, rows: pa.Table) -> None:
        """Add the next rows."""
        for name in (each for each in rows.column_names if each in self._names):
            values, _ = values_and_nulls(rows.column(name))
            if pa.types.is_string(values.type):
                self._columns[name] = self._columns.get(name, _Seen(pa.array([], pa.string()))).and_(values)

    def result(self) -> dict[str, str]:
        """Return the expression of each column. A column without a value has no entry."""
        found = {name: seen.expression() for name, seen in self._columns.items()}
        return {name: text for name, text in found.items() if text is not None}


@dataclass(frozen=True, slots=True)
class _Seen:
    """The distinct values of a column so far. If `many` is True, only the least and the greatest value are kept."""

    values: pa.Array
    many: bool = False

    def and_(self, values: pa.ChunkedArray) -> _Seen:
        together = pa.chunked_array([self.values, *values.chunks], pa.string())
        if not self.many:
            distinct = pc.unique(together).drop_null()
            if len(distinct) <= MOST_DISTINCT:
                return _Seen(distinct)
        bounds = pc.min_max(together)
        return _Seen(pa.array([bounds["min"].as_py(), bounds["max"].as_py()]), many=True)

    def expression(self) -> str | None:
        texts = self.values.to_pylist()
        return _of_many(*texts) if self.many else column_regex(texts)


def may_match(expression: str, value: str) -> bool:
    """Return whether a column with this expression may contain the value. True if RE2 cannot read the expression."""
    try:
        return bool(pc.match_substring_regex(pa.scalar(value), expression).as_py())
    except (pa.ArrowInvalid, UnicodeEncodeError):
        return True


def mismatches(rows: pa.Table, expressions: Mapping[str, str]) -> list[str]:
    """Return one sentence for each column with a value that the column's expression does not match.

    RE2 evaluates the expressions, in linear time for every expression.
    """
    found: list[str] = []
    for name, expression in expressions.items():
        if name not in rows.column_names:
            found.append(f"column {name!r}: {expression!r} describes a column that the split does not have")
            continue
        values = pc.unique(values_and_nulls(rows.column(name))[0]).drop_null()
        try:
            lost = values.filter(pc.invert(pc.match_substring_regex(values, expression)))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
            found.append(f"column {name!r}: {expression!r} cannot be matched: {error}")
            continue
        if len(lost):
            found.append(f"column {name!r}: {expression!r} does not match {quoted(lost[0].as_py())}")
    return found


def _of_many(least: str, greatest: str) -> str:
    """Return a regular expression that matches all values between the least and the greatest value.

    The common prefix of all values is the common prefix of the least and the greatest value.
    """
    prefix = _shared(least[:MOST_PER_EDGE], greatest[:MOST_PER_EDGE])
    tail = f"(|{_ANYTHING})" if least == prefix else _ANYTHING
    return f"^{_escaped(prefix)}{tail}$"


def _open(values: Sequence[str], root: _Edge, transitions: int) -> _Opened:
    """Return the outgoing edges of each node. The labels of all edges have at most `transitions` characters in total.

    Nodes near the root come first.
    """
    opened: _Opened = {}
    waiting = deque([root])
    while waiting:
        node = waiting.popleft()
        if node.cut:
            continue
        edges = _edges(values, node, transitions)
        if edges is not None:
            transitions -= sum(len(each.label) for each in edges)
            opened[node] = edges
            waiting.extend(edges)
    return opened


def _edges(values: Sequence[str], node: _Edge, transitions: int) -> list[_Edge] | None:
    """Return the outgoing edges of a node, or None if the edges have more than `transitions` characters."""
    edges: list[_Edge] = []
    low = node.low + _ends_here(values, node)
    while low < node.high:
        first = values[low][node.depth]
        high = low + 1
        while high < node.high and values[high][node.depth] == first:
            high += 1
        edges.append(_edge(values, (low, high), node.depth, MOST_PER_EDGE))
        transitions -= len(edges[-1].label)
        if transitions < 0:
            return None
        low = high
    return edges


def _edge(values: Sequence[str], within: tuple[int, int], depth: int, most: int) -> _Edge:
    low, high = within
    most = min(most, MOST_PER_EDGE)
    ahead = slice(depth, depth + most + 1)  # one more character, to determine whether the label is cut
    shared = _shared(values[low][ahead], values[high - 1][ahead])
    label = shared[:most]
    return _Edge(label, low, high, depth + len(label), cut=len(label) < len(shared))


def _shared(a: str, b: str) -> str:
    """Return the common prefix of both texts."""
    length = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:length]


def _ends_here(values: Sequence[str], node: _Edge) -> bool:
    """Return whether the smallest value of the node has no characters after the node."""
    return len(values[node.low]) == node.depth


def _tail(values: Sequence[str], node: _Edge, opened: _Opened) -> str:
    """Return the regular expression for the remaining characters of the values that pass through a node."""
    if node.cut:
        return _ANYTHING
    edges = opened.get(node)
    rest = [_ANYTHING] if edges is None else [_escaped(each.label) + _tail(values, each, opened) for each in edges]
    choices = ["", *rest] if _ends_here(values, node) else rest
    return choices[0] if len(choices) == 1 else f"({'|'.join(choices)})"


def _escaped(text: str) -> str:
    return _SYNTAX.sub(r"\\\g<0>", text)


# Fingerprints.

_BATCH_ROWS = 65_536
_WORD = (1 << 64) - 1
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class RowFingerprint:
    """The number of rows and a 64-bit digest of their contents. Equal multisets have equal fingerprints."""

    rows: int
    digest: int


NO_ROWS = RowFingerprint(0, 0)
"""The fingerprint of no rows, which is the neutral element of `combine`."""


def fingerprint_of(table: pa.Table) -> RowFingerprint:
    """Return the fingerprint of the rows. The fingerprint covers all columns and their names.

    Cost: about 100 bytes of memory per row, for at most 65,536 rows at a time.
    """
    digest = 0
    for start in range(0, table.num_rows, _BATCH_ROWS):
        batch = table.slice(start, _BATCH_ROWS)
        digest += int(_mix(_row_hashes(batch)).sum(dtype=np.uint64))
    return RowFingerprint(table.num_rows, digest & _WORD)


def row_hashes(table: pa.Table) -> Unsigned:
    """Return a 64-bit hash per row. The hash covers all columns and column names. Equal rows have equal hashes."""
    return _mix(_row_hashes(table))


def cells(column: pa.Array) -> Unsigned:
    """Return a 64-bit hash per value, and 0 for null.

    Equal values have equal hashes, even if one of them is in a dictionary.
    """
    return _seeded(column, 0)


def combine(a: RowFingerprint, b: RowFingerprint) -> RowFingerprint:
    """Return the fingerprint of the rows of `a` and `b` together. The operation is associative and commutative."""
    return RowFingerprint(a.rows + b.rows, (a.digest + b.digest) & _WORD)


def _row_hashes(table: pa.Table) -> Unsigned:
    hashes = np.full(table.num_rows, _ODD)
    for name, column in zip(table.column_names, table.columns, strict=True):
        hashes += _cells(column, xxhash.xxh3_64_intdigest(name.encode()))
    return hashes


def _cells(column: pa.ChunkedArray, seed: int) -> Unsigned:
    """Return the hash of every cell, computed with the seed. Return 0 for null."""
    parts = [_seeded(chunk, seed) for chunk in column.chunks if len(chunk)]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


def _seeded(array: pa.Array, seed: int) -> Unsigned:
    if pa.types.is_dictionary(array.type):
        # For a slice of few rows with a large dictionary, decoding is cheaper than hashing the dictionary.
        wide = len(array.dictionary) > len(array)
        return _seeded(array.dictionary_decode(), seed) if wide else _dictionary_cells(array, seed)
    cells = _mix(_hashes(array) + np.uint64(seed))
    nulls = null_mask(pa.chunked_array([array]))
    if nulls is not None:
        cells[nulls] = 0
    return cells


def _dictionary_cells(array: pa.DictionaryArray, seed: int) -> Unsigned:
    lookup = np.append(_seeded(array.dictionary, seed), np.uint64(0))  # the last entry is for null
    positions = array.indices.fill_null(0).to_numpy().astype(np.int64)
    if array.indices.null_count:
        positions[array.indices.is_null().to_numpy(zero_copy_only=False)] = len(lookup) - 1
    cells: Unsigned = lookup[positions]
    return cells


def _hashes(array: pa.Array) -> Unsigned:
    """Return the hash of every value. The hash of a null is undefined."""
    kinds, type_ = pa.types, array.type
    if is_blob_or_text(type_):
        return _bytes_hashes(array.cast(pa.large_binary()))
    if kinds.is_decimal(type_):
        return _decimal_hashes(array.cast(pa.decimal128(38, type_.scale)))
    if kinds.is_map(type_):
        entries = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
        return _list_hashes(entries, np.asarray(array.offsets))
    if is_vector(type_):
        return _vector_hashes(matrix(array))
    if kinds.is_list(type_) or kinds.is_large_list(type_):
        return _list_hashes(array.values, np.asarray(array.offsets))
    if kinds.is_struct(type_):
        children = pa.Table.from_arrays(array.flatten(), names=[child.name for child in type_.fields])
        return _mix(_row_hashes(children)) if type_.num_fields else np.zeros(len(array), np.uint64)
    return ordered_bits(pa.chunked_array([array]))


def _bytes_hashes(array: pa.Array) -> Unsigned:
    _, offsets_buffer, data = array.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[array.offset : array.offset + len(array) + 1]
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    counts = (lengths + 7) // 8
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    inside = (np.arange(ends[-1]) - np.repeat(ends[:-1], counts)) * 8
    words = _words(data, offsets, np.repeat(starts, counts) + inside)
    rest = np.repeat(lengths, counts) - inside
    short = rest < 8
    words[short] &= (np.uint64(1) << (rest[short] * 8).astype(np.uint64)) - np.uint64(1)
    # The text "a" and the same text with a zero byte at its end give the same words. The length distinguishes the two
    # texts.
    return _mix(_sequence_hashes(_mix(words), ends) + lengths.astype(np.uint64))


def _words(data: pa.Buffer | None, offsets: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> Unsigned:
    """Return the eight bytes at each position in the values.

    The positions need not be aligned. Bytes after the last value are zeros.
    """
    first, last = int(offsets[0]), int(offsets[-1])
    padded = np.zeros(last - first + 8, np.uint8)
    if data is not None:
        padded[:-8] = np.frombuffer(data, np.uint8)[first:last]
    overlapping: Unsigned = np.ndarray(len(padded) - 7, np.dtype("<u8"), padded, strides=(1,))
    return overlapping[positions]


def _decimal_hashes(array: pa.Array) -> Unsigned:
    words = np.frombuffer(array.buffers()[1], np.uint64).reshape(-1, 2)[array.offset : array.offset + len(array)]
    return words[:, 0] + _mix(words[:, 1] + _ODD)


def _list_hashes(values: pa.Array, offsets: npt.NDArray[np.int64]) -> Unsigned:
    first, last = int(offsets[0]), int(offsets[-1])
    elements = _cells(pa.chunked_array([values.slice(first, last - first)]), seed=1)
    return _sequence_hashes(elements, (offsets - first).astype(np.int64))


def _vector_hashes(numbers: Floats) -> Unsigned:
    """Return the multilinear hash of each row's numbers, as words of 32 bits.

    All zeros are equal, and all NaN are equal.
    """
    numbers = np.where(np.isnan(numbers), np.float32(np.nan), numbers) + np.float32(0)
    coefficients = _mix(np.arange(1, numbers.shape[1] + 1, dtype=np.uint64) * _ODD) | np.uint64(1)
    return _mix((numbers.view(np.uint32).astype(np.uint64) + np.uint64(1)) @ coefficients)


def _sequence_hashes(elements: Unsigned, offsets: npt.NDArray[np.int64]) -> Unsigned:
    """Return the multilinear hash of each sequence of elements between two offsets.

    The hash is the sum of (element + 1) x coefficient, with one coefficient per position.
    """
    starts, lengths = offsets[:-1], np.diff(offsets)
    longest = int(lengths.max(initial=0))
    coefficients = _mix(np.arange(1, longest + 1, dtype=np.uint64) * _ODD) | np.uint64(1)
    places = np.arange(len(elements)) - np.repeat(starts, lengths)
    products = (elements + np.uint64(1)) * coefficients[places]
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(products, dtype=np.uint64)))
    return _mix(sums[offsets[1:]] - sums[starts] + lengths.astype(np.uint64) * _ODD)


def _mix(values: Unsigned) -> Unsigned:
    """Spread every bit over the whole word, with the finalizer of SplitMix64. Distinct words give distinct results."""
    mixed = values ^ (values >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
