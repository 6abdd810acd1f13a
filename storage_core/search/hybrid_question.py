"""What a search by several indexes asks: which of them, each its own question, and what each weighs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.index import segments
from storage_core.log.snapshot import Snapshot
from storage_core.search.fusion import weights_of
from storage_core.search.question import IndexQuestion, SearchQuestion, only_index, question
from storage_core.settings.index import IndexDefinition


@dataclass(frozen=True, slots=True)
class Fused:
    """The indexes that rank, what each weighs, and those that only filter."""

    ranking: Sequence[IndexQuestion]
    weights: Sequence[float]
    filtering: Sequence[IndexQuestion]


def asks_several(given: SearchQuestion) -> bool:
    """Whether a search asks several indexes: for a query and a vector, or by a list of names that is not of one."""
    is_of_both = given.query is not None and given.vector is not None
    return is_of_both or (isinstance(given.index, list | tuple) and len(given.index) != 1)


def of_one_index(given: SearchQuestion) -> SearchQuestion:
    """Return what a search asks one index, by its name. Raises `InvalidInput` for what is of several."""
    if given.weights is not None or given.fusion != "rrf":
        what = "weights are" if given.weights is not None else f"fusion {given.fusion!r} is"
        raise InvalidInput(f"{what} of searches by several indexes, and this one asks one; leave it out")
    return replace(given, index=given.index[0]) if isinstance(given.index, list | tuple) else given


def one_index(index: object, what: str) -> str | None:
    """Return the name of the only index that is named, None for none. Raises `InvalidInput` for several."""
    if index is None:
        return None
    first, *others = names_of(index)
    if others:
        raise InvalidInput(f"{what} is of one index, and {quoted(index)} are several; name the one to ask")
    return first


def names_of(index: object) -> list[str]:
    """Return the names in a list of indexes. Raises `InvalidInput` where it is none, or has one twice."""
    given = list(index) if isinstance(index, list | tuple) else [index]
    names = [each for each in given if isinstance(each, str)]
    if not names or len(names) < len(given):
        raise InvalidInput(f"index is {quoted(index)}; give the name of one index, or a list of names")
    if len(set(names)) < len(names):
        raise InvalidInput(f"index is {quoted(index)}; name each index once")
    return names


def parts_of(snapshot: Snapshot, given: SearchQuestion) -> Fused:
    """Return what is asked of each index. Raises `NotFound` and `InvalidInput`."""
    if given.query is None and given.vector is None:
        raise InvalidInput("a search takes a query, a vector, or both; found neither")
    definitions = _definitions(snapshot, given.index, query=given.query, vector=given.vector)
    texts = [each for each in definitions if each.kind == "fulltext"]
    if given.nprobe is not None and len(texts) == len(definitions):
        raise InvalidInput("nprobe is of searches by vector, and no index of vectors is asked")
    boosts = given.boosts or {}
    if foreign := [each for each in boosts if not any(each in text.columns for text in texts)]:
        found = ", ".join(column for text in texts for column in text.columns)
        raise InvalidInput(f"a boost is given for {quoted(foreign[0])}; the full-text indexes have {found or 'none'}")
    weights = weights_of(given.weights, [each.name for each in definitions])
    ranking, filtering = list[IndexQuestion](), list[IndexQuestion]()
    for each, weight in zip(definitions, weights, strict=True):
        is_text = each.kind == "fulltext"
        own = {name: boost for name, boost in boosts.items() if name in each.columns}
        part: dict[str, Any] = (
            {"vector": None, "nprobe": None, "boosts": own} if is_text else {"query": None, "boosts": None}
        )
        asked = question(each, snapshot, replace(given, **part))
        if not weight and not is_text:
            raise InvalidInput(f"the weight of {each.name!r} is 0; an index of vectors filters no row, so leave it out")
        (ranking if weight else filtering).append(IndexQuestion(each, asked))
    return Fused(ranking, [weight for weight in weights if weight], filtering)


def _definitions(snapshot: Snapshot, index: object, *, query: object, vector: object) -> Sequence[IndexDefinition]:
    """The indexes that are named, else the only one that takes each; each has its question, and each question one."""
    if index is None:
        return [only_index(snapshot, ["fulltext"]), only_index(snapshot, ["vector"])]
    definitions = [segments.definition_of(snapshot, name) for name in names_of(index)]
    if foreign := [each.name for each in definitions if each.kind not in ("fulltext", "vector")]:
        raise InvalidInput(
            f"index {foreign[0]!r} ranks nothing, so it has no part in a fusion; say it as a filter", index=foreign[0]
        )
    for given, kind, what in ((query, "fulltext", "query"), (vector, "vector", "vector")):
        fitting = [each.name for each in definitions if each.kind == kind]
        if given is not None and not fitting:
            names = ", ".join(each.name for each in definitions)
            raise InvalidInput(f"a {what} is given, and none of {names} takes one; name one more index, or none")
        if given is None and fitting:
            raise InvalidInput(f"index {fitting[0]!r} ({kind}) takes a {what}, and none is given", index=fitting[0])
    return definitions
