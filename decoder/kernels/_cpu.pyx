# Which tiers this processor can run. Compiled for the baseline: importing it is safe anywhere.
#
# The matrix unit's registers are large, so Linux lets a process use them only after it has asked; a kernel or
# a container that refuses means that the tier is not there.

cdef extern from *:
    """
    #if defined(__x86_64__)
    #include <cpuid.h>
    #if defined(__linux__)
    #include <sys/syscall.h>
    #include <unistd.h>
    #endif

    static int rondel_amx_granted(void)
    {
    #if defined(__linux__)
        enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18, TILE = 1 << 24, INT8 = 1 << 25 };
        unsigned a, b, c, d;
        if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & TILE) == 0 || (d & INT8) == 0)
            return 0;
        return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
    #else
        return 0;
    #endif
    }
    #endif

    static int rondel_cpu_level(void)
    {
    #if defined(__x86_64__)
        __builtin_cpu_init();
        if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2"))
            return 0;
        if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw")
            || !__builtin_cpu_supports("avx512cd") || !__builtin_cpu_supports("avx512dq")
            || !__builtin_cpu_supports("avx512vl"))
            return 1;
        if (!__builtin_cpu_supports("avx512vnni"))
            return 2;
        return rondel_amx_granted() ? 4 : 3;
    #else
        return 0;
    #endif
    }
    """
    int rondel_cpu_level() noexcept nogil


def supported():
    return ("base", "v3", "v4", "v4vnni", "v4amx")[: rondel_cpu_level() + 1]
