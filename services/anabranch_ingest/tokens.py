"""Rules about calls that do not carry their node's current token."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto

from anabranch.store.nodes.tokens import Call, NodeRow


class TokenRuling(Enum):
    """IN: the call is let in and its node gets the new token. IN_ALREADY: it was, and has it. REPEATED: it is let in,
    and its node keeps the token that it has. The others fail it."""

    IN = auto()
    IN_ALREADY = auto()
    REPEATED = auto()
    WRONG_PRINCIPAL = auto()
    FORKED = auto()


def judge(call: Call, unanswered: Collection[str], node: NodeRow) -> TokenRuling:
    """Decide about a call of a node that is known. ``unanswered``: the ids that the call names beside its batches.

    A token from before the node's last answer shows one of two things: that answer was lost, or the device's file was
    copied or restored. Only the sender of the call of the lost answer can name a batch of it. Where that call had no
    batch there is nothing to name, and nothing that a copy could have sent twice.
    """
    if node.principal != call.principal:
        return TokenRuling.WRONG_PRINCIPAL
    if node.token == call.new_token:
        return TokenRuling.IN_ALREADY
    if node.epoch != call.epoch:
        # History was rewound, and the tokens with it.
        return TokenRuling.IN
    if not node.token or node.token == call.token:
        # No token was ever given to a node that has only read, or that the server had forgotten.
        return TokenRuling.IN
    if node.previous_token != call.token:
        return TokenRuling.FORKED
    lost = node.last_call
    if not lost or not lost.isdisjoint(call.batch_ids) or not lost.isdisjoint(unanswered):
        return TokenRuling.REPEATED
    return TokenRuling.FORKED
