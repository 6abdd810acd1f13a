from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegionManifest(_message.Message):
    __slots__ = ("version", "writer_epoch", "replay_after_wal_id", "wal_id_last_seen", "current_generation", "flushed_generations", "region_spec_id", "region_id", "writer_id", "checksum", "closed_by", "distributed", "collected_generation", "idle_epoch")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WRITER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLAY_AFTER_WAL_ID_FIELD_NUMBER: _ClassVar[int]
    WAL_ID_LAST_SEEN_FIELD_NUMBER: _ClassVar[int]
    CURRENT_GENERATION_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    REGION_SPEC_ID_FIELD_NUMBER: _ClassVar[int]
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    WRITER_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    CLOSED_BY_FIELD_NUMBER: _ClassVar[int]
    DISTRIBUTED_FIELD_NUMBER: _ClassVar[int]
    COLLECTED_GENERATION_FIELD_NUMBER: _ClassVar[int]
    IDLE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    version: int
    writer_epoch: int
    replay_after_wal_id: int
    wal_id_last_seen: int
    current_generation: int
    flushed_generations: _containers.RepeatedCompositeFieldContainer[FlushedGeneration]
    region_spec_id: int
    region_id: UUID
    writer_id: str
    checksum: int
    closed_by: int
    distributed: _containers.RepeatedCompositeFieldContainer[Distributed]
    collected_generation: int
    idle_epoch: int
    def __init__(self, version: _Optional[int] = ..., writer_epoch: _Optional[int] = ..., replay_after_wal_id: _Optional[int] = ..., wal_id_last_seen: _Optional[int] = ..., current_generation: _Optional[int] = ..., flushed_generations: _Optional[_Iterable[_Union[FlushedGeneration, _Mapping]]] = ..., region_spec_id: _Optional[int] = ..., region_id: _Optional[_Union[UUID, _Mapping]] = ..., writer_id: _Optional[str] = ..., checksum: _Optional[int] = ..., closed_by: _Optional[int] = ..., distributed: _Optional[_Iterable[_Union[Distributed, _Mapping]]] = ..., collected_generation: _Optional[int] = ..., idle_epoch: _Optional[int] = ...) -> None: ...

class FlushedGeneration(_message.Message):
    __slots__ = ("generation", "path", "sorted_from", "manifest_copy", "bloom_filter_copy")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SORTED_FROM_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_COPY_FIELD_NUMBER: _ClassVar[int]
    BLOOM_FILTER_COPY_FIELD_NUMBER: _ClassVar[int]
    generation: int
    path: str
    sorted_from: int
    manifest_copy: bytes
    bloom_filter_copy: bytes
    def __init__(self, generation: _Optional[int] = ..., path: _Optional[str] = ..., sorted_from: _Optional[int] = ..., manifest_copy: _Optional[bytes] = ..., bloom_filter_copy: _Optional[bytes] = ...) -> None: ...

class UUID(_message.Message):
    __slots__ = ("uuid",)
    UUID_FIELD_NUMBER: _ClassVar[int]
    uuid: bytes
    def __init__(self, uuid: _Optional[bytes] = ...) -> None: ...

class Distributed(_message.Message):
    __slots__ = ("writer", "chunk")
    WRITER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    writer: str
    chunk: int
    def __init__(self, writer: _Optional[str] = ..., chunk: _Optional[int] = ...) -> None: ...
