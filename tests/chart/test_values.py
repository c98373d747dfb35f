"""Each value has its effect or is refused, and values are the settings of the services."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
from types import ModuleType
from typing import Any

import psycopg.conninfo
import pytest
import yaml
from tests.tools import load_tool

from anabranch.runtime.config import ServiceSettings, load_settings

from .cluster import cluster
from .conftest import CHART, PLAIN, Helm, Objects, of_kind, pod_specs, topologies, topology

NASTY = "p@:/#?%[]&$() 'x\" \\ $(HOME) $$ {{ .Values }} ü"


@pytest.fixture(scope="module")
def chart_tool() -> ModuleType:
    return load_tool("chart")


def _env(objects: Objects, where: str) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in pod_specs(objects)[where]["containers"][0]["env"]}


def _expanded(value: str) -> str:
    """A variable's plain value as the kubelet gives it, where no other variable is defined: $$ is a dollar sign, and
    $(NAME) of no such name stays."""
    return re.sub(r"\$(\$|\([^)]*\))", lambda found: "$" if found[1] == "$" else found[0], value)


def test_readme_and_schema_are_current(chart_tool: ModuleType) -> None:
    assert chart_tool.main(["check"]) == 0


def test_a_value_without_a_comment_is_found(
    chart_tool: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    bare = tmp_path / "values.yaml"
    bare.write_text("# Said.\none: 1\n\ntwo: 2\n")
    monkeypatch.setattr(chart_tool, "VALUES", bare)
    with pytest.raises(chart_tool.ChartError, match="two has no comment"):
        chart_tool.readme_text()


@pytest.mark.parametrize("password", [NASTY, "p@:/#?%[]&$() ", "$(POSTGRES_PASSWORD)", "'", "\\"])
@pytest.mark.parametrize("where", ["Deployment/rel-anabranch-ingest", "Job/rel-anabranch-migration"])
def test_a_password_of_any_characters_arrives_as_it_is(helm: Helm, password: str, where: str) -> None:

    values = {**PLAIN, "postgres": {"host": "db", "user": NASTY, "database": NASTY, "password": password}}
    objects = helm.render(values)
    env = _env(objects, where)
    reference = env["PGPASSWORD"]["valueFrom"]["secretKeyRef"]
    stored = of_kind(objects, "Secret")[reference["name"]]["data"][reference["key"]]
    assert base64.b64decode(stored).decode() == password
    found = psycopg.conninfo.conninfo_to_dict(_expanded(env["ANABRANCH_POSTGRES_URL"]["value"]))
    assert found == {"host": "db", "port": "5432", "dbname": NASTY, "user": NASTY, "sslmode": "require"}


def test_a_whole_url_comes_from_its_secret(helm: Helm) -> None:
    env = _env(helm.render(topology("url-secret")), "Deployment/rel-anabranch-snapshot")
    assert env["ANABRANCH_POSTGRES_URL"]["valueFrom"]["secretKeyRef"] == {"name": "cluster-app", "key": "uri"}
    assert "PGPASSWORD" not in env


def test_parameters_of_the_connection(helm: Helm) -> None:
    env = _env(helm.render(topology("public")), "Deployment/rel-anabranch-ingest")
    found = psycopg.conninfo.conninfo_to_dict(_expanded(env["ANABRANCH_POSTGRES_URL"]["value"]))
    assert found["application_name"] == "an app"
    assert found["options"] == "-c geqo=off"


@pytest.mark.parametrize("name", ["public", "minimal", "single", "trial", "gateway-tls", "cert-manager"])
def test_services_take_the_settings_that_the_chart_gives(
    helm: Helm, chart_tool: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each service's own settings class reads its ConfigMap; it would refuse what does not fit together."""
    objects = helm.render(topology(name))
    modules = {package: chart_tool.settings_class(package) for package in chart_tool.SETTINGS.values()}
    deployments = of_kind(objects, "Deployment")
    for one, deployment in deployments.items():
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        data = of_kind(objects, "ConfigMap")[one]["data"]
        settings: type[ServiceSettings] = modules[container["command"][2]]
        known = {f"ANABRANCH_{field.upper()}" for field in settings.model_fields}
        assert data.keys() <= known
        with monkeypatch.context() as environment:
            for key, value in data.items():
                environment.setenv(key, value)
            environment.setenv("ANABRANCH_POSTGRES_URL", "host=x")
            loaded = load_settings(settings)
        assert loaded.listen_address == "0.0.0.0:7400"
        assert loaded.tls is (name in ("minimal", "gateway-tls", "cert-manager"))
        if name == "public":
            assert loaded.log_level == "warning"
            assert loaded.otlp_endpoint == "http://collector.telemetry:4317"
            assert loaded.drain_ms == (25_000 if one.endswith("ingest") else 10_000)


