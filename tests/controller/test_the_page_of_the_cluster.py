"""The cluster's page: what it shows, to whom, and how `elasticdl dashboard --cluster` finds it."""

from __future__ import annotations

import json

import aiohttp
import pytest

from edl_allreduce.cli import cluster_page, dashboard
from edl_allreduce.controller.page import ClusterPage
from edl_allreduce.controller.picture import MOST_KEPT, MOST_WAITING, picture, sample
from edl_allreduce.errors import ClusterError, UsageError
from tests.controller.conftest import NAMESPACE, Lab


def seen(lab: Lab, wall: float = 0.0):
    collections = ("trainingjobs", "nodes", "pods")
    return picture(*(lab.api.all(kind) for kind in collections), wall or lab.clock.wall())


async def told(answer: aiohttp.ClientResponse) -> dict:
    """The next of the server-sent events."""
    while not (line := await answer.content.readline()).startswith(b"data: "):
        assert line, "it ended"
    return json.loads(line.removeprefix(b"data: "))


def test_a_picture_has_the_load_the_jobs_with_their_reasons_and_who_waits(lab: Lab, play):
    async def story():
        controller = lab.controller()
        lab.job("a", low=1, high=4)
        await lab.turn(controller)
        lab.works("a")
        lab.service("large", cpu=100)
        await lab.turn(controller)
        now = seen(lab)
        (job,) = now.jobs
        assert (job.phase, job.ready, job.target, job.maximum) == ("Running", 4, 4, 4)
        assert "4" in job.reason
        # Four workers of one CPU each and a master of a tenth, of eight.
        assert now.used["CPU"] == pytest.approx(4.1 / 8) and "GPU" not in now.used
        assert now.waiting == (f"{NAMESPACE}/large",), "our own pods are told with their jobs"
        kept = sample(now)
        assert (kept.waiting, kept.queued, kept.workers) == (1, 0, {f"{NAMESPACE}/a": 4})

    play(story())


def test_a_crowd_of_pods_is_counted_and_not_listed(lab: Lab):
    for number in range(MOST_WAITING + 3):
        lab.service(f"web-{number}", cpu=100)
    now = seen(lab)
    assert (len(now.waiting), now.more_waiting, sample(now).waiting) == (MOST_WAITING, 3, MOST_WAITING + 3)


def test_a_sample_names_the_largest_jobs_and_counts_the_workers_of_the_others(lab: Lab):
    sizes = {f"job-{number}": 1 + number % 7 for number in range(300)}
    for name, size in sizes.items():
        where = lab.job(name)
        lab.api.patch(where, {"status": {"phase": "Running", "workers": {"ready": size}}})
    kept = sample(seen(lab))
    assert len(kept.workers) == MOST_KEPT and set(kept.workers.values()) == {7}
    assert sum(kept.workers.values()) + kept.others == sum(sizes.values())


def test_the_page_is_served_and_told_what_changes(lab: Lab, play):
    async def story():
        controller = lab.controller()
        page = ClusterPage(controller.mirror, "me", clock=lab.clock)
        port = await page.start(0)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as web:
            async with web.get("/") as answer:
                assert "cluster.js" in await answer.text()
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            async with web.get("/api/state") as answer:
                assert answer.status == 503, "before everything was listed there is nothing to show"
            lab.job("a")
            await lab.turn(controller)
            await page.look()
            async with web.get("/api/updates?since=0") as answer:
                first = await told(answer)
                assert [job["name"] for job in first["picture"]["jobs"]] == ["a"]
                lab.job("b")
                await lab.turn(controller)
                await page.look()
                walls = [one[0] for one in first["samples"]]
                while len((update := await told(answer))["picture"]["jobs"]) < 2:
                    walls += [one[0] for one in update["samples"]]
                walls += [one[0] for one in update["samples"]]
                assert walls == sorted(set(walls)), "each sample is told once"
                assert update["picture"]["wall"] == lab.clock.wall()
        await page.stop()

    play(story())


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Host": "evil.example"}, 421), ({"Origin": "http://evil.example"}, 403)],
)
def test_neither_another_site_nor_a_name_that_leads_here_may_look(lab: Lab, play, headers, status):
    async def story():
        controller = lab.controller()
        page = ClusterPage(controller.mirror, "me", clock=lab.clock)
        port = await page.start(0)
        url = f"http://127.0.0.1:{port}/api/state"
        async with aiohttp.ClientSession() as web, web.get(url, headers=headers) as answer:
            assert answer.status == status
        await page.stop()

    play(story())


# -------------------------------------------------------------------------------------------- the command


def controller_pod(lab: Lab, name: str, ports: list[dict]) -> None:
    where = "/api/v1/namespaces/elasticdl-system/pods"
    lab.api.create(where, {
        "metadata": {"name": name, "labels": {"app": "elasticdl-controller"}},
        "spec": {"containers": [{"name": "controller", "ports": ports}]},
    })  # fmt: skip
    lab.api.run_pod(f"{where}/{name}", "n0")


def test_the_controller_that_knows_most_is_asked(lab: Lab, play):
    async def story():
        controller_pod(lab, "z", [{"name": "page", "containerPort": 8081}])
        await lab.clock.advance(60)
        controller_pod(lab, "a", [{"name": "page", "containerPort": 8081}])
        assert cluster_page.controller(lab.api, "elasticdl-system") == ("z", 8081)

    play(story())


def test_without_a_controller_or_its_page_the_cure_is_told(lab: Lab):
    with pytest.raises(ClusterError, match="kubectl apply -k manifests/controller"):
        cluster_page.controller(lab.api, "elasticdl-system")
    controller_pod(lab, "old", [{"name": "metrics", "containerPort": 8080}])
    with pytest.raises(ClusterError, match="no port named page"):
        cluster_page.controller(lab.api, "elasticdl-system")


def test_the_page_of_the_cluster_is_not_that_of_a_job():
    with pytest.raises(UsageError, match="all jobs"):
        dashboard.main(["--cluster", "--job_name=digits"])
