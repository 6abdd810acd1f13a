"""The selection of wanted runs that fit the budgets. The most urgent runs come first (decision 0037).

Ingests and merges make new rows visible, so they are called runs for fresh data. If the sensor knows the number of
bytes that an ingest or a merge reads, these bytes count against the budgets. However, these runs wait only for a free
slot in the queue. All other runs wait during quiet hours. Runs that are not for fresh data also wait until their
budgets have enough bytes left.

A large compaction is split into pieces. A compaction run may read the bytes that are left in the budget, and it
processes all pieces that fit into these bytes. The run starts only if at least a quarter of the budget is left. A run
that has waited for an hour starts even if less than a quarter of the budget is left. Two kinds of large pieces have
special rules:

- If a piece needs more than half of a budget, the budget is reserved for this piece after one hour.
- If a piece is larger than a budget, it runs alone, and only when no bytes of the budget are used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.tables import size
from storage_core.base.text import counted, first_of
from storage_core.change.declaration_file import load_optional
from storage_core.change.declaration_parts import Budgeted, UpkeepOfAllDeclaration
from storage_core.compact.pending_work import within

if TYPE_CHECKING:
    from pipelines.maintenance.due_runs import WantedRun

UPKEEP = "upkeep.yaml"
ALL = "all tables"
SAVED_UP_SECONDS = 3600
LEAST_PART = 4
"""A part of a compaction must read at least one fourth of the budget. A part that has waited for an hour may read less.

The reason for this limit is that each start has a cost.
"""

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Deferred:
    """A wanted run that must wait, with the reason."""

    wanted: WantedRun
    why: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The runs to request, and the runs that wait. The two lists of runs begin with the most urgent run."""

    chosen: Sequence[WantedRun]
    deferred: Sequence[Deferred] = ()

    def only(self, kept: Sequence[WantedRun]) -> Choice:
        """Return a choice that requests only these runs. All other chosen runs wait for a free slot."""
        places = {id(each) for each in kept}
        rest = [Deferred(each, "room for runs") for each in self.chosen if id(each) not in places]
        return Choice(kept, [*self.deferred, *rest])

    def __str__(self) -> str:
        """Return a text with the number of requested runs, and with the waiting runs by reason."""
        if not self.chosen and not self.deferred:
            return "nothing to ask for"
        waiting: defaultdict[str, list[str]] = defaultdict(list)
        for each in self.deferred:
            waiting[each.why].append(f"{each.wanted.declaration.name} {each.wanted.job}")
        named = (f"{', '.join(map(str, first_of(names, _MOST_NAMED)))}: {why}" for why, names in waiting.items())
        deferred = [f"{counted(len(self.deferred), 'step')} waiting ({'; '.join(named)})"] if self.deferred else []
        return ", ".join([f"{counted(len(self.chosen), 'step')} requested", *deferred])


def read_upkeep_of_all(root: Path | None) -> UpkeepOfAllDeclaration:
    """Return the settings in `upkeep.yaml` of this folder.

    If the file is missing, there are no limits. Raises the errors of `load_as`.
    """
    return load_optional(UpkeepOfAllDeclaration, root / UPKEEP) if root else UpkeepOfAllDeclaration()


def choose(
    wanted: Sequence[WantedRun],
    of_all: UpkeepOfAllDeclaration,
    *,
    spent: Mapping[str, int],
    now_ms: int,
    since_ms: MutableMapping[str, int],
) -> Choice:
    """Return the wanted runs that fit the budgets.

    Args:
        wanted: The runs.
        of_all: The budget of all tables.
        spent: The used bytes of each table (`runs.spent_bytes`).
        now_ms: The current time in milliseconds.
        since_ms: For each table with a large piece, the time at which this piece began to wait. The caller passes the
            same mapping to each call.
    """
    budgets = _Budgets(of_all, spent, now_ms, since_ms)
    chosen, deferred = list["WantedRun"](), list[Deferred]()
    for each in sorted(wanted, key=lambda one: one.rank):
        found = budgets.granted(each)
        if isinstance(found, str):
            deferred.append(Deferred(each, found))
        else:
            chosen.append(found)
    return Choice(chosen, deferred)


def quiet(name: str, own: Budgeted, of_all: Budgeted, now_ms: int) -> str | None:
    """Return a text about the quiet hours that include this time, or None.

    The text contains the quiet hours. The text also contains the name of the table if the quiet hours belong to one
    table, or `all tables`.
    """
    found = ((who, each) for who, each in ((name, own), (ALL, of_all)) if each.is_quiet(now_ms))
    return next((f"quiet_hours {each.quiet_hours} of {who}" for who, each in found), None)


