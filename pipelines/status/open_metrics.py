"""How all tables are, as OpenMetrics text for scrapers (decision 0164; the fields are a contract, `docs/spec.md`).

Labels are names of tables, indexes and steps. No place is among them, so nothing that somebody writes into one is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pipelines.runs.failed import LastFailure
from pipelines.status.table_status import Looked, State
from storage_core.foreign_text import escaped
from storage_core.read.status import Status

Unit = Literal["", "bytes", "seconds"]
Sample = tuple[Mapping[str, str], float | None]


@dataclass(frozen=True, slots=True)
class _Family:
    """One metric: its name without the unit, what it says, and its unit."""

    name: str
    help: str
    unit: Unit = ""
    kind: Literal["gauge", "stateset"] = "gauge"


_OF_A_TABLE: Final = (
    _Family("table_version", "Version of the transaction log."),
    _Family("table_splits", "Live splits."),
    _Family("table_rows", "Rows of the base."),
    _Family("table_size", "Size of the live splits.", "bytes"),
    _Family("table_committed_timestamp", "When the newest version was committed.", "seconds"),
    _Family("table_newest_row_timestamp", "Time of the newest row, by the time column.", "seconds"),
    _Family("table_rows_came_timestamp", "When the newest rows were committed, or before.", "seconds"),
    _Family("table_freshness", "Declared: how old the newest rows may be.", "seconds"),
    _Family("table_oldest_unmerged", "Age of the oldest record that is not merged.", "seconds"),
    _Family("table_quarantine_entries", "Entries in quarantine, at most 1000."),
    _Family("table_next_run_splits", "Splits that the next scheduled compaction reads."),
    _Family("table_next_run_outputs", "Splits that the next scheduled compaction writes."),
    _Family("table_next_run_read", "What the next scheduled compaction reads.", "bytes"),
    _Family("table_next_run_written", "What the next scheduled compaction writes.", "bytes"),
    _Family("table_freed", "What the retention takes out next.", "bytes"),
)


def metrics_text(found: Iterable[Looked], failures: Mapping[str, LastFailure]) -> str:
    """Return what looks at tables found as OpenMetrics text. Tables must have names that differ."""
    looked = list(found)
    lines = list(_states({each.place.name: each.state_after(failures.get(each.place.name)) for each in looked}))
    values = {each.place.name: _values(each.status) for each in looked if each.status is not None}
    for number, family in enumerate(_OF_A_TABLE):
        lines += _family(family, (({"table": table}, own[number]) for table, own in values.items()))
    lines += _steps(looked)
    lines += _indexes(looked)
    lines += _mirrors(looked)
    lines += _family(
        _Family("last_failure_timestamp", "When a step failed that was not materialized since.", "seconds"),
        (({"table": table, "step": each.step}, each.at / 1000) for table, each in failures.items() if not each.is_over),
    )
    lines += _family(
        _Family("look_requests", "Requests that this look at the table made."),
        (({"table": each.place.name, "kind": kind}, count) for each in looked for kind, count in each.requests.items()),
    )
    return "\n".join([*lines, "# EOF", ""])


def _states(states: Mapping[str, State]) -> Iterator[str]:
    name = "tidemark_table_state"
    samples = (
        ({"table": table, name: each.value}, float(state is each)) for table, state in states.items() for each in State
    )
    yield from _family(_Family("table_state", "Which of these the table is.", kind="stateset"), samples)


def _values(status: Status) -> list[float | None]:
    """One per family of `_OF_A_TABLE`, in its order."""
    run = status.next_run
    return [
        *(status.version, status.splits, status.rows, status.bytes),
        *map(_seconds, (status.committed_at, status.newest_row_at, status.rows_came_at, status.freshness_ms)),
        *(_seconds(status.oldest_unmerged_ms), status.quarantine_entries),
        *(run.splits, run.outputs, run.read_bytes, run.written_bytes, status.freed_bytes),
    ]


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _steps(looked: Iterable[Looked]) -> Iterator[str]:
    owed = [
        ({"table": each.place.name, "step": step}, one)
        for each in looked
        if each.status is not None
        for step, one in each.status.owed.items()
    ]
    yield from _family(
        _Family("owed", "What a step has to do, in its unit."),
        (({**labels, "unit": one.unit}, one.count) for labels, one in owed),
    )
    yield from _family(
        _Family("owed", "About how much a step has to do.", "bytes"), ((labels, one.bytes) for labels, one in owed)
    )


def _indexes(looked: Iterable[Looked]) -> Iterator[str]:
    lags = [
        ({"table": each.place.name, "index": lag.name}, lag)
        for each in looked
        if each.status is not None
        for lag in each.status.indexes
    ]
    rows = _Family("index_uncovered_rows", "Rows that no segment of the index covers.")
    yield from _family(rows, ((labels, lag.rows) for labels, lag in lags))
    versions = _Family("index_lag_versions", "Versions since the watermark of the index.")
    yield from _family(versions, ((labels, lag.versions) for labels, lag in lags))


def _mirrors(looked: Iterable[Looked]) -> Iterator[str]:
    yield from _family(
        _Family("mirror_lag_versions", "Versions that a format which is published does not show."),
        (
            ({"table": each.place.name, "format": name}, count)
            for each in looked
            if each.status is not None
            for name, count in each.status.mirrors.items()
        ),
    )


def _family(family: _Family, samples: Iterable[Sample]) -> Iterator[str]:
    """The lines of one metric; none where it has no sample."""
    known = [(labels, value) for labels, value in samples if value is not None]
    if not known:
        return
    name = "_".join(filter(None, ("tidemark", family.name, family.unit)))
    yield f"# TYPE {name} {family.kind}"
    if family.unit:
        yield f"# UNIT {name} {family.unit}"
    yield f"# HELP {name} {family.help}"
    for labels, value in known:
        shown = ",".join(f'{label}="{_quoted(text)}"' for label, text in labels.items())
        yield f"{name}{{{shown}}} {int(value) if value == int(value) else value}"


def _quoted(text: str) -> str:
    return escaped(text).replace("\\", "\\\\").replace('"', '\\"')
