"""What DuckDB and its sandbox say of a query, as Tidemark's errors."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from storage_core.engine.sandbox.process import OutOfTime, SandboxEnded
from storage_core.engine.statement import TABLE
from storage_core.engine.tree import shown
from storage_core.errors import Corrupt, InvalidInput, TidemarkError, Unavailable
from storage_core.foreign_text import quoted, shortened
from storage_core.log.actions import Add
from storage_core.read.verified import require_sound
from storage_core.settings.query import QueryLimits
from storage_core.split.failures import expired_split
from storage_core.system_errors import out_of_memory, typed, unavailable

_UNKNOWN_TABLE = "Catalog Error: Table with name"
_OUT_OF_REACH = "IO Error:"
_NO_FILES = "Too many open files"
_DENIED = "Permission denied"
# What DuckDB says about the query, whatever names are in it.
_ABOUT_THE_QUERY = ("Binder Error:", "Catalog Error:", "Conversion Error:", "Parser Error:", "Permission Error:")
# These words quote a query or what is in it, and so say nothing of the machine.
_QUOTING = (*_ABOUT_THE_QUERY, "Invalid Input Error:")
_UNKNOWN_COLUMN = re.compile(
    r'Binder Error: (?:Referenced column "(.+)" not found in FROM clause!|.* does not have a column named "(.+)")'
)
_EXCERPT = "\n\nLINE "


@contextmanager
def query_errors(
    query: str,
    splits: Sequence[Add] = (),
    limits: QueryLimits | None = None,
    *,
    files: Iterable[tuple[Add, Path]] = (),
    columns: Sequence[str] = (),
) -> Iterator[None]:
    """Turn DuckDB's errors into Tidemark's.

    With the `columns` of the table the statement was made of a condition or of expressions, and `query` only says what
    for. Errors then name columns of the table, and nothing else of the statement.
    `SnapshotExpired` where one of the files of splits is named and gone, `Unavailable` where a limit, memory or a file
    is out of reach, `Corrupt` where a split is named and its file is not what was written, else `InvalidInput`.
    """
    import duckdb

    with typed(shortened(query, 500)):
        try:
            yield
        except OutOfTime as error:
            raise _out_of_time(query, limits or QueryLimits()) from error
        except SandboxEnded as error:
            raise _process_ended(query, limits or QueryLimits(), str(error)) from error
        except (duckdb.Error, OSError) as error:  # a stream of batches wraps each of them, and keeps the text only
            # DuckDB takes a path that is gone for a folder, in which it may read nothing.
            named = [(add, path) for add, path in files if add.path in str(error)]
            lost = next((add for add, path in named if not path.exists()), None)
            if lost is not None:
                raise expired_split(lost) from error
            found = _unknown_column(str(error), query, columns) or _typed(error, query, splits, limits)
            if columns and isinstance(found, InvalidInput):
                found = found.reworded(found.found.rsplit(_EXCERPT, 1)[0])
            if isinstance(found, Corrupt) and any(add.xxh3 is not None for add, _ in named):
                for add, path in named:  # a path may stand in a value, too
                    require_sound(path, add)
                found = InvalidInput(f"{shown(query)}: {error}", query=query)
            raise found from error


def _out_of_time(query: str, limits: QueryLimits) -> Unavailable:
    advice = "ask for less, or raise `seconds` (--seconds)"
    found = f"{shown(query)}: it took longer than {limits.seconds:g} seconds; {advice}"
    return Unavailable(found, query=query, seconds=limits.seconds)


def _process_ended(query: str, limits: QueryLimits, how: str) -> Unavailable:
    found = f"its process ended ({how}), as one does that needs far more than `memory_bytes` = {limits.memory_bytes}"
    return Unavailable(f"{shown(query)}: {found}; ask for less, or raise it (--memory-mib)", query=query)


def _unknown_column(text: str, query: str, columns: Sequence[str]) -> InvalidInput | None:
    unknown = _UNKNOWN_COLUMN.match(text) if columns else None
    if unknown is None:
        return None
    name = unknown[1] or unknown[2]
    found = f"{shown(query)}: unknown column {quoted(name)}; the table has {[*columns]}"
    return InvalidInput(found, query=query, columns=[name])


def _typed(error: Exception, query: str, splits: Sequence[Add], limits: QueryLimits | None) -> TidemarkError:
    text, shown_query = str(error), shown(query)
    quotes = text.startswith(_QUOTING)
    if out_of_memory(error) and limits is not None:
        found = f"it needs more than `memory_bytes` = {limits.memory_bytes} and `spill_bytes` = {limits.spill_bytes}"
        advice = "ask for less, or raise them (--memory-mib, --spill-mib), or try again later"
        return Unavailable(f"{shown_query}: {found}: {text}; {advice}", query=query)
    if _NO_FILES in text and not quotes:
        return unavailable(shown_query, OSError(errno.EMFILE, text))
    # Also of a split: its bytes were sound a moment ago.
    if out_of_memory(error) or text.startswith(_OUT_OF_REACH) or (_DENIED in text and not quotes):
        return Unavailable(f"{shown_query}: {text}; try again later, or ask for less", query=query)
    broken = None if text.startswith(_ABOUT_THE_QUERY) else _named(text, query, splits)
    if broken is not None:
        return Corrupt(f"{broken}: cannot be read: {text}", key=broken)
    if text.startswith(_UNKNOWN_TABLE):  # DuckDB would offer tables of its own
        text = f"{text.partition(chr(10))[0]} A query calls the table {TABLE}, and reads no other"
    return InvalidInput(f"{shown_query}: {text}", query=query)


def _named(text: str, query: str, splits: Sequence[Add]) -> str | None:
    """The split that an error names, other than because the query does."""
    return next((add.path for add in splits if add.path in text and add.path not in query), None)
