"""A broken job is told its cure and disturbs nobody; a refusal names the rule that is missing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_allreduce.controller import rounds
from edl_allreduce.core.controller import mail
from edl_allreduce.core.controller.mail import Orders, Progress
from edl_allreduce.spec.resource import path
from tests.controller.conftest import NAMESPACE, Lab

NO_RIGHT = 'secrets is forbidden: User "controller" cannot create resource "secrets" in the namespace "team"'
NO_ACCOUNT = (
    f'pods "elasticdl-job-master" is forbidden: error looking up service account {NAMESPACE}/elasticdl: '
    'serviceaccount "elasticdl" not found'
)


def test_a_spec_that_cannot_be_used_is_told_with_its_cure_and_others_go_on(lab: Lab, play):
    async def story():
        controller = lab.controller()
        bad = lab.job("bad", workers={"min": 5, "max": 2})
        lab.job("good")
        await lab.turn(controller)
        created = lab.condition("Created", "bad")
        assert (created["status"], created["reason"]) == ("False", "InvalidSpec")
        assert "workers" in created["message"]
        assert lab.master("bad") is None and lab.master("good") is not None
        found = lab.api.get(bad)
        lab.api.replace(bad, {**found, "spec": {**found["spec"], "workers": {"min": 1, "max": 2}}})
        await lab.turn(controller)
        assert lab.master("bad") is not None, "mended"
        assert lab.condition("Created", "bad")["status"] == "True"

    play(story())


@pytest.mark.parametrize("spec", [{}, {"workers": "many"}, {"image": 7}, {"workers": {"min": -1}}, None])
def test_objects_that_no_schema_would_let_in_do_not_stop_the_controller(lab: Lab, play, spec):
    async def story():
        controller = lab.controller()
        lab.api.create(path(NAMESPACE), {"metadata": {"name": "odd"}, "spec": spec})
        lab.job("good")
        await lab.turn(controller)
        assert lab.condition("Created", "odd")["status"] == "False"
        assert lab.master("good") is not None

    play(story())


def test_a_missing_right_is_named_and_only_the_job_that_needs_it_waits(lab: Lab, play):
    async def story():
        controller = lab.controller()
        lab.job("first")
        lab.job("second")
        rule = lab.api.refuse("POST", "/secrets$", status=403, words=NO_RIGHT)
        await lab.turn(controller)
        assert rule.fired == 1
        refused = "first" if lab.master("first") is None else "second"
        assert {lab.master(name) is None for name in ("first", "second")} == {True, False}
        assert "lacks a right" in lab.condition("Created", refused)["message"]
        await lab.turn(controller)
        assert lab.master(refused) is not None, "it is tried again"
        assert lab.condition("Created", refused)["status"] == "True"

    play(story())


@pytest.mark.parametrize(("words", "cure"), [
    (NO_ACCOUNT, f"kubectl apply -n {NAMESPACE} -f manifests/elasticdl-rbac.yaml"),
    (NO_ACCOUNT.replace("elasticdl:", "mine:"), "service account team/mine"),
    ('pods "elasticdl-job-master" is forbidden: exceeded quota: small', "exceeded quota: small"),
])  # fmt: skip
def test_a_job_whose_master_the_api_server_refuses_says_so_and_what_would_help(lab: Lab, play, words, cure):
    async def story():
        controller = lab.controller()
        lab.job()
        rule = lab.api.refuse("POST", "/pods$", status=403, words=words, times=2)
        await lab.turn(controller)
        assert rule.fired == 1 and lab.master() is None
        created = lab.condition("Created")
        assert (created["status"], created["reason"]) == ("False", "Refused")
        assert cure in created["message"] and "lacks a right" not in created["message"]
        assert lab.status()["phase"] == "Pending" and "startTime" not in lab.status()
        await lab.turn(controller)
        assert rule.fired == 2
        assert lab.condition("Created") == created, "nothing new"
        await lab.turn(controller, 4)
        assert lab.master() is not None and lab.condition("Created")["status"] == "True"

    play(story())


@pytest.mark.parametrize(
    ("collection", "words"),
    [
        ("networkpolicies", "without a NetworkPolicy, open to other pods: "),
        ("poddisruptionbudgets", "without a PodDisruptionBudget, a drain may take all of its pods at once: "),
    ],
)
def test_without_the_right_to_make_what_protects_a_job_it_gets_its_master_all_the_same(
    lab: Lab, play, caplog, collection, words
):
    async def story():
        controller = lab.controller()
        lab.job()
        rule = lab.api.refuse("POST", f"/{collection}$", status=403, words=NO_RIGHT)
        await lab.turn(controller)
        assert rule.fired == 1 and lab.master() is not None
        assert f"{words}the controller lacks a right" in caplog.text

    play(story())


def test_a_refusal_for_a_job_that_trains_is_told_as_degraded_and_forgotten_when_it_is_over(lab: Lab, play):
    async def story():
        controller = lab.controller()
        lab.job()
        await lab.turn(controller)
        lab.works()
        await lab.turn(controller)
        lab.api.remove(lab.master_path())
        quota = lab.api.refuse("POST", "/pods$", status=403, words="exceeded quota: small")
        await lab.turn(controller)
        assert quota.fired == 1
        assert "exceeded quota: small" in lab.condition("Degraded")["message"]
        assert lab.condition("Created")["status"] == "True"
        await lab.turn(controller)
        lab.works()
        for _ in range(2):
            await lab.turn(controller)
        assert lab.condition("Degraded")["status"] == "False"

    play(story())


def test_a_hiccup_that_left_nothing_to_do_does_not_stay_in_the_status(lab: Lab, play):
    async def story():
        controller = lab.controller()
        lab.job()
        await lab.turn(controller)
        lab.works()
        hiccup = lab.api.refuse("PUT", "/status$", status=500)
        await lab.turn(controller)
        assert hiccup.fired == 1
        for _ in range(2):
            await lab.turn(controller)
        assert lab.status()["phase"] == "Running"
        assert lab.condition("Degraded").get("status", "False") == "False"

    play(story())


def test_a_name_that_another_job_has_is_told_with_the_command_that_frees_it(lab: Lab, play):
    async def story():
        controller = lab.controller()
        lab.service("elasticdl-job-master", cpu=1, node="n0")
        lab.job()
        await lab.turn(controller)
        created = lab.condition("Created")
        assert created["reason"] == "NameTaken"
        assert f"kubectl delete -n {NAMESPACE} pod elasticdl-job-master" in created["message"]

    play(story())


def test_pods_of_anybody_that_are_odd_do_not_stop_a_plan(lab: Lab, play):
    async def story():
        controller = lab.controller()
        odd = {"name": "c", "resources": {"requests": {"cpu": "a lot", "memory": "1e999999"}}}
        terms = [
            {"matchExpressions": [{"key": "k", "operator": "Gt", "values": ["x"]}, {"operator": "Near"}]}
        ]
        affinity = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        }
        lab.api.create(
            f"/api/v1/namespaces/{NAMESPACE}/pods",
            {"metadata": {"name": "odd"}, "spec": {"containers": [odd], "affinity": affinity}},
        )
        lab.job()
        await lab.turn(controller)
        assert lab.master() is not None

    play(story())


def test_a_bug_in_the_autoscaler_leaves_sizes_as_they_are_and_masters_are_kept(lab: Lab, play, monkeypatch):
    async def story():
        controller = lab.controller()
        lab.job()
        await lab.turn(controller)
        lab.works()
        await lab.turn(controller)
        monkeypatch.setattr(rounds, "situation", lambda *_: 1 / 0)
        lab.api.remove(lab.master_path())
        await lab.turn(controller)
        assert controller.figures.refusals == 1
        assert lab.orders().workers == 4

    play(story())


@settings(deadline=None)
@given(st.text(max_size=300) | st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["step", "phase", "metrics", "step_seconds", "wall", "4"]), inner, max_size=4
    ), max_leaves=8,
).map(lambda value: __import__("json").dumps(value)))  # fmt: skip
def test_whatever_a_master_writes_is_read_within_bounds_or_not_at_all(text):
    found = mail.read_progress(text)
    if found is not None:
        assert found.step >= 0 and len(found.phase) <= 1000
        assert mail.read_progress(found.text()) is not None


@settings(deadline=None)
@given(st.dictionaries(
    st.sampled_from([mail.WORKERS, mail.LEAVING, mail.STOP, mail.TERM]), st.text(max_size=20)
))  # fmt: skip
def test_whatever_stands_in_orders_is_read_or_not_at_all(annotations):
    found = mail.orders_in(annotations)
    assert found is None or mail.orders_in(found.annotations()) == found


def test_orders_and_progress_come_back_as_they_were():
    orders = Orders(7, (3, 5), "suspended by its spec", 4)
    assert mail.orders_in(orders.annotations()) == orders
    said = Progress(
        phase="Training", reason="well", wall=1_794_964_730.5, wanted=4, ring=4, step=10, total_steps=20,
        epoch=1,
        epochs=2, records_per_second=100.5, seconds_left=7.25, loss=-0.5, metrics={"accuracy": 0.5},
        next_id=9,
        step_seconds={2: 0.5, 4: 0.25}, pause=0.125, start_up=8.0, goodput=0.5, checkpoint=5, path="/out",
    )  # fmt: skip
    assert mail.read_progress(said.text()) == said
    assert mail.read_progress(Progress(loss=float("nan")).text()) == Progress()
