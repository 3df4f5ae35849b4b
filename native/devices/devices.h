/* SPDX-License-Identifier: Apache-2.0
 *
 * devices.h - RDMA devices: libibverbs, the user's options, and which ports are
 * used; and which of them are near a GPU (devices_gpus.c).
 *
 * Nothing here knows of engines. Devices are described by sysfs, so that this
 * can be told where the library is missing, and tested where no device is.
 * Addresses, states and counters come from the kernel; names come from the
 * machine and from users, and the length of each is checked.
 *
 * The rule of choice: the fastest active port, the first by name among equals.
 * Of its GIDs RoCE v2 goes before v1, and IPv4 before IPv6 before link-local.
 * The options nics and gid override the rule.
 */
#ifndef DEVICES_H
#define DEVICES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <infiniband/verbs.h>

#include "perigee.h"

/* ---- libibverbs, loaded at run time -------------------------------------- */

/* The exported functions that are used. Those of the data path (ibv_post_send,
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
  entry(create_qp) entry(modify_qp) entry(query_qp) entry(destroy_qp)          \
  entry(fork_init)                                                             \
  entry(wc_status_str) entry(event_type_str) entry(port_state_str)             \
  entry(rate_to_mbps)
/* clang-format on */
/* NULL where the library is too old to have them. */
#define VERBS_OPTIONAL(entry) entry(reg_mr_iova2) entry(reg_dmabuf_mr)

struct verbs_library {
#define VERBS_FIELD(name) __typeof__(ibv_##name) *(name);
  VERBS_FUNCTIONS(VERBS_FIELD)
  VERBS_OPTIONAL(VERBS_FIELD)
#undef VERBS_FIELD
};

/* Returns the library, which is loaded once in a process and never unloaded.
 * NULL if it is not installed; *why (which may be NULL) is then the reason, a
 * static sentence. May be called from any thread. */
const struct verbs_library *verbs_library(const char **why);

/* Fills in the structure as this build knows it: the exported query_port takes
 * its oldest, shortest shape. Returns 0 or an errno. */
static inline int verbs_query_port(const struct verbs_library *library,
                                   struct ibv_context *context, uint8_t port,
                                   struct ibv_port_attr *attributes) {
  memset(attributes, 0, sizeof *attributes);
  return library->query_port(context, port,
                             (struct _compat_ibv_port_attr *)attributes);
}

/* ---- Options ------------------------------------------------------------- */

enum {
  RDMA_NICS = 4,    /* most NICs that one engine uses at once */
  RDMA_LISTED = 16, /* most NICs named in PERIGEE_NICS */
  RDMA_QPS = 8,     /* most queue pairs of a session on each NIC */
  RDMA_NAME = 64,   /* bytes of a name with the final zero */
  RDMA_GIDS = 256   /* a GID's index is 8 bits wide in an address handle */
};

struct rdma_nic {
  char device[RDMA_NAME];
  uint8_t port; /* 0: any active port */
};

/* Parsed from one text, "nics=mlx5_0:1,mlx5_1 qps=2 gid=3". Pairs are separated
 * by spaces, commas or both; nics and gid take several values. Sizes may end in
 * K, M or G. Each comment gives the key, its range and its default. */
struct rdma_options {
  struct rdma_nic nics[RDMA_NICS]; /* nics: all are used, in this order */
  uint32_t nic_count;              /* 0: the best NIC is chosen */
  int32_t gids[RDMA_NICS];         /* gid: 0..255, one for all NICs or one for
                                      each; chosen by rule */
  uint32_t gid_count;              /* 0: chosen by rule */
  uint32_t qps;                    /* qps: on each NIC, 1..8; 1 */
  uint32_t service_level;          /* sl: 0..15; 0 */
  uint32_t traffic_class;          /* tc: 0..255; 0 */
  uint32_t hop_limit;              /* hop: 1..255; 64 */
  uint32_t pkey_index;             /* pkey: an index, 0..65535; 0 */
  uint32_t mtu;                    /* mtu: 256..4096; 0, the port's */
  uint32_t timeout;                /* timeout: 4.096 us * 2^n, n 8..20; 14 */
  uint32_t retries;                /* retry: 0..6; 6. 7 means for ever on some
                                      devices */
  uint32_t rnr_retries;            /* rnr: 0..6; 6 */
  uint64_t stripe;                 /* stripe: least bytes that a queue pair gets
                                      of a transfer, 4K..1G; 256K */
  uint32_t depth;                  /* depth: work requests of a queue pair,
                                      8..8192; 128 */
  uint32_t inline_size;            /* inline: bytes, 0..1024; 220 */
  bool windows;                    /* windows: 0 or 1: memory windows, where
                                      the device has them; 1 */
};

