"""Packages of the contract's stubs in other languages: `build/stubs/<language>`, made from `protos/`.

Each language has a folder in `protos/packages` with what its ecosystem calls a package (go.mod, package.json, pom.xml,
pyproject.toml), its lock, and the template that buf runs. Plugins are local and pinned: Go's are built from their
modules, TypeScript's comes with package-lock.json, Java's and its protoc from the Maven repository. A language whose
tools are not there is reported, and left out.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ROOT / "protos" / "packages"
STUBS = ROOT / "build" / "stubs"
TOOLS = STUBS / "tools"
CONTRACT = STUBS / "contract"
"""The input of buf: protos/, and google.rpc.ErrorInfo for languages whose packages lack it."""
ERROR_DETAILS = "google/rpc/error_details.proto"
BUF = ROOT / ".venv" / "bin" / "buf"
STEP_TIMEOUT_S = 600
GO_PLUGINS = {
    "protoc-gen-go": ("google.golang.org/protobuf/cmd/protoc-gen-go", "v1.36.12"),
    "protoc-gen-go-grpc": ("google.golang.org/grpc/cmd/protoc-gen-go-grpc", "v1.6.2"),
}
"""Program to its Go package and version."""
DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
JAVA_PLUGINS = {"protoc-gen-grpc-java": ("protoc-gen-grpc-java", "grpc_java_plugin")}
"""Programs that are taken from the PATH, and their names there."""
JAVA_HINTS = {"protoc-gen-grpc-java": "; Debian has it as protobuf-compiler-grpc-java-plugin"}
JAVA_MACHINES = {"x86_64": "x86_64", "AMD64": "x86_64", "aarch64": "aarch_64", "arm64": "aarch_64"}
JAVA_SYSTEMS = {"Linux": "linux", "Darwin": "osx", "Windows": "windows"}


class NotHere(Exception):
    """A program that a language needs can't be had on this machine; the message names it."""


@dataclass(frozen=True, slots=True)
class Language:
    """``needs``: programs that must be on the PATH; ``make``: the function that makes its package."""

    name: str
    needs: Sequence[str]
    make: Callable[[Path], None]

    def missing(self) -> str:
        """Why its package can't be made here; "" where it can."""
        absent = [program for program in self.needs if shutil.which(program) is None]
        return f"{', '.join(absent)}: not on the PATH" if absent else ""


def run(*command: str | Path, folder: Path = ROOT, environment: Mapping[str, str] | None = None) -> None:
    """Run a command, quietly where it works. Raises CalledProcessError (with its output) and TimeoutExpired."""
    subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=STEP_TIMEOUT_S,
    )


def stage() -> None:
    """Put together the input of buf."""
    shutil.rmtree(CONTRACT, ignore_errors=True)
    shutil.copytree(ROOT / "protos" / "anabranch", CONTRACT / "anabranch")
    target = CONTRACT / ERROR_DETAILS
    target.parent.mkdir(parents=True)
    installed = metadata.distribution("googleapis-common-protos").locate_file(ERROR_DETAILS)
    shutil.copyfile(str(installed), target)


def fresh(package: Path, *kept: str) -> None:
    """Empty the folder of a package, but for ``kept``, and put what belongs to it there."""
    package.mkdir(parents=True, exist_ok=True)
    for path in package.iterdir():
        if path.name in kept:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    for path in (PACKAGES / package.name).iterdir():
        if path.name != "buf.gen.yaml":
            shutil.copyfile(path, package / path.name)
    shutil.copyfile(ROOT / "LICENSE", package / "LICENSE")


def generate(language: str, *only: str) -> None:
    """Have buf run the template of a language on the contract, or on the parts ``only`` of it."""
    paths = [option for part in only for option in ("--path", str(CONTRACT / part))]
    template = PACKAGES / language / "buf.gen.yaml"
    environment = {"BUF_CACHE_DIR": str(ROOT / ".cache" / "buf")}
    run(BUF, "generate", CONTRACT, "--template", template, *paths, environment=environment)


