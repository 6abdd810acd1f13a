r"""Bytes of the Delta log: commits, inline deletion vectors and the hint, as Delta's protocol has them. Pure.

A commit is newline-delimited JSON, one action per line. What the mirror says of itself stands in `commitInfo`, where
Delta admits anything; every other reader passes over it. Text is UTF-8 without `\u` escapes for characters above
U+FFFF: the JSON decoder of delta-rs adds the two halves of such an escape to another character.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from storage_core.errors import Corrupt
from storage_core.formats.json_fields import number, text

OWN: Final = "tidemark"
"""The field of `commitInfo` that is ours, the application of our transactions, and the feature that keeps writers out.

A writer that does not know a feature of a table must not write it, nor vacuum it; a reader passes over it.
"""

ENCODING: Final = "utf-8"
"""What a commit says of itself when no commit up to it has statistics with escapes that other readers misread."""

Json = dict[str, Any]

_MAGIC: Final = 1681511377
_BASE85: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85: Final = bytes.maketrans(_BASE85, _Z85)
_FROM_Z85: Final = bytes(_BASE85[_Z85.index(each)] if each in _Z85 else ord(" ") for each in range(256))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a commit of the mirror shows: a version of a table, and what the commits up to it have declared.

    `features` are those that readers need, `metadata` is a checksum of what was declared last. `widened` are the
    columns that had narrower numbers once, by the names that splits have for them. `after` is the version that the
    commit before shows, None where there is none; `id` is the commit's own. `encoding` is `ENCODING`, or empty in
    commits of releases that escaped text.
    """

    table_id: str
    version: int
    after: int | None
    published_at_ms: int
    id: str
    features: tuple[str, ...] = ()
    metadata: str = ""
    widened: tuple[str, ...] = ()
    encoding: str = ""

    def to_json(self) -> Json:
        """Return the object that stands in `commitInfo`."""
        return {
            "tableId": self.table_id,
            "version": self.version,
            "after": self.after,
            "publishedAtMs": self.published_at_ms,
            "id": self.id,
            "features": list(self.features),
            "metadata": self.metadata,
            "widened": list(self.widened),
            **({"encoding": self.encoding} if self.encoding else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorCommit:
    """A commit as read: what it shows, None of one that the mirror did not write, and its files by their keys.

    `added` has the descriptors of deletion vectors, None where there is none. `schema` is the text of its `metaData`.
    """

    version: int
    shown: Shown | None
    added: Mapping[str, Json | None]
    removed: frozenset[str]
    schema: str | None


def encode(actions: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the bytes of a commit."""
    return "".join(json.dumps(each, separators=(",", ":"), ensure_ascii=False) + "\n" for each in actions).encode()


def decode(data: bytes, version: int, where: str) -> MirrorCommit:
    """Return the commit in these bytes. Raises `Corrupt` naming `where`."""
    try:
        actions = [json.loads(line) for line in data.splitlines() if line.strip()]
        infos, adds, removes, metadata = (
            [each[name] for each in actions if each.get(name) is not None]
            for name in ("commitInfo", "add", "remove", "metaData")
        )
        own = next((each[OWN] for each in infos if OWN in each), None)
        return MirrorCommit(
            version=version,
            shown=None if own is None else _shown(own),
            added={unquote(each["path"]): each.get("deletionVector") for each in adds},
            removed=frozenset(unquote(each["path"]) for each in removes),
            schema=next((str(each["schemaString"]) for each in metadata), None),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(f"{where}: not a commit of a Delta log: {error!r}", key=where) from error


def path_of(key: str) -> str:
    """Return the path of an object as Delta has it: a URI relative to the table."""
    return quote(key, safe="/=")


def key_of(path: str) -> str:
    """Return the key behind a path that `path_of` made."""
    return unquote(path)


def vector(bitmap: bytes, cardinality: int) -> Json:
    """Return the descriptor of an inline deletion vector; `bitmap` is a portable Roaring bitmap of 32 bits, not empty.

    Delta wants one of 64 bits, which is one of 32 bits behind the number of them and the high half of its rows.
    """
    data = struct.pack("<IQI", _MAGIC, 1, 0) + bitmap
    return {"storageType": "i", "pathOrInlineDv": z85(data), "sizeInBytes": len(data), "cardinality": cardinality}


def z85(data: bytes) -> str:
    """Return the bytes in the base 85 of ZeroMQ, behind zeros that make them whole words."""
    return base64.b85encode(data, pad=True).translate(_TO_Z85).decode()


def unz85(text: str) -> bytes:
    """Return the bytes of a text in the base 85 of ZeroMQ. Raises `ValueError` for what is none."""
    return base64.b85decode(text.encode("ascii").translate(_FROM_Z85))


def encode_hint(version: int, *, actions: int, size_bytes: int, files: int) -> bytes:
    """Return the bytes of `_last_checkpoint`."""
    body = {"version": version, "size": actions, "sizeInBytes": size_bytes, "numOfAddFiles": files}
    return json.dumps(body, separators=(",", ":")).encode()


def decode_hint(data: bytes) -> int | None:
    """Return the Delta version that the hint names; None for anything else, as a hint is nothing to rely on."""
    try:
        return number(json.loads(data).get("version"))
    except (ValueError, AttributeError, RecursionError):
        return None


def _shown(own: Any) -> Shown:
    return Shown(
        table_id=text(own["tableId"]),
        version=number(own["version"]),
        after=None if own["after"] is None else number(own["after"]),
        published_at_ms=number(own["publishedAtMs"]),
        id=text(own["id"]),
        features=tuple(map(text, own["features"])),
        metadata=text(own["metadata"]),
        widened=tuple(map(text, own["widened"])),
        encoding=text(own.get("encoding", "")),
    )
