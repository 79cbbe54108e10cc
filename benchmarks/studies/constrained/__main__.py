"""Print how the examples end: `python -m benchmarks.studies.constrained`."""

import torch

from benchmarks.studies.constrained.gallery import table

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table(), end="")
