"""Files of one record per line: a regular expression with named groups, or JSON objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from secrets import token_hex
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.engine.session import session
from storage_core.foreign_text import fitted
from storage_core.ingest.convert import CONVERSION, RowFormat
from storage_core.ingest.json_digits import marked, unmarked, without_exponent
from storage_core.ingest.json_maps import is_json_map, map_column
from storage_core.ingest.json_parts import MOST_PARTS, TOO_MANY, has_too_many, parts_of
from storage_core.ingest.lines import LineBlock, read_lines
from storage_core.ingest.rejection import Parsed, Records, RejectedLine, convert_or_reject, not_text
from storage_core.rows.vectors import is_vector

NO_MATCH = "the line does not match the pattern"

# Why each line is no record (null where it is one), and the fields, as text, of those that are.
Fields = tuple[pa.StringArray, pa.Table]

# Steps and memory in proportion to the line: it may repeat a name millions of times.
_WHY_NO_OBJECT = """
    SELECT CASE WHEN NOT json_valid(line) THEN 'the line is not valid JSON'
                WHEN json_type(line) <> 'OBJECT' THEN 'the line is not a JSON object'
                WHEN len(json_keys(line)) > len($names) OR NOT list_has_all($names, json_keys(line))
                     OR len(list_distinct(json_keys(line))) < len(json_keys(line)) THEN 'misnamed'
           END FROM lines
