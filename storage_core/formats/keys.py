"""The closed grammar of object keys (design page 01, "Keys"): one function builds each kind, one function parses any.

Keys are relative to the table's root. `parse(build(x))` gives x back, and a key that parses is exactly the key that
its builder makes, so two spellings of one object cannot exist. A key that does not parse is not ours: it is never read
through and never deleted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from storage_core.errors import InvalidInput
from storage_core.formats.bit_reversal import number_of, reversed_name
from storage_core.formats.key_segments import require_encoded, short_segment

GENERATION_FILES = ("_manifest.json", "bloom_filter.bin", "key_index.arrow", "records.arrow")
_SEGMENT_SUFFIX = ".seg"

LOG_PREFIX = "_transaction_log/"
VERSIONS_PREFIX = f"{LOG_PREFIX}0"
"""What every version file starts with (and nothing else but JSON checkpoints): versions have fewer than 20 digits."""
STATES_PREFIX = f"{LOG_PREFIX}state-v"
"""What every state starts with."""
QUARANTINE_PREFIX = "quarantine/"
LOCKS_PREFIX = "_locks/"
REGIONS_PREFIX = "_mem_wal/"

_MAX_VERSION = 2**63 - 1
_MAX_WINDOW = 2**63
_PART_DIGITS = 5

_TAG_NAME = re.compile(r"[a-z][a-z0-9._-]{0,62}", re.ASCII)
_TABLE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}", re.ASCII)
_INDEX_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", re.ASCII)
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,99}", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_HEX16 = re.compile(r"[0-9a-f]{16}", re.ASCII)
_GENERATION = re.compile(r"[0-9a-f]{8}_gen_([1-9][0-9]{0,18})", re.ASCII)
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)


class KeyKind(StrEnum):
    """Every kind of object that a table consists of."""

    VERSION = "version"
    LAST_CHECKPOINT = "last_checkpoint"
    MANIFEST = "manifest"
    STATE = "state"
    JSON_CHECKPOINT = "json_checkpoint"
    JSON_CHECKPOINT_PART = "json_checkpoint_part"
    SPLIT = "split"
    VECTOR = "vector"
    SEGMENT = "segment"
    REGION_REGISTRY = "region_registry"
    REGION_MANIFEST = "region_manifest"
    REGION_HINT = "region_hint"
    WAL_ENTRY = "wal_entry"
    GENERATION_FILE = "generation_file"
    GC_CANDIDATES = "gc_candidates"
    GC_BOUNDARY = "gc_boundary"
    TAGS = "tags"
    PROBE = "probe"
    LOCK = "lock"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedKey:
    """A key of a known kind and the parts it was built from; parts that the kind does not have are None.

    `window` is None for the bucket of null timestamps and for tables without windows; `windowed` tells the two apart.
    `id` is a split, vector, segment, quarantine, manifest or JSON checkpoint id; `entry` a WAL entry, or a part of the
    last. `source` of a lock or quarantine entry is the encoded segment.
    """

    kind: KeyKind
    key: str
    version: int | None = None
    id: str | None = None
    window: int | None = None
    windowed: bool | None = None
    index: str | None = None
    region: str | None = None
    entry: int | None = None
    directory: str | None = None
    generation: int | None = None
    name: str | None = None
    source: str | None = None


def validate_table_name(name: str) -> str:
    """Return `name` when it is a legal table name. Raises `InvalidInput` that says what is legal."""
    return _matching(_TABLE_NAME, name, "a table name (1 to 63 of a-z 0-9 _ -, not starting with _ or -)")


def validate_tag_name(name: str) -> str:
    """Return `name` when it is a legal tag name: no number or time reads like one. Raises `InvalidInput`."""
    return _matching(_TAG_NAME, name, "a tag name (1 to 63 of a-z 0-9 . _ -, starting with a letter)")


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
    return f"_transaction_log/manifests/manifest-{_matching(_HEX16, manifest_id, '16 lower-case hex digits')}.avro"


def state_key(version: int) -> str:
    """Return the key of the checkpointed state of a version."""
    return f"_transaction_log/state-v{_version(version):020d}/_manifest.avro"


def json_checkpoint_key(version: int) -> str:
    """Return the key of the legacy JSON checkpoint of a version, or of the list of its parts."""
    return f"_transaction_log/{_version(version):020d}.checkpoint.json"


def json_checkpoint_part_key(version: int, checkpoint_id: str, part: int) -> str:
    """Return the key of one part (numbered from 1) of a legacy JSON checkpoint."""
    if not 1 <= part < 10**_PART_DIGITS:
        raise InvalidInput(f"parts are numbered 1 to {10**_PART_DIGITS - 1}, found {part}", part=part)
    name = f"{_version(version):020d}.checkpoint.{_uuid(checkpoint_id)}.{part:0{_PART_DIGITS}d}.json"
    return f"_transaction_log/{name}"


def split_key(window: int | None, windowed: bool, split_id: str) -> str:  # noqa: FBT001 -- one answer in two parts
    """Return the key of a split, in the folder of its window's start in seconds.

    The folder is `null` for the bucket of null timestamps and `all` in a table without windows.
    """
    return f"{_window_folder(window, windowed)}/{_matching(_ID, split_id, 'a split id (a-z 0-9 -)')}.parquet"


def vector_key(window: int | None, windowed: bool, vector_id: str) -> str:  # noqa: FBT001 -- as for its split
    """Return the key of a stored deletion vector, in the folder of its split."""
    return f"{_window_folder(window, windowed)}/{_uuid(vector_id)}.dv"


def _window_folder(window: int | None, windowed: bool) -> str:  # noqa: FBT001 -- one answer in two parts
    if windowed:
        folder = "null" if window is None else str(_bounded_window(window))
    elif window is None:
        folder = "all"
    else:
        raise InvalidInput(f"a table without windows has no window {window}", window=window)
    return f"splits/{folder}"


def segment_key(index: str, segment_id: str) -> str:
    """Return the key of one index segment."""
    return f"_indices/{_index(index)}/{_uuid(segment_id)}.seg"


def region_registry_key() -> str:
    """Return the key of the list of the table's regions."""
    return "_mem_wal/_regions.json"


