"""The output of the demo.

The output consists of a headline per step, the metrics of materializations, and tables with answers.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable


class Narrator:
    """Prints the output of the demo. All metrics come from the asset metadata that Dagster stores."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._step = 0

    def step(self, title: str, why: str) -> None:
        """Begin a numbered step and print its purpose."""
        self._step += 1
        self._console.print(f"\n[bold cyan]{self._step}. {escape(title)}[/]\n   [dim]{escape(why)}[/]")

    def say(self, text: str) -> None:
        """Print one line of the current step."""
        self._console.print(f"   {escape(text)}", highlight=True, soft_wrap=True)

    def materialized(self, asset: str, metrics: Mapping[str, object]) -> None:
        """Print the metrics of a materialization of the asset."""
        done = str(metrics["status"]).replace("_", " ")
        seconds = _number(metrics["seconds"])
        parts = [f"version {metrics['version']}"] if metrics["version"] else []  # a raw log has no version
        for name in ("rows", "splits", "bytes"):
            before, after = (_number(metrics[f"{name}_{side}"]) for side in ("in", "out"))
            if before or after:
                parts.append(f"{name} {before:,.0f} -> {after:,.0f}")
        if _number(metrics["rows_out"]) and seconds:
            parts.append(f"{_number(metrics['rows_out']) / seconds:,.0f} rows/s")
        requests = sum(_number(value) for name, value in metrics.items() if name.startswith("requests_"))
        parts += [f"{requests:,.0f} requests", f"{seconds:.1f} s"]
        did = f": {done}," if done == "nothing to do" else f" {done}:"
        self._console.print(f"   [green]{escape(asset)}[/]{did} {escape(', '.join(parts))}", soft_wrap=True)

    def answer(self, question: str, call: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Print a question, the call that answers the question, and the answer."""
        self._console.print(f"\n[bold]{escape(question)}[/]\n[dim]{escape(call)}[/]")
        table = RichTable(show_edge=False, pad_edge=False)
        for name in rows[0] if rows else ("(no rows)",):
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*(escape(_text(value)) for value in row.values()))
        self._console.print(table)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _text(value: object) -> str:
    match value:
        case float():
            return f"{value:.3f}"
        case dt.datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}"
        case int():
            return f"{value:,}" if abs(value) > 9999 else str(value)
        case _:
            return str(value)
