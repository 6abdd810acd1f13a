"""Every invariant of page 04 has a violation planted for it, by files and commits that really break it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from storage_core import Table
from storage_core.compaction.audit import INVARIANTS, AuditReport, audit, require_ours
from storage_core.compaction.audit import execute as execute_work
from storage_core.compaction.carry_over import CarryOver
from storage_core.compaction.execute import execute
from storage_core.compaction.retained import Selection
from storage_core.compaction.work import MergeOperation
from storage_core.compaction_settings import CompactionSettings
from storage_core.config import TableConfig
from storage_core.errors import CommitConflict, InvalidInput, Unsupported
from storage_core.formats.keys import version_key
from storage_core.log.actions import Add, Metadata, Remove
from storage_core.log.deletion_vector import inline
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import IfAbsent
from storage_core.objectstore.memory import MemoryStore
from storage_core.rows.schema import to_schema_string
from storage_core.rows.sort_order import SortOrder, bind
from storage_core.split.context import SplitContext, context_of
from storage_core.split.lineage import APPENDED, Lineage, Origin, write_origin
from storage_core.split.metadata import describe, sealed
from storage_core.split.read import read_split
from storage_core.split.write import sort_and_write, write_split
from storage_core.split.writer import with_file_figures
from storage_core.testkit.clock import ManualClock
from storage_core.testkit.deleted_rows import delete_where
from storage_core.testkit.events import CONFIG, SCHEMA, TABLE_ID, context, events, snapshot
from storage_core.testkit.ids import SeededIds
from storage_core.testkit.keyed_table import KeyedTable
from storage_core.testkit.merge_plan import plan

Row = Mapping[str, Any]

FIRST: Sequence[Row] = [
    {"at": 10, "service": "api", "host": "a", "count": 1, "value": 0.5},
    {"at": 20, "service": "web", "host": "b", "count": 2, "value": None},
]
SECOND: Sequence[Row] = [
    {"at": 30, "service": "api", "host": "a", "count": 3, "value": float("nan")},
    {"at": 40, "service": "", "host": None, "count": None, "value": -0.0},
]
LATER: Sequence[Row] = [{"at": 3700, "service": "api", "host": "a", "count": 5, "value": 1.0}]
OTHER_ORDER = "host|timestamp/V2"
LAST = "1970-01-01T00:00:20.000000Z"


@dataclass
class Events:
    """A table in memory, and everything that may be done to it, rightly and wrongly."""

    config: TableConfig = CONFIG
    schema: pa.Schema = SCHEMA
    store: MemoryStore = field(default_factory=lambda: MemoryStore("audit"))

    def __post_init__(self) -> None:
        self.ids = SeededIds(7)
        self.log = TransactionLog(self.store, clock=ManualClock(step_ms=1), ids=self.ids)
        self.log.create(self.metadata())

    def metadata(self) -> Metadata:
        return Metadata(
            id=TABLE_ID, schemaString=to_schema_string(self.schema), configuration=self.config.to_configuration()
        )

    def settle(self, *, config: TableConfig | None = None, schema: pa.Schema | None = None) -> None:
        self.config, self.schema = config or self.config, schema or self.schema
        self.log.commit(self.head, [self.metadata()], operation="CONFIGURE")

    @property
    def head(self) -> Snapshot:
        return self.log.snapshot()

    @property
    def context(self) -> SplitContext:
        return context_of(self.head)

    @property
    def live(self) -> list[Add]:
        return sorted(self.head.splits.values(), key=lambda add: self.head.splits.added_at(add.path))

    def append(self, rows: Iterable[Row], where: SplitContext | None = None) -> list[Add]:
        adds = sort_and_write(
            self.store, events(rows, self.schema), context=where or self.context, ids=self.ids, now_ms=1
        )
        self.log.commit(self.head, adds, operation="WRITE")
        return adds

    def compact(self) -> None:
        for operation in plan(self.head):
            result = execute(self.store, operation, ids=self.ids, now_ms=2)
            self.log.commit(self.head, result.actions, operation="COMPACT")

    def add(self, *adds: Add) -> None:
        self.log.commit(self.head, adds, operation="WRITE")

    def merged(self, inputs: Sequence[Add]) -> pa.Table:
        """The rows of the inputs as a right merge has them."""
        rows = pa.concat_tables([read_split(self.store, add) for add in inputs])
        return sorted_rows(rows, self.context)

    def output(
        self, rows: pa.Table, inputs: Sequence[Add], where: SplitContext | None = None, window: int | None = 0
    ) -> Add:
        """One split of these rows, whatever they are, that says that it replaces the inputs."""
        replaces = {each.path: each.numRecords or 0 for each in inputs}
        lineage = Lineage(operation="compact", operation_id="made-by-hand", replaces=replaces)
        return self.write(rows, where=where, window=window, lineage=lineage)

    def write(
        self,
        rows: pa.Table,
        *,
        where: SplitContext | None = None,
        window: int | None = 0,
        lineage: Lineage = APPENDED,
    ) -> Add:
        return write_split(
            self.store,
            rows,
            context=where or self.context,
            window=window,
            num_merge_ops=0,
            split_id=self.ids.uuid(),
            now_ms=1,
            lineage=lineage,
        )

    def replace(self, inputs: Sequence[Add], outputs: Sequence[Add], run: str | None = None) -> None:
        removes = [Remove(path=add.path, dataChange=False) for add in inputs]
        self.log.commit(self.head, [*removes, *outputs], operation="COMPACT", job_run_id=run)

    def audit(self, which: Selection | None = None) -> AuditReport:
        return audit(self.store, self.head, which)

    def broken(self) -> set[str]:
        return {each.invariant for each in self.audit().violations}


def sorted_rows(rows: pa.Table, where: SplitContext) -> pa.Table:
    scratch = MemoryStore("scratch")
    everything = replace(where, window_seconds=None)
    lineage = Lineage(operation="compact")
    adds = sort_and_write(scratch, rows, context=everything, ids=SeededIds(3), now_ms=1, lineage=lineage)
    return pa.concat_tables([read_split(scratch, add) for add in adds])


def lying(table: Events, rows: pa.Table, native: SortOrder | None = None, **lies: Any) -> Add:
    """A split that is what it says but for the lies, which its file and its action tell alike."""
    where = table.context
    unwindowed = replace(where, window_seconds=None)
    true = write_split(
        MemoryStore("scratch"), rows, context=unwindowed, window=None, num_merge_ops=0, split_id="x", now_ms=1
    )
    path = f"splits/0/{table.ids.uuid()}.parquet"
    add = replace(true, **{"path": path, "windowStart": 0, "windowSeconds": where.window_seconds, **lies})
    origin = Origin(
        table_id=where.table_id,
        table_schema=to_schema_string(where.schema),
        configuration=where.configuration,
        planned_version=where.planned_version,
        lineage=APPENDED,
    )
    metadata = describe(add, table_id=where.table_id, schema_string=to_schema_string(rows.schema))
    sink = pa.BufferOutputStream()
    keys = [
        (each.name, "descending" if each.descending else "ascending")
        for each in (native or where.order).columns
        if each.name in rows.column_names
    ]
    order = pq.SortingColumn.from_ordering(rows.schema, keys, "at_end")
    with pq.ParquetWriter(sink, rows.schema, store_schema=False, sorting_columns=list(order)) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(sealed({**metadata, **write_origin(origin)}))
    data = sink.getvalue()
    table.store.put(path, data.to_pybytes(), IfAbsent())
    return with_file_figures(add, data)


@pytest.fixture
def table() -> Events:
    return Events()


@pytest.fixture
def two(table: Events) -> list[Add]:
    """Two appended splits of one window."""
    table.append(FIRST)
    table.append(SECOND)
    return table.live


# --- nothing is wrong -------------------------------------------------------------------------------------------------


def test_a_sound_table_has_no_violation_whatever_it_went_through() -> None:
    table = Events(config=replace(CONFIG, window_seconds=7200, coarse_window=True))
    table.append([*FIRST, {"at": None, "service": "lost", "host": None, "count": None, "value": float("inf")}])
    table.append([*SECOND, {"at": None, "service": None, "host": "x", "count": 7, "value": 0.0}])
    table.append([{**row, "at": row["at"] + 7200} for row in (*FIRST, *SECOND)])
    delete_where(table.log, lambda row: row["count"] == 2)
    table.compact()
    table.settle(schema=SCHEMA.append(pa.field("zone", pa.string())))
    table.append([{**FIRST[0], "zone": "eu"}])
    table.compact()
    table.settle(config=replace(table.config, sort_schema="zone:-|&host|timestamp/V2 nulls first"))
    table.append([{**SECOND[0], "zone": None}, {**SECOND[1], "zone": "us"}])
    table.append([{**FIRST[1], "zone": "eu"}])
    table.compact()
    delete_where(table.log, lambda row: row["service"] == "")

    report = table.audit()

    assert report.violations == ()
    assert report.unchecked == ()
    assert (report.splits, report.merges) == (len(table.live), 4)
    assert report.clean


@pytest.mark.parametrize("config", [TableConfig(), TableConfig(primary_key=("host", "service"))])
def test_tables_without_windows_are_audited_too(config: TableConfig) -> None:
    table = Events(config=config)
    table.append(FIRST)
    table.append(LATER)
    table.compact()
    report = table.audit()
    assert (report.violations, report.unchecked, report.merges) == ((), (), 1)


@pytest.mark.parametrize(
    ("put", "gone"),
    [("", "c"), ("ab", "c"), ("acde", "b"), ("", "abcdf")],
    ids=["one", "a split", "most", "nearly all"],
)
def test_a_compaction_that_carried_deletes_over_is_sound(put: str, gone: str) -> None:
    table = KeyedTable(MemoryStore("planes")).create()

    def write(names: str, seats: int, gone: str = "") -> None:
        with table.writer() as writer:
            if names:
                writer.put([{"tailnum": name, "seats": seats} for name in names])
            if gone:
                writer.delete(list(gone))
            writer.flush()
        assert table.merge() is not None

    for names in ("ab", "cd", "ef"):
        write(names, 1)
    assert table.compact(lambda: write(put, 2, gone)) is not None
    report = audit(table.store, table.snapshot)
    assert (report.violations, report.unchecked, report.merges) == ((), (), 1)


@pytest.mark.usefixtures("two")
def test_a_merge_of_deleted_rows_only_leaves_nothing_and_is_sound(table: Events) -> None:
    delete_where(table.log, lambda _row: True)
    table.compact()
    assert table.live == []
    report = table.audit()
    assert (report.violations, report.unchecked, report.merges) == ((), (), 1)


@pytest.mark.parametrize("meanwhile", [False, True])
@pytest.mark.parametrize("left", [0, 1])
def test_one_commit_that_ends_several_windows_without_an_output_is_sound(left: int, *, meanwhile: bool) -> None:
    table = Events()
    for scope in ("a", "b"):
        for _ in range(2):
            rows = [{**FIRST[0], "at": hour * 3600} for hour in range(3)]
            table.append(rows, replace(table.context, source_id=scope))

    def lose_windows() -> None:
        delete_where(table.log, lambda row: row["at"].timestamp() >= left * 3600)

    if not meanwhile:
        lose_windows()
    planned = table.head
    operations = plan(planned)
    done = [(each, execute(table.store, each, ids=table.ids, now_ms=2)) for each in operations]
    if meanwhile:
        lose_windows()
    actions = [action for _, result in done for action in result.actions]
    carried = CarryOver(table.store, done, ids=table.ids)
    table.log.commit(planned, actions, operation="COMPACT", rebase=carried)

    assert len(table.live) == 2 * left
    report = table.audit()
    assert (report.violations, report.unchecked, report.merges) == ((), (), len(operations))


def test_a_window_that_a_commit_dropped_beside_emptied_ones_is_found(table: Events) -> None:
    for hour in range(3):
        table.append([{**FIRST[0], "at": hour * 3600}])
    delete_where(table.log, lambda row: row["at"].timestamp() != 3600)
    table.replace(table.live, [])
    (found,) = table.audit().violations
    assert found.invariant == "MC-1"
    assert "read 1 rows and made 0" in found.message


def test_columns_of_several_row_groups_are_judged_as_one() -> None:
    table = Events()
    rows = [
        {"at": number % 3600, "service": f"s{number % 7}", "host": None, "count": number, "value": float(number)}
        for number in range(70_000)
    ]
    table.append(rows)
    assert table.audit().violations == ()
    (add,) = table.live
    backwards = table.merged([add]).take(pa.array([*range(65_536, 70_000), *range(65_536)]))
    table.add(table.write(backwards))
    assert table.broken() == {"SS-1"}  # each row group is sorted, the file is not


# --- TW: windows ------------------------------------------------------------------------------------------------------


def test_tw_1_a_row_outside_the_window_of_its_split(table: Events) -> None:
    rows = sorted_rows(events([*FIRST, *LATER]), table.context)
    table.add(lying(table, rows))
    assert table.broken() == {"TW-1"}
    with pytest.raises(InvalidInput, match="lie outside the window"):
        table.write(rows)


def test_tw_1_a_split_without_a_window_in_a_table_of_windows(table: Events) -> None:
    table.add(lying(table, events(FIRST), windowStart=None, windowSeconds=None))
    assert table.broken() == {"TW-1"}


@pytest.mark.parametrize("seconds", [420, 7200])
def test_tw_2_a_window_that_does_not_divide_the_hour(table: Events, tmp_path: Path, seconds: int) -> None:
    table.add(lying(table, events(FIRST), windowSeconds=seconds))
    assert table.broken() == {"TW-2"}
    with pytest.raises(InvalidInput, match="window"):
        Table.create(str(tmp_path / "t"), SCHEMA, time_column="at", window=seconds)


def test_tw_3_rows_that_cross_the_border_of_a_window(table: Events) -> None:
    (early,), (late,) = table.append(FIRST), table.append(LATER)
    rows = table.merged([early, late])
    lineage_of = replace(table.context, window_seconds=None)
    output = table.output(rows, [early, late], where=lineage_of, window=None)
    table.replace([early, late], [output])
    found = {each.invariant: each.message for each in table.audit().violations}
    assert {"TW-3", "CS-2"} <= set(found)
    assert "were written as rows of the windows {None}" in found["TW-3"]
    with pytest.raises(InvalidInput, match="CS-2"):
        execute(table.store, MergeOperation(0, (early, late), table.context), ids=table.ids, now_ms=2)


# --- CS: what is merged -----------------------------------------------------------------------------------------------


def test_cs_1_inputs_of_two_scopes(table: Events) -> None:
    inputs = [
        *table.append(FIRST, replace(table.context, source_id="a")),
        *table.append(SECOND, replace(table.context, source_id="b")),
    ]
    table.replace(inputs, [table.output(table.merged(inputs), inputs, replace(table.context, source_id="a"))])
    assert table.broken() == {"CS-1"}
    with pytest.raises(InvalidInput, match="CS-1"):
        execute(table.store, MergeOperation(0, tuple(inputs), table.context), ids=table.ids, now_ms=2)


def test_cs_1_an_output_of_another_scope_than_its_inputs(table: Events, two: list[Add]) -> None:
    table.replace(two, [table.output(table.merged(two), two, replace(table.context, source_id="elsewhere"))])
    assert table.broken() == {"CS-1"}


def test_cs_2_one_merge_of_two_windows(table: Events) -> None:
    inputs = [*table.append(FIRST), *table.append(LATER)]
    outputs = [table.output(read_split(table.store, add), inputs, window=add.windowStart) for add in inputs]
    table.replace(inputs, outputs)
    assert table.broken() == {"CS-2"}
    with pytest.raises(InvalidInput, match="CS-2"):
        execute(table.store, MergeOperation(0, tuple(inputs), table.context), ids=table.ids, now_ms=2)


def test_cs_3_a_window_before_the_start_of_compaction() -> None:
    table = Events(config=replace(CONFIG, compaction=CompactionSettings(start=7200)))
    inputs = [*table.append(FIRST), *table.append(SECOND)]
    assert plan(table.head) == []
    with pytest.raises(InvalidInput, match="CS-3"):
        execute(table.store, MergeOperation(0, tuple(inputs), table.context), ids=table.ids, now_ms=2)
    table.replace(inputs, [table.output(table.merged(inputs), inputs)])
    assert table.broken() == {"CS-3"}


@pytest.mark.usefixtures("two")
def test_cs_3_is_judged_by_the_start_that_was_in_force(table: Events) -> None:
    table.compact()
    table.settle(config=replace(CONFIG, compaction=CompactionSettings(start=7200)))
    assert table.broken() == set()


# --- MC: what a merge keeps -------------------------------------------------------------------------------------------


def test_mc_1_a_row_that_was_dropped(table: Events, two: list[Add]) -> None:
    table.replace(two, [table.output(table.merged(two).slice(1), two)])
    (found,) = table.audit().violations
    assert (found.invariant, found.version) == ("MC-1", table.head.version)
    assert "read 4 rows and made 3" in found.message
    assert "restore" in found.advice


def test_mc_1_all_rows_that_were_dropped(table: Events, two: list[Add]) -> None:
    table.replace(two, [])
    assert table.broken() == {"MC-1"}


def test_mc_1_rows_that_are_in_the_table_twice(table: Events, two: list[Add]) -> None:
    table.replace(two[:1], [table.output(table.merged(two), two)])
    messages = [each.message for each in table.audit().violations]
    assert table.broken() == {"MC-1"}
    assert any(f"replaces {two[1].path}, which the version did not remove" in message for message in messages)


def test_mc_1_a_deleted_row_that_comes_back(table: Events, two: list[Add]) -> None:
    everything = table.merged(two)
    delete_where(table.log, lambda row: row["count"] == 1)
    table.replace(table.live, [table.output(everything, two)])
    assert table.broken() == {"MC-1"}


def test_mc_2_a_value_that_changed(table: Events, two: list[Add]) -> None:
    rows = table.merged(two)
    changed = rows.set_column(3, SCHEMA.field("count"), pc.add(rows.column("count"), 1))
    table.replace(two, [table.output(changed, two)])
    assert table.broken() == {"MC-2"}


def test_mc_3_an_output_that_is_not_sorted(table: Events, two: list[Add]) -> None:
    table.replace(two, [table.output(table.merged(two).take(pa.array([3, 0, 1, 2])), two)])
    assert table.broken() == {"MC-3", "SS-1"}


def test_mc_3_outputs_that_overlap_each_other(table: Events, two: list[Add]) -> None:
    rows = table.merged(two)
    outputs = [table.output(rows.take(pa.array(part)), two) for part in ([0, 2], [1, 3])]
    table.replace(two, outputs)
    assert table.broken() == {"MC-3"}


def test_outputs_in_any_turn_that_share_a_key_are_one_run(table: Events) -> None:
    same = [{**FIRST[0], "count": number} for number in range(3)]
    inputs = [*table.append(same), *table.append(FIRST)]
    rows = table.merged(inputs)
    outputs = [table.output(rows.slice(start, rows_in), inputs) for start, rows_in in ((2, 3), (0, 2))]
    table.replace(inputs, outputs)
    assert table.broken() == set()


def test_mc_4_a_column_that_was_dropped(table: Events) -> None:
    empty = [{**row, "value": None} for row in FIRST]
    inputs = [*table.append(empty), *table.append(empty)]
    table.replace(inputs, [table.output(table.merged(inputs).drop_columns(["value"]), inputs)])
    assert table.broken() == {"MC-4"}


def test_mc_4_inputs_that_disagree_on_a_type(table: Events) -> None:
    other = SCHEMA.set(3, pa.field("count", pa.string()))
    first, *_ = table.append(FIRST)
    texts = events([{**SECOND[0], "count": "three"}], other)
    second = table.write(texts, where=context(other))
    table.add(second)
    table.replace([first, second], [table.output(read_split(table.store, first), [first, second])])
    (found,) = table.audit().violations
    assert found.invariant == "MC-4"
    assert f"int64 in {first.path} and string in {second.path}" in found.message
    with pytest.raises(InvalidInput, match="MC-4"):
        execute(table.store, MergeOperation(0, (first, second), table.context), ids=table.ids, now_ms=2)


# --- SS: splits -------------------------------------------------------------------------------------------------------


def test_ss_1_rows_that_are_not_sorted_as_recorded(table: Events) -> None:
    table.add(table.write(events(FIRST).take(pa.array([1, 0]))))
    assert table.broken() == {"SS-1"}


def test_ss_2_nulls_that_are_at_the_other_end(table: Events) -> None:
    null_first = [{**FIRST[0], "host": None}, {**FIRST[0], "host": "a"}]
    table.add(table.write(events(null_first)))
    (found,) = table.audit().violations
    assert (found.invariant, "nulls are not last" in found.message) == ("SS-2", True)


def test_ss_3_values_of_a_sort_column_that_the_split_lacks(table: Events) -> None:
    rows = events(FIRST).drop_columns(["host"])
    table.add(lying(table, rows))
    assert table.broken() == set()
    key = '["api","ghost","1970-01-01T00:00:10.000000Z"]'
    table.add(lying(table, rows, minRowKey=key))
    (found,) = table.audit().violations
    assert found.invariant == "SS-3"
    assert "no column 'host', which is null then; recorded: 'ghost' in the first row key" in found.message


def test_ss_4_a_split_that_is_sorted_by_what_its_table_was_not(table: Events) -> None:
    other = replace(table.context, order=bind(replace(CONFIG, sort_schema=OTHER_ORDER), SCHEMA))
    table.append(FIRST, other)
    assert table.broken() == {"SS-4"}


def test_ss_4_a_merge_that_sorted_old_splits_anew(table: Events, two: list[Add]) -> None:
    table.settle(config=replace(CONFIG, sort_schema=OTHER_ORDER))
    table.replace(two, [table.output(table.merged(two), two)])
    assert table.broken() == {"SS-4", "MC-3"}


def test_ss_4_a_log_that_gives_an_old_split_the_new_sort_schema(table: Events, two: list[Add]) -> None:
    table.settle(config=replace(CONFIG, sort_schema=OTHER_ORDER))
    relabelled = replace(two[0], sortSchema=OTHER_ORDER)
    assert "SS-4" in {each.invariant for each in audit(table.store, snapshot([relabelled])).violations}
    with pytest.raises(InvalidInput, match="an add may change nothing of it but its deletion vector"):
        table.add(replace(relabelled, deletionVector=inline([0])))
    with pytest.raises(CommitConflict, match="live already"):
        table.add(relabelled)


@pytest.mark.parametrize(
    "lies",
    [
        {
            "maxValues": {
                "at": "1970-01-01T00:00:20.000000Z",
                "service": "aaa",
                "host": "b",
                "count": "2",
                "value": "0.5",
            }
        },
        {"nullCounts": {"at": 0, "service": 0, "host": 0, "count": 0, "value": 0}},
        {"columnRegexes": {"service": "^api$", "host": "^(a|b)$"}},
        {"minRowKey": '["web","b","1970-01-01T00:00:20.000000Z"]'},
        {"maxRowKey": "not even a list"},
        {"minValues": {"at": "1970-01-01T00:00:10.000000Z", "ghost": "1"}},
        {"native": bind(replace(CONFIG, sort_schema=OTHER_ORDER), SCHEMA)},
    ],
    ids=["maximum", "nulls", "expression", "first key", "last key", "ghost column", "native order"],
)
def test_ss_5_what_file_and_log_say_alike_and_the_rows_do_not(table: Events, lies: dict[str, Any]) -> None:
    table.add(lying(table, events(FIRST)))
    assert table.broken() == set()
    table.add(lying(table, events(FIRST), **lies))
    assert table.broken() == {"SS-5"}


def test_ss_5_a_file_that_is_not_what_the_log_says(table: Events, two: list[Add]) -> None:
    renumbered = replace(two[0], numMergeOps=7)
    assert {each.invariant for each in audit(table.store, snapshot([renumbered])).violations} == {"SS-5"}
    table.store.delete([two[0].path])
    (found,) = table.audit().violations
    assert (found.invariant, found.path) == ("SS-5", two[0].path)


# --- what is looked at, and what cannot be ----------------------------------------------------------------------------


def test_a_merge_whose_inputs_were_collected_is_named_and_not_passed(table: Events, two: list[Add]) -> None:
    table.compact()
    table.store.delete([two[1].path])
    report = table.audit()
    assert (report.violations, report.merges, report.clean) == ((), 0, True)
    (unchecked,) = report.unchecked
    assert (unchecked.version, unchecked.path) == (table.head.version, table.live[0].path)
    assert f"{two[1].path} has been collected" in unchecked.reason


def test_what_the_log_says_of_a_merge_is_judged_without_its_inputs(table: Events) -> None:
    inputs = [*table.append(FIRST), *table.append(LATER)]
    table.replace(
        inputs, [table.output(read_split(table.store, add), inputs, window=add.windowStart) for add in inputs]
    )
    table.store.delete([inputs[0].path])
    report = table.audit()
    assert [each.invariant for each in report.violations] == ["CS-2"]
    assert len(report.unchecked) == 1


@pytest.mark.usefixtures("two")
def test_an_output_that_was_collected_makes_its_merge_not_checkable(table: Events) -> None:
    table.compact()
    (gone,) = table.live
    table.append(FIRST)
    table.compact()
    table.store.delete([gone.path])
    report = table.audit()
    assert (report.violations, report.merges) == ((), 0)
    assert sorted({each.version for each in report.unchecked}) == [3, 5]


@pytest.mark.usefixtures("two")
def test_a_log_that_does_not_go_back_far_enough_says_so(table: Events) -> None:
    table.compact()
    head = table.head
    table.store.delete([version_key(version) for version in range(3)])
    report = audit(table.store, head)
    assert (report.violations, report.merges) == ((), 0)
    assert "does not go back to before version 3" in report.unchecked[0].reason


def test_a_selection_leaves_out_what_was_not_asked_for(table: Events) -> None:
    table.append([*FIRST, *LATER])
    table.append([*SECOND, *LATER])
    table.compact()
    table.add(table.write(events(FIRST).take(pa.array([1, 0]))))
    looked = {
        "all": Selection(),
        "window": Selection(holds=lambda window: window == 3600),
        "since": Selection(since=table.head.version - 1),
        "commits": Selection(commits=1),
    }
    found = {name: table.audit(which) for name, which in looked.items()}
    figures = {name: (each.splits, each.merges, len(each.violations)) for name, each in found.items()}
    assert figures == {"all": (3, 2, 1), "window": (1, 1, 0), "since": (1, 0, 1), "commits": (1, 1, 0)}


def test_the_last_run_is_all_commits_of_its_job(table: Events) -> None:
    for run, window in (("before", 0), ("last", 3600), ("last", 7200)):
        inputs = [*table.append([{**FIRST[0], "at": window}]), *table.append([{**FIRST[1], "at": window}])]
        table.replace(inputs, [table.output(table.merged(inputs), inputs, window=window)], run=run)
    report = table.audit(Selection(last_run=True))
    assert (report.splits, report.merges, report.violations) == (2, 2, ())


def test_work_and_answers_travel_as_json(table: Events, two: list[Add]) -> None:
    table.replace(two, [table.output(table.merged(two).slice(1), two)])
    table.append(FIRST)

    def travelling(works: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [json.loads(json.dumps(execute_work(table.store, json.loads(json.dumps(work))))) for work in works]

    assert audit(table.store, table.head, run=travelling) == table.audit()
    assert not table.audit().clean


def test_a_table_whose_log_others_keep_is_refused(table: Events) -> None:
    require_ours(table.head)
    with pytest.raises(Unsupported, match="others keep the log"):
        require_ours(snapshot([]))


def test_every_invariant_has_a_planted_violation_here() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    planted = {name for name in INVARIANTS if f"def test_{name.lower().replace('-', '_')}_" in source}
    assert planted == set(INVARIANTS)
