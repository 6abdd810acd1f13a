"""Every kind of object × every kind of damage.

The cases test the lessons 30 to 32, 41, 46, 47, 60 and 61. Four properties hold in each case:

- A reader gets the right answer or a typed error that names the object, and never other rows.
- `fsck` finds the damage and recommends an action.
- `repair` restores all undamaged data in a new location.
- `fsck` finds no damage in the new location.

If the test of a damaged object cannot require one of these properties, a constant below states the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import pytest

from storage_core.base.errors import TidemarkError
from storage_core.data.formats.keys import ParsedKey, parse
from storage_core.data.formats.kinds import OF_TABLES, KeyKind
from storage_core.data.formats.region_manifest import BLOOM_FILE, MANIFEST_FILE, decode_generation
from storage_core.log.log import TransactionLog
from storage_core.maintain.check import fsck
from storage_core.maintain.findings import Finding, Report
from storage_core.maintain.repair import repair
from storage_core.store.contract import IfAbsent
from storage_core.store.memory import MemoryStore
from storage_core.write.region.generation_write import of_base
from tests import draws
from tests.support.clock import ManualClock
from tests.support.copies import copy_of
from tests.support.damage import Damage, damage
from tests.support.every_kind import EveryKind, answers, every_kind
from tests.support.ids import SeededIds

RESERVED = "nothing reads it in this release"
DELETED_WITHOUT_TRACE = "nothing that is left tells that it was ever there"
NO_CHECKSUM = "plain JSON that may be replaced at any time: a flip in a nonce or a metric reads as another legal value"
NOT_NEEDED = "only what is merged or superseded needed it"

# Kinds of damage that no check can detect, and the reason for each kind. Except for `UNSEEN_ANSWERS`, readers give the
# same answer.
INVISIBLE: Mapping[tuple[str, Damage], str] = {
    **{("lock", each): RESERVED for each in Damage},
    **{("probe", each): RESERVED for each in Damage},
    ("gc_candidates", Damage.MISSING): DELETED_WITHOUT_TRACE,
    ("quarantine", Damage.MISSING): DELETED_WITHOUT_TRACE,
    ("tags", Damage.MISSING): DELETED_WITHOUT_TRACE,
    ("region_hint", Damage.MISSING): "it is written as best effort",
    ("region_registry", Damage.MISSING): "it is made again from the regions",
    ("json_checkpoint", Damage.MISSING): DELETED_WITHOUT_TRACE,
    ("state of an older version", Damage.MISSING): DELETED_WITHOUT_TRACE,
    ("newest version", Damage.MISSING): DELETED_WITHOUT_TRACE,
    ("last WAL entry", Damage.MISSING): DELETED_WITHOUT_TRACE,
    ("merged WAL entry", Damage.MISSING): NOT_NEEDED,
    ("merged generation", Damage.MISSING): NOT_NEEDED,
    ("older region manifest", Damage.MISSING): NOT_NEEDED,
}
# The flipped bit decides whether a check finds this damage. A flipped bit that no check finds has no effect.
SOMETIMES_INVISIBLE: Mapping[tuple[str, Damage], str] = {
    (name, Damage.BIT_FLIP): NO_CHECKSUM
    for name in ("last_checkpoint", "region_hint", "tags", "gc_candidates", "gc_boundary")
}
# Queries that return wrong answers without an error. A query can only return a wrong answer without an error if no
# other object of the table refers to the damaged object.
UNSEEN_ANSWERS: Mapping[tuple[str, Damage], frozenset[str]] = {
    ("newest version", Damage.MISSING): frozenset({"scan", "search"}),
    ("last WAL entry", Damage.MISSING): frozenset({"latest", "get"}),
}
# Typed errors that do not contain the key of the missing object, because readers cannot know that the object existed.
UNNAMED: Mapping[tuple[str, Damage], frozenset[str]] = {
    ("tags", Damage.MISSING): frozenset({"tag"}),
}
# For each damaged object, the queries whose answers a repair cannot restore. Every answer that is not listed is the
# same before the damage and after the repair.
UNRECOVERABLE: Mapping[str, frozenset[str]] = {
    "live split": frozenset({"scan", "latest", "search", "search latest", "get"}),
    "split of older versions": frozenset({"older", "tag"}),
    "vector": frozenset({"scan", "latest"}),  # only this object records the live rows of the split
    "newest version": frozenset({"scan", "search"}),  # a later merge repeats the merge of the lost version
    "unmerged WAL entry": frozenset({"latest", "search latest"}),
    "tail WAL entry": frozenset({"latest"}),
    "last WAL entry": frozenset({"latest", "get"}),
    "tags": frozenset({"tag"}),
}


# Checks find only some flipped bits in these objects. The test tries seeds until a check finds one flipped bit and
# misses another flipped bit.
SEEDS = range(1, 20)


@cache
def table() -> EveryKind:
    return every_kind()


@cache
def expected() -> dict[str, object]:
    found = answers(table().store, _clock(), table().older)
    assert not [each for each in found.values() if isinstance(each, TidemarkError)]
    return found


@cache
def noted() -> frozenset[tuple[object, str]]:
    """Return the findings of a check of the undamaged table: unreferenced objects and a foreign object."""
    report = fsck(table().store, clock=_clock(), deep=True)
    assert report.clean
    return frozenset((each.kind, each.key) for each in report.findings)


@cache
def victims() -> dict[str, str]:
    """Return one object per kind. Return several objects if their damage has different effects."""
    store = table().store
    found = [parsed for info in store.list("") if (parsed := parse(info.key)) is not None]
    by_kind = {kind: [each for each in found if each.kind is kind] for kind in KeyKind}
    head = TransactionLog(store).snapshot()
    chosen = {str(kind): by_kind[kind][0].key for kind in KeyKind if by_kind[kind]}
    versions = _numbers(by_kind[KeyKind.VERSION])
    states = _numbers(by_kind[KeyKind.STATE])
    entries = {each.entry or 0: each.key for each in by_kind[KeyKind.WAL_ENTRY]}
    last = max(entries)
    newest_version, newest_state = max(versions), max(states)
    del chosen["version"], chosen["state"], chosen["split"], chosen["wal_entry"], chosen["generation_file"]
    del chosen["region_manifest"]
    manifests = _numbers(by_kind[KeyKind.REGION_MANIFEST])
    flushed = {(each.generation or 0, each.name): each.key for each in by_kind[KeyKind.GENERATION_FILE]}
    newest = max(number for number, _ in flushed)
    unmerged = decode_generation(store.get(flushed[newest, MANIFEST_FILE]).data, "the newest generation")
    merged = max(head.merged_generations.values())
    older = TransactionLog(store).snapshot(version=table().older)
    return {
        **chosen,
        "segment": next(iter(head.segments)),
        "translation": next(iter(head.translations)),
        "vector": next(
            str(add.deleted_rows.path) for add in head.splits.marked() if add.deleted_rows and add.deleted_rows.path
        ),
        "version before a state": versions[newest_state - 1],
        "newest version": versions[newest_version],
        "newest state": states[newest_state],
        "state of an older version": states[min(states)],
        "live split": next(path for path, add in head.splits.items() if add.numMergeOps),
        "split of older versions": min(set(older.splits) - set(head.splits)),
        "newest region manifest": manifests[max(manifests)],
        "older region manifest": manifests[min(manifests)],
        "generation": flushed[newest, MANIFEST_FILE],
        "bloom filter": flushed[newest, BLOOM_FILE],
        "generation segment": of_base(unmerged, unmerged.segments[0]).path,
        "merged generation": flushed[merged, MANIFEST_FILE],
        "last WAL entry": entries[last],
        "tail WAL entry": entries[last - 1],
        "unmerged WAL entry": entries[last - 4],
        "merged WAL entry": entries[min(entries)],
    }


def _numbers(parsed: list[ParsedKey]) -> dict[int, str]:
    return {each.version or 0: each.key for each in parsed}


def _partner(key: str) -> str | None:
    """Return another object of the same kind with other bytes.

    For a file of a generation, return the file with the same name in another generation.
    """
    own = parse(key)
    assert own is not None
    store = table().store
    for info in store.list(""):
        other = parse(info.key)
        same = other is not None and (other.kind, other.name) == (own.kind, own.name) and info.key != key
        if same and store.get(info.key).data != store.get(key).data:
            return info.key
    return None


CASES = [(name, kind) for name in sorted(victims()) for kind in Damage]


def test_every_kind_of_object_has_a_victim_but_those_of_clones_and_mirrors() -> None:
    kinds = {parsed.kind for key in victims().values() if (parsed := parse(key)) is not None}
    of_mirrors = {each for each in KeyKind if each.startswith(("delta", "iceberg"))}  # tested in `test_publishing.py`
    # `test_clones.py` tests clones, because the repair of a clone needs the source table.
    assert kinds == set(OF_TABLES) - {KeyKind.SOURCE} - of_mirrors


@pytest.mark.parametrize(("name", "kind"), CASES, ids=[f"{name}-{kind.name.lower()}" for name, kind in CASES])
def test_damage_is_an_error_or_no_matter_and_is_found_and_repaired(name: str, kind: Damage) -> None:
    case = (name, kind)
    if not _happens(case):
        assert len([each for each in table().store.list("") if _kind(each.key) is _kind(victims()[name])]) == 1
        return  # this object is the only one of its kind
    found = judged(case)
    assert found.silent == UNSEEN_ANSWERS.get(case, frozenset())
    assert found.unnamed == UNNAMED.get(case, frozenset())
    if case in INVISIBLE:
        assert [each for each in found.findings if each.kind != "unreferenced"] == []
    elif case not in SOMETIMES_INVISIBLE:
        assert found.findings
    assert found.lost <= UNRECOVERABLE.get(name, frozenset())


@pytest.mark.parametrize("kind", Damage)
@pytest.mark.parametrize("name", ["live split", "split of older versions"])
def test_of_a_split_that_is_read_by_ranges_every_damage_is_an_error_or_no_matter(
    name: str, kind: Damage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 0)
    assert _differing(answers(table().store, _clock(), table().older)) == frozenset()
    key, other = victims()[name], _other((name, kind))
    errors = 0
    drawn = draws.part_of(SEEDS, f"{name}, {kind}")
    others = [each for each in SEEDS if each not in drawn]  # used if no seed of `drawn` causes an error
    for number, seed in enumerate([*drawn, *others], start=1):
        damaged = copy_of(table().store, "damaged", _clock())
        damage(damaged, key, kind, seed=seed, other=other)
        found = answers(damaged, _clock(), table().older)
        failed = {question: str(each) for question, each in found.items() if isinstance(each, TidemarkError)}
        assert _differing(found) == failed.keys()
        assert all(key in text or str(other) in text for text in failed.values())
        errors += len(failed)
        if kind not in (Damage.BIT_FLIP, Damage.TRUNCATION) or (errors and number >= len(drawn)):
            break
    assert errors


@pytest.mark.parametrize("case", SOMETIMES_INVISIBLE, ids=[f"{name}-{kind.name}" for name, kind in SOMETIMES_INVISIBLE])
def test_a_flip_is_found_or_is_no_matter_and_both_happen(case: tuple[str, Damage]) -> None:
    noticed = set()
    for seed in SEEDS:
        found = judged(case, seed)
        noticed.add(bool(found.findings))
        if not found.findings:
            assert found.silent | found.failed | found.lost == frozenset()
        if len(noticed) == 2:
            break
    assert noticed == {True, False}


@pytest.mark.parametrize("name", UNRECOVERABLE)
def test_every_answer_that_is_excused_is_lost_by_some_damage(name: str) -> None:
    lost: frozenset[str] = frozenset()
    for case in CASES:
        if case[0] == name and _happens(case) and lost != UNRECOVERABLE[name]:
            lost |= judged(case).lost
    assert lost == UNRECOVERABLE[name]


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of one damaged object: the findings about it, and the queries whose answers have changed.

    For the damaged table, `silent` contains queries with wrong answers without an error, and `failed` contains queries
    that raise an error. `unnamed` has the queries whose errors do not name the object. For the repaired table, `lost`
    has the queries whose answers have changed.
    """

    findings: tuple[Finding, ...]
    silent: frozenset[str]
    failed: frozenset[str]
    unnamed: frozenset[str]
    lost: frozenset[str]


