/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_rail.h - what all lanes of an engine share: the fabric, its rails
 * (ports in use) and their queues.
 */
#ifndef VERBS_RAIL_H
#define VERBS_RAIL_H

#include <infiniband/verbs.h>
#include <stdatomic.h>

#include "devices/devices.h"
#include "transport/transport.h"

enum { RAILS = 4, PAIRS = 9 }; /* pairs: control and at most 8 */
enum { QUEUES = 32 };
/* Ids of granted memory: regions as windows, regions as payloads, the arena. */
enum { ID_REGION = 0, ID_PAYLOAD = 4096, ID_ARENA = 8192, IDS = 65536 };

struct pair;

struct queues {
  struct rail *rail;
  struct ibv_cq *cq;
  uint32_t cq_size, cq_used;   /* capacity; completions that are reserved */
  struct ibv_srq *srq;         /* on rail 0 only */
  uint32_t srq_size, srq_used; /* capacity; entries reserved and to spare */
  uint32_t srq_owed;           /* used entries that are to be posted again */
  uint32_t unacked;            /* channel events not acknowledged yet */
  bool armed;
};

struct rail {
  struct fabric *fabric;
  uint32_t index;
  struct rdma_port port;
  struct ibv_context *context;
  struct ibv_device_attr attr;
  struct ibv_port_attr state;
  union ibv_gid gid;
  struct ibv_pd *pd;
  struct ibv_comp_channel *channel;
  struct queues queues[QUEUES]; /* a further one when the last is full */
  uint32_t queue_count;
  struct ibv_mr *marks;
  struct pair *by_number[256]; /* chains of pairs, by queue pair number */
  bool windows;                /* memory windows of type 2 */
  int removal;                 /* inotify of /dev/infiniband, or -1 */
  bool failed;
  char reason[REASON]; /* why the rail has failed */
};

struct fabric {
  struct rdma_options options;
  const struct verbs_library *lib;
  struct fabric_options engine;
  struct rail rails[RAILS];
  uint32_t rail_count;
  _Atomic uint32_t *marks; /* by operation: its generation, or 0 */
  struct lane *lanes;
  uint32_t pairs_made;
  struct keys *keys;                  /* list of all keys of this fabric */
  struct granted *opening;            /* grants that wait for their windows */
  uint64_t registered, registrations; /* bytes now; number, ever */
  char detail[REASON]; /* why memory could not be registered, the last time */
  int64_t detail_at;   /* when that was */
  uint64_t found;      /* polls of a queue that found something */
  uint64_t numbered[(ID_ARENA - ID_PAYLOAD) / 64]; /* payload ids in use */
  uint32_t number;                                 /* where to look next */
  uint64_t generation;                             /* the last one given */
};

/* The id of receives. */
#define RECEIVE_ID UINT64_MAX

int rails_start(const struct fabric_options *options, struct fabric **fabric,
                char reason[REASON]);
void rails_stop(struct fabric *fabric);
int rails_descriptors(struct fabric *fabric, int *fds, int capacity);
void rails_arm(struct fabric *fabric);
/* Is the node of the rail's device still there? */
bool rail_has_node(const struct rail *rail);
/* Returns queues with room for that many more, or PERIGEE_NO_MEMORY. */
int rail_reserve(struct rail *rail, uint32_t completions, uint32_t receives,
                 struct queues **queues, char reason[REASON]);
void queues_unreserve(struct queues *queues, uint32_t completions,
                      uint32_t receives);
/* Posts receives again that were used (srq_owed), once there are enough. */
void queues_repay(struct queues *queues);

#endif
