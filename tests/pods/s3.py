"""An object store that speaks S3, in a namespace of its own, as somebody else would run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyarrow import fs
from tests.cluster.api import Api, Thing, until

READY_S = 120
PORT = 9000
"""Not HTTPS's: what is run in a cluster seldom listens there."""
BUCKET = "lake"
ID, KEY, REGION = "anabranch", "a-long-secret-of-the-lake", "us-east-1"
USER = 65534


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """``url``: where it is found by everybody in the cluster; ``server``: the same for Arrow, from out here."""

    url: str
    files: fs.S3FileSystem

    def credentials(self) -> dict[str, str]:
        """The variables that Arrow reads."""
        return {
            "AWS_ACCESS_KEY_ID": ID,
            "AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.url,
        }

    def names(self) -> list[str]:
        """Every object of the bucket, by its path."""
        found = self.files.get_file_info(fs.FileSelector(BUCKET, recursive=True))
        return [one.path for one in found if one.is_file]


def run(api: Api, space: str) -> ObjectStore:
    """Run it in a namespace that is there, with an empty bucket."""
    container: dict[str, Any] = {
        "name": "s3",
        "image": "docker.io/local/s3:1",
        "args": ["--port", f":{PORT}", "--quiet", "posix", "/data"],
        "env": [{"name": "ROOT_ACCESS_KEY", "value": ID}, {"name": "ROOT_SECRET_KEY", "value": KEY}],
        "ports": [{"name": "s3", "containerPort": PORT}],
        "readinessProbe": {"tcpSocket": {"port": "s3"}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    security = {"runAsNonRoot": True, "runAsUser": USER, "fsGroup": USER, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"containers": [container], "securityContext": security, "volumes": [{"name": "data", "emptyDir": {}}]}
    at = f"/api/v1/namespaces/{space}"
    api.create(f"{at}/pods", {"metadata": {"name": "s3", "labels": {"app": "s3"}}, "spec": spec})
    service = {"selector": {"app": "s3"}, "ports": [{"name": "s3", "port": PORT}]}
    api.create(f"{at}/services", {"metadata": {"name": "s3"}, "spec": service})

    def is_ready() -> bool:
        status: Thing = api.get(f"{at}/pods/s3")["status"]
        return any(one["ready"] for one in status.get("containerStatuses", []))

    until("the object store is ready", READY_S, is_ready)
    host = f"s3.{space}.svc.cluster.local:{PORT}"
    files = fs.S3FileSystem(
        access_key=ID,
        secret_key=KEY,
        region=REGION,
        scheme="http",
        endpoint_override=host,
        allow_bucket_creation=True,
    )
    files.create_dir(BUCKET, recursive=False)
    return ObjectStore(f"http://{host}", files)
