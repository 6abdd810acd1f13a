"""Names that are given more than once, in time linear in their number: what is judged may be somebody else's text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once, each once, in the order in which they came first."""
    return [name for name, times in Counter(names).items() if times > 1]
