/* SPDX-License-Identifier: Apache-2.0
 *
 * libcuda_fake_modules.c - modules of the fake of CUDA's driver, and their one
 * kernel, perigee_copy: it is done in C, by a stream's thread. The text of the
 * kernel is only looked at; spec/native/cuda_kernel_test.c runs it.
 */
#include <stdlib.h>
#include <string.h>

#include "libcuda_fake.h"

enum { INVALID_PTX = 218, THREADS = 1024 };

struct CUfunc_st {
  CUmodule module;
};

struct CUmod_st {
  CUmodule next;
  CUcontext context;
  struct CUfunc_st function;
  int launched; /* kernels that have not ended */
};
static CUmodule modules;

/* ---- Modules --------------------------------------------------------------
 * */

static CUmodule module_is(CUmodule m, const char *what) {
  CUmodule known = modules;
  while (known && known != m)
    known = known->next;
  if (!known)
    fake_fatal("%s of a module that there is not", what);
  return m;
}

/* Has the entry the parameters with which the fake does it? */
static bool text_fits(const char *entry) {
  const char *end = strchr(entry, ')');
  const char *first = strstr(entry, ".param .u64 ");
  const char *second = first ? strstr(first, ".param .u32 ") : NULL;
  const char *third = second ? strstr(second + 1, ".param") : NULL;
  return end && second && second < end && (!third || third > end);
}

CUresult cuModuleLoadData(CUmodule *module, const void *text) {
  CUcontext c = fake_current("cuModuleLoadData");
  BEGIN_UNSAFE("cuModuleLoadData");
  fake_pause(&fake_set.compile);
  const char *entry = strstr(text, ".visible .entry perigee_copy(");
  if (strncmp(text, ".version ", 9) != 0 || !entry)
    return INVALID_PTX;
  if (!text_fits(entry))
    fake_fatal("cuModuleLoadData of a kernel with other parameters");
  CUmodule m = calloc(1, sizeof *m);
  if (!m)
    fake_fatal("no memory");
  pthread_mutex_lock(&fake_lock);
  *m = (struct CUmod_st){modules, c, {m}, 0};
  modules = m;
  pthread_mutex_unlock(&fake_lock);
  *module = m;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule m,
                             const char *name) {
  fake_current("cuModuleGetFunction");
  BEGIN("cuModuleGetFunction");
  pthread_mutex_lock(&fake_lock);
  module_is(m, "cuModuleGetFunction");
  pthread_mutex_unlock(&fake_lock);
  *function = &m->function;
  return strcmp(name, "perigee_copy") == 0 ? CUDA_SUCCESS : NOT_FOUND;
}

CUresult cuModuleUnload(CUmodule m) {
  CUcontext c = fake_current("cuModuleUnload");
  BEGIN("cuModuleUnload");
  pthread_mutex_lock(&fake_lock);
  if (module_is(m, "cuModuleUnload")->context != c)
    fake_fatal("cuModuleUnload in another context");
  if (m->launched > 0)
    fake_fatal("cuModuleUnload of a module whose kernel runs");
  CUmodule *at = &modules;
  while (*at != m)
    at = &(*at)->next;
  *at = m->next;
  pthread_mutex_unlock(&fake_lock);
  free(m);
  return CUDA_SUCCESS;
}

/* ---- The kernel -----------------------------------------------------------
 * */

struct entry {
  CUdeviceptr to, from;
  uint64_t bytes;
};

struct launch {
  struct task task; /* the first field */
  CUmodule module;
  uint32_t count;
  struct span table;
  const struct entry *now; /* as streams see it */
  struct entry *then;      /* what it was at the launch */
  struct launched {
    uint8_t *to;
    const uint8_t *from;
  } sides[];
};

static void launch_give_back(CUdeviceptr at, uint64_t bytes) {
  if (bytes > 0)
    fake_span_give((struct span){at, bytes});
}

static void launch_end(struct task *task) {
  struct launch *l = (struct launch *)task;
  for (uint32_t i = 0; i < l->count; i++) {
    launch_give_back(l->then[i].to, l->then[i].bytes);
    launch_give_back(l->then[i].from, l->then[i].bytes);
  }
  fake_span_give(l->table);
  l->module->launched--;
  free(l->then);
  free(l);
}