def region_manifest_key(region: str, version: int) -> str:
    """Return the key of one numbered manifest of a region (versions from 1)."""
    return f"_mem_wal/{_uuid(region)}/manifest/{reversed_name(version)}.binpb"


def region_hint_key(region: str) -> str:
    """Return the key of the region's version hint."""
    return f"_mem_wal/{_uuid(region)}/manifest/version_hint.json"


def wal_entry_key(region: str, entry: int) -> str:
    """Return the key of one WAL entry (ids from 1)."""
    return f"_mem_wal/{_uuid(region)}/wal/{reversed_name(entry)}.arrow"


def generation_file_key(region: str, directory: str, name: str) -> str:
    """Return the key of one file of a flushed generation; `directory` is `<8 hex>_gen_<number>`.

    `name` is one of `GENERATION_FILES`, or `<index>.seg`.
    """
    _matching(_GENERATION, directory, "a generation directory (<8 hex>_gen_<number>)")
    if name not in GENERATION_FILES and not _is_segment_name(name):
        raise InvalidInput(
            f"expected one of {', '.join(GENERATION_FILES)} or <index>{_SEGMENT_SUFFIX}, found {name!r}", name=name
        )
    return f"_mem_wal/{_uuid(region)}/{directory}/{name}"


def _is_segment_name(name: str) -> bool:
    stem = name.removesuffix(_SEGMENT_SUFFIX)
    return stem != name and _INDEX_NAME.fullmatch(stem) is not None


def gc_candidates_key() -> str:
    """Return the key of the collector's plan."""
    return "_gc/candidates.json"


def gc_boundary_key() -> str:
    """Return the key of the collector's boundary."""
    return "_gc/boundary.json"


def tags_key() -> str:
    """Return the key of the table's tags, all in one object."""
    return "_tags.json"


def probe_key(probe_id: str) -> str:
    """Return the key of the object on which a store's capabilities are tried."""
    return f"_probe/{_uuid(probe_id)}.json"


