"""A real job of the product, started as a user would start it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from chaos import data, network, processes
from chaos.data import GLOBAL_BATCH, STEPS_PER_EPOCH, Array
from chaos.faults import Shape, Style

ROOT = Path(__file__).resolve().parents[1]
PORT = 4711
"""Of the master; the network is the job's own."""
DISK = ("size=48m", "mode=0700")
GRACE_SECONDS = 40
TOKEN = "a token of a campaign, 32 letters"


class Job:
    """Master and workers, and where their files are."""

    def __init__(self, shape: Shape, seed: int, directory: Path) -> None:
        self.shape = shape
        self.seed = seed
        self.directory = directory
        self.disk = directory / "disk"
        self.audit = directory / "audit"
        self.output = directory / "output"
        self.temporary = directory / "tmp"
        self.pace_file = directory / "pace"
        self.events = self.disk / "job" / "events.jsonl"
        self.checkpoints = self.disk / "checkpoints"
        self.master: subprocess.Popen[bytes] | None = None
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        """Those that were started by hand."""
        self._next = 0

    def prepare(self) -> None:
        for path in (self.disk, self.audit, self.temporary):
            path.mkdir(parents=True)
        network.run("mount", "-t", "tmpfs", "-o", ",".join(DISK), "chaos", str(self.disk))
        data.write(self.directory / "data")
        self.pace(0.02)

    def pace(self, seconds: float) -> None:
        draft = self.pace_file.with_suffix(".new")
        draft.write_text(f"{seconds:.4f}")
        draft.replace(self.pace_file)

    def start_master(self) -> None:
        shape = self.shape
        local = shape.style is Style.LOCAL
        program = ("edl_allreduce.cli", "train") if local else ("edl_allreduce.master.main",)
        flags: dict[str, object] = {
            "job_name": "chaos",
            "job_dir": self.disk / "job",
            "audit_dir": self.audit,
            "output": self.output,
            "checkpoint_dir": self.checkpoints,
            "checkpoint_steps": shape.checkpoint_steps,
            "keep_checkpoint_max": 3,
            "evaluation_steps": shape.evaluation_steps,
            "model_zoo": ROOT / "chaos" / "zoo",
            "model_def": "tanh.custom_model",
            "training_data": self.directory / "data",
            "validation_data": self.directory / "data",
            "minibatch_size": GLOBAL_BATCH // shape.workers if local else GLOBAL_BATCH,
            "num_epochs": shape.steps // STEPS_PER_EPOCH,
            "num_workers": shape.workers if local else 0,
            "threads_per_worker": 1,
            "seed": self.seed,
            "port": PORT,
            "failure_detection_seconds": shape.detection,
            "cool_down_seconds": 1,
            "max_worker_crashes": 1000,
            "master_grace_seconds": GRACE_SECONDS,
            "dashboard_port": "off",
        }
        words = [f"--{name}={value}" for name, value in flags.items()]
        self.master = self._start(["-m", *program, *words], "master")

    def start_worker(self) -> None:
        """By hand, with the next number."""
        number, self._next = self._next, self._next + 1
        words = [f"--worker_id={number}", f"--master_addr=127.0.0.1:{PORT}"]
        self.workers[number] = self._start(["-m", "edl_allreduce.worker.main", *words], f"worker-{number}")

    def _start(self, words: list[str], name: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CHAOS_PACE": str(self.pace_file),
            "TMPDIR": str(self.temporary),
            "EDL_JOB_TOKEN": TOKEN,
        }
        with (self.directory / f"{name}.out").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, *words], stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                env=environment, cwd=self.directory, start_new_session=True,
            )  # fmt: skip

    def worker_pids(self) -> list[int]:
        """Those that live and are not zombies, whoever started them."""
        return [
            pid
            for pid in sorted(processes.pids())
            if "edl_allreduce.worker.main" in processes.command(pid) and processes.state(pid) not in ("", "Z")
        ]

    def weights(self) -> list[Array] | None:
        """Of the exported model, read without Keras."""
        import h5py  # heavy, and only the judge needs it

        try:
            archive = zipfile.ZipFile(self.output / "model.keras")
            with archive, h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file:
                layers = [file[f"layers/{name}/vars"] for name in ("dense", "dense_1")]
                return [layer[number][()] for layer in layers for number in ("0", "1")]
        except (OSError, KeyError, zipfile.BadZipFile):
            return None

    def left_behind(self) -> list[str]:
        """Drafts that nobody finished and nobody removed, and temporary files."""
        drafts = [
            str(path.relative_to(self.directory))
            for folder in (self.output, self.checkpoints, self.audit)
            for path in folder.rglob(".*")
        ]
        if self.shape.style is Style.LOCAL:
            drafts += [str(path.relative_to(self.directory)) for path in self.temporary.iterdir()]
        return sorted(drafts)

    def last_words(self) -> str:
        lines = (self.directory / "master.out").read_text(errors="replace").splitlines()
        return " / ".join(lines[-2:])[-400:]
