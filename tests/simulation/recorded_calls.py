"""Writers, maintainers and readers of one table that record their calls and results for `tests.support.consistency`.

The first letter of a key names its region. Values only grow: each call takes the next value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count

import pyarrow as pa

from storage_core.data.rows import fold
from storage_core.data.settings.table import TableConfig
from storage_core.log.commit import CommitResult
from storage_core.store.meter import MeteredStore
from storage_core.table import Table
from storage_core.write.region.records import WriterOptions
from storage_core.write.region.spec import first_specs, region_of_values
from storage_core.write.region.writer import RegionWriter
from tests.support.consistency import History, Level, Mark, Read, Write
from tests.support.keyed_table import PLANES, KeyedTable

WAYS = ("get", "get_many", "scan", "sql")


def by_letter(horizon_ms: int) -> TableConfig:
    """Return the settings of a table with one region for each first letter of its keys.

    The table does not retain old versions.
    """
    field = {"field": "letter", "transform": "truncate", "width": 1, "source": "tailnum"}
    return TableConfig(
        primary_key=("tailnum",),
        region_specs=first_specs([field], PLANES),
        gc_horizon_ms=horizon_ms,
        version_retention_ms=0,
    )


def opened(table: KeyedTable) -> Table:
    """Return the public `Table` over the same store."""
    store = MeteredStore(table.store)
    log = KeyedTable(store, table.ids, table.clock).log
    return Table(store, log, log.snapshot())


def letter(key: str) -> str:
    """Return the region of a key."""
    return key[0]


class Ledger:
    """The history of all actors.

    `flushed` contains a logical time (stamp) for each generation of a region. The generation contains all writes before
    this stamp.
    """

    def __init__(self) -> None:
        self.history = History()
        self.values = count(1)
        self.flushed: dict[str, dict[int, int]] = {}
        self.letters: dict[str, str] = {}

    def merged(self, done: CommitResult | None) -> None:
        """Record a committed merge. The base now contains the merged generations."""
        if done is None:
            return
        ended = self.history.stamp()
        for region, last in done.snapshot.merged_generations.items():
            generations = [each for each in list(self.flushed.get(region, {})) if each <= last]
            if generations:
                covers = self.flushed[region][max(generations)]
                mark = Mark(level=Level.SNAPSHOT, region=self.letters[region], covers=covers, ended=ended)
                self.history.marks.append(mark)


class RecordedWriter:
    """A writer for the region of the keys with one letter. A thread writes rows. A second thread may flush."""

    def __init__(self, ledger: Ledger, table: KeyedTable, name: str, options: WriterOptions | None = None) -> None:
        """Claim the region."""
        self._ledger, self._history, self.name = ledger, ledger.history, name
        snapshot = table.snapshot
        region = region_of_values(snapshot.table_id, snapshot.config.region_spec, {"letter": name})
        self._writer = RegionWriter.open(
            table.store, snapshot, clock=table.clock, ids=table.ids, options=options, region=region
        )
        ledger.letters[region.id] = name

    def write(self, keys: Sequence[str], *, deleted: Sequence[str] = ()) -> None:
        """Write one new value for all `keys`, or delete the keys in `deleted`. Wait for the acknowledgement."""
        value = next(self._ledger.values)
        begun, ended = self._history.stamp(), None
        try:
            if deleted:
                self._writer.delete(list(deleted))
            else:
                self._writer.put([{"tailnum": key, "seats": value} for key in keys])
            ended = self._history.stamp()
        finally:
            self._add(begun, ended, ended, {**dict.fromkeys(keys, value), **dict.fromkeys(deleted)})

    def gather(self, keys: Sequence[str], between: Callable[[], object]) -> None:
        """Put the keys without a wait for durability, and call `between`. Then wait until the keys are durable."""
        value = next(self._ledger.values)
        begun = self._history.stamp()
        self._writer.put([{"tailnum": key, "seats": value} for key in keys], durable=False)
        given = self._history.stamp()
        between()
        self._writer.sync()
        self._add(begun, given, self._history.stamp(), dict.fromkeys(keys, value))

    def flush(self) -> None:
        """Flush all records that were acknowledged before this call into a generation."""
        covers = self._history.stamp()
        generation = self._writer.flush()
        mark = Mark(level=Level.COMMITTED, region=self.name, covers=covers, ended=self._history.stamp())
        self._history.marks.append(mark)
        if generation is not None:
            self._ledger.flushed.setdefault(self._writer.region_id, {})[generation] = covers

    def read(self, table: Table, keys: Sequence[str]) -> None:
        """Read durable records from a view, and apply the writer's buffered records over the view."""
        begun = self._history.stamp()
        view, records = self._writer.over(lambda: _latest(table, keys))
        rows = fold.apply(view, records, table.config.primary_key)
        found = tuple((row["tailnum"], row["seats"]) for row in rows.to_pylist() if row["tailnum"] in keys)
        self._history.reads.append(
            Read(
                session=f"writer of {self.name}",
                level=Level.IN_PROCESS,
                begun=begun,
                ended=self._history.stamp(),
                found=found,
                keys=frozenset(keys),
            )
        )

    def _add(self, begun: int, given: int | None, durable: int | None, changes: Mapping[str, int | None]) -> None:
        write = Write(region=self.name, begun=begun, given=given, durable=durable, changes=changes)
        self._history.writes.append(write)


class RecordedReader:
    """One session: a table object, and the order of its results."""

    def __init__(self, ledger: Ledger, table: Table, session: str) -> None:
        self._history, self._table, self._session = ledger.history, table, session

    def read(self, level: Level, way: str, keys: Sequence[str]) -> None:
        """Read rows at a consistency level, and record the result.

        `get` reads only the first key, `get_many` reads all keys, and `scan` and `sql` read all rows.
        """
        begun = self._history.stamp()
        if level is Level.SNAPSHOT:
            self._table.refresh()
        found = tuple((str(row["tailnum"]), _seats(row)) for row in self._rows(level, way, keys) if row is not None)
        wanted = {"get": frozenset(keys[:1]), "get_many": frozenset(keys)}.get(way)
        ended = self._history.stamp()
        read = Read(session=self._session, level=level, begun=begun, ended=ended, found=found, keys=wanted)
        self._history.reads.append(read)

    def _rows(self, level: Level, way: str, keys: Sequence[str]) -> Sequence[dict[str, object] | None]:
        table = self._table
        match way:
            case "get":
                return [table.get(keys[0], consistency=level)]
            case "get_many":
                return table.get_many(list(keys), consistency=level)
            case "scan":
                return list(table.scan(["tailnum", "seats"], consistency=level).to_arrow().to_pylist())
            case _:
                return list(table.sql("SELECT tailnum, seats FROM t", consistency=level).to_pylist())


def _seats(row: dict[str, object]) -> int:
    value = row["seats"]
    assert isinstance(value, int)
    return value


def _latest(table: Table, keys: Sequence[str]) -> pa.Table:
    rows = table.get_many(list(keys), consistency=Level.LATEST)
    return pa.Table.from_pylist([row for row in rows if row is not None], schema=table.schema)
