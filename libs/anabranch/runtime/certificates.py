"""The certificate that a server listens with, from files that may be replaced while it runs.

Certificates live for weeks, and services for longer: where the files have others than before, the next connection gets
the new one. Open connections stay as they are.
"""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import grpc
import structlog

from anabranch.runtime.config import ServiceSettings

LOOK_S = 5.0
"""Files are looked at this often at most, when somebody connects."""
_log = structlog.get_logger()
_Stamp = tuple[tuple[int, int], ...]


class Certificates:
    """Those of settings that have both files."""

    def __init__(self, settings: ServiceSettings) -> None:
        assert settings.tls_cert_file is not None
        assert settings.tls_key_file is not None
        self._certificate: Path = settings.tls_cert_file
        self._key: Path = settings.tls_key_file
        self._authorities = settings.tls_client_ca_file
        self._stamp = self._stamped()
        self._looked_s = time.monotonic()

    def credentials(self) -> grpc.ServerCredentials:
        """The listener's credentials. Raises OSError where a file can't be read, or certificate and key don't fit."""
        # None for an unchanged one is known to gRPC, and not to its stubs.
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            self._renewed,  # type: ignore[arg-type]
            require_client_authentication=self._authorities is not None,
        )

    def _stamped(self) -> _Stamp:
        files = [self._certificate, self._key, *([] if self._authorities is None else [self._authorities])]
        found = [file.stat() for file in files]
        return tuple((one.st_ino, one.st_mtime_ns) for one in found)

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        # Raises SSLError, an OSError, for files of which one was replaced and the other not yet.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._certificate, self._key)
        return grpc.ssl_server_certificate_configuration(
            [(self._key.read_bytes(), self._certificate.read_bytes())],
            root_certificates=None if self._authorities is None else self._authorities.read_bytes(),
        )

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Asked by gRPC at every handshake; None: go on with the last one."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return None
        self._looked_s = now_s
        try:
            stamp = self._stamped()
            if stamp == self._stamp:
                return None
            configuration = self._configuration()
        except OSError as error:
            _log.error("the certificate can't be read anew; the last one is still used", detail=error)
            return None
        self._stamp = stamp
        _log.info("the certificate was replaced")
        return configuration
