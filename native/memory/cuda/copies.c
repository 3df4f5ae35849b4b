/* SPDX-License-Identifier: Apache-2.0
 *
 * copies.c - copies of memory of GPUs.
 *
 * The host's side of a copy lies in pageable memory, of which the
 * driver would make a copy of its own while the caller waits. So it passes
 * through a slot of pinned memory, of this context, unless the driver has
 * registered it (pins.c):
 *
 *   to the device      copy() gathers the bytes in a slot, for the stream
 *   from the device    the stream copies to a slot; finished() scatters them
 *   inside, to another the stream copies
 *
 * Tickets. Behind each copy the stream writes the copy's number to a word of
 * pinned memory. Copies of one stream end in order, so finished() compares two
 * numbers, and asks the driver nothing. The stream writes the word after the
 * copied bytes are visible, and the acquire load of the word comes before they
 * are read. A broken device writes no more words: so each LOOK-th time that a
 * copy is not over yet, the driver is asked for the stream's state.
 *
 *   copy     event                              becomes
 *   free     copy()                             asked
 *   asked    finished() after its word came     free; its bytes are there
 *   asked    the stream has failed              free, and closed
 *
 * Many at once, with one ticket, go these ways (trial.c finds out which is the
 * best one where):
 *
 *   small pieces, if they are many      the kernel (kernel.c)
 *   blocks of a regular shape           one cuMemcpy2DAsync
 *   other pieces                        cuMemcpyBatchAsync, or one by one
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda.h"

/* ---- Slots --------------------------------------------------------------- */

/* The last slot is for a copy that is waited for; so is the last ticket. */
static int slot_take(struct cuda *c, bool waited_for) {
  uint32_t free = waited_for ? ~c->used : ~c->used & (UINT32_MAX >> 1);
  if (free == 0)
    return -1;
  int slot = __builtin_ctz(free);
  c->used |= 1u << slot;
  return slot;
}

static void slot_give(struct cuda *c, int slot) {
  if (slot >= 0)
    c->used &= ~(1u << slot);
}

static uint8_t *slot_at(const struct cuda *c, int slot) {
  return c->pinned + (uint64_t)slot * COPY_PIECE;
}

static void slot_gather(uint8_t *slot, const struct memory_copy *m) {
  for (uint64_t i = 0; i < m->count; i++)
    memcpy(slot + i * m->block, m->from + i * m->from_stride, m->block);
}

static void slot_scatter(const uint8_t *slot, const struct memory_copy *m) {
  for (uint64_t i = 0; i < m->count; i++)
    memcpy(m->to + i * m->to_stride, slot + i * m->block, m->block);
}

/* ---- Copies -------------------------------------------------------------- */

/* Is it from one device to another? */
static bool copy_is_across(const struct memory_copy *m) {
  return !m->from_memory->direct && !m->to_memory->direct &&
         m->from_memory->device != m->to_memory->device;
}

/* Blocks that a 2D copy takes: pitches are at least a row, and limited. */
static bool copy_is_flat(const struct cuda *c, const struct memory_copy *m) {
  uint64_t most = (uint64_t)c->max_pitch;
  return m->count > 2 && !copy_is_across(m) && m->to_stride >= m->block &&
         m->from_stride >= m->block && m->to_stride <= most &&
         m->from_stride <= most;
}

/* Addresses of all memories are unified, so the driver finds the sides. */
static CUresult copy_flat(struct cuda *c, const struct memory_copy *m,
                          CUstream stream) {
  CUDA_MEMCPY2D d;
  memset(&d, 0, sizeof d);
  d.srcMemoryType = d.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  d.srcDevice = (CUdeviceptr)(uintptr_t)m->from;
  d.dstDevice = (CUdeviceptr)(uintptr_t)m->to;
  d.srcPitch = m->from_stride;
  d.dstPitch = m->to_stride;
  d.WidthInBytes = m->block;
  d.Height = m->count;
  return c->driver->cuMemcpy2DAsync(&d, stream);
}

/* Memory that cuMemMap has mapped for one device takes no part in another one's
 * cuMemcpyAsync. */
static CUresult copy_block(struct cuda *c, const struct memory_copy *m,
                           uint64_t i, CUstream stream) {
  CUdeviceptr to = (CUdeviceptr)(uintptr_t)(m->to + i * m->to_stride);
  CUdeviceptr from = (CUdeviceptr)(uintptr_t)(m->from + i * m->from_stride);
  if (!copy_is_across(m))
    return c->driver->cuMemcpyAsync(to, from, m->block, stream);
  const struct cuda *there = m->to_memory->own, *here = m->from_memory->own;
  return c->driver->cuMemcpyPeerAsync(to, there->context, from, here->context,
                                      m->block, stream);
}

