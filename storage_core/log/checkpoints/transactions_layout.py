"""How the next state holds the transactions: as lines of its root, or which objects stay and which are written.

A policy and nothing else: no requests but the reads of objects that it decides to rewrite. What is new comes as one
small object. When there are many, they are joined with those sorted objects that hold the same stretches of appIds,
and with no others: landed files are named by their time more often than not, so the others are most.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from storage_core.log.actions import Txn
from storage_core.log.listed_transactions import Recorded, TransactionsPart
from storage_core.log.transactions import Transactions

MOST_LINES = 32
"""So many transactions are lines of the root, which every release reads, and cost an opening next to nothing."""

ENTRIES_PER_OBJECT = 50_000
MAX_SMALL_OBJECTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsLayout:
    """The parts that stay as they are, and what to write, an object each: sorted ones, and the newest, which is not.

    Of the parts that stay the sorted ones come first. Without both the transactions are lines of the root.
    """

    kept: tuple[TransactionsPart, ...] = ()
    in_order: list[Recorded] = field(default_factory=list)
    newest: Recorded = field(default_factory=dict)


def transactions_layout(txns: Transactions, *, compact: bool = False) -> TransactionsLayout:
    """Return how to hold the transactions: from what their state holds, or all anew without one or with `compact`."""
    listed = txns.listed
    if listed is None or compact or not listed.is_intact:
        return _anew(txns)
    small = [part for part in listed.parts if not part.info.in_order]
    entries = sum(part.info.num_entries for part in small) + len(txns.recent)
    if len(small) + bool(txns.recent) < MAX_SMALL_OBJECTS and entries <= ENTRIES_PER_OBJECT:
        return TransactionsLayout(kept=listed.parts, newest=txns.recent)
    joined: dict[str, Txn | None] = {}
    for part in small:
        joined.update(part.recorded)
    joined.update(txns.recent)
    return _folded([part for part in listed.parts if part.info.in_order], joined)


def _anew(txns: Transactions) -> TransactionsLayout:
    every = txns.every()
    return TransactionsLayout() if len(every) <= MOST_LINES else TransactionsLayout(in_order=list(_chunks(every)))


def _folded(sorted_parts: Sequence[TransactionsPart], joined: Recorded) -> TransactionsLayout:
    """Put `joined` into the stretches of the sorted parts that it belongs to; the other parts stay."""
    starts = [part.info.least for part in sorted_parts]
    of_part: dict[int, dict[str, Txn | None]] = {}
    for app_id, txn in joined.items():
        of_part.setdefault(max(0, bisect_right(starts, app_id) - 1), {})[app_id] = txn
    kept = tuple(part for number, part in enumerate(sorted_parts) if number not in of_part)
    # Neighbours that are written anew are written as one stretch, or small ones would stay small for ever.
    stretches = groupby(enumerate(sorted(of_part)), key=lambda each: each[1] - each[0])
    written: list[Recorded] = []
    for _, numbers in stretches:
        stretch: dict[str, Txn | None] = {}
        for _, number in numbers:
            stretch.update(sorted_parts[number].recorded if sorted_parts else {})
            stretch.update(of_part[number])
        written += _chunks({app_id: txn for app_id, txn in stretch.items() if txn is not None})
    return TransactionsLayout(kept=kept, in_order=written)


def _chunks(every: Recorded) -> Iterator[Recorded]:
    """Yield the transactions in their order, an object each, as even as they come."""
    ordered = sorted(every)
    count = -(-len(ordered) // ENTRIES_PER_OBJECT)
    edges = [len(ordered) * number // count for number in range(count + 1)] if count else []
    for start, end in pairwise(edges):
        yield {app_id: every[app_id] for app_id in ordered[start:end]}
