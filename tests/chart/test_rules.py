"""Golden rules: what holds of every object in every topology, whatever its values."""

from __future__ import annotations

import base64
import functools
import re
from collections import Counter
from typing import Any

import kubernetes_validate
import pytest
import yaml

from .conftest import CHART, KUBERNETES, Helm, Objects, of_kind, pod_specs, topologies, topology

SELECTOR_LABELS = {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"}
CUSTOM = {"ServiceMonitor", "PrometheusRule", "GRPCRoute", "BackendTLSPolicy", "Certificate"}
"""Kinds that Kubernetes itself has no schema for."""
OLDEST, NEWEST = "1.30", kubernetes_validate.latest_version()


@pytest.fixture(params=topologies())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def objects(helm: Helm, name: str) -> Objects:
    return _rendered(helm, name)


@functools.cache
def _rendered(helm: Helm, name: str) -> Objects:
    return helm.render(topology(name))


def test_there_are_enough_topologies() -> None:
    assert len(topologies()) >= 6


def test_lint(helm: Helm, name: str) -> None:
    file = CHART / "tests" / f"{name}.yaml"
    done = helm.run("lint", "--strict", str(CHART), "--kube-version", KUBERNETES, "--values", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_rendered_twice_it_is_the_same_text(helm: Helm, name: str) -> None:
    assert helm.fresh_text(topology(name)) == helm.fresh_text(topology(name))


@pytest.mark.slow
def test_every_object_fits_kubernetes_own_schema(objects: Objects) -> None:
    checked = Counter[str]()
    for one in objects:
        if one["kind"] in CUSTOM:
            continue
        for version in (OLDEST, NEWEST):
            kubernetes_validate.validate(one, version, strict=True)
        checked[one["kind"]] += 1
    assert checked["Deployment"] >= 3
    assert checked["ConfigMap"] >= 3
    for config in of_kind(objects, "ConfigMap").values():
        if "pod.yaml" in config["data"]:
            kubernetes_validate.validate(yaml.safe_load(config["data"]["pod.yaml"]), NEWEST, strict=True)


def test_the_schema_check_can_fail() -> None:
    wrong = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"porst": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, NEWEST, strict=True)


def test_names_are_unique_and_short_enough(objects: Objects) -> None:
    names = Counter((one["kind"], one["metadata"]["name"]) for one in objects)
    assert max(names.values()) == 1, names.most_common(3)
    for kind, name in names:
        assert len(name) <= (52 if kind == "CronJob" else 63), name
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name), name


def test_every_object_is_labelled(objects: Objects) -> None:
    for one in objects:
        labels = one["metadata"]["labels"]
        assert labels.keys() >= SELECTOR_LABELS | {"app.kubernetes.io/managed-by", "helm.sh/chart"}, one["metadata"]


def test_every_pod_satisfies_pod_security_restricted(objects: Objects) -> None:
    pods = pod_specs(objects)
    assert len(pods) >= 3
    for where, pod in pods.items():
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True, where
        assert security["runAsUser"] > 0, where
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, where
        assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC", "hostUsers"}, where
        for container in pod["containers"] + pod.get("initContainers", []):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False, where
            assert own["capabilities"] == {"drop": ["ALL"]}, where
            assert own["readOnlyRootFilesystem"] is True, where
            assert "privileged" not in own, where
            assert all("hostPort" not in port for port in container.get("ports", [])), where
        for volume in pod.get("volumes", []):
            kind = (volume.keys() - {"name"}).pop()
            assert kind in ("emptyDir", "secret", "configMap", "persistentVolumeClaim"), (where, volume)


def test_only_the_driver_of_executors_has_credentials_of_the_cluster(objects: Objects) -> None:
    for where, pod in pod_specs(objects).items():
        driver = where.startswith("CronJob/") and bool(of_kind(objects, "Role"))
        assert pod["automountServiceAccountToken"] is driver, where


def test_every_container_says_what_it_needs(objects: Objects) -> None:
    for where, pod in pod_specs(objects).items():
        if where.startswith("ConfigMap/"):
            continue  # Spark sets an executor's own.
        for container in pod["containers"]:
            resources = container["resources"]
            assert resources["requests"].keys() == {"cpu", "memory"}, where
            assert "memory" in resources["limits"], where


