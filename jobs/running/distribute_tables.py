"""The raw log that a run distributes, and the tables that it distributes to: declared, opened, or left out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jobs.requests.distribute import DistributeRequest
from jobs.requests.raw_log import RawLogRequest
from jobs.running.shared_place import require_shared
from storage_core.declaration import TableDeclaration, load
from storage_core.declaration_parts import below
from storage_core.distribution.offsets import log_offsets
from storage_core.distribution.work import Source
from storage_core.errors import InvalidInput, TidemarkError
from storage_core.objectstore.meter import MeteredStore
from storage_core.objectstore.resolve import open_store
from storage_core.raw_declaration import RawLogDeclaration, load_raw_log
from storage_core.raw_log.history import History, union
from storage_core.table import Table, exists

LOG = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class DistributeTables:
    """The raw log and the tables of a run.

    `left_out` are tables whose files declare nothing sound: their rows wait. `failures` are those that could not be
    made or opened, `collected` by name those that came after chunks were collected, with the number of these.
    """

    raw: RawLogDeclaration
    source: Source
    history: History
    declared: Mapping[str, TableDeclaration]
    stores: list[MeteredStore]
    raw_stores: Sequence[MeteredStore]
    left_out: Mapping[str, str]
    failures: dict[str, TidemarkError] = field(default_factory=dict)
    collected: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def open(cls, request: DistributeRequest | RawLogRequest) -> DistributeTables:
        """Read the declarations and list the stores of the raw log. Raises `InvalidInput`."""
        root = Path(request.root or ".")
        raw, stores = raw_stores(request)
        declared, broken = _tables(request.tables, root)
        known = {*declared, *broken}
        if unknown := sorted(set(raw.tables) - known):
            raise InvalidInput(f"{request.raw_log}: {', '.join(unknown)} is declared by no file of tables/*.yaml")
        chosen = raw.tables or tuple(sorted(known))
        uris = tuple(require_shared(below(root, uri)) for uri in raw.uris)
        return cls(
            raw=raw,
            source=Source(
                name=raw.name,
                stores=uris,
                tables=chosen,
                mandatory=sum(each.mandatory for each in raw.stores),
                unique_for_ms=raw.unique_for,
            ),
            history=union(list(stores)),
            declared={name: each for name, each in declared.items() if name in chosen},
            stores=[*stores],
            raw_stores=stores,
            left_out={name: str(error) for name, error in broken.items() if name in chosen},
        )

    def tables(self, *, declaring: bool) -> dict[str, Table]:
        """Open the tables, making those that do not exist, or without them; those that fail are left out."""
        found: dict[str, Table] = {}
        for name, declaration in self.declared.items():
            try:
                uri = require_shared(declaration.uri)
                if declaring:
                    found[name] = Table.declare(declaration)
                    found[name].require_capable()
                elif exists(uri):
                    found[name] = Table.open(uri)
            except TidemarkError as error:
                LOG.warning("table %s: %s", name, error)
                self.failures[name] = error
        self.stores += [each.store for each in found.values()]
        return found

    def offsets(self) -> dict[str, Mapping[str, int]]:
        """Return the offsets of every table as it is now; none of one that is not made, not sound, or fails to open."""
        opened = self.tables(declaring=False)
        return {name: log_offsets(opened[name].snapshot) if name in opened else {} for name in self.source.tables}


def raw_stores(request: DistributeRequest | RawLogRequest) -> tuple[RawLogDeclaration, list[MeteredStore]]:
    """Return the declaration of the raw log and its stores, mandatory ones first. No request. Raises `InvalidInput`."""
    raw = load_raw_log(request.raw_log)
    root = Path(request.root or ".")
    return raw, [MeteredStore(open_store(require_shared(below(root, uri)))) for uri in raw.uris]


def _tables(files: Sequence[str], root: Path) -> tuple[dict[str, TableDeclaration], dict[str, InvalidInput]]:
    """The declared tables by name, and by the names of their files those that are broken."""
    declared: dict[str, TableDeclaration] = {}
    broken: dict[str, InvalidInput] = {}
    for file in files:
        try:
            found = load(file).below(root)
            declared[found.name] = found
        except InvalidInput as error:
            LOG.warning("a table is left out: %s", error)
            broken[Path(file).stem] = error
    return declared, broken
