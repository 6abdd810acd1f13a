"""Which work a job's own process executes, because that takes less than starting Spark for it (decision 0166)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted

SPARK = "TIDEMARK_SPARK"
DRIVER_MIB = "TIDEMARK_DRIVER_MIB"
DRIVER_ITEMS = "TIDEMARK_DRIVER_ITEMS"

_MOST_DIGITS = 9


class SparkUse(StrEnum):
    """When work items are Spark tasks: `auto` where they are more than small work, or `always`."""

    AUTO = "auto"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallWork:
    """What a job executes in its own process at most, in all: bytes of input, and items. 0 of either is nothing."""

    use: SparkUse = SparkUse.AUTO
    most_bytes: int = 64 * 2**20
    most_items: int = 32

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> SmallWork:
        """Return what `TIDEMARK_SPARK`, `TIDEMARK_DRIVER_MIB` and `TIDEMARK_DRIVER_ITEMS` say, the usual without them.

        Raises `InvalidInput` for what is none of their values.
        """
        use, known = environment.get(SPARK) or SparkUse.AUTO.value, [each.value for each in SparkUse]
        if use not in known:
            raise InvalidInput(f"{SPARK} is {' or '.join(known)}; found {quoted(use)}")
        usual = cls()
        return cls(
            use=SparkUse(use),
            most_bytes=_whole(environment, DRIVER_MIB, usual.most_bytes // 2**20) * 2**20,
            most_items=_whole(environment, DRIVER_ITEMS, usual.most_items),
        )


class DriverShare:
    """How much of the small work of a job is left. Threads may share it."""

    def __init__(self, most: SmallWork) -> None:
        self._lock = threading.Lock()
        self._bytes: float = most.most_bytes
        self._items = most.most_items
        self._is_open = most.use is SparkUse.AUTO

    def fits(self, input_bytes: float, items: int) -> bool:
        """Return whether so much could be taken now."""
        return self._is_open and input_bytes <= self._bytes and items <= self._items

    def take(self, input_bytes: float, items: int) -> bool:
        """Take so much and return True where it fits; else return False, and take nothing."""
        with self._lock:
            if not self.fits(input_bytes, items):
                return False
            self._bytes, self._items = self._bytes - input_bytes, self._items - items
            return True


def _whole(environment: Mapping[str, str], name: str, usual: int) -> int:
    text = environment.get(name) or str(usual)
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise InvalidInput(f"{name} is a whole number, 0 for none; found {quoted(text)}")
    return int(text)
