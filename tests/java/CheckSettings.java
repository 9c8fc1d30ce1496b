import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.config.ConfigException;

/** Reads lines `name TAB value`, and prints for each whether Kafka's producer takes it beside brokers and serializers: true or false. */
class CheckSettings {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] pair = line.split("\t", -1);
            Map<String, Object> given = new HashMap<>();
            given.put("bootstrap.servers", "localhost:9092");
            given.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
            given.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
            given.put(pair[0], pair[1]);
            boolean taken = true;
            try {
                new ProducerConfig(given);
            } catch (ConfigException refused) {
                taken = false;
            }
            System.out.println(taken);
        }
    }
}
