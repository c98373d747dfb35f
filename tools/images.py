"""Build both images with Docker, as this machine's pip is set up: `make images`.

This machine's settings of pip (index, proxy, timeouts, certificate authority) reach the build as secrets, so that no
image and no layer holds any of them. The environment may name another command than `docker` (DOCKER) and more of its
options (DOCKER_FLAGS). Run with the system's Python, so it imports only the standard library.
"""

from __future__ import annotations

import argparse
import ast
import configparser
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ("service", "compactor")
PASSED = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "default-timeout", "retries")
"""Settings of pip that mean the same inside a build, as folders of this machine don't."""
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
CA_INSIDE = "/run/secrets/ca.pem"
BUILD_TIMEOUT_S = 3600
ASK_TIMEOUT_S = 300


def pip_settings(listed: str) -> dict[str, str]:
    """Parse the output of ``pip config list``: settings by bare name, as they hold for an installation.

    Raises:
        ValueError: a line is not a setting.
    """
    # A later section overrides an earlier one; other sections belong to other commands.
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in filter(None, listed.splitlines()):
        name, equals, value = line.partition("=")
        if not equals:
            raise ValueError(f"pip config list said {line!r}")
        section, _, key = name.rpartition(".")
        if section in sections:
            sections[section][key] = str(ast.literal_eval(value))
    return {key: value for section in sections.values() for key, value in section.items()}


def pip_config(settings: Mapping[str, str]) -> configparser.RawConfigParser:
    """A pip.conf for the inside of a build."""
    config = configparser.RawConfigParser()
    config["global"] = {name: value for name, value in settings.items() if name in PASSED}
    if "cert" in settings:
        config["global"]["cert"] = CA_INSIDE
    return config


def asked(command: Sequence[str]) -> str:
    """The output of a command. Raises CalledProcessError, TimeoutExpired."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=ASK_TIMEOUT_S)
    return done.stdout.strip()


def revision() -> str:
    """The commit that is built, with `-changed` where files differ from it; `unknown` outside of a repository."""
    if not (ROOT / ".git").exists():
        return "unknown"
    changed = asked(["git", "status", "--porcelain", "--untracked-files=no"])
    return asked(["git", "rev-parse", "HEAD"]) + ("-changed" if changed else "")


def flags(docker: str, base: str | None, version: str, secrets: Path) -> list[str]:
    """Options of `docker build` that both images share; writes the secrets into ``secrets``."""
    has_pip = importlib.util.find_spec("pip") is not None
    settings = pip_settings(asked([sys.executable, "-m", "pip", "config", "list"])) if has_pip else {}
    config = secrets / "pip.conf"
    with config.open("w", encoding="utf-8") as file:
        pip_config(settings).write(file)
    given = ["--secret", f"id=pip.conf,src={config}"]
    if "cert" in settings:
        given += ["--secret", f"id=ca.pem,src={settings['cert']}"]
    arguments = {"VERSION": version, "REVISION": revision(), **({"BASE": base} if base else {})}
    for name, value in arguments.items():
        given += ["--build-arg", f"{name}={value}"]
    for name in PROXIES:
        # Without a value: Docker takes this process's value, and keeps variables of these names out of an image.
        given += [part for one in (name, name.lower()) if one in os.environ for part in ("--build-arg", one)]
    # An engine that was started without a network of its own (--bridge=none) builds on the machine's.
    if not asked([docker, "network", "ls", "--quiet", "--filter", "name=^bridge$"]):
        given += ["--network", "host"]
    return given


def main() -> int:
    """Exit status: that of the first build that failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", help="another base than the official Python's image")
    given = parser.parse_args()
    docker = os.environ.get("DOCKER", "docker")
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, "pyproject.toml has no version"
    with tempfile.TemporaryDirectory(prefix="anabranch-images-") as folder:
        try:
            shared = flags(docker, given.base, found[1], Path(folder))
        except (OSError, subprocess.SubprocessError) as error:
            print(f"no image was built: {error}", file=sys.stderr)
            return 1
        for name in IMAGES:
            image = f"anabranch/{name}:{found[1]}"
            command = [docker, "build", *shared, *shlex.split(os.environ.get("DOCKER_FLAGS", ""))]
            command += ["--file", f"deploy/docker/{name}.Dockerfile", "--tag", image, "."]
            # Secrets need BuildKit, which Docker before 23 uses only where this variable is set.
            environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
            done = subprocess.run(command, cwd=ROOT, env=environment, check=False, timeout=BUILD_TIMEOUT_S)
            if done.returncode:
                return done.returncode
            size = int(asked([docker, "image", "inspect", "--format", "{{.Size}}", image]))
            print(f"{image}: {size / 1e6:,.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