/* text NULL: PERIGEE_RDMA from the environment, else "". PERIGEE_OK, or
 * PERIGEE_INVALID with a sentence in reason; out is unchanged then. */
int rdma_options_parse(const char *text, struct rdma_options *out, char *reason,
                       size_t size);

/* ---- Which ports are used ------------------------------------------------ */

struct rdma_port {
  char device[RDMA_NAME]; /* name as in ibv_get_device_name */
  char netdev[16];        /* network device of the GID; "" if unknown */
  uint8_t port;
  uint8_t gid_index;
  uint8_t gid[16];
  bool ethernet; /* RoCE, which is always routed by GID */
  bool global;  /* route by GID: RoCE, or InfiniBand with gid=. InfiniBand needs
                    it also where the subnet prefixes (the first 8 bytes of both
                    GIDs) differ, which the caller has to check */
  uint16_t lid; /* 0 on Ethernet */
  int32_t numa; /* NUMA node, -1 if unknown */
  double rate;  /* Gb/s */
};

/* Chooses the ports to use: those named in options, in that order; otherwise
 * the fastest active port, the first by name among equals. PERIGEE_NICS
 * ("mlx5_0,mlx5_2:1"), if it is set, hides all others. Returns the number of
 * ports, 1 to RDMA_NICS, or a status with a sentence that says what is missing
 * and what to do: PERIGEE_UNSUPPORTED if there is no port to use,
 * PERIGEE_INVALID if an option is wrong. */
int rdma_choose(const struct rdma_options *options, struct rdma_port *out,
                int capacity, char *reason, size_t size);

/* ---- For the files of this folder, and for tests ------------------------- */

#define SYSFS "/sys"

/* As rdma_choose, on another sysfs, without looking at the library. */
int rdma_choose_in(const char *sysfs, const struct rdma_options *options,
                   struct rdma_port *out, int capacity, char *reason,
                   size_t size);

/* A GID of a port's table. */
struct device_gid {
  uint32_t index;
  uint8_t bytes[16];
  char type[16];
  char netdev[16];
};

/* Lists every port with what sysfs says of it (not the MTUs), sorted by name
 * and port. Returns the number of ports, which may exceed capacity. */
int sysfs_devices(const char *sysfs, struct perigee_device *list, int capacity);
/* Reads what sysfs_gid needs: name, port, link. False: no such port. */
bool sysfs_port(const char *sysfs, const char *name, uint32_t port,
                struct perigee_device *out);
/* False: the entry is empty or does not exist. */
bool sysfs_gid(const char *sysfs, const struct perigee_device *port,
               uint32_t index, struct device_gid *gid);

/* A folder's path without links; 4096 is PATH_MAX. */
enum { SYSFS_PLACE = 4096 };
/* Finds where a device of the PCI bus is, by its address ("0000:3b:00.0"): its
 * bridges are folders on the way ("/sys/devices/pci0000:3a/0000:3a:00.0/..."),
 * outermost first. False: it is not there, and out is "". */
bool sysfs_pci_place(const char *sysfs, const char *address,
                     char out[SYSFS_PLACE]);
/* Returns the NUMA node of such a device, -1 if unknown. */
int32_t sysfs_pci_numa(const char *sysfs, const char *address);

/* Lists all ports that PERIGEE_NICS does not hide; the caller frees the list.
 * Returns their number, or a status with its sentence. */
int rdma_ports(const char *sysfs, struct perigee_device **list, char *reason,
               size_t size);
/* Returns where an entry of a program's list is. */
void *devices_entry(void *list, uint64_t each, int index);

/* Returns why this process cannot use the device that sysfs shows, as a
 * sentence in reason; NULL if it can. */
const char *verbs_obstacle(const char *device, char *reason, size_t size);
/* Fills in the MTUs of devices that can be opened. */
void verbs_measure(struct perigee_device *list, int count);

#endif
