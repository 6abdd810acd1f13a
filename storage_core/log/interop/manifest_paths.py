"""How states of others name their manifests: beside the names of ours, relative to the log or to the state."""

from __future__ import annotations

from storage_core.errors import Corrupt
from storage_core.formats.keys import LOG_PREFIX, state_key
from storage_core.log.encoding.safe_path import is_safe_path


def key_of_manifest(path: str, version: int) -> str:
    """Return the key of a manifest as the state of `version` names it. Raises `Corrupt` for a path out of the log.

    Three spellings: shared, as ours are; with the folder of the state; bare, which is in the folder of the state.
    """
    if not is_safe_path(path):
        raise Corrupt(f"{state_key(version)}: the manifest path {path!r} leaves the log")
    if path.startswith(("manifests/", "state-v")):
        return LOG_PREFIX + path
    return f"{LOG_PREFIX}state-v{version:020d}/{path}"