/* The kernel reads its table when it runs. */
static void launch_run(struct task *task) {
  struct launch *l = (struct launch *)task;
  fake_pause(&fake_set.kernel);
  if (memcmp(l->now, l->then, l->count * sizeof *l->then) != 0)
    fake_fatal("a table was written while a kernel was to read it");
  for (uint32_t i = l->count; i-- > 0;)
    if (l->then[i].bytes > 0)
      memcpy(l->sides[i].to, l->sides[i].from, l->then[i].bytes);
}

static void launch_check(const struct launch *l) {
  CUdeviceptr *sides = calloc(l->count, 2 * sizeof *sides);
  size_t *bytes = calloc(l->count, sizeof *bytes);
  if (!sides || !bytes)
    fake_fatal("no memory");
  for (uint32_t i = 0; i < l->count; i++) {
    sides[i] = l->then[i].to;
    sides[l->count + i] = l->then[i].from;
    bytes[i] = l->then[i].bytes;
  }
  fake_check_overlaps(sides, sides + l->count, bytes, l->count);
  free(sides);
  free(bytes);
}

/* Finds what the entries name, as streams see it. */
static void launch_place(struct launch *l, CUdevice device) {
  for (uint32_t i = 0; i < l->count; i++) {
    const struct entry *e = &l->then[i];
    if (e->bytes == 0)
      continue;
    l->sides[i].to =
        fake_span_take((struct span){e->to, e->bytes}, device, WRITES);
    l->sides[i].from =
        fake_span_take((struct span){e->from, e->bytes}, device, READS);
  }
}

static struct launch *launch_new(CUmodule m, CUdeviceptr table,
                                 uint32_t count) {
  struct launch *l = calloc(1, sizeof *l + count * sizeof *l->sides);
  struct entry *then = calloc(count, sizeof *then);
  if (!l || !then)
    fake_fatal("no memory");
  CUdevice device = m->context->device;
  *l = (struct launch){.task = {launch_run, launch_end},
                       .module = m,
                       .count = count,
                       .table = {table, count * sizeof *then},
                       .then = then};
  pthread_mutex_lock(&fake_lock);
  m->launched++;
  l->now =
      (const struct entry *)(void *)fake_span_take(l->table, device, READS);
  memcpy(then, l->now, count * sizeof *then);
  launch_place(l, device);
  pthread_mutex_unlock(&fake_lock);
  launch_check(l);
  return l;
}

/* A launch of other shape than one row of blocks, which are rows of threads,
 * would have the kernel do its work several times. */
static void shape_check(unsigned blocks, unsigned threads, unsigned others,
                        unsigned shared) {
  if (blocks == 0 || blocks > 0x7fffffff || threads == 0 || threads > THREADS)
    fake_fatal("cuLaunchKernel of %u blocks of %u threads", blocks, threads);
  if (others != 4 || shared > 0)
    fake_fatal("cuLaunchKernel of another shape than the kernel's");
}

static CUmodule module_of(CUfunction f) {
  CUmodule m = modules;
  while (m && &m->function != f)
    m = m->next;
  if (!m)
    fake_fatal("cuLaunchKernel of a function that there is not");
  return m;
}

CUresult cuLaunchKernel(CUfunction f, unsigned blocks, unsigned blocks_y,
                        unsigned blocks_z, unsigned threads, unsigned threads_y,
                        unsigned threads_z, unsigned shared, CUstream s,
                        void **arguments, void **extra) {
  CUcontext c = fake_current("cuLaunchKernel");
  BEGIN("cuLaunchKernel");
  pthread_mutex_lock(&fake_lock);
  CUmodule m = module_of(f);
  pthread_mutex_unlock(&fake_lock);
  fake_stream_check(s);
  if (m->context != c)
    fake_fatal("cuLaunchKernel of another context's function");
  shape_check(blocks, threads, blocks_y + blocks_z + threads_y + threads_z,
              shared);
  if (!arguments || !arguments[0] || !arguments[1] || extra)
    fake_fatal("cuLaunchKernel without the kernel's two arguments");
  CUdeviceptr table = *(CUdeviceptr *)arguments[0];
  uint32_t count = *(uint32_t *)arguments[1];
  if (count == 0 || table % 8)
    fake_fatal("cuLaunchKernel with no table, or one that is not aligned");
  COUNT("pieces", count);
  fake_stream_give(s, &launch_new(m, table, count)->task);
  return CUDA_SUCCESS;
}
