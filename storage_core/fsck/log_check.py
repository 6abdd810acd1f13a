"""Is every file of the log what it should be: version files, states, manifests, hint (page 02; lessons 30 to 32).

The version files are the truth and the rest is derived, so every state is compared with what the version files say,
as far back as they are retained. The log's own reader does the replay: it is shown a part of the objects only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields

from storage_core.errors import TidemarkError
from storage_core.formats.avro_state import content_id
from storage_core.formats.keys import (
    KeyKind,
    last_checkpoint_key,
    manifest_key,
    parse,
    state_key,
    version_key,
)
from storage_core.fsck.inventory import Inventory, PartOfStore
from storage_core.fsck.report import Finding, Kind, damage_of
from storage_core.log.actions import Action, Add, Remove
from storage_core.log.codec import commit_info, decode_version
from storage_core.log.files import LiveFiles
from storage_core.log.hint import read_hint
from storage_core.log.json_checkpoint import load_json_checkpoint
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot, commit_timestamp
from storage_core.log.stored_state import manifest_keys, read_state
from storage_core.objectstore.contract import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCheck:
    """What is wrong with the log, and what of it is sound: version files, checkpoints (by root key), the head.

    `in_time` are all version files that read, in the order of their commits, also those that lie in another's place.
    """

    findings: tuple[Finding, ...]
    versions: frozenset[int]
    in_time: tuple[int, ...]
    checkpoints: frozenset[str]
    head: Snapshot | None


def check_log(store: ObjectStore, inventory: Inventory) -> LogCheck:
    """Return what the log's files say about each other. Raises `Unavailable` only.

    One GET per version file, manifest and hint, a few per state; the version files behind a state are read once more
    to recompute it. Memory: two snapshots.
    """
    walk = _Versions(store)
    for version in inventory.versions(KeyKind.VERSION):
        walk.read(version)
    roots = checkpoint_roots(inventory)
    walk.note_order()
    walk.note_gaps([_version_of(root) for root in roots])
    checkpoints = _Checkpoints(store, inventory, walk.sound)
    for root in roots:
        checkpoints.check(root)
    findings = [*walk.findings, *_manifests(store, inventory), *checkpoints.findings]
    findings += _hint(store, inventory, roots)
    head: Snapshot | None = None
    try:
        head = TransactionLog(store).snapshot()
        _ = head.schema, head.config, len(head.splits)
    except TidemarkError as error:
        head = None
        findings.append(damage_of(Kind.TABLE_UNREADABLE, error, store.uri, "a table that opens"))
    return LogCheck(
        findings=tuple(findings),
        versions=frozenset(walk.sound),
        in_time=tuple(walk.in_time()),
        checkpoints=frozenset(checkpoints.sound),
        head=head,
    )


def checkpoint_roots(inventory: Inventory) -> list[str]:
    """Return the root keys of all checkpoints, Avro states and JSON ones, by version."""
    roots = [*inventory.of(KeyKind.STATE), *inventory.of(KeyKind.JSON_CHECKPOINT)]
    return [each.key for each in sorted(roots, key=lambda each: (each.version or 0, each.key))]


def part_of_log(store: ObjectStore, *, versions: Collection[int], checkpoints: Collection[str]) -> PartOfStore:
    """Return the store as if only these version files and checkpoints existed, every part of those, and no hint."""

    def shows(key: str) -> bool:
        parsed = parse(key)
        if parsed is None:
            return False
        match parsed.kind:
            case KeyKind.MANIFEST | KeyKind.JSON_CHECKPOINT_PART:
                return True
            case KeyKind.VERSION:
                return parsed.version in versions
            case _:
                return key in checkpoints

    return PartOfStore(store, shows)


def snapshot_differences(expected: Snapshot, found: Snapshot) -> list[str]:
    """Return the names of the fields in which two snapshots of one version differ, however they were loaded."""
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
class _Versions:
    """The version files in order, and what of one speaks against those before it."""

    store: ObjectStore
    findings: list[Finding] = field(default_factory=list)
    sound: list[int] = field(default_factory=list)
    _commits: dict[str, int] = field(default_factory=dict)
    _live: set[str] = field(default_factory=set)
    _times: dict[int, int] = field(default_factory=dict)
    _newest: int = 0
    _seen: list[int] = field(default_factory=list)

    def read(self, version: int) -> None:
        key = version_key(version)
        self._seen.append(version)
        try:
            actions = decode_version(self.store.get(key).data, key)
        except TidemarkError as error:
            self.findings.append(damage_of(Kind.VERSION_DAMAGED, error, key, "a readable version file"))
            self._live.clear()  # whatever it removed may come again
            return
        self.sound.append(version)
        self._check_commit(version, actions)
        self._check_paths(key, actions)

    def in_time(self) -> list[int]:
        """The readable version files by commit time, which grows with every commit."""
        return sorted(self._times, key=lambda version: (self._times[version], version))

    def note_order(self) -> None:
        """A file that is out of order in time lies in another's place: its actions are not those of its number."""
        for version, expected in zip(sorted(self._times), self.in_time(), strict=True):
            if version != expected:
                found = f"a commit of {self._times[version]} ms"
                wanted = f"a commit of {self._times[expected]} ms, as {version_key(expected)} has"
                self._add(Kind.TIME_GOES_BACK, version_key(version), wanted, found)
                self.sound.remove(version)

    def note_gaps(self, checkpoints: list[int]) -> None:
        """Numbers have no gap from the oldest file on; what is below it must be in a checkpoint."""
        newest = max([*self._seen, *checkpoints], default=-1)
        oldest = min(self._seen, default=newest + 1)
        missing = set(range(oldest, newest + 1)) - set(self._seen)
        if oldest > 0 and not any(version >= oldest - 1 for version in checkpoints):
            missing.add(oldest - 1)
        for version in sorted(missing):
            self._add(Kind.VERSION_MISSING, version_key(version), f"versions {oldest} to {newest}", "nothing")

    def _check_commit(self, version: int, actions: list[Action]) -> None:
        key = version_key(version)
        self._times[version] = commit_timestamp(actions, self._newest)
        self._newest = max(self._newest, self._times[version])
        info = commit_info(actions)
        if info is None:
            return
        before = self._commits.setdefault(info.commitId, version)
        if before != version:
            self._add(Kind.COMMIT_TWICE, key, f"commit {info.commitId} once", f"it is version {before} as well")

    def _check_paths(self, key: str, actions: list[Action]) -> None:
        removed = {action.path for action in actions if isinstance(action, Remove)}
        for action in actions:
            # An add of a live path may change its deletion vector, and says so by naming one.
            if isinstance(action, Add) and action.deletionVector is None and action.path in self._live - removed:
                self._add(Kind.PATH_LIVE_TWICE, key, f"{action.path} once", "added while it is live")
        self._live -= removed
        self._live |= {action.path for action in actions if isinstance(action, Add)}

    def _add(self, kind: Kind, key: str, expected: str, found: str) -> None:
        self.findings.append(Finding(kind=kind, key=key, expected=expected, found=found))


