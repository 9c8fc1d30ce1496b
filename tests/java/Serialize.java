import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.UUID;
import org.apache.kafka.common.serialization.BooleanSerializer;
import org.apache.kafka.common.serialization.DoubleSerializer;
import org.apache.kafka.common.serialization.FloatSerializer;
import org.apache.kafka.common.serialization.IntegerSerializer;
import org.apache.kafka.common.serialization.LongSerializer;
import org.apache.kafka.common.serialization.ShortSerializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.serialization.UUIDSerializer;

/** Reads lines `kind TAB value`, and prints for each the bytes of Kafka's serializer of that kind, as hex digits. */
class Serialize {
    static byte[] bytes(String kind, String value) {
        switch (kind) {
            case "boolean": return new BooleanSerializer().serialize("t", Boolean.valueOf(value));
            case "short": return new ShortSerializer().serialize("t", Short.valueOf(value));
            case "int": return new IntegerSerializer().serialize("t", Integer.valueOf(value));
            case "long": return new LongSerializer().serialize("t", Long.valueOf(value));
            case "float": return new FloatSerializer().serialize("t", Float.valueOf(value));
            case "double": return new DoubleSerializer().serialize("t", Double.valueOf(value));
            case "uuid": return new UUIDSerializer().serialize("t", UUID.fromString(value));
            case "string": return new StringSerializer().serialize("t", value);
            default: throw new IllegalArgumentException(kind);
        }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] pair = line.split("\t", -1);
            System.out.println(HexFormat.of().formatHex(bytes(pair[0], pair[1])));
        }
    }
}
