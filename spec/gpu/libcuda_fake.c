/* SPDX-License-Identifier: Apache-2.0
 *
 * libcuda_fake.c - a library with the names of CUDA's driver, for machines
 * without a GPU (PERIGEE_CUDA_LIBRARY). It shows two devices. Their memory is
 * in memfds whose pages the CPU must not touch; streams are threads, which copy
 * late and in order. What real CUDA leaves undefined ends the process with a
 * sentence.
 *
 * It cannot tell whether our declarations are those of the real driver: make
 * check-cuda-headers does that, and `./check gpu` of a bundle on a real one.
 *
 * FAKE_CUDA sets it, as in "devices=0 slow=500 fail=cuMemCreate@3:2":
 *
 *   devices=N       shows N devices (2)
 *   version=N       is driver N, as in 12040
 *   slow=US         each copy of a stream takes so long, and its time (20)
 *   fail=NAME@N:E   call number N of a function, from 1, returns error E (2).
 *                   NAME is that of the base; stream@N:E: operation number N of
 *                   any stream breaks the device: all later calls return E
 *   no=NAME         the driver has no such function
 *   without=N       devices have attribute N not
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "memory/cuda/driver.h"

#define EXPORT __attribute__((visibility("default")))

enum { DEVICES = 8, RANGES = 8192, UNIT = 2 << 20, STACK = 16, BROKEN = 700 };

__attribute__((format(printf, 1, 2), noreturn)) static void
fatal(const char *format, ...) {
  va_list list;
  va_start(list, format);
  fprintf(stderr, "fake CUDA: ");
  vfprintf(stderr, format, list);
  fprintf(stderr, "\n");
  va_end(list);
  abort();
}

/* ---- Settings -------------------------------------------------------------
 * */

static struct {
  bool read;
  int devices, version, without;
  long slow;
  char fail[64], no[64];
  int fail_at, fail_with;
} set = {.devices = 2, .version = 12040, .slow = 20, .fail_with = 2};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t initialized_by;
static int broken; /* the error of a broken device */

static void setting(const char *word) {
  sscanf(word, "devices=%d", &set.devices);
  sscanf(word, "version=%d", &set.version);
  sscanf(word, "slow=%ld", &set.slow);
  sscanf(word, "without=%d", &set.without);
  sscanf(word, "no=%63s", set.no);
  sscanf(word, "fail=%63[^@]@%d:%d", set.fail, &set.fail_at, &set.fail_with);
}

/* Tests in C set it while they run. */
EXPORT void fake_cuda_set(const char *word);
EXPORT void fake_cuda_set(const char *word) {
  pthread_mutex_lock(&lock);
  setting(word);
  pthread_mutex_unlock(&lock);
}

static void settings_read(void) {
  char text[512], *rest = text;
  const char *given = getenv("FAKE_CUDA");
  if (set.read)
    return;
  set.read = true;
  snprintf(text, sizeof text, "%s", given ? given : "");
  for (char *word; (word = strsep(&rest, " "));)
    setting(word);
}

/* Returns the error that this call is to have, by the script. */
static CUresult failing(const char *name) {
  pthread_mutex_lock(&lock);
  settings_read();
  CUresult result = broken;
  if (strcmp(set.fail, name) == 0 && set.fail_at > 0 && --set.fail_at == 0)
    result = set.fail_with;
  pthread_mutex_unlock(&lock);
  return result;
}

#define BEGIN(name)                                                            \
  do {                                                                         \
    CUresult scripted = failing(name);                                         \
    if (scripted != CUDA_SUCCESS)                                              \
      return scripted;                                                         \
  } while (0)

/* ---- Contexts -------------------------------------------------------------
 * */

struct CUctx_st {
  CUdevice device;
  int retained;
};
static struct CUctx_st contexts[DEVICES];
static __thread CUcontext stack[STACK];
static __thread int depth;