@dataclass(slots=True)
class _Checkpoints:
    """Each checkpoint on its own, and against the version files behind the sound one before it."""

    store: ObjectStore
    inventory: Inventory
    versions: list[int]
    findings: list[Finding] = field(default_factory=list)
    sound: list[str] = field(default_factory=list)

    def check(self, root: str) -> None:
        version = _version_of(root)
        try:
            found = self._load(root, version)
            _ = dict(found.splits)  # manifests are read when somebody looks
            wrong = self._against_versions(version, found)
        except TidemarkError as error:
            self.findings.append(damage_of(Kind.STATE_DAMAGED, error, root, "a readable checkpoint"))
            return
        if wrong:
            self._add(Kind.STATE_DISAGREES, root, "what the version files say", f"other {', '.join(wrong)}")
        else:
            self.sound.append(root)

    def _load(self, root: str, version: int) -> Snapshot:
        if root != state_key(version):
            return load_json_checkpoint(self.store, version)
        for each in manifest_keys(read_state(self.store, version)):
            if each not in self.inventory.objects:
                self._add(Kind.MANIFEST_DAMAGED, each, f"the manifest that {root} names", "nothing")
        view = part_of_log(self.store, versions=(), checkpoints=(root,))
        return TransactionLog(view).snapshot(version=version)

    def _against_versions(self, version: int, found: Snapshot) -> list[str]:
        before = self.sound[-1:]
        behind = set(range(_version_of(before[0]) + 1 if before else 0, version + 1))
        if not behind <= set(self.versions):
            return []
        view = part_of_log(self.store, versions=behind, checkpoints=before)
        return snapshot_differences(TransactionLog(view).snapshot(version=version), found)

    def _add(self, kind: Kind, key: str, expected: str, found: str) -> None:
        self.findings.append(Finding(kind=kind, key=key, expected=expected, found=found))


def _manifests(store: ObjectStore, inventory: Inventory) -> Iterator[Finding]:
    expected = "content that hashes to its name"
    for parsed in inventory.of(KeyKind.MANIFEST):
        try:
            found = manifest_key(content_id(store.get(parsed.key).data))
        except TidemarkError as error:
            yield damage_of(Kind.MANIFEST_DAMAGED, error, parsed.key, expected)
            continue
        if found != parsed.key:
            yield Finding(kind=Kind.MANIFEST_DAMAGED, key=parsed.key, expected=expected, found=found)


def _hint(store: ObjectStore, inventory: Inventory, roots: list[str]) -> Iterator[Finding]:
    key = last_checkpoint_key()
    newest = _version_of(roots[-1]) if roots else None
    if key not in inventory.objects:
        if newest is not None:
            yield Finding(kind=Kind.HINT_STALE, key=key, expected=f"version {newest}", found="nothing")
        return
    hinted = read_hint(store)
    if hinted is None:
        yield Finding(kind=Kind.HINT_DAMAGED, key=key, expected="a hint", found="what does not read as one")
    elif hinted.key not in inventory.objects:
        yield Finding(kind=Kind.HINT_AHEAD, key=key, expected="a checkpoint that exists", found=hinted.key)
    elif newest is not None and hinted.version < newest:
        yield Finding(kind=Kind.HINT_STALE, key=key, expected=f"version {newest}", found=f"version {hinted.version}")


def _version_of(root: str) -> int:
    parsed = parse(root)
    return -1 if parsed is None or parsed.version is None else parsed.version
