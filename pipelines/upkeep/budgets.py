"""Which of the wanted runs are asked for: the most urgent first, and no more than the budgets leave (decision 0169).

Ingests and merges bring fresh data: what is known of their bytes counts, but they wait for room in the queue only. Any
other run waits in quiet hours, and until its bytes are left.

A large compaction is cut: it gets the bytes that are left, if these are a quarter of the budget or it waited for an
hour, and takes as many pieces. A piece that needs more than half of a budget is saved up for once it waited for an
hour; one that is larger than a budget begins when nothing of that is used, and is alone then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.quantities import size
from storage_core.compaction.next_run import within
from storage_core.declaration_file import load_optional
from storage_core.declaration_upkeep import Budgeted, UpkeepOfAllDeclaration
from storage_core.wording import counted, first_of

if TYPE_CHECKING:
    from pipelines.upkeep.wanted import Wanted

UPKEEP = "upkeep.yaml"
ALL = "all tables"
SAVED_UP_SECONDS = 3600
LEAST_PART = 4
"""A part of a compaction that is not late needs a quarter of the budget: each run costs a start."""

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Deferred:
    """A wanted run that waits, and for what."""

    wanted: Wanted
    why: str


@dataclass(frozen=True, slots=True)
class Choice:
    """What to ask for, and what waits, each the most urgent first."""

    chosen: Sequence[Wanted]
    deferred: Sequence[Deferred] = ()

    def only(self, kept: Sequence[Wanted]) -> Choice:
        """Return the choice of these; the rest waits for room."""
        places = {id(each) for each in kept}
        rest = [Deferred(each, "room for runs") for each in self.chosen if id(each) not in places]
        return Choice(kept, [*self.deferred, *rest])

    def __str__(self) -> str:
        """Say what is asked for and what waits, by what it waits for."""
        if not self.chosen and not self.deferred:
            return "nothing to ask for"
        waiting: defaultdict[str, list[str]] = defaultdict(list)
        for each in self.deferred:
            waiting[each.why].append(f"{each.wanted.declaration.name} {each.wanted.job}")
        named = (f"{', '.join(map(str, first_of(names, _MOST_NAMED)))}: {why}" for why, names in waiting.items())
        deferred = [f"{counted(len(self.deferred), 'step')} waiting ({'; '.join(named)})"] if self.deferred else []
        return ", ".join([f"{counted(len(self.chosen), 'step')} asked for", *deferred])


def read_upkeep_of_all(root: Path | None) -> UpkeepOfAllDeclaration:
    """Return what `upkeep.yaml` of this folder declares; without the file no bounds. Raises what `load_as` raises."""
    return load_optional(UpkeepOfAllDeclaration, root / UPKEEP) if root else UpkeepOfAllDeclaration()


def choose(
    wanted: Sequence[Wanted],
    of_all: UpkeepOfAllDeclaration,
    *,
    spent: Mapping[str, int],
    now_ms: int,
    since_ms: MutableMapping[str, int],
) -> Choice:
    """Return what the budgets leave of it. `spent` are the bytes that count, by table (`spent.spent_bytes`).

    `since_ms` remembers from one choice to the next since when tables have a piece that may have to be saved up for.
    """
    budgets = _Budgets(of_all, spent, now_ms, since_ms)
    chosen, deferred = list["Wanted"](), list[Deferred]()
    for each in sorted(wanted, key=lambda one: one.rank):
        found = budgets.granted(each)
        if isinstance(found, str):
            deferred.append(Deferred(each, found))
        else:
            chosen.append(found)
    return Choice(chosen, deferred)


def quiet(name: str, own: Budgeted, of_all: Budgeted, now_ms: int) -> str | None:
    """Return in whose quiet hours this is, or None."""
    found = ((who, each) for who, each in ((name, own), (ALL, of_all)) if each.is_quiet(now_ms))
    return next((f"quiet_hours {each.quiet_hours} of {who}" for who, each in found), None)


@dataclass(slots=True)
class Limit:
    """What one budget leaves: `most` bytes an hour of which so many are spent, all for one piece where `is_saved`."""

    of: str
    most: int
    spent: int
    is_saved: bool = False

    @property
    def left(self) -> int:
        """Bytes that may be granted."""
        return 0 if self.is_saved else max(0, self.most - self.spent)

    def takes(self, piece: int) -> bool:
        """Whether the piece may begin: it fits, or is alone."""
        return piece <= self.left or not (self.spent or self.is_saved)

    def defers(self, read_bytes: int) -> bool:
        """Whether a run that reads so much waits: neither it nor a part of it that is worth a start fits."""
        return self.left < read_bytes and self.left * LEAST_PART < self.most

    def __str__(self) -> str:
        """Say how much of it is used."""
        saved = ", the rest is saved for a large piece" if self.is_saved else ""
        return f"bytes_per_hour of {self.of}, {size(self.spent)} of {size(self.most)} used{saved}"


class _Budgets:
    """Grants bytes to one wanted run after the other."""

    def __init__(
        self,
        of_all: UpkeepOfAllDeclaration,
        spent: Mapping[str, int],
        now_ms: int,
        since_ms: MutableMapping[str, int],
    ) -> None:
        self._of_all, self._spent, self._now_ms, self._since_ms = of_all, spent, now_ms, since_ms
        most = of_all.bytes_per_hour
        self._limits = {} if most is None else {ALL: Limit(ALL, most, sum(spent.values()))}

    def granted(self, wanted: Wanted) -> Wanted | str:
        """Return the run with the bytes that it was granted, or what it waits for."""
        name, own = wanted.declaration.name, wanted.declaration.upkeep
        if not wanted.is_fresh_data and (why := quiet(name, own, self._of_all, self._now_ms)):
            return why
        limits = self._limits_of(name, own)
        if not limits or not wanted.due.bytes:
            return wanted
        granted = wanted.due.bytes if wanted.is_fresh_data else self._fitting(wanted, limits)
        if not granted:
            return str(min(limits, key=lambda each: each.left))
        for each in limits:
            each.spent += granted
        return replace(wanted, granted_bytes=granted)

    def _limits_of(self, name: str, own: Budgeted) -> list[Limit]:
        if own.bytes_per_hour is not None and name not in self._limits:
            self._limits[name] = Limit(name, own.bytes_per_hour, self._spent.get(name, 0))
        return [self._limits[each] for each in (name, ALL) if each in self._limits]

    def _fitting(self, wanted: Wanted, limits: Sequence[Limit]) -> int:
        """The bytes that a run may read now, or 0; what can be cut gets a quarter more, for what lands meanwhile."""
        pieces = wanted.due.pieces or (wanted.due.bytes,)
        most, left = min(each.most for each in limits), min(each.left for each in limits)
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


def _begins(piece: int, limits: Sequence[Limit]) -> bool:
    """Whether a piece that was waited for begins; else what is left is saved for it."""
    short = [each for each in limits if not each.takes(piece)]
    for each in short:
        each.is_saved = True
    return not short


def _part(pieces: Sequence[int], most: int, left: int, least: float) -> int:
    """The bytes of the pieces that fit, if they are all that ever fit, or enough for a run of their own; else 0."""
    fitting = sum(pieces[place] for place in within(pieces, left))
    is_all = fitting == sum(piece for piece in pieces if piece <= most)
    return fitting if is_all or fitting >= least else 0


def _alone(pieces: Sequence[int], most: int, limits: Sequence[Limit]) -> bool:
    """Whether there is nothing but pieces that are larger than a budget, and one may begin."""
    return min(pieces) > most and all(each.takes(max(pieces)) for each in limits)
