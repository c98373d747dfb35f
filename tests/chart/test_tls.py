"""TLS is the default, to Postgres and to the services; plaintext has to be asked for by name."""

from __future__ import annotations

import base64
from typing import Any

import psycopg.conninfo
import pytest
from cryptography import x509

from .cluster import Cluster, cluster
from .conftest import Helm, Objects, of_kind, pod_specs, topologies, topology

DATABASE = {"postgres": {"host": "db", "existingSecret": {"name": "s", "passwordKey": "p"}}}
SPEAKS_PLAINTEXT = "ANABRANCH_ALLOW_PLAINTEXT_BEYOND_LOOPBACK"


def against(helm: Helm, where: Cluster, values: dict[str, Any], *more: str) -> Objects:
    known = ("--api-versions", "v1/Secret")
    return helm.render(values, "--dry-run=server", "--kube-apiserver", where.address, *known, *more)


def settings(objects: Objects) -> list[dict[str, str]]:
    maps = of_kind(objects, "ConfigMap")
    return [maps[name]["data"] for name in of_kind(objects, "Deployment")]


def ways_to_postgres(objects: Objects) -> dict[str, tuple[str, str | None]]:
    """Every pod's sslmode and authority, by kind and name."""
    found = {}
    for where, pod in pod_specs(objects).items():
        for container in pod["containers"]:
            env = {one["name"]: one.get("value") for one in container.get("env", [])}
            if "ANABRANCH_POSTGRES_URL" not in env:
                continue
            url = env["ANABRANCH_POSTGRES_URL"]
            mode = str(psycopg.conninfo.conninfo_to_dict(url)["sslmode"] if url else env["PGSSLMODE"])
            authority = env.get("PGSSLROOTCERT")
            if authority is not None:
                [mount] = [one for one in container["volumeMounts"] if one["name"] == "postgres-ca"]
                [volume] = [one for one in pod["volumes"] if one["name"] == "postgres-ca"]
                assert authority == f"{mount['mountPath']}/{volume['secret']['items'][0]['path']}"
                authority = f"{volume['secret']['secretName']}/{volume['secret']['items'][0]['key']}"
            found[where] = (mode, authority)
    return found


