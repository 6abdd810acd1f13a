"""Check every file of the log: version files, states, manifests and the hint (lessons 30 to 32).

The version files are the source of truth, and all other files are derived from them. Every state is compared with the
retained version files. The usual reader of the log replays the version files for this comparison. The reader sees only
a part of the objects (`PartOfStore`).

A split contains the version of its plan. A split can therefore show that a version existed although its file is
missing. A repair keeps the longest part of the log that opens (`kept_part`) unchanged. The versions in this kept part
still need the splits that they reference.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.base.errors import InvalidInput, NotFound, Unsupported, raise_refused
from storage_core.data.formats.avro_state import content_id
from storage_core.data.formats.documents import CheckpointKind
from storage_core.data.formats.keys import last_checkpoint_key, manifest_key, parse, progress_key, version_key
from storage_core.data.formats.kinds import PARTS_OF_CHECKPOINTS, KeyKind
from storage_core.log.actions import Action, Add, Metadata, Protocol, Remove, is_ours
from storage_core.log.checkpoint import load_json_checkpoint, named_keys
from storage_core.log.codec import commit_info, decode_version, require_number
from storage_core.log.listing import Checkpointed, read_hint
from storage_core.log.live_splits import LiveFiles
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot, commit_timestamp
from storage_core.maintain.findings import DAMAGE, Finding, Findings, Kind, Unread, damage_of, try_read
from storage_core.maintain.history import renumbered_up_to
from storage_core.maintain.table_objects import Listing
from storage_core.split.metadata import FileOrigin, read_origin, require_checksum
from storage_core.split.verification import entries_of
from storage_core.store.contract import Blob, ObjectFile, ObjectInfo, ObjectStore, PutMode, PutResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadVersion:
    """A readable version file: the number in its key (`place`), the number of its commit, and the commit's time in ms.

    Version files of early 0.1 releases do not contain their version number. `number` is None if a file of an early 0.1
    release is stored under the key of another version.
    """

    place: int
    number: int | None
    timestamp: int
    commit_id: str | None


def missing_versions(gap: range, expected: str) -> Finding:
    """Return the finding for a gap of consecutive missing versions.

    The key of the finding is the key of the first missing version.
    """
    found = "nothing" if len(gap) == 1 else f"versions up to {gap[-1]} are missing"
    return Finding(kind=Kind.VERSION_MISSING, key=version_key(gap[0]), expected=expected, found=found)


@dataclass(slots=True)
class VersionWalk:
    """The version files in order.

    - `sound`: versions with a file under the right key. Files under a wrong key are used only as evidence of which
      versions existed.
    - `named`: splits that any of the files adds or removes.
    - `missing`: gaps between the files. Filled by `note_gaps`.
    """

    store: ObjectStore
    findings: Findings = field(default_factory=Findings)
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
    def valid_versions(self) -> list[int]:
        """The versions with a valid file under their own key, ascending."""
        return list(self._in_place)

    def read(self, version: int) -> None:
        """Read the next version file. One GET."""
        key = version_key(version)
        self._seen.append(version)
        actions: list[Action] = []
        try:
            actions = decode_version(self.store.get(key).data, key)
            self.named |= {each.path for each in actions if isinstance(each, Add | Remove)}
            require_number(actions, version)
        except DAMAGE as error:
            self.findings.every.append(damage_of(Kind.VERSION_DAMAGED, error, key, "a readable version file"))
            self._live.clear()  # splits that the damaged version removed may be added again
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
        """Add a finding for each file whose commit time is not between the times of its neighbouring versions.

        Commit times only grow, so such a file belongs to another version.
        """
        times = [each.timestamp for each in self._in_place.values()]
        wrong = [version for version, fits in zip(self._in_place, _fitting(times), strict=True) if not fits]
        for version in wrong:
            stray = self._in_place.pop(version)
            self._strays.append(stray)
            wanted = "a commit time between those of the earlier and the later versions"
            self.findings.add(Kind.TIME_GOES_BACK, version_key(version), wanted, f"a commit of {stray.timestamp} ms")

    def note_gaps(self, checkpoints: list[int]) -> None:
        """Add a finding for each gap between version files. A checkpoint must cover the versions below the oldest file.

        One finding covers a whole gap, because the number of a misplaced file can be very large.
        """
        newest = max([*self._seen, *checkpoints], default=-1)
        oldest = min(self._seen, default=newest + 1)
        bounds = [*sorted(self._seen), newest + 1] if self._seen else []
        self.missing += [range(low + 1, high) for low, high in pairwise(bounds) if low + 1 < high]
        if oldest > 0 and not any(version >= oldest - 1 for version in checkpoints):
            self.missing.insert(0, range(oldest - 1, oldest))
        self.findings.every += [missing_versions(gap, f"versions {oldest} to {newest}") for gap in self.missing]

    def in_time(self) -> Iterator[ReadVersion]:
        """Yield every readable commit once, in order. If a commit has several files, yield the file under the key of
        its own version.
        """
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
            found = f"version {before} contains the same commit"
            self.findings.add(Kind.COMMIT_TWICE, version_key(version), f"commit {commit} once", found)

    def _check_paths(self, key: str, actions: Sequence[Action]) -> None:
        removed = {action.path for action in actions if isinstance(action, Remove)}
        for action in actions:
            # An add of a live path can change its deletion vector. Such an add has a deletion vector. An add of a live
            # path without a deletion vector is a fault.
            if isinstance(action, Add) and action.deletionVector is None and action.path in self._live - removed:
                self.findings.add(Kind.PATH_LIVE_TWICE, key, f"{action.path} once", "added while the path is live")
        self._live -= removed
        self._live |= {action.path for action in actions if isinstance(action, Add)}


def _fitting(times: Sequence[int]) -> Iterator[bool]:
    """Yield True for each time that is in every longest increasing subsequence of the times, else False.

    If a file is a copy under the key of another version, its time breaks the ascending order, so the result is False.
    If two files are swapped, some longest increasing subsequence lacks the time of each swapped file, so the result is
    False. The check does not trust a copied or swapped file.
    """
    up = _growing(times)
    down = _growing([-time for time in reversed(times)])[::-1]
    longest = max(up, default=0)
    at = [length if length + rest == longest + 1 else 0 for length, rest in zip(up, down, strict=True)]
    alone = Counter(at)
    yield from (length > 0 and alone[length] == 1 for length in at)


def _growing(times: Iterable[int]) -> list[int]:
    """Return for each time the length of the longest increasing subsequence that ends at this time."""
    ends: list[int] = []
    lengths: list[int] = []
    for time in times:
        at = bisect_left(ends, time)
        ends[at : at + 1] = [time]
        lengths.append(at + 1)
    return lengths


# Findings for a log that follows the rules of another program. These findings report only faults that prevent a reader
# from reading the log.
_OF_READING = frozenset({Kind.VERSION_DAMAGED, Kind.STATE_DAMAGED, Kind.NEWER_FORMAT})


@dataclass(frozen=True, slots=True)
class VersionEvidence:
    """The newest version at which any split was planned, and the path of that split."""

    version: int
    path: str


def newest_evidence(
    store: ObjectStore, listing: Listing, named: Collection[str], metadata: Metadata | None
) -> VersionEvidence | None:
    """Return the newest version recorded in splits outside the log, or None if no split contains a version.

    The function ignores unreadable splits, and splits of a table that is not the table of `metadata`. The function also
    ignores splits that were planned before a repair renumbered the versions.

    Cost:
        A few ranged GETs for the footer of each split.
    """
    table_id, after = (None, -1) if metadata is None else (metadata.id, renumbered_up_to(metadata.configuration))
    unnamed = [parsed.key for parsed in listing.of(KeyKind.SPLIT) if parsed.key not in named]
    found = newest_planned(store, listing, unnamed, table_id)
    return None if found is None or found.version <= after else found


def newest_planned(
    store: ObjectStore, listing: Listing, paths: Iterable[str], table_id: str | None
) -> VersionEvidence | None:
    """Return the split with the newest plan version, of one table or of any table.

    Return None if no split has a version.

    Cost:
        A few ranged GETs for the footer of each split.
    """
    found: VersionEvidence | None = None
    for path in paths:
        origin = _origin(store, path, listing.objects[path].size)
        # A number above the greatest number of the log is not a valid version.
        if origin is None or table_id not in (None, origin.table_id) or not 0 <= origin.planned_version < 2**63:
            continue
        if found is None or origin.planned_version > found.version:
            found = VersionEvidence(origin.planned_version, path)
    return found


def lost_versions(newest: int, evidence: VersionEvidence | None) -> range:
    """Return the missing versions after `newest`, up to the newest version that a split records."""
    return range(newest + 1, newest + 1 if evidence is None else max(newest, evidence.version) + 1)


def _origin(store: ObjectStore, path: str, size: int) -> FileOrigin | None:
    try:
        metadata = entries_of(pq.read_metadata(ObjectFile(store, path, size)), path)
        require_checksum(metadata, path)
        return read_origin(metadata, path)
    except (*DAMAGE, pa.ArrowException, MemoryError, OSError, UnicodeDecodeError) as error:
        raise_refused(path, error)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCheck:
    """The result of a log check: the findings, and the valid version files, checkpoints and head.

    - `missing`: versions that should have a file. The versions are given as ranges, because the number of a misplaced
      file can be large.
    - `in_time`: all readable commits in order, including commits whose file has the key of another version.
    - `newest`: the highest version that occurs in a key, in the hint or in a split. It is -1 if no version occurs.
    - `is_ours`: True if the log follows all rules of Tidemark, False if it follows only the rules of its format.
    """

    findings: tuple[Finding, ...]
    versions: frozenset[int]
    missing: tuple[range, ...]
    in_time: tuple[ReadVersion, ...]
    checkpoints: frozenset[Checkpointed]
    head: Snapshot | None
    newest: int
    is_ours: bool


def check_log(store: ObjectStore, listing: Listing) -> LogCheck:
    """Compare the files of the log with each other and return the findings. Raises only `Unavailable`.

    For a log without the writer feature `tidemark`, the check reports only faults that stop a reader of the log.

    Cost:
        One GET per version file, manifest and hint. A few GETs per state, and per split that no version file names. The
        version files after a state are read again to recompute the state. Memory: two snapshots and the paths of all
        splits.
    """
    walk = VersionWalk(store)
    for version in listing.versions(KeyKind.VERSION):
        walk.read(version)
    found = listing.checkpoints()
    walk.note_order()
    walk.note_gaps([each.version for each in found])
    hinted = read_hint(store)
    head, unreadable = _head(store)
    known = [*listing.versions(KeyKind.VERSION), *(each.version for each in (*found, hinted) if each is not None)]
    newest = max(known, default=-1)
    protocol = walk.protocol if head is None else head.protocol
    ours = protocol is None or is_ours(protocol)
    checkpoints = _Checkpoints(store, listing, walk.valid_versions if ours else [])
    for each in found:
        checkpoints.check(each)
    named = walk.named | ({*head.splits} if head is not None else set())
    metadata = walk.metadata if head is None else head.metadata
    evidence = newest_evidence(store, listing, named, metadata) if ours and newest >= 0 else None
    # The head was opened after the listing. A running writer may have committed versions since the listing. These
    # versions are not lost.
    lost = lost_versions(newest if head is None else max(newest, head.version), evidence)
    findings = [*walk.findings.every, *_planned_on(lost, evidence), *_manifests(store, listing)]
    findings += [*checkpoints.findings.every, *_hint(hinted, listing, found)]
    if not ours:
        findings = [each for each in findings if each.kind in (_OF_READING if head is None else {Kind.NEWER_FORMAT})]
    return LogCheck(
        findings=(*findings, *unreadable),
        versions=frozenset(walk.valid_versions),
        missing=(*walk.missing, lost) if lost else tuple(walk.missing),
        in_time=tuple(walk.in_time()),
        checkpoints=frozenset(checkpoints.valid),
        head=head,
        newest=newest if evidence is None else max(newest, evidence.version),
        is_ours=ours,
    )


def _planned_on(lost: range, evidence: VersionEvidence | None) -> Iterator[Finding]:
    if evidence is not None and lost:
        yield missing_versions(lost, f"this version, because {evidence.path} was planned on version {evidence.version}")


class PartOfStore:
    """A read-only view of a store with only the objects for which `shows` returns True.

    A log reader that gets this view treats all other objects as missing.
    """

    def __init__(self, store: ObjectStore, shows: Callable[[str], bool]) -> None:
        self._store = store
        self._shows = shows

    @property
    def uri(self) -> str:
        """The URI of the wrapped store."""
        return self._store.uri

    def get(self, key: str) -> Blob:
        """Return an object of this view. Raises `NotFound`."""
        return self._store.get(self._shown(key))

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes of an object of this view. Raises `NotFound`."""
        return self._store.get_range(self._shown(key), start, end)

    def head(self, key: str) -> ObjectInfo:
        """Return the metadata of a shown object. Raises `NotFound`."""
        return self._store.head(self._shown(key))

    def put(self, key: str, data: bytes | memoryview, mode: PutMode) -> PutResult:
        """Raise `InvalidInput`, because the view is read-only."""
        del data, mode
        raise InvalidInput(f"{key}: this view of {self.uri} is read-only", key=key)

    def make_durable(self, key: str) -> None:
        """Make an object of this view durable."""
        self._store.make_durable(self._shown(key))

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield the objects of a listing that belong to this view."""
        return (info for info in self._store.list(prefix, start_after) if self._shows(info.key))

    def delete(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        """Raise `InvalidInput`, because the view is read-only."""
        raise InvalidInput(f"{list(keys)[:3]}: this view of {self.uri} is read-only")

    def local_path(self, key: str) -> Path | None:
        """Return the local path of an object, if the view contains the object."""
        return self._store.local_path(key) if self._shows(key) else None

    def _shown(self, key: str) -> str:
        if not self._shows(key):
            raise NotFound(f"{key}: no such object", key=key)
        return key


def part_of_log(store: ObjectStore, *, versions: Collection[int], checkpoints: Collection[Checkpointed]) -> PartOfStore:
    """Return a view of the store without a hint.

    The view has only these version files, and these checkpoints with their parts.
    """
    roots = {each.key for each in checkpoints}

    def shows(key: str) -> bool:
        parsed = parse(key)
        if parsed is None or parsed.kind is not KeyKind.VERSION:
            return key in roots or (parsed is not None and parsed.kind in PARTS_OF_CHECKPOINTS)
        return parsed.version in versions

    return PartOfStore(store, shows)


def snapshot_differences(expected: Snapshot, found: Snapshot) -> list[str]:
    """Return the names of the fields that differ between two snapshots of one version.

    The result does not depend on the way in which the snapshots were loaded.
    """
    return [
        each.name
        for each in fields(Snapshot)
        if each.compare and _plain(getattr(expected, each.name)) != _plain(getattr(found, each.name))
    ]


def _plain(value: object) -> object:
    if isinstance(value, LiveFiles):
        return {path: (add, value.added_at(path)) for path, add in value.items()}
    return dict(value) if isinstance(value, Mapping) else value


@dataclass(slots=True)
class _Checkpoints:
    """Check of each checkpoint.

    A checkpoint is checked alone, and against the version files after the last valid checkpoint.
    """

    store: ObjectStore
    listing: Listing
    versions: list[int]
    findings: Findings = field(default_factory=Findings)
    valid: list[Checkpointed] = field(default_factory=list)

    def check(self, checkpoint: Checkpointed) -> None:
        what = "a readable checkpoint"
        wrong = self.findings.unwrap(
            try_read(checkpoint.key, what, lambda: self._wrong(checkpoint)), Kind.STATE_DAMAGED
        )
        if wrong:
            self.findings.add(
                Kind.STATE_DISAGREES, checkpoint.key, "the content of the version files", f"other {', '.join(wrong)}"
            )
        elif wrong is not None:
            self.valid.append(checkpoint)

    def _wrong(self, checkpoint: Checkpointed) -> list[str]:
        """Return the fields in which a checkpoint differs from the version files."""
        found = self._load(checkpoint)
        _ = dict(found.splits), dict(found.txns)  # otherwise splits and transactions would load at first use
        return self._against_versions(checkpoint.version, found)

    def _load(self, checkpoint: Checkpointed) -> Snapshot:
        if checkpoint.kind is not CheckpointKind.AVRO_STATE:
            return load_json_checkpoint(self.store, checkpoint.version)
        for each in named_keys(self.store, checkpoint):
            if each not in self.listing.objects:
                self.findings.add(Kind.MANIFEST_DAMAGED, each, f"the manifest that {checkpoint.key} uses", "nothing")
        view = part_of_log(self.store, versions=(), checkpoints=(checkpoint,))
        return TransactionLog(view).snapshot(version=checkpoint.version)

    def _against_versions(self, version: int, found: Snapshot) -> list[str]:
        before = self.valid[-1:]
        first = before[0].version + 1 if before else 0
        behind = {each for each in self.versions if first <= each <= version}
        if len(behind) != version + 1 - first:
            return []
        view = part_of_log(self.store, versions=behind, checkpoints=before)
        try:
            replayed = TransactionLog(view).snapshot(version=version, unfinished=True)
            return snapshot_differences(replayed, found)
        except DAMAGE:
            return []  # damage of the version files is not damage of this checkpoint


def _head(store: ObjectStore) -> tuple[Snapshot | None, list[Finding]]:
    """Open the table and load all data for readers. Otherwise manifests would be loaded at their first use."""
    try:
        head = TransactionLog(store).snapshot(unfinished=True)
        _ = head.schema, head.config, head.splits.values(), head.txns.items()
    except DAMAGE as error:
        return None, [damage_of(Kind.TABLE_UNREADABLE, error, store.uri, "a table that opens")]
    return head, []


def _manifests(store: ObjectStore, listing: Listing) -> Iterator[Finding]:
    expected = "content that hashes to its name"
    named = [*((each, manifest_key) for each in listing.of(KeyKind.MANIFEST))]
    for parsed, key_of in [*named, *((each, progress_key) for each in listing.of(KeyKind.PROGRESS))]:
        data = try_read(parsed.key, expected, partial(store.get, parsed.key))
        if isinstance(data, Unread):
            yield data.finding(Kind.MANIFEST_DAMAGED)
        elif (found := key_of(content_id(data.data))) != parsed.key:
            yield Finding(kind=Kind.MANIFEST_DAMAGED, key=parsed.key, expected=expected, found=found)


def _hint(hinted: Checkpointed | None, listing: Listing, checkpoints: list[Checkpointed]) -> Iterator[Finding]:
    key = last_checkpoint_key()
    newest = checkpoints[-1].version if checkpoints else None
    if key not in listing.objects:
        if newest is not None:
            yield Finding(kind=Kind.HINT_STALE, key=key, expected=f"version {newest}", found="nothing")
        return
    if hinted is None:
        yield Finding(kind=Kind.HINT_DAMAGED, key=key, expected="a hint", found="content that is not a hint")
    elif hinted.key not in listing.objects:
        yield Finding(kind=Kind.HINT_AHEAD, key=key, expected="a checkpoint that exists", found=hinted.key)
    elif newest is not None and hinted.version < newest:
        yield Finding(kind=Kind.HINT_STALE, key=key, expected=f"version {newest}", found=f"version {hinted.version}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreservedLog:
    """The part of the log that a repair keeps unchanged, with its oldest and newest snapshots."""

    versions: tuple[int, ...]
    checkpoints: tuple[Checkpointed, ...]
    oldest: Snapshot
    snapshot: Snapshot

    @property
    def first(self) -> int:
        """The oldest version that still opens."""
        return self.oldest.version


def kept_part(store: ObjectStore, check: LogCheck) -> PreservedLog | None:
    """Return the longest part of the log that can be opened, or None.

    The part ends at the highest reachable version, and starts as early as possible. If the newest version can be
    opened, the longest part ends at the newest version. Raises `Unsupported` for a log of a newer release.

    Cost:
        The requests of opening two versions, for each attempt.
    """
    bases = {-1, *(each.version for each in check.checkpoints)}
    reached = [(_reach(base, check.versions), base) for base in bases]
    for furthest, base in sorted(reached, key=lambda each: (-each[0], each[1])):
        if furthest >= 0 and (found := _opened(store, check, (base, furthest))) is not None:
            return found
    return None


def _opened(store: ObjectStore, check: LogCheck, stretch: tuple[int, int]) -> PreservedLog | None:
    first, last = max(stretch[0], 0), stretch[1]
    versions = tuple(version for version in sorted(check.versions) if first <= version <= last)
    within = [each for each in check.checkpoints if first <= each.version <= last]
    checkpoints = tuple(sorted(within, key=lambda each: each.key))
    view = part_of_log(store, versions=versions, checkpoints=checkpoints)
    try:
        log = TransactionLog(view)
        snapshot, oldest = log.snapshot(unfinished=True), log.snapshot(version=first, unfinished=True)
        _ = snapshot.schema, snapshot.config, snapshot.splits.values(), oldest.splits.values()
    except Unsupported:
        raise
    except DAMAGE:
        return None
    return PreservedLog(versions=versions, checkpoints=checkpoints, oldest=oldest, snapshot=snapshot)


def _reach(base: int, versions: frozenset[int]) -> int:
    while base + 1 in versions:
        base += 1
    return base


def older_splits(store: ObjectStore, check: LogCheck) -> list[Add]:
    """Return the splits that only older versions reference. Reads the versions that can still be opened.

    Cost:
        The requests of opening two versions, and one GET per version file. Memory: an action per split.
    """
    kept = kept_part(store, check)
    if kept is None:
        return []
    named = dict(kept.oldest.splits)
    for version in kept.versions:
        for action in actions_of(store, version):
            if isinstance(action, Add):
                named.setdefault(action.path, action)
    live = set(kept.snapshot.splits)
    return [add for path, add in named.items() if path not in live]


def actions_of(store: ObjectStore, version: int) -> list[Action]:
    """Return the actions of a version file, even if the file contains another number. One GET.

    Raises `NotFound` and `Corrupt`.
    """
    return decode_version(store.get(version_key(version)).data, version_key(version))
