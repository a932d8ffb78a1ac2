"""What travels, in every engine: a request from the server, and the uploads that answer it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from lasg.core.arrays import Array, FloatArray, Mask


class BlockTerms(NamedTuple):
    """What decides of each block whether it is said, where every block is decided by itself."""

    thresholds: FloatArray
    """The rules' right side for every block; their sum is the request's."""
    due: Mask
    """Which blocks of each worker are said whatever the rule says, `(M, B)`."""

    def pack(self, m: int) -> dict[str, Array]:
        """Return what worker m must know, as arrays that travel."""
        return {"thresholds": self.thresholds.astype("<f8"), "due": np.packbits(self.due[m])}

    @classmethod
    def unpack(cls, arrays: Mapping[str, Array], *, all_due: bool) -> BlockTerms:
        """Undo `pack`; `all_due`: whatever came, since the server holds nothing that the worker knows of."""
        thresholds = arrays["thresholds"].astype(np.float64)
        due = np.unpackbits(arrays["due"], count=len(thresholds)).astype(np.bool_)
        return cls(thresholds, (due | all_due)[None])


class Request(NamedTuple):
    """A round as the server opens it."""

    k: int
    theta: Array
    eta: float
    threshold: float
    """The rules' right side."""
    computes: Mask
    """Who gets theta and computes, one flag per worker."""
    must_upload: Mask
    """Who uploads whatever the rule says; only who computes can."""
    left: FloatArray | None = None
    """The rule's left side, where the server evaluated it."""
    points: int = 1
    """At how many models a worker that computes needs its gradient."""
    by_rule: bool = True
    """Whether workers evaluate the rule: not where everybody has to upload, whatever it says."""
    blocks: BlockTerms | None = None
    """Which blocks, where each is decided by itself; None: whoever uploads says the whole."""
    fresh: bool = True
    """Whether the model is another than that of the round before: else nobody needs to be told it."""


class News(NamedTuple):
    """What uploads mean for the aggregate."""

    vector: Array
    whole: bool = False
    """Whether the vector is the aggregate itself, and not a change of it."""


class Uploads(NamedTuple):
    """What workers answer to a request: those of this process, or, once a transport carried them, all M."""

    uploaded: Mask
    """Who uploads."""
    uploads: int = 0
    """How many upload."""
    bits: int = 0
    """The bits of their messages."""
    gradients: int = 0
    """Gradient evaluations spent."""
    news: News | None = None
    """What the uploads mean for the aggregate; None: nothing, or the messages say it."""
    messages: tuple[bytes, ...] = ()
    """The encoded contributions, one per upload, where they travel as they are."""
    forget: tuple[int, ...] = ()
    """Workers of whom nothing is believed any more before the messages are taken: gone for good, or beginning again."""
    left: FloatArray | None = None
    """The rule's left side per worker, where the workers evaluated it; NaN where it is not known."""
    estimates: FloatArray | None = None
    """Estimates of L_m, one per upload."""
    broken: Mask | None = None
    """Whose gradient was NaN or infinite: they are silent, whatever the rule says. None: nobody's."""
    reports: FloatArray | None = None
    """What each worker reports, where the server decides for all, `(W, 2)`; NaN: nothing."""
    loss: float | None = None
    """The mean loss of the minibatches, where it is known and the guard wants it."""
    downloads: int | None = None
    """How many workers got the model; None: all that were to compute."""
    weights: FloatArray | None = None
    """Each worker's share of the objective, where the transport alone knows it."""
    differing: tuple[int, ...] = ()
    """Processes whose model was found not to be the first's: all take over the first's after the round."""
    control: int = 0
    """What this process wants after the round, or the most urgent of what any process wants: see `Training`."""
    said: Mask | None = None
    """Which blocks each upload has, `(uploads, B)`, where blocks are decided and no messages say it."""
