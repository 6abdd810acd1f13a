"""What was read or decoded once and may be needed again: the values that were used last, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from storage_core.cache.pieces import NOT_CACHED, CachedPieces
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of
from storage_core.process import OwnLock

KEPT_BYTES: Final = 128 * 2**20
"""Per table: a million rows of sixty bytes and the hashes of their keys; four megabytes of a search for ten rows."""

_SIDE_BY_SIDE = 16

_Name = tuple[object, ...]
_Value = TypeVar("_Value")


class KeptValues:
    """Values by names that fix what they are, at most `most_bytes` of them. Threads may share one.

    What is fetched to make them goes through `cached`, where something vouches for its bytes.
    """

    def __init__(self, most_bytes: int = KEPT_BYTES, cached: CachedPieces = NOT_CACHED) -> None:
        self.cached = cached
        self._most = most_bytes
        self._lock = OwnLock()
        self._kept: dict[_Name, tuple[object, int]] = {}  # the one used last is the last
        self._bytes = 0

    def copy(self) -> KeptValues:
        """Return one that holds the same values for now. What either keeps from then on, the other does not."""
        other = KeptValues(self._most)
        with self._lock:
            other._kept, other._bytes = dict(self._kept), self._bytes
        return other

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
        self,
        names: Sequence[_Name],
        kind: type[_Value],
        make: Callable[[int], _Value],
        size: Callable[[_Value], int],
        *,
        at_hand: Callable[[int], _Value | None] = lambda _: None,
    ) -> list[_Value]:
        """Return the value of each of these names, as `made` does; `make` is given places in `names`, side by side.

        It makes those that `at_hand`, which waits for nothing and is given places too, returns None for.
        """
        found = [self.get(name) for name in names]
        absent = [number for number, value in enumerate(found) if not isinstance(value, kind)]
        made = {number: value for number in absent if (value := at_hand(number)) is not None}
        absent = [number for number in absent if number not in made]
        made |= zip(absent, all_of(make, absent, _SIDE_BY_SIDE), strict=True)
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


def is_near(store: ObjectStore, key: str, kept: KeptValues) -> bool:
    """Return whether the objects of the store are files of this machine, which one that is there tells. No request.

    Reading such a file waits for nothing, and a thread beside it costs more than it saves.
    """
    return kept.made(("near", store.uri), bool, lambda: store.local_path(key) is not None, lambda _: 1)


NOTHING: Final = KeptValues(0)
"""A cache that keeps nothing."""
