/* kernels/weight.c as a processor without AVX-512 runs it, in place of the library's. */
#define __builtin_cpu_supports(feature) 0
#include "kernels/weight.c"
