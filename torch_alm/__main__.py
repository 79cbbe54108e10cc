"""`python -m torch_alm` is the command `torch-alm`."""

import sys

from torch_alm.command import main

sys.exit(main())
