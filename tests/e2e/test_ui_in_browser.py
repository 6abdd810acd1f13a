"""Dagster's UI as a user sees and clicks it: real services, a real browser, plots, the report, and a backfill.

The backfill has two days of 15-minute windows. `TIDEMARK_SCALE=15` makes the backfill thirty days long, with 2,880
windows.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dagster import Definitions
from playwright.sync_api import Browser, Locator, Page, expect

from assets.launcher import InProcessLauncher
from assets.steps import asset_key, partition_key
from examples.datasets import access_log_lines
from jobs.spark.spark import Spark
from pipelines.automation import Automation
from pipelines.backfill import backfill
from pipelines.catalog import build_definitions
from pipelines.housekeeping import build_report
from pipelines.instance import home, open_instance
from pipelines.tables import read_tables
from storage_core.change.declaration import load
from storage_core.data.formats.documents import RELEASED_MS
from storage_core.log.lease import stored_leases
from tests.integration.halved_split import halve_split, repair
from tests.support.pictures import picture
from tests.support.scale import scaled
from tidemark import Table

PER_DAY = 96
DAYS = scaled(2)
WINDOWS = DAYS * PER_DAY
END_SECONDS = 60

pytestmark = [
    pytest.mark.browser,
    pytest.mark.spark,
    pytest.mark.dagster,
    pytest.mark.timeout(1200 + 200 * DAYS),  # each day is a run of two processes, on a machine that may be busy
]

REPOSITORY = Path(__file__).resolve().parents[2]
WINDOW = "2015-05-17T10:00"
PATIENCE_MS = 240_000
PATIENCE_OF_DAYS_MS = PATIENCE_MS + 60_000 * DAYS
TICKS = asset_key("ticks", "compacted")

DECLARATION = """
name: ticks
uri: warehouse/ticks
columns: {{timestamp: timestamp!, value: int!}}
time_column: timestamp
window: 15m
sort_schema: value|timestamp/V2
partitions: {{start: {start:%Y-%m-%dT%H:%M}}}
"""

# A script that the test installs as the command `java`. The script counts how often Spark starts Java. While the file
# `silent` exists, the script waits.
JAVA = """#!/bin/sh
case "$*" in *org.apache.spark.launcher.Main*) ;; *) echo started >> '{here}/javas' ;; esac
while [ -e '{here}/silent' ]; do touch '{here}/begun'; sleep 0.2; silent=1; done
[ -z "$silent" ] && exec '{java}/bin/java' "$@"
"""


@dataclass(frozen=True, slots=True)
class Site:
    """A folder with tables and their history, and the UI over it."""

    folder: Path
    url: str
    midnight: dt.datetime
    """Midnight of the current day. The windows of `ticks` begin `DAYS` days before `midnight`."""

    def range(self) -> str:
        """Return the range of the windows of all whole days, in the text form that a user types."""
        first, last = self.midnight - dt.timedelta(days=DAYS), self.midnight - dt.timedelta(minutes=15)
        return f"[{first:%Y-%m-%dT%H:%M}...{last:%Y-%m-%dT%H:%M}]"

    def javas(self) -> int:
        """Return the number of Spark's Java processes that the runs of the UI have started."""
        counted = self.folder / "javas"
        return len(counted.read_text().splitlines()) if counted.exists() else 0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, spark: Spark) -> Iterator[Site]:
    """Return the UI with a partly compacted access log, a report, and the uncompacted table `ticks`."""
    folder = tmp_path_factory.mktemp("site")
    midnight = dt.datetime.now(dt.UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        _declare(folder, midnight)
        _fill(folder, spark)
        _write_ticks(midnight)
        _wrap_java(folder, patch)
        yield from _served(Site(folder, f"http://127.0.0.1:{_free_port()}", midnight))


def _declare(folder: Path, midnight: dt.datetime) -> None:
    (folder / "tables").mkdir()
    shutil.copy(REPOSITORY / "tables" / "access_log.yaml", folder / "tables")
    text = DECLARATION.format(start=midnight - dt.timedelta(days=DAYS))
    (folder / "tables" / "ticks.yaml").write_text(text, encoding="utf-8")


def _fill(folder: Path, spark: Spark) -> None:
    landing = folder / "landing" / "access_log"
    landing.mkdir(parents=True)
    lines = access_log_lines()[:300]
    (landing / "first.log").write_text("\n".join(lines[::2]) + "\n", encoding="utf-8")
    (landing / "second.log").write_text("\n".join([*lines[1::2], "not a line of the log"]) + "\n", encoding="utf-8")
    known = read_tables(folder / "tables")
    declared = load(Path("tables/access_log.yaml"))
    launcher = InProcessLauncher(spark)
    jobs = Definitions.merge(build_definitions(known, launcher), build_report(known, Automation()))
    with open_instance(home(folder, {})) as instance:
        (done,) = backfill(declared, WINDOW, "2015-05-17T11:00", instance=instance, launcher=launcher)
        assert done.error is None
        assert jobs.resolve_job_def("report").execute_in_process(instance=instance).success


def _write_ticks(midnight: dt.datetime) -> None:
    """Write two splits into each of eight windows of yesterday. Each split of window number n has n rows."""
    table = Table.declare(load(Path("tables/ticks.yaml")))
    for batch in range(2):
        table.append([{"timestamp": at + dt.timedelta(seconds=batch), "value": n} for n, at in _rows(midnight)])


def _rows(midnight: dt.datetime) -> list[tuple[int, dt.datetime]]:
    starts = _full_windows(midnight)
    return [(row, at + dt.timedelta(seconds=10 * row)) for n, at in enumerate(starts, 1) for row in range(n)]


def _full_windows(midnight: dt.datetime) -> list[dt.datetime]:
    """Return eight windows before midnight. Dagster plots the newest 120 windows, including these eight windows."""
    return [midnight - dt.timedelta(hours=4) + dt.timedelta(minutes=15 * n) for n in range(8)]


def _wrap_java(folder: Path, patch: pytest.MonkeyPatch) -> None:
    java = folder / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA.format(here=folder, java=os.environ["JAVA_HOME"]), encoding="utf-8")
    java.chmod(0o755)
    patch.setenv("JAVA_HOME", str(folder / "java"))
    patch.setenv("TIDEMARK_SPARK", "always")  # each job with work starts Spark, and thus the script


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _served(site: Site) -> Iterator[Site]:
    command = [str(Path(sys.executable).with_name("tidemark")), "ui", "--port", site.url.rpartition(":")[2]]
    with (site.folder / "ui.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            yield site
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
            with suppress(ProcessLookupError):  # kill the rest of the session
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def page(site: Site, browser: Browser) -> Page:
    """Return a page of a UI that responds and has loaded the tables."""
    opened = browser.new_page(viewport={"width": 1440, "height": 900})
    opened.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    while True:
        with suppress(Exception):
            opened.goto(f"{site.url}/locations")
            break
        time.sleep(0.5)
    return opened


def test_the_ui_shows_the_asset_graph_a_materialization_with_its_metrics_its_checks_and_opens_the_report(
    site: Site, page: Page, tmp_path: Path
) -> None:
    page.goto(f"{site.url}/locations/tidemark/asset-groups/access_log/lineage")
    for name in ("ingested", "compacted", "checkpointed", "index_text", "index_status", "collected"):
        expect(page.get_by_text(name, exact=True).first).to_be_visible()
    page.wait_for_timeout(1_500)  # wait until the animation of the graph has ended
    picture(page, tmp_path, "asset-graph")

    page.goto(f"{site.url}/assets/access_log/compacted?view=partitions&partition={WINDOW}")
    for metric in ("rows_in", "rows_out", "splits_in", "splits_out", "bytes_in", "bytes_out", "requests_put"):
        expect(page.get_by_text(metric, exact=True).first).to_be_visible()
    picture(page, tmp_path, "materialized-asset")

    page.goto(f"{site.url}/assets/access_log/compacted?view=checks")
    expect(page.get_by_text("mc_merges").first).to_be_visible()
    page.wait_for_timeout(500)
    picture(page, tmp_path, "asset-checks")

    page.goto(f"{site.url}/assets/report/written")
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="/tidemark/report").click()
    report = opened.value
    expect(report).to_have_title("Tidemark report")
    assert report.locator("table.overview tr").nth(1).locator("td").first.inner_text() == "access_log"
    report.close()


