"""The problems: the half on which constants may be chosen, and the half that only reports.

The halves were named before the first run of either.
"""

from __future__ import annotations

from benchmarks.studies.auto.choose import Budget, Gates, Knapsack, Portfolio, Stock
from benchmarks.studies.auto.classify import (
    Fairness,
    FairnessBatches,
    GroupRecall,
    InactiveBatches,
    NeymanPearson,
    Recall,
    RecallBatches,
)
from benchmarks.studies.auto.fit import L1, Ball, GroupLosses, Inactive, Physics
from benchmarks.studies.auto.forgetting import Forget
from benchmarks.studies.auto.policies import Kl, MaximumEntropy, Rate, SafePolicy
from benchmarks.studies.auto.problem import Problem

SEARCH: tuple[type[Problem], ...] = (
    Fairness,
    Recall,
    Budget,
    Ball,
    Portfolio,
    GroupRecall,
    Physics,
    NeymanPearson,
    FairnessBatches,
    InactiveBatches,
    Forget,
)
REPORT: tuple[type[Problem], ...] = (
    L1,
    Kl,
    MaximumEntropy,
    Knapsack,
    Gates,
    SafePolicy,
    Rate,
    GroupLosses,
    Inactive,
    RecallBatches,
    Stock,
)
SUITE = REPORT + SEARCH
