/* SPDX-License-Identifier: Apache-2.0
 *
 * headers.c - compares memory/cuda/driver.h with CUDA's own headers, by
 * compiling (make check-cuda-headers): numbers, places in structures, and of
 * each function the arguments and the exported name of the version that is
 * asked for. The files of memory/cuda/ are compiled with these headers, too.
 */
#include <cuda.h>
#include <cudaTypedefs.h>
#include <string.h>

/* Headers of 12 declare its newest export, and give it no macro. */
#if CUDA_VERSION < 13000
#define cuDeviceGetUuid cuDeviceGetUuid_v2
#endif

#include "memory/cuda/driver.h"

#define SAME_NUMBER(name, value) _Static_assert(name == value, #name);
CUDA_NUMBERS(SAME_NUMBER)

/* A macro of cuda.h gives a name its newest export. */
#define EXPANDED(name) TEXT(name)
#define TEXT(name) #name

static struct cuda_driver driver;

#define SAME_FUNCTION(name, version, exported, arguments)                      \
  {                                                                            \
    PFN_##name##_v##version f = NULL;                                          \
    driver.name = f;                                                           \
    _Static_assert(__builtin_strcmp(EXPANDED(name), exported) == 0, #name);    \
  }

void compare(void);
void compare(void) {
  CUDA_FUNCTIONS(SAME_FUNCTION)
#if CUDA_VERSION >= 12080 && CUDA_VERSION < 13000
  CUDA_LATER(SAME_FUNCTION)
#endif
}