def lock_key(resource: str) -> str:
    """Return the key of the lease of a resource; any text names a resource."""
    return f"_locks/{short_segment(resource)}.json"


def quarantine_key(source: str, entry_id: str) -> str:
    """Return the key of a quarantine entry; `source` is any text, such as the landed file's path."""
    return f"quarantine/{short_segment(source)}/{_uuid(entry_id)}.json"


def parse(key: str) -> ParsedKey | None:
    """Return the kind and parts of a key that one of the builders makes, and None for every other text."""
    parts = key.split("/")
    parser = _PARSERS.get(parts[0])
    if parser is None:
        return None
    try:
        return parser(key, parts[1:])
    except InvalidInput:
        return None


def _parse_log(key: str, parts: list[str]) -> ParsedKey | None:
    match parts:
        case ["_last_checkpoint"]:
            return ParsedKey(kind=KeyKind.LAST_CHECKPOINT, key=key)
        case ["manifests", name]:
            manifest_id = name.removeprefix("manifest-").removesuffix(".avro")
            return _exact(key, manifest_key(manifest_id), ParsedKey(kind=KeyKind.MANIFEST, key=key, id=manifest_id))
        case [folder, "_manifest.avro"]:
            version = _integer(folder.removeprefix("state-v").lstrip("0") or "0")
            return _exact(key, state_key(version), ParsedKey(kind=KeyKind.STATE, key=key, version=version))
        case [name]:
            return _parse_log_file(key, name.split("."))
        case _:
            return None


def _parse_log_file(key: str, parts: list[str]) -> ParsedKey | None:
    version = _integer(parts[0].lstrip("0") or "0")
    match parts[1:]:
        case ["json"]:
            return _exact(key, version_key(version), ParsedKey(kind=KeyKind.VERSION, key=key, version=version))
        case ["checkpoint", "json"]:
            parsed = ParsedKey(kind=KeyKind.JSON_CHECKPOINT, key=key, version=version)
            return _exact(key, json_checkpoint_key(version), parsed)
        case ["checkpoint", checkpoint_id, part, "json"]:
            number = _integer(part.lstrip("0"))
            parsed = ParsedKey(
                kind=KeyKind.JSON_CHECKPOINT_PART, key=key, version=version, id=checkpoint_id, entry=number
            )
            return _exact(key, json_checkpoint_part_key(version, checkpoint_id, number), parsed)
        case _:
            return None


def _parse_split(key: str, parts: list[str]) -> ParsedKey | None:
    match parts:
        case [folder, name]:
            windowed = folder != "all"
            window = None if folder in ("all", "null") else _integer(folder)
            if name.endswith(".dv"):
                vector_id = name.removesuffix(".dv")
                parsed = ParsedKey(kind=KeyKind.VECTOR, key=key, id=vector_id, window=window, windowed=windowed)
                return _exact(key, vector_key(window, windowed, vector_id), parsed)
            split_id = name.removesuffix(".parquet")
            parsed = ParsedKey(kind=KeyKind.SPLIT, key=key, id=split_id, window=window, windowed=windowed)
            return _exact(key, split_key(window, windowed, split_id), parsed)
        case _:
            return None


def _parse_segment(key: str, parts: list[str]) -> ParsedKey | None:
    match parts:
        case [index, name]:
            segment_id = name.removesuffix(".seg")
            parsed = ParsedKey(kind=KeyKind.SEGMENT, key=key, index=index, id=segment_id)
            return _exact(key, segment_key(index, segment_id), parsed)
        case _:
            return None


def _parse_region(key: str, parts: list[str]) -> ParsedKey | None:
    match parts:
        case ["_regions.json"]:
            return ParsedKey(kind=KeyKind.REGION_REGISTRY, key=key)
        case [region, "manifest", "version_hint.json"]:
            return _exact(key, region_hint_key(region), ParsedKey(kind=KeyKind.REGION_HINT, key=key, region=region))
        case [region, "manifest", name]:
            version = number_of(name.removesuffix(".binpb"))
            parsed = ParsedKey(kind=KeyKind.REGION_MANIFEST, key=key, region=region, version=version)
            return _exact(key, region_manifest_key(region, version), parsed)
        case [region, "wal", name]:
            entry = number_of(name.removesuffix(".arrow"))
            parsed = ParsedKey(kind=KeyKind.WAL_ENTRY, key=key, region=region, entry=entry)
            return _exact(key, wal_entry_key(region, entry), parsed)
        case [region, directory, name]:
            expected = generation_file_key(region, directory, name)
            generation = generation_of(directory)
            parsed = ParsedKey(
                kind=KeyKind.GENERATION_FILE,
                key=key,
                region=region,
                directory=directory,
                generation=generation,
                name=name,
            )
            return _exact(key, expected, parsed)
        case _:
            return None