@cache
def judged(case: tuple[str, Damage], seed: int = 1) -> Judged:
    """Damage a copy, read it, check it and repair it, and check that the copy in the new location is clean."""
    name, kind = case
    key, other = victims()[name], _other(case)
    named = {each for each in (key, other) if each is not None}
    clock = _clock()
    damaged = copy_of(table().store, "damaged", clock)
    damage(damaged, key, kind, seed=seed, other=other)
    found = answers(damaged, clock, table().older)
    failed = {question: str(each) for question, each in found.items() if isinstance(each, TidemarkError)}
    report = fsck(damaged, clock=clock, deep=True)
    target = MemoryStore("repaired", clock=clock)
    outcome = repair(damaged, target, clock=clock, ids=SeededIds(2))
    assert outcome.check is not None
    assert outcome.check.clean, outcome.check.findings
    return Judged(
        findings=_about(report, named | _told_by(name)),
        silent=_differing(found) - failed.keys(),
        failed=frozenset(failed),
        unnamed=frozenset(question for question, text in failed.items() if not any(each in text for each in named)),
        lost=_differing(_answers_of(frozenset((info.key, target.get(info.key).data) for info in target.list("")))),
    )


@cache
def _answers_of(objects: frozenset[tuple[str, bytes]]) -> dict[str, object]:
    """Return the query results of a table with these objects. Different damage often leads to the same objects."""
    store = MemoryStore("repaired", clock=_clock())
    for key, data in objects:
        store.put(key, data, IfAbsent())
    return answers(store, _clock(), table().older)


