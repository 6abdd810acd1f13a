"""Which version is checkpointed, and in which form (docs/architecture/transaction-log.md, "Checkpoints")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage_core.formats.hint import CheckpointKind
from storage_core.formats.keys import KeyKind, ParsedKey, json_checkpoint_key, state_key
from storage_core.settings.table import CheckpointFormat

_OF_KEY: Mapping[KeyKind, CheckpointKind] = {
    KeyKind.STATE: CheckpointKind.AVRO_STATE,
    KeyKind.JSON_CHECKPOINT: CheckpointKind.JSON,
}
_OF_FORMAT: Mapping[CheckpointFormat, CheckpointKind] = {
    "avro": CheckpointKind.AVRO_STATE,
    "json": CheckpointKind.JSON,
    "json-multipart": CheckpointKind.JSON_MULTIPART,
}


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """A version that is checkpointed, and in which form."""

    version: int
    kind: CheckpointKind

    @staticmethod
    def at(parsed: ParsedKey) -> Checkpointed | None:
        """Return the checkpoint whose root lies at a key; None when no root does. In parts or not, JSON is `JSON`."""
        kind = _OF_KEY.get(parsed.kind)
        return None if kind is None or parsed.version is None else Checkpointed(parsed.version, kind)

    @staticmethod
    def forms(version: int) -> tuple[Checkpointed, ...]:
        """Return the checkpoints that a version can have: one per root key, the fastest to open first."""
        return tuple(Checkpointed(version, kind) for kind in _OF_KEY.values())

    @staticmethod
    def in_format(version: int, form: CheckpointFormat) -> Checkpointed:
        """Return the checkpoint that a table of this setting gives the version."""
        return Checkpointed(version, _OF_FORMAT[form])

    @property
    def key(self) -> str:
        """The key of the checkpoint's root, which is put last."""
        return state_key(self.version) if self.kind is CheckpointKind.AVRO_STATE else json_checkpoint_key(self.version)
