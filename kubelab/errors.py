"""What can go wrong, as one tree.

KubelabError
├── MissingTool        a program or a right that this machine lacks, and how to get it
├── BuildFailed        compiling a binary or building an image failed
├── CommandFailed      a program that was run returned an error
├── ApiError           the API server refused a request
├── NotInTime          something expected did not happen before its deadline
└── ClusterStateError  the cluster is not in the state the operation needs
"""

from __future__ import annotations


class KubelabError(Exception):
    """Base of all errors of this package."""


class MissingTool(KubelabError):
    """A program or a right is missing; the message says how to get it."""


class BuildFailed(KubelabError):
    """A binary or an image could not be built."""


class CommandFailed(KubelabError):
    """A program returned an error."""


class NotInTime(KubelabError):
    """Something expected did not happen before its deadline."""


class ClusterStateError(KubelabError):
    """The cluster is not in the state that the operation needs."""


class ApiError(KubelabError):
    """The API server refused a request."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"the API server answered {status} {reason}: {message}")
        self.status = status
        self.reason = reason
