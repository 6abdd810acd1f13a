"""Keys of splits and deletion vectors, in a folder per window of `splits/`; of a partition in one below its own."""

from __future__ import annotations

import re
from dataclasses import replace

from storage_core.errors import InvalidInput
from storage_core.formats.keys.parsed import KeyKind, ParsedKey, exact
from storage_core.formats.keys.partitions import is_partition_folder
from storage_core.formats.keys.parts import integer, matching, uuid

_MAX_WINDOW = 2**63
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,99}", re.ASCII)


def split_key(window: int | None, windowed: bool, split_id: str, partition: str = "") -> str:  # noqa: FBT001 -- one answer in two parts
    """Return the key of a split, in the folder of its window's start in seconds, below those of its partition.

    The folder is `null` for the bucket of null timestamps and `all` in a table without windows. `partition` is folders
    of `partitions.partition_folder`, joined by slashes; none in a table without partitions.
    """
    above = f"{partition}/" if partition else ""
    return f"{above}{_window_folder(window, windowed)}/{matching(_ID, split_id, 'a split id (a-z 0-9 -)')}.parquet"


def vector_key(window: int | None, windowed: bool, vector_id: str) -> str:  # noqa: FBT001 -- as for its split
    """Return the key of a stored deletion vector, in the folder of its window, whatever the partition of its split."""
    return f"{_window_folder(window, windowed)}/{uuid(vector_id)}.dv"


def parse_split(key: str, parts: list[str]) -> ParsedKey | None:
    """Return the parsed key, None for no key of this folder; see `grammar.parse`. `parts` are those behind it."""
    match parts:
        case [folder, name]:
            windowed = folder != "all"
            window = None if folder in ("all", "null") else integer(folder)
            if name.endswith(".dv"):
                vector_id = name.removesuffix(".dv")
                parsed = ParsedKey(kind=KeyKind.VECTOR, key=key, id=vector_id, window=window, windowed=windowed)
                return exact(key, vector_key(window, windowed, vector_id), parsed)
            split_id = name.removesuffix(".parquet")
            parsed = ParsedKey(kind=KeyKind.SPLIT, key=key, id=split_id, window=window, windowed=windowed)
            return exact(key, split_key(window, windowed, split_id), parsed)
        case _:
            return None


def parse_partitioned_split(key: str) -> ParsedKey | None:
    """Return the parsed key of a split in the folders of a partition, None for no such key."""
    partition, found, rest = key.partition("/splits/")
    parsed = parse_split(f"splits/{rest}", rest.split("/")) if found else None
    if parsed is None or parsed.kind is not KeyKind.SPLIT or not all(map(is_partition_folder, partition.split("/"))):
        return None
    return replace(parsed, key=key)


def _window_folder(window: int | None, windowed: bool) -> str:  # noqa: FBT001 -- one answer in two parts
    if windowed:
        folder = "null" if window is None else str(_bounded_window(window))
    elif window is None:
        folder = "all"
    else:
        raise InvalidInput(f"a table without windows has no window {window}", window=window)
    return f"splits/{folder}"


def _bounded_window(window: int) -> int:
    if not -_MAX_WINDOW <= window < _MAX_WINDOW:
        raise InvalidInput(f"a window start is a 64-bit number of seconds, found {window}", window=window)
    return window
