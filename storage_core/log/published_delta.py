"""The log of the Delta mirror as it is read: which version of the table it shows, and which files it names.

It is never the truth about anything. The mirror goes on from it, and the collector keeps what it names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from storage_core.errors import Corrupt, NotFound
from storage_core.formats.delta_log import Json, MirrorCommit, decode, decode_hint, key_of
from storage_core.formats.keys import delta_checkpoint_key, delta_commit_key, delta_hint_key
from storage_core.objectstore.contract import ObjectStore

ADVICE = "remove the folder `_delta_log` and publish again; nothing of the table is lost"


@dataclass(frozen=True, slots=True)
class NewestCommit:
    """The newest commit of a Delta log, and the Delta version whose checkpoint the hint names; -1 for none."""

    commit: MirrorCommit
    hinted: int


@dataclass(frozen=True, slots=True)
class DeltaState:
    """What a Delta log holds: its files by key with the descriptors of their vectors, and the text of its schema."""

    files: dict[str, Json | None]
    schema: str


def newest_commit(store: ObjectStore) -> NewestCommit | None:
    """Return the newest commit, None where nothing was published. A GET of the hint, of each commit after it, one more.

    The collector removes no commit that the hint leads to, so that no listing is needed. Raises `Corrupt`.
    """
    hinted = read_hint(store)
    version = max(hinted, 0)
    found = None
    while (commit := read_commit(store, version)) is not None:
        found, version = commit, version + 1
    if found is None:
        if hinted < 0:
            return None
        raise _lost(hinted)
    return NewestCommit(found, hinted)


def read_hint(store: ObjectStore) -> int:
    """Return the Delta version that the hint names, -1 for none. One GET."""
    try:
        found = decode_hint(store.get(delta_hint_key()).data)
    except NotFound:
        return -1
    return -1 if found is None else found


def read_commit(store: ObjectStore, version: int) -> MirrorCommit | None:
    """Return a commit, None where there is none of this number. One GET. Raises `Corrupt`."""
    key = delta_commit_key(version)
    try:
        data = store.get(key).data
    except NotFound:
        return None
    return decode(data, version, key)


def commits_down(store: ObjectStore, newest: MirrorCommit) -> Iterator[MirrorCommit]:
    """Yield the commits from the newest down to 0, one GET each. Raises `Corrupt` for one that is missing."""
    yield newest
    for version in range(newest.version - 1, -1, -1):
        commit = read_commit(store, version)
        if commit is None:
            raise _lost(version)
        yield commit


def checkpointed_files(store: ObjectStore, version: int) -> DeltaState | None:
    """Return what the checkpoint of a Delta version holds, None where there is none. One GET. Raises `Corrupt`."""
    key = delta_checkpoint_key(version)
    try:
        data = store.get(key).data
    except NotFound:
        return None
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(data), columns=["add", "metaData"])
        adds = [each for each in table.column("add").to_pylist() if each is not None]
        schema = next(each["schemaString"] for each in table.column("metaData").to_pylist() if each is not None)
        return DeltaState({key_of(each["path"]): _descriptor(each.get("deletionVector")) for each in adds}, schema)
    except (pa.ArrowException, KeyError, TypeError, StopIteration, ValueError) as error:
        raise Corrupt(f"{key}: not a checkpoint of the mirror: {error!r}", advice=ADVICE, key=key) from error


def state_at(store: ObjectStore, newest: MirrorCommit) -> DeltaState:
    """Return what the Delta log holds at its newest commit. A GET per commit since a checkpoint, and that of it."""
    later: list[MirrorCommit] = []
    base = DeltaState({}, "")
    for commit in commits_down(store, newest):
        found = checkpointed_files(store, commit.version) if commit.version else None
        if found is not None:
            base = found
            break
        later.append(commit)
    files, schema = dict(base.files), base.schema
    for commit in reversed(later):
        for key in commit.removed:
            files.pop(key, None)
        files.update(commit.added)
        schema = commit.schema or schema
    return DeltaState(files, schema)


def _descriptor(found: Json | None) -> Json | None:
    """As a commit has it: without what is null."""
    return None if found is None else {name: value for name, value in found.items() if value is not None}


def _lost(version: int) -> Corrupt:
    key = delta_commit_key(version)
    return Corrupt(f"{key}: missing, but a later commit or the hint needs it", advice=ADVICE, key=key)
