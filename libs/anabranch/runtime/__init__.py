"""The runtime that every service shares: settings, server, credentials, errors, telemetry, clock.

A service is ``server.main(SettingsSubclass, "name", build)``, where ``build`` takes a
``service.ServiceContext`` and returns a ``service.Service``. Its servicers are plain async methods (streams:
async generators); they ask ``principal.current_principal`` who calls, raise ``errors.CallError`` (or ``await
errors.abort``) to fail a call, count through ``metrics`` and open spans with ``telemetry.span``. Nothing is
imported here, because devices use some of the modules without the others' requirements.
"""

import os

# gRPC's core writes headers of malformed calls to standard error, ``authorization`` among them. It reads this once,
# when ``grpc`` is imported, which every program that serves does after this.
os.environ["GRPC_VERBOSITY"] = "NONE"
os.environ.pop("GRPC_TRACE", None)
