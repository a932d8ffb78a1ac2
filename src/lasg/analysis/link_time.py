"""From a stored run to seconds and bytes: the network model of `lasg.analysis.link_model` on the run's rounds."""

from __future__ import annotations

import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lasg.analysis.link_model import NUMBERS, PRESETS, LinkModel, Traffic, round_seconds
from lasg.errors import LasgError, did_you_mean
from lasg.runs.pairs import parse_pairs
from lasg.runs.store import Run

EVERY = "all"
"""In place of a network's name: every preset."""


def read_link_model(text: str) -> LinkModel:
    """Read a network: a preset, a preset with changes such as mobile:up=2e6,latency=0.1, or a TOML file."""
    if text.endswith(".toml"):
        return _from_file(Path(text))
    name, _, changes = text.partition(":")
    if name not in PRESETS:
        raise LasgError(
            f"unknown network {name!r}.{did_you_mean(name, [*PRESETS, EVERY])} Known: {', '.join(PRESETS)}; "
            f"{EVERY} for every one; or a .toml file"
        )
    if not changes:
        return PRESETS[name]
    values = parse_pairs(changes.split(","), f"a network, such as {name}:up=2e6,")
    return _changed(text, {**asdict(PRESETS[name]), **values})


def read_link_models(text: str) -> list[LinkModel]:
    """Read one network, or every preset."""
    return list(PRESETS.values()) if text == EVERY else [read_link_model(text)]


def _from_file(path: Path) -> LinkModel:
    """Read a network from TOML: latency, up, down, gradient; each a number or a list, one per worker."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise LasgError(f"cannot read the network {path}: {error}") from None
    return _changed(path.stem, values)


def _changed(name: str, values: dict[str, Any]) -> LinkModel:
    values = {**values, "name": name}
    for key in values:
        if key not in {*NUMBERS, "name", "shared"}:
            raise LasgError(f"network {name}: unknown key {key!r}. Valid keys: {', '.join(NUMBERS)}, shared")
    missing = [key for key in NUMBERS if key not in values]
    if missing:
        raise LasgError(f"network {name}: {missing[0]} is missing. It needs {', '.join(NUMBERS)}")
    return LinkModel(**values)


def traffic(run: Run, *, relayed: bool = False) -> Traffic:
    """Return what the rounds of a stored run carried.

    Where messages are `relayed`, a worker hears what the others said, and repeats the server's step, if that is less
    than the model: as ranks do, and a federation's nodes.
    """
    trace, spec = run.trace, run.spec
    stages = spec.stages
    rule, work = stages.rule, stages.work
    uploaded = run.uploads
    rounds = np.arange(len(uploaded))
    # Where there was no threshold, laziness had been given up, and nobody computed a rule's probe.
    given_up = np.isnan(trace["threshold"])
    points = np.where(given_up, stages.points(rounds, spec.D, decides=False), stages.points(rounds, spec.D))
    model_bits = _each(trace["bits_down"], trace["downloads"])
    if relayed and len(uploaded):
        model_bits = min(model_bits, (1 - 1 / spec.workers) * float(trace["bits_up"][-1]) / len(uploaded))
    return Traffic(
        uploaded=uploaded,
        server_rule=rule.where == "server",
        evaluations=points * np.array([len(work.steps_of(k)) for k in range(len(uploaded))], np.int64),
        model_bits=model_bits,
        upload_bits=_each(trace["bits_up"], trace["uploads"]) + rule.flag_bits + rule.estimate_bits,
        silent_bits=rule.flag_bits,
        # What nobody's upload has changed, nobody needs to be told again.
        fresh=np.append(True, uploaded.any(1))[:-1] if rule.where == "all" else None,
    )


def _each(bits: npt.NDArray[Any], messages: npt.NDArray[Any]) -> float:
    """Return the bits of one message, the mean of a run's: only those of a codec of the caller's own may differ."""
    return float(bits[-1] / messages[-1]) if messages[-1] else 0.0


def seconds(run: Run, chosen: LinkModel, *, relayed: bool = False) -> npt.NDArray[np.float64]:
    """Return the simulated seconds that had passed at each evaluation of a run; computed once per network."""
    if (chosen, relayed) not in run.derived:
        passed = np.concatenate([[0.0], np.cumsum(round_seconds(chosen, traffic(run, relayed=relayed)))])
        run.derived[chosen, relayed] = passed[run.trace["rounds"]]
    known: npt.NDArray[np.float64] = run.derived[chosen, relayed]
    return known
