"""Language models: a transformer on windows of characters, its loss and its accuracy."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lasg.core.optimizers import ClosedFormSGD, Constant
from lasg.core.rules import RULES
from lasg.core.server import Laziness
from lasg.errors import LasgError
from lasg.problems.models import Transformer, model, sequence_cross_entropy
from lasg.problems.module import ModuleProblem
from lasg.problems.samples import right
from lasg.transports.local import simulate

CHARACTERS, CONTEXT = 5, 6


def windows(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Text that counts: the next character is one more, from a random start."""
    start = torch.randint(0, CHARACTERS, (n, 1), generator=torch.Generator().manual_seed(seed))
    text = (start + torch.arange(CONTEXT + 1)) % CHARACTERS
    return text[:, :-1], text[:, 1:]


def small(**more: Any) -> ModuleProblem:
    torch.manual_seed(0)
    net = Transformer((CONTEXT,), CHARACTERS, width=8, layers=2, heads=2)
    settings: dict[str, Any] = {"batch": 0.5, "dtype": "float64", "test": windows(9, 1), **more}
    shards = np.split(np.arange(24), 4)
    return ModuleProblem(net, sequence_cross_entropy, windows(24), shards, **settings)


def test_the_transformer_has_817727_parameters_and_no_buffers() -> None:
    net = Transformer()
    assert sum(parameter.numel() for parameter in net.parameters()) == 817_727
    assert not list(net.buffers())


def test_no_place_sees_a_later_character() -> None:
    torch.manual_seed(0)
    net = Transformer((CONTEXT,), CHARACTERS, width=8, layers=2, heads=2)
    x = windows(1)[0]
    for place in range(CONTEXT):
        other = x.clone()
        other[0, place] = (other[0, place] + 1) % CHARACTERS
        same = (net(x) == net(other)).all(-1)[0].tolist()
        assert same == [seen < place for seen in range(CONTEXT)]


def test_the_attention_is_torchs() -> None:
    torch.manual_seed(0)
    block = Transformer((CONTEXT,), CHARACTERS, width=8, layers=1, heads=2).double().blocks[0]
    torchs = torch.nn.TransformerEncoderLayer(
        8, 2, 32, dropout=0, activation="gelu", batch_first=True, norm_first=True, dtype=torch.float64
    )
    named = {"self_attn.in_proj_": "attention_in.", "self_attn.out_proj.": "attention_out.", "linear1.": "dense_in."}
    named |= {"linear2.": "dense_out.", "norm1.": "norm1.", "norm2.": "norm2."}
    state = block.state_dict()
    torchs.load_state_dict({a + kind: state[b + kind] for a, b in named.items() for kind in ("weight", "bias")})
    x = torch.randn(3, CONTEXT, 8, dtype=torch.float64)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(CONTEXT, dtype=torch.float64)
    torch.testing.assert_close(block(x, mask), torchs(x, src_mask=mask, is_causal=True))


def test_the_loss_of_a_sequence_is_the_mean_over_its_places() -> None:
    output, target = torch.randn(4, CONTEXT, CHARACTERS), windows(4)[1]
    assert sequence_cross_entropy(output, target) == pytest.approx(float(cross_entropy(output.mT, target)))


def test_a_sequence_is_right_at_a_share_of_its_places() -> None:
    target = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3]])
    output = torch.nn.functional.one_hot(torch.tensor([[0, 1, 2, 0], [3, 1, 0, 0]]), 4)
    assert right(output, target).tolist() == [0.75, 0.25]
    assert right(output[:, 0], target[:, 0]).tolist() == [True, False]


def test_accuracy_is_the_share_of_next_characters_that_are_right() -> None:
    of = small()
    theta = of.start()
    assert of.test is not None
    x, y = of.test.read(np.arange(9))
    with of.evaluating(theta) as module:
        expected = (module(x).argmax(-1) == y).double().mean()
    assert of.accuracy(theta) == pytest.approx(float(expected))


def test_the_loss_is_measured_on_the_chosen_rows() -> None:
    whole, part = small(), small(measured=[0, 5, 11])
    theta = whole.start()
    assert part.loss(theta) == whole.loss(theta, np.array([0, 5, 11]))
    assert part.loss(theta) != whole.loss(theta)
    assert part.loss(theta, np.arange(24)) == whole.loss(theta)
    assert part.fingerprint() == whole.fingerprint(), "it decides no gradient"
    with pytest.raises(LasgError, match="outside the dataset"):
        small(measured=[24])


def test_vmap_and_loop_agree() -> None:
    fast, slow = small(how="auto"), small(how="loop")
    assert fast.how == "vmap"
    [quick], [plain] = (of.gradients(2, [of.start()], None) for of in (fast, slow))
    torch.testing.assert_close(quick, plain)


def test_a_hessian_can_be_measured() -> None:
    of = small()
    theta, rows = of.start(), np.arange(24)
    along = torch.randn(of.p, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    whole = small(batch=1.0)

    def slope(at: Tensor) -> Tensor:
        [grads] = whole.gradients(0, [at], None)
        return grads.sum(0)

    near = (slope(theta + 1e-5 * along) - slope(theta - 1e-5 * along)) / 2e-5
    torch.testing.assert_close(of.hessian_times(theta, along, rows), near, rtol=1e-5, atol=1e-7)


def test_a_small_transformer_learns_to_count() -> None:
    of = small()
    run = simulate(
        of, ClosedFormSGD(of.start(), Constant(0.5)), rule=RULES["wk2"], laziness=Laziness(workers=4, D=10, c=0.1)
    )
    before = run.loss()
    for _ in range(60):
        run.step()
    assert run.loss() < 0.3 < 1 < before
    accuracy = of.accuracy(run.theta)
    assert accuracy is not None
    assert accuracy > 0.95


def test_a_start_depends_on_the_seed_alone() -> None:
    one, again, other = (model("transformer", (8,), 5, seed, text=True).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["places"], other["places"])


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("mlp", True, "model mlp takes numbers, these samples are text: set model to transformer"),
        ("transformer", False, "model transformer takes text, these samples are not text: set model to mlp, cnn"),
    ],
)
def test_text_is_for_models_of_text_alone(name: str, text: bool, words: str) -> None:
    with pytest.raises(LasgError, match=words):
        model(name, (64,), 5, 0, text=text)
