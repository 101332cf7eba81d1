"""The command line: cluster up | down | status | load | shell."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from kubelab import archives, binaries, namespaces, places, story, tiers
from kubelab.cluster import Cluster
from kubelab.errors import KubelabError
from kubelab.state import Kind, State
from kubelab.waiting import stopwatch


def main(arguments: list[str] | None = None) -> int:
    """Run one command; errors are one message, not a trace."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.call(options) or 0)
    except KubelabError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cluster", description="A real Kubernetes on this machine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, call: object, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(call=call)
        sub.add_argument("--name", default="kubelab", help="the cluster's name (default: %(default)s)")
        return sub

    up = command("up", _up, "start a cluster; fine when it is up already")
    up.add_argument("--nodes", type=int, default=2, help="real nodes (default: %(default)s)")
    up.add_argument("--hollow-nodes", type=int, default=0, metavar="N", help="add N hollow nodes (KWOK)")
    up.add_argument(
        "--no-nodes", action="store_true", help="control plane and hollow nodes only; needs no root"
    )
    command("down", _down, "end a cluster and remove every trace of it")
    command("status", _status, "say what runs")
    load = command("load", _load, "give an image to the nodes")
    load.add_argument(
        "image", help="an archive (docker save), or an image that docker, podman or buildah knows"
    )
    shell = command("shell", _shell, "a shell on a node: its network, its processes; Service names work")
    shell.add_argument("node", nargs="?", help="the node (default: the first)")
    command("guard", _guard, argparse.SUPPRESS)
    return parser


def _up(options: argparse.Namespace) -> None:
    seconds = stopwatch()
    tiers.require(tiers.Tier.CONTROL_PLANE if options.no_nodes else tiers.Tier.NODES)
    state = State.load(places.run_directory(options.name))
    there = state is not None and state.ready
    names = [f"node-{chr(ord('a') + i)}" if i < 26 else f"node-{i}" for i in range(options.nodes)]
    cluster = Cluster.up(
        options.name,
        kind=Kind.HOLLOW if options.no_nodes else Kind.REAL,
        nodes=names,
        hollow=options.hollow_nodes > 0,
    )
    if options.hollow_nodes and not there:
        cluster.add_hollow_nodes(options.hollow_nodes)
    print("\n".join(story.summary(cluster)))
    print(f"{'was up already' if there else 'up'}, after {seconds():.1f} s. Now type:")
    print(f"  export KUBECONFIG={cluster.kubeconfig} PATH={binaries.program('kubectl').parent}:$PATH")
    print("  kubectl get pods -A")
    name = "" if options.name == "kubelab" else f" --name {options.name}"
    print(f"  scripts/cluster down{name}      # removes every trace of it")


def _down(options: argparse.Namespace) -> None:
    Cluster.take_down(options.name)


def _status(options: argparse.Namespace) -> int:
    if State.load(places.run_directory(options.name)) is None:
        others = sorted(file.parent.name for file in places.run_directory("x").parent.glob("*/cluster.json"))
        print(f"cluster {options.name} is not up" + (f"; up are: {', '.join(others)}" if others else ""))
        print(tiers.detect().sentence())
        return 1
    print("\n".join(story.summary(Cluster.attach(options.name))))
    return 0


def _load(options: argparse.Namespace) -> None:
    names = archives.load(options.image, options.name)
    print(f"loaded {', '.join(names)}")


def _shell(options: argparse.Namespace) -> int:
    cluster = Cluster.attach(options.name)
    if not cluster.nodes:
        raise KubelabError("this cluster has no real nodes to enter")
    node = cluster.node(options.node or next(iter(cluster.nodes)))
    environment = {
        **os.environ,
        "KUBECONFIG": str(cluster.run / "pki" / "cluster-admin.kubeconfig"),
        "PATH": f"{binaries.program('kubectl').parent}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin",
        "PS1": f"[{cluster.name}/{node.name}] # ",
    }
    here = Path.cwd()
    namespaces.enter(node.machine.pid, namespaces.MACHINE)
    return subprocess.call(
        [os.environ.get("SHELL", "/bin/sh")], env=environment, cwd=here if here.exists() else "/"
    )


def _guard(options: argparse.Namespace) -> None:
    sys.stdin.read()  # ends when the process that started this one does
    Cluster.take_down(options.name)