def test_what_is_written_is_bounded(objects: Objects) -> None:
    for where, pod in pod_specs(objects).items():
        for volume in pod.get("volumes", []):
            if "emptyDir" in volume:
                assert "sizeLimit" in volume["emptyDir"], (where, volume)


def test_what_a_pod_refers_to_is_there(objects: Objects) -> None:
    """Config maps, secrets of the chart, accounts, mounted volumes: each name leads somewhere."""
    made = {kind: of_kind(objects, kind).keys() for kind in ("ConfigMap", "Secret", "ServiceAccount")}
    foreign = {"db", "cluster-app", "tokens", "services-tls", "postgres-tls", "postgres-ca", "lake-credentials"}
    foreign |= {one["spec"]["secretName"] for one in of_kind(objects, "Certificate").values()}
    for where, pod in pod_specs(objects).items():
        account = pod.get("serviceAccountName", "default")
        assert account == "default" or account in made["ServiceAccount"], where
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        claims = {"data"} if where.startswith("StatefulSet/") else set()
        for volume in volumes.values():
            if "configMap" in volume:
                assert volume["configMap"]["name"] in made["ConfigMap"], where
            if "secret" in volume:
                assert volume["secret"]["secretName"] in made["Secret"] | foreign, where
        for container in pod["containers"]:
            mounts = [mount["name"] for mount in container.get("volumeMounts", [])]
            assert set(mounts) <= volumes.keys() | claims, where
            assert volumes.keys() <= set(mounts), f"{where}: a volume that nobody mounts"
            for source in container.get("envFrom", []):
                if "configMapRef" in source:
                    assert source["configMapRef"]["name"] in made["ConfigMap"], where
                else:
                    assert source["secretRef"]["name"] in made["Secret"] | foreign, where
            for variable in container.get("env", []):
                reference = variable.get("valueFrom", {}).get("secretKeyRef")
                if reference is not None and reference["name"] not in foreign:
                    secret = of_kind(objects, "Secret")[reference["name"]]
                    assert reference["key"] in secret["data"], where


def test_selectors_choose_exactly_their_pods(objects: Objects) -> None:
    pods: dict[str, dict[str, str]] = {}
    for one in objects:
        if one["kind"] in ("Deployment", "StatefulSet", "Job"):
            pods[one["metadata"]["name"]] = one["spec"]["template"]["metadata"]["labels"]
        if one["kind"] == "CronJob":
            pods[one["metadata"]["name"]] = one["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    for one in objects:
        spec = one.get("spec", {})
        if one["kind"] == "Service":
            wanted = spec["selector"]
        elif one["kind"] in ("Deployment", "StatefulSet", "PodDisruptionBudget"):
            wanted = spec["selector"]["matchLabels"]
        else:
            continue
        assert wanted.keys() == SELECTOR_LABELS, "a selector can't change, so nothing in it may"
        chosen = [name for name, labels in pods.items() if wanted.items() <= labels.items()]
        assert chosen == [one["metadata"]["name"]]


def test_services_lead_to_ports_that_pods_have(objects: Objects) -> None:
    specs = pod_specs(objects)
    for name, service in of_kind(objects, "Service").items():
        pod = next(spec for where, spec in specs.items() if where.endswith(f"/{name}") and "ConfigMap" not in where)
        ports = {port["name"] for container in pod["containers"] for port in container.get("ports", [])}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports, name


def test_a_drain_is_always_possible(objects: Objects) -> None:
    """P07: one replica has no budget, and every budget lets one pod go."""
    budgets = of_kind(objects, "PodDisruptionBudget")
    scalers = of_kind(objects, "HorizontalPodAutoscaler")
    for name, deployment in of_kind(objects, "Deployment").items():
        fewest = scalers[name]["spec"]["minReplicas"] if name in scalers else deployment["spec"]["replicas"]
        assert (name in budgets) == (fewest > 1), name
        assert ("replicas" in deployment["spec"]) == (name not in scalers), name
    for budget in budgets.values():
        assert budget["spec"]["maxUnavailable"] == 1
        assert "minAvailable" not in budget["spec"]


def test_a_pod_that_ends_is_given_its_drain(objects: Objects) -> None:
    for name, deployment in of_kind(objects, "Deployment").items():
        pod = deployment["spec"]["template"]["spec"]
        drain_ms = int(of_kind(objects, "ConfigMap")[name]["data"].get("ANABRANCH_DRAIN_MS", 10_000))
        sleep_s = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert pod["terminationGracePeriodSeconds"] >= sleep_s + drain_ms / 1000 + 10, name
        assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_readiness_asks_the_service_itself(objects: Objects, name: str) -> None:
    for deployment in of_kind(objects, "Deployment").values():
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        probe = container["readinessProbe"]
        if topology(name)["tls"].get("enabled") is not False:
            assert probe["exec"]["command"][:3] == ["python", "-m", "anabranch.runtime.health"]
        else:
            assert probe["grpc"] == {"port": 7400}
        # Whatever is wrong with Postgres, starting the process again does not mend it: every answer is good.
        alive = container["livenessProbe"]
        assert alive["exec"]["command"][:3] == ["python", "-m", "anabranch.runtime.health"]
        assert "--alive" in alive["exec"]["command"]
        assert alive["periodSeconds"] * alive["failureThreshold"] >= 120, "a machine may be busy for a while"
        assert container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"] >= 75


def test_pods_are_spread(objects: Objects) -> None:
    for name, deployment in of_kind(objects, "Deployment").items():
        spread = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert {one["topologyKey"] for one in spread} == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}
        for one in spread:
            labels = deployment["spec"]["template"]["metadata"]["labels"]
            assert one["labelSelector"]["matchLabels"].items() <= labels.items(), name
            assert one["whenUnsatisfiable"] == "ScheduleAnyway"


