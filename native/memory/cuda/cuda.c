/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda.c - the kind of memory "cuda": that of NVIDIA's GPUs, by their driver.
 * "cuda:1" is the second device that CUDA shows this process.
 *
 * A context of an engine uses the device's primary context, as the CUDA
 * runtime, torch and CuPy do, so their memory can be registered. It has three
 * streams of its own: to the device, from it, and inside it. They wait for no
 * other stream, nor does another one wait for them.
 *
 * Copies. The host's side of a copy lies in pageable memory, of which the
 * driver would make a copy of its own while the caller waits. So it passes
 * through a slot of pinned memory, of this context:
 *
 *   to the device      copy() gathers the bytes in a slot, for the stream
 *   from the device    the stream copies to a slot; finished() scatters them
 *   inside, to another the stream copies
 *
 * Tickets. Behind each copy the stream writes the copy's number to a word of
 * pinned memory. Copies of one stream end in order, so finished() compares two
 * numbers, and asks the driver nothing. The stream writes the word after the
 * copied bytes are visible, and the acquire load of the word comes before they
 * are read. A broken device writes no more words: so each LOOK-th time that a
 * copy is not over yet, the driver is asked for the stream's state.
 *
 *   copy     event                              becomes
 *   free     copy()                             asked
 *   asked    finished() after its word came     free; its bytes are there
 *   asked    the stream has failed              free, and closed
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/least.h"
#include "driver.h"
#include "memory/memory.h"

enum { COPIES = 64, SLOTS = 32, LOOK = 256 };

enum way { WAY_TO, WAY_FROM, WAY_INSIDE, WAYS };

struct stream {
  CUstream handle;
  uint64_t asked;         /* number of its last copy */
  _Atomic uint64_t *done; /* that of the last one that has ended */
  CUdeviceptr word;       /* the same word, for the device */
  bool failed;            /* it does no more: what it had not done has ended */
};

struct copying {
  struct memory_copy copy; /* of WAY_FROM, to be scattered */
  uint64_t number;
  uint32_t looks;
  int slot; /* -1: none */
  uint8_t way;
  bool open;
};

struct cuda {
  const struct cuda_driver *driver;
  CUdevice device;
  CUcontext context;
  int max_pitch;
  bool virtual_memory, rdma;
  struct stream streams[WAYS];
  uint8_t *pinned; /* the slots, and behind them the words */
  uint32_t used;   /* bits of slots */
  struct copying copies[COPIES];
  char why[CUDA_REASON]; /* the last failure */
};

_Static_assert(SLOTS == 32, "a bit of `used` for each");

static int cuda_fails(struct cuda *c, int status, const char *what,
                      CUresult result) {
  cuda_explain(c->driver, what, result, c->why);
  return status;
}

/* Makes the device's context the thread's current one until cuda_leave, which
 * is called only if this succeeds: else it would take away the program's. */
static CUresult cuda_enter(const struct cuda *c) {
  return c->driver->cuCtxPushCurrent(c->context);
}

static void cuda_leave(const struct cuda *c) {
  CUcontext before;
  c->driver->cuCtxPopCurrent(&before);
}

/* ---- Contexts -------------------------------------------------------------
 * */

static int cuda_attribute(const struct cuda *c, int attribute) {
  int value = 0;
  return c->driver->cuDeviceGetAttribute(&value, attribute, c->device) ==
                 CUDA_SUCCESS
             ? value
             : 0;
}

static int cuda_find_device(struct cuda *c, uint32_t number) {
  int count = 0;
  CUresult result = c->driver->cuDeviceGetCount(&count);
  if (result == CUDA_SUCCESS && number >= (uint32_t)count) {
    snprintf(c->why, sizeof c->why, "CUDA shows %d devices, not number %u",
             count, number);
    return PERIGEE_NOT_FOUND;
  }
  if (result == CUDA_SUCCESS)
    result = c->driver->cuDeviceGet(&c->device, (int)number);
  return result == CUDA_SUCCESS
             ? PERIGEE_OK
             : cuda_fails(c, PERIGEE_SYSTEM, "finding the device", result);
}

/* Pinned memory for slots and words. Portable: for each context of the
 * process, as copies between devices use the other's memory. */
