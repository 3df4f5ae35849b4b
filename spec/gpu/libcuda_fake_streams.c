/* SPDX-License-Identifier: Apache-2.0
 *
 * libcuda_fake_streams.c - the streams of the fake of CUDA's driver, which are
 * threads, and what can be asked of them.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "libcuda_fake.h"

/* ---- Streams --------------------------------------------------------------
 * */

/* Rows of bytes that are copied; or set to a value; or a word; or a task. */
struct work {
  struct work *next;
  struct task *task;
  uint8_t *to;
  const uint8_t *from;
  uint64_t width, height, to_pitch, from_pitch, word;
  uint8_t value;
  bool is_set, is_word;
  bool is_early;        /* the source is read before the call returns */
  bool is_quick;        /* it takes no time, as one of a batch */
  void *early;          /* the bytes of such a source */
  struct span spans[2]; /* to, from */
  CUdevice devices[2];  /* whose access to them counts */
};

struct CUstream_st {
  struct CUstream_st *next;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  struct work *first, **last;
  CUcontext context;
  bool working, ends;
};
static CUstream streams;

static bool is_stream(const void *s) {
  pthread_mutex_lock(&fake_lock);
  CUstream known = streams;
  while (known && known != s)
    known = known->next;
  pthread_mutex_unlock(&fake_lock);
  return known;
}

/* A function that is taken for one with other arguments is given anything. */
static CUstream stream_is(CUstream s, const char *what) {
  if (!is_stream(s))
    fake_fatal("%s of a stream that there is not", what);
  return s;
}

static void stream_list(CUstream s) {
  pthread_mutex_lock(&fake_lock);
  s->next = streams;
  streams = s;
  pthread_mutex_unlock(&fake_lock);
}

static void stream_unlist(CUstream s) {
  pthread_mutex_lock(&fake_lock);
  CUstream *at = &streams;
  while (*at != s)
    at = &(*at)->next;
  *at = s->next;
  pthread_mutex_unlock(&fake_lock);
}

static void work_do(const struct work *w) {
  if (w->task)
    w->task->run(w->task);
  for (uint64_t i = 0; i < w->height && !w->is_word; i++)
    if (!w->is_set)
      memcpy(w->to + i * w->to_pitch, w->from + i * w->from_pitch, w->width);
    else
      memset(w->to + i * w->to_pitch, w->value, w->width);
  if (w->is_word)
    atomic_store_explicit((_Atomic uint64_t *)(void *)w->to, w->word,
                          memory_order_release);
}

static bool work_breaks(const struct work *w) {
  pthread_mutex_lock(&fake_lock);
  CUresult scripted = fake_scripted("stream");
  if (scripted != CUDA_SUCCESS)
    fake_broken = scripted;
  bool is = fake_broken != CUDA_SUCCESS;
  fake_span_look(w->spans[0]);
  fake_span_look(w->spans[1]);
  pthread_mutex_unlock(&fake_lock);
  return is;
}

static void work_end(struct work *w) {
  pthread_mutex_lock(&fake_lock);
  fake_span_give(w->spans[0]);
  fake_span_give(w->spans[1]);
  if (w->task)
    w->task->end(w->task);
  pthread_mutex_unlock(&fake_lock);
  free(w->early);
  free(w);
}

static long setting_now(const long *setting) {
  pthread_mutex_lock(&fake_lock);
  long value = *setting;
  pthread_mutex_unlock(&fake_lock);
  return value;
}

void fake_pause(const long *microseconds) {
  const long step = 10000;
  for (long slept = 0, left; (left = setting_now(microseconds) - slept) > 0;) {
    left = left < step ? left : step;
    nanosleep(&(struct timespec){0, left * 1000}, NULL);
    slept += left;
  }
}

