import java.io.BufferedWriter;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Prints partition, offset and value (tabs between) of every record of a topic that Kafka's own consumer sees under
 * read_committed, up to the last stable offsets of this moment. Arguments: brokers, topic.
 */
public class ReadCommitted {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "none");
        PrintWriter out =
                new PrintWriter(new BufferedWriter(new OutputStreamWriter(System.out, StandardCharsets.UTF_8), 1 << 16));
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            List<TopicPartition> all = new ArrayList<>();
            for (PartitionInfo part : consumer.partitionsFor(arguments[1])) {
                all.add(new TopicPartition(part.topic(), part.partition()));
            }
            consumer.assign(all);
            consumer.seekToBeginning(all);
            // Under read_committed these are the last stable offsets.
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            while (!all.stream().allMatch(part -> consumer.position(part) >= ends.get(part))) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    out.println(record.partition() + "\t" + record.offset() + "\t" + record.value());
                }
            }
        }
        out.flush();
    }
}
