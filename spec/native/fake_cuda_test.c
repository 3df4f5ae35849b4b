/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_cuda_test.c - the fake of CUDA's driver (spec/gpu/) in one process: what
 * it answers, and that it ends a process which does what real CUDA leaves
 * undefined. Each test is a child with a fake of its own, and is skipped unless
 * PERIGEE_CUDA_LIBRARY names the fake, as make check-gpu does.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support.h"

#include "fake_cuda.h"

enum { UNIT = 2 * MIB, PAGE = 4096, PINS = 16 * PAGE };
enum { READ = 1, READ_WRITE = 3 };
/* Errors that driver.h has no names for. */
enum { INVALID_VALUE = 1, NOT_FOUND = 500, REGISTERED = 712, NOT_SUCH = 713 };

/* A copy takes so long that the next call comes before its end. */
#define SLOW "slow=100000"
#define NEWER "version=13000"
#define BATCHES "version=12080"

static void copy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  WORKS(gpu.d->cuMemcpyAsync(to, from, bytes, gpu.stream));
}

static void rest(void) {
  WORKS(gpu.d->cuStreamSynchronize(gpu.stream));
}

static CUdeviceptr allocated(size_t bytes) {
  CUdeviceptr at = 0;
  WORKS(gpu.d->cuMemAlloc(&at, bytes));
  return at;
}

static uint8_t *pages(size_t bytes) {
  uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EQUAL(p == MAP_FAILED, false);
  return p;
}

static uint8_t *registered(size_t bytes, unsigned flags) {
  uint8_t *p = pages(bytes);
  WORKS(gpu.d->cuMemHostRegister(p, bytes, flags));
  return p;
}

/* Memory of a device that it may use. */
static struct virtual usable(size_t size, CUdevice device) {
  struct virtual v = virtual_new(size, device);
  WORKS(virtual_allow(&v, device, READ_WRITE));
  return v;
}

static uint64_t attribute(CUpointer_attribute which, CUdeviceptr at) {
  uint64_t cell = 0;
  void *cells[] = {&cell};
  WORKS(gpu.d->cuPointerGetAttributes(1, &which, cells, at));
  return cell;
}

/* ---- Devices -------------------------------------------------------------- */

static void uuid_is_of(CUdevice device, int machines) {
  CUuuid uuid, again;
  WORKS(gpu.d->cuDeviceGetUuid(&uuid, device));
  WORKS(gpu.d->cuDeviceGetUuid(&again, device));
  EQUAL(memcmp(&uuid, &again, sizeof uuid), 0);
  EQUAL(uuid.bytes[15], machines);
}

static void devices_have_names(void) {
  char name[32], ids[2][16], tight[12];
  size_t bytes = 0;
  int can = -1;
  WORKS(gpu.d->cuDeviceGetName(name, sizeof name, 1));
  EQUAL(strcmp(name, "Fake GPU"), 0);
  WORKS(gpu.d->cuDeviceTotalMem(&bytes, 1));
  EQUAL(bytes, (size_t)16 << 30);
  for (int i = 0; i < 2; i++)
    WORKS(gpu.d->cuDeviceGetPCIBusId(ids[i], sizeof *ids, i));
  EQUAL(strlen(ids[0]), 12);
  EQUAL(strcmp(ids[0], ids[1]) != 0, true);
  EQUAL(gpu.d->cuDeviceGetPCIBusId(tight, sizeof tight, 0), INVALID_VALUE);
  WORKS(gpu.d->cuDeviceCanAccessPeer(&can, 0, 1));
  EQUAL(can, 1);
  WORKS(gpu.d->cuDeviceCanAccessPeer(&can, 1, 1));
  EQUAL(can, 0);
  EQUAL(gpu.d->cuDeviceCanAccessPeer(&can, 0, 2), 101);
}

static void all_devices_are_shown(void) {
  EQUAL(gpu.devices, 2);
  uuid_is_of(0, 0);
  uuid_is_of(1, 1);
}

static void devices_are_shown_in_another_order(void) {
  EQUAL(gpu.devices, 2);
  uuid_is_of(0, 1);
  uuid_is_of(1, 0);
}

static void one_device_is_shown(void) {
  EQUAL(gpu.devices, 1);
  uuid_is_of(0, 1);
}

static int shown(const char *word) {
  void (*set)(const char *);
  int count = -1;
  *(void **)&set = fake_function("fake_cuda_set");
  set(word);
  WORKS(gpu.d->cuDeviceGetCount(&count));
  return count;
}

static void devices_that_are_listed_badly(void) {
  EQUAL(shown("visible=0,1"), 2);
  EQUAL(shown("visible=1,1"), 0);
  EQUAL(shown("visible=1,-1,0"), 1);
  EQUAL(shown("visible=x,0"), 0);
  EQUAL(shown("visible="), 0);
}

