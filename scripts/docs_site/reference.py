"""Reference pages, made of the code while the site is built, so that they cannot be out of date.

Nothing here imports TensorFlow: what only a worker may import is read as text.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import enum
import inspect
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

from edl_allreduce import contract, errors
from edl_allreduce.cli.main import COMMANDS
from edl_allreduce.cli.main import main as elasticdl
from edl_allreduce.controller import endpoint
from edl_allreduce.controller.rounds import Controller, Figures
from edl_allreduce.core import causes, events, goodput, pod_causes, protocol
from edl_allreduce.core.status import CheckpointStatus, JobStatus, WorkerStatus
from edl_allreduce.master.metrics import Metrics
from edl_allreduce.spec.declare import Command, Group, flag_of
from edl_allreduce.spec.job import JobSpec
from edl_allreduce.spec.legacy import LEGACY, Kind
from edl_allreduce.spec.resource.crd import crd

PACKAGE = Path(errors.__file__).parent
EXAMPLES: dict[str, Any] = {
    "int": 2, "float": 0.5, "str": "…", "bool": False, "tuple[int, ...]": (0, 1), "Mapping[str, float]": {},
    "NoteKind": protocol.NoteKind.NOTICE,
}  # fmt: skip
"""Of facts of an event, by type."""
FLAGS_OF = {Command.TRAIN: "train", Command.EVALUATE: "evaluate", Command.PREDICT: "predict"}


def pages() -> dict[str, str]:
    """All of them, by the name that they have below docs/."""
    made = {
        "commands": commands(),
        "flags": flags(),
        "trainingjob": trainingjob(),
        "events": all_events(),
        "metrics": metrics(),
        "errors": all_errors(),
        "python": python(),
    }
    return {f"reference/{name}.md": text for name, text in made.items()}


def cell(text: object) -> str:
    """Text of a table: one line, no markup by accident; words between backticks stay code."""
    parts = " ".join(str(text).split()).split("`")
    parts[::2] = [re.sub(r"([\\*_\[<])", lambda mark: f"\\{mark[0]}", part) for part in parts[::2]]
    return "`".join(parts).replace("|", "\\|")


def code(text: object) -> str:
    """A word of code in a table."""
    words = str(text).replace("|", "\\|")
    return f"`{words}`" if words else ""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    names = list(head)
    lines = [names, ["---"] * len(names), *map(list, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def doc_of(thing: object) -> str:
    """The docstring; empty where a dataclass has only the one that Python makes."""
    text = inspect.getdoc(thing) or ""
    return "" if dataclasses.is_dataclass(thing) and text.startswith(f"{thing.__name__}(") else text  # type: ignore[union-attr]


def docs_of_members(kind: type[enum.Enum]) -> dict[str, str]:
    """The strings below the members of an enum, by value: Python forgets them, the source does not."""
    tree = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(tree, ast.ClassDef)
    return {kind[name].value: text for name, text in documented(tree.body)}


def documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Names that are assigned and have a string below them."""
    for this, following in zip(body, [*body[1:], ast.Pass()], strict=True):
        target = this.targets[0] if isinstance(this, ast.Assign) else getattr(this, "target", None)
        if isinstance(target, ast.Name):
            value = following.value if isinstance(following, ast.Expr) else None
            words = value.value if isinstance(value, ast.Constant) else ""
            yield target.id, " ".join(str(words).split())


# ------------------------------------------------------------------------------------- commands and flags


def commands() -> str:
    """What each command says with --help."""
    parts = [
        "# Commands",
        "What `elasticdl COMMAND --help` prints. The flags of `train`, `evaluate` and `predict` are on "
        "[a page of their own](flags.md).",
        table(["command", ""], ([code(name), cell(entry.summary)] for name, entry in COMMANDS.items())),
    ]
    for name in COMMANDS:
        if name not in FLAGS_OF.values():
            parts.append(f"## {name}\n\n```text\n{help_of(name)}\n```")
    return "\n\n".join(parts) + "\n"


