"""Landing locations: list the files, detect the kind of a file, and read its bytes.

A landing location is read through the object store contract. So local directories and all stores work in the same way.
Landed files are immutable. After a file is ingested, new rows must come in a file with a new name. This module never
writes or deletes a file. See docs/architecture/ingestion.md, "Batch ingest".

- `discover` and `survey` list the files. A queue can announce the files instead (`announcements`).
- `require_text` and `require_uncompressed` detect the kind of a file by its first bytes.
- `open_bytes` and `open_text` open a file. `Expansion` limits the size to which a compressed file may expand, and
  `ContentHash` hashes the bytes of a file.
- `check_time_format` checks the format of times in landed text. If a format lacks a part of the date, DuckDB takes the
  part from 1900-01-01. DuckDB also ignores some directives if the format has certain other directives. Times would then
  be wrong, so `check_time_format` refuses a format with these faults.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import Any, BinaryIO, Final, Literal, cast, get_args

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from storage_core.base.errors import Corrupt, InvalidInput, NotFound, TidemarkError, damaged_file_error, unavailable
from storage_core.base.text import choice_of, fitted, quoted
from storage_core.data.formats.keys import LIVE_PREFIX, LOG_PREFIX, ChunkKey
from storage_core.data.formats.keys import parse as parse_key
from storage_core.data.formats.keys import parse_raw as parse_raw_key
from storage_core.data.settings.layout import LANDING_KEY
from storage_core.engine.faults import re2_fault
from storage_core.engine.session import session
from storage_core.store.contract import Blob, ObjectFile, ObjectInfo, Unnamed
from storage_core.store.meter import prefetch
from storage_core.store.resolve import check_location, is_missing, open_store, overlap, scheme_of
from storage_core.store.s3_location import FROM_THE_ENVIRONMENT
from storage_core.write.ingest.compression import Codec, codec_of, open_decompressed
from storage_core.write.ingest.drift import (
    MOST_NEW_FIELDS,
    MOST_NEW_FIELDS_ALLOWED,
    QUARANTINE,
    DriftRule,
    OnTypeConflict,
)
from storage_core.write.ingest.encodings import UTF8, check_encoding, is_utf8, is_wide, open_recoded
from storage_core.write.ingest.landed_times import LandedTimes, Nanoseconds, TimeUnit, Year

HEAD_BYTES = 512

_COMPRESSED = ((b"\\x1f\\x9d", "compress"), (b"\\x02\\x21\\x4c\\x18", "the legacy format of LZ4"))
_ARCHIVES = (
    (b"PK(\\x03\\x04|\\x05\\x06)", "a zip archive"),
    (b"7z\\xbc\\xaf\\x27\\x1c", "a 7z archive"),
    (b".{257}ustar", "a tar archive"),
)
_UTF16 = "UTF-16 text. Declare `encoding: utf-16` in `landing`, or write it as UTF-8"
_OTHERS = (
    (b"PAR1\\x15", "a Parquet file, which needs `format: parquet`"),
    (b"Obj\\x01", "an Avro file, which needs `format: avro`"),
    (b"ORC[\\x00-\\x09\\x0b-\\x1f\\x80-\\xff]", "an ORC file"),
    (b"ARROW1\\x00", "an Arrow file, which needs `format: arrow`"),
    (
        b"(\\xff\\xfe|\\xfe\\xff)(?=.*\\x00)",
        _UTF16,
    ),  # UTF-16 has zero bytes in its ASCII characters
)
_EXPANDED = [
    *((re.compile(magic, re.DOTALL), f"compressed with {name}. Use {', '.join(Codec)}") for magic, name in _COMPRESSED),
    *((re.compile(magic, re.DOTALL), f"{name}. Land the files of the archive one by one") for magic, name in _ARCHIVES),
]
_NOT_TEXT = [*_EXPANDED, *((re.compile(magic, re.DOTALL), name) for magic, name in _OTHERS)]


def require_text(head: bytes, encoding: str | None = None) -> None:
    """Raise `Corrupt` if the first `HEAD_BYTES` of a file are not text in the encoding.

    The error contains the kind of the file.
    """
    for magic, kind in _NOT_TEXT:
        if magic.match(head) and not (kind == _UTF16 and is_wide(encoding)):
            raise damaged_file_error(f"the file is {kind}")


def require_uncompressed(head: bytes, of: str = "A Parquet") -> None:
    """Raise `Corrupt` if the first `HEAD_BYTES` of a file show a compression or an archive.

    The error contains the name of the compression or the archive.
    """
    if codec := codec_of(head):
        raise damaged_file_error(
            f"the file is compressed with {codec}. {of} file is compressed inside. Land the file without this "
            "compression"
        )
    for magic, kind in _EXPANDED:
        if magic.match(head):
            raise damaged_file_error(f"the file is {kind}")


# The limit for the expansion of a landed file. A kilobyte can expand to a terabyte, which would fill memory or storage.


ANY_RATIO_BYTES = 2**30
MOST_RATIO = 200


class Expansion:
    """Counter of the bytes to which a file of `size` bytes expands.

    The limit is 1 GiB or 200 times `size`, whichever is larger.
    """

    def __init__(self, size: int) -> None:
        self._most = max(ANY_RATIO_BYTES, MOST_RATIO * size)
        self._bytes = 0

    def add(self, expanded: int) -> None:
        """Add expanded bytes to the count. Raise `Corrupt` above the limit."""
        self._bytes += expanded
        if self._bytes > self._most:
            raise damaged_file_error(
                f"the file expands to more than {self._most} bytes. The limit is {MOST_RATIO} times the size of "
                "the file, but at least "
                f"{ANY_RATIO_BYTES} bytes. Land the file in pieces"
            )


def plain_bytes(values: pa.Array) -> int:
    """Return the size of the values in bytes, without dictionary encoding."""
    kinds, type_ = pa.types, values.type
    if kinds.is_dictionary(type_):
        lengths = values.dictionary
        if kinds.is_string(type_.value_type) or kinds.is_binary(type_.value_type):
            taken = pc.sum(pc.binary_length(lengths).cast(pa.int64()).take(values.indices)).as_py()
            return int(taken or 0) + 4 * len(values)
        return int(lengths.nbytes / max(1, len(lengths)) * len(values))
    if isinstance(type_, pa.BaseExtensionType):
        return plain_bytes(values.storage)
    if kinds.is_map(type_):  # `keys` and `items` cover the whole array, and this map is a slice of that array
        start, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
        return sum(plain_bytes(each[start:end]) for each in (values.keys, values.items)) + 4 * len(values)
    if kinds.is_list(type_) or kinds.is_large_list(type_):
        return plain_bytes(values.flatten()) + 4 * len(values)
    if kinds.is_fixed_size_list(type_):
        return int(plain_bytes(values.flatten()))
    if kinds.is_struct(type_):
        return sum(plain_bytes(each) for each in values.flatten())
    return int(values.nbytes)


# A stream that calls a function for each read, to hash, count or refuse the bytes. The reader of the stream does not
# notice these calls.


Look = Callable[[int, bytes], None]
"""A function that gets the position of a read and the bytes that were read."""


def watched(stream: BinaryIO, look: Look, *, seekable: bool = True) -> BinaryIO:
    """Return a stream that calls `look` for each read before it returns the bytes.

    If `look` raises an error, the read raises this error.

    If `seekable` is False, the stream reports that it cannot seek. Decompressed streams need `seekable=False`, because
    a seek would have to start from the beginning.
    """
    return cast("BinaryIO", _Watched(stream, look, seekable=seekable))


class _Watched(io.RawIOBase):
    def __init__(self, stream: BinaryIO, look: Look, *, seekable: bool) -> None:
        super().__init__()
        self._stream, self._look, self._seekable = stream, look, seekable

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._seekable

    def tell(self) -> int:
        return self._stream.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if not self._seekable:
            raise io.UnsupportedOperation("seek")
        return self._stream.seek(offset, whence)

    def read(self, size: int = -1, /) -> bytes:
        position = self._stream.tell()
        data = self._stream.read(size)
        self._look(position, data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


# A checksum of the content of a landed file. This number is the xxh3-64 of the bytes, and it is computed while the rows
# are read. The number detects a file that was replaced by another file of the same name and size (decision 0008).


_READ_BYTES = 8 * 2**20


class ContentHash:
    """The hash of a file. The hash is computed while a reader reads the file in any order.

    `value` is set when `finish` returns.
    """

    def __init__(self) -> None:
        self.value: int | None = None
        self._hasher = xxhash.xxh3_64()
        self._hashed = 0

    def watched(self, file: BinaryIO) -> BinaryIO:
        """Return a stream of the file. Every read of the stream is hashed."""
        return watched(file, self.take)

    def take(self, position: int, data: bytes) -> None:
        """Hash the bytes of `data` that directly follow the hashed bytes.

        `position` is the position of `data` in the file. `finish` reads all other bytes.
        """
        known = self._hashed - position
        if 0 <= known < len(data):
            self._hasher.update(memoryview(data)[known:])
            self._hashed = position + len(data)

    def finish(self, file: BinaryIO) -> int:
        """Read and hash all bytes that were not hashed yet. Return `value`, a signed 64-bit number."""
        file.seek(self._hashed)
        while chunk := file.read(_READ_BYTES):
            self._hasher.update(chunk)
            self._hashed += len(chunk)
        self.value = int.from_bytes(self._hasher.digest(), "big", signed=True)
        return self.value


def etag_hash(etag: str) -> str:
    """Return the hash of an ETag of any store as 16 hexadecimal digits."""
    return xxhash.xxh3_64_hexdigest(etag.encode())


def as_hex(value: int) -> str:
    """Return a content hash as 16 hexadecimal digits."""
    return f"{value % 2**64:016x}"


def from_hex(text: str) -> int:
    """Return the content hash that `as_hex` wrote, as a signed number."""
    return (int(text, 16) + 2**63) % 2**64 - 2**63


LandingFormat = Literal["ndjson", "json", "csv", "parquet", "avro", "arrow", "pattern", "delta"]
TYPED: Final = ("parquet", "avro", "arrow")
"""The formats of files with typed values. These formats have their own compression."""

DeltaChanges = Literal["refuse", "skip", "apply"]
"""The effect of a Delta table version that changes or removes rows.

