"""Where a process keeps bytes that it read from elsewhere than a local disk, and how many (decision 0105)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted

USUAL_BYTES: Final = 2 * 2**30
CACHE_DIR: Final = "TIDEMARK_CACHE_DIR"
CACHE_MIB: Final = "TIDEMARK_CACHE_MIB"

_XDG = "XDG_CACHE_HOME"
_MOST_DIGITS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """The folder of the cache and what it may take on disk; without a folder, and with 0 bytes, there is none."""

    folder: Path | None
    most_bytes: int = USUAL_BYTES

    @property
    def is_on(self) -> bool:
        """Whether there is a cache."""
        return self.folder is not None and self.most_bytes > 0

    @staticmethod
    def of(environment: Mapping[str, str]) -> CacheSettings:
        """Return what the environment says: `TIDEMARK_CACHE_DIR`, and `TIDEMARK_CACHE_MIB`, 0 for no cache.

        Else the folder is `tidemark` in `XDG_CACHE_HOME`, or in `~/.cache`. Raises `InvalidInput` for what is no number
        of MiB.
        """
        mib = environment.get(CACHE_MIB) or str(USUAL_BYTES // 2**20)
        if not (mib.isascii() and mib.isdecimal() and len(mib) <= _MOST_DIGITS):
            raise InvalidInput(f"{CACHE_MIB} is a number of MiB, 0 for no cache; found {quoted(mib)}")
        return CacheSettings(folder=_folder(environment), most_bytes=int(mib) * 2**20)


def _folder(environment: Mapping[str, str]) -> Path | None:
    if named := environment.get(CACHE_DIR):
        return Path(named).absolute()
    home = Path(environment.get(_XDG, ""))
    if home.is_absolute():  # the XDG specification has every other path ignored
        return home / "tidemark"
    try:
        return Path.home() / ".cache" / "tidemark"
    except RuntimeError:
        return None
