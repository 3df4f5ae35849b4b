/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_rail.c - ports in use by an engine: opening them, and their completion
 * queues.
 *
 * A completion queue is never overrun: completions are reserved before requests
 * can be posted, and the queue grows with that. The next lane gets a new one when
 * it has reached its limit.
 *
 * Sleeping: arm asks the queues for an event. A poll after that finds what
 * completed before; a later completion makes the channel's descriptor readable.
 *
 * Forked children. A device keeps the queue pairs of a process until nobody has
 * its descriptor or anything that was mapped by it. A child inherits both: it
 * gives up what is mapped at once, the descriptors with its copy of the engine.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "verbs.h"

#define NODES "/dev/infiniband"
enum { CQ_FIRST = 1024, NODES_USED = 64 };

/* ---- Queues -------------------------------------------------------------- */

static uint32_t queues_least(uint32_t a, int b) {
  return b > 0 && a > (uint32_t)b ? (uint32_t)b : a;
}

static int queues_make(struct queues *q) {
  struct rail *r = q->rail;
  const struct verbs_library *lib = r->fabric->lib;
  q->cq_size = queues_least(CQ_FIRST, r->attr.max_cqe);
  q->cq = lib->create_cq(r->context, (int)q->cq_size, q, r->channel, 0);
  return q->cq ? 0 : errno;
}

static void queues_close(struct queues *q) {
  const struct verbs_library *lib = q->rail->fabric->lib;
  if (q->unacked)
    lib->ack_cq_events(q->cq, q->unacked);
  if (q->cq)
    lib->destroy_cq(q->cq);
}

/* Opens a further queue on the rail: 0 or an errno. */
static int queues_open(struct rail *r) {
  struct queues *q = &r->queues[r->queue_count];
  if (r->queue_count == QUEUES)
    return ENOSPC;
  *q = (struct queues){.rail = r};
  int error = queues_make(q);
  if (error)
    queues_close(q);
  else
    r->queue_count++;
  return error;
}

/* ---- Reserving room in queues -------------------------------------------- */

static bool queues_grow(struct queues *q, uint32_t want) {
  int most = q->rail->attr.max_cqe;
  uint32_t size = q->cq_size;
  while (size < want && size < (uint32_t)most)
    size = queues_least(size * 2, most);
  if (size < want || (size != q->cq_size &&
                      q->rail->fabric->lib->resize_cq(q->cq, (int)size) != 0))
    return false;
  q->cq_size = size;
  return true;
}

static bool queues_reserve(struct queues *q, uint32_t completions) {
  if (!queues_grow(q, q->cq_used + completions))
    return false;
  q->cq_used += completions;
  return true;
}

int rail_reserve(struct rail *r, uint32_t completions, struct queues **out,
                 char reason[REASON]) {
  for (uint32_t i = 0; i < r->queue_count; i++)
    if (queues_reserve(*out = &r->queues[i], completions))
      return PERIGEE_OK;
  int error = queues_open(r);
  *out = &r->queues[r->queue_count - 1];
  if (!error && queues_reserve(*out, completions))
    return PERIGEE_OK;
  snprintf(reason, REASON,
           "the queues of %s have no room for one more session (%u "
           "completions)%s%s: fewer sessions, or less depth (option depth)",
           r->port.device, completions, error ? ", and more: " : "",
           error ? strerror(error) : "");
  return PERIGEE_NO_MEMORY;
}

void queues_unreserve(struct queues *q, uint32_t completions) {
  q->cq_used -= completions;
}

/* ---- Forked children ----------------------------------------------------- */

/* The nodes that engines of this process, or of those that it was forked from,
 * have opened. */
static char nodes_used[NODES_USED][IBV_SYSFS_NAME_MAX];
static uint32_t nodes_count;
static pthread_mutex_t nodes_mutex = PTHREAD_MUTEX_INITIALIZER;

/* The line of /proc/self/maps ends with the path of what is mapped. */
static bool node_is_used(const char *line) {
  const char *name = strstr(line, NODES "/");
  for (uint32_t i = 0; name && i < nodes_count; i++) {
    size_t length = strlen(nodes_used[i]);
    const char *end = name + sizeof NODES + length;
    if (strncmp(name + sizeof NODES, nodes_used[i], length) == 0 &&
        (*end == '\n' || *end == ' '))
      return true;
  }
  return false;
}

/* Runs in each child as it begins: what is mapped of these nodes is the
 * parent's. Later it could be the child's own. */
static void nodes_unmap(void) {
  char line[512];
  unsigned long from, to;
  FILE *maps = nodes_count > 0 ? fopen("/proc/self/maps", "re") : NULL;
  while (maps && fgets(line, sizeof line, maps))
    if (node_is_used(line) && sscanf(line, "%lx-%lx", &from, &to) == 2)
      munmap((void *)from, to - from);
  if (maps)
    fclose(maps);
}

static void nodes_lock(void) {
  pthread_mutex_lock(&nodes_mutex);
}