static void devices_that_are_no_peers(void) {
  struct virtual v = virtual_new(UNIT, 0);
  int can = -1;
  WORKS(gpu.d->cuDeviceCanAccessPeer(&can, 0, 1));
  EQUAL(can, 0);
  WORKS(virtual_allow(&v, 0, READ_WRITE));
  EQUAL(virtual_allow(&v, 1, READ_WRITE), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
}

static void calls_are_counted(void) {
  uint8_t *p = pinned_new(100);
  EQUAL(fake_count("cuMemcpyAsync"), 0);
  for (int i = 0; i < 3; i++)
    copy(address_of(p), address_of(p), 1);
  rest();
  EQUAL(fake_count("cuMemcpyAsync"), 3);
  EQUAL(fake_count("cuStreamSynchronize"), 1);
  EQUAL(fake_count("cuNothing"), 0);
}

/* ---- Memory --------------------------------------------------------------- */

static void memory_has_attributes(void) {
  CUdeviceptr one = allocated(100), other = allocated(100);
  struct virtual v = usable(UNIT, 1);
  uint8_t *host = pinned_new(100);
  EQUAL(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, one + 99), 2);
  EQUAL(attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, one), 1);
  EQUAL(attribute(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, one), 0);
  EQUAL(attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, v.at), 0);
  EQUAL(attribute(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, v.at), 1);
  EQUAL(attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, v.at), 1);
  EQUAL(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address_of(host)), 1);
  EQUAL(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address_of(&one)), 0);
  EQUAL(attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, address_of(&one)), 0);
  uint64_t id = attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, one);
  EQUAL(id != attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, other), true);
  WORKS(gpu.d->cuMemFree(one));
  one = allocated(100);
  EQUAL(id != attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, one), true);
}

static void managed_memory_is_the_hosts_too(void) {
  CUresult (*make)(CUdeviceptr *, size_t, unsigned);
  *(void **)&make = fake_function("cuMemAllocManaged");
  CUdeviceptr at = 0;
  WORKS(make(&at, 1000, 1));
  memset((void *)(uintptr_t)at, 5, 1000);
  device_same(at, 5, 1000);
  EQUAL(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at), 2);
  EQUAL(attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, at), 1);
  EQUAL(attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at), 0);
  WORKS(gpu.d->cuMemFree(at));
}

static void addresses_without_memory_are_unknown(void) {
  CUdeviceptr at = 0, base;
  WORKS(gpu.d->cuMemAddressReserve(&at, UNIT, 0, 0, 0));
  EQUAL(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at), 0);
  EQUAL(gpu.d->cuMemGetAddressRange(&base, NULL, at), NOT_FOUND);
  WORKS(gpu.d->cuMemAddressFree(at, UNIT));
}

static void an_allocation_has_a_range(void) {
  CUdeviceptr at = allocated(3 * PAGE), base = 0;
  size_t bytes = 0;
  WORKS(gpu.d->cuMemGetAddressRange(&base, &bytes, at + PAGE));
  EQUAL(base, at);
  EQUAL(bytes, 3 * PAGE);
  EQUAL(gpu.d->cuMemGetAddressRange(NULL, NULL, at), INVALID_VALUE);
}

static void mappings_fit_their_memory(void) {
  struct virtual v = virtual_new(2 * UNIT, 0);
  CUdeviceptr at = 0;
  WORKS(gpu.d->cuMemAddressReserve(&at, 4 * UNIT, 0, 0, 0));
  EQUAL(gpu.d->cuMemMap(at, UNIT, 0, v.handle, 0), INVALID_VALUE);
  EQUAL(gpu.d->cuMemMap(at, 4 * UNIT, 0, v.handle, 0), INVALID_VALUE);
  EQUAL(gpu.d->cuMemMap(at + 3 * UNIT, 2 * UNIT, 0, v.handle, 0),
        INVALID_VALUE);
  EQUAL(gpu.d->cuMemMap(address_of(&at), 2 * UNIT, 0, v.handle, 0),
        INVALID_VALUE);
  WORKS(gpu.d->cuMemMap(at, 2 * UNIT, 0, v.handle, 0));
  EQUAL(gpu.d->cuMemMap(at + UNIT, 2 * UNIT, 0, v.handle, 0), INVALID_VALUE);
}