static CUresult cuda_pin(struct cuda *c) {
  uint64_t slots = (uint64_t)SLOTS * COPY_PIECE;
  CUdeviceptr device;
  CUresult result = c->driver->cuMemHostAlloc(
      (void **)&c->pinned, slots + WAYS * 64,
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  if (result == CUDA_SUCCESS)
    result = c->driver->cuMemHostGetDevicePointer(&device, c->pinned, 0);
  for (int i = 0; i < WAYS && result == CUDA_SUCCESS; i++) {
    uint64_t at = slots + 64 * (uint64_t)i; /* a line for each word */
    c->streams[i].done = (_Atomic uint64_t *)(void *)(c->pinned + at);
    atomic_init(c->streams[i].done, 0);
    c->streams[i].word = device + at;
    result = c->driver->cuStreamCreate(&c->streams[i].handle,
                                       CU_STREAM_NON_BLOCKING);
  }
  return result;
}

static void cuda_unpin(struct cuda *c) {
  for (int i = 0; i < WAYS; i++)
    if (c->streams[i].handle)
      c->driver->cuStreamDestroy(c->streams[i].handle);
  if (c->pinned)
    c->driver->cuMemFreeHost(c->pinned);
}

static void cuda_close(void *own) {
  struct cuda *c = own;
  if (cuda_enter(c) == CUDA_SUCCESS) {
    cuda_unpin(c);
    cuda_leave(c);
  }
  c->driver->cuDevicePrimaryCtxRelease(c->device);
  free(c);
}

static int cuda_prepare(struct cuda *c) {
  if (!cuda_attribute(c, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)) {
    snprintf(c->why, sizeof c->why,
             "this device's streams cannot write 64-bit words "
             "(cuStreamWriteValue64)");
    return PERIGEE_UNSUPPORTED;
  }
  c->max_pitch = cuda_attribute(c, CU_DEVICE_ATTRIBUTE_MAX_PITCH);
  c->virtual_memory = cuda_attribute(
      c, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  c->rdma = cuda_attribute(
      c, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  CUresult result = cuda_enter(c);
  if (result == CUDA_SUCCESS) {
    result = cuda_pin(c);
    cuda_leave(c);
  }
  return result == CUDA_SUCCESS
             ? PERIGEE_OK
             : cuda_fails(c, PERIGEE_NO_MEMORY, "pinning host memory", result);
}

/* Retains the device's primary context, which others of the process may use,
 * too. */
static int cuda_retain(struct cuda *c, uint32_t device) {
  int status = cuda_find_device(c, device);
  if (status < 0)
    return status;
  CUresult result = c->driver->cuDevicePrimaryCtxRetain(&c->context, c->device);
  return result == CUDA_SUCCESS
             ? PERIGEE_OK
             : cuda_fails(c, PERIGEE_SYSTEM, "opening the device", result);
}

static int cuda_open(uint32_t device, void **own, char reason[MEMORY_REASON]) {
  const struct cuda_driver *driver = cuda_driver(reason);
  if (!driver)
    return PERIGEE_UNSUPPORTED;
  struct cuda *c = calloc(1, sizeof *c);
  if (!c)
    return PERIGEE_NO_MEMORY;
  c->driver = driver;
  int status = cuda_retain(c, device);
  bool retained = status == PERIGEE_OK;
  if (retained)
    status = cuda_prepare(c);
  *own = c;
  if (status == PERIGEE_OK)
    return PERIGEE_OK;
  snprintf(reason, MEMORY_REASON, "cuda:%u: %s", device, c->why);
  if (retained)
    cuda_close(c);
  else
    free(c);
  return status;
}

static const char *cuda_why(const struct memory_context *context) {
  return ((const struct cuda *)context->own)->why;
}

/* ---- Memory ---------------------------------------------------------------
 * */

/* Memory of allocate. */
struct allocation {
  uint64_t size; /* mapped: a multiple of the granularity; 0: by cuMemAlloc */
};

static CUmemAllocationProp cuda_properties(const struct cuda *c) {
  CUmemAllocationProp p;
  memset(&p, 0, sizeof p);
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, c->device};
  p.allocFlags.gpuDirectRDMACapable = c->rdma;
  return p;
}

/* Maps memory of the device at an address that is reserved for it. */
static CUresult cuda_map(struct cuda *c, CUmemGenericAllocationHandle handle,
                         uint64_t size, CUdeviceptr *out) {
  const struct cuda_driver *d = c->driver;
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, c->device},
                            CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUresult result = d->cuMemAddressReserve(out, size, 0, 0, 0);
  if (result != CUDA_SUCCESS)
    return result;
  result = d->cuMemMap(*out, size, 0, handle, 0);
  if (result == CUDA_SUCCESS) {
    result = d->cuMemSetAccess(*out, size, &access, 1);
    if (result == CUDA_SUCCESS)
      return CUDA_SUCCESS;
    d->cuMemUnmap(*out, size);
  }
  d->cuMemAddressFree(*out, size);
  return result;
}

static CUresult cuda_make_virtual(struct cuda *c, uint64_t length,
                                  uint64_t *size, CUdeviceptr *out) {
  CUmemAllocationProp p = cuda_properties(c);
  CUmemGenericAllocationHandle handle;
  size_t unit = 0;
  CUresult result = c->driver->cuMemGetAllocationGranularity(
      &unit, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (result != CUDA_SUCCESS)
    return result;
  *size = (length + unit - 1) / unit * unit;
  result = c->driver->cuMemCreate(&handle, *size, &p, 0);
  if (result != CUDA_SUCCESS)
    return result;
  result = cuda_map(c, handle, *size, out);
  c->driver->cuMemRelease(handle); /* the mapping keeps the memory */
  return result;
}

static void cuda_drop(const struct cuda *c, CUdeviceptr at, uint64_t size) {
  if (size == 0) {
    c->driver->cuMemFree(at);
    return;
  }
  c->driver->cuMemUnmap(at, size);
  c->driver->cuMemAddressFree(at, size);
}

static CUresult cuda_zero(struct cuda *c, CUdeviceptr at, uint64_t length) {
  CUstream stream = c->streams[WAY_INSIDE].handle;
  CUresult result = c->driver->cuMemsetD8Async(at, 0, length, stream);
  return result == CUDA_SUCCESS ? c->driver->cuStreamSynchronize(stream)
                                : result;
}

static CUresult cuda_make_here(struct cuda *c, uint64_t length, uint64_t *size,
                               CUdeviceptr *at) {
  CUresult result = c->virtual_memory ? cuda_make_virtual(c, length, size, at)
                                      : c->driver->cuMemAlloc(at, length);
  if (result != CUDA_SUCCESS)
    return result;
  result = cuda_zero(c, *at, length);
  if (result != CUDA_SUCCESS)
    cuda_drop(c, *at, *size);
  return result;
}

static CUresult cuda_make(struct cuda *c, uint64_t length, uint64_t *size,
                          CUdeviceptr *at) {
  CUresult result = cuda_enter(c);
  if (result != CUDA_SUCCESS)
    return result;
  result = cuda_make_here(c, length, size, at);
  cuda_leave(c);
  return result;
}

static int cuda_allocate(const struct memory_context *context, uint64_t length,
                         bool shared, uint8_t **pointer, void **handle) {
  (void)shared;
  struct cuda *c = context->own;
  struct allocation *a = calloc(1, sizeof *a);
  CUdeviceptr at = 0;
  if (!a)
    return PERIGEE_NO_MEMORY;
  CUresult result = cuda_make(c, length, &a->size, &at);
  if (result != CUDA_SUCCESS) {
    free(a);
    return cuda_fails(c,
                      result == CUDA_ERROR_OUT_OF_MEMORY ? PERIGEE_NO_MEMORY
                                                         : PERIGEE_SYSTEM,
                      "allocating memory of the device", result);
  }
  *pointer = (uint8_t *)(uintptr_t)at;
  *handle = a;
  return PERIGEE_OK;
}

static void cuda_release(const struct memory_context *context, uint8_t *pointer,
                         uint64_t length, void *handle) {
  (void)length;
  const struct cuda *c = context->own;
  struct allocation *a = handle;
  if (cuda_enter(c) == CUDA_SUCCESS) {
    cuda_drop(c, (CUdeviceptr)(uintptr_t)pointer, a->size);
    cuda_leave(c);
  }
  free(a);
}

/* Managed memory is the host's, too: the CPU may touch it, and so it is treated
 * as host memory. No driver is loaded to find out. */
static int cuda_owner_of(const void *pointer) {
  const struct cuda_driver *d = cuda_driver_there();
  /* A cell of 8 zeroed bytes for each, whatever the attribute's width. */
  uint64_t type = 0, managed = 0, device = 0;
  CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void *answers[] = {&type, &managed, &device};
  if (!d || d->cuPointerGetAttributes(3, asked, answers,
                                      (CUdeviceptr)(uintptr_t)pointer) !=
                CUDA_SUCCESS)
    return -1;
  return (uint32_t)type == CU_MEMORYTYPE_DEVICE && !(managed & 0xff)
             ? (int)(uint32_t)device
             : -1;
}

/* ---- Slots ----------------------------------------------------------------
 * */

/* The last slot is for a copy that is waited for; so is the last ticket. */
static int slot_take(struct cuda *c, bool waited_for) {
  uint32_t free = waited_for ? ~c->used : ~c->used & (UINT32_MAX >> 1);
  if (free == 0)
    return -1;
  int slot = __builtin_ctz(free);
  c->used |= 1u << slot;
  return slot;
}

static void slot_give(struct cuda *c, int slot) {
  if (slot >= 0)
    c->used &= ~(1u << slot);
}

static uint8_t *slot_at(const struct cuda *c, int slot) {
  return c->pinned + (uint64_t)slot * COPY_PIECE;
}

static void slot_gather(uint8_t *slot, const struct memory_copy *m) {
  for (uint64_t i = 0; i < m->count; i++)
    memcpy(slot + i * m->block, m->from + i * m->from_stride, m->block);
}

static void slot_scatter(const uint8_t *slot, const struct memory_copy *m) {
  for (uint64_t i = 0; i < m->count; i++)
    memcpy(m->to + i * m->to_stride, slot + i * m->block, m->block);
}

/* ---- Copies ---------------------------------------------------------------
 * */

/* Is it from one device to another? */
static bool copy_is_across(const struct memory_copy *m) {
  return !m->from_memory->direct && !m->to_memory->direct &&
         m->from_memory->device != m->to_memory->device;
}

/* Blocks that a 2D copy takes: pitches are at least a row, and limited. */
static bool copy_is_flat(const struct cuda *c, const struct memory_copy *m) {
  uint64_t most = (uint64_t)c->max_pitch;
  return m->count > 2 && !copy_is_across(m) && m->to_stride >= m->block &&
         m->from_stride >= m->block && m->to_stride <= most &&
         m->from_stride <= most;
}

/* Addresses of all memories are unified, so the driver finds the sides. */
static CUresult copy_flat(struct cuda *c, const struct memory_copy *m,
                          CUstream stream) {
  CUDA_MEMCPY2D d;
  memset(&d, 0, sizeof d);
  d.srcMemoryType = d.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  d.srcDevice = (CUdeviceptr)(uintptr_t)m->from;
  d.dstDevice = (CUdeviceptr)(uintptr_t)m->to;
  d.srcPitch = m->from_stride;
  d.dstPitch = m->to_stride;
  d.WidthInBytes = m->block;
  d.Height = m->count;
  return c->driver->cuMemcpy2DAsync(&d, stream);
}

/* Memory that cuMemMap has mapped for one device takes no part in another one's
 * cuMemcpyAsync. */
static CUresult copy_block(struct cuda *c, const struct memory_copy *m,
                           uint64_t i, CUstream stream) {
  CUdeviceptr to = (CUdeviceptr)(uintptr_t)(m->to + i * m->to_stride);
  CUdeviceptr from = (CUdeviceptr)(uintptr_t)(m->from + i * m->from_stride);
  if (!copy_is_across(m))
    return c->driver->cuMemcpyAsync(to, from, m->block, stream);
  const struct cuda *there = m->to_memory->own, *here = m->from_memory->own;
  return c->driver->cuMemcpyPeerAsync(to, there->context, from, here->context,
                                      m->block, stream);
}

static CUresult copy_blocks(struct cuda *c, const struct memory_copy *m,
                            CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  for (uint64_t i = 0; i < m->count && result == CUDA_SUCCESS; i++)
    result = copy_block(c, m, i, stream);
  return result;
}

/* The copy that the stream does: the host's side is the slot. */
static struct memory_copy copy_by_slot(const struct memory_copy *m,
                                       enum way way, uint8_t *slot) {
  struct memory_copy of = *m;
  if (way == WAY_TO) {
    of.from = slot;
    of.from_stride = m->block;
  }
  if (way == WAY_FROM) {
    of.to = slot;
    of.to_stride = m->block;
  }
  return of;
}

static CUresult copy_ask(struct cuda *c, const struct memory_copy *m,
                         struct stream *s) {
  CUresult result = copy_is_flat(c, m) ? copy_flat(c, m, s->handle)
                                       : copy_blocks(c, m, s->handle);
  if (result == CUDA_SUCCESS)
    result =
        c->driver->cuStreamWriteValue64(s->handle, s->word, s->asked + 1, 0);
  s->asked += result == CUDA_SUCCESS;
  return result;
}

static enum way copy_way(const struct memory_copy *m) {
  if (m->from_memory->direct)
    return WAY_TO;
  return m->to_memory->direct ? WAY_FROM : WAY_INSIDE;
}

static struct copying *copying_free(struct cuda *c, bool waited_for) {
  for (int i = 0; i < COPIES - !waited_for; i++)
    if (!c->copies[i].open)
      return &c->copies[i];
  return NULL;
}

/* A copy that could not be asked for as a whole may have begun: its slot is
 * free once the stream is at rest. */
static CUresult copy_ask_whole(struct cuda *c, const struct memory_copy *m,
                               struct stream *s) {
  CUresult result = cuda_enter(c);
  if (result != CUDA_SUCCESS)
    return result;
  result = copy_ask(c, m, s);
  if (result != CUDA_SUCCESS)
    c->driver->cuStreamSynchronize(s->handle);
  cuda_leave(c);
  return result;
}

static int copy_begin(struct cuda *c, struct copying *k) {
  if (c->streams[k->way].failed)
    return PERIGEE_CLOSED;
  struct memory_copy m =
      copy_by_slot(&k->copy, k->way, k->slot < 0 ? NULL : slot_at(c, k->slot));
  if (k->way == WAY_TO)
    slot_gather(slot_at(c, k->slot), &k->copy);
  CUresult result = copy_ask_whole(c, &m, &c->streams[k->way]);
  return result == CUDA_SUCCESS
             ? PERIGEE_OK
             : cuda_fails(c, PERIGEE_CLOSED, "copying", result);
}

static int cuda_copy(const struct memory_context *context,
                     const struct memory_copy *copy, uint64_t *ticket) {
  struct cuda *c = context->own;
  struct copying *k = copying_free(c, copy->waited_for);
  enum way way = copy_way(copy);
  int slot = k && way != WAY_INSIDE ? slot_take(c, copy->waited_for) : -1;
  if (!k || (way != WAY_INSIDE && slot < 0))
    return PERIGEE_AGAIN;
  *k = (struct copying){.copy = *copy, .slot = slot, .way = (uint8_t)way};
  int status = copy_begin(c, k);
  if (status < 0) {
    slot_give(c, slot);
    return status;
  }
  k->number = c->streams[way].asked;
  k->open = true;
  *ticket = (uint64_t)(k - c->copies) + 1;
  return PERIGEE_OK;
}

static bool copy_is_over(const struct cuda *c, const struct copying *k) {
  return atomic_load_explicit(c->streams[k->way].done, memory_order_acquire) >=
         k->number;
}

/* Asks the driver for a stream's state: by cuStreamQuery, or at rest by
 * cuStreamSynchronize. While another library of the program captures a graph the
 * driver may not say. */
static void stream_look(struct cuda *c, struct stream *s,
                        CUresult (*ask)(CUstream)) {
  CUresult result = cuda_enter(c);
  if (result == CUDA_SUCCESS) {
    result = ask(s->handle);
    cuda_leave(c);
  }
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY ||
      result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    return;
  s->failed = true;
  cuda_fails(c, PERIGEE_CLOSED, "copying", result);
}

/* Has the stream failed? Not each time: the driver takes a microsecond. */
static int copy_look(struct cuda *c, struct copying *k) {
  struct stream *s = &c->streams[k->way];
  if (!s->failed && ++k->looks % LOOK == 0)
    stream_look(c, s, c->driver->cuStreamQuery);
  return s->failed ? PERIGEE_CLOSED : 0;
}

static int cuda_finished(const struct memory_context *context,
                         uint64_t ticket) {
  struct cuda *c = context->own;
  struct copying *k = &c->copies[ticket - 1];
  bool over = copy_is_over(c, k);
  int status = over ? 1 : copy_look(c, k);
  if (status == 0)
    return 0;
  if (over && k->way == WAY_FROM)
    slot_scatter(slot_at(c, k->slot), &k->copy);
  slot_give(c, k->slot);
  k->open = false;
  return status;
}

static void cuda_drain(const struct memory_context *context) {
  struct cuda *c = context->own;
  for (int i = 0; i < WAYS; i++)
    stream_look(c, &c->streams[i], c->driver->cuStreamSynchronize);
}

static const struct memory_copies cuda_copies = {
    .copy = cuda_copy,
    .finished = cuda_finished,
    .drain = cuda_drain,
};

const struct perigee_memory memory_cuda_kind = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .owner_of = cuda_owner_of,
    .allocate = cuda_allocate,
    .release = cuda_release,
    .why = cuda_why,
    .copies = &cuda_copies,
};
