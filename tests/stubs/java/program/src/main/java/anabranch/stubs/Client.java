package anabranch.stubs;

import anabranch.v1.ChangeServiceGrpc;
import anabranch.v1.DbMutation;
import anabranch.v1.DbMutationBatch;
import anabranch.v1.Envelope;
import anabranch.v1.IngestServiceGrpc;
import anabranch.v1.MutationType;
import anabranch.v1.Node;
import anabranch.v1.NodeState;
import anabranch.v1.Row;
import anabranch.v1.SendRequest;
import anabranch.v1.SendResponse;
import anabranch.v1.SnapshotServiceGrpc;
import anabranch.v1.Value;
import anabranch.v1.Verdict;
import com.google.protobuf.ByteString;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.stub.AbstractStub;
import io.grpc.stub.MetadataUtils;
import java.math.BigInteger;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** A node with its database, its token and what it has seen. */
final class Client implements AutoCloseable {
  static final long CALL_S = 20;
  static final long STREAM_S = 40;
  private static final String CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
  private static final int CHANCE_BITS = 80;

  final String database = setting("ANABRANCH_DATABASE");
  final NodeState.Builder state = NodeState.newBuilder();
  long schema;
  private final SecureRandom chance = new SecureRandom();
  private final ManagedChannel ingest = channel("ANABRANCH_INGEST");
  private final ManagedChannel snapshot = channel("ANABRANCH_SNAPSHOT");
  private ByteString token = ByteString.EMPTY;
  private BigInteger last = BigInteger.ZERO;

  Client() {
    state.setNode(Node.newBuilder().setId(newId()).setName("stub-java"));
  }

  private static String setting(String name) {
    String value = System.getenv(name);
    if (value == null) {
      throw new IllegalStateException(name + " is not set");
    }
    return value;
  }

  private static ManagedChannel channel(String address) {
    return ManagedChannelBuilder.forTarget(setting(address)).usePlaintext().build();
  }

  /** Calls with the key, and with a deadline. */
  private static <S extends AbstractStub<S>> S authorized(S stub, long seconds) {
    Metadata headers = new Metadata();
    String key = "Bearer " + setting("ANABRANCH_KEY");
    headers.put(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), key);
    return stub.withInterceptors(MetadataUtils.newAttachHeadersInterceptor(headers))
        .withDeadlineAfter(seconds, TimeUnit.SECONDS);
  }

  ChangeServiceGrpc.ChangeServiceBlockingStub changes(long seconds) {
    return authorized(ChangeServiceGrpc.newBlockingStub(snapshot), seconds);
  }

  SnapshotServiceGrpc.SnapshotServiceBlockingStub snapshot(long seconds) {
    return authorized(SnapshotServiceGrpc.newBlockingStub(snapshot), seconds);
  }

  /** Calls without credentials. */
  SnapshotServiceGrpc.SnapshotServiceBlockingStub nobody() {
    return SnapshotServiceGrpc.newBlockingStub(snapshot).withDeadlineAfter(CALL_S, TimeUnit.SECONDS);
  }

  /** A ULID that is greater than the last one: 48 bits of milliseconds and 80 of chance. */
  String newId() {
    BigInteger drawn =
        BigInteger.valueOf(System.currentTimeMillis())
            .shiftLeft(CHANCE_BITS)
            .or(new BigInteger(CHANCE_BITS, chance));
    last = drawn.max(last.add(BigInteger.ONE));
    StringBuilder id = new StringBuilder();
    for (int shift = 125; shift >= 0; shift -= 5) {
      id.append(CROCKFORD.charAt(last.shiftRight(shift).intValue() & 31));
    }
    return id.toString();
  }

  /** A batch of each mutation, all in one call; the verdicts in that order. */
  List<Verdict> send(List<DbMutation> mutations) {
    List<String> ids = new ArrayList<>();
    SendRequest.Builder request =
        SendRequest.newBuilder().setDbName(database).setNodeState(state).setNodeToken(token);
    String prev = "";
    for (DbMutation mutation : mutations) {
      String id = newId();
      DbMutationBatch batch =
          DbMutationBatch.newBuilder()
              .setId(id)
              .setDbName(database)
              .addMutations(mutation)
              .setNode(state.getNode())
              .setSchemaVersion(schema)
              .build();
      request.addEnvelopes(
          Envelope.newBuilder().setPayload(batch.toByteString()).setBasis(state.getAcknowledged()).setPrev(prev));
      ids.add(id);
      prev = id;
    }
    IngestServiceGrpc.IngestServiceBlockingStub stub = authorized(IngestServiceGrpc.newBlockingStub(ingest), CALL_S);
    SendResponse response = stub.send(request.build());
    token = response.getNodeToken();
    state.setGreatestSeen(response.getState().getSettled());
    if (!response.getVerdictsList().stream().map(Verdict::getBatchId).toList().equals(ids)) {
      throw new IllegalStateException("not one verdict a batch, in their order");
    }
    return response.getVerdictsList();
  }

  static Value text(String content) {
    return Value.newBuilder().setStringValue(content).build();
  }

  static DbMutation insert(List<String> columns, Value... values) {
    return mutation(MutationType.MUTATION_TYPE_INSERT, columns, values);
  }

  static DbMutation update(String id, String content) {
    return mutation(MutationType.MUTATION_TYPE_UPDATE, List.of("id", "t"), text(id), text(content));
  }

  private static DbMutation mutation(MutationType type, List<String> columns, Value... values) {
    return DbMutation.newBuilder()
        .setTable("kinds")
        .setType(type)
        .addAllColumns(columns)
        .addRows(Row.newBuilder().addAllValues(List.of(values)))
        .build();
  }

  @Override
  public void close() throws InterruptedException {
    for (ManagedChannel channel : List.of(ingest, snapshot)) {
      channel.shutdownNow().awaitTermination(CALL_S, TimeUnit.SECONDS);
    }
  }
}
