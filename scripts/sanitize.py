"""The tests of our Horovod with its library watched by a sanitizer of the compiler.

    python -m scripts.sanitize address        memory: used after it was freed, beyond its end
    python -m scripts.sanitize thread         threads that touch the same memory without a lock
    python -m scripts.sanitize address --rounds 5

Builds a Horovod of its own (cached like the others; 3 to 8 minutes), and ends with 1 when the sanitizer found
something, after showing it. Only Horovod and Gloo are watched: Python and TensorFlow are as always,
and ThreadSanitizer does not see their locks; what it says of them is left out (`scripts/sanitize.ignore`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ["tests/horovod", "--ignore=tests/horovod/test_stock_horovod.py"]
RUNTIMES = {"address": "libasan.so", "thread": "libtsan.so"}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.sanitize",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sanitizer", choices=sorted(RUNTIMES))
    parser.add_argument("--rounds", type=int, default=1, help="how often all tests of the ring run")
    parser.add_argument(
        "tests", nargs="*", default=TESTS, help="which tests (those of the ring's laboratory)"
    )
    flags = parser.parse_args(argv)
    place = ROOT / "build" / f"sanitize-{flags.sanitizer}"
    place.mkdir(parents=True, exist_ok=True)
    for old in place.glob("found.*"):
        old.unlink()
    site = _install(flags.sanitizer, place)
    codes = [_test(flags.sanitizer, flags.tests, site, place) for _ in range(flags.rounds)]
    found = sorted(place.glob("found.*"))
    for path in found:
        print(path.read_text(errors="replace"))
    print(f"{flags.sanitizer}: {len(found)} processes with findings, {sum(map(bool, codes))} rounds failed")
    return 1 if found or any(codes) else 0


def _install(sanitizer: str, place: Path) -> Path:
    """Our Horovod, built for the sanitizer, where only these tests find it."""
    environment = {**os.environ, "HOROVOD_SANITIZE": sanitizer}
    build = [sys.executable, str(ROOT / "third_party" / "horovod" / "build.py"), "--python", sys.executable]
    built = subprocess.run(build, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    wheel = built.stdout.strip()
    site = place / Path(wheel).parent.name
    if not site.exists():
        install = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), wheel]
        subprocess.run([sys.executable, *install], check=True)
    return site


def _test(sanitizer: str, tests: list[str], site: Path, place: Path) -> int:
    options = f"log_path={place / 'found'}:suppressions={ROOT / 'scripts' / 'sanitize.ignore'}"
    # With the C++ library before Python, or the sanitizer does not find what throws exceptions.
    runtime = " ".join(map(_library, (RUNTIMES[sanitizer], "libstdc++.so")))
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        "RING_LAB_PRELOAD": runtime,
        # Python keeps much until its end, which is no leak; a frozen test process is no deadlock.
        "ASAN_OPTIONS": f"detect_leaks=0:{options.split(':')[0]}",
        "TSAN_OPTIONS": f"{options}:report_signal_unsafe=0",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", *tests]
    return subprocess.run(command, env=environment, cwd=ROOT).returncode


def _library(name: str) -> str:
    asked = subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    return asked.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
