"""Values to which every rank gives its part, and which all learn as a whole."""

from __future__ import annotations

MOST_KEYS = 64
"""Horovod has one for each context."""


class Parts:
    """Of the newest generation; what belongs to an older one is forgotten."""

    def __init__(self) -> None:
        self._generation = 0
        self._values: dict[str, dict[int, bytes]] = {}
        self._said: dict[str, int] = {}

    def may_speak(self, generation: int, who: str) -> bool:
        """Whether it said less than anybody has to say in one rendezvous: each word goes to all members."""
        self._begin(generation)
        self._said[who] = self._said.get(who, 0) + 1
        return self._said[who] <= MOST_KEYS

    def add(self, generation: int, key: str, number: int, of: int, part: bytes) -> bytes | None:
        """The whole with the last part: the lengths of all in a line, then the parts themselves."""
        if generation < self._generation:
            return None
        self._begin(generation)
        if key not in self._values and len(self._values) == MOST_KEYS:
            return None
        parts = self._values.setdefault(key, {})
        parts[number] = part
        if len(parts) < of:
            return None
        ordered = [parts[number] for number in sorted(parts)]
        return " ".join(str(len(part)) for part in ordered).encode() + b"\n" + b"".join(ordered)

    def _begin(self, generation: int) -> None:
        if generation > self._generation:
            self._generation, self._values, self._said = generation, {}, {}
