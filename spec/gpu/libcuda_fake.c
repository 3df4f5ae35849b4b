/* SPDX-License-Identifier: Apache-2.0
 *
 * libcuda_fake.c - a library with the names of CUDA's driver, for machines
 * without a GPU (PERIGEE_CUDA_LIBRARY). It shows two devices. Their memory is
 * in memfds whose pages the CPU must not touch, and which several processes can
 * map; streams are threads, which copy late and in order. What real CUDA leaves
 * undefined ends the process with a sentence. This file has settings, counters
 * and devices; memory, sharing, streams and modules have a file each.
 *
 * It cannot tell whether our declarations are those of the real driver: make
 * check-cuda-headers does that, and `./check gpu` of a bundle on a real one.
 *
 * FAKE_CUDA sets it, as in "devices=0 slow=500 fail=cuMemCreate@3:2":
 *
 *   devices=N       the machine has N devices (2)
 *   version=N       is driver N, as in 12040
 *   slow=US         each copy of a stream takes so long, and its time (20)
 *   kernel=US       a kernel takes so much longer (0)
 *   compile=US      loading a module takes so long (0)
 *   fail=NAME@N:E:M call number N of a function, from 1, and M - 1 later ones (0)
 *                   return error E (2). NAME is that of the base;
 *                   stream@N:E: operation number N of any stream breaks the
 *                   device: all later calls return E
 *   also=NAME@N:E:M the same, of another function than that of fail
 *   visible=A,B     shows the devices A and B, as CUDA_VISIBLE_DEVICES does. A
 *                   device has the same UUID in all processes
 *   captures=1      the program captures a graph in some thread, which unsafe
 *                   calls of any thread end (counted as "captures ended"),
 *                   but those of a thread that has relaxed that
 *   peers=0         no device reaches another one's memory
 *   fabric=1        devices have fabric handles (0)
 *   channel=N       they are of channel N of IMEX, and of no use to processes of
 *                   other channels (1); 0: the process may use none
 *   deaf=1          host functions are never called
 *   no=NAME         the driver has no such function
 *   without=N       devices have attribute N not
 *
 * Specs can make managed memory by cuMemAllocManaged, and addresses without
 * memory by cuMemAddressReserve. fake_cuda_set() takes a word of FAKE_CUDA while
 * the program runs; fake_cuda_count() tells how often a function was called.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcuda_fake.h"

enum { STACK = 16 };

void fake_fatal(const char *format, ...) {
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

struct fake_settings fake_set = {.devices = 2,
                                 .version = 12040,
                                 .peers = 1,
                                 .channel = 1,
                                 .slow = 20,
                                 .fails = {{.with = 2}, {.with = 2}},
                                 .shown = 2,
                                 .machines = {0, 1, 2, 3, 4, 5, 6, 7}};
pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
int fake_broken;
static char visible[64] = "*";
static pid_t initialized_by;

/* Shows the machine's devices as CUDA_VISIBLE_DEVICES does: those before the
 * first number that is of none; none at all if a number comes twice. */
static void show_devices(void) {
  int all = fake_set.devices < DEVICES ? fake_set.devices : DEVICES;
  const char *rest = visible;
  fake_set.shown = 0;
  for (int i = 0; *visible == '*' && i < all; i++)
    fake_set.machines[fake_set.shown++] = i;
  for (char *end; *visible != '*' && *rest; rest = *end ? end + 1 : end) {
    long number = strtol(rest, &end, 10);
    if (end == rest || number < 0 || number >= all)
      return;
    for (int i = 0; i < fake_set.shown; i++)
      if (fake_set.machines[i] == number) {
        fake_set.shown = 0;
        return;
      }
    fake_set.machines[fake_set.shown++] = (int)number;
  }
}

/* A script that says no more keeps the error of the last one. */
static void setting_fail(struct fake_fail *f, const char *script) {
  f->times = 1;
  sscanf(script, "%63[^@]@%d:%d:%d", f->name, &f->at, &f->with, &f->times);
}

