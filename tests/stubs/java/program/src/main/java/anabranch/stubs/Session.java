package anabranch.stubs;

import static anabranch.stubs.Client.CALL_S;
import static anabranch.stubs.Client.insert;
import static anabranch.stubs.Client.text;
import static anabranch.stubs.Client.update;

import anabranch.v1.Column;
import anabranch.v1.DbMutation;
import anabranch.v1.DescribeRequest;
import anabranch.v1.DescribeResponse;
import anabranch.v1.GetRequest;
import anabranch.v1.MutationVerdict;
import anabranch.v1.NamedRow;
import anabranch.v1.Table;
import anabranch.v1.Value;
import anabranch.v1.Verdict;
import anabranch.v1.VerdictStatus;
import com.google.gson.JsonArray;
import com.google.protobuf.Any;
import com.google.rpc.ErrorInfo;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** A session of one node with a server. */
final class Session {
  private static final int LETTERS = 20_000;
  /** A position that no server ever gave. */
  private static final long NOWHERE = 1L << 60;

  private Session() {}

  static Map<String, Object> hold(JsonArray vectors) throws Exception {
    DbMutation limits = DbMutation.parseFrom(Conformance.content(vectors, "rows at their limits"));
    Map<String, Object> told = new LinkedHashMap<>();
    try (Client client = new Client()) {
      describe(client, told);
      write(client, limits, told);
      provoke(client, told);
      Reading.page(client, told);
      Reading.follow(client, told);
      Pulling.pull(client, told);
    }
    return told;
  }

  /** What the one ErrorInfo of a failed call says. */
  private static Map<String, String> refusal(Runnable call) throws Exception {
    try {
      call.run();
    } catch (StatusRuntimeException error) {
      for (Any detail : StatusProto.fromThrowable(error).getDetailsList()) {
        if (detail.is(ErrorInfo.class)) {
          ErrorInfo info = detail.unpack(ErrorInfo.class);
          String code = error.getStatus().getCode().name();
          return Map.of("code", code, "domain", info.getDomain(), "reason", info.getReason());
        }
      }
      throw error;
    }
    throw new IllegalStateException("a call that had to fail did not");
  }

  private static void describe(Client client, Map<String, Object> told) throws Exception {
    DescribeRequest request =
        DescribeRequest.newBuilder().setDbName(client.database).setNodeState(client.state).build();
    told.put("unauthenticated", refusal(() -> client.nobody().describe(request)));
    DescribeResponse described = client.snapshot(CALL_S).describe(request);
    client.schema = described.getState().getSchemaVersion();
    Map<String, Object> tables = new LinkedHashMap<>();
    for (Table table : described.getTablesList()) {
      Map<String, String> columns = new LinkedHashMap<>();
      for (Column column : table.getColumnsList()) {
        columns.put(column.getName(), column.getKind().name());
      }
      tables.put(table.getName(), columns);
    }
    told.put("tables", tables);
  }

  private static void write(Client client, DbMutation limits, Map<String, Object> told) {
    client.send(List.of());
    List<DbMutation> mutations = new ArrayList<>(List.of(limits));
    for (int i = 1; i <= 5; i++) {
      mutations.add(insert(List.of("id", "t"), text("long " + i), text("x".repeat(LETTERS))));
    }
    List<Verdict> verdicts = new ArrayList<>(client.send(mutations));
    verdicts.addAll(client.send(List.of(update("row 0", "updated \uD83D\uDE00"))));
    List<Object> sent = new ArrayList<>();
    for (Verdict verdict : verdicts) {
      String status = verdict.getStatus().name().replace("VERDICT_STATUS_", "");
      sent.add(Map.of("id", verdict.getBatchId(), "status", status, "position", verdict.getPosition()));
    }
    told.put("sent", sent);
  }

  private static void provoke(Client client, Map<String, Object> told) throws Exception {
    Value negative = Value.newBuilder().setInt64Value(-1).build();
    List<Object> rejected = new ArrayList<>();
    for (Verdict verdict :
        client.send(
            List.of(
                insert(List.of("id", "qty"), text("bad"), negative), insert(List.of("id"), text("row 0"))))) {
      if (verdict.getStatus() != VerdictStatus.VERDICT_STATUS_REJECTED || verdict.getMutationsCount() != 1) {
        throw new IllegalStateException("not rejected with one mutation: " + verdict);
      }
      MutationVerdict mutation = verdict.getMutations(0);
      NamedRow row = mutation.getServerRow();
      int place = row.getColumnsList().indexOf("t");
      Map<String, String> one = new LinkedHashMap<>();
      one.put("id", verdict.getBatchId());
      one.put("reason", verdict.getReason().name().replace("REASON_", ""));
      one.put("table", mutation.getTable());
      one.put("key", mutation.getKeyList().stream().map(Value::getStringValue).collect(Collectors.joining(" ")));
      one.put("constraint", verdict.getConstraint());
      one.put("sqlstate", verdict.getSqlstate());
      one.put("server_t", place < 0 ? "" : row.getValues(place).getStringValue());
      rejected.add(one);
    }
    told.put("rejected", rejected);
    GetRequest request =
        GetRequest.newBuilder().setDbName(client.database).setNodeState(client.state).setAfter(NOWHERE).build();
    told.put("refused", refusal(() -> client.changes(CALL_S).get(request)));
  }
}
