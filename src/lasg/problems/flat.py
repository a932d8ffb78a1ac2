"""A module's trainable parameters as one flat vector, without copying: the parameters become views of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lasg.errors import LasgError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


class FlatView:
    """Where each trainable parameter of a module, or of an optimizer, lies in a flat vector.

    Frozen parameters (requires_grad = False) have no place in it and are never touched. A parameter keeps the
    memory format that the module has it in: one in channels_last lies in the vector in that order.
    """

    def __init__(self, all_named: Iterable[tuple[str, nn.Parameter]]) -> None:
        named = [(name, value) for name, value in all_named if value.requires_grad]
        if not named:
            raise LasgError("there is no trainable parameter: nothing to learn")
        import torch

        kinds = {value.dtype for _, value in named}
        if len(kinds) > 1 or not next(iter(kinds)).is_floating_point:
            found = ", ".join(sorted(str(kind) for kind in kinds))
            raise LasgError(f"trainable parameters must be of one floating dtype, got {found}: convert the module")
        self.names = [name for name, _ in named]
        self.parameters: list[nn.Parameter] = [value for _, value in named]
        self._places: list[tuple[torch.Size, tuple[int, ...], int]] = []
        start = 0
        for value in self.parameters:
            if not _dense(value):
                value.data = value.data.contiguous()
            self._places.append((value.shape, value.stride(), start))
            start += value.numel()
        self.p = start
        self.rounded = self.parameters[0].dtype in (torch.bfloat16, torch.float16)
        """Whether the parameters hold a vector in float32 rounded to half the bits, and are no views of it."""

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the tensors, in their order."""
        return tuple(tuple(shape) for shape, _, _ in self._places)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return a flat vector `(p,)`, or stacked ones `(n, p)`, as tensors of the parameters' shapes."""
        lead = flat.shape[:-1]
        steps = tuple(flat.stride()[:-1])
        begin = flat.storage_offset()
        return [flat.as_strided((*lead, *shape), (*steps, *stride), begin + at) for shape, stride, at in self._places]

    def point_at(self, flat: Tensor) -> None:
        """Make the module's parameters views of `flat`, or give them its values, rounded."""
        if self.rounded:
            import torch

            torch._foreach_copy_([value.data for value in self.parameters], self.views(flat))
            return
        for parameter, view in zip(self.parameters, self.views(flat), strict=True):
            parameter.data = view

    def gather(self) -> Tensor:
        """Return a new flat vector with the parameters' values, at least in float32."""
        flat = self.empty(self.p)
        self.write(flat, [value.detach() for value in self.parameters])
        return flat

    def empty(self, *shape: int) -> Tensor:
        """Return memory for vectors, on the parameters' device and at least in float32."""
        import torch

        return self.parameters[0].new_empty(shape, dtype=torch.float32 if self.rounded else None)

    def write(self, flat: Tensor, values: Sequence[Tensor | None], scale: float = 1.0) -> None:
        """Write tensors of the parameters' shapes, times a number, into a flat vector; None is zeros."""
        import torch

        views = self.views(flat)
        for view, value in zip(views, values, strict=True):
            if value is None:
                view.zero_()
        there = [(view, value) for view, value in zip(views, values, strict=True) if value is not None]
        if scale == 1:
            torch._foreach_copy_([view for view, _ in there], [value for _, value in there])
            return
        for view, value in there:
            if self.rounded:  # not before it is widened
                value = view.copy_(value)
            torch.mul(value, scale, out=view)

    def add(self, flat: Tensor, values: Sequence[Tensor | None]) -> None:
        """Add tensors of the parameters' shapes to a flat vector; None is zeros."""
        import torch

        pairs = [(view, value) for view, value in zip(self.views(flat), values, strict=True) if value is not None]
        torch._foreach_add_([view for view, _ in pairs], [value for _, value in pairs])


class Workspace:
    """Vectors as long as the model that the stages of a step use one after the other.

    The first two are the gradient's, and the probe's; once the worker has decided and said what it had to say, what
    comes from others and what the optimizer needs takes their place. New memory would cost more than the arithmetic.
    """

    def __init__(self, like: Tensor, p: int) -> None:
        self._like, self._p = like, p
        self._rows: list[Tensor] = []

    def rows(self, count: int) -> list[Tensor]:
        """Return so many vectors, stacked as rows of one, `(1, p)`."""
        while len(self._rows) < count:
            self._rows.append(self._like.new_empty((1, self._p)))
        return self._rows[:count]

    def free(self, *used: Tensor | None) -> Tensor:
        """Return a vector `(p,)` that is none of those in use."""
        taken = {vector.data_ptr() for vector in used if vector is not None}
        for i in range(len(used) + 1):
            row = self.rows(i + 1)[i]
            if row.data_ptr() not in taken:
                return row[0]
        raise AssertionError("more vectors than those in use")


def _dense(value: Tensor) -> bool:
    """Tell whether a tensor's entries fill one block of memory, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
