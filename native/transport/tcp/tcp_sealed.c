/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_sealed.c - streams that are sealed (enciphered, or only with MACs) in
 * chunks of up to 16 KiB, with one key for each stream and direction (seal.h).
 * Bytes that stand in one piece are sealed and opened without another copy.
 *
 * A stream's buffers are a mapping of its own, so they take memory only where
 * they were written, and none once the session is freed. Memory that a flood
 * left behind goes back to the system when the stream has been quiet for a
 * while (core/pool.c).
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "security/handshake.h"
#include "security/seal.h"
#include "security/vault.h"
#include "tcp.h"

/* So many chunks are sent and read at once: a send of 64 KiB takes twice as
 * long for each byte as one of 256 KiB. */
enum { CHUNKS = 32, ROOM = CHUNKS * SEAL_CHUNK_MOST };
enum { PAGE = 4096 };

struct sealed {
  struct seal *out, *in;      /* in the engine's vault */
  uint32_t out_high, in_high; /* the highest ends since memory was given back */
  bool used;                  /* more than a page, since the last look */
  uint32_t out_first, out_end; /* sealed and not sent yet */
  uint32_t in_first, in_end;   /* read and not opened yet */
  uint32_t open_first,
      open_end; /* opened, in in_bytes, and not delivered yet */
  uint8_t gathered[SEAL_MOST];
  _Alignas(PAGE) uint8_t out_bytes[ROOM];
  _Alignas(PAGE) uint8_t in_bytes[ROOM];
};

static struct seal *sealed_begin(const struct stream *s, bool by_dialer) {
  const struct lane_options *o = &s->lane->options;
  uint8_t key[HANDSHAKE_KEY];
  struct seal *seal = vault_take(o->vault, sizeof *seal);
  if (!seal)
    return NULL;
  handshake_seal(o->seal, tcp_number_of(s), by_dialer, key);
  seal_begin(seal, key, o->aes);
  if (o->bare)
    seal_bare(seal);
  explicit_bzero(key, sizeof key);
  return seal;
}

