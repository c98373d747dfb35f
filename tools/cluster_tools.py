"""Helm, promtool and Prometheus, for the tests of the chart, its alerts and its dashboards; and the programs of a
Kubernetes, and of an object store, for those that install it: without machines, or with one whose pods run.

A program of that name on the PATH is taken as it is. Otherwise the pinned version is built from its Go module into
`.cache/tools`, once; without Go the program is missing, and a caller that needs it reports what was not run. `lint` has
them check the chart and its alerts.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "tools"
MODULES = {
    "helm": ("helm.sh/helm/v3/cmd/helm", "v3.22.0"),
    "promtool": ("github.com/prometheus/prometheus/cmd/promtool", "v0.316.0"),
    "prometheus": ("github.com/prometheus/prometheus/cmd/prometheus", "v0.316.0"),
    "versitygw": ("github.com/versity/versitygw/cmd/versitygw", "v1.8.0"),
}
"""Program to its Go package and version."""
CLUSTER_MODULE = ROOT / "tools" / "cluster"
DNS_MODULE = ROOT / "tools" / "cluster-dns"
POLICIES_MODULE = ROOT / "tools" / "cluster-policies"
CONTROL_PLANE = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
}
NODE = {
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "coredns": "github.com/coredns/coredns",
    "kube-network-policies": "sigs.k8s.io/kube-network-policies/cmd",
}
"""Programs to their Go packages. Versions are those of the modules that name them."""
BESIDE = ("versitygw",)
"""Programs that run in pods beside the product's: an object store."""
BUILD_TIMEOUT_S = 3600
LINT_TIMEOUT_S = 120
CHART = ROOT / "helm" / "anabranch"
KUBERNETES = "1.34.0"


