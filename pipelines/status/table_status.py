"""How all tables are: one look at each, in which a table that cannot be read stops no other. Free of Dagster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from pipelines.status.external_debt import ExternalLook
from pipelines.tables import DeclaredTables
from storage_core.clock import Clock, SystemClock
from storage_core.errors import NotFound, TidemarkError, as_tidemark_error
from storage_core.objectstore.meter import add_requests
from storage_core.objectstore.prefetch import all_of
from storage_core.read.status import Status, status
from storage_core.table import Table

if TYPE_CHECKING:
    from pipelines.runs.failed import LastFailure
    from storage_core.declaration import TableDeclaration
    from storage_core.ingest.landing import LandingSpec

PARALLEL_TABLES = 8
"""Tables that are looked at at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A table to look at: how it is called, where it is, and the freshness that is declared for it, in ms.

    Only one that is declared may be missing. `landing` is where its rows land, as declared.
    """

    name: str
    uri: str
    is_declared: bool = True
    freshness_ms: int | None = None
    landing: LandingSpec | None = None

    @classmethod
    def of(cls, declaration: TableDeclaration) -> Self:
        """Return the place of a declared table."""
        return cls(
            name=declaration.name,
            uri=declaration.uri,
            freshness_ms=declaration.freshness,
            landing=declaration.landing_spec(),
        )


class State(StrEnum):
    """How a table is. Failing is one with a step that failed last, failed is one that cannot be read."""

    OK = "ok"
    BEHIND = "behind"
    FAILING = "failing"
    FAILED = "failed"
    NOT_MADE = "not_made"


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What one look at a table found: `status`, or the `error` of a table that cannot be read; neither: not made yet.

    `requests` are those that the look made, by kind.
    """

    place: Place
    status: Status | None = None
    error: TidemarkError | None = None
    requests: Mapping[str, int]

    def state_after(self, failure: LastFailure | None) -> State:
        """Return the state in a word, given the last failure of the table, which is told of one behind as well."""
        is_told = self.state in (State.OK, State.NOT_MADE) and failure is not None and not failure.is_over
        return State.FAILING if is_told else self.state

    @property
    def state(self) -> State:
        """The state in a word, whatever its runs did."""
        if self.error is not None:
            return State.FAILED
        if self.status is None:
            return State.NOT_MADE
        return State.BEHIND if self.status.behind else State.OK


def places_of(declared: DeclaredTables) -> list[Place]:
    """Return the declared tables as places to look at."""
    return [Place.of(each.declaration) for each in declared.tables]


def look_at_all(places: Sequence[Place], clock: Clock | None = None, *, with_held: bool = False) -> Iterator[Looked]:
    """Yield what a look at each table found, in their order. Raises nothing for a table that fails.

    `with_held` also finds what holds the bytes of each table, with up to 33 more requests per table.
    """
    now = clock or SystemClock()
    for start in range(0, len(places), PARALLEL_TABLES):
        some = places[start : start + PARALLEL_TABLES]
        yield from all_of(lambda each: look(each, now, with_held=with_held), some, PARALLEL_TABLES)


def look(place: Place, clock: Clock, *, with_held: bool = False) -> Looked:
    """Return how one table is. Requests: those of opening it, of `external_debt` and of `read.status`."""
    none: dict[str, int] = {}
    try:
        table = Table.open(place.uri)
    except NotFound as error:
        return Looked(place=place, error=None if place.is_declared else error, requests=none)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is of this table alone
        return Looked(place=place, error=as_tidemark_error(error), requests=none)
    try:
        return look_into(table, place, clock, with_held=with_held)
    except Exception as error:  # noqa: BLE001  # as above
        return Looked(place=place, error=as_tidemark_error(error), requests=table.store.requests)


def look_into(table: Table, place: Place, clock: Clock, *, with_held: bool = False) -> Looked:
    """Return how an opened table is; raises what `read.status` raises."""
    now_ms = clock.now_ms()
    others = ExternalLook(table, place.landing, now_ms, with_held)
    external = others.look()
    found = status(table.store, table.snapshot, now_ms=now_ms, freshness_ms=place.freshness_ms, external=external)
    return Looked(place=place, status=found, requests=add_requests(table.store.requests, {"list": others.lists}))
