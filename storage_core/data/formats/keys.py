"""Keys of the objects of tables and of raw logs. The templates of `kinds` define the keys.

Keys are relative to the root of the table or raw log (docs/architecture/object-store.md, "Keys"). `parse(build(x))`
returns x. If a key can be parsed, its builder returns exactly this key. So the key of an object has a single spelling.
Keys that cannot be parsed do not belong to Tidemark. Tidemark never reads or deletes objects with other keys.

Below the root of a raw log, only these keys are valid (docs/architecture/ingestion.md, "Raw log"):

| Key | Content |
|---|---|
| `live/<ms>.<writer>/<number>.avro` | one chunk of the segment with this start time and this writer (a UUID) |
| `live/collected.json` | the last collected chunk of each writer (`data.formats.documents`) |
| `ids/<first ms>-<last ms>.<xxh3>.arrow` | record ids of segments that began in this range (`data.formats.raw_chunk`) |
| `_gc/candidates.json` | the collector's plan (`data.formats.documents`) |
| `quarantine/<segment>/<uuid>.json` | records that no table accepts, in the form of a table's quarantine entries |
| `_probe/<uuid>.json` | a test of the store's capabilities |

Numbers of chunks have 20 digits, so a listing returns the chunks of a segment in order. The numbers count the chunks of
a *writer* from 1, across all segments of the writer. So a listing is enough to find missing chunks, even at the end of
a segment.

The module also builds the folders of partitions (`partition_folder`). The module also builds short names for texts that
are too long or must not be shown (`short_hash`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

import xxhash

from storage_core.base.errors import InvalidInput
from storage_core.base.text import quoted
from storage_core.data.formats.kinds import FORMS, GENERATION_FILES, KINDS, KeyKind, ObjectKind

__all__ = ["GENERATION_FILES", "KeyKind"]


def short_hash(text: str) -> str:
    """Return the xxh3-128 of a text as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(text.encode())


# Keys of tables.

LOG_PREFIX: Final = "_transaction_log/"
VERSIONS_PREFIX: Final = f"{LOG_PREFIX}0"
"""The prefix that only version files and JSON checkpoints have.

Versions have fewer than 20 digits, so a padded version starts with 0.
"""
STATES_PREFIX: Final = f"{LOG_PREFIX}state-v"
"""The prefix of all states."""
REGIONS_PREFIX: Final = "_mem_wal/"
LOCKS_PREFIX: Final = "_locks/"
QUARANTINE_PREFIX: Final = "quarantine/"
DELTA_PREFIX: Final = "_delta_log/"
ICEBERG_FOLDER: Final = "_iceberg"
"""The folder that is the location of the Iceberg table and contains the table's hint and metadata."""
ICEBERG_PREFIX: Final = f"{ICEBERG_FOLDER}/metadata/"

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
"""The name of the folder for rows with a null partition value, as in Hive."""

_LONGEST_NAME: Final = 64
_LONGEST_VALUE: Final = 128
_TAG_NAME: Final = re.compile(r"[a-z][a-z0-9._-]{0,62}", re.ASCII)
_TABLE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedKey:
    """A key of a known kind, and its parts. If keys of the kind do not have a certain part, this part is None.

    `window` is None for the bucket of null timestamps and for tables without windows. `windowed` is True only if the
    key belongs to a table with windows. `id` is the id of a split, deletion vector, segment, translation, quarantine
    entry, manifest (list), progress object or JSON checkpoint. `entry` is the number of a WAL entry, or of a part of a
    JSON checkpoint. In the key of a lock or a quarantine entry, `source` is the percent-encoded segment.
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


def parse(key: str) -> ParsedKey | None:
    """Return the kind and the parts of a key that one of the builders can create. Return None for any other text."""
    first = key.partition("/")[0]
    for each in _BY_FOLDER.get("splits" if "=" in first else first, ()):
        parts = each.parts(key)
        if parts is not None:
            return ParsedKey(kind=each.kind, key=key, **_fields(parts))
    return None


def _by_folder() -> dict[str, list[ObjectKind]]:
    found = defaultdict[str, list[ObjectKind]](list)
    for each in KINDS.values():
        if each.tables:
            found[each.folder].append(each)
    return dict(found)


_BY_FOLDER: Final = _by_folder()


def _fields(parts: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a parsed key.

    The fields `window` and `windowed` replace the field `folder`. The field `generation` is the number in the field
    `directory`.
    """
    parts.pop("partition", None)
    if "folder" in parts:
        parts["window"], parts["windowed"] = parts.pop("folder")
    if "directory" in parts:
        parts["generation"] = int(parts["directory"].rpartition("_")[2])
    return parts


