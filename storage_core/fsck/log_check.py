"""Is every file of the log what it should be: version files, states, manifests, hint (lessons 30 to 32).

The version files are the truth and the rest is derived, so every state is compared with what the version files say,
as far back as they are retained. The log's own reader does the replay: it is shown a part of the objects only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields

from storage_core.formats.avro_state import content_id
from storage_core.formats.hint import CheckpointKind
from storage_core.formats.keys import KeyKind, last_checkpoint_key, manifest_key, parse, progress_key
from storage_core.fsck.inventory import Inventory, PartOfStore
from storage_core.fsck.report import DAMAGE, Finding, Kind, damage_of
from storage_core.fsck.version_check import ReadVersion, VersionWalk, missing_versions
from storage_core.fsck.version_evidence import VersionEvidence, lost_versions, newest_evidence
from storage_core.log.actions import is_ours
from storage_core.log.checkpoints.checkpointed import Checkpointed
from storage_core.log.checkpoints.hint import read_hint
from storage_core.log.checkpoints.root import named_keys
from storage_core.log.files.live import LiveFiles
from storage_core.log.interop.json_checkpoint import load_json_checkpoint
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore

# What can be wrong with a log that keeps others' rules: that its reader cannot read it.
_OF_READING = frozenset({Kind.VERSION_DAMAGED, Kind.STATE_DAMAGED, Kind.NEWER_FORMAT})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCheck:
    """What is wrong with the log, and what of it is sound: version files, checkpoints, the head.

    `missing` are the versions that have no file and should, as ranges, for a stray number may be anything.
    `in_time` are all commits that read, in their order, also those whose files lie in another's place. `newest` is
    the highest version that any key, the hint or a split speaks of, -1 without one. `is_ours` tells that the log
    keeps all rules of Tidemark's, rather than those of its format only.
    """

    findings: tuple[Finding, ...]
    versions: frozenset[int]
    missing: tuple[range, ...]
    in_time: tuple[ReadVersion, ...]
    checkpoints: frozenset[Checkpointed]
    head: Snapshot | None
    newest: int
    is_ours: bool


def check_log(store: ObjectStore, inventory: Inventory) -> LogCheck:
    """Return what the log's files say about each other. Raises `Unavailable` only.

    Of a log that others keep by their own rules (no writer feature `tidemark`) only what keeps a reader from reading
    it. One GET per version file, manifest and hint, a few per state and per split that no version file names; the
    version files behind a state are read once more to recompute it. Memory: two snapshots and the paths of all splits.
    """
    walk = VersionWalk(store)
    for version in inventory.versions(KeyKind.VERSION):
        walk.read(version)
    found = checkpoints_in(inventory)
    walk.note_order()
    walk.note_gaps([each.version for each in found])
    hinted = read_hint(store)
    head, unreadable = _head(store)
    known = [*inventory.versions(KeyKind.VERSION), *(each.version for each in (*found, hinted) if each is not None)]
    newest = max(known, default=-1)
    protocol = walk.protocol if head is None else head.protocol
    ours = protocol is None or is_ours(protocol)
    checkpoints = _Checkpoints(store, inventory, walk.sound if ours else [])
    for each in found:
        checkpoints.check(each)
    named = walk.named | ({*head.splits} if head is not None else set())
    metadata = walk.metadata if head is None else head.metadata
    evidence = newest_evidence(store, inventory, named, metadata) if ours and newest >= 0 else None
    # The head was opened after the listing: what a running writer committed meanwhile is not lost.
    lost = lost_versions(newest if head is None else max(newest, head.version), evidence)
    findings = [*walk.findings, *_planned_on(lost, evidence), *_manifests(store, inventory)]
    findings += [*checkpoints.findings, *_hint(hinted, inventory, found)]
    if not ours:
        findings = [each for each in findings if each.kind in (_OF_READING if head is None else {Kind.NEWER_FORMAT})]
    return LogCheck(
        findings=(*findings, *unreadable),
        versions=frozenset(walk.sound),
        missing=(*walk.missing, lost) if lost else tuple(walk.missing),
        in_time=tuple(walk.in_time()),
        checkpoints=frozenset(checkpoints.sound),
        head=head,
        newest=newest if evidence is None else max(newest, evidence.version),
        is_ours=ours,
    )


def _planned_on(lost: range, evidence: VersionEvidence | None) -> Iterator[Finding]:
    if evidence is not None and lost:
        yield missing_versions(lost, f"a version, as {evidence.path} was planned on version {evidence.version}")


def checkpoints_in(inventory: Inventory) -> list[Checkpointed]:
    """Return all checkpoints, Avro states and JSON ones, by version; in parts or not, JSON is `JSON`."""
    found = [each for parsed in inventory.parsed.values() if (each := Checkpointed.at(parsed)) is not None]
    return sorted(found, key=lambda each: (each.version, each.key))


def part_of_log(store: ObjectStore, *, versions: Collection[int], checkpoints: Collection[Checkpointed]) -> PartOfStore:
    """Return the store as if only these version files and checkpoints existed, every part of those, and no hint."""
    roots = {each.key for each in checkpoints}

    def shows(key: str) -> bool:
        parsed = parse(key)
        if parsed is None:
            return False
        match parsed.kind:
            case KeyKind.MANIFEST | KeyKind.PROGRESS | KeyKind.JSON_CHECKPOINT_PART:
                return True
            case KeyKind.VERSION:
                return parsed.version in versions
            case _:
                return key in roots

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
class _Checkpoints:
    """Each checkpoint on its own, and against the version files behind the sound one before it."""

    store: ObjectStore
    inventory: Inventory
    versions: list[int]
    findings: list[Finding] = field(default_factory=list)
    sound: list[Checkpointed] = field(default_factory=list)

    def check(self, checkpoint: Checkpointed) -> None:
        try:
            found = self._load(checkpoint)
            _ = dict(found.splits), dict(found.txns)  # which are read when somebody looks
            wrong = self._against_versions(checkpoint.version, found)
        except DAMAGE as error:
            self.findings.append(damage_of(Kind.STATE_DAMAGED, error, checkpoint.key, "a readable checkpoint"))
            return
        if wrong:
            self._add(Kind.STATE_DISAGREES, checkpoint.key, "what the version files say", f"other {', '.join(wrong)}")
        else:
            self.sound.append(checkpoint)

    def _load(self, checkpoint: Checkpointed) -> Snapshot:
        if checkpoint.kind is not CheckpointKind.AVRO_STATE:
            return load_json_checkpoint(self.store, checkpoint.version)
        for each in named_keys(self.store, checkpoint):
            if each not in self.inventory.objects:
                self._add(Kind.MANIFEST_DAMAGED, each, f"the manifest that {checkpoint.key} names", "nothing")
        view = part_of_log(self.store, versions=(), checkpoints=(checkpoint,))
        return TransactionLog(view).snapshot(version=checkpoint.version)

    def _against_versions(self, version: int, found: Snapshot) -> list[str]:
        before = self.sound[-1:]
        first = before[0].version + 1 if before else 0
        behind = {each for each in self.versions if first <= each <= version}
        if len(behind) != version + 1 - first:
            return []
        view = part_of_log(self.store, versions=behind, checkpoints=before)
        try:
            replayed = TransactionLog(view).snapshot(version=version, unfinished=True)
            return snapshot_differences(replayed, found)
        except DAMAGE:
            return []  # what is wrong with those files is no word against this one

    def _add(self, kind: Kind, key: str, expected: str, found: str) -> None:
        self.findings.append(Finding(kind=kind, key=key, expected=expected, found=found))


def _head(store: ObjectStore) -> tuple[Snapshot | None, list[Finding]]:
    """Open the table and read all that a reader may come to read of it: manifests are read when somebody looks."""
    try:
        head = TransactionLog(store).snapshot(unfinished=True)
        _ = head.schema, head.config, head.splits.values(), head.txns.items()
    except DAMAGE as error:
        return None, [damage_of(Kind.TABLE_UNREADABLE, error, store.uri, "a table that opens")]
    return head, []


def _manifests(store: ObjectStore, inventory: Inventory) -> Iterator[Finding]:
    expected = "content that hashes to its name"
    named = [*((each, manifest_key) for each in inventory.of(KeyKind.MANIFEST))]
    for parsed, key_of in [*named, *((each, progress_key) for each in inventory.of(KeyKind.PROGRESS))]:
        try:
            found = key_of(content_id(store.get(parsed.key).data))
        except DAMAGE as error:
            yield damage_of(Kind.MANIFEST_DAMAGED, error, parsed.key, expected)
            continue
        if found != parsed.key:
            yield Finding(kind=Kind.MANIFEST_DAMAGED, key=parsed.key, expected=expected, found=found)


def _hint(hinted: Checkpointed | None, inventory: Inventory, checkpoints: list[Checkpointed]) -> Iterator[Finding]:
    key = last_checkpoint_key()
    newest = checkpoints[-1].version if checkpoints else None
    if key not in inventory.objects:
        if newest is not None:
            yield Finding(kind=Kind.HINT_STALE, key=key, expected=f"version {newest}", found="nothing")
        return
    if hinted is None:
        yield Finding(kind=Kind.HINT_DAMAGED, key=key, expected="a hint", found="what does not read as one")
    elif hinted.key not in inventory.objects:
        yield Finding(kind=Kind.HINT_AHEAD, key=key, expected="a checkpoint that exists", found=hinted.key)
    elif newest is not None and hinted.version < newest:
        yield Finding(kind=Kind.HINT_STALE, key=key, expected=f"version {newest}", found=f"version {hinted.version}")
