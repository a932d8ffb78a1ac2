"""What holds for every rule under every codec."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lasg.core.messages import Uploads
from lasg.core.optimizers import ClosedFormSGD, Constant, Decreasing
from lasg.core.rules import RULES
from tests.core.toy import CODECS, KINDS, LAZY, TABLE, WEIGHTS, M, P, Run, numpy_of

each_rule = pytest.mark.parametrize("rule", RULES)
each_lazy_rule = pytest.mark.parametrize("rule", LAZY)
each_codec = pytest.mark.parametrize("codec", CODECS)
each_kind = pytest.mark.parametrize("kind", KINDS)
# The two kinds are compared under every codec below; elsewhere two codecs will do for torch.
each_codec_and_kind = pytest.mark.parametrize(
    ("codec", "kind"), [(codec, "numpy") for codec in CODECS] + [("dense", "torch"), ("qsgd4:3", "torch")]
)
ROUNDS = 40


def equal(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(numpy_of(found), numpy_of(expected))


@each_rule
@each_codec
def test_numpy_and_torch_give_the_same_run(rule: str, codec: str) -> None:
    one, other = Run(rule, codec, kind="numpy"), Run(rule, codec, kind="torch")
    for _ in range(ROUNDS):
        request_one, uploads_one = one.step()
        request_other, uploads_other = other.step()
        equal(uploads_one.uploaded, uploads_other.uploaded)
        assert uploads_one.bits == uploads_other.bits
        assert uploads_one.gradients == uploads_other.gradients
        assert uploads_one.uploads == uploads_other.uploads == uploads_one.uploaded.sum()
        assert request_one.threshold == pytest.approx(request_other.threshold, rel=1e-9)
        np.testing.assert_allclose(one.theta, other.theta, rtol=0, atol=1e-12)
    np.testing.assert_allclose(one.server.smoothness, other.server.smoothness, rtol=1e-9)


@each_lazy_rule
@each_codec_and_kind
def test_with_a_staleness_of_at_most_1_every_rule_is_sgd(rule: str, codec: str, kind: str) -> None:
    lazy, plain = Run(rule, codec, D=1, kind=kind), Run("always", codec, kind=kind)
    for _ in range(20):
        assert lazy.step()[1].uploaded.all()
        plain.step()
        equal(lazy.theta, plain.theta)


@each_lazy_rule
@each_codec_and_kind
def test_with_c_equal_to_0_every_rule_is_sgd(rule: str, codec: str, kind: str) -> None:
    lazy, plain = Run(rule, codec, c=0.0, kind=kind), Run("always", codec, kind=kind)
    for _ in range(20):
        assert lazy.step()[1].uploaded.all()
        plain.step()
        equal(lazy.theta, plain.theta)


@each_codec
def test_with_c_equal_to_0_pse_started_at_zero_is_sgd_from_its_second_upload_on(codec: str) -> None:
    """L-hat = 0 keeps everybody silent until D forces the upload that brings the first estimate."""
    uploaded = Run("pse", codec, c=0.0, D=6, start="zero").play(20)
    assert uploaded[0].all()
    assert not uploaded[1:6].any()
    assert uploaded[6:].all()


@each_lazy_rule
@each_codec_and_kind
def test_with_c_infinite_everybody_uploads_exactly_when_due(rule: str, codec: str, kind: str) -> None:
    D = 6
    uploaded = Run(rule, codec, c=float("inf"), D=D, kind=kind).play(30)
    first = 1 if rule == "pse" else 0
    expected = np.arange(30) % D == first
    expected[0] = True
    equal(uploaded, np.repeat(expected[:, None], M, axis=1))


@each_rule
@each_codec
def test_the_aggregate_is_the_sum_of_what_the_workers_last_sent(rule: str, codec: str) -> None:
    """What they last sent is replayed here from the messages themselves, and must equal the workers' copies."""
    run = Run(rule, codec)
    sent = np.zeros((M, P))
    for k in range(ROUNDS):
        request, uploads = run.step()
        senders = np.flatnonzero(uploads.uploaded)
        if len(senders):
            [exact] = run.oracle.gradients(k, [request.theta], senders)
            noise = run.workers._noise(k, senders, P)
            messages = run.codec.encode(exact, noise)
            sent[senders] = run.codec.decode(messages, exact[0])
            assert uploads.bits == 8 * sum(map(len, messages))
        equal(run.contributed, sent)
        np.testing.assert_allclose(run.server.aggregate, sent.sum(0), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("rule", "codec"), [(rule, "dense") for rule in RULES] + [(rule, "qsgd4:3") for rule in ("wk1", "wk2", "pse")]
)
def test_the_aggregate_does_not_drift_in_ten_thousand_float32_rounds(rule: str, codec: str) -> None:
    run = Run(rule, codec, dtype="float32", D=50, schedule=Decreasing(0.5, 40.0))
    for _ in range(10_000):
        run.step()
        run.oracle.calls.clear()
    expected = run.contributed.astype(np.float64).sum(0)
    assert run.theta.dtype == np.float32
    assert np.linalg.norm(run.server.aggregate - expected) <= 1e-6 * np.linalg.norm(expected)