Ingest stops, skips the version, or applies the version.
"""

Envelope = Literal["debezium"]
"""The form of JSON objects that contain a change of a row (`debezium`)."""

APART = "Choose a landing location that does not lie in a table or a raw log and does not contain one"
MOST_NAMES = 20
"""The maximum number of unread files whose names are in a report. The count in the report includes all unread files."""

_LONGEST_NAME = 400
_READ_AHEAD_BYTES = 8 * 2**20


_OF_CSV: Final = ("delimiter", "quote", "escape", "header", "columns")
_OF_DRIFT: Final = ("on_new_field", "on_type_conflict", "max_new_fields")
_OF_QUEUE: Final = ("queue", "list_every_ms")
_OF_CHANGES: Final = ("op", "order_by", "envelope")
_ADDED: Final = frozenset(
    {"changes", "encoding", *_OF_CSV, "times", "nanoseconds", "year", *_OF_QUEUE, *_OF_CHANGES, *_OF_DRIFT}
)
"""The settings that did not exist in the first specs.

A spec is written without the settings that have their default values.
"""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The form of CSV files.

    - `delimiter`, `quote`, `escape`: one ASCII character each. None: nothing is quoted, or nothing is escaped.
    - `columns`: the names of the fields of files without a header. None: the first record contains the names.
    """

    delimiter: str = ","
    quote: str | None = '"'
    escape: str | None = None
    columns: tuple[str, ...] | None = None

    def check(self) -> None:
        """Raise `InvalidInput` for characters or names that cannot be used."""
        given = {"delimiter": self.delimiter, "quote": self.quote, "escape": self.escape}
        for name, character in given.items():
            if character is None:
                continue
            if len(character) != 1 or not character.isascii() or character in "\0\r\n":
                raise InvalidInput(f"{name} {character!r} is not usable. Use one ASCII character, and no line break")
            if other := next((each for each in given if each != name and given[each] == character), None):
                raise InvalidInput(f"{name} and {other} are both {character!r}. Use different characters")
        if self.columns is not None and not self.columns:
            raise InvalidInput("a CSV file without a header needs names for its fields. Name them in `columns`")
        if self.columns is not None and len(set(self.columns)) != len(self.columns):
            raise InvalidInput(f"columns has a name twice: {', '.join(self.columns)}. Name each field once")


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingSpec:
    """A landing location and the format of its files.

    - `pattern`: an RE2 regular expression, for the format `pattern`. Every group has the name of a column. Groups may
      nest.
    - `time_format`: the strptime format of the time column. Without `time_format`, times are ISO 8601.
    - `null_values`: a text field that equals one of these values is null.
    - `suffix`: only files with this suffix are read, such as `.log.gz`. Text formats may be compressed (`compression`).
    - `times`: the columns of timestamps with numbers that count from 1970, each with the unit of its numbers.
    - `nanoseconds`: whether a time with digits below the microsecond is rejected or truncated.
    - `year`: the rule that selects the year if `time_format` contains no year. `from_arrival` selects the year in which
      the time is nearest to the landing time of the file.
    - `encoding`: the encoding of text, such as `latin-1` or `utf-16`. Without `encoding`, text is UTF-8.
    - `delimiter`, `quote`, `escape`: the characters of CSV, one ASCII character each. Without these settings, commas
      divide the fields, `"` quotes fields, and there is no escape character. With an empty `quote`, no field is quoted.
    - `header`: whether the first record of a CSV file contains the names of the columns.
    - `columns`: the names of the fields of a CSV file without a header.
    - `on_new_field`: the effect of a field that is not a column. `quarantine` rejects the line, `ignore` omits the
      field, and `add` adds a column. `column:NAME` stores the field in the text column NAME.
    - `on_type_conflict`: the effect of a value that needs a wider column. `quarantine` rejects the value, and `widen`
      widens the column.
    - `max_new_fields`: the maximum number of columns that one run adds.
    - `queue`: the URL of the SQS queue that gets a message for each new file (`announcements`). Without `queue`, every
      run lists the location.
    - `list_every_ms`: the time in ms between two listings of a location with a queue. None: `LIST_EVERY_MS`.
    - `changes`: only for the format `delta`, whose location is a Delta table. `changes` selects the effect of a version
      that changes or removes rows (`delta_source`).
    - `op`, `order_by`, `envelope`: only for keyed tables (`changes`). `op` is the field with the operation of a record.
      `order_by` is the column whose value orders the records of a key. `envelope` is the form of JSON records that
      contain a change of a row. With an envelope, `order_by` can be the path of a field of the envelope.
    """

    uri: str
    format: LandingFormat
    pattern: str | None = None
    time_format: str | None = None
    null_values: tuple[str, ...] = ()
    suffix: str | None = None
    changes: DeltaChanges | None = None
    encoding: str | None = None
    delimiter: str | None = None
    quote: str | None = None
    escape: str | None = None
    header: bool = True
    columns: tuple[str, ...] = ()
    times: tuple[tuple[str, TimeUnit], ...] = ()
    nanoseconds: Nanoseconds = "reject"
    year: Year | None = None
    on_new_field: str = "quarantine"
    on_type_conflict: OnTypeConflict = "quarantine"
    max_new_fields: int = MOST_NEW_FIELDS
    queue: str | None = None
    list_every_ms: int | None = None
    op: str | None = None
    order_by: str | None = None
    envelope: Envelope | None = None

    def __post_init__(self) -> None:
        """Raise `InvalidInput` for missing settings, settings that do not apply, or an invalid location."""
        if self.format not in get_args(LandingFormat):
            raise InvalidInput(choice_of("format", self.format, get_args(LandingFormat)))
        if self.pattern is None and self.format == "pattern":
            raise InvalidInput(
                "format is 'pattern', but pattern is missing. Add a pattern with a group for each column"
            )
        if self.pattern is not None and self.format != "pattern":
            raise InvalidInput(
                f"format is {self.format!r}, and a pattern is only for the format 'pattern'. Leave the pattern out"
            )
        if self.format in TYPED and (self.time_format or self.null_values):
            raise InvalidInput(
                f"{self.format} files carry typed values: time_format and null_values do not apply. Leave them out"
            )
        if self.format == "delta" and (self.time_format or self.null_values or self.suffix):
            raise InvalidInput(
                "a Delta table has typed values: time_format, null_values and suffix do not apply. Leave them out"
            )
        if self.changes is not None and self.changes not in get_args(DeltaChanges):
            raise InvalidInput(choice_of("changes", self.changes, get_args(DeltaChanges)))
        if self.changes is not None and self.format != "delta":
            raise InvalidInput(
                f"`changes` is only for a Delta table, and format is {self.format!r}. Leave `changes` out"
            )
        if self.pattern is not None:
            captured_columns(self.pattern)
        self._check_text_settings()
        self._check_times()
        self._check_drift()
        self._check_changes()
        check_location(self.uri)
        self._check_queue()

    def _check_queue(self) -> None:
        if self.queue is None:
            if self.list_every_ms is not None:
                raise InvalidInput(
                    "list_every is for a landing location with a queue. Add the queue, or leave list_every out"
                )
            return
        if self.list_every_ms is not None and self.list_every_ms < _LEAST_LIST_EVERY_MS:
            raise InvalidInput("list_every is shorter than 1m. Each listing adds a commit, so use at least 1m")
        if self.is_delta:
            raise InvalidInput("a Delta table is read by its versions. Leave out `queue`, which is for landed files")
        if scheme_of(self.uri) != "s3":
            raise InvalidInput("queue is for a landing location on S3. Leave `queue` out, or land the files on s3://…")
        check_queue(self.queue)

    def _check_text_settings(self) -> None:
        given = [name for name in _OF_CSV if getattr(self, name) not in (None, True, ())]
        if given and self.format != "csv":
            raise InvalidInput(
                f"{given[0]} is only for the format csv, and format is {self.format!r}. Leave {given[0]} out"
            )
        if self.encoding is not None:
            if self.format in (*TYPED, "delta"):
                raise InvalidInput(f"encoding is only for text, and format is {self.format!r}. Leave encoding out")
            check_encoding(self.encoding)
        if self.format == "csv":
            if self.header and self.columns:
                raise InvalidInput("columns names the fields of files without a header. Add `header: false`")
            self.dialect.check()

    def _check_times(self) -> None:
        for column, unit in self.times:
            if unit not in get_args(TimeUnit):
                raise InvalidInput(choice_of(f"times: the unit of column {column!r}", unit, get_args(TimeUnit)))
        if self.nanoseconds not in get_args(Nanoseconds):
            raise InvalidInput(choice_of("nanoseconds", self.nanoseconds, get_args(Nanoseconds)))
        if self.year not in (None, *get_args(Year)):
            raise InvalidInput(f"year is {self.year!r}. Give from_arrival, or leave it out")
        if self.format == "delta" and (self.times or self.nanoseconds != "reject"):
            raise InvalidInput("a Delta table has typed values: times and nanoseconds do not apply. Leave them out")
        if self.year and self.time_format is None:
            raise InvalidInput("year is for a time_format without a year. Add the time_format, or leave year out")

    def _check_drift(self) -> None:
        rule = self.drift
        if self.format == "delta" and rule != QUARANTINE:
            raise InvalidInput("on_new_field and on_type_conflict do not apply to a Delta table. Leave them out")
        if rule.new_field != "quarantine" and (self.format == "pattern" or not self.header):
            which = "lines of a pattern" if self.format == "pattern" else "CSV files without a header"
            raise InvalidInput(f"{which} cannot have new fields. Leave out `on_new_field: {self.on_new_field}`")
        if self.max_new_fields != MOST_NEW_FIELDS and rule.new_field != "add":
            raise InvalidInput("max_new_fields limits the columns that a run adds. Add `on_new_field: add`")
        if not 1 <= self.max_new_fields <= MOST_NEW_FIELDS_ALLOWED:
            raise InvalidInput(
                f"max_new_fields is {self.max_new_fields}. Give a number from 1 to {MOST_NEW_FIELDS_ALLOWED}"
            )

    @property
    def drift(self) -> DriftRule:
        """The effect of new fields and of values that need a wider column."""
        return DriftRule.parse(self.on_new_field, self.on_type_conflict)

    def _check_changes(self) -> None:
        if self.envelope not in (None, *get_args(Envelope)):
            raise InvalidInput(choice_of("envelope", self.envelope, get_args(Envelope)))
        if self.envelope and self.format not in ("ndjson", "json"):
            raise InvalidInput(
                f"format {self.format!r} cannot contain envelopes, which are JSON objects. Use ndjson or json"
            )
        if self.envelope and self.op:
            raise InvalidInput(
                "op does not apply, because the envelope contains the operation of each record. Leave out op"
            )
        if self.is_delta and (self.op or self.order_by):
            raise InvalidInput(
                "op and order_by do not apply to a Delta table, because its versions have an order. Leave them out"
            )

    def check_time_format(self) -> None:
        """Raise `InvalidInput` for a time format that cannot be used (`check_time_format`)."""
        if self.time_format is None:
            return
        if self.year is None:
            check_time_format(self.time_format)
        elif {each.removeprefix("-") for each in _DIRECTIVE.findall(self.time_format)} & (_YEAR | {"G"}):
            raise InvalidInput(f"time_format {self.time_format!r} has a year. Leave out `year: {self.year}`")
        else:
            check_time_format(f"%Y {self.time_format}")

    def times_of(self, landed: LandedFile) -> LandedTimes:
        """Return the meaning of times in a file.

        Raises `InvalidInput` if the meaning depends on an unknown arrival time.
        """
        if self.year is not None and landed.landed_ms is None:
            raise InvalidInput(f"{landed.path}: the time of its arrival is unknown. List the landing location again")
        arrival = None if self.year is None else landed.landed_ms
        return LandedTimes(dict(self.times), self.nanoseconds == "truncate", arrival)

    @property
    def dialect(self) -> Dialect:
        """The characters and the header of CSV files."""
        quote = '"' if self.quote is None else self.quote
        return Dialect(self.delimiter or ",", quote or None, self.escape, None if self.header else self.columns)

    @property
    def is_delta(self) -> bool:
        """Whether the location is a Delta table. Files do not land separately in a location that is a Delta table."""
        return self.format == "delta"

    def to_json(self) -> str:
        """Return this spec as JSON text for `from_json`."""
        body = asdict(self)
        for each in fields(self):  # the text of older specs, which did not have these fields
            if each.name in _ADDED and body[each.name] == each.default:
                body.pop(each.name)
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> LandingSpec:
        """Return the spec that `to_json` wrote."""
        body = json.loads(text)
        lists: dict[str, tuple[Any, ...]] = {
            name: tuple(body[name]) for name in ("null_values", "columns") if name in body
        }
        if "times" in body:
            lists["times"] = tuple((column, unit) for column, unit in body["times"])
        return LandingSpec(**{**body, **lists})


