"""The Dagster UI as a person sees it: a real server, a real browser, the assets, and what a materialization shows."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conftest import Land

pytestmark = [pytest.mark.browser, pytest.mark.spark, pytest.mark.dagster]

WINDOW = "2015-05-17T10:00"
PATIENCE_MS = 240_000
END_SECONDS = 60


@pytest.fixture
def server(checkout: Path, land: Land, free_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The UI over an instance in which one window was ingested and compacted by the commands of the README."""
    history = checkout / ".dagster"
    history.mkdir()
    (history / "dagster.yaml").symlink_to(checkout / "dagster.yaml")
    monkeypatch.setenv("DAGSTER_HOME", str(history))
    land("first.log", 0, 150)
    land("second.log", 150, 300, more=("not a line of the log",))
    for step in ("ingested", "compacted"):
        run_dagster("asset", "materialize", "--select", f"access_log/{step}", "--partition", WINDOW)
    command = [
        program("dagster-webserver"),
        "-w",
        "workspace.yaml",
        "-h",
        "127.0.0.1",
        "-p",
        f"{free_port}",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(free_port, process)
            yield f"http://127.0.0.1:{free_port}"
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
            process.kill()


def test_the_ui_shows_the_asset_graph_and_a_materialization_with_its_metrics_and_checks(
    server: str, browser: Browser, tmp_path: Path
) -> None:
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    page.set_default_timeout(PATIENCE_MS)

    page.goto(f"{server}/locations/tidemark/asset-groups/access_log/lineage")
    for name in ("ingested", "compacted", "checkpointed", "index_text", "index_status", "collected"):
        expect(page.get_by_text(name, exact=True).first).to_be_visible(timeout=PATIENCE_MS)
    picture(page, tmp_path, "asset-graph")

    page.goto(f"{server}/assets/access_log/compacted?view=partitions&partition={WINDOW}")
    for metric in (
        "rows_in",
        "rows_out",
        "splits_in",
        "splits_out",
        "bytes_in",
        "bytes_out",
        "requests_put",
        "seconds",
    ):
        expect(page.get_by_text(metric, exact=True).first).to_be_visible(timeout=PATIENCE_MS)
    picture(page, tmp_path, "materialized-asset")

    page.goto(f"{server}/assets/access_log/compacted?view=checks")
    expect(page.get_by_text("mc_merges").first).to_be_visible(timeout=PATIENCE_MS)
    picture(page, tmp_path, "asset-checks")


def picture(page: Page, folder: Path, name: str) -> None:
    """Take a picture, for whoever looks into a failure; it must not be blank."""
    page.wait_for_timeout(1_500)  # the graph moves into place
    taken = folder / f"{name}.png"
    page.screenshot(path=str(taken))
    assert taken.stat().st_size > 20_000


def run_dagster(*arguments: str) -> None:
    command = [program("dagster"), *arguments, "-m", "pipelines.definitions"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]


def program(name: str) -> str:
    """A program of the environment that runs the tests."""
    return str(Path(sys.executable).with_name(name))


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Return as soon as the server accepts connections."""
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    raise AssertionError(f"the server ended with {process.returncode}")