static CUresult copy_blocks(struct cuda *c, const struct memory_copy *m,
                            CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  for (uint64_t i = 0; i < m->count && result == CUDA_SUCCESS; i++)
    result = copy_block(c, m, i, stream);
  return result;
}

/* The copy that the stream does: the host's side is the slot. */
static struct memory_copy copy_by_slot(const struct memory_copy *m,
                                       enum way way, uint8_t *slot) {
  struct memory_copy of = *m;
  if (way == WAY_TO) {
    of.from = slot;
    of.from_stride = m->block;
  }
  if (way == WAY_FROM) {
    of.to = slot;
    of.to_stride = m->block;
  }
  return of;
}

/* Has the stream tell when it is through with what it was asked for. */
static CUresult stream_number(struct cuda *c, struct stream *s) {
  CUresult result =
      c->driver->cuStreamWriteValue64(s->handle, s->word, s->asked + 1, 0);
  s->asked += result == CUDA_SUCCESS;
  return result;
}

static bool stream_has_told(const struct stream *s, uint64_t number) {
  return atomic_load_explicit(s->done, memory_order_acquire) >= number;
}

/* The driver may refuse to wait while a graph is captured, but not to copy: then
 * a number behind all that was asked for tells, unless the driver waits after all,
 * or the device breaks. */
