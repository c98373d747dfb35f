"""What a Prometheus endpoint shows."""

from __future__ import annotations

import urllib.request

_TIMEOUT_S = 10.0


def shown(address: str, name: str, **labels: str) -> float:
    """The sum over all series of a metric with those labels at host:port ``address``; 0 where there are none. Raises
    OSError where nobody answers."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=_TIMEOUT_S) as answer:
        lines = answer.read().decode().splitlines()
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    found = [line for line in lines if line.startswith(f"{name}{{") and all(label in line for label in wanted)]
    return sum(float(line.rpartition(" ")[2]) for line in found)
