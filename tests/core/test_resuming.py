"""With us around it, an optimizer resumes exactly where it does alone."""

from functools import partial
from pathlib import Path

import pytest

from tests.core import optimizers
from tests.core.optimizers import REPRESENTATIVES
from tests.core.resuming import resumes

# Their own checkpoints hold objects, or their own format is not torch's.
WITH_CODE = {"pytorch_optimizer.AdaShift", "pytorch_optimizer.GaLore"}
UNNAMED = {"pytorch_optimizer.Lookahead"}

everyone = pytest.mark.parametrize("name", [*optimizers.of_torch(), *REPRESENTATIVES])


@everyone
@pytest.mark.parametrize("wrapper", ["SAM", "SAUL"])
def test_resumes_from_a_file_exactly(name: str, wrapper: str, tmp_path: Path) -> None:
    if not name.startswith("torch."):
        pytest.importorskip("pytorch_optimizer")
    way = "memory" if name in WITH_CODE else "file"
    make = partial(optimizers.make, name)
    assert resumes(make, wrapper, way, str(tmp_path))


@everyone
def test_resumes_from_a_distributed_checkpoint_exactly(name: str, tmp_path: Path) -> None:
    if not name.startswith("torch."):
        pytest.importorskip("pytorch_optimizer")
    if name in UNNAMED:
        pytest.skip("torch.distributed.checkpoint cannot save it, with or without us around it")
    make = partial(optimizers.make, name)
    assert resumes(make, "SAUL", "distributed", str(tmp_path))


@pytest.mark.parametrize("name", ["torch.AdamW", "pytorch_optimizer.AdaBelief"])
@pytest.mark.parametrize("wrapper", ["SAM", "ReverseSAM"])
def test_a_single_wrapper_does_as_its_base_in_torchs_own_functions(
    name: str, wrapper: str, tmp_path: Path
) -> None:
    if not name.startswith("torch."):
        pytest.importorskip("pytorch_optimizer")
    make = partial(optimizers.make, name)
    assert resumes(make, "plain", "distributed", str(tmp_path))
    with pytest.warns(UserWarning, match=r"step\(\) with a gradient taken at theta"):
        assert resumes(make, wrapper, "distributed", str(tmp_path))  # torch steps it to begin with
