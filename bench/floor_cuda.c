/* SPDX-License-Identifier: Apache-2.0
 *
 * The floors of transfers of GPU memory: copies by CUDA's driver alone. --how
 * says which, --devices the GPU of this side and of the other (0,0):
 *
 *   inside      from a device to a device, in this process
 *   to, from    from pinned memory of the host to a device, and back
 *   handle      from a device to memory of another process, which is opened by
 *               the descriptor that the other process exported
 *   first       the same for memory that is not open yet: a copy and all that
 *               comes before it, from asking the other process on
 *   pages       --count blocks of SIZE bytes, which lie one after the other, to
 *               places --stride apart, in no order: in batches of the driver,
 *               or block by block if it has none
 *   pages-post  processor time of this thread until all of these are asked for
 *
 * The end of a copy is awaited by asking the driver ("query"), and by a word
 * that the stream writes ("word"). A sample is one copy with its end. Without a
 * GPU it prints "not run: " and the reason, and exits with 77.
 */
#include "floor.h"

#include <fcntl.h>

#include "descriptors.h"
#include "gpu.h"

/* Some drivers crash in larger batches, or hang. */
enum { BATCH = 4096, ROOM = 1 << 20 };

/* A memory of cuMemCreate, mapped. */
struct mapped {
  CUmemGenericAllocationHandle handle; /* 0: a process imported it */
  CUdeviceptr at;
  size_t size;
};

/* Block i goes to place places[i]. */
struct blocks {
  CUdeviceptr *to, *from;
  size_t *bytes, *places, count, stride;
};

struct job {
  struct gpu *g;
  const char *name; /* the option --how */
  void (*ask)(struct job *);
  CUdeviceptr to, from;
  size_t size;      /* of one copy, or one block */
  CUcontext across; /* of `to`, where that is another device; else NULL */
  struct blocks blocks;
  uint8_t *stamps; /* pinned: a byte for each page of a side */
  uint8_t *mirror; /* what the source holds */
  uint8_t *room;   /* pinned */
  int peer;        /* a socket to the other process, or -1 */
  struct mapped there;
};

/* ---- Bytes ----------------------------------------------------------------
 * */

static size_t total(const struct job *job) {
  return job->size * (job->blocks.count ? job->blocks.count : 1);
}

static size_t pages_of(size_t size, uint64_t round) {
  return (size - stamp_offset(size, round) + PAGE - 1) / PAGE;
}

/* Round r changes bytes as stamp() does. */
static void stamp_source(struct job *job, uint64_t round) {
  size_t size = total(job), count = pages_of(size, round);
  stamp(job->mirror, size, round);
  for (size_t i = 0; i < count; i++)
    job->stamps[i] = (uint8_t)(round + i);
  gpu_copy_bytes(job->g, job->from + stamp_offset(size, round), PAGE,
                 as_device(job->stamps), 1, count);
  gpu_await(job->g, END_QUERY);
}

static bool stamps_are(struct gpu *g, uint8_t *stamps, CUdeviceptr at,
                       size_t size, uint64_t round) {
  unsigned bad = 0;
  size_t count = pages_of(size, round);
  gpu_copy_bytes(g, as_device(stamps), 1, at + stamp_offset(size, round), PAGE,
                 count);
  gpu_await(g, END_QUERY);
  for (size_t i = 0; i < count; i++)
    bad |= stamps[i] ^ (uint8_t)(round + i);
  return bad == 0;
}

/* Fills the source with bytes that differ from page to page. */
static void fill(struct job *job) {
  size_t bytes = total(job);
  for (size_t i = 0; i < bytes; i++)
    job->mirror[i] = (uint8_t)(i + i / PAGE * 7);
  for (size_t i = 0; i < bytes; i += ROOM) {
    size_t part = bytes - i < ROOM ? bytes - i : ROOM;
    memcpy(job->room, job->mirror + i, part);
    gpu_copy(job->g, job->from + i, as_device(job->room), part);
    gpu_await(job->g, END_QUERY);
  }
}

/* Compares bytes of the destination with those of the mirror. */
static void same(struct job *job, size_t to, size_t from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += ROOM) {
    size_t part = bytes - i < ROOM ? bytes - i : ROOM;
    gpu_copy(job->g, as_device(job->room), job->to + to + i, part);
    gpu_await(job->g, END_QUERY);
    if (memcmp(job->room, job->mirror + from + i, part) != 0)
      wrong_bytes();
  }
}

