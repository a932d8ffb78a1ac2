"""Seconds and bytes of stored runs: the network model sees what the ledger counted."""

from pathlib import Path

import numpy as np
import pytest

from lasg.analysis import link_time
from lasg.analysis.compare import spent, summarise
from lasg.analysis.link_model import PRESETS, LinkModel
from lasg.core.algorithms import ALGORITHMS
from lasg.errors import LasgError
from lasg.runs.runner import run
from tests.runs.samples import P, small

NAMES = [*ALGORITHMS, "wk2+qsgd8:7+H3", "pse+dense+H2", "lag+qsgd4", "lasg-vr", "always+storm+H2", "laq"]


@pytest.mark.parametrize("name", NAMES)
def test_the_traffic_of_a_run_adds_up_to_its_ledger(tmp_path: Path, name: str) -> None:
    done = run(small(name), tmp_path / "run")
    found, trace = link_time.traffic(done), done.trace
    taking_part = found.uploaded if found.server_rule else np.ones_like(found.uploaded)
    assert (found.evaluations[:, None] * taking_part).sum() == trace["gradients"][-1]
    assert taking_part.sum() * found.model_bits == trace["bits_down"][-1]
    silent = taking_part & ~found.uploaded
    sent = found.uploaded.sum() * found.upload_bits + silent.sum() * found.silent_bits
    assert sent == trace["bits_up"][-1] + trace["control_bits"][-1]


def test_simulated_seconds_of_sgd_are_rounds_times_one_round(tmp_path: Path) -> None:
    done = run(small("sgd"), tmp_path / "run")
    link = LinkModel(name="x", latency=0.1, up=32.0, down=64.0, gradient=3.0)
    # 0.1 + 32 p / 64 to hear, 3 to compute, 0.1 + 32 p / 32 to answer
    each = 0.1 + P / 2 + 3 + 0.1 + P
    np.testing.assert_allclose(link_time.seconds(done, link), done.trace["rounds"] * each)


def test_only_the_asked_make_a_server_rule_wait(tmp_path: Path) -> None:
    done = run(small("lasg-ps"), tmp_path / "run")
    link = LinkModel(name="x", latency=1.0, up=1e12, down=1e12, gradient=0.0)
    busy = done.uploads.any(1).cumsum()
    assert not done.uploads.any(1).all(), "a run in which nobody was asked at times"
    np.testing.assert_allclose(link_time.seconds(done, link)[1:], 2.0 * busy, rtol=1e-6)


def test_a_comparison_with_a_network_has_seconds_and_megabytes(tmp_path: Path) -> None:
    runs = [run(small(name), tmp_path / name) for name in ("sgd", "lasg-wk2")]
    link = PRESETS["mobile"]
    sgd, lazy = summarise(runs, None, link)
    assert sgd.faster == 1
    ends = [float(link_time.seconds(one, link)[-1]) for one in runs]
    assert lazy.counts["seconds"].mean == ends[1]
    assert lazy.faster == sgd.to_savings_loss["seconds"].mean / lazy.to_savings_loss["seconds"].mean
    values = lazy.to_dict()
    trace = runs[1].trace
    bits = trace["bits_up"][-1] + trace["bits_down"][-1] + trace["control_bits"][-1]
    assert values["megabytes"] == bits / 8e6
    assert values["seconds"] == ends[1]
    assert "seconds" not in summarise(runs, None)[0].to_dict()
    assert "seconds" not in spent(runs[0], None)


def test_a_preset_can_be_changed_in_place() -> None:
    link = link_time.read_link_model("mobile:up=2e6,gradient=0.5")
    assert (link.up, link.gradient, link.down) == (2e6, 0.5, PRESETS["mobile"].down)
    assert link.name == "mobile:up=2e6,gradient=0.5"


def test_a_network_is_read_from_toml_with_numbers_or_lists(tmp_path: Path) -> None:
    path = tmp_path / "three-sites.toml"
    path.write_text("latency = 0.04\nup = [1e6, 2e6, 3e6]\ndown = 1e7\ngradient = 0\n")
    link = link_time.read_link_model(str(path))
    assert (link.name, link.up, link.gradient) == ("three-sites", (1e6, 2e6, 3e6), 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("moblie", "unknown network 'moblie'. Did you mean mobile"),
        ("mobile:up", "KEY=VALUE"),
        ("mobile:upp=3", "unknown key 'upp'"),
        ("mobile:up=fast", "up must be a number"),
        ("nowhere.toml", "cannot read the network nowhere.toml"),
    ],
)
def test_a_wrong_network_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(LasgError, match=words.replace("(", r"\(")) as caught:
        link_time.read_link_model(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"), [("up = 1\n", "latency is missing"), ("up = ", "cannot read"), ("x = 1", "x")]
)
def test_a_wrong_network_file_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "n.toml"
    path.write_text(text)
    with pytest.raises(LasgError, match=words):
        link_time.read_link_model(str(path))
