"""The options of a vector index: how vectors are compared, stored and searched."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast, get_args

from storage_core.errors import InvalidInput

Metric = Literal["l2", "cosine", "dot"]
Quantization = Literal["rotated", "none", "scalar", "product"]

OPTIONS = ("metric", "quantization", "nprobe", "recall_floor", "retrain_imbalance_threshold")


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorOptions:
    """How an index of vectors is made and searched.

    `quantization`: `rotated` keeps 2 bits and then 8 of each dimension, behind a rotation; `scalar` 8 bits, `product` a
    byte for several dimensions, `none` all 32 bits. `nprobe` is how many clusters a search looks into, by default
    as many as hold a share of the rows (`probing.probes`). Below the recall `recall_floor` (0 to 1) a check fails;
    above the ratio `retrain_imbalance_threshold` of the largest cluster to the smallest a segment is trained once more.
    None: never.
    """

    metric: Metric = "l2"
    quantization: Quantization = "rotated"
    nprobe: int | None = None
    recall_floor: float | None = None
    retrain_imbalance_threshold: float | None = None

    @staticmethod
    def of(index: str, options: Mapping[str, str]) -> VectorOptions:
        """Return the options of the index of this name. Raises `InvalidInput` naming the one that is wrong."""
        unknown = sorted(options.keys() - {*OPTIONS})
        if unknown:
            raise _refused(index, f"unknown option {unknown[0]!r}; vectors take {', '.join(OPTIONS)}")
        return VectorOptions(
            metric=cast("Metric", _among(index, options, "metric", get_args(Metric))),
            quantization=cast("Quantization", _among(index, options, "quantization", get_args(Quantization))),
            nprobe=_probes(index, options),
            recall_floor=_number(index, options, "recall_floor", (0.0, 1.0)),
            retrain_imbalance_threshold=_number(index, options, "retrain_imbalance_threshold", (1.0, math.inf)),
        )

    @property
    def content(self) -> dict[str, str]:
        """The options on which the content of a segment depends."""
        return {"metric": self.metric, "quantization": self.quantization}


def beside_kind(index: Mapping[str, object]) -> Mapping[str, object]:
    """Return the mapping with the options of a vector index under `options`; `InvalidInput` for one given twice."""
    if index.get("kind") != "vector":
        return index
    own = {name: index[name] for name in OPTIONS if name in index}
    options = index.get("options", {})
    if not isinstance(options, Mapping):
        return index
    if twice := sorted(own.keys() & options.keys()):
        raise InvalidInput(f"index {index.get('name')!r}: the option {twice[0]!r} is given twice")
    return {**{name: value for name, value in index.items() if name not in own}, "options": {**options, **own}}


def _among(index: str, options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    found = options.get(name, str(getattr(VectorOptions(), name)))
    if found not in choices:
        raise _refused(index, f"{name} {found!r} is not one of {', '.join(choices)}")
    return found


def _probes(index: str, options: Mapping[str, str]) -> int | None:
    text = options.get("nprobe")
    if text is not None and not (text.isascii() and text.isdigit() and 1 <= int(text) < 2**31):
        raise _refused(index, f"nprobe is {text!r}; it is a number of clusters, at least 1")
    return None if text is None else int(text)


def _number(index: str, options: Mapping[str, str], name: str, span: tuple[float, float]) -> float | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not span[0] <= found <= span[1]:
        raise _refused(index, f"{name} is {text!r}; it is a number from {span[0]:g} to {span[1]:g}")
    return found


def _refused(index: str, reason: str) -> InvalidInput:
    return InvalidInput(f"index {index!r}: {reason}", index=index)
