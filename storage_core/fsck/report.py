"""What a check of a table finds, as data: every kind of finding with how bad it is and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from storage_core.errors import Corrupt, InvalidInput, NotFound, SnapshotExpired, TidemarkError, Unsupported
from storage_core.formats.keys import parse

REPAIR: Final = "restore the object from a copy, or run: tidemark repair"
_NOTHING_LOST: Final = "nothing is lost: "

DAMAGE: Final = (Corrupt, NotFound, SnapshotExpired, Unsupported, InvalidInput)
"""What reading an object raises that says something of the object. Every other error is of the store, of a write or of
somebody else at work, and is never a finding or a loss."""


class Severity(StrEnum):
    """Rows, history or the table itself are affected; what can be made again is damaged; good to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Kind(StrEnum):
    """Every kind of finding. The list is append-only."""

    TABLE_UNREADABLE = "table_unreadable"
    VERSION_DAMAGED = "version_damaged"
    VERSION_MISSING = "version_missing"
    COMMIT_TWICE = "commit_twice"
    TIME_GOES_BACK = "time_goes_back"
    PATH_LIVE_TWICE = "path_live_twice"
    STATE_DAMAGED = "state_damaged"
    STATE_DISAGREES = "state_disagrees"
    MANIFEST_DAMAGED = "manifest_damaged"
    HINT_DAMAGED = "hint_damaged"
    HINT_AHEAD = "hint_ahead"
    HINT_STALE = "hint_stale"
    SPLIT_MISSING = "split_missing"
    SPLIT_SIZE = "split_size"
    SPLIT_DAMAGED = "split_damaged"
    SPLIT_BREAKS_INVARIANT = "split_breaks_invariant"
    OLDER_SPLIT_DAMAGED = "older_split_damaged"
    OLDER_SPLIT_MISSING = "older_split_missing"
    SEGMENT_MISSING = "segment_missing"
    SEGMENT_DAMAGED = "segment_damaged"
    SEGMENT_STALE = "segment_stale"
    REGION_REGISTRY_DAMAGED = "region_registry_damaged"
    REGION_NOT_REGISTERED = "region_not_registered"
    REGION_MANIFEST_DAMAGED = "region_manifest_damaged"
    REGION_MANIFEST_MISSING = "region_manifest_missing"
    REGION_HISTORY_DAMAGED = "region_history_damaged"
    REGION_HINT_DAMAGED = "region_hint_damaged"
    WAL_ENTRY_DAMAGED = "wal_entry_damaged"
    WAL_ENTRY_MISSING = "wal_entry_missing"
    GENERATION_DAMAGED = "generation_damaged"
    GENERATION_GAP = "generation_gap"
    BLOOM_DAMAGED = "bloom_damaged"
    SPENT_OBJECT_DAMAGED = "spent_object_damaged"
    QUARANTINE_DAMAGED = "quarantine_damaged"
    GC_PLAN_DAMAGED = "gc_plan_damaged"
    GC_BOUNDARY_DAMAGED = "gc_boundary_damaged"
    TAGS_DAMAGED = "tags_damaged"
    TAG_WITHOUT_VERSION = "tag_without_version"
    NEWER_FORMAT = "newer_format"
    UNKNOWN_KEY = "unknown_key"
    UNREFERENCED = "unreferenced"
    VECTOR_MISSING = "vector_missing"
    VECTOR_DAMAGED = "vector_damaged"
    GENERATION_SEGMENT_DAMAGED = "generation_segment_damaged"
    GENERATION_COPY_DAMAGED = "generation_copy_damaged"
    TRANSLATION_MISSING = "translation_missing"
    TRANSLATION_DAMAGED = "translation_damaged"
    SPLIT_VALUES_NOT_VALID = "split_values_not_valid"


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE

