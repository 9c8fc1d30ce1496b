import java.util.TreeMap;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.config.ConfigDef;

/** Prints the settings of Kafka's producer: name and default, with a tab between them. */
class ListProducerSettings {
    public static void main(String[] arguments) {
        for (ConfigDef.ConfigKey key : new TreeMap<>(ProducerConfig.configDef().configKeys()).values()) {
            String value = key.hasDefault() ? ConfigDef.convertToString(key.defaultValue, key.type) : "required";
            System.out.println(key.name + "\t" + (value == null ? "null" : value));
        }
    }
}