@each_rule
@each_codec
def test_tau_counts_the_rounds_since_the_last_upload(rule: str, codec: str) -> None:
    run = Run(rule, codec, D=6)
    tau = np.ones(M, int)
    for _ in range(ROUNDS):
        equal(run.server.tau, tau)
        _, uploads = run.step()
        tau = np.where(uploads.uploaded, 1, tau + 1)
        assert (tau <= 6).all()


@pytest.mark.parametrize("rule", ["ps", "pse"])
@each_codec_and_kind
def test_a_worker_that_was_not_asked_computes_nothing(rule: str, codec: str, kind: str) -> None:
    run = Run(rule, codec, kind=kind)
    idle = 0
    for k in range(ROUNDS):
        run.oracle.calls.clear()
        request, uploads = run.step()
        asked = np.flatnonzero(request.computes).tolist()
        assert [call.ids for call in run.oracle.calls] == ([asked] if asked else [])
        equal(request.must_upload, request.computes)
        equal(uploads.uploaded, request.computes)
        points = 2 if rule == "pse" and k > 0 else 1
        assert uploads.gradients == points * len(asked)
        idle += M - len(asked)
    assert idle > 0


@each_lazy_rule
@each_codec_and_kind
def test_silent_worker_keeps_its_stale_gradient(rule: str, codec: str, kind: str) -> None:
    run = Run(rule, codec, kind=kind)
    silences = 0
    for _ in range(ROUNDS):
        before = numpy_of(run.contributed).copy()
        _, uploads = run.step()
        equal(numpy_of(run.contributed)[~uploads.uploaded], before[~uploads.uploaded])
        silences += int((~uploads.uploaded).sum())
    assert silences > 0


@pytest.mark.parametrize(
    ("rule", "first", "later"),
    [("always", 1, 1), ("lag", 1, 1), ("wk1", 1, 2), ("wk2", 1, 2), ("ps", 1, 1), ("pse", 1, 2)],
)
@pytest.mark.parametrize("H", [1, 3])
def test_gradient_evaluations_are_counted_as_the_ledger_defines_them(rule: str, first: int, later: int, H: int) -> None:
    """Two a worker where the rule needs a second point, one where the two points coincide; H times with H steps."""
    D = 6
    run = Run(rule, D=D, H=H)
    for k in range(3 * D):
        run.oracle.calls.clear()
        request, uploads = run.step()
        each = first if k == 0 or (rule == "wk1" and k % D == 0) else later
        computed = int(request.computes.sum())
        assert computed == M or rule in {"ps", "pse"}
        assert uploads.gradients == each * computed * H
        assert uploads.gradients == sum(len(call.ids) * len(call.points) for call in run.oracle.calls)


@pytest.mark.parametrize("rule", ["wk1", "wk2", "pse"])
def test_the_second_point_is_the_one_the_rule_names(rule: str) -> None:
    D = 6
    run = Run(rule, D=D)
    last, snapshot = np.zeros((M, P)), np.zeros(P)
    for k in range(ROUNDS):
        run.oracle.calls.clear()
        theta = run.theta.copy()
        if k % D == 0:
            snapshot = theta
        _, uploads = run.step()
        for call in run.oracle.calls:
            equal(call.points[0], theta)
            if len(call.points) == 2:
                equal(call.points[1], snapshot if rule == "wk1" else last[call.ids])
        last[uploads.uploaded] = theta