def test_every_pod_that_stays_has_a_policy(objects: Objects, name: str) -> None:
    policies = of_kind(objects, "NetworkPolicy")
    lasting = [*of_kind(objects, "Deployment"), *of_kind(objects, "StatefulSet"), *of_kind(objects, "CronJob")]
    if name == "url-secret":
        assert policies == {}
        return
    assert policies.keys() == set(lasting)
    for policy in policies.values():
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_no_password_stands_outside_of_secrets(name: str, objects: Objects) -> None:
    values = topology(name)
    given = [
        values.get("postgres", {}).get("password"),
        values.get("bundledPostgres", {}).get("password"),
        values.get("auth", {}).get("hs256", {}).get("secret"),
    ]
    for secret in filter(None, given):
        coded = base64.b64encode(secret.encode()).decode()
        holders = [one["kind"] for one in objects if coded in yaml.safe_dump(one, width=10_000)]
        assert holders, "it is nowhere"
        assert set(holders) == {"Secret"}
        for one in objects:
            for text in _texts(one):
                assert secret not in text, (one["kind"], one["metadata"]["name"])


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for part in value.values() for text in _texts(part)]
    if isinstance(value, list):
        return [text for part in value for text in _texts(part)]
    return [value] if isinstance(value, str) else []


def test_the_migration_needs_nothing_that_is_not_there_yet(objects: Objects, name: str) -> None:
    jobs = of_kind(objects, "Job")
    if name == "url-secret":
        assert jobs == {}
        return
    [job] = jobs.values()
    hook = job["metadata"].get("annotations", {}).get("helm.sh/hook")
    if name == "trial":
        assert hook is None, "the bundled Postgres is not there before the install"
        return
    assert hook == "pre-install,pre-upgrade"
    assert job["metadata"]["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation", "one Job is left"
    pod = job["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "default"
    early = {
        one["metadata"]["name"]
        for one in objects
        if one["kind"] == "Secret" and "pre-install" in one["metadata"].get("annotations", {}).get("helm.sh/hook", "")
    }
    for variable in pod["containers"][0]["env"]:
        reference = variable.get("valueFrom", {}).get("secretKeyRef")
        if reference is not None:
            assert reference["name"] in early | {"db", "cluster-app"}
    for secret in early:
        weights = of_kind(objects, "Secret")[secret]["metadata"]["annotations"]
        assert int(weights["helm.sh/hook-weight"]) < int(job["metadata"]["annotations"]["helm.sh/hook-weight"])
        assert "hook-succeeded" in weights["helm.sh/hook-delete-policy"], "no password is left behind by an uninstall"