def help_of(*words: str) -> str:
    """The help text of a command."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        elasticdl([*words, "--help"])
    return said.getvalue().strip()


def flags() -> str:
    """Every flag, by heading."""
    fields = {field.name: field for field in dataclasses.fields(JobSpec)}
    parts = [
        "# Flags",
        "Flags of `elasticdl train`, `evaluate` and `predict`, and of master and workers started by hand. "
        "`--job_name=digits` and `--job_name digits` are the same.",
    ]
    for group in Group:
        rows = []
        for name, field in fields.items():
            info = flag_of(field)
            if info.group is group:
                who = ", ".join(sorted(command.value for command in info.commands))
                shown = "all" if info.commands == frozenset(Command) else who
                rows.append([code(f"--{name}"), default_of(field), cell(info.help), shown])
        title = group.value[0].upper() + group.value[1:]
        parts.append(f"## {title}\n\n" + table(["flag", "default", "meaning", "of"], rows))
    parts.append("## Flags of parameter servers and of older versions\n\nThey are known. Training goes on.")
    for kind in Kind:
        rows = [
            [code(f"--{one.name}"), cell(one.instead or "translated into the flag of today")]
            for one in LEGACY.values()
            if one.kind is kind
        ]
        parts.append(table([kind.value, "what happens"], rows))
    return "\n\n".join(parts) + "\n"


def default_of(field: dataclasses.Field[Any]) -> str:
    """As one would type it."""
    value = field.default.value if isinstance(field.default, enum.Enum) else field.default
    return code("true" if value is True else "false" if value is False else "" if value is None else value)


# ---------------------------------------------------------------------------------------------- Kubernetes


def trainingjob() -> str:
    """Every field of a TrainingJob."""
    (version,) = crd()["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    parts = [
        "# Fields of a TrainingJob",
        f"`apiVersion: elasticdl.org/v1`, `kind: TrainingJob`. {cell(schema['description'])} "
        "[The guide](../kubernetes/trainingjob.md) says how to use it; `kubectl explain tj.spec` has "
        "the same words.",
    ]
    for part in ("spec", "status"):
        rows = list(fields_of(schema["properties"][part], part))
        parts.append(f"## {part}\n\n" + table(["field", "type", "default", "meaning"], rows))
    return "\n\n".join(parts) + "\n"


def fields_of(schema: Mapping[str, Any], path: str) -> Iterator[list[str]]:
    """Rows of a table, depth first."""
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        kind = field.get("type", "integer or text" if "x-kubernetes-int-or-string" in field else "")
        default = code(field["default"]) if "default" in field else ""
        about = cell(field.get("description", ""))
        choices = field.get("enum")
        if choices:
            about += " One of " + ", ".join(code(choice) for choice in choices) + "."
        yield [code(here), kind, default, about]
        yield from fields_of(field, here)
        if isinstance(field.get("items"), dict):
            yield from fields_of(field["items"], f"{here}[]")


# ------------------------------------------------------------------------------------- events and metrics


def all_events() -> str:
    """Every event with its facts."""
    rows = []
    for made in get_args(events.Event):
        fields = [field for field in dataclasses.fields(made) if field.name != "kind"]
        facts = ", ".join(code(field.name) for field in fields)
        example = made(**{field.name: EXAMPLES[str(field.type)] for field in dataclasses.fields(made)})
        about = " ".join([f"*{cell(example.text())}*", cell(doc_of(made))])
        kinds = [made.kind] if hasattr(made, "kind") else list(protocol.NoteKind)
        rows.append([", ".join(map(code, kinds)), code(made.__name__), facts, about])
    rows.sort()
    return "\n\n".join(
        [
            "# Events",
            "What can happen to a job. `elasticdl events` prints the word and a sentence; "
            "`--output=json` and `events.jsonl` of the job's directory have the facts under `event`. "
            "Pages, reports, Prometheus and Kubernetes are fed from the same list.",
            table(["word", "name in the data", "facts", "sentence, and what it means"], rows),
        ]
    ) + "\n"  # fmt: skip


def metrics() -> str:
    """Every metric that a master or the controller serves."""
    worker = WorkerStatus(0, "", "ring", 0, "computing", 1)
    status = JobStatus(
        "job", "Training", 1, 1, 1, 1, 1, 0.0, 1.0, 1.0, "", 1.0, [worker], [],
        checkpoint=CheckpointStatus(1, "", 0.0), metrics={"accuracy": 1.0},
    )  # fmt: skip
    rows = []
    for family in Metrics(lambda: status).collect():
        ending = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = ", ".join(code(label) for label in getattr(family, "_labelnames", ()))
        rows.append([code(family.name + ending), family.type, labels, cell(family.documentation)])
    return "\n\n".join(
        [
            "# Metrics",
            "Of `/metrics` for Prometheus. [Seeing a job](../seeing.md) says how to scrape them.",
            "## Of a job's master\n\n" + table(["metric", "type", "labels", ""], rows),
            "Buckets of goodput (`bucket`) are defined in [goodput](../goodput.md): "
            + ", ".join(code(bucket.value) for bucket in goodput.Bucket)
            + ".",
            "## Of the controller\n\n" + table(["metric", "type", ""], controller_metrics()),
        ]
    ) + "\n"  # fmt: skip


def controller_metrics() -> Iterator[list[str]]:
    """What the controller's endpoint says of its own figures, before it has any."""
    none = SimpleNamespace(leads=0, term=0, writes=0, conflicts=0)
    controller = SimpleNamespace(figures=Figures(), hands=none, election=none)
    text = endpoint.metrics(cast(Controller, controller))
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    for name, about in re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE):
        yield [code(name), kinds[name], cell(about)]


# -------------------------------------------------------------------------------------------------- errors


