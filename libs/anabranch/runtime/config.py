"""Settings of a service: one typed table, read from the environment (prefix ``ANABRANCH_``) and nowhere else.

A service with settings of its own makes a subclass. Units stand in the names. A secret may come from a file
instead: ``ANABRANCH_POSTGRES_URL_FILE`` names the file that holds what ``ANABRANCH_POSTGRES_URL`` would;
giving both is an error.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from anabranch.errors import ServerError
from anabranch.store.session.engine import ConninfoError, require_connection_string

PREFIX = "ANABRANCH_"
LogLevel = Literal["debug", "info", "warning", "error"]


class SettingsError(ServerError):
    """The settings do not fit together, or one is missing or wrong. The message names the variables, never a
    value."""


class ServiceSettings(BaseSettings):
    """The settings that every service has."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="ignore", frozen=True, hide_input_in_errors=True
    )

    listen_address: str = "127.0.0.1:0"
    """host:port that the gRPC server listens on; port 0 takes a free one."""
    allow_plaintext_beyond_loopback: bool = False
    """Listen without TLS on an address that other machines reach. Only for a network that is private to the
    services."""
    tls_cert_file: Path | None = None
    """PEM: the server's certificate chain. TLS is on when it and the key are given."""
    tls_key_file: Path | None = None
    """PEM: the key of the certificate."""
    tls_client_ca_file: Path | None = None
    """PEM: when given, only callers with a certificate of these authorities are let in."""

    postgres_url: SecretStr
    """The Postgres that all services share."""
    pool_max_connections: int = Field(8, ge=2, le=200)
    """The most connections of this process's pool."""
    statement_timeout_ms: int = Field(60_000, ge=100)
    """The longest that one statement of the pool may run."""

    metrics_address: str | None = None
    """host:port of the Prometheus endpoint; port 0 takes a free one. None: no endpoint."""
    otlp_endpoint: str | None = None
    """Where traces and metrics go by OTLP over gRPC, as http://host:port. None: nowhere."""
    metrics_interval_ms: int = Field(10_000, ge=100)
    """How often metrics are sent by OTLP."""
    log_level: LogLevel = "info"

    drain_ms: int = Field(10_000, ge=0)
    """After SIGTERM: how long calls under way may take to end."""
    ready_interval_ms: int = Field(1_000, ge=50)
    """How often readiness is looked at."""
    max_message_bytes: int = Field(4 * 1024 * 1024, ge=64 * 1024)
    """The largest message that is taken in or, by this setting, sent."""

    first_request_ms: int = Field(300_000, ge=10)
    """How long a stream of requests may stay without its first one, which even the slowest network brings in this
    time; then the call fails."""

    limit_calls_per_s: float = Field(4_000, gt=0)
    """Calls and stream messages a second that one principal may make, in the long run."""
    limit_calls_burst: int = Field(8_000, ge=1)
    """Calls that it may make at once."""
    limit_open_streams: int = Field(2_000, ge=1)
    """Streams that it may have open."""
    limit_request_bytes: int = Field(512 * 1024 * 1024, ge=16 * 1024 * 1024)
    """Memory of the requests under way, as bytes and as messages, of which one principal has half; beyond, calls fail
    OVERLOADED."""
    limit_connections: int = Field(10_000, ge=1)
    """Connections that the server takes at a time."""

    jwt_hs256_secret: SecretStr | None = None
    """Secret of HS256 tokens, at least 32 bytes. None: such tokens are refused."""
    jwt_jwks_file: Path | None = None
    """File with the JSON Web Key Set of ES256 and RS256 tokens."""
    jwt_jwks_url: str | None = None
    """URL of the JSON Web Key Set of ES256 and RS256 tokens."""
    jwt_jwks_reload_ms: int = Field(300_000, ge=1_000, le=86_400_000)
    """How often the key set is read again. A key that was removed from it proves nothing after that."""
    jwt_issuer: str | None = None
    """The ``iss`` that tokens must have. None: not looked at."""
    jwt_audience: str | None = None
    """The ``aud`` that tokens must have. None: tokens must have none."""
    jwt_leeway_ms: int = Field(5_000, ge=0, le=300_000)
    """How far the clocks of issuer and server may be apart."""
    jwt_database_claim: str = "anabranch_database"
    """The claim that names the one database a token opens; ``*`` opens all. A token without it is refused."""
    jwt_role_claim: str = "anabranch_role"
    """The claim that gives the role: ``device`` or ``admin``. A token without it is a device's."""

    end_with_stdin: bool = False
    """Stop when standard input ends: so a service doesn't outlive the process that started it."""

    clock_offset_ms: int = 0
    """For tests: the service's clock is off by so much."""
    clock_file: Path | None = None
    """For tests: a file with a further offset, in milliseconds, which may change while the service runs."""

    @property
    def tls(self) -> bool:
        """Whether the server speaks TLS."""
        return self.tls_cert_file is not None

    @field_validator("listen_address", "metrics_address")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("unix:"):
            split_address(value)
        return value

    @field_validator("postgres_url")
    @classmethod
    def _is_connection_string(cls, value: SecretStr) -> SecretStr:
        try:
            require_connection_string(value.get_secret_value())
        except ConninfoError as error:
            raise ValueError(str(error)) from None
        return value

    @model_validator(mode="after")
    def _fits(self) -> ServiceSettings:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError(f"{PREFIX}TLS_CERT_FILE and {PREFIX}TLS_KEY_FILE: give both or neither")
        if self.tls_client_ca_file is not None and not self.tls:
            raise ValueError(f"{PREFIX}TLS_CLIENT_CA_FILE needs {PREFIX}TLS_CERT_FILE and {PREFIX}TLS_KEY_FILE")
        if self.jwt_jwks_file is not None and self.jwt_jwks_url is not None:
            raise ValueError(f"{PREFIX}JWT_JWKS_FILE and {PREFIX}JWT_JWKS_URL: give one of them")
        secret = self.jwt_hs256_secret
        if secret is not None and len(secret.get_secret_value().encode()) < 32:
            raise ValueError(f"{PREFIX}JWT_HS256_SECRET is shorter than 32 bytes")
        if not self.tls and not self.allow_plaintext_beyond_loopback and not is_loopback(self.listen_address):
            raise ValueError(
                f"{PREFIX}LISTEN_ADDRESS={self.listen_address} is reached from other machines, without "
                f"TLS: give {PREFIX}TLS_CERT_FILE and {PREFIX}TLS_KEY_FILE, listen on 127.0.0.1, or, on a "
                f"network that is private to the services, set {PREFIX}ALLOW_PLAINTEXT_BEYOND_LOOPBACK=true"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment, then files that the environment names."""
        return init_settings, env_settings, SecretFiles(settings_cls)


class SecretFiles(PydanticBaseSettingsSource):
    """Takes a secret ``X`` from the file that ``ANABRANCH_X_FILE`` names. A line end at the file's end is
    dropped."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The file's content, or None where no file is named. Raises SettingsError for a file that can't be
        read."""
        if field.annotation not in (SecretStr, SecretStr | None):
            return None, field_name, False
        variable = f"{PREFIX}{field_name.upper()}"
        file = os.environ.get(f"{variable}_FILE")
        if not file:
            return None, field_name, False
        if os.environ.get(variable):
            raise SettingsError(f"{variable} and {variable}_FILE: give one of them")
        try:
            return Path(file).read_text(encoding="utf-8").rstrip("\r\n"), field_name, False
        except OSError as error:
            # Without the path: somebody may have given the secret itself.
            raise SettingsError(f"{variable}_FILE: {error.strerror}") from None
        except UnicodeDecodeError:
            raise SettingsError(f"{variable}_FILE: the file is no UTF-8 text") from None

    def __call__(self) -> dict[str, Any]:
        found = {name: self.get_field_value(field, name)[0] for name, field in self.settings_cls.model_fields.items()}
        return {name: value for name, value in found.items() if value is not None}


S = TypeVar("S", bound=ServiceSettings)


def load_settings(settings: type[S], **values: Any) -> S:
    """The settings, from the environment and ``values``.

    Raises:
        SettingsError: naming every variable that is missing or wrong.
    """
    try:
        return settings(**values)
    except ValidationError as error:
        raise SettingsError("; ".join(_explain(entry) for entry in error.errors())) from None


def _explain(entry: Mapping[str, Any]) -> str:
    message = str(entry["msg"]).removeprefix("Value error, ")
    return f"{PREFIX}{'.'.join(map(str, entry['loc'])).upper()}: {message}" if entry["loc"] else message


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``; an IPv6 host may stand in brackets. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"{address!r} is no host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches ``address``: host:port, or unix:path. Names but localhost count as
    reachable."""
    if address.startswith("unix:"):
        return True
    host, _ = split_address(address)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
