"""What one query may use: time, memory, and room on disk for what does not fit into memory."""

from __future__ import annotations

from dataclasses import dataclass

from storage_core.arguments import checked_fields
from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted

LONGEST_QUERY_SECONDS = 7 * 24 * 3600
SMALLEST_MEMORY_BYTES = 16 * 2**20


@checked_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLimits:
    """The limits of one query; what passes one ends with `Unavailable`, which names it.

    `seconds` bounds the whole answer, from the moment at which its process has read the question; of a stream, the time
    to the first rows and from each batch to the next. An answer of `sql` is a stream after its first 32 MiB.
    `memory_bytes` bounds what DuckDB keeps for the query, and an answer of `sql` that is held whole. What does not fit
    is spilled, up to `spill_bytes`, to a private folder; a scan spills nothing.

    The process that answers is killed when the time is over, and may take 1 GiB beside `memory_bytes` (decision
    0098).
    """

    seconds: float = 300.0
    memory_bytes: int = 4 * 2**30
    spill_bytes: int = 16 * 2**30

    def __post_init__(self) -> None:
        """Raise `InvalidInput` for a limit that is none."""
        if isinstance(self.seconds, bool) or not isinstance(self.seconds, int | float):
            raise InvalidInput(f"seconds of a query are a number, found {quoted(self.seconds)}", seconds=self.seconds)
        if not 0 < self.seconds <= LONGEST_QUERY_SECONDS:  # also of what is not a number
            raise InvalidInput(
                f"a query takes more than 0 and at most {LONGEST_QUERY_SECONDS} seconds, found {quoted(self.seconds)}",
                seconds=self.seconds,
            )
        for name, least in (("memory_bytes", SMALLEST_MEMORY_BYTES), ("spill_bytes", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
                raise InvalidInput(
                    f"{name} of a query are at least {least} bytes, found {quoted(value)}", **{name: value}
                )
