"""Column changes concurrent with every other kind of commit, in both orders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from storage_core.base.errors import CommitConflict
from storage_core.change.creation import (
    ColumnChange,
    add_column,
    altered,
    change_column,
    drop_column,
    relax_column,
    rename_column,
)
from storage_core.data.rows.columns import without_metadata
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Action, MergedGenerations, Txn
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.store.memory import MemoryStore
from tests.support.log_tables import INDEX, log_on, metadata, removal, segment, split

CONFIG = TableConfig(checkpoint_interval=0, indexes=(INDEX,))
CHANGES: Mapping[str, ColumnChange] = {
    "add": add_column("more", "long", default=1),
    "rename": rename_column("id", "number"),
    "drop": drop_column("id"),
    "relax": relax_column("id"),
}
COMMITS: Mapping[str, tuple[Action, ...]] = {
    "append": (split("mine"),),
    "ingest": (split("mine"), Txn(appId="landed:a", version=1)),
    "compact": (removal("a"), removal("b"), split("ab")),
    "merge": (split("mine"), MergedGenerations(region="r", generation=1)),
    "index": (segment("mine", "a"),),
    "settings": (),
}
SMALL = TableConfig(checkpoint_interval=0, indexes=(INDEX,), target_split_bytes=1)
TABLE = """
mine \\ theirs | add   | rename | drop  | relax
append        | ok    | ok     | ok    | ok
ingest        | ok    | ok     | ok    | ok
compact       | ok    | ok     | ok    | ok
merge         | abort | abort  | abort | abort
index         | ok    | ok     | ok    | ok
settings      | abort | abort  | abort | abort
"""


def _cells() -> Iterator[tuple[str, str, str]]:
    (_, *columns), *lines = ([cell.strip() for cell in line.split("|")] for line in TABLE.strip().splitlines())
    assert columns == list(CHANGES)
    assert [line[0] for line in lines] == list(COMMITS)
    for mine, *outcomes in lines:
        for theirs, outcome in zip(columns, outcomes, strict=True):
            yield mine, theirs, outcome


@pytest.fixture
def log() -> TransactionLog:
    log = log_on(MemoryStore("t"))
    log.commit(log.create(metadata(CONFIG)), [split(name) for name in "abc"], operation="TEST")
    return log


def required(log: TransactionLog, column: str = "id") -> Snapshot:
    """Make the fixture's table with a required column that can become nullable."""
    found = log.snapshot()
    schema = found.schema.set(
        found.schema.get_field_index(column), found.schema.field(column).with_nullable(nullable=False)
    )
    return log.commit(
        found, [replace(found.metadata, schemaString=to_schema_string(schema))], operation="TEST"
    ).snapshot


def actions(name: str, planned: Snapshot) -> tuple[Action, ...]:
    return COMMITS[name] or (replace(planned.metadata, configuration=SMALL.to_configuration()),)


@pytest.mark.parametrize(("mine", "theirs", "outcome"), tuple(_cells()))
def test_what_was_planned_before_a_change_lands_after_it_where_its_rows_are_those_of_the_table(
    log: TransactionLog, mine: str, theirs: str, outcome: str
) -> None:
    planned = required(log)
    changed = change_column(log, planned, CHANGES[theirs])
    if outcome == "abort":
        with pytest.raises(CommitConflict, match="Plan again"):
            log.commit(planned, actions(mine, planned), operation="TEST")
        assert log.snapshot() == changed
        return

    found = log.commit(planned, actions(mine, planned), operation="TEST").snapshot

    assert found.version == changed.version + 1
    assert found.metadata == changed.metadata


@pytest.mark.parametrize("theirs", COMMITS)
@pytest.mark.parametrize("mine", CHANGES)
def test_a_change_lands_after_whatever_was_committed_since(log: TransactionLog, mine: str, theirs: str) -> None:
    planned = required(log)
    between = log.commit(planned, actions(theirs, planned), operation="TEST").snapshot

    found = change_column(log, planned, CHANGES[mine])

    expected = altered(between, CHANGES[mine])
    assert expected is not None
    assert found.metadata == expected.metadata
    assert (found.version, found.splits) == (between.version + 1, between.splits)


@pytest.mark.parametrize("theirs", CHANGES)
def test_changes_of_two_at_once_are_made_one_after_the_other(log: TransactionLog, theirs: str) -> None:
    planned = required(log)
    change_column(log, planned, CHANGES[theirs])

    found = change_column(log, planned, add_column("last", "string"))

    assert without_metadata(found.schema).names[-1] == "last"
    assert found.version == planned.version + 2


def test_a_column_that_was_dropped_meanwhile_is_not_changed(log: TransactionLog) -> None:
    planned = log.snapshot()
    change_column(log, planned, drop_column("id"))

    with pytest.raises(ValueError, match=r"unknown column 'id'\. The table has"):
        change_column(log, planned, rename_column("id", "number"))


def test_a_segment_over_a_column_that_changed_meanwhile_is_planned_again(log: TransactionLog) -> None:
    planned = required(log, "text")
    change_column(log, planned, relax_column("text"))

    with pytest.raises(CommitConflict, match="index 'words': its columns changed"):
        log.commit(planned, COMMITS["index"], operation="TEST")
