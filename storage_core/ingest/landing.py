"""Where files land, which of them are there, and their bytes (docs/architecture/ingestion.md, "Batch ingest").

A landing place is read through the object store contract, so a local directory and any later store work alike. Landed
files are immutable: once a file is ingested, new rows come under a new name. Nothing here writes or deletes.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import BinaryIO, Literal, cast, get_args

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import Corrupt, InvalidInput, NotFound, Unavailable, unsound
from storage_core.foreign_text import fitted
from storage_core.formats.keys import LOG_PREFIX
from storage_core.formats.keys import parse as parse_key
from storage_core.formats.raw_keys import LIVE_PREFIX, ChunkKey
from storage_core.formats.raw_keys import parse as parse_raw_key
from storage_core.ingest.content import ContentHash
from storage_core.ingest.expansion import Expansion
from storage_core.ingest.file_kind import GZIP_MAGIC, HEAD_BYTES, require_text
from storage_core.ingest.watched_stream import watched
from storage_core.objectstore.contract import ObjectInfo
from storage_core.objectstore.reading import ObjectFile
from storage_core.objectstore.resolve import check_location, open_store, overlap

LANDING = "tidemark.landing"
"""The setting that says where files of a table land."""

LandingFormat = Literal["ndjson", "csv", "parquet", "pattern", "delta"]

DeltaChanges = Literal["refuse", "skip", "apply"]
"""What a version of a Delta table does that changes or removes rows: it ends ingest, is left out, or is followed."""

APART = "Choose a landing place that does not lie in a table or a raw log and does not contain one."
MOST_NAMES = 20
"""Names of what is not read that a report repeats; all are counted."""

_LONGEST_NAME = 400
_READ_AHEAD_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingSpec:
    """A landing place and how its files read.

    `pattern` is an RE2 regular expression for the format `pattern`; every group is named after a column, and groups may
    nest. `time_format` is the strptime format of the time column (ISO 8601 without it). A text field equal to one of
    `null_values` is null. `suffix` limits the files, such as `.log.gz`. Text formats may be gzipped. Of the format
    `delta` the place is a Delta table, and `changes` says what its versions that remove rows do (`delta_source`).
    """

    uri: str
    format: LandingFormat
    pattern: str | None = None
    time_format: str | None = None
    null_values: tuple[str, ...] = ()
    suffix: str | None = None
    changes: DeltaChanges | None = None

    def __post_init__(self) -> None:
        """Refuse a format without what it needs, settings that it would ignore, and a place that cannot be opened."""
        if self.format not in get_args(LandingFormat):
            raise InvalidInput(f"format {self.format!r} is not one of {', '.join(get_args(LandingFormat))}")
        if (self.pattern is None) == (self.format == "pattern"):
            raise InvalidInput(f"format {self.format!r}: a pattern belongs to the format 'pattern', and only there")
        if self.format == "parquet" and (self.time_format or self.null_values):
            raise InvalidInput("parquet files carry typed values: time_format and null_values do not apply")
        if self.format == "delta" and (self.time_format or self.null_values or self.suffix):
            raise InvalidInput("a Delta table has typed values: time_format, null_values and suffix do not apply")
        if self.changes is not None and self.changes not in get_args(DeltaChanges):
            raise InvalidInput(f"changes: {self.changes!r} is not one of {', '.join(get_args(DeltaChanges))}")
        if self.changes is not None and self.format != "delta":
            raise InvalidInput(f"format {self.format!r}: landed files do not change; `changes` is of a Delta table")
        if self.pattern is not None:
            captured_columns(self.pattern)
        check_location(self.uri)

    @property
    def is_delta(self) -> bool:
        """Whether the place is a Delta table, of which no file lands by itself."""
        return self.format == "delta"

    def to_json(self) -> str:
        """Return the text from which `from_json` makes an equal spec."""
        body = asdict(self)
        if self.changes is None:  # as it was before there was one
            body.pop("changes")
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> LandingSpec:
        """Return the spec that `to_json` wrote."""
        body = json.loads(text)
        return LandingSpec(**{**body, "null_values": tuple(body["null_values"])})


@dataclass(frozen=True, slots=True)
class LandedFile:
    """One file: `path` in the landing place at `uri`, and its `size` in bytes when it was listed.

    `landed_ms` is when it landed, by the clock of the store that it lies in, and `etag` what that store says of its
    content, which it never says of two contents at one place; None where nobody listed it.
    """

    path: str
    size: int
    uri: str
    landed_ms: int | None = None
    etag: str | None = None


def captured_columns(pattern: str) -> tuple[str, ...]:
    """Return the names of the pattern's groups in order. Raises `InvalidInput` when it is no such pattern."""
    try:
        captured = pc.extract_regex(pa.nulls(0, pa.string()), pattern=pattern).type
    except pa.ArrowInvalid as error:
        raise InvalidInput(f"the pattern is not an RE2 expression with named groups (?P<column>…): {error}") from error
    names = tuple(captured.field(index).name for index in range(captured.num_fields))
    if not names or len(set(names)) != len(names):
        raise InvalidInput(f"the pattern must name each of its groups once, found {list(names)}")
    return names