@dataclass(frozen=True, slots=True)
class LandedFile:
    """One file: its `path` in the landing location `uri`, and its listed `size` in bytes.

    `landed_ms` is the time when the file landed, from the store's clock. `etag` is the ETag of the file's content in
    the store. In a store, two contents at one path never have the same ETag. `landed_ms` and `etag` are None for a file
    that was not listed.
    """

    path: str
    size: int
    uri: str
    landed_ms: int | None = None
    etag: str | None = None


LIST_EVERY_MS: Final = 3_600_000
"""The default time between two listings of a landing location that has a queue."""

_LEAST_LIST_EVERY_MS: Final = 60_000

_QUEUE = re.compile(r"https?://[A-Za-z0-9.-]+(?::[0-9]{1,5})?(?:/[A-Za-z0-9_.-]+)+", re.ASCII)


def check_queue(url: str) -> str:
    """Return the text if it is the URL of a standard SQS queue.

    The message of `InvalidInput` does not contain the text.
    """
    if "@" in url or "?" in url:
        raise InvalidInput(f"queue: the URL may contain credentials. {FROM_THE_ENVIRONMENT}. {_QUEUE_FORM}")
    if not _QUEUE.fullmatch(url):
        raise InvalidInput(f"queue is not the URL of an SQS queue. {_QUEUE_FORM}")
    if url.endswith(".fifo"):
        raise InvalidInput(
            "queue is a FIFO queue, where one message that is not deleted blocks the others. Use a standard queue"
        )
    return url


