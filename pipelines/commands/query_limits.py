"""How much a query may take: the options of `sql`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from storage_core.settings.query import QueryLimits

Seconds = Annotated[
    float | None,
    typer.Option(metavar="N", envvar="TIDEMARK_SQL_SECONDS", help="The longest the query may take; 300 by default."),
]
MemoryMib = Annotated[
    int | None,
    typer.Option(
        metavar="MIB", envvar="TIDEMARK_SQL_MEMORY_MIB", help="The most memory it may take; 4096 MiB by default."
    ),
]
SpillMib = Annotated[
    int | None,
    typer.Option(
        metavar="MIB", envvar="TIDEMARK_SQL_SPILL_MIB", help="The most it may spill to disk; 16384 MiB by default."
    ),
]


def limits_of(seconds: float | None, memory_mib: int | None, spill_mib: int | None) -> QueryLimits:
    """Return the limits, the usual ones where none are given."""
    from storage_core.settings.query import QueryLimits  # the help needs no part of the core

    usual = QueryLimits()
    return QueryLimits(
        seconds=usual.seconds if seconds is None else seconds,
        memory_bytes=usual.memory_bytes if memory_mib is None else memory_mib * 2**20,
        spill_bytes=usual.spill_bytes if spill_mib is None else spill_mib * 2**20,
    )
