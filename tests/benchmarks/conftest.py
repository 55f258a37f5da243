"""The benchmarks are scripts with modules beside them; nothing else puts those on the path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
