"""etcd, API server, controllers and scheduler of a Kubernetes without machines, on loopback.

Each is a process of ours with a log of its own in the folder; they start in that order, each when the one that it needs
answers, and are ended in the other. The API server takes one token, which may do everything; the controllers' own
rights are not what is tested here.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from anabranch.ports import free_port

from . import certificates
from .api import Api, Refused

START_TIMEOUT_S = 300
STOP_TIMEOUT_S = 30
LOOK_S = 0.2
TOLD_LINES = 20
_BEGIN = Path(__file__).with_name("begin.py")


class NotStarted(Exception):
    """A program ended, or did not answer in time; with the end of its log."""


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """``kubeconfig`` is Helm's way to it; ``version`` what its API server says it is."""

    api: Api
    kubeconfig: Path
    version: str


@dataclass(frozen=True, slots=True)
class Beyond:
    """The rest of one, to which machines belong: ``port``, ``addresses`` and ``names`` of the API server, its
    ``users`` (token to name and group), and more of its ``arguments``."""

    port: int
    addresses: tuple[str, ...]
    names: tuple[str, ...]
    users: Mapping[str, tuple[str, str]]
    arguments: Mapping[str, object] = field(default_factory=dict)


def begin(stack: ExitStack, folder: Path, program: Path, arguments: Mapping[str, object]) -> Callable[[], str | None]:
    """Start a program, which ends with ``stack``; its log goes to ``folder``. Gives a look at whether it ended: with
    which code, and what it said last."""
    log = folder / f"{program.name}.log"
    given = [f"--{key}={value}" for key, value in arguments.items()]
    with log.open("wb") as out:
        command = [sys.executable, str(_BEGIN), str(os.getpid()), str(program), *given]
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    stack.callback(_end, process)

    def ended() -> str | None:
        try:
            code = process.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            return None
        return f"ended with {code}:\n{_end_of(log)}"

    return ended


@contextmanager
def running(programs: Mapping[str, Path], folder: Path, beyond: Beyond | None = None) -> Iterator[ControlPlane]:
    """Start ``programs`` (etcd, kube-apiserver, kube-controller-manager, kube-scheduler). Raises NotStarted."""
    given = beyond or Beyond(free_port(), (), (), {})
    keys = certificates.make(folder, given.addresses, given.names)
    api = Api(given.port, secrets.token_urlsafe(), keys.authority)
    kubeconfig = kubeconfig_of(folder, "kubeconfig", api)
    with ExitStack() as stack:

        def start(name: str, arguments: Mapping[str, object], answers: Callable[[], bool]) -> None:
            ended = begin(stack, folder, programs[name], arguments)
            await_answer(name, ended, lambda: _end_of(folder / f"{programs[name].name}.log"), answers)

        etcd, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        start("etcd", _etcd(folder, etcd, peers), lambda: _healthy(etcd))
        users = {api.token: ("tester", "system:masters"), **given.users}
        lines = [f'{token},{name},{name},"{group}"\n' for token, (name, group) in users.items()]
        (folder / "tokens.csv").write_text("".join(lines))
        arguments = {**_api_server(folder, keys, etcd, api.port), **given.arguments}
        start("kube-apiserver", arguments, lambda: _ready(api))
        (folder / "scheduler.json").write_text(json.dumps(_scheduler(kubeconfig)))
        start("kube-scheduler", {"config": folder / "scheduler.json", "secure-port": 0}, lambda: True)
        start("kube-controller-manager", _controllers(keys, kubeconfig), lambda: _account_made(api))
        yield ControlPlane(api, kubeconfig, api.get("/version")["gitVersion"])


def _etcd(folder: Path, clients: str, peers: str) -> dict[str, object]:
    return {
        "data-dir": folder / "etcd",
        "listen-client-urls": clients,
        "advertise-client-urls": clients,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"default={peers}",
        # It lives as long as the test run; a machine that falls over takes nothing along that anybody wants.
        "unsafe-no-fsync": "true",
        "log-level": "warn",
    }


def _api_server(folder: Path, keys: certificates.Certificates, etcd: str, port: int) -> dict[str, object]:
    return {
        "etcd-servers": etcd,
        "bind-address": "127.0.0.1",
        "advertise-address": "127.0.0.1",
        "secure-port": port,
        "endpoint-reconciler-type": "none",
        "tls-cert-file": keys.server,
        "tls-private-key-file": keys.server_key,
        "token-auth-file": folder / "tokens.csv",
        "authorization-mode": "RBAC",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": keys.accounts,
        "service-account-signing-key-file": keys.accounts_key,
        "service-cluster-ip-range": "10.96.0.0/16",
        "cert-dir": folder / "made",
    }


def _controllers(keys: certificates.Certificates, kubeconfig: Path) -> dict[str, object]:
    return {
        "kubeconfig": kubeconfig,
        "leader-elect": "false",
        "secure-port": 0,
        "service-account-private-key-file": keys.accounts_key,
        "root-ca-file": keys.authority,
        # A machine that only pretends is never lost, however late its sign of life comes.
        "node-monitor-grace-period": "1h",
    }


def _scheduler(kubeconfig: Path) -> dict[str, object]:
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "leaderElection": {"leaderElect": False},
    }


def kubeconfig_of(folder: Path, name: str, api: Api) -> Path:
    """A file by which programs find the API server, as the user that ``api`` has the token of."""
    server = {"server": f"https://127.0.0.1:{api.port}", "certificate-authority": str(api.authority)}
    made = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "it", "cluster": server}],
        "users": [{"name": "tester", "user": {"token": api.token}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "tester"}}],
        "current-context": "it",
    }
    file = folder / f"{name}.json"
    file.write_text(json.dumps(made))
    return file


def _healthy(etcd: str) -> bool:
    try:
        with urllib.request.urlopen(f"{etcd}/health", timeout=5) as answer:
            return b'"true"' in answer.read()
    except OSError:
        return False


def _ready(api: Api) -> bool:
    try:
        api.get("/readyz")
    except (OSError, Refused):
        return False
    return True


def _account_made(api: Api) -> bool:
    """Controllers are at work when the namespace that is always there has its account and its certificates."""
    try:
        api.get("/api/v1/namespaces/default/serviceaccounts/default")
        api.get("/api/v1/namespaces/default/configmaps/kube-root-ca.crt")
    except Refused as refused:
        if refused.code == 404:
            return False
        raise
    return True


def await_answer(
    name: str, ended: Callable[[], str | None], said: Callable[[], str], answers: Callable[[], bool]
) -> None:
    """Wait until a program answers. Raises NotStarted where it ends instead, or does not in time."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        how = ended()
        if how is not None:
            raise NotStarted(f"{name} {how}")
        if answers():
            return
    raise NotStarted(f"{name} did not answer within {START_TIMEOUT_S} s:\n{said()}")


def _end_of(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-TOLD_LINES:])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_TIMEOUT_S)
