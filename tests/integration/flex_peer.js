// pulsar-flex, run by test_flex_peer.py: HOST:PORT TOPIC write|read. Writing takes messages as JSON
// from standard input; reading takes their number, and prints what came as JSON.
const { Producer, Consumer } = require('pulsar-flex');

const [host, topic, what] = process.argv.slice(2);
const common = { discoveryServers: [host], topic, logLevel: 0, logCreator: () => () => {} };

async function write({ single, batch }) {
  const producer = new Producer(common);
  await producer.create();
  for (const message of single) await producer.sendMessage(message);
  await producer.sendBatch({ messages: batch });
  await producer.close();
}

async function read(count) {
  const consumer = new Consumer({
    ...common,
    subscription: 'flex',
    subType: Consumer.SUB_TYPES.SHARED,
    consumerName: 'flex',
    receiveQueueSize: 10,
  });
  await consumer.subscribe();
  const found = [];
  await new Promise((resolve, reject) => {
    consumer
      .run({
        onMessage: async ({ ack, message, properties }) => {
          await ack();
          found.push({ payload: message.toString(), properties });
          if (found.length === count) resolve();
        },
      })
      .catch(reject);
  });
  console.log(JSON.stringify(found));
}

const input = JSON.parse(require('fs').readFileSync(0, 'utf8'));
(what === 'write' ? write(input) : read(input)).then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
