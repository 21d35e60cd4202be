# Written by tools/generate_proto.py from proto/PulsarApi.proto: do not edit.

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeAlias

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.internal.containers import (
    RepeatedCompositeFieldContainer,
    RepeatedScalarFieldContainer,
)
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message

DESCRIPTOR: FileDescriptor

CompressionType: EnumTypeWrapper
NONE: int
LZ4: int
ZLIB: int
ZSTD: int
SNAPPY: int

ServerError: EnumTypeWrapper
UnknownError: int
MetadataError: int
PersistenceError: int
AuthenticationError: int
AuthorizationError: int
ConsumerBusy: int
ServiceNotReady: int
ProducerBlockedQuotaExceededError: int
ProducerBlockedQuotaExceededException: int
ChecksumError: int
UnsupportedVersionError: int
TopicNotFound: int
SubscriptionNotFound: int
ConsumerNotFound: int
TooManyRequests: int
TopicTerminatedError: int
ProducerBusy: int
InvalidTopicName: int
IncompatibleSchema: int
ConsumerAssignError: int
TransactionCoordinatorNotFound: int
InvalidTxnStatus: int
NotAllowedError: int
TransactionConflict: int
TransactionNotFound: int
ProducerFenced: int

ProtocolVersion: EnumTypeWrapper
v0: int
v1: int
v2: int
v3: int
v4: int
v5: int
v6: int
v7: int
v8: int
v9: int
v10: int
v11: int
v12: int
v13: int
v14: int
v15: int
v16: int
v17: int
v18: int
v19: int
v20: int
v21: int

AuthMethod: EnumTypeWrapper
AuthMethodNone: int
AuthMethodYcaV1: int
AuthMethodAthens: int

ProducerAccessMode: EnumTypeWrapper
Shared: int
Exclusive: int
WaitForExclusive: int
ExclusiveWithFencing: int

KeySharedMode: EnumTypeWrapper
AUTO_SPLIT: int
STICKY: int

TxnAction: EnumTypeWrapper
COMMIT: int
ABORT: int

SegmentState: EnumTypeWrapper
ACTIVE: int
SEALED: int

ScalableConsumerType: EnumTypeWrapper
STREAM: int
CHECKPOINT: int

class Schema(Message):
    Type: ClassVar[EnumTypeWrapper]
    String: ClassVar[int]
    Json: ClassVar[int]
    Protobuf: ClassVar[int]
    Avro: ClassVar[int]
    Bool: ClassVar[int]
    Int8: ClassVar[int]
    Int16: ClassVar[int]
    Int32: ClassVar[int]
    Int64: ClassVar[int]
    Float: ClassVar[int]
    Double: ClassVar[int]
    Date: ClassVar[int]
    Time: ClassVar[int]
    Timestamp: ClassVar[int]
    KeyValue: ClassVar[int]
    Instant: ClassVar[int]
    LocalDate: ClassVar[int]
    LocalTime: ClassVar[int]
    LocalDateTime: ClassVar[int]
    ProtobufNative: ClassVar[int]
    AutoConsume: ClassVar[int]
    External: ClassVar[int]
    name: str
    schema_data: bytes
    type: int
    @property
    def properties(self) -> RepeatedCompositeFieldContainer[_KeyValue]: ...
    def __init__(
        self,
        *,
        name: str | None = ...,
        schema_data: bytes | None = ...,
        type: int | str | None = ...,
        properties: Iterable[_KeyValue | Mapping[str, Any]] | None = ...,
    ) -> None: ...

class MessageIdData(Message):
    ledgerId: int
    entryId: int
    partition: int
    batch_index: int
    @property
    def ack_set(self) -> RepeatedScalarFieldContainer[int]: ...
    batch_size: int
    @property
    def first_chunk_message_id(self) -> MessageIdData: ...
    def __init__(
        self,
        *,
        ledgerId: int | None = ...,
        entryId: int | None = ...,
        partition: int | None = ...,
        batch_index: int | None = ...,
        ack_set: Iterable[int] | None = ...,
        batch_size: int | None = ...,
        first_chunk_message_id: MessageIdData | Mapping[str, Any] | None = ...,
    ) -> None: ...

class KeyValue(Message):
    key: str
    value: str
    def __init__(
        self,
        *,
        key: str | None = ...,
        value: str | None = ...,
    ) -> None: ...

_KeyValue: TypeAlias = KeyValue

class KeyLongValue(Message):
    key: str
    value: int
    def __init__(
        self,
        *,
        key: str | None = ...,
        value: int | None = ...,
    ) -> None: ...

class IntRange(Message):
    start: int
    end: int
    def __init__(
        self,
        *,
        start: int | None = ...,
        end: int | None = ...,
    ) -> None: ...

class EncryptionKeys(Message):
    key: str
    value: bytes
    @property
    def metadata(self) -> RepeatedCompositeFieldContainer[_KeyValue]: ...
    def __init__(
        self,
        *,
        key: str | None = ...,
        value: bytes | None = ...,
        metadata: Iterable[_KeyValue | Mapping[str, Any]] | None = ...,
    ) -> None: ...

class MessageMetadata(Message):
    producer_name: str
    sequence_id: int
    publish_time: int
    @property
    def properties(self) -> RepeatedCompositeFieldContainer[_KeyValue]: ...
    replicated_from: str
    partition_key: str
    @property
    def replicate_to(self) -> RepeatedScalarFieldContainer[str]: ...
    compression: int
    uncompressed_size: int
    num_messages_in_batch: int
    event_time: int
    @property
    def encryption_keys(self) -> RepeatedCompositeFieldContainer[EncryptionKeys]: ...
    encryption_algo: str
    encryption_param: bytes
    schema_version: bytes
    partition_key_b64_encoded: bool
    ordering_key: bytes
    deliver_at_time: int
    marker_type: int
    txnid_least_bits: int
    txnid_most_bits: int
    highest_sequence_id: int
    null_value: bool
    uuid: str
    num_chunks_from_msg: int
    total_chunk_msg_size: int
    chunk_id: int
    null_partition_key: bool
    @property
    def compacted_batch_indexes(self) -> RepeatedScalarFieldContainer[int]: ...
    schema_id: bytes
    entry_hash_min: int
    entry_hash_max: int
    def __init__(
        self,
        *,
        producer_name: str | None = ...,
        sequence_id: int | None = ...,
        publish_time: int | None = ...,
        properties: Iterable[_KeyValue | Mapping[str, Any]] | None = ...,
        replicated_from: str | None = ...,
        partition_key: str | None = ...,
        replicate_to: Iterable[str] | None = ...,
        compression: int | str | None = ...,
        uncompressed_size: int | None = ...,
        num_messages_in_batch: int | None = ...,
        event_time: int | None = ...,
        encryption_keys: Iterable[EncryptionKeys | Mapping[str, Any]] | None = ...,
        encryption_algo: str | None = ...,
        encryption_param: bytes | None = ...,
        schema_version: bytes | None = ...,
        partition_key_b64_encoded: bool | None = ...,
        ordering_key: bytes | None = ...,
        deliver_at_time: int | None = ...,
        marker_type: int | None = ...,
        txnid_least_bits: int | None = ...,
        txnid_most_bits: int | None = ...,
        highest_sequence_id: int | None = ...,
        null_value: bool | None = ...,
        uuid: str | None = ...,
        num_chunks_from_msg: int | None = ...,
        total_chunk_msg_size: int | None = ...,
        chunk_id: int | None = ...,
        null_partition_key: bool | None = ...,
        compacted_batch_indexes: Iterable[int] | None = ...,
        schema_id: bytes | None = ...,
        entry_hash_min: int | None = ...,
        entry_hash_max: int | None = ...,
    ) -> None: ...

