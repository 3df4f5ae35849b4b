/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_cuda.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

struct gpu gpu;

enum { CHILDREN = 2, FAILED = 3 };

/* ---- In a child ----------------------------------------------------------- */

void child_fails(int line, const char *what, int64_t is) {
  fprintf(stderr, "line %d: %s: %lld\n", line, what, (long long)is);
  _exit(FAILED);
}

static void gpu_open(void) {
  char reason[CUDA_REASON] = "";
  gpu.d = cuda_driver(reason);
  if (!gpu.d)
    child_fails(__LINE__, reason, 0);
  WORKS(gpu.d->cuDeviceGetCount(&gpu.devices));
  for (int i = 0; i < gpu.devices && i < 2; i++)
    WORKS(gpu.d->cuDevicePrimaryCtxRetain(&gpu.contexts[i], i));
  WORKS(gpu.d->cuCtxPushCurrent(gpu.contexts[0]));
  WORKS(gpu.d->cuStreamCreate(&gpu.stream, CU_STREAM_NON_BLOCKING));
}

void *fake_function(const char *name) {
  void *library = dlopen(getenv("PERIGEE_CUDA_LIBRARY"), RTLD_NOW);
  void *f = library ? dlsym(library, name) : NULL;
  if (!f)
    child_fails(__LINE__, name, 0);
  return f;
}

uint64_t fake_count(const char *name) {
  uint64_t (*count)(const char *);
  *(void **)&count = fake_function("fake_cuda_count");
  return count(name);
}

CUdeviceptr address_of(const void *pointer) {
  return (CUdeviceptr)(uintptr_t)pointer;
}

uint8_t *pinned_new(size_t bytes) {
  void *p = NULL;
  WORKS(gpu.d->cuMemHostAlloc(&p, bytes, CU_MEMHOSTALLOC_PORTABLE));
  return p;
}

CUdeviceptr virtual_map(CUmemGenericAllocationHandle handle, size_t size) {
  CUdeviceptr at = 0;
  WORKS(gpu.d->cuMemAddressReserve(&at, size, 0, 0, 0));
  WORKS(gpu.d->cuMemMap(at, size, 0, handle, 0));
  return at;
}

struct virtual virtual_new(size_t size, CUdevice device) {
  return virtual_typed(size, device, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

struct virtual virtual_typed(size_t size, CUdevice device, int types) {
  struct virtual v = {.size = size};
  CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                           .requestedHandleTypes = types,
                           .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
  WORKS(gpu.d->cuMemCreate(&v.handle, size, &p, 0));
  v.at = virtual_map(v.handle, size);
  return v;
}

CUresult virtual_allow(const struct virtual *v, CUdevice device, int flags) {
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
  return gpu.d->cuMemSetAccess(v->at, v->size, &access, 1);
}

void device_set(CUdeviceptr at, int byte, size_t bytes) {
  WORKS(gpu.d->cuMemsetD8Async(at, (unsigned char)byte, bytes, gpu.stream));
  WORKS(gpu.d->cuStreamSynchronize(gpu.stream));
}

void device_same(CUdeviceptr at, int byte, size_t bytes) {
  uint8_t *here = pinned_new(bytes);
  WORKS(gpu.d->cuMemcpyAsync(address_of(here), at, bytes, gpu.stream));
  WORKS(gpu.d->cuStreamSynchronize(gpu.stream));
  for (size_t i = 0; i < bytes; i++)
    EQUAL(here[i], byte);
  WORKS(gpu.d->cuMemFreeHost(here));
}

/* ---- Between children ----------------------------------------------------- */

void give(const void *bytes, size_t length) {
  EQUAL(send(gpu.socket, bytes, length, MSG_NOSIGNAL), length);
}

bool get(void *bytes, size_t length) {
  ssize_t n = recv(gpu.socket, bytes, length, MSG_WAITALL);
  if (n != 0)
    EQUAL(n, length);
  return n != 0;
}

/* A byte that carries a descriptor. */
struct parcel {
  char byte;
  _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  struct iovec part;
  struct msghdr message;
};

static struct cmsghdr *parcel_open(struct parcel *p) {
  memset(p, 0, sizeof *p);
  p->part = (struct iovec){&p->byte, 1};
  p->message = (struct msghdr){.msg_iov = &p->part,
                               .msg_iovlen = 1,
                               .msg_control = p->control,
                               .msg_controllen = sizeof p->control};
  return CMSG_FIRSTHDR(&p->message);
}

void give_descriptor(int fd) {
  struct parcel p;
  struct cmsghdr *h = parcel_open(&p);
  *h = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                        .cmsg_type = SCM_RIGHTS,
                        .cmsg_len = CMSG_LEN(sizeof fd)};
  memcpy(CMSG_DATA(h), &fd, sizeof fd);
  EQUAL(sendmsg(gpu.socket, &p.message, MSG_NOSIGNAL), 1);
}

int get_descriptor(void) {
  struct parcel p;
  struct cmsghdr *h = parcel_open(&p);
  int fd = -1;
  EQUAL(recvmsg(gpu.socket, &p.message, MSG_CMSG_CLOEXEC), 1);
  EQUAL(h->cmsg_type, SCM_RIGHTS);
  memcpy(&fd, CMSG_DATA(h), sizeof fd);
  return fd;
}

/* ---- In the test ---------------------------------------------------------- */

struct running {
  pid_t process;
  int said; /* what it writes to stderr */
};

__attribute__((noreturn)) static void child_run(const struct child *c, int to,
                                                int socket) {
  struct rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  signal(SIGSEGV, SIG_DFL);
  setenv("FAKE_CUDA", c->settings, 1);
  dup2(to, STDERR_FILENO);
  gpu.socket = socket;
  gpu_open();
  c->run();
  _exit(0);
}

static struct running child_start(const struct child *c, const int sockets[2],
                                  int own) {
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  struct running r = {fork(), ends[0]};
  if (r.process == 0) {
    close(ends[0]);
    close(sockets[!own]);
    child_run(c, ends[1], sockets[own]);
  }
  assert_true(r.process > 0);
  close(ends[1]);
  return r;
}

static void child_end(const struct child *c, const struct running *r) {
  char said[4096] = "";
  size_t length = 0;
  int status = 0;
  for (ssize_t n = 1; n > 0 && length < sizeof said - 1; length += (size_t)n)
    n = read(r->said, said + length, sizeof said - 1 - length);
  close(r->said);
  assert_int_equal(waitpid(r->process, &status, 0), r->process);
  if (!(c->sentence ? WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT &&
                          strstr(said, c->sentence)
                    : status == 0))
    fail_msg("a child with \"%s\" ended in %#x and said: %s", c->settings,
             (unsigned)status, said);
}

void children_run(const struct child *list, int count) {
  const char *library = getenv("PERIGEE_CUDA_LIBRARY");
  struct running running[CHILDREN];
  int sockets[2];
  if (!library || !strstr(library, "fake"))
    skip();
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  for (int i = 0; i < count; i++)
    running[i] = child_start(&list[i], sockets, i);
  close(sockets[0]);
  close(sockets[1]);
  for (int i = 0; i < count; i++)
    child_end(&list[i], &running[i]);
}

void child_test(void **state) {
  children_run(*state, 1);
}
