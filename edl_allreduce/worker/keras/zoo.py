"""Model files: what a module of the zoo offers, and clear words when it does not fit."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any

from edl_allreduce.errors import EdlError, ModelError
from edl_allreduce.spec import JobSpec
from edl_allreduce.spec.params import split_model_def
from edl_allreduce.worker.keras import compat, pinned_imports


class Mode(StrEnum):
    """What records are fed for; `feed` gets one of these. They compare equal to their plain strings."""

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
    """Called with (dataset, mode, metadata), whatever the file's own function takes."""
    eval_metrics: Callable[[], Any] | None = None
    callbacks: Callable[[], Any] | None = None
    data_reader: Callable[..., Any] | None = None
    outputs_processor: Callable[[], Any] | None = None


@dataclass(frozen=True)
class _Part:
    """One function of the contract: how it is called, for error messages and for the check."""

    flag: str
    signature: str
    arguments: tuple[int, ...]
    """Numbers of arguments that fit, the preferred one first."""
    required: bool = True
    older_name: str = ""


CONTRACT = {
    "loss": _Part("--loss", "loss(labels, predictions)", (2,)),
    "optimizer": _Part("--optimizer", "optimizer()", (0,)),
    "feed": _Part("--feed", "feed(dataset, mode, metadata)", (3, 2), older_name="dataset_fn"),
    "eval_metrics_fn": _Part("--eval_metrics_fn", "eval_metrics_fn()", (0,), required=False),
    "callbacks": _Part("--callbacks", "callbacks()", (0,), required=False),
    "custom_data_reader": _Part(
        "--custom_data_reader", "custom_data_reader(data_origin, **kwargs)", (1,), required=False
    ),
    "prediction_outputs_processor": _Part(
        "--prediction_outputs_processor", "PredictionOutputsProcessor()", (0,), required=False
    ),
}


def load_definition(spec: JobSpec) -> ModelDefinition:
    """Import the model file that --model_def names and check it against the contract."""
    compat.install()
    relative, name = spec.typed.model
    zoo = Path(spec.model_zoo or ".").resolve()
    module = _import(zoo, zoo / relative, "--model_def")
    model = _find(module, name, "--model_def", f"{name}(), a function or a class, that gives a Keras model")
    found = {key: _part(zoo, module, getattr(spec, key), part) for key, part in CONTRACT.items()}
    return ModelDefinition(
        path=Path(str(module.__file__)),
        model=_certain(_with_params(model, spec, module), module),
        loss=found["loss"],
        optimizer=_certain(found["optimizer"], module),
        feed=_three_arguments(found["feed"]),
        eval_metrics=_certain(found["eval_metrics_fn"], module) if found["eval_metrics_fn"] else None,
        callbacks=_certain(found["callbacks"], module) if found["callbacks"] else None,
        data_reader=found["custom_data_reader"],
        outputs_processor=found["prediction_outputs_processor"],
    )


def _part(zoo: Path, module: ModuleType, name: str, part: _Part) -> Any:
    """The function, checked; None when it is optional and absent under its usual name."""
    if "." in name:
        relative, name = split_model_def(name)
        module = _import(zoo, zoo / relative, part.flag)
    elif part.older_name and not hasattr(module, name) and hasattr(module, part.older_name):
        name = part.older_name
    usual = part.signature.partition("(")[0]
    if not part.required and name == usual and not hasattr(module, name):
        return None
    return _checked(_find(module, name, part.flag, part.signature), part, module)


def _with_params(model: Callable[..., Any], spec: JobSpec, module: ModuleType) -> Callable[[], Any]:
    """--model_params become keyword arguments; what reads as a Python literal is one."""
    params = {name: _literal(value) for name, value in spec.typed.model_params.items()}
    try:
        inspect.signature(model).bind(**params)
    except ValueError:
        pass  # builtins do not tell
    except TypeError as error:
        given = f" with --model_params={spec.model_params!r}" if params else " without arguments"
        raise ModelError(
            f"{module.__file__}: {_described(model)} does not fit: it is called{given} ({error}). "
            "Give its parameters defaults, or name them in --model_params='a=1; b=2'."
        ) from error
    if not params:
        return model
    called = functools.partial(model, **params)
    functools.update_wrapper(called, model, updated=())
    return called


