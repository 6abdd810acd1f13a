"""What a task brings back that wrote splits in place of others, and its form on the way to the driver."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage_core.log.actions import Action, Add, IndexSegment, Remove, Translation
from storage_core.log.encoding.action_json import read_actions, write_actions


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """The splits that were written and those that leave for them; nothing is committed yet. Travels as JSON.

    `rows_in` were read. Bytes are encoded file sizes. `translations` say where the rows went, for indexes, to which
    `segments` that covered them join.
    """

    adds: tuple[Add, ...]
    removes: tuple[Remove, ...]
    rows_in: int
    translations: tuple[Translation, ...] = ()
    segments: tuple[IndexSegment, ...] = ()

    @property
    def actions(self) -> list[Action]:
        """The actions that must go into one commit."""
        return [*self.removes, *self.adds, *self.translations, *self.segments]

    @property
    def rows_out(self) -> int:
        """Rows written."""
        return sum(add.numRecords or 0 for add in self.adds)

    @property
    def bytes_in(self) -> int:
        """Bytes of the splits that leave."""
        return sum(remove.size or 0 for remove in self.removes)

    @property
    def bytes_out(self) -> int:
        """Bytes of the splits written."""
        return sum(add.size for add in self.adds)

    def to_json(self) -> str:
        """Return the text from which `from_json` makes an equal record."""
        return json.dumps(self.to_object(), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Rewrite:
        """Return the record that `to_json` wrote."""
        return Rewrite.from_object(json.loads(text))

    def to_object(self) -> dict[str, Any]:
        """Return the JSON object from which `from_object` makes an equal record."""
        return {
            "adds": write_actions(self.adds),
            "removes": write_actions(self.removes),
            "rowsIn": self.rows_in,
            "translations": write_actions(self.translations),
            "segments": write_actions(self.segments),
        }

    @staticmethod
    def from_object(body: Mapping[str, Any]) -> Rewrite:
        """Return the record that `to_object` wrote."""
        return Rewrite(
            adds=read_actions(body["adds"], Add, "rewrite"),
            removes=read_actions(body["removes"], Remove, "rewrite"),
            rows_in=body["rowsIn"],
            translations=read_actions(body["translations"], Translation, "rewrite"),
            segments=read_actions(body["segments"], IndexSegment, "rewrite"),
        )