static CUcontext current(const char *what) {
  if (initialized_by != getpid())
    fatal("%s before cuInit, or in a child of the process that called it",
          what);
  if (depth == 0)
    fatal("%s without a current context", what);
  if (stack[depth - 1]->retained == 0)
    fatal("%s in a context that was released", what);
  return stack[depth - 1];
}

EXPORT CUresult cuInit(unsigned flags);
EXPORT CUresult cuInit(unsigned flags) {
  BEGIN("cuInit");
  if (flags != 0)
    return 1;
  if (set.devices == 0)
    return CUDA_ERROR_NO_DEVICE;
  initialized_by = getpid();
  for (int i = 0; i < DEVICES; i++)
    contexts[i].device = i;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version);
EXPORT CUresult cuDriverGetVersion(int *version) {
  settings_read();
  *version = set.version;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **name);
EXPORT CUresult cuGetErrorName(CUresult error, const char **name) {
  *name = error == 2        ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == 100    ? "CUDA_ERROR_NO_DEVICE"
          : error == BROKEN ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : error == 1      ? "CUDA_ERROR_INVALID_VALUE"
          : error < 1000    ? "CUDA_ERROR_OF_THE_FAKE"
                            : NULL;
  return *name ? CUDA_SUCCESS : 1;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text);
EXPORT CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error == 2 ? "out of memory" : "as the script of the fake says";
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count);
EXPORT CUresult cuDeviceGetCount(int *count) {
  BEGIN("cuDeviceGetCount");
  *count = set.devices;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal);
EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  BEGIN("cuDeviceGet");
  if (ordinal < 0 || ordinal >= set.devices)
    return 101;
  *device = ordinal;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice d);
EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice d) {
  BEGIN("cuDeviceGetAttribute");
  if (d < 0 || d >= set.devices)
    return 101;
  *value = attribute == CU_DEVICE_ATTRIBUTE_MAX_PITCH ? 0x7fffffff : 1;
  if (attribute == set.without)
    *value = 0;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice d);
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice d) {
  BEGIN("cuDevicePrimaryCtxRetain");
  pthread_mutex_lock(&lock);
  contexts[d].retained++;
  pthread_mutex_unlock(&lock);
  *context = &contexts[d];
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d);
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d) {
  pthread_mutex_lock(&lock);
  if (contexts[d].retained-- == 0)
    fatal("the context of device %d was released more often than retained", d);
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context);
EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
  CUresult scripted = failing("cuCtxPushCurrent");
  if (scripted != CUDA_SUCCESS && scripted != broken)
    return scripted; /* that of a broken device can be entered */
  if (!context || depth == STACK)
    fatal("a context that is NULL, or too many of them");
  stack[depth++] = context;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context);
EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context) {
  if (depth == 0)
    fatal("cuCtxPopCurrent without a current context");
  *context = stack[--depth];
  return CUDA_SUCCESS;
}

/* ---- Memory ---------------------------------------------------------------
 * */

/* Memory of a device, or pinned memory of the host. */
struct CUrange {
  uint8_t *base, *alias; /* as others see it, and as streams do */
  uint64_t size;
  int device;        /* -1: the host's */
  int busy;          /* operations of streams that name it */
  bool access, made; /* mapped with cuMemMap: may it be used? by cuMemAlloc? */
};
static struct CUrange ranges[RANGES];

static struct CUrange *range_of(CUdeviceptr at, uint64_t length) {
  const uint8_t *p = (const uint8_t *)(uintptr_t)at;
  for (int i = 0; i < RANGES; i++) {
    struct CUrange *r = &ranges[i];
    if (r->base && p >= r->base && p < r->base + r->size) {
      if (length > r->size - (uint64_t)(p - r->base))
        fatal("%llu bytes at %p go beyond an allocation of %llu",
              (unsigned long long)length, (const void *)p,
              (unsigned long long)r->size);
      return r;
    }
  }
  return NULL;
}

static struct CUrange *range_new(void) {
  for (int i = 0; i < RANGES; i++)
    if (!ranges[i].base)
      return &ranges[i];
  fatal("too many allocations");
}

