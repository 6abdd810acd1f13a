"""Different keys with the same hash.

The keys have two integer columns. The second column is computed by inverting the hash.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from storage_core.data.formats.key_hashes import Hashes, key_hashes

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def keys_of_one_hash(count: int) -> pa.Table:
    """Return this many different keys of the columns `a` and `b`. All keys have the same hash."""
    first = np.arange(count, dtype=np.int64)
    begun = key_hashes(pa.table({"a": first}), ["a"]) + _GOLDEN  # the key hash combines `begun` with the hash of `b`
    wanted = begun ^ begun[0]  # the hash of `b` with which each key has the same key hash, `begun[0]`
    second = _unmixed(wanted) - _GOLDEN
    found = pa.table({"a": first, "b": second.view(np.int64)})
    assert len(np.unique(key_hashes(found, ["a", "b"]))) == 1
    return found


def _unmixed(values: Hashes) -> Hashes:
    """Return the number that SplitMix64's finalizer maps to this number."""
    values = _unshifted(values, 31) * np.uint64(pow(0x94D049BB133111EB, -1, 2**64))
    values = _unshifted(values, 27) * np.uint64(pow(0xBF58476D1CE4E5B9, -1, 2**64))
    return _unshifted(values, 30)


def _unshifted(values: Hashes, bits: int) -> Hashes:
    found = values
    for _ in range(64 // bits + 1):
        found = values ^ (found >> np.uint64(bits))
    return found
