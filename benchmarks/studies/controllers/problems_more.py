"""More of Hock and Schittkowski's problems, to see how far one default carries.

Source: as in `problems.py`; numbers and starting points are theirs.
"""

import math

import torch
from torch import Tensor

from benchmarks.studies.controllers.problems import INF, Problem, box, vector
from benchmarks.studies.controllers.problems_many import MANY

ROOT2, ROOT3 = math.sqrt(2), math.sqrt(3)


def valley(x: Tensor) -> Tensor:
    """Rosenbrock's function."""
    return 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2


TWO = [
    Problem(
        "HS9",
        (0.0, 0.0),
        lambda x: torch.sin(math.pi * x[0] / 12) * torch.cos(math.pi * x[1] / 16),
        -0.5,
        equal=vector(lambda a, b: 4 * a - 3 * b),
    ),
    Problem(
        "HS15",
        (-2.0, 1.0),
        valley,
        306.5,
        box([-INF, -INF], [0.5, INF], lambda a, b: a * b - 1, lambda a, b: a + b**2),
    ),
    Problem(
        "HS16",
        (-2.0, 1.0),
        valley,
        0.25,
        box([-2.0, -INF], [0.5, 1.0], lambda a, b: a + b**2, lambda a, b: a**2 + b),
    ),
    Problem(
        "HS17",
        (-2.0, 1.0),
        valley,
        1.0,
        box([-0.5, -INF], [0.5, 1.0], lambda a, b: b**2 - a, lambda a, b: a**2 - b),
    ),
    Problem(
        "HS18",
        (2.0, 2.0),
        lambda x: 0.01 * x[0] ** 2 + x[1] ** 2,
        5.0,
        box([2.0, 0.0], [50.0, 50.0], lambda a, b: a * b - 25, lambda a, b: a**2 + b**2 - 25),
    ),
    Problem(
        "HS20",
        (-2.0, 1.0),
        valley,
        81.5 - 25 * ROOT3,
        box(
            [-0.5, -INF],
            [0.5, INF],
            lambda a, b: a + b**2,
            lambda a, b: a**2 + b,
            lambda a, b: a**2 + b**2 - 1,
        ),
    ),
    Problem(
        "HS23",
        (3.0, 1.0),
        lambda x: x.square().sum(),
        2.0,
        box(
            [-50.0, -50.0],
            [50.0, 50.0],
            lambda a, b: a + b - 1,
            lambda a, b: a**2 + b**2 - 1,
            lambda a, b: 9 * a**2 + b**2 - 9,
            lambda a, b: a**2 - b,
            lambda a, b: b**2 - a,
        ),
    ),
    Problem(
        "HS24",
        (1.0, 0.5),
        lambda x: ((x[0] - 3) ** 2 - 9) * x[1] ** 3 / (27 * ROOT3),
        -1.0,
        box(
            [0.0, 0.0],
            [INF, INF],
            lambda a, b: a / ROOT3 - b,
            lambda a, b: a + ROOT3 * b,
            lambda a, b: 6 - a - ROOT3 * b,
        ),
    ),
]

