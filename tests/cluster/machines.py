"""Machines that only pretend: they take the pods that the scheduler gives them, and say of each what a kubelet would
say whose containers start at once and work.

One thread looks after all of them. In each round it lists all pods and brings every pod of its machines one step
further, then waits until a pod changes, at most ROUND_S:

* being deleted: it is gone;
* it asks for a Secret, a ConfigMap or a claim that isn't there, or for a key that it lacks: it stays pending, as
  on a real machine, and is looked at again in the next round;
* its component is held: it stays pending;
* it is to run once (restartPolicy Never): it has succeeded, or failed, if its component is among those that fail;
* otherwise it runs, and is ready.

No program of any image runs. Probes, volumes and the network are not there.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from .api import Api, Refused, Thing
from .wants import first_missing

ROUND_S = 2
STOP_TIMEOUT_S = 120
ROOM = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "500"}
ADDRESSES = ipaddress.ip_network("10.128.0.0/16")
LABELS = {"disk": "fast", "kubernetes.io/os": "linux"}
ZONE = "topology.kubernetes.io/zone"
COMPONENT = "app.kubernetes.io/component"


class Machines:
    """Those of one cluster. ``held`` and ``failing`` are components whose pods do not start, and end badly."""

    def __init__(self, api: Api, names: Sequence[str]) -> None:
        self.api = api
        self.names = tuple(names)
        self.held: set[str] = set()
        self.failing: set[str] = set()
        self.failure: BaseException | None = None
        self._addresses = ADDRESSES.hosts()
        self._ending = threading.Event()

    def register(self) -> None:
        """Make them known, each in a zone of its own, and ready."""
        for name in self.names:
            labels = {**LABELS, "kubernetes.io/hostname": name, ZONE: f"zone-{name}"}
            self.api.create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
            status = {
                "capacity": ROOM,
                "allocatable": ROOM,
                "conditions": [{"type": "Ready", "status": "True", "reason": "Pretended", "lastHeartbeatTime": _now()}],
            }
            self.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})

    def work(self) -> None:
        """Round after round, until ``end``. What goes wrong is kept in ``failure``, and ends it."""
        try:
            while not self._ending.is_set():
                found = self.api.get("/api/v1/pods")
                for pod in found["items"]:
                    if pod["spec"].get("nodeName") in self.names:
                        self._step(pod)
                self.api.changed("/api/v1/pods", found["metadata"]["resourceVersion"], ROUND_S)
        except BaseException as error:
            self.failure = error
            raise

    def end(self) -> None:
        """Have ``work`` come to its end."""
        self._ending.set()

    def _step(self, pod: Thing) -> None:
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        status = None
        if pod["metadata"].get("deletionTimestamp"):
            self.api.delete(path, gracePeriodSeconds=0)
        elif pod.get("status", {}).get("phase", "Pending") == "Pending":
            status = self._started(pod)
        if status is not None and _differs(pod["status"], status):
            # A pod that somebody removed in between needs no status.
            with contextlib.suppress(_Gone):
                _patched(self.api, f"{path}/status", {"status": status})

    def _started(self, pod: Thing) -> Thing:
        component = pod["metadata"].get("labels", {}).get(COMPONENT, "")
        missing = first_missing(self.api, pod)
        if missing is None and component in self.held:
            missing = "held"
        if missing is not None:
            return _pending(pod, missing)
        address = str(next(self._addresses))
        if pod["spec"].get("restartPolicy") == "Never":
            return _ended(pod, address, 1 if component in self.failing else 0)
        return _running(pod, address)


class _Gone(Exception):
    """The object is no longer there."""


def _patched(api: Api, path: str, body: Thing) -> None:
    try:
        api.patch(path, body)
    except Refused as refused:
        if refused.code == 404:
            raise _Gone from refused
        raise


def _differs(old: Thing, new: Thing) -> bool:
    return old.get("phase") != new["phase"] or _messages(old) != _messages(new)


def _messages(status: Thing) -> list[Any]:
    return [one["state"].get("waiting", {}).get("message") for one in status.get("containerStatuses", [])]


def _status(pod: Thing, phase: str, state: Thing, *, ready: bool, reason: str = "") -> Thing:
    now = _now()
    said = {"Initialized": True, "PodScheduled": True, "ContainersReady": ready, "Ready": ready}
    return {
        "phase": phase,
        "startTime": now,
        "conditions": [
            {"type": kind, "status": str(yes), "lastTransitionTime": now, **({"reason": reason} if reason else {})}
            for kind, yes in said.items()
        ],
        "containerStatuses": [
            {
                "name": one["name"],
                "image": one["image"],
                "imageID": "",
                "ready": ready,
                "started": ready,
                "restartCount": 0,
                "state": state,
            }
            for one in pod["spec"]["containers"]
        ],
    }


def _pending(pod: Thing, missing: str) -> Thing:
    waiting = {"waiting": {"reason": "CreateContainerConfigError", "message": missing}}
    return _status(pod, "Pending", waiting, ready=False)


def _running(pod: Thing, address: str) -> Thing:
    made = _status(pod, "Running", {"running": {"startedAt": _now()}}, ready=True)
    return {**made, "podIP": address, "podIPs": [{"ip": address}]}


def _ended(pod: Thing, address: str, code: int) -> Thing:
    ended = {"exitCode": code, "reason": "Error" if code else "Completed", "startedAt": _now(), "finishedAt": _now()}
    phase = "Failed" if code else "Succeeded"
    made = _status(pod, phase, {"terminated": ended}, ready=False, reason="" if code else "PodCompleted")
    return {**made, "podIP": address, "podIPs": [{"ip": address}]}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextlib.contextmanager
def machines(api: Api, names: Sequence[str]) -> Iterator[Machines]:
    """Machines at work; raises what went wrong with them, in the end."""
    made = Machines(api, names)
    made.register()
    thread = threading.Thread(target=made.work, name="machines")
    thread.start()
    try:
        yield made
    finally:
        made.end()
        thread.join(STOP_TIMEOUT_S)
        assert not thread.is_alive(), "the machines did not stop"
    if made.failure is not None:
        raise made.failure