static void *stream_run(void *given) {
  CUstream s = given;
  const long slow = fake_set.slow;
  prctl(PR_SET_TIMERSLACK, 1);
  pthread_mutex_lock(&s->lock);
  for (;;) {
    while (!s->first && !s->ends)
      pthread_cond_wait(&s->changed, &s->lock);
    struct work *w = s->first;
    if (!w)
      break;
    if (!(s->first = w->next))
      s->last = &s->first;
    s->working = true;
    pthread_mutex_unlock(&s->lock);
    if (!w->is_word && !w->is_quick)
      fake_pause(&slow);
    if (!work_breaks(w))
      work_do(w);
    work_end(w);
    pthread_mutex_lock(&s->lock);
    s->working = false;
    pthread_cond_broadcast(&s->changed);
  }
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

static void stream_await(CUstream s) {
  pthread_mutex_lock(&s->lock);
  while (s->first || s->working)
    pthread_cond_wait(&s->changed, &s->lock);
  pthread_mutex_unlock(&s->lock);
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
  CUcontext c = fake_current("cuStreamCreate");
  BEGIN("cuStreamCreate");
  if (flags & ~1u)
    return 1;
  CUstream s = calloc(1, sizeof *s);
  if (!s)
    fake_fatal("no memory");
  s->context = c;
  s->last = &s->first;
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->changed, NULL);
  if (pthread_create(&s->thread, NULL, stream_run, s) != 0)
    fake_fatal("no thread");
  stream_list(s);
  *stream = s;
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream s) {
  COUNT("cuStreamDestroy", 1);
  stream_is(s, "cuStreamDestroy");
  pthread_mutex_lock(&s->lock);
  if (s->first || s->working)
    fake_fatal("cuStreamDestroy of a stream that is at work");
  s->ends = true;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
  pthread_join(s->thread, NULL);
  stream_unlist(s);
  pthread_mutex_destroy(&s->lock);
  pthread_cond_destroy(&s->changed);
  free(s);
  return CUDA_SUCCESS;
}

/* A broken device tells that only when it is at rest. A call that fails by the
 * script has waited for nothing. */
CUresult cuStreamSynchronize(CUstream s) {
  stream_is(s, "cuStreamSynchronize");
  END_CAPTURES;
  COUNT("cuStreamSynchronize", 1);
  pthread_mutex_lock(&fake_lock);
  CUresult scripted = fake_scripted("cuStreamSynchronize");
  pthread_mutex_unlock(&fake_lock);
  if (scripted != CUDA_SUCCESS)
    return scripted;
  stream_await(s);
  return fake_failing("a stream at rest");
}

