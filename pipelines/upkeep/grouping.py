"""The same step of several small tables is one run: a hundred of them cost one start, and not a hundred.

What is urgent shares no run with what is not, and what is large has a run of its own, so that nobody waits for another.
In a run each table's step fails by itself (decision 0168).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dagster import RunRequest

from assets.granted import bytes_tag
from assets.launcher import JobName
from pipelines.runs.requests import run_request
from pipelines.upkeep.wanted import Wanted
from storage_core.wording import counted

SMALL_BYTES = 64 * 2**20
"""What reads more has a run of its own."""

MOST_BYTES = 256 * 2**20
MOST_TABLES = 100
"""One run reads so much at most, and is of so many tables."""

# Of what storage does not say before how much it reads: what an item is taken for. The other steps read the log only.
_ITEM_BYTES: Mapping[JobName, int] = {"merge": 8 * 2**20, "sort": 8 * 2**20, "catch_up": 8 * 2**20}
_OF_THE_LOG = 2**16

Group = list[Wanted]
"""What one run does: one step of one table, or the same step of several."""


def grouped(chosen: Iterable[Wanted], *, most_tables: int = MOST_TABLES) -> list[Group]:
    """Return what is chosen, the most urgent first, as runs, in the order of the most urgent of each."""
    groups: list[Group] = []
    open_groups: dict[object, Group] = {}
    for each in chosen:
        if each.is_alone or not _is_small(each):
            groups.append([each])
            continue
        kind = (each.job, each.is_urgent, each.declaration.upkeep.priority, each.partition)
        group = open_groups.get(kind)
        if group is None or len(group) >= most_tables or sum(map(_bytes, [*group, each])) > MOST_BYTES:
            groups.append(group := [])
            open_groups[kind] = group
        group.append(each)
    return groups


def request_of(group: Sequence[Wanted], *, prefix: str = "") -> RunRequest:
    """Return the request of the run. The name of its job begins with the `prefix`."""
    first = group[0]
    names = [each.declaration.name for each in group]
    is_one = len(group) == 1
    request = run_request(
        first.job,
        names[0] if is_one else names,
        [key for each in group for key in each.assets],
        first.due.reason if is_one else f"{counted(len(group), 'table')}, {names[0]}: {first.due.reason}",
        is_late=first.is_late,
        partition=first.partition,
        table_priority=first.declaration.upkeep.priority,
    )
    granted = {each.declaration.name: each.granted_bytes for each in group if each.granted_bytes is not None}
    tags = {**request.tags, **bytes_tag(granted)}
    return request.with_replaced_attrs(job_name=f"{prefix}{first.job}", tags=tags)


def _is_small(wanted: Wanted) -> bool:
    """Not what lands from Delta, whose Spark is another one than that of the other tables."""
    landing = wanted.declaration.landing
    is_delta = wanted.job == "ingest" and landing is not None and landing.is_delta
    return _bytes(wanted) <= SMALL_BYTES and not is_delta


def _bytes(wanted: Wanted) -> int:
    return wanted.due.bytes or wanted.due.items * _ITEM_BYTES.get(wanted.job, _OF_THE_LOG)
