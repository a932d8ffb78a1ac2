"""D = inf in every engine: the same as simulated, and resumed bit for bit."""

from __future__ import annotations

import math

import pytest

from lasg.core.algorithms import algorithm
from lasg.core.server import Laziness
from tests.transports.engines import assert_same_bits, assert_same_run, distributed_as_simulated, federated, simulated
from tests.transports.test_ranks import M

ENDLESS = Laziness(workers=M, D=math.inf, rho=0.5, guard=True)
CASES = {
    name: algorithm(name).stages() for name in ("lasg-vr", "wk2+dense", "wk2+qsgd8+difference", "pse+dense", "clag")
}


@pytest.mark.parametrize("name", CASES)
def test_simulated_and_federated_it_does_the_same_and_resumes_bit_for_bit(name: str) -> None:
    expected, again = simulated(CASES[name], ENDLESS)
    assert_same_bits(expected, again)
    whole, halves = federated(CASES[name], laziness=ENDLESS)
    assert_same_run(whole, expected)
    assert_same_bits(whole, halves)


def test_on_ranks_it_does_what_it_does_simulated_and_resumes_bit_for_bit() -> None:
    distributed_as_simulated(CASES, ENDLESS)