class SingleMessageMetadata(Message):
    @property
    def properties(self) -> RepeatedCompositeFieldContainer[_KeyValue]: ...
    partition_key: str
    payload_size: int
    compacted_out: bool
    event_time: int
    partition_key_b64_encoded: bool
    ordering_key: bytes
    sequence_id: int
    null_value: bool
    null_partition_key: bool
    def __init__(
        self,
        *,
        properties: Iterable[_KeyValue | Mapping[str, Any]] | None = ...,
        partition_key: str | None = ...,
        payload_size: int | None = ...,
        compacted_out: bool | None = ...,
        event_time: int | None = ...,
        partition_key_b64_encoded: bool | None = ...,
        ordering_key: bytes | None = ...,
        sequence_id: int | None = ...,
        null_value: bool | None = ...,
        null_partition_key: bool | None = ...,
    ) -> None: ...

class BrokerEntryMetadata(Message):
    broker_timestamp: int
    index: int
    def __init__(
        self,
        *,
        broker_timestamp: int | None = ...,
        index: int | None = ...,
    ) -> None: ...

class FeatureFlags(Message):
    supports_auth_refresh: bool
    supports_broker_entry_metadata: bool
    supports_partial_producer: bool
    supports_topic_watchers: bool
    supports_get_partitioned_metadata_without_auto_creation: bool
    supports_repl_dedup_by_lid_and_eid: bool
    supports_topic_watcher_reconcile: bool
    supports_scalable_topics: bool
    supports_tc_metadata_discovery: bool
    def __init__(
        self,
        *,
        supports_auth_refresh: bool | None = ...,
        supports_broker_entry_metadata: bool | None = ...,
        supports_partial_producer: bool | None = ...,
        supports_topic_watchers: bool | None = ...,
        supports_get_partitioned_metadata_without_auto_creation: bool | None = ...,
        supports_repl_dedup_by_lid_and_eid: bool | None = ...,
        supports_topic_watcher_reconcile: bool | None = ...,
        supports_scalable_topics: bool | None = ...,
        supports_tc_metadata_discovery: bool | None = ...,
    ) -> None: ...

class CommandConnect(Message):
    client_version: str
    auth_method: int
    auth_data: bytes
    protocol_version: int
    auth_method_name: str
    proxy_to_broker_url: str
    original_principal: str
    original_auth_data: str
    original_auth_method: str
    @property
    def feature_flags(self) -> FeatureFlags: ...
    proxy_version: str
    def __init__(
        self,
        *,
        client_version: str | None = ...,
        auth_method: int | str | None = ...,
        auth_data: bytes | None = ...,
        protocol_version: int | None = ...,
        auth_method_name: str | None = ...,
        proxy_to_broker_url: str | None = ...,
        original_principal: str | None = ...,
        original_auth_data: str | None = ...,
        original_auth_method: str | None = ...,
        feature_flags: FeatureFlags | Mapping[str, Any] | None = ...,
        proxy_version: str | None = ...,
    ) -> None: ...

class CommandConnected(Message):
    server_version: str
    protocol_version: int
    max_message_size: int
    @property
    def feature_flags(self) -> FeatureFlags: ...
    def __init__(
        self,
        *,
        server_version: str | None = ...,
        protocol_version: int | None = ...,
        max_message_size: int | None = ...,
        feature_flags: FeatureFlags | Mapping[str, Any] | None = ...,
    ) -> None: ...

class AuthData(Message):
    auth_method_name: str
    auth_data: bytes
    def __init__(
        self,
        *,
        auth_method_name: str | None = ...,
        auth_data: bytes | None = ...,
    ) -> None: ...

class CommandAuthChallenge(Message):
    server_version: str
    @property
    def challenge(self) -> AuthData: ...
    protocol_version: int
    def __init__(
        self,
        *,
        server_version: str | None = ...,
        challenge: AuthData | Mapping[str, Any] | None = ...,
        protocol_version: int | None = ...,
    ) -> None: ...

class CommandAuthResponse(Message):
    client_version: str
    @property
    def response(self) -> AuthData: ...
    protocol_version: int
    def __init__(
        self,
        *,
        client_version: str | None = ...,
        response: AuthData | Mapping[str, Any] | None = ...,
        protocol_version: int | None = ...,
    ) -> None: ...

class CommandPing(Message):
    def __init__(self) -> None: ...

class CommandPong(Message):
    def __init__(self) -> None: ...

class CommandPartitionedTopicMetadata(Message):
    topic: str
    request_id: int
    original_principal: str
    original_auth_data: str
    original_auth_method: str
    metadata_auto_creation_enabled: bool
    def __init__(
        self,
        *,
        topic: str | None = ...,
        request_id: int | None = ...,
        original_principal: str | None = ...,
        original_auth_data: str | None = ...,
        original_auth_method: str | None = ...,
        metadata_auto_creation_enabled: bool | None = ...,
    ) -> None: ...

class CommandPartitionedTopicMetadataResponse(Message):
    LookupType: ClassVar[EnumTypeWrapper]
    Success: ClassVar[int]
    Failed: ClassVar[int]
    partitions: int
    request_id: int
    response: int
    error: int
    message: str
    def __init__(
        self,
        *,
        partitions: int | None = ...,
        request_id: int | None = ...,
        response: int | str | None = ...,
        error: int | str | None = ...,
        message: str | None = ...,
    ) -> None: ...

class CommandLookupTopic(Message):
    topic: str
    request_id: int
    authoritative: bool
    original_principal: str
    original_auth_data: str
    original_auth_method: str
    advertised_listener_name: str
    @property
    def properties(self) -> RepeatedCompositeFieldContainer[_KeyValue]: ...
    def __init__(
        self,
        *,
        topic: str | None = ...,
        request_id: int | None = ...,
        authoritative: bool | None = ...,
        original_principal: str | None = ...,
        original_auth_data: str | None = ...,
        original_auth_method: str | None = ...,
        advertised_listener_name: str | None = ...,
        properties: Iterable[_KeyValue | Mapping[str, Any]] | None = ...,
    ) -> None: ...

class CommandLookupTopicResponse(Message):
    LookupType: ClassVar[EnumTypeWrapper]
    Redirect: ClassVar[int]
    Connect: ClassVar[int]
    Failed: ClassVar[int]
    brokerServiceUrl: str
    brokerServiceUrlTls: str
    response: int
    request_id: int
    authoritative: bool
    error: int
    message: str
    proxy_through_service_url: bool
    def __init__(
        self,
        *,
        brokerServiceUrl: str | None = ...,
        brokerServiceUrlTls: str | None = ...,
        response: int | str | None = ...,
        request_id: int | None = ...,
        authoritative: bool | None = ...,
        error: int | str | None = ...,
        message: str | None = ...,
        proxy_through_service_url: bool | None = ...,
    ) -> None: ...

class CommandGetTopicsOfNamespace(Message):
    Mode: ClassVar[EnumTypeWrapper]
    PERSISTENT: ClassVar[int]
    NON_PERSISTENT: ClassVar[int]
    ALL: ClassVar[int]
    request_id: int
    namespace: str
    mode: int
    topics_pattern: str
    topics_hash: str
    @property
    def properties(self) -> RepeatedCompositeFieldContainer[_KeyValue]: ...
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        namespace: str | None = ...,
        mode: int | str | None = ...,
        topics_pattern: str | None = ...,
        topics_hash: str | None = ...,
        properties: Iterable[_KeyValue | Mapping[str, Any]] | None = ...,
    ) -> None: ...

