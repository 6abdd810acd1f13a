"""Windows change while files land, runs race and splits are rewritten: every row exists once, in its window."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.base.clock import SystemIds
from storage_core.base.errors import CommitConflict
from storage_core.change.creation import change_settings
from storage_core.compact import rewindow
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Action, Metadata
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.audit import audit
from storage_core.split.context import context_of
from storage_core.split.read import read_split
from storage_core.store.local import LocalStore
from storage_core.table import Table
from storage_core.write.ingest.batch import execute, plan
from storage_core.write.ingest.landing import LandingSpec, discover
from tests.support.ids import SeededIds
from tests.support.scale import scaled
from tests.support.upkeep import compact

MINUTE = 60
DURATIONS = (5, 10, 15, 20, 60)
SCHEMA = pa.schema([pa.field("time", pa.timestamp("us", tz="UTC")), pa.field("id", pa.int64())])

times = st.one_of(st.none(), st.integers(-60 * MINUTE, 120 * MINUTE - 1))
files = st.lists(st.lists(times, min_size=3, max_size=8), min_size=1, max_size=3)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("window"), st.sampled_from(DURATIONS)),
        st.tuples(
            st.sampled_from(["ingest", "ingest", "late ingest"]), st.integers(-60, 119)
        ),  # a minute in the window
        st.tuples(st.sampled_from(["whole ingest", "rewindow", "compact", "land", "checkpoint"]), st.just(0)),
    ),
    max_size=12,
)

Planned = tuple[Snapshot, list[Action]]


class Changing:
    """A table whose windows change, and the files that land for it."""

    def __init__(self, root: Path) -> None:
        self.landing = root / "landing"
        self.landing.mkdir()
        self.place = str(root / "table")
        self.log = TransactionLog(LocalStore(root / "table"), ids=SeededIds(3))
        config = TableConfig(time_column="time", window_seconds=15 * MINUTE, checkpoint_interval=0).to_configuration()
        self.log.create(Metadata(id="t", schemaString=to_schema_string(SCHEMA), configuration=config))
        pattern = r"^(?P<time>\S+) (?P<id>[0-9]+)$"
        self.spec = LandingSpec(uri=str(self.landing), format="pattern", pattern=pattern, null_values=("-",))
        self.races: list[Planned] = []

    def land(self, number: int, seconds: list[int | None]) -> None:
        lines = [f"{_instant(second)} {1000 * number + index}\n" for index, second in enumerate(seconds)]
        (self.landing / f"{number}.log").write_text("".join(lines))

    def ingested(self, windows: list[int | None] | None) -> Planned:
        snapshot = self.log.snapshot()
        context = context_of(snapshot)
        works = plan(snapshot, self.spec, discover(self.spec), windows)
        done = [execute(self.log.store, work, context=context, ids=SystemIds(), now_ms=1) for work in works]
        return snapshot, [action for result in done for action in result.actions]

    def rewindowed(self) -> Planned:
        snapshot = self.log.snapshot()
        works = rewindow.plan(snapshot, windows=None, now_ms=0)
        works = [rewindow.RewindowTask.from_json(work.to_json()) for work in works]
        done = [rewindow.execute(self.log.store, work, ids=SystemIds(), now_ms=1) for work in works]
        return snapshot, [action for result in done for action in result.actions]

    def commit(self, planned: Planned) -> None:
        snapshot, actions = planned
        if actions:
            self.log.commit(snapshot, actions, operation="TEST")

    def step(self, what: str, number: int) -> None:
        seconds = self.log.snapshot().config.window_seconds
        assert seconds is not None
        match what:
            case "window":
                change_settings(self.log, self.log.snapshot(), {"window": number * MINUTE})
            case "ingest":
                self.commit(self.ingested([_window(number, seconds)]))
            case "late ingest":
                self.races.append(self.ingested([None, _window(number, seconds)]))
            case "whole ingest":
                self.races.append(self.ingested(None))
            case "rewindow":
                self.commit(self.rewindowed())
            case "compact":
                compact(Table.open(self.place))
            case "checkpoint":
                self.log.checkpoint(self.log.snapshot())

    def rows(self) -> Counter[int]:
        found: Counter[int] = Counter()
        for add in self.log.snapshot().splits.values():
            found.update(read_split(self.log.store, add).column("id").to_pylist())
        return found


def _window(minute: int, seconds: int) -> int:
    return minute * MINUTE - minute * MINUTE % seconds


def _instant(second: int | None) -> str:
    if second is None:
        return "-"
    day, rest = divmod(second, 86_400)
    return f"{'1970-01-01' if day == 0 else '1969-12-31'}T{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}Z"


@settings(max_examples=scaled(40))
@given(landed=files, steps=steps)
def test_every_row_is_there_once_across_changes_of_the_window(
    landed: list[list[int | None]], steps: list[tuple[str, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = Changing(Path(folder))
        waiting = list(enumerate(landed))
        table.land(*waiting.pop(0))
        for what, number in steps:
            if what == "land" and waiting:
                table.land(*waiting.pop(0))
            table.step(what, number)
            assert max(table.rows().values(), default=1) == 1
        for race in table.races:
            try:
                table.commit(race)
            except CommitConflict:
                continue
            assert max(table.rows().values(), default=1) == 1
        for late in waiting:
            table.land(*late)
        table.commit(table.ingested(None))
        expected = {
            1000 * number + index: second for number, file in enumerate(landed) for index, second in enumerate(file)
        }
        assert table.rows() == Counter(dict.fromkeys(expected, 1))
        assert table.ingested(None)[1] == []
        table.commit(table.rewindowed())
        snapshot = table.log.snapshot()
        assert {add.windowSeconds for add in snapshot.splits.values()} == {snapshot.config.window_seconds}
        assert table.rows() == Counter(dict.fromkeys(expected, 1))
        assert audit(table.log.store, snapshot).violations == ()
        lower, upper = "1970-01-01 00:10:00+00", "1970-01-01 01:20:00+00"
        found = Table.open(table.place).scan(filter=f"time >= '{lower}' and time < '{upper}'").to_arrow().column("id")
        assert sorted(found.to_pylist()) == sorted(
            id_ for id_, second in expected.items() if second is not None and 600 <= second < 4800
        )
