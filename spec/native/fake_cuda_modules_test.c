/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_cuda_modules_test.c - modules and kernels of the fake of CUDA's driver
 * (spec/gpu/): what it takes, and that it ends a process which launches what a
 * device would not survive. Each test is a child with a fake of its own, and is
 * skipped unless PERIGEE_CUDA_LIBRARY names the fake, as make check-gpu does.
 */
#include <stdlib.h>
#include <string.h>

#include "support.h"

#include "fake_cuda.h"
#include "memory/cuda/cuda.h"

enum { PAGE = 4096, PLACES = 4 * PAGE, INVALID_PTX = 218, NOT_FOUND = 500 };

/* A kernel takes so long that the next call comes before its end. */
#define SLOW "kernel=100000"

static struct {
  CUmodule module;
  CUfunction function;
  struct piece *table; /* of four */
  CUdeviceptr from, to;
} k;

static CUdeviceptr allocated(size_t bytes) {
  CUdeviceptr at = 0;
  WORKS(gpu.d->cuMemAlloc(&at, bytes));
  return at;
}

/* Four pieces of other lengths, a page apart. */
static void kernel_set(void) {
  static const uint64_t bytes[] = {PAGE, 1, 1000, 0};
  WORKS(gpu.d->cuModuleLoadData(&k.module, kernel_text));
  WORKS(gpu.d->cuModuleGetFunction(&k.function, k.module, "perigee_copy"));
  k.table = (struct piece *)(void *)pinned_new(4 * sizeof *k.table);
  k.from = allocated(PLACES);
  k.to = allocated(PLACES);
  for (CUdeviceptr i = 0; i < 4; i++)
    k.table[i] =
        (struct piece){k.to + i * PAGE + i, k.from + i * PAGE, bytes[i]};
}

static CUresult launch(unsigned blocks, unsigned threads, uint32_t count) {
  CUdeviceptr table = address_of(k.table);
  void *arguments[] = {&table, &count};
  return gpu.d->cuLaunchKernel(k.function, blocks, 1, 1, threads, 1, 1, 0,
                               gpu.stream, arguments, NULL);
}

static void rest(void) {
  WORKS(gpu.d->cuStreamSynchronize(gpu.stream));
}

/* ---- What it takes -------------------------------------------------------- */

static void a_kernel_copies(void) {
  kernel_set();
  device_set(k.from, 7, PLACES);
  device_set(k.to, 1, PLACES);
  WORKS(launch(2, 32, 4));
  rest();
  device_same(k.to, 7, PAGE);
  device_same(k.to + PAGE, 1, 1);
  device_same(k.to + PAGE + 1, 7, 1);
  device_same(k.to + PAGE + 2, 1, PAGE);
  device_same(k.to + 2 * PAGE + 2, 7, 1000);
  device_same(k.to + 2 * PAGE + 1002, 1, PAGE);
  EQUAL(fake_count("cuLaunchKernel"), 1);
  EQUAL(fake_count("pieces"), 4);
  WORKS(gpu.d->cuModuleUnload(k.module));
}

static void what_is_no_text_is_refused(void) {
  CUmodule m;
  EQUAL(gpu.d->cuModuleLoadData(&m, ""), INVALID_PTX);
  EQUAL(gpu.d->cuModuleLoadData(&m, kernel_text + 1), INVALID_PTX);
  EQUAL(gpu.d->cuModuleLoadData(&m, ".version 6.0\n.target sm_50\n"),
        INVALID_PTX);
}

static void a_function_of_another_name_is_not_found(void) {
  kernel_set();
  EQUAL(gpu.d->cuModuleGetFunction(&k.function, k.module, "copy"), NOT_FOUND);
}

/* ---- What it does not survive --------------------------------------------- */

static void a_kernel_of_other_parameters(void) {
  CUmodule m;
  gpu.d->cuModuleLoadData(&m, ".version 6.0\n"
                              ".visible .entry perigee_copy(\n"
                              "  .param .u64 table\n"
                              ")\n{\n  .param .u32 other;\n}\n");
}

static void a_kernel_of_more_parameters(void) {
  CUmodule m;
  gpu.d->cuModuleLoadData(&m, ".version 6.0\n"
                              ".visible .entry perigee_copy(\n"
                              "  .param .u64 table,\n  .param .u32 count,\n"
                              "  .param .u32 other\n)\n{\n}\n");
}

static void a_module_without_a_context(void) {
  CUmodule m;
  CUcontext was;
  WORKS(gpu.d->cuCtxPopCurrent(&was));
  gpu.d->cuModuleLoadData(&m, kernel_text);
}

static void no_blocks(void) {
  kernel_set();
  launch(0, 32, 4);
}

static void too_many_threads(void) {
  kernel_set();
  launch(1, 1056, 4);
}

static void a_square_of_blocks(void) {
  uint32_t count = 4;
  kernel_set();
  void *arguments[] = {&k.from, &count};
  gpu.d->cuLaunchKernel(k.function, 1, 2, 1, 32, 1, 1, 0, gpu.stream, arguments,
                        NULL);
}

