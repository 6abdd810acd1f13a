"""From what a mirror shows to the newest version, one version after the other, whatever format it is of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from storage_core.errors import CommitConflict, Corrupt, NotFound, SnapshotExpired
from storage_core.log.actions import Action, Add, Remove
from storage_core.log.advance import read_version
from storage_core.log.encoding.codec import commit_info
from storage_core.log.history import UNRECORDED
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.publishing.hindrance import require_publishable
from storage_core.publishing.mirrored import Mirrored

Newest = TypeVar("Newest")

AT_ONCE: Final = "PUBLISH"
"""The operation of a commit that shows all that differs from what was shown."""

FORGETTING: Final = frozenset({"FORGET", AT_ONCE})
"""After these nothing of the mirror that is new may speak of rows that are gone."""

_ATTEMPTS = 10


@dataclass(slots=True)
class Touched:
    """What versions changed that are not shown yet."""

    keys: set[str] = field(default_factory=set)
    data_change: bool = False
    operation: str = UNRECORDED

    @staticmethod
    def everything(keys: Iterable[str]) -> Touched:
        """Return that all of these may differ."""
        return Touched(set(keys), data_change=True, operation=AT_ONCE)

    def take(self, actions: Sequence[Action]) -> None:
        """Take up the changes of one version."""
        files = [each for each in actions if isinstance(each, Add | Remove)]
        self.keys.update(each.path for each in files)
        self.data_change |= any(each.dataChange for each in files)
        info = commit_info(actions)
        if info is not None and self.operation not in FORGETTING:
            self.operation = info.operation


class Mirror(Protocol):
    """What one format shows of a table, in one attempt to show more.

    `commits` were made; `waits_for` says why the version that was tried last is not shown.
    """

    commits: int
    waits_for: str | None

    @property
    def shown(self) -> int | None:
        """The version that is shown, None for none."""

    @property
    def shown_as(self) -> int | None:
        """The number that it has in the format."""

    @property
    def location(self) -> str | None:
        """What readers are given."""

    @property
    def is_outdated(self) -> bool:
        """Whether what is shown has to be written once more, also where the table has no newer version."""

    def begin(self, head: Snapshot) -> None:
        """Prepare to show the first version there is."""

    def go_on(self, base: Snapshot) -> None:
        """Prepare to show versions after the one that is shown, which is `base`."""

    def go_on_without_base(self, head: Snapshot) -> Collection[str]:
        """Prepare to show the head, and return what is shown by what the mirror itself has written."""

    def passes(self, snapshot: Snapshot) -> None:
        """Take note of a version on the way, whether or not it is shown."""

    def show(self, snapshot: Snapshot, touched: Touched) -> bool:
        """Commit the version, if it can be shown and is not shown as it is; False when another mirror was faster."""


def publish(
    log: TransactionLog,
    format_: str,
    newest: Callable[[], Newest],
    mirror_of: Callable[[Newest, Snapshot], Mirror],
) -> Mirrored:
    """Show every version up to the newest that is not shown yet, and return what is shown then.

    `newest` reads what the mirror has written last. Raises what that and a mirror raise, `InvalidInput` for a table
    that is not published, `CommitConflict` when another mirror was faster each time. Requests: those of opening
    the version that is shown and the newest, one GET per version in between, and those of the mirror.
    """
    commits = 0
    done: Mirrored | None = None
    for _ in range(_ATTEMPTS):
        found = newest()  # before the head, which is then no older than what is shown
        head = log.snapshot()
        require_publishable(head)
        mirror = mirror_of(found, head)
        is_whole = _go(log, head, mirror)
        commits += mirror.commits
        done = _result(format_, head, mirror, commits) if is_whole else done
        # What is shown last was the newest version at some moment of this call: so nothing of it was collected yet.
        if is_whole and (not mirror.commits or log.refresh(head).version == head.version):
            break
    if done is None:
        raise CommitConflict(
            f"{log.store.uri}: other mirrors published during each of {_ATTEMPTS} attempts; publish again later",
            uri=log.store.uri,
        )
    return done


def _go(log: TransactionLog, head: Snapshot, mirror: Mirror) -> bool:
    """Publish what can be; False when another mirror was faster."""
    if mirror.shown is None:
        mirror.begin(head)
        return mirror.show(head, Touched.everything(head.splits))
    base = _opened(log, head, mirror.shown)
    found = None if base is None else _step_by_step(log, head, base, mirror)
    if found is not None:
        return found
    keys = mirror.go_on_without_base(head)
    mirror.passes(head)
    return mirror.show(head, Touched.everything([*keys, *head.splits]))


def _opened(log: TransactionLog, head: Snapshot, version: int) -> Snapshot | None:
    try:
        return head if version == head.version else log.snapshot(version=version)
    except (NotFound, Corrupt, SnapshotExpired):  # older than what is retained
        return None


def _step_by_step(log: TransactionLog, head: Snapshot, base: Snapshot, mirror: Mirror) -> bool | None:
    """Show version after version; None, with nothing done, where they are no longer there, else False."""
    mirror.go_on(base)
    oldest_ms = log.clock.now_ms() - head.config.version_retention_ms
    touched = Touched()
    for version in range(base.version + 1, head.version + 1):
        actions = read_version(log.store, version)
        if actions is None:
            return False if mirror.commits else None
        touched.take(actions)
        base = Snapshot.apply(base, version, actions)
        mirror.passes(base)
        if base.timestamp < oldest_ms and version < head.version:
            continue  # files of it may be collected
        if not mirror.show(base, touched):
            return False
        if mirror.waits_for is None:
            touched = Touched()
    return not mirror.is_outdated or mirror.show(base, touched)


def _result(format_: str, head: Snapshot, mirror: Mirror, commits: int) -> Mirrored:
    """What is shown: also the head, where all since changed nothing that is."""
    is_behind = mirror.waits_for is not None or mirror.shown is None
    return Mirrored(
        format=format_,
        version=mirror.shown if is_behind else head.version,
        shown_as=mirror.shown_as,
        location=mirror.location,
        commits=commits,
        waits_for=mirror.waits_for,
    )


def require_own(where: str, shown: tuple[str, int] | None, head: Snapshot, *, advice: str) -> None:
    """Raise `Corrupt` unless what is newest in a mirror, at `where`, shows a version of this table.

    `shown` is a table's id and a version of it, None where no mirror has written this.
    """
    if shown is None:
        raise Corrupt(
            f"{where}: written by somebody else; what is there is the mirror's alone", advice=advice, key=where
        )
    table_id, version = shown
    if table_id != head.table_id or version > head.version:
        raise Corrupt(
            f"{where}: shows version {version} of the table {table_id}, found the table {head.table_id} at version "
            f"{head.version}",
            advice=advice,
            key=where,
        )
