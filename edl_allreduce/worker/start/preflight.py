"""What can be known of a job on this machine before TensorFlow is imported: once, and in a moment.

A worker finds the same mistakes, but half a minute later, and as one of several. So nothing here may refuse
what a worker would accept: where a model file could still do something unusual, the worker decides.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

from edl_allreduce.data.opening import check_params, find
from edl_allreduce.errors import DataError, ModelError, StorageError, UsageError
from edl_allreduce.spec import JobSpec, JobType, Strategy, job_directory
from edl_allreduce.spec.params import split_model_def
from edl_allreduce.spec.words import did_you_mean
from edl_allreduce.storage.url import place
from edl_allreduce.worker.checkpoint.fit import is_version, nothing_to_begin_with
from edl_allreduce.worker.checkpoint.shelf import shelf
from edl_allreduce.worker.disk import refuse_url, try_directory, try_file, try_place
from edl_allreduce.worker.keras.predictions import refuse_others
from edl_allreduce.worker.keras.zoo import CONTRACT, check_file
from edl_allreduce.worker.loop.diary import refuse_other_job

TRAINING = (JobType.TRAINING_ONLY, JobType.TRAINING_WITH_EVALUATION)
DYNAMIC = frozenset({"eval", "exec", "globals", "locals", "setattr", "vars"})
"""What may define names that nobody can read in the file."""


def check_local_job(spec: JobSpec) -> None:
    """Everything, in the command that starts a job on this machine."""
    try:
        if not spec.job_command:
            _check_model_and_data(spec)
    except (DataError, ModelError) as error:
        raise UsageError(str(error)) from error
    if spec.checkpoint_dir_for_init:
        _check_init(spec.checkpoint_dir_for_init)
    if spec.job_type is JobType.PREDICTION_ONLY and spec.output and not spec.overwrite:
        refuse_url("--output", spec.output)
        refuse_others(Path(spec.output))
    check_places(spec)
    if spec.distribution_strategy is not Strategy.LOCAL:
        try_directory("--job_dir", job_directory(spec), private=True)
    if spec.log_file_path:
        try_file("--log_file_path", Path(spec.log_file_path))


def check_places(spec: JobSpec) -> None:
    """Where results go; each worker tries, since each may run on another machine."""
    if spec.job_type is JobType.PREDICTION_ONLY:
        refuse_url("--output", spec.output)
    if spec.output and spec.job_type is not JobType.EVALUATION_ONLY:
        try_place("--output", spec.output)
    if spec.job_type not in TRAINING:
        return
    if spec.checkpoints:
        try_place("--checkpoint_dir", spec.checkpoints)
    if spec.tensorboard_log_dir:
        refuse_url("--tensorboard_log_dir", spec.tensorboard_log_dir)
        try_directory("--tensorboard_log_dir", Path(spec.tensorboard_log_dir))
    if spec.audit_dir:
        refuse_other_job(spec.audit_dir, spec.job_name)
        try_place("--audit_dir", spec.audit_dir)


def _check_init(directory: str) -> None:
    path = place(directory)
    if not is_version(path) and not shelf(directory).versions():
        raise UsageError(nothing_to_begin_with(path))


# ------------------------------------------------------------------------------------- model and data


def _check_model_and_data(spec: JobSpec) -> None:
    zoo = Path(spec.model_zoo or ".").resolve()
    relative, name = spec.typed.model
    offered = _offered(zoo, zoo / relative, "--model_def")
    _must_offer(offered, zoo / relative, "--model_def", name)
    for key, part in CONTRACT.items():
        wanted = str(getattr(spec, key))
        if "." in wanted:
            elsewhere, wanted = split_model_def(wanted)
            names = _offered(zoo, zoo / elsewhere, part.flag)
            _must_offer(names, zoo / elsewhere, part.flag, wanted)
        elif part.required or wanted != part.signature.partition("(")[0]:
            if part.older_name and offered is not None and part.older_name in offered:
                continue
            _must_offer(offered, zoo / relative, part.flag, wanted)
    own_reader = offered is None or spec.custom_data_reader in offered or "." in spec.custom_data_reader
    if not own_reader:
        _check_data(spec)


def _check_data(spec: JobSpec) -> None:
    params = spec.typed.data_reader_params
    check_params(params)
    for flag in ("training_data", "validation_data", "prediction_data"):
        path = str(getattr(spec, flag))
        if path:
            try:
                find(path, params)
            except (DataError, StorageError) as error:
                raise UsageError(f"--{flag}: {error}") from error


def _offered(zoo: Path, path: Path, flag: str) -> frozenset[str] | None:
    """Names that a model file defines; None when only running it can tell."""
    check_file(zoo, path, flag)
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(path.read_bytes(), str(path))
            compile(tree, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        where = f"{error.filename or path}, line {error.lineno}"
        line = f":\n    {error.text.strip()}" if error.text else ""
        raise ModelError(f"{flag} names a file that is not Python. {where}: {error.msg}{line}") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{flag} names {path}, which cannot be read: {error}") from error
    names = set(_bound(tree))
    return None if "*" in names or "__getattr__" in names else frozenset(names)


def _bound(tree: ast.Module) -> Iterator[str]:
    """Names that are bound outside of functions and classes, and `*` for what cannot be known."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names
        if isinstance(node, ast.Name) and node.id in DYNAMIC:
            yield "*"
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                yield name
                continue
            case ast.Import(names) | ast.ImportFrom(names=names):
                yield from (alias.asname or alias.name.partition(".")[0] for alias in names)
            case ast.Name(name, ast.Store()):
                yield name
        nodes += ast.iter_child_nodes(node)


def _must_offer(offered: frozenset[str] | None, path: Path, flag: str, name: str) -> None:
    if offered is None or name in offered:
        return
    own = sorted(n for n in offered if not n.startswith("_"))
    wanted = next((p.signature for p in CONTRACT.values() if p.flag == flag), "what makes the Keras model")
    raise ModelError(
        f"{path} has no function {name} ({flag}); expected {wanted}.{did_you_mean(name, own)} "
        f"It defines: {', '.join(own) or 'nothing'}."
    )
