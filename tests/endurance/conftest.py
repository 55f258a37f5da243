"""What a service must bear for months: load with faults, bad input, idle and stalled clients."""

import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).parent.parent / "server"):
    sys.path.insert(0, str(folder))
