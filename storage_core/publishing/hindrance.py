"""What keeps a version from being shown: rows of its splits that another format would read as others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.errors import InvalidInput
from storage_core.log.actions import Add
from storage_core.log.conflicts.settle import require_writable
from storage_core.log.files.columns import adds_of
from storage_core.log.sharing import SOURCE
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.reading import ObjectFile
from storage_core.rows.columns import default_of, has_changed, stored_name, stored_schema
from storage_core.rows.field_ids import inside, lacks_ids
from storage_core.wording import counted

_DATE_LENGTH = len("2015-05-17")
_UPDATE = "an update that sets it to itself"
_REST = "write the rows that are left by an update that sets a column to itself"


def require_publishable(snapshot: Snapshot) -> None:
    """Raise `InvalidInput` for a shallow clone, whose files lie elsewhere, `Unsupported` for a table of others."""
    require_writable(snapshot)
    if SOURCE in snapshot.metadata.configuration:
        raise InvalidInput(
            "a shallow clone cannot be published: its files lie in the folder of its source; clone it with --deep"
        )


def hindrance(snapshot: Snapshot, *, vectors_wait: str | None) -> str | None:
    """Return why the version cannot be shown yet and what to do, None where it can be.

    `vectors_wait` says why rows that are deleted keep it, None where they do not.

    A mirror names splits as they are. It waits for a compaction of those whose rows are not all in the table, where
    readers know of no vectors or miss them, and of those from before a column had a default, or became a timestamp.
    Reads the list of splits, in columns. For wider numbers see `narrower`.
    """
    return next(_found(snapshot, vectors_wait), None)


def without_inner_ids(store: ObjectStore, adds: Iterable[Add], schema: pa.Schema) -> str | None:
    """Return that one of these splits has ids of its columns but none of what is inside of one, None where none has.

    Readers that go by ids would find nothing there. Early 0.1 wrote such splits of tables whose columns changed.
    One GET per split, of its footer, where such a table has columns that are lists, structures or maps.
    """
    nested = [stored_name(field) for field in schema if inside(field.type)]
    for add in adds if nested and has_changed(schema) else ():
        found = pq.read_schema(pa.PythonFile(ObjectFile(store, add.path, add.size), mode="r"))
        for name in nested:
            if name in found.names and lacks_ids(found.field(name)):
                return f"{add.path} has no ids of what is inside of column {name!r}; write it by {_UPDATE}"
    return None


def narrower(store: ObjectStore, adds: Sequence[Add], columns: Collection[str], schema: pa.Schema) -> str | None:
    """Return that one of these splits was written before one of the columns was widened, None where none was.

    Readers of other formats are not all able to widen. `columns` are the names that splits have. One GET per split, of
    its footer, from the oldest on, up to the first.
    """
    wanted = {field.name: field.type for field in stored_schema(schema) if field.name in columns}
    for add in sorted(adds, key=lambda each: each.modificationTime) if wanted else ():
        found = pq.read_schema(pa.PythonFile(ObjectFile(store, add.path, add.size), mode="r"))
        for name, type_ in wanted.items():
            if name in found.names and found.field(name).type != type_:
                has = f"{add.path} has {found.field(name).type} in column {name!r}, the table {type_}"
                return f"{has}; compact its window, or write it by {_UPDATE}"
    return None


def _found(snapshot: Snapshot, vectors_wait: str | None) -> Iterator[str]:
    hiding = 0 if vectors_wait is None else sum(add.deleted_rows is not None for add in snapshot.splits.marked())
    if hiding:
        yield f"rows of {counted(hiding, 'split')} are deleted, {vectors_wait}; {_compact(hiding)}, or {_REST}"
    if missed := _count_missed(snapshot) if vectors_wait is None else 0:
        escaped = counted(missed, "split with a `%` in its key", "splits with a `%` in their keys")
        yield f"rows of {escaped} are deleted, which Polars would show; {_compact(missed)}, or {_REST}"
    if not has_changed(snapshot.schema):
        return
    defaulted = [field for field in snapshot.schema if default_of(field) is not None]
    timestamps = [field for field in snapshot.schema if pa.types.is_timestamp(field.type)]
    if not defaulted and not timestamps:
        return
    files = pa.concat_tables(
        table.select(["minValues", "maxValues", "nullCounts"]) for table in snapshot.splits.tables()
    )
    for field in defaulted:
        if lacking := _count_lacking(files, field):
            yield (
                f"{counted(lacking, 'split has', 'splits have')} the default of column {field.name!r} by the log only; "
                f"{_compact(lacking)}, or write it by {_UPDATE}"
            )
    for field in timestamps:
        if dated := _count_dated(files, field):
            yield (
                f"{counted(dated, 'split has', 'splits have')} dates where column {field.name!r} has timestamps; "
                f"{_compact(dated)}, or write it by {_UPDATE}"
            )


def _compact(splits: int) -> str:
    return f"compact {'its window' if splits == 1 else 'their windows'}"


def _count_missed(snapshot: Snapshot) -> int:
    """Splits that hide rows and have a key with escapes, where Polars joins vectors to files by unlike spellings."""
    import pyarrow.compute as pc

    marked = (table.filter(table.column("deletionVector").is_valid()) for table in snapshot.splits.tables())
    escaped = (table.filter(pc.match_substring(table.column("path"), "%")) for table in marked)
    return sum(add.deleted_rows is not None for table in escaped for add in adds_of(table))


def _count_lacking(files: pa.Table, field: pa.Field) -> int:
    """Splits that were written without the column: the log counts the nulls of each column that a split has."""
    return int(_looked_up(files, "nullCounts", field).null_count)


def _count_dated(files: pa.Table, field: pa.Field) -> int:
    import pyarrow.compute as pc

    dated = (
        pc.equal(pc.utf8_length(_looked_up(files, name, field)), _DATE_LENGTH) for name in ("minValues", "maxValues")
    )
    return int(pc.sum(pc.or_kleene(*dated)).as_py() or 0)


def _looked_up(files: pa.Table, name: str, field: pa.Field) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    return pc.map_lookup(files.column(name), stored_name(field), "first")