static void setting(const char *word) {
  sscanf(word, "devices=%d", &fake_set.devices);
  sscanf(word, "version=%d", &fake_set.version);
  sscanf(word, "slow=%ld", &fake_set.slow);
  sscanf(word, "kernel=%ld", &fake_set.kernel);
  sscanf(word, "compile=%ld", &fake_set.compile);
  sscanf(word, "without=%d", &fake_set.without);
  sscanf(word, "no=%63s", fake_set.no);
  sscanf(word, "peers=%d", &fake_set.peers);
  sscanf(word, "captures=%d", &fake_set.captures);
  sscanf(word, "deaf=%d", &fake_set.deaf);
  sscanf(word, "fabric=%d", &fake_set.fabric);
  sscanf(word, "channel=%d", &fake_set.channel);
  if (strncmp(word, "visible=", 8) == 0)
    snprintf(visible, sizeof visible, "%s", word + 8);
  if (strncmp(word, "fail=", 5) == 0)
    setting_fail(&fake_set.fails[0], word + 5);
  if (strncmp(word, "also=", 5) == 0)
    setting_fail(&fake_set.fails[1], word + 5);
  show_devices();
}

/* Tests in C set it while they run. */
EXPORT void fake_cuda_set(const char *word);
EXPORT void fake_cuda_set(const char *word) {
  pthread_mutex_lock(&fake_lock);
  setting(word);
  pthread_mutex_unlock(&fake_lock);
}

static void settings_read(void) {
  char text[512], *rest = text;
  const char *given = getenv("FAKE_CUDA");
  if (fake_set.read)
    return;
  fake_set.read = true;
  snprintf(text, sizeof text, "%s", given ? given : "");
  for (char *word; (word = strsep(&rest, " "));)
    setting(word);
}

CUresult fake_scripted(const char *name) {
  for (int i = 0; i < FAILS; i++) {
    struct fake_fail *f = &fake_set.fails[i];
    if (strcmp(f->name, name) == 0 && f->at > 0 && --f->at == 0) {
      f->at = --f->times > 0; /* the next call, too */
      return f->with;
    }
  }
  return CUDA_SUCCESS;
}

CUresult fake_failing(const char *name) {
  pthread_mutex_lock(&fake_lock);
  settings_read();
  CUresult result = fake_scripted(name);
  if (result == CUDA_SUCCESS)
    result = fake_broken;
  pthread_mutex_unlock(&fake_lock);
  return result;
}

/* ---- Counters -------------------------------------------------------------
 * */

static struct fake_counter *_Atomic counters;

__thread bool fake_in_host_function;

/* A counter enters the list when it first counts. */
void fake_counter_add(struct fake_counter *c, uint64_t n) {
  if (fake_in_host_function)
    fake_fatal("%s in a host function", c->name);
  if (n == 0 || atomic_fetch_add(&c->count, n) != 0)
    return;
  c->next = counters;
  while (!atomic_compare_exchange_weak(&counters, &c->next, c))
    ;
}

/* How often this process has called the function of that base name. "entries"
 * are those of its batches, "pieces" those of its kernels. */
EXPORT uint64_t fake_cuda_count(const char *name);
EXPORT uint64_t fake_cuda_count(const char *name) {
  uint64_t count = 0;
  for (const struct fake_counter *c = counters; c; c = c->next)
    if (strcmp(c->name, name) == 0)
      count += c->count;
  return count;
}

/* ---- Contexts -------------------------------------------------------------
 * */

static struct CUctx_st contexts[DEVICES];
static __thread CUcontext stack[STACK];
static __thread int depth;

CUcontext fake_current(const char *what) {
  if (initialized_by != getpid())
    fake_fatal("%s before cuInit, or in a child of the process that called it",
               what);
  if (depth == 0)
    fake_fatal("%s without a current context", what);
  if (stack[depth - 1]->retained == 0)
    fake_fatal("%s in a context that was released", what);
  return stack[depth - 1];
}

