"""Records of a raw log whose fields are written plainly, typed column by column: no step per record.

This is `raw_log.read.one_by_one` for those records that it surely takes as they are (`raw_log.plain_form`); it knows no
reason to reject one, and leaves to the other whatever it is not sure of.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from storage_core.formats.raw_chunk import OPERATIONS
from storage_core.raw_log.plain_form import TAGGED, RowForm, row_form
from storage_core.rows.codes import Mask
from storage_core.rows.fold import FIELDS, OPERATION, field_lists, record_schema
from storage_core.rows.vectors import faults, fitting, is_vector

_TAG = '{"$'


@dataclass(frozen=True, slots=True)
class PlainRecords:
    """Which of the records given are plain, and these under `rows.fold.record_schema`, in order."""

    positions: npt.NDArray[np.int64]
    records: pa.Table


def plain_records(
    records: pa.Table, schema: pa.Schema, key: Sequence[str], nonzero: Collection[str] = ()
) -> PlainRecords:
    """Return the records that are plain and have what the schema requires; `raw_log.read.one_by_one` takes the rest.

    `records` has the columns `RECORD_COLUMNS`. Time: two looks at every byte. Memory: the text and the columns.
    """
    form = row_form(schema)
    nothing = PlainRecords(np.zeros(0, np.int64), record_schema(schema).empty_table())
    if form is None:
        return nothing
    matched = np.flatnonzero(_matching(records.column("fields"), form))
    found = records if len(matched) == records.num_rows else records.take(pa.array(matched))
    read = _read(found, form)
    if read is None:
        # Somewhere a name is given twice. These are rare, and looking for them costs as much as all the rest.
        once = _named_once(found, form)
        matched, found = matched[once], found.filter(pa.array(once))
        read = _read(found, form)
    if read is None:
        return nothing
    kept = _complete(found, read, schema, key) & _with_vectors(read, schema, nonzero)
    rows = read.filter(pa.array(kept)) if not kept.all() else read
    found = found.filter(pa.array(kept)) if not kept.all() else found
    return PlainRecords(matched[kept], _assembled(found, rows, form, schema))


def _matching(texts: pa.ChunkedArray, form: RowForm) -> Mask:
    try:
        matching = pc.and_(pc.match_substring_regex(texts, form.pattern), pc.ends_with(texts, "}"))
    except pa.ArrowInvalid:  # a table of so many columns that the expression is too large
        return np.zeros(len(texts), np.bool_)
    return _as_mask(matching)


def _read(records: pa.Table, form: RowForm) -> pa.Table | None:
    """The fields as Arrow reads them; None when it refuses, which of plain ones it does for a name given twice."""
    texts = records.column("fields").combine_chunks()
    if not len(texts):
        return form.reading.empty_table()
    if pc.any(pc.match_substring(texts, _TAG)).as_py():
        # Most producers tag all values of a column, and taking tags out of the text costs as much as reading it.
        tagged = _parsed(texts, form.reading_tagged)
        if tagged is not None:
            return _untagged(tagged)
        texts = pc.replace_substring_regex(texts, TAGGED, r"\1")
    return _parsed(texts, form.reading)


def _parsed(texts: pa.StringArray, schema: pa.Schema) -> pa.Table | None:
    lines = pc.binary_join_element_wise(texts, "", "\n")
    data = lines.buffers()[2].slice(0, pc.sum(pc.binary_length(lines)).as_py())
    try:
        return pj.read_json(
            pa.BufferReader(data),
            read_options=pj.ReadOptions(use_threads=False, block_size=data.size + 1),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
        )
    except pa.ArrowInvalid:
        return None


def _untagged(read: pa.Table) -> pa.Table:
    columns = [pc.struct_field(each, [0]) if pa.types.is_struct(each.type) else each for each in read.columns]
    return pa.Table.from_arrays(columns, names=read.column_names)


def _named_once(records: pa.Table, form: RowForm) -> Mask:
    texts = records.column("fields")
    twice = np.zeros(len(texts), np.bool_)
    for name in form.values:
        twice |= _as_mask(pc.greater(pc.count_substring(texts, _named(name)), 1))
    return ~twice


def _complete(records: pa.Table, read: pa.Table, schema: pa.Schema, key: Sequence[str]) -> Mask:
    """Which records have a value where one is required; a delete only needs those of the key, and names no null."""
    complete = np.ones(records.num_rows, np.bool_)
    for field in schema:
        if field.nullable and field.name not in key:
            continue
        absent = (
            _as_mask(read.column(field.name).is_null()) if field.name in read.column_names else ~np.zeros_like(complete)
        )
        if field.name not in key and absent.any():
            named = pc.match_substring(records.column("fields"), _named(field.name))
            absent &= _as_mask(pc.or_(pc.not_equal(records.column("operation"), "delete"), named))
        complete &= ~absent
    return complete


def _with_vectors(read: pa.Table, schema: pa.Schema, nonzero: Collection[str]) -> Mask:
    """Which records have a vector, or none, in each column of vectors: the expression says nothing of their size."""
    sound = np.ones(read.num_rows, np.bool_)
    for field in schema:
        if is_vector(field.type) and field.name in read.column_names and not pa.types.is_null(read[field.name].type):
            fits = np.flatnonzero(sound & fitting(read[field.name], field.type.list_size))
            column = read[field.name].take(pa.array(fits)).cast(field.type)
            sound[:] = False
            sound[fits] = True
            for _, wrong in faults(column, nonzero=field.name in nonzero):
                sound[fits[wrong]] = False
    return sound


def _assembled(records: pa.Table, read: pa.Table, form: RowForm, schema: pa.Schema) -> pa.Table:
    target = record_schema(schema)
    operations = pc.index_in(records.column("operation"), pa.array(OPERATIONS)).cast(target.field(OPERATION).type)
    columns = [
        form.values[field.name].finish(read.column(field.name))
        if field.name in form.values
        else pa.nulls(records.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays([operations, _given(records, form, target), *columns], schema=target)


def _given(records: pa.Table, form: RowForm, target: pa.Schema) -> pa.Array:
    """What each patch names. No value of a map is plain, so none is merged: each column named is replaced."""
    patches = np.flatnonzero(_as_mask(pc.equal(records.column("operation"), "patch")))
    texts = records.column("fields").take(pa.array(patches))
    named = [(name, _as_mask(pc.match_substring(texts, _named(name)))) for name in target.names if name in form.values]
    return field_lists(records.num_rows, patches, named, target.field(FIELDS).type)


def _named(name: str) -> str:
    """A name in its place: in a text a quote would have a backslash before it."""
    return f'"{name}":'


def _as_mask(column: pa.Array | pa.ChunkedArray) -> Mask:
    return np.asarray(column, np.bool_)
