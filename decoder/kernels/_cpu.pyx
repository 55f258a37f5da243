# Which tiers this processor can run. Compiled for the baseline: importing it is safe anywhere.

cdef extern from *:
    """
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
        return __builtin_cpu_supports("avx512vnni") ? 3 : 2;
    #else
        return 0;
    #endif
    }
    """
    int rondel_cpu_level() noexcept nogil


def supported():
    return ("base", "v3", "v4", "v4vnni")[: rondel_cpu_level() + 1]
