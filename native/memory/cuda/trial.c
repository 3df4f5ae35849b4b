/* SPDX-License-Identifier: Apache-2.0
 *
 * trial.c - finds out how the pieces of batches go best on this device: by the
 * kernel, by the driver's batches, or one by one. Nothing of that is known
 * beforehand: it depends on the device, the driver and the processor.
 *
 * A thread of its own tries the ways at the context's first batch of more than
 * a few calls: to have the kernel compiled and to try it takes milliseconds, and
 * the engine's thread goes on meanwhile. Until the thread is done, pieces go as
 * they would without a kernel. Programs without such batches have no such
 * thread.
 *
 *   state  event                                         becomes
 *   not    a batch of more than FEW calls                runs
 *   runs   the thread has tried all, or failed           done
 *   done   the next batch: its findings become the rule  over
 *   not    PERIGEE_CUDA_COPIES forces a way              over; at the first
 *                                                        batch if it is kernel
 *
 * The driver may hold up calls of other threads while it loads a module, and
 * may wait for what runs on the device. A program whose kernels wait for what
 * Perigee brings them sets PERIGEE_CUDA_COPIES=batch: then none is loaded.
 */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda.h"

/* ns. A sample may take so long, and counts so much if it fails. */
static const int64_t trial_limit = 1000000000;
/* ns. Its end is polled for without a pause for so long. The engine's thread may
 * be on the same core, and keeps what it is given for milliseconds, which would
 * be taken for the sample's. */
static const int64_t trial_patience = 2000000;

enum { FEW = 4, TRIES = 5, SIZES = 3 };
enum { PIECES_MOST = 64, PIECE_MOST = 64 << 10 };

/* First those of several lengths, then those of fewer pieces. */
static const struct sample {
  uint32_t count;
  uint64_t bytes;
} samples[SAMPLES] = {{PIECES_MOST, 4 << 10},
                      {PIECES_MOST, 16 << 10},
                      {PIECES_MOST, PIECE_MOST},
                      {16, 4 << 10},
                      {4, 4 << 10}};

/* ---- What the times say -------------------------------------------------- */

/* Returns by how much the kernel is faster than the others. */
static int64_t times_gain(const struct trial_times *t, int sample) {
  const int64_t *of = t->of[sample];
  int64_t other = of[BY_BATCH] < of[BY_LOOP] ? of[BY_BATCH] : of[BY_LOOP];
  return other - of[BY_KERNEL];
}

/* Returns the length of pieces up to which the kernel is the fastest, in whole
 * KiB: between two samples, where the lines through their times meet. */
static uint64_t times_most(const struct trial_times *t) {
  uint64_t most = 0;
  int64_t before = 0, gain = 0;
  for (int i = 0; i < SIZES; i++, before = gain) {
    gain = times_gain(t, i);
    if (gain <= 0 && i > 0)
      most += (samples[i].bytes - most) * (uint64_t)before /
              (uint64_t)(before - gain);
    if (gain <= 0)
      break;
    most = samples[i].bytes;
  }
  return most & ~UINT64_C(1023);
}

struct rule trial_judge(const struct trial_times *t) {
  int last = SIZES - 1;
  struct rule r = {times_most(t), PIECES_MOST,
                   t->of[last][BY_BATCH] <= t->of[last][BY_LOOP]};
  for (int i = SIZES; i < SAMPLES && times_gain(t, i) > 0; i++)
    r.kernel_least = samples[i].count;
  return r;
}

/* ---- Trying -------------------------------------------------------------- */

struct trying {
  struct cuda *c;
  struct stream *stream; /* that of the trial */
  size_t bytes[PIECES_MOST];
  CUdeviceptr to[PIECES_MOST], from[PIECES_MOST];
};

static int64_t trial_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Neighbours do not touch, as the pages of caches do not. */
static void trial_place(struct trying *t, const struct sample *sample) {
  struct piece *table = kernel_table(&t->c->trial.kernel, 0);
  for (uint32_t i = 0; i < sample->count; i++) {
    t->from[i] = t->c->trial.scratch + (uint64_t)i * PIECE_MOST;
    t->to[i] = t->from[i] + (uint64_t)PIECES_MOST * PIECE_MOST;
    t->bytes[i] = sample->bytes;
    table[i] = (struct piece){t->to[i], t->from[i], sample->bytes};
  }
}

