"""The clipped objective against closed forms, and its gradient against finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

from surefoot.rl.advantage import LeaveOneOut
from surefoot.rl.config import KL, Objective
from surefoot.rl.credit import Outcome
from surefoot.rl.learners import TokenBatch, kl_estimate, policy_loss, token_weights
from surefoot.rl.sample import Sample

BOUNDS = Objective(clip_low=0.2, clip_high=0.3)


def tokens(logprobs, old, advantages, *, weights=None, **more) -> TokenBatch:
    as_double = [torch.as_tensor(one, dtype=torch.float64) for one in (logprobs, old, advantages)]
    weights = torch.as_tensor([1 / len(as_double[0])] * len(as_double[0]) if weights is None else weights)
    return TokenBatch(
        logprobs=as_double[0], old_logprobs=as_double[1], advantages=as_double[2], weights=weights, **more
    )


def one_token(ratio: float, advantage: float, objective: Objective = BOUNDS) -> tuple[float, float, float]:
    """Loss, its derivative by the log-probability, and how many tokens are held back."""
    logprob = torch.tensor([math.log(0.25 * ratio)], dtype=torch.float64, requires_grad=True)
    found = policy_loss(tokens(logprob, [math.log(0.25)], [advantage]), objective)
    found.loss.backward()
    return found.loss.item(), logprob.grad.item(), found.clipped


def test_where_nothing_has_moved_the_loss_is_the_advantages_weighted():
    weights = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    logprobs = torch.tensor([-1.0, -2.0, -0.1], dtype=torch.float64, requires_grad=True)
    found = policy_loss(tokens(logprobs, logprobs.detach(), [3.0, -1.0, 2.0], weights=weights), BOUNDS)
    assert found.loss.item() == pytest.approx(-(1.5 - 0.25 + 0.5))
    assert (found.clipped, found.kl) == (0.0, 0.0)
    found.loss.backward()  # REINFORCE: -w A per nat
    assert logprobs.grad.tolist() == pytest.approx([-1.5, 0.25, -0.5])


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain", "held"),
    [
        (1.1, 2.0, 2.2, False),
        (1.5, 2.0, 2.6, True),  # above 1 + high: no more to gain
        (0.5, 2.0, 1.0, False),  # a fall of what is good is not bounded
        (0.5, -2.0, -1.6, True),  # below 1 - low
        (1.5, -2.0, -3.0, False),
        (0.9, -2.0, -1.8, False),
    ],
)
def test_the_bounds_hold_back_on_the_gaining_side_alone(ratio, advantage, gain, held):
    loss, slope, clipped = one_token(ratio, advantage)
    assert loss == pytest.approx(-gain)
    assert slope == pytest.approx(0.0 if held else -ratio * advantage)
    assert clipped == float(held)


def test_kl_estimators_by_hand():
    p, q = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])
    assert float(kl_estimate(p, q, "reward")) == pytest.approx(math.log(2))
    assert float(kl_estimate(p, q, "loss")) == pytest.approx(0.5 - 1 + math.log(2))
    assert float(kl_estimate(p, p, "loss")) == 0.0


def categoricals() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of a policy over five tokens, its log-probabilities, and those of its reference."""
    torch.manual_seed(2)
    logits = torch.randn(5, dtype=torch.float64, requires_grad=True)
    return logits, logits.log_softmax(0), torch.randn(5, dtype=torch.float64).log_softmax(0)


@pytest.mark.parametrize("where", ["reward", "loss"])
def test_k1_and_k3_are_right_on_average(where):
    _, logp, logq = (one.detach() for one in categoricals())
    expected = (logp.exp() * (logp - logq)).sum()
    assert float((logp.exp() * kl_estimate(logp, logq, where)).sum()) == pytest.approx(float(expected))
    if where == "loss":
        assert (kl_estimate(logp, logq, where) >= 0).all()


