"""What a round of an elastic run comes to: without torchft, and without a network."""

import numpy as np
import pytest
import torch

from lasg.core.arrays import copies
from lasg.core.stages import Stages
from lasg.errors import LasgError
from lasg.loops.lazy_setup import choose_stages, outer_optimizer
from lasg.packing import pack, unpack
from lasg.transports.elastic_server import SLOTS, ElasticServer, Entry
from lasg.transports.elastic_state import refuse_other

P = 6


def server(algorithm: str = "diloco") -> ElasticServer:
    stages, outer = choose_stages(algorithm)
    return ElasticServer(outer_optimizer(torch.zeros(P), outer), stages.for_shapes(((2, 3),)), 0)


def plain() -> ElasticServer:
    """Outer SGD of rate 1: the model moves by the mean move."""
    stages, _ = choose_stages("diloco")
    return ElasticServer(outer_optimizer(torch.zeros(P), (torch.optim.SGD, {"lr": 1.0})), stages, 0)


def says(name: str, value: float, weight: float = 1.0, stages: Stages | None = None) -> Entry:
    row = torch.full((1, P), value * weight)
    message = (stages or choose_stages("diloco")[0]).codec.encode(row, lambda: np.zeros((1, P)))[0]
    return Entry(name, "run", 0, weight, 1.0, True, False, message)


def test_the_mean_is_over_those_that_speak_by_their_weights() -> None:
    one = plain()
    one.close(["a", "b", "c"], [says("a", 1.0), says("b", 4.0, weight=2.0), Entry("c", "run")])
    assert torch.equal(one.theta, torch.full((P,), -3.0))


def test_a_round_of_silence_leaves_the_model_and_counts() -> None:
    one = server()
    one.close(["a"], [says("a", 1.0)])
    before = one.theta.clone()
    one.close(["a", "b"], [Entry("a", "run"), Entry("b", "run")])
    assert one.k == 2
    assert torch.equal(one.theta, before)


@pytest.mark.parametrize("algorithm", ["diloco", "lasg-local", "sparseloco"])
def test_a_peer_s_state_gives_the_same_bits_from_then_on(algorithm: str) -> None:
    """Through the bytes that travel, with momentum and the decoders' states."""
    first, second = server(algorithm), server(algorithm)
    stages = first.stages
    first.close(["a", "b"], [says("a", 1.0, stages=stages), says("b", 2.0, stages=stages)])
    second.restore(unpack(pack(copies(first.state())), "a peer"))
    for one in (first, second):
        one.close(["b", "c"], [says("b", 3.0, stages=stages), says("c", -1.0, stages=stages)])
    assert first.checksum == second.checksum
    assert (first.slots, first.held) == (second.slots, second.held)


def test_a_newcomer_takes_the_place_of_one_that_is_gone() -> None:
    one = plain()
    one.close(["a", "b"], [says("a", 1.0), says("b", 1.0)])
    one.close(["b", "c"], [says("b", 1.0)])
    assert one.slots == {"b": 1, "c": 0}
    assert one.unheard == {"c"}
    assert one.last_upload("a") == 0, "whose last upload counted is known for a while"


def test_the_usual_time_is_the_median_of_the_members_that_are_there() -> None:
    one = plain()
    one.close(["a", "b", "c"], [says(n, 1.0)._replace(seconds=s) for n, s in (("a", 1.0), ("b", 2.0), ("c", 9.0))])
    assert one.usual == 2.0
    one.close(["b", "c"], [says("b", 1.0)._replace(seconds=2.0)])
    assert one.usual == 5.5


def test_too_many_members_are_refused() -> None:
    with pytest.raises(LasgError, match=f"65 members are more than an elastic run can have: {SLOTS}"):
        plain().close([f"n{i}" for i in range(65)], [])


def test_an_entry_travels_and_noise_is_refused() -> None:
    entry = Entry("a-1.b", "run", 7, 2.0, 0.5, True, False, b"\x00\n{}")
    assert Entry.unpack(entry.pack()) == entry
    with pytest.raises(LasgError, match="no message of this version"):
        Entry.unpack(b"\x80\x04\nxyz")


def test_what_differs_from_the_run_is_named() -> None:
    with pytest.raises(LasgError, match=r"serves a run whose version of lasg is '0\.3', and here it is '0\.2'"):
        refuse_other({"version of lasg": "0.2", "every": 4}, {"version of lasg": "0.3", "every": 4}, "a", "10.0.0.1:1")
