"""The scope of an audit, the cases that it cannot decide, and the check that it covers every invariant.

docs/architecture/compaction.md lists the invariants.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core.base.errors import Unsupported
from storage_core.data.formats.keys import version_key
from storage_core.log.actions import Add
from storage_core.maintain.audit import INVARIANTS, Selection, audit, require_ours
from storage_core.maintain.audit import execute as execute_work
from storage_core.split.read import read_split
from tests.support.events import events, snapshot
from tests.unit.audited_events import FIRST, LATER, SECOND, Events


@pytest.fixture
def table() -> Events:
    return Events()


@pytest.fixture
def two(table: Events) -> list[Add]:
    return table.append_two()


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
    (deleted,) = table.live
    table.append(FIRST)
    table.compact()
    table.store.delete([deleted.path])
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
    assert "does not contain the versions before version 3" in report.unchecked[0].reason


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
    metrics = {name: (each.splits, each.merges, len(each.violations)) for name, each in found.items()}
    assert metrics == {"all": (3, 2, 1), "window": (1, 1, 0), "since": (1, 0, 1), "commits": (1, 1, 0)}


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
    with pytest.raises(Unsupported, match="another program maintains the log"):
        require_ours(snapshot([]))


def test_every_invariant_has_a_planted_violation() -> None:
    files = [Path(__file__).with_name(f"test_audit_{what}.py") for what in ("merges", "splits")]
    sources = "".join(file.read_text(encoding="utf-8") for file in files)
    planted = {name for name in INVARIANTS if f"def test_{name.lower().replace('-', '_')}_" in sources}
    assert planted == set(INVARIANTS)
