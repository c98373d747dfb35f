"""The rule by which a tablet sees its own airport's flights and notes, and no others: its token names the airport."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import jwt

from anabranch.demo import plan
from anabranch.demo.tablet import DATABASE

RESTRICTED = ("flights", "gate_notes")
"""The tables that have an audience; all tablets see every row of the others."""
EXPRESSION = "'airport:' || origin"
"""The audience of a row of these."""
RULES = {"claims": {"airports": "airport"}}
"""The claim ``airports: ["EWR"]`` of a token gives the audience ``airport:EWR``, to read and to write."""
_LIFE_S = 12 * 3600


def audience_of(tablet: str) -> str:
    """The one audience of a tablet."""
    return f"airport:{plan.AIRPORTS[tablet]}"


@dataclass(frozen=True)
class Issuer:
    """The airline's issuer of tokens: what it signs with its secret, the services believe."""

    secret: str = field(default_factory=lambda: secrets.token_urlsafe(48), repr=False)

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of services that believe it."""
        return {"ANABRANCH_JWT_HS256_SECRET": self.secret}

    def token(self, tablet: str) -> str:
        """A tablet's token, which is good for a shift."""
        claims = {
            "sub": tablet,
            "exp": int(time.time()) + _LIFE_S,
            "anabranch_database": DATABASE,
            "airports": [plan.AIRPORTS[tablet]],
        }
        return jwt.encode(claims, self.secret, "HS256")
