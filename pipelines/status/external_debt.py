"""What the log of a table does not say of its upkeep: landed files, mirrors, what the collector noted. Free of Dagster.

Each costs a bounded number of requests and hides no other: of what cannot be known it is said why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from storage_core.errors import TidemarkError
from storage_core.objectstore.contract import PAGE_KEYS
from storage_core.read.status import ExternalDebt, Owed
from storage_core.table import Table
from storage_core.wording import counted

if TYPE_CHECKING:
    from storage_core.formats.gc_plan import Plan
    from storage_core.gc.retained_bytes import RetainedBytes
    from storage_core.ingest.landing import LandingSpec

MOST_LANDED = 10_000
"""So many entries of a landing place are looked at."""

HELD = "held"
"""The name in `unknown` of what holds the bytes of the table, which is not a step."""

Found = TypeVar("Found")


@dataclass(slots=True)
class ExternalLook:
    """One look at what the log does not say, of a table whose rows land at `landing`, if anywhere.

    `with_held` also finds what holds the bytes of the table. `lists` counts the requests that the landing place was
    asked, where the table's store counts the others.
    """

    table: Table
    landing: LandingSpec | None
    now_ms: int
    with_held: bool = False
    lists: int = 0
    _unknown: dict[str, str] = field(default_factory=dict)
    _read: Plan | None = None

    def look(self) -> ExternalDebt:
        """Return what there is to do. Raises no error of what it looks at.

        Requests: a LIST per 1,000 entries of the landing place, one GET, and those of `shown_versions`. With
        `with_held` also those of `measure_retained`.
        """
        return ExternalDebt(
            ingest=self._known("ingest", self._landed),
            collect=self._known("collect", self._noted),
            mirrors=self._known("publish", self._lacking) or {},
            held=self._known(HELD, self._held) if self.with_held else None,
            unknown=self._unknown,
        )

    def _known(self, step: str, look: Callable[[], Found | None]) -> Found | None:
        try:
            return look()
        except TidemarkError as error:
            self._unknown[step] = f"{error.kind}: {error.found}"
            return None

    def _landed(self) -> Owed | None:
        if self.landing is None:
            return None
        self.lists += 1
        return self._versions(self.landing) if self.landing.is_delta else self._files(self.landing)

    def _versions(self, spec: LandingSpec) -> Owed | None:
        from storage_core.ingest.delta_versions import waiting_versions

        waiting = len(waiting_versions(spec.uri, self.table.snapshot))
        return Owed(count=waiting, unit="versions") if waiting else None

    def _files(self, spec: LandingSpec) -> Owed | None:
        from storage_core.ingest.landing import survey
        from storage_core.ingest.progress import pending

        found = survey(spec, most=MOST_LANDED)
        self.lists += max(found.entries - 1, 0) // PAGE_KEYS
        if found.entries >= MOST_LANDED:
            self._unknown["ingest"] = f"{counted(MOST_LANDED, 'file')} or more lie in the landing place"
            return None
        sizes = [each.size for each in pending(self.table.snapshot, found.files)]
        return Owed(count=len(sizes), unit="files", bytes=sum(sizes)) if sizes else None

    def _lacking(self) -> dict[str, int]:
        how = self.table.config.publish
        if not how.formats:
            return {}
        from storage_core.publishing.shown import shown_versions

        shown = shown_versions(self.table.store, how)
        return {name: self.table.version - (-1 if version is None else version) for name, version in shown.items()}

    def _noted(self) -> Owed | None:
        """What a former collection found and the next one deletes, unless something needs it again."""
        from storage_core.gc.sweep import Horizon, long_noted

        own = self.table.config.gc_horizon_ms
        horizon = Horizon(requested_ms=own, configured_ms=own)
        due = list(long_noted(self._plan(), horizon, now_ms=self.now_ms))
        return Owed(count=len(due), unit="objects", bytes=sum(each.size for each in due)) if due else None

    def _plan(self) -> Plan:
        from storage_core.gc.plan import read_plan

        if self._read is None:
            self._read = read_plan(self.table.store)
        return self._read

    def _held(self) -> RetainedBytes:
        from storage_core.gc.retained_bytes import measure_retained

        return measure_retained(self.table.store, self.table.snapshot, self._plan(), now_ms=self.now_ms)
