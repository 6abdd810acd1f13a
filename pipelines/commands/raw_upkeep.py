"""A raw log that is declared, or given by its stores: what its tables lack, healing, collection."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pipelines.commands import output
from pipelines.commands.running import run_job
from pipelines.commands.target import resolve
from storage_core.errors import Corrupt, InvalidInput, Unavailable

if TYPE_CHECKING:
    from jobs.running.distribute_tables import DistributeTables
    from pipelines.raw_logs import DeclaredRawLog
    from storage_core.objectstore.contract import ObjectStore
    from storage_core.raw_log.history import History

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class RawPlaces:
    """The stores of a raw log; `declared` where it is."""

    stores: Sequence[ObjectStore]
    declared: DistributeTables | None = None

    def history(self) -> History:
        """Return what the stores hold together."""
        from storage_core.raw_log.history import union

        return union(self.stores) if self.declared is None else self.declared.history

    def backlog(self, history: History) -> dict[str, object]:
        """Return how much there is, and what tables lack of it; null of a raw log that is not declared."""
        from storage_core.distribution.backlog import backlog

        known = self.declared
        found = asdict(backlog(history, {} if known is None else known.offsets()))
        held = {name: found[name] for name in ("chunks", "bytes")}
        others = {name: value if known else None for name, value in found.items() if name not in held}
        return {**held, **others, "retention_ms": known.raw.retention if known else None}


def declared_raw_log(text: str) -> DeclaredRawLog | None:
    """Return the raw log of this name, None where none is declared. Raises `InvalidInput` for a broken file."""
    from pipelines.raw_logs import read_raw_logs
    from pipelines.tables import tables_folder

    if not _NAME.fullmatch(text):
        return None
    known = read_raw_logs(tables_folder())
    is_known = text in {each.declaration.name for each in known.raw_logs}
    return known.named(text) if is_known or text in {each.file.stem for each in known.problems} else None


def at_places(text: str, also: Sequence[str], known: DeclaredRawLog | None) -> RawPlaces:
    """Return the stores of the declared raw log, else those given. Raises `InvalidInput`."""
    if known is None:
        from storage_core.objectstore.resolve import open_store

        return RawPlaces([open_store(resolve(each).uri) for each in (text, *also)])
    if also:
        raise InvalidInput(f"{text} is declared with its stores; leave --also out")
    from jobs.running.distribute_tables import DistributeTables

    opened = DistributeTables.open(known.upkeep)
    return RawPlaces(opened.raw_stores, opened)


def collected(text: str, known: DeclaredRawLog | None, *, horizon_ms: int | None, dry_run: bool, as_json: bool) -> None:
    """Collect a declared raw log, and print the report."""
    from dataclasses import replace

    from jobs.collect_raw import run

    if known is None:
        raise InvalidInput(f"{text!r} is no raw log of raw_logs/*.yaml: only a declaration says which tables take it")
    run_job(run, replace(known.upkeep, horizon_ms=horizon_ms, dry_run=dry_run), as_json=as_json)


def healed(stores: Sequence[ObjectStore], *, verify: bool, dry_run: bool, as_json: bool) -> None:
    """Heal the stores from one another, and print what was done. Raises where they are not whole after it."""
    from storage_core.clock import SystemClock
    from storage_core.ids import SystemIds
    from storage_core.repair.raw_log import heal

    found = heal(stores, clock=SystemClock(), ids=SystemIds(), verify=verify, dry_run=dry_run)
    status = "planned" if dry_run else "healed" if found.bytes else "nothing_to_do"
    if as_json:
        output.json_line({"status": status, **asdict(found)})
    else:
        output.line(f"{status.replace('_', ' ')}: {found.objects:,} chunks and objects of record ids")
        for uri, lacking in found.lacking.items():
            copied, replaced = found.copied.get(uri, 0), found.replaced.get(uri, 0)
            output.line(f"{uri}: lacked {lacking:,}, copied {copied:,}, replaced {replaced:,}")
    if found.damaged:
        raise Corrupt(f"{len(found.damaged):,} objects are whole in no store: {', '.join(found.damaged[:10])}")
    if not dry_run and not found.is_whole:
        silent = "; ".join([*found.unreachable, *(f"{where}: {why}" for where, why in found.failed.items())])
        raise Unavailable(f"not every store is whole: {silent}; heal again when they answer")