class CommandGetTopicsOfNamespaceResponse(Message):
    request_id: int
    @property
    def topics(self) -> RepeatedScalarFieldContainer[str]: ...
    filtered: bool
    topics_hash: str
    changed: bool
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        topics: Iterable[str] | None = ...,
        filtered: bool | None = ...,
        topics_hash: str | None = ...,
        changed: bool | None = ...,
    ) -> None: ...

class CommandWatchTopicList(Message):
    request_id: int
    watcher_id: int
    namespace: str
    topics_pattern: str
    topics_hash: str
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        watcher_id: int | None = ...,
        namespace: str | None = ...,
        topics_pattern: str | None = ...,
        topics_hash: str | None = ...,
    ) -> None: ...

class CommandWatchTopicListSuccess(Message):
    request_id: int
    watcher_id: int
    @property
    def topic(self) -> RepeatedScalarFieldContainer[str]: ...
    topics_hash: str
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        watcher_id: int | None = ...,
        topic: Iterable[str] | None = ...,
        topics_hash: str | None = ...,
    ) -> None: ...

class CommandWatchTopicUpdate(Message):
    watcher_id: int
    @property
    def new_topics(self) -> RepeatedScalarFieldContainer[str]: ...
    @property
    def deleted_topics(self) -> RepeatedScalarFieldContainer[str]: ...
    topics_hash: str
    def __init__(
        self,
        *,
        watcher_id: int | None = ...,
        new_topics: Iterable[str] | None = ...,
        deleted_topics: Iterable[str] | None = ...,
        topics_hash: str | None = ...,
    ) -> None: ...

class CommandWatchTopicListClose(Message):
    request_id: int
    watcher_id: int
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        watcher_id: int | None = ...,
    ) -> None: ...

class CommandProducer(Message):
    topic: str
    producer_id: int
    request_id: int
    producer_name: str
    encrypted: bool
    @property
    def metadata(self) -> RepeatedCompositeFieldContainer[_KeyValue]: ...
    @property
    def schema(self) -> Schema: ...
    epoch: int
    user_provided_producer_name: bool
    producer_access_mode: int
    topic_epoch: int
    txn_enabled: bool
    initial_subscription_name: str
    def __init__(
        self,
        *,
        topic: str | None = ...,
        producer_id: int | None = ...,
        request_id: int | None = ...,
        producer_name: str | None = ...,
        encrypted: bool | None = ...,
        metadata: Iterable[_KeyValue | Mapping[str, Any]] | None = ...,
        schema: Schema | Mapping[str, Any] | None = ...,
        epoch: int | None = ...,
        user_provided_producer_name: bool | None = ...,
        producer_access_mode: int | str | None = ...,
        topic_epoch: int | None = ...,
        txn_enabled: bool | None = ...,
        initial_subscription_name: str | None = ...,
    ) -> None: ...

class CommandProducerSuccess(Message):
    request_id: int
    producer_name: str
    last_sequence_id: int
    schema_version: bytes
    topic_epoch: int
    producer_ready: bool
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        producer_name: str | None = ...,
        last_sequence_id: int | None = ...,
        schema_version: bytes | None = ...,
        topic_epoch: int | None = ...,
        producer_ready: bool | None = ...,
    ) -> None: ...

class CommandSend(Message):
    producer_id: int
    sequence_id: int
    num_messages: int
    txnid_least_bits: int
    txnid_most_bits: int
    highest_sequence_id: int
    is_chunk: bool
    marker: bool
    @property
    def message_id(self) -> MessageIdData: ...
    def __init__(
        self,
        *,
        producer_id: int | None = ...,
        sequence_id: int | None = ...,
        num_messages: int | None = ...,
        txnid_least_bits: int | None = ...,
        txnid_most_bits: int | None = ...,
        highest_sequence_id: int | None = ...,
        is_chunk: bool | None = ...,
        marker: bool | None = ...,
        message_id: MessageIdData | Mapping[str, Any] | None = ...,
    ) -> None: ...

class CommandSendReceipt(Message):
    producer_id: int
    sequence_id: int
    @property
    def message_id(self) -> MessageIdData: ...
    highest_sequence_id: int
    def __init__(
        self,
        *,
        producer_id: int | None = ...,
        sequence_id: int | None = ...,
        message_id: MessageIdData | Mapping[str, Any] | None = ...,
        highest_sequence_id: int | None = ...,
    ) -> None: ...

class CommandSendError(Message):
    producer_id: int
    sequence_id: int
    error: int
    message: str
    def __init__(
        self,
        *,
        producer_id: int | None = ...,
        sequence_id: int | None = ...,
        error: int | str | None = ...,
        message: str | None = ...,
    ) -> None: ...

class CommandCloseProducer(Message):
    producer_id: int
    request_id: int
    assignedBrokerServiceUrl: str
    assignedBrokerServiceUrlTls: str
    def __init__(
        self,
        *,
        producer_id: int | None = ...,
        request_id: int | None = ...,
        assignedBrokerServiceUrl: str | None = ...,
        assignedBrokerServiceUrlTls: str | None = ...,
    ) -> None: ...

class KeySharedMeta(Message):
    keySharedMode: int
    @property
    def hashRanges(self) -> RepeatedCompositeFieldContainer[IntRange]: ...
    allowOutOfOrderDelivery: bool
    def __init__(
        self,
        *,
        keySharedMode: int | str | None = ...,
        hashRanges: Iterable[IntRange | Mapping[str, Any]] | None = ...,
        allowOutOfOrderDelivery: bool | None = ...,
    ) -> None: ...

class CommandSubscribe(Message):
    SubType: ClassVar[EnumTypeWrapper]
    Exclusive: ClassVar[int]
    Shared: ClassVar[int]
    Failover: ClassVar[int]
    Key_Shared: ClassVar[int]
    InitialPosition: ClassVar[EnumTypeWrapper]
    Latest: ClassVar[int]
    Earliest: ClassVar[int]
    topic: str
    subscription: str
    subType: int
    consumer_id: int
    request_id: int
    consumer_name: str
    priority_level: int
    durable: bool
    @property
    def start_message_id(self) -> MessageIdData: ...
    @property
    def metadata(self) -> RepeatedCompositeFieldContainer[_KeyValue]: ...
    read_compacted: bool
    @property
    def schema(self) -> Schema: ...
    initialPosition: int
    replicate_subscription_state: bool
    force_topic_creation: bool
    start_message_rollback_duration_sec: int
    @property
    def keySharedMeta(self) -> KeySharedMeta: ...
    @property
    def subscription_properties(self) -> RepeatedCompositeFieldContainer[_KeyValue]: ...
    consumer_epoch: int
    def __init__(
        self,
        *,
        topic: str | None = ...,
        subscription: str | None = ...,
        subType: int | str | None = ...,
        consumer_id: int | None = ...,
        request_id: int | None = ...,
        consumer_name: str | None = ...,
        priority_level: int | None = ...,
        durable: bool | None = ...,
        start_message_id: MessageIdData | Mapping[str, Any] | None = ...,
        metadata: Iterable[_KeyValue | Mapping[str, Any]] | None = ...,
        read_compacted: bool | None = ...,
        schema: Schema | Mapping[str, Any] | None = ...,
        initialPosition: int | str | None = ...,
        replicate_subscription_state: bool | None = ...,
        force_topic_creation: bool | None = ...,
        start_message_rollback_duration_sec: int | None = ...,
        keySharedMeta: KeySharedMeta | Mapping[str, Any] | None = ...,
        subscription_properties: Iterable[_KeyValue | Mapping[str, Any]] | None = ...,
        consumer_epoch: int | None = ...,
    ) -> None: ...

