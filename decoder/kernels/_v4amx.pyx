# One tier: the shared kernel source, compiled with this module's flags (setup.py).
include "geometry.pxi"
include "store.pxi"
include "softmax.pxi"
include "block.pxi"
include "attend.pxi"
include "batch.pxi"
include "api.pxi"
include "bandwidth.pxi"
