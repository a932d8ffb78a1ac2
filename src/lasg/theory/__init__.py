"""Section 4 of the paper: what its theorems allow and promise, and whether it is so. See docs/theory.md."""

from lasg.theory.bounds import ASSUMPTIONS, Known, Nonconvex, Quantised, StronglyConvex
from lasg.theory.constants import (
    B_0,
    B_1,
    PLAIN,
    QUANTISED,
    A,
    Factors,
    Setting,
    effective_variance,
    gamma_1,
    gammas,
    gradient_weight,
    lyapunov,
    move_weight,
    noise_weight,
    quantiser_variance,
)
from lasg.theory.measures import Measures, measure
from lasg.theory.synthetic import Quadratics, Ripples, Synthetic, quadratics, ripples

__all__ = [
    "ASSUMPTIONS",
    "B_0",
    "B_1",
    "PLAIN",
    "QUANTISED",
    "A",
    "Factors",
    "Known",
    "Measures",
    "Nonconvex",
    "Quadratics",
    "Quantised",
    "Ripples",
    "Setting",
    "StronglyConvex",
    "Synthetic",
    "effective_variance",
    "gamma_1",
    "gammas",
    "gradient_weight",
    "lyapunov",
    "measure",
    "move_weight",
    "noise_weight",
    "quadratics",
    "quantiser_variance",
    "ripples",
]
