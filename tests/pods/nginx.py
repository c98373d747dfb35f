"""An Ingress controller, as far as the chart needs one: nginx, set up from an Ingress object and its annotations as
ingress-nginx reads them."""

from __future__ import annotations

from typing import Any

from tests.cluster.api import Thing, until
from tests.cluster.release import Release

READY_S = 120
PORT = 8443
USER = 33
NAME = "entry"
OF_INGRESS_NGINX = "nginx.ingress.kubernetes.io/"
CONFIG = """
pid /tmp/nginx.pid;
error_log /dev/stderr warn;
events {{}}
http {{
  access_log off;
  client_body_temp_path /tmp/body; proxy_temp_path /tmp/proxy; fastcgi_temp_path /tmp/fastcgi;
  uwsgi_temp_path /tmp/uwsgi; scgi_temp_path /tmp/scgi;
  server {{
    listen {port} ssl;
    http2 on;
    server_name {host};
    ssl_certificate /tls/tls.crt;
    ssl_certificate_key /tls/tls.key;
    client_max_body_size {body};
    grpc_read_timeout {read}s;
    grpc_send_timeout {send}s;
{locations}
  }}
}}
"""


def config(ingress: Thing) -> str:
    """nginx's settings for an Ingress object. Raises KeyError where it lacks an annotation that the chart gives."""
    given = {
        key.removeprefix(OF_INGRESS_NGINX): value
        for key, value in ingress["metadata"]["annotations"].items()
        if key.startswith(OF_INGRESS_NGINX)
    }
    scheme = {"GRPC": "grpc", "GRPCS": "grpcs"}[given["backend-protocol"]]
    space = ingress["metadata"]["namespace"]
    [rule] = ingress["spec"]["rules"]
    locations = []
    for path in rule["http"]["paths"]:
        service = path["backend"]["service"]
        assert service["port"] == {"name": "grpc"}
        assert path["pathType"] == "Prefix"
        to = f"{scheme}://{service['name']}.{space}.svc.cluster.local:7400"
        locations.append(f"    location {path['path']}/ {{ grpc_pass {to}; }}")
    return CONFIG.format(
        port=PORT,
        host=rule["host"],
        body=given["proxy-body-size"],
        read=given["proxy-read-timeout"],
        send=given["proxy-send-timeout"],
        locations="\n".join(locations),
    )


def run(release: Release, ingress: Thing, space: str) -> None:
    """Run it in a namespace of its own, behind a Service of its name on port 443; the certificate is that of a Secret
    which is there, `entry`."""
    api, at = release.api, f"/api/v1/namespaces/{space}"
    api.create(f"{at}/configmaps", {"metadata": {"name": NAME}, "data": {"nginx.conf": config(ingress)}})
    container: dict[str, Any] = {
        "name": "nginx",
        "image": "docker.io/local/nginx:1",
        "args": ["-c", "/config/nginx.conf"],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "config", "mountPath": "/config"},
            {"name": "tls", "mountPath": "/tls", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    security = {"runAsNonRoot": True, "runAsUser": USER, "fsGroup": USER, "seccompProfile": {"type": "RuntimeDefault"}}
    volumes = [
        {"name": "config", "configMap": {"name": NAME}},
        {"name": "tls", "secret": {"secretName": NAME, "defaultMode": 0o440}},
        {"name": "tmp", "emptyDir": {}},
    ]
    spec = {"containers": [container], "securityContext": security, "volumes": volumes}
    api.create(f"{at}/pods", {"metadata": {"name": NAME, "labels": {"app": NAME}}, "spec": spec})
    service = {"selector": {"app": NAME}, "ports": [{"name": "https", "port": 443, "targetPort": PORT}]}
    api.create(f"{at}/services", {"metadata": {"name": NAME}, "spec": service})

    def is_ready() -> bool:
        return any(one["ready"] for one in api.get(f"{at}/pods/{NAME}")["status"].get("containerStatuses", []))

    until("nginx is ready", READY_S, is_ready)