static void nodes_unlock(void) {
  pthread_mutex_unlock(&nodes_mutex);
}

static void nodes_forked(void) {
  nodes_unmap();
  nodes_unlock();
}

/* Devices are opened with an engine's lock held, which a fork may wait for
 * (engine/progress.c). So this lock is taken after those, and registering, which
 * may wait for a fork, is over before there are any: host/forked.c has the
 * order. */
__attribute__((constructor)) static void nodes_watch_forks(void) {
  pthread_atfork(nodes_lock, nodes_unlock, nodes_forked);
}

static void rail_note_node(const struct rail *r) {
  const char *name = r->context->device->dev_name;
  uint32_t at = 0;
  while (at < nodes_count && strcmp(nodes_used[at], name) != 0)
    at++;
  if (at == nodes_count && at < NODES_USED) {
    memcpy(nodes_used[at], name, strnlen(name, IBV_SYSFS_NAME_MAX - 1));
    nodes_count = at + 1;
  }
}

/* A call of libibverbs would change what is the parent's. */
static void rail_forked(struct rail *r) {
  close(r->channel->fd);
  close(r->context->async_fd);
  close(r->context->cmd_fd);
  if (r->removal >= 0)
    close(r->removal);
}

void rails_forked(struct fabric *f) {
  for (uint32_t i = 0; i < f->rail_count; i++)
    rail_forked(&f->rails[i]);
}

/* ---- Opening ------------------------------------------------------------- */

static struct ibv_context *device_open_named(const struct verbs_library *lib,
                                             const char *name) {
  int count = 0;
  struct ibv_device **list = lib->get_device_list(&count);
  struct ibv_context *context = NULL;
  for (int i = 0; list && i < count && !context; i++)
    if (strcmp(lib->get_device_name(list[i]), name) == 0)
      context = lib->open_device(list[i]);
  if (list)
    lib->free_device_list(list);
  return context;
}

static bool rail_has_windows(const struct rail *r) {
  enum {
    TYPE_2 = IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B
  };
  return r->fabric->options.windows && r->attr.max_mw > 0 &&
         (r->attr.device_cap_flags & TYPE_2);
}

