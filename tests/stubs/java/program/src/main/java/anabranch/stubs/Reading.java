package anabranch.stubs;

import static anabranch.stubs.Client.CALL_S;
import static anabranch.stubs.Client.STREAM_S;

import anabranch.v1.GetRequest;
import anabranch.v1.GetResponse;
import anabranch.v1.LoggedBatch;
import anabranch.v1.LoggedGroup;
import anabranch.v1.Position;
import anabranch.v1.SubscribeRequest;
import anabranch.v1.SubscribeResponse;
import anabranch.v1.Verdict;
import com.google.protobuf.ByteString;
import io.grpc.Context;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

/** The log, by pages and by subscription. */
final class Reading {
  private static final int PAGE_BYTES = 4096;
  private static final int MOST_PAGES = 1000;

  private Reading() {}

  private record Logged(long position, String id, int[] effects) {}

  /**
   * The log to its head. A group may be split over pages, a batch over parts of a group, an effect over parts of a
   * batch.
   */
  static void page(Client client, Map<String, Object> told) throws Exception {
    MessageDigest digest = MessageDigest.getInstance("SHA-256");
    List<Logged> log = new ArrayList<>();
    ByteString token = ByteString.EMPTY;
    ByteString begun = ByteString.EMPTY;
    for (int pages = 1; pages <= MOST_PAGES; pages++) {
      GetRequest request =
          GetRequest.newBuilder()
              .setDbName(client.database)
              .setNodeState(client.state)
              .setPageToken(token)
              .setMaxBytes(PAGE_BYTES)
              .build();
      GetResponse response = client.changes(CALL_S).get(request);
      for (LoggedGroup group : response.getPage().getGroupsList()) {
        for (LoggedBatch batch : group.getBatchesList()) {
          if (log.isEmpty() || !log.get(log.size() - 1).id().equals(batch.getId())) {
            log.add(new Logged(group.getPosition(), batch.getId(), new int[1]));
          }
          for (int i = 0; i < batch.getEffectsCount(); i++) {
            begun = begun.concat(batch.getEffects(i));
            if (batch.getEffectIncomplete() && i == batch.getEffectsCount() - 1) {
              break;
            }
            digest.update(ByteBuffer.allocate(4).putInt(begun.size()).array());
            digest.update(begun.toByteArray());
            begun = ByteString.EMPTY;
            log.get(log.size() - 1).effects()[0]++;
          }
        }
      }
      if (response.getPage().hasReached()) {
        Position reached = response.getPage().getReached();
        client.state.setAcknowledged(reached.getServerTimestampMs()).setGreatestSeen(reached);
      }
      token = response.getNextPageToken();
      if (token.isEmpty()) {
        told.put("pages", pages);
        told.put("log", log.stream().map(one -> List.of(one.position(), one.id(), one.effects()[0])).toList());
        told.put("effects", HexFormat.of().formatHex(digest.digest()));
        return;
      }
    }
    throw new IllegalStateException("no end after " + MOST_PAGES + " pages");
  }

  static void follow(Client client, Map<String, Object> told) {
    SubscribeRequest request =
        SubscribeRequest.newBuilder()
            .setDbName(client.database)
            .setNodeState(client.state)
            .setAfter(client.state.getAcknowledged())
            .build();
    Context.CancellableContext ended = Context.current().withCancellation();
    Context before = ended.attach();
    try {
      Iterator<SubscribeResponse> stream = client.changes(STREAM_S).subscribe(request);
      stream.next();
      Verdict verdict = client.send(List.of(Client.update("row 1", "followed"))).get(0);
      while (stream.hasNext()) {
        for (LoggedGroup group : stream.next().getPage().getGroupsList()) {
          if (group.getBatchesList().stream().anyMatch(b -> b.getId().equals(verdict.getBatchId()))) {
            told.put(
                "followed",
                Map.of("id", verdict.getBatchId(), "status", "APPLIED", "position", group.getPosition()));
            return;
          }
        }
      }
      throw new IllegalStateException("the subscription ended before the batch came");
    } finally {
      ended.detach(before);
      ended.cancel(null);
    }
  }
}
