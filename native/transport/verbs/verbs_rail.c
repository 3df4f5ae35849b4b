/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_rail.c - a port in use by an engine: opening it, and its events.
 *
 * Sleeping: arm asks the queues for an event. A poll after that finds what
 * completed before; what completes later makes the channel's descriptor
 * readable.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "verbs.h"

#define NODES "/dev/infiniband"
enum { EVENTS = 16 }; /* acknowledged together, as that takes a lock */

/* ---- Opening ------------------------------------------------------------ */

static struct ibv_context *open_named(const struct verbs_library *lib,
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

static bool has_windows(const struct rail *r) {
  enum {
    TYPE_2 = IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B
  };
  return r->fabric->options.windows && r->attr.max_mw > 0 &&
         (r->attr.device_cap_flags & TYPE_2);
}

static int not_blocking(int fd) {
  return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

static int open_context(struct rail *r) {
  const struct verbs_library *lib = r->fabric->lib;
  r->context = open_named(lib, r->port.device);
  if (!r->context)
    return errno ? errno : ENODEV;
  int error = lib->query_device(r->context, &r->attr);
  if (!error)
    error = verbs_query_port(lib, r->context, r->port.port, &r->state);
  if (error)
    return error;
  memcpy(&r->gid, r->port.gid, sizeof r->gid);
  r->windows = has_windows(r);
  r->pd = lib->alloc_pd(r->context);
  r->channel = r->pd ? lib->create_comp_channel(r->context) : NULL;
  return r->channel ? 0 : errno;
}

static bool has_node(const struct rail *r) {
  char path[128];
  snprintf(path, sizeof path, NODES "/%s", r->context->device->dev_name);
  return access(path, F_OK) == 0;
}

/* If device nodes are not made by the kernel, their removal tells nothing. */
static void watch_removal(struct rail *r) {
  if (!has_node(r))
    return;
  r->removal = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  if (r->removal < 0 || inotify_add_watch(r->removal, NODES, IN_DELETE) >= 0)
    return;
  close(r->removal);
  r->removal = -1;
}

static int open_marks(struct rail *r) {
  struct fabric *f = r->fabric;
  r->marks = f->lib->reg_mr(r->pd, (void *)f->marks, f->engine.operations * 4u,
                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  return r->marks ? 0 : errno;
}

static int rail_open(struct rail *r, char reason[REASON]) {
  int error = open_context(r);
  if (!error)
    error = queues_open(r);
  if (!error)
    error = open_marks(r);
  if (!error && (not_blocking(r->channel->fd) != 0 ||
                 not_blocking(r->context->async_fd) != 0))
    error = errno;
  if (!error) {
    watch_removal(r);
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

static int open_all(struct fabric *f, char reason[REASON]) {
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
    status = open_all(f, reason);
  if (status < 0)
    rails_stop(f);
  else
    *out = f;
  return status;
}

void rails_stop(struct fabric *f) {
  keys_close(f);
  for (uint32_t i = 0; i < f->rail_count; i++)
    rail_close(&f->rails[i]);
  if (f->marks)
    munmap((void *)f->marks, f->engine.operations * sizeof *f->marks);
  free(f);
}

/* ---- Polling ------------------------------------------------------------ */

bool rails_poll(struct fabric *f) {
  bool any = false;
  for (uint32_t i = 0; i < f->rail_count; i++)
    for (uint32_t q = 0; q < f->rails[i].queue_count && !f->rails[i].failed;
         q++)
      any = queues_turn(&f->rails[i].queues[q]) || any;
  return any;
}

bool rails_turn(struct fabric *f) {
  bool any = rails_poll(f);
  if (f->opening)
    grants_turn(f);
  return any;
}

/* ---- Events ------------------------------------------------------------- */

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

static void break_lanes(struct rail *r) {
  for (struct lane *lane = r->fabric->lanes; lane; lane = lane->next)
    for (uint32_t i = 0; i < lane->pair_count; i++)
      if (lane->pairs[i].rail == r)
        lane_break(lane, PERIGEE_PEER_LOST, "%s", r->reason);
}

static void rail_fail(struct rail *r, const char *what) {
  char text[REASON]; /* GCC believes that parts of one structure overlap */
  snprintf(text, sizeof text, "the RDMA device %s: %s", r->port.device, what);
  memcpy(r->reason, text, sizeof text);
  r->failed = true;
  break_lanes(r);
}

/* A port that goes down ends nothing by itself: it may come back before the
 * retries are used up. */
static void async_event(struct rail *r, enum ibv_event_type type,
                        uint32_t number) {
  struct pair *p;
  switch (type) {
  case IBV_EVENT_DEVICE_FATAL:
  case IBV_EVENT_CQ_ERR:
  case IBV_EVENT_SRQ_ERR:
    rail_fail(r, r->fabric->lib->event_type_str(type));
    break;
  case IBV_EVENT_QP_FATAL:
  case IBV_EVENT_QP_REQ_ERR:
  case IBV_EVENT_QP_ACCESS_ERR:
    p = pair_by_number(r, number);
    if (p && p->index == 0)
      lane_break(p->lane, PERIGEE_PEER_LOST, "%s on %s",
                 r->fabric->lib->event_type_str(type), r->port.device);
    else if (p)
      pair_reset(p, NULL);
    break;
  default:
    break;
  }
}

static void async_events(struct rail *r) {
  const struct verbs_library *lib = r->fabric->lib;
  struct ibv_async_event e;
  while (!r->failed && lib->get_async_event(r->context, &e) == 0) {
    enum ibv_event_type type = e.event_type;
    bool pair = type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR ||
                type == IBV_EVENT_QP_ACCESS_ERR;
    uint32_t number = pair ? e.element.qp->qp_num : 0;
    lib->ack_async_event(&e); /* before the pair may be destroyed */
    async_event(r, type, number);
  }
}

static void channel_events(struct rail *r) {
  const struct verbs_library *lib = r->fabric->lib;
  struct ibv_cq *cq;
  void *context;
  while (lib->get_cq_event(r->channel, &cq, &context) == 0) {
    struct queues *q = context;
    q->armed = false;
    if (++q->unacked == EVENTS) {
      lib->ack_cq_events(q->cq, q->unacked);
      q->unacked = 0;
    }
  }
}

/* A driver that cannot take its device away from programs, as soft-RoCE's,
 * waits until they close it; all that programs see is that its node is gone. */
static void removals(struct rail *r) {
  char events[1024];
  bool any = false;
  while (r->removal >= 0 && read(r->removal, events, sizeof events) > 0)
    any = true;
  if (any && !r->failed && !has_node(r))
    rail_fail(r, "it is being removed");
}

void rails_ready(struct fabric *f) {
  for (uint32_t i = 0; i < f->rail_count; i++) {
    channel_events(&f->rails[i]);
    async_events(&f->rails[i]);
    removals(&f->rails[i]);
  }
}

const char *rails_dead(const struct fabric *f, bool *used) {
  *used = f->lanes;
  for (uint32_t i = 0; i < f->rail_count; i++)
    if (f->rails[i].failed)
      return f->rails[i].reason;
  return NULL;
}
