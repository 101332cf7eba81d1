"""Helper threads that do not die in silence: whoever waits for one would wait for ever."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable

log = logging.getLogger(__name__)


def supervised(name: str, target: Callable[[], None], failed: Callable[[str, Exception], None]) -> None:
    """Run `target` in a thread of this name; what it raises is logged, then told to `failed`."""

    def run() -> None:
        try:
            target()
        except Exception as error:  # noqa: BLE001  the supervisor: a bug in a helper must not look like a wait
            log.critical("the thread %s ended with an error:\n%s", name, traceback.format_exc())
            failed(name, error)

    threading.Thread(target=run, name=name, daemon=True).start()