CUresult cuStreamQuery(CUstream s) {
  BEGIN_UNSAFE("cuStreamQuery");
  stream_is(s, "cuStreamQuery");
  pthread_mutex_lock(&s->lock);
  bool busy = s->first || s->working;
  pthread_mutex_unlock(&s->lock);
  return busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static __thread int capture_mode;

bool fake_captured(void) {
  pthread_mutex_lock(&fake_lock);
  bool captures = fake_set.captures;
  pthread_mutex_unlock(&fake_lock);
  return captures && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED;
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
  int before = capture_mode;
  BEGIN("cuThreadExchangeStreamCaptureMode");
  if (*mode < 0 || *mode > 2)
    return INVALID_VALUE;
  capture_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}

/* ---- Work -----------------------------------------------------------------
 * */

static uint64_t work_span(uint64_t width, uint64_t height, uint64_t pitch) {
  return height == 0 ? 0 : (height - 1) * pitch + width;
}

/* Finds the memory that work names, as streams see it. */
static void work_place(struct work *w, CUdeviceptr to, CUdeviceptr from) {
  w->spans[0] = (struct span){to, work_span(w->width, w->height, w->to_pitch)};
  w->to = fake_span_take(w->spans[0], w->devices[0], WRITES);
  if (w->is_set || w->is_word)
    return;
  w->spans[1] =
      (struct span){from, work_span(w->width, w->height, w->from_pitch)};
  w->from = fake_span_take(w->spans[1], w->devices[1], READS);
}

/* Other work of the stream may still change the source. */
static void work_read_early(struct work *w) {
  w->early = malloc(w->width);
  if (!w->early)
    fake_fatal("no memory");
  memcpy(w->early, w->from, w->width);
  w->from = w->early;
}

static struct work *work_new(const struct work *of, CUdeviceptr to,
                             CUdeviceptr from) {
  struct work *w = malloc(sizeof *w);
  if (!w)
    fake_fatal("no memory");
  *w = *of;
  pthread_mutex_lock(&fake_lock);
  work_place(w, to, from);
  pthread_mutex_unlock(&fake_lock);
  if (w->is_early && w->from)
    work_read_early(w);
  return w;
}

void fake_stream_check(CUstream s) {
  if (!s || fake_current("work of a stream") != stream_is(s, "work")->context)
    fake_fatal("a stream of another context than the current one, or of none");
}

CUcontext fake_stream_context(CUstream s) {
  return s->context;
}

static void stream_push(CUstream s, struct work *w) {
  pthread_mutex_lock(&s->lock);
  *s->last = w;
  s->last = &w->next;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
}

void fake_stream_give(CUstream s, struct task *task) {
  struct work *w = calloc(1, sizeof *w);
  if (!w)
    fake_fatal("no memory");
  w->task = task;
  w->is_quick = task->quick;
  stream_push(s, w);
}

static CUresult work_give(CUstream s, struct work of, CUdeviceptr to,
                          CUdeviceptr from) {
  fake_stream_check(s);
  of.devices[0] = of.devices[1] = s->context->device;
  stream_push(s, work_new(&of, to, from));
  return CUDA_SUCCESS;
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                       CUstream s) {
  BEGIN("cuMemcpyAsync");
  return work_give(s, (struct work){.width = bytes, .height = 1}, to, from);
}

static bool is_at_home(CUdeviceptr at, CUcontext context) {
  const struct range *r = fake_range_of(at);
  return r && context &&
         (r->kind == OPENED ? r->opened_for : r->device) == context->device;
}

/* Each side needs the access of the device that is named for it alone. */
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context,
                           CUdeviceptr from, CUcontext from_context,
                           size_t bytes, CUstream s) {
  BEGIN("cuMemcpyPeerAsync");
  struct work w = {.width = bytes,
                   .height = 1,
                   .devices = {to_context->device, from_context->device}};
  fake_stream_check(s);
  pthread_mutex_lock(&fake_lock);
  if (!is_at_home(to, to_context) || !is_at_home(from, from_context))
    fake_fatal("cuMemcpyPeerAsync of memory of another device than it names");
  pthread_mutex_unlock(&fake_lock);
  stream_push(s, work_new(&w, to, from));
  return CUDA_SUCCESS;
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *c, CUstream s) {
  BEGIN("cuMemcpy2DAsync");
  if (c->srcMemoryType != CU_MEMORYTYPE_UNIFIED ||
      c->dstMemoryType != CU_MEMORYTYPE_UNIFIED || c->srcXInBytes ||
      c->dstXInBytes || c->srcY || c->dstY || c->srcArray || c->dstArray ||
      c->srcPitch < c->WidthInBytes || c->dstPitch < c->WidthInBytes ||
      c->srcPitch > 0x7fffffff || c->dstPitch > 0x7fffffff)
    return 1;
  return work_give(s,
                   (struct work){.width = c->WidthInBytes,
                                 .height = c->Height,
                                 .to_pitch = c->dstPitch,
                                 .from_pitch = c->srcPitch},
                   c->dstDevice, c->srcDevice);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes,
                         CUstream s) {
  BEGIN("cuMemsetD8Async");
  return work_give(
      s,
      (struct work){
          .width = bytes, .height = 1, .value = value, .is_set = true},
      to, 0);
}

CUresult cuStreamWriteValue64(CUstream s, CUdeviceptr at, uint64_t value,
                              unsigned flags) {
  BEGIN("cuStreamWriteValue64");
  if (at % 8 || flags)
    return 1;
  return work_give(
      s, (struct work){.width = 8, .height = 1, .word = value, .is_word = true},
      at, 0);
}

/* ---- Batches --------------------------------------------------------------
 * */

struct batch {
  CUdeviceptr *to, *from;
  size_t *bytes, count;
  CUmemcpyAttributes *attributes;
  size_t *firsts, attribute_count;
};

