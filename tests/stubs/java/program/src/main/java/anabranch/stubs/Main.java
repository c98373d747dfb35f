package anabranch.stubs;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonParser;
import java.nio.file.Files;
import java.nio.file.Path;

/** A client of Anabranch on the generated stubs alone. ../README.md says what it does. */
public final class Main {
  private Main() {}

  public static void main(String[] arguments) throws Exception {
    if (arguments.length != 2) {
      throw new IllegalArgumentException("usage: Main conformance|session FILE");
    }
    JsonArray vectors = JsonParser.parseString(Files.readString(Path.of(arguments[1]))).getAsJsonArray();
    Object told =
        switch (arguments[0]) {
          case "conformance" -> Conformance.read(vectors);
          case "session" -> Session.hold(vectors);
          default -> throw new IllegalArgumentException("no such command: " + arguments[0]);
        };
    Gson gson = new GsonBuilder().disableHtmlEscaping().serializeNulls().create();
    System.out.println(gson.toJson(told));
  }
}