@dataclass(frozen=True, slots=True)
class Landed:
    """The files in a landing place by path, and how much else lies there: `not_read` things, the first with a reason.

    A file that no key can name cannot be recorded as ingested, and a symlink or a pipe holds no bytes of its own.
    Their names are printable: what is not is escaped. `entries` is how many things were looked at.
    """

    files: list[LandedFile]
    not_read: int = 0
    not_read_names: Mapping[str, str] = field(default_factory=dict)
    entries: int = 0


def reject_overlap(landing: str, other: str, what: str) -> None:
    """Raise `InvalidInput` if the location `other`, which is `what`, is the landing place, holds it or lies in it.

    Ingestion would read the table's own files. No request.
    """
    if overlap(landing, other):
        raise landing_overlap(what)


def landing_overlap(what: str, landing: str = "the landing place") -> InvalidInput:
    """Return the error for a landing place that overlaps `what`."""
    return InvalidInput(f"{landing} and {what} overlap. {APART}")


def discover(spec: LandingSpec) -> list[LandedFile]:
    """Return the files in the landing place, sorted by path; see `survey`."""
    return survey(spec).files


def survey(spec: LandingSpec, *, most: int | None = None) -> Landed:
    """Return what is in the landing place, or the first `most` entries; a place that does not exist yet holds nothing.

    Left alone as somebody's work in progress: names that start with `.` or `_`, in any folder, and files without a
    byte. Left alone are also files without the suffix; one that has it in other letters, such as `.PARQUET`, is told.
    One LIST per 1,000 files. Raises `InvalidInput` if the place contains a table or a raw log, whose files must not be
    ingested.
    """
    store = open_store(spec.uri)
    files: list[LandedFile] = []
    entries, not_read, names = 0, 0, dict[str, str]()
    for entries, each in enumerate(islice(store.browse(), most), 1):  # noqa: B007  # how many is said below
        reason = None
        if isinstance(each, ObjectInfo):
            name = each.key
            _reject_table_or_raw_log(name)
            if _is_wanted(name, spec.suffix) and each.size > 0:
                files.append(LandedFile(name, each.size, store.uri, each.last_modified_ms, each.etag))
            elif spec.suffix and _is_wanted(name.casefold(), spec.suffix.casefold()) and each.size > 0:
                reason = f"its name ends in {name[-len(spec.suffix) :]}, and the suffix is {spec.suffix}"
        elif _is_wanted(name := each.name, None if each.may_hold_more else spec.suffix):
            reason = each.reason
        if reason is not None:
            not_read += 1
            if not_read <= MOST_NAMES:
                names[printable_name(name)] = reason
    return Landed(sorted(files, key=lambda file: file.path), not_read, names, entries)