static void verify(struct job *job) {
  const struct blocks *b = &job->blocks;
  if (b->count == 0)
    same(job, 0, 0, job->size);
  for (size_t i = 0; i < b->count; i++)
    same(job, b->places[i] * b->stride, i * job->size, job->size);
}

/* ---- Copies ---------------------------------------------------------------
 * */

static void ask_copy(struct job *job) {
  gpu_copy(job->g, job->to, job->from, job->size);
}

static void ask_across(struct job *job) {
  const struct gpu *g = job->g;
  must(g, "copying",
       g->d->cuMemcpyPeerAsync(job->to, job->across, job->from, g->context,
                               job->size, g->stream));
}

static void ask_blocks(struct job *job) {
  const struct blocks *b = &job->blocks;
  for (size_t i = 0; i < b->count; i++)
    gpu_copy(job->g, b->to[i], b->from[i], job->size);
}

static void ask_batches(struct job *job) {
  const struct blocks *b = &job->blocks;
  const struct gpu *g = job->g;
  CUmemcpyAttributes attributes = {.srcAccessOrder =
                                       CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
  size_t first = 0, failed;
  for (size_t i = 0; i < b->count; i += BATCH)
    must(g, "copying a batch",
         g->d->cuMemcpyBatchAsync(b->to + i, b->from + i, b->bytes + i,
                                  b->count - i < BATCH ? b->count - i : BATCH,
                                  &attributes, &first, 1, &failed, g->stream));
}

/* ---- The other process ----------------------------------------------------
 * */

struct order {
  uint64_t what, size, round;
};
enum { MAKE, EXPORT, CHECK };

static CUmemAllocationProp properties(const struct gpu *g) {
  CUmemAllocationProp p;
  memset(&p, 0, sizeof p);
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  p.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, g->device};
  return p;
}

static CUresult map_memory(const struct gpu *g, struct mapped *m) {
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, g->device},
                            CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUresult result = g->d->cuMemAddressReserve(&m->at, m->size, 0, 0, 0);
  if (result == CUDA_SUCCESS)
    result = g->d->cuMemMap(m->at, m->size, 0, m->handle, 0);
  return result == CUDA_SUCCESS
             ? g->d->cuMemSetAccess(m->at, m->size, &access, 1)
             : result;
}

static void unmap(const struct gpu *g, struct mapped *m) {
  if (m->size == 0)
    return;
  must(g, "unmapping memory", g->d->cuMemUnmap(m->at, m->size));
  must(g, "freeing addresses", g->d->cuMemAddressFree(m->at, m->size));
  if (m->handle)
    must(g, "releasing memory", g->d->cuMemRelease(m->handle));
  *m = (struct mapped){0};
}

