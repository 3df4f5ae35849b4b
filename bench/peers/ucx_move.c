/* SPDX-License-Identifier: Apache-2.0
 *
 * UCX's put and get, over what UCX_TLS says.
 *
 * Version: 1.22 (ucx-move: PyPI's libucx-cu12) and 1.13 (ucx-move-debian).
 * Mode: one worker and one thread a side; both memories are registered. The
 * server's memory is UCX's own (UCP_MEM_MAP_ALLOCATE), which over posix and
 * sysv both processes have mapped; the client's is private and registered. A
 * put ends when a flush of the endpoint says that it is there, a get by itself.
 * Copies: posix, sysv: the client, once (with cma from some size on the
 * kernel); tcp: the kernel, in and out.
 * Sleeping: nobody; the server calls ucp_worker_progress() all the time,
 * which connects the two, and over tcp takes what comes.
 * Setting: https://openucx.readthedocs.io/en/master/api.html (ucp_mem_map,
 * ucp_put_nbx, ucp_ep_flush_nbx); the loops of ucx_perftest -t ucp_put_bw and
 * ucp_get; each operation is told its memory's handle and type, as there.
 */
#include "onesided.h"
#include "ucx.h"

struct end {
  struct onesided onesided;
  struct ucx ucx;
  ucp_rkey_h key;
  uint64_t far;
  ucp_request_param_t here[2]; /* of get, of put */
  ucs_status_ptr_t request;    /* the last one, if it has not ended at once */
  bool flush;                  /* the end of what is under way needs one */
};

/* ---- The server --------------------------------------------------------- */

static void *share(const struct ucx *ucx, const struct peer *peer) {
  ucp_mem_map_params_t want = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                             UCP_MEM_MAP_PARAM_FIELD_FLAGS,
                               .length = peer->size * (size_t)peer->under,
                               .flags = UCP_MEM_MAP_ALLOCATE};
  ucp_mem_attr_t got = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
  ucp_mem_h handle;
  void *key;
  size_t length;
  must(ucp_mem_map(ucx->context, &want, &handle), "memory");
  must(ucp_mem_query(handle, &got), "memory");
  must(ucp_rkey_pack(ucx->context, handle, &key, &length), "key");
  peer_write_file(peer, "key", key, length);
  ucp_rkey_buffer_release(key);
  memset(got.address, 1, want.length);
  return got.address;
}

static void serve(const struct peer *peer) {
  static struct ucx ucx;
  ucx_open(&ucx, UCP_FEATURE_RMA);
  const void *memory = share(&ucx, peer);
  ucx_tell_address(&ucx, peer, "server");
  onesided_ready(memory);
  for (;;)
    ucp_worker_progress(ucx.worker);
}

/* ---- The client --------------------------------------------------------- */

static ucp_request_param_t registered(const struct ucx *ucx, void *memory,
                                      size_t length) {
  ucp_mem_map_params_t here = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                                             UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                               .address = memory,
                               .length = length};
  ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE |
                                               UCP_OP_ATTR_FIELD_MEMH,
                               .memory_type = UCS_MEMORY_TYPE_HOST};
  must(ucp_mem_map(ucx->context, &here, &param.memh), "memory");
  return param;
}

/* A single get is waited for; several of them, and puts, by a flush. A request
 * that is under way is released then. */
static void begin_move(void *context, bool put, size_t at, size_t length) {
  struct end *end = context;
  const struct onesided *side = &end->onesided;
  ucs_status_ptr_t request =
      put ? ucp_put_nbx(end->ucx.other, side->from + at, length, end->far + at,
                        end->key, &end->here[1])
          : ucp_get_nbx(end->ucx.other, side->into + at, length, end->far + at,
                        end->key, &end->here[0]);
  if (UCS_PTR_IS_ERR(request))
    must(UCS_PTR_STATUS(request), put ? "put" : "get");
  end->flush |= put || end->request;
  if (end->request)
    ucp_request_free(end->request);
  end->request = request;
}

static void end_moves(void *context) {
  static const ucp_request_param_t none;
  struct end *end = context;
  if (end->flush) {
    ucs_status_ptr_t all = ucp_ep_flush_nbx(end->ucx.other, &none);
    ucx_wait(&end->ucx, &all);
  }
  ucx_wait(&end->ucx, &end->request);
  end->flush = false;
}

static void call(const struct peer *peer) {
  static struct end end;
  static uint8_t key[4096];
  struct onesided *side = &end.onesided;
  int pid;
  ucx_open(&end.ucx, UCP_FEATURE_RMA);
  ucx_connect(&end.ucx, peer, "server");
  onesided_open(side, peer);
  end.far = onesided_address(peer, &pid);
  peer_read_file(peer, "key", key, sizeof key);
  must(ucp_ep_rkey_unpack(end.ucx.other, key, &end.key), "key");
  end.here[0] = registered(&end.ucx, side->into, side->length);
  end.here[1] = registered(&end.ucx, side->from, side->length);
  side->context = &end;
  side->begin = begin_move;
  side->end = end_moves;
  onesided_bursts(side);
}

int main(int argc, char **argv) {
  static const struct peer_kind kind = {ucx_version, serve, call};
  return peer_main(argc, argv, &kind);
}
