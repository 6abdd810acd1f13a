"""Keys below `_iceberg/metadata/`: the metadata of the Iceberg mirror, by the names that readers look for."""

from __future__ import annotations

import re

from storage_core.formats.keys.parsed import KeyKind, ParsedKey
from storage_core.formats.keys.parts import uuid

ICEBERG_FOLDER = "_iceberg"
"""The folder that is the location of the Iceberg table: its hint and metadata are found from there."""

ICEBERG_PREFIX = f"{ICEBERG_FOLDER}/metadata/"

_METADATA = re.compile(r"v([1-9][0-9]{0,18})\.metadata\.json", re.ASCII)
_LIST = re.compile(r"snap-(0|[1-9][0-9]{0,18})-([0-9a-f-]{36})\.avro", re.ASCII)
_MANIFEST = re.compile(r"([0-9a-f-]{36})-m0\.avro", re.ASCII)


def iceberg_metadata_key(number: int) -> str:
    """Return the key of one metadata file; they are numbered from 1."""
    return f"{ICEBERG_PREFIX}v{number}.metadata.json"


def iceberg_list_key(snapshot_id: int, id_: str) -> str:
    """Return the key of the manifest list of a snapshot."""
    return f"{ICEBERG_PREFIX}snap-{snapshot_id}-{uuid(id_)}.avro"


def iceberg_manifest_key(id_: str) -> str:
    """Return the key of a manifest."""
    return f"{ICEBERG_PREFIX}{uuid(id_)}-m0.avro"


def iceberg_hint_key() -> str:
    """Return the key of the hint that has the number of a metadata file."""
    return f"{ICEBERG_PREFIX}version-hint.text"


def parse_iceberg(key: str, parts: list[str]) -> ParsedKey | None:
    """Return the parsed key, None for no key of this folder; see `grammar.parse`. `parts` are those behind it.

    Raises `InvalidInput` for what is none, too.
    """
    if key == iceberg_hint_key():
        return ParsedKey(kind=KeyKind.ICEBERG_HINT, key=key)
    name = parts[1] if len(parts) == 2 and parts[0] == "metadata" else ""
    if found := _METADATA.fullmatch(name):
        return ParsedKey(kind=KeyKind.ICEBERG_METADATA, key=key, version=int(found[1]))
    if found := _LIST.fullmatch(name):
        return ParsedKey(kind=KeyKind.ICEBERG_LIST, key=key, version=int(found[1]), id=uuid(found[2]))
    if found := _MANIFEST.fullmatch(name):
        return ParsedKey(kind=KeyKind.ICEBERG_MANIFEST, key=key, id=uuid(found[1]))
    return None
