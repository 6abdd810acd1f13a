"""What the compaction policy would make of a day: `simulate-policy`. Reads and writes nothing."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Json
from pipelines.commands.output import cell, number

if TYPE_CHECKING:
    from pipelines.commands.policy_simulation import Simulation

MOST_RUNS_BEHIND = 2
"""How many runs it may take to do what arrives between two; a day of more piles up for minutes of simulation."""

Rate = Annotated[
    int, typer.Option(metavar="SPLITS", min=1, max=10_000, help="Splits that arrive per minute, for one day.")
]
Size = Annotated[int, typer.Option(metavar="BYTES", min=1, max=2**40, help="Size of one of them.")]
Rows = Annotated[
    int, typer.Option(metavar="ROWS", min=1, max=2**40, help="Rows in one of them; a merge reads a bounded number.")
]
Length = Annotated[str, typer.Option("--window", metavar="DURATION", help="Length of a window, such as 15m.")]
Target = Annotated[int, typer.Option(metavar="BYTES", min=1, max=2**40, help="Size that a merge aims at.")]
Late = Annotated[
    float, typer.Option(metavar="SHARE", min=0, max=1, help="Share of the splits that are 45 minutes late, 0 to 1.")
]
Every = Annotated[int, typer.Option(metavar="MINUTES", min=1, max=1440, help="How often a compaction runs.")]


def simulate_policy(
    *,
    rate: Rate = 1000,
    size: Size = 1_000_000,
    rows: Rows = 10_000,
    window: Length = "15m",
    target: Target = 256 * 2**20,
    late: Late = 0.0,
    every: Every = 60,
    as_json: Json = False,
) -> None:
    """Say what compactions would make of a day of rows.

    As scheduled runs make them: one line per run, then the metrics.
    """
    from pipelines.commands.policy_simulation import MINUTES_PER_DAY, Ingestion, simulate
    from storage_core.compaction.merges import MOST_INPUTS
    from storage_core.errors import InvalidInput
    from storage_core.rows.windows import parse_duration, validate_duration

    if rate * every > MOST_RUNS_BEHIND * MOST_INPUTS:
        raise InvalidInput(
            f"--rate {rate} with --every {every} is {rate * every} splits from one compaction to the next, of which it "
            f"replaces {MOST_INPUTS}; simulated are at most {MOST_RUNS_BEHIND * MOST_INPUTS}: let it run more often"
        )
    load = Ingestion(
        rates=[rate] * MINUTES_PER_DAY,
        split_bytes=size,
        split_rows=rows,
        window_seconds=validate_duration(parse_duration(window), coarse=True),
        target_bytes=target,
        late_share=late,
        every_minutes=every,
    )
    _show(simulate(load), as_json=as_json)


def _show(done: Simulation, *, as_json: bool) -> None:
    from pipelines.commands.policy_simulation import Round

    shown = {each.name: number for each in fields(Round)}
    output.records(map(asdict, done.rounds), shown, as_json=as_json, nothing="no compaction ran")
    counts = done.splits_per_window
    summary = {
        "converged": done.converged,
        "write_amplification": round(done.write_amplification, 2),
        "bytes_ingested": done.bytes_ingested,
        "windows": len(counts),
        "finalized_windows": done.finalized_windows,
        "least_in_window": min(counts, default=0),
        "most_in_window": max(counts, default=0),
    }
    if as_json:
        output.json_line({"summary": summary})
    else:
        output.line(
            ", ".join(
                f"{name} {cell(value) if isinstance(value, bool) else number(value)}" for name, value in summary.items()
            )
        )