def make_go(package: Path) -> None:
    """Messages and services of grpc-go."""
    for program, (source, version) in GO_PLUGINS.items():
        # A program that is there already is asked for, too: the go command knows whether it has that version.
        run("go", "install", f"{source}@{version}", environment={"GOBIN": str(TOOLS), "GOFLAGS": "-trimpath"})
        if not (TOOLS / program).exists():
            raise SystemExit(f"go install made no {program}")
    fresh(package)
    generate("go", "anabranch")


def make_typescript(package: Path) -> None:
    """Messages and services of protobuf-es, with ErrorInfo; and the package as npm would publish it."""
    fresh(package, "node_modules")
    run("npm", "ci", "--no-audit", "--no-fund", "--prefer-offline", folder=package)
    generate("typescript")
    run("npm", "pack", folder=package)


def make_java(package: Path) -> None:
    """Messages and services of grpc-java. Maven makes the jar: alone, or as a part of a build."""
    fresh(package, "target")
    versions = ElementTree.parse(package / "pom.xml").getroot()
    for name, group, version in (
        ("protoc", "com.google.protobuf", f"{versions.findtext('.//{*}protobuf.version')}"),
        ("protoc-gen-grpc-java", "io.grpc", f"{versions.findtext('.//{*}grpc.version')}"),
    ):
        program = java_program(package, name, group, version)
        shutil.copy2(program, TOOLS / name)
    generate("java", "anabranch")


def java_program(package: Path, name: str, group: str, version: str) -> Path:
    """A program from the Maven repository; gRPC's plugin may be on the PATH instead. Raises NotHere where it can't be
    had: not every repository has programs for every machine."""
    other = next((found for found in map(shutil.which, JAVA_PLUGINS.get(name, ())) if found), None)
    if other is not None:
        return Path(other)
    kind = f"{JAVA_SYSTEMS.get(platform.system())}-{JAVA_MACHINES.get(platform.machine())}"
    program = TOOLS / f"{name}-{version}-{kind}.exe"
    if not program.exists():
        artifact = f"-Dartifact={group}:{name}:{version}:exe:{kind}"
        try:
            run("mvn", "-B", "-q", f"{DEPENDENCY_PLUGIN}:copy", artifact, f"-DoutputDirectory={TOOLS}", folder=package)
        except subprocess.CalledProcessError as error:
            said = next((line for line in error.output.splitlines() if "Could not find" in line), error.output[-500:])
            raise NotHere(f"{name}: {said}{JAVA_HINTS.get(name, '')}") from error
        program.chmod(0o755)
    return program


def make_python(package: Path) -> None:
    """The committed stubs, without the rest of the distribution."""
    fresh(package)
    shutil.copytree(ROOT / "libs" / "anabranch" / "v1", package / "anabranch" / "v1", ignore=_caches)
    (package / "anabranch" / "__init__.py").write_text('"""The contract\'s stubs, in `anabranch.v1`."""\n')


_caches = shutil.ignore_patterns("__pycache__")
LANGUAGES = {
    language.name: language
    for language in (
        Language("python", (), make_python),
        Language("go", ("go",), make_go),
        Language("typescript", ("node", "npm"), make_typescript),
        Language("java", ("java", "javac", "mvn"), make_java),
    )
}


def main(names: Sequence[str]) -> int:
    """Make the packages of the languages ``names``, or of all; 1 where one fails."""
    TOOLS.mkdir(parents=True, exist_ok=True)
    stage()
    status = 0
    for language in (LANGUAGES[name] for name in names or LANGUAGES):
        package = STUBS / language.name
        if missing := language.missing():
            shutil.rmtree(package, ignore_errors=True)
            print(f"not made: {language.name}: {missing}", flush=True)
            continue
        try:
            language.make(package)
        except NotHere as error:
            shutil.rmtree(package)
            print(f"not made: {language.name}: {error}", flush=True)
            continue
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"{language.name}: {error}\n{error.output or ''}", file=sys.stderr, flush=True)
            status = 1
            continue
        print(f"made: {package.relative_to(ROOT)}", flush=True)
    return status


if __name__ == "__main__":
    if set(sys.argv[1:]) - LANGUAGES.keys():
        sys.exit(f"usage: stubs.py [{'|'.join(LANGUAGES)}]…")
    sys.exit(main(sys.argv[1:]))
