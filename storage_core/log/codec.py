"""The bytes of version files, and the registry of schemas in a log.

A version file is newline-delimited JSON, compressed with gzip. The functions convert bytes to records and back, without
I/O. Equal actions produce equal bytes on every machine at any time. During decoding, only the records and one line are
in memory, regardless of the decompressed size. Version files of other writers may also be plain text, or gzip data
after the bytes `01 01`. Version files of other writers contain no commit information. The module can read both
compressed and plain version files.

The schema registry keeps one copy of each document mapping, addressed by a hash of its canonical form.
`add.docMappingRef` contains the hash. `metaData.configuration` contains the text of the schema under the key
`docMappingSchema.<hash>`. Programs other than Tidemark also use the hash without the prefix `docMappingSchema.` as the
key. Tidemark reads both kinds of keys, and writes only keys with the prefix.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from storage_core.base.errors import Corrupt, InvalidInput
from storage_core.base.text import quoted, repeated
from storage_core.data.formats.keys import version_key
from storage_core.log.actions import (
    Action,
    Add,
    CommitInfo,
    IndexSegment,
    MergeSkip,
    Metadata,
    Remove,
    RemoveIndexSegment,
    RemoveTranslation,
    Translation,
    from_json_object,
    to_json_object,
)
from storage_core.log.deletion_vector import is_data_path

GZIP_MAGIC = b"\x1f\x8b"
DOUBLED_MAGIC = b"\x01\x01"


def gzip_in(data: bytes) -> bytes | None:
    """Return the gzip data of a file, recognized by its first bytes, or None for plain text."""
    if data.startswith(DOUBLED_MAGIC + GZIP_MAGIC):
        return data[len(DOUBLED_MAGIC) :]
    return data if data.startswith(GZIP_MAGIC) else None


def time_of_unnamed_commit(actions: Iterable[Action], previous: int) -> int:
    """Return the time in ms of a version without `commitInfo`.

    The result is the newest time in the actions of the version. The time is always later than `previous`.
    """
    return max([previous + 1, *_named_times(actions)])


def _named_times(actions: Iterable[Action]) -> Iterator[int]:
    for action in actions:
        match action:
            case Add():
                yield action.modificationTime
            case Remove():
                yield action.deletionTimestamp or 0
            case Metadata():
                yield action.createdTime or 0
            case _:
                pass


PREFIX = "docMappingSchema."
HASH_LENGTH = 16
RENORMALIZE_ABOVE = 5


def canonical(text: str) -> str:
    """Return the canonical form of a JSON text. The canonical form of invalid JSON is the text itself.

    Object keys are sorted at every depth. An array of objects that all have a `name` is stably sorted by `name`. The
    result is compact and not escaped to ASCII.
    """
    try:
        return json.dumps(_ordered(json.loads(text)), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def schema_hash(text: str) -> str:
    """Return the registry hash: 16 characters of URL-safe base64 of the SHA-256 of the canonical form."""
    digest = hashlib.sha256(canonical(text).encode()).digest()
    return base64.urlsafe_b64encode(digest).decode()[:HASH_LENGTH]


def registry(configuration: Mapping[str, str]) -> dict[str, str]:
    """Return all registered schemas by their bare hashes, sorted by hash."""
    found = {key.removeprefix(PREFIX): value for key, value in configuration.items() if key.startswith(PREFIX)}
    return dict(sorted(found.items()))


def with_registry(configuration: Mapping[str, str], registered: Mapping[str, str]) -> dict[str, str]:
    """Return `configuration` plus the schemas that a state stores separately.

    The keys of these schemas may be bare or prefixed.
    """
    found = dict(configuration)
    for key, value in registered.items():
        found.setdefault(PREFIX + key.removeprefix(PREFIX), value)
    return found


def renames(configuration: Mapping[str, str]) -> dict[str, str]:
    """Return the new hash for each registered hash that a checkpoint replaces.

    A registered hash is replaced if it differs from the computed hash of its schema. If the JSON of two schemas differs
    only in the order of entries, both schemas get the same hash and become one schema. The result is empty if at most
    five schemas are registered. A rewrite of all entries would then cost more than it saves.
    """
    registered = registry(configuration)
    if len(registered) <= RENORMALIZE_ABOVE:
        return {}
    return {found: wanted for found, text in registered.items() if (wanted := schema_hash(text)) != found}


def renormalized(configuration: Mapping[str, str]) -> dict[str, str]:
    """Return the configuration with each registered schema once: in canonical form, under the hash of that form."""
    others = {key: value for key, value in configuration.items() if not key.startswith(PREFIX)}
    return others | {PREFIX + schema_hash(text): canonical(text) for text in registry(configuration).values()}


def _ordered(value: object) -> object:
    if isinstance(value, dict):
        return {key: _ordered(each) for key, each in value.items()}
    if isinstance(value, list):
        elements = [_ordered(each) for each in value]
        if all(isinstance(each, dict) and "name" in each for each in elements):
            return sorted(cast("list[dict[str, object]]", elements), key=_name)
        return elements
    return value


def _name(element: Mapping[str, object]) -> str:
    name = element["name"]
    return name if isinstance(name, str) else json.dumps(name, sort_keys=True)


_OF_OBJECTS = (Add, Remove, MergeSkip, IndexSegment, RemoveIndexSegment, Translation, RemoveTranslation)

MAX_EXPANDED_BYTES = 512 * 2**20
MAX_LINE_BYTES = 16 * 2**20
MAX_LINES = 5_000_000

_GZIP_WINDOW = 31
_CHUNK_BYTES = 64 * 2**10


def encode_line(action: Action) -> str:
    """Return one action as a line of JSON without a newline.

    Raises `InvalidInput` for values that JSON cannot represent.
    """
    try:
        return json.dumps(to_json_object(action), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the action {action.NAME!r} cannot be written as JSON: {error}") from error


def encode_version(actions: Iterable[Action]) -> bytes:
    """Return the bytes of a version file: one line per action, compressed with gzip, without a time stamp.

    Raises `InvalidInput` for values that JSON or UTF-8 cannot represent.
    """
    text = "".join(encode_line(action) + "\n" for action in actions)
    compressor = zlib.compressobj(6, zlib.DEFLATED, _GZIP_WINDOW)
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"an action holds text that is not valid Unicode: {error.reason}") from error
    return compressor.compress(data) + compressor.flush()


def decode_version(data: bytes, where: str) -> list[Action]:
    """Return the actions of a version file in order. The file may be in any supported form.

    Args:
        where: The key of the file.

    Raises:
        Corrupt: The file is damaged, contains two commits, or exceeds `MAX_EXPANDED_BYTES`, `MAX_LINE_BYTES` or
            `MAX_LINES`. The error names the key and the line.
        Unsupported: This release does not support an action.
    """
    if not data:  # No writer writes an empty file. Skipping this version would lose its changes.
        raise Corrupt(f"{where}: empty. Expected at least one action", key=where)
    actions: list[Action] = []
    number = 0
    for number, line in enumerate(_lines(expanded(data, where), where), start=1):
        if number > MAX_LINES:
            raise Corrupt(f"{where}: more than {MAX_LINES} lines. A version file never has more lines", key=where)
        if line and not line.isspace():
            actions.append(decode_line(_text(line, where, number), f"{where}, line {number}"))
    _require_one_commit(actions, where)
    return actions


def decode_numbered(data: bytes, version: int) -> list[Action]:
    """Return the actions of the file of `version`.

    Raises the errors of `decode_version`, and `Corrupt` if the file contains a different number.
    """
    actions = decode_version(data, version_key(version))
    require_number(actions, version)
    return actions


def require_number(actions: Sequence[Action], version: int) -> None:
    """Raise `Corrupt` if a version file contains another number than its key. The number in the key is `version`."""
    info = commit_info(actions)
    if info is not None and info.version is not None and info.version != version:
        key = version_key(version)
        raise Corrupt(f"{key}: the file contains version {info.version}. The content is not what was written", key=key)


def decode_line(line: str, where: str) -> Action:
    """Return the action of one line, with every field of the right type. Raises `Corrupt` or `Unsupported`."""
    try:
        value = _DECODER.decode(line)
        if "\\ud" in line or "\\uD" in line:  # Only these escapes can start half a character (a lone surrogate).
            json.dumps(value, ensure_ascii=False).encode()
    except (json.JSONDecodeError, RecursionError) as error:
        raise Corrupt(f"{where}: not JSON", key=where) from error
    except UnicodeError as error:
        raise Corrupt(f"{where}: a text has an incomplete character (a lone surrogate)", key=where) from error
    except ValueError as error:  # the hooks of the decoder raise this error
        raise Corrupt(f"{where}: not JSON: {error}", key=where) from error
    if not isinstance(value, dict):
        raise Corrupt(f"{where}: expected a JSON object, found {quoted(line)}", key=where)
    action = from_json_object(value, where)
    if isinstance(action, _OF_OBJECTS) and not is_data_path(action.path):
        raise Corrupt(f"{where}: the path {quoted(action.path, 200)} leads out of the table or its data", key=where)
    if isinstance(action, Add) and action.deletionVector is not None:
        _require_rows(action, where)
    if isinstance(action, Translation):
        _require_moves(action, where)
    if isinstance(action, IndexSegment) and action.coveredRows is not None:
        _require_members(action, where)
    return action


def commit_info(actions: Sequence[Action]) -> CommitInfo | None:
    """Return the commit information of a version, or None. Logs of other writers may have no commit information."""
    return next((action for action in actions if isinstance(action, CommitInfo)), None)


def _require_one_commit(actions: Sequence[Action], where: str) -> None:
    """Check that a version file contains at most one commit, and that a numbered `commitInfo` comes first."""
    found = [number for number, action in enumerate(actions) if isinstance(action, CommitInfo)]
    if len(found) > 1:
        raise Corrupt(f"{where}: {len(found)} commits in one file. The content is not what was written", key=where)
    info = commit_info(actions)
    if found and found[0] > 0 and info is not None and info.version is not None:
        raise Corrupt(f"{where}: expected `commitInfo` first, found it after {found[0]} actions", key=where)


def _require_rows(add: Add, where: str) -> None:
    """Check that a deletion vector covers no more rows than the split has."""
    deleted = 0 if add.deletionVector is None else add.deletionVector.cardinality
    if add.numRecords is not None and deleted > add.numRecords:
        raise Corrupt(f"{where}: the deletion vector has {deleted} rows, but the split has {add.numRecords}", key=where)


def _require_moves(translation: Translation, where: str) -> None:
    """Check that the counts match the inputs and outputs. An input must not lose more rows than it has."""
    inputs, outputs = len(translation.inputs), len(translation.outputs)
    if len(translation.inputRows) != inputs or len(translation.movedRows) != inputs * outputs:
        counts = f"{len(translation.inputRows)} and {len(translation.movedRows)} counts"
        raise Corrupt(f"{where}: the translation has {counts} for {inputs} inputs and {outputs} outputs", key=where)
    for number, rows in enumerate(translation.inputRows):
        moved = sum(translation.movedRows[number * outputs : (number + 1) * outputs])
        if moved > rows:
            raise Corrupt(
                f"{where}: {moved} rows of {translation.inputs[number]} moved, but it has {rows} rows", key=where
            )


def _require_members(segment: IndexSegment, where: str) -> None:
    """Check that a merged segment has a row count for each split and no split twice. The counts must add up."""
    splits, rows, origins = len(segment.covers), segment.coveredRows or (), segment.coveredOrigins
    if len(rows) != splits or (origins is not None and len(origins) != splits) or len(set(segment.covers)) != splits:
        counts = f"{len(rows)} counts and {0 if origins is None else len(origins)} lists of origins"
        raise Corrupt(f"{where}: {segment.path} has {counts} for {splits} splits, or covers a split twice", key=where)
    if sum(rows) != segment.numRecords:
        raise Corrupt(
            f"{where}: the counts of {splits} splits do not add up to the {segment.numRecords} rows of {segment.path}"
        )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse equal keys in one object, because different readers use different values."""
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
    """Yield the lines without newlines. A line that spans many chunks is joined only once."""
    pending: list[bytes] = []
    waiting = 0
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        waiting += len(first)
        if max(waiting, *map(len, others), 0) > MAX_LINE_BYTES:
            raise Corrupt(
                f"{where}: a line of more than {MAX_LINE_BYTES} bytes. A version file never has a longer line",
                key=where,
            )
        pending.append(first)
        if others:
            yield b"".join(pending)
            yield from others[:-1]
            pending, waiting = [others[-1]], len(others[-1])
    yield b"".join(pending)