CUresult cuInit(unsigned flags) {
  BEGIN("cuInit");
  if (flags != 0)
    return 1;
  if (fake_set.shown == 0)
    return CUDA_ERROR_NO_DEVICE;
  initialized_by = getpid();
  for (int i = 0; i < DEVICES; i++)
    contexts[i].device = i;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version) {
  settings_read();
  *version = fake_set.version;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name) {
  *name = error == 2        ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == 100    ? "CUDA_ERROR_NO_DEVICE"
          : error == BROKEN ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : error == 1      ? "CUDA_ERROR_INVALID_VALUE"
          : error == 800    ? "CUDA_ERROR_NOT_PERMITTED"
          : error < 1000    ? "CUDA_ERROR_OF_THE_FAKE"
                            : NULL;
  return *name ? CUDA_SUCCESS : 1;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error == 2 ? "out of memory" : "as the script of the fake says";
  return CUDA_SUCCESS;
}

static bool device_is(CUdevice d) {
  return d >= 0 && d < fake_set.shown;
}

CUresult cuDeviceGetCount(int *count) {
  BEGIN("cuDeviceGetCount");
  *count = fake_set.shown;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  BEGIN("cuDeviceGet");
  if (ordinal < 0 || ordinal >= fake_set.shown)
    return INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice d) {
  BEGIN("cuDeviceGetAttribute");
  if (!device_is(d))
    return INVALID_DEVICE;
  *value = attribute == CU_DEVICE_ATTRIBUTE_MAX_PITCH ? 0x7fffffff : 1;
  if (attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)
    *value = fake_has_fabric();
  if (!fake_has(attribute))
    *value = 0;
  return CUDA_SUCCESS;
}

bool fake_has_fabric(void) {
  return fake_set.fabric && fake_set.version >= 12040;
}

bool fake_has(int attribute) {
  return attribute != fake_set.without;
}

/* The same in all processes until the machine is started again. */
CUuuid fake_uuid(CUdevice d) {
  CUuuid uuid = {"fake CUDA device"};
  FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
  for (int i = 0; file && i < 15; i++)
    if (fscanf(file, "%*[-]") == EOF ||
        fscanf(file, "%2hhx", (unsigned char *)&uuid.bytes[i]) != 1)
      break;
  if (file)
    fclose(file);
  uuid.bytes[15] = (char)fake_set.machines[d];
  return uuid;
}

CUdevice fake_device_of(const CUuuid *uuid) {
  for (CUdevice d = 0; d < fake_set.shown; d++) {
    CUuuid of = fake_uuid(d);
    if (memcmp(&of, uuid, sizeof of) == 0)
      return d;
  }
  return -1;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice d) {
  BEGIN("cuDeviceGetName");
  if (!device_is(d))
    return INVALID_DEVICE;
  if (length < 1)
    return INVALID_VALUE;
  snprintf(name, (size_t)length, "Fake GPU");
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice d) {
  BEGIN("cuDeviceGetUuid");
  if (!device_is(d))
    return INVALID_DEVICE;
  *uuid = fake_uuid(d);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice d) {
  BEGIN("cuDeviceTotalMem");
  *bytes = TOTAL;
  return device_is(d) ? CUDA_SUCCESS : INVALID_DEVICE;
}

CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice d) {
  BEGIN("cuDeviceGetPCIBusId");
  if (!device_is(d))
    return INVALID_DEVICE;
  if (length < 13)
    return INVALID_VALUE;
  snprintf(id, (size_t)length, "0000:%02X:00.0", 0x17 + fake_set.machines[d]);
  return CUDA_SUCCESS;
}