_QUEUE_FORM = "Write https://sqs.REGION.amazonaws.com/ACCOUNT/NAME, as `aws sqs get-queue-url` prints it"


def captured_columns(pattern: str) -> tuple[str, ...]:
    """Return the names of the pattern's groups in order. Raise `InvalidInput` if the pattern is not valid."""
    try:
        captured = pc.extract_regex(pa.nulls(0, pa.string()), pattern=pattern).type
    except pa.ArrowInvalid as error:
        raise InvalidInput(
            f"the pattern {quoted(pattern, 200)} is not a valid RE2 expression{_re2_fault(error)}. Correct it. "
            "Write each column as a named group (?P<column>…)"
        ) from error
    names = tuple(captured.field(index).name for index in range(captured.num_fields))
    if not names or len(set(names)) != len(names):
        raise InvalidInput(
            f"the pattern must name each of its groups once, found {list(names)}. Write each as (?P<column>…)"
        )
    return names


def _re2_fault(error: Exception) -> str:
    """Return the fault that RE2 reports, as text that ends an error message.

    The result is empty for a fault without a known name.
    """
    fault = re2_fault(str(error).partition("expression: ")[2])
    return "" if fault is None else f": {fault}"


@dataclass(frozen=True, slots=True)
class Landed:
    """The files in a landing location by path, and the number of entries that cannot be read.

    `not_read` counts the unread entries, and `not_read_names` has the names of the first unread entries, each with a
    reason. A file whose name is not a valid key is not read, because ingest cannot record this file. A symlink or a
    pipe is not read, because it has no bytes of its own. Characters that are not printable are escaped in the names.
    `entries` is the number of entries that were checked. `is_missing` is True if the location is a local folder that
    does not exist.
    """

    files: list[LandedFile]
    not_read: int = 0
    not_read_names: Mapping[str, str] = field(default_factory=dict)
    entries: int = 0
    is_missing: bool = False


