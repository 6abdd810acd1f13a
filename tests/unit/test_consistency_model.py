"""The consistency checker accepts every allowed read and rejects each kind of forbidden read."""

from __future__ import annotations

import pytest

from tests.support.consistency import History, Level, Mark, Read, Write, check


def write(at: int, *, durable: bool = True, begun: int | None = None, **changes: int | None) -> Write:
    """Return a write that ended at the logical time `at`. The first letter of each key names its region."""
    (region,) = {key[0] for key in changes}
    return Write(
        region=region,
        begun=at - 1 if begun is None else begun,
        given=at,
        durable=at if durable else None,
        changes=changes,
    )


def read(at: int, level: Level = Level.LATEST, *, session: str = "s", keys: str = "", **found: int) -> Read:
    wanted = frozenset(keys.split()) or None
    return Read(session=session, level=level, begun=at - 1, ended=at, found=tuple(found.items()), keys=wanted)


def judge(writes: list[Write], reads: list[Read], marks: list[Mark] | None = None) -> None:
    check(History(writes=writes, reads=reads, marks=marks or []), lambda key: key[0])


TWO = [write(2, a1=1, a2=1), write(4, a1=2)]
OPEN = [write(2, a1=1), write(4, durable=False, a1=2), write(20, a2=3)]
FLUSHED = [Mark(level=Level.COMMITTED, region="a", covers=5, ended=7)]
MERGED = [Mark(level=Level.SNAPSHOT, region="a", covers=5, ended=7)]
DELETED = [write(2, a1=1), write(4, a1=None)]

GIVEN = [Write(region="a", begun=3, given=4, durable=20, changes={"a1": 1})]

ALLOWED = [
    pytest.param(GIVEN, [read(6, Level.IN_PROCESS, a1=1), read(8)], [], id="given and not durable"),
    pytest.param(TWO, [read(6, a1=2, a2=1)], [], id="all that was acknowledged"),
    pytest.param([write(10, begun=1, a1=1)], [read(4), read(6, a1=1)], [], id="a write under way, not seen, then seen"),
    pytest.param(TWO, [read(6, Level.COMMITTED), read(8, Level.SNAPSHOT, a1=1, a2=1)], [], id="lower levels lag"),
    pytest.param(TWO, [read(9, Level.COMMITTED, a1=2, a2=1)], FLUSHED, id="flushed"),
    pytest.param(TWO, [read(9, Level.SNAPSHOT)], FLUSHED, id="flushed and not merged"),
    pytest.param(TWO, [read(6, keys="a1", a1=2), read(8, keys="a2 a3", a2=1)], [], id="some keys"),
    pytest.param(OPEN, [read(6, a1=1), read(8, a1=2)], [], id="unknown, then found written"),
    pytest.param(OPEN, [read(6, a1=1), read(22, a1=1, a2=3)], [], id="unknown, and never written"),
    pytest.param(DELETED, [read(6)], [], id="deleted"),
    pytest.param([*TWO, write(6, b1=7)], [read(8, a1=2, a2=1, b1=7)], [], id="two regions"),
    pytest.param(TWO, [read(6, a1=2, a2=1), read(8, Level.SNAPSHOT)], [], id="another level may lag behind"),
]
REFUSED = [
    pytest.param(TWO, [read(6, a1=2)], [], id="a gap: one of the rows is missing"),
    pytest.param(TWO, [read(6, a1=1, a2=1)], [], id="stale: an acknowledged write is missing"),
    pytest.param(TWO, [read(9, Level.COMMITTED, a1=1, a2=1)], FLUSHED, id="committed lacks what was flushed"),
    pytest.param(TWO, [read(9, Level.SNAPSHOT, a1=1, a2=1)], MERGED, id="the base lacks what was merged"),
    pytest.param(TWO, [read(9, Level.COMMITTED)], MERGED, id="committed lacks what was merged"),
    pytest.param(
        [write(10, begun=1, a1=1)], [read(4, a1=1), read(6)], [], id="older than before: a write was seen and is gone"
    ),
    pytest.param(
        TWO,
        [read(6, Level.SNAPSHOT, a1=2, a2=1), read(8, Level.SNAPSHOT, a1=1, a2=1)],
        [],
        id="the base goes back to an older value",
    ),
    pytest.param(DELETED, [read(6, a1=1)], [], id="resurrection of a deleted row"),
    pytest.param(OPEN, [read(6, a1=2), read(8, a1=1)], [], id="an unknown write was seen and is gone"),
    pytest.param(OPEN, [read(22, a1=1, a2=3), read(24, a1=2, a2=3)], [], id="an unknown write appears behind a later"),
    pytest.param(TWO, [read(6, a1=2, a2=1, a3=9)], [], id="an invented row"),
    pytest.param(TWO, [read(6, a1=2, a2=1, b1=9)], [], id="an invented row of a region without writes"),
    pytest.param(TWO, [read(3, a1=2, a2=1)], [], id="a value before it was written"),
    pytest.param(GIVEN, [read(6, Level.IN_PROCESS)], [], id="its own process misses a row"),
    pytest.param([write(2, a1=1, a2=1)], [read(6, keys="a1 a2", a1=1)], [], id="get_many misses a key"),
    pytest.param([*TWO, write(6, b1=7)], [read(8, a1=2, a2=1)], [], id="one region of two is missing"),
]


@pytest.mark.parametrize(("writes", "reads", "marks"), ALLOWED)
def test_the_model_explains_what_may_be_seen(writes: list[Write], reads: list[Read], marks: list[Mark]) -> None:
    judge(writes, reads, marks)


@pytest.mark.parametrize(("writes", "reads", "marks"), REFUSED)
def test_the_model_refuses_what_may_not_be_seen(writes: list[Write], reads: list[Read], marks: list[Mark]) -> None:
    with pytest.raises(AssertionError, match=r"no prefix|nobody wrote"):
        judge(writes, reads, marks)


def test_the_model_refuses_a_row_that_is_there_twice() -> None:
    twice = Read(session="s", level=Level.LATEST, begun=5, ended=6, found=(("a1", 2), ("a2", 1), ("a1", 2)))
    with pytest.raises(AssertionError, match="twice"):
        judge(TWO, [twice])


def test_what_one_session_saw_binds_no_other_session() -> None:
    under_way = [write(10, begun=1, a1=1)]
    judge(under_way, [read(4, session="first", a1=1), read(6, session="second")])
