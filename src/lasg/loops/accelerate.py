"""Hugging Face Accelerate: its LocalSGD, with messages that say little.

with LazyLocalSGD(accelerator=accelerator, model=model, local_sgd_steps=8) as local:
    for x, y in loader:
        accelerator.backward(loss_function(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        local.step()
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lasg.errors import LasgError
from lasg.loops.frameworks import begin, figures, read_rank, require, save_rank, silence_ddp, unwrap
from lasg.loops.lazy_loop import LazyLoop

require("accelerate")

from accelerate import Accelerator, DistributedType  # noqa: E402

REFUSED = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "XLA", "TP")


class LazyLocalSGD:
    """Local steps, and a round of `lasg.lazy` after every `local_sgd_steps` calls of `step`.

    Its arguments are those of accelerate's LocalSGD, then the settings of `lasg.lazy`. Without other processes, or with
    `enabled=False`, it only counts. `accelerator.save_state` and `load_state` inside it save and load every rank's own.
    """

    def __init__(
        self, accelerator: Accelerator, model: nn.Module, local_sgd_steps: int, enabled: bool = True, **settings: Any
    ) -> None:
        kind = accelerator.distributed_type
        if kind.value in REFUSED:
            raise LasgError(f"LazyLocalSGD needs a whole model on every process, and {kind.value} has none: use DDP")
        self.accelerator, self.model, self.settings = accelerator, model, {"every": local_sgd_steps, **settings}
        self.enabled = enabled and kind != DistributedType.NO
        self.num_steps = 0
        self.loop: LazyLoop | None = None
        self._left = ExitStack()

    def __enter__(self) -> LazyLocalSGD:
        if self.enabled:
            own = {id(value) for value in self.model.parameters()}
            optimizers = [one for one in self.accelerator._optimizers if own & _parameters(one)]
            if not optimizers:
                raise LasgError(
                    "the accelerator has no optimizer of this model: pass both to accelerator.prepare(...) first"
                )
            self.loop = begin(self.model, optimizers, **self.settings)
            self._left.enter_context(silence_ddp(self.model))
            for handle in (
                self.accelerator.register_save_state_pre_hook(self._save),
                self.accelerator.register_load_state_pre_hook(self._load),
            ):
                self._left.callback(handle.remove)
        return self

    def step(self) -> None:
        """Count a step; the last of a round closes it."""
        self.num_steps += 1
        if self.loop is not None:
            self.loop.step()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close a last, shorter round; where the loop failed, say nothing more."""
        with self._left:
            if self.loop is not None and kind is None:
                self.loop.close()
            elif self.loop is not None:
                self.loop.leave()

    @property
    def logs(self) -> dict[str, int]:
        """Rounds, uploads and bytes so far, for `accelerator.log`."""
        return {} if self.loop is None else figures(self.loop)

    def _save(self, _models: list[nn.Module], _weights: list[Any], folder: str) -> None:
        assert self.loop is not None
        Path(folder).mkdir(parents=True, exist_ok=True)  # the main process may come later
        save_rank(folder, self.loop)

    def _load(self, models: list[nn.Module], folder: str) -> None:
        """Load this rank's model and loop; its optimizers' states take the place of rank 0's, which come next."""
        assert self.loop is not None
        state = read_rank(folder, self.loop)
        unwrap(self.model).load_state_dict(state["model"])
        self.loop.load_state_dict(state["loop"])
        models[:] = [_Loaded() if unwrap(model) is unwrap(self.model) else model for model in models]
        for optimizer, saved in zip(self.loop.optimizers, state["optimizers"], strict=True):
            _replace_next_load(optimizer, saved)


class _Loaded(nn.Module):
    """Stands for a model that has been loaded: files are numbered by the model's place among the others."""

    def load_state_dict(self, *_: Any, **__: Any) -> Any:
        """Load nothing, and miss nothing."""
        return [], []


def _parameters(optimizer: Any) -> set[int]:
    return {id(value) for group in optimizer.param_groups for value in group["params"]}


def _replace_next_load(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Let the optimizer load this state in place of the next one that it is given."""

    def replace(*_: Any) -> dict[str, Any]:
        handle.remove()
        return state

    handle = optimizer.register_load_state_dict_pre_hook(replace)