def landing_of(configuration: Mapping[str, str]) -> LandingSpec | None:
    """Return the landing location in the configuration of a table, or None."""
    text = configuration.get(LANDING_KEY)
    return None if text is None else LandingSpec.from_json(text)


def reject_overlap(landing: str, other: str, what: str) -> None:
    """Raise `InvalidInput` if the location `other` is the landing location, contains it, or is inside it.

    Ingest would otherwise read the table's own files. `what` describes `other`. No request.
    """
    if overlap(landing, other):
        raise landing_overlap(what)


def landing_overlap(what: str, landing: str = "the landing location") -> InvalidInput:
    """Return the error for a landing location that overlaps `what`."""
    return InvalidInput(f"{landing} and {what} overlap. {APART}")


def discover(spec: LandingSpec) -> list[LandedFile]:
    """Return the files in the landing location, sorted by path (see `survey`)."""
    return survey(spec).files


def survey(spec: LandingSpec, *, most: int | None = None) -> Landed:
    """Return the content of the landing location, or its first `most` entries.

    A location that does not exist has no files. Empty files are skipped as work in progress. Files with a name or
    folder that starts with `.` or `_` are also skipped. Files without the suffix are skipped, too. A file whose suffix
    differs only in case, such as `.PARQUET`, is reported as not read. Raises `InvalidInput` if the location contains a
    table or a raw log, because their files must not be ingested. One LIST per 1,000 files.
    """
    store = open_store(spec.uri)
    found = landed_of(islice(store.browse(), most), spec, store.uri)
    return replace(found, is_missing=not found.entries and is_missing(spec.uri))