def _clock() -> ManualClock:
    """Return a clock that starts at the table's last change, so that equal repairs write equal bytes."""
    return ManualClock(table().clock.now, step_ms=1)


def _happens(case: tuple[str, Damage]) -> bool:
    return case[1] is not Damage.SWAP or _other(case) is not None


def _other(case: tuple[str, Damage]) -> str | None:
    return _partner(victims()[case[0]]) if case[1] is Damage.SWAP else None


def _differing(found: dict[str, object]) -> frozenset[str]:
    return frozenset(question for question, answer in found.items() if answer != expected()[question])


def _about(report: Report, named: set[str]) -> tuple[Finding, ...]:
    """Return the findings about the named objects. Omit findings that the undamaged table has, too."""
    new = [each for each in report.findings if (each.kind, each.key) not in noted()]
    assert all(each.advice and each.expected and each.found for each in new)
    return tuple(each for each in new if each.key in named or any(key in each.found + each.expected for key in named))


def _told_by(name: str) -> set[str]:
    """For a damaged part of a JSON checkpoint, return the keys of all JSON checkpoints.

    A damaged part of one checkpoint may be equal to a part of another checkpoint. The finding then names the other
    checkpoint.
    """
    if name != "json_checkpoint_part":
        return set()
    return {info.key for info in table().store.list("") if _kind(info.key) is KeyKind.JSON_CHECKPOINT}


def _kind(key: str) -> KeyKind | None:
    parsed = parse(key)
    return None if parsed is None else parsed.kind
