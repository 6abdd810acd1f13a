"""A declared table whose landed files drift: new fields, values of other types, and lines that are not valid."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.spark.spark import Spark
from storage_core.change.declaration import load
from storage_core.data.steps import Ingest, RetryQuarantine
from storage_core.log.job_run import JobReport, run
from storage_core.maintain.quarantine import pending_entries
from storage_core.write.ingest.drift import QUARANTINE
from tidemark import Table

COLUMNS = "{id: long, n: int, f: float, x: 'decimal(5,2)', extra: string}"


@dataclass
class Project:
    """A declared table and its landing location."""

    root: Path
    settings: str = "format: ndjson"
    columns: str = COLUMNS

    def declare(self, settings: str, columns: str | None = None) -> Project:
        self.settings, self.columns = settings, columns or self.columns
        for folder in ("landing", "tables"):
            (self.root / folder).mkdir(exist_ok=True)
        self.file.write_text(
            f"name: t\nuri: {self.root}/t\ncolumns: {self.columns}\nlanding: {{uri: {self.root}/landing, {settings}}}\n"
        )
        return self

    @property
    def file(self) -> Path:
        return self.root / "tables" / "t.yaml"

    @property
    def may_drift(self) -> bool:
        """Whether files may add or widen columns, or have fields that are not columns."""
        spec = load(self.file).landing_spec()
        return spec is not None and spec.drift != QUARANTINE

    @property
    def uri(self) -> str:
        return str(self.root / "t")

    def land(self, name: str, *rows: Mapping[str, object] | str) -> None:
        lines = [each if isinstance(each, str) else json.dumps(each) for each in rows]
        (self.root / "landing" / name).write_text("".join(f"{each}\n" for each in lines))

    def ingest(self) -> JobReport:
        return run(Ingest(table_uri=self.uri, declaration=str(self.file)), Spark())

    def retry(self) -> JobReport:
        return run(RetryQuarantine(table_uri=self.uri, declaration=str(self.file)), Spark())

    def rows(self, *names: str) -> list[tuple[Any, ...]]:
        found = Table.open(self.uri).scan(["id", *names]).to_arrow().sort_by("id")
        return [tuple(each.values()) for each in found.to_pylist()]

    def types(self) -> dict[str, str]:
        return {each.name: str(each.type) for each in Table.open(self.uri).schema}

    def reasons(self) -> list[str]:
        table = Table.open(self.uri)
        entries = [each.entry for each in pending_entries(table.store, table.snapshot)]
        return [str(line["reason"]) for entry in entries for line in entry.rejected]  # type: ignore[union-attr]

    def rejected_texts(self) -> list[str]:
        table = Table.open(self.uri)
        entries = [each.entry for each in pending_entries(table.store, table.snapshot)]
        return [str(line["text"]) for entry in entries for line in entry.rejected]  # type: ignore[union-attr]