/* Maps memory at an address (NULL: any) for others, and for streams. */
static void range_map(struct CUrange *r, int fd, uint8_t *at, uint64_t size,
                      int device) {
  int fixed = at ? MAP_FIXED : 0;
  uint8_t *base = mmap(at, size, PROT_NONE, MAP_SHARED | fixed, fd, 0);
  uint8_t *alias = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED || alias == MAP_FAILED)
    fatal("no memory");
  *r = (struct CUrange){base, alias, size, device, 0, true, false};
}

static void range_end(struct CUrange *r, const char *what) {
  if (r->busy > 0)
    fatal("%s of memory that a stream is copying", what);
  munmap(r->alias, r->size);
  *r = (struct CUrange){0};
}

static int file_of(uint64_t size) {
  int fd = memfd_create("fake cuda", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, (off_t)size) != 0)
    fatal("no memory: %s", strerror(errno));
  return fd;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
  CUcontext c = current("cuMemAlloc");
  BEGIN("cuMemAlloc");
  uint64_t size = (bytes + 4095) & ~(uint64_t)4095;
  int fd = file_of(size);
  pthread_mutex_lock(&lock);
  struct CUrange *r = range_new();
  range_map(r, fd, NULL, size, c->device);
  r->made = true;
  /* What was there before is seen until somebody writes. */
  memset(r->alias, 0xa5, size);
  *pointer = (CUdeviceptr)(uintptr_t)r->base;
  pthread_mutex_unlock(&lock);
  close(fd);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer);
EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
  current("cuMemFree");
  pthread_mutex_lock(&lock);
  struct CUrange *r = range_of(pointer, 0);
  if (!r || !r->made || (CUdeviceptr)(uintptr_t)r->base != pointer)
    fatal("cuMemFree of what cuMemAlloc did not give");
  munmap(r->base, r->size);
  range_end(r, "cuMemFree");
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags);
EXPORT CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
  current("cuMemHostAlloc");
  BEGIN("cuMemHostAlloc");
  if (flags & ~7u)
    return 1;
  uint8_t *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&lock);
  *range_new() = (struct CUrange){at, at, bytes, -1, 0, true, false};
  pthread_mutex_unlock(&lock);
  *pointer = at;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFreeHost(void *pointer);
EXPORT CUresult cuMemFreeHost(void *pointer) {
  current("cuMemFreeHost");
  pthread_mutex_lock(&lock);
  struct CUrange *r = range_of((CUdeviceptr)(uintptr_t)pointer, 0);
  if (!r || r->device >= 0 || r->base != pointer)
    fatal("cuMemFreeHost of what cuMemHostAlloc did not give");
  range_end(r, "cuMemFreeHost");
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *pointer,
                                             unsigned flags);
EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *pointer,
                                             unsigned flags) {
  BEGIN("cuMemHostGetDevicePointer");
  *device = (CUdeviceptr)(uintptr_t)pointer;
  return flags ? 1 : CUDA_SUCCESS;
}

/* ---- Virtual memory -------------------------------------------------------
 * */

struct made {
  int fd, users;
  uint64_t size;
  int device;
};

static bool whole(uint64_t size) {
  return size > 0 && size % UNIT == 0;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity,
                                              const CUmemAllocationProp *prop,
                                              int option);
EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity,
                                              const CUmemAllocationProp *prop,
                                              int option) {
  BEGIN("cuMemGetAllocationGranularity");
  *granularity = UNIT;
  return prop->type == 1 && option == 0 ? CUDA_SUCCESS : 1;
}

static void made_drop(struct made *m) {
  if (--m->users > 0)
    return;
  close(m->fd);
  free(m);
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                            const CUmemAllocationProp *prop,
                            unsigned long long flags);
EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                            const CUmemAllocationProp *prop,
                            unsigned long long flags) {
  BEGIN("cuMemCreate");
  if (!whole(size) || flags || prop->type != 1 || prop->location.type != 1 ||
      prop->location.id < 0 || prop->location.id >= set.devices)
    return 1;
  struct made *m = malloc(sizeof *m);
  if (!m)
    fatal("no memory");
  *m = (struct made){file_of(size), 1, size, prop->location.id};
  *handle = (CUmemGenericAllocationHandle)(uintptr_t)m;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  made_drop((struct made *)(uintptr_t)handle);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size,
                                    size_t alignment, CUdeviceptr address,
                                    unsigned long long flags);
EXPORT CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size,
                                    size_t alignment, CUdeviceptr address,
                                    unsigned long long flags) {
  BEGIN("cuMemAddressReserve");
  if (!whole(size) || alignment || address || flags)
    return 1;
  void *at = mmap(NULL, size, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *pointer = (CUdeviceptr)(uintptr_t)at;
  return at == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size);
EXPORT CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size) {
  pthread_mutex_lock(&lock);
  if (range_of(pointer, 0))
    fatal("cuMemAddressFree of addresses that are mapped");
  pthread_mutex_unlock(&lock);
  munmap((void *)(uintptr_t)pointer, size);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset,
                         CUmemGenericAllocationHandle handle,
                         unsigned long long flags);
EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset,
                         CUmemGenericAllocationHandle handle,
                         unsigned long long flags) {
  BEGIN("cuMemMap");
  struct made *m = (struct made *)(uintptr_t)handle;
  if (size != m->size || offset || flags)
    return 1;
  pthread_mutex_lock(&lock);
  struct CUrange *r = range_new();
  range_map(r, m->fd, (uint8_t *)(uintptr_t)pointer, size, m->device);
  r->access = false;
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t size);
EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t size) {
  pthread_mutex_lock(&lock);
  struct CUrange *r = range_of(pointer, size);
  if (!r || r->made || r->size != size)
    fatal("cuMemUnmap of what is not mapped");
  range_end(r, "cuMemUnmap");
  pthread_mutex_unlock(&lock);
  mmap((void *)(uintptr_t)pointer, size, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size,
                               const CUmemAccessDesc *list, size_t count);
EXPORT CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size,
                               const CUmemAccessDesc *list, size_t count) {
  BEGIN("cuMemSetAccess");
  pthread_mutex_lock(&lock);
  struct CUrange *r = range_of(pointer, size);
  if (!r || count < 1 || list[0].flags != 3)
    fatal("cuMemSetAccess of what is not mapped, or for nobody");
  r->access = true;
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttributes(unsigned count, int *attributes,
                                       void **data, CUdeviceptr pointer);
EXPORT CUresult cuPointerGetAttributes(unsigned count, int *attributes,
                                       void **data, CUdeviceptr pointer) {
  BEGIN("cuPointerGetAttributes");
  pthread_mutex_lock(&lock);
  const struct CUrange *r = range_of(pointer, 0);
  for (unsigned i = 0; i < count; i++) {
    if (attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
      *(uint32_t *)data[i] = !r ? 0 : r->device < 0 ? 1 : 2;
    else if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
      *(int *)data[i] = r ? r->device : -2;
    else if (attributes[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED)
      *(uint8_t *)data[i] = 0;
    else
      fatal("an attribute %d that it does not know", attributes[i]);
  }
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}

/* ---- Streams --------------------------------------------------------------
 * */

/* Rows of bytes that are copied; or set, without a `from`; or a word. */
struct work {
  struct work *next;
  uint8_t *to;
  const uint8_t *from;
  uint64_t width, height, to_pitch, from_pitch, word;
  uint8_t value;
  bool is_word;
  bool is_peer; /* of cuMemcpyPeerAsync, which names both devices */
  struct CUrange *ranges[2];
};

struct CUstream_st {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  struct work *first, **last;
  CUcontext context;
  bool working, ends;
};

static void work_do(const struct work *w) {
  for (uint64_t i = 0; i < w->height && !w->is_word; i++)
    if (w->from)
      memcpy(w->to + i * w->to_pitch, w->from + i * w->from_pitch, w->width);
    else
      memset(w->to + i * w->to_pitch, w->value, w->width);
  if (w->is_word)
    atomic_store_explicit((_Atomic uint64_t *)(void *)w->to, w->word,
                          memory_order_release);
}

static bool work_breaks(void) {
  pthread_mutex_lock(&lock);
  if (strcmp(set.fail, "stream") == 0 && set.fail_at > 0 && --set.fail_at == 0)
    broken = set.fail_with;
  bool is = broken != CUDA_SUCCESS;
  pthread_mutex_unlock(&lock);
  return is;
}

static void work_end(struct work *w) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < 2; i++)
    if (w->ranges[i])
      w->ranges[i]->busy--;
  pthread_mutex_unlock(&lock);
  free(w);
}

static void *stream_run(void *given) {
  CUstream s = given;
  struct timespec pause = {0, set.slow * 1000};
  prctl(PR_SET_TIMERSLACK, 1);
  pthread_mutex_lock(&s->lock);
  for (;;) {
    while (!s->first && !s->ends)
      pthread_cond_wait(&s->changed, &s->lock);
    struct work *w = s->first;
    if (!w)
      break;
    if (!(s->first = w->next))
      s->last = &s->first;
    s->working = true;
    pthread_mutex_unlock(&s->lock);
    if (!w->is_word)
      nanosleep(&pause, NULL);
    if (!work_breaks())
      work_do(w);
    work_end(w);
    pthread_mutex_lock(&s->lock);
    s->working = false;
    pthread_cond_broadcast(&s->changed);
  }
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

static void stream_await(CUstream s) {
  pthread_mutex_lock(&s->lock);
  while (s->first || s->working)
    pthread_cond_wait(&s->changed, &s->lock);
  pthread_mutex_unlock(&s->lock);
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags);
EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
  CUcontext c = current("cuStreamCreate");
  BEGIN("cuStreamCreate");
  if (flags & ~1u)
    return 1;
  CUstream s = calloc(1, sizeof *s);
  if (!s)
    fatal("no memory");
  s->context = c;
  s->last = &s->first;
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->changed, NULL);
  if (pthread_create(&s->thread, NULL, stream_run, s) != 0)
    fatal("no thread");
  *stream = s;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy_v2(CUstream s);
EXPORT CUresult cuStreamDestroy_v2(CUstream s) {
  pthread_mutex_lock(&s->lock);
  if (s->first || s->working)
    fatal("cuStreamDestroy of a stream that is at work");
  s->ends = true;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
  pthread_join(s->thread, NULL);
  pthread_mutex_destroy(&s->lock);
  pthread_cond_destroy(&s->changed);
  free(s);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream s);
EXPORT CUresult cuStreamSynchronize(CUstream s) {
  stream_await(s);
  BEGIN("cuStreamSynchronize");
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamQuery(CUstream s);
EXPORT CUresult cuStreamQuery(CUstream s) {
  BEGIN("cuStreamQuery");
  pthread_mutex_lock(&s->lock);
  bool busy = s->first || s->working;
  pthread_mutex_unlock(&s->lock);
  return busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

/* Finds the memory that work names, as streams see it. Host memory that was not
 * pinned may be gone or change before the stream gets there. */
static uint8_t *work_place(struct work *w, int i, CUdeviceptr at,
                           uint64_t bytes, CUdevice device) {
  struct CUrange *r = range_of(at, bytes);
  if (!r)
    fatal("a stream is given %llu bytes at %#llx, which is neither memory of a "
          "device nor pinned",
          (unsigned long long)bytes, at);
  if (!r->access)
    fatal("a copy of memory that cuMemSetAccess has not allowed");
  if (r->device >= 0 && !r->made && r->device != device && !w->is_peer)
    fatal("device %d copies memory that cuMemSetAccess has allowed to device "
          "%d only",
          device, r->device);
  r->busy++;
  w->ranges[i] = r;
  return r->alias + ((uint8_t *)(uintptr_t)at - r->base);
}

static uint64_t work_span(uint64_t width, uint64_t height, uint64_t pitch) {
  return height == 0 ? 0 : (height - 1) * pitch + width;
}

static CUresult work_give(CUstream s, const struct work *of, CUdeviceptr to,
                          CUdeviceptr from) {
  if (!s || current("work of a stream") != s->context)
    fatal("a stream of another context than the current one, or of none");
  struct work *w = malloc(sizeof *w);
  if (!w)
    fatal("no memory");
  *w = *of;
  pthread_mutex_lock(&lock);
  CUdevice device = s->context->device;
  w->to =
      work_place(w, 0, to, work_span(w->width, w->height, w->to_pitch), device);
  if (from)
    w->from = work_place(w, 1, from,
                         work_span(w->width, w->height, w->from_pitch), device);
  pthread_mutex_unlock(&lock);
  pthread_mutex_lock(&s->lock);
  *s->last = w;
  s->last = &w->next;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                              CUstream s);
EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                              CUstream s) {
  BEGIN("cuMemcpyAsync");
  return work_give(s, &(struct work){.width = bytes, .height = 1}, to, from);
}

EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context,
                                  CUdeviceptr from, CUcontext from_context,
                                  size_t bytes, CUstream s);
EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context,
                                  CUdeviceptr from, CUcontext from_context,
                                  size_t bytes, CUstream s) {
  BEGIN("cuMemcpyPeerAsync");
  pthread_mutex_lock(&lock);
  const struct CUrange *there = range_of(to, bytes),
                       *here = range_of(from, bytes);
  if (!there || there->device != to_context->device || !here ||
      here->device != from_context->device)
    fatal("cuMemcpyPeerAsync of memory of another device than it names");
  pthread_mutex_unlock(&lock);
  return work_give(s,
                   &(struct work){.width = bytes, .height = 1, .is_peer = true},
                   to, from);
}

EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *c, CUstream s);
EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *c, CUstream s) {
  BEGIN("cuMemcpy2DAsync");
  if (c->srcMemoryType != CU_MEMORYTYPE_UNIFIED ||
      c->dstMemoryType != CU_MEMORYTYPE_UNIFIED || c->srcXInBytes ||
      c->dstXInBytes || c->srcY || c->dstY || c->srcArray || c->dstArray ||
      c->srcPitch < c->WidthInBytes || c->dstPitch < c->WidthInBytes ||
      c->srcPitch > 0x7fffffff || c->dstPitch > 0x7fffffff)
    return 1;
  return work_give(s,
                   &(struct work){.width = c->WidthInBytes,
                                  .height = c->Height,
                                  .to_pitch = c->dstPitch,
                                  .from_pitch = c->srcPitch},
                   c->dstDevice, c->srcDevice);
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value,
                                size_t bytes, CUstream s);
EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value,
                                size_t bytes, CUstream s) {
  BEGIN("cuMemsetD8Async");
  return work_give(
      s, &(struct work){.width = bytes, .height = 1, .value = value}, to, 0);
}

EXPORT CUresult cuStreamWriteValue64_v2(CUstream s, CUdeviceptr at,
                                        uint64_t value, unsigned flags);
EXPORT CUresult cuStreamWriteValue64_v2(CUstream s, CUdeviceptr at,
                                        uint64_t value, unsigned flags) {
  BEGIN("cuStreamWriteValue64");
  if (at % 8 || flags)
    return 1;
  return work_give(
      s,
      &(struct work){.width = 8, .height = 1, .word = value, .is_word = true},
      at, 0);
}

/* ---- Functions by name ----------------------------------------------------
 * */