/* No device is its own peer. */
CUresult cuDeviceCanAccessPeer(int *can, CUdevice d, CUdevice peer) {
  BEGIN("cuDeviceCanAccessPeer");
  if (!device_is(d) || !device_is(peer))
    return INVALID_DEVICE;
  *can = d != peer && fake_set.peers;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice d) {
  BEGIN("cuDevicePrimaryCtxRetain");
  if (!device_is(d))
    return INVALID_DEVICE;
  pthread_mutex_lock(&fake_lock);
  contexts[d].retained++;
  pthread_mutex_unlock(&fake_lock);
  *context = &contexts[d];
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice d) {
  COUNT("cuDevicePrimaryCtxRelease", 1);
  pthread_mutex_lock(&fake_lock);
  if (contexts[d].retained-- == 0)
    fake_fatal("the context of device %d was released more often than retained",
               d);
  pthread_mutex_unlock(&fake_lock);
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  COUNT("cuCtxPushCurrent", 1);
  CUresult scripted = fake_failing("cuCtxPushCurrent");
  if (scripted != CUDA_SUCCESS && scripted != fake_broken)
    return scripted; /* that of a broken device can be entered */
  if (!context || depth == STACK)
    fake_fatal("a context that is NULL, or too many of them");
  stack[depth++] = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context) {
  if (depth == 0)
    fake_fatal("cuCtxPopCurrent without a current context");
  *context = stack[--depth];
  return CUDA_SUCCESS;
}

/* ---- Functions by name ----------------------------------------------------
 * */

/* The exports of 32 bits and of older versions, which nobody may call. */
#define OLD(name)                                                              \
  EXPORT CUresult name##_old(void) __asm__(#name);                             \
  CUresult name##_old(void) {                                                  \
    fake_fatal("an older " #name " was called, of other arguments");           \
  }
