"""The metadata of the Iceberg mirror as it is read: which version of the table it shows, and what it names.

It is never the truth about anything. The mirror goes on from it, and the collector keeps what it names. Reading it
needs no package of Iceberg.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage_core.errors import Corrupt, NotFound
from storage_core.formats.iceberg_metadata import IcebergMetadata, decode, decode_hint
from storage_core.formats.keys import ICEBERG_PREFIX, KeyKind, iceberg_hint_key, iceberg_metadata_key, parse
from storage_core.objectstore.contract import ObjectStore

ADVICE = "remove the folder `_iceberg` and publish again; nothing of the table is lost"


@dataclass(frozen=True, slots=True)
class NewestMetadata:
    """The newest metadata file with its bytes, and the number that the hint has; 0 for none."""

    metadata: IcebergMetadata
    data: bytes
    hinted: int


def newest_metadata(store: ObjectStore, *, listed: int | None = None) -> NewestMetadata | None:
    """Return the newest metadata, None where nothing was published.

    A GET of the hint, of each file from there on, and one more. Where there is no hint a LIST takes its place, for
    older files may be collected; or `listed`, a number from 1 where it has been taken before. Raises `Corrupt`.
    """
    hinted = read_hint(store)
    at = hinted or (_listed(store) if listed is None else listed)
    found = None
    while at and (data := metadata_bytes(store, at)) is not None:
        found, at = (at, data), at + 1
    if found is None:
        if hinted or at > 1:
            raise Corrupt(f"{iceberg_metadata_key(at)}: missing, but the hint or a listing names it", advice=ADVICE)
        return None
    number, data = found
    return NewestMetadata(decode(data, number, iceberg_metadata_key(number)), data, hinted)


def read_hint(store: ObjectStore) -> int:
    """Return the number that the hint has, 0 for none. One GET."""
    try:
        return decode_hint(store.get(iceberg_hint_key()).data) or 0
    except NotFound:
        return 0


def read_metadata(store: ObjectStore, number: int) -> IcebergMetadata | None:
    """Return a metadata file, None where there is none of this number. One GET. Raises `Corrupt`."""
    data = metadata_bytes(store, number)
    return None if data is None else decode(data, number, iceberg_metadata_key(number))


def metadata_bytes(store: ObjectStore, number: int) -> bytes | None:
    """Return the bytes of a metadata file, None where there is none of this number. One GET."""
    try:
        return store.get(iceberg_metadata_key(number)).data
    except NotFound:
        return None


def _listed(store: ObjectStore) -> int:
    parsed = (parse(info.key) for info in store.list(f"{ICEBERG_PREFIX}v"))
    return max((each.version or 0 for each in parsed if each and each.kind is KeyKind.ICEBERG_METADATA), default=0)
