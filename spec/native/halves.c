/* SPDX-License-Identifier: Apache-2.0 */
#include "halves.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WHOLE = 16384, PATIENCE = 1 << 22 };

/* ---- The fake ------------------------------------------------------------- */

static void *fake_function(const char *name) {
  const char *library = getenv("PERIGEE_CUDA_LIBRARY");
  void *fake = library && *library ? dlopen(library, RTLD_NOW) : NULL;
  return fake ? dlsym(fake, name) : NULL;
}

void fake_set(const char *word) {
  void (*set)(const char *);
  *(void **)&set = fake_function("fake_cuda_set");
  if (set)
    set(word);
  else
    skip();
}

uint64_t fake_counts(const char *name) {
  uint64_t (*count)(const char *);
  *(void **)&count = fake_function("fake_cuda_count");
  return count(name);
}

/* ---- What a half says ----------------------------------------------------- */

static int half_hand(struct perigee_session *session, const void *bytes,
                     uint32_t length, int fd, const char **why) {
  struct half *h = (struct half *)(void *)session;
  *why = "the test says so";
  if (h->full)
    return PERIGEE_AGAIN;
  assert_int_equal(length, sizeof(struct word));
  assert_true(h->said_count < SAID);
  struct said *s = &h->said[h->said_count++];
  memcpy(&s->word, bytes, length);
  s->fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
  s->second = -1;
  return PERIGEE_OK;
}

static int half_hand_pair(struct perigee_session *session, const void *bytes,
                          uint32_t length, const int fds[2], const char **why) {
  struct half *h = (struct half *)(void *)session;
  int status = half_hand(session, bytes, length, fds[0], why);
  if (status == PERIGEE_OK)
    h->said[h->said_count - 1].second = fcntl(fds[1], F_DUPFD_CLOEXEC, 0);
  return status;
}

static int half_tell(struct perigee_session *session, const void *bytes,
                     uint32_t length) {
  const char *why;
  assert_int_equal(half_hand(session, bytes, length, -1, &why), 0);
  return PERIGEE_OK;
}

struct said half_said(struct half *h) {
  assert_true(h->said_count > 0);
  struct said first = h->said[0];
  memmove(h->said, h->said + 1, --h->said_count * sizeof *h->said);
  return first;
}

int half_hears(struct half *h, const struct word *word, int fd) {
  h->now += 1000000000;
  return lane_table(h->lane)->heard(h->lane, word, sizeof *word, fd);
}

int half_hears_pair(struct half *h, const struct word *word, int first,
                    int second) {
  const int fds[] = {first, second};
  h->now += 1000000000;
  return lane_table(h->lane)->heard_pair(h->lane, word, sizeof *word, fds);
}

static int half_hears_said(struct half *h, const struct said *s) {
  return s->second < 0 ? half_hears(h, &s->word, s->fd)
                       : half_hears_pair(h, &s->word, s->fd, s->second);
}

void halves_talk(struct halves *h) {
  for (int side = 0; h->of[0].said_count + h->of[1].said_count > 0; side ^= 1)
    while (h->of[side].said_count > 0) {
      struct said s = half_said(&h->of[side]);
      assert_int_equal(half_hears_said(&h->of[!side], &s), 0);
    }
}

/* ---- The halves ------------------------------------------------------------ */

const struct memory_context *half_device(struct half *h, const char *name) {
  const struct memory_context *m = NULL;
  char reason[MEMORY_REASON];
  if (contexts_find(&h->memories, name, &m, reason) < 0)
    fail_msg("%s: %s", name, reason);
  return m;
}

static void half_open(struct half *h, struct half *other,
                      const struct perigee_transport *by, bool device) {
  static const uint64_t who[2] = {1, 1};
  static const struct perigee_memory *const kinds[] = {&perigee_memory_opaque,
                                                       NULL};
  char reason[REASON];
  struct offer offer;
  *h = (struct half){.other = other};
  perigee_options_init(&h->options, sizeof h->options);
  assert_int_equal(shares_open(&h->shares, &h->options), 0);
  h->share = share_join(&h->shares, who);
  h->memories.kinds = kinds;
  if (device)
    h->device = half_device(h, "cuda:0");
  struct lane_options o = {.operations = WHOLE,
                           .session = (struct perigee_session *)(void *)h,
                           .share = h->share,
                           .tell = half_tell,
                           .hand = half_hand,
                           .hand_pair = half_hand_pair,
                           .pairs = true,
                           .memories = &h->memories,
                           .now = &h->now};
  assert_int_equal(by->open(&o, &h->lane, &offer, reason), 0);
  assert_int_equal(by->join(h->lane, &offer, reason), 0);
}

