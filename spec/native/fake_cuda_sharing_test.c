/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_cuda_sharing_test.c - the fake of CUDA's driver (spec/gpu/) in two
 * processes, of which the first one's memory is used by the second one: by a
 * descriptor over a socket, and by handles of 64 bytes of both kinds. What is
 * forged is refused. The tests are skipped unless PERIGEE_CUDA_LIBRARY names the fake.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support.h"

#include "fake_cuda.h"

enum { UNIT = 2 * MIB, SIZE = 2 * UNIT, ODD = 10000, PAGE = 4096 };
enum {
  READ = 1,
  READ_WRITE = 3,
  SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW
};
/* Errors that driver.h has no names for. */
enum { INVALID_VALUE = 1, MAP_FAILED_THERE = 205 };

/* The second one's devices have other numbers. */
static void two(void (*first)(void), const char *sentence, const char *settings,
                void (*second)(void)) {
  const struct child list[] = {{"", first, sentence}, {settings, second, NULL}};
  children_run(list, 2);
}

/* The first one's devices have fabric handles. */
static void two_fabric(void (*first)(void), const char *settings,
                       void (*second)(void)) {
  const struct child list[] = {{"fabric=1", first, NULL},
                               {settings, second, NULL}};
  children_run(list, 2);
}

static void ready(void) {
  give("", 1);
}

static void until_ready(void) {
  char byte;
  EQUAL(get(&byte, 1), true);
}

static void until_it_ends(void) {
  char byte;
  EQUAL(get(&byte, 1), false);
}

/* ---- Descriptors ---------------------------------------------------------- */

