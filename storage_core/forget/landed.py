"""Landed files that hold rows which are to be forgotten. Tidemark never changes a landed file: somebody removes it."""

from __future__ import annotations

from collections.abc import Iterator

from storage_core.errors import Corrupt, NotFound, TidemarkError
from storage_core.forget.judge import Judge
from storage_core.forget.report import Held, KeptBy
from storage_core.ingest.landing import LandedFile, LandingSpec, discover
from storage_core.ingest.parse import parse_blocks

_WHY = "the file is not part of the table. Remove it, or write it under another name without the rows"
_DELTA = "a Delta table lands here, and its files were not read: delete the rows there, and vacuum it"


def held_by_landed_files(judge: Judge, spec: LandingSpec) -> Iterator[Held]:
    """Yield the landed files that hold rows which meet the condition, or that cannot be read.

    Cost: one LIST per 1,000 files, and one read of each file, up to a row that meets the condition. A few blocks of a
    file are in memory.
    """
    if spec.is_delta:
        yield Held(store=spec.uri, key="", kind="landed_file", by=KeptBy.NOT_READ, why=_DELTA)
        return
    for file in discover(spec):
        try:
            has_rows = _holds(judge, file, spec)
        except NotFound:
            continue
        except TidemarkError as error:
            why = f"the landed file cannot be read: {error.found}"
            yield Held(store=spec.uri, key=file.path, kind="landed_file", by=KeptBy.NOT_READ, why=why)
            continue
        if has_rows:
            yield Held(store=spec.uri, key=file.path, kind="landed_file", by=KeptBy.LANDING, why=_WHY)


def _holds(judge: Judge, file: LandedFile, spec: LandingSpec) -> bool:
    """Whether a row or a rejected line of the file meets the condition, or may meet it. Reads to the first of them."""
    snapshot = judge.snapshot
    for block in parse_blocks(file, spec, snapshot.schema, snapshot.config.time_column):
        if block.unreadable:
            raise Corrupt(block.rejected[0].reason, file=file.path)
        if block.rows.num_rows and judge.rows(block.rows).any():
            return True
        if any(judge.text(line.text) is not False for line in block.rejected):
            return True
    return False
