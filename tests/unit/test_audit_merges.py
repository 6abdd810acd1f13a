"""Every invariant of a merge (TW-3, CS and MC) has test commits that really violate it."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from storage_core.base.errors import InvalidInput
from storage_core.compact.execute import execute
from storage_core.compact.work import CompactionTask
from storage_core.data.settings.layout import CompactionSettings
from storage_core.log.actions import Add
from storage_core.split.read import read_split
from tests.support.deleted_rows import delete_where
from tests.support.events import CONFIG, SCHEMA, context, events
from tests.support.merge_plan import plan
from tests.unit.audited_events import FIRST, LATER, SECOND, Events


@pytest.fixture
def table() -> Events:
    return Events()


@pytest.fixture
def two(table: Events) -> list[Add]:
    return table.append_two()


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
        execute(table.store, CompactionTask(0, (early, late), table.context), ids=table.ids, now_ms=2)


def test_cs_1_inputs_of_two_scopes(table: Events) -> None:
    inputs = [
        *table.append(FIRST, replace(table.context, source_id="a")),
        *table.append(SECOND, replace(table.context, source_id="b")),
    ]
    table.replace(inputs, [table.output(table.merged(inputs), inputs, replace(table.context, source_id="a"))])
    assert table.broken() == {"CS-1"}
    with pytest.raises(InvalidInput, match="CS-1"):
        execute(table.store, CompactionTask(0, tuple(inputs), table.context), ids=table.ids, now_ms=2)


def test_cs_1_an_output_of_another_scope_than_its_inputs(table: Events, two: list[Add]) -> None:
    table.replace(two, [table.output(table.merged(two), two, replace(table.context, source_id="elsewhere"))])
    assert table.broken() == {"CS-1"}


def test_cs_2_one_merge_of_two_windows(table: Events) -> None:
    inputs = [*table.append(FIRST), *table.append(LATER)]
    outputs = [table.output(read_split(table.store, add), inputs, window=add.windowStart) for add in inputs]
    table.replace(inputs, outputs)
    assert table.broken() == {"CS-2"}
    with pytest.raises(InvalidInput, match="CS-2"):
        execute(table.store, CompactionTask(0, tuple(inputs), table.context), ids=table.ids, now_ms=2)


def test_cs_3_a_window_before_the_start_of_compaction() -> None:
    table = Events(config=replace(CONFIG, compaction=CompactionSettings(start=7200)))
    inputs = [*table.append(FIRST), *table.append(SECOND)]
    assert plan(table.head) == []
    with pytest.raises(InvalidInput, match="CS-3"):
        execute(table.store, CompactionTask(0, tuple(inputs), table.context), ids=table.ids, now_ms=2)
    table.replace(inputs, [table.output(table.merged(inputs), inputs)])
    assert table.broken() == {"CS-3"}


@pytest.mark.usefixtures("two")
def test_cs_3_is_judged_by_the_start_that_was_in_force(table: Events) -> None:
    table.compact()
    table.settle(config=replace(CONFIG, compaction=CompactionSettings(start=7200)))
    assert table.broken() == set()


def test_mc_1_a_row_that_was_dropped(table: Events, two: list[Add]) -> None:
    table.replace(two, [table.output(table.merged(two).slice(1), two)])
    (found,) = table.audit().violations
    assert (found.invariant, found.version) == ("MC-1", table.head.version)
    assert "read 4 rows and wrote 3" in found.message
    assert "restore" in found.advice


def test_mc_1_all_rows_that_were_dropped(table: Events, two: list[Add]) -> None:
    table.replace(two, [])
    assert table.broken() == {"MC-1"}


def test_mc_1_rows_that_are_in_the_table_twice(table: Events, two: list[Add]) -> None:
    table.replace(two[:1], [table.output(table.merged(two), two)])
    messages = [each.message for each in table.audit().violations]
    assert table.broken() == {"MC-1"}
    assert any(f"replaces {two[1].path}, but its version did not remove" in message for message in messages)


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
        execute(table.store, CompactionTask(0, (first, second), table.context), ids=table.ids, now_ms=2)
