"""As what other formats a table is published, and its form in `metaData.configuration` (decisions 0155, 0159)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.settings.json_text import json_text

PUBLISH_KEY: Final = "tidemark.publish"

ShownVectors = Literal["inline", "none"]
PublishFormat = Literal["delta", "iceberg"]
FORMATS: Final[tuple[PublishFormat, ...]] = get_args(PublishFormat)


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """The mirrors of a table. `delta` says how Delta shows deleted rows: by vectors, or by waiting for a compaction."""

    delta: ShownVectors | None = None
    iceberg: bool = False

    @staticmethod
    def of(given: object) -> Publish:
        """Return what is meant by `delta`, `iceberg`, `{"delta": {"vectors": "none"}}`, a list of these, or JSON text.

        Raises `InvalidInput`.
        """
        wanted = _plain(given)
        if unknown := sorted(set(wanted) - {*FORMATS}):
            raise InvalidInput(f"a table is published as {', '.join(FORMATS)}, found {quoted(unknown[0])}")
        if options := wanted.get("iceberg"):
            raise InvalidInput(f"iceberg has no options, found {quoted(options)}")
        return Publish(delta=_vectors(wanted["delta"]) if "delta" in wanted else None, iceberg="iceberg" in wanted)

    @property
    def formats(self) -> tuple[PublishFormat, ...]:
        """The formats that the table declares."""
        return tuple(each for each in FORMATS if getattr(self, each))

    @property
    def published(self) -> tuple[PublishFormat, ...]:
        """The formats that a publication shows where nobody names one: those that are declared, or Delta."""
        return self.formats or FORMATS[:1]

    def shown(self) -> object:
        """Return plain data that `of` takes back."""
        if self.delta == "none":
            return self._in_full()
        return self.formats[0] if len(self.formats) == 1 else [*self.formats]

    def to_text(self) -> str:
        """Return the value of the entry `PUBLISH_KEY`."""
        return json_text(self._in_full())

    def _in_full(self) -> dict[str, object]:
        delta = {} if self.delta is None else {"delta": {"vectors": self.delta}}
        return {**delta, "iceberg": {}} if self.iceberg else {**delta}

    @staticmethod
    def from_text(text: str) -> Publish:
        """Return what `to_text` wrote. Raises `InvalidInput`."""
        try:
            return Publish.of(text)
        except InvalidInput as error:
            raise InvalidInput(f"table configuration {PUBLISH_KEY!r}: {error}", key=PUBLISH_KEY) from error


def _plain(given: object) -> dict[str, object]:
    if isinstance(given, str) and given.lstrip().startswith(("{", "[")):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"not JSON ({error}): {quoted(str(given))}") from error
    if isinstance(given, str):
        return {given: None}
    if isinstance(given, Mapping) and all(isinstance(each, str) for each in given):
        return dict(given)
    if isinstance(given, list | tuple):
        return {name: options for each in given for name, options in _plain(each).items()}
    raise InvalidInput(f"expected a format, such as delta, or a mapping of it, found {quoted(given)}")


def _vectors(options: object) -> ShownVectors:
    match options or {"vectors": "inline"}:
        case {"vectors": "inline", **rest} if not rest:
            return "inline"
        case {"vectors": "none", **rest} if not rest:
            return "none"
        case _:
            raise InvalidInput(f"delta has the option `vectors`, inline or none; found {quoted(options)}")
