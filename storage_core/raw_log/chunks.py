"""One chunk of a raw log, read from whichever store has it whole (lessons 60 and 61)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from storage_core.errors import Corrupt, NotFound, Unavailable
from storage_core.formats.raw_columns import RawColumns, decode_columns
from storage_core.objectstore.contract import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RawChunkRef:
    """One chunk of the union. `keys` are its names, more than one only where folders were renamed by hand."""

    writer: str
    number: int
    segment_ms: int
    keys: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "keys": list(self.keys)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> RawChunkRef:
        """Return the reference that `to_json` gave."""
        return cls(**{**found, "keys": tuple(found["keys"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A chunk without a sound copy, and why each of them is none."""

    chunk: RawChunkRef
    reasons: tuple[str, ...]


def read_columns(stores: Sequence[ObjectStore], ref: RawChunkRef) -> RawColumns | Damage:
    """Return the chunk from the first sound copy: of this writer and number, and every byte as it was written.

    One GET where the first copy is sound. Raises `Unavailable` when a store does not answer and no other has a sound
    copy, for then nothing is known; `Unsupported` for a chunk of a newer release.
    """
    reasons: list[str] = []
    silent: list[str] = []
    for store in stores:
        for key in ref.keys:
            try:
                return _read(store, key, ref)
            except (Corrupt, NotFound) as error:
                reasons.append(f"{store.uri}: {error.found}")
            except Unavailable as error:
                silent.append(f"{store.uri}: {error}")
    if silent:
        raise Unavailable(
            f"chunk {ref.number} of writer {ref.writer}: {'; '.join(silent)}; no other store has it whole; try again "
            "later",
            writer=ref.writer,
            number=ref.number,
        )
    return Damage(chunk=ref, reasons=tuple(reasons))


def _read(store: ObjectStore, key: str, ref: RawChunkRef) -> RawColumns:
    found = decode_columns(store.get(key).data, key)
    if (found.key.writer, found.key.number) != (ref.writer, ref.number):
        raise Corrupt(
            f"{key}: expected chunk {ref.number} of writer {ref.writer}, found chunk {found.key.number} of writer "
            f"{found.key.writer}",
            key=key,
        )
    return found