def test_which_gradient_each_estimator_has_on_average():
    """Tokens are drawn, so the chance of a token does not carry a gradient; only the estimate does."""
    logits, logp, logq = categoricals()

    def gradient(scalar: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(scalar, logits, retain_graph=True)[0]

    def drawn(where: str) -> torch.Tensor:
        return gradient((logp.exp().detach() * kl_estimate(logp, logq, where)).sum())

    backward = gradient((logq.exp() * (logq - logp)).sum())
    assert backward.abs().max() > 0.05
    torch.testing.assert_close(drawn("loss"), backward)  # that of KL(π_ref || π)
    torch.testing.assert_close(drawn("reward"), torch.zeros(5, dtype=torch.float64))


def test_the_kl_in_the_loss():
    old = [-1.0, -2.0]
    reference = torch.tensor([-1.5, -1.0], dtype=torch.float64)
    batch = tokens(old, old, [0.0, 0.0], reference_logprobs=reference)
    k3 = [math.exp(-0.5) - 1 + 0.5, math.exp(1.0) - 1 - 1.0]
    penalised = policy_loss(batch, Objective(kl=KL(coefficient=0.1)))
    assert penalised.kl == pytest.approx(sum(k3))
    assert penalised.loss.item() == pytest.approx(0.1 * sum(k3) / 2)
    in_reward = policy_loss(batch, Objective(kl=KL(coefficient=0.1, where="reward")))
    assert in_reward.loss.item() == 0.0  # it is in the advantages already
    assert in_reward.kl == pytest.approx(0.5 - 1.0)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_weights_of_all_tokens_add_up_to_one(lengths):
    def total(mean: str, longest: int) -> float:
        weights = token_weights(lengths, mean, longest=longest)
        return sum(weight * length for weight, length in zip(weights, lengths, strict=True))

    assert total("token", 50) == pytest.approx(1)
    assert total("sequence", 50) == pytest.approx(1)
    assert total("constant", 50) == pytest.approx(sum(lengths) / (50 * len(lengths)))
    by_token = token_weights(lengths, "token", longest=50)
    assert token_weights(lengths, "constant", longest=50) == pytest.approx(
        [weight * sum(lengths) / (50 * len(lengths)) for weight in by_token]
    )


def test_responses_of_full_length_weigh_the_same_by_every_mean():
    found = [token_weights([7, 7, 7], mean, longest=7) for mean in ("token", "sequence", "constant")]
    assert all(one == pytest.approx([1 / 21] * 3) for one in found)


def test_the_loss_of_parts_adds_up():
    torch.manual_seed(4)
    logprobs, old, advantages, reference = torch.randn(4, 9, dtype=torch.float64)
    objective = Objective(kl=KL())
    weights = torch.full((9,), 1 / 9, dtype=torch.float64)

    def part(cut: slice) -> TokenBatch:
        return tokens(
            logprobs[cut], old[cut], advantages[cut], weights=weights[cut], reference_logprobs=reference[cut]
        )

    whole = policy_loss(part(slice(None)), objective)
    parts = [policy_loss(part(slice(0, 4)), objective), policy_loss(part(slice(4, 9)), objective)]
    assert sum(one.loss.item() for one in parts) == pytest.approx(whole.loss.item())
    assert sum(one.clipped for one in parts) == pytest.approx(whole.clipped)
    assert sum(one.kl for one in parts) == pytest.approx(whole.kl)


# A model of its own, in float64: three rollouts of different lengths, one row each.

IDS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 0], [8, 9, 7, 0, 0, 0]])
LENGTHS = (4, 3, 1)  # of the responses, after prompts of two tokens


@pytest.fixture
def model() -> GPT2LMHeadModel:
    """Of an architecture that has no float32 inside, as Llama's norm has."""
    torch.manual_seed(5)
    config = GPT2Config(vocab_size=11, n_embd=8, n_layer=2, n_head=2, n_positions=16, initializer_range=0.3)
    return GPT2LMHeadModel(config).double().eval()


def read(model: GPT2LMHeadModel) -> torch.Tensor:
    """Log-probabilities of the response tokens."""
    logp = model(input_ids=IDS, use_cache=False).logits.log_softmax(-1)
    assert logp.dtype == torch.float64
    rows = [row for row, length in enumerate(LENGTHS) for _ in range(length)]
    at = [place for length in LENGTHS for place in range(1, 1 + length)]
    targets = IDS[rows, [place + 1 for place in at]]
    return logp[rows, at].gather(1, targets[:, None])[:, 0]


def batch_of(model: GPT2LMHeadModel, advantages, old, reference) -> TokenBatch:
    of_rows = token_weights(LENGTHS, "sequence", longest=4)
    weights = [weight for weight, length in zip(of_rows, LENGTHS, strict=True) for _ in range(length)]
    return tokens(
        read(model),
        old,
        advantages,
        weights=torch.tensor(weights, dtype=torch.float64),
        reference_logprobs=reference,
    )


@pytest.mark.parametrize(
    "objective",
    [
        BOUNDS,
        Objective(kl=KL(coefficient=0.3)),
        Objective(kl=KL(coefficient=0.3), clip_low=1, clip_high=1e9),
    ],
    ids=["clipped", "kl", "unbounded"],
)
def test_the_gradient_is_that_of_finite_differences(model, objective):
    start = read(model).detach()
    # ratios inside, above and below the bounds, none near one of them, with advantages of both signs
    old = start - torch.tensor([0.05, 0.6, -0.6, 0.6, -0.6, -0.05, 0.1, 0.0], dtype=torch.float64)
    advantages = torch.tensor([1.0, 2.0, 1.5, -1.0, -2.0, -0.5, 0.7, 3.0], dtype=torch.float64)
    reference = start + 0.3 * torch.sin(torch.arange(8, dtype=torch.float64))

    def loss() -> torch.Tensor:
        return policy_loss(batch_of(model, advantages, old, reference), objective).loss

    clipped = policy_loss(batch_of(model, advantages, old, reference), objective).clipped
    assert clipped == (0 if objective.clip_high > 1 else 2)  # tokens 1 and 4
    loss().backward()
    step, generator = 1e-5, torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        for _ in range(3):
            direction = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            with torch.no_grad():
                parameter += step * direction
                above = loss().item()
                parameter -= 2 * step * direction
                below = loss().item()
                parameter += step * direction
            expected = (above - below) / (2 * step)
            found = float((parameter.grad * direction).sum())
            assert found == pytest.approx(expected, rel=1e-5, abs=1e-8), name
    assert max(parameter.grad.abs().max() for parameter in model.parameters()) > 1e-2


@pytest.mark.parametrize("outcome", [0.0, 1.0])
def test_equal_rewards_teach_nothing(model, outcome):
    group = [Sample(tokens=length, ends=(length - 1,), outcome=outcome) for length in LENGTHS]
    streams = Outcome().credit([group])[0]
    credited = [Sample(tokens=n, rewards=given) for n, given in zip(LENGTHS, streams, strict=True)]
    (advantages,) = LeaveOneOut().advantages([credited])
    joined = torch.cat([torch.from_numpy(one) for one in advantages])
    assert len(joined) == sum(LENGTHS)
    start = read(model).detach()
    policy_loss(batch_of(model, joined, start - 0.1, None), BOUNDS).loss.backward()
    assert all((parameter.grad == 0).all() for parameter in model.parameters())