static bool attributes_are_good(const struct batch *b) {
  if (b->attribute_count == 0 || b->attribute_count > b->count ||
      b->firsts[0] != 0)
    return false;
  for (size_t i = 0; i < b->attribute_count; i++)
    if (b->attributes[i].srcAccessOrder < 1 ||
        b->attributes[i].srcAccessOrder > 3 || b->attributes[i].flags > 1 ||
        b->firsts[i] >= b->count || (i > 0 && b->firsts[i] <= b->firsts[i - 1]))
      return false;
  return true;
}

/* A side of an entry. */
struct side {
  CUdeviceptr at, end;
  bool is_to;
};

static int side_compare(const void *a, const void *b) {
  const struct side *x = a, *y = b;
  return (x->at > y->at) - (x->at < y->at);
}

/* Entries have no order among each other. */
void fake_check_overlaps(const CUdeviceptr *to, const CUdeviceptr *from,
                         const size_t *bytes, size_t count) {
  struct side *all = calloc(count, 2 * sizeof *all);
  CUdeviceptr end = 0, end_to = 0; /* of all, and of destinations, so far */
  if (!all)
    fake_fatal("no memory");
  for (size_t i = 0; i < count; i++) {
    all[2 * i] = (struct side){to[i], to[i] + bytes[i], true};
    all[2 * i + 1] = (struct side){from[i], from[i] + bytes[i], false};
  }
  qsort(all, 2 * count, sizeof *all, side_compare);
  for (size_t i = 0; i < 2 * count; i++) {
    if (all[i].at < (all[i].is_to ? end : end_to))
      fake_fatal("a batch whose entries overlap");
    end = all[i].end > end ? all[i].end : end;
    if (all[i].is_to && all[i].end > end_to)
      end_to = all[i].end;
  }
  free(all);
}

static const CUmemcpyAttributes *attributes_of(const struct batch *b,
                                               size_t entry) {
  size_t i = b->attribute_count - 1;
  while (b->firsts[i] > entry)
    i--;
  return &b->attributes[i];
}

/* The last entry comes first, as none may rely on another one. */
static void batch_give(CUstream s, const struct batch *b) {
  for (size_t i = b->count; i-- > 0;) {
    CUdevice device = s->context->device;
    struct work w = {.width = b->bytes[i],
                     .height = 1,
                     .is_early = attributes_of(b, i)->srcAccessOrder !=
                                 CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
                     .is_quick = i + 1 < b->count,
                     .devices = {device, device}};
    stream_push(s, work_new(&w, b->to[i], b->from[i]));
  }
}

/* Not for the stream 0, nor for the legacy one by its other name. */
static CUresult batch_ask(CUstream s, const struct batch *b, size_t *failed) {
  *failed = SIZE_MAX;
  if ((uintptr_t)s <= 1)
    return INVALID_VALUE;
  fake_stream_check(s);
  if (b->count == 0 || !attributes_are_good(b))
    return INVALID_VALUE;
  for (size_t i = 0; i < b->count; i++)
    if (b->bytes[i] == 0 || !b->to[i] || !b->from[i]) {
      *failed = i;
      return INVALID_VALUE;
    }
  COUNT("entries", b->count);
  fake_check_overlaps(b->to, b->from, b->bytes, b->count);
  batch_give(s, b);
  return CUDA_SUCCESS;
}

CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes,
                            size_t count, CUmemcpyAttributes *attributes,
                            size_t *firsts, size_t attribute_count,
                            size_t *failed, CUstream s) {
  struct batch b = {to,         from,   bytes,          count,
                    attributes, firsts, attribute_count};
  if (is_stream(failed))
    fake_fatal("cuMemcpyBatchAsync with the arguments of the newer one");
  if (!failed)
    return INVALID_VALUE;
  *failed = SIZE_MAX;
  BEGIN("cuMemcpyBatchAsync");
  return batch_ask(s, &b, failed);
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from,
                               size_t *bytes, size_t count,
                               CUmemcpyAttributes *attributes, size_t *firsts,
                               size_t attribute_count, CUstream s) {
  struct batch b = {to,         from,   bytes,          count,
                    attributes, firsts, attribute_count};
  size_t failed;
  BEGIN("cuMemcpyBatchAsync");
  return batch_ask(s, &b, &failed);
}
