"""A checksum of a function or an object of the caller's own: tells two of them apart, and pickles neither.

Of a function count its bytecode, constants and defaults, the plain values it reads from its module, and the functions
of that module that it calls; comments, the wording of docstrings and line numbers do not. Of an object count its
attributes and its class's methods. What is imported counts by its name alone. An object with a method `fingerprint()`
says itself what counts.
"""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from lasg.core.arrays import host

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
NAMED = (types.ModuleType, types.BuiltinFunctionType, np.ufunc, type)
"""What counts by its name alone."""
DIGITS = 16


def fingerprint(value: Any) -> str:
    """Return the checksum of a function, an object, or nested containers of them."""
    return hashlib.sha256(repr(_Description().describe(value)).encode()).hexdigest()[:DIGITS]


def attributes_of(value: Any) -> dict[str, Any]:
    """Return an object's attributes by name, whether it keeps them in a dict or in slots."""
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()) if name[:2] != "__"]
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return dict(sorted({**found, **getattr(value, "__dict__", {})}.items()))


class _Description:
    """Turns values into nested tuples of plain ones; what was met before becomes its number."""

    def __init__(self) -> None:
        self.met: dict[int, tuple[int, Any]] = {}  # by id, and kept alive, so that no id is given twice
        each = functools.partial(map, self.describe)
        self.ways: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
            ((list, tuple), lambda value: (type(value).__name__, *each(value))),
            ((set, frozenset), lambda value: (type(value).__name__, *sorted(map(repr, each(value))))),
            (Mapping, lambda value: ("mapping", *(tuple(each(pair)) for pair in value.items()))),
            (types.FunctionType, self._function),
            (types.MethodType, lambda value: ("method", *each((value.__func__, value.__self__)))),
            (functools.partial, lambda value: ("partial", *each((value.func, value.args, value.keywords)))),
            (NAMED, _name),
            (object, self._object),
        )

    def describe(self, value: Any) -> Any:
        """Return what is known of a value."""
        if isinstance(value, PLAIN):
            return value
        if id(value) in self.met:
            return ("again", self.met[id(value)][0])
        self.met[id(value)] = (len(self.met), value)
        return next(way(value) for kinds, way in self.ways if isinstance(value, kinds))

    def _object(self, value: Any) -> Any:
        array = _array(value)
        if array is not None:
            return array
        own = getattr(value, "fingerprint", None)
        if callable(own):
            return (_name(type(value)), str(own()))
        parts = (*_methods(type(value)), *attributes_of(value).items())
        return (type(value).__qualname__, *((name, self.describe(part)) for name, part in parts))

    def _function(self, function: types.FunctionType) -> Any:
        code, module = function.__code__, function.__globals__
        used = {name: module[name] for name in _names(code) if name in module and _is_fixed(module[name], function)}
        parts = (function.__defaults__, function.__kwdefaults__, [*_closed_over(function)], used)
        return ("function", self._code(code, function.__doc__), *map(self.describe, parts))

    def _code(self, code: types.CodeType, doc: str | None = None) -> Any:
        constants = [part for part in code.co_consts if doc is None or part != doc]
        parts = [self._code(part) if isinstance(part, types.CodeType) else self.describe(part) for part in constants]
        return (code.co_code.hex(), code.co_names, *parts)


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"


def _array(value: Any) -> Any:
    """Describe an array or a tensor; None: it is neither."""
    is_tensor = type(value).__module__.split(".")[0] == "torch" and hasattr(value, "detach")
    if not is_tensor and not isinstance(value, np.ndarray | np.generic):
        return None
    values = np.ascontiguousarray(host(value.detach()) if is_tensor else value)
    return ("array", values.dtype.str, values.shape, hashlib.sha256(values.tobytes()).hexdigest())


def _methods(kind: type) -> Iterator[tuple[str, types.FunctionType]]:
    """Give the methods of a class, and of those parents that come from the same package."""
    package = kind.__module__.split(".")[0]
    for parent in (parent for parent in kind.__mro__ if parent.__module__.split(".")[0] == package):
        for name, part in sorted(vars(parent).items()):
            function = part.fget if isinstance(part, property) else getattr(part, "__func__", part)
            if isinstance(function, types.FunctionType) and (name[:2] != "__" or name == "__call__"):
                yield name, function


def _is_fixed(value: Any, function: types.FunctionType) -> bool:
    """Tell whether a global that a function reads counts: a plain value, or a function of the same module."""
    if isinstance(value, types.FunctionType):
        return value.__module__ == function.__module__
    return isinstance(value, PLAIN) or (isinstance(value, tuple) and all(isinstance(part, PLAIN) for part in value))


def _closed_over(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet: the function is within the one that will
            yield None


def _names(code: types.CodeType) -> list[str]:
    """Return the global names that a function uses, those of functions within it included."""
    nested = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return sorted({*code.co_names, *(name for part in nested for name in _names(part))})