/* The mapping keeps the memory, and its handle comes back. */
static void handles_are_retained(void) {
  struct virtual v = usable(UNIT, 0);
  CUmemGenericAllocationHandle again = 0;
  void *inside = (void *)(uintptr_t)(v.at + 100); /* NOLINT */
  device_set(v.at, 3, UNIT);
  WORKS(gpu.d->cuMemRelease(v.handle));
  WORKS(gpu.d->cuMemRetainAllocationHandle(&again, inside));
  struct virtual other = {again, virtual_map(again, UNIT), UNIT};
  WORKS(gpu.d->cuMemRelease(again));
  WORKS(gpu.d->cuMemUnmap(v.at, UNIT));
  WORKS(virtual_allow(&other, 0, READ));
  device_same(other.at, 3, UNIT);
  EQUAL(gpu.d->cuMemRetainAllocationHandle(&again, &other), INVALID_VALUE);
}

/* As allocators that grow do it. */
static void a_reservation_has_several_memories(void) {
  struct virtual a = virtual_new(UNIT, 0), b = virtual_new(UNIT, 0);
  struct virtual both = {0, 0, 2 * UNIT};
  CUdeviceptr base = 0;
  size_t bytes = 0;
  WORKS(gpu.d->cuMemAddressReserve(&both.at, 3 * UNIT, 0, 0, 0));
  WORKS(gpu.d->cuMemMap(both.at, UNIT, 0, a.handle, 0));
  WORKS(gpu.d->cuMemMap(both.at + UNIT, UNIT, 0, b.handle, 0));
  WORKS(virtual_allow(&both, 0, READ_WRITE));
  device_set(both.at + UNIT - 100, 9, 200);
  device_same(both.at + UNIT - 100, 9, 200);
  WORKS(gpu.d->cuMemGetAddressRange(&base, &bytes, both.at + UNIT + 1));
  EQUAL(base, both.at + UNIT);
  EQUAL(bytes, UNIT);
  WORKS(gpu.d->cuMemUnmap(both.at, 2 * UNIT));
  WORKS(gpu.d->cuMemAddressFree(both.at, 3 * UNIT));
}

static void memory_without_a_type_is_not_exported(void) {
  CUmemAllocationProp p = {.type = 1, .location = {1, 0}};
  CUmemGenericAllocationHandle handle = 0;
  int fd = -1;
  WORKS(gpu.d->cuMemCreate(&handle, UNIT, &p, 0));
  EQUAL(gpu.d->cuMemExportToShareableHandle(&fd, handle, 1, 0), INVALID_VALUE);
  p.requestedHandleTypes = 1;
  WORKS(gpu.d->cuMemCreate(&handle, UNIT, &p, 0));
  EQUAL(gpu.d->cuMemExportToShareableHandle(&fd, handle, 8, 0), INVALID_VALUE);
  WORKS(gpu.d->cuMemExportToShareableHandle(&fd, handle, 1, 0));
  p.requestedHandleTypes = 2; /* of Windows */
  EQUAL(gpu.d->cuMemCreate(&handle, UNIT, &p, 0), CUDA_ERROR_NOT_PERMITTED);
}

static void types_that_a_device_has_not_are_refused(void) {
  CUmemAllocationProp p = {
      .type = 1, .requestedHandleTypes = 1, .location = {1, 0}};
  CUmemGenericAllocationHandle handle = 0;
  EQUAL(gpu.d->cuMemCreate(&handle, UNIT, &p, 0), 801);
}

static void several_devices_get_access(void) {
  struct virtual a = virtual_new(UNIT, 0), b = usable(UNIT, 1);
  CUmemAccessDesc list[] = {{{1, 0}, READ_WRITE}, {{1, 1}, READ}};
  WORKS(gpu.d->cuMemSetAccess(a.at, UNIT, list, 2));
  device_set(a.at, 4, UNIT);
  WORKS(gpu.d->cuCtxPushCurrent(gpu.contexts[1]));
  CUstream stream;
  WORKS(gpu.d->cuStreamCreate(&stream, 1));
  WORKS(gpu.d->cuMemcpyAsync(b.at, a.at, UNIT, stream));
  WORKS(gpu.d->cuStreamSynchronize(stream));
  gpu.stream = stream;
  device_same(b.at, 4, UNIT);
  list[1].flags = 2;
  EQUAL(gpu.d->cuMemSetAccess(a.at, UNIT, list, 2), INVALID_VALUE);
  list[1] = (CUmemAccessDesc){{1, 2}, READ};
  EQUAL(gpu.d->cuMemSetAccess(a.at, UNIT, list, 2), 101);
  EQUAL(gpu.d->cuMemSetAccess(a.at, UNIT, list, 0), INVALID_VALUE);
}

