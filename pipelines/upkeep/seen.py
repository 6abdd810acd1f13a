"""What a look at a table saw, so that the next one can ask with one request whether anything is new.

An idle table is asked one thing at a time, in turn: its log, its landing place, its regions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from assets.due_runs import TableInputs
from storage_core.declaration import TableDeclaration
from storage_core.errors import NotFound
from storage_core.formats.keys import REGIONS_PREFIX, version_key
from storage_core.ingest.delta_versions import versions
from storage_core.ingest.landing import LandedFile, discover
from storage_core.objectstore.resolve import open_store
from storage_core.table import exists


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A table in which there was nothing to do at `at_ms`: its version (None: no table), what had landed, its regions.

    `turn` counts the looks since. At `due_ms` time alone may make something to do, None where nobody knows of such a
    time.
    """

    at_ms: int
    version: int | None
    landed: str
    regions: str
    turn: int = 0
    due_ms: int | None = None

    @classmethod
    def of(cls, inputs: TableInputs) -> Seen:
        """Return what these inputs are, for a table in which nothing is to be done. One LIST of regions, or none."""
        declaration = inputs.declaration
        spec = declaration.landing_spec()
        is_delta = spec is not None and spec.is_delta
        return cls(
            at_ms=inputs.clock.now_ms(),
            version=inputs.table.version if inputs.table else None,
            landed=_delta(declaration) if is_delta else _files(inputs.landed),
            regions=_regions(declaration) if declaration.primary_key else "",
        )

    def is_same(self, declaration: TableDeclaration) -> tuple[bool, Seen]:
        """Return whether what is asked now is as it was, and what to remember. One HEAD, or one LIST per 1,000 objects.

        All of it was asked once this was called as often as the table has a log, a landing place and regions.
        """
        asks = list(_asks(declaration))
        is_same = asks[self.turn % len(asks)](self, declaration)
        return is_same, replace(self, turn=self.turn + 1)


def _asks(declaration: TableDeclaration) -> Iterator[Callable[[Seen, TableDeclaration], bool]]:
    spec = declaration.landing_spec()
    if spec is not None:
        yield _no_version_landed if spec.is_delta else _nothing_landed
    yield _no_commit
    if declaration.primary_key:
        yield _no_record


def _no_commit(seen: Seen, declaration: TableDeclaration) -> bool:
    if seen.version is None:
        return not exists(declaration.uri)
    try:
        open_store(declaration.uri).head(version_key(seen.version + 1))
    except NotFound:
        return True
    return False


def _nothing_landed(seen: Seen, declaration: TableDeclaration) -> bool:
    spec = declaration.landing_spec()
    return spec is None or seen.landed == _files(discover(spec))


def _no_version_landed(seen: Seen, declaration: TableDeclaration) -> bool:
    return seen.landed == _delta(declaration)


def _no_record(seen: Seen, declaration: TableDeclaration) -> bool:
    return seen.regions == _regions(declaration)


def _regions(declaration: TableDeclaration) -> str:
    return _digest(each.key for each in open_store(declaration.uri).list(REGIONS_PREFIX))


def _delta(declaration: TableDeclaration) -> str:
    spec = declaration.landing_spec()
    return "" if spec is None else str(max(versions(open_store(spec.uri)), default=None))


def _files(files: Iterable[LandedFile]) -> str:
    return _digest(f"{file.path}\0{file.size}\0{file.etag}" for file in files)


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0\0".join(sorted(texts)).encode()).hexdigest()[:16]
