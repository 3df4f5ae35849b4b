/* SPDX-License-Identifier: Apache-2.0
 *
 * The work of echo.c by UCX's tagged messages: a checked echo from and to
 * private memory, over POSIX shared memory unless UCX_TLS says otherwise. Both
 * sides post a receive before they wait. They answer from the memory in which a
 * message arrived while the next one arrives elsewhere, so UCX alone copies
 * bytes. --how inplace: the caller's reading of one byte of each page of a reply
 * counts, as it does in echo.c. Built where UCX's headers are (variable UCX of
 * make).
 */
#include <ucp/api/ucp.h>

#include "echoes.h"

enum { TAG = 1, ADDRESS = 4096 };

/* The place where the two find each other; over: no more messages will come. */
struct meeting {
  _Atomic size_t lengths[2];
  _Alignas(LINE) atomic_bool over;
  uint8_t addresses[2][ADDRESS];
};

/* One message under way in each direction, and memory for two, used in turn. */
struct slot {
  ucs_status_ptr_t sent, coming;
  uint8_t *buffers[2];
  int into;
};

struct end {
  struct meeting *meeting;
  const struct options *options;
  size_t length;
  ucp_context_h context;
  ucp_worker_h worker;
  ucp_ep_h peer;
  struct slot slots[WINDOW];
  int next; /* messages come in the order of the slots */
};

static void must(ucs_status_t status, const char *what) {
  if (status == UCS_OK)
    return;
  fprintf(stderr, "ucx_echo: %s: %s\n", what, ucs_status_string(status));
  exit(1);
}

static void open_end(struct end *end) {
  ucp_params_t context = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                          .features = UCP_FEATURE_TAG};
  ucp_worker_params_t worker = {.field_mask =
                                    UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                .thread_mode = UCS_THREAD_MODE_SINGLE};
  setenv("UCX_TLS", "posix,self", 0);
  must(ucp_init(&context, NULL, &end->context), "init");
  must(ucp_worker_create(end->context, &worker, &end->worker), "worker");
}

static void meet(struct end *end, int self) {
  struct meeting *meeting = end->meeting;
  ucp_address_t *address;
  size_t length;
  must(ucp_worker_get_address(end->worker, &address, &length), "address");
  if (length > ADDRESS)
    die("the address is too long");
  memcpy(meeting->addresses[self], address, length);
  atomic_store(&meeting->lengths[self], length);
  ucp_worker_release_address(end->worker, address);
  while (atomic_load(&meeting->lengths[!self]) == 0)
    ucp_worker_progress(end->worker);
  ucp_ep_params_t peer = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
                          .address =
                              (const ucp_address_t *)meeting->addresses[!self]};
  must(ucp_ep_create(end->worker, &peer, &end->peer), "endpoint");
}

/* Cancels receives for which nothing will come. */
static void give_up(struct end *end) {
  for (int i = 0; i < end->options->window; i++) {
    ucs_status_ptr_t coming = end->slots[i].coming;
    if (!UCS_PTR_IS_PTR(coming))
      continue;
    ucp_request_cancel(end->worker, coming);
    while (ucp_request_check_status(coming) == UCS_INPROGRESS)
      ucp_worker_progress(end->worker);
    ucp_request_free(coming);
  }
}

static void close_end(struct end *end) {
  give_up(end);
  ucp_request_param_t none = {0};
  ucs_status_ptr_t closing = ucp_ep_close_nbx(end->peer, &none);
  if (UCS_PTR_IS_PTR(closing)) {
    while (ucp_request_check_status(closing) == UCS_INPROGRESS)
      ucp_worker_progress(end->worker);
    ucp_request_free(closing);
  }
  ucp_worker_destroy(end->worker);
  ucp_cleanup(end->context);
}

/* Waits for a request; returns false if the caller has ended. */
static bool finish(struct end *end, ucs_status_ptr_t *request) {
  if (UCS_PTR_IS_PTR(*request)) {
    ucs_status_t status;
    while ((status = ucp_request_check_status(*request)) == UCS_INPROGRESS)
      if (ucp_worker_progress(end->worker) == 0 &&
          atomic_load_explicit(&end->meeting->over, memory_order_relaxed))
        return false;
    must(status, "message");
    ucp_request_free(*request);
  } else {
    must(UCS_PTR_STATUS(*request), "message");
  }
  *request = NULL;
  return true;
}

static void send_from(struct end *end, struct slot *slot, const uint8_t *from) {
  static const ucp_request_param_t param;
  slot->sent = ucp_tag_send_nbx(end->peer, from, end->length, TAG, &param);
}

static void receive(struct end *end, struct slot *slot) {
  static const ucp_request_param_t param;
  slot->coming = ucp_tag_recv_nbx(end->worker, slot->buffers[slot->into],
                                  end->length, TAG, UINT64_MAX, &param);
}

static void equip(struct end *end) {
  for (int i = 0; i < end->options->window; i++)
    for (int j = 0; j < 2; j++)
      end->slots[i].buffers[j] = memory(end->length, MAP_PRIVATE);
}

static struct slot *next(struct end *end) {
  struct slot *slot = &end->slots[end->next];
  end->next = (end->next + 1) % end->options->window;
  return slot;
}

static void serve(void *context) {
  struct end *end = context;
  open_end(end);
  equip(end);
  for (int i = 0; i < end->options->window; i++)
    receive(end, &end->slots[i]);
  meet(end, 1);
  for (;;) {
    struct slot *slot = next(end);
    if (!finish(end, &slot->coming) || !finish(end, &slot->sent))
      break;
    const uint8_t *came = slot->buffers[slot->into];
    slot->into = !slot->into;
    send_from(end, slot, came);
    receive(end, slot);
  }
  close_end(end);
}

static void submit(void *context, int index, size_t length) {
  struct end *end = context;
  struct slot *slot = &end->slots[index];
  (void)length;
  send_from(end, slot, slot->buffers[0]);
  receive(end, slot);
}

static int collect(void *context, size_t length, const uint8_t **reply) {
  struct end *end = context;
  struct slot *slot = next(end);
  (void)length;
  finish(end, &slot->coming);
  finish(end, &slot->sent);
  *reply = slot->buffers[1];
  return (int)(slot - end->slots);
}

static void measure(const struct options *options, const char *size,
                    struct samples *samples) {
  static struct end end;
  static struct caller caller;
  end = (struct end){.options = options, .length = strtoull(size, NULL, 10)};
  end.meeting = memory(sizeof *end.meeting, MAP_SHARED);
  caller = (struct caller){.options = options,
                           .what = "ucx",
                           .window = options->window,
                           .in_place = options->how &&
                                       strcmp(options->how, "inplace") == 0,
                           .context = &end,
                           .submit = submit,
                           .collect = collect};
  start(options, serve, &end);
  open_end(&end);
  equip(&end);
  for (int i = 0; i < WINDOW; i++) {
    end.slots[i].into = 1;
    caller.buffers[i] = end.slots[i].buffers[0];
  }
  meet(&end, 0);
  caller_measure(&caller, size, samples);
  ending();
  atomic_store(&end.meeting->over, true);
  close_end(&end);
  if (wait(NULL) < 0)
    die("wait");
}

int main(int argc, char **argv) {
  struct options options = options_parse(argc, argv);
  largest(argc, argv);
  if (options.window < 1 || options.window > WINDOW)
    usage(argv[0]);
  struct samples samples = samples_new();
  for (char **size = argv + optind; *size; size++)
    measure(&options, *size, &samples);
  return 0;
}