def expanded(data: bytes, where: str) -> Iterator[bytes]:
    """Yield the content of a file in any supported form, in pieces.

    The total size of the pieces is at most `MAX_EXPANDED_BYTES`.

    Raises `Corrupt` if the gzip data is damaged or incomplete, or if the content exceeds the limit.
    """
    room = MAX_EXPANDED_BYTES
    packed = gzip_in(data)
    for piece in _pieces(data) if packed is None else _gunzipped(packed, where):
        room -= len(piece)
        if room < 0:
            raise Corrupt(
                f"{where}: expands to more than {MAX_EXPANDED_BYTES} bytes. A version file is never larger", key=where
            )
        yield piece


def _pieces(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _CHUNK_BYTES):
        yield data[start : start + _CHUNK_BYTES]


def _gunzipped(data: bytes, where: str) -> Iterator[bytes]:
    """Yield the content of all gzip members, in pieces of at most one chunk."""
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
        # Output may remain in the decompressor after all input is consumed.
        while not stream.eof and (part := stream.decompress(b"", _CHUNK_BYTES)):
            yield part
    except zlib.error as error:
        raise Corrupt(f"{where}: it is damaged, because it cannot be decompressed", key=where) from error
    if started and not stream.eof:
        raise Corrupt(f"{where}: it is truncated after {len(data)} bytes", key=where)
