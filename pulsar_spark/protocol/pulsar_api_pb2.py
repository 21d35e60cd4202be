"""The messages of the Pulsar binary protocol.

Written by tools/generate_proto.py from proto/PulsarApi.proto: do not edit.
"""

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(
    b'\n\x0fPulsarApi.proto\x12\x0cpulsar.proto"\xaf\x03\n\x06Schema\x12\x0c\n\x04name\x18\x01 \x02(\t\x12\x13\n\x0bsche'
    b"ma_data\x18\x03 \x02(\x0c\x12'\n\x04type\x18\x04 \x02(\x0e2\x19.pulsar.proto.Schema.Type\x12*\n\nproper"
    b'ties\x18\x05 \x03(\x0b2\x16.pulsar.proto.KeyValue"\xac\x02\n\x04Type\x12\x08\n\x04None\x10\x00\x12\n\n\x06String\x10'
    b'\x01\x12\x08\n\x04Json\x10\x02\x12\x0c\n\x08Protobuf\x10\x03\x12\x08\n\x04Avro\x10\x04\x12\x08\n\x04Bool\x10\x05\x12\x08\n\x04Int8\x10\x06\x12\t\n\x05Int16'
    b'\x10\x07\x12\t\n\x05Int32\x10\x08\x12\t\n\x05Int64\x10\t\x12\t\n\x05Float\x10\n\x12\n\n\x06Double\x10\x0b\x12\x08\n\x04Date\x10\x0c\x12\x08\n\x04Tim'
    b'e\x10\r\x12\r\n\tTimestamp\x10\x0e\x12\x0c\n\x08KeyValue\x10\x0f\x12\x0b\n\x07Instant\x10\x10\x12\r\n\tLocalDate\x10\x11\x12\r\n\t'
    b'LocalTime\x10\x12\x12\x11\n\rLocalDateTime\x10\x13\x12\x12\n\x0eProtobufNative\x10\x14\x12\x0f\n\x0bAutoConsum'
    b'e\x10\x15\x12\x0c\n\x08External\x10\x16"\xc4\x01\n\rMessageIdData\x12\x10\n\x08ledgerId\x18\x01 \x02(\x04\x12\x0f\n\x07entryId'
    b'\x18\x02 \x02(\x04\x12\x15\n\tpartition\x18\x03 \x01(\x05:\x02-1\x12\x17\n\x0bbatch_index\x18\x04 \x01(\x05:\x02-1\x12\x0f\n\x07ack_se'
    b't\x18\x05 \x03(\x03\x12\x12\n\nbatch_size\x18\x06 \x01(\x05\x12;\n\x16first_chunk_message_id\x18\x07 \x01(\x0b2\x1b.pu'
    b'lsar.proto.MessageIdData"&\n\x08KeyValue\x12\x0b\n\x03key\x18\x01 \x02(\t\x12\r\n\x05value\x18\x02 \x02(\t'
    b'"*\n\x0cKeyLongValue\x12\x0b\n\x03key\x18\x01 \x02(\t\x12\r\n\x05value\x18\x02 \x02(\x04"&\n\x08IntRange\x12\r\n\x05star'
    b't\x18\x01 \x02(\x05\x12\x0b\n\x03end\x18\x02 \x02(\x05"V\n\x0eEncryptionKeys\x12\x0b\n\x03key\x18\x01 \x02(\t\x12\r\n\x05value\x18\x02 \x02'
    b'(\x0c\x12(\n\x08metadata\x18\x03 \x03(\x0b2\x16.pulsar.proto.KeyValue"\x96\x07\n\x0fMessageMetadata'
    b'\x12\x15\n\rproducer_name\x18\x01 \x02(\t\x12\x13\n\x0bsequence_id\x18\x02 \x02(\x04\x12\x14\n\x0cpublish_time\x18\x03 \x02'
    b'(\x04\x12*\n\nproperties\x18\x04 \x03(\x0b2\x16.pulsar.proto.KeyValue\x12\x17\n\x0freplicated_fro'
    b'm\x18\x05 \x01(\t\x12\x15\n\rpartition_key\x18\x06 \x01(\t\x12\x14\n\x0creplicate_to\x18\x07 \x03(\t\x128\n\x0bcompress'
    b'ion\x18\x08 \x01(\x0e2\x1d.pulsar.proto.CompressionType:\x04NONE\x12\x1c\n\x11uncompressed_s'
    b'ize\x18\t \x01(\r:\x010\x12 \n\x15num_messages_in_batch\x18\x0b \x01(\x05:\x011\x12\x15\n\nevent_time\x18\x0c \x01'
    b'(\x04:\x010\x125\n\x0fencryption_keys\x18\r \x03(\x0b2\x1c.pulsar.proto.EncryptionKeys\x12\x17\n\x0f'
    b'encryption_algo\x18\x0e \x01(\t\x12\x18\n\x10encryption_param\x18\x0f \x01(\x0c\x12\x16\n\x0eschema_versio'
    b'n\x18\x10 \x01(\x0c\x12(\n\x19partition_key_b64_encoded\x18\x11 \x01(\x08:\x05false\x12\x14\n\x0cordering_ke'
    b'y\x18\x12 \x01(\x0c\x12\x17\n\x0fdeliver_at_time\x18\x13 \x01(\x03\x12\x13\n\x0bmarker_type\x18\x14 \x01(\x05\x12\x18\n\x10txnid_l'
    b'east_bits\x18\x16 \x01(\x04\x12\x17\n\x0ftxnid_most_bits\x18\x17 \x01(\x04\x12\x1e\n\x13highest_sequence_id\x18'
    b'\x18 \x01(\x04:\x010\x12\x19\n\nnull_value\x18\x19 \x01(\x08:\x05false\x12\x0c\n\x04uuid\x18\x1a \x01(\t\x12\x1b\n\x13num_chunks_'
    b'from_msg\x18\x1b \x01(\x05\x12\x1c\n\x14total_chunk_msg_size\x18\x1c \x01(\x05\x12\x10\n\x08chunk_id\x18\x1d \x01(\x05\x12!'
    b'\n\x12null_partition_key\x18\x1e \x01(\x08:\x05false\x12\x1f\n\x17compacted_batch_indexes\x18\x1f \x03'
    b'(\x05\x12\x11\n\tschema_id\x18  \x01(\x0c\x12\x16\n\x0eentry_hash_min\x18! \x01(\r\x12\x16\n\x0eentry_hash_max\x18'
    b'" \x01(\r"\xb8\x02\n\x15SingleMessageMetadata\x12*\n\nproperties\x18\x01 \x03(\x0b2\x16.pulsar.pro'
    b'to.KeyValue\x12\x15\n\rpartition_key\x18\x02 \x01(\t\x12\x14\n\x0cpayload_size\x18\x03 \x02(\x05\x12\x1c\n\rcomp'
    b'acted_out\x18\x04 \x01(\x08:\x05false\x12\x15\n\nevent_time\x18\x05 \x01(\x04:\x010\x12(\n\x19partition_key_b'
    b'64_encoded\x18\x06 \x01(\x08:\x05false\x12\x14\n\x0cordering_key\x18\x07 \x01(\x0c\x12\x13\n\x0bsequence_id\x18\x08 \x01'
    b'(\x04\x12\x19\n\nnull_value\x18\t \x01(\x08:\x05false\x12!\n\x12null_partition_key\x18\n \x01(\x08:\x05false'
    b'">\n\x13BrokerEntryMetadata\x12\x18\n\x10broker_timestamp\x18\x01 \x01(\x04\x12\r\n\x05index\x18\x02 \x01(\x04'
    b'"\xb9\x03\n\x0cFeatureFlags\x12$\n\x15supports_auth_refresh\x18\x01 \x01(\x08:\x05false\x12-\n\x1esuppo'
    b'rts_broker_entry_metadata\x18\x02 \x01(\x08:\x05false\x12(\n\x19supports_partial_produ'
    b'cer\x18\x03 \x01(\x08:\x05false\x12&\n\x17supports_topic_watchers\x18\x04 \x01(\x08:\x05false\x12F\n7supp'
    b'orts_get_partitioned_metadata_without_auto_creation\x18\x05 \x01(\x08:\x05false'
    b'\x121\n"supports_repl_dedup_by_lid_and_eid\x18\x06 \x01(\x08:\x05false\x12/\n supports_'
    b"topic_watcher_reconcile\x18\x07 \x01(\x08:\x05false\x12'\n\x18supports_scalable_topics"
    b'\x18\x08 \x01(\x08:\x05false\x12-\n\x1esupports_tc_metadata_discovery\x18\t \x01(\x08:\x05false"\xde\x02\n'
    b'\x0eCommandConnect\x12\x16\n\x0eclient_version\x18\x01 \x02(\t\x12-\n\x0bauth_method\x18\x02 \x01(\x0e2\x18.p'
    b'ulsar.proto.AuthMethod\x12\x11\n\tauth_data\x18\x03 \x01(\x0c\x12\x1b\n\x10protocol_version\x18\x04 '
    b'\x01(\x05:\x010\x12\x18\n\x10auth_method_name\x18\x05 \x01(\t\x12\x1b\n\x13proxy_to_broker_url\x18\x06 \x01(\t\x12\x1a\n'
    b'\x12original_principal\x18\x07 \x01(\t\x12\x1a\n\x12original_auth_data\x18\x08 \x01(\t\x12\x1c\n\x14origina'
    b'l_auth_method\x18\t \x01(\t\x121\n\rfeature_flags\x18\n \x01(\x0b2\x1a.pulsar.proto.Featur'
    b'eFlags\x12\x15\n\rproxy_version\x18\x0b \x01(\t"\x94\x01\n\x10CommandConnected\x12\x16\n\x0eserver_ver'
    b'sion\x18\x01 \x02(\t\x12\x1b\n\x10protocol_version\x18\x02 \x01(\x05:\x010\x12\x18\n\x10max_message_size\x18\x03 \x01('
    b'\x05\x121\n\rfeature_flags\x18\x04 \x01(\x0b2\x1a.pulsar.proto.FeatureFlags"7\n\x08AuthData'
    b'\x12\x18\n\x10auth_method_name\x18\x01 \x01(\t\x12\x11\n\tauth_data\x18\x02 \x01(\x0c"v\n\x14CommandAuthChal'
    b'lenge\x12\x16\n\x0eserver_version\x18\x01 \x01(\t\x12)\n\tchallenge\x18\x02 \x01(\x0b2\x16.pulsar.proto.'
    b'AuthData\x12\x1b\n\x10protocol_version\x18\x03 \x01(\x05:\x010"t\n\x13CommandAuthResponse\x12\x16\n\x0e'
    b'client_version\x18\x01 \x01(\t\x12(\n\x08response\x18\x02 \x01(\x0b2\x16.pulsar.proto.AuthData\x12\x1b'
    b'\n\x10protocol_version\x18\x03 \x01(\x05:\x010"\r\n\x0bCommandPing"\r\n\x0bCommandPong"\xc8\x01\n\x1fCo'
    b'mmandPartitionedTopicMetadata\x12\r\n\x05topic\x18\x01 \x02(\t\x12\x12\n\nrequest_id\x18\x02 \x02(\x04'
    b'\x12\x1a\n\x12original_principal\x18\x03 \x01(\t\x12\x1a\n\x12original_auth_data\x18\x04 \x01(\t\x12\x1c\n\x14orig'
    b'inal_auth_method\x18\x05 \x01(\t\x12,\n\x1emetadata_auto_creation_enabled\x18\x06 \x01(\x08:\x04'
    b'true"\x87\x02\n\'CommandPartitionedTopicMetadataResponse\x12\x12\n\npartitions\x18\x01'
    b' \x01(\r\x12\x12\n\nrequest_id\x18\x02 \x02(\x04\x12R\n\x08response\x18\x03 \x01(\x0e2@.pulsar.proto.Comman'
    b'dPartitionedTopicMetadataResponse.LookupType\x12(\n\x05error\x18\x04 \x01(\x0e2\x19.pu'
    b'lsar.proto.ServerError\x12\x0f\n\x07message\x18\x05 \x01(\t"%\n\nLookupType\x12\x0b\n\x07Success'
    b'\x10\x00\x12\n\n\x06Failed\x10\x01"\xf9\x01\n\x12CommandLookupTopic\x12\r\n\x05topic\x18\x01 \x02(\t\x12\x12\n\nrequest_'
    b'id\x18\x02 \x02(\x04\x12\x1c\n\rauthoritative\x18\x03 \x01(\x08:\x05false\x12\x1a\n\x12original_principal\x18\x04 \x01'
    b'(\t\x12\x1a\n\x12original_auth_data\x18\x05 \x01(\t\x12\x1c\n\x14original_auth_method\x18\x06 \x01(\t\x12 \n\x18'
    b'advertised_listener_name\x18\x07 \x01(\t\x12*\n\nproperties\x18\x08 \x03(\x0b2\x16.pulsar.prot'
    b'o.KeyValue"\xe6\x02\n\x1aCommandLookupTopicResponse\x12\x18\n\x10brokerServiceUrl\x18\x01 '
    b'\x01(\t\x12\x1b\n\x13brokerServiceUrlTls\x18\x02 \x01(\t\x12E\n\x08response\x18\x03 \x01(\x0e23.pulsar.prot'
    b'o.CommandLookupTopicResponse.LookupType\x12\x12\n\nrequest_id\x18\x04 \x02(\x04\x12\x1c\n\ra'
    b'uthoritative\x18\x05 \x01(\x08:\x05false\x12(\n\x05error\x18\x06 \x01(\x0e2\x19.pulsar.proto.ServerEr'
    b'ror\x12\x0f\n\x07message\x18\x07 \x01(\t\x12(\n\x19proxy_through_service_url\x18\x08 \x01(\x08:\x05false"3'
    b'\n\nLookupType\x12\x0c\n\x08Redirect\x10\x00\x12\x0b\n\x07Connect\x10\x01\x12\n\n\x06Failed\x10\x02"\x9c\x02\n\x1bCommandG'
    b'etTopicsOfNamespace\x12\x12\n\nrequest_id\x18\x01 \x02(\x04\x12\x11\n\tnamespace\x18\x02 \x02(\t\x12H\n\x04mo'
    b'de\x18\x03 \x01(\x0e2..pulsar.proto.CommandGetTopicsOfNamespace.Mode:\nPERSIS'
    b'TENT\x12\x16\n\x0etopics_pattern\x18\x04 \x01(\t\x12\x13\n\x0btopics_hash\x18\x05 \x01(\t\x12*\n\nproperties\x18'
    b'\x06 \x03(\x0b2\x16.pulsar.proto.KeyValue"3\n\x04Mode\x12\x0e\n\nPERSISTENT\x10\x00\x12\x12\n\x0eNON_PER'
    b'SISTENT\x10\x01\x12\x07\n\x03ALL\x10\x02"\x8e\x01\n#CommandGetTopicsOfNamespaceResponse\x12\x12\n\nre'
    b'quest_id\x18\x01 \x02(\x04\x12\x0e\n\x06topics\x18\x02 \x03(\t\x12\x17\n\x08filtered\x18\x03 \x01(\x08:\x05false\x12\x13\n\x0btopic'
    b's_hash\x18\x04 \x01(\t\x12\x15\n\x07changed\x18\x05 \x01(\x08:\x04true"\x7f\n\x15CommandWatchTopicList\x12\x12\n\n'
    b'request_id\x18\x01 \x02(\x04\x12\x12\n\nwatcher_id\x18\x02 \x02(\x04\x12\x11\n\tnamespace\x18\x03 \x02(\t\x12\x16\n\x0etopic'
    b's_pattern\x18\x04 \x02(\t\x12\x13\n\x0btopics_hash\x18\x05 \x01(\t"j\n\x1cCommandWatchTopicListSuc'
    b'cess\x12\x12\n\nrequest_id\x18\x01 \x02(\x04\x12\x12\n\nwatcher_id\x18\x02 \x02(\x04\x12\r\n\x05topic\x18\x03 \x03(\t\x12\x13\n\x0bt'
    b'opics_hash\x18\x04 \x02(\t"n\n\x17CommandWatchTopicUpdate\x12\x12\n\nwatcher_id\x18\x01 \x02(\x04\x12'
    b'\x12\n\nnew_topics\x18\x02 \x03(\t\x12\x16\n\x0edeleted_topics\x18\x03 \x03(\t\x12\x13\n\x0btopics_hash\x18\x04 \x02(\t'
    b'"D\n\x1aCommandWatchTopicListClose\x12\x12\n\nrequest_id\x18\x01 \x02(\x04\x12\x12\n\nwatcher_id'
    b'\x18\x02 \x02(\x04"\xa3\x03\n\x0fCommandProducer\x12\r\n\x05topic\x18\x01 \x02(\t\x12\x13\n\x0bproducer_id\x18\x02 \x02(\x04\x12\x12'
    b'\n\nrequest_id\x18\x03 \x02(\x04\x12\x15\n\rproducer_name\x18\x04 \x01(\t\x12\x18\n\tencrypted\x18\x05 \x01(\x08:\x05fa'
    b'lse\x12(\n\x08metadata\x18\x06 \x03(\x0b2\x16.pulsar.proto.KeyValue\x12$\n\x06schema\x18\x07 \x01(\x0b2\x14.'
    b'pulsar.proto.Schema\x12\x10\n\x05epoch\x18\x08 \x01(\x04:\x010\x12)\n\x1buser_provided_producer_'
    b'name\x18\t \x01(\x08:\x04true\x12F\n\x14producer_access_mode\x18\n \x01(\x0e2 .pulsar.proto.Pr'
    b'oducerAccessMode:\x06Shared\x12\x13\n\x0btopic_epoch\x18\x0b \x01(\x04\x12\x1a\n\x0btxn_enabled\x18\x0c \x01'
    b'(\x08:\x05false\x12!\n\x19initial_subscription_name\x18\r \x01(\t"\xac\x01\n\x16CommandProducer'
    b'Success\x12\x12\n\nrequest_id\x18\x01 \x02(\x04\x12\x15\n\rproducer_name\x18\x02 \x02(\t\x12\x1c\n\x10last_seque'
    b'nce_id\x18\x03 \x01(\x03:\x02-1\x12\x16\n\x0eschema_version\x18\x04 \x01(\x0c\x12\x13\n\x0btopic_epoch\x18\x05 \x01(\x04\x12\x1c\n'
    b'\x0eproducer_ready\x18\x06 \x01(\x08:\x04true"\x8a\x02\n\x0bCommandSend\x12\x13\n\x0bproducer_id\x18\x01 \x02(\x04'
    b'\x12\x13\n\x0bsequence_id\x18\x02 \x02(\x04\x12\x17\n\x0cnum_messages\x18\x03 \x01(\x05:\x011\x12\x1b\n\x10txnid_least_bi'
    b'ts\x18\x04 \x01(\x04:\x010\x12\x1a\n\x0ftxnid_most_bits\x18\x05 \x01(\x04:\x010\x12\x1e\n\x13highest_sequence_id\x18\x06'
    b' \x01(\x04:\x010\x12\x17\n\x08is_chunk\x18\x07 \x01(\x08:\x05false\x12\x15\n\x06marker\x18\x08 \x01(\x08:\x05false\x12/\n\nmessa'
    b'ge_id\x18\t \x01(\x0b2\x1b.pulsar.proto.MessageIdData"\x8f\x01\n\x12CommandSendReceipt\x12'
    b'\x13\n\x0bproducer_id\x18\x01 \x02(\x04\x12\x13\n\x0bsequence_id\x18\x02 \x02(\x04\x12/\n\nmessage_id\x18\x03 \x01(\x0b2\x1b.'
    b'pulsar.proto.MessageIdData\x12\x1e\n\x13highest_sequence_id\x18\x04 \x01(\x04:\x010"w\n\x10Co'
    b'mmandSendError\x12\x13\n\x0bproducer_id\x18\x01 \x02(\x04\x12\x13\n\x0bsequence_id\x18\x02 \x02(\x04\x12(\n\x05erro'
    b'r\x18\x03 \x02(\x0e2\x19.pulsar.proto.ServerError\x12\x0f\n\x07message\x18\x04 \x02(\t"\x86\x01\n\x14CommandC'
    b'loseProducer\x12\x13\n\x0bproducer_id\x18\x01 \x02(\x04\x12\x12\n\nrequest_id\x18\x02 \x02(\x04\x12 \n\x18assigne'
    b'dBrokerServiceUrl\x18\x03 \x01(\t\x12#\n\x1bassignedBrokerServiceUrlTls\x18\x04 \x01(\t"\x97\x01\n'
    b'\rKeySharedMeta\x122\n\rkeySharedMode\x18\x01 \x02(\x0e2\x1b.pulsar.proto.KeySharedMo'
    b'de\x12*\n\nhashRanges\x18\x03 \x03(\x0b2\x16.pulsar.proto.IntRange\x12&\n\x17allowOutOfOrde'
    b'rDelivery\x18\x04 \x01(\x08:\x05false"\xbf\x06\n\x10CommandSubscribe\x12\r\n\x05topic\x18\x01 \x02(\t\x12\x14\n\x0csu'
    b'bscription\x18\x02 \x02(\t\x127\n\x07subType\x18\x03 \x02(\x0e2&.pulsar.proto.CommandSubscrib'
    b'e.SubType\x12\x13\n\x0bconsumer_id\x18\x04 \x02(\x04\x12\x12\n\nrequest_id\x18\x05 \x02(\x04\x12\x15\n\rconsumer_n'
    b'ame\x18\x06 \x01(\t\x12\x16\n\x0epriority_level\x18\x07 \x01(\x05\x12\x15\n\x07durable\x18\x08 \x01(\x08:\x04true\x125\n\x10star'
    b't_message_id\x18\t \x01(\x0b2\x1b.pulsar.proto.MessageIdData\x12(\n\x08metadata\x18\n \x03('
    b'\x0b2\x16.pulsar.proto.KeyValue\x12\x16\n\x0eread_compacted\x18\x0b \x01(\x08\x12$\n\x06schema\x18\x0c \x01('
    b'\x0b2\x14.pulsar.proto.Schema\x12O\n\x0finitialPosition\x18\r \x01(\x0e2..pulsar.proto.'
    b'CommandSubscribe.InitialPosition:\x06Latest\x12$\n\x1creplicate_subscripti'
    b'on_state\x18\x0e \x01(\x08\x12"\n\x14force_topic_creation\x18\x0f \x01(\x08:\x04true\x12.\n#start_mess'
    b'age_rollback_duration_sec\x18\x10 \x01(\x04:\x010\x122\n\rkeySharedMeta\x18\x11 \x01(\x0b2\x1b.puls'
    b'ar.proto.KeySharedMeta\x127\n\x17subscription_properties\x18\x12 \x03(\x0b2\x16.pulsar'
    b'.proto.KeyValue\x12\x16\n\x0econsumer_epoch\x18\x13 \x01(\x04"B\n\x07SubType\x12\r\n\tExclusive\x10'
    b'\x00\x12\n\n\x06Shared\x10\x01\x12\x0c\n\x08Failover\x10\x02\x12\x0e\n\nKey_Shared\x10\x03"+\n\x0fInitialPosition\x12\n'
    b'\n\x06Latest\x10\x00\x12\x0c\n\x08Earliest\x10\x01":\n\x0bCommandFlow\x12\x13\n\x0bconsumer_id\x18\x01 \x02(\x04\x12\x16\n\x0e'
    b'messagePermits\x18\x02 \x02(\r"\x9c\x01\n\x0eCommandMessage\x12\x13\n\x0bconsumer_id\x18\x01 \x02(\x04\x12/\n\n'
    b'message_id\x18\x02 \x02(\x0b2\x1b.pulsar.proto.MessageIdData\x12\x1b\n\x10redelivery_coun'
    b't\x18\x03 \x01(\r:\x010\x12\x0f\n\x07ack_set\x18\x04 \x03(\x03\x12\x16\n\x0econsumer_epoch\x18\x05 \x01(\x04"\x84\x04\n\nCommandA'
    b'ck\x12\x13\n\x0bconsumer_id\x18\x01 \x02(\x04\x122\n\x08ack_type\x18\x02 \x02(\x0e2 .pulsar.proto.Command'
    b'Ack.AckType\x12/\n\nmessage_id\x18\x03 \x03(\x0b2\x1b.pulsar.proto.MessageIdData\x12B\n\x10'
    b'validation_error\x18\x04 \x01(\x0e2(.pulsar.proto.CommandAck.ValidationError'
    b'\x12.\n\nproperties\x18\x05 \x03(\x0b2\x1a.pulsar.proto.KeyLongValue\x12\x1b\n\x10txnid_least_'
    b'bits\x18\x06 \x01(\x04:\x010\x12\x1a\n\x0ftxnid_most_bits\x18\x07 \x01(\x04:\x010\x12\x12\n\nrequest_id\x18\x08 \x01(\x04")\n'
    b'\x07AckType\x12\x0e\n\nIndividual\x10\x00\x12\x0e\n\nCumulative\x10\x01"\x8f\x01\n\x0fValidationError\x12\x1e\n\x1a'
    b'UncompressedSizeCorruption\x10\x00\x12\x16\n\x12DecompressionError\x10\x01\x12\x14\n\x10Checksum'
    b'Mismatch\x10\x02\x12\x19\n\x15BatchDeSerializeError\x10\x03\x12\x13\n\x0fDecryptionError\x10\x04"\xb1\x01\n\x12C'
    b'ommandAckResponse\x12\x13\n\x0bconsumer_id\x18\x01 \x02(\x04\x12\x1b\n\x10txnid_least_bits\x18\x02 \x01(\x04'
    b':\x010\x12\x1a\n\x0ftxnid_most_bits\x18\x03 \x01(\x04:\x010\x12(\n\x05error\x18\x04 \x01(\x0e2\x19.pulsar.proto.Se'
    b'rverError\x12\x0f\n\x07message\x18\x05 \x01(\t\x12\x12\n\nrequest_id\x18\x06 \x01(\x04"\x87\x01\n&CommandRedeli'
    b'verUnacknowledgedMessages\x12\x13\n\x0bconsumer_id\x18\x01 \x02(\x04\x120\n\x0bmessage_ids\x18\x02 '
    b'\x03(\x0b2\x1b.pulsar.proto.MessageIdData\x12\x16\n\x0econsumer_epoch\x18\x03 \x01(\x04"L\n\x1bComm'
    b'andActiveConsumerChange\x12\x13\n\x0bconsumer_id\x18\x01 \x02(\x04\x12\x18\n\tis_active\x18\x02 \x01(\x08:'
    b'\x05false"\x85\x01\n\x0bCommandSeek\x12\x13\n\x0bconsumer_id\x18\x01 \x02(\x04\x12\x12\n\nrequest_id\x18\x02 \x02(\x04\x12'
    b'/\n\nmessage_id\x18\x03 \x01(\x0b2\x1b.pulsar.proto.MessageIdData\x12\x1c\n\x14message_publ'
    b'ish_time\x18\x04 \x01(\x04"B\n\x17CommandGetLastMessageId\x12\x13\n\x0bconsumer_id\x18\x01 \x02(\x04\x12\x12'
    b'\n\nrequest_id\x18\x02 \x02(\x04"\xaf\x01\n\x1fCommandGetLastMessageIdResponse\x124\n\x0flast_m'
    b'essage_id\x18\x01 \x02(\x0b2\x1b.pulsar.proto.MessageIdData\x12\x12\n\nrequest_id\x18\x02 \x02(\x04'
    b'\x12B\n\x1dconsumer_mark_delete_position\x18\x03 \x01(\x0b2\x1b.pulsar.proto.MessageId'
    b'Data"/\n\x18CommandReachedEndOfTopic\x12\x13\n\x0bconsumer_id\x18\x01 \x02(\x04"S\n\x12Command'
    b'Unsubscribe\x12\x13\n\x0bconsumer_id\x18\x01 \x02(\x04\x12\x12\n\nrequest_id\x18\x02 \x02(\x04\x12\x14\n\x05force\x18\x03 '
    b'\x01(\x08:\x05false"\x86\x01\n\x14CommandCloseConsumer\x12\x13\n\x0bconsumer_id\x18\x01 \x02(\x04\x12\x12\n\nrequ'
    b'est_id\x18\x02 \x02(\x04\x12 \n\x18assignedBrokerServiceUrl\x18\x03 \x01(\t\x12#\n\x1bassignedBroker'
    b'ServiceUrlTls\x18\x04 \x01(\t"?\n\x14CommandConsumerStats\x12\x12\n\nrequest_id\x18\x01 \x02(\x04\x12'
    b'\x13\n\x0bconsumer_id\x18\x04 \x02(\x04"\xaa\x03\n\x1cCommandConsumerStatsResponse\x12\x12\n\nrequest'
    b'_id\x18\x01 \x02(\x04\x12-\n\nerror_code\x18\x02 \x01(\x0e2\x19.pulsar.proto.ServerError\x12\x15\n\rerro'
    b'r_message\x18\x03 \x01(\t\x12\x12\n\nmsgRateOut\x18\x04 \x01(\x01\x12\x18\n\x10msgThroughputOut\x18\x05 \x01(\x01\x12\x18\n'
    b'\x10msgRateRedeliver\x18\x06 \x01(\x01\x12\x14\n\x0cconsumerName\x18\x07 \x01(\t\x12\x18\n\x10availablePermit'
    b's\x18\x08 \x01(\x04\x12\x17\n\x0funackedMessages\x18\t \x01(\x04\x12$\n\x1cblockedConsumerOnUnackedMsgs'
    b'\x18\n \x01(\x08\x12\x0f\n\x07address\x18\x0b \x01(\t\x12\x16\n\x0econnectedSince\x18\x0c \x01(\t\x12\x0c\n\x04type\x18\r \x01(\t\x12\x16\n'
    b'\x0emsgRateExpired\x18\x0e \x01(\x01\x12\x12\n\nmsgBacklog\x18\x0f \x01(\x04\x12\x16\n\x0emessageAckRate\x18\x10 \x01('
    b'\x01"J\n\x0eCommandSuccess\x12\x12\n\nrequest_id\x18\x01 \x02(\x04\x12$\n\x06schema\x18\x02 \x01(\x0b2\x14.pulsar'
    b'.proto.Schema"]\n\x0cCommandError\x12\x12\n\nrequest_id\x18\x01 \x02(\x04\x12(\n\x05error\x18\x02 \x02(\x0e'
    b'2\x19.pulsar.proto.ServerError\x12\x0f\n\x07message\x18\x03 \x02(\t"\xd6\x01\n\x14CommandTopicMig'
    b'rated\x12\x13\n\x0bresource_id\x18\x01 \x02(\x04\x12F\n\rresource_type\x18\x02 \x02(\x0e2/.pulsar.proto'
    b'.CommandTopicMigrated.ResourceType\x12\x18\n\x10brokerServiceUrl\x18\x03 \x01(\t\x12\x1b\n\x13'
    b'brokerServiceUrlTls\x18\x04 \x01(\t"*\n\x0cResourceType\x12\x0c\n\x08Producer\x10\x00\x12\x0c\n\x08Consu'
    b'mer\x10\x01"M\n\x10CommandGetSchema\x12\x12\n\nrequest_id\x18\x01 \x02(\x04\x12\r\n\x05topic\x18\x02 \x02(\t\x12\x16\n\x0e'
    b'schema_version\x18\x03 \x01(\x0c"\xb2\x01\n\x18CommandGetSchemaResponse\x12\x12\n\nrequest_id\x18'
    b'\x01 \x02(\x04\x12-\n\nerror_code\x18\x02 \x01(\x0e2\x19.pulsar.proto.ServerError\x12\x15\n\rerror_me'
    b'ssage\x18\x03 \x01(\t\x12$\n\x06schema\x18\x04 \x01(\x0b2\x14.pulsar.proto.Schema\x12\x16\n\x0eschema_vers'
    b'ion\x18\x05 \x01(\x0c"y\n\x18CommandGetOrCreateSchema\x12\x12\n\nrequest_id\x18\x01 \x02(\x04\x12\r\n\x05top'
    b'ic\x18\x02 \x02(\t\x12$\n\x06schema\x18\x03 \x02(\x0b2\x14.pulsar.proto.Schema\x12\x14\n\x0cproducerName\x18\x04'
    b' \x01(\t"\x94\x01\n CommandGetOrCreateSchemaResponse\x12\x12\n\nrequest_id\x18\x01 \x02(\x04\x12-\n'
    b'\nerror_code\x18\x02 \x01(\x0e2\x19.pulsar.proto.ServerError\x12\x15\n\rerror_message\x18\x03 '
    b'\x01(\t\x12\x16\n\x0eschema_version\x18\x04 \x01(\x0c"^\n\x1dCommandTcClientConnectRequest\x12\x12\n\n'
    b'request_id\x18\x01 \x02(\x04\x12\x10\n\x05tc_id\x18\x02 \x02(\x04:\x010\x12\x17\n\x08scalable\x18\x03 \x01(\x08:\x05false"o\n\x1eC'
    b'ommandTcClientConnectResponse\x12\x12\n\nrequest_id\x18\x01 \x02(\x04\x12(\n\x05error\x18\x02 \x01(\x0e'
    b'2\x19.pulsar.proto.ServerError\x12\x0f\n\x07message\x18\x03 \x01(\t"i\n\rCommandNewTxn\x12\x12\n'
    b'\nrequest_id\x18\x01 \x02(\x04\x12\x19\n\x0etxn_ttl_millis\x18\x02 \x01(\x04:\x010\x12\x10\n\x05tc_id\x18\x03 \x01(\x04:\x010\x12\x17'
    b'\n\x08scalable\x18\x04 \x01(\x08:\x05false"\x9f\x01\n\x15CommandNewTxnResponse\x12\x12\n\nrequest_id\x18'
    b'\x01 \x02(\x04\x12\x1b\n\x10txnid_least_bits\x18\x02 \x01(\x04:\x010\x12\x1a\n\x0ftxnid_most_bits\x18\x03 \x01(\x04:\x010\x12('
    b'\n\x05error\x18\x04 \x01(\x0e2\x19.pulsar.proto.ServerError\x12\x0f\n\x07message\x18\x05 \x01(\t"\x94\x01\n\x18Co'
    b'mmandAddPartitionToTxn\x12\x12\n\nrequest_id\x18\x01 \x02(\x04\x12\x1b\n\x10txnid_least_bits\x18\x02'
    b' \x01(\x04:\x010\x12\x1a\n\x0ftxnid_most_bits\x18\x03 \x01(\x04:\x010\x12\x12\n\npartitions\x18\x04 \x03(\t\x12\x17\n\x08scala'
    b'ble\x18\x05 \x01(\x08:\x05false"\xaa\x01\n CommandAddPartitionToTxnResponse\x12\x12\n\nrequest'
    b'_id\x18\x01 \x02(\x04\x12\x1b\n\x10txnid_least_bits\x18\x02 \x01(\x04:\x010\x12\x1a\n\x0ftxnid_most_bits\x18\x03 \x01(\x04:'
    b'\x010\x12(\n\x05error\x18\x04 \x01(\x0e2\x19.pulsar.proto.ServerError\x12\x0f\n\x07message\x18\x05 \x01(\t"3\n'
    b'\x0cSubscription\x12\r\n\x05topic\x18\x01 \x02(\t\x12\x14\n\x0csubscription\x18\x02 \x02(\t"\xb5\x01\n\x1bCommandAd'
    b'dSubscriptionToTxn\x12\x12\n\nrequest_id\x18\x01 \x02(\x04\x12\x1b\n\x10txnid_least_bits\x18\x02 \x01(\x04'
    b':\x010\x12\x1a\n\x0ftxnid_most_bits\x18\x03 \x01(\x04:\x010\x120\n\x0csubscription\x18\x04 \x03(\x0b2\x1a.pulsar.p'
    b'roto.Subscription\x12\x17\n\x08scalable\x18\x05 \x01(\x08:\x05false"\xad\x01\n#CommandAddSubscri'
    b'ptionToTxnResponse\x12\x12\n\nrequest_id\x18\x01 \x02(\x04\x12\x1b\n\x10txnid_least_bits\x18\x02 \x01(\x04'
    b':\x010\x12\x1a\n\x0ftxnid_most_bits\x18\x03 \x01(\x04:\x010\x12(\n\x05error\x18\x04 \x01(\x0e2\x19.pulsar.proto.Se'
    b'rverError\x12\x0f\n\x07message\x18\x05 \x01(\t"\xa2\x01\n\rCommandEndTxn\x12\x12\n\nrequest_id\x18\x01 \x02(\x04'
    b'\x12\x1b\n\x10txnid_least_bits\x18\x02 \x01(\x04:\x010\x12\x1a\n\x0ftxnid_most_bits\x18\x03 \x01(\x04:\x010\x12+\n\ntxn'
    b'_action\x18\x04 \x01(\x0e2\x17.pulsar.proto.TxnAction\x12\x17\n\x08scalable\x18\x05 \x01(\x08:\x05false"'
    b'\x9f\x01\n\x15CommandEndTxnResponse\x12\x12\n\nrequest_id\x18\x01 \x02(\x04\x12\x1b\n\x10txnid_least_bit'
    b's\x18\x02 \x01(\x04:\x010\x12\x1a\n\x0ftxnid_most_bits\x18\x03 \x01(\x04:\x010\x12(\n\x05error\x18\x04 \x01(\x0e2\x19.pulsar.p'
    b'roto.ServerError\x12\x0f\n\x07message\x18\x05 \x01(\t"\xce\x01\n\x18CommandEndTxnOnPartition\x12\x12'
    b'\n\nrequest_id\x18\x01 \x02(\x04\x12\x1b\n\x10txnid_least_bits\x18\x02 \x01(\x04:\x010\x12\x1a\n\x0ftxnid_most_bi'
    b'ts\x18\x03 \x01(\x04:\x010\x12\r\n\x05topic\x18\x04 \x01(\t\x12+\n\ntxn_action\x18\x05 \x01(\x0e2\x17.pulsar.proto.Tx'
    b'nAction\x12)\n!txnid_least_bits_of_low_watermark\x18\x06 \x01(\x04"\xaa\x01\n CommandEn'
    b'dTxnOnPartitionResponse\x12\x12\n\nrequest_id\x18\x01 \x02(\x04\x12\x1b\n\x10txnid_least_bits\x18'
    b'\x02 \x01(\x04:\x010\x12\x1a\n\x0ftxnid_most_bits\x18\x03 \x01(\x04:\x010\x12(\n\x05error\x18\x04 \x01(\x0e2\x19.pulsar.pro'
    b'to.ServerError\x12\x0f\n\x07message\x18\x05 \x01(\t"\xf4\x01\n\x1bCommandEndTxnOnSubscription\x12'
    b'\x12\n\nrequest_id\x18\x01 \x02(\x04\x12\x1b\n\x10txnid_least_bits\x18\x02 \x01(\x04:\x010\x12\x1a\n\x0ftxnid_most_b'
    b'its\x18\x03 \x01(\x04:\x010\x120\n\x0csubscription\x18\x04 \x01(\x0b2\x1a.pulsar.proto.Subscription\x12+'
    b'\n\ntxn_action\x18\x05 \x01(\x0e2\x17.pulsar.proto.TxnAction\x12)\n!txnid_least_bits_'
    b'of_low_watermark\x18\x06 \x01(\x04"\xad\x01\n#CommandEndTxnOnSubscriptionResponse\x12\x12'
    b'\n\nrequest_id\x18\x01 \x02(\x04\x12\x1b\n\x10txnid_least_bits\x18\x02 \x01(\x04:\x010\x12\x1a\n\x0ftxnid_most_bi'
    b'ts\x18\x03 \x01(\x04:\x010\x12(\n\x05error\x18\x04 \x01(\x0e2\x19.pulsar.proto.ServerError\x12\x0f\n\x07message'
    b'\x18\x05 \x01(\t"-\n\x19CommandWatchTcAssignments\x12\x10\n\x08watch_id\x18\x01 \x02(\x04"Y\n\x0cTcAssig'
    b'nment\x12\r\n\x05tc_id\x18\x01 \x02(\x04\x12\x1a\n\x12broker_service_url\x18\x02 \x01(\t\x12\x1e\n\x16broker_servi'
    b'ce_url_tls\x18\x03 \x01(\t"]\n\x15TcAssignmentsSnapshot\x12\x13\n\x0bparallelism\x18\x01 \x02(\r\x12/'
    b'\n\x0bassignments\x18\x02 \x03(\x0b2\x1a.pulsar.proto.TcAssignment"\xa5\x01\n\x1fCommandWatch'
    b'TcAssignmentsUpdate\x12\x10\n\x08watch_id\x18\x01 \x02(\x04\x125\n\x08snapshot\x18\x02 \x01(\x0b2#.pulsar'
    b'.proto.TcAssignmentsSnapshot\x12(\n\x05error\x18\x03 \x01(\x0e2\x19.pulsar.proto.Serve'
    b'rError\x12\x0f\n\x07message\x18\x04 \x01(\t"2\n\x1eCommandWatchTcAssignmentsClose\x12\x10\n\x08wat'
    b'ch_id\x18\x01 \x02(\x04"\xb6\x02\n\x10SegmentInfoProto\x12\x12\n\nsegment_id\x18\x01 \x02(\x04\x12\x12\n\nhash_sta'
    b'rt\x18\x02 \x02(\r\x12\x10\n\x08hash_end\x18\x03 \x02(\r\x12)\n\x05state\x18\x04 \x02(\x0e2\x1a.pulsar.proto.Segment'
    b'State\x12\x12\n\nparent_ids\x18\x05 \x03(\x04\x12\x11\n\tchild_ids\x18\x06 \x03(\x04\x12\x18\n\x10created_at_epoch'
    b'\x18\x07 \x02(\x04\x12\x17\n\x0fsealed_at_epoch\x18\x08 \x01(\x04\x12\x15\n\rcreated_at_ms\x18\t \x02(\x04\x12\x14\n\x0csealed'
    b'_at_ms\x18\n \x01(\x04\x12\x19\n\x11legacy_topic_name\x18\x0b \x01(\t\x12\x1b\n\x13entry_bucket_splits\x18\x0c'
    b' \x03(\r"V\n\x14SegmentBrokerAddress\x12\x12\n\nsegment_id\x18\x01 \x02(\x04\x12\x12\n\nbroker_url\x18\x02'
    b' \x02(\t\x12\x16\n\x0ebroker_url_tls\x18\x03 \x01(\t"\xd2\x01\n\x10ScalableTopicDAG\x12\r\n\x05epoch\x18\x01 \x02(\x04'
    b'\x120\n\x08segments\x18\x02 \x03(\x0b2\x1e.pulsar.proto.SegmentInfoProto\x12;\n\x0fsegment_br'
    b'okers\x18\x03 \x03(\x0b2".pulsar.proto.SegmentBrokerAddress\x12\x1d\n\x15controller_br'
    b'oker_url\x18\x04 \x01(\t\x12!\n\x19controller_broker_url_tls\x18\x05 \x01(\t"`\n\x1aCommandScal'
    b'ableTopicLookup\x12\x12\n\nsession_id\x18\x01 \x02(\x04\x12\r\n\x05topic\x18\x02 \x02(\t\x12\x1f\n\x11create_if_'
    b'missing\x18\x03 \x01(\x08:\x04true"\xb5\x01\n\x1aCommandScalableTopicUpdate\x12\x12\n\nsession_id'
    b'\x18\x01 \x02(\x04\x12+\n\x03dag\x18\x02 \x01(\x0b2\x1e.pulsar.proto.ScalableTopicDAG\x12(\n\x05error\x18\x03 \x01'
    b'(\x0e2\x19.pulsar.proto.ServerError\x12\x0f\n\x07message\x18\x04 \x01(\t\x12\x1b\n\x13resolved_topic'
    b'_name\x18\x05 \x01(\t"/\n\x19CommandScalableTopicClose\x12\x12\n\nsession_id\x18\x01 \x02(\x04"\x99\x01\n'
    b'\x17ScalableAssignedSegment\x12\x12\n\nsegment_id\x18\x01 \x02(\x04\x12\x12\n\nhash_start\x18\x02 \x02(\r'
    b'\x12\x10\n\x08hash_end\x18\x03 \x02(\r\x12\x15\n\rsegment_topic\x18\x04 \x02(\t\x12-\n\rbucket_ranges\x18\x05 \x03(\x0b'
    b'2\x16.pulsar.proto.IntRange"k\n\x1aScalableConsumerAssignment\x12\x14\n\x0clayout'
    b'_epoch\x18\x01 \x02(\x04\x127\n\x08segments\x18\x02 \x03(\x0b2%.pulsar.proto.ScalableAssignedSe'
    b'gment"\xbf\x01\n\x1dCommandScalableTopicSubscribe\x12\x12\n\nrequest_id\x18\x01 \x02(\x04\x12\r\n\x05t'
    b'opic\x18\x02 \x02(\t\x12\x14\n\x0csubscription\x18\x03 \x02(\t\x12\x15\n\rconsumer_name\x18\x04 \x02(\t\x12\x13\n\x0bconsu'
    b'mer_id\x18\x05 \x02(\x04\x129\n\rconsumer_type\x18\x06 \x02(\x0e2".pulsar.proto.ScalableConsu'
    b'merType"\xb4\x01\n%CommandScalableTopicSubscribeResponse\x12\x12\n\nrequest_id\x18'
    b'\x01 \x02(\x04\x12(\n\x05error\x18\x02 \x01(\x0e2\x19.pulsar.proto.ServerError\x12\x0f\n\x07message\x18\x03 \x01(\t'
    b'\x12<\n\nassignment\x18\x04 \x01(\x0b2(.pulsar.proto.ScalableConsumerAssignment"y'
    b'\n$CommandScalableTopicAssignmentUpdate\x12\x13\n\x0bconsumer_id\x18\x01 \x02(\x04\x12<\n\na'
    b'ssignment\x18\x02 \x02(\x0b2(.pulsar.proto.ScalableConsumerAssignment"\x89\x01\n\x1aCo'
    b'mmandWatchScalableTopics\x12\x10\n\x08watch_id\x18\x01 \x02(\x04\x12\x11\n\tnamespace\x18\x02 \x02(\t\x120\n'
    b'\x10property_filters\x18\x03 \x03(\x0b2\x16.pulsar.proto.KeyValue\x12\x14\n\x0ccurrent_hash\x18'
    b'\x04 \x01(\t"(\n\x16ScalableTopicsSnapshot\x12\x0e\n\x06topics\x18\x01 \x03(\t"4\n\x12ScalableTopic'
    b'sDiff\x12\r\n\x05added\x18\x01 \x03(\t\x12\x0f\n\x07removed\x18\x02 \x03(\t"\xd7\x01\n CommandWatchScalableTo'
    b'picsUpdate\x12\x10\n\x08watch_id\x18\x01 \x02(\x04\x126\n\x08snapshot\x18\x02 \x01(\x0b2$.pulsar.proto.Sc'
    b'alableTopicsSnapshot\x12.\n\x04diff\x18\x03 \x01(\x0b2 .pulsar.proto.ScalableTopics'
    b'Diff\x12(\n\x05error\x18\x04 \x01(\x0e2\x19.pulsar.proto.ServerError\x12\x0f\n\x07message\x18\x05 \x01(\t"'
    b'3\n\x1fCommandWatchScalableTopicsClose\x12\x10\n\x08watch_id\x18\x01 \x02(\x04"\xbd1\n\x0bBaseCom'
    b'mand\x12,\n\x04type\x18\x01 \x02(\x0e2\x1e.pulsar.proto.BaseCommand.Type\x12-\n\x07connect\x18\x02 '
    b'\x01(\x0b2\x1c.pulsar.proto.CommandConnect\x121\n\tconnected\x18\x03 \x01(\x0b2\x1e.pulsar.pr'
    b'oto.CommandConnected\x121\n\tsubscribe\x18\x04 \x01(\x0b2\x1e.pulsar.proto.CommandSu'
    b"bscribe\x12/\n\x08producer\x18\x05 \x01(\x0b2\x1d.pulsar.proto.CommandProducer\x12'\n\x04send"
    b'\x18\x06 \x01(\x0b2\x19.pulsar.proto.CommandSend\x126\n\x0csend_receipt\x18\x07 \x01(\x0b2 .pulsar'
    b'.proto.CommandSendReceipt\x122\n\nsend_error\x18\x08 \x01(\x0b2\x1e.pulsar.proto.Com'
    b'mandSendError\x12-\n\x07message\x18\t \x01(\x0b2\x1c.pulsar.proto.CommandMessage\x12%\n\x03'
    b"ack\x18\n \x01(\x0b2\x18.pulsar.proto.CommandAck\x12'\n\x04flow\x18\x0b \x01(\x0b2\x19.pulsar.proto"
    b'.CommandFlow\x125\n\x0bunsubscribe\x18\x0c \x01(\x0b2 .pulsar.proto.CommandUnsubscr'
    b'ibe\x12-\n\x07success\x18\r \x01(\x0b2\x1c.pulsar.proto.CommandSuccess\x12)\n\x05error\x18\x0e \x01('
    b'\x0b2\x1a.pulsar.proto.CommandError\x12:\n\x0eclose_producer\x18\x0f \x01(\x0b2".pulsar.p'
    b'roto.CommandCloseProducer\x12:\n\x0eclose_consumer\x18\x10 \x01(\x0b2".pulsar.proto'
    b'.CommandCloseConsumer\x12>\n\x10producer_success\x18\x11 \x01(\x0b2$.pulsar.proto.C'
    b"ommandProducerSuccess\x12'\n\x04ping\x18\x12 \x01(\x0b2\x19.pulsar.proto.CommandPing\x12'"
    b'\n\x04pong\x18\x13 \x01(\x0b2\x19.pulsar.proto.CommandPong\x12]\n\x1fredeliverUnacknowledg'
    b'edMessages\x18\x14 \x01(\x0b24.pulsar.proto.CommandRedeliverUnacknowledgedMe'
    b'ssages\x12H\n\x11partitionMetadata\x18\x15 \x01(\x0b2-.pulsar.proto.CommandPartitio'
    b'nedTopicMetadata\x12X\n\x19partitionMetadataResponse\x18\x16 \x01(\x0b25.pulsar.pro'
    b'to.CommandPartitionedTopicMetadataResponse\x125\n\x0blookupTopic\x18\x17 \x01(\x0b2'
    b' .pulsar.proto.CommandLookupTopic\x12E\n\x13lookupTopicResponse\x18\x18 \x01(\x0b2('
    b'.pulsar.proto.CommandLookupTopicResponse\x129\n\rconsumerStats\x18\x19 \x01(\x0b2'
    b'".pulsar.proto.CommandConsumerStats\x12I\n\x15consumerStatsResponse\x18\x1a \x01'
    b'(\x0b2*.pulsar.proto.CommandConsumerStatsResponse\x12A\n\x11reachedEndOfTo'
    b"pic\x18\x1b \x01(\x0b2&.pulsar.proto.CommandReachedEndOfTopic\x12'\n\x04seek\x18\x1c \x01(\x0b2"
    b'\x19.pulsar.proto.CommandSeek\x12?\n\x10getLastMessageId\x18\x1d \x01(\x0b2%.pulsar.pr'
    b'oto.CommandGetLastMessageId\x12O\n\x18getLastMessageIdResponse\x18\x1e \x01(\x0b2-.'
    b'pulsar.proto.CommandGetLastMessageIdResponse\x12I\n\x16active_consumer_'
    b'change\x18\x1f \x01(\x0b2).pulsar.proto.CommandActiveConsumerChange\x12G\n\x14getTo'
    b'picsOfNamespace\x18  \x01(\x0b2).pulsar.proto.CommandGetTopicsOfNamespace'
    b'\x12W\n\x1cgetTopicsOfNamespaceResponse\x18! \x01(\x0b21.pulsar.proto.CommandGet'
    b'TopicsOfNamespaceResponse\x121\n\tgetSchema\x18" \x01(\x0b2\x1e.pulsar.proto.Comm'
    b'andGetSchema\x12A\n\x11getSchemaResponse\x18# \x01(\x0b2&.pulsar.proto.CommandGe'
    b'tSchemaResponse\x129\n\rauthChallenge\x18$ \x01(\x0b2".pulsar.proto.CommandAut'
    b'hChallenge\x127\n\x0cauthResponse\x18% \x01(\x0b2!.pulsar.proto.CommandAuthRespo'
    b'nse\x125\n\x0backResponse\x18& \x01(\x0b2 .pulsar.proto.CommandAckResponse\x12A\n\x11ge'
    b"tOrCreateSchema\x18' \x01(\x0b2&.pulsar.proto.CommandGetOrCreateSchema\x12Q\n"
    b'\x19getOrCreateSchemaResponse\x18( \x01(\x0b2..pulsar.proto.CommandGetOrCrea'
    b'teSchemaResponse\x12+\n\x06newTxn\x182 \x01(\x0b2\x1b.pulsar.proto.CommandNewTxn\x12;\n'
    b'\x0enewTxnResponse\x183 \x01(\x0b2#.pulsar.proto.CommandNewTxnResponse\x12A\n\x11ad'
    b'dPartitionToTxn\x184 \x01(\x0b2&.pulsar.proto.CommandAddPartitionToTxn\x12Q\n'
    b'\x19addPartitionToTxnResponse\x185 \x01(\x0b2..pulsar.proto.CommandAddPartit'
    b'ionToTxnResponse\x12G\n\x14addSubscriptionToTxn\x186 \x01(\x0b2).pulsar.proto.Co'
    b'mmandAddSubscriptionToTxn\x12W\n\x1caddSubscriptionToTxnResponse\x187 \x01(\x0b2'
    b'1.pulsar.proto.CommandAddSubscriptionToTxnResponse\x12+\n\x06endTxn\x188 \x01'
    b'(\x0b2\x1b.pulsar.proto.CommandEndTxn\x12;\n\x0eendTxnResponse\x189 \x01(\x0b2#.pulsar'
    b'.proto.CommandEndTxnResponse\x12A\n\x11endTxnOnPartition\x18: \x01(\x0b2&.pulsar'
    b'.proto.CommandEndTxnOnPartition\x12Q\n\x19endTxnOnPartitionResponse\x18; \x01'
    b'(\x0b2..pulsar.proto.CommandEndTxnOnPartitionResponse\x12G\n\x14endTxnOnSu'
    b'bscription\x18< \x01(\x0b2).pulsar.proto.CommandEndTxnOnSubscription\x12W\n\x1ce'
    b'ndTxnOnSubscriptionResponse\x18= \x01(\x0b21.pulsar.proto.CommandEndTxnOn'
    b'SubscriptionResponse\x12K\n\x16tcClientConnectRequest\x18> \x01(\x0b2+.pulsar.pr'
    b'oto.CommandTcClientConnectRequest\x12M\n\x17tcClientConnectResponse\x18? \x01'
    b'(\x0b2,.pulsar.proto.CommandTcClientConnectResponse\x12;\n\x0ewatchTopicLi'
    b'st\x18@ \x01(\x0b2#.pulsar.proto.CommandWatchTopicList\x12I\n\x15watchTopicListS'
    b'uccess\x18A \x01(\x0b2*.pulsar.proto.CommandWatchTopicListSuccess\x12?\n\x10watc'
    b'hTopicUpdate\x18B \x01(\x0b2%.pulsar.proto.CommandWatchTopicUpdate\x12E\n\x13wat'
    b'chTopicListClose\x18C \x01(\x0b2(.pulsar.proto.CommandWatchTopicListClose'
    b'\x129\n\rtopicMigrated\x18D \x01(\x0b2".pulsar.proto.CommandTopicMigrated\x12E\n\x13s'
    b'calableTopicLookup\x18F \x01(\x0b2(.pulsar.proto.CommandScalableTopicLook'
    b'up\x12E\n\x13scalableTopicUpdate\x18G \x01(\x0b2(.pulsar.proto.CommandScalableTo'
    b"picUpdate\x12C\n\x12scalableTopicClose\x18H \x01(\x0b2'.pulsar.proto.CommandScal"
    b'ableTopicClose\x12K\n\x16scalableTopicSubscribe\x18I \x01(\x0b2+.pulsar.proto.Co'
    b'mmandScalableTopicSubscribe\x12[\n\x1escalableTopicSubscribeResponse\x18J '
    b'\x01(\x0b23.pulsar.proto.CommandScalableTopicSubscribeResponse\x12Y\n\x1dscal'
    b'ableTopicAssignmentUpdate\x18K \x01(\x0b22.pulsar.proto.CommandScalableTo'
    b'picAssignmentUpdate\x12E\n\x13watchScalableTopics\x18L \x01(\x0b2(.pulsar.proto.'
    b'CommandWatchScalableTopics\x12Q\n\x19watchScalableTopicsUpdate\x18M \x01(\x0b2..'
    b'pulsar.proto.CommandWatchScalableTopicsUpdate\x12O\n\x18watchScalableTo'
    b'picsClose\x18N \x01(\x0b2-.pulsar.proto.CommandWatchScalableTopicsClose\x12C'
    b"\n\x12watchTcAssignments\x18O \x01(\x0b2'.pulsar.proto.CommandWatchTcAssignme"
    b'nts\x12O\n\x18watchTcAssignmentsUpdate\x18P \x01(\x0b2-.pulsar.proto.CommandWatc'
    b'hTcAssignmentsUpdate\x12M\n\x17watchTcAssignmentsClose\x18Q \x01(\x0b2,.pulsar.p'
    b'roto.CommandWatchTcAssignmentsClose"\x8e\r\n\x04Type\x12\x0b\n\x07CONNECT\x10\x02\x12\r\n\tCON'
    b'NECTED\x10\x03\x12\r\n\tSUBSCRIBE\x10\x04\x12\x0c\n\x08PRODUCER\x10\x05\x12\x08\n\x04SEND\x10\x06\x12\x10\n\x0cSEND_RECEIPT\x10'
    b'\x07\x12\x0e\n\nSEND_ERROR\x10\x08\x12\x0b\n\x07MESSAGE\x10\t\x12\x07\n\x03ACK\x10\n\x12\x08\n\x04FLOW\x10\x0b\x12\x0f\n\x0bUNSUBSCRIBE'
    b'\x10\x0c\x12\x0b\n\x07SUCCESS\x10\r\x12\t\n\x05ERROR\x10\x0e\x12\x12\n\x0eCLOSE_PRODUCER\x10\x0f\x12\x12\n\x0eCLOSE_CONSUMER'
    b'\x10\x10\x12\x14\n\x10PRODUCER_SUCCESS\x10\x11\x12\x08\n\x04PING\x10\x12\x12\x08\n\x04PONG\x10\x13\x12%\n!REDELIVER_UNACKN'
    b'OWLEDGED_MESSAGES\x10\x14\x12\x18\n\x14PARTITIONED_METADATA\x10\x15\x12!\n\x1dPARTITIONED_MET'
    b'ADATA_RESPONSE\x10\x16\x12\n\n\x06LOOKUP\x10\x17\x12\x13\n\x0fLOOKUP_RESPONSE\x10\x18\x12\x12\n\x0eCONSUMER_ST'
    b'ATS\x10\x19\x12\x1b\n\x17CONSUMER_STATS_RESPONSE\x10\x1a\x12\x18\n\x14REACHED_END_OF_TOPIC\x10\x1b\x12\x08\n\x04'
    b'SEEK\x10\x1c\x12\x17\n\x13GET_LAST_MESSAGE_ID\x10\x1d\x12 \n\x1cGET_LAST_MESSAGE_ID_RESPONSE\x10'
    b'\x1e\x12\x1a\n\x16ACTIVE_CONSUMER_CHANGE\x10\x1f\x12\x1b\n\x17GET_TOPICS_OF_NAMESPACE\x10 \x12$\n GE'
    b'T_TOPICS_OF_NAMESPACE_RESPONSE\x10!\x12\x0e\n\nGET_SCHEMA\x10"\x12\x17\n\x13GET_SCHEMA_R'
    b'ESPONSE\x10#\x12\x12\n\x0eAUTH_CHALLENGE\x10$\x12\x11\n\rAUTH_RESPONSE\x10%\x12\x10\n\x0cACK_RESPONSE'
    b"\x10&\x12\x18\n\x14GET_OR_CREATE_SCHEMA\x10'\x12!\n\x1dGET_OR_CREATE_SCHEMA_RESPONSE\x10(\x12"
    b'\x0b\n\x07NEW_TXN\x102\x12\x14\n\x10NEW_TXN_RESPONSE\x103\x12\x18\n\x14ADD_PARTITION_TO_TXN\x104\x12!\n\x1d'
    b'ADD_PARTITION_TO_TXN_RESPONSE\x105\x12\x1b\n\x17ADD_SUBSCRIPTION_TO_TXN\x106\x12$\n '
    b'ADD_SUBSCRIPTION_TO_TXN_RESPONSE\x107\x12\x0b\n\x07END_TXN\x108\x12\x14\n\x10END_TXN_RESPO'
    b'NSE\x109\x12\x18\n\x14END_TXN_ON_PARTITION\x10:\x12!\n\x1dEND_TXN_ON_PARTITION_RESPONSE'
    b'\x10;\x12\x1b\n\x17END_TXN_ON_SUBSCRIPTION\x10<\x12$\n END_TXN_ON_SUBSCRIPTION_RESPO'
    b'NSE\x10=\x12\x1d\n\x19TC_CLIENT_CONNECT_REQUEST\x10>\x12\x1e\n\x1aTC_CLIENT_CONNECT_RESPON'
    b'SE\x10?\x12\x14\n\x10WATCH_TOPIC_LIST\x10@\x12\x1c\n\x18WATCH_TOPIC_LIST_SUCCESS\x10A\x12\x16\n\x12WATC'
    b'H_TOPIC_UPDATE\x10B\x12\x1a\n\x16WATCH_TOPIC_LIST_CLOSE\x10C\x12\x12\n\x0eTOPIC_MIGRATED\x10D'
    b'\x12\x19\n\x15SCALABLE_TOPIC_LOOKUP\x10F\x12\x19\n\x15SCALABLE_TOPIC_UPDATE\x10G\x12\x18\n\x14SCALAB'
    b'LE_TOPIC_CLOSE\x10H\x12\x1c\n\x18SCALABLE_TOPIC_SUBSCRIBE\x10I\x12%\n!SCALABLE_TOPIC'
    b'_SUBSCRIBE_RESPONSE\x10J\x12$\n SCALABLE_TOPIC_ASSIGNMENT_UPDATE\x10K\x12\x19\n\x15W'
    b'ATCH_SCALABLE_TOPICS\x10L\x12 \n\x1cWATCH_SCALABLE_TOPICS_UPDATE\x10M\x12\x1f\n\x1bWATC'
    b'H_SCALABLE_TOPICS_CLOSE\x10N\x12\x18\n\x14WATCH_TC_ASSIGNMENTS\x10O\x12\x1f\n\x1bWATCH_TC_'
    b'ASSIGNMENTS_UPDATE\x10P\x12\x1e\n\x1aWATCH_TC_ASSIGNMENTS_CLOSE\x10Q*D\n\x0fCompress'
    b'ionType\x12\x08\n\x04NONE\x10\x00\x12\x07\n\x03LZ4\x10\x01\x12\x08\n\x04ZLIB\x10\x02\x12\x08\n\x04ZSTD\x10\x03\x12\n\n\x06SNAPPY\x10\x04*\x82\x05\n\x0bS'
    b'erverError\x12\x10\n\x0cUnknownError\x10\x00\x12\x11\n\rMetadataError\x10\x01\x12\x14\n\x10PersistenceEr'
    b'ror\x10\x02\x12\x17\n\x13AuthenticationError\x10\x03\x12\x16\n\x12AuthorizationError\x10\x04\x12\x10\n\x0cConsum'
    b'erBusy\x10\x05\x12\x13\n\x0fServiceNotReady\x10\x06\x12%\n!ProducerBlockedQuotaExceededErr'
    b'or\x10\x07\x12)\n%ProducerBlockedQuotaExceededException\x10\x08\x12\x11\n\rChecksumError'
    b'\x10\t\x12\x1b\n\x17UnsupportedVersionError\x10\n\x12\x11\n\rTopicNotFound\x10\x0b\x12\x18\n\x14Subscripti'
    b'onNotFound\x10\x0c\x12\x14\n\x10ConsumerNotFound\x10\r\x12\x13\n\x0fTooManyRequests\x10\x0e\x12\x18\n\x14Topic'
    b'TerminatedError\x10\x0f\x12\x10\n\x0cProducerBusy\x10\x10\x12\x14\n\x10InvalidTopicName\x10\x11\x12\x16\n\x12Inc'
    b'ompatibleSchema\x10\x12\x12\x17\n\x13ConsumerAssignError\x10\x13\x12"\n\x1eTransactionCoordin'
    b'atorNotFound\x10\x14\x12\x14\n\x10InvalidTxnStatus\x10\x15\x12\x13\n\x0fNotAllowedError\x10\x16\x12\x17\n\x13Tra'
    b'nsactionConflict\x10\x17\x12\x17\n\x13TransactionNotFound\x10\x18\x12\x12\n\x0eProducerFenced\x10\x19*'
    b'\xcd\x01\n\x0fProtocolVersion\x12\x06\n\x02v0\x10\x00\x12\x06\n\x02v1\x10\x01\x12\x06\n\x02v2\x10\x02\x12\x06\n\x02v3\x10\x03\x12\x06\n\x02v4\x10\x04\x12\x06\n\x02v'
    b'5\x10\x05\x12\x06\n\x02v6\x10\x06\x12\x06\n\x02v7\x10\x07\x12\x06\n\x02v8\x10\x08\x12\x06\n\x02v9\x10\t\x12\x07\n\x03v10\x10\n\x12\x07\n\x03v11\x10\x0b\x12\x07\n\x03v12\x10\x0c\x12\x07'
    b'\n\x03v13\x10\r\x12\x07\n\x03v14\x10\x0e\x12\x07\n\x03v15\x10\x0f\x12\x07\n\x03v16\x10\x10\x12\x07\n\x03v17\x10\x11\x12\x07\n\x03v18\x10\x12\x12\x07\n\x03v19\x10\x13\x12\x07\n'
    b'\x03v20\x10\x14\x12\x07\n\x03v21\x10\x15*K\n\nAuthMethod\x12\x12\n\x0eAuthMethodNone\x10\x00\x12\x13\n\x0fAuthMethodY'
    b'caV1\x10\x01\x12\x14\n\x10AuthMethodAthens\x10\x02*_\n\x12ProducerAccessMode\x12\n\n\x06Shared\x10\x00\x12\r'
    b'\n\tExclusive\x10\x01\x12\x14\n\x10WaitForExclusive\x10\x02\x12\x18\n\x14ExclusiveWithFencing\x10\x03*+\n'
    b'\rKeySharedMode\x12\x0e\n\nAUTO_SPLIT\x10\x00\x12\n\n\x06STICKY\x10\x01*"\n\tTxnAction\x12\n\n\x06COMMI'
    b'T\x10\x00\x12\t\n\x05ABORT\x10\x01*&\n\x0cSegmentState\x12\n\n\x06ACTIVE\x10\x00\x12\n\n\x06SEALED\x10\x01*2\n\x14Scalab'
    b'leConsumerType\x12\n\n\x06STREAM\x10\x00\x12\x0e\n\nCHECKPOINT\x10\x01'
)