static void host_memory_is_registered(void) {
  uint8_t *p = registered(PINS, 0);
  CUdeviceptr device = 0;
  device_set(address_of(p) + 1, 6, PINS - 1);
  EQUAL(p[PINS - 1], 6);
  WORKS(gpu.d->cuMemHostGetDevicePointer(&device, p, 0));
  EQUAL(device, address_of(p));
  EQUAL(gpu.d->cuMemHostRegister(p, PINS, 0), REGISTERED);
  EQUAL(gpu.d->cuMemHostRegister(p + PAGE, PAGE, 0), REGISTERED);
  EQUAL(gpu.d->cuMemHostRegister(pinned_new(PAGE), PAGE, 0), REGISTERED);
  EQUAL(gpu.d->cuMemHostUnregister(p + PAGE), NOT_SUCH);
  EQUAL(gpu.d->cuMemHostUnregister(pinned_new(PAGE)), NOT_SUCH);
  WORKS(gpu.d->cuMemHostUnregister(p));
  EQUAL(gpu.d->cuMemHostUnregister(p), NOT_SUCH);
  EQUAL(gpu.d->cuMemHostGetDevicePointer(&device, p, 0), INVALID_VALUE);
  WORKS(gpu.d->cuMemHostRegister(p, PAGE, 0));
}

static void nothing_is_not_registered(void) {
  uint8_t *p = pages(2 * PAGE);
  munmap(p + PAGE, PAGE);
  EQUAL(gpu.d->cuMemHostRegister(p, 2 * PAGE, 0), INVALID_VALUE);
  EQUAL(gpu.d->cuMemHostRegister(p, 0, 0), INVALID_VALUE);
  EQUAL(gpu.d->cuMemHostRegister(p, SIZE_MAX, 0), INVALID_VALUE);
  EQUAL(gpu.d->cuMemHostRegister(NULL, PAGE, 0), INVALID_VALUE);
  EQUAL(gpu.d->cuMemHostRegister((void *)(uintptr_t)allocated(PAGE), /*NOLINT*/
                                 PAGE, 0),
        INVALID_VALUE);
}

/* ---- Batches -------------------------------------------------------------- */

enum { ENTRIES = 3 };
static struct {
  CUdeviceptr to[ENTRIES], from[ENTRIES];
  size_t bytes[ENTRIES], firsts[ENTRIES];
  CUmemcpyAttributes attributes[ENTRIES];
  uint8_t *host;
  CUdeviceptr device;
} batch;

/* Entries of a page from the host's memory, in another order. */
static void batch_set(void) {
  batch.host = pinned_new(ENTRIES * PAGE);
  batch.device = allocated(ENTRIES * PAGE);
  for (int i = 0; i < ENTRIES; i++) {
    memset(batch.host + i * PAGE, i, PAGE);
    batch.from[i] = address_of(batch.host + i * PAGE);
    batch.to[i] = batch.device + (CUdeviceptr)((i + 1) % ENTRIES * PAGE);
    batch.bytes[i] = PAGE;
    batch.firsts[i] = (size_t)i;
    batch.attributes[i].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  }
}

static CUresult batch_ask(size_t attributes, CUstream stream, size_t *failed) {
  return gpu.d->cuMemcpyBatchAsync(batch.to, batch.from, batch.bytes, ENTRIES,
                                   batch.attributes, batch.firsts, attributes,
                                   failed, stream);
}

static void batch_refused(size_t attributes, size_t at) {
  size_t failed = 0;
  EQUAL(batch_ask(attributes, gpu.stream, &failed), INVALID_VALUE);
  EQUAL(failed, at);
}

static void a_batch_copies(void) {
  size_t failed = 0;
  batch_set();
  WORKS(batch_ask(1, gpu.stream, &failed));
  EQUAL(failed, SIZE_MAX);
  for (int i = 0; i < ENTRIES; i++)
    device_same(batch.to[i], i, PAGE);
  EQUAL(fake_count("cuMemcpyBatchAsync"), 1);
  EQUAL(fake_count("entries"), ENTRIES);
}

static void a_bad_batch_is_refused(void) {
  size_t failed = 0;
  batch_set();
  EQUAL(batch_ask(1, NULL, &failed), INVALID_VALUE);
  EQUAL(batch_ask(1, (CUstream)1, &failed), INVALID_VALUE); /* NOLINT */
  batch_refused(0, SIZE_MAX);
  batch_refused(ENTRIES + 1, SIZE_MAX);
  batch.bytes[1] = 0;
  batch_refused(1, 1);
  batch.bytes[1] = PAGE;
  batch.firsts[0] = 1;
  batch_refused(1, SIZE_MAX);
  batch.firsts[0] = batch.firsts[1] = 0;
  batch_refused(2, SIZE_MAX);
  batch.firsts[1] = ENTRIES;
  batch_refused(2, SIZE_MAX);
  batch.attributes[0].srcAccessOrder = 0;
  batch_refused(1, SIZE_MAX);
  EQUAL(fake_count("entries"), 0);
}