def _reject_table_or_raw_log(key: str) -> None:
    for prefix, what in ((LOG_PREFIX, "a table"), (LIVE_PREFIX, "a raw log")):
        folder, found, inside = f"/{key}".rpartition(f"/{prefix}")
        if not found or (folder and not _is_wanted(folder[1:], None)):
            continue
        parsed = parse_key(prefix + inside) if prefix == LOG_PREFIX else parse_raw_key(prefix + inside)
        if isinstance(parsed, ChunkKey) or getattr(parsed, "version", None) is not None:
            where = f" in its folder {printable_name(folder[1:])!r}" if folder else ""
            raise InvalidInput(f"the landing place contains {what}{where}. {APART}")


def _is_wanted(name: str, suffix: str | None) -> bool:
    return name.endswith(suffix or "") and not any(part.startswith((".", "_")) for part in name.split("/"))


def printable_name(name: str) -> str:
    """Return the name with what a terminal obeys, and what is not UTF-8, as escapes. No two names become one."""
    return fitted("".join(_escaped(each) for each in name), _LONGEST_NAME)


def _escaped(character: str) -> str:
    if 0xDC80 <= ord(character) <= 0xDCFF:  # a byte, as the file system's names have it
        return f"\\x{ord(character) - 0xDC00:02x}"
    is_plain = character.isprintable() and character != "\\"
    return character if is_plain else character.encode("unicode_escape").decode("ascii")


def is_unchanged(landed: LandedFile) -> bool:
    """Return whether the file is still the one that was listed; True where that is not known. One HEAD."""
    if landed.etag is None:
        return True
    try:
        return open_store(landed.uri).head(landed.path).etag == landed.etag
    except NotFound:
        return False


def content_of(landed: LandedFile) -> int:
    """Return the content of the file as `ContentHash` has it, and reads all of it for that.

    Raises `NotFound`, also when its size is no longer the listed one, and `Unavailable` when it cannot be read.
    """
    content = ContentHash()
    try:
        with open_bytes(landed) as file:
            return content.finish(file)
    except Corrupt as error:
        raise NotFound(f"{landed.uri}/{landed.path}: {error.found}", file=landed.path) from error
    except OSError as error:
        raise Unavailable(f"{landed.uri}/{landed.path}: {error}", file=landed.path) from error


@contextmanager
def open_bytes(landed: LandedFile, content: ContentHash | None = None) -> Iterator[BinaryIO]:
    """Open the file as it lies there; once the block ends without an error, `content` has the hash of all its bytes.

    Raises `NotFound`, and `Corrupt` when its size is no longer the listed one.
    """
    store = open_store(landed.uri)
    size = store.head(landed.path).size
    if size != landed.size:
        raise unsound(f"changed while it was being ingested (listed with {landed.size} bytes, now {size})")
    path = store.local_path(landed.path)
    if path is not None:
        with open(path, "rb", opener=_open_regular) as file:  # a path's own method takes no opener
            yield from _hashed(file, content)
    else:
        with io.BufferedReader(ObjectFile(store, landed.path, landed.size), _READ_AHEAD_BYTES) as reader:
            yield from _hashed(reader, content)


def _open_regular(path: str, flags: int) -> int:
    """Open what was a regular file a moment ago, and must be one still: a pipe in its place would block for ever."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotFound(f"{path}: no regular file any more")
    return descriptor


def _hashed(file: BinaryIO, content: ContentHash | None) -> Iterator[BinaryIO]:
    if content is None:
        yield file
    else:
        yield content.watched(file)
        content.finish(file)


@contextmanager
def open_text(landed: LandedFile, content: ContentHash | None = None) -> Iterator[BinaryIO]:
    """Open the file decompressed: gzip is recognised by its name `.gz` or by its first two bytes.

    `content` is of the bytes as they lie there; see `open_bytes`. Raises `Corrupt` for a file that is not text, and for
    one that expands too far.
    """
    with open_bytes(landed, content) as file:
        head = file.read(HEAD_BYTES)
        file.seek(0)
        require_text(head)
        if not head.startswith(GZIP_MAGIC) and not landed.path.endswith(".gz"):
            yield file
        else:
            with gzip.GzipFile(fileobj=file) as text:
                require_text(text.peek(HEAD_BYTES))
                expansion = Expansion(landed.size)
                yield watched(cast("BinaryIO", text), lambda _, data: expansion.add(len(data)), seekable=False)
