/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_rail.c - a port in use by an engine, and what completes on it.
 *
 * The completion queue is never overrun: what may complete at once is reserved
 * before it can be posted, and the queue grows with it. The shared receive
 * queue has an entry, without a buffer, for each record and note that the peers
 * of all lanes may send; those used up are posted again by dozens, for which
 * there are as many to spare.
 *
 * Sleeping: arm asks the queue for an event; a poll afterwards finds what came
 * before; what comes later makes the channel's descriptor readable.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "transport/verbs.h"

enum { BATCH = 16, BATCHES = 4, OWED = 32, CQ_FIRST = 1024 };
#define RECEIVE_ID UINT64_MAX

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

static uint32_t least(uint32_t a, int b) {
  return b > 0 && a > (uint32_t)b ? (uint32_t)b : a;
}

static int open_queues(struct rail *r) {
  const struct verbs_library *lib = r->fabric->lib;
  r->channel = lib->create_comp_channel(r->context);
  if (!r->channel)
    return errno;
  r->cq_size = least(CQ_FIRST, r->attr.max_cqe);
  r->cq = lib->create_cq(r->context, (int)r->cq_size, NULL, r->channel, 0);
  if (!r->cq)
    return errno;
  if (r->index > 0)
    return 0;
  r->srq_size = least(r->fabric->options.receives, r->attr.max_srq_wr);
  struct ibv_srq_init_attr a = {.attr = {.max_wr = r->srq_size, .max_sge = 1}};
  r->srq = lib->create_srq(r->pd, &a);
  return r->srq ? 0 : errno;
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
  return r->pd ? 0 : errno;
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
    error = open_queues(r);
  if (!error)
    error = open_marks(r);
  if (!error && (not_blocking(r->channel->fd) != 0 ||
                 not_blocking(r->context->async_fd) != 0))
    error = errno;
  if (!error)
    return PERIGEE_OK;
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
  if (r->marks)
    lib->dereg_mr(r->marks);
  if (r->srq)
    lib->destroy_srq(r->srq);
  if (r->unacked)
    lib->ack_cq_events(r->cq, r->unacked);
  if (r->cq)
    lib->destroy_cq(r->cq);
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

/* ---- Receives ----------------------------------------------------------- */

static int post_receives(struct rail *r, uint32_t count) {
  struct ibv_recv_wr chain[OWED], *bad;
  while (count > 0) {
    uint32_t n = count < OWED ? count : OWED;
    for (uint32_t i = 0; i < n; i++)
      chain[i] = (struct ibv_recv_wr){.wr_id = RECEIVE_ID,
                                      .next = i + 1 < n ? &chain[i + 1] : NULL};
    if (ibv_post_srq_recv(r->srq, chain, &bad) != 0)
      return PERIGEE_NO_MEMORY;
    count -= n;
  }
  return PERIGEE_OK;
}

/* What was used up is owed; the first lane brings what is to spare. */
static int more_receives(struct rail *r, uint32_t count, char reason[REASON]) {
  if (r->srq_free >= count) { /* a lane has left them */
    r->srq_free -= count;
    return PERIGEE_OK;
  }
  uint32_t spare = r->srq_used == 0 ? 2 * OWED : 0;
  if (count + spare > r->srq_size - r->srq_used) {
    snprintf(reason, REASON,
             "the shared receive queue of %s has %u entries, all of them for "
             "the sessions that there are (option receives)",
             r->port.device, r->srq_size);
    return PERIGEE_NO_MEMORY;
  }
  r->srq_used += count + spare;
  return post_receives(r, count + spare);
}

int rail_reserve(struct rail *r, uint32_t completions, uint32_t receives,
                 char reason[REASON]) {
  uint32_t want = r->cq_used + completions, size = r->cq_size;
  while (size < want && size < (uint32_t)r->attr.max_cqe)
    size = least(size * 2, r->attr.max_cqe);
  if (size < want || (size != r->cq_size &&
                      r->fabric->lib->resize_cq(r->cq, (int)size) != 0)) {
    snprintf(reason, REASON,
             "the completion queue of %s cannot hold %u entries: fewer "
             "sessions, or less depth (option depth)",
             r->port.device, want);
    return PERIGEE_NO_MEMORY;
  }
  r->cq_size = size;
  if (receives > 0) {
    int status = more_receives(r, receives, reason);
    if (status < 0)
      return status;
  }
  r->cq_used = want;
  return PERIGEE_OK;
}

/* Receives stay posted; the next lane has them. */
void rail_unreserve(struct rail *r, uint32_t completions, uint32_t receives) {
  r->cq_used -= completions;
  r->srq_free += receives;
}

/* ---- What completes ----------------------------------------------------- */

static void received(struct rail *r, const struct ibv_wc *wc) {
  struct pair *p = pair_by_number(r->fabric, wc->qp_num);
  r->srq_owed++;
  if (p && p->index == 0 && wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM)
    ring_arrived(p->lane, be32toh(wc->imm_data));
}

static void completed(struct rail *r, const struct ibv_wc *wc) {
  /* The opcode of a failed completion says nothing; receives have no id. */
  if (wc->wr_id == RECEIVE_ID) {
    if (wc->status == IBV_WC_SUCCESS)
      received(r, wc);
    else
      r->srq_owed++;
    return;
  }
  struct pair *p = pair_by_number(r->fabric, wc->qp_num);
  if (p && p->rail == r)
    pair_completed(p, wc);
}

static bool turn(struct rail *r) {
  struct ibv_wc wc[BATCH];
  bool any = false;
  for (int i = 0; i < BATCHES && !r->failed; i++) {
    int n = ibv_poll_cq(r->cq, BATCH, wc);
    for (int k = 0; k < n; k++)
      completed(r, &wc[k]);
    any = any || n > 0;
    if (n < BATCH)
      break;
  }
  if (r->srq_owed >= OWED) {
    uint32_t owed = r->srq_owed;
    r->srq_owed = 0;
    post_receives(r, owed);
  }
  return any;
}

bool rails_poll(struct fabric *f) {
  bool any = false;
  for (uint32_t i = 0; i < f->rail_count; i++)
    any = turn(&f->rails[i]) || any;
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
    if (!r->armed && !r->failed)
      r->armed = ibv_req_notify_cq(r->cq, 0) == 0;
  }
}

int rails_descriptors(struct fabric *f, int *fds, int capacity) {
  int n = 0;
  for (uint32_t i = 0; i < f->rail_count && n + 2 <= capacity; i++) {
    fds[n++] = f->rails[i].channel->fd;
    fds[n++] = f->rails[i].context->async_fd;
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
  char text[REASON]; /* GCC takes parts of one structure for overlapping */
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
    p = pair_by_number(r->fabric, number);
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

void rails_ready(struct fabric *f) {
  for (uint32_t i = 0; i < f->rail_count; i++) {
    struct rail *r = &f->rails[i];
    struct ibv_cq *cq;
    void *context;
    while (f->lib->get_cq_event(r->channel, &cq, &context) == 0) {
      r->armed = false;
      if (++r->unacked == BATCH) {
        f->lib->ack_cq_events(r->cq, r->unacked);
        r->unacked = 0;
      }
    }
    async_events(r);
  }
}
