"""Reports of nodes on their dead letters: kept as each last told, within bounds, and never for somebody else's node."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from anabranch import limits
from anabranch.testkit.snapshot_reader import Reader
from anabranch.testkit.waiting import until
from anabranch.v1 import batch_pb2, change_pb2, change_pb2_grpc, errors_pb2, position_pb2

STORED = """
select k.total, k.counts from anabranch.node_dead_letters k join anabranch.databases d on d.id = k.database_id
where d.name = %s and k.node_id = %s
"""


def tell(reader: Reader, letters: position_pb2.DeadLetters | None) -> None:
    state = position_pb2.NodeState(node=reader.node, dead_letters=letters)
    request = change_pb2.GetRequest(db_name=reader.db_name, node_state=state)
    change_pb2_grpc.ChangeServiceStub(reader.channel).Get(request, timeout=30, metadata=reader.credentials)


def letters(*counts: tuple[int, str, int], total: int = 0) -> position_pb2.DeadLetters:
    made = [position_pb2.DeadLetterCount(reason=r, table=t, count=n) for r, t, n in counts]  # type: ignore[arg-type]
    return position_pb2.DeadLetters(total=total or sum(n for _, _, n in counts), counts=made)


def stored(place: Any, reader: Reader) -> tuple[int, list[dict[str, Any]]] | None:
    row = place.conn.execute(STORED, (place.name, reader.node.id)).fetchone()
    return None if row is None else (row[0], row[1])


@pytest.mark.slow
def test_the_last_report_of_a_node_is_kept_also_that_there_are_none_any_more(place: Any, reader: Reader) -> None:
    tell(reader, letters((errors_pb2.REASON_CONSTRAINT, "item", 3), (errors_pb2.REASON_EXPIRED, "", 1)))
    first = [
        {"reason": "CONSTRAINT", "table": "item", "count": 3},
        {"reason": "EXPIRED", "table": "", "count": 1},
    ]
    until(lambda: stored(place, reader) == (4, first))
    tell(reader, None)
    tell(reader, letters((errors_pb2.REASON_ROW_DELETED, "item", 1)))
    until(lambda: stored(place, reader) == (1, [{"reason": "ROW_DELETED", "table": "item", "count": 1}]))
    tell(reader, letters())
    until(lambda: stored(place, reader) == (0, []))


def test_whatever_is_sent_what_is_kept_is_small_and_has_known_reasons(place: Any, reader: Reader) -> None:
    many = [(errors_pb2.REASON_CONSTRAINT, f"t{number}", 1) for number in range(500)]
    strange = [(999_999, "item", 2), (0, "item", 1), (errors_pb2.REASON_EXPIRED, "x" * 5_000, 2**62), (2, "n\0ul", -5)]
    tell(reader, letters(*strange, *many, total=7))
    until(lambda: stored(place, reader) is not None)
    total, counts = stored(place, reader) or (0, [])
    assert len(counts) == limits.MAX_DEAD_LETTER_COUNTS - 1, "one of those that were looked at counted less than one"
    assert counts[:3] == [
        {"reason": "UNKNOWN", "table": "item", "count": 2},
        {"reason": "UNKNOWN", "table": "item", "count": 1},
        {"reason": "EXPIRED", "table": "", "count": 2**53},
    ]
    assert total == 2**53


def test_a_report_of_another_principals_node_is_refused_and_changes_nothing(place: Any, reader: Reader) -> None:
    tell(reader, letters((errors_pb2.REASON_CONSTRAINT, "item", 3)))
    until(lambda: stored(place, reader) is not None)
    other = place.make_reader(subject="somebody else")
    other.node = batch_pb2.Node(id=reader.node.id, name="mine now")
    with pytest.raises(grpc.RpcError) as caught:
        tell(other, letters((errors_pb2.REASON_EXPIRED, "item", 99)))
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    third = place.make_reader()
    tell(third, letters((errors_pb2.REASON_EXPIRED, "item", 1)))
    until(lambda: stored(place, third) is not None)
    assert stored(place, reader) == (3, [{"reason": "CONSTRAINT", "table": "item", "count": 3}])