/* The stream has not changed the source yet when a batch may read it early. */
static void a_source_is_read_in_the_streams_order(void) {
  size_t failed = 0;
  for (int early = 0; early < 2; early++) {
    batch_set();
    batch.attributes[0].srcAccessOrder = early ? 3 : 1;
    WORKS(gpu.d->cuMemsetD8Async(batch.from[0], 99, PAGE, gpu.stream));
    WORKS(batch_ask(1, gpu.stream, &failed));
    device_same(batch.to[0], early ? 0 : 99, PAGE);
  }
}

static void an_older_driver_has_no_batches(void) {
  EQUAL(gpu.d->cuMemcpyBatchAsync == NULL, true);
}

typedef CUresult (*newer_batch)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t,
                                CUmemcpyAttributes *, size_t *, size_t,
                                CUstream);

/* What the driver gives when it is asked for the version. */
static void *batch_of(int version) {
  CUresult (*ask)(const char *, void **, int, uint64_t, int *);
  void *found = NULL;
  *(void **)&ask = fake_function("cuGetProcAddress_v2");
  WORKS(ask("cuMemcpyBatchAsync", &found, version, 0, NULL));
  return found;
}

static void a_newer_batch_has_other_arguments(void) {
  newer_batch newer;
  *(void **)&newer = batch_of(13000);
  batch_set();
  WORKS(newer(batch.to, batch.from, batch.bytes, ENTRIES, batch.attributes,
              batch.firsts, 1, gpu.stream));
  device_same(batch.to[2], 2, PAGE);
  EQUAL(batch_of(12080) != batch_of(13000), true);
}

static void an_older_batch_is_called_as_the_newer(void) {
  newer_batch older;
  *(void **)&older = batch_of(12080);
  batch_set();
  older(batch.to, batch.from, batch.bytes, ENTRIES, batch.attributes,
        batch.firsts, 1, gpu.stream);
}

static void a_newer_batch_is_called_as_the_older(void) {
  struct cuda_driver d = *gpu.d;
  size_t failed = 0;
  *(void **)&d.cuMemcpyBatchAsync = batch_of(13000);
  gpu.d = &d;
  batch_set();
  batch_ask(1, gpu.stream, &failed);
}

static void entries_write_one_place(void) {
  size_t failed = 0;
  batch_set();
  batch.to[2] = batch.to[0] + PAGE - 1;
  batch_ask(1, gpu.stream, &failed);
}

static void an_entry_reads_what_another_writes(void) {
  size_t failed = 0;
  batch_set();
  batch.from[1] = batch.to[0] + 1;
  batch_ask(1, gpu.stream, &failed);
}

/* ---- Misuse of streams ---------------------------------------------------- */

static void a_copy_of_memory_that_is_not_pinned(void) {
  copy(address_of(pages(PAGE)), address_of(pinned_new(PAGE)), PAGE);
}

static void a_copy_beyond_an_allocation(void) {
  CUdeviceptr at = allocated(PAGE);
  allocated(PAGE);
  copy(at, address_of(pinned_new(2 * PAGE)), PAGE + 1);
}

static void a_copy_to_addresses_without_memory(void) {
  CUdeviceptr at = 0;
  WORKS(gpu.d->cuMemAddressReserve(&at, UNIT, 0, 0, 0));
  copy(at, address_of(pinned_new(PAGE)), PAGE);
}

static void a_copy_without_access(void) {
  struct virtual v = virtual_new(UNIT, 0);
  copy(v.at, address_of(pinned_new(PAGE)), PAGE);
}

static void a_copy_with_the_access_of_another_device(void) {
  struct virtual v = usable(UNIT, 1);
  copy(v.at, address_of(pinned_new(PAGE)), PAGE);
}

static void access_that_was_taken_away(void) {
  struct virtual v = usable(UNIT, 0);
  WORKS(virtual_allow(&v, 0, 0));
  device_same(v.at, 0, PAGE);
}

static void a_write_of_memory_that_is_only_read(void) {
  struct virtual v = virtual_new(UNIT, 0);
  WORKS(virtual_allow(&v, 0, READ));
  device_same(v.at, 0, PAGE);
  device_set(v.at, 0, PAGE);
}

static void a_write_of_pins_that_are_only_read(void) {
  uint8_t *p = registered(PINS, 8);
  device_same(address_of(p), 0, PAGE);
  device_set(address_of(p), 0, PAGE);
}

static void a_peer_copy_that_names_another_device(void) {
  CUdeviceptr at = allocated(PAGE);
  gpu.d->cuMemcpyPeerAsync(at, gpu.contexts[1], at, gpu.contexts[0], 100,
                           gpu.stream);
}

