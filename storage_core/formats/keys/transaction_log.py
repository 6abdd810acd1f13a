"""Keys below `_transaction_log/`: version files, checkpoints of both forms, and the hint."""

from __future__ import annotations

import re

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.formats.keys.parsed import KeyKind, ParsedKey, exact
from storage_core.formats.keys.parts import integer, matching, uuid

LOG_PREFIX = "_transaction_log/"
VERSIONS_PREFIX = f"{LOG_PREFIX}0"
"""What every version file starts with (and nothing else but JSON checkpoints): versions have fewer than 20 digits."""
STATES_PREFIX = f"{LOG_PREFIX}state-v"
"""What every state starts with."""

_MAX_VERSION = 2**63 - 1
_PART_DIGITS = 5
_HEX16 = re.compile(r"[0-9a-f]{16}", re.ASCII)
_HEX12 = re.compile(r"[0-9a-f]{12}", re.ASCII)


def version_key(version: int) -> str:
    """Return the key of one version file of the transaction log."""
    return f"_transaction_log/{_version(version):020d}.json"


def near_prefix(version: int, kind: KeyKind) -> str:
    """Return what the keys of 1,000 versions start with: those that differ from `version` in the last three digits.

    Of their states, or, of the other kinds, of their version files and JSON checkpoints together.
    """
    return f"{STATES_PREFIX if kind is KeyKind.STATE else LOG_PREFIX}{_version(version):020d}"[:-3]


def last_checkpoint_key() -> str:
    """Return the key of the checkpoint hint."""
    return "_transaction_log/_last_checkpoint"


def manifest_key(manifest_id: str) -> str:
    """Return the key of a shared state manifest; its id is 16 hex digits of its content's SHA-256."""
    return f"_transaction_log/manifests/manifest-{matching(_HEX16, manifest_id, '16 lower-case hex digits')}.avro"


def progress_key(progress_id: str) -> str:
    """Return the key of a shared object of progress records; its id is 16 hex digits of its content's SHA-256."""
    return f"_transaction_log/progress/progress-{matching(_HEX16, progress_id, '16 lower-case hex digits')}.avro"


def state_key(version: int) -> str:
    """Return the key of the checkpointed state of a version."""
    return f"_transaction_log/state-v{_version(version):020d}/_manifest.avro"


def json_checkpoint_key(version: int) -> str:
    """Return the key of the legacy JSON checkpoint of a version, or of the list of its parts."""
    return f"_transaction_log/{_version(version):020d}.checkpoint.json"


def json_checkpoint_part_key(version: int, checkpoint_id: str, part: int) -> str:
    """Return the key of one part (numbered from 1) of a legacy JSON checkpoint; its id is a UUID, or 12 hex digits."""
    if not 1 <= part < 10**_PART_DIGITS:
        raise InvalidInput(f"parts are numbered 1 to {10**_PART_DIGITS - 1}, found {part}", part=part)
    of = checkpoint_id if _HEX12.fullmatch(checkpoint_id) else uuid(checkpoint_id)
    name = f"{_version(version):020d}.checkpoint.{of}.{part:0{_PART_DIGITS}d}.json"
    return f"_transaction_log/{name}"


def parse_log(key: str, parts: list[str]) -> ParsedKey | None:
    """Return the parsed key, None for no key of this folder; see `grammar.parse`. `parts` are those behind it."""
    match parts:
        case ["_last_checkpoint"]:
            return ParsedKey(kind=KeyKind.LAST_CHECKPOINT, key=key)
        case ["manifests", name]:
            manifest_id = name.removeprefix("manifest-").removesuffix(".avro")
            return exact(key, manifest_key(manifest_id), ParsedKey(kind=KeyKind.MANIFEST, key=key, id=manifest_id))
        case ["progress", name]:
            progress_id = name.removeprefix("progress-").removesuffix(".avro")
            return exact(key, progress_key(progress_id), ParsedKey(kind=KeyKind.PROGRESS, key=key, id=progress_id))
        case [folder, "_manifest.avro"]:
            version = integer(folder.removeprefix("state-v").lstrip("0") or "0")
            return exact(key, state_key(version), ParsedKey(kind=KeyKind.STATE, key=key, version=version))
        case [name]:
            return _parse_log_file(key, name.split("."))
        case _:
            return None


def _parse_log_file(key: str, parts: list[str]) -> ParsedKey | None:
    version = integer(parts[0].lstrip("0") or "0")
    match parts[1:]:
        case ["json"]:
            return exact(key, version_key(version), ParsedKey(kind=KeyKind.VERSION, key=key, version=version))
        case ["checkpoint", "json"]:
            parsed = ParsedKey(kind=KeyKind.JSON_CHECKPOINT, key=key, version=version)
            return exact(key, json_checkpoint_key(version), parsed)
        case ["checkpoint", checkpoint_id, part, "json"]:
            number = integer(part.lstrip("0"))
            parsed = ParsedKey(
                kind=KeyKind.JSON_CHECKPOINT_PART, key=key, version=version, id=checkpoint_id, entry=number
            )
            return exact(key, json_checkpoint_part_key(version, checkpoint_id, number), parsed)
        case _:
            return None


def _version(version: int) -> int:
    if not 0 <= version <= _MAX_VERSION:
        raise InvalidInput(f"versions are 0 to 2**63 - 1, found {quoted(version)}", version=version)
    return version
