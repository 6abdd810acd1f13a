"""Bytes of `_mem_wal/_regions.json`, the registry of a table's regions. Records to bytes and back.

One JSON object with the xxh3-64 of all other fields under `xxh3`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from storage_core.errors import Corrupt, Unsupported
from storage_core.formats import keys
from storage_core.formats.json_checksum import json_digest
from storage_core.settings.region_fields import Region

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """The regions by id, and per closed spec the spec that follows it.

    Two fields are not stored but tell where it comes from: `etag` is that of its object, None where there is none;
    `is_rebuilt` that no sound object says this, but the regions.
    """

    regions: Mapping[str, Region] = field(default_factory=dict)
    closed: Mapping[int, int] = field(default_factory=dict)
    counter: int = 0
    etag: str | None = None
    is_rebuilt: bool = False

    def of_spec(self, spec_id: int) -> list[Region]:
        """Return the regions of a spec in the order of their ids."""
        return [self.regions[each] for each in sorted(self.regions) if self.regions[each].spec_id == spec_id]


def encode(wanted: Registry, *, nonce: str) -> bytes:
    """Return the bytes of the object to put: its counter is one higher than the registry's. `nonce` is unique."""
    body = {
        "format": FORMAT_VERSION,
        "counter": wanted.counter + 1,
        "nonce": nonce,
        "regions": [
            {"id": each.id, "spec": each.spec_id, "values": None if each.values is None else list(each.values)}
            for _, each in sorted(wanted.regions.items())
        ],
        "closed": {str(spec): successor for spec, successor in sorted(wanted.closed.items())},
    }
    return json.dumps({**body, "xxh3": json_digest(body)}, separators=(",", ":")).encode()


def decode(data: bytes, *, etag: str | None = None) -> Registry:
    """Return the registry in these bytes. Raises `Corrupt`, or `Unsupported` for a newer format."""
    key = keys.region_registry_key()
    try:
        body: dict[str, Any] = json.loads(data)
        written = body.pop("xxh3")
        if written != json_digest(body):
            raise Corrupt(f"{key}: its content does not match its checksum {written}", key=key)
        if body["format"] > FORMAT_VERSION:
            raise Unsupported(
                f"{key}: regions of format {body['format']}, this release reads {FORMAT_VERSION}; upgrade"
            )
        regions = [_region(each) for each in body["regions"]]
        closed = {int(spec): int(successor) for spec, successor in body["closed"].items()}
        named = {each.id: each for each in regions}
        return Registry(regions=named, closed=closed, counter=int(body["counter"]), etag=etag)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(f"{key}: not the regions of a table: {error!r}", key=key) from error


def _region(body: Mapping[str, Any]) -> Region:
    values = body["values"]
    return Region(id=str(body["id"]), spec_id=int(body["spec"]), values=None if values is None else tuple(values))
