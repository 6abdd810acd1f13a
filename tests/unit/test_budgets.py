"""The maintenance sensor chooses the most urgent work first, and never more than the budgets allow."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from dagster import AssetKey

from assets.run_tags import bytes_tag, granted_bytes
from pipelines.maintenance.budgets import Choice, choose
from pipelines.maintenance.due_runs import WantedRun, request_of
from storage_core.base.clock import HOUR_MS
from storage_core.change.declaration import TableDeclaration
from storage_core.change.declaration_file import load_text
from storage_core.change.declaration_parts import UpkeepOfAllDeclaration
from storage_core.log.job_run import DueRun

pytestmark = pytest.mark.dagster

MINUTE_MS = 60_000
NOON_MS = 12 * HOUR_MS
NO_BOUNDS = UpkeepOfAllDeclaration()


def declared(name: str, upkeep: str = "{}") -> TableDeclaration:
    text = f"name: {name}\nuri: warehouse/{name}\ncolumns: {{a: int}}\nupkeep: {upkeep}\n"
    return load_text(TableDeclaration, text, f"{name}.yaml")


def wanted(
    table: TableDeclaration, pieces: Sequence[int], *, job: str = "compact", late_seconds: float = 0
) -> WantedRun:
    cut = tuple(pieces) if job == "compact" else ()
    due = DueRun(reason="r", items=len(pieces), bytes=sum(pieces), pieces=cut)
    return WantedRun(
        declaration=table, job=job, due=due, assets=[AssetKey([table.name, job])], late_seconds=late_seconds
    )


def chosen(
    found: Sequence[WantedRun],
    of_all: UpkeepOfAllDeclaration = NO_BOUNDS,
    *,
    spent: Mapping[str, int] | None = None,
    now_ms: int = NOON_MS,
    since_ms: dict[str, int] | None = None,
) -> Choice:
    since = {} if since_ms is None else since_ms
    return choose(found, of_all, spent=spent or {}, now_ms=now_ms, since_ms=since)


def granted(choice: Choice) -> dict[str, int | None]:
    return {each.declaration.name: each.granted_bytes for each in choice.chosen}


def names(choice: Choice) -> list[str]:
    return [each.declaration.name for each in choice.chosen]


def test_without_budgets_everything_is_asked_for_fresh_data_first_then_by_priority_then_by_gain() -> None:
    low, usual, high = declared("low", "{priority: 1}"), declared("usual"), declared("high", "{priority: 9}")
    found = [
        wanted(low, [1]),
        wanted(usual, [1]),
        wanted(declared("gain"), [1, 1, 1]),
        wanted(high, [1]),
        wanted(declared("late", "{priority: 4}"), [1], late_seconds=3600),
        wanted(declared("new"), [1], job="ingest"),
    ]
    choice = chosen(found)
    assert names(choice) == ["new", "late", "high", "gain", "usual", "low"]
    assert set(granted(choice).values()) == {None}, "and nothing is counted"
    assert str(choice) == "6 steps requested"
    assert names(choice.only(choice.chosen[:2])) == ["new", "late"]
    assert "4 steps waiting (high compact, gain compact, usual compact, low compact: room for runs)" in str(
        choice.only(choice.chosen[:2])
    )
    assert str(chosen([])) == "nothing to ask for"


def test_a_large_debt_gets_the_bytes_that_are_left_and_the_rest_of_the_tables_what_remains() -> None:
    one = declared("one", "{bytes_per_hour: 100, priority: 6}")
    backlog = wanted(one, [10] * 500)
    assert granted(chosen([backlog])) == {"one": 100}
    assert granted(chosen([backlog], spent={"one": 45, "other": 900})) == {"one": 55}
    waits = chosen([backlog], spent={"one": 95})
    assert (granted(waits), len(waits.deferred)) == ({}, 1)
    assert waits.deferred[0].why == "bytes_per_hour of one, 95 B of 100 B used"
    late = wanted(one, [5] * 500, late_seconds=3600)
    assert granted(chosen([late], spent={"one": 90})) == {"one": 10}, "what waited for an hour takes what there is"
    of_all = UpkeepOfAllDeclaration(bytes_per_hour=120)
    assert granted(chosen([backlog, wanted(declared("two"), [15])], of_all)) == {"one": 100, "two": 18}
    assert granted(chosen([wanted(one, [10, 10])])) == {"one": 25}, "a quarter more, for what lands meanwhile"


def test_quiet_hours_hold_all_but_fresh_data_of_one_table_or_of_all() -> None:
    quiet = declared("quiet", "{quiet_hours: '08:00-18:00'}")
    found = [wanted(quiet, [1]), wanted(quiet, [1], job="ingest"), wanted(declared("other"), [1])]
    choice = chosen(found)
    assert [(each.declaration.name, each.job) for each in choice.chosen] == [("quiet", "ingest"), ("other", "compact")]
    assert choice.deferred[0].why == "quiet_hours 08:00-18:00 of quiet"
    assert len(chosen(found, now_ms=18 * HOUR_MS).chosen) == 3
    night = UpkeepOfAllDeclaration(quiet_hours="22:00-13:00")
    assert [each.job for each in chosen(found, night).chosen] == ["ingest"]
    assert len(chosen(found, night, now_ms=18 * HOUR_MS).chosen) == 3


def test_fresh_data_counts_and_waits_for_no_bytes() -> None:
    one = declared("one", "{bytes_per_hour: 100}")
    choice = chosen([wanted(one, [80], job="ingest"), wanted(one, [30])])
    assert [(each.job, each.granted_bytes) for each in choice.chosen] == [("ingest", 80)]
    assert granted(chosen([wanted(one, [500], job="ingest")], spent={"one": 100})) == {"one": 500}


def test_a_piece_that_is_larger_than_the_budget_runs_alone_once_nothing_of_it_is_used() -> None:
    one = declared("one", "{bytes_per_hour: 100}")
    only = wanted(one, [400])
    assert granted(chosen([only], spent={"one": 1})) == {}
    assert granted(chosen([only])) == {"one": 500}
    of_all = UpkeepOfAllDeclaration(bytes_per_hour=100)
    both = [wanted(declared("a", "{priority: 6}"), [400]), wanted(declared("b"), [10])]
    assert granted(chosen(both, of_all)) == {"a": 500}, "and b waits"


def test_a_large_piece_is_saved_up_for_once_small_ones_kept_it_waiting_for_an_hour() -> None:
    one, since = declared("one", "{bytes_per_hour: 100}"), dict[str, int]()
    found = [wanted(one, [10, 10, 400])]
    assert granted(chosen(found, spent={"one": 5}, since_ms=since)) == {"one": 25}
    later = chosen(found, spent={"one": 5}, since_ms=since, now_ms=NOON_MS + HOUR_MS)
    assert granted(later) == {}
    assert later.deferred[0].why.endswith("used, the rest is reserved for a large step")
    assert granted(chosen(found, since_ms=since, now_ms=NOON_MS + HOUR_MS)) == {"one": 500}
    assert not since, "and the next one waits for an hour again"


def test_the_bytes_of_a_run_are_in_its_tag_by_table() -> None:
    one = chosen([wanted(declared("one", "{bytes_per_hour: 100}"), [10])]).chosen[0]
    assert granted_bytes(request_of([one]).tags) == {"one": 12}
    assert granted_bytes(bytes_tag({"a": 1, "b": 2})) == {"a": 1, "b": 2}
    for foreign in ("", "x", "[1]", '{"a": "b"}'):
        assert granted_bytes({".dagster/tidemark_bytes": foreign}) == {}


@dataclass(slots=True)
class Run:
    """A run of the simulation: its table, its bytes, its start and its end."""

    table: str
    bytes: int
    begun_ms: int
    ended_ms: int


@dataclass(slots=True)
class Simulated:
    """Tables with a backlog of windows of given sizes, the budgets of the tables, and the finished runs."""

    backlog: dict[str, list[int]]
    tables: Mapping[str, TableDeclaration]
    of_all: UpkeepOfAllDeclaration
    runs: list[Run] = field(default_factory=list)
    since_ms: dict[str, int] = field(default_factory=dict)

    def spent(self, now_ms: int) -> dict[str, int]:
        found: dict[str, int] = {}
        for run in self.runs:
            if run.ended_ms > now_ms - HOUR_MS:
                found[run.table] = found.get(run.table, 0) + run.bytes
        return found

    def tick(self, now_ms: int) -> Choice:
        busy = {run.table for run in self.runs if run.ended_ms > now_ms}
        found = [wanted(self.tables[name], left) for name, left in self.backlog.items() if left and name not in busy]
        return choose(found, self.of_all, spent=self.spent(now_ms), now_ms=now_ms, since_ms=self.since_ms)

    def begin(self, choice: Choice, now_ms: int, minutes: int) -> None:
        """Start the chosen runs.

        Each run reads its granted bytes as the job selects them, and lasts this many minutes.
        """
        from storage_core.compact.pending_work import within

        for each in choice.chosen:
            name, size = each.declaration.name, each.granted_bytes or each.due.bytes
            taken = set(within(self.backlog[name], size))
            assert taken, "no run is asked for that has nothing to do"
            read = sum(self.backlog[name][place] for place in taken)
            assert read <= size
            self.backlog[name] = [one for place, one in enumerate(self.backlog[name]) if place not in taken]
            self.runs.append(Run(name, size, now_ms, now_ms + minutes * MINUTE_MS))


def test_a_week_without_upkeep_heals_within_the_budgets_at_every_moment_while_rows_arrive() -> None:
    source = random.Random(169)
    names_ = [f"t{number:02}" for number in range(20)]
    own = {name: 4_000 + 500 * number for number, name in enumerate(names_)}
    tables = {
        name: declared(name, f"{{bytes_per_hour: {own[name]}, priority: {number % 3}}}")
        for number, name in enumerate(names_)
    }
    backlog = {name: [source.randrange(20, 120) for _ in range(168)] for name in names_}
    backlog["t07"] += [9_000]  # more than the budget of its table
    simulated = Simulated(backlog, tables, UpkeepOfAllDeclaration(bytes_per_hour=30_000))
    debts, now_ms = [sum(map(sum, backlog.values()))], 0
    for minute in range(0, 24 * 60, 5):
        now_ms = minute * MINUTE_MS
        if minute % 60 == 0:
            debts.append(sum(map(sum, simulated.backlog.values())))
            for name in names_:
                simulated.backlog[name].insert(0, source.randrange(20, 120))
        choice = simulated.tick(now_ms)
        _assert_urgent_first(choice, simulated.spent(now_ms), own)
        simulated.begin(choice, now_ms, minutes=source.randrange(1, 20))
        spent = simulated.spent(now_ms)
        large = {run.table for run in simulated.runs if run.bytes >= 9_000 and run.ended_ms > now_ms - HOUR_MS}
        assert sum(spent.values()) <= 30_000
        assert all(spent[name] <= own[name] for name in spent if name not in large)
        assert all(
            sum(run.table == name for run in simulated.runs if run.ended_ms > now_ms - HOUR_MS) == 1 for name in large
        )
    left = [debt for debt in debts if debt > 20 * 120]
    assert all(later < debt for debt, later in zip(left, left[2:], strict=False)), (
        "the debt falls, for a run counts longer"
    )
    assert 3 < len(left) < len(debts) - 3, "until it is gone"
    assert 9_000 not in simulated.backlog["t07"]


def _assert_urgent_first(choice: Choice, spent: Mapping[str, int], own: Mapping[str, int]) -> None:
    """Check that each deferred table did not fit into the budget left by the more urgent tables."""
    for deferred in choice.deferred:
        name = deferred.wanted.declaration.name
        before = [each for each in choice.chosen if each.rank < deferred.wanted.rank]
        left = own[name] - spent.get(name, 0)
        left_of_all = 30_000 - sum(spent.values()) - sum(each.granted_bytes or 0 for each in before)
        fitting = [piece for piece in sorted(deferred.wanted.due.pieces) if piece <= min(left, left_of_all)]
        is_saved = deferred.why.endswith("for a large step")
        assert is_saved or not fitting or min(left, left_of_all) < own[name] / 4, deferred.why


def test_of_five_hundred_tables_and_a_week_of_windows_the_first_ticks_take_what_hurts_most() -> None:
    tables = {f"t{number:03}": declared(f"t{number:03}", f"{{priority: {number % 11}}}") for number in range(500)}
    simulated = Simulated(
        {name: [1_000] * 672 for name in tables}, tables, UpkeepOfAllDeclaration(bytes_per_hour=30 * 672_000)
    )
    before: set[str] = set()
    for hour in range(3):
        choice = simulated.tick(hour * (HOUR_MS + MINUTE_MS))
        simulated.begin(choice, hour * (HOUR_MS + MINUTE_MS), minutes=1)
        assert sum(each.granted_bytes or 0 for each in choice.chosen) <= 30 * 672_000
        least = min(each.declaration.upkeep.priority for each in choice.chosen)
        waiting = {each.wanted.declaration.name for each in choice.deferred}
        assert all(tables[name].upkeep.priority <= least for name in waiting), "no less urgent one went before"
        assert before.isdisjoint(names(choice))
        before |= {name for name in names(choice) if not simulated.backlog[name]}
    assert {tables[name].upkeep.priority for name in before} == {10, 9}
