import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
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
import org.apache.pulsar.client.api.transaction.Transaction;

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
        Transaction transaction = null;
        if (command.has("transaction")) {
            transaction =
                    client.newTransaction().withTransactionTimeout(2, TimeUnit.MINUTES).build().get();
        }
        try (Producer<byte[]> producer = builder.create()) {
            List<CompletableFuture<MessageId>> sends = new ArrayList<>();
            for (JsonNode content : command.get("messages")) {
                sends.add(message(producer, transaction, content).sendAsync());
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
        try (Consumer<byte[]> consumer =
                client(command)
                        .newConsumer(Schema.BYTES)
                        .topic(command.get("topic").asText())
                        .subscriptionName("java-peer")
                        .subscriptionMode(SubscriptionMode.NonDurable)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .subscribe()) {
            ArrayNode messages = answer.putArray("messages");
            for (int left = command.get("count").asInt(); left > 0; left--) {
                Message<byte[]> message = consumer.receive(30, TimeUnit.SECONDS);
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
}
