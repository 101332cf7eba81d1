"""The doctor's verdict on machines that we do not have, and on this one."""

import dataclasses
import json

import pytest

from edl_allreduce.cli import doctor
from edl_allreduce.cli.doctor import (
    Broken,
    Facts,
    Finding,
    Health,
    able_to_train,
    as_json,
    as_text,
    judge,
    probe,
)

HEALTHY = Facts(
    python=(3, 11, 7),
    system="Linux",
    versions={
        "TensorFlow": "2.21.0",
        "Keras": "3.15.1",
        "Horovod": "0.28.1+edl1",
        "NumPy": "2.4.6",
        "grpc": "1.85.1",
        "msgspec": "0.22.0",
        "rich": "15.0.0",
        "kubernetes client": "36.0.3",
    },
    tensorflow={"version": "2.21.0", "keras": "3.15.1", "devices": ["CPU"]},
    horovod={"version": "0.28.1+edl1", "gloo": True, "mpi": False, "nccl": 0, "ours": True, "driver": False},
    cores=2,
    memory_gib=16.0,
    tools=frozenset({"g++", "cmake", "make"}),
)


def about(topic: str, **changes: object) -> Finding:
    (finding,) = [f for f in judge(dataclasses.replace(HEALTHY, **changes)) if f.topic == topic]
    return finding


def without(*names: str) -> dict[str, str]:
    return {name: version for name, version in HEALTHY.versions.items() if name not in names}


def test_a_healthy_machine_has_nothing_to_cure():
    findings = judge(HEALTHY)
    assert able_to_train(findings)
    assert {finding.health for finding in findings} == {Health.GOOD}
    assert "cure" not in as_text(findings)


def test_a_missing_tensorflow_comes_with_the_command_that_installs_it():
    broken = Broken("ModuleNotFoundError: No module named 'tensorflow'")
    finding = about("TensorFlow", tensorflow=broken, horovod=broken, versions=without("TensorFlow"))
    assert (finding.health, finding.detail) == (Health.PROBLEM, "not installed")
    assert finding.cure.startswith("pip install 'tensorflow-cpu==")


def test_a_broken_tensorflow_does_not_break_the_doctor():
    crash = Broken("the process was killed by signal 4")
    facts = dataclasses.replace(HEALTHY, tensorflow=crash, horovod=crash)
    findings = judge(facts)
    assert not able_to_train(findings)
    assert "signal 4" in about("TensorFlow", tensorflow=crash, horovod=crash).detail


def test_an_untested_tensorflow_is_noted_but_no_obstacle():
    tensorflow = {**HEALTHY.tensorflow, "version": "2.19.1"}
    assert about("TensorFlow", tensorflow=tensorflow).health is Health.NOTE


def test_keras_2_is_not_enough():
    assert about("Keras", tensorflow={**HEALTHY.tensorflow, "keras": "2.15.0"}).health is Health.PROBLEM


def test_a_missing_horovod_names_the_script_that_builds_it_and_what_works_without():
    finding = about("Horovod", horovod=Broken("no"), versions=without("Horovod"))
    assert finding.health is Health.PROBLEM
    assert finding.cure == "scripts/setup"
    assert "--distribution_strategy=Local works without" in finding.detail


def test_a_stock_horovod_trains_but_says_what_is_not_guaranteed():
    stock = {**HEALTHY.horovod, "version": "0.28.1", "ours": False}
    finding = about("Horovod", horovod=stock)
    assert finding.health is Health.NOTE
    assert "not guaranteed" in finding.detail


def test_a_horovod_without_gloo_is_of_no_use():
    assert about("Horovod", horovod={**HEALTHY.horovod, "gloo": False}).health is Health.PROBLEM


def test_build_tools_are_named_when_horovod_has_to_be_built():
    finding = about("build tools", horovod=Broken("no"), tools=frozenset({"make"}))
    assert finding.cure == "apt-get install g++ cmake"


@pytest.mark.parametrize("name", ["NumPy", "grpc", "msgspec", "rich"])
def test_a_missing_library_is_a_problem_with_its_cure(name):
    finding = about(name, versions=without(name))
    assert finding.health is Health.PROBLEM
    assert finding.cure.startswith("pip install ")


def test_the_kubernetes_client_is_needed_only_on_a_cluster():
    facts = dataclasses.replace(HEALTHY, versions=without("kubernetes client"))
    assert able_to_train(judge(facts))
    assert about("kubernetes client", versions=facts.versions).health is Health.NOTE


def test_a_build_for_gpus_is_told_apart_by_its_nccl():
    built = {**HEALTHY.horovod, "nccl": 23203}
    assert "with gloo, NCCL 2.32.3, built with our changes" in about("Horovod", horovod=built).detail


@pytest.mark.parametrize(("driver", "missing"), [(False, "libcuda.so.1"), (True, "TensorFlow sees no GPU")])
def test_a_build_for_gpus_without_one_trains_on_the_cpu_and_says_what_is_missing(driver, missing):
    built = {**HEALTHY.horovod, "nccl": 23203, "driver": driver}
    finding = about("devices", horovod=built)
    assert finding.health is Health.NOTE and finding.cure
    assert missing in finding.detail and "trains on the CPU" in finding.detail


def test_gpus_without_nccl_are_noted():
    tensorflow = {**HEALTHY.tensorflow, "devices": ["CPU", "GPU", "GPU"]}
    finding = about("devices", tensorflow=tensorflow)
    assert finding.health is Health.NOTE
    assert finding.detail.startswith("CPU and 2 GPUs")
    assert (
        about("devices", tensorflow=tensorflow, horovod={**HEALTHY.horovod, "nccl": 23203}).health
        is Health.GOOD
    )


def test_an_old_python_is_a_problem():
    assert about("Python", python=(3, 10, 2)).health is Health.PROBLEM


def test_a_probe_answers_with_the_last_line_that_it_prints():
    assert probe("print('noise'); print('{\"a\": 1}')") == {"a": 1}


def test_a_probe_that_raises_gives_its_last_words():
    assert probe("raise RuntimeError('no such CPU instruction')") == Broken(
        "RuntimeError: no such CPU instruction"
    )


def test_a_probe_that_crashes_names_the_signal():
    assert probe("import os; os.abort()") == Broken("the process was killed by signal 6")


def test_findings_as_json_have_the_verdict_first():
    facts = dataclasses.replace(HEALTHY, horovod=Broken("no"))
    report = json.loads(as_json(judge(facts)))
    assert report["able_to_train"] is False
    assert {"topic": "Keras", "health": "ok", "detail": "3.15.1", "cure": ""} in report["findings"]


def test_the_exit_code_is_the_verdict(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "gather", lambda: HEALTHY)
    assert doctor.main([]) == 0
    assert capsys.readouterr().out.endswith("Able to train.\n")
    monkeypatch.setattr(doctor, "gather", lambda: dataclasses.replace(HEALTHY, versions={}))
    assert doctor.main(["--output=json"]) == 1


@pytest.mark.training
def test_the_machine_that_runs_the_tests_is_able_to_train(capsys):
    assert doctor.main(["--output=json"]) == 0
    assert json.loads(capsys.readouterr().out)["able_to_train"] is True
