"""What the upkeep of tables waits for, as `tidemark status` says it: quiet hours, bytes that others used, or a start.

Nothing starts it where automation is off, or nobody switched on the upkeep sensor (`pipelines.automation`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pipelines.automation import UPKEEP_SENSOR, Automation
from pipelines.runs.failed import history_folder
from pipelines.status.table_status import Looked
from pipelines.upkeep.budgets import ALL, Limit, quiet, read_upkeep_of_all
from storage_core.declaration import TableDeclaration
from storage_core.declaration_automation import read_automation
from storage_core.declaration_upkeep import UpkeepDeclaration, UpkeepOfAllDeclaration

_NOT_HELD = frozenset({"ingest", "merge", "collect", "wait"})
"""Fresh data, and what schedules request: no budget holds them back."""
_NOT_STARTED_BY_IT = frozenset({"collect", "wait"})
"""What the upkeep sensor requests no run for."""
_OFF = "automation is off, so no sensor starts it; declare `automation: on` and reload the definitions"


def held_back(
    found: Sequence[Looked], declared: Sequence[TableDeclaration], root: Path, *, now_ms: int
) -> dict[str, str]:
    """Return by name what tables wait for that owe something.

    Reads Dagster's history for bytes used, and for whether the sensor is on.
    """
    of_all, own = read_upkeep_of_all(root), {each.name: each.upkeep for each in declared}
    owing = [each for each in found if each.place.name in own and _owes(each, _NOT_HELD)]
    budgets = [of_all, *(own[each.place.name] for each in owing)]
    is_counted = owing and any(each.bytes_per_hour is not None for each in budgets)
    spent = _spent(root, now_ms) if is_counted else {}
    waits = {
        name: quiet(name, own[name], of_all, now_ms) or _limited(each, own[name], of_all, spent)
        for each in owing
        for name in [each.place.name]
    }
    return {name: why for name, why in waits.items() if why} | _not_started(found, declared, root)


def _owes(found: Looked, except_for: Collection[str]) -> bool:
    return found.status is not None and any(step not in except_for for step in found.status.owed)


def _not_started(found: Sequence[Looked], declared: Sequence[TableDeclaration], root: Path) -> dict[str, str]:
    """Why nothing starts the upkeep of tables that owe some."""
    automation = Automation(declared, of_all=read_automation(root))
    owing = {each.place.name for each in found if _owes(each, _NOT_STARTED_BY_IT)}
    switches = {each.name: automation.of(each) for each in declared if each.name in owing}
    if all(each == "off" for each in switches.values()) or _sensor_is_on(root, automation):
        return {name: _OFF for name, switch in switches.items() if switch == "off"}
    declare = "" if automation.starts_by_itself else ", or declare `automation: on` and reload the definitions"
    why = f"no sensor is on here that starts it; switch on {UPKEEP_SENSOR} in `tidemark ui`{declare}"
    return {name: _OFF if switch == "off" else why for name, switch in switches.items()}


def _sensor_is_on(root: Path, automation: Automation) -> bool:
    """Whether somebody switched the upkeep sensor on; where nobody touched it, whether it starts by itself."""
    folder = history_folder(root)
    if folder is None:
        return automation.starts_by_itself
    from dagster._core.scheduler.instigation import InstigatorStatus, InstigatorType

    from pipelines.instance import open_instance

    with open_instance(folder) as instance:
        known = instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
    found = {each.status for each in known if each.instigator_name == UPKEEP_SENSOR}
    return InstigatorStatus.RUNNING in found or (automation.starts_by_itself and InstigatorStatus.STOPPED not in found)


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
    from pipelines.runs.spent import spent_bytes

    with open_instance(folder) as instance:
        return spent_bytes(instance, now_ms=now_ms)
