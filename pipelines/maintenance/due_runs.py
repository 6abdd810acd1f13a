"""The work that the upkeep sensor finds in tables, and the runs that do this work.

- `WantedRun`: a step of a table that could run now. The urgency of a wanted step can be compared with the urgency of
  other steps.
- `grouped`: the same step of several small tables shares a run. A step of a hundred small tables then needs only one
  process start. Tables should not wait for each other. Urgent work therefore does not share a run with other work.
  Large work always has a separate run. If the step of one table fails in a shared run, the other tables are not
  affected (decision 0037).
- `IdleFingerprint`: the last known state of an idle table. With `IdleFingerprint`, the sensor needs only one request to
  find changes. The requests take turns. One request checks the log, another checks the landing location, and another
  checks the regions.
- `DeclaredNow`: the tables that the files declare now. A run loads the files again. If one of its assets is no longer
  declared, the run cannot begin. Files can change while a code server runs. The sensor therefore does not request runs
  of a table that is no longer declared. If the assets of a table have changed, the table does not share a run. If such
  a table were part of a shared run, the run would fail for all tables of the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dagster import AssetKey, RunRequest

from assets.run_tags import bytes_tag
from assets.steps import partition_key, span_of
from jobs.due_runs import TableInputs
from pipelines.jobs import assets_of_jobs
from pipelines.runs import run_request
from pipelines.tables import read_tables
from storage_core.base.errors import NotFound
from storage_core.base.text import counted
from storage_core.change.declaration import TableDeclaration
from storage_core.data.formats.keys import REGIONS_PREFIX, version_key
from storage_core.data.steps import STEPS
from storage_core.log.job_run import DueRun
from storage_core.store.resolve import open_store
from storage_core.table import exists
from storage_core.write.ingest.landing import LandedFile, discover
from storage_core.write.ingest.progress import versions

# Wanted steps.


LATE_SECONDS = 3600
"""Work that has waited for this number of seconds gets the priority of fresh data."""

# The cost of starting a run, as the number of bytes that a run could read in the same time.
_START_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRun:
    """A step of a table that could run now.

    Attributes:
        declaration: The table.
        job: The job of the step.
        due: The work.
        assets: The assets to make.
        late_seconds: How long the work has waited, in seconds.
        granted_bytes: The bytes that the budgets grant, or None without a budget.
        is_alone: True if the run is not shared with other tables.
    """

    declaration: TableDeclaration
    job: str
    due: DueRun
    assets: Sequence[AssetKey]
    late_seconds: float
    granted_bytes: int | None = None
    is_alone: bool = False

    @property
    def is_fresh_data(self) -> bool:
        """Whether the step makes new rows visible."""
        return STEPS[self.job].is_fresh

    @property
    def is_late(self) -> bool:
        """Whether the work has waited longer than allowed."""
        return self.late_seconds >= LATE_SECONDS

    @property
    def is_urgent(self) -> bool:
        """Whether the work has priority, because it adds new rows or because it is late."""
        return self.is_late or self.is_fresh_data

    @property
    def rank(self) -> tuple[int, int, float]:
        """The key that sorts work by urgency.

        Urgent work is first. Then the table with the higher priority is first, and then the work with the higher gain
        per cost and lateness.
        """
        gain = self.due.items / (_START_BYTES + self.due.bytes) * (1 + self.late_seconds / LATE_SECONDS)
        return (-int(self.is_urgent), -self.declaration.upkeep.priority, -gain)

    @property
    def partition(self) -> str | None:
        """The newest window of the work, as the partition that Dagster requires for a run of all windows."""
        span = span_of(self.declaration) if self.job == "compact" else None
        window = None if span is None else span.partition_of(self.due.newest)
        return None if span is None else partition_key(span.newest if window is None else window)


# Shared runs.


SMALL_BYTES = 64 * 2**20
"""Work that reads more than this number of bytes has a separate run."""

MOST_BYTES = 256 * 2**20
MOST_TABLES = 100
"""The limits of a shared run. A shared run reads at most `MOST_BYTES` bytes and has at most `MOST_TABLES` tables."""

Group = list[WantedRun]
"""The work of one run: one step of one table, or the same step of several tables."""


def grouped(chosen: Iterable[WantedRun], *, most_tables: int = MOST_TABLES) -> list[Group]:
    """Return the chosen work as runs. The input and the result begin with the most urgent work."""
    groups: list[Group] = []
    open_groups: dict[object, Group] = {}
    for each in chosen:
        if each.is_alone or not _is_small(each):
            groups.append([each])
            continue
        kind = (each.job, each.is_urgent, each.declaration.upkeep.priority, each.partition)
        group = open_groups.get(kind)
        if group is None or len(group) >= most_tables or sum(map(_bytes, [*group, each])) > MOST_BYTES:
            groups.append(group := [])
            open_groups[kind] = group
        group.append(each)
    return groups


def request_of(group: Sequence[WantedRun], *, prefix: str = "") -> RunRequest:
    """Return the request for the run. The name of the run's job begins with `prefix`."""
    first = group[0]
    names = [each.declaration.name for each in group]
    is_one = len(group) == 1
    request = run_request(
        first.job,
        names[0] if is_one else names,
        [key for each in group for key in each.assets],
        first.due.reason if is_one else f"{counted(len(group), 'table')}, {names[0]}: {first.due.reason}",
        is_late=first.is_late,
        partition=first.partition,
        table_priority=first.declaration.upkeep.priority,
    )
    granted = {each.declaration.name: each.granted_bytes for each in group if each.granted_bytes is not None}
    tags = {**request.tags, **bytes_tag(granted)}
    return request.with_replaced_attrs(job_name=f"{prefix}{first.job}", tags=tags)