RULES: Final[Mapping[Kind, tuple[Severity, str]]] = {
    Kind.TABLE_UNREADABLE: (_E, REPAIR),
    Kind.VERSION_DAMAGED: (_E, REPAIR),
    Kind.VERSION_MISSING: (_E, REPAIR),
    Kind.COMMIT_TWICE: (_E, "one work landed twice: compare the two in `tidemark history`, then report it"),
    Kind.TIME_GOES_BACK: (_E, f"the file is another version's: {REPAIR}"),
    Kind.PATH_LIVE_TWICE: (_E, f"the log adds a split that is live already: {REPAIR}"),
    Kind.STATE_DAMAGED: (
        _W,
        _NOTHING_LOST + "opening uses another state; run: tidemark checkpoint after the next commit",
    ),
    Kind.STATE_DISAGREES: (_E, f"the version files are the truth, opening may use this state: {REPAIR}"),
    Kind.MANIFEST_DAMAGED: (_W, _NOTHING_LOST + "opening uses another state; a repaired copy has new ones"),
    Kind.HINT_DAMAGED: (_W, _NOTHING_LOST + "opening lists instead; run: tidemark checkpoint"),
    Kind.HINT_AHEAD: (_W, _NOTHING_LOST + "opening lists instead; run: tidemark checkpoint"),
    Kind.HINT_STALE: (_N, "opening reads more version files; run: tidemark checkpoint"),
    Kind.SPLIT_MISSING: (_E, REPAIR),
    Kind.SPLIT_SIZE: (_E, REPAIR),
    Kind.SPLIT_DAMAGED: (_E, REPAIR),
    Kind.SPLIT_BREAKS_INVARIANT: (_E, "the file is what was committed, its rows are not where the log says: report it"),
    Kind.SPLIT_VALUES_NOT_VALID: (
        _E,
        "set the values: see `Values that cannot be read` in docs/operations.md",
    ),
    Kind.OLDER_SPLIT_DAMAGED: (_W, "only versions of before it was removed need it: restore it to read those"),
    Kind.OLDER_SPLIT_MISSING: (
        _N,
        "versions of before it was removed cannot be read: they are not retained and it was collected, or it is lost",
    ),
    Kind.SEGMENT_MISSING: (_W, _NOTHING_LOST + "a search reads the split; a compaction or a repaired copy replaces it"),
    Kind.SEGMENT_DAMAGED: (_W, _NOTHING_LOST + "a search reads the split; a compaction or a repaired copy replaces it"),
    Kind.SEGMENT_STALE: (_N, "no query uses it; run: tidemark catch-up"),
    Kind.REGION_REGISTRY_DAMAGED: (_W, _NOTHING_LOST + "readers list the regions; the next new region writes it again"),
    Kind.REGION_NOT_REGISTERED: (_E, f"readers do not see its rows: {REPAIR}"),
    Kind.REGION_MANIFEST_DAMAGED: (_E, REPAIR),
    Kind.REGION_MANIFEST_MISSING: (_E, REPAIR),
    Kind.REGION_HISTORY_DAMAGED: (_W, _NOTHING_LOST + "a newer manifest is in force; the collector takes it in time"),
    Kind.REGION_HINT_DAMAGED: (_W, _NOTHING_LOST + "readers list instead; the next flush or claim writes it again"),
    Kind.WAL_ENTRY_DAMAGED: (_E, REPAIR),
    Kind.WAL_ENTRY_MISSING: (_E, REPAIR),
    Kind.GENERATION_DAMAGED: (_E, REPAIR),
    Kind.GENERATION_GAP: (_E, REPAIR),
    Kind.BLOOM_DAMAGED: (_W, _NOTHING_LOST + "lookups read the generation; it goes with the next merge"),
    Kind.SPENT_OBJECT_DAMAGED: (_W, _NOTHING_LOST + "its rows are merged; the collector takes it in time"),
    Kind.QUARANTINE_DAMAGED: (_W, "the rejected lines in it cannot be read: restore it, or delete it"),
    Kind.GC_PLAN_DAMAGED: (_W, _NOTHING_LOST + "all horizons start again; the next `tidemark gc` replaces it"),
    Kind.GC_BOUNDARY_DAMAGED: (_E, f"the collector stands still: {REPAIR}"),
    Kind.TAGS_DAMAGED: (_E, f"no tag opens and the collector stands still: {REPAIR}"),
    Kind.TAG_WITHOUT_VERSION: (_E, "its version does not open any more: tidemark tag, to set it anew or remove it"),
    Kind.NEWER_FORMAT: (_E, "a newer release wrote it: upgrade"),
    Kind.UNKNOWN_KEY: (_N, "no object of Tidemark, and never touched: move it away if nothing needs it"),
    Kind.UNREFERENCED: (_N, "no version needs it; the collector takes it: tidemark gc"),
    Kind.VECTOR_MISSING: (_E, f"its split cannot be read: {REPAIR}"),
    Kind.VECTOR_DAMAGED: (_E, f"its split cannot be read: {REPAIR}"),
    Kind.GENERATION_SEGMENT_DAMAGED: (
        _W,
        _NOTHING_LOST + "a search indexes the generation; it goes with the next merge",
    ),
    Kind.GENERATION_COPY_DAMAGED: (
        _W,
        _NOTHING_LOST + "lookups read the object that it is a copy of; it goes with the next merge",
    ),
    Kind.TRANSLATION_MISSING: (_W, _NOTHING_LOST + "a search reads the splits; a repaired copy indexes them anew"),
    Kind.TRANSLATION_DAMAGED: (_W, _NOTHING_LOST + "a search reads the splits; a repaired copy indexes them anew"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be. `key` is the object, or the table's URI where no one object is it."""

    kind: Kind
    key: str
    expected: str
    found: str

    @property
    def severity(self) -> Severity:
        """How bad it is; the same for every finding of a kind."""
        return RULES[self.kind][0]

    @property
    def advice(self) -> str:
        """What to do."""
        return RULES[self.kind][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a check found. `version` is the newest that opens, None without one; `requests` are by kind.

    `objects` and `bytes` are everything that the listing showed; `deep` tells whether contents were read and hashed.
    """

    uri: str
    version: int | None
    deep: bool
    findings: tuple[Finding, ...]
    objects: int
    bytes: int
    requests: Mapping[str, int]

    @property
    def clean(self) -> bool:
        """True when nothing is damaged; notes are no damage."""
        return all(each.severity is Severity.NOTE for each in self.findings)

    @property
    def exit_code(self) -> int:
        """What a command ends with: 0 when clean, else that of `Corrupt`."""
        return 0 if self.clean else Corrupt.exit_code

    def count(self, severity: Severity) -> int:
        """Return the number of findings of a severity."""
        return sum(each.severity is severity for each in self.findings)


def damage_of(kind: Kind, error: TidemarkError, key: str, expected: str) -> Finding:
    """Return the finding for an error of `DAMAGE` that reading `key` raised, under the key that the error itself names.

    A format of a newer release is no damage.
    """
    named = error.context.get("key")
    where = named if isinstance(named, str) and parse(named) is not None else key
    chosen = Kind.NEWER_FORMAT if isinstance(error, Unsupported) else kind
    return Finding(kind=chosen, key=where, expected=expected, found=error.found)
