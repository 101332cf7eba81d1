"""The network of a cluster: a switch to which the control plane and every node are plugged.

The switch is a bridge in the control plane's network namespace; each node hangs on it by a virtual cable.
Pod ranges are routed from node to node, as a small real cluster would do it.

control plane  10.99.0.1     DNS  10.99.0.2     node number i  10.99.0.(10+i), its pods 10.88.i.0/24
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kubelab.machines import Machine

CONTROL = "10.99.0.1"
DNS = "10.99.0.2"
PODS = "10.88.0.0/16"
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
MOST_NODES = 200

_SWITCH = "switch"


def address(number: int) -> str:
    """The address of a node."""
    return f"10.99.0.{10 + number}"


def pod_range(number: int) -> str:
    """The addresses of a node's pods."""
    return f"10.88.{number}.0/24"


def port(number: int) -> str:
    """The switch's port for a node."""
    return f"port{number}"


@dataclass(frozen=True, order=True)
class Cut:
    """Packets that the switch drops: between a node and an address range, both ways."""

    node: int
    other: str = "0.0.0.0/0"


def build_switch(control: Machine) -> None:
    """Make the switch and the control plane's two addresses."""
    ip = control.network
    ip("ip", "link", "add", _SWITCH, "type", "bridge")
    ip("ip", "link", "set", _SWITCH, "up")
    for own in (CONTROL, DNS):
        ip("ip", "address", "add", f"{own}/24", "dev", _SWITCH)


def plug_in(control: Machine, machine: Machine, number: int) -> None:
    """Connect a node to the switch."""
    ends = (
        "ip",
        "link",
        "add",
        port(number),
        "type",
        "veth",
        "peer",
        "name",
        "eth0",
        "netns",
        str(machine.pid),
    )
    control.network(*ends)
    control.network("ip", "link", "set", port(number), "master", _SWITCH, "up")
    machine.network("ip", "address", "add", f"{address(number)}/24", "dev", "eth0")
    machine.network("ip", "link", "set", "eth0", "up")
    machine.network("ip", "route", "add", "default", "via", CONTROL)


def route_pods(control: Machine, machines: dict[int, Machine]) -> None:
    """Teach everybody which node has which pods."""
    for number in machines:
        for machine in (control, *(other for n, other in machines.items() if n != number)):
            machine.network("ip", "route", "replace", pod_range(number), "via", address(number))


def pull_cable(control: Machine, number: int) -> None:
    """Take the node's cable out, so that not even a closing packet of a dying process gets through."""
    control.network("ip", "link", "delete", port(number))


def apply_cuts(control: Machine, cuts: Iterable[Cut]) -> None:
    """Drop the packets of these cuts, and of no others. Silently: no reset, no "unreachable"."""
    rules = ["table bridge kubelab", "delete table bridge kubelab"]
    before, after = [], []
    for cut in sorted(cuts):
        here = port(cut.node)
        if cut.other == "0.0.0.0/0":
            before.append(f'iifname "{here}" drop')
            after.append(f'oifname "{here}" drop')
        else:
            before.append(f'iifname "{here}" ip daddr {cut.other} drop')
            after.append(f'oifname "{here}" ip saddr {cut.other} drop')
    for hook, lines in (("prerouting", before), ("postrouting", after)):
        rules.append(f"add chain bridge kubelab {hook} {{ type filter hook {hook} priority 0; }}")
        rules += [f"add rule bridge kubelab {hook} {line}" for line in lines]
    rules.insert(2, "add table bridge kubelab")
    control.network("nft", "-f", "-", stdin="\n".join(rules) + "\n")
