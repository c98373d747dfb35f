"""Read the metrics of a Prometheus endpoint."""

from __future__ import annotations

import urllib.request

_TIMEOUT_S = 10.0


def page(address: str) -> str:
    """The whole page of host:port ``address``. Raises OSError where no server answers."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=_TIMEOUT_S) as answer:
        text: str = answer.read().decode()
    return text


def shown(address: str, name: str, **labels: str) -> float:
    """The sum over all series of a metric with those labels at host:port ``address``; 0 where there are none. Raises
    OSError where no server answers."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    own = (f"{name}{{", f"{name} ")
    found = [
        line for line in page(address).splitlines() if line.startswith(own) and all(label in line for label in wanted)
    ]
    return sum(float(line.rpartition(" ")[2]) for line in found)