@dataclass(slots=True)
class BudgetState:
    """The state of one budget. `max_bytes` is the limit per hour. Runs have used `used_bytes` of this limit.

    If `is_saved` is set, the remaining bytes are reserved for one piece.
    """

    of: str
    max_bytes: int
    used_bytes: int
    is_saved: bool = False

    @property
    def remaining_bytes(self) -> int:
        """The number of bytes that may still be granted."""
        return 0 if self.is_saved else max(0, self.max_bytes - self.used_bytes)

    def takes(self, piece: int) -> bool:
        """Return whether the piece may begin, because it fits or because it would run alone."""
        return piece <= self.remaining_bytes or not (self.used_bytes or self.is_saved)

    def defers(self, read_bytes: int) -> bool:
        """Return whether a run that reads this number of bytes must wait.

        The run waits if it does not fit and no worthwhile part of it fits.
        """
        return self.remaining_bytes < read_bytes and self.remaining_bytes * LEAST_PART < self.max_bytes

    def __str__(self) -> str:
        """Return a text that shows the used part of the budget."""
        saved = ", the rest is reserved for a large step" if self.is_saved else ""
        return f"bytes_per_hour of {self.of}, {size(self.used_bytes)} of {size(self.max_bytes)} used{saved}"


class _Budgets:
    """The budgets of all tables, from which the sensor assigns bytes to one wanted run after the other."""

    def __init__(
        self,
        of_all: UpkeepOfAllDeclaration,
        spent: Mapping[str, int],
        now_ms: int,
        since_ms: MutableMapping[str, int],
    ) -> None:
        self._of_all, self._spent, self._now_ms, self._since_ms = of_all, spent, now_ms, since_ms
        most = of_all.bytes_per_hour
        self._limits = {} if most is None else {ALL: BudgetState(ALL, most, sum(spent.values()))}

    def granted(self, wanted: WantedRun) -> WantedRun | str:
        """Return the run with its granted bytes. If the run must wait, return the reason."""
        name, own = wanted.declaration.name, wanted.declaration.upkeep
        if not wanted.is_fresh_data and (why := quiet(name, own, self._of_all, self._now_ms)):
            return why
        limits = self._limits_of(name, own)
        if not limits or not wanted.due.bytes:
            return wanted
        granted = wanted.due.bytes if wanted.is_fresh_data else self._fitting(wanted, limits)
        if not granted:
            return str(min(limits, key=lambda each: each.remaining_bytes))
        for each in limits:
            each.used_bytes += granted
        return replace(wanted, granted_bytes=granted)

    def _limits_of(self, name: str, own: Budgeted) -> list[BudgetState]:
        if own.bytes_per_hour is not None and name not in self._limits:
            self._limits[name] = BudgetState(name, own.bytes_per_hour, self._spent.get(name, 0))
        return [self._limits[each] for each in (name, ALL) if each in self._limits]

    def _fitting(self, wanted: WantedRun, limits: Sequence[BudgetState]) -> int:
        """Return the number of bytes that a run may read now, or 0.

        A run that can be split gets 25 % more bytes, for rows that land in the meantime.
        """
        pieces = wanted.due.pieces or (wanted.due.bytes,)
        most, left = min(each.max_bytes for each in limits), min(each.remaining_bytes for each in limits)
        if self._is_saved_up_for(wanted.declaration.name, max(pieces), most):
            needed = max(pieces) if _begins(max(pieces), limits) else 0
        else:
            least = 0 if wanted.is_late else most / LEAST_PART
            needed = _part(pieces, most, left, least) or (max(pieces) if _alone(pieces, most, limits) else 0)
        if needed >= max(pieces):
            self._since_ms.pop(wanted.declaration.name, None)
        if not wanted.due.pieces:
            return needed
        more = needed + needed // 4
        return min(more, left) if needed <= left else more

    def _is_saved_up_for(self, name: str, piece: int, most: int) -> bool:
        if 2 * piece <= most:
            self._since_ms.pop(name, None)
            return False
        return self._now_ms - self._since_ms.setdefault(name, self._now_ms) >= SAVED_UP_SECONDS * 1000


def _begins(piece: int, limits: Sequence[BudgetState]) -> bool:
    """Return whether the budgets allow a waiting piece to run now.

    If a budget does not allow the piece, reserve the rest of this budget for the piece.
    """
    short = [each for each in limits if not each.takes(piece)]
    for each in short:
        each.is_saved = True
    return not short


def _part(pieces: Sequence[int], most: int, left: int, least: float) -> int:
    """Return the total bytes of the pieces that fit into `left` bytes, or 0.

    The function returns the total bytes if they reach `least`, the smallest size for which a run starts. A piece with
    more than `most` bytes never fits. The function also returns a smaller total if all pieces up to `most` bytes fit.
    """
    fitting = sum(pieces[place] for place in within(pieces, left))
    is_all = fitting == sum(piece for piece in pieces if piece <= most)
    return fitting if is_all or fitting >= least else 0


def _alone(pieces: Sequence[int], most: int, limits: Sequence[BudgetState]) -> bool:
    """Return whether all pieces are larger than `max_bytes`, and the budgets allow the largest piece to run now."""
    return min(pieces) > most and all(each.takes(max(pieces)) for each in limits)
