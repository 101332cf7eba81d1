"""Fixtures and marks for tests that need a Kubernetes.

Marks: `cluster` (real nodes), `controlplane` (API server, scheduler, controllers, hollow nodes).
Fixtures: `cluster`, `controlplane` (one each per session, restored after every test, gone after the last
one that uses it), `namespace`; `helm` and `kueue` are paths of programs, built before the first test if a
chosen one uses them.

A test whose tier this machine does not allow is skipped, and the last line of the run says so; with CI=true
it fails instead. K8S_TESTS=False leaves all of them out.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from kubelab import binaries, story, tiers
from kubelab.cluster import Cluster, guard
from kubelab.errors import CommandFailed, KubelabError
from kubelab.state import Kind

_MARKS = {"cluster": tiers.Tier.NODES, "controlplane": tiers.Tier.CONTROL_PLANE}
_PROGRAMS = {"cluster": ("kubernetes", "coredns", "tools"), "controlplane": ("kubernetes", "kwok")}
_BESIDE = ("helm", "kueue")
_MARKED = re.compile(rf"\bmark\.({'|'.join(_MARKS)})\b")
_live = pytest.StashKey[list[Cluster]]()
_sizes = pytest.StashKey[dict[str, story.Sizes]]()
_unprepared = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Settings of the project's pytest configuration."""
    parser.addini("kubelab_stories", "where the stories of failed tests go", default="test-stories")
    parser.addini(
        "kubelab_prepare",
        "lines FIXTURE: COMMAND; the command runs before the first test when a chosen test uses the fixture",
        type="linelist",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks, so that the plugin works in any project."""
    config.addinivalue_line("markers", "cluster: needs a Kubernetes with real nodes (root)")
    config.addinivalue_line("markers", "controlplane: needs a Kubernetes control plane with hollow nodes")
    config.stash[_live] = []


def _wanted() -> bool:
    return os.environ.get("K8S_TESTS", "True").lower() not in ("false", "0", "no")


def _in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("true", "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadgroup` all files that have tests of a cluster are one group, in one process: there is
    one cluster. Every other test goes wherever there is room."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    @cache
    def needs_cluster(file: str) -> bool:
        return _MARKED.search((config.rootpath / file).read_text()) is not None

    class OneCluster(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return "kubelab" if needs_cluster(nodeid.partition("::")[0]) else nodeid

    return OneCluster(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What takes minutes (once) is done before the tests, so that no test's time limit meets it."""
    config = session.config
    if config.option.collectonly or not _wanted():
        return
    if not any(item.get_closest_marker(mark) for mark in _MARKS for item in session.items):
        return
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        tiers.install(tiers.missing_packages())
        tier = tiers.detect().tier
        chosen = {mark: [item for item in session.items if _possible(item, mark, tier)] for mark in _MARKS}
        for mark, items in chosen.items():
            if items:
                _prepare(items, partial(binaries.ensure, *_PROGRAMS[mark]))
        acts: dict[str, Callable[[], None]] = {name: partial(binaries.ensure, name) for name in _BESIDE}
        for line in config.getini("kubelab_prepare"):
            fixture, _, command = line.partition(":")
            acts[fixture.strip()] = partial(_run, shlex.split(command), config.rootpath)
        for fixture, act in acts.items():
            users = [
                item
                for items in chosen.values()
                for item in items
                if fixture in getattr(item, "fixturenames", ())
            ]
            if users:
                _prepare(users, act)


def _prepare(items: list[pytest.Item], act: Callable[[], None]) -> None:
    """Do what these tests need; if it fails, they fail with its words, and no others do."""
    try:
        act()
    except (KubelabError, OSError) as error:
        for item in items:
            item.stash[_unprepared] = str(error)


def _run(argv: list[str], directory: Path) -> None:
    """Run a command whose words are shown as they come."""
    said = ""
    with subprocess.Popen(
        argv, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", file=sys.stderr, flush=True)
            said = (said + line)[-5000:]
    if process.returncode != 0:
        raise CommandFailed(f"{shlex.join(argv)} returned {process.returncode}:\n{said.strip()}")


def _possible(item: pytest.Item, mark: str, tier: tiers.Tier) -> bool:
    return item.get_closest_marker(mark) is not None and tier >= _MARKS[mark]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine does not allow, or fail where that must not be."""
    for mark, tier in _MARKS.items():
        if item.get_closest_marker(mark) is None:
            continue
        if not _wanted():
            pytest.skip(f"{mark}: K8S_TESTS=False")
        verdict = tiers.detect()
        if verdict.tier < tier:
            if _in_ci():
                pytest.fail(f"CI must not leave this out: {verdict.sentence()}", pytrace=False)
            pytest.skip(f"{mark}: {verdict.obstacle}")
    if why := item.stash.get(_unprepared, ""):
        pytest.fail(f"what this test needs could not be made ready: {why}", pytrace=False)
    item.stash[_sizes] = {cluster.name: story.log_sizes(cluster) for cluster in item.config.stash[_live]}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test leaves its story."""
    report = yield
    fixtures = getattr(item, "fixturenames", ())
    for cluster in item.config.stash[_live]:
        used = ("cluster" if cluster.state.kind is Kind.REAL else "controlplane") in fixtures
        if report.failed and used:
            name = re.sub(r"[^\w.-]+", "-", item.nodeid).strip("-")
            base = item.config.rootpath / str(item.config.getini("kubelab_stories"))
            directory = base / (name if report.when == "call" else f"{name}.{report.when}")
            story.tell(cluster, directory, item.stash.get(_sizes, {}).get(cluster.name))
            report.sections.append(("kubelab", f"The story of cluster {cluster.name} is in {directory}"))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line that names what was left out and why."""
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        found = re.fullmatch(r"(?:Skipped: )?(cluster|controlplane): (.*)", text, re.DOTALL)
        if found:
            reasons[found.group(0)] = reasons.get(found.group(0), 0) + 1
    if reasons:
        parts = [f"{count} tests ({why.removeprefix('Skipped: ')})" for why, count in reasons.items()]
        terminalreporter.write_line(f"kubelab: left out {'; '.join(parts)}", yellow=True)
    else:
        terminalreporter.write_line("kubelab: nothing was left out for want of a cluster")


class _Lender:
    """One cluster of a kind, there from the first test that uses it until the last one did: an idle one still
    takes a fifth of a core."""

    def __init__(self, session: pytest.Session, kind: Kind, fixture: str) -> None:
        self._config, self._kind = session.config, kind
        self._users = {item.nodeid for item in session.items if fixture in getattr(item, "fixturenames", ())}
        self.running: Cluster | None = None
        self._stack = ExitStack()

    def lend(self) -> Cluster:
        if self.running is None:
            self.running = self._stack.enter_context(_session_cluster(self._config, self._kind))
        return self.running

    def take_back(self, user: str) -> None:
        self._users.discard(user)
        if not self._users:
            self.end()
        elif self.running is not None:
            _restore(self.running)

    def end(self) -> None:
        self.running = None
        self._stack.close()


@contextmanager
def _session_cluster(config: pytest.Config, kind: Kind) -> Iterator[Cluster]:
    name = f"test-{kind.name.lower()}-{os.getpid()}"
    with guard(name):  # also when this process is killed
        cluster = Cluster.up(name, kind=kind, hollow=kind is Kind.HOLLOW)
        config.stash[_live].append(cluster)
        try:
            yield cluster
        finally:
            config.stash[_live].remove(cluster)
            cluster.down()


def _restore(cluster: Cluster) -> None:
    cluster.restore()
    for name in list(cluster.state.nodes):
        if name not in ("node-a", "node-b"):
            cluster.remove_node(name)
    cluster.remove_hollow_nodes()


@pytest.fixture(scope="session")
def _real_clusters(request: pytest.FixtureRequest) -> Iterator[_Lender]:
    lender = _Lender(request.session, Kind.REAL, "cluster")
    yield lender
    lender.end()


@pytest.fixture(scope="session")
def _hollow_clusters(request: pytest.FixtureRequest) -> Iterator[_Lender]:
    lender = _Lender(request.session, Kind.HOLLOW, "controlplane")
    yield lender
    lender.end()


@pytest.fixture
def cluster(_real_clusters: _Lender, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The session's cluster with real nodes node-a and node-b; what a test does to it is undone after it."""
    yield _real_clusters.lend()
    _real_clusters.take_back(request.node.nodeid)


@pytest.fixture
def controlplane(_hollow_clusters: _Lender, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The session's control plane without real nodes; `add_hollow_nodes` gives it some."""
    yield _hollow_clusters.lend()
    _hollow_clusters.take_back(request.node.nodeid)


@pytest.fixture(scope="session")
def helm() -> Path:
    """The program of Helm."""
    return binaries.program("helm")


@pytest.fixture(scope="session")
def kueue() -> Path:
    """The program of Kueue; `binaries.files("kueue", …)` has its CRDs and webhooks."""
    return binaries.program("kueue")


_numbers = iter(range(1, 1_000_000))


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh namespace in the cluster that the test uses; its pods are gone when the next test begins."""
    name = "cluster" if "cluster" in request.fixturenames else "controlplane"
    cluster: Cluster = request.getfixturevalue(name)
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_"))
    own = f"{words[:30].strip('-')}-{next(_numbers)}"
    cluster.create_namespace(own)
    yield own
    cluster.restore()  # first: a broken node cannot end its pods
    cluster.delete_namespace(own)
