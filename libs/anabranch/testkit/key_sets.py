"""An issuer of tokens in a test: its keys, the tokens that it signs, and the server of its key set."""

from __future__ import annotations

import base64
import hmac
import http.server
import json
import threading
import time
from typing import Any, Self, TypeAlias

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

Signers: TypeAlias = dict[str, tuple[Any, str]]
"""By id: the private key, and its algorithm."""
LIFE_S = 600


def new_signers() -> Signers:
    """A signer of each kind that services take: "elliptic" and "rsa"."""
    return {"elliptic": new_elliptic(), "rsa": (rsa.generate_private_key(65_537, 2_048), "RS256")}


def new_elliptic() -> tuple[Any, str]:
    """A signer."""
    return ec.generate_private_key(ec.SECP256R1()), "ES256"


def entry(signers: Signers, kid: str) -> dict[str, Any]:
    """A signer's public key, as it stands in a set."""
    private, algorithm = signers[kid]
    maker = ECAlgorithm if algorithm == "ES256" else RSAAlgorithm
    return {**json.loads(maker.to_jwk(private.public_key())), "kid": kid, "alg": algorithm, "use": "sig"}


def key_set(signers: Signers, *more: Any) -> str:
    """The set of all signers, and ``more`` entries in front of them."""
    return json.dumps({"keys": [*more, *(entry(signers, kid) for kid in signers)]})


def claims(**changes: Any) -> dict[str, Any]:
    """Claims of alice for the database shop; those that are changed to None are left out."""
    made = {"sub": "alice", "exp": int(time.time()) + LIFE_S, "anabranch_database": "shop", **changes}
    return {name: value for name, value in made.items() if value is not None}


def nested(depth: int) -> list[Any]:
    """A claim whose lists stand so deep in each other."""
    made: list[Any] = []
    for _ in range(depth - 1):
        made = [made]
    return made


def signed(signers: Signers, kid: str, **changes: Any) -> str:
    """A token."""
    private, algorithm = signers[kid]
    return jwt.encode(claims(**changes), private, algorithm, {"kid": kid})


def hmac_token(secret: bytes, header: dict[str, str]) -> str:
    """A token made by hand, since PyJWT itself refuses a public key as secret. Its algorithm is HS256, unless
    ``header`` says another."""

    def part(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).rstrip(b"=").decode()

    signed_part = ".".join(part(json.dumps(p).encode()) for p in ({"alg": "HS256", **header}, claims()))
    return f"{signed_part}.{part(hmac.digest(secret, signed_part.encode(), 'sha256'))}"


class KeySetServer:
    """Serves a key set on loopback, and counts who asks. ``content`` can be replaced; ``status`` is the answer's.
    While ``held`` is set, answers wait; with ``drip_s`` they come byte by byte, with so many seconds between two."""

    def __init__(self) -> None:
        self.content: str | bytes = ""
        self.status = 200
        self.asked = 0
        self.held = threading.Event()
        self.drip_s = 0.0
        self._ended = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                while outer.held.is_set() and not outer._ended.wait(0.02):
                    pass
                content = outer.content.encode() if isinstance(outer.content, str) else outer.content
                try:
                    self.send_response(outer.status)
                    self.end_headers()
                    if not outer.drip_s:
                        self.wfile.write(content)
                        return
                    for number in range(len(content)):
                        if outer._ended.wait(outer.drip_s):
                            return
                        self.wfile.write(content[number : number + 1])
                except OSError:
                    return  # whoever asked has gone

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: pytest's output is for failures."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        """Where the set is."""
        return f"http://127.0.0.1:{self._server.server_port}/keys"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
