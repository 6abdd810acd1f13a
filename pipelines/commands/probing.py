"""Whether a store can hold a table: `probe`."""

from __future__ import annotations

from pipelines.commands import output
from pipelines.commands.arguments import Json, Uri
from pipelines.commands.output import cell
from pipelines.commands.target import resolve


def probe(uri: Uri, *, as_json: Json = False) -> None:
    """Try whether a place can hold a table.

    Tries conditional writes, listing and deleting with one object below the place, which is deleted again. A table need
    not be there. Tables are not created, and not written to, on a store that lacks something.
    """
    from storage_core.formats.keys import probe_key
    from storage_core.ids import SystemIds
    from storage_core.objectstore import probe as probing
    from storage_core.objectstore.resolve import open_store

    found = probing.probe(open_store(resolve(uri).uri), probe_key(SystemIds().uuid()))
    records = ({"capability": str(each.capability), "ok": each.ok, "found": each.found} for each in found.trials)
    output.records(records, {"capability": cell, "ok": cell, "found": cell}, as_json=as_json, nothing="")
    found.require()