static void a_peer_copy_of_memory_without_access(void) {
  struct virtual v = virtual_new(UNIT, 1);
  gpu.d->cuMemcpyPeerAsync(allocated(PAGE), gpu.contexts[0], v.at,
                           gpu.contexts[1], 100, gpu.stream);
}

/* ---- Events and host functions --------------------------------------------
 */

static CUevent event_new(void) {
  CUevent event = NULL;
  WORKS(gpu.d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  return event;
}

static _Atomic int host_called;

static void host_counts(void *with) {
  atomic_fetch_add(&host_called, *(int *)with);
}

/* A stream waits for the records that there were, and calls in its order. */
static void a_stream_waits_for_an_event(void) {
  CUstream other = NULL;
  CUevent event = event_new();
  static int one = 1;
  struct virtual from = virtual_new(UNIT, 0), to = virtual_new(UNIT, 0);
  WORKS(virtual_allow(&from, 0, 3));
  WORKS(virtual_allow(&to, 0, 3));
  WORKS(gpu.d->cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  WORKS(gpu.d->cuStreamWaitEvent(other, event, 0)); /* for none */
  WORKS(gpu.d->cuLaunchHostFunc(other, host_counts, &one));
  WORKS(gpu.d->cuStreamSynchronize(other));
  EQUAL(host_called, 1);
  WORKS(gpu.d->cuMemcpyAsync(to.at, from.at, UNIT, gpu.stream));
  WORKS(gpu.d->cuEventRecord(event, gpu.stream));
  WORKS(gpu.d->cuStreamWaitEvent(other, event, 0));
  WORKS(gpu.d->cuLaunchHostFunc(other, host_counts, &one));
  WORKS(gpu.d->cuEventDestroy(event));
  EQUAL(gpu.d->cuStreamQuery(other), CUDA_ERROR_NOT_READY);
  EQUAL(host_called, 1);
  WORKS(gpu.d->cuStreamSynchronize(other));
  EQUAL(gpu.d->cuStreamQuery(gpu.stream), CUDA_SUCCESS);
  EQUAL(host_called, 2);
  EQUAL(gpu.d->cuLaunchHostFunc(other, NULL, NULL), INVALID_VALUE);
}

static void host_asks(void *with) {
  gpu.d->cuStreamQuery(with);
}

static void a_host_function_calls_the_driver(void) {
  WORKS(gpu.d->cuLaunchHostFunc(gpu.stream, host_asks, gpu.stream));
  WORKS(gpu.d->cuStreamSynchronize(gpu.stream));
}

static void an_event_of_another_context(void) {
  CUevent event = event_new();
  CUstream other = NULL;
  WORKS(gpu.d->cuCtxPushCurrent(gpu.contexts[1]));
  WORKS(gpu.d->cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  gpu.d->cuEventRecord(event, other);
}

static void an_event_that_was_destroyed(void) {
  CUevent event = event_new();
  WORKS(gpu.d->cuEventDestroy(event));
  gpu.d->cuEventRecord(event, gpu.stream);
}

static void a_stream_of_another_context(void) {
  WORKS(gpu.d->cuCtxPushCurrent(gpu.contexts[1]));
  copy(allocated(PAGE), address_of(pinned_new(PAGE)), PAGE);
}

static void a_stream_that_was_destroyed(void) {
  CUdeviceptr at = allocated(PAGE);
  WORKS(gpu.d->cuStreamDestroy(gpu.stream));
  gpu.d->cuMemsetD8Async(at, 0, PAGE, gpu.stream);
}

static void a_stream_is_destroyed_at_work(void) {
  WORKS(gpu.d->cuMemsetD8Async(allocated(PAGE), 0, PAGE, gpu.stream));
  gpu.d->cuStreamDestroy(gpu.stream);
}

/* ---- Misuse of memory ----------------------------------------------------- */

static void memory_is_freed_that_is_none(void) {
  gpu.d->cuMemFree(allocated(PAGE) + 1);
}

static void memory_is_freed_twice(void) {
  CUdeviceptr at = allocated(PAGE);
  WORKS(gpu.d->cuMemFree(at));
  gpu.d->cuMemFree(at);
}

static void memory_is_freed_during_a_copy(void) {
  CUdeviceptr at = allocated(PAGE);
  WORKS(gpu.d->cuMemsetD8Async(at, 0, PAGE, gpu.stream));
  gpu.d->cuMemFree(at);
}

static void pins_are_freed_during_a_copy(void) {
  uint8_t *p = pinned_new(PAGE);
  copy(allocated(PAGE), address_of(p), PAGE);
  gpu.d->cuMemFreeHost(p);
}

static void pins_are_freed_that_are_registered(void) {
  gpu.d->cuMemFreeHost(registered(PINS, 0));
}

static void memory_is_unregistered_during_a_copy(void) {
  uint8_t *p = registered(PINS, 0);
  copy(allocated(PAGE), address_of(p + PAGE), PAGE);
  gpu.d->cuMemHostUnregister(p);
}

static void memory_is_unmapped_by_the_program_during_a_copy(void) {
  uint8_t *p = registered(PINS, 0);
  copy(allocated(PAGE), address_of(p + PAGE), PAGE);
  munmap(p, PINS);
  rest();
}

static void memory_is_unmapped_before_it_is_unregistered(void) {
  uint8_t *p = registered(PINS, 0);
  munmap(p + PAGE, PAGE);
  gpu.d->cuMemHostUnregister(p);
}

static void a_mapping_ends_during_a_copy(void) {
  struct virtual v = usable(UNIT, 0);
  WORKS(gpu.d->cuMemsetD8Async(v.at, 0, PAGE, gpu.stream));
  gpu.d->cuMemUnmap(v.at, UNIT);
}

static void a_part_of_a_mapping_ends(void) {
  struct virtual v = usable(2 * UNIT, 0);
  gpu.d->cuMemUnmap(v.at, UNIT);
}

static void access_to_nothing(void) {
  struct virtual v = {.size = UNIT};
  WORKS(gpu.d->cuMemAddressReserve(&v.at, UNIT, 0, 0, 0));
  virtual_allow(&v, 0, READ);
}

static void addresses_are_freed_under_a_mapping(void) {
  struct virtual v = usable(UNIT, 0);
  gpu.d->cuMemAddressFree(v.at, UNIT);
}

static void addresses_are_freed_in_part(void) {
  CUdeviceptr at = 0;
  WORKS(gpu.d->cuMemAddressReserve(&at, 2 * UNIT, 0, 0, 0));
  gpu.d->cuMemAddressFree(at, UNIT);
}

static void a_handle_is_released_twice(void) {
  struct virtual v = usable(UNIT, 0);
  WORKS(gpu.d->cuMemRelease(v.handle));
  gpu.d->cuMemRelease(v.handle);
}

static void a_released_handle_is_mapped(void) {
  struct virtual v = usable(UNIT, 0);
  CUdeviceptr at = 0;
  WORKS(gpu.d->cuMemRelease(v.handle));
  WORKS(gpu.d->cuMemAddressReserve(&at, UNIT, 0, 0, 0));
  gpu.d->cuMemMap(at, UNIT, 0, v.handle, 0);
}

static void a_released_handle_is_exported(void) {
  struct virtual v = usable(UNIT, 0);
  int fd;
  WORKS(gpu.d->cuMemRelease(v.handle));
  gpu.d->cuMemExportToShareableHandle(&fd, v.handle, 1, 0);
}

/* The CPU has no such memory; its signal is told by the sentence here. */
static void say_and_abort(int signal) {
  static const char sentence[] = "no memory of the CPU";
  (void)signal;
  if (write(STDERR_FILENO, sentence, sizeof sentence) > 0)
    abort();
}

static void the_cpu_touches_memory(void) {
  signal(SIGSEGV, say_and_abort);
  *(volatile uint8_t *)(uintptr_t)allocated(PAGE) = 1; /* NOLINT */
}

/* ---- Misuse of contexts --------------------------------------------------- */

static void no_context_is_current(void) {
  CUcontext was;
  CUdeviceptr at;
  WORKS(gpu.d->cuCtxPopCurrent(&was));
  gpu.d->cuMemAlloc(&at, PAGE);
}

static void a_context_was_released(void) {
  CUdeviceptr at;
  WORKS(gpu.d->cuDevicePrimaryCtxRelease(0));
  gpu.d->cuMemAlloc(&at, PAGE);
}

static void a_context_is_released_twice(void) {
  WORKS(gpu.d->cuDevicePrimaryCtxRelease(1));
  gpu.d->cuDevicePrimaryCtxRelease(1);
}

static void an_older_function_is_called(void) {
  CUresult (*old)(void);
  *(void **)&old = fake_function("cuMemGetAddressRange");
  old();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CHILD("", devices_have_names, NULL),
      CHILD("", all_devices_are_shown, NULL),
      CHILD("visible=1,0", devices_are_shown_in_another_order, NULL),
      CHILD("visible=1,7,0", one_device_is_shown, NULL),
      CHILD("", devices_that_are_listed_badly, NULL),
      CHILD("peers=0", devices_that_are_no_peers, NULL),
      CHILD("", calls_are_counted, NULL),
      CHILD("", memory_has_attributes, NULL),
      CHILD("", managed_memory_is_the_hosts_too, NULL),
      CHILD("", addresses_without_memory_are_unknown, NULL),
      CHILD("", an_allocation_has_a_range, NULL),
      CHILD("", mappings_fit_their_memory, NULL),
      CHILD("", handles_are_retained, NULL),
      CHILD("", a_reservation_has_several_memories, NULL),
      CHILD("", memory_without_a_type_is_not_exported, NULL),
      CHILD("without=103", types_that_a_device_has_not_are_refused, NULL),
      CHILD("", several_devices_get_access, NULL),
      CHILD("", host_memory_is_registered, NULL),
      CHILD("", nothing_is_not_registered, NULL),
      CHILD(BATCHES, a_batch_copies, NULL),
      CHILD(BATCHES, a_bad_batch_is_refused, NULL),
      CHILD(BATCHES " " SLOW, a_source_is_read_in_the_streams_order, NULL),
      CHILD("", an_older_driver_has_no_batches, NULL),
      CHILD(NEWER, a_newer_batch_has_other_arguments, NULL),
      CHILD(NEWER, an_older_batch_is_called_as_the_newer,
            "with the arguments of the newer one"),
      CHILD(NEWER, a_newer_batch_is_called_as_the_older,
            "a stream that there is not"),
      CHILD(BATCHES, entries_write_one_place, "entries overlap"),
      CHILD(BATCHES, an_entry_reads_what_another_writes, "entries overlap"),
      CHILD("", a_copy_of_memory_that_is_not_pinned, "nor pinned"),
      CHILD("", a_copy_beyond_an_allocation, "go beyond an allocation"),
      CHILD("", a_copy_to_addresses_without_memory, "nor pinned"),
      CHILD("", a_copy_without_access, "has not allowed"),
      CHILD("", a_copy_with_the_access_of_another_device, "has not allowed"),
      CHILD("", access_that_was_taken_away, "has not allowed"),
      CHILD("", a_write_of_memory_that_is_only_read, "may only read"),
      CHILD("", a_write_of_pins_that_are_only_read, "may only read"),
      CHILD("", a_peer_copy_that_names_another_device, "than it names"),
      CHILD("", a_peer_copy_of_memory_without_access, "has not allowed"),
      CHILD(SLOW, a_stream_waits_for_an_event, NULL),
      CHILD("", a_host_function_calls_the_driver, "in a host function"),
      CHILD("", an_event_of_another_context, "another context than the"),
      CHILD("", an_event_that_was_destroyed, "an event that there is not"),
      CHILD("", a_stream_of_another_context, "another context"),
      CHILD("", a_stream_that_was_destroyed, "that there is not"),
      CHILD(SLOW, a_stream_is_destroyed_at_work, "that is at work"),
      CHILD("", memory_is_freed_that_is_none, "cuMemAlloc did not give"),
      CHILD("", memory_is_freed_twice, "cuMemAlloc did not give"),
      CHILD(SLOW, memory_is_freed_during_a_copy, "a stream is copying"),
      CHILD(SLOW, pins_are_freed_during_a_copy, "a stream is copying"),
      CHILD("", pins_are_freed_that_are_registered, "did not give"),
      CHILD(SLOW, memory_is_unregistered_during_a_copy, "a stream is copying"),
      CHILD(SLOW, memory_is_unmapped_by_the_program_during_a_copy,
            "memory that was unmapped"),
      CHILD("", memory_is_unmapped_before_it_is_unregistered,
            "was unmapped before"),
      CHILD(SLOW, a_mapping_ends_during_a_copy, "a stream is copying"),
      CHILD("", a_part_of_a_mapping_ends, "not as a whole"),
      CHILD("", access_to_nothing, "cuMemSetAccess of what is not mapped"),
      CHILD("", addresses_are_freed_under_a_mapping, "that are mapped"),
      CHILD("", addresses_are_freed_in_part, "cuMemAddressReserve did not"),
      CHILD("", a_handle_is_released_twice, "a handle that there is not"),
      CHILD("", a_released_handle_is_mapped, "a handle that there is not"),
      CHILD("", a_released_handle_is_exported, "a handle that there is not"),
      CHILD("", the_cpu_touches_memory, "no memory of the CPU"),
      CHILD("", no_context_is_current, "without a current context"),
      CHILD("", a_context_was_released, "a context that was released"),
      CHILD("", a_context_is_released_twice, "more often than retained"),
      CHILD("", an_older_function_is_called, "an older cuMemGetAddressRange"),
  };
  return cmocka_run_group_tests_name("fake_cuda", tests, NULL, NULL);
}
