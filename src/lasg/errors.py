"""The one exception that means: the input was wrong, and this sentence says how to fix it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


class LasgError(ValueError):
    """Wrong input. The message is one line: what was expected, what came, what to do."""


class Diverged(LasgError):  # noqa: N818
    """The model left the finite numbers."""


class Faulty(LasgError):  # noqa: N818
    """A worker's gradients were NaN or infinite for too long."""


class Stopped(LasgError):  # noqa: N818
    """The user stopped it; the message says how to go on."""


class RemoteFailure(LasgError):  # noqa: N818
    """Another process of the same run failed, and says why."""


class CannotWrite(LasgError):  # noqa: N818
    """A disk is full, read-only or gone. What was written before is whole, and can be gone on with."""


class LostRank(LasgError):  # noqa: N818
    """A rank of the process group does not answer."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean X?" where a known name is close to a wrong one, else nothing."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f" Did you mean {close[0]}?" if close else ""


def first_line(error: BaseException) -> str:
    """Return the first line of what an exception says, or its name where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def missing_extra(package: str, extra: str) -> LasgError:
    """Build the error for an optional dependency that is not installed."""
    return LasgError(f"{package} is not installed, and this needs it: pip install 'lasg[{extra}]'")


@contextmanager
def wrap_write_errors(path: Path) -> Iterator[None]:
    """Say in one line what could not be written."""
    try:
        yield
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror or error}") from None
    except SafetensorError as error:  # it wraps what the system says
        raise CannotWrite(f"cannot write {path}: {' '.join(str(error).split())}") from None
