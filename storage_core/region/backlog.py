"""Calls that were given to a writer and are not done: their order, how much they hold, and what is lost with them.

Nothing here waits or locks: `region.group_commit` does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from storage_core.errors import CommitUnknown, Overloaded, TidemarkError
from storage_core.region.options import WriterOptions
from storage_core.rows.earlier_records import conformed
from storage_core.wording import counted


@dataclass(slots=True, eq=False)
class Call:
    """One call: its rows, its number among the calls of this writer, and what has become of it."""

    number: int
    records: pa.Table
    durable: bool
    arrived_ms: int
    size_bytes: int
    done: bool = False
    error: TidemarkError | None = None


@dataclass(slots=True)
class Backlog:
    """The calls that wait for room (`asking`), for their entry (`queue`), and are being written, each in order.

    `unheard` are rows given with `durable=False` that were lost, until an error has told so.
    """

    options: WriterOptions
    asking: deque[Call] = field(default_factory=deque)
    queue: deque[Call] = field(default_factory=deque)
    writing: list[Call] = field(default_factory=list)
    unheard: int = 0
    held_rows: int = 0
    held_bytes: int = 0

    @property
    def taken(self) -> list[Call]:
        """The calls that are taken and not done, in order."""
        return [*self.writing, *self.queue]

    @property
    def unheard_rows(self) -> int:
        """Rows given with `durable=False` that are pending, or lost without anybody being told."""
        pending: int = sum(call.records.num_rows for call in self.taken if not call.durable)
        return self.unheard + pending

    def add(self, call: Call) -> None:
        """Take a call."""
        self.queue.append(call)
        self.held_rows += call.records.num_rows
        self.held_bytes += call.size_bytes

    def begin(self) -> None:
        """Let the calls that come next be written now: at least one, and as many as an entry takes."""
        left = self.options.entry_bytes
        while self.queue and (not self.writing or self.queue[0].size_bytes <= left):
            self.writing.append(self.queue.popleft())
            left -= self.writing[-1].size_bytes

    def entry(self, schema: pa.Schema) -> pa.Table:
        """Return the rows of the calls that are being written, as records of this schema."""
        records = pa.concat_tables([conformed(call.records, schema) for call in self.writing])
        return records.combine_chunks() if len(self.writing) > 1 else records

    def end(self, error: TidemarkError | None, *, now_ms: int) -> None:
        """Tell the calls that were being written what became of them; those that nobody waits for may try again."""
        written, self.writing = self.writing, []
        again = [call for call in written if error is not None and not call.durable]
        for call in written:
            if call not in again:
                self._done(call, error)
        for call in again:
            call.arrived_ms = now_ms
        self.queue.extendleft(reversed(again))

    def drop(self, error: TidemarkError) -> TidemarkError:
        """End every call in the queue with this error, and return it with what is lost by that."""
        rest = [*self.queue]
        self.queue.clear()
        named = _naming(error, [call for call in rest if not call.durable])
        self.unheard += int(str(named.context.get("lost_rows", 0)))
        for call in rest:
            self._done(call, named)
        return named

    def must_wait(self, call: Call) -> bool:
        """Whether there is no room for the call yet."""
        return self._exceeds(self.options.wait_rows, self.options.wait_bytes, [call])

    def must_refuse(self, call: Call) -> bool:
        """Whether there would not even be room for the call to wait in."""
        return self._exceeds(self.options.refuse_rows, self.options.refuse_bytes, [*self.asking, call])

    def overloaded(self, call: Call, bound: str, *, now_ms: int) -> Overloaded:
        """Return the error for a call that met the bound called `wait` or `refuse`."""
        held, given = counted(self.held_rows, "row"), counted(call.records.num_rows, "row")
        rows, size_bytes = (getattr(self.options, f"{bound}_{unit}") for unit in ("rows", "bytes"))
        return Overloaded(
            f"{held} ({self.held_bytes} bytes) given to the writer and not durable yet, {len(self.asking)} calls "
            f"waiting: with the {given} of this call above "
            f"{bound}_rows {rows} or {bound}_bytes {size_bytes}, after {now_ms - call.arrived_ms} ms of waiting "
            f"(wait_ms {self.options.wait_ms}); nothing of this call was written: write it again later",
            bound=bound,
            rows=call.records.num_rows,
        )

    def _exceeds(self, rows: int, size_bytes: int, more: Sequence[Call]) -> bool:
        if not self.held_rows and len(more) == 1:
            return False  # else a call larger than the bound could never be taken
        return (
            self.held_rows + sum(each.records.num_rows for each in more) > rows
            or self.held_bytes + sum(each.size_bytes for each in more) > size_bytes
        )

    def _done(self, call: Call, error: TidemarkError | None) -> None:
        call.done, call.error = True, error
        self.held_rows -= call.records.num_rows
        self.held_bytes -= call.size_bytes


def _naming(error: TidemarkError, lost: Sequence[Call]) -> TidemarkError:
    """The error, with what it means for rows that were given and never reported durable."""
    if not lost:
        return error
    rows, numbers = sum(call.records.num_rows for call in lost), tuple(call.number for call in lost)
    which = f"call {numbers[0]}" if len(numbers) == 1 else f"{len(numbers)} calls from {numbers[0]} to {numbers[-1]}"
    fate = "perhaps not written" if isinstance(error, CommitUnknown) else "not written"
    return error.reworded(
        f"{error.found}; {counted(rows, 'row')} given with durable=False: {fate} ({which} of this writer)",
        lost_rows=rows,
        lost_calls=numbers,
    )
