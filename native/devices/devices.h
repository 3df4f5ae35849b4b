/* SPDX-License-Identifier: Apache-2.0
 *
 * devices.h - RDMA devices: the library that drives them, what users say about
 * them, and which of them are used.
 *
 * Nothing here knows of engines. What a device is comes from sysfs, so that it
 * can be told where the library is missing and tested where no device is.
 * Addresses, states and counters are the kernel's; names come from the machine
 * and from users, and every one of them is bounded.
 */
#ifndef DEVICES_H
#define DEVICES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <infiniband/verbs.h>

#include "perigee.h"

/* ---- libibverbs, found at run time --------------------------------------- */

/* Exported functions only. Those on the way of a transfer (ibv_post_send,
 * ibv_poll_cq, ibv_req_notify_cq, ibv_bind_mw and so on) are inline: they go
 * through the context's table and need no symbol. */
/* clang-format off */
#define VERBS_FUNCTIONS(entry)                                                 \
  entry(get_device_list) entry(free_device_list) entry(get_device_name)        \
  entry(open_device) entry(close_device) entry(query_device) entry(query_port) \
  entry(query_gid) entry(alloc_pd) entry(dealloc_pd) entry(reg_mr)             \
  entry(dereg_mr) entry(create_comp_channel) entry(destroy_comp_channel)       \
  entry(create_cq) entry(resize_cq) entry(destroy_cq) entry(get_cq_event)      \
  entry(ack_cq_events) entry(get_async_event) entry(ack_async_event)           \
  entry(create_srq) entry(modify_srq) entry(destroy_srq) entry(create_qp)      \
  entry(modify_qp) entry(query_qp) entry(destroy_qp) entry(fork_init)          \
  entry(wc_status_str) entry(event_type_str) entry(port_state_str)             \
  entry(rate_to_mbps)
/* clang-format on */
/* NULL where the library is older than they are. */
#define VERBS_OPTIONAL(entry) entry(reg_mr_iova2) entry(reg_dmabuf_mr)

struct verbs_library {
#define VERBS_FIELD(name) __typeof__(ibv_##name) *(name);
  VERBS_FUNCTIONS(VERBS_FIELD)
  VERBS_OPTIONAL(VERBS_FIELD)
#undef VERBS_FIELD
};

/* The library, loaded once in a process and never unloaded; NULL, and the
 * reason as a static sentence in *why (which may be NULL), if it is not here.
 * From any thread. */
const struct verbs_library *verbs_library(const char **why);

/* query_port by itself takes the structure's oldest, shortest shape. 0 or an
 * errno. */
static inline int verbs_query_port(const struct verbs_library *library,
                                   struct ibv_context *context, uint8_t port,
                                   struct ibv_port_attr *attributes) {
  memset(attributes, 0, sizeof *attributes);
  return library->query_port(context, port,
                             (struct _compat_ibv_port_attr *)attributes);
}

/* ---- What users say ------------------------------------------------------ */

enum {
  RDMA_NICS = 4,    /* used by one engine at once */
  RDMA_LISTED = 16, /* named in PERIGEE_NICS */
  RDMA_QPS = 8,     /* queue pairs of a session on each NIC */
  RDMA_NAME = 64,   /* with its end */
  RDMA_GIDS = 256   /* a GID's index is 8 bits wide in an address handle */
};

struct rdma_nic {
  char device[RDMA_NAME];
  uint8_t port; /* 0: any that is active */
};

/* One text, "nics=mlx5_0:1,mlx5_1 qps=2 gid=3". Pairs are parted by spaces,
 * commas or both; nics and gid take several values. Sizes may end in K, M or
 * G. */
struct rdma_options {
  struct rdma_nic nics[RDMA_NICS]; /* nics: used all, in this order */
  uint32_t nic_count;              /* 0: the best one there is */
  int32_t gids[RDMA_NICS];         /* gid: 0..255, one for all or one for each
                                      of nics; by rule */
  uint32_t gid_count;              /* 0: by rule */
  uint32_t qps;                    /* qps: on each NIC, 1..8; 1 */
  uint32_t service_level;          /* sl: 0..15; 0 */
  uint32_t traffic_class;          /* tc: 0..255; 0 */
  uint32_t hop_limit;              /* hop: 1..255; 64 */
  uint32_t pkey_index;             /* pkey: an index, 0..65535; 0 */
  uint32_t mtu;                    /* mtu: 256..4096; 0, the port's */
  uint32_t timeout;                /* timeout: 4.096 us * 2^n, 8..20; 14 */
  uint32_t retries;                /* retry: 0..6; 6. 7 is for ever on some */
  uint32_t rnr_retries;            /* rnr: 0..6; 6 */
  uint32_t receives;               /* receives: in a shared queue, of which
                                      there are more when one is full,
                                      512..65536; 8192 */
  uint64_t stripe;                 /* stripe: least bytes of a queue pair's
                                      share, 4K..1G; 256K */
  uint32_t depth;                  /* depth: work requests of a queue pair,
                                      8..8192; 128 */
  uint32_t inline_size;            /* inline: bytes, 0..1024; 220 */
  bool windows;                    /* windows: 0 or 1, where possible; 1 */
};

