"""The folder of a trial: four tables, a raw log, and a receiver of alerts, declared as a user declares them."""

from __future__ import annotations

from pathlib import Path

RAW_LOG = "sensors"
TABLES = ("clicks", "visits", "accounts", "readings")
LANDED = ("clicks", "visits")
"""The tables whose rows land in files. Late rows of `visits` go to its quarantine."""

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


def declare(folder: Path, often: str) -> None:
    """Write the declarations. `often` is the cron line of collections, checkpoints and the upkeep of the raw log."""
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