def landed_of(present: Iterable[ObjectInfo | Unnamed], spec: LandingSpec, uri: str) -> Landed:
    """Return the result of `survey` for these entries of the landing location at `uri`. Makes no request."""
    files: list[LandedFile] = []
    entries, not_read, names = 0, 0, dict[str, str]()
    for entries, each in enumerate(present, 1):  # noqa: B007  # the count is reported below
        reason = None
        if isinstance(each, ObjectInfo):
            name = each.key
            _reject_table_or_raw_log(name)
            if is_wanted(name, spec.suffix) and each.size > 0:
                files.append(LandedFile(name, each.size, uri, each.last_modified_ms, each.etag))
            elif spec.suffix and is_wanted(name.casefold(), spec.suffix.casefold()) and each.size > 0:
                reason = f"the file name ends in {name[-len(spec.suffix) :]}, but the suffix is {spec.suffix}"
        elif is_wanted(name := each.name, None if each.may_hold_more else spec.suffix):
            reason = each.reason
        if reason is not None:
            not_read += 1
            if not_read <= MOST_NAMES:
                names[printable_name(name)] = reason
    files.sort(key=lambda file: file.path)
    return Landed(files, not_read, names, entries)


def _reject_table_or_raw_log(key: str) -> None:
    for prefix, what in ((LOG_PREFIX, "a table"), (LIVE_PREFIX, "a raw log")):
        folder, found, inside = f"/{key}".rpartition(f"/{prefix}")
        if not found or (folder and not is_wanted(folder[1:], None)):
            continue
        parsed = parse_key(prefix + inside) if prefix == LOG_PREFIX else parse_raw_key(prefix + inside)
        if isinstance(parsed, ChunkKey) or getattr(parsed, "version", None) is not None:
            where = f" in its folder {printable_name(folder[1:])!r}" if folder else ""
            raise InvalidInput(f"the landing location contains {what}{where}. {APART}")


def is_wanted(name: str, suffix: str | None) -> bool:
    """Return whether the name has the suffix and does not mark work in progress."""
    return name.endswith(suffix or "") and not any(part.startswith((".", "_")) for part in name.split("/"))


def printable_name(name: str) -> str:
    """Return the name, in which control characters and bytes that are not UTF-8 are escaped.

    Different names stay different.
    """
    return fitted("".join(_escaped(each) for each in name), _LONGEST_NAME)


def _escaped(character: str) -> str:
    if 0xDC80 <= ord(character) <= 0xDCFF:  # a surrogate that represents a byte in a name of the file system
        return f"\\x{ord(character) - 0xDC00:02x}"
    is_plain = character.isprintable() and character != "\\"
    return character if is_plain else character.encode("unicode_escape").decode("ascii")


