"""Resources, volumes, variables, parameters, taints and priorities: what they mean and how they fail."""

import string
from fractions import Fraction
from pathlib import PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_allreduce.errors import UsageError
from edl_allreduce.spec import JobSpec, job_directory
from edl_allreduce.spec.params import (
    Effect,
    Toleration,
    high_slots,
    parse_envs,
    parse_node_selector,
    parse_params,
    parse_tolerations,
    parse_worker_priority,
    split_address,
    split_model_def,
)
from edl_allreduce.spec.resources import amount, effective_limit, parse_resources
from edl_allreduce.spec.volumes import Claim, HostPath, Mount, Volumes, parse_volumes

names = st.text(string.ascii_letters, min_size=1, max_size=8)
values = st.text(string.ascii_letters + string.digits + ",:/ =", max_size=12).map(str.strip)

# -- resources -----------------------------------------------------------------------------------------------


def test_resources_become_kubernetes_names():
    assert parse_resources("cpu=250m, memory=4096Mi,disk=1Gi,gpu=2,amd.com/gpu=1") == {
        "cpu": "250m",
        "memory": "4096Mi",
        "ephemeral-storage": "1Gi",
        "nvidia.com/gpu": "2",
        "amd.com/gpu": "1",
    }
    assert parse_resources("") == {}
    assert parse_resources("nvidia.com/gtx1080=1,cpu=0.1") == {"nvidia.com/gtx1080": "1", "cpu": "0.1"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cpu", "name=amount"),
        ("cpu=", "name=amount"),
        ("cpu=1.5m", "number of cores"),
        ("cpu=-1", "number of cores"),
        ("memory=64", "with a unit"),
        ("memory=064Mi", "leading 0"),
        ("memory=1.5Gi", "with a unit"),
        ("gpu=0.5", "whole number"),
        ("gpu=1,nvidia.com/gpu=1", "twice"),
        ("disk=1G,ephemeral-storage=1G", "twice"),
        ("cpu=1,cpu=2", "twice"),
        ("mem=1Gi", "Did you mean memory?"),
        ("network=1", "known are cpu, memory"),
    ],
)
def test_a_wrong_resource_says_what_is_right(text, expected):
    with pytest.raises(UsageError, match=expected.replace("?", r"\?")):
        parse_resources(text)


def test_amounts_are_compared_by_value():
    assert amount("500m") == amount("0.5")
    assert amount("1Gi") == amount("1024Mi") == 2**30
    assert amount("1G") == 10**9


def limit_of(request: str, limit: str):
    return effective_limit(parse_resources(request), parse_resources(limit))


def test_the_limit_is_the_request_unless_given():
    assert limit_of("cpu=1,memory=1Gi", "") == {
        "cpu": "1",
        "memory": "1Gi",
    }
    assert limit_of("cpu=1", "cpu=2") == {"cpu": "2"}
    with pytest.raises(UsageError, match="less than the request"):
        limit_of("cpu=1", "cpu=900m")


def test_devices_are_limited_to_what_is_requested():
    assert limit_of("cpu=1,gpu=2", "cpu=2") == {
        "cpu": "2",
        "nvidia.com/gpu": "2",
    }
    with pytest.raises(UsageError, match="both are equal"):
        limit_of("gpu=1", "gpu=2")


# -- volumes -------------------------------------------------------------------------------------------------


def test_volumes_are_read():
    assert parse_volumes(
        "claim_name=c,mount_path=/data; host_path=/h,mount_path=/x,type=Directory"
    ) == Volumes((Claim("c"), HostPath("/h", "Directory")), (Mount(0, "/data"), Mount(1, "/x")))
    assert parse_volumes("") == Volumes()


def test_a_claim_used_twice_is_one_volume_with_two_mounts():
    assert parse_volumes("claim_name=c,mount_path=/a,sub_path=p;claim_name=c,mount_path=/b") == Volumes(
        (Claim("c"),), (Mount(0, "/a", "p"), Mount(0, "/b"))
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mount_path=/a", "one of claim_name and host_path"),
        ("claim_name=c,host_path=/h,mount_path=/a", "one of claim_name and host_path"),
        ("claim_name=c", "mount_path=/an/absolute/path"),
        ("claim_name=c,mount_path=a", "mount_path=/an/absolute/path"),
        ("claim=c,mount_path=/a", "Did you mean claim_name"),
        ("claim_name=c,claim_name=d,mount_path=/a", "given twice"),
        ("claim_name=c,mount_path=/a;host_path=/h,mount_path=/a", "already mounted"),
        ("claim_name=c,mount_path=/a,type=Directory", "belongs to host_path"),
        ("claim_name,mount_path=/a", "key=value"),
    ],
)
def test_a_wrong_volume_says_what_is_right(text, expected):
    with pytest.raises(UsageError, match=expected):
        parse_volumes(text)


