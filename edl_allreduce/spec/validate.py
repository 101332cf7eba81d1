"""Checks of a whole job, each with its reason. Pure: no file is looked at, no cluster asked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from edl_allreduce.spec.choices import ElasticBatch, GradientCompression, OnNan, Strategy
from edl_allreduce.spec.declare import Command, Group, flag_of
from edl_allreduce.spec.job import JobSpec
from edl_allreduce.spec.typed import TYPED, problem_of
from edl_allreduce.storage.url import is_url

_DNS_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")

# Pods are called elasticdl-<job>-worker-<id>, which Kubernetes limits to 63 characters: this leaves room for
# five digits.
LONGEST_JOB_NAME: Final = 40

_FINGERPRINT: Final = re.compile(r"[0-9a-f]{64}")

_AUX_PARAMS: Final = frozenset({"disable_relaunch"})

ON_CLUSTERS: Final = (Group.CLUSTER, Group.SHARING)
"""Flags that mean something on Kubernetes only."""


def problems(command: Command, spec: JobSpec, *, unreadable: frozenset[str]) -> list[str]:
    """What forbids this job. Flags that could not be read are left out: they have been reported already."""
    syntax = list(_syntax(spec))
    wrong = unreadable.union(*(flags for flags, _ in syntax))
    whole = [*_names(command, spec), *_numbers(command, spec), *_work(command, spec), *_cluster(spec, wrong)]
    whole += [*_reproducible(command, spec), *_on_disks(spec)]
    return [text for _, text in syntax] + [text for flags, text in whole if wrong.isdisjoint(flags)]


def notices(command: Command, spec: JobSpec, given: frozenset[str]) -> list[str]:
    """What is allowed but may surprise."""
    found = []
    unknown = sorted(spec.typed.aux_params.keys() - _AUX_PARAMS)
    if unknown:
        found.append(f"--aux_params: {', '.join(unknown)} has no effect; known: {', '.join(_AUX_PARAMS)}.")
    if command is Command.TRAIN and spec.evaluation_steps and not (spec.validation_data or spec.job_command):
        found.append("--evaluation_steps has no effect without --validation_data: on which records?")
    if not spec.image_name and command in (Command.TRAIN, Command.EVALUATE, Command.PREDICT):
        fields = JobSpec.__dataclass_fields__
        idle = [name for name in fields if name in given and flag_of(fields[name]).group in ON_CLUSTERS]
        if idle:
            names = ", ".join(f"--{name}" for name in idle)
            found.append(f"Without --image_name the job runs on this machine; not used: {names}.")
    return found


# The flags that it is about, and the sentence.
Problem = tuple[tuple[str, ...], str]


def _syntax(spec: JobSpec) -> Iterator[Problem]:
    for flag, name in TYPED.items():
        if problem := problem_of(spec.typed, name):
            yield (flag,), problem


def _names(command: Command, spec: JobSpec) -> Iterator[Problem]:
    name = spec.job_name
    if not name:
        if command is not Command.WORKER:
            yield (
                ("job_name",),
                "--job_name is missing: status, scale, stop and logs find the job by its name.",
            )
    elif not _DNS_LABEL.fullmatch(name):
        better = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        hint = f"; for example {better}" if better else ""
        yield (
            ("job_name",),
            f"--job_name={name}: pods are named after the job, so only lower-case letters, digits and '-' "
            f"are allowed, with a letter or digit at both ends{hint}.",
        )
    elif len(name) > LONGEST_JOB_NAME:
        yield (
            ("job_name",),
            f"--job_name={name}: has {len(name)} characters, at most {LONGEST_JOB_NAME} fit into the names "
            "of pods.",
        )
    if not _DNS_LABEL.fullmatch(spec.namespace):
        yield ("namespace",), f"--namespace={spec.namespace}: expected lower-case letters, digits and '-'."


def _numbers(command: Command, spec: JobSpec) -> Iterator[Problem]:
    if spec.num_workers == 0:
        if command not in (Command.MASTER, Command.WORKER):
            yield (
                ("num_workers",),
                "--num_workers=0: somebody has to work; 0 is for a master started by hand "
                "(python -m edl_allreduce.master.main).",
            )
    elif spec.min_workers > spec.num_workers:
        yield (
            ("min_workers", "num_workers"),
            f"--min_workers={spec.min_workers} is more than --num_workers={spec.num_workers}: "
            "the job would wait for workers that nobody starts.",
        )
    if 0 < spec.max_workers < spec.num_workers:
        yield (
            ("max_workers", "num_workers"),
            f"--max_workers={spec.max_workers} is less than --num_workers={spec.num_workers}, "
            "which is wanted.",
        )
    if spec.port > 65535:
        yield ("port",), f"--port={spec.port}: must be at most 65535."


def _work(command: Command, spec: JobSpec) -> Iterator[Problem]:
    """Is it clear what to do, and on which data?"""
    if spec.job_command and spec.model_def:
        yield (
            ("job_command",),
            "--job_command and --model_def exclude each other: a job runs your script or trains a model "
            "of the zoo.",
        )
    if spec.job_command and spec.distribution_strategy is Strategy.LOCAL:
        yield (
            ("job_command",),
            "--job_command needs --distribution_strategy=AllreduceStrategy; to run the script in one "
            "process, start it directly.",
        )
    if spec.job_command and spec.on_nan is OnNan.SKIP:
        yield (
            ("on_nan",),
            "--on_nan=skip needs a model of the zoo: a loop of your own applies its updates itself.",
        )
    if spec.prediction_data and spec.training_data:
        yield (
            ("prediction_data",),
            "--prediction_data and --training_data exclude each other: a job does one of them.",
        )

    if command is Command.WORKER or (command is Command.MASTER and spec.num_workers == 0):
        return  # The other side of the connection may know.
    if not spec.job_command and not spec.model_def:
        own = " or --job_command='python my_train.py'" if command in (Command.TRAIN, Command.MASTER) else ""
        yield (
            ("model_def",),
            f"--model_def is missing: which model? Give --model_def=directory.file.custom_model{own}.",
        )
    for name in _required_data(command, spec):
        if not getattr(spec, name):
            yield (name,), f"--{name} is missing: {_WHY[name]}"


def _on_disks(spec: JobSpec) -> Iterator[Problem]:
    """What a URL would make a directory of this name of, without a word."""
    for name in ("job_dir", "log_file_path", "report"):
        given = str(getattr(spec, name))
        if is_url(given):
            yield (name,), f"--{name}={given}: cannot be in object storage; give a path."


def _reproducible(command: Command, spec: JobSpec) -> Iterator[Problem]:
    """What the same bits need."""
    if spec.verify_fingerprint and not _FINGERPRINT.fullmatch(spec.verify_fingerprint):
        yield (
            ("verify_fingerprint",),
            f"--verify_fingerprint={spec.verify_fingerprint}: expected the 64 hexadecimal digits that a "
            "reproducible job prints at its end.",
        )
    if not spec.reproducible:
        if spec.verify_fingerprint:
            yield (
                ("verify_fingerprint",),
                "--verify_fingerprint needs --reproducible: otherwise no two runs have the same bits.",
            )
        return
    if spec.job_command:
        yield (
            ("reproducible",),
            "--reproducible needs a model of the zoo: in a loop of your own nobody but you decides how a "
            "step is cut into parts and where its random numbers come from.",
        )
    if spec.elastic_batch is ElasticBatch.WORKER:
        yield (
            ("reproducible", "elastic_batch"),
            "--reproducible and --elastic_batch=worker exclude each other: the batch of a step would depend "
            "on the number of workers.",
        )
    if spec.gradient_compression is not GradientCompression.NONE:
        yield (
            ("reproducible", "gradient_compression"),
            "--reproducible and --gradient_compression exclude each other: exact sums cannot be rounded on "
            "their way.",
        )
    most = max(spec.num_workers, spec.min_workers)
    if command is not Command.MASTER:  # whose job may have begun, and its parts cannot change any more
        most = max(most, spec.max_workers)
    if problem := too_few_parts(spec, most):
        yield ("virtual_workers",), problem


def too_few_parts(spec: JobSpec, workers: int) -> str:
    """Why so many workers cannot all take part in a step of this job; empty when they can."""
    if not spec.reproducible or spec.virtual_ranks >= workers:
        return ""
    return (
        f"--virtual_workers={spec.virtual_ranks} is less than the {workers} workers that the job may "
        f"have: the others would have nothing to do. Give --virtual_workers={workers} or a multiple of it."
    )


_WHY: Final = {
    "training_data": "which records to train on?",
    "validation_data": "which records to evaluate on?",
    "prediction_data": "which records to predict?",
    "checkpoint_dir_for_init": "which trained model? Give the directory with its checkpoints.",
}


def _required_data(command: Command, spec: JobSpec) -> tuple[str, ...]:
    if spec.job_command:
        return ()
    if command is Command.EVALUATE:
        return ("validation_data", "checkpoint_dir_for_init")
    if command is Command.PREDICT:
        return ("prediction_data", "checkpoint_dir_for_init")
    if command is Command.TRAIN:
        return ("training_data",)
    # A master does what its data says.
    if spec.prediction_data:
        return ("checkpoint_dir_for_init",)
    if spec.validation_data and not spec.training_data:
        return ("checkpoint_dir_for_init",)
    return ("training_data",)


def _cluster(spec: JobSpec, wrong: frozenset[str]) -> Iterator[Problem]:
    for role in ("master", "worker"):
        request, limit = f"{role}_resource_request", f"{role}_resource_limit"
        if wrong.isdisjoint((request, limit)) and (problem := problem_of(spec.typed, f"{role}_resources")):
            yield (limit,), problem
    if spec.cluster_spec and spec.cluster_spec_json:
        yield (
            ("cluster_spec",),
            "--cluster_spec and --cluster_spec_json exclude each other: give one of them.",
        )
    if not spec.image_name:
        for name, why in (("yaml", "writes the manifests of"), ("follow", "shows the table of")):
            if getattr(spec, name):
                yield (name,), f"--{name} {why} a job on Kubernetes: give --image_name, too."
