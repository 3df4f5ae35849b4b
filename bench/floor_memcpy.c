/* SPDX-License-Identifier: Apache-2.0
 *
 * The floor of a one-sided transfer: memcpy between touched memory, from
 * private memory to memory shared with another process; or with --count and
 * --stride a plain loop over blocks of SIZE bytes that lie STRIDE apart in the
 * source. Short copies are repeated, and the mean of each batch is a sample.
 */
#include "floor.h"

struct job {
  uint8_t *from, *to;
  size_t size, count, stride;
  int batch;
};

static void strided(const struct job *job) {
  for (size_t i = 0; i < job->count; i++)
    memcpy(job->to + i * job->size, job->from + i * job->stride, job->size);
}

/* The compiler knows the size, as it would in a plain loop. */
static void strided64(const struct job *job) {
  for (size_t i = 0; i < job->count; i++)
    memcpy(job->to + i * 64, job->from + i * job->stride, 64);
}

static void copy(const struct job *job) {
  if (job->count == 1 && job->size == 8)
    memcpy(job->to, job->from, 8);
  else if (job->count == 1)
    memcpy(job->to, job->from, job->size);
  else if (job->size == 64)
    strided64(job);
  else
    strided(job);
}

static void barrier(void) {
  __asm__ volatile("" ::: "memory");
}

static void round_one(const struct job *job, uint64_t round, double *ns) {
  size_t bytes = (job->count - 1) * job->stride + job->size;
  stamp(job->from, bytes, round);
  int64_t begin = now();
  for (int i = 0; i < job->batch; i++) {
    copy(job);
    barrier();
  }
  *ns = (double)(now() - begin) / job->batch;
}

static void verify(const struct job *job) {
  for (size_t i = 0; i < job->count; i++)
    if (memcmp(job->to + i * job->size, job->from + i * job->stride,
               job->size) != 0)
      wrong_bytes();
}

static void measure(struct job *job, const struct options *options,
                    const char *size, struct samples *samples) {
  size_t total = job->size * job->count;
  uint64_t round = 1;
  job->batch = total <= 4096 ? 256 : total <= 65536 ? 16 : 1;
  int64_t begin = now(), span = (int64_t)(options->seconds * 1e9);
  for (int i = 0; i < 3 || now() - begin < span / 8; i++)
    round_one(job, round++, samples->ns);
  int64_t end = now() + span;
  while (samples->count < 3 || (now() < end && samples->count < SAMPLES))
    round_one(job, round++, &samples->ns[samples->count++]);
  verify(job);
  report(options, job->count == 1 ? "memcpy" : "strided", size, samples);
}

int main(int argc, char **argv) {
  struct options options = options_parse(argc, argv);
  struct job job = {.count = (size_t)options.count,
                    .stride = (size_t)options.stride};
  size_t most = largest(argc, argv);
  size_t span = job.count > 1 ? job.stride * job.count : 0;
  if (job.count > 1 && job.stride < most)
    usage(argv[0]);
  pin(options.pins[0]);
  job.from = memory(span > most ? span : most, MAP_PRIVATE);
  job.to = memory(most * job.count, MAP_SHARED);
  struct samples samples = samples_new();
  for (int i = optind; i < argc; i++) {
    job.size = strtoull(argv[i], NULL, 10);
    measure(&job, &options, argv[i], &samples);
  }
  return 0;
}