# -- pairs ---------------------------------------------------------------------------------------------------


def test_values_of_variables_may_contain_commas():
    assert parse_envs("A=1,2,3,B=x,C=") == {"A": "1,2,3", "B": "x", "C": ""}
    assert parse_envs("") == {}


@settings(deadline=None)
@given(st.dictionaries(names, st.text(string.ascii_letters + string.digits + ",:/", max_size=8), max_size=5))
def test_variables_come_back_as_written(envs):
    assert parse_envs(",".join(f"{name}={value}" for name, value in envs.items())) == envs


@settings(deadline=None)
@given(st.dictionaries(names, values, max_size=5))
def test_parameters_come_back_as_written(params):
    assert parse_params("; ".join(f"{name}={value}" for name, value in params.items())) == params


@pytest.mark.parametrize("parse", [parse_envs, parse_params, parse_node_selector])
def test_pairs_without_a_value_or_given_twice_are_refused(parse):
    separator = ";" if parse is parse_params else ","
    with pytest.raises(UsageError, match="expected"):
        parse("novalue")
    with pytest.raises(UsageError, match="twice"):
        parse(f"A=1{separator}A=2")


def test_node_selectors_are_read():
    assert parse_node_selector("cloud.google.com/gke-spot=true, zone=a") == {
        "cloud.google.com/gke-spot": "true",
        "zone": "a",
    }


def test_tolerations_are_read_as_kubectl_writes_taints():
    assert parse_tolerations("spot=true:NoSchedule,gpu:NoExecute,any") == (
        Toleration("spot", "true", Effect.NO_SCHEDULE),
        Toleration("gpu", None, Effect.NO_EXECUTE),
        Toleration("any", None, None),
    )
    with pytest.raises(UsageError, match="NoSchedule, PreferNoSchedule, NoExecute"):
        parse_tolerations("spot:Never")


# -- priorities ----------------------------------------------------------------------------------------------


def test_half_of_ten_workers_are_high_from_both_ends():
    assert high_slots(10, Fraction("0.5")) == {0, 1, 2, 8, 9}


@settings(deadline=None)
@given(st.integers(0, 200), st.fractions(0, 1, max_denominator=100))
def test_the_number_of_high_workers_is_the_fraction_rounded_up(count, fraction):
    high = high_slots(count, fraction)
    assert len(high) == -(-count * fraction // 1)
    assert all(0 <= slot < count for slot in high)


def test_a_fraction_is_not_rounded_by_floating_point():
    # In floating point 100 * 0.07 is a little more than 7, which would round up to 8.
    assert len(high_slots(100, Fraction("0.07"))) == 7


@pytest.mark.parametrize("text", ["0.5", "high=0.5", ".5"])
def test_a_fraction_splits_the_workers(text):
    priority = parse_worker_priority(text)
    assert [priority.class_of(slot, 4) for slot in range(4)] == ["high", "low", "low", "high"]


def test_a_class_name_is_for_all_workers():
    assert parse_worker_priority("team-batch").class_of(3, 4) == "team-batch"
    assert parse_worker_priority("").class_of(0, 4) == ""


@pytest.mark.parametrize("text", ["1.5", "-0.5", "high=2", "Not A Class"])
def test_a_wrong_priority_is_refused(text):
    with pytest.raises(UsageError, match=r"expected|between"):
        parse_worker_priority(text)


# -- paths ---------------------------------------------------------------------------------------------------


def test_a_model_definition_names_file_and_symbol():
    assert split_model_def("mnist.cnn.custom_model") == (PurePosixPath("mnist/cnn.py"), "custom_model")


@pytest.mark.parametrize("text", ["custom_model", "a..b", "a/b.c", ".a", "a.b-c", ""])
def test_a_wrong_model_definition_is_refused(text):
    with pytest.raises(UsageError, match="dotted path"):
        split_model_def(text)


def test_addresses_have_a_host_and_a_port():
    assert split_address("localhost:50001") == ("localhost", 50001)
    assert split_address("[::1]:7") == ("::1", 7)


@pytest.mark.parametrize("text", ["localhost", ":1", "a:b", "a:0", "a:70000", "::1:5"])
def test_a_wrong_address_is_refused(text):
    with pytest.raises(UsageError, match=r"HOST:PORT|brackets"):
        split_address(text)


def test_a_jobs_directory_follows_from_its_name(tmp_path):
    spec = JobSpec(job_name="digits")
    assert job_directory(spec, {"XDG_STATE_HOME": "/s"}).as_posix() == "/s/elasticdl/jobs/digits"
    assert job_directory(spec, {"HOME": "/h"}).as_posix() == "/h/.local/state/elasticdl/jobs/digits"
    assert job_directory(JobSpec(job_name="digits", job_dir=str(tmp_path))) == tmp_path