def version_key(version: int) -> str:
    """Return the key of one version file of the transaction log."""
    return KINDS[KeyKind.VERSION].key(version=version)


def near_prefix(version: int, kind: KeyKind) -> str:
    """Return the prefix that the keys of 1,000 versions have in common.

    These versions differ only in the last three digits.

    For the kind `STATE`, the prefix is for keys of states. If the kind is not `STATE`, the prefix is for the keys of
    version files and JSON checkpoints.
    """
    return f"{STATES_PREFIX if kind is KeyKind.STATE else LOG_PREFIX}{FORMS['version'].write(version)}"[:-3]


def last_checkpoint_key() -> str:
    """Return the key of the checkpoint hint."""
    return KINDS[KeyKind.LAST_CHECKPOINT].key()


def manifest_key(manifest_id: str) -> str:
    """Return the key of a shared state manifest. The id is 16 hex digits of the SHA-256 of the manifest's content."""
    return KINDS[KeyKind.MANIFEST].key(id=manifest_id)


def progress_key(progress_id: str) -> str:
    """Return the key of a shared object of progress records. The id is 16 hex digits of the content's SHA-256."""
    return KINDS[KeyKind.PROGRESS].key(id=progress_id)


def state_key(version: int) -> str:
    """Return the key of the checkpointed state of a version."""
    return KINDS[KeyKind.STATE].key(version=version)


def json_checkpoint_key(version: int) -> str:
    """Return the key of a version's legacy JSON checkpoint, or of the list of its parts."""
    return KINDS[KeyKind.JSON_CHECKPOINT].key(version=version)


def json_checkpoint_part_key(version: int, checkpoint_id: str, part: int) -> str:
    """Return the key of one part (numbered from 1) of a legacy JSON checkpoint.

    The id of the checkpoint is a UUID or 12 hex digits.
    """
    return KINDS[KeyKind.JSON_CHECKPOINT_PART].key(version=version, id=checkpoint_id, entry=part)


def split_key(window: int | None, windowed: bool, split_id: str, partition: str = "") -> str:  # noqa: FBT001 -- one answer in two parts
    """Return the key of a split.

    The split is in the folder of its window's start in seconds, below the folders of its partition.

    The folder is `null` for the bucket of null timestamps and `all` in a table without windows. `partition` contains
    the results of `partition_folder`, joined by slashes. `partition` is empty in a table without partitions.
    """
    return KINDS[KeyKind.SPLIT].key(folder=(window, windowed), id=split_id, partition=partition)


def vector_key(window: int | None, windowed: bool, vector_id: str) -> str:  # noqa: FBT001 -- as for its split
    """Return the key of a stored deletion vector, in the folder of its window.

    The key does not depend on the partition of the split.
    """
    return KINDS[KeyKind.VECTOR].key(folder=(window, windowed), id=vector_id)


def segment_key(index: str, segment_id: str) -> str:
    """Return the key of one index segment."""
    return KINDS[KeyKind.SEGMENT].key(index=index, id=segment_id)


def translation_key(translation_id: str) -> str:
    """Return the key of one translation. No index can have the same name as the folder of translations."""
    return KINDS[KeyKind.TRANSLATION].key(id=translation_id)


