"""Publishing: update a mirror in another format to the newest version of the table.

`publish` runs the common steps of all formats. A `Mirror` writes one format. `find_publish_blocker` returns the reason
why a version cannot be published.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.base.errors import CommitConflict, Corrupt, InvalidInput, NotFound, SnapshotExpired
from storage_core.base.text import counted
from storage_core.data.rows.columns import default_of, has_changed, stored_name, stored_schema
from storage_core.data.rows.schema import inside, lacks_ids
from storage_core.log.actions import Action, Add, Remove
from storage_core.log.codec import commit_info
from storage_core.log.conflicts import require_writable
from storage_core.log.log import TransactionLog
from storage_core.log.sharing import SOURCE
from storage_core.log.snapshot import Snapshot
from storage_core.log.split_columns import adds_of
from storage_core.log.versions import UNRECORDED, read_version
from storage_core.store.contract import ObjectFile, ObjectStore, put_or_unknown, unchanged

# A version is not published if another format would read rows of its splits differently.


_DATE_LENGTH = len("2015-05-17")
_UPDATE = "an update that sets the column to itself"
_REST = "write the remaining rows with an update that sets a column to itself"


def require_publishable(snapshot: Snapshot) -> None:
    """Raise an error for a table that cannot be published.

    Raises `InvalidInput` for a shallow clone, because its files are elsewhere. Raises `Unsupported` if another program
    maintains the log.
    """
    require_writable(snapshot)
    if SOURCE in snapshot.metadata.configuration:
        raise InvalidInput(
            "a shallow clone cannot be published, because its files are in the folder of its source. Clone the table "
            "with --deep"
        )


def find_publish_blocker(snapshot: Snapshot, *, vectors_wait: str | None) -> str | None:
    """Return the reason why the version cannot be published yet, and how to fix this.

    Return None if the version can be published.

    A mirror references the splits and does not change them. The mirror waits for the compaction of these splits:

    - splits with deleted rows, if readers do not support deletion vectors or ignore the deletion vector of a split
    - splits written before a column got a default
    - splits written before a date column became a timestamp

    `narrower` handles columns with widened numbers.

    Args:
        snapshot: Version to publish. Its list of splits is read in columns.
        vectors_wait: Reason why deleted rows prevent the publication. None if deleted rows do not matter.
    """
    return next(_found(snapshot, vectors_wait), None)


def without_inner_ids(store: ObjectStore, adds: Iterable[Add], schema: pa.Schema) -> str | None:
    """Return the reason if a split has no ids for fields inside a column. Return None if all splits have ids.

    Readers that use ids would find no values in these fields. Early 0.1 releases wrote such splits for tables with
    changed columns.

    Cost:
        One GET per split, for its footer, if the table has changed columns and nested columns.
    """
    nested = [stored_name(field) for field in schema if inside(field.type)]
    for add in adds if nested and has_changed(schema) else ():
        found = pq.read_schema(pa.PythonFile(ObjectFile(store, add.path, add.size), mode="r"))
        for name in nested:
            if name in found.names and lacks_ids(found.field(name)):
                return f"{add.path} has no field ids inside of column {name!r}. Write the rows with {_UPDATE}"
    return None


def narrower(store: ObjectStore, adds: Sequence[Add], columns: Collection[str], schema: pa.Schema) -> str | None:
    """Return the reason if a split was written before a column was widened. Return None if there is no such split.

    Some readers of other formats cannot widen values. `columns` contains the column names in splits.

    Cost:
        One GET per split, for its footer, oldest first, up to the first such split.
    """
    wanted = {field.name: field.type for field in stored_schema(schema) if field.name in columns}
    for add in sorted(adds, key=lambda each: each.modificationTime) if wanted else ():
        found = pq.read_schema(pa.PythonFile(ObjectFile(store, add.path, add.size), mode="r"))
        for name, type_ in wanted.items():
            if name in found.names and found.field(name).type != type_:
                has = f"{add.path} has {found.field(name).type} in column {name!r}, but the table has {type_}"
                return f"{has}. Compact its window, or write the rows with {_UPDATE}"
    return None


def _found(snapshot: Snapshot, vectors_wait: str | None) -> Iterator[str]:
    hiding = 0 if vectors_wait is None else sum(add.deleted_rows is not None for add in snapshot.splits.marked())
    if hiding:
        yield f"rows of {counted(hiding, 'split')} are deleted, {vectors_wait}. {_compact(hiding)}, or {_REST}"
    if missed := _count_missed(snapshot) if vectors_wait is None else 0:
        escaped = counted(missed, "split with a `%` in its key", "splits with a `%` in their keys")
        yield f"rows of {escaped} are deleted, but Polars would show them. {_compact(missed)}, or {_REST}"
    if not has_changed(snapshot.schema):
        return
    defaulted = [column for column in snapshot.schema if default_of(column) is not None]
    timestamps = [column for column in snapshot.schema if pa.types.is_timestamp(column.type)]
    if not defaulted and not timestamps:
        return
    files = pa.concat_tables(
        table.select(["minValues", "maxValues", "nullCounts"]) for table in snapshot.splits.tables()
    )
    for column in defaulted:
        if lacking := _count_lacking(files, column):
            yield (
                f"{counted(lacking, 'split has', 'splits have')} the default of column {column.name!r} only in the "
                f"log. {_compact(lacking)}, or write the rows with {_UPDATE}"
            )
    for column in timestamps:
        if dated := _count_dated(files, column):
            yield (
                f"{counted(dated, 'split has', 'splits have')} dates where column {column.name!r} has timestamps. "
                f"{_compact(dated)}, or write the rows with {_UPDATE}"
            )


def _compact(splits: int) -> str:
    return f"Compact {'its window' if splits == 1 else 'their windows'}"


def _count_missed(snapshot: Snapshot) -> int:
    """Return the number of splits with deleted rows and an escaped key.

    Polars misses the deletion vectors of these splits.
    """
    import pyarrow.compute as pc

    marked = (table.filter(table.column("deletionVector").is_valid()) for table in snapshot.splits.tables())
    escaped = (table.filter(pc.match_substring(table.column("path"), "%")) for table in marked)
    return sum(add.deleted_rows is not None for table in escaped for add in adds_of(table))


def _count_lacking(files: pa.Table, field: pa.Field) -> int:
    """Return the number of splits without the column. The log has a null count for each column of a split."""
    return int(_looked_up(files, "nullCounts", field).null_count)


def _count_dated(files: pa.Table, field: pa.Field) -> int:
    import pyarrow.compute as pc

    dated = (
        pc.equal(pc.utf8_length(_looked_up(files, name, field)), _DATE_LENGTH) for name in ("minValues", "maxValues")
    )
    return int(pc.sum(pc.or_kleene(*dated)).as_py() or 0)


def _looked_up(files: pa.Table, name: str, field: pa.Field) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    return pc.map_lookup(files.column(name), stored_name(field), "first")


# The result of a publication.


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored:
    """The published state of a mirror.

    - `version`: the shown version of the table. None means that no version was published yet.
    - `shown_as`: the number of this version in the format of the mirror. For Iceberg, this number is the id of the
      snapshot.
    - `location`: the location for readers: the table, or the newest metadata file.
    - `commits`: the number of commits of this call.
    - `waits_for`: the reason why no newer version is shown.
    """

    format: str
    version: int | None = None
    shown_as: int | None = None
    location: str | None = None
    commits: int = 0
    waits_for: str | None = None


Newest = TypeVar("Newest")

AT_ONCE: Final = "PUBLISH"
"""The operation name of a commit that publishes all differences at once."""

FORGETTING: Final = frozenset({"FORGET", AT_ONCE})
"""If one of these operations removed rows, no part that the mirror adds later may describe these rows."""

_ATTEMPTS = 10


@dataclass(slots=True)
class Touched:
    """The changes of versions that are not published yet."""

    keys: set[str] = field(default_factory=set)
    data_change: bool = False
    operation: str = UNRECORDED

    @staticmethod
    def everything(keys: Iterable[str]) -> Touched:
        """Return changes that include all the given files. The mirror may have outdated information about each of these
        files.
        """
        return Touched(set(keys), data_change=True, operation=AT_ONCE)

    def take(self, actions: Sequence[Action]) -> None:
        """Add the changes of one version."""
        files = [each for each in actions if isinstance(each, Add | Remove)]
        self.keys.update(each.path for each in files)
        self.data_change |= any(each.dataChange for each in files)
        info = commit_info(actions)
        if info is not None and self.operation not in FORGETTING:
            self.operation = info.operation


class Mirror(Protocol):
    """One attempt to publish a table in one format.

    `commits` is the number of commits of this attempt. `waits_for` is the reason why the last tried version is not
    shown.
    """

    commits: int
    waits_for: str | None

    @property
    def shown(self) -> int | None:
        """The published version, or None if no version is published."""

    @property
    def shown_as(self) -> int | None:
        """The number of the published version in the other format."""

    @property
    def location(self) -> str | None:
        """The location for readers."""

    @property
    def is_outdated(self) -> bool:
        """Whether the published version must be written again, even if the table has no newer version."""

    def begin(self, head: Snapshot) -> None:
        """Prepare the first publication."""

    def go_on(self, base: Snapshot) -> None:
        """Prepare the publication of versions after the published version `base`."""

    def go_on_without_base(self, head: Snapshot) -> Collection[str]:
        """Prepare to publish the head if the published version is not available. Return the files that the mirror
        contains.
        """

    def passes(self, snapshot: Snapshot) -> None:
        """Register a version between the base and the newest version, published or not."""

    def show(self, snapshot: Snapshot, touched: Touched) -> bool:
        """Commit the version if the format can represent it and it differs from the published version.

        Return False if another mirror was faster.
        """


def publish(
    log: TransactionLog,
    format_: str,
    newest: Callable[[], Newest],
    mirror_of: Callable[[Newest, Snapshot], Mirror],
) -> Mirrored:
    """Publish every unpublished version up to the newest version. Return the published state.

    Raises the errors of `newest` and of the mirror, and the errors below.

    Args:
        log: Transaction log of the table.
        format_: Name of the format.
        newest: Function that reads the newest state of the mirror.
        mirror_of: Function that creates a mirror from this state and the head.

    Raises:
        InvalidInput: The table cannot be published.
        CommitConflict: Another mirror was faster in every attempt.

    Cost:
        The requests of opening the published version and the newest version, one GET per version in between, and the
        requests of the mirror.
    """
    commits = 0
    done: Mirrored | None = None
    for _ in range(_ATTEMPTS):
        found = newest()  # read before the head, so the head is not older than the published version
        head = log.snapshot()
        require_publishable(head)
        mirror = mirror_of(found, head)
        is_whole = _go(log, head, mirror)
        commits += mirror.commits
        done = _result(format_, head, mirror, commits) if is_whole else done
        # The last published version was the newest version during this call, so its files were not collected.
        if is_whole and (not mirror.commits or log.refresh(head).version == head.version):
            break
    if done is None:
        raise CommitConflict(
            f"{log.store.uri}: other processes published during each of {_ATTEMPTS} attempts. Publish again later",
            uri=log.store.uri,
        )
    return done


def _go(log: TransactionLog, head: Snapshot, mirror: Mirror) -> bool:
    """Publish the versions that can be shown. Return False if another mirror was faster."""
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
    except (NotFound, Corrupt, SnapshotExpired):  # the version is older than the retention
        return None


def _step_by_step(log: TransactionLog, head: Snapshot, base: Snapshot, mirror: Mirror) -> bool | None:
    """Publish version by version. Return False if another mirror was faster.

    Return None and do nothing if version files are missing.
    """
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
            continue  # the files of the version may be collected
        if not mirror.show(base, touched):
            return False
        if mirror.waits_for is None:
            touched = Touched()
    return not mirror.is_outdated or mirror.show(base, touched)


def _result(format_: str, head: Snapshot, mirror: Mirror, commits: int) -> Mirrored:
    """Return the published state.

    The head counts as published if no version after the published version has a visible change.
    """
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
    """Raise `Corrupt` unless the newest part of a mirror shows a version of this table. The part is at `where`.

    `shown` is the id of a table and its version. `shown` is None if no mirror has written this part.
    """
    if shown is None:
        raise Corrupt(
            f"{where}: another program wrote this object. Only the mirror of this table may write here",
            advice=advice,
            key=where,
        )
    table_id, version = shown
    if table_id != head.table_id or version > head.version:
        raise Corrupt(
            f"{where}: the mirror shows version {version} of the table {table_id}, but this is the table "
            f"{head.table_id} at version {head.version}",
            advice=advice,
            key=where,
        )


# A hint is a small object. The hint contains the number of the newest numbered object, or a slightly lower number.


def advance_hint(
    store: ObjectStore, key: str, number: int, data: bytes, *, decode: Callable[[bytes], int | None]
) -> None:
    """Set the hint to the number unless the hint has a later number. The cost is one GET and one PUT.

    If another process sets the hint first, the function raises no error, because the hint of the other process is also
    valid.
    """
    try:
        blob = store.get(key)
    except NotFound:
        etag = None
    else:
        known = decode(blob.data)
        if known is not None and known >= number:
            return
        etag = blob.etag
    put_or_unknown(store, key, data, unchanged(etag))
