"""The closed grammar of object keys (docs/architecture/object-store.md, "Keys"): one function builds each kind, one
function parses any.

Keys are relative to the table's root. `parse(build(x))` gives x back, and a key that parses is exactly the key that
its builder makes, so two spellings of one object cannot exist. A key that does not parse is not ours: it is never read
through and never deleted.

Builder and parser of a key live in the module of the key's first folder: `transaction_log`, `splits`, `indices`,
`regions` (`_mem_wal/`); those of the folders with one or two kinds of objects are together in `upkeep`. All are used
from here, as `keys.version_key(7)`.
"""

from __future__ import annotations

from storage_core.formats.keys.delta import DELTA_PREFIX, delta_checkpoint_key, delta_commit_key, delta_hint_key
from storage_core.formats.keys.grammar import parse
from storage_core.formats.keys.iceberg import (
    ICEBERG_FOLDER,
    ICEBERG_PREFIX,
    iceberg_hint_key,
    iceberg_list_key,
    iceberg_manifest_key,
    iceberg_metadata_key,
)
from storage_core.formats.keys.indices import segment_key, translation_key
from storage_core.formats.keys.names import validate_table_name, validate_tag_name
from storage_core.formats.keys.parsed import KeyKind, ParsedKey
from storage_core.formats.keys.partitions import folder_value, partition_folder
from storage_core.formats.keys.regions import (
    GENERATION_FILES,
    REGIONS_PREFIX,
    generation_file_key,
    generation_of,
    region_hint_key,
    region_manifest_key,
    region_registry_key,
    wal_entry_key,
)
from storage_core.formats.keys.splits import split_key, vector_key
from storage_core.formats.keys.transaction_log import (
    LOG_PREFIX,
    STATES_PREFIX,
    VERSIONS_PREFIX,
    json_checkpoint_key,
    json_checkpoint_part_key,
    last_checkpoint_key,
    manifest_key,
    near_prefix,
    progress_key,
    state_key,
    version_key,
)
from storage_core.formats.keys.upkeep import (
    LOCKS_PREFIX,
    QUARANTINE_PREFIX,
    gc_boundary_key,
    gc_candidates_key,
    lock_key,
    probe_key,
    quarantine_key,
    source_key,
    tags_key,
)

__all__ = [
    "DELTA_PREFIX",
    "GENERATION_FILES",
    "ICEBERG_FOLDER",
    "ICEBERG_PREFIX",
    "LOCKS_PREFIX",
    "LOG_PREFIX",
    "QUARANTINE_PREFIX",
    "REGIONS_PREFIX",
    "STATES_PREFIX",
    "VERSIONS_PREFIX",
    "KeyKind",
    "ParsedKey",
    "delta_checkpoint_key",
    "delta_commit_key",
    "delta_hint_key",
    "folder_value",
    "gc_boundary_key",
    "gc_candidates_key",
    "generation_file_key",
    "generation_of",
    "iceberg_hint_key",
    "iceberg_list_key",
    "iceberg_manifest_key",
    "iceberg_metadata_key",
    "json_checkpoint_key",
    "json_checkpoint_part_key",
    "last_checkpoint_key",
    "lock_key",
    "manifest_key",
    "near_prefix",
    "parse",
    "partition_folder",
    "probe_key",
    "progress_key",
    "quarantine_key",
    "region_hint_key",
    "region_manifest_key",
    "region_registry_key",
    "segment_key",
    "source_key",
    "split_key",
    "state_key",
    "tags_key",
    "translation_key",
    "validate_table_name",
    "validate_tag_name",
    "vector_key",
    "version_key",
    "wal_entry_key",
]
