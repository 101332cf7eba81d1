"""Every text that comes from outside: flags with a syntax of their own, messages between processes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from edl_allreduce import outside
from edl_allreduce.core import protocol
from edl_allreduce.data.example import decode_example, encode_example
from edl_allreduce.errors import DataError
from edl_allreduce.rpc import codec
from edl_allreduce.spec import JobSpec, parse_job
from tests.bad_input.bounds import read_or_told
from tests.bad_input.damage import ODD_VALUES, altered, damaged, damaged_json, damaged_text, packed
from tests.terminal.statuses import status


@dataclass(frozen=True)
class Text:
    """`cases` are damaged texts; `read` is what the product makes of one."""

    name: str
    cases: st.SearchStrategy[Any]
    read: Callable[[Any], object]

    def try_it(self, case: Any) -> str:
        return read_or_told(lambda: self.read(case))


# ------------------------------------------------------------------------------------------------- flags

TRAIN = ("--job_name=digits", "--model_def=digits.mlp.custom_model", "--training_data=data")

SAMPLES = {
    "aux_params": ["disable_relaunch=true"],
    "data_reader_params": ["reader_type=CSV; columns=a,b; sep=;"],
    "envs": ["A=1,B=x,y,C="],
    "master_pod_priority": ["high", "my-class.name"],
    "master_resource_limit": ["cpu=2,memory=4096Mi,gpu=1", "cpu=500m,memory=4G,disk=10Gi"],
    "master_resource_request": ["cpu=2,memory=4096Mi,amd.com/gpu=1"],
    "model_params": ["units=64; name='a'; rate=0.5"],
    "volume": ["claim_name=data,mount_path=/data;host_path=/mnt,mount_path=/scratch,type=Directory"],
    "worker_node_selector": ["cloud.google.com/gke-spot=true,a=b"],
    "worker_pod_priority": ["0.5", "high=0.25", "low"],
    "worker_resource_request": ["cpu=0.25,memory=1Gi"],
    "worker_tolerations": ["key=value:NoSchedule,key:NoExecute,other"],
    "model_def": ["digits.mlp.custom_model"],
    "master_addr": ["localhost:50001", "[::1]:50001"],
    "populate_env_names": ["MY_.*|OTHER[0-9]{1,3}", "(a)(?P<b>c)"],
    "num_workers": ["4"],
    "minibatch_size": ["64"],
    "failure_detection_seconds": ["10", "2.5"],
    "job_name": ["digits-2"],
    "namespace": ["default"],
    "port": ["50001"],
    "num_epochs": ["3"],
    "shuffle": ["true", "no"],
    "distribution_strategy": ["AllreduceStrategy", "Local"],
}
"""A sound value of each flag that has a syntax."""


def _flags() -> st.SearchStrategy[list[str]]:
    def of(name: str) -> st.SearchStrategy[str]:
        return damaged_text(SAMPLES[name]).map(lambda text: f"--{name}={text}")

    return st.lists(st.sampled_from(sorted(SAMPLES)).flatmap(of), min_size=1, max_size=2)


def _read_flags(words: list[str]) -> None:
    try:
        parse_job("worker", words)
    finally:
        _build(parse_job("train", [*TRAIN, "--image_name=image", *words]).spec)


def _build(spec: JobSpec) -> None:
    """The pods that the job would be made of."""
    from edl_allreduce.cluster.kubernetes import manifests

    manifests.master_service(spec)
    json.dumps(manifests.master_pod(spec))
    json.dumps(manifests.worker_pod(spec, 0, 0, manifests.MasterContext("elasticdl-digits-master:50001")))


CLUSTER_SPEC = {
    "pod_spec": {
        "labels": {"team": "a"},
        "annotations": {"note": "b"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}},
        "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
    },
    "service_spec": {"labels": {"team": "a"}},
    "worker_pod_spec": {"env": [{"name": "C", "value": "2"}]},
    "master_spec": {"annotations": {"x": "y"}},
}


def _cluster_specs() -> st.SearchStrategy[bytes]:
    """Known keys, and under them what people might think belongs there."""
    words = st.sampled_from(("name", "value", "key", "valueFrom", "operator"))
    entry = st.dictionaries(words, ODD_VALUES, max_size=3)
    inner = st.one_of(ODD_VALUES, entry, st.lists(st.one_of(entry, ODD_VALUES), max_size=3))
    keys = st.sampled_from(("labels", "annotations", "affinity", "tolerations", "env"))
    pieces = st.sampled_from(tuple(CLUSTER_SPEC))
    return st.dictionaries(pieces, st.dictionaries(keys, inner, max_size=2), max_size=2).map(
        lambda tree: json.dumps(tree).encode()
    )


def _read_cluster_spec(text: bytes) -> None:
    word = f"--cluster_spec_json={text.decode('utf-8', 'replace')}"
    _build(parse_job("train", [*TRAIN, "--image_name=image", word]).spec)


# ---------------------------------------------------------------------------------------------- messages

SEAT = protocol.Seat("uid", 3, "10.0.0.7")
FROM_WORKER = [
    protocol.Hello(SEAT, protocol.Plan(4, (SEAT, SEAT)), step=7),
    protocol.Ready(7, fingerprint="f", model={"a": "b"}),
    protocol.BadRecords("training data", {5: ("torn", 3)}),
    protocol.TaskDone(1, 2, [0.5, 1.5]),
    protocol.KvPart(4, "/key", 1, 2, b"value" * 9),
]
FROM_MASTER = [
    protocol.NewPlan(protocol.Plan(5, (SEAT,)), abort=True, reason="because"),
    protocol.DoTask(1, 2, 3, 4, 5),
]
COMMANDS = [protocol.Scale(5), protocol.StopJob("enough")]


def _messages(kinds: list[Any]) -> st.SearchStrategy[bytes]:
    sound = [codec.encode(message) for message in kinds]
    deep = st.sampled_from((60, 100_000)).map(lambda depth: sound[0][:-1] + b"\x91" * depth)
    odd = st.sampled_from(kinds).flatmap(_odd)
    return st.one_of(damaged(sound), odd, deep)


def _odd(message: Any) -> st.SearchStrategy[bytes]:
    """Right on the wire, wrong in what it says."""
    tree = msgspec.to_builtins(message, builtin_types=(bytes,), str_keys=True)
    name = type(message).__name__

    return altered(tree).map(lambda changed: packed((name, changed)))


def _show(data: bytes) -> None:
    """What `elasticdl status` prints of what a master says."""
    from edl_allreduce.master import display, report

    said = codec.decode_status(data)
    outside.console(io.StringIO()).print(display.render(said))
    report.progress_line(said)
    report.summary(said, {})


FEATURES = {"x": b"abc", "y": np.arange(5), "z": np.linspace(0, 1, 4, dtype=np.float32)}


def _example(record: bytes) -> None:
    """`data info` shows what is in a record."""
    try:
        decode_example(record)
    except ValueError as error:
        raise DataError(f"the record is no tf.train.Example: {error}") from error


TEXTS = (
    Text("flags", _flags(), _read_flags),
    Text("cluster_spec_json", st.one_of(damaged_json(CLUSTER_SPEC), _cluster_specs()), _read_cluster_spec),
    Text("messages-worker", _messages(FROM_WORKER), codec.decode_from_worker),
    Text("messages-master", _messages(FROM_MASTER), codec.decode_from_master),
    Text("messages-command", _messages(COMMANDS), codec.decode_command),
    Text("messages-status", _messages([status()]), _show),
    Text("example", damaged([encode_example(FEATURES)]), _example),
)
