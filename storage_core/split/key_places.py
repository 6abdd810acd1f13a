"""Where in a split the rows of some keys are: by the hashes of its keys, which are kept for the next lookup.

They are kept by row group, sorted: looking a key up is a binary search, and one that is not there costs no request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from storage_core.formats.key_hash import HashedRows, key_hashes
from storage_core.log.actions import Add
from storage_core.rows.keys import Positions, key_codes
from storage_core.split.group_bounds import Recorded, admitting
from storage_core.split.kept_values import KeptValues
from storage_core.split.opened import OpenSplit

_ENTRY_BYTES = 256  # what the bounds of a row group take in memory, about


@dataclass(frozen=True, slots=True)
class _Groups:
    """The place in the file of the first row of each row group, and the bounds of these."""

    first_rows: Positions
    bounds: Recorded | None


def are_kept(add: Add, kept: KeptValues) -> bool:
    """Whether some keys of the split were looked up and are in `kept`."""
    return kept.get(_name(add)) is not None


def is_kept(add: Add, group: int, kept: KeptValues) -> bool:
    """Whether the keys of a row group of the split are in `kept`."""
    return kept.get((*_name(add), group)) is not None


def missing(add: Add, wanted: pa.Table, kept: KeptValues) -> int | None:
    """Return how many row groups of the split may hold one of these keys and have keys that are not in `kept`.

    None where nothing of the split is.
    """
    groups = kept.get(_name(add))
    if not isinstance(groups, _Groups):
        return None
    admitted = admitting(groups.bounds, len(groups.first_rows), wanted)
    return sum(not is_kept(add, group, kept) for group in admitted)


def _name(add: Add) -> tuple[object, ...]:
    return add.path, add.xxh3, "keys"


def find(add: Add, opened: Callable[[], OpenSplit], wanted: pa.Table, kept: KeptValues) -> Positions:
    """Return the places of the rows whose key hashes like one of `wanted`, ascending; rarely of others too.

    Whether the rows are gone or not: `opened` gives the split as it was written, and is called when something is not in
    `kept`. Requests: those of `OpenSplit.batches`, of the key columns of row groups that are not; errors: its own,
    and `InvalidInput` where the key columns are not those of `wanted`.
    """
    key, name = wanted.column_names, _name(add)
    groups = kept.made(
        name,
        _Groups,
        lambda: _Groups(opened().first_rows, opened().bounds),
        lambda each: _ENTRY_BYTES * (1 + len(each.first_rows)),
    )
    admitted = admitting(groups.bounds, len(groups.first_rows), wanted)
    hashed = {group: found for group in admitted if isinstance(found := kept.get((*name, group)), HashedRows)}
    missing = [group for group in admitted if group not in hashed]
    if missing:
        for group, rows in zip(missing, opened().batches(key, groups=missing), strict=True):
            key_codes([rows.slice(0, 1), wanted.slice(0, 1)], key)  # raises where their types differ
            hashed[group] = each = HashedRows.of(key_hashes(rows, key))
            kept.keep((*name, group), each, each.size_bytes)
    hashes = np.unique(key_hashes(wanted, key))
    parts = [groups.first_rows[group] + hashed[group].rows_of(hashes) for group in admitted]
    return np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))
