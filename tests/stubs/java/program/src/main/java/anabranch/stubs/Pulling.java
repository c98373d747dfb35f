package anabranch.stubs;

import anabranch.v1.PullRequest;
import anabranch.v1.PullResponse;
import anabranch.v1.RequiredTable;
import com.google.protobuf.ByteString;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.BitVector;
import org.apache.arrow.vector.DateDayVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.Float8Vector;
import org.apache.arrow.vector.TimeMicroVector;
import org.apache.arrow.vector.TimeStampVector;
import org.apache.arrow.vector.VarBinaryVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.arrow.vector.types.pojo.Field;

/** A table, by Arrow. */
final class Pulling {
  private Pulling() {}

  static void pull(Client client, Map<String, Object> told) throws Exception {
    PullRequest request =
        PullRequest.newBuilder()
            .setDbName(client.database)
            .setNodeState(client.state)
            .addRequired(RequiredTable.newBuilder().setTable("kinds"))
            .build();
    Iterator<PullResponse> stream = client.snapshot(Client.STREAM_S).pull(request);
    List<List<String>> rows = new ArrayList<>();
    ByteString chunk = ByteString.EMPTY;
    try (BufferAllocator allocator = new RootAllocator()) {
      while (stream.hasNext()) {
        PullResponse response = stream.next();
        told.put("as_of", response.getAsOf().getServerTimestampMs());
        chunk = chunk.concat(response.getArrowIpc());
        if (response.getArrowIpcIncomplete() || chunk.isEmpty()) {
          continue;
        }
        try (ArrowStreamReader reader = new ArrowStreamReader(chunk.newInput(), allocator)) {
          VectorSchemaRoot root = reader.getVectorSchemaRoot();
          told.put("columns", root.getSchema().getFields().stream().map(Field::getName).toList());
          while (reader.loadNextBatch()) {
            read(root, rows);
          }
        }
        chunk = ByteString.EMPTY;
      }
    }
    told.put("rows", rows);
  }

  private static void read(VectorSchemaRoot root, List<List<String>> rows) {
    for (int i = 0; i < root.getRowCount(); i++) {
      List<String> row = new ArrayList<>();
      for (FieldVector column : root.getFieldVectors()) {
        row.add(column.isNull(i) ? null : textOf(column, i));
      }
      rows.add(row);
    }
  }

  private static String textOf(FieldVector column, int i) {
    if (column instanceof BitVector bits) {
      return Boolean.toString(bits.get(i) != 0);
    } else if (column instanceof BigIntVector numbers) {
      return Long.toString(numbers.get(i));
    } else if (column instanceof Float8Vector numbers) {
      return HexFormat.of().toHexDigits(Double.doubleToRawLongBits(numbers.get(i)));
    } else if (column instanceof VarBinaryVector bytes) {
      return HexFormat.of().formatHex(bytes.get(i));
    } else if (column instanceof TimeStampVector moments) {
      return Long.toString(moments.get(i));
    } else if (column instanceof DateDayVector days) {
      return Integer.toString(days.get(i));
    } else if (column instanceof TimeMicroVector times) {
      return Long.toString(times.get(i));
    } else if (column instanceof VarCharVector texts) {
      return new String(texts.get(i), StandardCharsets.UTF_8);
    }
    throw new IllegalStateException("a column of type " + column.getField());
  }
}
