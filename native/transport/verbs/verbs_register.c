/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_register.c - memory regions by kind of memory, with a sentence for
 * users if one cannot be had; and the inbox, to which the peer writes.
 *
 * Memory that no CPU can touch is registered through its dma-buf, if it has one
 * and the driver supports it; otherwise by address, if a kernel module pins
 * such addresses; otherwise not at all, and then its bytes are staged.
 */
#include "verbs_keys.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- Memory regions ----------------------------------------------------- */

static void size_text(char *text, size_t size, uint64_t bytes) {
  static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = (double)bytes;
  unsigned unit = 0;
  for (; value >= 1024 && unit < 4; unit++)
    value /= 1024;
  snprintf(text, size, "%.4g %s", value, units[unit]);
}

int keys_status(int error) {
  bool later = error == ENOMEM || error == EAGAIN || error == EPERM;
  return later ? PERIGEE_NO_MEMORY : PERIGEE_UNSUPPORTED;
}

static void explain(struct rail *rail, uint64_t length, int error) {
  char *detail = rail->fabric->detail, wanted[32], most[32];
  const char *device = rail->port.device;
  struct rlimit limit;
  rail->fabric->detail_at = keys_now(rail->fabric);
  size_text(wanted, sizeof wanted, length);
  if (keys_status(error) != PERIGEE_NO_MEMORY ||
      getrlimit(RLIMIT_MEMLOCK, &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY) {
    snprintf(detail, REASON, "cannot register %s with %s: %s", wanted, device,
             strerror(error));
    return;
  }
  size_text(most, sizeof most, limit.rlim_cur);
  snprintf(detail, REASON,
           "cannot register %s with %s: locked memory is limited to %s; raise "
           "it (ulimit -l, LimitMEMLOCK=)",
           wanted, device, most);
}

static struct ibv_mr *by_dmabuf(struct rail *rail,
                                const struct memory_context *memory,
                                const uint8_t *address, uint64_t length,
                                int access) {
  const struct verbs_library *lib = rail->fabric->lib;
  uint64_t offset = 0;
  errno = EOPNOTSUPP;
  if (!memory->kind->dmabuf || !lib->reg_dmabuf_mr)
    return NULL;
  int fd = memory->kind->dmabuf(memory, address, length, &offset);
  if (fd < 0) {
    errno = EOPNOTSUPP;
    return NULL;
  }
  struct ibv_mr *mr = lib->reg_dmabuf_mr(rail->pd, offset, length,
                                         (uintptr_t)address, fd, access);
  int error = errno;
  close(fd);
  errno = error;
  return mr;
}

struct ibv_mr *keys_register(struct rail *rail,
                             const struct memory_context *memory,
                             uint8_t *address, uint64_t length, int access) {
  struct fabric *fabric = rail->fabric;
  struct ibv_mr *mr = NULL;
  if (!memory->direct)
    mr = by_dmabuf(rail, memory, address, length, access);
  if (!mr && (memory->direct || memory->kind->pinnable))
    mr = fabric->lib->reg_mr(rail->pd, address, length, access);
  if (!mr) {
    int error = errno;
    explain(rail, length, error);
    errno = error;
    return NULL;
  }
  fabric->registered += mr->length;
  fabric->registrations++;
  return mr;
}

void keys_deregister(struct fabric *fabric, struct ibv_mr **mr) {
  if (!*mr)
    return;
  uint64_t length = (*mr)->length;
  fabric->lib->dereg_mr(*mr);
  fabric->registered -= length;
  *mr = NULL;
}

/* ---- The inbox ---------------------------------------------------------- */

int inbox_open(struct lane *lane) {
  struct rail *rail = lane->fabric->rails;
  int right = rail->windows ? IBV_ACCESS_MW_BIND : IBV_ACCESS_REMOTE_WRITE;
  lane->inbox_mr =
      keys_register(rail, &memory_host, lane->inbox, lane->inbox_length,
                    IBV_ACCESS_LOCAL_WRITE | right);
  if (!lane->inbox_mr)
    return keys_status(errno);
  lane->inbox_key = lane->inbox_mr->rkey;
  if (!rail->windows)
    return PERIGEE_OK;
  lane->inbox_mw = ibv_alloc_mw(rail->pd, IBV_MW_TYPE_2);
  if (!lane->inbox_mw) {
    snprintf(lane->fabric->detail, REASON, "no memory window from %s: %s",
             rail->port.device, strerror(errno));
    return keys_status(errno);
  }
  /* The key that it will have: the peer is told before the window is bound. */
  lane->inbox_key = ibv_inc_rkey(lane->inbox_mw->rkey);
  return PERIGEE_OK;
}

int inbox_bind(struct lane *lane) {
  if (!lane->inbox_mw)
    return PERIGEE_OK;
  struct job job = {0};
  pair_bind(&lane->pairs[0], &job, lane->inbox_mw, lane->inbox_mr,
            (uintptr_t)lane->inbox, lane->inbox_length, IBV_ACCESS_REMOTE_WRITE,
            lane->inbox_key);
  lane_await(lane, &job);
  return job.status;
}
