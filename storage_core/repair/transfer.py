"""Sound objects from a damaged table into its new place, each verified on the way (lessons 60 and 61)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

import xxhash

from storage_core.errors import CommitConflict
from storage_core.formats.keys import KeyKind, parse
from storage_core.fsck.inventory import Inventory
from storage_core.fsck.report import DAMAGE
from storage_core.log.actions import Add, IndexSegment, Translation
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_once
from storage_core.repair.outcome import Lost, Recovered
from storage_core.split.vectors import deleted_rows

_KINDS: Mapping[type[object], KeyKind] = {
    Add: KeyKind.SPLIT,
    IndexSegment: KeyKind.SEGMENT,
    Translation: KeyKind.TRANSLATION,
}


@dataclass(slots=True)
class Transfer:
    """Objects on their way; `target` None verifies and writes nothing. Remembers what it found elsewhere or not at all.

    One GET per object and one PUT, and one GET more per object of equal size when one is not what it should be. One
    object is in memory at a time.
    """

    source: ObjectStore
    target: ObjectStore | None
    inventory: Inventory
    recovered: list[Recovered] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    _done: dict[str, bool] = field(default_factory=dict)

    def place(self, named: Add | IndexSegment | Translation) -> bool:
        """Bring over the split, segment or translation; return False when no object holds what the log says of it.

        An object that lies under the key of another one of its kind is found by its size and checksum. A split stays
        behind when its deletion vector is lost: rows that were deleted would come back.
        """
        if isinstance(named, Add) and not self.has_vector(named):
            return False
        if named.path not in self._done:
            self._done[named.path] = self._placed(named)
        return self._done[named.path]

    def place_all(self, *named: Iterable[Add | IndexSegment | Translation]) -> None:
        """Bring over what of these is there."""
        for each in chain.from_iterable(named):
            self.place(each)

    def has_vector(self, add: Add) -> bool:
        """Tell whether the rows of the split that are deleted are known."""
        try:
            deleted_rows(self.source, add)
        except DAMAGE:
            return False
        return True

    @property
    def placed(self) -> list[str]:
        """The splits that were brought over, in order."""
        parsed = {key: parse(key) for key, done in self._done.items() if done}
        return sorted(key for key, each in parsed.items() if each is not None and each.kind is KeyKind.SPLIT)

    def copy(self, key: str) -> None:
        """Bring over an object that is known to be sound. Raises `NotFound`."""
        self._put(key, self.source.get(key).data)

    def copy_if(self, key: str, check: Callable[[], object]) -> None:
        """Bring over an object that `check` reads without an error; else it is lost."""
        try:
            check()
        except DAMAGE as error:
            self.lost.append(Lost(key=key, reason=error.found))
        else:
            self.copy(key)

    def _placed(self, named: Add | IndexSegment | Translation) -> bool:
        for key in self._places(named):
            data = self.source.get(key).data
            if named.xxh3 is None or xxhash.xxh3_64_hexdigest(data) == named.xxh3:
                self._put(named.path, data)
                if key != named.path:
                    self.recovered.append(Recovered(key=named.path, how=f"it lay under {key}"))
                return True
        return False

    def _places(self, named: Add | IndexSegment | Translation) -> Iterator[str]:
        """The object itself, then, where checksums tell one from another, those of its kind and size."""
        own = self.inventory.objects.get(named.path)
        if own is not None and own.size == named.size:
            yield named.path
        if named.xxh3 is None:
            return
        for parsed in self.inventory.of(_KINDS[type(named)]):
            if parsed.key != named.path and self.inventory.objects[parsed.key].size == named.size:
                yield parsed.key

    def _put(self, key: str, data: bytes) -> None:
        if self.target is None:
            return
        if not create_once(self.target, key, data, advice="repair into another location"):
            raise CommitConflict(f"{key}: somebody else writes into {self.target.uri}; repair into another", key=key)
