"""Many declared tables: every tenth is keyed, the others are windowed and have landing locations."""

from __future__ import annotations

from pathlib import Path

from storage_core.change.declaration import TableDeclaration

_KEYED = "columns: {id: string!, n: int}\nprimary_key: id\n"
_WINDOWED = """columns: {timestamp: timestamp!, status: int, message: string}
time_column: timestamp
window: 15m
sort_schema: status|timestamp/V2
"""


def declare_tables(root: Path, count: int) -> Path:
    """Write declarations whose partitions begin on different days. Return their folder."""
    folder = root / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        name = f"t{number:03}"
        start = f"partitions: {{start: 2026-01-{1 + number % 28:02}T00:00}}\n"
        landing = f"landing: {{uri: landing/{name}, format: ndjson}}\n"
        kind = _KEYED if number % 10 == 0 else _WINDOWED + landing + start
        (folder / f"{name}.yaml").write_text(f"name: {name}\nuri: warehouse/{name}\n{kind}", encoding="utf-8")
    return folder


def land_line(declaration: TableDeclaration) -> None:
    """Land one row in a new file."""
    if declaration.landing is None:
        raise ValueError(f"{declaration.name} has no landing location")
    folder = Path(declaration.landing.uri)
    folder.mkdir(parents=True, exist_ok=True)
    line = '{"timestamp": "2026-02-01T00:00:00Z", "status": 1, "message": "m"}\n'
    (folder / f"{len(list(folder.iterdir()))}.ndjson").write_text(line, encoding="utf-8")
