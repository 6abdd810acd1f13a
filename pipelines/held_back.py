"""What the upkeep of tables waits for, as `tidemark status` says it: quiet hours, or bytes that others used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipelines.budgets import ALL, Limit, quiet, read_upkeep_of_all
from pipelines.failed_runs import history_folder
from pipelines.table_status import Looked
from storage_core.declaration import TableDeclaration
from storage_core.declaration_upkeep import UpkeepDeclaration, UpkeepOfAllDeclaration

_NOT_HELD = frozenset({"ingest", "merge", "collect", "wait"})
"""Fresh data, and what schedules request: no budget holds them back."""


def held_back(
    found: Sequence[Looked], declared: Sequence[TableDeclaration], root: Path, *, now_ms: int
) -> dict[str, str]:
    """Return by name what tables wait for that owe something. Reads Dagster's history where bytes are bounded."""
    of_all, own = read_upkeep_of_all(root), {each.name: each.upkeep for each in declared}
    owing = [each for each in found if each.place.name in own and _owes(each)]
    budgets = [of_all, *(own[each.place.name] for each in owing)]
    is_counted = owing and any(each.bytes_per_hour is not None for each in budgets)
    spent = _spent(root, now_ms) if is_counted else {}
    waits = {
        name: quiet(name, own[name], of_all, now_ms) or _limited(each, own[name], of_all, spent)
        for each in owing
        for name in [each.place.name]
    }
    return {name: why for name, why in waits.items() if why}


def _owes(found: Looked) -> bool:
    return found.status is not None and any(step not in _NOT_HELD for step in found.status.owed)


def _limited(
    found: Looked, own: UpkeepDeclaration, of_all: UpkeepOfAllDeclaration, spent: Mapping[str, int]
) -> str | None:
    """The budget whose bytes are used, so that the next compaction of the table waits."""
    name, owed = found.place.name, found.status.next_run.read_bytes if found.status else 0
    counts = ((name, own.bytes_per_hour, spent.get(name, 0)), (ALL, of_all.bytes_per_hour, sum(spent.values())))
    limits = (Limit(of, most, used) for of, most, used in counts if most is not None)
    return next((str(each) for each in limits if each.defers(owed)), None)


def _spent(root: Path, now_ms: int) -> Mapping[str, int]:
    folder = history_folder(root)
    if folder is None:
        return {}
    from pipelines.instance import open_instance
    from pipelines.spent import spent_bytes

    with open_instance(folder) as instance:
        return spent_bytes(instance, now_ms=now_ms)
