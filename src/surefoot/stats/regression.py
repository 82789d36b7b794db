"""Two regressions of a share on scores: logistic by Newton's method, isotonic by pooling violators.

They do without scikit-learn, which takes a second to import and 270 MB with scipy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from surefoot.stats.bootstrap import FloatArray

_STEPS = 100
_ROUNDING = 1e-15
"""Newton's method ends when the loss falls by no more than this part of it."""
_SMALLEST = 1e-10
"""Smallest part of a step that is tried."""
_CONSTANT = 1e-10
"""A feature whose deviation is this small a part of its mean is constant but for rounding."""


def sigmoid(x: ArrayLike) -> FloatArray:
    """1 / (1 + exp(-x)), same shape, without overflow."""
    return np.asarray((1 + np.tanh(np.asarray(x, dtype=float) / 2)) / 2)


def logistic_regression(features: ArrayLike, targets: ArrayLike, *, penalty: float = 0.0) -> FloatArray:
    """Intercept and coefficients ``[1 + F]`` that minimise cross-entropy + penalty/2 · Σ coefficient².

    ``features`` is ``[N, F]``, ``targets`` ``[N]`` in [0, 1]. Targets of 0 and 1 that a plane parts need a
    ``penalty``: without one no coefficients are best. Raises ``ValueError`` if the method does not converge.
    """
    x = np.column_stack([np.ones(len(np.asarray(targets))), np.asarray(features, dtype=float)])
    y = np.asarray(targets, dtype=float)
    ridge = np.full(x.shape[1], penalty)
    ridge[0] = 0.0

    def loss(beta: FloatArray) -> float:
        z = x @ beta
        return float((np.logaddexp(0, z) - y * z).sum() + (ridge * beta**2).sum() / 2)

    beta = np.zeros(x.shape[1])
    for _ in range(_STEPS):
        p = sigmoid(x @ beta)
        gradient = x.T @ (p - y) + ridge * beta
        hessian = x.T @ (x * (p * (1 - p))[:, None]) + np.diag(ridge)
        step = np.linalg.lstsq(hessian, gradient)[0]
        current, size = loss(beta), 1.0
        while loss(beta - size * step) > current and size > _SMALLEST:
            size /= 2
        beta = beta - size * step
        if current - loss(beta) <= _ROUNDING * current:
            return np.asarray(beta)
    raise ValueError(f"no coefficients within {_STEPS} steps; give a penalty")


def standardized(rows: ArrayLike, like: ArrayLike) -> FloatArray:
    """``rows`` minus the mean and divided by the standard deviation of each column of ``like``.

    A constant column is only shifted.
    """
    sample = np.asarray(like, dtype=float)
    mean, scale = sample.mean(axis=0), sample.std(axis=0)
    scale[scale <= _CONSTANT * np.abs(mean)] = 1.0
    return np.asarray((np.asarray(rows, dtype=float) - mean) / scale)


def isotonic_regression(x: ArrayLike, y: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Corners of the rising function with the least squared error: between them it is straight.

    Equal ``x`` count as one point with their mean, as often as they occur.
    """
    at, group, counts = np.unique(np.asarray(x, dtype=float), return_inverse=True, return_counts=True)
    means = np.bincount(group, np.asarray(y, dtype=float)) / counts
    pools: list[tuple[float, int, int]] = []
    """Mean, weight and number of points of each pool; each mean is above the one before."""
    for mean, count in zip(means.tolist(), counts.tolist(), strict=True):
        pool = (mean, count, 1)
        while pools and pools[-1][0] >= pool[0]:
            value, weight, points = pools.pop()
            total = weight + pool[1]
            pool = ((value * weight + pool[0] * pool[1]) / total, total, points + pool[2])
        pools.append(pool)
    fitted = np.repeat([value for value, _, _ in pools], [points for _, _, points in pools])
    corner = np.ones(len(at), dtype=bool)
    corner[1:-1] = (fitted[1:-1] != fitted[:-2]) | (fitted[1:-1] != fitted[2:])
    return at[corner], fitted[corner]
