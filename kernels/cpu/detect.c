#include "kernels/cpu/variant.h"

bool kern_cpu_has_baseline(void)
{
	return true;
}

/* GCC's test includes what the system saves on a context switch (XCR0). */
bool kern_cpu_has_avx2(void)
{
	__builtin_cpu_init();
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
	       __builtin_cpu_supports("f16c");
}

bool kern_cpu_has_avx512(void)
{
	return kern_cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
	       __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
	       __builtin_cpu_supports("avx512vl");
}

bool kern_cpu_has_avx512gfni(void)
{
	return kern_cpu_has_avx512() && __builtin_cpu_supports("avx512vbmi") &&
	       __builtin_cpu_supports("gfni");
}
