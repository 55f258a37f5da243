"""The extension table. Everything else about the package is in pyproject.toml.

The kernels are one source (``*.pxi`` and ``*.h``) compiled once per instruction-set tier; ``_cpu`` finds
out at run time which tiers the processor has, so it and ``_base`` must run anywhere.

``RONDEL_DEBUG=1`` turns Cython's own checks on and optimisation down.
"""

import glob
import os
import platform

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("RONDEL_DEBUG", "") not in ("", "0")
PACKAGE = "rondel.decoder.kernels"
FOLDER = "src/rondel/decoder/kernels"

# No -ffast-math in any form: it would change summation order, and at link time the denormal mode of the
# whole process. Contraction off keeps results the same wherever the compiler could fuse. -fwrapv is Python's
# own default, which a CFLAGS in the environment would take away.
COMMON = ["-fwrapv", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"]
COMMON += ["-O1", "-g", "-UNDEBUG"] if DEBUG else ["-O3", "-DNDEBUG"]
# The last three silence Cython's own output, not our headers.
WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Wno-unused-function",
    "-Wno-unused-parameter",
    "-Wno-missing-field-initializers",
]

X86_64 = ["-march=x86-64"]
V3 = ["-march=x86-64-v3"]
V4 = ["-march=x86-64-v4", "-mprefer-vector-width=512"]
TIERS = {"_cpu": [], "_pool": [], "_base": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    TIERS = {
        "_cpu": X86_64,
        "_pool": X86_64,
        "_base": X86_64,
        "_v3": V3,
        "_v4": V4,
        "_v4vnni": [*V4, "-mavx512vnni"],
        "_v4amx": [*V4, "-mavx512vnni", "-mamx-tile", "-mamx-int8"],
    }

DIRECTIVES = {
    "language_level": 3,
    "embedsignature": True,
    "cdivision": True,
    "boundscheck": DEBUG,
    "wraparound": DEBUG,
    "initializedcheck": DEBUG,
    "nonecheck": DEBUG,
}

EXTENSIONS = [
    Extension(
        f"{PACKAGE}.{name}",
        [f"{FOLDER}/{name}.pyx"],
        depends=sorted(glob.glob(f"{FOLDER}/*.h") + glob.glob(f"{FOLDER}/*.pxi")),
        extra_compile_args=COMMON + WARNINGS + flags,
    )
    for name, flags in TIERS.items()
]

setup(
    # Forced, both steps: timestamps do not know that flags or directives have changed, and a stale
    # object costs more than compiling five small files.
    ext_modules=cythonize(EXTENSIONS, build_dir="build", compiler_directives=DIRECTIVES, force=True),
    options={"build_ext": {"parallel": min(2, os.cpu_count() or 1), "force": True}},
)