DESCRIPTOR = _POOL.FindFileByName("PulsarApi.proto")


def _message(name):
    return message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name[name])


def _enum(name):
    return enum_type_wrapper.EnumTypeWrapper(DESCRIPTOR.enum_types_by_name[name])


CompressionType = _enum("CompressionType")
ServerError = _enum("ServerError")
ProtocolVersion = _enum("ProtocolVersion")
AuthMethod = _enum("AuthMethod")
ProducerAccessMode = _enum("ProducerAccessMode")
KeySharedMode = _enum("KeySharedMode")
TxnAction = _enum("TxnAction")
SegmentState = _enum("SegmentState")
ScalableConsumerType = _enum("ScalableConsumerType")
NONE = 0
LZ4 = 1
ZLIB = 2
ZSTD = 3
SNAPPY = 4
UnknownError = 0
MetadataError = 1
PersistenceError = 2
AuthenticationError = 3
AuthorizationError = 4
ConsumerBusy = 5
ServiceNotReady = 6
ProducerBlockedQuotaExceededError = 7
ProducerBlockedQuotaExceededException = 8
ChecksumError = 9
UnsupportedVersionError = 10
TopicNotFound = 11
SubscriptionNotFound = 12
ConsumerNotFound = 13
TooManyRequests = 14
TopicTerminatedError = 15
ProducerBusy = 16
InvalidTopicName = 17
IncompatibleSchema = 18
ConsumerAssignError = 19
TransactionCoordinatorNotFound = 20
InvalidTxnStatus = 21
NotAllowedError = 22
TransactionConflict = 23
TransactionNotFound = 24
ProducerFenced = 25
v0 = 0
v1 = 1
v2 = 2
v3 = 3
v4 = 4
v5 = 5
v6 = 6
v7 = 7
v8 = 8
v9 = 9
v10 = 10
v11 = 11
v12 = 12
v13 = 13
v14 = 14
v15 = 15
v16 = 16
v17 = 17
v18 = 18
v19 = 19
v20 = 20
v21 = 21
AuthMethodNone = 0
AuthMethodYcaV1 = 1
AuthMethodAthens = 2
Shared = 0
Exclusive = 1
WaitForExclusive = 2
ExclusiveWithFencing = 3
AUTO_SPLIT = 0
STICKY = 1
COMMIT = 0
ABORT = 1
ACTIVE = 0
SEALED = 1
STREAM = 0
CHECKPOINT = 1
Schema = _message("Schema")
MessageIdData = _message("MessageIdData")
KeyValue = _message("KeyValue")
KeyLongValue = _message("KeyLongValue")
IntRange = _message("IntRange")
EncryptionKeys = _message("EncryptionKeys")
MessageMetadata = _message("MessageMetadata")
SingleMessageMetadata = _message("SingleMessageMetadata")
BrokerEntryMetadata = _message("BrokerEntryMetadata")
FeatureFlags = _message("FeatureFlags")
CommandConnect = _message("CommandConnect")
CommandConnected = _message("CommandConnected")
AuthData = _message("AuthData")
CommandAuthChallenge = _message("CommandAuthChallenge")
CommandAuthResponse = _message("CommandAuthResponse")
CommandPing = _message("CommandPing")
CommandPong = _message("CommandPong")
CommandPartitionedTopicMetadata = _message("CommandPartitionedTopicMetadata")
CommandPartitionedTopicMetadataResponse = _message("CommandPartitionedTopicMetadataResponse")
CommandLookupTopic = _message("CommandLookupTopic")
CommandLookupTopicResponse = _message("CommandLookupTopicResponse")
CommandGetTopicsOfNamespace = _message("CommandGetTopicsOfNamespace")
CommandGetTopicsOfNamespaceResponse = _message("CommandGetTopicsOfNamespaceResponse")
CommandWatchTopicList = _message("CommandWatchTopicList")
CommandWatchTopicListSuccess = _message("CommandWatchTopicListSuccess")
CommandWatchTopicUpdate = _message("CommandWatchTopicUpdate")
CommandWatchTopicListClose = _message("CommandWatchTopicListClose")
CommandProducer = _message("CommandProducer")
CommandProducerSuccess = _message("CommandProducerSuccess")
CommandSend = _message("CommandSend")
CommandSendReceipt = _message("CommandSendReceipt")
CommandSendError = _message("CommandSendError")
CommandCloseProducer = _message("CommandCloseProducer")
KeySharedMeta = _message("KeySharedMeta")
CommandSubscribe = _message("CommandSubscribe")
CommandFlow = _message("CommandFlow")
CommandMessage = _message("CommandMessage")
CommandAck = _message("CommandAck")
CommandAckResponse = _message("CommandAckResponse")
CommandRedeliverUnacknowledgedMessages = _message("CommandRedeliverUnacknowledgedMessages")
CommandActiveConsumerChange = _message("CommandActiveConsumerChange")
CommandSeek = _message("CommandSeek")
CommandGetLastMessageId = _message("CommandGetLastMessageId")
CommandGetLastMessageIdResponse = _message("CommandGetLastMessageIdResponse")
CommandReachedEndOfTopic = _message("CommandReachedEndOfTopic")
CommandUnsubscribe = _message("CommandUnsubscribe")
CommandCloseConsumer = _message("CommandCloseConsumer")
CommandConsumerStats = _message("CommandConsumerStats")
CommandConsumerStatsResponse = _message("CommandConsumerStatsResponse")
CommandSuccess = _message("CommandSuccess")
CommandError = _message("CommandError")
CommandTopicMigrated = _message("CommandTopicMigrated")
CommandGetSchema = _message("CommandGetSchema")
CommandGetSchemaResponse = _message("CommandGetSchemaResponse")
CommandGetOrCreateSchema = _message("CommandGetOrCreateSchema")
CommandGetOrCreateSchemaResponse = _message("CommandGetOrCreateSchemaResponse")
CommandTcClientConnectRequest = _message("CommandTcClientConnectRequest")
CommandTcClientConnectResponse = _message("CommandTcClientConnectResponse")
CommandNewTxn = _message("CommandNewTxn")
CommandNewTxnResponse = _message("CommandNewTxnResponse")
CommandAddPartitionToTxn = _message("CommandAddPartitionToTxn")
CommandAddPartitionToTxnResponse = _message("CommandAddPartitionToTxnResponse")
Subscription = _message("Subscription")
CommandAddSubscriptionToTxn = _message("CommandAddSubscriptionToTxn")
CommandAddSubscriptionToTxnResponse = _message("CommandAddSubscriptionToTxnResponse")
CommandEndTxn = _message("CommandEndTxn")
CommandEndTxnResponse = _message("CommandEndTxnResponse")
CommandEndTxnOnPartition = _message("CommandEndTxnOnPartition")
CommandEndTxnOnPartitionResponse = _message("CommandEndTxnOnPartitionResponse")
CommandEndTxnOnSubscription = _message("CommandEndTxnOnSubscription")
CommandEndTxnOnSubscriptionResponse = _message("CommandEndTxnOnSubscriptionResponse")
CommandWatchTcAssignments = _message("CommandWatchTcAssignments")
TcAssignment = _message("TcAssignment")
TcAssignmentsSnapshot = _message("TcAssignmentsSnapshot")
CommandWatchTcAssignmentsUpdate = _message("CommandWatchTcAssignmentsUpdate")
CommandWatchTcAssignmentsClose = _message("CommandWatchTcAssignmentsClose")
SegmentInfoProto = _message("SegmentInfoProto")
SegmentBrokerAddress = _message("SegmentBrokerAddress")
ScalableTopicDAG = _message("ScalableTopicDAG")
CommandScalableTopicLookup = _message("CommandScalableTopicLookup")
CommandScalableTopicUpdate = _message("CommandScalableTopicUpdate")
CommandScalableTopicClose = _message("CommandScalableTopicClose")
ScalableAssignedSegment = _message("ScalableAssignedSegment")
ScalableConsumerAssignment = _message("ScalableConsumerAssignment")
CommandScalableTopicSubscribe = _message("CommandScalableTopicSubscribe")
CommandScalableTopicSubscribeResponse = _message("CommandScalableTopicSubscribeResponse")
CommandScalableTopicAssignmentUpdate = _message("CommandScalableTopicAssignmentUpdate")
CommandWatchScalableTopics = _message("CommandWatchScalableTopics")
ScalableTopicsSnapshot = _message("ScalableTopicsSnapshot")
ScalableTopicsDiff = _message("ScalableTopicsDiff")
CommandWatchScalableTopicsUpdate = _message("CommandWatchScalableTopicsUpdate")
CommandWatchScalableTopicsClose = _message("CommandWatchScalableTopicsClose")
BaseCommand = _message("BaseCommand")