static void make(const struct gpu *g, struct mapped *m, size_t bytes) {
  CUmemAllocationProp p = properties(g);
  size_t unit = 0;
  unmap(g, m);
  must(g, "asking for a unit",
       g->d->cuMemGetAllocationGranularity(&unit, &p,
                                           CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  m->size = (bytes + unit - 1) / unit * unit;
  must(g, "making memory", g->d->cuMemCreate(&m->handle, m->size, &p, 0));
  must(g, "mapping memory", map_memory(g, m));
}

static void export_to(const struct gpu *g, const struct mapped *m, int peer) {
  int fd = -1;
  must(g, "exporting memory",
       g->d->cuMemExportToShareableHandle(
           &fd, m->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  send_descriptor(peer, fd, m->size);
  close(fd);
}

/* The sockets do not block: both sides poll. Returns false at the end. */
static bool hear(int from, void *to, size_t bytes) {
  ssize_t got;
  do
    got = recv(from, to, bytes, MSG_WAITALL);
  while (got < 0 && errno == EAGAIN);
  return got == (ssize_t)bytes;
}

static void tell(int to, const void *from, size_t bytes) {
  if (send(to, from, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
    die("send");
}

struct owner {
  int peer, not_ours, device;
};

static void obey(struct gpu *g, struct mapped *m, uint8_t **stamps,
                 const struct order *order, int peer) {
  uint8_t good = 1;
  switch (order->what) {
  case MAKE:
    make(g, m, order->size);
    break;
  case EXPORT:
    export_to(g, m, peer);
    return;
  default:
    if (!*stamps)
      *stamps = gpu_pin(g, m->size / PAGE + 1);
    good = stamps_are(g, *stamps, m->at, order->size, order->round);
  }
  tell(peer, &good, 1);
}

/* The other process: it owns the memory that is written to. A child must not
 * use a driver that its parent has opened, so nobody has so far. */
static void serve(void *context) {
  const struct owner *owner = context;
  struct order order;
  close(owner->not_ours); /* or there would be no end to hear */
  if (!hear(owner->peer, &order, sizeof order))
    return;
  struct gpu g = gpu_open(owner->device);
  struct mapped m = {0};
  uint8_t *stamps = NULL;
  do
    obey(&g, &m, &stamps, &order, owner->peer);
  while (hear(owner->peer, &order, sizeof order));
}

static int start_owner(const struct options *options) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends))
    die("socketpair");
  struct owner owner = {ends[1], ends[0], options->devices[1]};
  start(options, serve, &owner);
  close(ends[1]);
  return ends[0];
}

static void order_of(const struct job *job, uint64_t what, uint64_t round) {
  struct order order = {what, job->size, round};
  tell(job->peer, &order, sizeof order);
}

static void order_and_hear(const struct job *job, uint64_t what,
                           uint64_t round) {
  uint8_t good = 0;
  order_of(job, what, round);
  if (!hear(job->peer, &good, 1))
    die("the other process");
  if (!good)
    wrong_bytes();
}

/* From asking for the memory to being able to use it. */
static void open_there(struct job *job) {
  const struct gpu *g = job->g;
  struct mapped *m = &job->there;
  int fd = -1;
  order_of(job, EXPORT, 0);
  while (fd < 0)
    fd = receive_descriptor(job->peer, &m->size);
  may(g, "importing memory of another process",
      g->d->cuMemImportFromShareableHandle(
          &m->handle, (void *)(uintptr_t)fd,
          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  may(g, "mapping memory of another process", map_memory(g, m));
  must(g, "releasing memory", g->d->cuMemRelease(m->handle));
  m->handle = 0;
  job->to = m->at;
}

static void ask_first(struct job *job) {
  open_there(job);
  ask_copy(job);
}

/* ---- What is measured -----------------------------------------------------
 * */

static int64_t spent(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static bool is(const struct job *job, const char *name) {
  return strcmp(job->name, name) == 0;
}

static void before(struct job *job, uint64_t round) {
  if (is(job, "first")) {
    unmap(job->g, &job->there);
    order_and_hear(job, MAKE, round);
  }
  stamp_source(job, round);
}

static void after(struct job *job, uint64_t round) {
  if (job->peer >= 0)
    order_and_hear(job, CHECK, round);
  else if (job->blocks.count == 0 &&
           !stamps_are(job->g, job->stamps, job->to, job->size, round))
    wrong_bytes();
}

static void round_one(struct job *job, enum end end, uint64_t round,
                      double *ns) {
  before(job, round);
  if (is(job, "pages-post")) {
    int64_t begin = spent();
    job->ask(job);
    *ns = (double)(spent() - begin);
    gpu_await(job->g, END_QUERY);
  } else {
    int64_t begin = now();
    job->ask(job);
    gpu_await(job->g, end);
    *ns = (double)(now() - begin);
  }
  after(job, round);
}

/* The name of what is measured, as in "inside-word" or "pages-batch-query". */
static const char *label(const struct job *job, enum end end) {
  static const char *const ends[ENDS] = {"-query", "-word"};
  static char text[64];
  bool blocks = job->blocks.count > 0;
  snprintf(text, sizeof text, "%s%s%s", job->name,
           !blocks                   ? ""
           : job->ask == ask_batches ? "-batch"
                                     : "-loop",
           is(job, "pages-post") ? "" : ends[end]);
  return text;
}

static void measure_end(struct job *job, const struct options *options,
                        enum end end, const char *size,
                        struct samples *samples) {
  static uint64_t round;
  int64_t begin = now(), span = (int64_t)(options->seconds * 1e9 / ENDS);
  for (int i = 0; i < 3 || now() - begin < span / 8; i++)
    round_one(job, end, ++round, samples->ns);
  int64_t limit = now() + span;
  while (samples->count < 3 || (now() < limit && samples->count < SAMPLES))
    round_one(job, end, ++round, &samples->ns[samples->count++]);
  verify(job);
  report(options, label(job, end), size, samples);
}

static void measure(struct job *job, const struct options *options,
                    const char *size, struct samples *samples) {
  measure_end(job, options, END_QUERY, size, samples);
  if (job->g->done && !is(job, "pages-post"))
    measure_end(job, options, END_WORD, size, samples);
}

/* ---- Jobs -----------------------------------------------------------------
 * */

static void prepare_inside(struct job *job, const struct options *options) {
  job->ask = ask_copy;
  job->from = gpu_memory(job->g, job->size);
  if (options->devices[0] == options->devices[1]) {
    job->to = gpu_memory(job->g, job->size);
    return;
  }
  struct gpu other = gpu_open(options->devices[1]);
  job->to = gpu_memory(&other, job->size);
  job->across = other.context;
  job->ask = ask_across;
  must(job->g, "entering the device",
       job->g->d->cuCtxPushCurrent(job->g->context));
}

static void prepare_host(struct job *job) {
  CUdeviceptr here = as_device(gpu_pin(job->g, job->size)),
              there = gpu_memory(job->g, job->size);
  job->ask = ask_copy;
  job->from = is(job, "to") ? here : there;
  job->to = is(job, "to") ? there : here;
}

static void prepare_handle(struct job *job, const struct options *options) {
  CUdevice other;
  may(job->g, "finding the other device",
      job->g->d->cuDeviceGet(&other, options->devices[1]));
  if (!gpu_has(job->g,
               CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) ||
      !gpu_has(job->g,
               CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
    not_run("this device exports no memory as a descriptor");
  job->from = gpu_memory(job->g, job->size);
  job->ask = is(job, "first") ? ask_first : ask_copy;
  order_and_hear(job, MAKE, 0);
  open_there(job);
}

/* A list of numbers in no order, the same in each run. */
static void shuffle(size_t *list, size_t count) {
  uint64_t state = 1;
  for (size_t i = 0; i < count; i++) {
    state = state * 16807 % 2147483647;
    size_t at = state % (i + 1);
    list[i] = list[at];
    list[at] = i;
  }
}

static void prepare_blocks(struct job *job, const struct options *options) {
  size_t n = (size_t)options->count, stride = (size_t)options->stride;
  struct blocks *b = &job->blocks;
  *b = (struct blocks){calloc(n, sizeof *b->to),
                       calloc(n, sizeof *b->from),
                       calloc(n, sizeof *b->bytes),
                       calloc(n, sizeof *b->places),
                       n,
                       stride};
  if (!b->to || !b->from || !b->bytes || !b->places)
    die("calloc");
  job->from = gpu_memory(job->g, n * job->size);
  job->to = gpu_memory(job->g, n * stride);
  shuffle(b->places, n);
  for (size_t i = 0; i < n; i++) {
    b->from[i] = job->from + i * job->size;
    b->to[i] = job->to + b->places[i] * stride;
    b->bytes[i] = job->size;
  }
  job->ask = job->g->d->cuMemcpyBatchAsync ? ask_batches : ask_blocks;
}

static void prepare(struct job *job, const struct options *options) {
  if (job->peer >= 0)
    prepare_handle(job, options);
  else if (is(job, "inside"))
    prepare_inside(job, options);
  else if (is(job, "pages") || is(job, "pages-post"))
    prepare_blocks(job, options);
  else
    prepare_host(job);
  job->stamps = gpu_pin(job->g, total(job) / PAGE + 1);
  job->room = gpu_pin(job->g, ROOM);
  job->mirror = memory(total(job), MAP_PRIVATE);
  fill(job);
}

static bool known(const char *how) {
  static const char *const all[] = {"inside", "to",    "from",      "handle",
                                    "first",  "pages", "pages-post"};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (strcmp(how, all[i]) == 0)
      return true;
  return false;
}

/* Of several sizes each has processes, and memory, of its own. */
static int run(const struct options *options, const char *size) {
  bool two =
      strcmp(options->how, "handle") == 0 || strcmp(options->how, "first") == 0;
  pin(options->pins[0]);
  int peer = two ? start_owner(options) : -1;
  struct gpu g = gpu_open(options->devices[0]);
  struct job job = {.g = &g,
                    .name = options->how,
                    .size = strtoull(size, NULL, 10),
                    .peer = peer};
  struct samples samples = samples_new();
  prepare(&job, options);
  measure(&job, options, size, &samples);
  ending();
  close(peer);
  return two && wait(NULL) < 0;
}

static int run_apart(const struct options *options, const char *size) {
  int status = 0;
  fflush(stdout);
  pid_t pid = fork();
  if (pid < 0)
    die("fork");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    exit(run(options, size));
  }
  if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
    return 1;
  return WEXITSTATUS(status);
}

int main(int argc, char **argv) {
  struct options options = options_parse(argc, argv);
  int status = 0;
  size_t most = largest(argc, argv);
  if (!options.how || !known(options.how))
    usage(argv[0]);
  if (strncmp(options.how, "pages", 5) == 0 && (size_t)options.stride < most)
    usage(argv[0]);
  for (int i = optind; i < argc && status == 0; i++)
    status = run_apart(&options, argv[i]);
  return status;
}
