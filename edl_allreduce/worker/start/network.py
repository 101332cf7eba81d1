"""Which of this machine's addresses the ring uses."""

from __future__ import annotations

import fcntl
import os
import socket
import struct

from edl_allreduce.rpc.unix import UNIX

LOOPBACK = "127.0.0.1"
SIOCGIFADDR = 0x8915
NIC_VARIABLES = ("HOROVOD_GLOO_IFACE", "CONF_PADDLE_NIC")


def address_towards(master: str) -> str:
    """The local address from which `master` (host:port, or a socket of this machine) is reached."""
    if master.startswith(UNIX):
        return LOOPBACK
    host, _, port = master.rpartition(":")
    family, kind, protocol, _, target = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)  # sends nothing: UDP only picks the route
        address: str = probe.getsockname()[0]
    return address


def interface_of(address: str) -> str:
    """The network interface that carries the address; Gloo wants its name."""
    for variable in NIC_VARIABLES:
        if os.environ.get(variable):
            return os.environ[variable]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
            except OSError:
                continue  # an interface without an IPv4 address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    # An IPv6 address has no such call: the kernel's table names the interface.
    with open("/proc/net/if_inet6") as table:  # noqa: PTH123  a kernel file, not a path of ours
        for line in table:
            digits, *_, name = line.split()
            if socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)) == address:
                return name
    raise OSError(f"no network interface has the address {address}; set HOROVOD_GLOO_IFACE")
