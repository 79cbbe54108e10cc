"""More of Hock and Schittkowski's problems, with four and five variables; as `problems_more.py`."""

import math

import torch
from torch import Tensor

from benchmarks.studies.controllers.problems import Problem, box, vector

ROOT2 = math.sqrt(2)


def chained(x: Tensor) -> Tensor:
    """The objective of 46 and 49."""
    return (x[0] - x[1]) ** 2 + (x[2] - 1) ** 2 + (x[3] - 1) ** 4 + (x[4] - 1) ** 6


# The constraints of 52 and 53, and of 78 to 81.
LINES = vector(
    lambda a, b, c, d, e: a + 3 * b,
    lambda a, b, c, d, e: c + d - 2 * e,
    lambda a, b, c, d, e: b - e,
)
CURVES = vector(
    lambda a, b, c, d, e: a**2 + b**2 + c**2 + d**2 + e**2 - 10,
    lambda a, b, c, d, e: b * c - 5 * d * e,
    lambda a, b, c, d, e: a**3 + b**3 + 1,
)
BOX80 = ([-2.3, -2.3, -3.2, -3.2, -3.2], [2.3, 2.3, 3.2, 3.2, 3.2])

MANY = [
    Problem(
        "HS40",
        (0.8, 0.8, 0.8, 0.8),
        lambda x: -x.prod(),
        -0.25,
        equal=vector(
            lambda a, b, c, d: a**3 + b**2 - 1,
            lambda a, b, c, d: a**2 * d - c,
            lambda a, b, c, d: d**2 - b,
        ),
    ),
    Problem(
        "HS42",
        (1.0, 1.0, 1.0, 1.0),
        lambda x: (x - torch.arange(1.0, 5.0, dtype=x.dtype)).square().sum(),
        28 - 10 * ROOT2,
        equal=vector(lambda a, b, c, d: a - 2, lambda a, b, c, d: c**2 + d**2 - 2),
    ),
    Problem(
        "HS71",
        (1.0, 5.0, 5.0, 1.0),
        lambda x: x[0] * x[3] * (x[0] + x[1] + x[2]) + x[2],
        17.0140173,
        box([1.0] * 4, [5.0] * 4, lambda a, b, c, d: a * b * c * d - 25),
        lambda x: (x.square().sum() - 40).reshape(1),
    ),
    Problem(
        "HS46",
        (ROOT2 / 2, 1.75, 0.5, 2.0, 2.0),
        chained,
        0.0,
        equal=vector(
            lambda a, b, c, d, e: a**2 * d + torch.sin(d - e) - 1,
            lambda a, b, c, d, e: b + c**4 * d**2 - 2,
        ),
    ),
    Problem(
        "HS49",
        (10.0, 7.0, 2.0, -3.0, 0.8),
        chained,
        0.0,
        equal=vector(
            lambda a, b, c, d, e: a + b + c + 4 * d - 7, lambda a, b, c, d, e: c + 5 * e - 6
        ),
    ),
    Problem(
        "HS52",
        (2.0,) * 5,
        lambda x: (
            (4 * x[0] - x[1]) ** 2 + (x[1] + x[2] - 2) ** 2 + (x[3] - 1) ** 2 + (x[4] - 1) ** 2
        ),
        1859 / 349,
        equal=LINES,
    ),
    Problem(
        "HS53",
        (2.0,) * 5,
        lambda x: (x[0] - x[1]) ** 2 + (x[1] + x[2] - 2) ** 2 + (x[3] - 1) ** 2 + (x[4] - 1) ** 2,
        176 / 43,
        box([-10.0] * 5, [10.0] * 5),
        LINES,
    ),
    Problem(
        "HS77",
        (2.0,) * 5,
        lambda x: (
            (x[0] - 1) ** 2
            + (x[0] - x[1]) ** 2
            + (x[2] - 1) ** 2
            + (x[3] - 1) ** 4
            + (x[4] - 1) ** 6
        ),
        0.24150513,
        equal=vector(
            lambda a, b, c, d, e: a**2 * d + torch.sin(d - e) - 2 * ROOT2,
            lambda a, b, c, d, e: b + c**4 * d**2 - 8 - ROOT2,
        ),
    ),
    Problem("HS78", (-2.0, 1.5, 2.0, -1.0, -1.0), lambda x: x.prod(), -2.91970041, equal=CURVES),
    Problem(
        "HS79",
        (2.0,) * 5,
        lambda x: (
            (x[0] - 1) ** 2
            + (x[0] - x[1]) ** 2
            + (x[1] - x[2]) ** 2
            + (x[2] - x[3]) ** 4
            + (x[3] - x[4]) ** 4
        ),
        0.0787768209,
        equal=vector(
            lambda a, b, c, d, e: a + b**2 + c**3 - 2 - 3 * ROOT2,
            lambda a, b, c, d, e: b - c**2 + d + 2 - 2 * ROOT2,
            lambda a, b, c, d, e: a * e - 2,
        ),
    ),
    Problem(
        "HS80",
        (-2.0, 2.0, 2.0, -1.0, -1.0),
        lambda x: x.prod().exp(),
        0.0539498478,
        box(*BOX80),
        CURVES,
    ),
    Problem(
        "HS81",
        (-2.0, 2.0, 2.0, -1.0, -1.0),
        lambda x: x.prod().exp() - 0.5 * (x[0] ** 3 + x[1] ** 3 + 1) ** 2,
        0.0539498478,
        box(*BOX80),
        CURVES,
    ),
]