@each_rule
@pytest.mark.parametrize("codec", ["dense", "qsgd4:3"])
def test_permuting_the_workers_permutes_everything(rule: str, codec: str) -> None:
    order = [3, 0, 4, 2, 1]
    one, other = Run(rule, codec), Run(rule, codec, groups=(order,))
    for _ in range(ROUNDS):
        _, uploads = one.step()
        _, permuted = other.step()
        equal(permuted.uploaded, uploads.uploaded[order])
        np.testing.assert_allclose(other.theta, one.theta, rtol=0, atol=1e-12)
        np.testing.assert_allclose(other.server.smoothness, one.server.smoothness[order], rtol=1e-9)
        assert (permuted.bits, permuted.gradients) == (uploads.bits, uploads.gradients)
    np.testing.assert_allclose(other.contributed, one.contributed[order], atol=1e-12)


@each_rule
@pytest.mark.parametrize("codec", ["dense", "qsgd4:3"])
@pytest.mark.parametrize("H", [1, 3])
def test_spreading_the_workers_over_processes_changes_nothing(rule: str, codec: str, H: int) -> None:
    together, apart = Run(rule, codec, H=H), Run(rule, codec, H=H, groups=([0, 1], [2], [3, 4]))
    for _ in range(ROUNDS):
        _, uploads = together.step()
        _, joined = apart.step()
        equal(joined.uploaded, uploads.uploaded)
        assert (joined.bits, joined.gradients) == (uploads.bits, uploads.gradients)
        np.testing.assert_allclose(apart.theta, together.theta, rtol=0, atol=1e-12)


@each_kind
def test_a_lost_reply_is_a_worker_that_stayed_silent(kind: str) -> None:
    """The server goes on with the stale aggregate, and only tau tells."""
    run = Run("wk2", kind=kind)
    run.play(4)
    aggregate = numpy_of(run.server.aggregate).copy()
    tau = run.server.tau.copy()
    run.server.open()
    run.server.close(Uploads(np.zeros(M, np.bool_)), None)
    equal(run.server.aggregate, aggregate)
    equal(run.server.tau, tau + 1)


# -- local steps -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("H", [1, 2, 5])
@each_kind
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_round_of_local_sgd_is_the_weighted_average_of_the_local_models(H: int, kind: str, dtype: str) -> None:
    eta = 0.2
    run = Run("always", kind=kind, dtype=dtype, H=H, schedule=lambda k: eta / (1 + k))
    table = Run("always").oracle
    for k in range(20):
        theta = run.theta.astype(np.float64)
        local = np.repeat(theta[None], M, axis=0)
        for h in range(H):
            [grad] = table.gradients(k * H + h, [local], None)
            local = local - eta / (1 + k) * grad / WEIGHTS[:, None]
        run.step()
        tolerance = 1e-12 if dtype == "float64" else 1e-5
        np.testing.assert_allclose(run.theta, WEIGHTS @ local, rtol=0, atol=tolerance)


def test_the_float32_pseudo_gradient_is_as_exact_as_a_gradient() -> None:
    """Far from the origin with a small step, where theta - theta_m keeps few digits."""
    theta = np.full(P, 100.0)
    found = []
    for dtype in ("float32", "float64"):
        start = ClosedFormSGD(theta.astype(dtype), Constant(1e-4))
        run = Run("always", dtype=dtype, H=3, optimizer=start)
        run.step()
        found.append(run.server.aggregate)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


@each_kind
def test_with_one_local_step_local_sgd_is_sgd(kind: str) -> None:
    local, plain = Run("always", kind=kind, H=1), Run("always", kind=kind)
    for _ in range(20):
        local.step()
        plain.step()
        equal(local.theta, plain.theta)


