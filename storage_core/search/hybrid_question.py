"""What a search by several indexes asks: which of them, each its own question, and what each weighs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.index import segments
from storage_core.log.snapshot import Snapshot
from storage_core.search.fusion import Fusion, weights_of
from storage_core.search.question import IndexQuestion, only_index, question
from storage_core.settings.index import IndexDefinition


@dataclass(frozen=True, slots=True)
class Fused:
    """The indexes that rank, what each weighs, and those that only filter."""

    ranking: Sequence[IndexQuestion]
    weights: Sequence[float]
    filtering: Sequence[IndexQuestion]


def asks_several(index: object, *, query: object, vector: object) -> bool:
    """Whether a search asks several indexes: for a query and a vector, or by a list of names that is not of one."""
    return (query is not None and vector is not None) or (isinstance(index, list | tuple) and len(index) != 1)


def asked_index(index: object, *, fusion: Fusion, weights: object) -> object:
    """Return the index of a search that asks one. Raises `InvalidInput` for what is of several."""
    if weights is not None or fusion != "rrf":
        given = "weights are" if weights is not None else f"fusion {fusion!r} is"
        raise InvalidInput(f"{given} of searches by several indexes, and this one asks one; leave it out")
    return index[0] if isinstance(index, list | tuple) else index


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


def parts_of(
    snapshot: Snapshot,
    index: object,
    *,
    query: object,
    vector: object,
    weights: object,
    syntax: object,
    boosts: Mapping[str, float] | None,
    nprobe: object,
) -> Fused:
    """Return what is asked of each index. Raises `NotFound` and `InvalidInput`."""
    if query is None and vector is None:
        raise InvalidInput("a search takes a query, a vector, or both; found neither")
    definitions = _definitions(snapshot, index, query=query, vector=vector)
    texts = [each for each in definitions if each.kind == "fulltext"]
    if nprobe is not None and len(texts) == len(definitions):
        raise InvalidInput("nprobe is of searches by vector, and no index of vectors is asked")
    boosts = boosts or {}
    if foreign := [each for each in boosts if not any(each in text.columns for text in texts)]:
        found = ", ".join(column for text in texts for column in text.columns)
        raise InvalidInput(f"a boost is given for {quoted(foreign[0])}; the full-text indexes have {found or 'none'}")
    given = weights_of(weights, [each.name for each in definitions])
    ranking, filtering = list[IndexQuestion](), list[IndexQuestion]()
    for each, weight in zip(definitions, given, strict=True):
        is_text = each.kind == "fulltext"
        asked = question(
            each,
            snapshot,
            query=query if is_text else None,
            vector=None if is_text else vector,
            syntax=syntax,
            boosts={name: boost for name, boost in boosts.items() if name in each.columns} if is_text else None,
            nprobe=None if is_text else nprobe,
        )
        if not weight and not is_text:
            raise InvalidInput(f"the weight of {each.name!r} is 0; an index of vectors filters no row, so leave it out")
        (ranking if weight else filtering).append(IndexQuestion(each, asked))
    return Fused(ranking, [weight for weight in given if weight], filtering)


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