static CUresult trial_loop(struct trying *t, uint32_t count) {
  CUresult result = CUDA_SUCCESS;
  for (uint32_t i = 0; i < count && result == CUDA_SUCCESS; i++)
    result = t->c->driver->cuMemcpyAsync(t->to[i], t->from[i], t->bytes[i],
                                         t->stream->handle);
  return result;
}

static CUresult trial_batch(struct trying *t, uint32_t count) {
  CUmemcpyAttributes how = {.srcAccessOrder =
                                CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
  size_t first = 0, failed;
  if (!t->c->driver->cuMemcpyBatchAsync)
    return CUDA_ERROR_INVALID_VALUE;
  return t->c->driver->cuMemcpyBatchAsync(t->to, t->from, t->bytes, count, &how,
                                          &first, 1, &failed,
                                          t->stream->handle);
}

static CUresult trial_kernel(const struct trying *t,
                             const struct sample *sample) {
  const struct trial *trial = &t->c->trial;
  if (!trial->kernel.function)
    return CUDA_ERROR_INVALID_VALUE;
  return kernel_launch(t->c, &trial->kernel, 0, sample->count,
                       sample->count * sample->bytes, t->stream->handle);
}

static CUresult trial_ask(struct trying *t, const struct sample *sample,
                          enum pieces_by by) {
  return by == BY_LOOP    ? trial_loop(t, sample->count)
         : by == BY_BATCH ? trial_batch(t, sample->count)
                          : trial_kernel(t, sample);
}

/* Waits for the stream's word; false: it does not come. */
static bool trial_wait(struct trying *t, int64_t begun) {
  struct stream *s = t->stream;
  CUresult result =
      t->c->driver->cuStreamWriteValue64(s->handle, s->word, ++s->asked, 0);
  while (result == CUDA_SUCCESS &&
         atomic_load_explicit(s->done, memory_order_acquire) < s->asked) {
    int64_t taken = trial_now() - begun;
    if (taken > trial_limit)
      return false;
    if (taken > trial_patience)
      sched_yield();
  }
  return result == CUDA_SUCCESS;
}

/* Returns how long a sample takes, from the first call to the last byte. */
static int64_t trial_time(struct trying *t, const struct sample *sample,
                          enum pieces_by by) {
  struct trial *trial = &t->c->trial;
  int64_t begun = trial_now();
  CUresult result = trial_ask(t, sample, by);
  trial->stuck = !trial_wait(t, begun);
  if (result == CUDA_SUCCESS && !trial->stuck)
    return trial_now() - begun;
  if (by == BY_KERNEL && result != CUDA_SUCCESS && trial->kernel.function)
    cuda_explain(t->c->driver, "launching it", result, trial->why);
  return trial_limit;
}

/* The shortest time counts: in others the program had the device, too. */
static void trial_measure(struct trying *t, struct trial_times *times) {
  struct trial *trial = &t->c->trial;
  for (int i = 0; i < SAMPLES * TRIES * BYS && !trial->stuck; i++) {
    const struct sample *sample = &samples[i / (TRIES * BYS)];
    int64_t *best = &times->of[i / (TRIES * BYS)][i % BYS];
    if (atomic_load_explicit(&trial->ends, memory_order_relaxed))
      return;
    if (i % (TRIES * BYS) == 0)
      trial_place(t, sample);
    int64_t time = trial_time(t, sample, i % BYS);
    if (i / BYS % TRIES == 0 || time < *best)
      *best = time;
  }
}

/* ---- The thread ---------------------------------------------------------- */

static bool trial_works(struct cuda *c, const char *what, CUresult result) {
  if (result != CUDA_SUCCESS)
    cuda_explain(c->driver, what, result, c->trial.why);
  return result == CUDA_SUCCESS;
}

/* Makes what is needed. Without a kernel the other two ways are still compared.
 * The scratch is freed with the context: to free it waits for the device. */
static bool trial_prepare(struct trying *t) {
  struct cuda *c = t->c;
  struct kernel *k = &c->trial.kernel;
  struct stream *s = t->stream;
  uint64_t scratch = (uint64_t)PIECES_MOST * PIECE_MOST * 2;
  if (!trial_works(c, "pinning its tables", kernel_pin(c, k)))
    return false;
  uint64_t words = sizeof(struct piece) * TABLES * TABLE_PIECES;
  s->done = (_Atomic uint64_t *)(void *)((uint8_t *)k->tables + words);
  s->word = k->device + words;
  atomic_init(s->done, 0);
  if (!trial_works(c, "compiling it", kernel_compile(c, k)))
    k->function = NULL;
  return trial_works(c, "memory to try it",
                     c->driver->cuMemAlloc(&c->trial.scratch, scratch)) &&
         trial_works(
             c, "a stream to try it",
             c->driver->cuStreamCreate(&s->handle, CU_STREAM_NON_BLOCKING));
}

static void trial_do(struct cuda *c) {
  struct trying trying = {.c = c, .stream = &c->trial.stream};
  struct trial_times times = {0};
  struct trial *t = &c->trial;
  if (!trial_prepare(&trying))
    return;
  trial_measure(&trying, &times);
  if (t->stuck) {
    snprintf(t->why, sizeof t->why, "the device did not end what was tried");
    return;
  }
  if (atomic_load_explicit(&t->ends, memory_order_relaxed))
    return;
  t->found = trial_judge(&times);
}

static void *trial_run(void *given) {
  struct cuda *c = given;
  if (trial_works(c, "entering the device", cuda_enter(c))) {
    trial_do(c);
    cuda_leave(c);
  }
  atomic_store_explicit(&c->trial.state, TRIAL_DONE, memory_order_release);
  return NULL;
}

/* The program's signals are for its own threads. */
static bool trial_start(struct cuda *c) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool begun = pthread_create(&c->trial.thread, NULL, trial_run, c) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (begun)
    pthread_setname_np(c->trial.thread, "perigee trial");
  return begun;
}

