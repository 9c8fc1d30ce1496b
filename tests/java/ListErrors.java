import org.apache.kafka.common.errors.InvalidMetadataException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.Errors;

/** Prints every error of this version of Kafka: code, name, whether Kafka's own clients retry it, and refresh metadata for it. */
public class ListErrors {
    public static void main(String[] arguments) {
        for (Errors error : Errors.values()) {
            boolean retriable = error.exception() instanceof RetriableException;
            boolean stale = error.exception() instanceof InvalidMetadataException;
            System.out.println(error.code() + " " + error.name() + " " + retriable + " " + stale);
        }
    }
}
