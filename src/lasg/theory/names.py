"""What people call the paper's theorems, lemmas and assumptions, which code and stored runs know by their labels."""

from __future__ import annotations

from collections.abc import Mapping

NAMES: Mapping[str, str] = {
    "thm:nonconvex": "nonconvex theorem",
    "thm:stronglyconvex": "strongly convex theorem",
    "thm:LAQSG": "quantised theorem",
    "lemma:lossdescent": "Lemma 1, descent of the loss",
    "lemma:lyapunovdescent": "Lemma 2, descent of V^k",
    "eqn:variance-wk": "left side of LAG-WK",
    "eqn:variance-wk1": "left side of LASG-WK1",
    "eqn:variance-wk2": "left side of LASG-WK2",
    "eqn:variance-server": "left side of LASG-PS",
    "assump:smoothness": "smooth loss",
    "assump:localsmoothness": "smooth loss on each worker",
    "assump:strongconvexity": "strongly convex loss",
    "assump:gradientestimator": "gradients with bounded variance",
    "assump:boundedgradient": "bounded gradients",
}


def name_of(label: str) -> str:
    """Return what people call a label; what is none, as it is."""
    return NAMES.get(label, label)