def test_large_numbers_stay_whole(helm: Helm) -> None:
    data = of_kind(helm.render(topology("public")), "ConfigMap")["rel-anabranch-ingest"]["data"]
    assert data["ANABRANCH_QUEUE_MAX_BYTES"] == "268435456"


def test_a_changed_setting_starts_new_pods(helm: Helm) -> None:
    def annotations(**settings: Any) -> Any:
        values = topology("minimal") | {"services": {"ingest": {"settings": settings}}}
        return {
            name: one["spec"]["template"]["metadata"]["annotations"]["checksum/settings"]
            for name, one in of_kind(helm.render(values), "Deployment").items()
        }

    before, after = annotations(), annotations(wait_max_ms=1000)
    assert {name for name in before if before[name] != after[name]} == {"rel-anabranch-ingest"}


@pytest.mark.parametrize("name", topologies())
def test_helm_test_has_a_pod(helm: Helm, name: str) -> None:
    """It is in the chart as it is packed: what `.helmignore` names is not rendered, and nobody says so."""
    values = topology(name)
    hooks = {
        pod["metadata"]["annotations"]["helm.sh/hook"]: pod["spec"]["containers"][0]["command"][:2]
        for pod in of_kind(helm.render({**values, "test": {"enabled": True}}), "Pod").values()
    }
    assert hooks == {"test": ["anabranch", "smoke"]}
    assert not of_kind(helm.render({**values, "test": {"enabled": False}}), "Pod")


ROUTES = {
    "anabranch.v1.IngestService": "rel-anabranch-ingest",
    "anabranch.v1.ConflictResolverService": "rel-anabranch-conflict-resolver",
    "anabranch.v1.ChangeService": "rel-anabranch-snapshot",
    "anabranch.v1.SnapshotService": "rel-anabranch-snapshot",
    "anabranch.v1.RetentionJanitorService": "rel-anabranch-retention-janitor",
}


def test_the_ingress_routes_by_service_name(helm: Helm) -> None:
    [ingress] = of_kind(helm.render(topology("public")), "Ingress").values()
    [rule] = ingress["spec"]["rules"]
    found = {path["path"]: path["backend"]["service"]["name"] for path in rule["http"]["paths"]}
    assert found == {f"/{service}": name for service, name in ROUTES.items()}


def test_the_gateway_routes_by_service_name(helm: Helm) -> None:
    [route] = of_kind(helm.render(topology("gateway-tls")), "GRPCRoute").values()
    found = {
        match["method"]["service"]: rule["backendRefs"][0]["name"]
        for rule in route["spec"]["rules"]
        for match in rule["matches"]
    }
    assert found == ROUTES


def test_every_public_service_of_the_contract_has_a_route() -> None:
    declared = set()
    for file in (CHART.parents[1] / "protos").rglob("*.proto"):
        declared |= {f"anabranch.v1.{name}" for name in re.findall(r"^service (\w+)", file.read_text(), re.MULTILINE)}
    assert declared == ROUTES.keys()


