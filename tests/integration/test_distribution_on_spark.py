"""A raw log is distributed on Spark to many tables, and each record arrives once despite races, kills and retries."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.command import to_arguments
from jobs.spark.java import ROOT
from jobs.spark.spark import Spark
from pipelines.cli import main
from pipelines.tables import read_raw_logs
from storage_core.base.errors import Held
from storage_core.change.declaration import load
from storage_core.data.steps import Distribute
from storage_core.log.job_run import report_of, run
from storage_core.log.lease import acquire
from storage_core.store.local import LocalStore
from storage_core.table import Table
from storage_core.write.raw_log.records import RawLimits, RawRecord
from storage_core.write.raw_log.writer import RawLog
from tests.support.clock import ManualClock
from tests.support.ids import SeededIds
from tests.support.rejected_lines import rejected_lines

pytestmark = pytest.mark.spark

APPEND = [f"events_{number:02}" for number in range(16)]
KEYED = [f"users_{number}" for number in range(4)]
PER_TABLE = 20
SECOND = 1_000


def declare(root: Path, tables: list[str]) -> Distribute:
    (root / "tables").mkdir()
    (root / "raw_logs").mkdir()
    for name in tables:
        key = "primary_key: n\n" if name in KEYED else ""
        (root / "tables" / f"{name}.yaml").write_text(
            f"name: {name}\nuri: warehouse/{name}\ncolumns:\n  n: long!\n  text: string\n{key}"
        )
    (root / "raw_logs" / "all.yaml").write_text("name: all\nstores: [raw]\n")
    return read_raw_logs(root / "tables").find("all").options(Distribute)


def produce(root: Path, tables: list[str], *, seed: int = 1) -> int:
    """Write twenty rows per table and return the number of invalid records.

    One record in twenty is a record that no table accepts.
    """
    records = [
        RawRecord(table=name, fields={"n": number, "text": f"{name} {number}"})
        for number in range(PER_TABLE)
        for name in tables
    ]
    bad = [
        RawRecord(table="nobody", fields={"n": number})
        if number % 2
        else RawRecord(table=tables[number % len(tables)], fields={"n": "no number"})
        for number in range(len(records) // 20)
    ]
    mixed = [each for at, record in enumerate(records) for each in (record, *bad[at // 20 : at // 20 + (at % 20 == 0)])]
    clock = ManualClock()
    with RawLog([str(root / "raw")], clock=clock, ids=SeededIds(seed), limits=RawLimits(segment_ms=SECOND)) as log:
        for start in range(0, len(mixed), 20):
            log.append_many(mixed[start : start + 20])
            clock.now += SECOND // 2
    return len(bad)


def numbers(root: Path, name: str) -> list[int]:
    table = Table.open(str(root / "warehouse" / name))
    level = "latest" if name in KEYED else "snapshot"
    return sorted(table.scan(["n"], consistency=level).to_arrow().column("n").to_pylist())


def records_in_regions(root: Path, name: str) -> int:
    from storage_core.write.region import generation
    from storage_core.write.region.manifest import read_latest, region_of

    table = Table.open(str(root / "warehouse" / name))
    manifest = read_latest(table.store, region_of(table.snapshot.table_id))
    assert manifest is not None
    found = [generation.read(table.store, manifest.region_id, each) for each in manifest.flushed_generations]
    return sum(each.records for each in found)


def test_twenty_tables_get_their_rows_once_and_bad_records_are_quarantined(tmp_path: Path, spark: Spark) -> None:
    tables = [*APPEND, *KEYED]
    request = declare(tmp_path, tables)
    bad = produce(tmp_path, tables)
    assert bad == len(tables) * PER_TABLE // 20
    done = run(request, spark)
    assert done.status == "committed"
    assert (done.metrics.rows_in, done.metrics.rows_out) == (len(tables) * PER_TABLE + bad, 20 * PER_TABLE)
    assert {name: numbers(tmp_path, name) for name in tables} == {name: list(range(PER_TABLE)) for name in tables}
    assert [records_in_regions(tmp_path, name) for name in KEYED] == [PER_TABLE] * len(KEYED)
    reasons = Counter(each["reason"] for each in rejected_lines(LocalStore(tmp_path / "raw")))
    assert reasons == {"'nobody' is not a table of this raw log": bad // 2}
    found = [each for name in tables for each in rejected_lines(LocalStore(tmp_path / "warehouse" / name))]
    assert len(found) == bad // 2
    assert all("does not fit the type int64" in each["reason"] for each in found)
    assert done.details["rejected"] == bad
    versions = {name: Table.open(str(tmp_path / "warehouse" / name)).version for name in tables}
    again = run(request, spark)
    assert (again.status, again.metrics.rows_in) == ("nothing_to_do", 0)
    assert {name: Table.open(str(tmp_path / "warehouse" / name)).version for name in tables} == versions


def test_two_distributors_at_once_and_one_that_is_killed_distribute_once(tmp_path: Path, spark: Spark) -> None:
    tables = [*APPEND[:3], *KEYED[:2]]
    request = declare(tmp_path, tables)
    produce(tmp_path, tables)
    racing = [_started(request) for _ in range(2)]
    assert {each.wait() for each in racing} <= {0, 3}
    produce(tmp_path, tables, seed=2)
    killed = _started(request)
    log = tmp_path / "warehouse" / APPEND[0] / "_transaction_log"
    before = len(list(log.glob("*.json")))
    while len(list(log.glob("*.json"))) == before and killed.poll() is None:
        time.sleep(0.002)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    run(request, spark)
    assert run(request, spark).status == "nothing_to_do"
    for name in APPEND[:3]:
        assert numbers(tmp_path, name) == sorted([*range(PER_TABLE)] * 2)
    for name in KEYED[:2]:
        assert numbers(tmp_path, name) == list(range(PER_TABLE))
        assert records_in_regions(tmp_path, name) == 2 * PER_TABLE


def test_a_table_that_another_run_distributes_into_is_held_and_the_others_get_their_rows(
    tmp_path: Path, spark: Spark
) -> None:
    request = declare(tmp_path, APPEND[:2])
    produce(tmp_path, APPEND[:2])
    table = Table.declare(load(request.tables[0]).below(tmp_path))
    lease = acquire(table.log, table.snapshot, "distribute.all", "somebody@elsewhere")
    with pytest.raises(Held, match=r"distribute\.all of .* is held by somebody") as held:
        run(request, spark)
    assert held.value.exit_code == 3
    done = report_of(held.value)
    assert done is not None
    assert (done.status, done.metrics.rows_out) == ("committed", PER_TABLE)
    assert json.loads(done.to_json())["details"]["tables"].keys() == {APPEND[1]}
    assert (numbers(tmp_path, APPEND[0]), numbers(tmp_path, APPEND[1])) == ([], list(range(PER_TABLE)))
    lease.release()
    assert run(request, spark).metrics.rows_out == PER_TABLE
    assert numbers(tmp_path, APPEND[0]) == list(range(PER_TABLE))
    assert run(request, spark).status == "nothing_to_do"


def test_the_command_names_a_gap_and_passes_it_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    declare(tmp_path, APPEND[:2])
    produce(tmp_path, APPEND[:2])
    produce(tmp_path, APPEND[:2], seed=2)
    chunk = min((tmp_path / "raw" / "live").rglob("*.avro"))
    writer = chunk.parent.name.partition(".")[2]
    chunk.unlink()
    monkeypatch.setenv("TIDEMARK_TABLES", str(tmp_path / "tables"))
    (gap,) = [each["last"] for each in _answer(capsys, "distribute", "all", "--dry-run", code=4)["details"]["held"]]
    assert gap == 1
    found = _answer(capsys, "distribute", "all", "--dry-run", "--skip-gap", f"{writer}:{gap}", code=0)
    assert (found["status"], found["details"]["new_tables"]) == ("planned", APPEND[:2])
    assert not (tmp_path / "warehouse").exists()
    for more in (["--dry-run"], []):
        assert main(["distribute", "all", *more]) == 4
        shown = capsys.readouterr()
        (line,) = [each.split() for each in shown.out.splitlines() if writer in each]
        assert line == [writer, "1", "1", f"{APPEND[0]},", APPEND[1]]
        assert f"tidemark distribute all --skip-gap {writer}:1\n" in shown.err
    assert main(["distribute", "all", "--skip-gap", f"{writer}:1"]) == 0
    assert "--skip-gap" not in capsys.readouterr().err
    assert main(["distribute", "all", "--skip-gap", "nonsense", "--json"]) == 2
    assert main(["distribute", "nothing", "--json"]) == 2


def _answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[0])
    return found


def test_a_broken_table_declaration_leaves_its_rows_waiting(tmp_path: Path, spark: Spark) -> None:
    request = declare(tmp_path, APPEND[:2])
    produce(tmp_path, APPEND[:2])
    file = tmp_path / "tables" / f"{APPEND[1]}.yaml"
    sound = file.read_text()
    file.write_text("name: [\n")
    done = run(request, spark)
    assert list(done.details["left_out"]) == [APPEND[1]]  # type: ignore[call-overload]  # a mapping
    assert numbers(tmp_path, APPEND[0]) == list(range(PER_TABLE))
    file.write_text(sound)
    run(request, spark)
    assert numbers(tmp_path, APPEND[1]) == list(range(PER_TABLE))


def _started(request: Distribute) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "jobs", "distribute", *to_arguments(replace(request, master="local[1]"))]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
