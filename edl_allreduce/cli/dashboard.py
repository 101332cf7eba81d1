"""`elasticdl dashboard`: open the page of a job that runs, on this machine or in a cluster."""

from __future__ import annotations

import argparse
import html
import tempfile
import urllib.error
import urllib.request
import webbrowser
from pathlib import Path

from edl_allreduce import files, outside
from edl_allreduce.cli.asking import job_parser, resolve_job, while_running
from edl_allreduce.cluster.known import KnownJob, running_address
from edl_allreduce.errors import JobFailed, UsageError

ABOUT = """\
Open the page of a running job in the browser. Of a job on Kubernetes the page comes through the API server,
as with `kubectl port-forward`, for as long as this command runs.

  elasticdl dashboard --job_name=digits
  elasticdl dashboard --job_name=digits --print          print the address instead; it holds the page's token
  elasticdl dashboard --cluster                          the page of the cluster: all jobs and their plan
"""

STATE_SECONDS = 10.0


def main(argv: list[str]) -> int:
    parser = job_parser("dashboard", "[--cluster] [--print]", ABOUT)
    parser.add_argument("--print", action="store_true", help="print the address, and open nothing")
    parser.add_argument(
        "--cluster", action="store_true", help="the page of the cluster's controller, which is in --namespace"
    )
    arguments = parser.read(argv)
    if arguments.cluster:
        return _cluster(arguments)
    job = resolve_job(arguments)
    address, url = _page_of(job)
    if arguments.print or not _opened(url):
        print(url, flush=True)
    else:
        print(f"The page of {outside.name(job.name)} is open at http://{address}", flush=True)
    if running_address(job).pid == 0:  # the way there ends with this process
        print("Ctrl-C closes the way to it.", flush=True)
        for _ in while_running(job, seconds=1.0):
            pass
    return 0


def _cluster(arguments: argparse.Namespace) -> int:
    from edl_allreduce.cli.cluster_page import NAMESPACE, ClusterDoor  # a laptop needs no Kubernetes
    from edl_allreduce.cluster.kubernetes.api import Api

    if arguments.job_name or arguments.job_dir:
        raise UsageError("--cluster is about all jobs: leave --job_name and --job_dir out, or --cluster.")
    door = ClusterDoor(Api.connect(), arguments.namespace or NAMESPACE)
    url = f"http://{door.address}/"
    if arguments.print or not _opened(url):
        print(url, flush=True)
    else:
        print(f"The page of the cluster is open at {url}", flush=True)
    print("Ctrl-C closes the way to it.", flush=True)
    door.wait()
    return 0


def _page_of(job: KnownJob) -> tuple[str, str]:
    from edl_allreduce.web.guard import page_token, page_url

    if job.running() is None and job.result() is not None:
        kept = f"`elasticdl report {job.named}` has what it showed"
        raise JobFailed(f"job {job.name} is over, and its page with it; {kept}.")
    token, address = running_address(job).token, job.page()
    if not address:
        raise JobFailed(f"job {job.name} has no page; it was started with --dashboard_port=off.")
    return address, page_url(address, page_token(token))


def _opened(url: str) -> bool:
    """Whether a browser was started. It is given a file of this user: all users may see how it was called."""
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    page = f'<meta charset="utf-8"><meta http-equiv="refresh" content="0; url={html.escape(url)}">\n'
    path = Path(tempfile.mkdtemp(prefix="elasticdl-page-")) / "open.html"
    files.write(path, page.encode(), private=True)
    return webbrowser.open(path.as_uri())


def state_of(job: KnownJob) -> bytes:
    """Everything that the page of a running job would show; empty when it does not run or has none."""
    address = job.running()
    page = job.page() if address is not None else ""
    if address is None or not page:
        return b""
    from edl_allreduce.web.guard import page_token

    request = urllib.request.Request(
        f"http://{page}/api/state", headers={"Authorization": f"Bearer {page_token(address.token)}"}
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=STATE_SECONDS) as answer:
            return bytes(answer.read())
    except (OSError, urllib.error.URLError):
        return b""  # it ended a moment ago