def test_policies_name_the_peers_that_are_given(helm: Helm) -> None:
    policy = of_kind(helm.render(topology("public")), "NetworkPolicy")["rel-anabranch-ingest"]["spec"]
    by_port = {rule["ports"][0]["port"]: rule.get("from") for rule in policy["ingress"]}
    assert by_port["grpc"][0] == {"namespaceSelector": {"matchLabels": {"name": "ingress"}}}
    assert by_port["grpc"][1]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "smoke"
    assert by_port["metrics"] == [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    egress = {rule["ports"][0]["port"]: rule.get("to") for rule in policy["egress"]}
    assert egress.keys() == {53, 5432, 4317, 443}, "names, Postgres, the collector, the tokens' keys"
    assert egress[5432] == [{"ipBlock": {"cidr": "192.0.2.0/24"}}]


def test_the_compactor_in_one_pod_has_no_rights(helm: Helm) -> None:
    objects = helm.render(topology("compact-local"))
    assert not of_kind(objects, "Role")
    [job] = of_kind(objects, "CronJob").values()
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    container = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]
    assert container["args"] == ["--root", "/var/lib/anabranch/lake", "--json"]
    conf = of_kind(objects, "ConfigMap")["rel-anabranch-compactor"]["data"]["spark-defaults.conf"]
    assert conf == "spark.sql.shuffle.partitions 8\n"


LAKE = {"name": "lake", "mountPath": "/var/lib/anabranch", "readOnly": True}
READERS = {"Deployment/rel-anabranch-snapshot", "Deployment/rel-anabranch-retention-janitor"}


def test_a_lake_on_a_volume_is_mounted_to_read_by_those_who_read_it_and_nobody_else(helm: Helm) -> None:
    pods = pod_specs(helm.render(topology("compact-local")))
    services = {where: pod for where, pod in pods.items() if where.startswith("Deployment/")}
    assert services.keys() > READERS
    for where, pod in services.items():
        mounted = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "lake"]
        volumes = [volume for volume in pod["volumes"] if volume["name"] == "lake"]
        assert mounted == ([LAKE] if where in READERS else []), where
        assert volumes == (
            [{"name": "lake", "persistentVolumeClaim": {"claimName": "lake"}}] if where in READERS else []
        ), where


@pytest.mark.parametrize("port", [443, 9000])
def test_a_lake_in_an_object_store_is_reached_by_those_who_read_it_and_nobody_else(helm: Helm, port: int) -> None:
    values = {**topology("compact-pods"), "networkPolicy": {"enabled": True, "objectStorePort": port}}
    objects = helm.render(values)
    policies = of_kind(objects, "NetworkPolicy")
    [opened] = [rule["ports"] for rule in policies["rel-anabranch-compactor"]["spec"]["egress"] if 6443 in _ports(rule)]
    assert [one["port"] for one in opened] == sorted({port, 443, 6443}, key=[port, 443, 6443].index)
    for where, pod in pod_specs(objects).items():
        if not where.startswith("Deployment/"):
            continue
        secrets = [one["secretRef"]["name"] for one in pod["containers"][0]["envFrom"] if "secretRef" in one]
        assert secrets == (["lake-credentials"] if where in READERS else []), where
        assert not [volume for volume in pod["volumes"] if volume["name"] == "lake"], where
        egress = of_kind(objects, "NetworkPolicy")[where.partition("/")[2]]["spec"]["egress"]
        assert any(port in _ports(rule) for rule in egress) is (where in READERS), where


def _ports(rule: dict[str, Any]) -> set[int]:
    return {one["port"] for one in rule.get("ports", [])}


def test_the_janitor_is_there_unless_it_is_turned_off_and_has_no_lake_without_a_compactor(helm: Helm) -> None:
    values = {**PLAIN, "postgres": {"host": "db", "password": "x"}}
    pods = pod_specs(helm.render(values))
    assert pods.keys() >= READERS
    for where in READERS:
        assert not [volume for volume in pods[where]["volumes"] if volume["name"] == "lake"]
    off = {**values, "services": {"retentionJanitor": {"enabled": False}}}
    assert "Deployment/rel-anabranch-retention-janitor" not in pod_specs(helm.render(off))


