"""Version files as bytes: newline-delimited JSON behind gzip, and the dialects out there (design pages 02, 09).

Pure: bytes to records and back, no I/O. Encoding the same actions gives the same bytes on every machine and day.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields

from storage_core.errors import Corrupt, InvalidInput
from storage_core.log.actions import (
    Action,
    Add,
    CommitInfo,
    IndexSegment,
    MergeSkip,
    Remove,
    RemoveIndexSegment,
    from_json_object,
    to_json_object,
)

MAX_EXPANDED_BYTES = 512 * 2**20
GZIP_MAGIC = b"\x1f\x8b"
DOUBLED_MAGIC = b"\x01\x01"
_GZIP_WINDOW = 31

_REQUIRED_TYPES: Mapping[str, type] = {"str": str, "int": int, "bool": bool}


def encode_line(action: Action) -> str:
    """Return one action as one line of JSON without its newline; raises `InvalidInput` for what JSON cannot say."""
    try:
        return json.dumps(to_json_object(action), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the action {action.NAME!r} cannot be written as JSON: {error}") from error


def encode_version(actions: Iterable[Action]) -> bytes:
    """Return the bytes of a version file: one line per action, gzip without a time stamp."""
    text = "".join(encode_line(action) + "\n" for action in actions)
    compressor = zlib.compressobj(6, zlib.DEFLATED, _GZIP_WINDOW)
    return compressor.compress(text.encode()) + compressor.flush()


def decode_version(data: bytes, where: str) -> list[Action]:
    """Return the actions of a version file in order, whichever dialect it is in.

    Plain text, gzip, and gzip behind the bytes `01 01` are told apart by their first bytes. `where` is the key of the
    file. Raises `Corrupt` naming key and line, also when the content would expand beyond `MAX_EXPANDED_BYTES`, and
    `Unsupported` for an action that this release does not know.
    """
    text = _expand(data, where)
    return [
        decode_line(line, f"{where}, line {number}")
        for number, line in enumerate(text.split("\n"), start=1)
        if line and not line.isspace()
    ]


def decode_line(line: str, where: str) -> Action:
    """Return the action of one line, its required fields checked; raises `Corrupt` or `Unsupported` naming `where`."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{where}: not JSON: {error}", key=where) from error
    if not isinstance(value, dict):
        raise Corrupt(f"{where}: expected a JSON object, found {line[:80]!r}", key=where)
    action = from_json_object(value, where)
    _check_types(action, where)
    match action:
        case Add() | Remove() | MergeSkip() | IndexSegment() | RemoveIndexSegment():
            if not is_safe_path(action.path):
                raise Corrupt(f"{where}: the path {action.path!r} leaves the table", key=where)
        case _:
            pass
    return action


def commit_info(actions: Sequence[Action]) -> CommitInfo | None:
    """Return the commit information of a version, or None: logs written by others may have none."""
    return next((action for action in actions if isinstance(action, CommitInfo)), None)


def is_safe_path(path: str) -> bool:
    """Tell whether a path from a log entry stays inside the table: relative, no `..`, no control characters."""
    segments = path.split("/")
    return path.isprintable() and "\\" not in path and all(segment not in ("", ".", "..") for segment in segments)


def _expand(data: bytes, where: str) -> str:
    if data.startswith(DOUBLED_MAGIC + GZIP_MAGIC):
        data = data[len(DOUBLED_MAGIC) :]
    if data.startswith(GZIP_MAGIC):
        data = _gunzip(data, where)
    if len(data) > MAX_EXPANDED_BYTES:
        raise _too_large(where)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Corrupt(f"{where}: expected UTF-8 or gzip, found {data[:8].hex(' ')}…", key=where) from error


def _gunzip(data: bytes, where: str) -> bytes:
    """Expand every gzip member, never holding more than the cap."""
    parts: list[bytes] = []
    room = MAX_EXPANDED_BYTES
    while data:
        stream = zlib.decompressobj(_GZIP_WINDOW)
        try:
            # One byte more than the room: a member that fills the room exactly must still reach its end mark.
            part = stream.decompress(data, room + 1)
        except zlib.error as error:
            raise Corrupt(f"{where}: damaged gzip: {error}", key=where) from error
        room -= len(part)
        if room < 0:
            raise _too_large(where)
        if not stream.eof:
            raise Corrupt(f"{where}: gzip ends early after {len(data)} bytes; the file is torn", key=where)
        parts.append(part)
        data = stream.unused_data
    return b"".join(parts)


def _too_large(where: str) -> Corrupt:
    return Corrupt(f"{where}: expands beyond {MAX_EXPANDED_BYTES} bytes; no version file of ours does", key=where)


def _check_types(action: Action, where: str) -> None:
    for name, expected in _CHECKED[type(action)]:
        value = getattr(action, name)
        # bool is an int to Python and never one to the protocol.
        if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
            raise Corrupt(
                f"{where}: {action.NAME}.{name} is {value!r}; expected {expected.__name__}", key=where, field=name
            )


def _checked_fields(kind: Callable[..., Action]) -> tuple[tuple[str, type], ...]:
    # Annotations are text here (postponed evaluation), which is all that a check of required scalars needs.
    return tuple(
        (each.name, _REQUIRED_TYPES[str(each.type)])
        for each in fields(kind)  # type: ignore[arg-type]  # every member of Action is a dataclass
        if str(each.type) in _REQUIRED_TYPES
    )


_CHECKED: Mapping[type[Action], tuple[tuple[str, type], ...]] = {
    kind: _checked_fields(kind) for kind in Action.__args__
}
