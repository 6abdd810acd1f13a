"""Is every version file the one that its name says, and what of it speaks against those before it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from storage_core.formats.keys import version_key
from storage_core.fsck.report import DAMAGE, Finding, Kind, damage_of
from storage_core.log.actions import Action, Add, Metadata, Protocol, Remove
from storage_core.log.encoding.codec import commit_info, decode_version, require_number
from storage_core.log.snapshot import commit_timestamp
from storage_core.objectstore.contract import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadVersion:
    """A version file that reads: the number under which it lies, that of its commit, and the commit's time in ms.

    `number` is None for a file of early 0.1, which does not say its number, in another's place.
    """

    place: int
    number: int | None
    timestamp: int
    commit_id: str | None


def missing_versions(gap: range, expected: str) -> Finding:
    """Return the one finding for versions that follow each other and are all missing; its key is that of the first."""
    found = "nothing" if len(gap) == 1 else f"nothing up to version {gap[-1]}"
    return Finding(kind=Kind.VERSION_MISSING, key=version_key(gap[0]), expected=expected, found=found)


@dataclass(slots=True)
class VersionWalk:
    """The version files in order. `sound` lie in their own places; the others that read are evidence at most.

    `named` are the splits that any of them adds or removes, `missing` the gaps between them, once those are noted.
    """

    store: ObjectStore
    findings: list[Finding] = field(default_factory=list)
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    named: set[str] = field(default_factory=set)
    missing: list[range] = field(default_factory=list)
    _in_place: dict[int, ReadVersion] = field(default_factory=dict)
    _strays: list[ReadVersion] = field(default_factory=list)
    _seen: list[int] = field(default_factory=list)
    _commits: dict[str, int] = field(default_factory=dict)
    _live: set[str] = field(default_factory=set)
    _newest: int = 0

    @property
    def sound(self) -> list[int]:
        """The versions whose files are what was written, ascending."""
        return list(self._in_place)

    def read(self, version: int) -> None:
        """Take the next version file. One GET."""
        key = version_key(version)
        self._seen.append(version)
        actions: list[Action] = []
        try:
            actions = decode_version(self.store.get(key).data, key)
            self.named |= {each.path for each in actions if isinstance(each, Add | Remove)}
            require_number(actions, version)
        except DAMAGE as error:
            self.findings.append(damage_of(Kind.VERSION_DAMAGED, error, key, "a readable version file"))
            self._live.clear()  # whatever it removed may come again
            if actions:
                self._strays.append(self._read_version(version, actions))
            return
        self._in_place[version] = self._read_version(version, actions)
        self._newest = max(self._newest, self._in_place[version].timestamp)
        self.metadata = next((each for each in reversed(actions) if isinstance(each, Metadata)), self.metadata)
        self.protocol = next((each for each in actions if isinstance(each, Protocol)), self.protocol)
        self._check_commit(version)
        self._check_paths(key, actions)

    def note_order(self) -> None:
        """Commit times only grow: a file whose time does not fit between the others is another version's."""
        times = [each.timestamp for each in self._in_place.values()]
        wrong = [version for version, fits in zip(self._in_place, _fitting(times), strict=True) if not fits]
        for version in wrong:
            stray = self._in_place.pop(version)
            self._strays.append(stray)
            wanted = "a commit later than those of the versions before it, earlier than those behind it"
            self._add(Kind.TIME_GOES_BACK, version_key(version), wanted, f"a commit of {stray.timestamp} ms")

    def note_gaps(self, checkpoints: list[int]) -> None:
        """Numbers have no gap from the oldest file on; what is below it must be in a checkpoint.

        One finding per gap, however wide: the number of a stray file may be anything.
        """
        newest = max([*self._seen, *checkpoints], default=-1)
        oldest = min(self._seen, default=newest + 1)
        bounds = [*sorted(self._seen), newest + 1] if self._seen else []
        self.missing += [range(low + 1, high) for low, high in pairwise(bounds) if low + 1 < high]
        if oldest > 0 and not any(version >= oldest - 1 for version in checkpoints):
            self.missing.insert(0, range(oldest - 1, oldest))
        self.findings += [missing_versions(gap, f"versions {oldest} to {newest}") for gap in self.missing]

    def in_time(self) -> Iterator[ReadVersion]:
        """Yield every commit that reads, once, in order: of copies of a file the one in its own place."""
        found = {each.place: each.commit_id for each in self._in_place.values()}
        commits = set(found.values())
        own = [replace(each, number=each.place) for each in self._in_place.values()]
        strays: list[ReadVersion] = []
        for each in self._strays:
            if each.commit_id not in commits and each.number not in found:
                strays.append(each)
                commits.add(each.commit_id)
        yield from sorted([*own, *strays], key=lambda each: (each.timestamp, each.place))

    def _read_version(self, version: int, actions: Sequence[Action]) -> ReadVersion:
        info = commit_info(actions)
        return ReadVersion(
            place=version,
            number=None if info is None else info.version,
            timestamp=commit_timestamp(actions, self._newest),
            commit_id=None if info is None else info.commitId,
        )

    def _check_commit(self, version: int) -> None:
        commit = self._in_place[version].commit_id
        if commit is None:
            return
        before = self._commits.setdefault(commit, version)
        if before != version:
            found = f"it is version {before} as well"
            self._add(Kind.COMMIT_TWICE, version_key(version), f"commit {commit} once", found)

    def _check_paths(self, key: str, actions: Sequence[Action]) -> None:
        removed = {action.path for action in actions if isinstance(action, Remove)}
        for action in actions:
            # An add of a live path may change its deletion vector, and says so by naming one.
            if isinstance(action, Add) and action.deletionVector is None and action.path in self._live - removed:
                self._add(Kind.PATH_LIVE_TWICE, key, f"{action.path} once", "added while it is live")
        self._live -= removed
        self._live |= {action.path for action in actions if isinstance(action, Add)}

    def _add(self, kind: Kind, key: str, expected: str, found: str) -> None:
        self.findings.append(Finding(kind=kind, key=key, expected=expected, found=found))


def _fitting(times: Sequence[int]) -> Iterator[bool]:
    """Yield which of the times are in every longest growing choice of them.

    A copy in another's place is in none, and of two that changed places one is in some only: neither is believed.
    """
    up = _growing(times)
    down = _growing([-time for time in reversed(times)])[::-1]
    longest = max(up, default=0)
    at = [length if length + rest == longest + 1 else 0 for length, rest in zip(up, down, strict=True)]
    alone = Counter(at)
    yield from (length > 0 and alone[length] == 1 for length in at)


def _growing(times: Iterable[int]) -> list[int]:
    """Return how long a growing choice can be that ends at each of the times."""
    ends: list[int] = []
    lengths: list[int] = []
    for time in times:
        at = bisect_left(ends, time)
        ends[at : at + 1] = [time]
        lengths.append(at + 1)
    return lengths
