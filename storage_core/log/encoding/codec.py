"""Version files as bytes: newline-delimited JSON behind gzip.

Pure: bytes to records and back, no I/O. Encoding the same actions gives the same bytes on every machine and day.
Decoding holds one line at a time beside the records, whatever the bytes expand to.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from storage_core.errors import Corrupt, InvalidInput
from storage_core.foreign_text import quoted
from storage_core.formats.keys import version_key
from storage_core.log.actions import (
    Action,
    Add,
    CommitInfo,
    IndexSegment,
    MergeSkip,
    Remove,
    RemoveIndexSegment,
    RemoveTranslation,
    Translation,
    from_json_object,
    to_json_object,
)
from storage_core.log.encoding.safe_path import is_data_path
from storage_core.log.interop.version_files import gzip_in
from storage_core.repeated import repeated

_OF_OBJECTS = (Add, Remove, MergeSkip, IndexSegment, RemoveIndexSegment, Translation, RemoveTranslation)

MAX_EXPANDED_BYTES = 512 * 2**20
MAX_LINE_BYTES = 16 * 2**20
MAX_LINES = 5_000_000

_GZIP_WINDOW = 31
_CHUNK_BYTES = 64 * 2**10


def encode_line(action: Action) -> str:
    """Return one action as one line of JSON without its newline; raises `InvalidInput` for what JSON cannot say."""
    try:
        return json.dumps(to_json_object(action), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the action {action.NAME!r} cannot be written as JSON: {error}") from error


def encode_version(actions: Iterable[Action]) -> bytes:
    """Return the bytes of a version file: one line per action, gzip without a time stamp.

    Raises `InvalidInput` for what JSON or UTF-8 cannot say.
    """
    text = "".join(encode_line(action) + "\n" for action in actions)
    compressor = zlib.compressobj(6, zlib.DEFLATED, _GZIP_WINDOW)
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"an action holds text that is not valid Unicode: {error.reason}") from error
    return compressor.compress(data) + compressor.flush()


def decode_version(data: bytes, where: str) -> list[Action]:
    """Return the actions of a version file in order, whichever dialect it is in.

    `where` is the key of the file. Raises `Corrupt` naming key and line, also beyond `MAX_EXPANDED_BYTES`,
    `MAX_LINE_BYTES` or `MAX_LINES` and for two commits in one file, and `Unsupported` for an action that this release
    does not know.
    """
    if not data:  # nobody writes nothing: skipping the version would lose what it did
        raise Corrupt(f"{where}: empty; expected at least one action", key=where)
    actions: list[Action] = []
    number = 0
    for number, line in enumerate(_lines(expanded(data, where), where), start=1):
        if number > MAX_LINES:
            raise Corrupt(f"{where}: more than {MAX_LINES} lines; no version file of ours has them", key=where)
        if line and not line.isspace():
            actions.append(decode_line(_text(line, where, number), f"{where}, line {number}"))
    _require_one_commit(actions, where)
    return actions


def decode_numbered(data: bytes, version: int) -> list[Action]:
    """Return the actions of the file of `version`. Raises as `decode_version`, and when it says another number."""
    actions = decode_version(data, version_key(version))
    require_number(actions, version)
    return actions


def require_number(actions: Sequence[Action], version: int) -> None:
    """Raise `Corrupt` for the actions of a version file that says another number than that of its key, `version`."""
    info = commit_info(actions)
    if info is not None and info.version is not None and info.version != version:
        key = version_key(version)
        raise Corrupt(f"{key}: holds version {info.version}; it is not what was written", key=key)


def decode_line(line: str, where: str) -> Action:
    """Return the action of one line, every field of its type; raises `Corrupt` or `Unsupported` naming `where`."""
    try:
        value = _DECODER.decode(line)
        if "\\ud" in line or "\\uD" in line:  # the only spellings in which half a character can come
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{where}: not JSON: {error}", key=where) from error
    if not isinstance(value, dict):
        raise Corrupt(f"{where}: expected a JSON object, found {quoted(line)}", key=where)
    action = from_json_object(value, where)
    if isinstance(action, _OF_OBJECTS) and not is_data_path(action.path):
        raise Corrupt(f"{where}: the path {quoted(action.path, 200)} leaves the table or its data", key=where)
    if isinstance(action, Add) and action.deletionVector is not None:
        _require_rows(action, where)
    if isinstance(action, Translation):
        _require_moves(action, where)
    if isinstance(action, IndexSegment) and action.coveredRows is not None:
        _require_members(action, where)
    return action


def commit_info(actions: Sequence[Action]) -> CommitInfo | None:
    """Return the commit information of a version, or None: logs written by others may have none."""
    return next((action for action in actions if isinstance(action, CommitInfo)), None)


def _require_one_commit(actions: Sequence[Action], where: str) -> None:
    """A version is one commit. Ours, which say their number, say it first; those of others may say nothing at all."""
    found = [number for number, action in enumerate(actions) if isinstance(action, CommitInfo)]
    if len(found) > 1:
        raise Corrupt(f"{where}: {len(found)} commits in one file; it is not what was written", key=where)
    info = commit_info(actions)
    if found and found[0] > 0 and info is not None and info.version is not None:
        raise Corrupt(f"{where}: expected `commitInfo` first, found it behind {found[0]} actions", key=where)


def _require_rows(add: Add, where: str) -> None:
    """A vector never covers more rows than the split has."""
    deleted = 0 if add.deletionVector is None else add.deletionVector.cardinality
    if add.numRecords is not None and deleted > add.numRecords:
        raise Corrupt(f"{where}: the deletion vector covers {deleted} rows of {add.numRecords}", key=where)


def _require_moves(translation: Translation, where: str) -> None:
    """The counts are those of the inputs and outputs, and no input gives more rows than it has."""
    inputs, outputs = len(translation.inputs), len(translation.outputs)
    if len(translation.inputRows) != inputs or len(translation.movedRows) != inputs * outputs:
        counts = f"{len(translation.inputRows)} and {len(translation.movedRows)} counts"
        raise Corrupt(f"{where}: {counts} of {inputs} inputs and {outputs} outputs", key=where)
    for number, rows in enumerate(translation.inputRows):
        moved = sum(translation.movedRows[number * outputs : (number + 1) * outputs])
        if moved > rows:
            raise Corrupt(f"{where}: {moved} rows moved of the {rows} of {translation.inputs[number]}", key=where)


def _require_members(segment: IndexSegment, where: str) -> None:
    """Every split of a merged segment has its count, they make up its rows, and none is there twice."""
    splits, rows, origins = len(segment.covers), segment.coveredRows or (), segment.coveredOrigins
    if len(rows) != splits or (origins is not None and len(origins) != splits) or len(set(segment.covers)) != splits:
        counts = f"{len(rows)} counts and {0 if origins is None else len(origins)} lists of origins"
        raise Corrupt(f"{where}: {counts} of {splits} splits, or a split twice, in {segment.path}", key=where)
    if sum(rows) != segment.numRecords:
        raise Corrupt(f"{where}: the rows of {splits} splits are not the {segment.numRecords} rows of {segment.path}")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Which of two equal keys counts differs between readers, so neither does."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"the key {quoted(repeated(name for name, _ in pairs)[0])} occurs twice in one object")
    return found


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique)


def _text(line: bytes, where: str, number: int) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        found = f"{where}, line {number}: expected UTF-8 or gzip, found {line[:8].hex(' ')}…"
        raise Corrupt(found, key=where) from error


def _lines(chunks: Iterable[bytes], where: str) -> Iterator[bytes]:
    """Yield the lines without their newlines; a line that goes on over many chunks is put together once."""
    pending: list[bytes] = []
    waiting = 0
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        waiting += len(first)
        if max(waiting, *map(len, others), 0) > MAX_LINE_BYTES:
            raise Corrupt(f"{where}: a line of more than {MAX_LINE_BYTES} bytes; no version file has one", key=where)
        pending.append(first)
        if others:
            yield b"".join(pending)
            yield from others[:-1]
            pending, waiting = [others[-1]], len(others[-1])
    yield b"".join(pending)


def expanded(data: bytes, where: str) -> Iterator[bytes]:
    """Yield the content of a file in any of the dialects, in pieces; together they never exceed the cap.

    Raises `Corrupt` where the gzip is damaged or torn, or the cap is met.
    """
    room = MAX_EXPANDED_BYTES
    packed = gzip_in(data)
    for piece in _pieces(data) if packed is None else _gunzipped(packed, where):
        room -= len(piece)
        if room < 0:
            raise Corrupt(
                f"{where}: expands beyond {MAX_EXPANDED_BYTES} bytes; no version file of ours does", key=where
            )
        yield piece


def _pieces(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _CHUNK_BYTES):
        yield data[start : start + _CHUNK_BYTES]


def _gunzipped(data: bytes, where: str) -> Iterator[bytes]:
    """Yield the content of every gzip member, at most a chunk at a time."""
    stream = zlib.decompressobj(_GZIP_WINDOW)
    started = False
    try:
        for piece in _pieces(data):
            rest = piece
            while rest:
                if stream.eof:
                    stream, started = zlib.decompressobj(_GZIP_WINDOW), False
                started = True
                yield stream.decompress(rest, _CHUNK_BYTES)
                rest = stream.unused_data if stream.eof else stream.unconsumed_tail
        # Output can be left inside although all input is consumed.
        while not stream.eof and (part := stream.decompress(b"", _CHUNK_BYTES)):
            yield part
    except zlib.error as error:
        raise Corrupt(f"{where}: damaged gzip: {error}", key=where) from error
    if started and not stream.eof:
        raise Corrupt(f"{where}: gzip ends early after {len(data)} bytes; the file is torn", key=where)