/* ---- The engine's side --------------------------------------------------- */

static void trial_set(struct trial *t, enum trial_state state) {
  atomic_store_explicit(&t->state, state, memory_order_relaxed);
}

/* A forced kernel is compiled at once, while the caller waits. */
static void trial_force(struct cuda *c) {
  struct trial *t = &c->trial;
  trial_set(t, TRIAL_OVER);
  if (!trial_works(c, "entering the device", cuda_enter(c)))
    return;
  if (trial_works(c, "pinning its tables", kernel_pin(c, &t->kernel)) &&
      trial_works(c, "compiling it", kernel_compile(c, &t->kernel)))
    t->rule = (struct rule){UINT64_MAX, 1, t->rule.batches};
  cuda_leave(c);
}

static void trial_begin(struct cuda *c) {
  struct trial *t = &c->trial;
  t->found = t->rule;
  trial_set(t, TRIAL_RUNS);
  t->thread_runs = trial_start(c);
  if (t->thread_runs)
    return;
  trial_set(t, TRIAL_OVER);
  snprintf(t->why, sizeof t->why, "no thread to try it");
}

/* Takes over what the thread has found. No batches: the driver has none, or one
 * was refused meanwhile. */
static void trial_look(struct trial *t) {
  if (atomic_load_explicit(&t->state, memory_order_acquire) != TRIAL_DONE)
    return;
  t->found.batches &= t->rule.batches;
  t->rule = t->found;
  trial_set(t, TRIAL_OVER);
}

const struct rule *trial_rule(struct cuda *c, uint64_t calls) {
  struct trial *t = &c->trial;
  uint32_t state = atomic_load_explicit(&t->state, memory_order_relaxed);
  if (state == TRIAL_NOT && t->force == FORCE_KERNEL)
    trial_force(c);
  else if (state == TRIAL_NOT && calls > FEW)
    trial_begin(c);
  else
    trial_look(t);
  return &t->rule;
}

