"""Sources of a search for what is not merged: whole rows of generations, and all other rows above the base."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyroaring import BitMap

from storage_core.formats import generation_manifest
from storage_core.formats.bundle import checksum
from storage_core.index.bitmap import unpacked_bitmaps
from storage_core.index.cache import SegmentCache
from storage_core.index.coverage import Coverage
from storage_core.index.segments import build_rows, fingerprint_of
from storage_core.objectstore.contract import ObjectStore
from storage_core.read.bitmap_rows import rows_that_meet
from storage_core.read.overlay import Overlay, WholeRows
from storage_core.read.predicate import Predicate
from storage_core.read.pruning import conditions
from storage_core.read.search_source import InSplit, Source, chosen, require_within
from storage_core.region import generation_segments
from storage_core.settings.index import IndexDefinition


def unmerged_sources(store: ObjectStore, covered: Coverage, cache: SegmentCache, overlay: Overlay) -> list[Source]:
    """Return the sources of what is not merged: generations by region and number, then what is in none."""
    ordered = sorted(overlay.generations, key=lambda each: (each.generation.region, each.generation.generation))
    generations = [_Generation(store, covered, cache, each) for each in ordered]
    rest = [_Rest(covered, cache, overlay.rest)] if overlay.rest.num_rows else []
    return [*generations, *rest]


@dataclass(frozen=True, slots=True)
class _Generation:
    store: ObjectStore
    covered: Coverage
    cache: SegmentCache
    whole: WholeRows

    @property
    def name(self) -> str:
        return f"generation-{self.whole.generation.path} {checksum(self._source.encode())}"

    @property
    def _source(self) -> str:
        manifest = generation_manifest.encode(self.whole.generation).decode()
        return f"{fingerprint_of(self.covered.definition)}\n{manifest}"

    @property
    def splits(self) -> tuple[str, ...]:
        return ()

    @property
    def fetched_bytes(self) -> int | None:
        rows = self.whole.rows.num_rows
        segment = generation_segments.usable(self.whole.generation, self.covered.definition, rows)
        return None if segment is None else segment.size

    def count(self) -> int:
        return int(self.whole.rows.num_rows)

    def directory(self) -> Path:
        generation, definition = self.whole.generation, self.covered.definition
        return self.cache.built(
            f"generation-{generation.path}",
            self._source,
            lambda: generation_segments.files(self.store, generation, definition, self.whole.rows),
        )

    def parts(self) -> None:
        return None

    def matching(self, condition: Predicate) -> BitMap:
        return unpacked(self.directory(), self.covered.definition, condition, lambda: self.whole.rows.num_rows)

    def low(self) -> None:
        return None

    def between(self, _: Sequence[int]) -> None:
        return None

    def in_splits(self, _: Sequence[int]) -> Iterable[InSplit]:
        return ()

    def deleted(self) -> BitMap:
        return self.whole.deleted

    def take(self, rows: Sequence[int], columns: Collection[str]) -> pa.Table:
        require_within(rows, self.whole.rows.num_rows, f"generation {self.whole.generation.path}")
        return _taken(self.whole.rows, rows, columns)


@dataclass(frozen=True, slots=True)
class _Rest:
    covered: Coverage
    cache: SegmentCache
    rows: pa.Table

    @property
    def name(self) -> str:
        sink = pa.BufferOutputStream()
        texts = self.rows.select(list(self.covered.definition.columns)).combine_chunks()
        with pa.ipc.new_stream(sink, texts.schema) as writer:
            writer.write_table(texts)
        return f"rest {checksum(sink.getvalue())}"

    @property
    def splits(self) -> tuple[str, ...]:
        return ()

    @property
    def fetched_bytes(self) -> None:
        return None

    def count(self) -> int:
        return int(self.rows.num_rows)

    def directory(self) -> Path:
        return self.cache.passing(build_rows(self.rows, self.covered.definition))

    def parts(self) -> None:
        return None

    def matching(self, condition: Predicate) -> BitMap:
        return unpacked(self.directory(), self.covered.definition, condition, lambda: self.rows.num_rows)

    def low(self) -> None:
        return None

    def between(self, _: Sequence[int]) -> None:
        return None

    def in_splits(self, _: Sequence[int]) -> Iterable[InSplit]:
        return ()

    def deleted(self) -> BitMap:
        return BitMap()

    def take(self, rows: Sequence[int], columns: Collection[str]) -> pa.Table:
        return _taken(self.rows, rows, columns)


def _taken(whole: pa.Table, rows: Sequence[int], columns: Collection[str]) -> pa.Table:
    return whole.select(chosen(whole.schema, columns).names).take(pa.array(rows, pa.int64()))


def unpacked(directory: Path, definition: IndexDefinition, condition: Predicate, count: Callable[[], int]) -> BitMap:
    """Return the rows that meet a condition, by an unpacked segment of bitmaps. Raises `Corrupt`."""
    wanted = {each.column for each in conditions(condition)}
    columns = {name: unpacked_bitmaps(directory, definition, name) for name in wanted}
    return rows_that_meet(condition, columns, count)