static void halves_set(long slow) {
  char word[32];
  snprintf(word, sizeof word, "slow=%ld", slow);
  fake_set("version=12080"); /* which has batches */
  fake_set("fabric=0");
  fake_set("channel=1");
  /* No trial of ways to copy asks the driver for anything, too. */
  setenv("PERIGEE_CUDA_COPIES", "batch", 1);
  fake_set(word);
}

static void halves_open_both(struct halves *h,
                             const struct perigee_transport *by, bool devices) {
  h->files = descriptors();
  half_open(&h->of[0], &h->of[1], by, true);
  half_open(&h->of[1], &h->of[0], by, devices);
  h->peer = &h->of[0];
  h->ours = &h->of[1];
  h->here.base = NULL;
}

void halves_open(struct halves *h, long slow) {
  halves_set(slow);
  halves_open_both(h, &transport_cuda, true);
  area_new(h->ours, &h->here, AREA);
}

void halves_open_distant(struct halves *h, long slow) {
  halves_set(slow);
  fake_set("fabric=1");
  halves_open_both(h, &transport_cuda_distant, true);
  area_new(h->ours, &h->here, AREA);
}

void halves_open_bare(struct halves *h) {
  halves_set(20);
  halves_open_both(h, &transport_cuda, false);
}

static void half_close(struct half *h) {
  lane_table(h->lane)->close(h->lane);
  contexts_close(&h->memories);
  while (h->said_count > 0) {
    struct said s = half_said(h);
    if (s.fd >= 0)
      close(s.fd);
    if (s.second >= 0)
      close(s.second);
  }
  for (int kind = 0; kind < SHARES; kind++)
    assert_int_equal(h->share->used[kind], 0);
  share_leave(h->share);
  shares_close(&h->shares);
}

void halves_close(struct halves *h) {
  if (h->here.base)
    area_end(h->ours, &h->here);
  half_close(h->ours);
  half_close(h->peer);
  /* A thread closes what is long (adopted.h). */
  for (int i = 0; i < 10000 && descriptors() != h->files; i++)
    usleep(1000);
  assert_int_equal(descriptors(), h->files);
}

/* ---- Memory ---------------------------------------------------------------- */

void area_new(struct half *h, struct area *area, uint64_t length) {
  const struct memory_context *m = h->device;
  *area = (struct area){.memory = m,
                        .length = length,
                        .shared = true,
                        .rights = PERIGEE_READ | PERIGEE_WRITE};
  assert_int_equal(
      m->kind->allocate(m, length, true, &area->base, &area->handle), 0);
}

void area_end(struct half *h, struct area *area) {
  if (area->told)
    lane_table(h->lane)->access->forget(h->lane, area);
  area->memory->kind->release(area->memory, area->base, area->length,
                              area->handle);
}

void lent_new(struct half *h, struct lent *lent) {
  char reason[MEMORY_REASON];
  struct area *a = &lent->area;
  area_new(h, a, AREA);
  lent->own = a->handle;
  assert_int_equal(a->memory->kind->admission->admit(
                       a->memory, a->base, a->length, &a->handle, reason),
                   0);
}

void lent_end(struct half *h, struct lent *lent) {
  lent->area.memory->kind->admission->dismiss(lent->area.memory,
                                              lent->area.handle);
  lent->area.handle = lent->own;
  area_end(h, &lent->area);
}

bool lent_is_held(const struct lent *lent) {
  const struct area *a = &lent->area;
  return a->memory->kind->sharing->held(a->memory, a->handle);
}

struct window peer_grants(struct halves *h, struct area *area, uint32_t slot) {
  static uint64_t generation;
  struct grant grant = {slot, ++generation, area, area->rights, -1};
  struct window w = {.slot = slot,
                     .access = area->rights,
                     .generation = generation,
                     .length = area->length};
  const struct transport_access *access = lane_table(h->peer->lane)->access;
  struct region_key key;
  assert_int_equal(access->export(h->peer->lane, &grant, &key), 0);
  halves_talk(h);
  assert_int_equal(access->attach(h->ours->lane, &w, &key), 0);
  w.attached = true;
  return w;
}

