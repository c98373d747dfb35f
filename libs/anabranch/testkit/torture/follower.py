"""A reader that follows the log all the time, by pages and by subscription in turns, and records all that it receives.

Usage: ``python -m anabranch.testkit.torture.follower CONFIG``, a JSON object {db, snapshot, key, seed, record}. Into
``record`` goes a JSON object a line: {"group": position, "batches": [[id, digest of its effects], …]} for each whole
group, and {"read": position} where an answer has moved the cursor without one. It keeps its cursor as a device would.

"until P" over its input ends it once P is read; the end of its input ends it at once.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from typing import Any

import grpc
from ulid import ULID

from anabranch.testkit.oracle import effects_digest
from anabranch.v1 import batch_pb2, change_pb2, change_pb2_grpc, position_pb2

CALL_S = 5.0
PAUSE_S = 0.05


class Follower:
    """``cursor``: the position up to which the log is read. ``parts``: batches of a group that is incomplete;
    ``goes_on``: the batch whose last effect is incomplete, "" where there is none. A new call resets both."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.db: str = config["db"]
        self.chance = random.Random(config["seed"])
        self.node = batch_pb2.Node(id=str(ULID()), name="follower")
        self.metadata = (("authorization", f"Bearer {config['key']}"),)
        self.stub = change_pb2_grpc.ChangeServiceStub(grpc.insecure_channel(config["snapshot"]))
        self.out = open(config["record"], "w", buffering=1)  # noqa: SIM115 - for the life of the process
        self.cursor = 0
        self.parts: dict[str, list[bytes]] = {}
        self.goes_on = ""
        self.stop_at: int | None = None

    def take(self, page: change_pb2.Page) -> None:
        for group in page.groups:
            for batch in group.batches:
                effects, came = self.parts.setdefault(batch.id, []), list(batch.effects)
                assert self.goes_on in ("", batch.id), f"{self.goes_on} was left off in the middle of an effect"
                if self.goes_on and came:
                    effects[-1] += came.pop(0)
                effects.extend(came)
                self.goes_on = batch.id if batch.effect_incomplete else ""
            if not group.incomplete:
                batches = [[name, effects_digest(effects)] for name, effects in self.parts.items()]
                self.out.write(json.dumps({"group": group.position, "batches": batches}) + "\n")
                self.parts = {}
                self.cursor = max(self.cursor, group.position)
        if not self.parts and page.reached.server_timestamp_ms > self.cursor:
            self.cursor = page.reached.server_timestamp_ms
            self.out.write(json.dumps({"read": self.cursor}) + "\n")

    def state(self) -> position_pb2.NodeState:
        """The state that it sends with every call."""
        return position_pb2.NodeState(node=self.node, acknowledged=self.cursor)

    def page_to_head(self) -> None:
        self.parts, self.goes_on = {}, ""
        token = b""
        while True:
            request = change_pb2.GetRequest(
                db_name=self.db,
                node_state=self.state(),
                after=self.cursor,
                page_token=token,
                max_bytes=self.chance.choice([0, 1_000, 20_000]),
            )
            response = self.stub.Get(request, timeout=CALL_S, metadata=self.metadata)
            self.take(response.page)
            token = response.next_page_token
            if not token:
                return

    def follow_a_while(self) -> None:
        self.parts, self.goes_on = {}, ""
        request = change_pb2.SubscribeRequest(db_name=self.db, node_state=self.state(), after=self.cursor)
        stream = self.stub.Subscribe(request, timeout=CALL_S, metadata=self.metadata)
        left = self.chance.randint(1, 60)
        try:
            for response in stream:
                page = response.page
                if not response.HasField("page"):
                    page = change_pb2.Page(reached=response.state.settled)
                self.take(page)
                left -= 1
                if left <= 0 or self.is_done():
                    return
        finally:
            stream.cancel()

    def is_done(self) -> bool:
        return self.stop_at is not None and self.cursor >= self.stop_at


def main() -> None:
    """The process."""
    follower = Follower(json.loads(sys.argv[1]))
    ended = threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            follower.stop_at = int(line.split()[1])
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    print("started", flush=True)
    while not ended.is_set() and not follower.is_done():
        try:
            follower.page_to_head()
            if not follower.is_done():
                follower.follow_a_while()
        except grpc.RpcError as error:
            # The snapshot service was killed; the next attempt goes on after the cursor.
            code = error.code()
            if code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise
            ended.wait(PAUSE_S)
    print("done" if follower.is_done() else "ended", flush=True)


if __name__ == "__main__":
    main()