int sealed_open(struct stream *s) {
  void *p = mmap(NULL, sizeof *s->sealed, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    return PERIGEE_NO_MEMORY;
  s->sealed = p;
  s->sealed->out = sealed_begin(s, s->lane->options.dialed);
  s->sealed->in = sealed_begin(s, !s->lane->options.dialed);
  return s->sealed->out && s->sealed->in ? PERIGEE_OK : PERIGEE_NO_MEMORY;
}

static void sealed_end(const struct stream *s, struct seal *seal) {
  if (seal)
    seal_end(seal);
  vault_give(s->lane->options.vault, seal, sizeof *seal);
}

/* The kernel clears the pages before anybody else gets them. To wipe them here
 * would first fetch those that were never written: half a MiB a session. */
void sealed_close(struct stream *s) {
  sealed_end(s, s->sealed->out);
  sealed_end(s, s->sealed->in);
  munmap(s->sealed, sizeof *s->sealed);
  s->sealed = NULL;
}

/* ---- Memory -------------------------------------------------------------- */

static void sealed_reached(struct stream *s, uint32_t *high, uint32_t end) {
  if (end <= PAGE)
    return;
  if (*high == 0)
    s->lane->options.keeps(s->lane->options.session);
  if (*high < end)
    *high = end;
  s->sealed->used = true;
}

static void sealed_give_back(uint8_t *bytes, uint32_t *high) {
  if (*high > PAGE)
    madvise(bytes + PAGE, *high - PAGE, MADV_DONTNEED);
  *high = 0;
}

static uint64_t sealed_beyond_page(uint32_t high) {
  return high > PAGE ? high - PAGE : 0;
}

uint64_t sealed_kept(const struct stream *s) {
  return sealed_beyond_page(s->sealed->out_high) +
         sealed_beyond_page(s->sealed->in_high);
}

bool sealed_trim(struct stream *s) {
  struct sealed *x = s->sealed;
  bool used = x->used;
  x->used = false;
  if (!used && x->out_first == x->out_end)
    sealed_give_back(x->out_bytes, &x->out_high);
  if (!used && x->in_first == x->in_end && x->open_first == x->open_end)
    sealed_give_back(x->in_bytes, &x->in_high);
  return sealed_kept(s) > 0;
}

/* ---- Out ----------------------------------------------------------------- */

bool sealed_waiting(const struct stream *s) {
  return s->sealed->out_first < s->sealed->out_end;
}

int64_t sealed_flush(struct stream *s) {
  struct sealed *x = s->sealed;
  while (sealed_waiting(s)) {
    ssize_t n = send(s->fd, x->out_bytes + x->out_first,
                     x->out_end - x->out_first, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0)
      return -1;
    x->out_first += (uint32_t)n;
  }
  x->out_first = x->out_end = 0;
  return 0;
}

/* A position in the bytes that are to be sealed. */
struct walk {
  const struct iovec *v;
  int count;
  uint64_t within;
};

/* Returns the next bytes for a chunk, in place or gathered, and their
 * number. */
static uint32_t sealed_next_plain(struct sealed *x, struct walk *w,
                                  const uint8_t **plain) {
  uint32_t n = 0;
  *plain = x->gathered;
  while (w->count > 0 && n < SEAL_MOST) {
    const uint8_t *at = (const uint8_t *)w->v->iov_base + w->within;
    uint64_t left = w->v->iov_len - w->within;
    uint64_t take = left < SEAL_MOST - n ? left : SEAL_MOST - n;
    if (take == SEAL_MOST)
      *plain = at;
    else
      memcpy(x->gathered + n, at, take);
    n += (uint32_t)take;
    w->within += take;
    if (take == left) {
      w->v++;
      w->count--;
      w->within = 0;
    }
  }
  return n;
}

int64_t sealed_write(struct stream *s, const struct iovec *v, int count) {
  struct sealed *x = s->sealed;
  struct walk w = {v, count, 0};
  const uint8_t *plain;
  int64_t taken = 0;
  uint32_t n;
  if (sealed_flush(s) < 0)
    return -1;
  for (int i = 0; i < CHUNKS && (n = sealed_next_plain(x, &w, &plain)) > 0;
       i++) {
    x->out_end += seal_close(x->out, x->out_bytes + x->out_end, plain, n);
    taken += n;
  }
  sealed_reached(s, &x->out_high, x->out_end);
  /* The next call reports it if this fails. */
  sealed_flush(s);
  return taken;
}

/* ---- In ------------------------------------------------------------------ */

int sealed_given(struct stream *s, const uint8_t *bytes, uint32_t length) {
  if (length > ROOM)
    return PERIGEE_PROTOCOL;
  if (length > 0)
    memcpy(s->sealed->in_bytes, bytes, length);
  s->sealed->in_end = length;
  sealed_reached(s, &s->sealed->in_high, length);
  return PERIGEE_OK;
}

static int64_t sealed_forged(void) {
  errno = EBADMSG;
  return -1;
}

static int64_t sealed_give_open(struct sealed *x, uint8_t *to, uint64_t room) {
  uint64_t n = x->open_end - x->open_first;
  if (n > room)
    n = room;
  memcpy(to, x->in_bytes + x->open_first, n);
  x->open_first += (uint32_t)n;
  return (int64_t)n;
}

/* Only authenticated bytes are put there if others can see the landing. */
static bool sealed_is_seen(const struct stream *s) {
  return s->sink == SINK_FETCH && s->fetch->careful;
}

/* Opens the first chunk if it is complete. Returns the bytes delivered, or
 * 0. */
static int64_t sealed_open_chunk(struct stream *s, uint8_t *to, uint64_t room) {
  struct sealed *x = s->sealed;
  uint8_t *chunk = x->in_bytes + x->in_first;
  uint32_t there = x->in_end - x->in_first;
  if (there < SEAL_HEAD)
    return 0;
  int length = seal_chunk(chunk);
  if (length < 0)
    return sealed_forged();
  if ((uint32_t)length > there)
    return 0;
  bool straight =
      room >= (uint64_t)length - SEAL_HEAD - SEAL_TAG && !sealed_is_seen(s);
  int plain = seal_open(x->in, straight ? to : chunk + SEAL_HEAD, chunk,
                        (uint32_t)length);
  if (plain < 0)
    return sealed_forged();
  x->open_first = x->in_first + SEAL_HEAD;
  x->open_end = x->open_first + (uint32_t)plain;
  x->in_first += (uint32_t)length;
  if (!straight)
    return sealed_give_open(x, to, room);
  x->open_first = x->open_end;
  return plain;
}

static int64_t sealed_read_more(struct stream *s) {
  struct sealed *x = s->sealed;
  memmove(x->in_bytes, x->in_bytes + x->in_first, x->in_end - x->in_first);
  x->in_end -= x->in_first;
  x->in_first = 0;
  int64_t got =
      recv(s->fd, x->in_bytes + x->in_end, ROOM - x->in_end, MSG_DONTWAIT);
  if (got > 0) { /* a part of a chunk is a sign of life, too */
    x->in_end += (uint32_t)got;
    sealed_reached(s, &x->in_high, x->in_end);
    s->bytes_received += (uint64_t)got;
  }
  return got;
}

int64_t sealed_read(struct stream *s, uint8_t *to, uint64_t room) {
  int64_t n;
  if (s->sealed->open_first < s->sealed->open_end)
    return sealed_give_open(s->sealed, to, room);
  while ((n = sealed_open_chunk(s, to, room)) == 0) {
    n = sealed_read_more(s);
    if (n <= 0)
      return n;
  }
  return n;
}