class CommandFlow(Message):
    consumer_id: int
    messagePermits: int
    def __init__(
        self,
        *,
        consumer_id: int | None = ...,
        messagePermits: int | None = ...,
    ) -> None: ...

class CommandMessage(Message):
    consumer_id: int
    @property
    def message_id(self) -> MessageIdData: ...
    redelivery_count: int
    @property
    def ack_set(self) -> RepeatedScalarFieldContainer[int]: ...
    consumer_epoch: int
    def __init__(
        self,
        *,
        consumer_id: int | None = ...,
        message_id: MessageIdData | Mapping[str, Any] | None = ...,
        redelivery_count: int | None = ...,
        ack_set: Iterable[int] | None = ...,
        consumer_epoch: int | None = ...,
    ) -> None: ...

class CommandAck(Message):
    AckType: ClassVar[EnumTypeWrapper]
    Individual: ClassVar[int]
    Cumulative: ClassVar[int]
    ValidationError: ClassVar[EnumTypeWrapper]
    UncompressedSizeCorruption: ClassVar[int]
    DecompressionError: ClassVar[int]
    ChecksumMismatch: ClassVar[int]
    BatchDeSerializeError: ClassVar[int]
    DecryptionError: ClassVar[int]
    consumer_id: int
    ack_type: int
    @property
    def message_id(self) -> RepeatedCompositeFieldContainer[MessageIdData]: ...
    validation_error: int
    @property
    def properties(self) -> RepeatedCompositeFieldContainer[KeyLongValue]: ...
    txnid_least_bits: int
    txnid_most_bits: int
    request_id: int
    def __init__(
        self,
        *,
        consumer_id: int | None = ...,
        ack_type: int | str | None = ...,
        message_id: Iterable[MessageIdData | Mapping[str, Any]] | None = ...,
        validation_error: int | str | None = ...,
        properties: Iterable[KeyLongValue | Mapping[str, Any]] | None = ...,
        txnid_least_bits: int | None = ...,
        txnid_most_bits: int | None = ...,
        request_id: int | None = ...,
    ) -> None: ...

class CommandAckResponse(Message):
    consumer_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    error: int
    message: str
    request_id: int
    def __init__(
        self,
        *,
        consumer_id: int | None = ...,
        txnid_least_bits: int | None = ...,
        txnid_most_bits: int | None = ...,
        error: int | str | None = ...,
        message: str | None = ...,
        request_id: int | None = ...,
    ) -> None: ...

class CommandRedeliverUnacknowledgedMessages(Message):
    consumer_id: int
    @property
    def message_ids(self) -> RepeatedCompositeFieldContainer[MessageIdData]: ...
    consumer_epoch: int
    def __init__(
        self,
        *,
        consumer_id: int | None = ...,
        message_ids: Iterable[MessageIdData | Mapping[str, Any]] | None = ...,
        consumer_epoch: int | None = ...,
    ) -> None: ...

class CommandActiveConsumerChange(Message):
    consumer_id: int
    is_active: bool
    def __init__(
        self,
        *,
        consumer_id: int | None = ...,
        is_active: bool | None = ...,
    ) -> None: ...

class CommandSeek(Message):
    consumer_id: int
    request_id: int
    @property
    def message_id(self) -> MessageIdData: ...
    message_publish_time: int
    def __init__(
        self,
        *,
        consumer_id: int | None = ...,
        request_id: int | None = ...,
        message_id: MessageIdData | Mapping[str, Any] | None = ...,
        message_publish_time: int | None = ...,
    ) -> None: ...

class CommandGetLastMessageId(Message):
    consumer_id: int
    request_id: int
    def __init__(
        self,
        *,
        consumer_id: int | None = ...,
        request_id: int | None = ...,
    ) -> None: ...

class CommandGetLastMessageIdResponse(Message):
    @property
    def last_message_id(self) -> MessageIdData: ...
    request_id: int
    @property
    def consumer_mark_delete_position(self) -> MessageIdData: ...
    def __init__(
        self,
        *,
        last_message_id: MessageIdData | Mapping[str, Any] | None = ...,
        request_id: int | None = ...,
        consumer_mark_delete_position: MessageIdData | Mapping[str, Any] | None = ...,
    ) -> None: ...

class CommandReachedEndOfTopic(Message):
    consumer_id: int
    def __init__(
        self,
        *,
        consumer_id: int | None = ...,
    ) -> None: ...

class CommandUnsubscribe(Message):
    consumer_id: int
    request_id: int
    force: bool
    def __init__(
        self,
        *,
        consumer_id: int | None = ...,
        request_id: int | None = ...,
        force: bool | None = ...,
    ) -> None: ...

class CommandCloseConsumer(Message):
    consumer_id: int
    request_id: int
    assignedBrokerServiceUrl: str
    assignedBrokerServiceUrlTls: str
    def __init__(
        self,
        *,
        consumer_id: int | None = ...,
        request_id: int | None = ...,
        assignedBrokerServiceUrl: str | None = ...,
        assignedBrokerServiceUrlTls: str | None = ...,
    ) -> None: ...

class CommandConsumerStats(Message):
    request_id: int
    consumer_id: int
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        consumer_id: int | None = ...,
    ) -> None: ...

class CommandConsumerStatsResponse(Message):
    request_id: int
    error_code: int
    error_message: str
    msgRateOut: float
    msgThroughputOut: float
    msgRateRedeliver: float
    consumerName: str
    availablePermits: int
    unackedMessages: int
    blockedConsumerOnUnackedMsgs: bool
    address: str
    connectedSince: str
    type: str
    msgRateExpired: float
    msgBacklog: int
    messageAckRate: float
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        error_code: int | str | None = ...,
        error_message: str | None = ...,
        msgRateOut: float | None = ...,
        msgThroughputOut: float | None = ...,
        msgRateRedeliver: float | None = ...,
        consumerName: str | None = ...,
        availablePermits: int | None = ...,
        unackedMessages: int | None = ...,
        blockedConsumerOnUnackedMsgs: bool | None = ...,
        address: str | None = ...,
        connectedSince: str | None = ...,
        type: str | None = ...,
        msgRateExpired: float | None = ...,
        msgBacklog: int | None = ...,
        messageAckRate: float | None = ...,
    ) -> None: ...

class CommandSuccess(Message):
    request_id: int
    @property
    def schema(self) -> Schema: ...
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        schema: Schema | Mapping[str, Any] | None = ...,
    ) -> None: ...

class CommandError(Message):
    request_id: int
    error: int
    message: str
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        error: int | str | None = ...,
        message: str | None = ...,
    ) -> None: ...

class CommandTopicMigrated(Message):
    ResourceType: ClassVar[EnumTypeWrapper]
    Producer: ClassVar[int]
    Consumer: ClassVar[int]
    resource_id: int
    resource_type: int
    brokerServiceUrl: str
    brokerServiceUrlTls: str
    def __init__(
        self,
        *,
        resource_id: int | None = ...,
        resource_type: int | str | None = ...,
        brokerServiceUrl: str | None = ...,
        brokerServiceUrlTls: str | None = ...,
    ) -> None: ...

class CommandGetSchema(Message):
    request_id: int
    topic: str
    schema_version: bytes
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        topic: str | None = ...,
        schema_version: bytes | None = ...,
    ) -> None: ...

class CommandGetSchemaResponse(Message):
    request_id: int
    error_code: int
    error_message: str
    @property
    def schema(self) -> Schema: ...
    schema_version: bytes
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        error_code: int | str | None = ...,
        error_message: str | None = ...,
        schema: Schema | Mapping[str, Any] | None = ...,
        schema_version: bytes | None = ...,
    ) -> None: ...

