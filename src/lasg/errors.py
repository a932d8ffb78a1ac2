"""The one exception that means: the input was wrong, and this sentence says how to mend it."""


class LasgError(ValueError):
    """Wrong input. The message is one line: what was expected, what came, what to do."""


class Diverged(LasgError):  # noqa: N818
    """The model left the finite numbers."""


def missing_extra(package: str, extra: str) -> LasgError:
    """Build the error for an optional dependency that is not installed."""
    return LasgError(f"{package} is not installed, and this needs it: pip install 'lasg[{extra}]'")
