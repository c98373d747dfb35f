"""Keys and certificates of a control plane that lives as long as a test run."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LIFE = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: the authority, what the API server shows, and the keys of tokens of service accounts."""

    authority: Path
    server: Path
    server_key: Path
    accounts: Path
    accounts_key: Path


def make(folder: Path, addresses: Sequence[str] = (), names: Sequence[str] = ()) -> Certificates:
    """Write them into ``folder``, for the loopback address, and the others that are given."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    server_key = ec.generate_private_key(ec.SECP256R1())
    accounts_key = ec.generate_private_key(ec.SECP256R1())
    issuer = _named("the authority")
    authority = (
        _begun(issuer, issuer, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    own = [x509.IPAddress(ipaddress.ip_address(one)) for one in ("127.0.0.1", *addresses)]
    called = [x509.DNSName(one) for one in ("localhost", *names)]
    server = (
        _begun(_named("the API server"), issuer, server_key)
        .add_extension(x509.SubjectAlternativeName([*own, *called]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    made = Certificates(
        folder / "authority.pem",
        folder / "server.pem",
        folder / "server-key.pem",
        folder / "accounts.pem",
        folder / "accounts-key.pem",
    )
    pem = serialization.Encoding.PEM
    made.authority.write_bytes(authority.public_bytes(pem))
    made.server.write_bytes(server.public_bytes(pem))
    made.server_key.write_bytes(_private(server_key))
    made.accounts_key.write_bytes(_private(accounts_key))
    public = accounts_key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    made.accounts.write_bytes(public)
    return made


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _begun(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - LIFE)
        .not_valid_after(now + LIFE)
    )


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
