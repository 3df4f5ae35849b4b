/* SPDX-License-Identifier: Apache-2.0
 *
 * memory_sharing_test.c - memory that another process uses by a key.
 */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kinds.h"

enum { SIZE = 256000 };

/* What a child does with a key's memory: it inherits the descriptors. */
static int in_child(const char *kind, const struct memory_key *key) {
  struct perigee_engine *engine = engine_with_kinds();
  const struct memory_context *m;
  char reason[MEMORY_REASON];
  uint8_t *pointer, bytes[64] = {0};
  void *handle;
  struct copies copies = {0};
  if (contexts_find(&engine->memories, kind, &m, reason) < 0 ||
      m->kind->sharing->adopt(m, key, SIZE, PERIGEE_READ | PERIGEE_WRITE,
                              &pointer, &handle) < 0)
    return 1;
  struct payload p;
  payload_bytes(&p, pointer, SIZE);
  p.memory = m;
  p.copies = &copies;
  while (p.done < sizeof bytes)
    payload_take(&p, bytes + p.done, sizeof bytes - p.done);
  for (size_t i = 0; i < sizeof bytes; i++)
    bytes[i] ^= 0xff;
  p.done = copies.asked = 0;
  while (p.done < sizeof bytes)
    payload_put(&p, bytes + p.done, sizeof bytes - p.done);
  m->kind->sharing->leave(m, pointer, SIZE, handle);
  perigee_engine_close(engine);
  return 0;
}

static void used_by_another_process(struct perigee_engine *engine,
                                    const char *kind) {
  const struct memory_context *m;
  char reason[MEMORY_REASON];
  uint8_t *pointer, *bytes = pattern(64, 11), got[64];
  void *handle;
  struct memory_key key;
  struct copies copies = {0};
  assert_int_equal(contexts_find(&engine->memories, kind, &m, reason), 0);
  assert_int_equal(m->kind->allocate(m, SIZE, true, &pointer, &handle), 0);
  assert_int_equal(m->kind->sharing->share(m, pointer, SIZE, handle,
                                           PERIGEE_READ | PERIGEE_WRITE, &key),
                   0);
  struct payload p;
  payload_bytes(&p, pointer, SIZE);
  p.memory = m;
  p.copies = &copies;
  while (p.done < 64)
    payload_put(&p, bytes + p.done, 64 - p.done);
  pid_t child = fork();
  if (child == 0)
    _exit(in_child(kind, &key));
  int how;
  assert_int_equal(waitpid(child, &how, 0), child);
  assert_int_equal(how, 0);
  p.done = copies.asked = 0;
  while (p.done < 64)
    payload_take(&p, got + p.done, 64 - p.done);
  for (int i = 0; i < 64; i++)
    assert_int_equal(got[i], bytes[i] ^ 0xff);
  m->kind->release(m, pointer, SIZE, handle);
  free(bytes);
}

static void host_memory_is_used_by_another_process(void **state) {
  used_by_another_process(*state, "host");
}

static void opaque_memory_is_used_by_another_process(void **state) {
  used_by_another_process(*state, "opaque");
}

static void a_key_of_too_little_is_refused(void **state) {
  struct perigee_engine *engine = *state;
  static const char *const kinds[] = {"host", "opaque"};
  for (int i = 0; i < 2; i++) {
    const struct memory_context *m;
    char reason[MEMORY_REASON];
    uint8_t *pointer, *adopted;
    void *handle;
    struct memory_key key, none = {.fd_count = 0};
    assert_int_equal(contexts_find(&engine->memories, kinds[i], &m, reason), 0);
    assert_int_equal(m->kind->allocate(m, 4096, true, &pointer, &handle), 0);
    const struct memory_sharing *s = m->kind->sharing;
    assert_int_equal(s->share(m, pointer, 4096, handle, PERIGEE_READ, &key), 0);
    assert_int_equal(
        s->adopt(m, &key, 8192, PERIGEE_READ, &adopted, &(void *){0}),
        PERIGEE_PROTOCOL);
    assert_int_equal(
        s->adopt(m, &none, 4096, PERIGEE_READ, &adopted, &(void *){0}),
        PERIGEE_PROTOCOL);
    m->kind->release(m, pointer, 4096, handle);
  }
}

/* The maker reads memory that holders of the key may not write. */
static void read_only_host_memory_cannot_be_adopted_to_write(void **state) {
  (void)state;
  const struct memory_sharing *s = memory_host_kind.sharing;
  uint8_t *pointer, *adopted;
  void *handle;
  struct memory_key key;
  assert_int_equal(
      memory_host_kind.allocate(&memory_host, 4096, true, &pointer, &handle),
      0);
  assert_int_equal(
      s->share(&memory_host, pointer, 4096, handle, PERIGEE_READ, &key), 0);
  pointer[0] = 7;
  assert_int_equal(
      s->adopt(&memory_host, &key, 4096, PERIGEE_WRITE, &adopted, &(void *){0}),
      PERIGEE_PROTOCOL);
  assert_int_equal(
      s->adopt(&memory_host, &key, 4096, PERIGEE_READ, &adopted, &(void *){0}),
      0);
  assert_int_equal(adopted[0], 7);
  s->leave(&memory_host, adopted, 4096, NULL);
  memory_host_kind.release(&memory_host, pointer, 4096, handle);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      WITH_ENGINE(host_memory_is_used_by_another_process),
      WITH_ENGINE(opaque_memory_is_used_by_another_process),
      WITH_ENGINE(a_key_of_too_little_is_refused),
      WITH_ENGINE(read_only_host_memory_cannot_be_adopted_to_write),
  };
  return cmocka_run_group_tests_name("memory_sharing", tests, NULL, NULL);
}