def region_registry_key() -> str:
    """Return the key of the list of the table's regions."""
    return KINDS[KeyKind.REGION_REGISTRY].key()


def region_manifest_key(region: str, version: int) -> str:
    """Return the key of one numbered manifest of a region (versions from 1)."""
    return KINDS[KeyKind.REGION_MANIFEST].key(region=region, version=version)


def region_hint_key(region: str) -> str:
    """Return the key of the region's version hint."""
    return KINDS[KeyKind.REGION_HINT].key(region=region)


def wal_entry_key(region: str, entry: int) -> str:
    """Return the key of one WAL entry (numbers from 1)."""
    return KINDS[KeyKind.WAL_ENTRY].key(region=region, entry=entry)


def generation_file_key(region: str, directory: str, name: str) -> str:
    """Return the key of one file of a flushed generation. `directory` is `<8 hex>_gen_<number>`.

    `name` is one of `GENERATION_FILES`, or `<index>.seg`.
    """
    return KINDS[KeyKind.GENERATION_FILE].key(region=region, directory=directory, name=name)


def gc_candidates_key() -> str:
    """Return the key of the collector's plan."""
    return KINDS[KeyKind.GC_CANDIDATES].key()


def gc_boundary_key() -> str:
    """Return the key of the collector's boundary."""
    return KINDS[KeyKind.GC_BOUNDARY].key()


def tags_key() -> str:
    """Return the key of the object that contains all tags of the table."""
    return KINDS[KeyKind.TAGS].key()


def source_key() -> str:
    """Return the key of the object that contains the source of a shallow clone."""
    return KINDS[KeyKind.SOURCE].key()


def probe_key(probe_id: str) -> str:
    """Return the key of an object that is written to test a store's capabilities."""
    return KINDS[KeyKind.PROBE].key(id=probe_id)


def lock_key(resource: str) -> str:
    """Return the key of the lease of a resource. The name of a resource can be any text."""
    return KINDS[KeyKind.LOCK].key(source=resource)


def quarantine_key(source: str, entry_id: str) -> str:
    """Return the key of a quarantine entry. `source` is any text, such as the landed file's path."""
    return KINDS[KeyKind.QUARANTINE].key(source=source, id=entry_id)


def delta_commit_key(version: int) -> str:
    """Return the key of one commit of the Delta log."""
    return KINDS[KeyKind.DELTA_COMMIT].key(version=version)


def delta_checkpoint_key(version: int) -> str:
    """Return the key of the checkpoint of a Delta version."""
    return KINDS[KeyKind.DELTA_CHECKPOINT].key(version=version)


def delta_hint_key() -> str:
    """Return the key of the hint that refers to a checkpoint."""
    return KINDS[KeyKind.DELTA_HINT].key()


def iceberg_metadata_key(number: int) -> str:
    """Return the key of one metadata file. Metadata files are numbered from 1."""
    return KINDS[KeyKind.ICEBERG_METADATA].key(version=number)


def iceberg_list_key(snapshot_id: int, id_: str) -> str:
    """Return the key of the manifest list of a snapshot."""
    return KINDS[KeyKind.ICEBERG_LIST].key(version=snapshot_id, id=id_)


def iceberg_manifest_key(id_: str) -> str:
    """Return the key of a manifest."""
    return KINDS[KeyKind.ICEBERG_MANIFEST].key(id=id_)


def iceberg_hint_key() -> str:
    """Return the key of the hint that contains the number of a metadata file."""
    return KINDS[KeyKind.ICEBERG_HINT].key()


def validate_table_name(name: str) -> str:
    """Return `name` if it is a valid table name. Raises `InvalidInput` with a description of valid names."""
    return _matching(_TABLE_NAME, name, "table name", "a-z 0-9 _ -, not starting with _ or -")


