"""What it means that a split cannot be read: its file is gone, or its bytes are not what was written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from storage_core.errors import SEE_CORRUPT, Corrupt, NotFound, SnapshotExpired
from storage_core.log.actions import Add
from storage_core.system_errors import raise_refused


def expired_split(add: Add) -> SnapshotExpired:
    """Return the error for a split whose file is gone."""
    return SnapshotExpired(
        f"{add.path}: the log names this split but the store does not have it; "
        f"open a newer version, and if that names it too, {SEE_CORRUPT}",
        key=add.path,
    )


@contextmanager
def corrupt_on_failure(add: Add) -> Iterator[None]:
    """Whatever Arrow finds wrong with the bytes is one thing to the caller: they are not what was written."""
    try:
        yield
    except NotFound as error:
        if "source" in error.context:  # of a shallow clone: no newer version has it
            raise SnapshotExpired(error.found, key=add.path) from error
        raise expired_split(add) from error
    except (pa.ArrowException, MemoryError, OSError, UnicodeDecodeError) as error:
        raise_refused(add.path, error)
        raise Corrupt(f"{add.path}: not a readable Parquet file: {error}", key=add.path) from error
