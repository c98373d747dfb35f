"""Containers as deploy/compose.yaml runs them, only with a uid that nobody knows, and on this machine's network."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from anabranch.runtime.fleet import SERVICES

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
DOCKER = os.environ.get("DOCKER", "docker")
STOP_S = 25
"""As in compose.yaml; a service that takes longer is killed, and its exit status tells."""
COMMAND_S = 300.0
UID = 20_000 + secrets.randbelow(40_000)
NAMED_UID = 10_001
"""The images' own. Only the compactor's knows it by a name."""


def version() -> str:
    """This release's, which is the images' tag."""
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def image(name: str) -> str:
    return f"anabranch/{name}:{version()}"


def docker(*arguments: str, timeout_s: float = COMMAND_S, more: Mapping[str, str] | None = None) -> str:
    """A command to Docker, which must succeed; gives what it says. ``more``: the environment that containers take
    their variables' values from, so that no password is in a list of processes."""
    done = subprocess.run(
        [DOCKER, *arguments],
        env={**os.environ, **(more or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lacking(name: str) -> str | None:
    """Why there is no container of this image to be had here; None where there is."""
    if shutil.which(DOCKER) is None:
        return f"{DOCKER} not found: no image is run"
    for command, says in (
        (["version", "--format", "{{.Server.Version}}"], "no Docker engine answers: no image is run"),
        (["image", "inspect", image(name)], f"there is no {image(name)}: `make images` builds it"),
    ):
        if subprocess.run([DOCKER, *command], capture_output=True, check=False, timeout=COMMAND_S).returncode:
            return says
    return None


def without_rights(
    service: str, environment: Mapping[str, str], mounts: Sequence[str] = (), uid: int = UID
) -> list[str]:
    """Options of `docker run` for one of compose's services: its restrictions, and none of its names.

    ``mounts``: values of ``--volume``.
    """
    one = COMPOSE["services"][service]
    assert one["read_only"] is True
    options = ["--read-only", "--network=host", f"--user={uid}:{uid}"]
    options += [f"--cap-drop={each}" for each in one["cap_drop"]]
    options += [f"--security-opt={each}" for each in one["security_opt"]]
    options += [f"--tmpfs={each}" for each in one["tmpfs"]]
    options += [part for name in environment for part in ("--env", name)]
    return options + [f"--volume={each}" for each in mounts]


def run(
    service: str,
    url: str,
    *command: str,
    mounts: Sequence[str] = (),
    uid: int = UID,
    timeout_s: float = COMMAND_S,
) -> str:
    """A command in a container of its own, which must succeed; gives what it prints."""
    which = "compactor" if service == "compactor" else "service"
    environment = {"ANABRANCH_POSTGRES_URL": url}
    options = without_rights(service, environment, mounts, uid)
    return docker("run", "--rm", *options, image(which), *command, timeout_s=timeout_s, more=environment)


@contextmanager
def running(service: str, url: str, address: str, metrics: str, mounts: Sequence[str] = ()) -> Iterator[None]:
    """A service in a container; it must end by itself when it is told to."""
    environment = {
        "ANABRANCH_POSTGRES_URL": url,
        "ANABRANCH_LISTEN_ADDRESS": address,
        "ANABRANCH_METRICS_ADDRESS": metrics,
    }
    name = f"anabranch-test-{secrets.token_hex(6)}"
    options = without_rights(service, environment, mounts)
    command = ("run", "--detach", "--name", name, *options, image("service"), "python", "-m", SERVICES[service])
    try:
        docker(*command, more=environment)
        yield
        docker("stop", "--time", str(STOP_S), name, timeout_s=COMMAND_S + STOP_S)
        assert docker("inspect", "--format", "{{.State.ExitCode}} {{.State.OOMKilled}}", name).strip() == "0 false"
    finally:
        logs = subprocess.run(
            [DOCKER, "logs", "--tail=50", name], capture_output=True, text=True, check=False, timeout=60
        )
        print(f"{service}:\n{logs.stdout}{logs.stderr}")
        docker("rm", "--force", "--volumes", name)