def test_a_backfill_is_launched_cancelled_and_resumed_by_clicks_names_the_bad_window_and_is_plotted(
    site: Site, page: Page, tmp_path: Path
) -> None:
    starts = _full_windows(site.midnight)
    bad = starts[2]
    bad_name = partition_key(int(bad.timestamp()))
    file = halve_split(Table.open("warehouse/ticks"), int(bad.timestamp()))

    silent = site.folder / "silent"
    silent.touch()
    first = launch(site, page)
    progress(page, of=WINDOWS, succeeded=WINDOWS - PER_DAY, failed=0)  # the runs of empty days start no Java
    while not (site.folder / "begun").exists():
        time.sleep(0.1)
    picture(page, tmp_path, "backfill", height=420)
    page.get_by_role("button").filter(has=page.get_by_role("img", name="expand_more")).click()
    page.get_by_role("menuitem", name="Cancel backfill").click()
    page.get_by_role("button", name="Cancel backfill").click()
    status(page, "Canceled")
    silent.unlink()
    assert runs(site, first) == ["SUCCESS"] * (DAYS - 1) + ["CANCELED"]
    (lease,) = stored_leases(Table.open("warehouse/ticks").store)
    assert lease.record is not None
    assert lease.record.expires_at_ms == RELEASED_MS
    assert len(Table.open("warehouse/ticks").snapshot.splits) == 2 * len(starts)
    cancelled = site.javas()

    second = launch(site, page, only_missing=True)
    status(page, "Failed")
    progress(page, of=PER_DAY, succeeded=PER_DAY - 1, failed=1)
    assert runs(site, second) == ["FAILURE"]
    assert site.javas() == cancelled + 1
    assert len(Table.open("warehouse/ticks").snapshot.splits) == len(starts) + 1
    page.goto(f"{site.url}/assets/ticks/compacted?view=partitions&status=FAILED")
    expect(page.get_by_text(bad_name, exact=True).first).to_be_visible()
    page.goto(f"{site.url}/runs/{runs_of(site, second)[0].run_id}")
    expect(page.get_by_text(f"windows {bad_name}").first).to_be_visible()

    repair(file)
    third = launch(site, page, only_missing=True)  # one window is a run, not a backfill
    assert ended(site, third) == "SUCCESS"
    assert site.javas() == cancelled + 2
    assert len(Table.open("warehouse/ticks").snapshot.splits) == len(starts)

    fourth = launch(site, page)  # the same backfill again: no work is left, and the backfill still succeeds
    status(page, "Succeeded")
    progress(page, of=WINDOWS, succeeded=WINDOWS, failed=0)
    assert runs(site, fourth) == ["SUCCESS"] * DAYS
    assert site.javas() == cancelled + 2
    plots(site, page, tmp_path)