def _is_small(wanted: WantedRun) -> bool:
    """Return whether the work may share a run.

    An ingest from a Delta table must not share a run with another ingest, because it needs Spark with the Delta
    packages.
    """
    landing = wanted.declaration.landing
    is_delta = wanted.job == "ingest" and landing is not None and landing.is_delta
    return _bytes(wanted) <= SMALL_BYTES and not is_delta


def _bytes(wanted: WantedRun) -> int:
    return wanted.due.bytes or wanted.due.items * STEPS[wanted.job].item_bytes


# Idle tables.


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleFingerprint:
    """The state of a table that had no work at `at_ms`.

    Attributes:
        at_ms: The time at which this state was read, in milliseconds.
        version: The version of the table, or None if the table does not exist.
        landed: A digest of the landed files, or the newest version of the Delta table at the landing location.
        regions: A digest of the objects of the regions.
        turn: The number of checks since this time.
        due_ms: The time at which new work may appear without any change, or None if no such time is known.
    """

    at_ms: int
    version: int | None
    landed: str
    regions: str
    turn: int = 0
    due_ms: int | None = None

    @classmethod
    def of(cls, inputs: TableInputs) -> IdleFingerprint:
        """Return the fingerprint of a table that has no pending work. Cost: one LIST of the regions, or no request."""
        declaration = inputs.declaration
        spec = declaration.landing_spec()
        is_delta = spec is not None and spec.is_delta
        return cls(
            at_ms=inputs.clock.now_ms(),
            version=inputs.table.version if inputs.table else None,
            landed=_delta(declaration) if is_delta else _files(inputs.landed),
            regions=_regions(declaration) if declaration.primary_key else "",
        )

    def is_same(self, declaration: TableDeclaration) -> tuple[bool, IdleFingerprint]:
        """Make the next check.

        Return whether the table is unchanged, and the state to remember. There is one check for the log, one for the
        landing location and one for the regions. Each call makes the next check in turn. Cost: one HEAD, or one LIST
        per 1,000 objects.
        """
        asks = list(_asks(declaration))
        is_same = asks[self.turn % len(asks)](self, declaration)
        return is_same, replace(self, turn=self.turn + 1)


def _asks(declaration: TableDeclaration) -> Iterator[Callable[[IdleFingerprint, TableDeclaration], bool]]:
    spec = declaration.landing_spec()
    if spec is not None:
        yield _no_version_landed if spec.is_delta else _nothing_landed
    yield _no_commit
    if declaration.primary_key:
        yield _no_record


def _no_commit(seen: IdleFingerprint, declaration: TableDeclaration) -> bool:
    if seen.version is None:
        return not exists(declaration.uri)
    try:
        open_store(declaration.uri).head(version_key(seen.version + 1))
    except NotFound:
        return True
    return False


def _nothing_landed(seen: IdleFingerprint, declaration: TableDeclaration) -> bool:
    spec = declaration.landing_spec()
    if spec is not None and spec.queue is not None:
        from storage_core.write.ingest.announcements import Queue  # most landing locations have no queue

        return not Queue.of(spec).waiting()  # `due_ms` contains the time of the next listing
    return spec is None or seen.landed == _files(discover(spec))


def _no_version_landed(seen: IdleFingerprint, declaration: TableDeclaration) -> bool:
    return seen.landed == _delta(declaration)


def _no_record(seen: IdleFingerprint, declaration: TableDeclaration) -> bool:
    return seen.regions == _regions(declaration)


def _regions(declaration: TableDeclaration) -> str:
    return _digest(each.key for each in open_store(declaration.uri).list(REGIONS_PREFIX))


def _delta(declaration: TableDeclaration) -> str:
    spec = declaration.landing_spec()
    return "" if spec is None else str(max(versions(open_store(spec.uri)), default=None))


def _files(files: Iterable[LandedFile]) -> str:
    return _digest(f"{file.path}\0{file.size}\0{file.etag}" for file in files)


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0\0".join(sorted(texts)).encode()).hexdigest()[:16]


# Current declarations.


def has_same_assets(one: TableDeclaration, other: TableDeclaration) -> bool:
    """Return whether two declarations of a table create the same assets and partitions."""
    return one == other or (assets_of_jobs([one]) == assets_of_jobs([other]) and span_of(one) == span_of(other))


_Stamps = Mapping[Path, tuple[int, int]]


class DeclaredNow:
    """The tables that the files of a folder declare.

    If one file has changed, all files are read again. Not thread-safe.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamps: _Stamps | None = None
        self._declared: Mapping[str, TableDeclaration] = {}

    def read(self) -> Mapping[str, TableDeclaration]:
        """Return the valid declarations by name.

        The function checks the time and size of each file, and reads all files again after a change.
        """
        stamps = self._look()
        if stamps != self._stamps:
            found = read_tables(self._folder)
            self._stamps, self._declared = stamps, {each.declaration.name: each.declaration for each in found.tables}
        return self._declared

    def _look(self) -> _Stamps:
        found = {}
        for path in self._folder.glob("*.yaml"):
            try:
                about = path.stat()
            except OSError:  # if the file was removed or cannot be read, a later read reports the problem
                continue
            found[path] = (about.st_mtime_ns, about.st_size)
        return found