static CUresult import(CUmemGenericAllocationHandle *handle, uintptr_t fd) {
  return gpu.d->cuMemImportFromShareableHandle(
      handle, (void *)fd, /* NOLINT(performance-no-int-to-ptr) */
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

static int exported(const struct virtual *v) {
  int fd = -1;
  WORKS(gpu.d->cuMemExportToShareableHandle(
      &fd, v->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
  return fd;
}

/* Gives memory of device 0 that is full of 7. */
static struct virtual given(void) {
  struct virtual v = virtual_new(SIZE, 0);
  WORKS(virtual_allow(&v, 0, READ_WRITE));
  device_set(v.at, 7, SIZE);
  int fd = exported(&v);
  give_descriptor(fd);
  close(fd);
  return v;
}

/* Takes it, as memory of the device that it is of here. */
static struct virtual taken_over(CUdevice device) {
  struct virtual v = {.size = SIZE};
  int fd = get_descriptor(), is = -1;
  CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
  void *cells[] = {&is};
  WORKS(import(&v.handle, (uintptr_t)fd));
  close(fd);
  v.at = virtual_map(v.handle, SIZE);
  WORKS(gpu.d->cuMemRelease(v.handle));
  WORKS(gpu.d->cuPointerGetAttributes(1, &asked, cells, v.at));
  EQUAL(is, device);
  return v;
}

static void gives_and_sees_8(void) {
  struct virtual v = given();
  until_ready();
  device_same(v.at, 8, SIZE);
}

static void takes_and_writes_8(void) {
  struct virtual v = taken_over(1);
  WORKS(virtual_allow(&v, 0, READ_WRITE));
  device_same(v.at, 7, SIZE);
  device_set(v.at, 8, SIZE);
  ready();
}

static void memory_is_shared_by_its_descriptor(void **state) {
  (void)state;
  two(gives_and_sees_8, NULL, "visible=1,0", takes_and_writes_8);
}

static void gives_and_ends(void) {
  struct virtual v = given();
  WORKS(gpu.d->cuMemUnmap(v.at, SIZE));
  WORKS(gpu.d->cuMemRelease(v.handle));
}

static void takes_when_the_other_has_ended(void) {
  struct virtual v = taken_over(0);
  until_it_ends();
  WORKS(virtual_allow(&v, 0, READ));
  device_same(v.at, 7, SIZE);
}

static void memory_is_there_when_its_maker_has_ended(void **state) {
  (void)state;
  two(gives_and_ends, NULL, "", takes_when_the_other_has_ended);
}

static void gives(void) {
  given();
  until_it_ends();
}

static void takes_of_a_device_that_it_does_not_see(void) {
  CUmemGenericAllocationHandle handle = 0;
  EQUAL(import(&handle, (uintptr_t)get_descriptor()), CUDA_ERROR_NOT_SUPPORTED);
}

static void memory_of_an_unseen_device_is_refused(void **state) {
  (void)state;
  two(gives, NULL, "visible=1", takes_of_a_device_that_it_does_not_see);
}

/* ---- Forged descriptors --------------------------------------------------- */

static void refused(int fd) {
  CUmemGenericAllocationHandle handle = 0;
  EQUAL(import(&handle, (uintptr_t)fd), CUDA_ERROR_INVALID_HANDLE);
  close(fd);
}

/* A file that looks like memory, but for what is in its last page. */
static int file_like(size_t size, const void *card, int seals) {
  int fd = memfd_create("fake cuda", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  WORKS(ftruncate(fd, (off_t)size));
  EQUAL(pwrite(fd, card, PAGE, (off_t)size - PAGE), PAGE);
  WORKS(fcntl(fd, F_ADD_SEALS, seals));
  return fd;
}

static void card_get(int fd, uint8_t card[PAGE]) {
  EQUAL(pread(fd, card, PAGE, SIZE), PAGE);
}

static void refuses_what_is_no_memory(void) {
  CUmemGenericAllocationHandle handle = 0;
  int ends[2];
  WORKS(pipe(ends));
  refused(ends[0]);
  refused(ends[1]);
  refused(open("/dev/zero", O_RDWR | O_CLOEXEC));
  refused(open("/", O_RDONLY | O_CLOEXEC));
  refused(dup(gpu.socket));
  refused(memfd_create("fake cuda", MFD_CLOEXEC));
  EQUAL(import(&handle, 1000000), CUDA_ERROR_INVALID_HANDLE);
  EQUAL(import(&handle, (uintptr_t)-1), CUDA_ERROR_INVALID_HANDLE);
  EQUAL(gpu.d->cuMemImportFromShareableHandle(&handle, NULL, 8), INVALID_VALUE);
}

/* Everything but one thing is as it should be. */
static void refuses_what_is_forged(void) {
  struct virtual v = virtual_new(SIZE, 0);
  CUmemGenericAllocationHandle handle = 0;
  uint8_t card[PAGE], zeros[PAGE] = {0};
  char path[64];
  int fd = exported(&v);
  card_get(fd, card);
  refused(file_like(SIZE + PAGE, zeros, SEALS));
  refused(file_like(SIZE + PAGE, card, F_SEAL_SEAL | F_SEAL_SHRINK));
  refused(file_like(SIZE + PAGE, card, SEALS | F_SEAL_WRITE));
  refused(file_like(UNIT + PAGE, card, SEALS));
  refused(file_like(PAGE, card, SEALS));
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  refused(open(path, O_RDONLY | O_CLOEXEC));
  WORKS(import(&handle, (uintptr_t)fd));
}

/* Whatever its owner writes into the card: the driver gives an error, or memory
 * that can be used as a whole. */
static void survives_a_card_that_changes(void) {
  struct virtual v = virtual_new(SIZE, 0), again = {.size = SIZE};
  uint8_t card[PAGE];
  int fd = exported(&v), refusals = 0;
  card_get(fd, card);
  for (int i = 0; i < 100 * 8; i++) {
    uint8_t byte = card[i / 8] ^ (uint8_t)(1 << i % 8);
    EQUAL(pwrite(fd, &byte, 1, SIZE + i / 8), 1);
    bool good = import(&again.handle, (uintptr_t)fd) == CUDA_SUCCESS;
    EQUAL(pwrite(fd, &card[i / 8], 1, SIZE + i / 8), 1);
    refusals += !good;
    if (!good)
      continue;
    again.at = virtual_map(again.handle, SIZE);
    WORKS(virtual_allow(&again, 0, READ_WRITE));
    device_set(again.at + SIZE - 1, 1, 1);
    WORKS(gpu.d->cuMemUnmap(again.at, SIZE));
    WORKS(gpu.d->cuMemAddressFree(again.at, SIZE));
    WORKS(gpu.d->cuMemRelease(again.handle));
  }
  EQUAL(refusals >= 16 * 8 + 64 + 64, true); /* magic, size, kinds */
}

/* ---- Fabric handles ------------------------------------------------------- */

enum {
  BOTH = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC
};

static struct virtual fabric_7(void) {
  struct virtual v = virtual_typed(SIZE, 0, BOTH);
  WORKS(virtual_allow(&v, 0, READ_WRITE));
  device_set(v.at, 7, SIZE);
  return v;
}

static void give_fabric(const struct virtual *v) {
  CUmemFabricHandle handle;
  WORKS(gpu.d->cuMemExportToShareableHandle(&handle, v->handle,
                                            CU_MEM_HANDLE_TYPE_FABRIC, 0));
  give(&handle, sizeof handle);
}

static CUmemFabricHandle get_fabric(void) {
  CUmemFabricHandle handle;
  EQUAL(get(&handle, sizeof handle), true);
  return handle;
}

static CUresult import_fabric(CUmemGenericAllocationHandle *made,
                              CUmemFabricHandle handle) {
  return gpu.d->cuMemImportFromShareableHandle(made, &handle,
                                               CU_MEM_HANDLE_TYPE_FABRIC);
}

static struct virtual fabric_taken(void) {
  struct virtual v = {.size = SIZE};
  WORKS(import_fabric(&v.handle, get_fabric()));
  v.at = virtual_map(v.handle, SIZE);
  WORKS(gpu.d->cuMemRelease(v.handle));
  WORKS(virtual_allow(&v, 0, READ_WRITE));
  return v;
}

static void fabric_free(const struct virtual *v) {
  WORKS(gpu.d->cuMemUnmap(v->at, SIZE));
  WORKS(gpu.d->cuMemAddressFree(v->at, SIZE));
}

static void gives_fabric_and_sees_8(void) {
  struct virtual v = fabric_7();
  give_fabric(&v);
  until_ready();
  device_same(v.at, 8, SIZE);
  WORKS(gpu.d->cuMemRelease(v.handle));
  fabric_free(&v);
  EQUAL(fake_count("freed while imported"), 0);
}

static void takes_fabric_and_writes_8(void) {
  struct virtual v = fabric_taken();
  device_same(v.at, 7, SIZE);
  device_set(v.at, 8, SIZE);
  fabric_free(&v);
  ready();
}

/* The second one sees another device only, as a process of another host does. */
static void memory_is_shared_by_its_fabric_handle(void **state) {
  (void)state;
  two_fabric(gives_fabric_and_sees_8, "fabric=1 visible=1",
             takes_fabric_and_writes_8);
}

static void gives_fabric_and_frees(void) {
  struct virtual v = fabric_7();
  give_fabric(&v);
  until_ready();
  WORKS(gpu.d->cuMemRelease(v.handle));
  fabric_free(&v);
  EQUAL(fake_count("freed while imported"), 1);
  give_fabric(&(struct virtual){.handle = fabric_7().handle});
  ready();
  until_it_ends();
}

/* The driver keeps the memory, but nobody can import it any more. */
static void has_what_was_freed(void) {
  CUmemFabricHandle handle = get_fabric();
  struct virtual v = {.size = SIZE}, again;
  WORKS(import_fabric(&v.handle, handle));
  v.at = virtual_map(v.handle, SIZE);
  WORKS(virtual_allow(&v, 0, READ));
  ready();
  again = fabric_taken();
  until_ready();
  device_same(v.at, 7, SIZE);
  device_same(again.at, 7, SIZE);
  EQUAL(import_fabric(&v.handle, handle), CUDA_ERROR_INVALID_HANDLE);
}

static void imported_memory_stays_when_its_owner_frees_it(void **state) {
  (void)state;
  two_fabric(gives_fabric_and_frees, "fabric=1", has_what_was_freed);
}

static void gives_fabric(void) {
  struct virtual v = fabric_7();
  give_fabric(&v);
  until_it_ends();
}

static void gives_fabric_and_ends(void) {
  struct virtual v = fabric_7();
  give_fabric(&v);
}

static void imports_of_a_dead_process(void) {
  CUmemGenericAllocationHandle made;
  CUmemFabricHandle handle = get_fabric();
  until_it_ends();
  EQUAL(import_fabric(&made, handle), CUDA_ERROR_INVALID_HANDLE);
}

static void a_fabric_handle_of_a_dead_process_is_refused(void **state) {
  (void)state;
  two_fabric(gives_fabric_and_ends, "fabric=1", imports_of_a_dead_process);
}

static void imports_what_is_forged(void) {
  CUmemFabricHandle handle = get_fabric(), forged = {{0}};
  CUmemGenericAllocationHandle made;
  EQUAL(import_fabric(&made, forged), CUDA_ERROR_INVALID_HANDLE);
  memset(&forged, 0xff, sizeof forged);
  EQUAL(import_fabric(&made, forged), CUDA_ERROR_INVALID_HANDLE);
  for (size_t bit = 0; bit < 8 * sizeof handle; bit++) {
    forged = handle;
    forged.data[bit / 8] ^= (unsigned char)(1 << bit % 8);
    EQUAL(import_fabric(&made, forged) != CUDA_SUCCESS, true);
  }
  WORKS(import_fabric(&made, handle));
}

static void a_forged_fabric_handle_is_refused(void **state) {
  (void)state;
  two_fabric(gives_fabric, "fabric=1", imports_what_is_forged);
}

static void imports_without_permission(void) {
  CUmemGenericAllocationHandle made;
  EQUAL(import_fabric(&made, get_fabric()), CUDA_ERROR_NOT_PERMITTED);
}

static void a_fabric_handle_of_another_channel_is_refused(void **state) {
  (void)state;
  two_fabric(gives_fabric, "fabric=1 channel=2", imports_without_permission);
  two_fabric(gives_fabric, "fabric=1 channel=0", imports_without_permission);
}

static CUresult created_for_fabric(void) {
  CUmemGenericAllocationHandle made;
  CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                           .requestedHandleTypes = BOTH,
                           .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  return gpu.d->cuMemCreate(&made, SIZE, &p, 0);
}

static void makes_none_without_permission(void) {
  EQUAL(created_for_fabric(), CUDA_ERROR_NOT_PERMITTED);
}

static void makes_none(void) {
  EQUAL(created_for_fabric(), CUDA_ERROR_NOT_SUPPORTED);
}

static void exports_only_what_was_made_for_it(void) {
  struct virtual v = virtual_new(SIZE, 0);
  CUmemFabricHandle handle;
  EQUAL(gpu.d->cuMemExportToShareableHandle(&handle, v.handle,
                                            CU_MEM_HANDLE_TYPE_FABRIC, 0),
        INVALID_VALUE);
}

/* ---- Handles -------------------------------------------------------------- */

static CUdeviceptr allocated_7(void) {
  CUdeviceptr at = 0;
  WORKS(gpu.d->cuMemAlloc(&at, ODD));
  device_set(at, 7, ODD);
  return at;
}

static void give_handle(CUdeviceptr at) {
  CUipcMemHandle handle;
  WORKS(gpu.d->cuIpcGetMemHandle(&handle, at));
  give(&handle, sizeof handle);
}

static CUipcMemHandle get_handle(void) {
  CUipcMemHandle handle;
  EQUAL(get(&handle, sizeof handle), true);
  return handle;
}

static CUresult open_flagged(CUdeviceptr *at, CUipcMemHandle handle,
                             unsigned flags) {
  return gpu.d->cuIpcOpenMemHandle(at, handle, flags);
}

static CUresult open_handle(CUdeviceptr *at, CUipcMemHandle handle) {
  return open_flagged(at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static CUdeviceptr opened(CUipcMemHandle handle) {
  CUdeviceptr at = 0;
  WORKS(open_handle(&at, handle));
  return at;
}

/* The handle names the whole allocation, whatever address was asked with. */
static void lends_and_sees_8(void) {
  CUdeviceptr at = allocated_7();
  give_handle(at + 100);
  until_ready();
  device_same(at, 8, ODD);
  give_handle(at);
  until_ready();
  WORKS(gpu.d->cuMemFree(at));
}

static void opens_and_writes_8(void) {
  CUdeviceptr at = opened(get_handle()), base = 0;
  size_t bytes = 0;
  WORKS(gpu.d->cuMemGetAddressRange(&base, &bytes, at));
  EQUAL(base == at && bytes >= ODD, true);
  device_same(at, 7, ODD);
  device_set(at, 8, ODD);
  ready();
  EQUAL(opened(get_handle()), at);
  WORKS(gpu.d->cuIpcCloseMemHandle(at));
  device_same(at, 8, ODD);
  WORKS(gpu.d->cuIpcCloseMemHandle(at));
  EQUAL(fake_count("cuIpcOpenMemHandle"), 2);
  ready();
}

static void memory_is_shared_by_its_handle(void **state) {
  (void)state;
  two(lends_and_sees_8, NULL, "", opens_and_writes_8);
}

static void lends(void) {
  give_handle(allocated_7());
  until_it_ends();
}

/* Memory of the machine's device 0, which is number 1 here. */
static void opens_in_each_context(void) {
  CUipcMemHandle handle = get_handle();
  CUdeviceptr by_0 = opened(handle);
  device_same(by_0, 7, ODD);
  WORKS(gpu.d->cuCtxPushCurrent(gpu.contexts[1]));
  CUdeviceptr by_1 = opened(handle);
  EQUAL(by_0 != by_1, true);
  WORKS(gpu.d->cuIpcCloseMemHandle(by_1));
  WORKS(gpu.d->cuCtxPopCurrent(&gpu.contexts[1]));
  WORKS(gpu.d->cuIpcCloseMemHandle(by_0));
}

static void each_context_opens_for_itself(void **state) {
  (void)state;
  two(lends, NULL, "visible=1,0", opens_in_each_context);
}

static void opens_of_no_peer(void) {
  CUdeviceptr at;
  EQUAL(open_handle(&at, get_handle()), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
}

static void a_device_that_is_no_peer_opens_nothing(void **state) {
  (void)state;
  two(lends, NULL, "visible=1,0 peers=0", opens_of_no_peer);
}

static void opens_of_an_unseen_device(void) {
  CUdeviceptr at;
  EQUAL(open_handle(&at, get_handle()), MAP_FAILED_THERE);
}

static void memory_of_an_unseen_device_is_not_opened(void **state) {
  (void)state;
  two(lends, NULL, "visible=1", opens_of_an_unseen_device);
}

static void lends_and_ends(void) {
  give_handle(allocated_7());
}

static void opens_when_the_other_has_ended(void) {
  CUipcMemHandle handle = get_handle();
  CUdeviceptr at;
  until_it_ends();
  EQUAL(open_handle(&at, handle), INVALID_VALUE);
}

static void a_handle_of_a_dead_process_is_refused(void **state) {
  (void)state;
  two(lends_and_ends, NULL, "", opens_when_the_other_has_ended);
}

/* The next file may have the number of the freed one. */
static void lends_what_it_frees(void) {
  CUdeviceptr at = allocated_7();
  give_handle(at);
  WORKS(gpu.d->cuMemFree(at));
  allocated_7();
  ready();
  until_it_ends();
}

static void opens_what_was_freed(void) {
  CUipcMemHandle handle = get_handle();
  CUdeviceptr at;
  until_ready();
  EQUAL(open_handle(&at, handle), INVALID_VALUE);
}

static void a_handle_of_freed_memory_is_refused(void **state) {
  (void)state;
  two(lends_what_it_frees, NULL, "", opens_what_was_freed);
}

static void memory_has_no_handle(void) {
  struct virtual v = virtual_new(UNIT, 0);
  CUipcMemHandle handle;
  EQUAL(gpu.d->cuIpcGetMemHandle(&handle, v.at), INVALID_VALUE);
  EQUAL(gpu.d->cuIpcGetMemHandle(&handle, address_of(pinned_new(PAGE))),
        INVALID_VALUE);
  EQUAL(gpu.d->cuIpcGetMemHandle(&handle, address_of(&v)), INVALID_VALUE);
}

static void opens_what_is_forged(void) {
  CUipcMemHandle handle = get_handle(), forged = {{0}};
  CUdeviceptr at;
  EQUAL(open_handle(&at, forged), INVALID_VALUE);
  memset(&forged, 0xff, sizeof forged);
  EQUAL(open_handle(&at, forged), INVALID_VALUE);
  EQUAL(open_flagged(&at, handle, 0), INVALID_VALUE);
  EQUAL(open_flagged(&at, handle, 3), INVALID_VALUE);
  for (size_t bit = 0; bit < 8 * sizeof handle; bit++) {
    forged = handle;
    forged.reserved[bit / 8] = (char)(forged.reserved[bit / 8] ^ 1 << bit % 8);
    EQUAL(open_handle(&at, forged), INVALID_VALUE);
  }
  opened(handle);
}

static void a_forged_handle_is_refused(void **state) {
  (void)state;
  two(lends, NULL, "", opens_what_is_forged);
}

/* ---- Misuse --------------------------------------------------------------- */

static void opens_its_own(void) {
  CUipcMemHandle handle;
  CUdeviceptr at = allocated_7();
  WORKS(gpu.d->cuIpcGetMemHandle(&handle, at));
  open_handle(&at, handle);
}

static void closes_what_is_not_open(void) {
  gpu.d->cuIpcCloseMemHandle(allocated_7());
}

static void frees_what_is_open(void) {
  CUdeviceptr at = allocated_7();
  give_handle(at);
  until_ready();
  gpu.d->cuMemFree(at);
}

static void opens_and_keeps(void) {
  opened(get_handle());
  ready();
  until_it_ends();
}

static void memory_that_is_open_elsewhere_is_freed(void **state) {
  (void)state;
  two(frees_what_is_open, "another process has open", "", opens_and_keeps);
}

static void frees_when_the_other_has_ended(void) {
  CUdeviceptr at = allocated_7();
  give_handle(at);
  until_ready();
  until_it_ends();
  WORKS(gpu.d->cuMemFree(at));
}

static void opens_and_ends(void) {
  opened(get_handle());
  ready();
}

/* Its socket is closed before or after the memory. */
static void who_has_ended_has_nothing_open(void **state) {
  (void)state;
  for (int i = 0; i < 20; i++)
    two(frees_when_the_other_has_ended, NULL, "", opens_and_ends);
}

/* Runs two, of which the second one must end with the sentence. */
static void lent_to(void (*second)(void), const char *sentence) {
  const struct child list[] = {{"", lends, NULL},
                               {"slow=100000", second, sentence}};
  children_run(list, 2);
}

static void closes_too_often(void) {
  CUdeviceptr at = opened(get_handle());
  WORKS(gpu.d->cuIpcCloseMemHandle(at));
  gpu.d->cuIpcCloseMemHandle(at);
}

static void a_handle_is_closed_too_often(void **state) {
  (void)state;
  lent_to(closes_too_often, "this context has not open");
}

static void closes_in_another_context(void) {
  CUdeviceptr at = opened(get_handle());
  WORKS(gpu.d->cuCtxPushCurrent(gpu.contexts[1]));
  gpu.d->cuIpcCloseMemHandle(at);
}

static void a_handle_is_closed_in_another_context(void **state) {
  (void)state;
  lent_to(closes_in_another_context, "this context has not open");
}

static void closes_during_a_copy(void) {
  CUdeviceptr at = opened(get_handle());
  WORKS(gpu.d->cuMemsetD8Async(at, 1, ODD, gpu.stream));
  gpu.d->cuIpcCloseMemHandle(at);
}

static void a_handle_is_closed_during_a_copy(void **state) {
  (void)state;
  lent_to(closes_during_a_copy, "a stream is copying");
}

static void frees_what_it_has_opened(void) {
  gpu.d->cuMemFree(opened(get_handle()));
}

static void opened_memory_is_freed(void **state) {
  (void)state;
  lent_to(frees_what_it_has_opened, "cuMemAlloc did not give");
}

static void copies_by_another_device(void) {
  CUdeviceptr at = opened(get_handle());
  CUstream stream;
  WORKS(gpu.d->cuCtxPushCurrent(gpu.contexts[1]));
  WORKS(gpu.d->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  gpu.d->cuMemsetD8Async(at, 1, ODD, stream);
}

static void opened_memory_is_copied_by_another_device(void **state) {
  (void)state;
  lent_to(copies_by_another_device, "opened in a context of device 0");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(memory_is_shared_by_its_descriptor),
      cmocka_unit_test(memory_is_there_when_its_maker_has_ended),
      cmocka_unit_test(memory_of_an_unseen_device_is_refused),
      CHILD("", refuses_what_is_no_memory, NULL),
      CHILD("", refuses_what_is_forged, NULL),
      CHILD("", survives_a_card_that_changes, NULL),
      cmocka_unit_test(memory_is_shared_by_its_fabric_handle),
      cmocka_unit_test(imported_memory_stays_when_its_owner_frees_it),
      cmocka_unit_test(a_fabric_handle_of_a_dead_process_is_refused),
      cmocka_unit_test(a_forged_fabric_handle_is_refused),
      cmocka_unit_test(a_fabric_handle_of_another_channel_is_refused),
      CHILD("fabric=1 channel=0", makes_none_without_permission, NULL),
      CHILD("", makes_none, NULL),
      CHILD("fabric=1 version=12030", makes_none, NULL),
      CHILD("fabric=1", exports_only_what_was_made_for_it, NULL),
      cmocka_unit_test(memory_is_shared_by_its_handle),
      cmocka_unit_test(each_context_opens_for_itself),
      cmocka_unit_test(a_device_that_is_no_peer_opens_nothing),
      cmocka_unit_test(memory_of_an_unseen_device_is_not_opened),
      cmocka_unit_test(a_handle_of_a_dead_process_is_refused),
      cmocka_unit_test(a_handle_of_freed_memory_is_refused),
      CHILD("", memory_has_no_handle, NULL),
      cmocka_unit_test(a_forged_handle_is_refused),
      CHILD("", opens_its_own, "memory of this process"),
      CHILD("", closes_what_is_not_open, "this context has not open"),
      cmocka_unit_test(memory_that_is_open_elsewhere_is_freed),
      cmocka_unit_test(who_has_ended_has_nothing_open),
      cmocka_unit_test(a_handle_is_closed_too_often),
      cmocka_unit_test(a_handle_is_closed_in_another_context),
      cmocka_unit_test(a_handle_is_closed_during_a_copy),
      cmocka_unit_test(opened_memory_is_freed),
      cmocka_unit_test(opened_memory_is_copied_by_another_device),
  };
  return cmocka_run_group_tests_name("fake_cuda_sharing", tests, NULL, NULL);
}
