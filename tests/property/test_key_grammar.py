from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.base.errors import InvalidInput
from storage_core.data.formats import keys
from storage_core.data.formats.keys import ParsedKey
from storage_core.data.formats.kinds import KeyKind, decode_segment, encode_segment
from storage_core.store.contract import is_safe_key
from tests.support.scale import scaled

versions = st.integers(0, 2**63 - 1)
numbers = st.integers(1, 2**64 - 1)
uuids = st.uuids().map(str)
windows = st.none() | st.integers(-(2**63), 2**63 - 1)
index_names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", fullmatch=True).filter(str.isascii)
directories = st.builds(lambda tag, number: f"{tag:08x}_gen_{number}", st.integers(0, 2**32 - 1), st.integers(1, 2**62))
texts = st.text(st.characters(codec="utf-8"), max_size=60)

built_keys = st.one_of(
    st.builds(keys.version_key, versions),
    st.just(keys.last_checkpoint_key()),
    st.builds(keys.manifest_key, st.integers(0, 2**64 - 1).map("{:016x}".format)),
    st.builds(keys.progress_key, st.integers(0, 2**64 - 1).map("{:016x}".format)),
    st.builds(keys.state_key, versions),
    st.builds(keys.split_key, windows, st.just(True), uuids),
    st.builds(keys.split_key, st.none(), st.just(False), uuids),
    st.builds(keys.segment_key, index_names, uuids),
    st.builds(keys.translation_key, uuids),
    st.builds(keys.region_manifest_key, uuids, numbers),
    st.builds(keys.region_hint_key, uuids),
    st.builds(keys.wal_entry_key, uuids, numbers),
    st.builds(keys.generation_file_key, uuids, directories, st.sampled_from(keys.GENERATION_FILES)),
    st.builds(keys.generation_file_key, uuids, directories, index_names.map("{}.seg".format)),
    st.just(keys.gc_candidates_key()),
    st.just(keys.gc_boundary_key()),
    st.just(keys.tags_key()),
    st.just(keys.region_registry_key()),
    st.builds(keys.probe_key, uuids),
    st.builds(keys.lock_key, texts),
    st.builds(keys.quarantine_key, texts, uuids),
    st.builds(keys.delta_commit_key, versions),
    st.builds(keys.delta_checkpoint_key, versions),
    st.just(keys.delta_hint_key()),
)


def rebuild(parsed: ParsedKey) -> str:
    """Build the key again from the parts alone."""
    match parsed:
        case ParsedKey(kind=KeyKind.VERSION, version=int(version)):
            return keys.version_key(version)
        case ParsedKey(kind=KeyKind.LAST_CHECKPOINT):
            return keys.last_checkpoint_key()
        case ParsedKey(kind=KeyKind.MANIFEST, id=str(manifest_id)):
            return keys.manifest_key(manifest_id)
        case ParsedKey(kind=KeyKind.PROGRESS, id=str(progress_id)):
            return keys.progress_key(progress_id)
        case ParsedKey(kind=KeyKind.STATE, version=int(version)):
            return keys.state_key(version)
        case ParsedKey(kind=KeyKind.SPLIT, window=window, windowed=bool(windowed), id=str(split_id)):
            return keys.split_key(window, windowed, split_id)
        case ParsedKey(kind=KeyKind.VECTOR, window=window, windowed=bool(windowed), id=str(vector_id)):
            return keys.vector_key(window, windowed, vector_id)
        case ParsedKey(kind=KeyKind.SEGMENT, index=str(index), id=str(segment_id)):
            return keys.segment_key(index, segment_id)
        case ParsedKey(kind=KeyKind.TRANSLATION, id=str(translation_id)):
            return keys.translation_key(translation_id)
        case ParsedKey(kind=KeyKind.REGION_MANIFEST, region=str(region), version=int(version)):
            return keys.region_manifest_key(region, version)
        case ParsedKey(kind=KeyKind.REGION_HINT, region=str(region)):
            return keys.region_hint_key(region)
        case ParsedKey(kind=KeyKind.WAL_ENTRY, region=str(region), entry=int(entry)):
            return keys.wal_entry_key(region, entry)
        case ParsedKey(kind=KeyKind.GENERATION_FILE, region=str(region), directory=str(directory), name=str(name)):
            return keys.generation_file_key(region, directory, name)
        case ParsedKey(kind=KeyKind.GC_CANDIDATES):
            return keys.gc_candidates_key()
        case ParsedKey(kind=KeyKind.GC_BOUNDARY):
            return keys.gc_boundary_key()
        case ParsedKey(kind=KeyKind.TAGS):
            return keys.tags_key()
        case ParsedKey(kind=KeyKind.REGION_REGISTRY):
            return keys.region_registry_key()
        case ParsedKey(kind=KeyKind.PROBE, id=str(probe_id)):
            return keys.probe_key(probe_id)
        case ParsedKey(kind=KeyKind.LOCK, source=str(source)):
            return parsed.key if "~" in source else keys.lock_key(decode_segment(source))
        case ParsedKey(kind=KeyKind.QUARANTINE, source=str(source), id=str(entry_id)):
            if "~" in source:
                return parsed.key
            return keys.quarantine_key(decode_segment(source), entry_id)
        case ParsedKey(kind=KeyKind.DELTA_COMMIT, version=int(version)):
            return keys.delta_commit_key(version)
        case ParsedKey(kind=KeyKind.DELTA_CHECKPOINT, version=int(version)):
            return keys.delta_checkpoint_key(version)
        case ParsedKey(kind=KeyKind.DELTA_HINT):
            return keys.delta_hint_key()
        case _:
            raise AssertionError(f"{parsed} lacks a part")


@given(built_keys)
@settings(max_examples=scaled(500))
def test_a_built_key_parses_into_the_parts_that_build_it_again(key: str) -> None:
    parsed = keys.parse(key)
    assert parsed is not None
    if "~" not in key:
        assert rebuild(parsed) == key


@given(built_keys)
def test_every_built_key_is_safe_in_every_store(key: str) -> None:
    assert is_safe_key(key)


@given(built_keys, st.data())
@settings(max_examples=scaled(500))
def test_a_changed_key_is_either_another_object_or_not_ours(key: str, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(key)))
    pieces = ["", "/", "..", ".", "%", "%2F", "0", "a", "A", "-", "~", " ", "\n", "\x00", "é"]
    insert = data.draw(st.sampled_from(pieces))
    drop = data.draw(st.integers(0, 2))
    changed = key[:position] + insert + key[position + drop :]
    parsed = keys.parse(changed)
    if parsed is not None and "~" not in changed:
        assert rebuild(parsed) == changed


@given(st.text())
def test_any_text_parses_or_is_not_ours_and_never_fails(text: str) -> None:
    parsed = keys.parse(text)
    assert parsed is None or rebuild(parsed) == text


@given(texts)
def test_an_encoded_segment_is_one_plain_segment_and_decodes_to_its_value(value: str) -> None:
    segment = encode_segment(value)
    assert decode_segment(segment) == value
    assert is_safe_key(segment)
    assert segment.isascii()
    assert not set(segment) & set("/\\~*? \n")


@given(st.text(st.sampled_from("%2EeFf/.~aä"), max_size=12))
def test_a_segment_that_decodes_is_the_only_spelling_of_its_value(segment: str) -> None:
    try:
        value = decode_segment(segment)
    except InvalidInput:
        return
    assert encode_segment(value) == segment
