"""The four questions that a catalogue answers by its indexes, as statements.

All are keyset pages: `after` is where the page before ended. Each enters an index where its page begins, so it costs
the same in a table of a thousand splits and of a million; a range of times looks at more than it returns where a split
spans long (`docs/spec.md`, "SQL catalogue").
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from storage_core.catalog.schema import GONE, LIVE, SPLITS, TABLES

Statement = sa.Select[Any] | sa.CompoundSelect[Any]
REMOVED: Final = 0
ADDED: Final = 1
"""Of one version what left comes first."""

_SCOPE: Final = ("source_id", "partition_id", "schema_ref", "window_seconds")
_CANDIDATE: Final = (
    *("split_id", "window_start", "window_seconds", "sort_schema", "source_id", "partition_id", "schema_ref"),
    *("rows", "deleted_rows", "bytes", "merge_ops", "added_version", "added_at_ms"),
)


def candidates(
    table_id: str, sort_schema: str, *, after: tuple[int | None, str] | None, limit: int, windowed: bool
) -> Statement:
    """Live splits of a sort schema by window and path, and whether another shares scope and window (`beside`).

    `windowed` ones, or those without a window. Whether there is another is looked up for each row of the page alone.
    """
    s, other = SPLITS, SPLITS.alias("other")
    of_scope = [s.c.table_id == table_id, s.c.sort_schema == sort_schema, LIVE]
    if windowed:
        of_scope.append(s.c.window_start.is_not(None))
        if after is not None:
            of_scope.append(sa.tuple_(s.c.window_start, s.c.split_id) > sa.tuple_(*after))
    else:
        of_scope.append(s.c.window_start.is_(None))
        if after is not None and after[0] is None:
            of_scope.append(s.c.split_id > after[1])
    same = [other.c.table_id == s.c.table_id, other.c.sort_schema == s.c.sort_schema]
    same.append(other.c.window_start == s.c.window_start if windowed else other.c.window_start.is_(None))
    same += [other.c[name].is_not_distinct_from(s.c[name]) for name in _SCOPE]
    same += [other.c.split_id != s.c.split_id, other.c.removed_version.is_(None)]
    # With a limit it stays a look-up per row: no planner makes a join of the whole table of it.
    beside = sa.select(sa.literal_column("1")).where(*same).limit(1).scalar_subquery().label("beside")
    order = (s.c.window_start, s.c.split_id) if windowed else (s.c.split_id,)
    return sa.select(*(s.c[name] for name in _CANDIDATE), beside).where(*of_scope).order_by(*order).limit(limit)


def longest(table_id: str) -> sa.Select[Any]:
    """The longest time that a split of the table spans, in microseconds; it never becomes less."""
    return sa.select(TABLES.c.longest_time_us).where(TABLES.c.table_id == table_id)


def in_time(
    table_id: str,
    times: tuple[int | None, int | None],
    longest_us: int,
    *,
    after: tuple[int | None, str] | None,
    limit: int,
    timed: bool,
) -> Statement:
    """Live splits that may hold rows of a range of times in microseconds, its end excluded, by least time and path.

    `timed` ones, or those of which no time is known. No split spans more than `longest_us`, so that one that reaches
    into the range begins at most so long before it.
    """
    s, (since, until) = SPLITS, times
    wanted = [s.c.table_id == table_id, LIVE]
    if not timed:
        wanted.append(s.c.min_time_us.is_(None))
        if after is not None and after[0] is None:
            wanted.append(s.c.split_id > after[1])
        return sa.select(s).where(*wanted).order_by(s.c.split_id).limit(limit)
    wanted.append(s.c.min_time_us.is_not(None))
    if since is not None:
        wanted += [s.c.min_time_us >= since - longest_us, s.c.max_time_us >= since]
    if until is not None:
        wanted.append(s.c.min_time_us < until)
    if after is not None:
        wanted.append(sa.tuple_(s.c.min_time_us, s.c.split_id) > sa.tuple_(*after))
    return sa.select(s).where(*wanted).order_by(s.c.min_time_us, s.c.split_id).limit(limit)


def expired(table_id: str, cutoff_s: int, limit: int) -> Statement:
    """The windows that ended by `cutoff_s`, and how many live splits each has: read from the index alone."""
    s = SPLITS
    by = (s.c.window_end, s.c.window_start)
    counted = sa.select(*by, sa.func.count().label("splits"))
    gone = counted.where(s.c.table_id == table_id, LIVE, s.c.window_end <= cutoff_s)
    return gone.group_by(*by).order_by(*by).limit(limit)


def changed(table_id: str, after: tuple[int, int, str | None], limit: int) -> Statement:
    """What joined and left after a version, by version, what left first, and path.

    `after` is where the page before ended, or a version with `ADDED` and None: behind all of that version.
    """
    s, (version, kind, path) = SPLITS, after
    gone = _later(s.c.removed_version, version, path if kind == REMOVED else None)
    came = _later(s.c.added_version, version, path) if kind == ADDED else s.c.added_version >= version
    left = _changes(REMOVED, s.c.removed_version, limit, s.c.table_id == table_id, GONE, gone)
    joined = _changes(ADDED, s.c.added_version, limit, s.c.table_id == table_id, came)
    both = sa.union_all(sa.select(left.subquery()), sa.select(joined.subquery()))
    return both.order_by("version", "kind", "split_id").limit(limit)


def _later(column: sa.ColumnElement[Any], version: int, path: str | None) -> sa.ColumnElement[bool]:
    """The index is entered at the very entry behind the last one."""
    return column > version if path is None else sa.tuple_(column, SPLITS.c.split_id) > sa.tuple_(version, path)


def _changes(
    kind: int, version: sa.ColumnElement[Any], limit: int, *conditions: sa.ColumnElement[bool]
) -> sa.Select[Any]:
    s = SPLITS
    shown = (s.c[name] for name in ("split_id", "window_start", "rows", "deleted_rows", "bytes"))
    found = sa.select(version.label("version"), sa.literal_column(str(kind)).label("kind"), *shown)
    return found.where(*conditions).order_by(version, s.c.split_id).limit(limit)
