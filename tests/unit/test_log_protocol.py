"""Protocol versions and features that this release may read and may write."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from storage_core.base.errors import Corrupt, Unsupported
from storage_core.data.formats.keys import version_key
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Protocol
from storage_core.log.codec import encode_version
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import IfAbsent
from storage_core.store.memory import MemoryStore
from storage_core.write.region.repartition import change_regions
from storage_core.write.region.spec import declared_fields, first_specs
from tests.support.log_tables import log_on, metadata, split


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("t")


def _append(log: TransactionLog, planned: Snapshot) -> None:
    log.commit(planned, [split("a")], operation="APPEND")


@pytest.mark.parametrize(
    ("protocol", "named"),
    [
        (Protocol(readerFeatures=("tidemark", "rowIds", "typeWidening")), "reader features rowIds, typeWidening"),
        (Protocol(minReaderVersion=5), "reader version 5"),
    ],
)
def test_a_table_that_this_release_cannot_read_is_refused_by_name(
    store: MemoryStore, protocol: Protocol, named: str
) -> None:
    store.put(version_key(0), encode_version([protocol, metadata()]), IfAbsent())
    with pytest.raises(Unsupported, match=named):
        log_on(store).snapshot()


@pytest.mark.parametrize(
    ("protocol", "named"),
    [
        (Protocol(minWriterVersion=5, writerFeatures=("tidemark",)), "writer version 5"),
        (Protocol(writerFeatures=("tidemark", "rowIds")), "rowIds"),
        (Protocol(), "not created by Tidemark"),
    ],
)
def test_a_table_that_this_release_may_not_write_is_refused(store: MemoryStore, protocol: Protocol, named: str) -> None:
    store.put(version_key(0), encode_version([protocol, metadata()]), IfAbsent())
    log = log_on(store)
    with pytest.raises(Unsupported, match=named):
        _append(log, log.snapshot())


@pytest.mark.parametrize(
    "protocol",
    [
        Protocol(writerFeatures=("tidemark", "rowIds")),
        Protocol(minWriterVersion=5, writerFeatures=("tidemark",)),
    ],
)
def test_a_table_that_became_too_new_to_write_after_the_plan_is_not_written(
    store: MemoryStore, protocol: Protocol
) -> None:
    log = log_on(store)
    planned = log.create(metadata())
    store.put(version_key(1), encode_version([protocol]), IfAbsent())
    with pytest.raises(Unsupported, match=r"rowIds|writer version 5"):
        _append(log, planned)
    assert log.snapshot().version == 1


def test_null_feature_lists_are_those_of_a_table_that_can_be_read_and_not_written(store: MemoryStore) -> None:
    line = b'{"protocol":{"minReaderVersion":4,"minWriterVersion":4,"readerFeatures":null,"writerFeatures":null}}\n'
    store.put(version_key(0), line, IfAbsent())
    store.put(version_key(1), encode_version([metadata()]), IfAbsent())
    with pytest.raises(Corrupt, match="metaData"):
        log_on(store).snapshot(version=0)
    log = log_on(store)
    assert log.snapshot().protocol == Protocol()
    with pytest.raises(Unsupported, match="not created by Tidemark"):
        _append(log, log.snapshot())


def test_a_table_whose_regions_have_fields_is_kept_from_releases_that_know_one_region(store: MemoryStore) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    specs = first_specs([{"transform": "bucket", "source": "id", "n": 4}], schema)
    config = TableConfig(primary_key=("id",), region_specs=specs)
    created = log_on(store).create(
        replace(metadata(), schemaString=to_schema_string(schema), configuration=config.to_configuration())
    )
    assert "regionSpecs" in (created.protocol.readerFeatures or ())
    assert "regionSpecs" in (created.protocol.writerFeatures or ())


def test_a_table_of_one_region_gets_the_feature_when_its_regions_change(store: MemoryStore) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    log = log_on(store)
    before = log.create(
        replace(
            metadata(),
            schemaString=to_schema_string(schema),
            configuration=TableConfig(primary_key=("id",)).to_configuration(),
        )
    ).protocol
    assert "regionSpecs" not in (before.readerFeatures or ())
    after = change_regions(log, declared_fields([{"transform": "bucket", "source": "id", "n": 4}], schema)).protocol
    assert after.readerFeatures == (*(before.readerFeatures or ()), "regionSpecs")
    assert after.writerFeatures == (*(before.writerFeatures or ()), "regionSpecs")