static int channel_set_nonblocking(int fd) {
  return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

static int rail_open_context(struct rail *r) {
  const struct verbs_library *lib = r->fabric->lib;
  nodes_lock(); /* no child is forked in between */
  r->context = device_open_named(lib, r->port.device);
  if (r->context)
    rail_note_node(r);
  nodes_unlock();
  if (!r->context)
    return errno ? errno : ENODEV;
  int error = lib->query_device(r->context, &r->attr);
  if (!error)
    error = verbs_query_port(lib, r->context, r->port.port, &r->state);
  if (error)
    return error;
  memcpy(&r->gid, r->port.gid, sizeof r->gid);
  r->windows = rail_has_windows(r);
  r->pd = lib->alloc_pd(r->context);
  r->channel = r->pd ? lib->create_comp_channel(r->context) : NULL;
  return r->channel ? 0 : errno;
}

bool rail_has_node(const struct rail *r) {
  char path[128];
  snprintf(path, sizeof path, NODES "/%s", r->context->device->dev_name);
  return access(path, F_OK) == 0;
}

/* The removal of device nodes that the kernel did not make tells nothing. */
static void rail_watch_removal(struct rail *r) {
  if (!rail_has_node(r))
    return;
  r->removal = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  if (r->removal < 0 || inotify_add_watch(r->removal, NODES, IN_DELETE) >= 0)
    return;
  close(r->removal);
  r->removal = -1;
}

static int rail_open_marks(struct rail *r) {
  struct fabric *f = r->fabric;
  r->marks = f->lib->reg_mr(r->pd, (void *)f->marks, f->engine.operations * 4u,
                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  return r->marks ? 0 : errno;
}

static int rail_open(struct rail *r, char reason[REASON]) {
  int error = rail_open_context(r);
  if (!error)
    error = queues_open(r);
  if (!error)
    error = rail_open_marks(r);
  if (!error && (channel_set_nonblocking(r->channel->fd) != 0 ||
                 channel_set_nonblocking(r->context->async_fd) != 0))
    error = errno;
  if (!error) {
    rail_watch_removal(r);
    return PERIGEE_OK;
  }
  struct rlimit locked = {0, 0};
  getrlimit(RLIMIT_MEMLOCK, &locked);
  snprintf(reason, REASON, "cannot use the RDMA device %s: %s%s",
           r->port.device, strerror(error),
           error == ENOMEM || error == EAGAIN
               ? "; is the limit of locked memory (ulimit -l) too low?"
               : "");
  return error == ENOMEM ? PERIGEE_NO_MEMORY : PERIGEE_UNSUPPORTED;
}

static void rail_close(struct rail *r) {
  const struct verbs_library *lib = r->fabric->lib;
  if (r->removal >= 0)
    close(r->removal);
  if (r->marks)
    lib->dereg_mr(r->marks);
  while (r->queue_count > 0)
    queues_close(&r->queues[--r->queue_count]);
  if (r->channel)
    lib->destroy_comp_channel(r->channel);
  if (r->pd)
    lib->dealloc_pd(r->pd);
  if (r->context)
    lib->close_device(r->context);
}

static int rails_open(struct fabric *f, char reason[REASON]) {
  struct rdma_port ports[RAILS];
  int count = rdma_choose(&f->options, ports, RAILS, reason, REASON);
  int status = count < 0 ? count : PERIGEE_OK;
  for (int i = 0; i < count && status == PERIGEE_OK; i++) {
    struct rail *r = &f->rails[f->rail_count++];
    r->fabric = f;
    r->index = (uint32_t)i;
    r->removal = -1;
    r->port = ports[i];
    status = rail_open(r, reason);
  }
  return status;
}

void rails_stop(struct fabric *f) {
  for (uint32_t i = 0; i < f->rail_count; i++)
    rail_close(&f->rails[i]);
  if (f->marks)
    munmap((void *)f->marks, f->engine.operations * sizeof *f->marks);
  free(f);
}

int rails_start(const struct fabric_options *options, struct fabric **out,
                char reason[REASON]) {
  const char *why = NULL;
  const struct verbs_library *lib = verbs_library(&why);
  if (!lib) {
    snprintf(reason, REASON, "%s", why);
    return PERIGEE_UNSUPPORTED;
  }
  struct fabric *f = calloc(1, sizeof *f);
  if (!f)
    return PERIGEE_NO_MEMORY;
  f->engine = *options;
  f->lib = lib;
  uint64_t bytes = options->operations * sizeof *f->marks;
  void *marks = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  int status = marks == MAP_FAILED ? PERIGEE_NO_MEMORY : PERIGEE_OK;
  if (status == PERIGEE_OK) {
    madvise(marks, bytes, MADV_DONTFORK);
    f->marks = marks;
    status = rdma_options_parse(options->rdma, &f->options, reason, REASON);
  }
  if (status == PERIGEE_OK)
    status = rails_open(f, reason);
  if (status < 0)
    rails_stop(f);
  else
    *out = f;
  return status;
}

/* ---- Ports that change --------------------------------------------------- */

static bool rail_has_gid(const struct rail *r) {
  union ibv_gid gid;
  return r->fabric->lib->query_gid(r->context, r->port.port, r->port.gid_index,
                                   &gid) == 0 &&
         memcmp(&gid, &r->gid, sizeof gid) == 0;
}

/* The options with this port alone, whichever is the best one now. */
static struct rdma_options rail_options(const struct rail *r) {
  struct rdma_options o = r->fabric->options;
  if (o.gid_count > 1)
    o.gids[0] = o.gids[r->index];
  o.gid_count = o.gid_count > 0;
  o.nic_count = 1;
  memcpy(o.nics[0].device, r->port.device, sizeof o.nics[0].device);
  o.nics[0].port = r->port.port;
  return o;
}

/* Takes the address that is chosen for the port now. */
static int rail_choose_gid(struct rail *r, char reason[REASON]) {
  const struct rdma_options o = rail_options(r);
  struct rdma_port port;
  int count = rdma_choose(&o, &port, 1, reason, REASON);
  if (count < 0)
    return count;
  r->port = port;
  memcpy(&r->gid, port.gid, sizeof r->gid);
  return PERIGEE_OK;
}

static int rail_look(struct rail *r, char reason[REASON]) {
  struct ibv_port_attr now;
  int error = verbs_query_port(r->fabric->lib, r->context, r->port.port, &now);
  if (error || now.state != IBV_PORT_ACTIVE) {
    snprintf(reason, REASON, "the RDMA port %s/%u is not active",
             r->port.device, r->port.port);
    return PERIGEE_UNSUPPORTED;
  }
  r->state = now;
  return rail_has_gid(r) ? PERIGEE_OK : rail_choose_gid(r, reason);
}

int rails_look(struct fabric *f, char reason[REASON]) {
  int status = PERIGEE_OK;
  for (uint32_t i = 0; i < f->rail_count && status == PERIGEE_OK; i++)
    status = rail_look(&f->rails[i], reason);
  return status;
}

/* ---- Sleeping ------------------------------------------------------------ */

void rails_arm(struct fabric *f) {
  for (uint32_t i = 0; i < f->rail_count; i++) {
    struct rail *r = &f->rails[i];
    for (uint32_t q = 0; q < r->queue_count && !r->failed; q++)
      if (!r->queues[q].armed)
        r->queues[q].armed = ibv_req_notify_cq(r->queues[q].cq, 0) == 0;
  }
}

int rails_descriptors(struct fabric *f, int *fds, int capacity) {
  int n = 0;
  for (uint32_t i = 0; i < f->rail_count && n + 3 <= capacity; i++) {
    fds[n++] = f->rails[i].channel->fd;
    fds[n++] = f->rails[i].context->async_fd;
    if (f->rails[i].removal >= 0)
      fds[n++] = f->rails[i].removal;
  }
  return n;
}
