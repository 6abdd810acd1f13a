"""Independent readers that share no code with the product and return the expected rows of a landed file.

Python's own modules read JSON and CSV, `fastavro` reads Avro, DuckDB and Arrow read Parquet, and Arrow reads Arrow.
The following rules belong to landing and not to the formats:

- A JSON file is a sequence of values. The elements of an array are records, and a record must be an object.
- A JSON object must not contain a name twice. The header of a CSV file must not contain a column name twice. A CSV
  record must have as many fields as the header.
- An empty field of CSV is null or empty text.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import fastavro
import pyarrow as pa

from scripts.compare_foreign_files import by_duckdb, by_parquet_of_arrow, by_pyarrow, plain_texts
from storage_core.write.ingest.landing import Dialect

VALUE, REST = "v", "rest"
"""The columns of a table for JSON files: the field `v`, and an object with all other fields."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The content of a file, as read by an independent second reader.

    - `rows`: the rows, in the order of the file. None if the reader cannot read the whole file.
    - `rejected`: the number of records that cannot be rows.
    """

    rows: Sequence[Any] | None
    rejected: int = 0


UNREADABLE: Final = Expected(None)


@dataclass(frozen=True, slots=True)
class Number:
    """A JSON number with its original digits."""

    text: str


Members = tuple[tuple[str, Any], ...]
"""A JSON object, with names that may repeat."""


@dataclass(frozen=True, slots=True)
class JsonRow:
    """The row of a JSON object: the value of the field `v`, and the other fields that are not null."""

    value: Any
    rest: Mapping[str, Any]

    def is_landed_as(self, row: Mapping[str, str | None]) -> bool:
        """Return True if the table row `row` has the values of this expected row."""
        rest = row[REST]
        return _is_same(row[VALUE], self.value) and self.rest == (dict(read_json(rest.encode())) if rest else {})


def _is_same(text: str | None, value: Any) -> bool:
    if value is None or text is None:
        return text is value
    return text == value if isinstance(value, str) else bool(read_json(text.encode()) == value)


def read_json(data: bytes) -> Any:
    """Return the value of a JSON text. Raises `ValueError` if the text is not exactly one value of RFC 8259."""
    text = data.decode()
    try:
        value, end = _DECODER.raw_decode(text, _next(text, 0))
    except RecursionError as error:
        raise ValueError("nests too deeply") from error
    if _next(text, end) < len(text):
        raise ValueError("more than one value")
    return value


def _values(data: bytes) -> Iterator[Any]:
    """Yield the values of a sequence of JSON texts. Each value has the form that `read_json` returns."""
    text = data.decode()
    place = _next(text, 0)
    while place < len(text):
        try:
            value, end = _DECODER.raw_decode(text, place)
        except RecursionError as error:
            raise ValueError("nests too deeply") from error
        yield value
        place = _next(text, end)


def _next(text: str, place: int) -> int:
    """Return the position of the next character that is not a JSON space."""
    while place < len(text) and text[place] in " \t\r\n":
        place += 1
    return place


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not a JSON value")


_DECODER = json.JSONDecoder(
    object_pairs_hook=tuple, parse_float=Number, parse_int=Number, parse_constant=_refuse, strict=True
)


def _is_unicode(value: Any) -> bool:
    """Return False if a text in the value has half of a surrogate pair, which UTF-8 cannot represent."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list | tuple):
            waiting += each
        elif isinstance(each, str) and any("\ud800" <= character <= "\udfff" for character in each):
            return False
    return True


def _row_of(value: Any) -> JsonRow | None:
    """Return the row of a record. Return None if the record is not an object, or has a name twice."""
    if not isinstance(value, tuple) or not _is_unicode(value):
        return None
    fields = dict(value)
    if len(fields) < len(value):
        return None
    rest = {name: each for name, each in fields.items() if name != VALUE and each is not None}
    return JsonRow(fields.get(VALUE), rest)


def _json_rows(records: Sequence[Any], rejected: int = 0) -> Expected:
    rows = [row for each in records if (row := _row_of(each)) is not None]
    return Expected(rows, len(records) - len(rows) + rejected)


def json_document(data: bytes) -> Expected:
    """Return the records of a sequence of JSON values."""
    try:
        values = [*_values(data.removeprefix(codecs.BOM_UTF8))]
    except ValueError:
        return UNREADABLE
    return _json_rows([record for each in values for record in (each if isinstance(each, list) else [each])])


def json_lines(data: bytes) -> Expected:
    """Return the lines of NDJSON."""
    found, rejected = [], 0
    for line in data.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n").split(b"\n"):
        if not line:
            continue
        try:
            found.append(read_json(line))
        except ValueError:
            rejected += 1
    return _json_rows(found, rejected)


def csv_records(text: str, dialect: Dialect) -> tuple[Sequence[str], Expected]:
    """Return the names in the header, or of the dialect, and the records of a CSV text."""
    style: dict[str, Any] = {"delimiter": dialect.delimiter, "quotechar": dialect.quote, "escapechar": dialect.escape}
    records = [each for each in csv.reader(io.StringIO(text, newline=""), **style) if each]
    names = dialect.columns or (records.pop(0) if records else ())
    if not names or not all(names) or len(set(names)) < len(names):
        return names, UNREADABLE
    rows = [dict(zip(names, each, strict=True)) for each in records if len(each) == len(names)]
    return names, Expected(rows, len(records) - len(rows))


def lines(data: bytes, encoding: str) -> Expected:
    """Return the lines of a text that are not empty. A line that is not valid in the encoding is rejected."""
    found = [*_decoded(data, encoding)]
    rows = [{"line": each} for each in found if each is not None]
    return Expected(rows, len(found) - len(rows))


def _decoded(data: bytes, encoding: str) -> Iterator[str | None]:
    for line in data.replace(b"\r\n", b"\n").split(b"\n"):
        if line:
            try:
                yield line.decode(encoding)
            except ValueError:
                yield None


def typed_rows(form: str, place: Path) -> Iterator[Expected]:
    """Yield the rows of an Avro, Parquet or Arrow file, by each reader of the format."""
    for read in _TYPED[form]:
        try:
            yield Expected(read(place))
        except Exception:  # noqa: BLE001  # readers raise errors of any type
            yield UNREADABLE


def _avro(place: Path) -> list[str]:
    with place.open("rb") as file:
        records = [*fastavro.reader(file)]
    return row_texts(each if isinstance(each, dict) else {"": each} for each in records)


def _arrow(read: Callable[[Path], pa.Table]) -> Callable[[Path], list[str]]:
    return lambda place: texts_of(read(place))


def texts_of(rows: pa.Table) -> list[str]:
    """Return a text per row, in order. Equal rows that two different readers read have equal texts."""
    return row_texts(rows.to_pylist(maps_as_pydicts="strict"))


def row_texts(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a text per row, in order. The text omits a null column, because a null in a landed file adds no column."""
    return plain_texts({name: value for name, value in each.items() if value is not None} for each in rows)


_TYPED: Final[Mapping[str, Sequence[Callable[[Path], list[str]]]]] = {
    "avro": (_avro,),
    "parquet": (_arrow(by_duckdb), _arrow(by_parquet_of_arrow)),
    "arrow": (_arrow(by_pyarrow),),
}
