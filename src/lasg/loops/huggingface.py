"""Hugging Face's Trainer: a callback that makes its steps local, and averages what moved.

trainer = Trainer(model=model, args=arguments, train_dataset=data)
trainer.add_callback(LazyCallback(trainer, every=20))
trainer.train()
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lasg.errors import LasgError
from lasg.loops.frameworks import begin, figures, load_rank, require, save_rank, silence_ddp
from lasg.loops.lazy_loop import LazyLoop

require("transformers")
require("accelerate")

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments  # noqa: E402
from transformers.trainer_callback import DefaultFlowCallback  # noqa: E402
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR  # noqa: E402


class LazyCallback(TrainerCallback):  # type: ignore[misc]
    """Runs a Trainer's steps under `lasg.lazy`, whose settings it takes.

    Before the Trainer evaluates or saves, the round is closed: what it measures and writes is the model of all ranks.
    Every rank writes what it needs to go on into the Trainer's checkpoints. `train(resume_from_checkpoint=...)` finds
    it in `output_dir`; of a checkpoint that lies elsewhere, name the folder here too.
    """

    def __init__(self, trainer: Trainer, *, resume_from_checkpoint: str | None = None, **settings: Any) -> None:
        if not isinstance(trainer, Trainer):
            raise LasgError(
                "LazyCallback takes the Trainer, then settings: trainer.add_callback(LazyCallback(trainer, every=20))"
            )
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            raise LasgError(
                "LazyCallback needs a whole model on every rank, and the Trainer uses DeepSpeed or FSDP: train with DDP"
            )
        self.trainer, self.settings, self.folder = trainer, settings, resume_from_checkpoint
        self.loop: LazyLoop | None = None
        self._left = ExitStack()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, _control: TrainerControl, **objects: Any
    ) -> None:
        """Begin with rank 0's model, or go on from a checkpoint."""
        self._leave()  # where a training failed
        loop = begin(objects["model"], [objects["optimizer"]], **self.settings)
        self.loop = loop
        self._left.callback(loop.leave)
        self._left.enter_context(silence_ddp(self.trainer.model_wrapped))
        self._left.callback(setattr, args, "average_tokens_across_devices", args.average_tokens_across_devices)
        args.average_tokens_across_devices = False  # it waits for all ranks in every step
        self._log_first()
        if state.global_step:
            load_rank(self.folder or self._checkpoint(args, state), loop)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Count the step; close the round where the Trainer is about to use the model."""
        if self.loop is not None:
            self.loop.step()
        self.on_epoch_end(args, state, control)

    def on_epoch_end(self, _args: TrainingArguments, _state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Close the round where the Trainer is about to use the model."""
        if self.loop is not None and (control.should_evaluate or control.should_save or control.should_training_stop):
            self.loop.synchronise()

    def on_save(self, args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        """Write this rank's file into the checkpoint."""
        if self.loop is not None and not args.save_only_model:
            folder = self._checkpoint(args, state)
            folder.mkdir(parents=True, exist_ok=True)  # rank 0 may come later
            save_rank(folder, self.loop)

    def on_log(
        self,
        _args: TrainingArguments,
        state: TrainerState,
        _control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Add rounds, uploads and bytes to what the Trainer logs of its training."""
        if self.loop is not None and logs is not None and ("loss" in logs or "train_loss" in logs):
            found = figures(self.loop)
            logs.update(found)
            state.log_history[-1].update(found)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        """End the loop; a best model that the Trainer has loaded stays."""
        best = args.load_best_model_at_end and state.best_model_checkpoint is not None
        if self.loop is not None and not best:
            self.loop.close()
        self._leave()

    def _leave(self) -> None:
        self._left.close()
        self.loop = None

    def _log_first(self) -> None:
        """Go before the callbacks that report logs, right after the one that decides what comes next."""
        callbacks = self.trainer.callback_handler.callbacks
        callbacks.remove(self)
        flow = [i for i, one in enumerate(callbacks) if isinstance(one, DefaultFlowCallback)]
        callbacks.insert(flow[0] + 1 if flow else 0, self)

    @staticmethod
    def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
        return Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