SMALL_BYTES: Final = 2**20
"""The maximum size of a file that `fetched_ahead` reads with one request."""

_FETCHED_AT_ONCE = 16

_FETCHED: ContextVar[Mapping[LandedFile, Blob | TidemarkError | None] | None] = ContextVar("fetched", default=None)


@contextmanager
def fetched_ahead(files: Sequence[LandedFile]) -> Iterator[None]:
    """Fetch the small files of remote stores.

    Inside the context, this thread reads these files without further requests.

    The files are read concurrently, each with one GET. All bytes of a file have one ETag, so the file cannot change
    while it is read. Other files are read as usual.

    Cost: the memory of the small files.
    """
    stores = {uri: open_store(uri) for uri in {file.uri for file in files}}

    def fetch(file: LandedFile) -> Blob | TidemarkError | None:
        store = stores[file.uri]
        if file.size > SMALL_BYTES or file.etag is None or store.local_path(file.path) is not None:
            return None
        try:
            return store.get(file.path)
        except TidemarkError as error:
            return error

    before = _FETCHED.set(dict(zip(files, prefetch(fetch, files, _FETCHED_AT_ONCE), strict=True)))
    try:
        yield
    finally:
        _FETCHED.reset(before)


def _fetched(landed: LandedFile) -> Blob | None:
    """Return the bytes of the file if they were fetched. Raise the error of the request."""
    found = (_FETCHED.get() or {}).get(landed)
    if isinstance(found, TidemarkError):
        raise found
    return found


def is_unchanged(landed: LandedFile) -> bool:
    """Return whether the file has not changed since it was listed. Return True if a change cannot be determined.

    At most one HEAD. If the bytes of the file were fetched, the function compares the ETag of these bytes with the
    listed ETag.
    """
    if landed.etag is None:
        return True
    try:
        return (_fetched(landed) or open_store(landed.uri).head(landed.path)).etag == landed.etag
    except NotFound:
        return False


def content_of(landed: LandedFile) -> int:
    """Return the content hash of the file, as `ContentHash` computes it. Reads the whole file.

    Raises `NotFound` if the file does not exist or its size has changed since it was listed. Raises `Unavailable` if
    the file cannot be read.
    """
    content = ContentHash()
    try:
        with open_bytes(landed) as file:
            return content.finish(file)
    except Corrupt as error:
        raise NotFound(f"{landed.uri}/{landed.path}: {error.found}", file=landed.path) from error
    except OSError as error:
        raise unavailable(f"{landed.uri}/{landed.path}", error) from error


@contextmanager
def open_bytes(landed: LandedFile, content: ContentHash | None = None) -> Iterator[BinaryIO]:
    """Open the file without decompression.

    If the `with` block ends without an error, `content` has the hash of all bytes of the file. Raises `NotFound`.
    Raises `Corrupt` if the size of the file has changed since it was listed.
    """
    fetched = _fetched(landed)
    store = open_store(landed.uri)
    size = store.head(landed.path).size if fetched is None else len(fetched.data)
    if size != landed.size:
        raise damaged_file_error(f"changed while it was being ingested (listed with {landed.size} bytes, now {size})")
    if fetched is not None:
        yield from _hashed(io.BytesIO(fetched.data), content)
        return
    path = store.local_path(landed.path)
    if path is not None:
        with open(path, "rb", opener=_open_regular) as file:  # `Path.open` has no parameter `opener`
            yield from _hashed(file, content)
    else:
        with io.BufferedReader(ObjectFile(store, landed.path, landed.size), _READ_AHEAD_BYTES) as reader:
            yield from _hashed(reader, content)


def _open_regular(path: str, flags: int) -> int:
    """Open a file, and check again that it is a regular file. A pipe in place of the file would block forever."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotFound(f"{path}: not a regular file any more")
    return descriptor


def _hashed(file: BinaryIO, content: ContentHash | None) -> Iterator[BinaryIO]:
    if content is None:
        yield file
    else:
        yield content.watched(file)
        content.finish(file)


@contextmanager
def open_text(
    landed: LandedFile, content: ContentHash | None = None, encoding: str | None = None
) -> Iterator[BinaryIO]:
    """Open the file decompressed and as UTF-8.

    The first bytes of the file determine its codec. A file whose name ends with `.gz` must be a gzip file.

    `content` is the hash of the compressed bytes (see `open_bytes`). Raises `Corrupt` for a file that is not text, and
    for a file that expands too far.
    """
    with open_bytes(landed, content) as file:
        head = file.read(HEAD_BYTES)
        file.seek(0)
        codec = codec_of(head) or (Codec.GZIP if landed.path.endswith(".gz") else None)
        if codec is None:
            require_text(head, encoding)
            yield file if is_utf8(encoding) else open_recoded(file, encoding or UTF8)
        else:
            with open_decompressed(file, codec) as text:
                head = text.peek(HEAD_BYTES)
                if inner := codec_of(head):
                    raise damaged_file_error(
                        f"the file is compressed twice, with {codec} and with {inner}. Compress the file once"
                    )
                require_text(head, encoding)
                expansion = Expansion(landed.size)
                plain = watched(cast("BinaryIO", text), lambda _, data: expansion.add(len(data)), seekable=False)
                yield plain if is_utf8(encoding) else open_recoded(plain, encoding or UTF8)


_DIRECTIVE = re.compile("%(-?.|$)", re.DOTALL)
_KNOWN = frozenset("aAbBcdfgGhHIjmMpSuUVwWxXyYzZ%") | frozenset("-" + each for each in "dHIjmMSy")
_YEAR, _MONTH, _WEEKDAY = {"Y", "y", "x", "c"}, {"m", "b", "B", "h"}, {"a", "A", "u", "w"}
_DAYS = (({"d"}, _MONTH), ({"j"},), ({"x", "c"},), ({"U", "W"}, _WEEKDAY))
"""The directives that determine a day. Each tuple contains sets of directives. A valid format contains, for at least
one tuple, one directive from each set in this tuple.
"""
_PROBES: Final = tuple(
    datetime.fromisoformat(f"{day}T13:45:06.789012")
    for day in (
        *("2026-11-27", "2026-11-22", "2026-11-23", "2026-01-11", "2026-01-01", "2026-01-04", "2024-02-29"),
        *("2024-12-30", "2024-12-31", "2021-01-03", "2023-01-01", "2018-01-01", "1970-01-01", "2025-12-29"),
    )
)
"""The times that are used to check a time format.

