"""Writing, reading and checking of small objects that are one JSON document.

A `JsonDocument` describes one kind of document. A `JsonRecord` describes the JSON object of a dataclass in a document.
Each format is declared with `JsonDocument` and `JsonRecord`, so the fields of a format are listed in one place. This
module checks versions, checksums and types.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Generic, TypeVar

import xxhash

from storage_core.base.errors import Corrupt, Unsupported

T = TypeVar("T")

WRONG: Final = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""The errors that reading raises if the JSON is not a valid document."""


def number(value: object) -> int:
    """Return a whole number from 0 to 2**63 - 1.

    Raises `ValueError` for anything else, including floats and booleans.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is not a number from 0 to 2**63 - 1")
    return value


def text(value: object) -> str:
    """Return a text. Raises `TypeError` for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def json_digest(body: Mapping[str, Any]) -> str:
    """Return the xxh3-64 of the object as 16 hex digits.

    The input of the hash is the object's compact ASCII text with sorted keys.

    Equal objects have equal digests. The order of keys and the spaces in the original text have no effect.
    """
    return xxhash.xxh3_64_hexdigest(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonDocument:
    """A kind of document.

    Attributes:
        called: The name of the document in errors.
        format: The format that this release writes. It reads this format and older formats.
        unnumbered: True if the document contains no format number.
        has_checksum: Whether the document contains the xxh3-64 of all other fields under `xxh3`.
        advice: What to do about a damaged document. None stands for the default advice.
    """

    called: str
    format: int = 1
    unnumbered: bool = False
    has_checksum: bool = False
    advice: str | None = None

    def encode(self, body: Mapping[str, object]) -> bytes:
        """Return the bytes of the document, with its format first and its checksum last."""
        whole = dict(body) if self.unnumbered else {"format": self.format, **body}
        checksum = {"xxh3": json_digest(whole)} if self.has_checksum else {}
        return json.dumps({**whole, **checksum}, separators=(",", ":")).encode()

    def decode(self, data: bytes, key: str, read: Callable[[dict[str, Any]], T]) -> T:
        """Return the result of `read` for the document at `key`.

        Raises `Corrupt`, or `Unsupported` for a newer format.
        """
        try:
            body: dict[str, Any] = json.loads(data)
            if self.has_checksum and (written := body.pop("xxh3")) != json_digest(body):
                raise self._corrupt(key, f"its content does not match its checksum {written}")
            if not self.unnumbered and number(body["format"]) > self.format:
                raise Unsupported(
                    f"{key}: {self.called} of format {body['format']}, this release reads {self.format}. "
                    "Upgrade Tidemark",
                    key=key,
                )
            return read(body)
        except WRONG as error:
            raise self._corrupt(key, f"not {self.called}: {error!r}") from error

    def _corrupt(self, key: str, reason: str) -> Corrupt:
        more = {} if self.advice is None else {"advice": self.advice}
        return Corrupt(f"{key}: {reason}", key=key, **more)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return "".join([first, *map(str.title, others)])


_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "str": text,
    "int": number,
    "Mapping[str, str]": lambda found: {name: text(each) for name, each in found.items()},
}


class JsonRecord(Generic[T]):
    """The JSON object of a dataclass.

    The keys are the field names in camel case, but `keys` may contain other keys for some fields.

    The annotation of a field determines how the field is read. If `read` contains a function for a field, that function
    reads the field. An optional field that is None is omitted.
    """

    def __init__(
        self,
        kind: type[T],
        *,
        keys: Mapping[str, str] | None = None,
        read: Mapping[str, Callable[[Any], Any]] | None = None,
    ) -> None:
        self._kind = kind
        annotations = {each.name: str(each.type) for each in fields(kind)}  # type: ignore[arg-type]  # a dataclass
        self._fields = tuple(
            (name, (keys or {}).get(name, _camel(name)), (read or {}).get(name) or _READ[known], known != annotation)
            for name, annotation in annotations.items()
            for known in [annotation.removesuffix(" | None")]
        )

    def write(self, record: T) -> dict[str, Any]:
        """Return the JSON object of the record."""
        found = ((key, getattr(record, name), is_optional) for name, key, _, is_optional in self._fields)
        return {
            key: dict(value) if isinstance(value, Mapping) else value
            for key, value, is_optional in found
            if not is_optional or value is not None
        }

    def read(self, body: Mapping[str, Any]) -> T:
        """Return the record of a JSON object. Raises one of the errors in `WRONG` for an invalid object."""
        found = {}
        for name, key, read, is_optional in self._fields:
            value = body.get(key) if is_optional else body[key]
            found[name] = None if is_optional and value is None else read(value)
        return self._kind(**found)