@pytest.mark.parametrize("rule", ["wk1", "wk2", "pse"])
@pytest.mark.parametrize("codec", ["dense", "qsgd8:3"])
@each_kind
def test_the_probe_repeats_the_same_minibatches_of_all_local_steps(rule: str, codec: str, kind: str) -> None:
    """Both walks take H steps in the same calls, so on the same samples, each from its own start."""
    H, D = 3, 6
    run = Run(rule, codec, kind=kind, H=H, D=D)
    for k in range(20):
        run.oracle.calls.clear()
        request, uploads = run.step()
        calls = run.oracle.calls
        if not calls:
            assert not uploads.uploaded.any()
            continue
        assert [call.iteration for call in calls] == [k * H + h for h in range(H)]
        alone = k == 0 or (rule == "wk1" and k % D == 0)
        assert all(len(call.points) == (1 if alone else 2) for call in calls)
        assert all(call.ids == calls[0].ids for call in calls)
        if alone:
            continue
        probe = np.broadcast_to(calls[0].points[1], (len(calls[0].ids), P))
        weight = WEIGHTS[calls[0].ids][:, None]
        fresh = Run("always").oracle
        for call in calls:
            np.testing.assert_allclose(np.broadcast_to(call.points[1], probe.shape), probe, atol=1e-12)
            [grad] = fresh.gradients(call.iteration, [probe], np.array(call.ids))
            probe = probe - request.eta * grad / weight


@each_lazy_rule
@each_codec_and_kind
def test_lazy_rules_run_with_local_steps_and_stay_lazy(rule: str, codec: str, kind: str) -> None:
    uploaded = Run(rule, codec, kind=kind, H=3, schedule=lambda k: 0.02).play(30)
    assert uploaded[0].all()
    assert not uploaded.all()


def test_the_left_side_of_wk2_with_local_steps_compares_pseudo_gradients() -> None:
    H, eta = 2, 0.1
    run = Run("wk2", H=H, c=float("inf"))
    run.play(3)
    start, theta = np.zeros(P), run.theta.copy()
    _, uploads = run.step()
    fresh, ends = Run("always").oracle, []
    for begin in (theta, start):
        local = np.repeat(begin[None], M, axis=0)
        for h in range(H):
            [grad] = fresh.gradients(3 * H + h, [local], None)
            local = local - eta * grad / WEIGHTS[:, None]
        ends.append(WEIGHTS[:, None] / eta * (begin - local))
    assert uploads.left is not None
    np.testing.assert_allclose(uploads.left, ((ends[0] - ends[1]) ** 2).sum(-1), rtol=1e-9)


# -- checkpoints -----------------------------------------------------------------------------------------------


@each_rule
@each_codec
@each_kind
def test_a_run_continues_bit_for_bit_from_the_middle(rule: str, codec: str, kind: str) -> None:
    schedule = Decreasing(0.5, 40.0)
    whole = Run(rule, codec, kind=kind, schedule=schedule)
    whole.play(10)
    state = whole.state()
    resumed = Run(rule, codec, kind=kind, schedule=schedule)
    resumed.restore(state)
    for _ in range(12):
        request, uploads = whole.step()
        again, answer = resumed.step()
        assert (again.k, again.eta, again.threshold) == (request.k, request.eta, request.threshold)
        _same_uploads(answer, uploads)
        equal(resumed.theta, whole.theta)
        equal(resumed.server.tau, whole.server.tau)
        equal(resumed.server.aggregate, whole.server.aggregate)
        equal(resumed.contributed, whole.contributed)


def _same_uploads(one: Uploads, other: Uploads) -> None:
    equal(one.uploaded, other.uploaded)
    assert (one.bits, one.gradients) == (other.bits, other.gradients)
    for mine, theirs in ((one.left, other.left), (one.estimates, other.estimates)):
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            equal(mine, theirs)


@pytest.mark.parametrize("k", [0, 1, 5, 6, 7, 12])
@each_lazy_rule
def test_a_checkpoint_may_be_taken_at_any_round(rule: str, k: int) -> None:
    """Before the first, at a snapshot, just after one."""
    whole, resumed = Run(rule, H=2), Run(rule, H=2)
    whole.play(k)
    resumed.restore(whole.state())
    equal(resumed.play(20), whole.play(20))
    equal(resumed.theta, whole.theta)


def test_the_toy_has_more_samples_than_a_short_run_needs() -> None:
    assert ROUNDS < TABLE
