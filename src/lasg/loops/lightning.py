"""Lightning: a strategy for its Trainer and one for Fabric, both named "lasg". Importing this module registers them.

import lasg.loops.lightning
trainer = L.Trainer(strategy="lasg", devices=2)
fabric = L.Fabric(strategy=FabricLazyStrategy(every=20), devices=2)
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from lasg.errors import LasgError
from lasg.loops.frameworks import begin, figures, load_rank, rank_file, require, save_rank
from lasg.loops.lazy_loop import LazyLoop, lazy

require("lightning")

from lightning.fabric.strategies import STRATEGY_REGISTRY  # noqa: E402
from lightning.fabric.strategies import DDPStrategy as FabricDDPStrategy  # noqa: E402
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry  # noqa: E402
from lightning.pytorch.trainer.states import TrainerFn  # noqa: E402

OURS = frozenset(inspect.signature(lazy).parameters) - {"model", "optimizer", "timeout"}
"""Settings of `lasg.lazy`; all others are those of Lightning's DDPStrategy, `timeout` of both."""
MARK = "lasg_ranks"
"""A checkpoint has it where every rank wrote its own file beside it: how many."""


def _split(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of lasg.lazy, and those of Lightning's strategy."""
    ours = {name: value for name, value in settings.items() if name in OURS}
    if settings.get("timeout") is not None:
        ours["timeout"] = settings["timeout"].total_seconds()
    return ours, {name: value for name, value in settings.items() if name not in OURS}


class LazyStrategy(DDPStrategy):  # type: ignore[misc]
    """Lightning's DDP strategy without DistributedDataParallel: local steps, and rounds of `lasg.lazy`.

    It takes the settings of `lasg.lazy`, and those of DDPStrategy about processes. Before Lightning validates or saves,
    the round is closed: what it measures and writes is the model of all ranks.
    """

    strategy_name = "lasg"

    def __init__(self, **settings: Any) -> None:
        self.settings, others = _split(settings)
        super().__init__(**others)
        self.loop: LazyLoop | None = None
        self._resumed_from: str | Path | None = None

    def configure_ddp(self) -> None:
        """Leave the model as it is."""

    def setup(self, trainer: Any) -> None:
        """Begin with rank 0's model."""
        super().setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            if not self.optimizers:
                raise LasgError('strategy="lasg" needs an optimizer: let configure_optimizers return one')
            self.loop = begin(self.lightning_module, self.optimizers, **self.settings)

    def optimizer_step(self, optimizer: Optimizer, closure: Any, model: Any = None, **options: Any) -> Any:
        """Let the optimizer step, and count it."""
        output = super().optimizer_step(optimizer, closure, model, **options)
        if self.loop is not None and optimizer is self.loop.optimizers[0]:
            self.loop.step()
        return output

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Show rounds, uploads and bytes so far in Lightning's logs."""
        super().on_train_batch_start(batch, batch_idx)
        if self.loop is not None:
            values = {name: float(value) for name, value in figures(self.loop).items()}
            self.lightning_module.log_dict(values, on_step=True, on_epoch=False)

    def on_validation_start(self) -> None:
        """Let all ranks validate one model."""
        super().on_validation_start()
        self._synchronise()

    def on_train_end(self) -> None:
        """End the loop with one model on all ranks."""
        super().on_train_end()
        if self.loop is not None:
            self.loop.close()
            self.loop.leave()
            trainer = self.lightning_module.trainer
            for logger in trainer.loggers:
                logger.log_metrics(figures(self.loop), step=trainer.global_step)

    def teardown(self) -> None:
        """Let go of the loop."""
        if self.loop is not None:
            self.loop.leave()
            self.loop = None
        super().teardown()

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the model of all ranks, for a checkpoint."""
        self._synchronise()
        state: dict[str, Any] = super().lightning_module_state_dict()
        return state

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Write Lightning's checkpoint on rank 0, and beside it every rank's own file."""
        resumable = self.loop is not None and "optimizer_states" in checkpoint
        if resumable:
            checkpoint[MARK] = self.world_size
        super().save_checkpoint(checkpoint, filepath, storage_options)
        if self.loop is not None and resumable:
            Path(filepath).parent.mkdir(parents=True, exist_ok=True)  # rank 0 may come later
            save_rank(filepath, self.loop)

    def remove_checkpoint(self, filepath: Any) -> None:
        """Remove it with this rank's file."""
        super().remove_checkpoint(filepath)
        rank_file(filepath, self.global_rank).unlink(missing_ok=True)

    def load_checkpoint(self, checkpoint_path: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Read Lightning's checkpoint, and remember where it lies."""
        checkpoint: dict[str, Any] = super().load_checkpoint(checkpoint_path, *arguments, **options)
        self._resumed_from = checkpoint_path if MARK in checkpoint else None
        return checkpoint

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load this rank's optimizers, and its loop; a checkpoint of another strategy has neither."""
        super().load_optimizer_state_dict(checkpoint)
        if self.loop is not None and self._resumed_from is not None:
            load_rank(self._resumed_from, self.loop)

    def _synchronise(self) -> None:
        if self.loop is not None:
            self.loop.synchronise()


class _NoSynchronisation:
    """Nothing is sent in backward, so there is nothing to switch off."""

    def no_backward_sync(self, module: nn.Module, enabled: bool) -> Any:  # noqa: ARG002
        """Return a context in which backward sends nothing, as always."""
        return nullcontext()


class FabricLazyStrategy(FabricDDPStrategy):  # type: ignore[misc]
    """The same for Fabric: `fabric.setup(model, optimizer)` begins, `fabric.strategy.close()` ends.

    `fabric.save` and `fabric.load` write and read every rank's own file too.
    """

    def __init__(self, **settings: Any) -> None:
        self.settings, others = _split(settings)
        super().__init__(**others)
        self._backward_sync_control = _NoSynchronisation()
        self.loop: LazyLoop | None = None

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Leave the model as it is."""
        return module

    def setup_module_and_optimizers(self, module: nn.Module, optimizers: list[Optimizer], scheduler: Any = None) -> Any:
        """Begin with rank 0's model."""
        if self.loop is not None:
            raise LasgError(
                'strategy="lasg" has a model already: one Fabric trains one. Close it first: fabric.strategy.close()'
            )
        self.loop = begin(module, optimizers, **self.settings)
        return module, optimizers, scheduler

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:  # noqa: ARG002
        """Refuse an optimizer without its model."""
        raise LasgError('strategy="lasg" needs both at once: model, optimizer = fabric.setup(model, optimizer)')

    def optimizer_step(self, optimizer: Any, **options: Any) -> Any:
        """Let the optimizer step, and count it."""
        output = super().optimizer_step(optimizer, **options)
        if self.loop is not None and optimizer is self.loop.optimizers[0]:
            self.loop.step()
        return output

    @property
    def logs(self) -> dict[str, int]:
        """Rounds, uploads and bytes so far, for `fabric.log_dict`."""
        return {} if self.loop is None else figures(self.loop)

    def synchronise(self) -> None:
        """Close the round now, so that all ranks have one model; call it before a validation."""
        if self.loop is not None:
            self.loop.synchronise()

    def close(self) -> None:
        """End with one model on all ranks."""
        if self.loop is not None:
            self.loop.close()
            self.loop.leave()
            self.loop = None

    def save_checkpoint(self, path: Any, state: dict[str, Any], *arguments: Any, **options: Any) -> None:
        """Close the round, let rank 0 write, and write this rank's file beside it."""
        self.synchronise()
        super().save_checkpoint(path, state, *arguments, **options)
        if self.loop is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)  # rank 0 may come later
            save_rank(path, self.loop)

    def load_checkpoint(self, path: Any, state: Any = None, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Load what Fabric saved, then what this rank wrote."""
        rest: dict[str, Any] = super().load_checkpoint(path, state, *arguments, **options)
        if self.loop is not None and state:
            load_rank(path, self.loop)
        return rest


StrategyRegistry.register("lasg", LazyStrategy, description="local steps, with messages that say little", override=True)
STRATEGY_REGISTRY.register(
    "lasg", FabricLazyStrategy, description="local steps, with messages that say little", override=True
)
