"""`horovodrun -np 2 python -m edl_allreduce.worker.main …`: a fixed ring, no master, the same result."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from edl_allreduce.errors import SetupError, UsageError
from edl_allreduce.spec import parse_job
from edl_allreduce.worker.loop.diary import audit
from edl_allreduce.worker.start.launcher import Launcher, find_launcher, launched_job

BITS = {"reproducible": True, "mixed_precision": "mixed_bfloat16", "virtual_workers": 4}


@pytest.mark.training
@pytest.mark.timeout(1200)  # Horovod with MPI may have to be built first
@pytest.mark.parametrize("launcher", ["horovodrun", "mpirun"])
def test_two_ranks_of_a_launcher_give_the_model_of_one_process(
    tmp_path, launch, weights, digits_flags, start, launcher
):
    flags = {**digits_flags, "audit_dir": tmp_path / "audit", "output": tmp_path / "output"}
    words = [sys.executable, "-m", "edl_allreduce.worker.main", *(f"--{k}={v}" for k, v in flags.items())]
    done = start(launcher, 2, *words, mpi=launcher == "mpirun")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Succeeded" in done.stdout and f"started by {launcher}" in done.stdout
    verdict = audit(str(tmp_path / "audit"))
    assert verdict.clean and (verdict.epochs, verdict.generations) == (2, 1), verdict
    alone = launch(name="alone", distribution_strategy="Local", minibatch_size=32)
    assert alone.wait() == 0, alone.story()
    trained = weights(tmp_path / "output")
    for expected, got in zip(weights(alone.output), trained, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-5)
    first, last = sorted((tmp_path / "output").glob("pass-*"))
    assert (first.name, last.name) == ("pass-00000", "pass-00001")
    assert (first / "done").exists() and (last / "done").exists()
    kept = [np.load(path) for path in last.glob("*.npy")]
    assert all(any(np.array_equal(weight, array) for array in kept) for weight in trained)


@pytest.mark.training
def test_two_ranks_of_a_launcher_come_to_the_bits_of_one_process(tmp_path, launch, digits_flags, start):
    alone = launch(name="alone", distribution_strategy="Local", minibatch_size=32, num_workers=1, **BITS)
    assert alone.wait() == 0, alone.story()
    expected = alone.audit().fingerprint
    flags = {**digits_flags, **BITS, "verify_fingerprint": expected}
    words = [sys.executable, "-m", "edl_allreduce.worker.main", *(f"--{k}={v}" for k, v in flags.items())]
    done = start("horovodrun", 2, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"The fingerprint of the weights is {expected}" in done.stdout


@pytest.mark.tensorflow
def test_ranks_that_would_compute_different_bits_do_not_begin():
    from edl_allreduce.worker.start.session import refuse_other_bits

    class Ring:
        def gather(self, own):
            return [own, [own[0], own[1] + 1]]

    refuse_other_bits(Ring(), {})
    with pytest.raises(SetupError, match=r"differ in: processor\. Start all"):
        refuse_other_bits(Ring(), {"threads": "1", "processor": "x86"})


@pytest.mark.tensorflow
def test_ranks_that_differ_are_told_before_the_model_is_built_on_their_ring(monkeypatch):
    from edl_allreduce.worker.start import session

    class Ring:
        def gather(self, own):
            return [own, [own[0] + 1, *own[1:]]]

    built = []
    monkeypatch.setattr(session, "set_threads", lambda spec: None)
    monkeypatch.setattr(session, "open_program", lambda *given: built.append(given))
    spec = parse_job("worker", ["--reproducible"]).spec
    with pytest.raises(SetupError, match=r"differ in: --virtual_workers\."):
        session.prepare_alone(spec, None, Ring())
    assert not built


@pytest.mark.parametrize("flags", [["--virtual_workers=4"], ["--num_workers=2"]])
def test_a_launcher_starts_no_more_ranks_than_have_something_to_do(flags):
    parsed = parse_job("worker", ["--model_def=a.b", "--training_data=d", "--reproducible", *flags])
    assert launched_job(parsed, Launcher("horovodrun", 0, 4)).virtual_ranks == 4
    with pytest.raises(UsageError, match="--virtual_workers=4 is less than the 8 workers"):
        launched_job(parsed, Launcher("horovodrun", 0, 8))


def test_launchers_are_known_by_what_they_tell():
    assert find_launcher({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}) == Launcher("horovodrun", 1, 2)
    mpi = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3"}
    assert find_launcher(mpi) == Launcher("mpirun", 0, 3)
    assert find_launcher({}) is None


@pytest.mark.training
def test_a_horovod_without_mpi_does_not_train_alone_under_mpirun(digits_flags, start):
    if _has_mpi():
        pytest.skip("this Horovod was built with MPI")
    words = [sys.executable, "-m", "edl_allreduce.worker.main"]
    done = start("mpirun", 2, *words, *(f"--{k}={v}" for k, v in digits_flags.items()))
    assert done.returncode != 0
    assert "each process would train alone" in done.stdout, done.stdout + done.stderr
    assert "HOROVOD_WITH_MPI=1" in done.stdout


def _has_mpi() -> bool:
    check = "import horovod.tensorflow as hvd, sys; sys.exit(0 if hvd.mpi_built() else 1)"
    return subprocess.run([sys.executable, "-c", check], capture_output=True).returncode == 0


@pytest.mark.programs
def test_without_master_and_launcher_the_ways_are_named():
    done = subprocess.run(
        [sys.executable, "-m", "edl_allreduce.worker.main", "--worker_id=0"],
        capture_output=True,
        text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "OMPI_", "PMI_"))},
    )
    assert done.returncode == 2
    assert "--master_addr" in done.stderr and "horovodrun" in done.stderr and "Local" in done.stderr
