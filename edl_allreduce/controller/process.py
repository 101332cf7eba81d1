"""`python -m edl_allreduce.controller`: in a pod of the cluster, or outside with a kubeconfig file."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence

from edl_allreduce import contract, logs, outside
from edl_allreduce.cluster.kubernetes.api import Api
from edl_allreduce.cluster.kubernetes.submit import knows_rules
from edl_allreduce.controller.endpoint import Endpoint
from edl_allreduce.controller.mirror import ALL
from edl_allreduce.controller.page import ClusterPage
from edl_allreduce.controller.rounds import Controller
from edl_allreduce.core.autoscale import Policy, Rule
from edl_allreduce.errors import ApiRefused, ClusterError, EdlError, UsageError
from edl_allreduce.spec.resource import CRD_NAME
from edl_allreduce.spec.words import Parser

log = logging.getLogger(__name__)

OFF = "off"
NAMESPACE = "elasticdl-system"
RIGHTS = "kubectl apply -k manifests/controller"
CRD = "kubectl apply -f manifests/crd/trainingjob.yaml"

ABOUT = """\
Look after the TrainingJobs of a cluster: make their masters, make them again when they are lost, and share
the cluster among them. Several may run: one acts, the others wait for its Lease.

  python -m edl_allreduce.controller                        in a pod, with its own account
  python -m edl_allreduce.controller --kubeconfig=FILE      outside of the cluster
"""


def main(argv: Sequence[str] | None = None) -> int:
    try:
        arguments = _parser().read(list(sys.argv[1:] if argv is None else argv))
        logs.print_lines(arguments.log_level.upper(), "controller")
        if arguments.kubeconfig:
            os.environ["KUBECONFIG"] = arguments.kubeconfig
        api = Api.connect(force_kubeconfig=bool(arguments.kubeconfig))
        _check(api)
        asyncio.run(_serve(api, arguments))
    except EdlError as error:
        print(f"elasticdl controller: {outside.story(error)}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> Parser:
    parser = Parser("python -m edl_allreduce.controller", "[flags]", ABOUT)
    parser.add_argument(
        "--kubeconfig", metavar="FILE", default="", help="of a controller outside the cluster"
    )
    parser.add_argument(
        "--namespace",
        default=os.environ.get(contract.POD_NAMESPACE, NAMESPACE),
        help=f"where its Lease is (default: its own, or {NAMESPACE})",
    )
    parser.add_argument(
        "--autoscale_policy",
        choices=(*Rule, OFF),
        default=Rule.SPEED.value,
        help="who gets the next worker; off: nobody is scaled, each job has its maximum (default: speed)",
    )
    parser.add_argument(
        "--max_load",
        "--max_load_desired",
        dest="max_load",
        default="1",
        help="share of the cluster up to which workers above minimums are given (default: 1)",
    )
    parser.add_argument(
        "--interval", default="5", help="seconds between two looks when nothing happens (default: 5)"
    )
    parser.add_argument("--host", default="0.0.0.0", help="address of /healthz, /readyz and /metrics")
    parser.add_argument("--port", default="8080", help="their port (default: 8080)")
    parser.add_argument(
        "--page_port",
        default="8081",
        help="of the cluster's page, on loopback only; off: none (default: 8081)",
    )
    parser.add_argument("--log_level", default="info", help="debug, info, warning or error (default: info)")
    return parser


def policy_of(rule: str, max_load: str) -> Policy | None:
    """None: the autoscaler is off."""
    if rule == OFF:
        return None
    try:
        return Policy(rule=Rule(rule), max_load=float(max_load))
    except ValueError as error:
        raise UsageError(f"--max_load={max_load}: expected a number above 0 and at most 1.") from error


def _check(api: Api) -> None:
    """Before anything else: is the resource there, and may we look? Each with its cure."""
    for collection in ALL:
        try:
            api.get(collection.path, limit=1, **collection.chosen)
        except ApiRefused as error:
            if error.status == 403:
                raise ClusterError(
                    f"this account may not list {collection.rule}: {error} Give it the rule: {RIGHTS}"
                ) from error
            if error.status == 404:
                raise ClusterError(
                    f"the cluster has no {CRD_NAME} (or not its version v1). Install it: {CRD}"
                ) from error
            raise


async def _serve(api: Api, arguments: argparse.Namespace) -> None:
    me = f"{os.environ.get(contract.POD_NAME) or socket.gethostname()}-{secrets.token_hex(3)}"
    controller = Controller(
        api,
        namespace=arguments.namespace,
        me=me,
        policy=policy_of(arguments.autoscale_policy, arguments.max_load),
        interval=_positive("interval", arguments.interval),
        restart_killed=knows_rules(api),
    )
    endpoint = Endpoint(controller)
    port = await endpoint.start(arguments.host, int(_positive("port", arguments.port, least=0)))
    log.info("%s serves /healthz, /readyz and /metrics on port %d", me, port)
    page = ClusterPage(controller.mirror, me)
    await _open_page(page, arguments.page_port)
    task = asyncio.create_task(controller.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        log.info("asked to end; another controller takes over")
    finally:
        endpoint.close()
        await page.stop()


async def _open_page(page: ClusterPage, port: str) -> None:
    """A page is no reason to leave the jobs alone: without one the controller does its work, and says so."""
    if port == OFF:
        return
    try:
        found = await page.start(int(_positive("page_port", port, least=0)))
    except OSError as error:
        log.warning("the cluster has no page here: port %s: %s (another --page_port?)", port, error.strerror)
    else:
        log.info(
            "the page of the cluster: `elasticdl dashboard --cluster`, or http://127.0.0.1:%d here", found
        )


def _positive(flag: str, text: str, least: float = 0.1) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not least <= number <= 65535:
        raise UsageError(f"--{flag}={text}: expected a number from {least:g} to 65535.")
    return number