These times cover every weekday and the first and last weeks of all kinds of years. Some numbers in these times have
only one digit.
"""
_UNREADABLE = {
    "n": "reads nanoseconds, and a timestamp has microseconds. Write at most 6 digits after the second, and use %f",
    "Q": "reads milliseconds since 1970. Declare `times: {COLUMN: ms}` in place of the time_format",
    "s": "reads seconds since 1970. Declare `times: {COLUMN: s}` in place of the time_format",
}


def check_time_format(text: str) -> None:
    """Raise `InvalidInput` for a format with an unknown directive, or if DuckDB reads back a wrong day.

    DuckDB writes some days in the format and reads them again. This is necessary because the effect of a directive
    depends on the other directives and on their order.
    """
    given = _DIRECTIVE.findall(text)
    for each in given:
        if why := _fault(each):
            raise InvalidInput(f"time_format {text!r} is not usable: {why}")
    parts = {each.removeprefix("-") for each in given}
    is_iso = bool("G" in parts and "V" in parts and parts & _WEEKDAY)
    if not is_iso and not parts & _YEAR:
        raise InvalidInput(
            f"time_format {text!r} has no year, so each time would be in the year 1900. Land times with a year and add "
            "%Y, or declare `year: from_arrival`"
        )
    if not is_iso and not any(all(parts & each for each in named) for named in _DAYS):
        raise InvalidInput(
            f"time_format {text!r} has no day, so each time would be on the first. Add the month and the day, such as "
            "%m and %d, or the day of the year, %j"
        )
    if "I" in parts and "p" not in parts:
        raise InvalidInput(f"time_format {text!r} has a 12-hour clock and no %p. Add %p, or use %H")
    if "y" in parts and parts & {"Y", "G", "x", "c"}:
        raise InvalidInput(f"time_format {text!r} has %y and a second directive for the year. Leave one of them out")
    if wrong := _misread(text):
        written, found = wrong
        raise InvalidInput(
            f"time_format {text!r} is ambiguous: DuckDB reads {written!r} as {found}. Write the day only as "
            "%Y-%m-%d, %Y-%j or %G-%V-%u"
        )


@lru_cache(maxsize=64)
def _misread(text: str) -> tuple[str, str] | None:
    """Return a day in this format that DuckDB reads wrongly or cannot read, and the result of DuckDB.

    Return None if there is no such day.
    """
    # A zone does not affect the day, and DuckDB cannot write the zone of a timestamp without a zone. Therefore the
    # check replaces the zone directive by the letter Z.
    probed = _DIRECTIVE.sub(lambda each: "Z" if each[1] in {"z", "Z"} else each[0], text)
    read = (
        "SELECT text, coalesce(CAST(CAST(found AS DATE) AS VARCHAR), 'no time') FROM ("
        "SELECT probe, strftime(probe, $format) AS text, try_strptime(strftime(probe, $format), $format) AS found "
        "FROM (SELECT unnest(CAST($probes AS TIMESTAMP[])) AS probe)) "
        "WHERE CAST(found AS DATE) IS DISTINCT FROM CAST(probe AS DATE) LIMIT 1"
    )
    with session(threads=1) as connection:
        import duckdb  # The import is here, as in `session`, because most declarations have no time format.

        try:
            return connection.execute(read, {"format": probed, "probes": list(_PROBES)}).fetchone()
        except duckdb.Error as error:
            raise InvalidInput(
                f"time_format {text!r} cannot be used. Write a complete time with the directives in "
                "docs/declarations.md"
            ) from error


def _fault(directive: str) -> str | None:
    if not directive:
        return "it ends with %. Write %% for a percent sign"
    if why := _UNREADABLE.get(directive):
        return f"%{directive} {why}"
    return (
        None if directive in _KNOWN else f"%{directive} is not a directive. Use a directive from docs/declarations.md"
    )
