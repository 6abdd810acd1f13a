"""Tokens of a history that is read in pages: a moment of a table, and the place in it where the next page begins.

A token is text for its reader to keep, not stored by us: base64url without padding of a format byte, compact JSON and
the xxh3-64 of both. Every format ends in that checksum, so damage is told from a newer release. Pure, no I/O.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any, TypeAlias

import xxhash

from storage_core.errors import InvalidInput, Unsupported
from storage_core.formats.json_fields import number, text

FORMAT_VERSION = 1
_CHECKSUM_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPosition:
    """A read position in a region: a version of its manifest, and the WAL entries `first` to `last` that are behind it.

    `flushed` is the last generation of that manifest, 0 for none. Without such entries `last` is `first` - 1.
    """

    region: str
    manifest: int
    flushed: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class InBase:
    """In the split `path`, or in the first one behind it, before the row at this place in the file."""

    path: str
    row: int


@dataclass(frozen=True, slots=True)
class InGenerations:
    """Before a record of a part (`generation.read_parts`) of a generation; `region` is its place in the token."""

    region: int
    generation: int
    part: int
    record: int


@dataclass(frozen=True, slots=True)
class InTail:
    """Before a record of a WAL entry, which is one that its writer was told of."""

    region: int
    entry: int
    record: int


Place: TypeAlias = InBase | InGenerations | InTail

_PLACES: tuple[type[Place], ...] = (InBase, InGenerations, InTail)

START = InBase("", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryToken:
    """A table's id, the version of its base, the positions of its regions, and where the next page begins.

    `consistency` is what the first page was asked for, `restarts` how often the history began anew.
    """

    table_id: str
    version: int
    consistency: str
    regions: tuple[RegionPosition, ...] = ()
    place: Place = START
    restarts: int = 0


def encode(token: HistoryToken) -> str:
    """Return the text; equal tokens give equal text."""
    body = {
        "t": token.table_id,
        "v": token.version,
        "c": token.consistency,
        "r": [astuple(each) for each in token.regions],
        "p": [_PLACES.index(type(token.place)), *astuple(token.place)],
        "n": token.restarts,
    }
    return _with_checksum(bytes([FORMAT_VERSION]) + json.dumps(body, separators=(",", ":")).encode())


def decode(text: str) -> HistoryToken:
    """Return the token. Raises `InvalidInput` for any other text, `Unsupported` for a token of a newer release."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise _refused(str(error)) from error
    content = data[:-_CHECKSUM_BYTES]
    if not content or _with_checksum(content) != text:
        raise _refused("it does not match its checksum")
    if content[0] != FORMAT_VERSION:
        raise Unsupported(
            f"the history token has format {content[0]}, this release reads {FORMAT_VERSION}; upgrade, or begin "
            "without a token"
        )
    try:
        return _token(json.loads(content[1:]))
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise _refused(repr(error)) from error


def _token(body: dict[str, Any]) -> HistoryToken:
    kind, *fields = body["p"]
    place = _PLACES[number(kind)](*fields)
    positions = tuple(_position(each) for each in body["r"])
    match place:
        case InBase(path, row):
            text(path), number(row)
        case _:
            numbers = [number(each) for each in astuple(place)]
            positions[numbers[0]]  # an index error says that there is no such region
    return HistoryToken(
        table_id=text(body["t"]),
        version=number(body["v"]),
        consistency=text(body["c"]),
        regions=positions,
        place=place,
        restarts=number(body["n"]),
    )


def _position(fields: Sequence[Any]) -> RegionPosition:
    region, *numbers = fields
    manifest, flushed, first, last = map(number, numbers)
    return RegionPosition(region=text(region), manifest=manifest, flushed=flushed, first=first, last=last)


def _with_checksum(content: bytes) -> str:
    data = content + xxhash.xxh3_64_digest(content)
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _refused(why: str) -> InvalidInput:
    return InvalidInput(
        f"not a history token, or not all of it ({why}); give the text of `HistoryPage.token` unchanged, or begin "
        "without a token"
    )
