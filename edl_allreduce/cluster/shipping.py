"""Functions and models of a notebook as a model file that workers can import."""

from __future__ import annotations

import ast
import inspect
import symtable
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from edl_allreduce import files
from edl_allreduce.errors import UsageError

MODULE = "notebook"
"""The name of the file."""
SAVED = "model.keras"
INSTEAD = "Write a model file instead (docs/models.md)."


def ship(objects: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Write them to `folder`; returns what the flags are then. `objects`: by the flag's name."""
    text = _Text()
    flags = {"model_zoo": str(folder)}
    model: Any = objects.get("model_def")
    for flag, given in objects.items():
        if flag == "model_def" and _is_model(given):
            continue
        if not callable(given):
            raise UsageError(f"{flag}: expected a name or a function, got a {type(given).__name__}.")
        text.add(given, flag)
        flags[flag] = given.__name__
    folder.mkdir(parents=True, exist_ok=True)
    if _is_model(model):
        with files.drafted(folder / SAVED) as draft:
            model.save(draft)
        flags["model_def"] = "custom_model"
        text.add_text(_saved_model(model, objects))
    flags["model_def"] = f"{MODULE}.{flags['model_def']}"
    files.write(folder / f"{MODULE}.py", text.whole().encode())
    return flags


def _is_model(given: Any) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(given, keras.Model)


def _saved_model(model: Any, objects: Mapping[str, Any]) -> str:
    """Functions that give back a model which was saved beside the file."""
    text = (
        "import pathlib\nimport keras\n\n_saved = pathlib.Path(__file__).with_name("
        f"{SAVED!r})\n\n\ndef custom_model():\n    return keras.saving.load_model(_saved, compile=False)\n"
    )
    for name in ("loss", "optimizer"):
        if name not in objects and not model.compiled:
            raise UsageError(f"the model is not compiled: compile it, or give {name}= as well.")
    if "loss" not in objects:
        if isinstance(model.loss, dict | list | tuple) or model.loss is None:
            raise UsageError("the model has several losses or none: give loss=, a function of all of them.")
        text += (
            "\n\ndef loss(labels, predictions):\n"
            "    return keras.losses.get(_compiled().loss)(labels, predictions)\n"
        )
    if "optimizer" not in objects:
        text += (
            "\n\ndef optimizer():\n    config = keras.optimizers.serialize(_compiled().optimizer)\n"
            "    return keras.optimizers.deserialize(config)\n"
        )
    return text + (
        "\n\n_kept = []\n\n\ndef _compiled():\n    if not _kept:\n"
        "        _kept.append(keras.saving.load_model(_saved))\n    return _kept[0]\n"
    )


class _Text:
    """Sources of functions, after what they need."""

    def __init__(self) -> None:
        self._imports: dict[str, str] = {}
        self._parts: dict[str, str] = {}

    def add_text(self, text: str) -> None:
        self._parts[""] = text

    def whole(self) -> str:
        return "\n\n".join(["\n".join(sorted(self._imports.values())), *self._parts.values()]) + "\n"

    def add(self, function: Callable[..., Any], flag: str) -> None:
        """A function or class, with everything of the notebook that it uses."""
        name = getattr(function, "__name__", "")
        if name in self._parts:
            return
        source = _source(function, flag)
        self._parts[name] = ""  # one that needs itself
        namespace = getattr(function, "__globals__", None) or vars(sys.modules[function.__module__])
        for used in _names(source) - {name}:
            if used in namespace:
                self._need(used, namespace[used], f"{flag} uses {used}")
        del self._parts[name]
        self._parts[name] = source

    def _need(self, name: str, value: Any, why: str) -> None:
        if name in self._imports or name in self._parts:
            return
        home = getattr(value, "__module__", None)
        if isinstance(value, ModuleType):
            self._imports[name] = f"import {value.__name__} as {name}"
        elif callable(value) and home == "__main__":
            if getattr(value, "__name__", "") != name:
                raise UsageError(f"{why}, another name of {value}: call it by its own name. {INSTEAD}")
            self.add(value, why)
        elif callable(value) and isinstance(home, str) and hasattr(value, "__name__"):
            self._imports[name] = f"from {home} import {value.__name__} as {name}"
        else:
            self._parts[name] = f"{name} = {_literal(value, why)}"


def _source(function: Any, flag: str) -> str:
    code = getattr(function, "__code__", None)
    if getattr(function, "__name__", "<lambda>") == "<lambda>" or (code is not None and code.co_freevars):
        raise UsageError(
            f"{flag}: a lambda, or a function inside another one, cannot be sent to workers. Define it with "
            "`def` in a cell of its own."
        )
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise UsageError(f"{flag}: the text of {function} cannot be found ({error}). {INSTEAD}") from error


def _names(source: str) -> set[str]:
    """What the text takes from the notebook: also decorators and defaults, but not parameters or locals."""
    return _globals(symtable.symtable(source, MODULE, "exec"))


def _globals(table: symtable.SymbolTable) -> set[str]:
    top = table.get_type() == "module"
    found = {s.get_name() for s in table.get_symbols() if s.is_global() or (top and s.is_referenced())}
    return found.union(*map(_globals, table.get_children()))


def _literal(value: Any, why: str) -> str:
    text = repr(value)
    try:
        same = ast.literal_eval(text) == value
    except (ValueError, SyntaxError, TypeError):
        same = False
    if not same or len(text) > 10_000:
        raise UsageError(
            f"{why}, a {type(value).__name__}, which cannot be sent to workers as text. Make it inside the "
            f"function, or read it there from a file. {INSTEAD}"
        )
    return text
