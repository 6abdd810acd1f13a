"""Who works on a table, and how to take a lease from somebody: `leases`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Json, Uri
from pipelines.commands.target import open_table

if TYPE_CHECKING:
    from storage_core.leases.stored import StoredLease
    from storage_core.table import Table


def leases(
    uri: Uri,
    *,
    resource: Annotated[
        str | None,
        typer.Option("--break", metavar="RESOURCE", help="Take this lease from its holder, who commits nothing more."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say who works on a table, until when; or break a lease.

    Times are by the clock of the lease's holder. An abandoned one is taken over by the next run.
    """
    table = open_table(uri)
    if resource is None:
        _show(table, as_json=as_json)
    else:
        _break(table, resource, as_json=as_json)


def _break(table: Table, resource: str, *, as_json: bool) -> None:
    from jobs.process.holder import holder_of
    from storage_core.leases.lease import break_lease

    table.require_capable()
    token = break_lease(table.log, resource, holder_of("tidemark leases"))
    if as_json:
        output.json_line({"broken": resource, "token": token})
    else:
        output.line(f"broken: {resource}; from now on only tokens above {token} commit")


def _show(table: Table, *, as_json: bool) -> None:
    from jobs.process.holder import is_dead
    from storage_core.clock import SystemClock
    from storage_core.leases.stored import stored_leases

    now_ms = SystemClock().now_ms()
    found = [
        _row(each, now_ms, ended=bool(each.record and is_dead(each.record.holder)))
        for each in stored_leases(table.store)
    ]
    shown = {
        "resource": output.cell,
        "state": output.cell,
        "token": output.number,
        "holder": output.cell,
        "acquired_at": output.instant_ms,
        "expires_at": output.instant_ms,
    }
    output.records(found, shown, as_json=as_json, nothing="no lease was ever taken")


def _row(stored: StoredLease, now_ms: int, *, ended: bool) -> output.Record:
    from storage_core.formats.lease import RELEASED_MS

    record = stored.record
    if record is None:
        return {"resource": stored.resource, "state": "damaged", "token": None, "holder": None}
    released = record.expires_at_ms == RELEASED_MS
    state = "released" if released else "held" if record.is_live(now_ms) and not ended else "abandoned"
    return {
        "resource": record.resource,
        "state": state,
        "token": record.fencing_token,
        "holder": record.holder,
        "acquired_at": record.acquired_at_ms,
        "expires_at": None if released else record.expires_at_ms,
    }
