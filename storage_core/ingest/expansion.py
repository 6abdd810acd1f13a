"""How far a landed file may expand: a kilobyte can say a terabyte, and somebody has to hold or to store it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import unsound

ANY_RATIO_BYTES = 2**30
MOST_RATIO = 200


class Expansion:
    """The bytes that a file of `size` bytes has expanded to so far: any number up to 1 GiB, then 200 times its size."""

    def __init__(self, size: int) -> None:
        self._most = max(ANY_RATIO_BYTES, MOST_RATIO * size)
        self._bytes = 0

    def add(self, expanded: int) -> None:
        """Count more of them. Raises `Corrupt` above the limit."""
        self._bytes += expanded
        if self._bytes > self._most:
            raise unsound(
                f"it expands to more than {self._most} bytes, which is both above {ANY_RATIO_BYTES} and above "
                f"{MOST_RATIO} times its size; land it in pieces"
            )


def plain_bytes(values: pa.Array) -> int:
    """Return how many bytes the values take once their dictionaries are written out."""
    kinds, type_ = pa.types, values.type
    if kinds.is_dictionary(type_):
        lengths = values.dictionary
        if kinds.is_string(type_.value_type) or kinds.is_binary(type_.value_type):
            taken = pc.sum(pc.binary_length(lengths).cast(pa.int64()).take(values.indices)).as_py()
            return int(taken or 0) + 4 * len(values)
        return int(lengths.nbytes / max(1, len(lengths)) * len(values))
    if isinstance(type_, pa.BaseExtensionType):
        return plain_bytes(values.storage)
    if kinds.is_map(type_):  # whose keys and items are those of the whole array that it is a slice of
        start, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
        return sum(plain_bytes(each[start:end]) for each in (values.keys, values.items)) + 4 * len(values)
    if kinds.is_list(type_) or kinds.is_large_list(type_):
        return plain_bytes(values.flatten()) + 4 * len(values)
    if kinds.is_fixed_size_list(type_):
        return int(plain_bytes(values.flatten()))
    if kinds.is_struct(type_):
        return sum(plain_bytes(each) for each in values.flatten())
    return int(values.nbytes)
