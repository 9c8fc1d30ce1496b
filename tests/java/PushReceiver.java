import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.telemetry.ClientTelemetry;
import org.apache.kafka.server.telemetry.ClientTelemetryPayload;
import org.apache.kafka.server.telemetry.ClientTelemetryReceiver;

/**
 * A broker's plug-in that keeps what clients push: each push is a file `NUMBER,CLIENT ID,INSTANCE ID,true|false` (the last push of a
 * client) in the folder `push.receiver.folder`. While a file `refuse` lies there, pushes are refused.
 */
public class PushReceiver implements MetricsReporter, ClientTelemetry, ClientTelemetryReceiver {
    private static final AtomicInteger NUMBER = new AtomicInteger();
    private Path folder;

    @Override
    public void configure(Map<String, ?> settings) {
        folder = Path.of(settings.get("push.receiver.folder").toString());
    }

    @Override
    public ClientTelemetryReceiver clientReceiver() {
        return this;
    }

    @Override
    public void exportMetrics(AuthorizableRequestContext context, ClientTelemetryPayload payload) {
        if (Files.exists(folder.resolve("refuse"))) {
            throw new IllegalStateException("refused");
        }
        ByteBuffer data = payload.data().duplicate();
        byte[] bytes = new byte[data.remaining()];
        data.get(bytes);
        String name = String.format(
            "%06d,%s,%s,%s", NUMBER.incrementAndGet(), context.clientId(), payload.clientInstanceId(), payload.isTerminating());
        try {
            Path written = Files.write(folder.resolve("." + name), bytes);
            Files.move(written, folder.resolve(name), StandardCopyOption.ATOMIC_MOVE);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    @Override
    public void init(List<KafkaMetric> metrics) {}

    @Override
    public void metricChange(KafkaMetric metric) {}

    @Override
    public void metricRemoval(KafkaMetric metric) {}

    @Override
    public void close() {}
}
