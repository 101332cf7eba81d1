"""Model files: what a module of the zoo offers, and clear words when it does not fit."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any

from edl_allreduce.errors import ModelError
from edl_allreduce.spec import JobSpec
from edl_allreduce.spec.params import split_model_def


class Mode(StrEnum):
    """What records are fed for; `feed` gets one of these."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"


@dataclass(frozen=True)
class ModelDefinition:
    """What a model file gives us. Nothing in it was called yet."""

    path: Path
    model: Callable[[], Any]
    loss: Callable[..., Any]
    optimizer: Callable[[], Any]
    feed: Callable[..., Any]


@dataclass(frozen=True)
class _Part:
    """One function of the contract: how it is called, for error messages and for the check."""

    flag: str
    signature: str
    arguments: int


CONTRACT = {
    "loss": _Part("--loss", "loss(labels, predictions)", 2),
    "optimizer": _Part("--optimizer", "optimizer()", 0),
    "feed": _Part("--feed", "feed(dataset, mode, metadata)", 3),
}


def load_definition(spec: JobSpec) -> ModelDefinition:
    """Import the model file that --model_def names and check it against the contract."""
    relative, name = split_model_def(spec.model_def)
    zoo = Path(spec.model_zoo or ".").resolve()
    module = _import(zoo, zoo / relative)
    model = _find(module, name, "--model_def", f"{name}() that returns a Keras model")
    parts = {
        key: _checked(_resolve(zoo, module, getattr(spec, key), part), part, module)
        for key, part in CONTRACT.items()
    }
    return ModelDefinition(Path(str(module.__file__)), model, **parts)


def _resolve(zoo: Path, module: ModuleType, name: str, part: _Part) -> Any:
    if "." in name:
        relative, symbol = split_model_def(name)
        return _find(_import(zoo, zoo / relative), symbol, part.flag, part.signature)
    return _find(module, name, part.flag, part.signature)


def _import(zoo: Path, path: Path) -> ModuleType:
    if not path.is_file():
        there = ", ".join(sorted(p.name for p in path.parent.glob("*.py"))) or "no Python file"
        raise ModelError(
            f"--model_def names {path}, which does not exist; {path.parent} holds {there}. "
            "Write it as directory.file.function below --model_zoo."
        )
    name = ".".join(path.relative_to(zoo).with_suffix("").parts)
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(path):
        return sys.modules[name]
    for directory in (str(path.parent), str(zoo)):
        if directory not in sys.path:
            sys.path.insert(0, directory)  # model files import their neighbours
    loader = importlib.util.spec_from_file_location(name, path)
    assert loader is not None and loader.loader is not None
    module = importlib.util.module_from_spec(loader)
    sys.modules[name] = module
    try:
        loader.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ModelError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _find(module: ModuleType, name: str, flag: str, expected: str) -> Any:
    found = getattr(module, name, None)
    if not callable(found):
        offers = ", ".join(
            n
            for n, v in vars(module).items()
            if callable(v) and getattr(v, "__module__", "") == module.__name__
        )
        raise ModelError(
            f"{module.__file__} has no function {name} ({flag}); expected {expected}. "
            f"It offers: {offers or 'none'}."
        )
    return found


def _checked(function: Any, part: _Part, module: ModuleType) -> Any:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return function  # builtins do not tell
    try:
        signature.bind(*[None] * part.arguments)
    except TypeError as error:
        raise ModelError(
            f"{module.__file__}: {function.__name__}{signature} does not fit; "
            f"it is called as {part.signature}."
        ) from error
    return function
