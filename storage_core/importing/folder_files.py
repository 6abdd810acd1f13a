"""Which files of a folder an import reads, and which ones it leaves out and names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from storage_core.errors import InvalidInput
from storage_core.ingest.landing import MOST_NAMES, LandedFile, printable_name
from storage_core.objectstore.contract import ObjectInfo, Unnamed
from storage_core.objectstore.resolve import open_store

SUFFIXES = (".parquet", ".parq", ".pq")
"""The ends of the names of Parquet files, in letters of any case."""

_ICEBERG = re.compile(r"metadata/[^/]*\.metadata\.json")


@dataclass(frozen=True, slots=True)
class NotRead:
    """Files that are not read: their number, and the first names with the reason. The names are printable."""

    count: int = 0
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """The Parquet files by path, and what else lies there."""

    files: Sequence[LandedFile]
    not_read: NotRead


def folder_files(uri: str) -> FolderFiles:
    """Return what lies in a folder, at any depth.

    Left out are empty files, files of other names, and Parquet files whose name, or a folder's, begins with `.` or `_`,
    as the names of unfinished files do. Other files with such names, such as `_SUCCESS`, are not counted.

    Raises:
        InvalidInput: the name of a Parquet file cannot be read, or the folder is an Iceberg table.

    Cost: one LIST per 1,000 objects.
    """
    store = open_store(uri)
    files: list[LandedFile] = []
    count, names = 0, dict[str, str]()
    for each in store.browse():
        name = each.key if isinstance(each, ObjectInfo) else each.name
        if _ICEBERG.fullmatch(name):
            raise InvalidInput(
                f"{store.uri}: the folder is an Iceberg table, whose files alone do not tell which rows are in it. "
                "Import a query that reads the table.",
                uri=store.uri,
            )
        reason = _why_not_read(each, name, store.uri)
        if reason is None and isinstance(each, ObjectInfo):
            files.append(LandedFile(name, each.size, store.uri, each.last_modified_ms, each.etag))
        elif reason:
            count += 1
            if count <= MOST_NAMES:
                names[printable_name(name)] = reason
    return FolderFiles(sorted(files, key=lambda file: file.path), NotRead(count, names))


def _why_not_read(found: ObjectInfo | Unnamed, name: str, uri: str) -> str | None:
    """Return None for a file that is read, no text for one that is not counted, and else the reason."""
    is_parquet = name.casefold().endswith(SUFFIXES)
    if any(part.startswith((".", "_")) for part in name.split("/")):
        return "its name, or the name of a folder above it, begins with . or _" if is_parquet else ""
    if isinstance(found, Unnamed):
        if is_parquet and not found.may_hold_more:
            raise InvalidInput(
                f"{uri}/{printable_name(name)}: {found.reason}. Rename the file.", file=printable_name(name)
            )
        return found.reason
    if not is_parquet:
        return f"its name does not end in {', '.join(SUFFIXES)}"
    return None if found.size else "it is empty"
