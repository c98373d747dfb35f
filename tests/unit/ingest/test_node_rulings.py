"""Every branch of the look at a token that is not the current one."""

from __future__ import annotations

import pytest

from anabranch.store.nodes.tokens import Call, Mode, NodeRow
from anabranch_ingest.tokens import Ruling, judge

CURRENT, PREVIOUS, NEW, OTHER = b"current", b"previous", b"new", b"other"


def call(token: bytes, *ids: str, principal: str = "p", epoch: str = "e") -> Call:
    return Call(1, "n", "name", principal, epoch, token, NEW, Mode.ROTATE, ids, 0)


def node(
    *, token: bytes = CURRENT, previous: bytes = PREVIOUS, last: tuple[str, ...] = ("a", "b"), epoch: str = "e"
) -> NodeRow:
    return NodeRow("p", epoch, token, previous, frozenset(last))


@pytest.mark.parametrize(
    ("made", "unanswered", "row", "ruling"),
    [
        # The current token, with or without batches.
        (call(CURRENT, "x"), (), node(), Ruling.IN),
        (call(CURRENT), (), node(), Ruling.IN),
        # The one before: only who names a batch of the lost call.
        (call(PREVIOUS, "a"), (), node(), Ruling.REPEATED),
        (call(PREVIOUS, "x"), ("b",), node(), Ruling.REPEATED),
        (call(PREVIOUS, "x"), (), node(), Ruling.FORKED),
        (call(PREVIOUS, "x"), ("y",), node(), Ruling.FORKED),
        (call(PREVIOUS), (), node(), Ruling.FORKED),
        # Nothing was in that call.
        (call(PREVIOUS, "x"), (), node(last=()), Ruling.REPEATED),
        # An older one, or none: naming helps only against the call before.
        (call(OTHER, "a"), ("b",), node(), Ruling.FORKED),
        (call(b"", "a"), (), node(), Ruling.FORKED),
        (call(OTHER, "x"), (), node(last=()), Ruling.FORKED),
        # The first answer was lost.
        (call(b"", "a"), (), node(previous=b""), Ruling.REPEATED),
        (call(b"", "x"), (), node(previous=b""), Ruling.FORKED),
        (call(b"", "x"), (), node(previous=b"", last=()), Ruling.REPEATED),
        # The node has only read so far; where it brings a token, the server had forgotten it.
        (call(b"", "x"), (), node(token=b"", previous=b"", last=()), Ruling.IN),
        (call(OTHER, "x"), (), node(token=b"", previous=b"", last=()), Ruling.IN),
        # Ours already: the commit had happened, its answer had not come.
        (call(PREVIOUS, "x"), (), node(token=NEW), Ruling.IN_ALREADY),
        # Another principal learns that first, whatever it carries.
        (call(CURRENT, "a", principal="q"), (), node(), Ruling.WRONG_PRINCIPAL),
        (call(OTHER, principal="q"), (), node(epoch="old"), Ruling.WRONG_PRINCIPAL),
        # The token is from before a rewind.
        (call(OTHER, "x"), (), node(epoch="old"), Ruling.IN),
        (call(b"", "x"), (), node(epoch="old"), Ruling.IN),
    ],
)
def test_rulings(made: Call, unanswered: tuple[str, ...], row: NodeRow, ruling: Ruling) -> None:
    assert judge(made, frozenset(unanswered), row) is ruling