def _parse_gc(key: str, parts: list[str]) -> ParsedKey | None:
    match parts:
        case ["candidates.json"]:
            return ParsedKey(kind=KeyKind.GC_CANDIDATES, key=key)
        case ["boundary.json"]:
            return ParsedKey(kind=KeyKind.GC_BOUNDARY, key=key)
        case _:
            return None


def _parse_tags(key: str, parts: list[str]) -> ParsedKey | None:
    return None if parts else ParsedKey(kind=KeyKind.TAGS, key=key)


def _parse_probe(key: str, parts: list[str]) -> ParsedKey | None:
    match parts:
        case [name]:
            probe_id = name.removesuffix(".json")
            return _exact(key, probe_key(probe_id), ParsedKey(kind=KeyKind.PROBE, key=key, id=probe_id))
        case _:
            return None


def _parse_lock(key: str, parts: list[str]) -> ParsedKey | None:
    match parts:
        case [name] if name.endswith(".json"):
            source = require_encoded(name.removesuffix(".json"))
            return ParsedKey(kind=KeyKind.LOCK, key=key, source=source)
        case _:
            return None


def _parse_quarantine(key: str, parts: list[str]) -> ParsedKey | None:
    match parts:
        case [segment, name]:
            entry_id = name.removesuffix(".json")
            parsed = ParsedKey(kind=KeyKind.QUARANTINE, key=key, source=require_encoded(segment), id=entry_id)
            return _exact(key, f"quarantine/{segment}/{_uuid(entry_id)}.json", parsed)
        case _:
            return None


_PARSERS: dict[str, Callable[[str, list[str]], ParsedKey | None]] = {
    "_transaction_log": _parse_log,
    "splits": _parse_split,
    "_indices": _parse_segment,
    "_mem_wal": _parse_region,
    "_gc": _parse_gc,
    "_tags.json": _parse_tags,
    "_probe": _parse_probe,
    "_locks": _parse_lock,
    "quarantine": _parse_quarantine,
}


def generation_of(directory: str) -> int:
    """Return the generation number of a directory `<8 hex>_gen_<number>`. Raises `InvalidInput`."""
    found = _GENERATION.fullmatch(directory)
    if found is None:
        raise InvalidInput(f"expected <8 hex>_gen_<number>, found {directory!r}", directory=directory)
    return int(found[1])


def _exact(key: str, expected: str, parsed: ParsedKey) -> ParsedKey | None:
    return parsed if key == expected else None


def _matching(pattern: re.Pattern[str], text: str, what: str) -> str:
    if not pattern.fullmatch(text):
        raise InvalidInput(f"expected {what}, found {text!r}", found=text)
    return text


def _uuid(text: str) -> str:
    return _matching(_UUID, text, "a lower-case UUID of 36 characters")


def _index(text: str) -> str:
    return _matching(_INDEX_NAME, text, "an index name (1 to 63 of A-Z a-z 0-9 _ -, starting with a letter or digit)")


def _version(version: int) -> int:
    if not 0 <= version <= _MAX_VERSION:
        raise InvalidInput(f"versions are 0 to 2**63 - 1, found {version}", version=version)
    return version


def _bounded_window(window: int) -> int:
    if not -_MAX_WINDOW <= window < _MAX_WINDOW:
        raise InvalidInput(f"a window start is a 64-bit number of seconds, found {window}", window=window)
    return window


def _integer(text: str) -> int:
    return int(_matching(_INTEGER, text, "a decimal number without leading zeros"))