static void payload_finish(struct payload *p, uint8_t *bytes, bool put) {
  while (p->done < p->total) {
    uint64_t left = p->total - p->done;
    int64_t n = put ? payload_put(p, bytes + p->done, left)
                    : payload_take(p, bytes + p->done, left);
    assert_true(n >= 0);
  }
  assert_true(payload_quiet(p));
}

static void area_move(const struct area *area, uint64_t offset, uint8_t *bytes,
                      uint64_t length, bool put) {
  struct copies copies = {0};
  struct payload p = payload_of(area->memory, area->base + offset, length);
  p.copies = &copies;
  payload_finish(&p, bytes, put);
}

void area_fill(const struct area *area, int byte) {
  uint8_t *bytes = malloc(area->length);
  assert_non_null(bytes);
  memset(bytes, byte, area->length);
  area_move(area, 0, bytes, area->length, true);
  free(bytes);
}

void area_same(const struct area *area, uint64_t offset, uint64_t length,
               int byte) {
  uint8_t *bytes = malloc(length);
  assert_non_null(bytes);
  area_move(area, offset, bytes, length, false);
  for (uint64_t i = 0; i < length; i++)
    assert_int_equal(bytes[i], byte);
  free(bytes);
}

/* ---- Copies ------------------------------------------------------------------ */

struct payload payload_of(const struct memory_context *memory, void *at,
                          uint64_t length) {
  struct payload p;
  payload_bytes(&p, at, length);
  p.memory = memory ? memory : &memory_host;
  return p;
}

struct payload area_payload(const struct area *area) {
  return payload_of(area->memory, area->base, area->length);
}

void ours_await(struct halves *h, struct job *job) {
  for (int i = 0; job->pending > 0; i++) {
    assert_true(i < PATIENCE);
    transport_cuda.jobs->look(h->ours->lane);
  }
}

int ours_post(struct halves *h, struct job *job, const struct window *w,
              uint64_t offset, struct payload local, bool write) {
  const struct transport_jobs *jobs = transport_cuda.jobs;
  struct lane *lane = h->ours->lane;
  void *at = (void *)(uintptr_t)offset;
  struct payload remote = payload_of(NULL, at, local.total);
  int status = 0;
  if (!jobs->reaches(lane, w, &local))
    return PERIGEE_UNSUPPORTED;
  for (int i = 0; status == 0; i++) {
    assert_true(i < PATIENCE);
    if ((status = jobs->post(lane, job, w, &remote, &local, write)) == 0)
      jobs->look(lane);
  }
  return status;
}

int ours_move(struct halves *h, const struct window *w, uint64_t offset,
              struct payload local, bool write) {
  struct job job = {0};
  int status = ours_post(h, &job, w, offset, local, write);
  transport_cuda.jobs->flush(h->ours->lane);
  ours_await(h, &job);
  return job.status < 0 ? job.status : status;
}

int ours_write(struct halves *h, const struct window *w) {
  return ours_move(h, w, 0, area_payload(&h->here), true);
}

int peer_exposes(struct halves *h, struct area *area, struct fetch *f,
                 struct payload *into) {
  struct payload from = area_payload(area);
  struct exposure e = {.operation = EXPOSED_AS, .generation = 9};
  from.area = area;
  int status = transport_cuda.payloads->expose(h->peer->lane, &e, &from);
  halves_talk(h);
  *f = (struct fetch){.source = e.source,
                      .into = into,
                      .operation = EXPOSED_AS,
                      .generation = 9,
                      .total = from.total};
  return status;
}

int ours_fetch(struct halves *h, struct fetch *f) {
  const struct transport_payloads *payloads = transport_cuda.payloads;
  int64_t n = 0;
  for (int i = 0; n >= 0 && f->done < f->total; i++) {
    assert_true(i < PATIENCE);
    n = payloads->fetch(h->ours->lane, f);
  }
  while (!payloads->fetch_end(h->ours->lane, f))
    ;
  return n < 0 ? (int)n : 1;
}
