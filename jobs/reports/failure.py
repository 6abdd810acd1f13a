"""What failed, as one record: what a task could not do, and why a window was not compacted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from storage_core.errors import TidemarkError, error_of


@dataclass(frozen=True, slots=True)
class Failed:
    """The kind and message of a typed error; `lasting`: the same input would fail again. Travels as JSON."""

    kind: str
    message: str
    lasting: bool = False

    @staticmethod
    def of(error: TidemarkError, *, lasting: bool = False) -> Failed:
        """Return the record of an error."""
        return Failed(error.kind, str(error), lasting)

    def error(self) -> TidemarkError:
        """Return the error again, with its class, as it was raised in another process."""
        return error_of(self.kind, self.message)

    def to_object(self) -> dict[str, Any]:
        """Return the JSON object from which `from_object` makes an equal record."""
        return asdict(self)

    @staticmethod
    def from_object(body: Mapping[str, Any]) -> Failed:
        """Return the record that `to_object` wrote."""
        return Failed(**body)
