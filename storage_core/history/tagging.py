"""Setting a tag: the version it names opens for as long as the tag stands."""

from __future__ import annotations

import datetime as dt
import logging

from storage_core.errors import InvalidInput, NotFound, SnapshotExpired
from storage_core.formats.keys import validate_tag_name
from storage_core.formats.tags import Tag
from storage_core.history.kept import objects_of, replaced, require_kept
from storage_core.log.checkpoints.checkpointed import Checkpointed
from storage_core.log.checkpoints.root import named_keys
from storage_core.log.conflicts.settle import require_writable
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.log.tags import read_tags, replace_tag
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.reading import exists, missing

_logger = logging.getLogger(__name__)


def set_tag(
    log: TransactionLog,
    name: str,
    target: Snapshot,
    *,
    expires_at_ms: int | None = None,
    lasts: dt.timedelta | None = None,
) -> Tag:
    """Let `name` stand for the version of `target`, and return once nothing of that version can be collected.

    It expires at a moment, or when it has lasted so long, or never. A tag of this name is moved. Checked before the tag
    is written and again after it: then either the collector sees the tag before it deletes, or what it deletes is seen
    here, the tag is taken back and `SnapshotExpired` raised.
    Raises `InvalidInput` for a bad name or a moment that has passed, `CommitConflict` when somebody else set the same
    name meanwhile, `CommitUnknown` when the store did not say: set it again. Requests: the head, a checkpoint of the
    version unless it has one, one PUT, and twice the plan's GET and a HEAD per object that is no longer live.
    """
    require_writable(target)
    now_ms = log.clock.now_ms()
    validate_tag_name(name)
    if lasts is not None:
        expires_at_ms = now_ms + lasts // dt.timedelta(milliseconds=1)
    if expires_at_ms is not None and expires_at_ms <= now_ms:
        raise InvalidInput(f"the tag {name!r} would expire at {expires_at_ms} ms, which has passed", tag=name)
    needed = _needed(log, target)
    tag = Tag(name=name, version=target.version, created_at_ms=now_ms, expires_at_ms=expires_at_ms, id=log.ids.uuid())
    before = read_tags(log.store).by_name.get(name)
    replace_tag(log, name, before, tag)
    try:
        require_kept(log.store, needed, version=target.version)
    except SnapshotExpired:
        replace_tag(log, name, tag, before)
        raise
    _logger.info("tag %s of %s: version %d", name, log.store.uri, target.version)
    return tag


def _needed(log: TransactionLog, target: Snapshot) -> list[str]:
    """The objects that opening and reading `target` takes and that the head does not keep, all of them there.

    Without a segment or translation that is gone it is read all the same.
    """
    head = log.snapshot()
    derived = (target.segments.keys() - head.segments.keys()) | (target.translations.keys() - head.translations.keys())
    files = objects_of(replaced(target, head)) + sorted(derived.difference(missing(log.store, sorted(derived))))
    require_kept(log.store, files, version=target.version)
    log.checkpoint(target)
    state = _checkpoint_keys(log.store, target.version)
    require_kept(log.store, state, version=target.version)
    return [*files, *state]


def _checkpoint_keys(store: ObjectStore, version: int) -> list[str]:
    """The objects that the version can be opened from without any version file."""
    try:
        forms = [each for each in Checkpointed.forms(version) if exists(store, each.key)]
        found = [key for each in forms for key in (each.key, *named_keys(store, each))]
    except NotFound:
        found = []
    if not found:
        raise SnapshotExpired(
            f"version {version} of {store.uri} is being collected; choose a newer one", version=version
        )
    return found
