"""What requests cost: the table of prices by which reports and materializations count."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from storage_core.errors import InvalidInput

_WRITES: Final = ("put", "list")
_READS: Final = ("get", "head")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a store charges: for 1,000 requests that write or list, for 1,000 that read, and for a GiB and month.

    The defaults are those of S3 Standard in us-east-1 when this was written, in dollars.
    """

    put: float = 0.005
    get: float = 0.0004
    storage: float = 0.023

    def of(self, requests: Mapping[str, int]) -> float:
        """Return the price of requests by kind; deletes are free."""
        writes, reads = (sum(requests.get(kind, 0) for kind in kinds) for kinds in (_WRITES, _READS))
        return (writes * self.put + reads * self.get) / 1000


def read_prices(text: str) -> Prices:
    """Return the prices of `put=0.005,get=0.0004,storage=0.023`; what is left out is the default.

    Raises `InvalidInput`.
    """
    found: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, price = part.partition("=")
        try:
            found[name.strip()] = float(price)
        except ValueError:
            raise InvalidInput(f"{part!r} is no price; write it as put=0.005") from None
    try:
        prices = Prices(**found)
    except TypeError:
        raise InvalidInput(f"there are the prices put, get and storage, found {', '.join(found)}") from None
    if not all(0 <= each < math.inf for each in found.values()):
        raise InvalidInput(f"{text!r}: a price is a number, and not below zero")
    return prices
