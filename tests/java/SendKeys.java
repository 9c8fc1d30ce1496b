import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Sends a record for each key that comes in (four bytes of length, then the key) by Kafka's own producer, and prints the partition
 * that it chose, a line each. Arguments: brokers, topic.
 */
public class SendKeys {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            DataInputStream keys = new DataInputStream(System.in);
            for (byte[] key = next(keys); key != null; key = next(keys)) {
                sent.add(producer.send(new ProducerRecord<>(arguments[1], key, "java".getBytes())));
            }
            for (Future<RecordMetadata> one : sent) {
                System.out.println(one.get().partition());
            }
        }
    }

    private static byte[] next(DataInputStream keys) throws IOException {
        try {
            byte[] key = new byte[keys.readInt()];
            keys.readFully(key);
            return key;
        } catch (EOFException end) {
            return null;
        }
    }
}
