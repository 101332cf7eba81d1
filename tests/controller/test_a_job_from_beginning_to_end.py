"""A TrainingJob gets a master, the master gets orders, and its end is told, kept and cleaned up."""

from __future__ import annotations

import pytest

from tests.controller.conftest import NAMESPACE, Lab


def test_a_new_job_gets_a_secret_a_service_policies_and_a_master_that_belong_to_it(lab: Lab, play):
    async def story():
        controller = lab.controller()
        job = lab.job()
        await lab.turn(controller)
        uid = lab.api.get(job)["metadata"]["uid"]
        for kind in ("secrets", "services", "networkpolicies", "poddisruptionbudgets", "pods"):
            (made,) = lab.api.all(kind, NAMESPACE)
            (owner,) = made["metadata"]["ownerReferences"]
            assert (owner["uid"], owner["kind"], owner["controller"]) == (uid, "TrainingJob", True)
        environment = lab.master()["spec"]["containers"][0]["env"]
        (secret,) = lab.api.all("secrets", NAMESPACE)
        assert {"name": "EDL_JOB_SECRET", "value": secret["metadata"]["name"]} in environment
        assert "--master_grace_seconds=300" in " ".join(lab.master()["spec"]["containers"][0]["args"])
        assert lab.orders().workers == 4, "a job that was never measured begins with at most four"
        assert lab.orders().term == controller.election.term == 1
        assert lab.status()["phase"] == "Pending"
        assert "begins" in lab.status()["plan"]["reason"]
        assert any(event.startswith("MasterMade: ") for event in lab.events())
        (policy,) = lab.api.all("networkpolicies", NAMESPACE)
        assert policy["metadata"]["name"] == secret["metadata"]["name"], "no earlier job of this name has it"
        lab.api.delete(job)
        assert not lab.api.all("pods") and not lab.api.all("secrets") and not lab.api.all("services")

    play(story())


def test_progress_of_the_master_is_the_status_of_the_job(lab: Lab, play):
    async def story():
        controller = lab.controller()
        lab.job()
        await lab.turn(controller)
        lab.works(
            step=250, total_steps=1000, epoch=2, records_per_second=1234.4, seconds_left=75.9,
            goodput=0.93, metrics={"accuracy": 0.75}, loss=0.5,
        )  # fmt: skip
        await lab.turn(controller)
        status = lab.status()
        assert status["phase"] == "Running"
        assert status["workers"] == {"ready": 4, "target": 4}
        assert status["goodput"] == "93.0 %"
        trainer = status["trainerStatus"]
        assert (trainer["progressPercentage"], trainer["estimatedRemainingSeconds"]) == (25, 75)
        assert (trainer["step"], trainer["epoch"], trainer["recordsPerSecond"]) == (250, 2, 1234)
        assert {"name": "accuracy", "value": "0.75"} in trainer["metrics"]
        assert lab.condition("Running")["status"] == "True"

    play(story())