def test_the_compactor_with_executors(helm: Helm) -> None:
    objects = helm.render(topology("compact-pods"))
    conf = of_kind(objects, "ConfigMap")["rel-anabranch-compactor"]["data"]["spark-defaults.conf"]
    settings = dict(line.split(" ", 1) for line in conf.splitlines())
    assert settings["spark.driver.host"] == "rel-anabranch-compactor.space.svc"
    service = of_kind(objects, "Service")["rel-anabranch-compactor"]["spec"]
    assert {port["port"] for port in service["ports"]} == {
        int(settings["spark.driver.port"]),
        int(settings["spark.driver.blockManager.port"]),
    }
    accounts = of_kind(objects, "ServiceAccount").keys()
    assert settings["spark.kubernetes.authenticate.driver.serviceAccountName"] in accounts
    assert settings["spark.kubernetes.authenticate.executor.serviceAccountName"] in accounts
    assert settings["spark.kubernetes.executor.useDriverPodIP"] == "false", "or executors call 0.0.0.0"
    assert (settings["spark.executor.memory"], settings["spark.executor.memoryOverhead"]) == ("1g", "1g")
    assert settings["spark.kubernetes.executor.request.cores"] == "500m"


def test_the_compactor_may_do_with_pods_what_spark_does_and_nothing_else(helm: Helm) -> None:
    objects = helm.render(topology("compact-pods"))
    [role] = of_kind(objects, "Role").values()
    [rule] = role["rules"]
    assert rule["resources"] == ["pods"]
    conf = of_kind(objects, "ConfigMap")["rel-anabranch-compactor"]["data"]["spark-defaults.conf"]
    settings = dict(line.split(" ", 1) for line in conf.splitlines())
    # Spark would ask for ConfigMaps, claims and Services beside.
    assert settings["spark.kubernetes.executor.disableConfigMap"] == "true"
    for name in ("ownPersistentVolumeClaim", "reusePersistentVolumeClaim", "service.deleteOnTermination"):
        assert settings[f"spark.kubernetes.driver.{name}"] == "false"


