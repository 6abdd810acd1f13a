"""Runs for windows, complete runs, crashes and races happen in any order.

Each landed row is then in the table exactly once.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.base.errors import CommitConflict
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Metadata
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.split.context import context_of
from storage_core.split.read import read_split
from storage_core.store.local import LocalStore
from storage_core.write.ingest.batch import IngestResult, execute, plan
from storage_core.write.ingest.landing import LandingSpec, discover
from storage_core.write.ingest.progress import prune_gone_files
from tests.support.clock import ManualClock
from tests.support.ids import SeededIds
from tests.support.scale import scaled

MINUTE = 60
SCHEMA = pa.schema([pa.field("at", pa.timestamp("us", tz="UTC")), pa.field("id", pa.int64())])
WINDOWS: list[int | None] = [None, -MINUTE, 0, MINUTE, 2 * MINUTE]

times = st.one_of(st.none(), st.integers(-MINUTE, 3 * MINUTE - 1))
files = st.lists(st.lists(times, min_size=1, max_size=6), min_size=1, max_size=3)
runs = st.one_of(st.none(), st.lists(st.sampled_from(WINDOWS), min_size=1, max_size=3, unique=True))
# A step lands, removes or returns a file, prunes its progress, or starts a run. The output of a run is committed now,
# later (a race), or never (a crash).
fates = st.sampled_from(["now", "later", "never", "land", "take away", "come back", "prune"])
steps = st.lists(st.tuples(runs, fates), max_size=8)
Run = tuple[Snapshot, list[IngestResult]]


class Ingestion:
    def __init__(self, root: Path) -> None:
        self.landing = root / "landing"
        self.landing.mkdir()
        self.clock = ManualClock(step_ms=1)
        self.log = TransactionLog(LocalStore(root / "table"), clock=self.clock, ids=SeededIds(3))
        config = TableConfig(
            time_column="at", window_seconds=MINUTE, checkpoint_interval=0, version_retention_ms=1_000, gc_horizon_ms=1
        ).to_configuration()
        self.log.create(Metadata(id="t", schemaString=to_schema_string(SCHEMA), configuration=config))
        pattern = r"^(?P<at>\S+) (?P<id>[0-9]+)$"
        self.spec = LandingSpec(uri=str(self.landing), format="pattern", pattern=pattern, null_values=("-",))
        self.ids = SeededIds(4)

    def land(self, number: int, seconds: list[int | None]) -> None:
        start = 10_000 * number
        times = ["-" if second is None else _instant(second) for second in seconds]
        lines = [f"{time} {start + index}\n" for index, time in enumerate(times)]
        (self.landing / f"{number}.log").write_text("".join(lines) + "bad line\n")

    def prune(self) -> None:
        self.clock.now += 1_001
        prune_gone_files(self.log, self.spec)

    def take_away(self, number: int) -> None:
        (self.landing / f"{number}.log").unlink(missing_ok=True)

    def run(self, windows: list[int | None] | None) -> Run:
        snapshot = self.log.snapshot()
        context = context_of(snapshot)
        works = plan(snapshot, self.spec, discover(self.spec), windows)
        now_ms = self.clock.now_ms()
        return snapshot, [execute(self.log.store, work, context=context, ids=self.ids, now_ms=now_ms) for work in works]

    def commit(self, run: Run) -> None:
        planned, results = run
        actions = [action for result in results for action in result.actions]
        if actions:
            self.log.commit(planned, actions, operation="INGEST")

    def rows(self) -> Counter[tuple[int | None, int]]:
        found: Counter[tuple[int | None, int]] = Counter()
        for add in self.log.snapshot().splits.values():
            found.update((add.windowStart, each) for each in read_split(self.log.store, add).column("id").to_pylist())
        return found


def _instant(second: int) -> str:
    day, rest = divmod(second, 86_400)
    return f"{'1970-01-01' if day == 0 else '1969-12-31'}T{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}Z"


@settings(max_examples=scaled(25))
@given(landed=files, steps=steps)
def test_any_runs_and_then_a_whole_run_leave_every_row_once(
    landed: list[list[int | None]], steps: list[tuple[list[int | None] | None, str]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ingestion = Ingestion(Path(folder))
        waiting = list(enumerate(landed))
        ingestion.land(*waiting.pop(0))
        races: list[Run] = []
        for windows, fate in steps:
            if fate == "land" and waiting:
                ingestion.land(*waiting.pop(0))
            elif fate == "take away":
                ingestion.take_away(len(landed) - len(waiting) - 1)
            elif fate == "come back":
                ingestion.land(len(landed) - len(waiting) - 1, landed[len(landed) - len(waiting) - 1])
            elif fate == "prune":
                ingestion.prune()
            results = ingestion.run(windows)
            if fate == "later":
                races.append(results)
            elif fate == "now":
                ingestion.commit(results)
            assert max(ingestion.rows().values(), default=1) == 1
        for results in races:
            try:
                ingestion.commit(results)
            except CommitConflict:
                continue
        for each in enumerate(landed):  # the late files, and the removed files
            ingestion.land(*each)
        ingestion.commit(ingestion.run(None))
        expected = Counter(
            (None if second is None else second - second % MINUTE, 10_000 * number + index)
            for number, seconds in enumerate(landed)
            for index, second in enumerate(seconds)
        )
        assert ingestion.rows() == expected
        version = ingestion.log.snapshot().version
        assert ingestion.run(None)[1] == []
        assert ingestion.log.snapshot().version == version
