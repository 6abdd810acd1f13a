"""What indexes leave of the splits of a read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyroaring import BitMap

from storage_core.log.actions import Add
from storage_core.read.pruning import PruneStep


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The `splits` in which a row may meet the filter, in their order, and what it took to tell.

    `rows` are by path of a split those that may, where an index told, and `told_by` which of the `steps` did.
    """

    splits: tuple[Add, ...]
    rows: Mapping[str, BitMap] = field(default_factory=dict)
    told_by: Mapping[str, int] = field(default_factory=dict)
    steps: tuple[PruneStep, ...] = ()
    requests: int = 0
    bytes: int = 0
