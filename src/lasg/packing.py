"""Nested state as arrays and a JSON tree that says where they go: for files and for links. Nothing is pickled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lasg.errors import LasgError

TREE = "tree"
"""The JSON tree, among the arrays of what is packed."""


def pack(state: dict[str, Any]) -> bytes:
    """Return nested state as the bytes of a safetensors file."""
    from safetensors.numpy import save

    return save(_arrays_of(state))


def pack_into(path: Path, state: dict[str, Any]) -> None:
    """Write nested state to a file as `pack` has it, one array after the other, without a copy of it in memory."""
    from safetensors.numpy import save_file

    save_file(_arrays_of(state), path)


def _arrays_of(state: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
    arrays: dict[str, npt.NDArray[Any]] = {}
    tree = json.dumps(flatten(state, "", arrays)).encode()
    return {**arrays, TREE: np.frombuffer(tree, np.uint8)}


def unpack(data: bytes | Path, source: str) -> dict[str, Any]:
    """Undo `pack`, or `pack_into`; say which source it is that cannot be read."""
    from safetensors import SafetensorError
    from safetensors.numpy import load, load_file

    try:
        arrays = load(data) if isinstance(data, bytes) else load_file(data)
        state = unflatten(json.loads(arrays[TREE].tobytes()), arrays)
    except (KeyError, ValueError, OSError, SafetensorError) as error:
        raise LasgError(f"cannot read {source}: {error}") from None
    assert isinstance(state, dict)
    return state


def flatten(node: Any, path: str, arrays: dict[str, npt.NDArray[Any]]) -> Any:
    """Return the JSON form of `node`, its arrays moved into `arrays` under their paths."""
    if isinstance(node, dict):
        return {"dict": [[key, flatten(value, f"{path}/{key}", arrays)] for key, value in node.items()]}
    if isinstance(node, list | tuple):
        kind = "tuple" if isinstance(node, tuple) else "list"
        return {kind: [flatten(value, f"{path}/{i}", arrays) for i, value in enumerate(node)]}
    if isinstance(node, np.ndarray) or hasattr(node, "detach"):
        kind, array = ("array", node) if isinstance(node, np.ndarray) else ("tensor", node.detach().cpu().numpy())
        name = f"{len(arrays)}{path}"  # the number tells {1: x} from {"1": x}
        arrays[name] = np.asarray(array, order="C")
        return {kind: name}
    if node is None or isinstance(node, bool | int | float | str):
        return {"value": node}
    raise LasgError(f"the state at {path} is a {type(node).__name__}, which a checkpoint cannot hold")


def unflatten(node: Any, arrays: dict[str, npt.NDArray[Any]]) -> Any:
    """Undo `flatten`."""
    ((kind, content),) = node.items()
    if kind == "dict":
        return {key: unflatten(value, arrays) for key, value in content}
    if kind in {"list", "tuple"}:
        values = [unflatten(value, arrays) for value in content]
        return tuple(values) if kind == "tuple" else values
    if kind == "array":
        return _taken(arrays, content)
    if kind == "tensor":
        import torch

        return torch.from_numpy(_taken(arrays, content))
    return content


def _taken(arrays: dict[str, npt.NDArray[Any]], name: str) -> npt.NDArray[Any]:
    """Return an array that may be written into; what was read is not kept beside its copy."""
    array = arrays.pop(name)
    return array if array.flags.writeable and array.flags.owndata else array.copy()