@pytest.mark.parametrize("said", ["Finishing", "Succeeded"])
def test_a_job_whose_workers_leave_because_it_is_trained_does_not_look_as_if_it_waited(lab: Lab, play, said):
    async def story():
        controller = lab.controller()
        lab.job()
        await lab.turn(controller)
        lab.works()
        await lab.turn(controller)
        for name in lab.worker_names():
            lab.api.end_pod(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")
        lab.tells(phase=said, ring=0, step=100_000)
        await lab.turn(controller)
        assert (lab.status()["phase"], lab.condition("Running")["reason"]) == ("Running", "Finishing")
        lab.ends("Succeeded")
        await lab.turn(controller)
        assert lab.status()["phase"] == "Succeeded"

    play(story())


def test_nothing_is_written_when_nothing_changed(lab: Lab, play):
    async def story():
        controller = lab.controller()
        lab.job()
        await lab.turn(controller)
        lab.works()
        await lab.turn(controller)
        before = len(lab.api.requests)
        await lab.turn(controller)
        writes = [one for one in lab.api.requests[before:] if one[0] != "GET"]
        assert [path for _, path in writes if "leases" not in path] == []

    play(story())


def test_a_job_that_succeeds_is_told_so_its_pods_are_cleaned_up_and_later_it_goes(lab: Lab, play):
    async def story():
        controller = lab.controller()
        lab.job(ttlSecondsAfterFinished=100)
        await lab.turn(controller)
        lab.works()
        await lab.turn(controller)
        lab.ends("Succeeded", reason="trained to its end")
        await lab.turn(controller)
        assert lab.status()["phase"] == "Succeeded"
        assert lab.condition("Succeeded")["message"] == "trained to its end"
        assert lab.condition("Running")["status"] == "False"
        await lab.turn(controller)
        assert all("deletionTimestamp" in pod["metadata"] for pod in lab.api.all("pods")
                   if "worker" in pod["metadata"]["name"])  # fmt: skip
        assert lab.master() is not None, "its log stays"
        finished = lab.status()["completionTime"]
        await lab.turn(controller, 50)
        assert lab.status()["completionTime"] == finished
        await lab.turn(controller, 51)
        assert lab.api.all("trainingjobs") == []

    play(story())


def test_a_job_that_fails_says_why(lab: Lab, play):
    async def story():
        controller = lab.controller()
        lab.job()
        await lab.turn(controller)
        lab.works()
        lab.ends("Failed", code=1, reason="worker 0 crashed: no such file")
        await lab.turn(controller)
        assert lab.status()["phase"] == "Failed"
        assert lab.condition("Failed")["message"] == "worker 0 crashed: no such file"
        await lab.turn(controller)
        await lab.turn(controller)
        assert lab.status()["phase"] == "Failed", "it stays so"

    play(story())


@pytest.mark.parametrize("policy", ["Never", "OnFailure", "Always"])
@pytest.mark.parametrize("knows_rules", [False, True])
def test_whatever_its_spec_says_a_master_that_ends_the_job_is_not_started_again(
    lab: Lab, play, policy, knows_rules
):
    async def story():
        controller = lab.controller(restart_killed=knows_rules)
        lab.job(master={"restartPolicy": policy})
        await lab.turn(controller)
        pod = lab.master()["spec"]
        (container,) = pod["containers"]
        if knows_rules:
            (rule,) = container["restartPolicyRules"]
            assert container["restartPolicy"] == "Never" and rule["exitCodes"]["values"] == [137, 255]
        else:
            assert pod["restartPolicy"] == "Never"

    play(story())


def test_an_end_that_could_not_be_written_is_written_by_the_next_round(lab: Lab, play):
    async def story():
        controller = lab.controller()
        lab.job()
        await lab.turn(controller)
        lab.works()
        await lab.turn(controller)
        lab.ends("Succeeded", reason="trained to its end")
        rule = lab.api.refuse("PUT", "/status$", status=409)
        await lab.turn(controller)
        assert rule.fired == 1 and lab.status()["phase"] == "Running"
        await lab.turn(controller)
        assert lab.status()["phase"] == "Succeeded"
        assert lab.condition("Succeeded")["message"] == "trained to its end"

    play(story())


def test_a_suspended_job_stops_with_a_checkpoint_and_goes_on_later(lab: Lab, play):
    async def story():
        controller = lab.controller()
        job = await _stopped_for_suspension(lab, controller)
        workers = [f"/api/v1/namespaces/{NAMESPACE}/pods/{name}" for name in lab.worker_names()]
        lab.api.end_pod(workers[0])
        await lab.turn(controller)
        assert lab.master() is not None, "while its workers leave"
        for pod in workers[1:]:
            lab.api.remove(pod)
        for _ in range(2):
            await lab.turn(controller)
        assert lab.master() is None and lab.worker_names() == [], "nor is one left that had ended"
        assert lab.status()["phase"] == "Suspended"
        assert lab.condition("Suspended")["status"] == "True"
        lab.api.replace(job, _with(lab.api.get(job), suspend=False))
        await lab.turn(controller)
        assert lab.orders().stop == "" and lab.orders().workers == 4
        assert lab.condition("Suspended")["status"] == "False"
        assert '"next_id":4' in lab.master()["metadata"]["annotations"]["elasticdl.org/progress"]

    play(story())


def test_one_that_is_resumed_before_it_rests_leaves_no_pod_that_had_ended(lab: Lab, play):
    """A queue would count it as a member of the group that begins again."""

    async def story():
        controller = lab.controller()
        job = await _stopped_for_suspension(lab, controller)
        for name in lab.worker_names():
            lab.api.end_pod(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")
        lab.api.replace(job, _with(lab.api.get(job), suspend=False))
        for _ in range(2):
            await lab.turn(controller)
        assert lab.orders().stop == "" and lab.worker_names() == []

    play(story())


def test_a_job_that_is_active_for_too_long_is_stopped_and_has_failed(lab: Lab, play):
    async def story():
        controller = lab.controller()
        lab.job(activeDeadlineSeconds=60)
        await lab.turn(controller)
        lab.works()
        await lab.turn(controller, 61)
        assert lab.orders().stop.startswith("activeDeadlineSeconds is over")
        lab.ends("Stopped")
        await lab.turn(controller)
        assert lab.status()["phase"] == "Failed"
        assert lab.condition("Failed")["reason"] == "DeadlineExceeded"

    play(story())


async def _stopped_for_suspension(lab: Lab, controller) -> str:
    """A job that worked; its master obeyed and its workers are still there."""
    job = lab.job()
    await lab.turn(controller)
    lab.works()
    await lab.turn(controller)
    lab.api.replace(job, _with(lab.api.get(job), suspend=True))
    await lab.turn(controller)
    assert lab.orders().stop.startswith("suspended by its spec")
    lab.ends("Stopped", reason="suspended by its spec")
    return job


def _with(found: dict, **spec) -> dict:
    return {**found, "spec": {**found["spec"], **spec}}