def _certain(function: Callable[[], Any], module: ModuleType) -> Callable[[], Any]:
    """What raises while the model is built raises on every worker, each time: no reason to try again."""

    @functools.wraps(function, updated=())
    def called() -> Any:
        try:
            return function()
        except (EdlError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            name = getattr(function, "__name__", str(function))
            raise ModelError(f"{module.__file__}: {name}() raised {_raised(error)}") from error

    return called


def _raised(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"SystemExit: sys.exit({error.code!r}) was called"
    return f"{type(error).__name__}: {error}"


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _three_arguments(feed: Callable[..., Any]) -> Callable[..., Any]:
    """Older files take (dataset, mode)."""
    if _binds(feed, 3):
        return feed

    @functools.wraps(feed, updated=())
    def called(dataset: Any, mode: Mode, metadata: Any) -> Any:
        return feed(dataset, mode)

    return called


def _namesake(zoo: Path, path: Path) -> str:
    """Where a file of this name is instead: tutorials of ElasticDL have other directories."""
    for found in sorted(zoo.glob(f"*/{path.name}")):
        return f", here {'.'.join(found.relative_to(zoo).with_suffix('').parts)}.function"
    return ""


def check_file(zoo: Path, path: Path, flag: str) -> None:
    """Whether the model file is there."""
    if not zoo.is_dir():
        raise ModelError(f"--model_zoo={zoo}: there is no such directory; {flag} names a file below it.")
    if not path.is_file():
        there = ", ".join(sorted(p.name for p in path.parent.glob("*.py"))) or "no Python file"
        raise ModelError(
            f"{flag} names {path}, which does not exist; {path.parent} holds {there}. "
            f"Write it as directory.file.function below --model_zoo{_namesake(zoo, path)}."
        )


def _import(zoo: Path, path: Path, flag: str) -> ModuleType:
    name = ".".join(path.relative_to(zoo).with_suffix("").parts)
    finder = pinned_imports.finder()
    kept = finder.spec(name, path) if finder is not None else None
    if kept is None:
        check_file(zoo, path, flag)
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(path):
        return sys.modules[name]
    _let_neighbours_be_imported(zoo, path)
    loader = kept or importlib.util.spec_from_file_location(name, path)
    assert loader is not None and loader.loader is not None
    module = importlib.util.module_from_spec(loader)
    sys.modules[name] = module
    try:
        loader.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ModelError(f"{path} cannot be imported: {_raised(error)}") from error
    return module


def _let_neighbours_be_imported(zoo: Path, path: Path) -> None:
    """A model file imports its neighbours: by their names, by their path in the zoo, or as `model_zoo.a.b`.

    Only its own directory comes first, as for a script: a directory of the zoo that is named like an
    installed package must not hide it.
    """
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    for directory in (str(zoo), str(zoo.parent)):
        if directory not in sys.path:
            sys.path.append(directory)


def _find(module: ModuleType, name: str, flag: str, expected: str) -> Any:
    found = getattr(module, name, None)
    if not callable(found):
        own = [
            n
            for n, v in vars(module).items()
            if callable(v) and getattr(v, "__module__", "") == module.__name__
        ]
        raise ModelError(
            f"{module.__file__} has no function {name} ({flag}); expected {expected}. "
            f"It offers: {', '.join(own) or 'none'}."
        )
    return found


def _checked(function: Any, part: _Part, module: ModuleType) -> Any:
    if not any(_binds(function, count) for count in part.arguments):
        raise ModelError(
            f"{module.__file__}: {_described(function)} does not fit {part.flag}; "
            f"it is called as {part.signature}."
        )
    return function


def _binds(function: Any, count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        return True  # builtins do not tell
    return True


def _described(function: Any) -> str:
    return f"{getattr(function, '__name__', function)}{inspect.signature(function)}"