def test_executors_belong_to_the_pod_of_their_driver(helm: Helm) -> None:
    objects = helm.render(topology("compact-pods"))
    conf = of_kind(objects, "ConfigMap")["rel-anabranch-compactor"]["data"]["spark-defaults.conf"]
    assert "spark.kubernetes.driver.pod.name ${env:POD_NAME}" in conf.splitlines()
    name = _env(objects, "CronJob/rel-anabranch-compactor")["POD_NAME"]
    assert name["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}


def test_spark_finds_its_scratch_volume_and_adds_none(helm: Helm) -> None:
    """It takes mounts whose volume has a name that begins so; beside any other it mounts its own at the same path."""
    objects = helm.render(topology("compact-pods"))
    for where in ("CronJob/rel-anabranch-compactor", "ConfigMap/rel-anabranch-compactor"):
        pod = pod_specs(objects)[where]
        [container] = pod["containers"]
        [mount] = [one for one in container["volumeMounts"] if one["name"].startswith("spark-local-dir-")]
        assert mount["mountPath"] == _env(objects, where)["SPARK_LOCAL_DIRS"]["value"]
        assert mount["name"] in {volume["name"] for volume in pod["volumes"]}


def test_executors_start_by_a_program_of_the_image(helm: Helm) -> None:
    pod = pod_specs(helm.render(topology("compact-pods")))["ConfigMap/rel-anabranch-compactor"]
    python, m, module = pod["containers"][0]["command"]
    assert (python, m) == ("python", "-m")
    assert importlib.util.find_spec(module) is not None


def test_a_migration_waits_for_a_postgres_that_comes_with_it(helm: Helm) -> None:
    jobs = of_kind(helm.render(topology("trial")), "Job").values()
    assert jobs
    for job in jobs:
        command = job["spec"]["template"]["spec"]["containers"][0]["command"]
        assert command == ["anabranch", "database", "migrate", "--wait-s", "60"]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "no Postgres"),
        ({"postgres": {"host": "db", "existingSecret": {"name": "s"}}}, "give urlKey or passwordKey"),
        ({"postgres": {"host": "db", "existingSecret": {"name": "s", "urlKey": "u", "passwordKey": "p"}}}, "one of"),
        ({"postgres": {"host": "db", "existingSecret": {"urlKey": "u"}}}, "existingSecret.name is missing"),
        (
            {"postgres": {"host": "db", "password": "x", "existingSecret": {"name": "s", "passwordKey": "p"}}},
            "postgres.password and postgres.existingSecret",
        ),
        ({"postgres": {"host": "db"}, "bundledPostgres": {"enabled": True, "password": "x"}}, "choose one"),
        ({"postgres": {"host": "db"}, "ingress": {"enabled": True}}, "host and tlsSecret"),
        ({"postgres": {"host": "db"}, "gateway": {"enabled": True}}, "gateway.parentRefs"),
        ({"postgres": {"host": "db"}, "auth": {"hs256": {"enabled": True, "secret": "short"}}}, "32 bytes"),
        ({"postgres": {"host": "db"}, "tls": {"secretName": "t"}}, "tls.serverName"),
        (
            {"postgres": {"host": "db"}, "tls": {"enabled": False, "secretName": "t", "serverName": "x"}},
            "tls.enabled is false",
        ),
        (
            {
                "postgres": {"host": "db"},
                "tls": {"secretName": "t", "serverName": "x", "certManager": {"issuer": {"name": "i"}}},
            },
            "give one of them",
        ),
        (
            {
                "postgres": {"host": "db"},
                "tls": {"secretName": "t", "serverName": "x"},
                "gateway": {"enabled": True, "parentRefs": [{"name": "public"}]},
            },
            "gateway.backendTls.caConfigMap",
        ),
        ({"postgres": {"host": "db", "sslMode": "verify-full"}}, "postgres.ca.secretName"),
        ({"postgres": {"ca": {"secretName": "x"}}, "bundledPostgres": {"enabled": True}}, "bundledPostgres.tlsSecret"),
        (
            {"postgres": {"host": "db"}, "serviceMonitor": {"enabled": True}, "telemetry": {"prometheus": False}},
            "serviceMonitor.enabled needs telemetry.prometheus",
        ),
        ({"postgres": {"host": "db"}, "compactor": {"enabled": True}}, "compactor.volumeClaim"),
        (
            {"postgres": {"host": "db"}, "compactor": {"enabled": True, "root": "/data", "volumeClaim": "x"}},
            "/var/lib/anabranch",
        ),
        (
            {
                "postgres": {"host": "db"},
                "services": {"ingest": {"autoscaling": {"enabled": True, "minReplicas": 9, "maxReplicas": 3}}},
            },
            "services.ingest.autoscaling",
        ),
    ],
)
def test_values_that_do_not_fit_together(helm: Helm, values: dict[str, Any], told: str) -> None:
    assert told in helm.refusal(values)


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"postgress": {}}, "postgress"),
        ({"postgres": {"host": "db", "pasword": "x"}}, "pasword"),
        ({"postgres": {"host": "db", "port": "5432"}}, "port"),
        ({"services": {"ingest": {"settings": {"append_max_batch": 1}}}}, "append_max_batch"),
        ({"services": {"ingest": {"settings": {"append_max_batches": 0}}}}, "append_max_batches"),
        ({"services": {"snapshot": {"settings": {"append_max_batches": 1}}}}, "append_max_batches"),
        ({"services": {"defaults": {"settings": {"log_level": "loud"}}}}, "log_level"),
        ({"services": {"defaults": {"settings": {"postgres_url": "host=x"}}}}, "postgres_url"),
        ({"services": {"ingest": {"replica": 3}}}, "replica"),
        ({"compactor": {"mode": "yarn"}}, "mode"),
        ({"image": {"digest": "sha256:123"}}, "digest"),
        ({"telemetry": {"otlpEndpoint": "collector:4317"}}, "otlpEndpoint"),
        ({"postgres": {"parameters": {"password": "x"}}}, "password"),
        ({"postgres": {"sslMode": "none"}}, "sslMode"),
        ({"tls": {"enabled": "yes"}}, "enabled"),
    ],
)
def test_the_schema_refuses_by_name(helm: Helm, values: dict[str, Any], path: str) -> None:
    told = helm.refusal(values)
    assert "values don't meet the specifications of the schema" in told
    assert path in told


