"""The limits of one process: the bytes of its cache, and the time, memory and disk of a query.

`CacheSettings` contains the folder and the size of the process's cache (decision 0026). The cache contains bytes of
stores that are not on a local disk. `QueryLimits` limits one query: its time, its memory, and the disk space for data
that does not fit into memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage_core.base.arguments import checked_fields
from storage_core.base.errors import InvalidInput
from storage_core.base.text import quoted

# The cache.

USUAL_BYTES: Final = 2 * 2**30
CACHE_DIR: Final = "TIDEMARK_CACHE_DIR"
CACHE_MIB: Final = "TIDEMARK_CACHE_MIB"

_XDG = "XDG_CACHE_HOME"
_MOST_DIGITS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """The folder of the cache and its maximum size on disk. Without a folder, or with a size of 0, the cache is off."""

    folder: Path | None
    most_bytes: int = USUAL_BYTES

    @property
    def is_on(self) -> bool:
        """True if the cache is on."""
        return self.folder is not None and self.most_bytes > 0

    @staticmethod
    def of(environment: Mapping[str, str]) -> CacheSettings:
        """Return the settings that the environment variables define.

        `TIDEMARK_CACHE_DIR` is the folder. By default it is `tidemark` in `XDG_CACHE_HOME`, or in `~/.cache`.
        `TIDEMARK_CACHE_MIB` is the size in MiB, and 0 means no cache.

        Raises:
            InvalidInput: The size is not a number of MiB.
        """
        mib = environment.get(CACHE_MIB) or str(USUAL_BYTES // 2**20)
        if not (mib.isascii() and mib.isdecimal() and len(mib) <= _MOST_DIGITS):
            raise InvalidInput(f"{CACHE_MIB} is {quoted(mib)}. Write a number of MiB, or 0 for no cache")
        return CacheSettings(folder=_folder(environment), most_bytes=int(mib) * 2**20)


def _folder(environment: Mapping[str, str]) -> Path | None:
    if named := environment.get(CACHE_DIR):
        return Path(named).absolute()
    home = Path(environment.get(_XDG, ""))
    if home.is_absolute():  # the XDG specification requires that a relative path is ignored
        return home / "tidemark"
    try:
        return Path.home() / ".cache" / "tidemark"
    except RuntimeError:
        return None


# Queries.

LONGEST_QUERY_SECONDS = 7 * 24 * 3600
SMALLEST_MEMORY_BYTES = 16 * 2**20


@checked_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLimits:
    """The limits of one query. If a query exceeds a limit, the query ends with `Unavailable`.

    Tidemark kills the process that answers the query when the time is over. The process may use 1 GiB of memory in
    addition to `memory_bytes` (decision 0024).

    Attributes:
        seconds: The maximum time for the whole answer. It starts when the process has read the query. For a stream, the
            maximum time until the first rows arrive, and between two batches. An answer of `sql` becomes a stream after
            its first 32 MiB.
        memory_bytes: The maximum memory that DuckDB uses for the query, and the maximum size of an `sql` answer that is
            completely in memory.
        spill_bytes: The maximum disk space in a private folder for data that does not fit into memory. A scan does not
            spill.
    """

    seconds: float = 300.0
    memory_bytes: int = 4 * 2**30
    spill_bytes: int = 16 * 2**30

    def __post_init__(self) -> None:
        """Raise `InvalidInput` for an invalid limit."""
        if isinstance(self.seconds, bool) or not isinstance(self.seconds, int | float):
            raise InvalidInput(
                f"the time limit `seconds` is {quoted(self.seconds)}. Give a number of seconds",
                seconds=self.seconds,
            )
        if not 0 < self.seconds <= LONGEST_QUERY_SECONDS:  # NaN is also refused
            raise InvalidInput(
                f"the time limit `seconds` is {quoted(self.seconds)}. Give a number above 0 and at most "
                f"{LONGEST_QUERY_SECONDS}",
                seconds=self.seconds,
            )
        for name, least in (("memory_bytes", SMALLEST_MEMORY_BYTES), ("spill_bytes", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
                raise InvalidInput(
                    f"the limit `{name}` is {quoted(value)}. Give a number of bytes, {least} or more",
                    **{name: value},
                )
