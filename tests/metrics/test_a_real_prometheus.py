"""A real Prometheus scrapes a running job, and the dashboard's questions get answers (Debian's package)."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_allreduce import clock
from edl_allreduce.cluster.registry import LocalJobFiles
from edl_allreduce.testing.faults import Fault
from kubelab import tiers
from tests.metrics.exported import NAMED, expressions, metrics

pytestmark = pytest.mark.training

CONFIG = """
scrape_configs:
  - job_name: elasticdl
    scrape_interval: 500ms
    static_configs:
      - targets: ["{target}"]
        labels: {{pod: elasticdl-digits-master}}
"""


@pytest.fixture(scope="module")
def programs() -> Iterator[dict[str, str]]:
    """`prometheus` and `promtool`; installed where that is possible."""
    wanted = ("prometheus", "promtool")
    if not all(map(shutil.which, wanted)):
        tiers.install(["prometheus"])
    found = {name: shutil.which(name) for name in wanted}
    if not all(found.values()):
        pytest.skip("no Prometheus is here, and it cannot be installed (apt-get install prometheus)")
    yield {name: path for name, path in found.items() if path}


class Monitor:
    """A Prometheus on loopback."""

    def __init__(self, program: str, directory: Path, target: str) -> None:
        directory.mkdir()
        (directory / "prometheus.yml").write_text(CONFIG.format(target=target))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        with (directory / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [program, f"--config.file={directory / 'prometheus.yml'}", f"--storage.tsdb.path={directory}",
                 f"--web.listen-address={self._address}"],
                stdout=log, stderr=log,
            )  # fmt: skip
        self._log = directory / "log"

    def ask(self, expression: str) -> list[dict[str, object]]:
        url = f"http://{self._address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return list(said["data"]["result"])

    def wait_for(self, expression: str) -> list[dict[str, object]]:
        for _ in clock.polls(0.2, within=60):
            try:
                if found := self.ask(expression):
                    return found
            except OSError:
                assert self.process.poll() is None, self._log.read_text()
        raise AssertionError(f"no answer to {expression}\n{self._log.read_text()[-3000:]}")


def page_of(job) -> str:
    """Host and port."""
    for _ in clock.polls(0.1, within=60):
        if page := LocalJobFiles(job.job_dir).page():
            return page
    raise AssertionError(job.story())


def test_promtool_has_nothing_to_say_about_the_names(programs):
    body, _ = metrics().render()
    done = subprocess.run(
        [programs["promtool"], "check", "metrics"], input=body, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_it_scrapes_a_job_whose_worker_was_killed(programs, launch, tmp_path):
    job = launch(
        Fault("reduce", "kill", {"rank": 1, "step": 10}),
        Fault("compute", "hold", {"rank": 0, "step": 20}),
        num_workers=2,
        num_epochs=4,
        dashboard_port="auto",
    )
    monitor = Monitor(programs["prometheus"], tmp_path / "prometheus", page_of(job))
    try:
        job.wait_fired(2)
        (reforms,) = monitor.wait_for('elasticdl_reform_seconds_count{phase="all", cause="loss"} == 1')
        assert reforms
        assert monitor.wait_for("elasticdl_steps_total >= 10")
        assert monitor.wait_for('elasticdl_worker_exits_total{cause="disrupted"} == 1')
        assert monitor.wait_for('elasticdl_worker_relaunches_total{cause="disrupted"} == 1')
        exported = {row["metric"]["__name__"] for row in monitor.ask('{__name__=~"elasticdl_.+"}')}
        never = {"elasticdl_checkpoint_age_seconds", "elasticdl_evaluation_metric"}  # this job has none
        for text in expressions():
            assert {*NAMED.findall(text)} - never <= exported, text
            if not text.startswith("label_values"):
                monitor.ask(text.replace("$master", ".*").replace("$__rate_interval", "10s"))
    finally:
        monitor.process.kill()
        monitor.process.wait()
    job.release()
    assert job.wait() == 0, job.story()
