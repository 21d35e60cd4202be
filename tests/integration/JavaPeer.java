import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.google.protobuf.GeneratedMessageV3;
import com.google.protobuf.Message.Builder;
import com.google.protobuf.MessageOrBuilder;
import com.google.protobuf.util.JsonFormat;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.sql.Time;
import java.sql.Timestamp;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.ArrayList;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.HashingScheme;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageRoutingMode;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionMode;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.schema.SchemaDefinition;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/**
 * The Java client as a peer of tests: each line of the input is a command in JSON, each line of
 * the output that begins with "@" the answer to one. Bytes are in base64.
 */
public class JavaPeer {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, PulsarClient> CLIENTS = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = input.readLine()) != null) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                JsonNode command = JSON.readTree(line);
                switch (command.get("do").asText()) {
                    case "write" -> write(command, answer);
                    case "read" -> read(command, answer);
                    case "writeTyped" -> writeTyped(command, answer);
                    case "readTyped" -> readTyped(command, answer);
                    default -> throw new IllegalArgumentException("no such command");
                }
            } catch (Exception error) {
                answer.put("error", error.toString());
            }
            System.out.println("@" + new String(JSON.writeValueAsBytes(answer), StandardCharsets.UTF_8));
            System.out.flush();
        }
        System.exit(0);
    }

    private static PulsarClient client(JsonNode command) throws Exception {
        String url = command.get("url").asText();
        boolean transactions = command.has("transaction");
        String name = url + " " + transactions;
        if (!CLIENTS.containsKey(name)) {
            CLIENTS.put(
                    name,
                    PulsarClient.builder()
                            .serviceUrl(url)
                            .enableTransaction(transactions)
                            .ioThreads(1)
                            .statsInterval(0, TimeUnit.SECONDS)
                            .build());
        }
        return CLIENTS.get(name);
    }

    private static void write(JsonNode command, ObjectNode answer) throws Exception {
        PulsarClient client = client(command);
        ProducerBuilder<byte[]> builder =
                client.newProducer(Schema.BYTES)
                        .topic(command.get("topic").asText())
                        .enableBatching(command.get("batching").asBoolean())
                        .enableChunking(command.get("chunking").asBoolean())
                        .batchingMaxPublishDelay(5, TimeUnit.MILLISECONDS)
                        .blockIfQueueFull(true)
                        .sendTimeout(command.has("transaction") ? 0 : 60, TimeUnit.SECONDS)
                        .messageRoutingMode(MessageRoutingMode.RoundRobinPartition)
                        .hashingScheme(HashingScheme.valueOf(command.get("hashing").asText()))
                        .compressionType(CompressionType.valueOf(command.get("codec").asText()));
        if (command.has("publicKey")) {
            builder.addEncryptionKey("k").defaultCryptoKeyReader(command.get("publicKey").asText());
        }
        Transaction transaction = null;
        if (command.has("transaction")) {
            transaction =
                    client.newTransaction().withTransactionTimeout(2, TimeUnit.MINUTES).build().get();
        }
        try (Producer<byte[]> producer = builder.create()) {
            List<CompletableFuture<MessageId>> sends = new ArrayList<>();
            for (JsonNode content : command.get("messages")) {
                CompletableFuture<MessageId> send =
                        message(producer, transaction, content).sendAsync();
                if (transaction != null && sends.isEmpty()) {
                    // Messages that wait until the topic is a part of the transaction may be sent
                    // in another order.
                    send.get(60, TimeUnit.SECONDS);
                }
                sends.add(send);
            }
            producer.flush();
            ArrayNode ids = answer.putArray("ids");
            for (CompletableFuture<MessageId> send : sends) {
                ids.add(send.get(60, TimeUnit.SECONDS).toByteArray());
            }
        }
        if (transaction != null && command.get("transaction").asText().equals("commit")) {
            transaction.commit().get(60, TimeUnit.SECONDS);
        } else if (transaction != null && command.get("transaction").asText().equals("abort")) {
            transaction.abort().get(60, TimeUnit.SECONDS);
        }
    }

    private static TypedMessageBuilder<byte[]> message(
            Producer<byte[]> producer, Transaction transaction, JsonNode content) throws Exception {
        TypedMessageBuilder<byte[]> message =
                transaction == null ? producer.newMessage() : producer.newMessage(transaction);
        message.value(content.hasNonNull("value") ? content.get("value").binaryValue() : null);
        if (content.hasNonNull("key")) {
            message.key(content.get("key").asText());
        }
        if (content.hasNonNull("keyBytes")) {
            message.keyBytes(content.get("keyBytes").binaryValue());
        }
        if (content.hasNonNull("orderingKey")) {
            message.orderingKey(content.get("orderingKey").binaryValue());
        }
        content.get("properties").forEach(pair -> message.property(pair.get(0).asText(), pair.get(1).asText()));
        if (content.get("eventTime").asLong() > 0) {
            message.eventTime(content.get("eventTime").asLong());
        }
        return message;
    }

    private static void read(JsonNode command, ObjectNode answer) throws Exception {
        ConsumerBuilder<byte[]> builder =
                client(command)
                        .newConsumer(Schema.BYTES)
                        .topic(command.get("topic").asText())
                        .subscriptionName("java-peer")
                        .subscriptionMode(SubscriptionMode.NonDurable)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
        if (command.has("privateKey")) {
            builder.defaultCryptoKeyReader(command.get("privateKey").asText());
        }
        try (Consumer<byte[]> consumer = builder.subscribe()) {
            ArrayNode messages = answer.putArray("messages");
            for (int left = command.get("count").asInt(); left > 0; left--) {
                Message<byte[]> message = consumer.receive(60, TimeUnit.SECONDS);
                if (message == null) {
                    throw new IllegalStateException(left + " messages did not come");
                }
                describe(message, messages.addObject());
            }
            if (consumer.receive(200, TimeUnit.MILLISECONDS) != null) {
                throw new IllegalStateException("more came");
            }
        }
    }

    private static void describe(Message<byte[]> message, ObjectNode found) {
        found.put("value", message.getValue());
        if (message.hasKey()) {
            found.put("key", message.getKey());
            found.put("keyBytes", message.getKeyBytes());
            found.put("isBase64", message.hasBase64EncodedKey());
        }
        if (message.hasOrderingKey()) {
            found.put("orderingKey", message.getOrderingKey());
        }
        ArrayNode properties = found.putArray("properties");
        message.getProperties().forEach((name, value) -> properties.addArray().add(name).add(value));
        found.put("eventTime", message.getEventTime());
        found.put("publishTime", message.getPublishTime());
        found.put("sequenceId", message.getSequenceId());
        found.put("producer", message.getProducerName());
        found.put("id", message.getMessageId().toByteArray());
        found.put("topic", message.getTopicName());
    }

    // --- values of schemas ------------------------------------------------------------------

    /** What AVRO and JSON topics hold; all that Java calls an object may be null. */
    public static class Reading {
        public String sensor;
        public int count;
        public long total;
        public Float ratio;
        public double value;
        public boolean ok;
        public Color color;
        public List<String> tags;
        public Map<String, Integer> limits;
        public Place place;
        public List<Place> route;
    }

    public static class Place {
        public String city;
        public Double height;
    }

    public enum Color {
        RED,
        GREEN
    }

    /** A record with times, which are logical types in AVRO. */
    public static class Moments {
        public Instant at;
        public LocalDate day;
        public LocalTime time;
        public java.math.BigDecimal amount;
        public byte[] data;
    }

    /** A record with Java's own classes, of which Avro's reflection does not know the fields. */
    public static class Own {
        public java.sql.Date day;
        public java.util.Locale place;
        public java.util.concurrent.atomic.AtomicInteger count;
        public char[] letters;
        public Object any;
    }

    /** A later version of Reading, with one field more and one less. */
    public static class Later {
        public String sensor;
        public int count;
        public String unit;
    }

    private static Schema<?> schema(JsonNode kind) throws Exception {
        String type = kind.get("type").asText();
        return switch (type) {
            case "BYTES" -> Schema.BYTES;
            case "STRING" -> Schema.STRING;
            case "BOOLEAN" -> Schema.BOOL;
            case "INT8" -> Schema.INT8;
            case "INT16" -> Schema.INT16;
            case "INT32" -> Schema.INT32;
            case "INT64" -> Schema.INT64;
            case "FLOAT" -> Schema.FLOAT;
            case "DOUBLE" -> Schema.DOUBLE;
            case "DATE" -> Schema.DATE;
            case "TIME" -> Schema.TIME;
            case "TIMESTAMP" -> Schema.TIMESTAMP;
            case "INSTANT" -> Schema.INSTANT;
            case "LOCAL_DATE" -> Schema.LOCAL_DATE;
            case "LOCAL_TIME" -> Schema.LOCAL_TIME;
            case "LOCAL_DATE_TIME" -> Schema.LOCAL_DATE_TIME;
            case "AVRO" -> Schema.AVRO(definition(kind));
            case "JSON" -> Schema.JSON(definition(kind));
            case "PROTOBUF" -> Schema.PROTOBUF(message(kind));
            case "PROTOBUF_NATIVE" -> Schema.PROTOBUF_NATIVE(message(kind));
            case "KEY_VALUE" ->
                    Schema.KeyValue(
                            schema(kind.get("key")),
                            schema(kind.get("value")),
                            KeyValueEncodingType.valueOf(kind.get("encoding").asText()));
            default -> throw new IllegalArgumentException("no such schema: " + type);
        };
    }

    @SuppressWarnings("unchecked")
    private static SchemaDefinition<Object> definition(JsonNode kind) throws Exception {
        return SchemaDefinition.builder()
                .withPojo((Class<Object>) pojo(kind))
                .withAlwaysAllowNull(kind.path("alwaysAllowNull").asBoolean(true))
                .withJSR310ConversionEnabled(true)
                .build();
    }

    private static Class<?> pojo(JsonNode kind) {
        return switch (kind.get("class").asText()) {
            case "Reading" -> Reading.class;
            case "Moments" -> Moments.class;
            case "Later" -> Later.class;
            case "Own" -> Own.class;
            default -> throw new IllegalArgumentException("no such class");
        };
    }

    @SuppressWarnings("unchecked")
    private static Class<GeneratedMessageV3> message(JsonNode kind) throws Exception {
        return (Class<GeneratedMessageV3>) Class.forName(kind.get("class").asText());
    }

    private static Object toJava(JsonNode kind, JsonNode value) throws Exception {
        if (value == null || value.isNull()) {
            return null;
        }
        return switch (kind.get("type").asText()) {
            case "BYTES" -> value.binaryValue();
            case "STRING" -> value.asText();
            case "BOOLEAN" -> value.asBoolean();
            case "INT8" -> (byte) value.asInt();
            case "INT16" -> (short) value.asInt();
            case "INT32" -> value.asInt();
            case "INT64" -> value.asLong();
            case "FLOAT" -> (float) value.asDouble();
            case "DOUBLE" -> value.asDouble();
            case "DATE" -> new Date(value.asLong());
            case "TIME" -> new Time(value.asLong());
            case "TIMESTAMP" -> new Timestamp(value.asLong());
            case "INSTANT" -> Instant.parse(value.asText());
            case "LOCAL_DATE" -> LocalDate.parse(value.asText());
            case "LOCAL_TIME" -> LocalTime.parse(value.asText());
            case "LOCAL_DATE_TIME" -> LocalDateTime.parse(value.asText());
            case "AVRO", "JSON" -> record(kind, value);
            case "PROTOBUF", "PROTOBUF_NATIVE" -> {
                Builder builder = (Builder) message(kind).getMethod("newBuilder").invoke(null);
                JsonFormat.parser().merge(value.toString(), builder);
                yield builder.build();
            }
            case "KEY_VALUE" ->
                    new KeyValue<>(
                            toJava(kind.get("key"), value.get("key")),
                            toJava(kind.get("value"), value.get("value")));
            default -> throw new IllegalArgumentException("no such schema");
        };
    }

    private static Object record(JsonNode kind, JsonNode value) throws Exception {
        if (pojo(kind) != Moments.class) {
            return JSON.treeToValue(value, pojo(kind));
        }
        var moments = new Moments();
        moments.at = value.hasNonNull("at") ? Instant.parse(value.get("at").asText()) : null;
        moments.day = value.hasNonNull("day") ? LocalDate.parse(value.get("day").asText()) : null;
        moments.time = value.hasNonNull("time") ? LocalTime.parse(value.get("time").asText()) : null;
        moments.amount = value.hasNonNull("amount") ? new java.math.BigDecimal(value.get("amount").asText()) : null;
        moments.data = value.hasNonNull("data") ? value.get("data").binaryValue() : null;
        return moments;
    }

    private static void put(ObjectNode node, String name, Object value) throws Exception {
        if (value instanceof byte[] bytes) {
            node.put(name, bytes);
        } else if (value instanceof Date date) {
            node.put(name, date.getTime());
        } else if (value instanceof java.time.temporal.Temporal moment) {
            node.put(name, moment.toString());
        } else if (value instanceof MessageOrBuilder message) {
            node.set(name, JSON.readTree(JsonFormat.printer().preservingProtoFieldNames().print(message)));
        } else if (value instanceof Moments moments) {
            ObjectNode fields = node.putObject(name);
            put(fields, "at", moments.at);
            put(fields, "day", moments.day);
            put(fields, "time", moments.time);
            put(fields, "amount", moments.amount == null ? null : moments.amount.toString());
            put(fields, "data", moments.data);
        } else if (value instanceof KeyValue<?, ?> pair) {
            ObjectNode fields = node.putObject(name);
            put(fields, "key", pair.getKey());
            put(fields, "value", pair.getValue());
        } else {
            node.set(name, JSON.valueToTree(value));
        }
    }

    @SuppressWarnings("unchecked")
    private static void writeTyped(JsonNode command, ObjectNode answer) throws Exception {
        JsonNode kind = command.get("schema");
        Schema<Object> schema = (Schema<Object>) schema(kind);
        try (Producer<Object> producer =
                client(command)
                        .newProducer(schema)
                        .topic(command.get("topic").asText())
                        .enableBatching(command.get("batching").asBoolean())
                        .batchingMaxPublishDelay(5, TimeUnit.MILLISECONDS)
                        .blockIfQueueFull(true)
                        .create()) {
            for (JsonNode value : command.get("values")) {
                producer.newMessage().value(toJava(kind, value)).sendAsync();
            }
            producer.flush();
        }
        answer.put("definition", schema.getSchemaInfo().getSchema());
    }

    @SuppressWarnings("unchecked")
    private static void readTyped(JsonNode command, ObjectNode answer) throws Exception {
        Schema<Object> schema = (Schema<Object>) schema(command.get("schema"));
        try (Consumer<Object> consumer =
                client(command)
                        .newConsumer(schema)
                        .topic(command.get("topic").asText())
                        .subscriptionName("java-peer")
                        .subscriptionMode(SubscriptionMode.NonDurable)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .subscribe()) {
            ArrayNode messages = answer.putArray("messages");
            for (int left = command.get("count").asInt(); left > 0; left--) {
                Message<Object> message = consumer.receive(60, TimeUnit.SECONDS);
                if (message == null) {
                    throw new IllegalStateException(left + " messages did not come");
                }
                ObjectNode found = messages.addObject();
                put(found, "value", message.getValue());
                found.put("version", message.getSchemaVersion());
            }
        }
    }
}