class CommandGetOrCreateSchema(Message):
    request_id: int
    topic: str
    @property
    def schema(self) -> Schema: ...
    producerName: str
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        topic: str | None = ...,
        schema: Schema | Mapping[str, Any] | None = ...,
        producerName: str | None = ...,
    ) -> None: ...

class CommandGetOrCreateSchemaResponse(Message):
    request_id: int
    error_code: int
    error_message: str
    schema_version: bytes
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        error_code: int | str | None = ...,
        error_message: str | None = ...,
        schema_version: bytes | None = ...,
    ) -> None: ...

class CommandTcClientConnectRequest(Message):
    request_id: int
    tc_id: int
    scalable: bool
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        tc_id: int | None = ...,
        scalable: bool | None = ...,
    ) -> None: ...

class CommandTcClientConnectResponse(Message):
    request_id: int
    error: int
    message: str
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        error: int | str | None = ...,
        message: str | None = ...,
    ) -> None: ...

class CommandNewTxn(Message):
    request_id: int
    txn_ttl_millis: int
    tc_id: int
    scalable: bool
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        txn_ttl_millis: int | None = ...,
        tc_id: int | None = ...,
        scalable: bool | None = ...,
    ) -> None: ...

class CommandNewTxnResponse(Message):
    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    error: int
    message: str
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        txnid_least_bits: int | None = ...,
        txnid_most_bits: int | None = ...,
        error: int | str | None = ...,
        message: str | None = ...,
    ) -> None: ...

class CommandAddPartitionToTxn(Message):
    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    @property
    def partitions(self) -> RepeatedScalarFieldContainer[str]: ...
    scalable: bool
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        txnid_least_bits: int | None = ...,
        txnid_most_bits: int | None = ...,
        partitions: Iterable[str] | None = ...,
        scalable: bool | None = ...,
    ) -> None: ...

class CommandAddPartitionToTxnResponse(Message):
    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    error: int
    message: str
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        txnid_least_bits: int | None = ...,
        txnid_most_bits: int | None = ...,
        error: int | str | None = ...,
        message: str | None = ...,
    ) -> None: ...

class Subscription(Message):
    topic: str
    subscription: str
    def __init__(
        self,
        *,
        topic: str | None = ...,
        subscription: str | None = ...,
    ) -> None: ...

class CommandAddSubscriptionToTxn(Message):
    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    @property
    def subscription(self) -> RepeatedCompositeFieldContainer[Subscription]: ...
    scalable: bool
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        txnid_least_bits: int | None = ...,
        txnid_most_bits: int | None = ...,
        subscription: Iterable[Subscription | Mapping[str, Any]] | None = ...,
        scalable: bool | None = ...,
    ) -> None: ...

class CommandAddSubscriptionToTxnResponse(Message):
    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    error: int
    message: str
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        txnid_least_bits: int | None = ...,
        txnid_most_bits: int | None = ...,
        error: int | str | None = ...,
        message: str | None = ...,
    ) -> None: ...

class CommandEndTxn(Message):
    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    txn_action: int
    scalable: bool
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        txnid_least_bits: int | None = ...,
        txnid_most_bits: int | None = ...,
        txn_action: int | str | None = ...,
        scalable: bool | None = ...,
    ) -> None: ...

class CommandEndTxnResponse(Message):
    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    error: int
    message: str
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        txnid_least_bits: int | None = ...,
        txnid_most_bits: int | None = ...,
        error: int | str | None = ...,
        message: str | None = ...,
    ) -> None: ...

class CommandEndTxnOnPartition(Message):
    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    topic: str
    txn_action: int
    txnid_least_bits_of_low_watermark: int
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        txnid_least_bits: int | None = ...,
        txnid_most_bits: int | None = ...,
        topic: str | None = ...,
        txn_action: int | str | None = ...,
        txnid_least_bits_of_low_watermark: int | None = ...,
    ) -> None: ...

class CommandEndTxnOnPartitionResponse(Message):
    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    error: int
    message: str
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        txnid_least_bits: int | None = ...,
        txnid_most_bits: int | None = ...,
        error: int | str | None = ...,
        message: str | None = ...,
    ) -> None: ...

class CommandEndTxnOnSubscription(Message):
    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    @property
    def subscription(self) -> Subscription: ...
    txn_action: int
    txnid_least_bits_of_low_watermark: int
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        txnid_least_bits: int | None = ...,
        txnid_most_bits: int | None = ...,
        subscription: Subscription | Mapping[str, Any] | None = ...,
        txn_action: int | str | None = ...,
        txnid_least_bits_of_low_watermark: int | None = ...,
    ) -> None: ...

class CommandEndTxnOnSubscriptionResponse(Message):
    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    error: int
    message: str
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        txnid_least_bits: int | None = ...,
        txnid_most_bits: int | None = ...,
        error: int | str | None = ...,
        message: str | None = ...,
    ) -> None: ...

class CommandWatchTcAssignments(Message):
    watch_id: int
    def __init__(
        self,
        *,
        watch_id: int | None = ...,
    ) -> None: ...

class TcAssignment(Message):
    tc_id: int
    broker_service_url: str
    broker_service_url_tls: str
    def __init__(
        self,
        *,
        tc_id: int | None = ...,
        broker_service_url: str | None = ...,
        broker_service_url_tls: str | None = ...,
    ) -> None: ...

class TcAssignmentsSnapshot(Message):
    parallelism: int
    @property
    def assignments(self) -> RepeatedCompositeFieldContainer[TcAssignment]: ...
    def __init__(
        self,
        *,
        parallelism: int | None = ...,
        assignments: Iterable[TcAssignment | Mapping[str, Any]] | None = ...,
    ) -> None: ...

class CommandWatchTcAssignmentsUpdate(Message):
    watch_id: int
    @property
    def snapshot(self) -> TcAssignmentsSnapshot: ...
    error: int
    message: str
    def __init__(
        self,
        *,
        watch_id: int | None = ...,
        snapshot: TcAssignmentsSnapshot | Mapping[str, Any] | None = ...,
        error: int | str | None = ...,
        message: str | None = ...,
    ) -> None: ...

class CommandWatchTcAssignmentsClose(Message):
    watch_id: int
    def __init__(
        self,
        *,
        watch_id: int | None = ...,
    ) -> None: ...

class SegmentInfoProto(Message):
    segment_id: int
    hash_start: int
    hash_end: int
    state: int
    @property
    def parent_ids(self) -> RepeatedScalarFieldContainer[int]: ...
    @property
    def child_ids(self) -> RepeatedScalarFieldContainer[int]: ...
    created_at_epoch: int
    sealed_at_epoch: int
    created_at_ms: int
    sealed_at_ms: int
    legacy_topic_name: str
    @property
    def entry_bucket_splits(self) -> RepeatedScalarFieldContainer[int]: ...
    def __init__(
        self,
        *,
        segment_id: int | None = ...,
        hash_start: int | None = ...,
        hash_end: int | None = ...,
        state: int | str | None = ...,
        parent_ids: Iterable[int] | None = ...,
        child_ids: Iterable[int] | None = ...,
        created_at_epoch: int | None = ...,
        sealed_at_epoch: int | None = ...,
        created_at_ms: int | None = ...,
        sealed_at_ms: int | None = ...,
        legacy_topic_name: str | None = ...,
        entry_bucket_splits: Iterable[int] | None = ...,
    ) -> None: ...

class SegmentBrokerAddress(Message):
    segment_id: int
    broker_url: str
    broker_url_tls: str
    def __init__(
        self,
        *,
        segment_id: int | None = ...,
        broker_url: str | None = ...,
        broker_url_tls: str | None = ...,
    ) -> None: ...

