"""Tasks by name: a data set and the settings that go with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lasg.data.sources import CSV_PREFIX, IMAGES_PREFIX, LIBSVM_PREFIX, is_own
from lasg.data.text import TRAIN
from lasg.errors import LasgError, did_you_mean
from lasg.runs.spec import Spec, from_dict

SETTINGS = {"homogeneous": "homogeneous", "heterogeneous": "sorted"}
"""The paper's two settings, and the partition each is."""


@dataclass(frozen=True)
class Task:
    """A named problem with every default a run needs."""

    name: str
    summary: str
    defaults: Mapping[str, Any]
    heterogeneous: Mapping[str, Any] = field(default_factory=lambda: {"partition": SETTINGS["heterogeneous"]})
    """How the samples are dealt in the heterogeneous setting."""

    def spec(self, algorithm: str, *, setting: str = "heterogeneous", seed: int = 0, **changes: Any) -> Spec:
        """Return the spec of one run; `changes` replace the task's defaults."""
        return self.changed(algorithm, setting, seed, changes)

    def changed(self, algorithm: str, setting: str, seed: int, changes: Mapping[str, Any]) -> Spec:
        """As `spec`, with changes from outside, whose keys may be anything."""
        if setting not in SETTINGS:
            raise LasgError(f"unknown setting {setting!r}: homogeneous or heterogeneous")
        values = {"task": self.name, "algorithm": algorithm, "seed": seed, "partition": SETTINGS["homogeneous"]}
        dealt = self.heterogeneous if setting == "heterogeneous" else {}
        if changes.get("partition", dealt.get("partition")) != dealt.get("partition"):
            dealt = {}  # another partition has other options
        return from_dict({**values, **dealt, **self.defaults, **changes})


_EMBEDDED = {"batch": 0.1, "iterations": 3000, "evaluate": 10}
_NEURAL = {"lam": 0.0, "eta": 0.05, "D": 50, "H": 4, "bits": 8}
_ROWS = (
    Task(
        "digits",
        "softmax regression on scikit-learn's 8x8 digits, 10 classes (embedded)",
        {"data": "digits", **_EMBEDDED, "eta": 0.5, "D": 50, "H": 5, "bits": 8},
    ),
    Task(
        "breast-cancer",
        "logistic regression on scikit-learn's breast cancer data (embedded)",
        {"data": "breast-cancer", **_EMBEDDED, "eta": 2.0, "H": 10, "bits": 4},
    ),
    Task(
        "ijcnn1-lr",
        "logistic regression on ijcnn1, 22 features (paper)",
        {"data": "ijcnn1.t", "batch": 0.01, "eta": 0.1, "H": 50, "iterations": 20_000},
    ),
    Task(
        "mnist-lr",
        "logistic regression on MNIST, 3 against 5 (paper)",
        {"data": "mnist-3-5", "batch": 0.01, "eta": 0.01, "H": 10, "iterations": 20_000},
    ),
    Task(
        "covtype-lr",
        "logistic regression on covtype, class 2 against the rest (paper)",
        {"data": "covtype", "workers": 20, "batch": 0.001, "eta": 0.1, "H": 20, "iterations": 20_000},
    ),
    Task(
        "mnist-nn",
        "the paper's CNN on MNIST, 10 classes, 431,080 parameters (paper)",
        {"data": "mnist", "model": "cnn", **_NEURAL, "batch": 0.002, "iterations": 1000, "evaluate": 50},
        {"partition": "sizes", "sizes": [2000, 3000, 4000, 5000, 6000, 6000, 7000, 8000, 9000, 10000]},
    ),
    Task(
        "tiny-imagenet",
        "ResNet-18 fine-tuned on 10 classes of tiny-imagenet, pretrained on 10 others (paper, smaller)",
        {"data": "tiny-imagenet-10b", "model": "resnet18", "weights": "resnet18-tiny-imagenet-10a", "augment": True}
        | {**_NEURAL, "batch": 0.016, "iterations": 96, "evaluate": 24},
    ),
    Task(
        "text-lm",
        "a character transformer on the King James Version, one part per worker, 817,727 parameters (embedded)",
        {"data": "king-james", "model": "transformer", "workers": 4, **_NEURAL, "eta": 0.3, "H": 20}
        | {"batch": 16 / TRAIN, "iterations": 400, "evaluate": 20},
        {"partition": SETTINGS["heterogeneous"], "cut": TRAIN},
    ),
)

TASKS = {row.name: row for row in _ROWS}
_OWN: dict[str, tuple[str, dict[str, Any]]] = {
    LIBSVM_PREFIX: ("regression on the LIBSVM file", {}),
    CSV_PREFIX: ("regression on the CSV file", {}),
    IMAGES_PREFIX: (
        "ResNet-18 on the images in",
        {"model": "resnet18", "augment": True, "lam": 0.0, "eta": 0.05, "bits": 8},
    ),
}
"""Tasks on the user's own data: what each prefix means, and its defaults."""


def task(name: str) -> Task:
    """Return the task called `name`; libsvm:PATH, csv:PATH and images:PATH are tasks with plain defaults."""
    if is_own(name):
        prefix, colon, text = name.partition(":")
        what, defaults = _OWN[prefix + colon]
        # The whole path: a run must find its file from any folder, and tell it from a namesake.
        path = Path(text).absolute()
        return Task(name, f"{what} {path}", {"data": f"{prefix}:{path}", **defaults})
    if name not in TASKS:
        raise LasgError(
            f"unknown task {name!r}.{did_you_mean(name, TASKS)} Known: {', '.join(TASKS)}; libsvm:PATH or csv:PATH for "
            "a file, or images:PATH for a folder or zip of images"
        )
    return TASKS[name]
