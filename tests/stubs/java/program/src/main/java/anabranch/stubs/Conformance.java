package anabranch.stubs;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.protobuf.Message;
import com.google.protobuf.util.JsonFormat;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Vectors read and written again. */
final class Conformance {
  private Conformance() {}

  static Map<String, Object> read(JsonArray vectors) throws Exception {
    List<Object> read = new ArrayList<>();
    for (JsonElement vector : vectors) {
      read.add(again(vector.getAsJsonObject()));
    }
    return Map.of("vectors", read);
  }

  /** The bytes of the vector with that name. */
  static byte[] content(JsonArray vectors, String name) {
    for (JsonElement vector : vectors) {
      if (vector.getAsJsonObject().get("name").getAsString().equals(name)) {
        return HexFormat.of().parseHex(vector.getAsJsonObject().get("bytes").getAsString());
      }
    }
    throw new IllegalArgumentException("no vector is called " + name);
  }

  private static Map<String, Object> again(JsonObject vector) throws Exception {
    // The message's class has the message's own name: anabranch.v1.Value.
    Class<?> kind = Class.forName(vector.get("message").getAsString());
    Message empty = (Message) kind.getMethod("getDefaultInstance").invoke(null);
    byte[] raw = HexFormat.of().parseHex(vector.get("bytes").getAsString());
    Message decoded = empty.newBuilderForType().mergeFrom(raw).build();
    Message.Builder parsed = empty.newBuilderForType();
    JsonFormat.parser().merge(vector.get("json").toString(), parsed);
    Map<String, Object> told = new LinkedHashMap<>();
    told.put("name", vector.get("name").getAsString());
    told.put("decoded", HexFormat.of().formatHex(decoded.toByteArray()));
    told.put("parsed", HexFormat.of().formatHex(parsed.build().toByteArray()));
    told.put("json", JsonParser.parseString(JsonFormat.printer().print(decoded)));
    return told;
  }
}
