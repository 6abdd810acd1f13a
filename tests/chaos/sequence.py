"""Random operations on one table and its model. The table and the model must agree after each operation.

After each operation, the table must return every row of the model: by lookups of all keys, by the history, or by a
scan. After every `FEW` operations, SQL or a search is also checked. After every `MANY` operations, every byte is
checked. An operation that only reads compares its own result with the model.

A test runs a fixed number of seeds, each with its own table. A soak multiplies this number by `TIDEMARK_SCALE`.
`TIDEMARK_SEED` runs only that seed.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from storage_core.base.clock import SystemClock, SystemIds
from storage_core.base.errors import NotFound, SnapshotExpired, WriterFenced
from storage_core.change.creation import create
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.log.log import TransactionLog
from storage_core.maintain.check import fsck
from storage_core.maintain.findings import Severity
from storage_core.maintain.repair import repair
from storage_core.read.predicate import col
from storage_core.split.context import context_of
from storage_core.store.resolve import open_store
from storage_core.table import Table
from storage_core.write.ingest import batch
from storage_core.write.ingest.landing import LandingSpec, discover
from storage_core.write.region.records import WriterOptions
from storage_core.write.region.router import TableWriter
from tests.chaos.board import now_ms
from tests.chaos.model import COLUMNS, WHOLE, AppendModel, KeyedModel, Record, Row, bag, frozen
from tests.support import upkeep

SCHEMA = pa.schema(
    [
        pa.field("part", pa.string(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("n", pa.int64()),
        pa.field("words", pa.string()),
        pa.field("attrs", pa.map_(pa.string(), pa.int64())),
    ]
)
PARTS = ["north", "south", "west"]
IDS = range(5)
WORDS = ["alpha", "beta", "gamma", "delta"]
LEVELS = ["snapshot", "committed", "latest"]
OPERATIONS = ["put", "put", "patch", "delete", "reset"]
HOURS = 4
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
BY_PART = [{"transform": "identity", "source": "part"}]
NEVER_MS = 3_600_000
"""A flush period in ms that is longer than any test. Only explicit calls flush rows."""

STEPS = 80
SCANS = 0.25
"""The share of scans among the reads. A scan opens DuckDB, and takes several times as long as another operation."""

FEW = 8
"""After this many operations, SQL or a search is also checked.