def plots(site: Site, page: Page, folder: Path) -> None:
    """Check that the plots over partitions show the rows of each window.

    Also check that the picture contains a line.
    """
    answers: list[Any] = []
    page.on(
        "response",
        lambda answer: (
            answers.append(answer.json())
            if (answer.request.post_data_json or {}).get("operationName") == "AssetPartitionEventsQuery"
            else None
        ),
    )
    page.goto(f"{site.url}/assets/ticks/compacted")
    page.get_by_role("button", name="Plots").click()
    plot = page.locator("xpath=//*[text()='rows_out']/following::canvas[1]")
    expect(plot).to_be_visible()
    page.get_by_text("bytes_in", exact=True).evaluate("title => title.scrollIntoView()")
    page.wait_for_timeout(1_500)  # wait until the chart shows its line
    shown = {
        each["partition"]: {entry["label"]: entry.get("intValue") for entry in each["metadataEntries"]}
        for each in answers[-1]["data"]["assetNodeOrError"]["latestMaterializationByPartition"]
        if each
    }
    splits = {add.windowStart: add for add in Table.open("warehouse/ticks").snapshot.splits.values()}
    for number, start in enumerate(_full_windows(site.midnight), 1):
        window = int(start.timestamp())
        of_window = shown[partition_key(window)]
        assert (of_window["rows_out"], of_window["splits_in"], of_window["splits_out"]) == (2 * number, 2, 1)
        assert of_window["bytes_out"] == splits[window].size
    assert {each["rows_out"] for each in shown.values()} == {0, *range(2, 18, 2)}
    assert line_pixels(plot) > 200
    picture(page, folder, "asset-plots")


