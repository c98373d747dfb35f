"""The furniture of a cluster, there from the start: names, and volumes for whoever claims one."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.api import Api, Thing, until

from .inside import DNS_ADDRESS
from .node import NAME

VOLUMES = 8
READY_S = 120
SYSTEM = "/api/v1/namespaces/kube-system"
COREFILE = """.:53 {
    errors
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
    }
    cache 5
}
"""
"""There is nothing outside to ask."""


def furnish(api: Api, folder: Path) -> None:
    """Make it, and wait until names are answered."""
    _volumes(api, folder)
    _names(api)


def _volumes(api: Api, folder: Path) -> None:
    kind = {
        "metadata": {"name": "by-hand", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    api.create("/apis/storage.k8s.io/v1/storageclasses", kind)
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NAME]}
    for number in range(VOLUMES):
        path = folder / "volumes" / str(number)
        path.mkdir(parents=True)
        spec = {
            "capacity": {"storage": "8Gi"},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "storageClassName": "by-hand",
            # Unlike with a path of the host, the kubelet gives it to the pod's group.
            "local": {"path": str(path)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        }
        api.create("/api/v1/persistentvolumes", {"metadata": {"name": f"volume-{number}"}, "spec": spec})


def _names(api: Api) -> None:
    api.create(f"{SYSTEM}/serviceaccounts", {"metadata": {"name": "coredns"}})
    reads = [
        {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    rights = "/apis/rbac.authorization.k8s.io/v1"
    api.create(f"{rights}/clusterroles", {"metadata": {"name": "coredns"}, "rules": reads})
    binding = {
        "metadata": {"name": "coredns"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "coredns"},
        "subjects": [{"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}],
    }
    api.create(f"{rights}/clusterrolebindings", binding)
    api.create(f"{SYSTEM}/configmaps", {"metadata": {"name": "coredns"}, "data": {"Corefile": COREFILE}})
    path = "/apis/apps/v1/namespaces/kube-system/deployments"
    api.create(path, {"metadata": {"name": "coredns"}, "spec": _coredns()})
    ports = [{"name": f"dns-{protocol.lower()}", "port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    service = {"clusterIP": DNS_ADDRESS, "selector": {"k8s-app": "kube-dns"}, "ports": ports}
    api.create(f"{SYSTEM}/services", {"metadata": {"name": "kube-dns"}, "spec": service})
    until("names are answered", READY_S, lambda: api.get(f"{path}/coredns").get("status", {}).get("readyReplicas") == 1)


def _coredns() -> Thing:
    container = {
        "name": "coredns",
        "image": "docker.io/local/coredns:1",
        "imagePullPolicy": "Never",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "securityContext": {"capabilities": {"add": ["NET_BIND_SERVICE"]}, "runAsUser": 0},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
    }
    labels = {"k8s-app": "kube-dns"}
    spec = {
        "serviceAccountName": "coredns",
        "dnsPolicy": "Default",
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
    }
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
