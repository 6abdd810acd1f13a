"""States behind a commit that forgot rows: a table retains its newest ones however old they are."""

from __future__ import annotations

from storage_core.forget.metadata import Since, is_forgetting, names_rows
from storage_core.forget.search import AT_ONCE, Found, listed
from storage_core.formats.hint import CheckpointKind
from storage_core.log.advance import read_version
from storage_core.log.checkpoints.root import read_state
from storage_core.log.interop.manifest_paths import key_of_manifest
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of


def are_clean_states(store: ObjectStore, head: Snapshot, found: Found, wanted: int) -> bool:
    """Return whether a report names none of the newest `wanted` states, which are there.

    They are of the version that forgot, or later ones, and list no dead split, nor one that may have held rows: a split
    that was live then is gone since, and nobody can look into it any more.

    One LIST per 1,000 objects, a GET per version file up to that commit, one per state, and one per manifest of theirs.
    """
    since = Since.of(head)
    # That version itself names the splits that left, and what names the folder of a partition has to go.
    first = _forgetting_version(store, head, since) + bool(head.config.partition_by)
    forms = {each.version: each for each in listed(store).checkpoints()}
    newest = [forms[version] for version in sorted(forms)[-wanted:]]
    if len(newest) < wanted or any(each.version < first for each in newest):
        return False
    states = [read_state(store, each.version) for each in newest if each.kind is CheckpointKind.AVRO_STATE]
    if any(each.tombstones for each in states):
        return False
    manifests = {key_of_manifest(info.path, each.state_version) for each in states for info in each.manifests}
    return not any(all_of(lambda key: names_rows(store, key, found, since), sorted(manifests), AT_ONCE))


def _forgetting_version(store: ObjectStore, head: Snapshot, since: Since) -> int:
    """The version that forgot last, or where its file is gone a later one."""
    version = first = (since.version or 0) + 1
    while version <= head.version:
        if is_forgetting(read_version(store, version) or ()):
            return version
        version += 1
    return first
