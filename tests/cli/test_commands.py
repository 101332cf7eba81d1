"""The command `elasticdl`: help, dispatch, exit codes."""

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

from edl_allreduce.cli import main as cli
from edl_allreduce.errors import JobFailed
from edl_allreduce.spec import JobSpec
from edl_allreduce.version import __version__

ZOO = Path(__file__).resolve().parents[2] / "model_zoo"
TRAIN = [
    "--job_name=digits",
    "--model_def=digits.mlp.custom_model",
    f"--model_zoo={ZOO}",
    f"--training_data={ZOO / 'digits' / 'mlp.py'}",
    "--data_reader_params=reader_type=csv",  # any file will do: nothing is read
]


@pytest.fixture
def runners(monkeypatch, tmp_path):
    """Stand-ins for the three ways to run a job. They record what they got and answer 7."""
    calls = []

    def stand_in(target: str) -> None:
        module, _, function = target.partition(":")
        fake = types.ModuleType(module)
        setattr(fake, function, lambda *args: calls.append((function, *args)) or 7)
        monkeypatch.setitem(sys.modules, module, fake)

    for target in (
        "edl_allreduce.master.local:run_local_job",
        "edl_allreduce.worker.start.local:run_single",
        "edl_allreduce.cluster.kubernetes.submit:submit",
    ):
        stand_in(target)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return calls


@pytest.fixture
def command_that(monkeypatch):
    """Install a command `try` that does what the test wants."""

    def install(action):
        module = types.ModuleType("edl_allreduce.cli.version")
        module.main = action
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(cli, "COMMANDS", {"try": cli.Entry("", f"{module.__name__}:main")})

    return install


def test_without_arguments_help_is_printed_and_the_exit_code_is_1(capsys):
    assert cli.main([]) == 1
    assert "usage: elasticdl COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"]])
def test_help_is_asked_for(words, capsys):
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert "train a model" in out
    assert "elasticdl doctor" in out


def test_help_of_a_command_has_its_flags_in_groups(capsys):
    assert cli.main(["train", "--help"]) == 0
    out = capsys.readouterr().out
    for heading in (
        "job:",
        "model:",
        "data:",
        "training:",
        "elasticity:",
        "on Kubernetes (with --image_name):",
    ):
        assert f"\n{heading}\n" in out
    assert cli.main(["help", "train"]) == 0
    assert capsys.readouterr().out == out


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_on_offer_has_help(name, capsys):
    assert cli.main([name, "--help"]) == 0
    assert "usage: elasticdl" in capsys.readouterr().out


def test_an_unknown_command_names_the_nearest_one(capsys):
    assert cli.main(["trian"]) == 2
    assert "Unknown command 'trian'. Did you mean train?" in capsys.readouterr().err


def test_the_version_is_printed(capsys):
    assert cli.main(["version"]) == cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n" * 2


def test_an_unknown_flag_of_a_small_command_names_the_nearest_one(capsys):
    assert cli.main(["doctor", "--outptu=json"]) == 2
    assert "Unknown flag --outptu. Did you mean --output?" in capsys.readouterr().err


def test_wrong_usage_ends_with_2_and_the_message_on_standard_error(capsys):
    assert cli.main(["train"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("elasticdl: 3 problems:")


def test_a_failed_job_ends_with_1_and_its_reason_without_a_traceback(command_that, capsys):
    def fail(_):
        raise JobFailed("worker 3 ran out of memory")

    command_that(fail)
    assert cli.main(["try"]) == 1
    assert capsys.readouterr().err == "elasticdl: worker 3 ran out of memory\n"


def test_ctrl_c_ends_with_130(command_that):
    def interrupt(_):
        raise KeyboardInterrupt

    command_that(interrupt)
    assert cli.main(["try"]) == 130


def test_a_missing_library_leads_to_the_doctor(command_that, monkeypatch, capsys):
    monkeypatch.setattr(
        cli.importlib,
        "import_module",
        lambda _: (_ for _ in ()).throw(ModuleNotFoundError("", name="grpc._x")),
    )
    command_that(None)
    assert cli.main(["try"]) == 1
    assert "'grpc' is missing. `elasticdl doctor`" in capsys.readouterr().err


def test_a_job_without_an_image_runs_locally(runners):
    assert cli.main(["train", *TRAIN, "--num_workers=3"]) == 7
    ((name, spec, _),) = runners
    assert (name, spec.num_workers) == ("run_local_job", 3)
    assert isinstance(spec, JobSpec)


def test_the_local_strategy_runs_in_one_process(runners):
    assert cli.main(["train", *TRAIN, "--distribution_strategy=Local"]) == 7
    assert [call[0] for call in runners] == ["run_single"]


def test_a_job_with_an_image_is_submitted(runners):
    for command, data in (("evaluate", "--validation_data=/d"), ("predict", "--prediction_data=/d")):
        argv = [*TRAIN[:2], data, "--checkpoint_dir_for_init=/c", "--image_name=example/digits:1"]
        assert cli.main([command, *argv]) == 7
    assert [call[0] for call in runners] == ["submit", "submit"]


def test_notices_go_to_standard_error_and_the_job_goes_on(runners, capsys):
    assert cli.main(["train", *TRAIN, "--num_ps_pods=2"]) == 7
    assert capsys.readouterr().err.startswith("notice: --num_ps_pods=2 has no effect")
    assert len(runners) == 1


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"]])
def test_help_imports_nothing_heavy(words):
    source = (
        "import json, sys\n"
        "from edl_allreduce.cli.main import main\n"
        f"assert main({words!r}) == 0\n"
        "heavy = {'tensorflow', 'keras', 'horovod', 'grpc', 'kubernetes', 'numpy', 'rich'}\n"
        "print('\\n' + json.dumps(sorted(heavy & set(sys.modules))))\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_a_reader_that_leaves_early_is_no_error():
    # A pipe without a reader: what `elasticdl --help | head -0` leaves.
    process = subprocess.Popen(
        [sys.executable, "-m", "edl_allreduce.cli", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 1