class ScalableTopicDAG(Message):
    epoch: int
    @property
    def segments(self) -> RepeatedCompositeFieldContainer[SegmentInfoProto]: ...
    @property
    def segment_brokers(self) -> RepeatedCompositeFieldContainer[SegmentBrokerAddress]: ...
    controller_broker_url: str
    controller_broker_url_tls: str
    def __init__(
        self,
        *,
        epoch: int | None = ...,
        segments: Iterable[SegmentInfoProto | Mapping[str, Any]] | None = ...,
        segment_brokers: Iterable[SegmentBrokerAddress | Mapping[str, Any]] | None = ...,
        controller_broker_url: str | None = ...,
        controller_broker_url_tls: str | None = ...,
    ) -> None: ...

class CommandScalableTopicLookup(Message):
    session_id: int
    topic: str
    create_if_missing: bool
    def __init__(
        self,
        *,
        session_id: int | None = ...,
        topic: str | None = ...,
        create_if_missing: bool | None = ...,
    ) -> None: ...

class CommandScalableTopicUpdate(Message):
    session_id: int
    @property
    def dag(self) -> ScalableTopicDAG: ...
    error: int
    message: str
    resolved_topic_name: str
    def __init__(
        self,
        *,
        session_id: int | None = ...,
        dag: ScalableTopicDAG | Mapping[str, Any] | None = ...,
        error: int | str | None = ...,
        message: str | None = ...,
        resolved_topic_name: str | None = ...,
    ) -> None: ...

class CommandScalableTopicClose(Message):
    session_id: int
    def __init__(
        self,
        *,
        session_id: int | None = ...,
    ) -> None: ...

class ScalableAssignedSegment(Message):
    segment_id: int
    hash_start: int
    hash_end: int
    segment_topic: str
    @property
    def bucket_ranges(self) -> RepeatedCompositeFieldContainer[IntRange]: ...
    def __init__(
        self,
        *,
        segment_id: int | None = ...,
        hash_start: int | None = ...,
        hash_end: int | None = ...,
        segment_topic: str | None = ...,
        bucket_ranges: Iterable[IntRange | Mapping[str, Any]] | None = ...,
    ) -> None: ...

class ScalableConsumerAssignment(Message):
    layout_epoch: int
    @property
    def segments(self) -> RepeatedCompositeFieldContainer[ScalableAssignedSegment]: ...
    def __init__(
        self,
        *,
        layout_epoch: int | None = ...,
        segments: Iterable[ScalableAssignedSegment | Mapping[str, Any]] | None = ...,
    ) -> None: ...

class CommandScalableTopicSubscribe(Message):
    request_id: int
    topic: str
    subscription: str
    consumer_name: str
    consumer_id: int
    consumer_type: int
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        topic: str | None = ...,
        subscription: str | None = ...,
        consumer_name: str | None = ...,
        consumer_id: int | None = ...,
        consumer_type: int | str | None = ...,
    ) -> None: ...

class CommandScalableTopicSubscribeResponse(Message):
    request_id: int
    error: int
    message: str
    @property
    def assignment(self) -> ScalableConsumerAssignment: ...
    def __init__(
        self,
        *,
        request_id: int | None = ...,
        error: int | str | None = ...,
        message: str | None = ...,
        assignment: ScalableConsumerAssignment | Mapping[str, Any] | None = ...,
    ) -> None: ...

class CommandScalableTopicAssignmentUpdate(Message):
    consumer_id: int
    @property
    def assignment(self) -> ScalableConsumerAssignment: ...
    def __init__(
        self,
        *,
        consumer_id: int | None = ...,
        assignment: ScalableConsumerAssignment | Mapping[str, Any] | None = ...,
    ) -> None: ...

class CommandWatchScalableTopics(Message):
    watch_id: int
    namespace: str
    @property
    def property_filters(self) -> RepeatedCompositeFieldContainer[_KeyValue]: ...
    current_hash: str
    def __init__(
        self,
        *,
        watch_id: int | None = ...,
        namespace: str | None = ...,
        property_filters: Iterable[_KeyValue | Mapping[str, Any]] | None = ...,
        current_hash: str | None = ...,
    ) -> None: ...

class ScalableTopicsSnapshot(Message):
    @property
    def topics(self) -> RepeatedScalarFieldContainer[str]: ...
    def __init__(
        self,
        *,
        topics: Iterable[str] | None = ...,
    ) -> None: ...

class ScalableTopicsDiff(Message):
    @property
    def added(self) -> RepeatedScalarFieldContainer[str]: ...
    @property
    def removed(self) -> RepeatedScalarFieldContainer[str]: ...
    def __init__(
        self,
        *,
        added: Iterable[str] | None = ...,
        removed: Iterable[str] | None = ...,
    ) -> None: ...

class CommandWatchScalableTopicsUpdate(Message):
    watch_id: int
    @property
    def snapshot(self) -> ScalableTopicsSnapshot: ...
    @property
    def diff(self) -> ScalableTopicsDiff: ...
    error: int
    message: str
    def __init__(
        self,
        *,
        watch_id: int | None = ...,
        snapshot: ScalableTopicsSnapshot | Mapping[str, Any] | None = ...,
        diff: ScalableTopicsDiff | Mapping[str, Any] | None = ...,
        error: int | str | None = ...,
        message: str | None = ...,
    ) -> None: ...

class CommandWatchScalableTopicsClose(Message):
    watch_id: int
    def __init__(
        self,
        *,
        watch_id: int | None = ...,
    ) -> None: ...