def validate_tag_name(name: str) -> str:
    """Return `name` if it is a valid tag name. A tag name never looks like a number or time. Raises `InvalidInput`."""
    return _matching(_TAG_NAME, name, "tag name", "a-z 0-9 . _ -, starting with a letter")


def _matching(pattern: re.Pattern[str], text: str, noun: str, characters: str) -> str:
    if not pattern.fullmatch(text):
        raise InvalidInput(f"{quoted(text)} is not a valid {noun}. Use 1 to 63 of {characters}", found=text)
    return text


# Folders of partitions.


def partition_folder(name: str, value: str | None) -> str:
    """Return the name of the folder for one value of a partition column.

    The name is percent-encoded. Different columns or values have different folders. The folder contains `~` and the
    xxh3-128 of the text in these cases:

    - The encoded form is too long for a file system.
    - The encoded value equals the folder name that stands for null.
    - The encoded form points to a place outside the table after decoding.
    """
    return f"{_encoded(name, _LONGEST_NAME) or _checksum(name)}={folder_value(value)}"


def folder_value(value: str | None) -> str:
    """Return the text after the equals sign in a folder name. The text represents the partition value."""
    return NULL_PARTITION if value is None else _encoded(value, _LONGEST_VALUE, behind="=")


def _encoded(text: str, longest: int, *, behind: str = "") -> str:
    found = quote(text, safe="").replace("~", "%7E")
    if len(found) <= longest and found != NULL_PARTITION and not _leads_elsewhere(behind + text):
        return found
    return _checksum(text)


def _checksum(text: str) -> str:
    return f"~{xxhash.xxh3_128_hexdigest(text.encode())}"


def _leads_elsewhere(text: str) -> bool:
    """Return whether the text refers to another folder after one or several decodings."""
    while True:
        if text.startswith(("/", "\\")) or not {".", ".."}.isdisjoint(re.split(r"[/\\]", text)):
            return True
        decoded = unquote(text)
        if decoded == text:
            return False
        text = decoded


# Keys of raw logs.

LIVE_PREFIX: Final = "live/"
COLLECTED_KEY: Final = KINDS[KeyKind.RAW_COLLECTED].key()
IDS_PREFIX: Final = "ids/"
MAX_NUMBER: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkKey:
    """The parts of a chunk's key: the start of its segment, its writer, and its number.

    The number counts the chunks of the writer.
    """

    segment_ms: int
    writer: str
    number: int


def raw_chunk_key(chunk: ChunkKey) -> str:
    """Return the key of one chunk.

    Raises `InvalidInput` for a writer that is not a UUID and for numbers out of range.
    """
    return KINDS[KeyKind.RAW_CHUNK].key(segment_ms=chunk.segment_ms, writer=chunk.writer, number=chunk.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdsKey:
    """The parts of the key of an object that contains record ids.

    These parts are the start times of the first and last segment with records, and the checksum of the object.
    """

    first_ms: int
    last_ms: int
    checksum: str


def raw_ids_key(ids: IdsKey) -> str:
    """Return the key of record ids. Raises `InvalidInput` for parts out of range."""
    if ids.first_ms > ids.last_ms:
        raise InvalidInput(f"the first time of record ids is after the last time: {ids}")
    return KINDS[KeyKind.RAW_IDS].key(**asdict(ids))


def parse_raw(key: str) -> ChunkKey | IdsKey | ParsedKey | None:
    """Return the parts of a key of a raw log.

    Return None for any other text. The object of any other key must not be changed.
    """
    if parts := KINDS[KeyKind.RAW_CHUNK].parts(key):
        return ChunkKey(**parts)
    if parts := KINDS[KeyKind.RAW_IDS].parts(key):
        return IdsKey(**parts) if parts["first_ms"] <= parts["last_ms"] else None
    if key == COLLECTED_KEY:
        return ParsedKey(kind=KeyKind.RAW_COLLECTED, key=key)
    other = parse(key)
    return other if other is not None and KINDS[other.kind].raw_logs else None