CUresult stream_rest(struct cuda *c, struct stream *s) {
  const struct timespec nap = {.tv_nsec = 50000};
  CUresult result = c->driver->cuStreamSynchronize(s->handle);
  if (result != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    return result;
  CUresult asked = stream_number(c, s);
  if (asked != CUDA_SUCCESS)
    return asked;
  while (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
         !stream_has_told(s, s->asked)) {
    nanosleep(&nap, NULL);
    result = c->driver->cuStreamSynchronize(s->handle);
  }
  return stream_has_told(s, s->asked) ? CUDA_SUCCESS : result;
}

/* What could not be asked for as a whole may have begun. A stream that cannot be
 * brought to rest then has failed: it gets no more. */
static void stream_settle(struct cuda *c, struct stream *s) {
  if (stream_rest(c, s) != CUDA_SUCCESS)
    s->failed = true;
}

static CUresult copy_ask(struct cuda *c, const struct memory_copy *m,
                         struct stream *s) {
  CUresult result = copy_is_flat(c, m) ? copy_flat(c, m, s->handle)
                                       : copy_blocks(c, m, s->handle);
  return result == CUDA_SUCCESS ? stream_number(c, s) : result;
}

static uint8_t copy_way(const struct memory_copy *m) {
  if (m->from_memory->direct)
    return WAY_TO;
  return m->to_memory->direct ? WAY_FROM : WAY_INSIDE;
}

static struct copying *copying_free(struct cuda *c, bool waited_for) {
  for (int i = 0; i < COPIES - !waited_for; i++)
    if (!c->copies[i].open)
      return &c->copies[i];
  return NULL;
}

static CUresult copy_ask_whole(struct cuda *c, const struct memory_copy *m,
                               struct stream *s) {
  CUresult result = cuda_enter(c);
  if (result != CUDA_SUCCESS)
    return result;
  result = copy_ask(c, m, s);
  if (result != CUDA_SUCCESS)
    stream_settle(c, s);
  cuda_leave(c);
  return result;
}

static int copy_begin(struct cuda *c, struct copying *k) {
  if (c->streams[k->way].failed)
    return PERIGEE_CLOSED;
  struct memory_copy m = k->copy;
  if (k->slot >= 0)
    m = copy_by_slot(&k->copy, k->way, slot_at(c, k->slot));
  if (k->slot >= 0 && k->way == WAY_TO)
    slot_gather(slot_at(c, k->slot), &k->copy);
  CUresult result = copy_ask_whole(c, &m, &c->streams[k->way]);
  return result == CUDA_SUCCESS
             ? PERIGEE_OK
             : cuda_fails(c, PERIGEE_CLOSED, "copying", result);
}

/* Takes what the host's side of a copy needs: a pin that has it, or a slot. False:
 * no slot is free. */
static bool copying_prepare(struct cuda *c, struct copying *k) {
  const struct memory_copy *m = &k->copy;
  if (k->way == WAY_INSIDE)
    return true;
  bool to = k->way == WAY_TO;
  uint64_t stride = to ? m->from_stride : m->to_stride;
  k->pin =
      pin_take(c, to ? m->from : m->to, (m->count - 1) * stride + m->block);
  if (!k->pin)
    k->slot = slot_take(c, m->waited_for);
  return k->pin || k->slot >= 0;
}

static void copying_release(struct cuda *c, struct copying *k) {
  slot_give(c, k->slot);
  if (k->pin)
    k->pin->busy--;
}

static int cuda_copy(const struct memory_context *context,
                     const struct memory_copy *copy, uint64_t *ticket) {
  struct cuda *c = context->own;
  struct copying *k = copying_free(c, copy->waited_for);
  if (!k)
    return PERIGEE_AGAIN;
  *k = (struct copying){.copy = *copy, .slot = -1, .way = copy_way(copy)};
  if (!copying_prepare(c, k))
    return PERIGEE_AGAIN;
  int status = copy_begin(c, k);
  if (status < 0) {
    copying_release(c, k);
    return status;
  }
  k->number = c->streams[k->way].asked;
  k->open = true;
  *ticket = (uint64_t)(k - c->copies) + 1;
  return PERIGEE_OK;
}

bool copy_is_over(const struct cuda *c, const struct copying *k) {
  return stream_has_told(&c->streams[k->way], k->number);
}

/* While a graph is captured the driver may not say. What it says may be about
 * something else. */
static CUresult stream_query(struct cuda *c, struct stream *s) {
  CUresult result = c->driver->cuStreamQuery(s->handle);
  bool works = result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY ||
               result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return works ? CUDA_SUCCESS : stream_rest(c, s);
}

/* Keeps whether the stream has failed, by stream_query, or once it is at rest by
 * stream_rest. One that cannot be brought to rest has. */
static void stream_look(struct cuda *c, struct stream *s,
                        CUresult (*ask)(struct cuda *, struct stream *)) {
  CUresult result = cuda_enter(c);
  if (result == CUDA_SUCCESS) {
    result = ask(c, s);
    cuda_leave(c);
  }
  if (result == CUDA_SUCCESS)
    return;
  s->failed = true;
  cuda_fails(c, PERIGEE_CLOSED, "copying", result);
}

void stream_check(struct cuda *c, struct stream *s) {
  stream_look(c, s, stream_query);
}

/* Has the stream failed? Not each time: the driver takes a microsecond. */
static int copy_look(struct cuda *c, struct copying *k) {
  struct stream *s = &c->streams[k->way];
  if (!s->failed && ++k->looks % LOOK == 0)
    stream_check(c, s);
  return s->failed ? PERIGEE_CLOSED : 0;
}

static int cuda_finished(const struct memory_context *context,
                         uint64_t ticket) {
  struct cuda *c = context->own;
  struct copying *k = &c->copies[ticket - 1];
  bool over = copy_is_over(c, k);
  int status = over ? 1 : copy_look(c, k);
  if (status == 0)
    return 0;
  if (over && k->way == WAY_FROM && k->slot >= 0)
    slot_scatter(slot_at(c, k->slot), &k->copy);
  copying_release(c, k);
  k->open = false;
  return status;
}

static void streams_rest(struct cuda *c) {
  for (int i = 0; i < WAYS; i++)
    stream_look(c, &c->streams[i], stream_rest);
}

static void cuda_drain(const struct memory_context *context) {
  streams_rest(context->own);
}

/* Where areas overlap, a copy of another one may use a pin. It is waited for, and
 * no longer keeps the pin. */
static void copies_unpin(const struct memory_context *context,
                         const struct area *area) {
  struct cuda *c = context->own;
  for (int i = 0; i < COPIES; i++) {
    struct copying *k = &c->copies[i];
    if (!k->open || !k->pin || k->pin->area != area)
      continue;
    streams_rest(c);
    k->pin->busy--;
    k->pin = NULL;
  }
  cuda_unpin(context, area);
}

/* ---- Many at once: the driver's batches ---------------------------------- */

/* The driver merges nothing, and breaks on tens of thousands of entries. */
enum { ENTRIES = 2048 };
struct entries {
  CUdeviceptr to[ENTRIES], from[ENTRIES];
  size_t bytes[ENTRIES];
  uint32_t count;
  bool refused;
};

static CUresult entries_ask(struct cuda *c, CUstream stream) {
  struct entries *e = c->entries;
  CUmemcpyAttributes how = {.srcAccessOrder =
                                CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
  size_t first = 0, failed;
  if (e->count == 0)
    return CUDA_SUCCESS;
  CUresult result = c->driver->cuMemcpyBatchAsync(
      e->to, e->from, e->bytes, e->count, &how, &first, 1, &failed, stream);
  e->count = 0;
  e->refused = result != CUDA_SUCCESS;
  return result;
}

static CUresult entries_add(struct cuda *c, const struct memory_copy *m,
                            CUstream stream) {
  struct entries *e = c->entries;
  CUresult result = CUDA_SUCCESS;
  for (uint64_t i = 0; i < m->count && result == CUDA_SUCCESS; i++) {
    e->to[e->count] = (CUdeviceptr)(uintptr_t)(m->to + i * m->to_stride);
    e->from[e->count] = (CUdeviceptr)(uintptr_t)(m->from + i * m->from_stride);
    e->bytes[e->count] = m->block;
    if (++e->count == ENTRIES)
      result = entries_ask(c, stream);
  }
  return result;
}

/* Entries have no order, which blocks that overlap need. */
static bool blocks_lie_apart(const struct memory_copy *m) {
  return m->count == 1 || m->to_stride >= m->block;
}

/* Few copies are asked for one by one. */
static bool entries_ready(struct cuda *c, const struct rule *rule,
                          uint32_t count) {
  if (count <= 2 || !rule->batches)
    return false;
  if (!c->entries)
    c->entries = calloc(1, sizeof *c->entries);
  if (c->entries)
    c->entries->refused = false;
  return c->entries;
}

/* ---- Many at once: the kernel -------------------------------------------- */

/* Copies that are asked for together. */
struct many {
  const struct memory_copy *list;
  uint32_t count;
  uint64_t most;   /* bytes of a piece that goes by the kernel */
  uint64_t pieces; /* that still go by it */
  bool batched, launch_failed;
  CUstream stream;
  int table; /* that is filled with pieces, of so many bytes in all */
  uint32_t filled;
  uint64_t bytes;
};

/* Pieces of the kernel have no order either. */
static bool many_is_small(const struct many *a, const struct memory_copy *m) {
  return m->block <= a->most && blocks_lie_apart(m);
}

/* Returns how many calls of the driver the copies take without the kernel, or
 * those of small pieces. */
static uint64_t many_calls(const struct cuda *c, const struct many *a,
                           bool small) {
  uint64_t calls = 0;
  for (uint32_t i = 0; i < a->count; i++)
    if (!small || many_is_small(a, &a->list[i]))
      calls += copy_is_flat(c, &a->list[i]) ? 1 : a->list[i].count;
  return calls;
}

/* Returns how many of the pieces go by the kernel: at most what all tables
 * take. */
static uint64_t many_pieces(const struct many *a) {
  uint64_t pieces = 0, most = TABLES * TABLE_PIECES;
  for (uint32_t i = 0; i < a->count; i++)
    if (many_is_small(a, &a->list[i]) && a->list[i].count <= most - pieces)
      pieces += a->list[i].count;
  return pieces;
}

/* Finds out what goes by the kernel. PERIGEE_AGAIN: its tables are in use until
 * the stream tells numbers that it was asked for. If it was not, as after a
 * failure, the pieces go the other ways. */
static int many_plan(struct cuda *c, struct many *a) {
  const struct stream *s = &c->streams[WAY_INSIDE];
  const struct kernel *k = &c->trial.kernel;
  const struct rule *rule = trial_rule(c, many_calls(c, a, false));
  a->stream = s->handle;
  a->most = rule->kernel_most;
  a->batched = entries_ready(c, rule, a->count);
  if (a->most == 0 || many_calls(c, a, true) < rule->kernel_least)
    return PERIGEE_OK;
  uint64_t pieces = many_pieces(a);
  uint64_t tables = (pieces + TABLE_PIECES - 1) / TABLE_PIECES;
  uint64_t done = atomic_load_explicit(s->done, memory_order_acquire);
  if (tables <= kernel_free(k, done))
    a->pieces = pieces;
  else if (tables <= kernel_free(k, s->asked))
    return PERIGEE_AGAIN;
  return PERIGEE_OK;
}

static CUresult table_ask(struct cuda *c, struct many *a) {
  if (a->filled == 0)
    return CUDA_SUCCESS;
  CUresult result = kernel_launch(c, &c->trial.kernel, a->table, a->filled,
                                  a->bytes, a->stream);
  a->launch_failed = result != CUDA_SUCCESS;
  a->filled = 0;
  a->bytes = 0;
  return result;
}

static CUresult table_add(struct cuda *c, struct many *a,
                          const struct memory_copy *m) {
  struct kernel *k = &c->trial.kernel;
  CUresult result = CUDA_SUCCESS;
  for (uint64_t i = 0; i < m->count && result == CUDA_SUCCESS; i++) {
    if (a->filled == 0)
      a->table = kernel_take(k, &c->streams[WAY_INSIDE]);
    kernel_table(k, a->table)[a->filled++] = (struct piece){
        (CUdeviceptr)(uintptr_t)(m->to + i * m->to_stride),
        (CUdeviceptr)(uintptr_t)(m->from + i * m->from_stride), m->block};
    a->bytes += m->block;
    if (a->filled == TABLE_PIECES)
      result = table_ask(c, a);
  }
  return result;
}

/* ---- Many at once -------------------------------------------------------- */

static CUresult many_add(struct cuda *c, struct many *a,
                         const struct memory_copy *m) {
  if (many_is_small(a, m) && m->count <= a->pieces) {
    a->pieces -= m->count;
    return table_add(c, a, m);
  }
  if (copy_is_flat(c, m))
    return copy_flat(c, m, a->stream);
  return a->batched && blocks_lie_apart(m) ? entries_add(c, m, a->stream)
                                           : copy_blocks(c, m, a->stream);
}

static CUresult many_ask(struct cuda *c, struct many *a) {
  CUresult result = CUDA_SUCCESS;
  for (uint32_t i = 0; i < a->count && result == CUDA_SUCCESS; i++)
    result = many_add(c, a, &a->list[i]);
  if (result == CUDA_SUCCESS)
    result = table_ask(c, a);
  if (a->batched && result == CUDA_SUCCESS)
    result = entries_ask(c, a->stream);
  if (a->batched)
    c->entries->count = 0;
  return result;
}

/* Where the kernel is not launched, or a batch refused, all is asked for once more
 * without either: to copy something twice changes nothing. If nothing else works
 * either, it is not their fault. */
static CUresult many_ask_whole(struct cuda *c, struct many *a) {
  CUresult result = many_ask(c, a);
  bool batch_failed = a->batched && c->entries->refused;
  if (!a->launch_failed && !batch_failed)
    return result;
  a->most = a->pieces = a->bytes = 0;
  a->filled = 0;
  a->batched = false;
  CUresult without = many_ask(c, a);
  if (without == CUDA_SUCCESS && a->launch_failed)
    trial_give_up(c, result);
  if (without == CUDA_SUCCESS && batch_failed)
    trial_give_up_batches(c, result);
  return without;
}

static CUresult many_enter(struct cuda *c, struct many *a, struct stream *s) {
  CUresult result = cuda_enter(c);
  if (result != CUDA_SUCCESS)
    return result;
  result = many_ask_whole(c, a);
  if (result == CUDA_SUCCESS)
    result = stream_number(c, s);
  if (result != CUDA_SUCCESS)
    stream_settle(c, s);
  cuda_leave(c);
  return result;
}

static int cuda_copy_all(const struct memory_context *context,
                         const struct memory_copy *list, uint32_t count,
                         uint64_t *ticket) {
  struct cuda *c = context->own;
  struct stream *s = &c->streams[WAY_INSIDE];
  struct copying *k = copying_free(c, false);
  struct many many = {.list = list, .count = count};
  if (s->failed)
    return PERIGEE_CLOSED;
  if (!k || many_plan(c, &many) == PERIGEE_AGAIN)
    return PERIGEE_AGAIN;
  CUresult result = many_enter(c, &many, s);
  if (result != CUDA_SUCCESS)
    return cuda_fails(c, PERIGEE_CLOSED, "copying", result);
  *k = (struct copying){
      .number = s->asked, .slot = -1, .way = WAY_INSIDE, .open = true};
  *ticket = (uint64_t)(k - c->copies) + 1;
  return PERIGEE_OK;
}

const struct memory_copies cuda_copies = {
    .copy = cuda_copy,
    .copy_all = cuda_copy_all,
    .most = cuda_most,
    .unpin = copies_unpin,
    .finished = cuda_finished,
    .tell = cuda_tell,
    .drain = cuda_drain,
};
