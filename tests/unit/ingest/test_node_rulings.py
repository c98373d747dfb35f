"""Every branch of the look at a token that is not the current one."""

from __future__ import annotations

import pytest

from anabranch.store.nodes.tokens import Call, Mode, NodeRow
from anabranch_ingest.tokens import TokenRuling, judge

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
        (call(CURRENT, "x"), (), node(), TokenRuling.IN),
        (call(CURRENT), (), node(), TokenRuling.IN),
        # The one before: only who names a batch of the lost call.
        (call(PREVIOUS, "a"), (), node(), TokenRuling.REPEATED),
        (call(PREVIOUS, "x"), ("b",), node(), TokenRuling.REPEATED),
        (call(PREVIOUS, "x"), (), node(), TokenRuling.FORKED),
        (call(PREVIOUS, "x"), ("y",), node(), TokenRuling.FORKED),
        (call(PREVIOUS), (), node(), TokenRuling.FORKED),
        # Nothing was in that call.
        (call(PREVIOUS, "x"), (), node(last=()), TokenRuling.REPEATED),
        # An older one, or none: naming helps only against the call before.
        (call(OTHER, "a"), ("b",), node(), TokenRuling.FORKED),
        (call(b"", "a"), (), node(), TokenRuling.FORKED),
        (call(OTHER, "x"), (), node(last=()), TokenRuling.FORKED),
        # The first answer was lost.
        (call(b"", "a"), (), node(previous=b""), TokenRuling.REPEATED),
        (call(b"", "x"), (), node(previous=b""), TokenRuling.FORKED),
        (call(b"", "x"), (), node(previous=b"", last=()), TokenRuling.REPEATED),
        # The node has only read so far; where it brings a token, the server had forgotten it.
        (call(b"", "x"), (), node(token=b"", previous=b"", last=()), TokenRuling.IN),
        (call(OTHER, "x"), (), node(token=b"", previous=b"", last=()), TokenRuling.IN),
        # Ours already: the commit had happened, its answer had not come.
        (call(PREVIOUS, "x"), (), node(token=NEW), TokenRuling.IN_ALREADY),
        # Another principal learns that first, whatever it carries.
        (call(CURRENT, "a", principal="q"), (), node(), TokenRuling.WRONG_PRINCIPAL),
        (call(OTHER, principal="q"), (), node(epoch="old"), TokenRuling.WRONG_PRINCIPAL),
        # The token is from before a rewind.
        (call(OTHER, "x"), (), node(epoch="old"), TokenRuling.IN),
        (call(b"", "x"), (), node(epoch="old"), TokenRuling.IN),
    ],
)
def test_rulings(made: Call, unanswered: tuple[str, ...], row: NodeRow, ruling: TokenRuling) -> None:
    assert judge(made, frozenset(unanswered), row) is ruling