SQL and searches are slow, because they open DuckDB or build indexes.
"""

MANY = 25
"""After this many operations, every byte is checked."""

UNCACHED = 0.1
"""The share of searches that run without the cache of earlier searches."""

BLOCK = 2

READS = {"time travel", "changes", "history"}
"""Operations that compare the rows that they read with the model."""

Act = Callable[[], object]
Ask = Callable[[Table, str, list[Row]], None]


def run(seeds: range, folder: Path, *, keyed: bool) -> None:
    """Run the sequences of these seeds one after another. A failure contains the way to repeat it."""
    for seed in seeds:
        within = folder / str(seed)
        within.mkdir()
        sequence = Sequence.begin(within, Random(seed), keyed=keyed)
        try:
            for _ in range(STEPS):
                sequence.step()
            sequence.end()
        except BaseException as error:
            error.add_note(f"sequence with TIDEMARK_SEED={seed} in {within}: {', '.join(sequence.done)}")
            raise


@dataclass(slots=True)
class Sequence:
    """A table in `folder` with its model. `done` contains the operations so far, to explain a failure.

    `beside` is another `Table` object of the same table, and only reads use it. `beside` was opened long ago, so its
    state is old.
    """

    folder: Path
    random: Random
    keyed: bool
    collects: bool
    model: KeyedModel | AppendModel
    table: Table
    beside: Table
    done: list[str] = field(default_factory=list)
    writer: TableWriter | None = None
    tags: dict[str, int] = field(default_factory=dict)
    sure: set[int] = field(default_factory=set)
    numbers: int = 0

    @staticmethod
    def begin(folder: Path, random: Random, *, keyed: bool) -> Sequence:
        """Create a table with random settings."""
        collects, merges = random.random() < 0.3, random.random() < 0.5
        windowed = not keyed and random.random() < 0.7  # the key of a keyed table with windows must contain the time
        config = TableConfig(
            primary_key=("part", "id") if keyed else (),
            time_column="timestamp" if windowed else None,
            window_seconds=3600 if windowed else None,
            sort_schema="n|timestamp/V2" if windowed else None,
            indexes=(IndexDefinition("text", "fulltext", ("words",)), IndexDefinition("parts", "bitmap", ("part",))),
            map_columns={"attrs": "merge"} if merges else {},
            bloom_filters=("n",) if random.random() < 0.3 else (),
            partition_by=random.choice([(), (), ("part",), ("bucket[2](part)", "truncate[4](part)")]),
            target_split_bytes=random.choice([4_000, 2**28]),
            checkpoint_interval=random.choice([0, 4, 16]),
            checkpoint_format=random.choice(["avro", "json"]),
            gc_horizon_ms=0 if collects else 1,
            version_retention_ms=0 if collects else 3_600_000,
        )
        uri = (folder / "table-0").as_uri()
        create(TransactionLog(open_store(uri)), SCHEMA, config)
        model = KeyedModel(merges=merges) if keyed else AppendModel()
        sequence = Sequence(folder, random, keyed, collects, model, Table.open(uri), Table.open(uri))
        sequence.note()
        return sequence

    def step(self) -> None:
        """Run one operation, and compare the table with the model."""
        name, act = self.random.choice(self._acts())
        self.done.append(name)
        act()
        self.note()
        if name not in READS:
            self.compare()
        if len(self.done) % FEW == 0:
            self.compare(self.random.choice([self._compare_sql, self._compare_search]))
        if len(self.done) % MANY == 0:
            self.check()

    def note(self) -> None:
        """Record the newest version."""
        version = self.table.refresh().version
        self.model.note(version)
        self.sure.add(version)

    def end(self) -> None:
        """Flush and merge the remaining records, compare every kind of read with the model, and check all bytes."""
        if isinstance(self.model, KeyedModel):
            self.flush_all(self.model)
            upkeep.merge(self.table)
            self.model.merge()
        self.note()
        for ask in [self._compare_scan, self._compare_all, self._compare_sql, self._compare_search]:
            self.compare(ask)
        self.check()

    # Comparisons.

    def compare(self, ask: Ask | None = None) -> None:
        """Read the table with `ask`, or read all rows by default, and compare the result with the model."""
        ask = ask or (self._compare_scan if self.random.random() < SCANS else self._compare_all)
        level = self.random.choice([*LEVELS, "latest"])
        table = self.table if level == "snapshot" else self.random.choice([self.table, self.beside])
        ask(table, level, self.model.seen(level))

    def _compare_scan(self, table: Table, level: str, rows: list[Row]) -> None:
        if self.random.random() < 0.7:
            self._same(table.scan(consistency=level).to_arrow().to_pylist(), rows, level)
            return
        least = self.random.randrange(100)
        wanted = (col("n") >= least) | (col("part") == "west")
        found = table.scan(["part", "id", "n"], wanted, consistency=level).to_arrow().to_pylist()
        fits = [each for each in rows if (each["n"] or -1) >= least or each["part"] == "west"]
        assert Counter(tuple(each.values()) for each in found) == Counter(
            (each["part"], each["id"], each["n"]) for each in fits
        ), (level, least)

    def _compare_sql(self, table: Table, level: str, rows: list[Row]) -> None:
        query = "select part, count(*), sum(n), min(id) from t where id > 0 group by part order by part"
        answer = [tuple(row.values()) for row in table.sql(query, consistency=level).to_pylist()]
        wanted = []
        for part in PARTS:
            inside = [each for each in rows if each["part"] == part and each["id"] > 0]
            known = [each["n"] for each in inside if each["n"] is not None]
            if inside:
                wanted.append((part, len(inside), sum(known) if known else None, min(each["id"] for each in inside)))
        assert answer == wanted, level

    def _compare_search(self, table: Table, level: str, rows: list[Row]) -> None:
        one, other = self.random.sample(WORDS, 2)
        text: list[tuple[str, Callable[[list[str]], bool]]] = [
            (one, lambda words: one in words),
            (f"{one} AND {other}", lambda words: one in words and other in words),
            (f"{one} OR {other}", lambda words: one in words or other in words),
            (f"{one} AND NOT {other}", lambda words: one in words and other not in words),
        ]
        query, fits = self.random.choice(text)
        index = self.random.choice(["text", "parts"])
        if index == "parts":
            query = self.random.choice(PARTS)
            wanted = [each for each in rows if each["part"] == query]
        else:
            wanted = [each for each in rows if fits((each["words"] or "").split())]
        cache = None if self.random.random() < UNCACHED else self.folder / "cache"
        found = table.search(query, index=index, limit=10_000, consistency=level, cache_dir=cache).to_pylist()
        self._same(found, wanted, f"search {query} {level}")

    def _compare_all(self, table: Table, level: str, seen: list[Row]) -> None:
        """Look up all keys, or sometimes a single key.

        If there are no keys, read the history, which has the same rows.
        """
        if not self.keyed:
            page = table.read_history(consistency=level)
            assert page.token is None
            self._same(page.records.to_pylist(), seen, level)
            return
        rows = {(row["part"], row["id"]): row for row in seen}
        keys = [(part, number) for part in PARTS for number in IDS]
        chosen = self.random.sample(keys, self.random.choice([1, len(keys), len(keys)]))
        found = (
            [table.get(chosen[0], consistency=level)] if len(chosen) == 1 else table.get_many(chosen, consistency=level)
        )
        for key, row in zip(chosen, found, strict=True):
            wanted = rows.get(key)
            assert (row is None) == (wanted is None), (key, level, row, wanted)
            if row is not None and wanted is not None:
                entries = wanted["attrs"] if wanted["attrs"] is None else dict(wanted["attrs"])  # lookups return dicts
                assert frozen(row) == frozen({**wanted, "attrs": entries}), (key, level)

    def check(self) -> None:
        """Fail if `fsck` finds a wrong byte."""
        findings = fsck(self.table.store, clock=SystemClock(), deep=True).findings
        assert not [each for each in findings if each.severity is not Severity.NOTE], findings

    @staticmethod
    def _same(found: list[Row], wanted: list[Row], what: str) -> None:
        ours, theirs = bag(found), bag(wanted)
        assert ours == theirs, f"{what}: too many {ours - theirs}, missing {theirs - ours}"

    # Operations.

    def _acts(self) -> list[tuple[str, Act]]:
        acts: list[tuple[str, Act]] = [
            ("append", self.append),
            *[("compact", lambda: upkeep.compact(self.table))] * 2,
            ("checkpoint", lambda: upkeep.checkpoint(self.table)),
            ("catch up", lambda: upkeep.catch_up(self.table)),
            *[("collect", self.collect)] * 2,
            ("tag", self.tag),
            ("untag", self.untag),
            ("time travel", self.travel),
            ("changes", self.changes),
            ("history", self.history),
            ("restore", self.restore),
            ("reopen", lambda: setattr(self, "table", Table.open(self.table.uri))),
            ("repair", self.repair),
        ]
        model = self.model
        if not isinstance(model, KeyedModel):
            return [*acts, *[("append", self.append)] * 4, *[("ingest", self.ingest)] * 3]
        return [
            *acts,
            *[("write", lambda: self.write(model))] * 14,
            *[("flush", lambda: self.flush(model))] * 5,
            ("sync", lambda: self.sync(model)),
            ("close", self.close),
            ("fence", lambda: self.fence(model)),
            *[("merge", lambda: self.merge(model))] * 3,
            ("sort", lambda: upkeep.sort(self.table)),
            ("regions", lambda: self.regions(model)),
        ]

    def row(self, **given: object) -> Row:
        """Return a new row."""
        self.numbers += 1
        random = self.random
        row: Row = {
            "part": random.choice(PARTS),
            "id": random.choice(IDS),
            "timestamp": EPOCH + dt.timedelta(minutes=random.randrange(60 * HOURS)),
            "n": random.choice([None, self.numbers]),
            "words": random.choice([None, " ".join(random.sample(WORDS, random.randint(1, 3)))]),
            "attrs": random.choice([None, [], [(random.choice("ab"), self.numbers)]]),
        }
        return {**row, **given}

    def append(self) -> None:
        """Add rows by one call. In a keyed table, this call claims the region, so the writer is closed first."""
        rows = [self.row() for _ in range(self.random.randint(1, 6))]
        if isinstance(self.model, AppendModel):
            self.table.append(pa.Table.from_pylist(rows, schema=SCHEMA))
            self.model.add(rows)
            return
        self.close()
        self.table.append(pa.Table.from_pylist(rows, schema=SCHEMA))
        self.model.claim(*([] if self.model.divided else [WHOLE]))
        self.model.write([("put", row) for row in rows], durable=True)
        self.model.flush()
        self.model.close()

    def ingest(self) -> None:
        """Land a file with valid and invalid lines, and ingest it."""
        rows = [self.row(attrs=None) for _ in range(self.random.randint(0, 8))]
        lines = [json.dumps({**row, "timestamp": row["timestamp"].isoformat(), "attrs": None}) for row in rows]
        bad = self.random.randint(0, 2)
        lines += ["{no row"] * bad
        self.random.shuffle(lines)
        landing = self.folder / "landing"
        landing.mkdir(exist_ok=True)
        (landing / f"{self.numbers}-{len(self.done)}.ndjson").write_text("".join(f"{line}\n" for line in lines))
        assert isinstance(self.model, AppendModel)
        log, spec = self.table.log, LandingSpec(uri=str(landing), format="ndjson")
        snapshot = log.snapshot()
        results = [
            batch.execute(log.store, work, context=context_of(snapshot), ids=log.ids, now_ms=now_ms())
            for work in batch.plan(snapshot, spec, discover(spec))
        ]
        actions = [action for each in results for action in each.actions]
        if actions:
            log.commit(snapshot, actions, operation="INGEST")
        assert sum(sum(each.rejected.values()) for each in results) == bad
        self.model.add(rows)

    def write(self, model: KeyedModel) -> None:
        """Put some rows with the writer. The rows become durable now or later."""
        operation, durable = self.random.choice(OPERATIONS), self.random.random() < 0.7
        rows = {(row["part"], row["id"]): row for row in (self.row() for _ in range(self.random.randint(1, 4)))}
        if operation == "patch":
            chosen = self.random.sample(COLUMNS[2:], self.random.randint(1, 3))
            rows = {key: {name: row[name] for name in ["part", "id", *chosen]} for key, row in rows.items()}
        writer = self._writer(model)
        if operation == "delete":
            writer.delete([{"part": part, "id": number} for part, number in rows], durable=durable)
        else:
            getattr(writer, operation)([*rows.values()], durable=durable)
        records: list[Record] = [(operation, row) for row in rows.values()]
        model.write(records, durable=durable)

    def flush(self, model: KeyedModel) -> None:
        """Flush the writer."""
        self._writer(model).flush()
        model.flush()

    def sync(self, model: KeyedModel) -> None:
        """Make all rows of the writer durable."""
        self._writer(model).sync()
        model.sync()

    def merge(self, model: KeyedModel) -> None:
        """Merge flushed records."""
        upkeep.merge(self.table)
        model.merge()

    def close(self) -> None:
        """Close the writer, if there is one."""
        if self.writer is not None and isinstance(self.model, KeyedModel):
            self.writer.close()
            self.writer = None
            self.model.close()

    def fence(self, model: KeyedModel) -> None:
        """Take the region from the writer. The writer gets an error and loses the rows that were not durable."""
        if model.divided:
            self.close()
            return
        old = self._writer(model)
        given = bool(model.regions[WHOLE].given)
        new = self.table.writer(options=WriterOptions(linger_ms=NEVER_MS))
        lost = model.close(fenced=True)
        assert bool(lost) == given
        with pytest.raises(WriterFenced):
            old.put(self.row())
        if lost:
            with pytest.raises(WriterFenced) as told:
                old.close()
            assert told.value.context["lost_rows"] == lost
        else:
            old.close()
        self.writer = new
        model.claim(WHOLE)

    def flush_all(self, model: KeyedModel) -> None:
        """Flush every region, also the regions that no writer has claimed."""
        self.close()
        if not model.divided:
            self.flush(model)
        for part in [name for name, region in model.regions.items() if model.divided and region.logged]:
            with self.table.writer(region={"identity_part": part}) as writer:
                writer.delete([{"part": part, "id": -1}])
                writer.flush()
            model.claim(part)
            model.flush()
            model.close()
        self.close()

    def regions(self, model: KeyedModel) -> None:
        """Divide the table into one region per part, or make it one region."""
        self.close()
        divided = self.random.random() < 0.5
        self.table.set_regions(BY_PART if divided else [])
        model.divide(divided=divided)

    def collect(self) -> None:
        """Delete all objects that no retained version needs."""
        upkeep.collect(self.table, at_ms=now_ms() + 1, horizon_ms=0)
        if self.collects:
            self.sure = {self.table.refresh().version, *self.tags.values()}

    def tag(self) -> None:
        """Tag a version, sometimes a version that is expired."""
        name, version = self.random.choice(["one", "two"]), self.random.choice([*self.model.versions])
        try:
            self.table.tag(name, version)
        except (NotFound, SnapshotExpired):
            assert version not in self.sure
        else:
            self.tags[name] = version
            self.sure.add(version)

    def untag(self) -> None:
        """Remove a tag."""
        if self.tags:
            name = self.random.choice([*self.tags])
            assert self.table.untag(name).version == self.tags.pop(name)
        assert {each.name: each.version for each in self.table.tags()} == self.tags

    def travel(self) -> None:
        """Read older versions, by number and by tag."""
        version = self.random.choice([*self.model.versions])
        for at in [version, *self.tags]:
            wanted = self.tags.get(at, version) if isinstance(at, str) else at
            try:
                found = Table.open(self.table.uri, at=at).scan().to_arrow().to_pylist()
            except (NotFound, SnapshotExpired):
                assert wanted not in self.sure, at
            else:
                self._same(found, self.model.at(wanted), f"version {wanted} as {at}")

    def changes(self) -> None:
        """Apply the changes between two versions to the first version, and compare the result with the last version."""
        start, end = sorted(self.random.choices([*self.model.versions], k=2))
        try:
            changed = self.table.changes(start, end).read_all().to_pylist()
        except (NotFound, SnapshotExpired):
            assert self.collects
            return
        rows = bag(self.model.at(start))
        for each in changed:
            rows[frozen(each)] += 1 if each["_change_type"] == "insert" else -1
        assert Counter({row: times for row, times in rows.items() if times}) == bag(self.model.at(end)), (start, end)

    def history(self) -> None:
        """Read all records in small pages, and apply them."""
        level = self.random.choice(LEVELS)
        token, records = None, []
        while True:
            page = self.table.read_history(token=token, page_bytes=300, consistency=level if token is None else None)
            assert not page.restarted
            records += page.records.to_pylist()
            token = page.token
            if token is None:
                break
        if isinstance(self.model, AppendModel):
            self._same(records, self.model.seen(), "history")
            return
        replayed = KeyedModel(merges=True)
        replayed.claim(WHOLE)
        names = ["put", "patch", "delete", "reset"]
        replayed.write([(names[each["_op"]], _given(each)) for each in records], durable=True)
        if self.model.merges or not any("attrs" in (each["_fields"] or []) for each in records):
            self._same(replayed.seen("latest"), self.model.seen(level), f"history {level}")

    def restore(self) -> None:
        """Restore a version."""
        version = self.random.choice([*self.model.versions])
        try:
            self.table.restore(version)
        except (NotFound, SnapshotExpired):
            assert version not in self.sure
        else:
            self.model.restore(version)

    def repair(self) -> None:
        """Repair the table into a new table, and continue with the new table.

        No row is lost, because nothing is damaged.
        """
        self.close()
        target = (self.folder / f"table-{len(self.done)}").as_uri()
        outcome = repair(self.table.store, open_store(target), clock=SystemClock(), ids=SystemIds())
        assert not outcome.lost, outcome.lost
        assert outcome.check is not None
        assert not [each for each in outcome.check.findings if each.severity is not Severity.NOTE], outcome.check
        self.table, self.beside = Table.open(target), Table.open(target)
        kept = {*range(outcome.first_version, outcome.version + 1), *self.tags.values()}
        self.sure &= kept
        self.model.versions = {version: rows for version, rows in self.model.versions.items() if version in kept}  # type: ignore[assignment]
        self.sure.add(self.table.version)

    def _writer(self, model: KeyedModel) -> TableWriter:
        if self.writer is None:
            self.writer = self.table.writer(options=WriterOptions(linger_ms=NEVER_MS))
            model.claim(*([] if model.divided else [WHOLE]))
        return self.writer


def _given(record: Row) -> Row:
    """Return the columns that a record sets, with their values.

    For a patch that replaces a map, see `Sequence.history`.
    """
    if record["_op"] != 1:
        return {name: record[name] for name in COLUMNS}
    named = [each.removeprefix("merge:") for each in record["_fields"]]
    return {name: record[name] for name in ["part", "id", *named]}