def version_of(name: str) -> str:
    """The version that is built. Raises KeyError for a program that is in no table."""
    if name in MODULES:
        return MODULES[name][1]
    module = re.escape({**CONTROL_PLANE, **NODE}[name].partition("/cmd")[0])
    found = re.search(rf"^(?:require)?\s+{module} (v\S+)", (_module(name) / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise KeyError(name)
    return found[1]


def _module(name: str) -> Path:
    """The folder of the Go module that a program of a cluster is built in."""
    apart = {"coredns": DNS_MODULE, "kube-network-policies": POLICIES_MODULE}
    return apart.get(name, CLUSTER_MODULE)


def find(name: str) -> Path | None:
    """The program, if it is there. Raises KeyError for one that is in no table."""
    built = CACHE / f"{name}-{version_of(name)}"
    if built.exists():
        return built
    found = shutil.which(name)
    return Path(found) if found else None


def missing(name: str) -> str:
    """Why a program is not there: the reason to print beside the checks that were not run."""
    target = "cluster-test" if name in CONTROL_PLANE else "pods-test" if name in (*NODE, *BESIDE) else "cluster-tools"
    return f"{name} is neither on the PATH nor built; `make {target}` builds it where there is Go"


def build(name: str) -> None:
    """Build a program from its module. Raises CalledProcessError, TimeoutExpired."""
    version = version_of(name)
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = CACHE / f"{name}.building-{os.getpid()}"
    # Other flags of the environment, such as the number of parallel compilations, are kept.
    flags = f"-trimpath {os.environ.get('GOFLAGS', '')}".strip()
    environment = {**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0", "GOFLAGS": flags}
    print(f"Building {name} {version} from its Go module …", flush=True)
    if name in MODULES:
        command = ["go", "install", "-ldflags=-s -w", f"{MODULES[name][0]}@{version}"]
        where = ROOT
    else:
        where = _module(name)
        package = "." if where == DNS_MODULE else {**CONTROL_PLANE, **NODE}[name]
        # Programs of tests: without inlining the compiler needs half the time.
        options = ["-gcflags=all=-l -dwarf=false", f"-ldflags={_stamped(version)}"]
        options += [f"-modfile={_with_old_queues(folder)}"] if where == POLICIES_MODULE else []
        command = ["go", "build", *options, "-o", str(folder / name), package]
    try:
        subprocess.run(
            command,
            cwd=where,
            env=environment,
            check=True,
            timeout=BUILD_TIMEOUT_S,
            stderr=subprocess.PIPE,
            text=True,
        )
        (folder / name).replace(CACHE / f"{name}-{version}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_QUEUE = """	queue := &expr.Queue{Num: uint16(c.config.QueueID)}
	if c.config.FailOpen {
		queue.Flag = expr.QueueFlagBypass
	}
"""
_OLD_QUEUE = """	packed := binaryutil.NativeEndian.PutUint16(uint16(c.config.QueueID))
	number := xt.Unknown(append(packed, 1, 0, 0, 0, 0, 0))
	queue := &expr.Target{Name: "NFQUEUE", Rev: 1, Info: &number}
"""
_IMPORT = '"github.com/google/nftables/expr"\n'


def _with_old_queues(folder: Path) -> Path:
    """A go.mod in ``folder`` whose enforcer of network policies hands packets over by the older of the kernel's two
    ways, which kernels without nft_queue have, too. Raises CalledProcessError."""
    module = "sigs.k8s.io/kube-network-policies"
    folder.mkdir()
    asked = ["go", "mod", "download", "-json", f"{module}@{version_of('kube-network-policies')}"]
    done = subprocess.run(
        asked, cwd=POLICIES_MODULE, check=True, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S
    )
    source = folder / "source"
    shutil.copytree(json.loads(done.stdout)["Dir"], source, copy_function=shutil.copyfile)
    file = source / "pkg" / "networkpolicy" / "controller.go"
    file.parent.chmod(0o755)
    text = file.read_text(encoding="utf-8")
    assert _QUEUE in text, "the enforcer has changed"
    text = text.replace(_IMPORT, f'{_IMPORT}\t"github.com/google/nftables/xt"\n', 1)
    file.write_text(text.replace(_QUEUE, _OLD_QUEUE), encoding="utf-8")
    made = folder / "go.mod"
    replaced = f"\nreplace {module} => {source}\n"
    made.write_text((POLICIES_MODULE / "go.mod").read_text(encoding="utf-8") + replaced, encoding="utf-8")
    shutil.copyfile(POLICIES_MODULE / "go.sum", folder / "go.sum")
    return made


def _stamped(version: str) -> str:
    """Linker flags that have the programs of Kubernetes say which version they are, as their own build does."""
    major, minor, _ = version.removeprefix("v").split(".", 2)
    said = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return " ".join(["-s -w", *(f"-X k8s.io/component-base/version.{key}={value}" for key, value in said.items())])


def build_missing(names: Iterable[str]) -> int:
    """Build those of ``names`` that are not there; 1 where a build fails. Without Go nothing is built, and a line says
    so."""
    for name in names:
        if find(name) is not None:
            continue
        if shutil.which("go") is None:
            print(f"not there: {missing(name)}")
            continue
        try:
            build(name)
        except subprocess.CalledProcessError as error:
            print(f"{name} can't be built:\n{error.stderr}", file=sys.stderr)
            return 1
    return 0


def content(name: str, what: str, *arguments: str) -> bool:
    """Whether a program reports no fault. A program that is not there counts as such, and a line reports it."""
    program = find(name)
    if program is None:
        print(f"not run: {what}: {missing(name)}")
        return True
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=LINT_TIMEOUT_S, check=False)
    if done.returncode != 0:
        print(f"{what}:\n{done.stdout}{done.stderr}", file=sys.stderr)
    return done.returncode == 0


def lint() -> int:
    """Lint the chart in every topology, and the alerts; 1 when something is wrong."""
    good = True
    for file in sorted((CHART / "tests").glob("*.yaml")):
        options = ("--strict", "--quiet", "--kube-version", KUBERNETES, "--values", str(file))
        good &= content("helm", f"helm lint with {file.stem}", "lint", str(CHART), *options)
    alerts = [str(file) for file in sorted((CHART / "alerts").glob("*.yaml"))]
    tests = [str(file) for file in sorted((CHART / "tests" / "alerts").glob("*.yaml"))]
    good &= content("promtool", "promtool check rules", "check", "rules", *alerts)
    good &= content("promtool", "promtool test rules", "test", "rules", *tests)
    return 0 if good else 1


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["lint"]:
            sys.exit(lint())
        case ["build", "control-plane"]:
            sys.exit(build_missing(CONTROL_PLANE))
        case ["build", "cluster"]:
            sys.exit(build_missing([*CONTROL_PLANE, *NODE, *BESIDE]))
        case ["build", *names] if names and MODULES.keys() >= set(names):
            sys.exit(build_missing(names))
        case _:
            sys.exit(f"usage: cluster_tools.py lint | build control-plane | build cluster | build {' '.join(MODULES)}")