/* The exports of 32 bits, which nobody may call. */
#define OLD(name)                                                              \
  EXPORT CUresult name(void);                                                  \
  EXPORT CUresult name(void) {                                                 \
    fatal(#name " of 32 bits was called");                                     \
  }
OLD(cuMemAlloc)
OLD(cuMemFree)
OLD(cuMemHostGetDevicePointer)
OLD(cuMemcpy2DAsync)
OLD(cuMemsetD8Async_ptds)

struct named {
  const char *name;
  int version;
  void *function;
};

#define NAMED(name, version, function)                                         \
#name, version, (void *)(uintptr_t)(function)
static const struct named *all_named(void) {
  static const struct named list[] = {
      {NAMED(cuInit, 2000, cuInit)},
      {NAMED(cuDriverGetVersion, 2020, cuDriverGetVersion)},
      {NAMED(cuGetErrorName, 6000, cuGetErrorName)},
      {NAMED(cuGetErrorString, 6000, cuGetErrorString)},
      {NAMED(cuDeviceGetCount, 2000, cuDeviceGetCount)},
      {NAMED(cuDeviceGet, 2000, cuDeviceGet)},
      {NAMED(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute)},
      {NAMED(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain)},
      {NAMED(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2)},
      {NAMED(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2)},
      {NAMED(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2)},
      {NAMED(cuMemAlloc, 2000, cuMemAlloc)},
      {NAMED(cuMemAlloc, 3020, cuMemAlloc_v2)},
      {NAMED(cuMemFree, 2000, cuMemFree)},
      {NAMED(cuMemFree, 3020, cuMemFree_v2)},
      {NAMED(cuMemHostAlloc, 2020, cuMemHostAlloc)},
      {NAMED(cuMemFreeHost, 2000, cuMemFreeHost)},
      {NAMED(cuMemHostGetDevicePointer, 2020, cuMemHostGetDevicePointer)},
      {NAMED(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2)},
      {NAMED(cuMemGetAllocationGranularity, 10020,
             cuMemGetAllocationGranularity)},
      {NAMED(cuMemCreate, 10020, cuMemCreate)},
      {NAMED(cuMemRelease, 10020, cuMemRelease)},
      {NAMED(cuMemAddressReserve, 10020, cuMemAddressReserve)},
      {NAMED(cuMemAddressFree, 10020, cuMemAddressFree)},
      {NAMED(cuMemMap, 10020, cuMemMap)},
      {NAMED(cuMemUnmap, 10020, cuMemUnmap)},
      {NAMED(cuMemSetAccess, 10020, cuMemSetAccess)},
      {NAMED(cuMemcpyAsync, 4000, cuMemcpyAsync)},
      {NAMED(cuMemcpyPeerAsync, 4000, cuMemcpyPeerAsync)},
      {NAMED(cuMemcpy2DAsync, 3000, cuMemcpy2DAsync)},
      {NAMED(cuMemcpy2DAsync, 3020, cuMemcpy2DAsync_v2)},
      {NAMED(cuMemsetD8Async, 3020, cuMemsetD8Async)},
      {NAMED(cuPointerGetAttributes, 7000, cuPointerGetAttributes)},
      {NAMED(cuStreamCreate, 2000, cuStreamCreate)},
      {NAMED(cuStreamDestroy, 4000, cuStreamDestroy_v2)},
      {NAMED(cuStreamSynchronize, 2000, cuStreamSynchronize)},
      {NAMED(cuStreamQuery, 2000, cuStreamQuery)},
      {NAMED(cuStreamWriteValue64, 11070, cuStreamWriteValue64_v2)},
      {0}};
  return list;
}

/* The newest that is not newer than was asked for. A driver of 12.0 and later
 * gives NULL for what it does not have. */
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function,
                                    int version, uint64_t flags, int *status);
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function,
                                    int version, uint64_t flags, int *status) {
  settings_read();
  if (flags || version > set.version)
    return 1;
  *function = NULL;
  if (strcmp(name, set.no) != 0)
    for (const struct named *n = all_named(); n->name; n++)
      if (strcmp(n->name, name) == 0 && n->version <= version)
        *function = n->function;
  if (status)
    *status = *function ? 0 : 1;
  return CUDA_SUCCESS;
}
