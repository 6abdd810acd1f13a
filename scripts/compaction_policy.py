"""Print `docs/compaction-policy.md`, which contains a simulation of the compaction policy over one day.

python -m scripts.compaction_policy > docs/compaction-policy.md
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace

from pipelines.commands.policy_simulation import MINUTES_PER_DAY, Ingestion, Simulation, simulate
from storage_core.compact.work import MOST_INPUTS
from storage_core.data.settings.layout import CompactionSettings

MB = 1_000_000
FULL = Ingestion(rates=[1000] * MINUTES_PER_DAY, split_bytes=MB, split_rows=2000)
NARROW = replace(FULL, split_rows=10_000)
CASES = (
    ("1,000 splits a minute of 1 MB and 2,000 rows, windows of 15 min", FULL),
    ("the same, a compaction every 15 min", replace(FULL, every_minutes=15)),
    ("the same hourly, 1 % of the splits 45 min late", replace(FULL, late_share=0.01)),
    ("the same hourly, 20 % late", replace(FULL, late_share=0.2)),
    ("the same hourly, of 10,000 rows each", NARROW),
    ("of 10,000 rows each, windows of 3 min", replace(NARROW, window_seconds=180)),
    ("of 10,000 rows each, run_rows of 2^28", replace(NARROW, settings=CompactionSettings(run_rows=2**28))),
    ("1,000 a minute of 10 MB and 20,000 rows", replace(FULL, split_bytes=10 * MB, split_rows=20_000)),
    (
        "the same, windows of 1 min",
        replace(FULL, split_bytes=10 * MB, split_rows=20_000, window_seconds=60),
    ),
    ("1,000 a minute of 10 kB", replace(FULL, split_bytes=10_000, split_rows=20)),
    ("10 a minute of 1 MB", replace(FULL, rates=[10] * MINUTES_PER_DAY)),
    ("10 a minute of 1 MB, 1 % late", replace(FULL, rates=[10] * MINUTES_PER_DAY, late_share=0.01)),
    ("1 a minute of 1 MB, windows of 1 h", replace(FULL, rates=[1] * MINUTES_PER_DAY, window_seconds=3600)),
    ("2,000 a minute of 1 MB and 2,000 rows, a compaction hourly", replace(FULL, rates=[2000] * MINUTES_PER_DAY)),
    ("the same, a compaction every 15 min", replace(FULL, rates=[2000] * MINUTES_PER_DAY, every_minutes=15)),
)

HEAD = f"""# The compaction policy over a day

How do splits and bytes develop over a day under the compaction policy? `python -m scripts.compaction_policy` simulates
the day and prints this page. Nothing here was timed, so the same release prints the same page. The rules are those of
scheduled runs (decision 0015). Ten to twelve splits of one [merge level](concepts/glossary.md) become one split, and
cold windows become one sorted run. To simulate the load of your own table, use `tidemark simulate-policy`. The target
size is 256 MiB. The simulation assumes that a compaction writes as many bytes as it reads.

One run replaces at most {MOST_INPUTS:,} splits, like a scheduled run. If more splits arrive between two runs, splits
pile up until fewer arrive. Compactions then have to run more often: see the last two cases.

One task reads at most 256 splits, 64 target sizes and `run_rows` rows, by default 2^25 = 33.6 million. A larger window
becomes one run in several parts, with one task per part.
"""


def main() -> int:
    """Print the page."""
    sys.stdout.write("\n".join(_page()) + "\n")
    return 0


def _page() -> Iterator[str]:
    yield HEAD
    yield (
        "| a day of | written per byte | most splits live | splits per window at the end (least, median, most) | "
        "finalized windows | runs after the last arrival | converged |"
    )
    yield "|---|---|---|---|---|---|---|"
    for name, load in CASES:
        yield _row(name, load, simulate(load))
    yield "\n## Splits over time\n\nThis table shows each run of the first case above.\n"
    yield "| minute | live before | live after | most in a window before | compactions | GB written |"
    yield "|---|---|---|---|---|---|"
    for each in simulate(FULL).rounds:
        yield (
            f"| {each.minute:,} | {each.live_before:,} | {each.live_after:,} | {each.most_in_window:,} | "
            f"{each.merges:,} | {each.bytes_written / 1e9:.1f} |"
        )


def _row(name: str, load: Ingestion, done: Simulation) -> str:
    counts = done.splits_per_window
    spread = f"{min(counts):,}, {statistics.median(counts):,.0f}, {max(counts):,}"
    live = max(each.live_before for each in done.rounds)
    after = sum(each.minute > len(load.rates) for each in done.rounds)
    return (
        f"| {name} | {done.write_amplification:.2f} | {live:,} | {spread} "
        f"| {done.finalized_windows} of {len(counts)} | "
        f"{after} | {'yes' if done.converged else 'NO'} |"
    )


if __name__ == "__main__":
    sys.exit(main())