void trial_give_up(struct cuda *c, CUresult result) {
  trial_works(c, "launching it", result);
  c->trial.rule.kernel_most = 0;
}

void trial_give_up_batches(struct cuda *c, CUresult result) {
  cuda_fails(c, PERIGEE_UNSUPPORTED, "cuMemcpyBatchAsync", result);
  c->trial.rule.batches = false;
}

static const char trial_variable[] = "PERIGEE_CUDA_COPIES";

int trial_open(struct cuda *c) {
  static const char *const words[] = {[FORCE_LOOP] = "loop",
                                      [FORCE_BATCH] = "batch",
                                      [FORCE_KERNEL] = "kernel"};
  const char *text = getenv(trial_variable);
  struct trial *t = &c->trial;
  t->rule.batches = c->driver->cuMemcpyBatchAsync;
  if (!text || !*text)
    return PERIGEE_OK;
  for (uint8_t i = FORCE_LOOP; i <= FORCE_KERNEL && !t->force; i++)
    if (strcmp(text, words[i]) == 0)
      t->force = i;
  if (t->force == FORCE_LOOP)
    t->rule.batches = false;
  if (t->force == FORCE_LOOP || t->force == FORCE_BATCH)
    trial_set(t, TRIAL_OVER);
  if (t->force)
    return PERIGEE_OK;
  snprintf(c->why, sizeof c->why, "%s is none of kernel, batch, loop",
           trial_variable);
  return PERIGEE_INVALID;
}

/* A device that does not end what it was asked for keeps what that uses. */
static void trial_free(struct cuda *c) {
  struct trial *t = &c->trial;
  CUstream stream = t->stream.handle;
  if (t->stuck && c->driver->cuStreamQuery(stream) != CUDA_SUCCESS)
    return;
  if (stream)
    c->driver->cuStreamDestroy(stream);
  if (t->scratch)
    c->driver->cuMemFree(t->scratch);
  kernel_drop(c, &t->kernel);
}

void trial_close(struct cuda *c) {
  struct trial *t = &c->trial;
  atomic_store_explicit(&t->ends, true, memory_order_relaxed);
  if (t->thread_runs)
    pthread_join(t->thread, NULL);
  if (cuda_enter(c) != CUDA_SUCCESS)
    return; /* the context is gone, and all of that with it */
  trial_free(c);
  cuda_leave(c);
}

/* ---- For people ---------------------------------------------------------- */

static int trial_tell(const struct trial *t, char *text, size_t size) {
  const struct rule *r = &t->rule;
  const char *others = r->batches ? "cuMemcpyBatchAsync" : "cuMemcpyAsync";
  uint32_t state = atomic_load_explicit(&t->state, memory_order_acquire);
  if (r->kernel_most == UINT64_MAX)
    return snprintf(text, size, "pieces go by a kernel");
  if (r->kernel_most > 0)
    return snprintf(text, size,
                    "pieces of up to %llu KiB go by a kernel where there are "
                    "%llu, others by %s",
                    (unsigned long long)r->kernel_most >> 10,
                    (unsigned long long)r->kernel_least, others);
  const char *kernel = state == TRIAL_RUNS   ? ", while a kernel is tried"
                       : *t->why             ? ", not by a kernel: "
                       : !t->thread_runs     ? ""
                       : state == TRIAL_OVER ? ", as a kernel is slower"
                                             : "";
  return snprintf(text, size, "pieces go by %s%s%s", others, kernel,
                  state == TRIAL_RUNS ? "" : t->why);
}

int cuda_describe(const struct memory_context *context, char *text,
                  size_t size) {
  struct cuda *c = context->own;
  struct trial *t = &c->trial;
  char name[64] = "", how[256];
  c->driver->cuDeviceGetName(name, sizeof name, c->device);
  trial_look(t);
  trial_tell(t, how, sizeof how);
  return snprintf(text, size, "%s:%u (%s): %s%s%s", context->kind->name,
                  context->device, name, how, t->force ? ", as asked by " : "",
                  t->force ? trial_variable : "");
}