"""
# A part takes about as much memory as so many values of a column.
_CELLS_PER_PART = 4
_FIELDS = "SELECT json_keys(line) FROM lines"
_LONGEST_NAME = 100
_MARK_BYTES = 8


def pattern_blocks(
    file: str, stream: BinaryIO, target: RowFormat, *, pattern: str, block_bytes: int
) -> Iterator[Parsed]:
    """Yield the lines that match `pattern`, fields taken from its named groups, which may nest.

    A group that takes no part in a match is empty text. Raises `InvalidInput` when a group is no column.
    """

    def capture(lines: pa.StringArray) -> Fields:
        groups = pc.extract_regex(lines, pattern=pattern)
        matched = groups.is_valid()
        reasons = pc.if_else(matched, pa.scalar(None, pa.string()), NO_MATCH)
        return reasons, pa.Table.from_struct_array(groups.filter(matched))

    columns = len(target.schema)
    for block in read_lines(stream, block_bytes):
        for piece in block.pieces(np.full(len(block.numbers), columns, np.int64)):
            yield _parsed(file, piece, capture, target)


def ndjson_blocks(file: str, stream: BinaryIO, target: RowFormat, *, block_bytes: int) -> Iterator[Parsed]:
    """Yield the lines that are JSON objects whose fields are columns of the table.

    A nested value is its JSON text; a missing field and a JSON null are null. The text of a number is the one that was
    written; one with an exponent is a decimal if it is exactly one of the column's. An object is a map of text.
    """
    columns = len(target.schema)
    for block in read_lines(stream, block_bytes):
        for piece in block.pieces(_CELLS_PER_PART * parts_of(block.text) + columns):
            yield _parsed(file, piece, lambda lines: _json_fields(lines, target), target)


def _parsed(
    file: str,
    block: LineBlock,
    fields_of: Callable[[pa.StringArray], Fields],
    target: RowFormat,
) -> Parsed:
    reasons, fields = fields_of(block.text)
    whole = reasons.is_null()
    is_whole = np.asarray(whole)
    broken = [
        RejectedLine(file, int(block.numbers[index]), reasons[int(index)].as_py(), block.text[int(index)].as_py())
        for index in np.flatnonzero(~is_whole)
    ]
    lines = block.text if not broken else block.text.filter(whole)
    records = Records(file, fields, block.numbers[is_whole], lambda index: str(lines[index]))
    return convert_or_reject(records, target).and_rejected([*broken, *not_text(file, block.not_text)])


def _json_fields(lines: pa.StringArray, target: RowFormat) -> Fields:
    large = [
        index for index in np.flatnonzero(parts_of(lines) >= MOST_PARTS) if has_too_many(lines[int(index)].as_py())
    ]
    if not large:
        return _fields_of(lines, target)
    fits = np.ones(len(lines), np.bool_)
    fits[large] = False
    reasons, fields = _fields_of(lines.filter(pa.array(fits)), target)
    every = pc.replace_with_mask(pa.array([TOO_MANY] * len(lines)), pa.array(fits), reasons)
    return every, fields


def _fields_of(lines: pa.StringArray, target: RowFormat) -> Fields:
    names = target.schema.names
    # JSON pointers, because a field name may hold the characters that a JSON path gives a meaning to.
    pointers = ["/" + name.replace("~", "~0").replace("/", "~1") for name in names]
    chosen = ", ".join(f"{_chosen(index + 1, field)} AS c{index}" for index, field in enumerate(target.schema))
    with session(CONVERSION, threads=1) as connection:
        connection.register("lines", pa.table({"line": lines}))
        table = connection.sql(_WHY_NO_OBJECT, params={"names": names}).to_arrow_table()
        reasons = table.column(0).combine_chunks()
        misnamed = pc.fill_null(pc.equal(reasons, "misnamed"), fill_value=False)
        if pc.any(misnamed).as_py():
            connection.register("lines", pa.table({"line": lines.filter(misnamed)}))
            fields = connection.sql(_FIELDS).to_arrow_table().column(0)
            columns = pa.array(names, pa.string())
            named = pa.array([_misnamed(each.values, columns) for each in fields], pa.string())
            reasons = pc.replace_with_mask(reasons.cast(pa.string()), misnamed, named)
        mark = token_hex(_MARK_BYTES)
        connection.register("objects", pa.table({"line": marked(lines.filter(reasons.is_null()), mark)}))
        fields = connection.sql(
            # `chosen` is made of column numbers only.
            f"SELECT {chosen} FROM (SELECT line, $nulls AS nulls, $pointers AS pointers, "  # noqa: S608
            "json_extract_string(line, $pointers) AS found FROM objects)",
            params={"pointers": pointers, "nulls": ["", *target.null_values]},
        ).to_arrow_table()
    columns = [
        without_exponent(column) if pa.types.is_decimal(field.type) else column
        for field, column in zip(target.schema, (unmarked(each, mark) for each in fields.columns), strict=True)
    ]
    return _with_maps(reasons.cast(pa.string()), pa.Table.from_arrays(columns, names=names), target)


def _chosen(number: int, field: pa.Field) -> str:
    """The value of a field as text; where a vector belongs, text stays in its quotes, so that it is not read as one."""
    found = f"found[{number}]"
    if not is_vector(field.type):
        return found
    is_text = f"json_type(line, pointers[{number}]) = 'VARCHAR' AND NOT list_contains(nulls, {found})"
    return f"CASE WHEN {is_text} THEN to_json({found})::VARCHAR ELSE {found} END"


def _misnamed(fields: pa.StringArray, names: pa.StringArray) -> str:
    """Why the fields of an object are not columns, each once: the first that is none, else one that comes twice."""
    known = pc.is_in(fields, value_set=names)
    if not pc.all(known).as_py():
        return f"the field {_name(fields[pc.index(known, False).as_py()])} is not a column of the table"
    counted = pc.value_counts(fields)
    twice = pc.index(pc.greater(counted.field("counts"), 1), True).as_py()
    return f"the field {_name(counted.field('values')[twice])} is given twice"


def _name(field: pa.StringScalar) -> str:
    return fitted(field.as_py(), _LONGEST_NAME)


def _with_maps(reasons: pa.StringArray, fields: pa.Table, target: RowFormat) -> Fields:
    """Make those columns maps that are some, and leave out the rows that have none there."""
    wrong: list[str | None] = [None] * fields.num_rows
    for index, field in enumerate(target.schema):
        if is_json_map(field.type):
            maps, why = map_column(fields.column(index), field, target)
            fields = fields.set_column(index, field.name, maps)
            wrong = [first or then for first, then in zip(wrong, why, strict=True)]
    if not any(wrong):
        return reasons, fields
    found = pa.array(wrong, pa.string())
    return pc.replace_with_mask(reasons, reasons.is_null(), found), fields.filter(found.is_null())