class BaseCommand(Message):
    Type: ClassVar[EnumTypeWrapper]
    CONNECT: ClassVar[int]
    CONNECTED: ClassVar[int]
    SUBSCRIBE: ClassVar[int]
    PRODUCER: ClassVar[int]
    SEND: ClassVar[int]
    SEND_RECEIPT: ClassVar[int]
    SEND_ERROR: ClassVar[int]
    MESSAGE: ClassVar[int]
    ACK: ClassVar[int]
    FLOW: ClassVar[int]
    UNSUBSCRIBE: ClassVar[int]
    SUCCESS: ClassVar[int]
    ERROR: ClassVar[int]
    CLOSE_PRODUCER: ClassVar[int]
    CLOSE_CONSUMER: ClassVar[int]
    PRODUCER_SUCCESS: ClassVar[int]
    PING: ClassVar[int]
    PONG: ClassVar[int]
    REDELIVER_UNACKNOWLEDGED_MESSAGES: ClassVar[int]
    PARTITIONED_METADATA: ClassVar[int]
    PARTITIONED_METADATA_RESPONSE: ClassVar[int]
    LOOKUP: ClassVar[int]
    LOOKUP_RESPONSE: ClassVar[int]
    CONSUMER_STATS: ClassVar[int]
    CONSUMER_STATS_RESPONSE: ClassVar[int]
    REACHED_END_OF_TOPIC: ClassVar[int]
    SEEK: ClassVar[int]
    GET_LAST_MESSAGE_ID: ClassVar[int]
    GET_LAST_MESSAGE_ID_RESPONSE: ClassVar[int]
    ACTIVE_CONSUMER_CHANGE: ClassVar[int]
    GET_TOPICS_OF_NAMESPACE: ClassVar[int]
    GET_TOPICS_OF_NAMESPACE_RESPONSE: ClassVar[int]
    GET_SCHEMA: ClassVar[int]
    GET_SCHEMA_RESPONSE: ClassVar[int]
    AUTH_CHALLENGE: ClassVar[int]
    AUTH_RESPONSE: ClassVar[int]
    ACK_RESPONSE: ClassVar[int]
    GET_OR_CREATE_SCHEMA: ClassVar[int]
    GET_OR_CREATE_SCHEMA_RESPONSE: ClassVar[int]
    NEW_TXN: ClassVar[int]
    NEW_TXN_RESPONSE: ClassVar[int]
    ADD_PARTITION_TO_TXN: ClassVar[int]
    ADD_PARTITION_TO_TXN_RESPONSE: ClassVar[int]
    ADD_SUBSCRIPTION_TO_TXN: ClassVar[int]
    ADD_SUBSCRIPTION_TO_TXN_RESPONSE: ClassVar[int]
    END_TXN: ClassVar[int]
    END_TXN_RESPONSE: ClassVar[int]
    END_TXN_ON_PARTITION: ClassVar[int]
    END_TXN_ON_PARTITION_RESPONSE: ClassVar[int]
    END_TXN_ON_SUBSCRIPTION: ClassVar[int]
    END_TXN_ON_SUBSCRIPTION_RESPONSE: ClassVar[int]
    TC_CLIENT_CONNECT_REQUEST: ClassVar[int]
    TC_CLIENT_CONNECT_RESPONSE: ClassVar[int]
    WATCH_TOPIC_LIST: ClassVar[int]
    WATCH_TOPIC_LIST_SUCCESS: ClassVar[int]
    WATCH_TOPIC_UPDATE: ClassVar[int]
    WATCH_TOPIC_LIST_CLOSE: ClassVar[int]
    TOPIC_MIGRATED: ClassVar[int]
    SCALABLE_TOPIC_LOOKUP: ClassVar[int]
    SCALABLE_TOPIC_UPDATE: ClassVar[int]
    SCALABLE_TOPIC_CLOSE: ClassVar[int]
    SCALABLE_TOPIC_SUBSCRIBE: ClassVar[int]
    SCALABLE_TOPIC_SUBSCRIBE_RESPONSE: ClassVar[int]
    SCALABLE_TOPIC_ASSIGNMENT_UPDATE: ClassVar[int]
    WATCH_SCALABLE_TOPICS: ClassVar[int]
    WATCH_SCALABLE_TOPICS_UPDATE: ClassVar[int]
    WATCH_SCALABLE_TOPICS_CLOSE: ClassVar[int]
    WATCH_TC_ASSIGNMENTS: ClassVar[int]
    WATCH_TC_ASSIGNMENTS_UPDATE: ClassVar[int]
    WATCH_TC_ASSIGNMENTS_CLOSE: ClassVar[int]
    type: int
    @property
    def connect(self) -> CommandConnect: ...
    @property
    def connected(self) -> CommandConnected: ...
    @property
    def subscribe(self) -> CommandSubscribe: ...
    @property
    def producer(self) -> CommandProducer: ...
    @property
    def send(self) -> CommandSend: ...
    @property
    def send_receipt(self) -> CommandSendReceipt: ...
    @property
    def send_error(self) -> CommandSendError: ...
    @property
    def message(self) -> CommandMessage: ...
    @property
    def ack(self) -> CommandAck: ...
    @property
    def flow(self) -> CommandFlow: ...
    @property
    def unsubscribe(self) -> CommandUnsubscribe: ...
    @property
    def success(self) -> CommandSuccess: ...
    @property
    def error(self) -> CommandError: ...
    @property
    def close_producer(self) -> CommandCloseProducer: ...
    @property
    def close_consumer(self) -> CommandCloseConsumer: ...
    @property
    def producer_success(self) -> CommandProducerSuccess: ...
    @property
    def ping(self) -> CommandPing: ...
    @property
    def pong(self) -> CommandPong: ...
    @property
    def redeliverUnacknowledgedMessages(self) -> CommandRedeliverUnacknowledgedMessages: ...
    @property
    def partitionMetadata(self) -> CommandPartitionedTopicMetadata: ...
    @property
    def partitionMetadataResponse(self) -> CommandPartitionedTopicMetadataResponse: ...
    @property
    def lookupTopic(self) -> CommandLookupTopic: ...
    @property
    def lookupTopicResponse(self) -> CommandLookupTopicResponse: ...
    @property
    def consumerStats(self) -> CommandConsumerStats: ...
    @property
    def consumerStatsResponse(self) -> CommandConsumerStatsResponse: ...
    @property
    def reachedEndOfTopic(self) -> CommandReachedEndOfTopic: ...
    @property
    def seek(self) -> CommandSeek: ...
    @property
    def getLastMessageId(self) -> CommandGetLastMessageId: ...
    @property
    def getLastMessageIdResponse(self) -> CommandGetLastMessageIdResponse: ...
    @property
    def active_consumer_change(self) -> CommandActiveConsumerChange: ...
    @property
    def getTopicsOfNamespace(self) -> CommandGetTopicsOfNamespace: ...
    @property
    def getTopicsOfNamespaceResponse(self) -> CommandGetTopicsOfNamespaceResponse: ...
    @property
    def getSchema(self) -> CommandGetSchema: ...
    @property
    def getSchemaResponse(self) -> CommandGetSchemaResponse: ...
    @property
    def authChallenge(self) -> CommandAuthChallenge: ...
    @property
    def authResponse(self) -> CommandAuthResponse: ...
    @property
    def ackResponse(self) -> CommandAckResponse: ...
    @property
    def getOrCreateSchema(self) -> CommandGetOrCreateSchema: ...
    @property
    def getOrCreateSchemaResponse(self) -> CommandGetOrCreateSchemaResponse: ...
    @property
    def newTxn(self) -> CommandNewTxn: ...
    @property
    def newTxnResponse(self) -> CommandNewTxnResponse: ...
    @property
    def addPartitionToTxn(self) -> CommandAddPartitionToTxn: ...
    @property
    def addPartitionToTxnResponse(self) -> CommandAddPartitionToTxnResponse: ...
    @property
    def addSubscriptionToTxn(self) -> CommandAddSubscriptionToTxn: ...
    @property
    def addSubscriptionToTxnResponse(self) -> CommandAddSubscriptionToTxnResponse: ...
    @property
    def endTxn(self) -> CommandEndTxn: ...
    @property
    def endTxnResponse(self) -> CommandEndTxnResponse: ...
    @property
    def endTxnOnPartition(self) -> CommandEndTxnOnPartition: ...
    @property
    def endTxnOnPartitionResponse(self) -> CommandEndTxnOnPartitionResponse: ...
    @property
    def endTxnOnSubscription(self) -> CommandEndTxnOnSubscription: ...
    @property
    def endTxnOnSubscriptionResponse(self) -> CommandEndTxnOnSubscriptionResponse: ...
    @property
    def tcClientConnectRequest(self) -> CommandTcClientConnectRequest: ...
    @property
    def tcClientConnectResponse(self) -> CommandTcClientConnectResponse: ...
    @property
    def watchTopicList(self) -> CommandWatchTopicList: ...
    @property
    def watchTopicListSuccess(self) -> CommandWatchTopicListSuccess: ...
    @property
    def watchTopicUpdate(self) -> CommandWatchTopicUpdate: ...
    @property
    def watchTopicListClose(self) -> CommandWatchTopicListClose: ...
    @property
    def topicMigrated(self) -> CommandTopicMigrated: ...
    @property
    def scalableTopicLookup(self) -> CommandScalableTopicLookup: ...
    @property
    def scalableTopicUpdate(self) -> CommandScalableTopicUpdate: ...
    @property
    def scalableTopicClose(self) -> CommandScalableTopicClose: ...
    @property
    def scalableTopicSubscribe(self) -> CommandScalableTopicSubscribe: ...
    @property
    def scalableTopicSubscribeResponse(self) -> CommandScalableTopicSubscribeResponse: ...
    @property
    def scalableTopicAssignmentUpdate(self) -> CommandScalableTopicAssignmentUpdate: ...
    @property
    def watchScalableTopics(self) -> CommandWatchScalableTopics: ...
    @property
    def watchScalableTopicsUpdate(self) -> CommandWatchScalableTopicsUpdate: ...
    @property
    def watchScalableTopicsClose(self) -> CommandWatchScalableTopicsClose: ...
    @property
    def watchTcAssignments(self) -> CommandWatchTcAssignments: ...
    @property
    def watchTcAssignmentsUpdate(self) -> CommandWatchTcAssignmentsUpdate: ...
    @property
    def watchTcAssignmentsClose(self) -> CommandWatchTcAssignmentsClose: ...
    def __init__(
        self,
        *,
        type: int | str | None = ...,
        connect: CommandConnect | Mapping[str, Any] | None = ...,
        connected: CommandConnected | Mapping[str, Any] | None = ...,
        subscribe: CommandSubscribe | Mapping[str, Any] | None = ...,
        producer: CommandProducer | Mapping[str, Any] | None = ...,
        send: CommandSend | Mapping[str, Any] | None = ...,
        send_receipt: CommandSendReceipt | Mapping[str, Any] | None = ...,
        send_error: CommandSendError | Mapping[str, Any] | None = ...,
        message: CommandMessage | Mapping[str, Any] | None = ...,
        ack: CommandAck | Mapping[str, Any] | None = ...,
        flow: CommandFlow | Mapping[str, Any] | None = ...,
        unsubscribe: CommandUnsubscribe | Mapping[str, Any] | None = ...,
        success: CommandSuccess | Mapping[str, Any] | None = ...,
        error: CommandError | Mapping[str, Any] | None = ...,
        close_producer: CommandCloseProducer | Mapping[str, Any] | None = ...,
        close_consumer: CommandCloseConsumer | Mapping[str, Any] | None = ...,
        producer_success: CommandProducerSuccess | Mapping[str, Any] | None = ...,
        ping: CommandPing | Mapping[str, Any] | None = ...,
        pong: CommandPong | Mapping[str, Any] | None = ...,
        redeliverUnacknowledgedMessages: CommandRedeliverUnacknowledgedMessages | Mapping[str, Any] | None = ...,
        partitionMetadata: CommandPartitionedTopicMetadata | Mapping[str, Any] | None = ...,
        partitionMetadataResponse: CommandPartitionedTopicMetadataResponse | Mapping[str, Any] | None = ...,
        lookupTopic: CommandLookupTopic | Mapping[str, Any] | None = ...,
        lookupTopicResponse: CommandLookupTopicResponse | Mapping[str, Any] | None = ...,
        consumerStats: CommandConsumerStats | Mapping[str, Any] | None = ...,
        consumerStatsResponse: CommandConsumerStatsResponse | Mapping[str, Any] | None = ...,
        reachedEndOfTopic: CommandReachedEndOfTopic | Mapping[str, Any] | None = ...,
        seek: CommandSeek | Mapping[str, Any] | None = ...,
        getLastMessageId: CommandGetLastMessageId | Mapping[str, Any] | None = ...,
        getLastMessageIdResponse: CommandGetLastMessageIdResponse | Mapping[str, Any] | None = ...,
        active_consumer_change: CommandActiveConsumerChange | Mapping[str, Any] | None = ...,
        getTopicsOfNamespace: CommandGetTopicsOfNamespace | Mapping[str, Any] | None = ...,
        getTopicsOfNamespaceResponse: CommandGetTopicsOfNamespaceResponse | Mapping[str, Any] | None = ...,
        getSchema: CommandGetSchema | Mapping[str, Any] | None = ...,
        getSchemaResponse: CommandGetSchemaResponse | Mapping[str, Any] | None = ...,
        authChallenge: CommandAuthChallenge | Mapping[str, Any] | None = ...,
        authResponse: CommandAuthResponse | Mapping[str, Any] | None = ...,
        ackResponse: CommandAckResponse | Mapping[str, Any] | None = ...,
        getOrCreateSchema: CommandGetOrCreateSchema | Mapping[str, Any] | None = ...,
        getOrCreateSchemaResponse: CommandGetOrCreateSchemaResponse | Mapping[str, Any] | None = ...,
        newTxn: CommandNewTxn | Mapping[str, Any] | None = ...,
        newTxnResponse: CommandNewTxnResponse | Mapping[str, Any] | None = ...,
        addPartitionToTxn: CommandAddPartitionToTxn | Mapping[str, Any] | None = ...,
        addPartitionToTxnResponse: CommandAddPartitionToTxnResponse | Mapping[str, Any] | None = ...,
        addSubscriptionToTxn: CommandAddSubscriptionToTxn | Mapping[str, Any] | None = ...,
        addSubscriptionToTxnResponse: CommandAddSubscriptionToTxnResponse | Mapping[str, Any] | None = ...,
        endTxn: CommandEndTxn | Mapping[str, Any] | None = ...,
        endTxnResponse: CommandEndTxnResponse | Mapping[str, Any] | None = ...,
        endTxnOnPartition: CommandEndTxnOnPartition | Mapping[str, Any] | None = ...,
        endTxnOnPartitionResponse: CommandEndTxnOnPartitionResponse | Mapping[str, Any] | None = ...,
        endTxnOnSubscription: CommandEndTxnOnSubscription | Mapping[str, Any] | None = ...,
        endTxnOnSubscriptionResponse: CommandEndTxnOnSubscriptionResponse | Mapping[str, Any] | None = ...,
        tcClientConnectRequest: CommandTcClientConnectRequest | Mapping[str, Any] | None = ...,
        tcClientConnectResponse: CommandTcClientConnectResponse | Mapping[str, Any] | None = ...,
        watchTopicList: CommandWatchTopicList | Mapping[str, Any] | None = ...,
        watchTopicListSuccess: CommandWatchTopicListSuccess | Mapping[str, Any] | None = ...,
        watchTopicUpdate: CommandWatchTopicUpdate | Mapping[str, Any] | None = ...,
        watchTopicListClose: CommandWatchTopicListClose | Mapping[str, Any] | None = ...,
        topicMigrated: CommandTopicMigrated | Mapping[str, Any] | None = ...,
        scalableTopicLookup: CommandScalableTopicLookup | Mapping[str, Any] | None = ...,
        scalableTopicUpdate: CommandScalableTopicUpdate | Mapping[str, Any] | None = ...,
        scalableTopicClose: CommandScalableTopicClose | Mapping[str, Any] | None = ...,
        scalableTopicSubscribe: CommandScalableTopicSubscribe | Mapping[str, Any] | None = ...,
        scalableTopicSubscribeResponse: CommandScalableTopicSubscribeResponse | Mapping[str, Any] | None = ...,
        scalableTopicAssignmentUpdate: CommandScalableTopicAssignmentUpdate | Mapping[str, Any] | None = ...,
        watchScalableTopics: CommandWatchScalableTopics | Mapping[str, Any] | None = ...,
        watchScalableTopicsUpdate: CommandWatchScalableTopicsUpdate | Mapping[str, Any] | None = ...,
        watchScalableTopicsClose: CommandWatchScalableTopicsClose | Mapping[str, Any] | None = ...,
        watchTcAssignments: CommandWatchTcAssignments | Mapping[str, Any] | None = ...,
        watchTcAssignmentsUpdate: CommandWatchTcAssignmentsUpdate | Mapping[str, Any] | None = ...,
        watchTcAssignmentsClose: CommandWatchTcAssignmentsClose | Mapping[str, Any] | None = ...,
    ) -> None: ...
