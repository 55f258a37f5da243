"""The shared helpers ``oracle.py`` and ``comparators.py``; importlib mode does not find them by itself."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
