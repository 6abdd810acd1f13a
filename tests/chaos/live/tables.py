"""The folder of a trial: four tables, a raw log, and a receiver of alerts, declared as a user declares them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pipelines.instance import SETTINGS

RAW_LOG = "sensors"
TABLES = ("clicks", "visits", "accounts", "readings")
LANDED = ("clicks", "visits")
"""The tables that ingest landed files. Late rows of `visits` go to its quarantine."""

_WINDOWED = "columns: {id: string!, time: timestamp!, batch: long!}\ntime_column: time\nsort_schema: id|timestamp/V2\n"
_DECLARED = {
    "tables/clicks.yaml": _WINDOWED + "window: 15m\nlanding: {uri: landing/clicks, format: ndjson}\n",
    "tables/visits.yaml": _WINDOWED
    + """window: 1h
landing: {uri: landing/visits, format: ndjson}
late_data: {policy: quarantine, acceptance_window: 1h}
indexes:
  - {name: words, kind: fulltext, columns: [id]}
  - {name: batches, kind: bitmap, columns: [batch]}
""",
    "tables/accounts.yaml": "columns: {id: string!, n: long!}\nprimary_key: id\nidle_after: 15s\n",
    "tables/readings.yaml": "columns: {id: string!, n: long!}\n",
    f"raw_logs/{RAW_LOG}.yaml": "stores: [raw/main, {uri: raw/copy, mandatory: false}]\ntables: [readings]\n"
    'closed_after: 3s\nschedule: "* * * * *"\n',
    "alerts.yaml": 'receivers: [{command: [sh, -c, "{ cat; echo; } >> alerts.ndjson"]}]\n',
}

_SHORTER: Mapping[str, tuple[int, int]] = {
    "poll_interval_seconds": (30, 5),
    "start_timeout_seconds": (180, 90),
    "free_slots_after_run_end_seconds": (60, 10),
    "user_code_failure_retry_delay": (30, 5),
}
"""The seconds that Dagster waits after a kill.

Each setting has a value for the product and a value for a short trial.
"""


def declare(folder: Path, often: str, *, is_short: bool) -> None:
    """Write the declarations. `often` is the cron line of collections, checkpoints and raw-log maintenance.

    A short trial has shorter intervals. The test sets these intervals in files that a user can also write.
    """
    if is_short:
        (folder / "automation.yaml").write_text("interval: 10s\n", encoding="utf-8")
        (folder / ".dagster").mkdir()
        (folder / ".dagster" / SETTINGS.name).write_text(_shorter_settings(), encoding="utf-8")
    for name, text in _DECLARED.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        about = "" if name == "alerts.yaml" else f"name: {file.stem}\n"
        if file.parent.name == "tables":
            start = "partitions: {start: 2026-01-01T00:00}\n" if "window:" in text else ""
            about += f'uri: warehouse/{file.stem}\nschedule: {{collect: "{often}", checkpoint: "{often}"}}\n{start}'
        elif about:
            about += f'upkeep_schedule: "{often}"\n'
        file.write_text(about + text, encoding="utf-8")
    for name in LANDED:
        (folder / "landing" / name).mkdir(parents=True)


def _shorter_settings() -> str:
    """Return the Dagster settings of Tidemark, with the shorter intervals of a trial."""
    text = SETTINGS.read_text(encoding="utf-8")
    for name, (product, trial) in _SHORTER.items():
        assert text.count(f"{name}: {product}\n") == 1
        text = text.replace(f"{name}: {product}\n", f"{name}: {trial}\n")
    return text
