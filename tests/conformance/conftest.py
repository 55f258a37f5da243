"""The tool's modules, and the helpers ``drawn.py`` and ``operator_loops.py``: nothing else finds them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[2] / "conformance"), str(Path(__file__).parent)]