def test_the_schema_knows_every_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    _compare(values, schema, schema, "")


def _compare(values: Any, schema: dict[str, Any], root: dict[str, Any], path: str) -> None:
    parts = [schema, *schema.get("allOf", [])]
    parts = [root["definitions"][part["$ref"].split("/")[-1]] if "$ref" in part else part for part in parts]
    assert any(part.keys() & {"type", "enum"} for part in parts), f"{path}: anything goes"
    properties = {key: value for part in parts for key, value in part.get("properties", {}).items()}
    if not properties or not isinstance(values, dict):
        return
    assert any(part.get("additionalProperties") is False for part in parts), path
    assert values.keys() <= properties.keys(), path
    if not path.startswith("services.") or path == "services.defaults":
        assert properties.keys() - values.keys() <= {"global"}, path
    for key, value in values.items():
        _compare(value, properties[key], root, f"{path}.{key}".lstrip("."))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trial", "public", "minimal", "gateway-tls"])
def test_notes_say_what_to_do_next(helm: Helm, name: str) -> None:
    with cluster() as where:
        done = helm.dry_install(where.address, "--values", str(CHART / "tests" / f"{name}.yaml"))
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    assert "helm -n space test rel" in notes
    assert "exec deploy/rel-anabranch-ingest -- anabranch database create" in notes
    assert ("sync.example.org:443" in notes) == (name in ("public", "gateway-tls"))
    assert ("port-forward" in notes) == (name in ("trial", "minimal"))
    assert ("anabranch database writer anabranch_writer" in notes) == (name != "trial"), "the bundled one's is made"


def test_the_resolver_alone_has_the_role_that_groups_are_committed_as(helm: Helm) -> None:
    values = {
        "postgres": {"host": "db", "password": "x", "writerSecret": {"name": "writer"}},
        "tls": {"enabled": False},
    }
    for where, pod in pod_specs(helm.render(values)).items():
        given = {one["name"]: one for one in pod["containers"][0]["env"]}.get("ANABRANCH_WRITER_POSTGRES_URL")
        if where == "Deployment/rel-anabranch-conflict-resolver":
            assert given is not None
            assert given["valueFrom"] == {"secretKeyRef": {"name": "writer", "key": "url"}}
        else:
            assert given is None, where


def test_a_writer_and_trust_in_owners_are_a_choice(helm: Helm) -> None:
    """With the bundled Postgres, whose role is a superuser, the resolver makes one, without a value."""
    trusting = {"services": {"conflictResolver": {"settings": {"trust_owners": True}}}}
    values = {"postgres": {"host": "db", "password": "x"}, "tls": {"enabled": False}, **trusting}
    assert helm.render(values)
    values["postgres"] = {"host": "db", "password": "x", "writerSecret": {"name": "writer"}}
    assert "choose one" in helm.refusal(values)
    for pod in pod_specs(helm.render(topology("trial"))).values():
        given = [one["name"] for one in pod["containers"][0].get("env", [])]
        assert not any("WRITER" in name or "TRUST" in name for name in given)
