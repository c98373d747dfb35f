"""The objects that a pod needs in its namespace before a kubelet would start it."""

from __future__ import annotations

from collections.abc import Iterator

from .api import Api, Refused, Thing

Want = tuple[str, str, str]
"""Kind in the API's path, name, and the key that has to be in it ("": none in particular)."""


def first_missing(api: Api, pod: Thing) -> str | None:
    """The first need of a pod that is not met, in words; None where all are met."""
    space = pod["metadata"]["namespace"]
    for kind, name, key in wants(pod["spec"]):
        try:
            found = api.get(f"/api/v1/namespaces/{space}/{kind}/{name}")
        except Refused as refused:
            if refused.code != 404:
                raise
            return f"{kind} {name} is not there"
        if key and key not in found.get("data", {}):
            return f"{kind} {name} has no key {key}"
        if kind == "persistentvolumeclaims" and found["status"]["phase"] != "Bound":
            return f"{kind} {name} is not bound"
    return None


def wants(spec: Thing) -> Iterator[Want]:
    """All of it, of a pod's spec."""
    yield "serviceaccounts", spec.get("serviceAccountName", "default"), ""
    for secret in spec.get("imagePullSecrets", []):
        yield "secrets", secret["name"], ""
    for container in (*spec.get("initContainers", []), *spec["containers"]):
        yield from _of_container(container)
    for volume in spec.get("volumes", []):
        yield from _of_volume(volume)


def _of_container(container: Thing) -> Iterator[Want]:
    for source in container.get("envFrom", []):
        if "secretRef" in source and not source["secretRef"].get("optional"):
            yield "secrets", source["secretRef"]["name"], ""
        if "configMapRef" in source and not source["configMapRef"].get("optional"):
            yield "configmaps", source["configMapRef"]["name"], ""
    for variable in container.get("env", []):
        source = variable.get("valueFrom", {})
        for field, kind in (("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps")):
            if field in source and not source[field].get("optional"):
                yield kind, source[field]["name"], source[field]["key"]


def _of_volume(volume: Thing) -> Iterator[Want]:
    for field, kind, named in (("secret", "secrets", "secretName"), ("configMap", "configmaps", "name")):
        if field in volume and not volume[field].get("optional"):
            name = volume[field][named]
            yield kind, name, ""
            for item in volume[field].get("items", []):
                yield kind, name, item["key"]
    if "persistentVolumeClaim" in volume:
        yield "persistentvolumeclaims", volume["persistentVolumeClaim"]["claimName"], ""