def certificate(secret: dict[str, Any], key: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(base64.b64decode(secret["data"][key]))


def test_with_nothing_said_everything_is_encrypted(helm: Helm) -> None:
    with cluster() as where:
        objects = against(helm, where, DATABASE)
    for data in settings(objects):
        assert data["ANABRANCH_TLS_CERT_FILE"] == "/etc/anabranch/tls/tls.crt"
        assert SPEAKS_PLAINTEXT not in data
    assert set(ways_to_postgres(objects).values()) == {("require", None)}
    secret = of_kind(objects, "Secret")["rel-anabranch-tls"]
    server, authority = certificate(secret, "tls.crt"), certificate(secret, "ca.crt")
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(
        x509.DNSName
    )
    for name, service in of_kind(objects, "Service").items():
        assert {name, f"{name}.space", f"{name}.space.svc", f"{name}.space.svc.cluster.local"} <= set(names)
        assert "appProtocol" not in service["spec"]["ports"][0]
    for name, deployment in of_kind(objects, "Deployment").items():
        pod = deployment["spec"]["template"]["spec"]
        probe = pod["containers"][0]["readinessProbe"]["exec"]["command"]
        assert probe[probe.index("--server-name") + 1] in names, name
        assert probe[probe.index("--ca-file") + 1] == "/etc/anabranch/tls/ca.crt"
        [volume] = [one for one in pod["volumes"] if one["name"] == "tls"]
        assert volume["secret"]["secretName"] == "rel-anabranch-tls"


@pytest.mark.parametrize("name", topologies())
def test_plaintext_is_there_only_where_it_was_named(helm: Helm, name: str) -> None:
    values = topology(name)
    named = values.get("tls", {}).get("enabled") is False
    objects = helm.render(values)
    assert all((SPEAKS_PLAINTEXT in data) is named for data in settings(objects))
    weak = {mode for mode, _ in ways_to_postgres(objects).values()} - {"require", "verify-full"}
    assert weak == ({values["postgres"]["sslMode"]} if values.get("postgres", {}).get("sslMode") else set())


@pytest.mark.parametrize("name", ["cert-manager", "gateway-tls", "trial"])
def test_an_authority_is_mounted_wherever_postgres_is_called(helm: Helm, name: str) -> None:
    ways = ways_to_postgres(helm.render(topology(name)))
    authority = {"cert-manager": "postgres-ca/root.crt", "gateway-tls": "postgres-ca/ca.crt"}
    assert set(ways.values()) == {("verify-full", authority.get(name, "postgres-tls/ca.crt"))}
    kinds = {where.partition("/")[0] for where in ways}
    assert kinds == {"Deployment", "Job", "Pod"} | ({"CronJob", "ConfigMap"} if name == "cert-manager" else set())


def test_a_url_of_ones_own_is_encrypted_unless_it_says_otherwise(helm: Helm) -> None:
    assert set(ways_to_postgres(helm.render(topology("url-secret"))).values()) == {("require", None)}


def test_cert_manager_makes_the_certificate_where_an_issuer_is_named(helm: Helm) -> None:
    objects = helm.render(topology("cert-manager"))
    [made] = of_kind(objects, "Certificate").values()
    assert made["spec"]["secretName"] == "rel-anabranch-tls"
    assert made["spec"]["issuerRef"] == {"name": "internal", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    assert {"rel-anabranch-ingest", "rel-anabranch-snapshot.space.svc", "sync.internal.example.org"} <= set(
        made["spec"]["dnsNames"]
    )
    assert "rel-anabranch-tls" not in of_kind(objects, "Secret")


def test_the_gateway_speaks_tls_to_the_pods(helm: Helm) -> None:
    policies = of_kind(helm.render(topology("gateway-tls")), "BackendTLSPolicy")
    assert policies.keys() == of_kind(helm.render(topology("gateway-tls")), "Service").keys()
    for name, policy in policies.items():
        [target] = policy["spec"]["targetRefs"]
        assert (target["name"], target["sectionName"]) == (name, "grpc")
        assert policy["spec"]["validation"]["hostname"] == "anabranch.example.org"
    generated = {**DATABASE, "gateway": {"enabled": True, "parentRefs": [{"name": "public"}]}}
    with cluster() as where:
        objects = against(helm, where, generated)
    [reference] = of_kind(objects, "BackendTLSPolicy")["rel-anabranch-ingest"]["spec"]["validation"][
        "caCertificateRefs"
    ]
    authority = of_kind(objects, "ConfigMap")[reference["name"]]["data"]["ca.crt"]
    assert authority == base64.b64decode(of_kind(objects, "Secret")["rel-anabranch-tls"]["data"]["ca.crt"]).decode()


def test_the_bundled_postgres_speaks_tls(helm: Helm) -> None:
    with cluster() as where:
        objects = against(helm, where, {"bundledPostgres": {"enabled": True}})
    secret = of_kind(objects, "Secret")["rel-anabranch-postgres-tls"]
    names = certificate(secret, "tls.crt").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "rel-anabranch-postgres" in names.get_values_for_type(x509.DNSName), "the host that verify-full compares"
    certificate(secret, "tls.crt").verify_directly_issued_by(certificate(secret, "ca.crt"))
    [postgres] = of_kind(objects, "StatefulSet").values()
    assert "ssl=on" in postgres["spec"]["template"]["spec"]["containers"][0]["args"]
    assert set(ways_to_postgres(objects).values()) == {("verify-full", "rel-anabranch-postgres-tls/ca.crt")}


def test_the_migration_before_an_upgrade_meets_a_bundled_postgres_without_tls(helm: Helm) -> None:
    ways = ways_to_postgres(helm.render(topology("trial"), "--is-upgrade"))
    assert ways.pop("Job/rel-anabranch-migration") == ("prefer", None)
    assert set(ways.values()) == {("verify-full", "postgres-tls/ca.crt")}


@pytest.mark.slow
def test_an_upgrade_of_a_release_that_speaks_plaintext_asks_for_a_word(helm: Helm) -> None:
    with cluster() as where:
        for name, one in of_kind(helm.render({**DATABASE, "tls": {"enabled": False}}), "Service").items():
            where.services["space", name] = one
        upgrade = ("--dry-run=server", "--kube-apiserver", where.address, "--api-versions", "v1/Secret", "--is-upgrade")
        told = helm.refusal(DATABASE, *upgrade)
        assert "say tls.enabled: true" in told
        assert "or tls.enabled: false" in told
        for enabled in (True, False):
            objects = helm.render({**DATABASE, "tls": {"enabled": enabled}}, *upgrade)
            assert all((SPEAKS_PLAINTEXT in data) is not enabled for data in settings(objects))
        where.services.clear()
        assert helm.render(DATABASE, *upgrade), "one that speaks TLS is upgraded without"
