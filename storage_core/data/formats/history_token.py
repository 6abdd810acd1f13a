"""Tokens of a history that is read in pages.

A token contains a read position of a table and the start of the next page.

The reader keeps the token as a text. Tidemark does not store the token. The text consists of a format byte, compact
JSON, and the xxh3-64 of both, in base64url without padding. Every format ends with this checksum, so a damaged token
can be distinguished from a newer format. This module does no I/O.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, TypeAlias

import xxhash

from storage_core.base.errors import InvalidInput, Unsupported
from storage_core.data.formats.json_document import number, text

FORMAT_VERSION = 1
WITH_RAW_LOGS = 2
"""The format of a token with chunks of raw logs."""
_CHECKSUM_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPosition:
    """A read position in a region.

    Attributes:
        region: The id of the region.
        manifest: A version of the region's manifest.
        flushed: The last generation in that manifest. 0 if there are no generations.
        first: The first WAL entry after that manifest.
        last: The last WAL entry to read. `first` - 1 if there are no entries.
    """

    region: str
    manifest: int
    flushed: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRun:
    """Chunks `first` to `last` of a writer of a raw log."""

    writer: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RawPosition:
    """The part of a raw log that a history reads.

    Attributes:
        name: The name of the raw log.
        rounds: The chunks in order. Each round contains the chunks that one round of a distribution would copy.
        further: For each region and writer, the last chunk in the region, if this chunk is after the offset in the
            table's log.
    """

    name: str
    rounds: tuple[tuple[RawRun, ...], ...]
    further: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InBase:
    """A position in the base.

    The position is before the row with this number in the split `path`, or in the first split after `path`.
    """

    path: str
    row: int


@dataclass(frozen=True, slots=True)
class InGenerations:
    """A position before a record in a part (`generation.read_parts`) of a generation.

    `region` is an index into the regions of the token.
    """

    region: int
    generation: int
    part: int
    record: int


@dataclass(frozen=True, slots=True)
class InTail:
    """A position before a record of an acknowledged WAL entry.

    `region` is an index into the regions of the token.
    """

    region: int
    entry: int
    record: int


@dataclass(frozen=True, slots=True)
class InRaw:
    """A position before a record of the table in a raw log. `log` is the index of the raw log in `HistoryToken.raw`."""

    log: int
    record: int


Place: TypeAlias = InBase | InGenerations | InTail | InRaw

_PLACES: tuple[type[Place], ...] = (InBase, InGenerations, InTail, InRaw)

START = InBase("", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryToken:
    """The position of a reader in the history of a table.

    Attributes:
        table_id: The id of the table.
        version: The version of its base.
        consistency: The consistency level of the first page.
        regions: The read positions of its regions.
        raw: The parts of raw logs that are read.
        place: The position at which the next page begins.
        restarts: The number of times that the history was started again.
    """

    table_id: str
    version: int
    consistency: str
    regions: tuple[RegionPosition, ...] = ()
    raw: tuple[RawPosition, ...] = ()
    place: Place = START
    restarts: int = 0


def encode(token: HistoryToken) -> str:
    """Return the text of the token. Equal tokens have equal texts."""
    body: dict[str, Any] = {
        "t": token.table_id,
        "v": token.version,
        "c": token.consistency,
        "r": [astuple(each) for each in token.regions],
        "p": [_PLACES.index(type(token.place)), *astuple(token.place)],
        "n": token.restarts,
    }
    if token.raw:
        body["w"] = [[each.name, [_runs(own) for own in each.rounds], each.further] for each in token.raw]
    version = WITH_RAW_LOGS if token.raw else FORMAT_VERSION
    return _with_checksum(bytes([version]) + json.dumps(body, separators=(",", ":")).encode())


def decode(text: str) -> HistoryToken:
    """Return the token. Raises `InvalidInput` for any other text, and `Unsupported` for a token of a newer release."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise _refused(str(error)) from error
    content = data[:-_CHECKSUM_BYTES]
    if not content or _with_checksum(content) != text:
        raise _refused("the token does not match its checksum")
    if content[0] not in (FORMAT_VERSION, WITH_RAW_LOGS):
        raise Unsupported(
            f"the history token has format {content[0]}, this release reads up to {WITH_RAW_LOGS}. Upgrade, or begin "
            "without a token"
        )
    try:
        return _token(json.loads(content[1:]))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise _refused(repr(error)) from error


def _token(body: dict[str, Any]) -> HistoryToken:
    kind, *fields = body["p"]
    place = _PLACES[number(kind)](*fields)
    positions = tuple(_position(each) for each in body["r"])
    raw = tuple(_raw_position(*each) for each in body.get("w", ()))
    match place:
        case InBase(path, row):
            text(path), number(row)
        case InRaw(log, record):
            number(record), raw[number(log)]
        case _:
            numbers = [number(each) for each in astuple(place)]
            positions[numbers[0]]  # raises IndexError if the token has no region with this number
    return HistoryToken(
        table_id=text(body["t"]),
        version=number(body["v"]),
        consistency=text(body["c"]),
        regions=positions,
        raw=raw,
        place=place,
        restarts=number(body["n"]),
    )


def _runs(runs: Sequence[RawRun]) -> list[tuple[Any, ...]]:
    return [astuple(each) for each in runs]


def _raw_position(name: Any, rounds: Any, further: Any) -> RawPosition:
    return RawPosition(
        name=text(name),
        rounds=tuple(tuple(_run(*each) for each in runs) for runs in rounds),
        further={
            text(region): {text(writer): number(last) for writer, last in own.items()}
            for region, own in further.items()
        },
    )


def _run(writer: Any, first: Any, last: Any) -> RawRun:
    return RawRun(writer=text(writer), first=number(first), last=number(last))


def _position(fields: Sequence[Any]) -> RegionPosition:
    region, *numbers = fields
    manifest, flushed, first, last = map(number, numbers)
    return RegionPosition(region=text(region), manifest=manifest, flushed=flushed, first=first, last=last)


def _with_checksum(content: bytes) -> str:
    data = content + xxhash.xxh3_64_digest(content)
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _refused(why: str) -> InvalidInput:
    return InvalidInput(
        f"not a history token, or not all of it ({why}). Give the text of `HistoryPage.token` unchanged, or begin "
        "without a token"
    )
