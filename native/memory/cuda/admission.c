/* SPDX-License-Identifier: Apache-2.0
 *
 * admission.c - memory of GPUs that the program allocated: by cudaMalloc, by
 * torch, by CuPy. The driver tells which allocation an address lies in, and a
 * number of that allocation that it never gives again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

/* A tensor may lie in several allocations that are mapped side by side. */
static bool admission_covers(struct cuda *c, const uint8_t *pointer,
                             uint64_t length, CUdeviceptr *base, size_t *size) {
  CUdeviceptr first = (CUdeviceptr)(uintptr_t)pointer, next = first, at;
  size_t bytes;
  if (c->driver->cuMemGetAddressRange(base, size, first) != CUDA_SUCCESS)
    return false;
  for (at = *base, bytes = *size; next - first < length; next = at + bytes)
    if (c->driver->cuMemGetAddressRange(&at, &bytes, next) != CUDA_SUCCESS ||
        at + bytes <= next)
      return false;
  return true;
}

static bool admission_look(struct cuda *c, const uint8_t *pointer,
                           uint64_t length, struct allocation *a) {
  CUdeviceptr base = 0;
  size_t size = 0;
  if (cuda_enter(c) != CUDA_SUCCESS)
    return false;
  bool covers = admission_covers(c, pointer, length, &base, &size);
  cuda_leave(c);
  a->size = size;
  a->offset = (uintptr_t)pointer - base;
  a->whole = covers && length <= size - a->offset;
  a->number =
      cuda_pointer_has(c->driver, CU_POINTER_ATTRIBUTE_BUFFER_ID, pointer);
  return covers;
}

static int cuda_admit(const struct memory_context *context, uint8_t *pointer,
                      uint64_t length, void **handle,
                      char reason[MEMORY_REASON]) {
  struct cuda *c = context->own;
  if (cuda_pointer_has(c->driver, CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer) &
      0xff) {
    snprintf(reason, MEMORY_REASON,
             "memory that CUDA manages (cudaMallocManaged) is not registered, "
             "as it moves between host and device");
    return PERIGEE_INVALID;
  }
  struct allocation *a = cuda_allocation();
  if (!a)
    return PERIGEE_NO_MEMORY;
  a->admitted = true;
  if (!admission_look(c, pointer, length, a)) {
    snprintf(
        reason, MEMORY_REASON,
        a->size > 0
            ? "the allocation of the device ends before the %llu bytes do"
            : "the driver does not tell in which allocation the %llu bytes "
              "are",
        (unsigned long long)length);
    free(a);
    return PERIGEE_INVALID;
  }
  *handle = a;
  return PERIGEE_OK;
}

static bool cuda_valid(const struct memory_context *context,
                       const uint8_t *pointer, const void *handle) {
  const struct cuda *c = context->own;
  const struct allocation *a = handle;
  return cuda_pointer_has(c->driver, CU_POINTER_ATTRIBUTE_BUFFER_ID, pointer) ==
         a->number;
}

static void cuda_dismiss(const struct memory_context *context, void *handle) {
  (void)context;
  struct allocation *a = handle;
  cuda_forget_files(a);
  free(a);
}

const struct memory_admission cuda_admission = {
    .admit = cuda_admit,
    .valid = cuda_valid,
    .dismiss = cuda_dismiss,
};
