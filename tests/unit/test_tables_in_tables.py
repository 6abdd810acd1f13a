"""No table is created in or around the folder of another table, because the collectors would see foreign objects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pytest

from storage_core.base.clock import SystemClock, SystemIds
from storage_core.base.errors import InvalidInput
from storage_core.log.listing import MOST_LEVELS
from storage_core.maintain.repair import repair
from storage_core.store.contract import IfAbsent
from storage_core.store.resolve import locations_above, open_store
from storage_core.table import Table

if TYPE_CHECKING:
    from tests.support.s3_server import S3Server

SCHEMA = pa.schema([("a", pa.int64())])


@pytest.fixture(params=["local", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a location to which a test appends folders."""
    match request.param:
        case "local":
            return str(tmp_path / "warehouse")
        case "memory":
            return f"memory://{uuid4()}"
        case _:
            server: S3Server = request.getfixturevalue("s3_server")
            return f"s3://{server.bucket}/{uuid4()}?endpoint={server.endpoint}"


def below(place: str, *names: str) -> str:
    path, mark, query = place.partition("?")
    return "/".join([path, *names]) + mark + query


@pytest.mark.parametrize("inner", [("b",), ("splits", "x"), ("_transaction_log",), ("b", "c", "d", "e")])
def test_a_table_in_another_ones_folder_is_refused_and_leaves_nothing(place: str, inner: tuple[str, ...]) -> None:
    outer = below(place, "a")
    Table.create(outer, SCHEMA)
    before = {info.key for info in open_store(outer).list("")}
    with pytest.raises(InvalidInput, match="the location is in the folder of the table") as refused:
        Table.create(below(outer, *inner), SCHEMA)
    assert f"the table {open_store(outer).uri}. " in str(refused.value)
    assert {info.key for info in open_store(outer).list("")} == before


@pytest.mark.parametrize("dry_run", [False, True])
def test_no_table_is_repaired_into_another_ones_folder(place: str, *, dry_run: bool) -> None:
    damaged, outer = below(place, "a"), below(place, "b")
    for each in (damaged, outer):
        Table.create(each, SCHEMA)
    before = {info.key for info in open_store(outer).list("")}
    with pytest.raises(InvalidInput, match="the location is in the folder of the table"):
        repair(
            open_store(damaged),
            open_store(below(outer, "inside")),
            clock=SystemClock(),
            ids=SystemIds(),
            dry_run=dry_run,
        )
    assert {info.key for info in open_store(outer).list("")} == before


@pytest.mark.parametrize("names", [(), ("inside",)])
def test_no_table_is_repaired_into_itself(place: str, names: tuple[str, ...]) -> None:
    damaged = open_store(below(place, "a"))
    damaged.put("splits/lost", b"", IfAbsent())
    target = open_store(below(place, "a", *names))
    with pytest.raises(InvalidInput, match="a repair writes into a new location, apart from"):
        repair(damaged, target, clock=SystemClock(), ids=SystemIds())


@pytest.mark.parametrize("place", ["local", "s3"], indirect=True)  # a store in memory cannot contain another store
def test_a_table_around_another_one_is_refused(place: str) -> None:
    Table.create(below(place, "a", "b"), SCHEMA)
    with pytest.raises(InvalidInput, match=r"holds another table in a/b. Choose"):
        Table.create(place, SCHEMA)


def test_tables_beside_each_other_are_made_whatever_their_names(place: str) -> None:
    for name in ("a", "ab", "a-b", "b"):
        assert Table.create(below(place, name), SCHEMA).version == 0
    Table.create(below(place, "c", "d"), SCHEMA).append([{"a": 1}])


def test_a_place_is_looked_at_with_a_list_per_folder_above_it(place: str) -> None:
    own = 3 if place.startswith("s3") else 2  # the location itself, its log, and the capabilities of the server
    one = Table.create(below(place, "a"), SCHEMA).store.requests["list"]
    three = Table.create(below(place, "x", "y", "z"), SCHEMA).store.requests["list"]
    assert three - one == 2
    above = len(list(locations_above(open_store(below(place, "a")).uri)))
    assert one == min(above, MOST_LEVELS) + own
    deep = Table.create(below(place, *"0123456789abcdefghij"), SCHEMA).store.requests["list"]
    assert deep == MOST_LEVELS + own