static void no_arguments(void) {
  kernel_set();
  gpu.d->cuLaunchKernel(k.function, 1, 1, 1, 32, 1, 1, 0, gpu.stream, NULL,
                        NULL);
}

static void an_empty_table(void) {
  kernel_set();
  launch(1, 32, 0);
}

static void a_function_that_is_none(void) {
  kernel_set();
  k.function = (CUfunction)(void *)&k;
  launch(1, 32, 4);
}

static void a_module_that_was_unloaded(void) {
  kernel_set();
  WORKS(gpu.d->cuModuleUnload(k.module));
  launch(1, 32, 4);
}

static void a_module_is_unloaded_during_its_kernel(void) {
  kernel_set();
  WORKS(launch(1, 32, 4));
  gpu.d->cuModuleUnload(k.module);
}

static void a_kernel_of_another_context(void) {
  kernel_set();
  WORKS(gpu.d->cuCtxPushCurrent(gpu.contexts[1]));
  WORKS(gpu.d->cuStreamCreate(&gpu.stream, 1));
  launch(1, 32, 4);
}

static void a_table_that_is_not_pinned(void) {
  kernel_set();
  k.table = calloc(4, sizeof *k.table);
  launch(1, 32, 4);
}

static void a_table_that_goes_beyond_its_memory(void) {
  kernel_set();
  k.table = (struct piece *)(void *)pinned_new(PAGE);
  launch(1, 32, PAGE / sizeof *k.table + 1);
}

static void a_table_is_written_too_early(void) {
  kernel_set();
  WORKS(launch(1, 32, 4));
  k.table[3].bytes = 5;
  rest();
}

static void a_piece_beyond_an_allocation(void) {
  kernel_set();
  k.table[2].from = k.from + PLACES - 999;
  launch(1, 32, 4);
}

static void a_piece_of_the_hosts_memory(void) {
  kernel_set();
  k.table[2].to = address_of(&k);
  launch(1, 32, 4);
}

static void a_piece_that_may_only_be_read(void) {
  struct virtual v = virtual_new(2 * MIB, 0);
  WORKS(virtual_allow(&v, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
  kernel_set();
  k.table[2].from = v.at;
  WORKS(launch(1, 32, 4));
  k.table[2].to = v.at;
  k.table[2].from = k.from;
  launch(1, 32, 3);
}

static void a_piece_without_access(void) {
  struct virtual v = virtual_new(2 * MIB, 1);
  WORKS(virtual_allow(&v, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  kernel_set();
  k.table[2].from = v.at;
  launch(1, 32, 4);
}

static void pieces_that_overlap(void) {
  kernel_set();
  k.table[2].to = k.to + PAGE - 1;
  launch(1, 32, 4);
}

static void memory_is_freed_during_a_kernel(void) {
  kernel_set();
  WORKS(launch(1, 32, 4));
  gpu.d->cuMemFree(k.from);
}

static void a_table_is_freed_during_a_kernel(void) {
  kernel_set();
  WORKS(launch(1, 32, 4));
  gpu.d->cuMemFreeHost(k.table);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CHILD("", a_kernel_copies, NULL),
      CHILD("", what_is_no_text_is_refused, NULL),
      CHILD("", a_function_of_another_name_is_not_found, NULL),
      CHILD("", a_kernel_of_other_parameters, "with other parameters"),
      CHILD("", a_kernel_of_more_parameters, "with other parameters"),
      CHILD("", a_module_without_a_context, "without a current context"),
      CHILD("", no_blocks, "0 blocks of 32 threads"),
      CHILD("", too_many_threads, "1 blocks of 1056 threads"),
      CHILD("", a_square_of_blocks, "another shape"),
      CHILD("", no_arguments, "without the kernel's two arguments"),
      CHILD("", an_empty_table, "with no table"),
      CHILD("", a_function_that_is_none, "a function that there is not"),
      CHILD("", a_module_that_was_unloaded, "a function that there is not"),
      CHILD(SLOW, a_module_is_unloaded_during_its_kernel, "whose kernel runs"),
      CHILD("", a_kernel_of_another_context, "another context's function"),
      CHILD("", a_table_that_is_not_pinned, "nor pinned"),
      CHILD("", a_table_that_goes_beyond_its_memory, "go beyond an allocation"),
      CHILD(SLOW, a_table_is_written_too_early, "a table was written"),
      CHILD("", a_piece_beyond_an_allocation, "go beyond an allocation"),
      CHILD("", a_piece_of_the_hosts_memory, "nor pinned"),
      CHILD("", a_piece_that_may_only_be_read, "may only read"),
      CHILD("", a_piece_without_access, "has not allowed"),
      CHILD("", pieces_that_overlap, "entries overlap"),
      CHILD(SLOW, memory_is_freed_during_a_kernel, "a stream is copying"),
      CHILD(SLOW, a_table_is_freed_during_a_kernel, "a stream is copying"),
  };
  return cmocka_run_group_tests_name("fake_cuda_modules", tests, NULL, NULL);
}