OLD(cuDeviceGetUuid)
OLD(cuDeviceTotalMem)
OLD(cuMemAlloc)
OLD(cuMemFree)
OLD(cuMemGetAddressRange)
OLD(cuMemHostGetDevicePointer)
OLD(cuMemHostRegister)
OLD(cuIpcOpenMemHandle)
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
      {NAMED(cuDeviceGetName, 2000, cuDeviceGetName)},
      {NAMED(cuDeviceGetUuid, 9020, cuDeviceGetUuid_old)},
      {NAMED(cuDeviceGetUuid, 11040, cuDeviceGetUuid)},
      {NAMED(cuDeviceTotalMem, 2000, cuDeviceTotalMem_old)},
      {NAMED(cuDeviceTotalMem, 3020, cuDeviceTotalMem)},
      {NAMED(cuDeviceGetPCIBusId, 4010, cuDeviceGetPCIBusId)},
      {NAMED(cuDeviceCanAccessPeer, 4000, cuDeviceCanAccessPeer)},
      {NAMED(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain)},
      {NAMED(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease)},
      {NAMED(cuCtxPushCurrent, 4000, cuCtxPushCurrent)},
      {NAMED(cuCtxPopCurrent, 4000, cuCtxPopCurrent)},
      {NAMED(cuMemAlloc, 2000, cuMemAlloc_old)},
      {NAMED(cuMemAlloc, 3020, cuMemAlloc)},
      {NAMED(cuMemAllocManaged, 6000, cuMemAllocManaged)},
      {NAMED(cuMemFree, 2000, cuMemFree_old)},
      {NAMED(cuMemFree, 3020, cuMemFree)},
      {NAMED(cuMemGetAddressRange, 2000, cuMemGetAddressRange_old)},
      {NAMED(cuMemGetAddressRange, 3020, cuMemGetAddressRange)},
      {NAMED(cuMemHostAlloc, 2020, cuMemHostAlloc)},
      {NAMED(cuMemFreeHost, 2000, cuMemFreeHost)},
      {NAMED(cuMemHostGetDevicePointer, 2020, cuMemHostGetDevicePointer_old)},
      {NAMED(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer)},
      {NAMED(cuMemHostRegister, 4000, cuMemHostRegister_old)},
      {NAMED(cuMemHostRegister, 6050, cuMemHostRegister)},
      {NAMED(cuMemHostUnregister, 4000, cuMemHostUnregister)},
      {NAMED(cuIpcGetMemHandle, 4010, cuIpcGetMemHandle)},
      {NAMED(cuIpcOpenMemHandle, 4010, cuIpcOpenMemHandle_old)},
      {NAMED(cuIpcOpenMemHandle, 11000, cuIpcOpenMemHandle)},
      {NAMED(cuIpcCloseMemHandle, 4010, cuIpcCloseMemHandle)},
      {NAMED(cuMemGetAllocationGranularity, 10020,
             cuMemGetAllocationGranularity)},
      {NAMED(cuMemCreate, 10020, cuMemCreate)},
      {NAMED(cuMemRelease, 10020, cuMemRelease)},
      {NAMED(cuMemAddressReserve, 10020, cuMemAddressReserve)},
      {NAMED(cuMemAddressFree, 10020, cuMemAddressFree)},
      {NAMED(cuMemMap, 10020, cuMemMap)},
      {NAMED(cuMemUnmap, 10020, cuMemUnmap)},
      {NAMED(cuMemSetAccess, 10020, cuMemSetAccess)},
      {NAMED(cuMemExportToShareableHandle, 10020,
             cuMemExportToShareableHandle)},
      {NAMED(cuMemImportFromShareableHandle, 10020,
             cuMemImportFromShareableHandle)},
      {NAMED(cuMemRetainAllocationHandle, 11000, cuMemRetainAllocationHandle)},
      {NAMED(cuMemcpyAsync, 4000, cuMemcpyAsync)},
      {NAMED(cuMemcpyPeerAsync, 4000, cuMemcpyPeerAsync)},
      {NAMED(cuMemcpy2DAsync, 3000, cuMemcpy2DAsync_old)},
      {NAMED(cuMemcpy2DAsync, 3020, cuMemcpy2DAsync)},
      {NAMED(cuMemcpyBatchAsync, 12080, cuMemcpyBatchAsync)},
      {NAMED(cuMemcpyBatchAsync, 13000, cuMemcpyBatchAsync_v2)},
      {NAMED(cuMemsetD8Async, 3020, cuMemsetD8Async)},
      {NAMED(cuPointerGetAttributes, 7000, cuPointerGetAttributes)},
      {NAMED(cuStreamCreate, 2000, cuStreamCreate)},
      {NAMED(cuStreamDestroy, 4000, cuStreamDestroy)},
      {NAMED(cuStreamSynchronize, 2000, cuStreamSynchronize)},
      {NAMED(cuStreamQuery, 2000, cuStreamQuery)},
      {NAMED(cuStreamWriteValue64, 11070, cuStreamWriteValue64)},
      {NAMED(cuStreamWaitEvent, 3020, cuStreamWaitEvent)},
      {NAMED(cuEventCreate, 2000, cuEventCreate)},
      {NAMED(cuEventDestroy, 4000, cuEventDestroy)},
      {NAMED(cuEventRecord, 2000, cuEventRecord)},
      {NAMED(cuLaunchHostFunc, 10000, cuLaunchHostFunc)},
      {NAMED(cuThreadExchangeStreamCaptureMode, 10010,
             cuThreadExchangeStreamCaptureMode)},
      {NAMED(cuModuleLoadData, 2000, cuModuleLoadData)},
      {NAMED(cuModuleGetFunction, 2000, cuModuleGetFunction)},
      {NAMED(cuModuleUnload, 2000, cuModuleUnload)},
      {NAMED(cuLaunchKernel, 4000, cuLaunchKernel)},
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
  if (flags || version > fake_set.version)
    return 1;
  *function = NULL;
  if (strcmp(name, fake_set.no) != 0)
    for (const struct named *n = all_named(); n->name; n++)
      if (strcmp(n->name, name) == 0 && n->version <= version)
        *function = n->function;
  if (status)
    *status = *function ? 0 : 1;
  return CUDA_SUCCESS;
}
