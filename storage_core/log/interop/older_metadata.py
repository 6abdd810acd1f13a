"""The metadata of states as others write them: as an action, bare, or in an older state or version 0 only."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, cast

from storage_core.errors import Corrupt, NotFound
from storage_core.formats.keys import state_key, version_key
from storage_core.log.actions import Metadata, from_json_object
from storage_core.log.encoding.codec import decode_numbered
from storage_core.log.listing import listed_states
from storage_core.objectstore.contract import ObjectStore

if TYPE_CHECKING:
    from storage_core.formats.avro_state import StateManifest

_logger = logging.getLogger(__name__)


def metadata_of(state: StateManifest, where: str) -> Metadata | None:
    """Return the metadata of a state, wrapped or bare; None when the state holds none. Raises `Corrupt`."""
    if state.metadata is None:
        return None
    try:
        value = json.loads(state.metadata)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{where}: `metadata` is not JSON: {error}", key=where) from error
    if value is None:
        return None
    if not isinstance(value, dict):
        raise Corrupt(f"{where}: `metadata` is not an object", key=where)
    wrapped = value if Metadata.NAME in value else {Metadata.NAME: value}
    return cast("Metadata", from_json_object(wrapped, where))


class MetadataSearch:
    """Finds the metadata of states that hold none: in the newest older state that has it, else in version 0.

    Others write such states. Remembers what it saw, so opening one of many states costs one GET per older state, also
    where several have to be tried. A damaged older state is passed over with a warning: its own splits do not count
    any more, and refusing the table for it would help nobody.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._seen: dict[int, Metadata | None] = {}
        self._listed: list[int] | None = None

    def before(self, version: int) -> Metadata:
        """Return the metadata that holds at the state of `version`. Raises `Corrupt` when there is none anywhere."""
        if self._listed is None:
            self._listed = sorted(listed_states(self._store), reverse=True)
        older = (self._in_state(each) for each in self._listed if each < version)
        found = next((metadata for metadata in older if metadata is not None), None)
        return found if found is not None else self._in_version_0(version)

    def _in_state(self, version: int) -> Metadata | None:
        if version not in self._seen:
            from storage_core.log.checkpoints.root import read_state  # and Avro

            try:
                self._seen[version] = metadata_of(read_state(self._store, version), state_key(version))
            except (NotFound, Corrupt) as error:
                _logger.warning("looking for metadata in %s: passed over: %s", self._store.uri, error)
                self._seen[version] = None
        return self._seen[version]

    def _in_version_0(self, version: int) -> Metadata:
        key = version_key(0)
        try:
            actions = decode_numbered(self._store.get(key).data, 0)
        except NotFound as error:
            raise Corrupt(f"{state_key(version)}: the state holds no metadata, and {key} is gone", key=key) from error
        metadata = next((action for action in actions if isinstance(action, Metadata)), None)
        if metadata is None:
            raise Corrupt(f"{state_key(version)}: neither a state nor {key} holds metadata", key=key)
        return metadata
