# One tier: the shared kernel source, compiled with this module's flags (setup.py).
include "tier.pxi"
