"""The findings of a table check, as data. Each kind of finding has a severity and an advice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Self, TypeVar

from storage_core.base.errors import Corrupt, InvalidInput, NotFound, SnapshotExpired, TidemarkError, Unsupported
from storage_core.data.formats.keys import parse

Read = TypeVar("Read")

REPAIR: Final = "restore the object from a copy, or run: tidemark repair"
_NOTHING_LOST: Final = "nothing is lost: "

DAMAGE: Final = (Corrupt, NotFound, SnapshotExpired, Unsupported, InvalidInput)
"""The errors that describe a damaged object.

An error of any other class concerns the store, a write or a concurrent process. An error of the store, a write or a
concurrent process is never a finding or a loss.
"""


class Severity(StrEnum):
    """The severity of a finding.

    - `ERROR`: rows, history or the table itself are affected.
    - `WARNING`: an object that can be created again is damaged.
    - `NOTE`: for information only.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE


class Kind(StrEnum):
    """Every kind of finding, with its severity and its advice. The list is append-only."""

    severity: Severity
    advice: str

    def __new__(cls, name: str, severity: Severity, advice: str) -> Self:
        """Create a member. The new enum member is a string that equals `name`."""
        found = str.__new__(cls, name)
        found._value_, found.severity, found.advice = name, severity, advice
        return found

    TABLE_UNREADABLE = ("table_unreadable", _E, REPAIR)
    VERSION_DAMAGED = ("version_damaged", _E, REPAIR)
    VERSION_MISSING = ("version_missing", _E, REPAIR)
    COMMIT_TWICE = (
        "commit_twice",
        _E,
        "the same work was committed twice. Compare both versions in `tidemark history`, then report the problem",
    )
    TIME_GOES_BACK = ("time_goes_back", _E, f"the file belongs to another version: {REPAIR}")
    PATH_LIVE_TWICE = ("path_live_twice", _E, f"the log adds a split that is already live: {REPAIR}")
    STATE_DAMAGED = (
        "state_damaged",
        _W,
        _NOTHING_LOST + "readers open another state. Run: tidemark checkpoint after the next commit",
    )
    STATE_DISAGREES = (
        "state_disagrees",
        _E,
        f"the version files are correct, but opening may use this wrong state: {REPAIR}",
    )
    MANIFEST_DAMAGED = (
        "manifest_damaged",
        _W,
        _NOTHING_LOST + "readers open another state. A repaired copy has new manifests",
    )
    HINT_DAMAGED = ("hint_damaged", _W, _NOTHING_LOST + "readers list the log instead. Run: tidemark checkpoint")
    HINT_AHEAD = ("hint_ahead", _W, _NOTHING_LOST + "readers list the log instead. Run: tidemark checkpoint")
    HINT_STALE = ("hint_stale", _N, "readers read more version files. Run: tidemark checkpoint")
    SPLIT_MISSING = ("split_missing", _E, REPAIR)
    SPLIT_SIZE = ("split_size", _E, REPAIR)
    SPLIT_DAMAGED = ("split_damaged", _E, REPAIR)
    SPLIT_BREAKS_INVARIANT = (
        "split_breaks_invariant",
        _E,
        "the file is unchanged since the commit, but its rows do not fit the log. Report the problem",
    )
    OLDER_SPLIT_DAMAGED = (
        "older_split_damaged",
        _W,
        "only versions before its removal need the split. To read them, restore the split",
    )
    OLDER_SPLIT_MISSING = (
        "older_split_missing",
        _N,
        "versions before the removal of the split cannot be read. The split was collected or is lost",
    )
    SEGMENT_MISSING = (
        "segment_missing",
        _W,
        _NOTHING_LOST + "a search reads the split. A compaction or a repaired copy replaces the segment",
    )
    SEGMENT_DAMAGED = (
        "segment_damaged",
        _W,
        _NOTHING_LOST + "a search reads the split. A compaction or a repaired copy replaces the segment",
    )
    SEGMENT_STALE = ("segment_stale", _N, "no query uses the segment. Run: tidemark catch-up")
    REGION_REGISTRY_DAMAGED = (
        "region_registry_damaged",
        _W,
        _NOTHING_LOST + "readers list the regions. The registry is written again with the next new region",
    )
    REGION_NOT_REGISTERED = ("region_not_registered", _E, f"readers do not see the rows of the region: {REPAIR}")
    REGION_MANIFEST_DAMAGED = ("region_manifest_damaged", _E, REPAIR)
    REGION_MANIFEST_MISSING = ("region_manifest_missing", _E, REPAIR)
    REGION_HISTORY_DAMAGED = (
        "region_history_damaged",
        _W,
        _NOTHING_LOST + "a newer manifest is used. The collector removes the damaged manifest later",
    )
    REGION_HINT_DAMAGED = (
        "region_hint_damaged",
        _W,
        _NOTHING_LOST + "readers list the manifests instead. The next flush or claim writes the hint again",
    )
    WAL_ENTRY_DAMAGED = ("wal_entry_damaged", _E, REPAIR)
    WAL_ENTRY_MISSING = ("wal_entry_missing", _E, REPAIR)
    GENERATION_DAMAGED = ("generation_damaged", _E, REPAIR)
    GENERATION_GAP = ("generation_gap", _E, REPAIR)
    BLOOM_DAMAGED = (
        "bloom_damaged",
        _W,
        _NOTHING_LOST + "lookups read the generation. The next merge removes the filter",
    )
    SPENT_OBJECT_DAMAGED = (
        "spent_object_damaged",
        _W,
        _NOTHING_LOST + "the rows of the object are merged. The collector removes the object later",
    )
    QUARANTINE_DAMAGED = (
        "quarantine_damaged",
        _W,
        "its rejected lines cannot be read. Restore the entry, or delete it",
    )
    GC_PLAN_DAMAGED = (
        "gc_plan_damaged",
        _W,
        _NOTHING_LOST + "all horizons start again. The next `tidemark gc` replaces it",
    )
    GC_BOUNDARY_DAMAGED = ("gc_boundary_damaged", _E, f"the collector is stopped: {REPAIR}")
    TAGS_DAMAGED = ("tags_damaged", _E, f"no tag can be opened, and the collector is stopped: {REPAIR}")
    TAG_WITHOUT_VERSION = (
        "tag_without_version",
        _E,
        "the version of the tag cannot be opened any more. Set the tag again, or remove it, with: tidemark tag",
    )
    NEWER_FORMAT = ("newer_format", _E, "a newer release wrote the object. Upgrade Tidemark")
    UNKNOWN_KEY = (
        "unknown_key",
        _N,
        "not an object of Tidemark. Tidemark never changes the object. Move the object away if it is not needed",
    )
    UNREFERENCED = ("unreferenced", _N, "no version needs the object. Remove the object with: tidemark gc")
    VECTOR_MISSING = ("vector_missing", _E, f"the split of the deletion vector cannot be read: {REPAIR}")
    VECTOR_DAMAGED = ("vector_damaged", _E, f"the split of the deletion vector cannot be read: {REPAIR}")
    GENERATION_SEGMENT_DAMAGED = (
        "generation_segment_damaged",
        _W,
        _NOTHING_LOST + "a search indexes the generation. The next merge removes the segment",
    )
    GENERATION_COPY_DAMAGED = (
        "generation_copy_damaged",
        _W,
        _NOTHING_LOST + "lookups read the original object. The next merge removes the copy",
    )
    TRANSLATION_MISSING = (
        "translation_missing",
        _W,
        _NOTHING_LOST + "a search reads the splits. A repaired copy indexes the splits again",
    )
    TRANSLATION_DAMAGED = (
        "translation_damaged",
        _W,
        _NOTHING_LOST + "a search reads the splits. A repaired copy indexes the splits again",
    )
    SPLIT_VALUES_NOT_VALID = (
        "split_values_not_valid",
        _E,
        "set valid values. See `Values that cannot be read` in docs/operations.md",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One deviation. `key` is the object, or the table's URI if the finding does not concern a single object."""

    kind: Kind
    key: str
    expected: str
    found: str

    @property
    def severity(self) -> Severity:
        """The severity, which is the same for every finding of a kind."""
        return self.kind.severity

    @property
    def advice(self) -> str:
        """The advice for the finding."""
        return self.kind.advice


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a check.

    `version` is the newest version that opens, or None if no version opens. `objects` and `bytes` cover the whole
    listing. `deep` is True if the contents were read and hashed. `requests` contains the number of requests by kind.
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
        """True if nothing is damaged. Notes are not damage."""
        return all(each.severity is Severity.NOTE for each in self.findings)

    @property
    def exit_code(self) -> int:
        """The exit code of a command: 0 if clean, else the exit code of `Corrupt`."""
        return 0 if self.clean else Corrupt.exit_code

    def count(self, severity: Severity) -> int:
        """Return the number of findings with a severity."""
        return sum(each.severity is severity for each in self.findings)


def damage_of(kind: Kind, error: TidemarkError, key: str, expected: str) -> Finding:
    """Return the finding for an error that a read of `key` raised. The class of the error is in `DAMAGE`.

    The key of the finding is the key in the error, or `key` if the error has no valid key. The format of a newer
    release is not damage.
    """
    named = error.context.get("key")
    where = named if isinstance(named, str) and parse(named) is not None else key
    chosen = Kind.NEWER_FORMAT if isinstance(error, Unsupported) else kind
    return Finding(kind=chosen, key=where, expected=expected, found=error.found)


@dataclass(frozen=True, slots=True)
class Unread:
    """An object that cannot be read: its key, its expected content, and the error that a reader gets."""

    key: str
    expected: str
    error: TidemarkError

    def finding(self, kind: Kind) -> Finding:
        """Return the finding for this object."""
        return damage_of(kind, self.error, self.key, self.expected)


def required(found: Read | Unread) -> Read:
    """Return the value that was read. Raises the error if the read failed."""
    if isinstance(found, Unread):
        raise found.error
    return found


def try_read(key: str, expected: str, read: Callable[[], Read]) -> Read | Unread:
    """Return the result of `read`, or an `Unread` if `read` raises an error of `DAMAGE`."""
    try:
        return read()
    except DAMAGE as error:
        return Unread(key, expected, error)


@dataclass(slots=True)
class Findings:
    """The findings of one part of a check, in order."""

    every: list[Finding] = field(default_factory=list)

    def add(self, kind: Kind, key: str, expected: str, found: str) -> None:
        """Add a finding."""
        self.every.append(Finding(kind=kind, key=key, expected=expected, found=found))

    def unwrap(self, found: Read | Unread, kind: Kind) -> Read | None:
        """Return the value that was read. If the read failed, add a finding and return None."""
        if isinstance(found, Unread):
            self.every.append(found.finding(kind))
            return None
        return found