def all_errors() -> str:
    """Exit codes, classes of errors, and what becomes of a worker that ends."""
    ends = docs_of_members(causes.Cause)
    rows = [
        [
            code(cause.value),
            cell(ends.get(cause.value) or causes.SENTENCE[cause]),
            "at once, not counted" if cause in causes.FREE else "",
        ]
        for cause in causes.Cause
    ]
    exits = dict(documented(ast.parse((PACKAGE / "contract.py").read_text()).body))
    known = {getattr(contract, name): words for name, words in exits.items() if name.startswith("EXIT_")}
    known |= {0: "Success.", errors.UsageError.exit_code: "A flag or an argument is wrong."}
    codes = [[code(number), cell(words)] for number, words in sorted(known.items())]
    waits = ", ".join(code(reason) for reason in sorted(pod_causes.BROKEN_WAITS))
    return "\n\n".join(
        [
            "# Errors",
            "Every message says what was expected, what was found and what to do. "
            "[Troubleshooting](../troubleshooting.md) begins from what you see.",
            "## Exit codes\n\n"
            + table(["code", ""], codes),
            "## Classes\n\nOf `edl_allreduce.errors`; a command ends with the exit code of the error.\n\n"
            + table(["class", "exit code", ""], error_rows(errors.EdlError, "")),
            "## Why a worker is gone\n\nThe word is in the event `exit`, and a label of metrics.\n\n"
            + table(["cause", "", "replaced"], rows),
            "## What a pod says\n\n"
            + table(
                ["reason of the pod", "counts as"],
                [
                    *([code(reason), cell(words)] for reason, words in pod_causes.DISRUPTIONS.items()),
                    *([code(reason), cell(cause.value)] for reason, cause in pod_causes.POD_REASONS.items()),
                ],
            ),
            f"Waiting reasons that seldom go away by themselves: {waits}. "
            "A job none of whose workers ever ran fails after a minute of them.",
        ]
    ) + "\n"  # fmt: skip


def error_rows(kind: type[errors.EdlError], indent: str) -> Iterator[list[str]]:
    """An error and those below it."""
    yield [indent + code(kind.__name__), str(kind.exit_code), cell(doc_of(kind))]
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from error_rows(below, indent + "&nbsp;&nbsp;")


# -------------------------------------------------------------------------------------------------- Python


def python() -> str:
    """The public names: read, not imported, because a script's own loop needs TensorFlow."""
    parts = [
        "# Python",
        "Guides: [jobs from Python](../running/python-api.md), [your own loop](../running/own-loop.md).",
    ]
    for name in ("api", "elastic"):
        tree = ast.parse((PACKAGE / f"{name}.py").read_text())
        parts.append(f"## edl_allreduce.{name}\n\n{ast.get_docstring(tree).splitlines()[0]}")  # type: ignore[union-attr]
        parts += [shown for public in public_names(tree) for shown in shown_of(*source_of(tree, public))]
    return "\n\n".join(parts) + "\n"


def public_names(tree: ast.Module) -> list[str]:
    """Of `__all__`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def source_of(tree: ast.Module, name: str) -> tuple[str, ast.stmt | None]:
    """Where a name is defined: in this file, or in the one that it is imported from."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return name, node
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            path = PACKAGE.parent / f"{(node.module or '').replace('.', '/')}.py"
            return source_of(ast.parse(path.read_text()), name)
    return name, None


def shown_of(name: str, node: ast.stmt | None) -> Iterator[str]:
    """A class with its public methods and fields, or a function."""
    if isinstance(node, ast.FunctionDef):
        yield f"### {name}\n\n```python\n{signature(node)}\n```\n\n{prose(node)}"
    elif isinstance(node, ast.ClassDef):
        yield f"### {name}\n\n{prose(node)}"
        rows = []
        for part in node.body:
            if isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
                is_field = any(getattr(mark, "id", "") == "property" for mark in part.decorator_list)
                first = prose(part).split("\n\n")[0]
                rows.append([code(part.name if is_field else signature(part, short=True)), cell(first)])
        rows += [[code(field), cell(words)] for field, words in fields_in(node)]
        if rows:
            yield table(["", ""], rows)


def fields_in(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Of a dataclass, or what `__init__` sets on self."""
    yield from ((name, words) for name, words in documented(node.body) if not name.startswith("_"))
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            for this, following in zip(part.body, [*part.body[1:], ast.Pass()], strict=True):
                target = getattr(this, "target", None)
                if isinstance(target, ast.Attribute) and not target.attr.startswith("_"):
                    value = following.value if isinstance(following, ast.Expr) else None
                    yield target.attr, str(value.value) if isinstance(value, ast.Constant) else ""


def signature(node: ast.FunctionDef, *, short: bool = False) -> str:
    """As it is written; without `self`, and an argument per line where it is long."""
    arguments = ast.unparse(node.args).removeprefix("self, ").removeprefix("self")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{node.name}({arguments}){returns}"
    if short or len(line) < 100:
        return line
    inside = re.sub(r", (?=\*|/|\w+:)", ",\n    ", arguments)
    return f"{node.name}(\n    {inside},\n){returns}"


def prose(node: ast.FunctionDef | ast.ClassDef) -> str:
    """The docstring; what it says of single arguments as a list."""
    return re.sub(r"^(\w+): ", r"- `\1`: ", ast.get_docstring(node) or "", flags=re.MULTILINE)