/* text NULL: the environment's PERIGEE_RDMA, else "". PERIGEE_OK, or
 * PERIGEE_INVALID with a sentence in reason, and then out is as it was. */
int rdma_options_parse(const char *text, struct rdma_options *out, char *reason,
                       size_t size);

/* ---- Which ports are used ------------------------------------------------ */

struct rdma_port {
  char device[RDMA_NAME]; /* as ibv_get_device_name tells it */
  char netdev[16];        /* of the GID; "" unknown */
  uint8_t port;
  uint8_t gid_index;
  uint8_t gid[16];
  bool ethernet; /* RoCE: always routed by GID */
  bool global;   /* route by GID: RoCE, or InfiniBand with gid=. On
                             InfiniBand also needed (and the caller's to see)
                             where the subnet prefixes, the first 8 bytes of
                             the two GIDs, differ */
  uint16_t lid;  /* 0 on Ethernet */
  int32_t numa;  /* -1 unknown */
  double rate;   /* Gb/s */
};

/* The ports to use: those named in options, in that order; else the fastest
 * active one, by name among equals. PERIGEE_NICS ("mlx5_0,mlx5_2:1"), where it
 * is set, hides all others. The number of ports, 1 to RDMA_NICS, or a status
 * with a sentence on what is missing and what to do: PERIGEE_UNSUPPORTED if
 * there is nothing to use, PERIGEE_INVALID if what users said is wrong. */
int rdma_choose(const struct rdma_options *options, struct rdma_port *out,
                int capacity, char *reason, size_t size);

/* ---- Between the files of devices; and for tests ------------------------- */

/* The same choice on another sysfs, without a look at the library. */
int rdma_choose_in(const char *sysfs, const struct rdma_options *options,
                   struct rdma_port *out, int capacity, char *reason,
                   size_t size);
/* "mlx5_0:1,mlx5_1" into at most capacity NICs: their number, or
 * PERIGEE_INVALID. */
int rdma_nics_parse(const char *text, struct rdma_nic *out, int capacity,
                    char *reason, size_t size);

/* PERIGEE_NICS, or NULL if it hides nothing. */
const char *rdma_filter(void);
/* All ports that the environment does not hide, to be freed by the caller: their
 * number, or a status with its sentence. */
int rdma_ports(const char *sysfs, struct perigee_device **list, char *reason,
               size_t size);
/* Does the user's name mean this port? */
bool rdma_nic_is(const struct rdma_nic *nic, const struct perigee_device *port);

/* A GID of a port's table, and how good it is: 0 unusable, more is better. */
struct device_gid {
  uint32_t index;
  uint8_t bytes[16];
  char type[16];
  char netdev[16];
};
int device_gid_score(const struct device_gid *gid, bool ethernet);

/* Everything sysfs says of every port, sorted by name and port, MTUs apart: the
 * number there are, which may be more than capacity. */
int sysfs_devices(const char *sysfs, struct perigee_device *list, int capacity);
/* What is needed to read a port's GIDs: name, port, link. False: no such port. */
bool sysfs_port(const char *sysfs, const char *name, uint32_t port,
                struct perigee_device *out);
/* False: the entry is empty, or there is none. */
bool sysfs_gid(const char *sysfs, const struct perigee_device *port,
               uint32_t index, struct device_gid *gid);
/* The index of the best GID by rule, or -1. */
int sysfs_best_gid(const char *sysfs, const struct perigee_device *port);

/* Why this process cannot use the device that sysfs shows; NULL if it can.
 * The sentence is written to reason. */
const char *verbs_obstacle(const char *device, char *reason, size_t size);
/* Fills in the MTUs, where the device can be opened. */
void verbs_measure(struct perigee_device *list, int count);

#endif