THREE = [
    Problem(
        "HS26",
        (-2.6, 2.0, 2.0),
        lambda x: (x[0] - x[1]) ** 2 + (x[1] - x[2]) ** 4,
        0.0,
        equal=vector(lambda a, b, c: (1 + b**2) * a + c**4 - 3),
    ),
    Problem(
        "HS29",
        (1.0, 1.0, 1.0),
        lambda x: -x.prod(),
        -16 * ROOT2,
        vector(lambda a, b, c: 48 - a**2 - 2 * b**2 - 4 * c**2),
    ),
    Problem(
        "HS30",
        (1.0, 1.0, 1.0),
        lambda x: x.square().sum(),
        1.0,
        box([1.0, -10.0, -10.0], [10.0] * 3, lambda a, b, c: a**2 + b**2 - 1),
    ),
    Problem(
        "HS31",
        (1.0, 1.0, 1.0),
        lambda x: 9 * x[0] ** 2 + x[1] ** 2 + 9 * x[2] ** 2,
        6.0,
        box([-10.0, 1.0, -10.0], [10.0, 10.0, 1.0], lambda a, b, c: a * b - 1),
    ),
    Problem(
        "HS32",
        (0.1, 0.7, 0.2),
        lambda x: (x[0] + 3 * x[1] + x[2]) ** 2 + 4 * (x[0] - x[1]) ** 2,
        1.0,
        box([0.0] * 3, [INF] * 3, lambda a, b, c: 6 * b + 4 * c - a**3 - 3),
        vector(lambda a, b, c: 1 - a - b - c),
    ),
    Problem(
        "HS33",
        (0.0, 0.0, 3.0),
        lambda x: (x[0] - 1) * (x[0] - 2) * (x[0] - 3) + x[2],
        ROOT2 - 6,
        box(
            [0.0] * 3,
            [INF, INF, 5.0],
            lambda a, b, c: c**2 - b**2 - a**2,
            lambda a, b, c: a**2 + b**2 + c**2 - 4,
        ),
    ),
    Problem(
        "HS34",
        (0.0, 1.05, 2.9),
        lambda x: -x[0],
        -math.log(math.log(10)),
        box(
            [0.0] * 3,
            [100.0, 100.0, 10.0],
            lambda a, b, c: b - a.exp(),
            lambda a, b, c: c - b.exp(),
        ),
    ),
    Problem(
        "HS36",
        (10.0, 10.0, 10.0),
        lambda x: -x.prod(),
        -3300.0,
        box([0.0] * 3, [20.0, 11.0, 42.0], lambda a, b, c: 72 - a - 2 * b - 2 * c),
    ),
    Problem(
        "HS37",
        (10.0, 10.0, 10.0),
        lambda x: -x.prod(),
        -3456.0,
        box(
            [0.0] * 3,
            [42.0] * 3,
            lambda a, b, c: 72 - a - 2 * b - 2 * c,
            lambda a, b, c: a + 2 * b + 2 * c,
        ),
    ),
    Problem(
        "HS60",
        (2.0, 2.0, 2.0),
        lambda x: (x[0] - 1) ** 2 + (x[0] - x[1]) ** 2 + (x[1] - x[2]) ** 4,
        0.03256820025,
        box([-10.0] * 3, [10.0] * 3),
        vector(lambda a, b, c: a * (1 + b**2) + c**4 - 4 - 3 * ROOT2),
    ),
    Problem(
        "HS61",
        (0.0, 0.0, 0.0),
        lambda x: 4 * x[0] ** 2 + 2 * x[1] ** 2 + 2 * x[2] ** 2 - 33 * x[0] + 16 * x[1] - 24 * x[2],
        -143.6461422,
        equal=vector(lambda a, b, c: 3 * a - 2 * b**2 - 7, lambda a, b, c: 4 * a - c**2 - 11),
    ),
    Problem(
        "HS63",
        (2.0, 2.0, 2.0),
        lambda x: 1000 - x[0] ** 2 - 2 * x[1] ** 2 - x[2] ** 2 - x[0] * x[1] - x[0] * x[2],
        961.7151721,
        box([0.0] * 3, [INF] * 3),
        vector(
            lambda a, b, c: 8 * a + 14 * b + 7 * c - 56, lambda a, b, c: a**2 + b**2 + c**2 - 25
        ),
    ),
    Problem(
        "HS64",
        (1.0, 1.0, 1.0),
        lambda x: 5 * x[0] + 50000 / x[0] + 20 * x[1] + 72000 / x[1] + 10 * x[2] + 144000 / x[2],
        6299.842428,
        box([1e-5] * 3, [INF] * 3, lambda a, b, c: 1 - 4 / a - 32 / b - 120 / c),
    ),
    Problem(
        "HS66",
        (0.0, 1.05, 2.9),
        lambda x: 0.2 * x[2] - 0.8 * x[0],
        0.5181632741,
        box(
            [0.0] * 3,
            [100.0, 100.0, 10.0],
            lambda a, b, c: b - a.exp(),
            lambda a, b, c: c - b.exp(),
        ),
    ),
]

MORE = [*TWO, *THREE, *MANY]
