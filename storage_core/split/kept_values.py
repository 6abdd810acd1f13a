"""What was read or decoded once and may be needed again: the values that were used last, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from storage_core.objectstore.prefetch import all_of
from storage_core.process import OwnLock

KEPT_BYTES: Final = 128 * 2**20
"""Per table: a million rows of sixty bytes and the hashes of their keys; four megabytes of a search for ten rows."""

_SIDE_BY_SIDE = 16

_Name = tuple[object, ...]
_Value = TypeVar("_Value")


class KeptValues:
    """Values by names that fix what they are, at most `most_bytes` of them. Threads may share one."""

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self._most = most_bytes
        self._lock = OwnLock()
        self._kept: dict[_Name, tuple[object, int]] = {}  # the one used last is the last
        self._bytes = 0

    def get(self, name: _Name) -> object | None:
        """Return the value, or None where it is not kept, or no longer."""
        with self._lock:
            found = self._kept.pop(name, None)
            if found is None:
                return None
            self._kept[name] = found
            return found[0]

    def made(
        self, name: _Name, kind: type[_Value], make: Callable[[], _Value], size: Callable[[_Value], int]
    ) -> _Value:
        """Return the value of this name and kind: what is kept, else what `make` returns, which is kept then."""
        found = self.get(name)
        if not isinstance(found, kind):
            found = make()
            self.keep(name, found, size(found))
        return found

    def made_all(
        self, names: Sequence[_Name], kind: type[_Value], make: Callable[[int], _Value], size: Callable[[_Value], int]
    ) -> list[_Value]:
        """Return the value of each of these names, as `made` does; `make` is given places in `names`, side by side."""
        found = [self.get(name) for name in names]
        absent = [number for number, value in enumerate(found) if not isinstance(value, kind)]
        made = dict(zip(absent, all_of(make, absent, _SIDE_BY_SIDE), strict=True))
        for number, value in made.items():
            self.keep(names[number], value, size(value))
        return [value if isinstance(value, kind) else made[number] for number, value in enumerate(found)]

    def keep(self, name: _Name, value: object, size: int) -> None:
        """Keep a value of `size` bytes, unless that is too large, and of the others those used last."""
        if size >= self._most:
            return
        with self._lock:
            self._bytes += size - self._kept.pop(name, (None, 0))[1]
            self._kept[name] = (value, size)
            while self._bytes > self._most:
                _, gone = self._kept.pop(next(iter(self._kept)))
                self._bytes -= gone


NOTHING: Final = KeptValues(0)
"""A cache that keeps nothing."""
