"""Names of numbered objects: 64 characters, least significant bit first.

Consecutive numbers differ in the first character, so a store that partitions by key prefix spreads them evenly. The
price is that a listing is not in order of the numbers, which no reader relies on (docs/architecture/README.md, rule 2).
"""

from __future__ import annotations

import re

from storage_core.errors import InvalidInput

BITS = 64
MAX_NUMBER = 2**BITS - 1

_NAME = re.compile(r"[01]{64}", re.ASCII)


def reversed_name(number: int) -> str:
    """Return the name of `number`, 1 to 2**64 - 1. Zero means "nothing yet" and has no name: `InvalidInput`."""
    if not 1 <= number <= MAX_NUMBER:
        raise InvalidInput(f"numbered objects start at 1 and end at 2**64 - 1, found {number}", number=number)
    return format(number, "064b")[::-1]


def number_of(name: str) -> int:
    """Return the number that `reversed_name` gave this name. Raises `InvalidInput` for anything else."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"expected 64 characters, each 0 or 1, found {name!r}", name=name)
    number = int(name[::-1], 2)
    if number == 0:
        raise InvalidInput("64 zeros name nothing: numbered objects start at 1", name=name)
    return number
