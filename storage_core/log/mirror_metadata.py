"""Reading of the Delta and Iceberg mirrors. A mirror shows one version of the table, and has its own files.

A mirror's metadata is never a source of truth about the table. The next publication continues from the metadata, and
the collector keeps the files to which the metadata refers. Reading the metadata needs no package of Delta or Iceberg.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from storage_core.base.errors import Corrupt, NotFound
from storage_core.data.formats.keys import (
    ICEBERG_PREFIX,
    delta_checkpoint_key,
    delta_commit_key,
    delta_hint_key,
    iceberg_hint_key,
    iceberg_metadata_key,
    parse,
)
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.formats.mirrors import (
    IcebergMetadata,
    Json,
    MirrorCommit,
    decode_delta,
    decode_delta_hint,
    decode_iceberg,
    decode_iceberg_hint,
    delta_key,
)
from storage_core.store.contract import ObjectStore

DELTA_ADVICE = "remove the folder `_delta_log` and publish again. Nothing of the table is lost"


@dataclass(frozen=True, slots=True)
class NewestCommit:
    """The newest commit of a Delta log.

    Attributes:
        hinted: The Delta version of the checkpoint in the hint, or -1 without a hint.
    """

    commit: MirrorCommit
    hinted: int


@dataclass(frozen=True, slots=True)
class DeltaState:
    """The content of a Delta log.

    Attributes:
        files: For the key of each file, the descriptor of its deletion vector or None.
        schema: The schema as text.
    """

    files: dict[str, Json | None]
    schema: str


def newest_commit(store: ObjectStore) -> NewestCommit | None:
    """Return the newest commit, or None if nothing was published. Raises `Corrupt`.

    The collector keeps every commit after the hint, so no listing is needed.

    Cost:
        One GET of the hint, one GET of each commit after it, and one more GET.
    """
    hinted = read_delta_hint(store)
    version = max(hinted, 0)
    found = None
    while (commit := read_commit(store, version)) is not None:
        found, version = commit, version + 1
    if found is None:
        if hinted < 0:
            return None
        raise _lost(hinted)
    return NewestCommit(found, hinted)


def read_delta_hint(store: ObjectStore) -> int:
    """Return the Delta version in the hint, or -1. One GET."""
    try:
        found = decode_delta_hint(store.get(delta_hint_key()).data)
    except NotFound:
        return -1
    return -1 if found is None else found


def read_commit(store: ObjectStore, version: int) -> MirrorCommit | None:
    """Return the commit with this number, or None. One GET. Raises `Corrupt`."""
    key = delta_commit_key(version)
    try:
        data = store.get(key).data
    except NotFound:
        return None
    return decode_delta(data, version, key)


def commits_down(store: ObjectStore, newest: MirrorCommit) -> Iterator[MirrorCommit]:
    """Yield the commits from the newest down to 0, with one GET per commit. Raises `Corrupt` if a commit is missing."""
    yield newest
    for version in range(newest.version - 1, -1, -1):
        commit = read_commit(store, version)
        if commit is None:
            raise _lost(version)
        yield commit


def checkpointed_files(store: ObjectStore, version: int) -> DeltaState | None:
    """Return the content of the checkpoint of a Delta version, or None. One GET. Raises `Corrupt`."""
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
        return DeltaState({delta_key(each["path"]): _descriptor(each.get("deletionVector")) for each in adds}, schema)
    except (pa.ArrowException, KeyError, TypeError, StopIteration, ValueError) as error:
        raise Corrupt(f"{key}: not a checkpoint of the mirror: {error!r}", advice=DELTA_ADVICE, key=key) from error


def state_at(store: ObjectStore, newest: MirrorCommit) -> DeltaState:
    """Return the content of the Delta log at its newest commit.

    Cost:
        One GET per commit since the last checkpoint, and one GET of that checkpoint.
    """
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
    """Return the descriptor without nulls, which is the form in a commit."""
    return None if found is None else {name: value for name, value in found.items() if value is not None}


def _lost(version: int) -> Corrupt:
    key = delta_commit_key(version)
    return Corrupt(f"{key}: missing, but a later commit or the hint needs it", advice=DELTA_ADVICE, key=key)


ICEBERG_ADVICE = "remove the folder `_iceberg` and publish again. Nothing of the table is lost"


@dataclass(frozen=True, slots=True)
class NewestMetadata:
    """The newest metadata file and its bytes. `hinted` is the number in the hint, or 0 without a hint."""

    metadata: IcebergMetadata
    data: bytes
    hinted: int


def newest_metadata(store: ObjectStore, *, listed: int | None = None) -> NewestMetadata | None:
    """Return the newest metadata, or None if nothing was published. Raises `Corrupt`.

    Args:
        listed: A number from an earlier listing, at least 1, to use if no hint exists.

    Cost:
        One GET of the hint, one GET of each metadata file from the hinted number on, and one more GET. If no hint
        exists and `listed` is not given, also a LIST, because older files may have been collected.
    """
    hinted = read_iceberg_hint(store)
    at = hinted or (_listed(store) if listed is None else listed)
    found = None
    while at and (data := metadata_bytes(store, at)) is not None:
        found, at = (at, data), at + 1
    if found is None:
        if hinted or at > 1:
            raise Corrupt(
                f"{iceberg_metadata_key(at)}: missing, but the hint or a listing names it", advice=ICEBERG_ADVICE
            )
        return None
    number, data = found
    return NewestMetadata(decode_iceberg(data, number, iceberg_metadata_key(number)), data, hinted)


def read_iceberg_hint(store: ObjectStore) -> int:
    """Return the number in the hint, or 0. One GET."""
    try:
        return decode_iceberg_hint(store.get(iceberg_hint_key()).data) or 0
    except NotFound:
        return 0


def read_metadata(store: ObjectStore, number: int) -> IcebergMetadata | None:
    """Return the metadata file with this number, or None. One GET. Raises `Corrupt`."""
    data = metadata_bytes(store, number)
    return None if data is None else decode_iceberg(data, number, iceberg_metadata_key(number))


def metadata_bytes(store: ObjectStore, number: int) -> bytes | None:
    """Return the bytes of the metadata file with this number, or None. One GET."""
    try:
        return store.get(iceberg_metadata_key(number)).data
    except NotFound:
        return None


def _listed(store: ObjectStore) -> int:
    parsed = (parse(info.key) for info in store.list(f"{ICEBERG_PREFIX}v"))
    return max((each.version or 0 for each in parsed if each and each.kind is KeyKind.ICEBERG_METADATA), default=0)