def line_pixels(plot: Locator) -> int:
    """Return the number of pixels of a plot that are neither gray nor transparent."""
    code = """canvas => {
        const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data
        let found = 0
        for (let i = 0; i < data.length; i += 4)
            if (data[i + 3] > 128 && data[i + 2] - data[i] > 60) found++
        return found
    }"""
    return int(plot.evaluate(code))


def launch(site: Site, page: Page, *, only_missing: bool = False) -> str:
    """Launch a backfill of all whole days as a user does, open its page, and return its ID.

    For a single window, Dagster makes a run. In that case, return the ID of the run.
    """
    page.goto(f"{site.url}/assets/ticks/compacted")
    page.get_by_role("button", name="Materialize").first.click()
    dialog = page.get_by_role("dialog")
    dialog.locator("input[type=text]").first.fill(site.range())
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text(f"{WINDOWS:,} partitions")
    if only_missing:
        dialog.get_by_text("Backfill only failed and missing").click()
    dialog.get_by_role("button", name="Launch").click()
    page.get_by_text("View", exact=True).click()
    page.wait_for_url("**/runs/**")
    return page.url.rpartition("/")[2].partition("?")[0]


def progress(page: Page, *, of: int, succeeded: int, failed: int) -> None:
    """Wait until the page of a backfill shows these numbers of succeeded and failed partitions."""
    of_all, done, bad = (f"{each:,}".replace(",", ",?") for each in (of, succeeded, failed))
    columns = re.compile(rf"completed{of_all}[\d,]+?{done}{bad}$")
    expect(page.locator("body")).to_contain_text(columns, timeout=PATIENCE_OF_DAYS_MS)


def status(page: Page, name: str) -> None:
    """Wait until the page of a backfill shows this final status."""
    expect(page.get_by_text("Status", exact=True).first.locator("xpath=..")).to_contain_text(
        name, timeout=PATIENCE_OF_DAYS_MS
    )


def runs_of(site: Site, backfill_id: str) -> list[Any]:
    """Return the runs of a backfill, oldest first."""
    from dagster import RunsFilter

    with open_instance(home(site.folder, {})) as instance:
        return list(reversed(instance.get_runs(RunsFilter(tags={"dagster/backfill": backfill_id}))))


def runs(site: Site, backfill_id: str) -> list[str]:
    """Return the final statuses of the runs of a backfill, oldest first."""
    return [each.status.value for each in runs_of(site, backfill_id)]


def ended(site: Site, run_id: str) -> str:
    """Wait until a run has ended, and return its status."""
    while True:
        with open_instance(home(site.folder, {})) as instance:
            run = instance.get_run_by_id(run_id)
        assert run is not None
        if run.is_finished:
            return str(run.status.value)
        time.sleep(0.5)
