"""Weights that lasg trains itself: centrally, which is a run with one worker that always uploads."""

from __future__ import annotations

import shutil
from pathlib import Path

from lasg.data import weights
from lasg.errors import LasgError, did_you_mean
from lasg.runs.files import replace_atomically
from lasg.runs.spec import Spec, from_dict
from lasg.runs.store import MODEL, Run

RECIPES = {
    "resnet18-tiny-imagenet-10a": from_dict(
        {"task": "pretraining", "algorithm": "sgd", "data": "tiny-imagenet-10a", "model": "resnet18", "augment": True}
        | {"workers": 1, "partition": "homogeneous", "batch": 32 / 5000, "lam": 0.0, "eta": 0.05}
        | {"optimizer": "SGD", "optimizer_options": {"momentum": 0.9, "weight_decay": 5e-4}}
        | {"schedule": "CosineAnnealingLR", "schedule_options": {"T_max": 624}, "iterations": 624, "evaluate": 156}
    )
}
"""By the name that the weights go by: 4 passes through the first 10 classes of tiny-imagenet."""


def recipe(name: str) -> Spec:
    """Return the run that makes some weights."""
    if name not in RECIPES:
        raise LasgError(f"lasg trains no weights {name!r}.{did_you_mean(name, RECIPES)} It makes {', '.join(RECIPES)}")
    return RECIPES[name]


def missing(name: str | None, data_dir: Path | None) -> bool:
    """Tell whether weights must be trained before a run can start from them."""
    return name in RECIPES and weights.find(name, data_dir) is None


def install(run: Run, name: str) -> Path:
    """Keep a run's model as the weights of that name; return where."""
    if run.status != "done":
        raise LasgError(
            f"the pretraining in {run.folder} {run.status}: {run.meta.get('message', f'lasg resume {run.folder}')}"
        )
    target = weights.made_folder() / f"{name}.safetensors"
    with replace_atomically(target) as part:
        shutil.copyfile(run.folder / MODEL, part)
    return target
