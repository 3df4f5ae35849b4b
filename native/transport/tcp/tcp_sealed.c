/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_sealed.c - streams that are sealed (enciphered, or only with MACs) in
 * chunks of up to 16 KiB, with one key for each stream and direction (seal.h).
 * Bytes that stand in one piece are sealed and opened without another copy.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "security/handshake.h"
#include "security/seal.h"
#include "security/vault.h"
#include "tcp.h"

/* So many chunks are sent and read at once: a send of 64 KiB takes twice as
 * long for each byte as one of 256 KiB. Pages of the buffer that are not used
 * take no memory. */
enum { CHUNKS = 32, ROOM = CHUNKS * SEAL_CHUNK_MOST };

struct sealed {
  struct seal *out, *in;       /* in the engine's vault */
  uint32_t out_first, out_end; /* sealed and not sent yet */
  uint32_t in_first, in_end;   /* read and not opened yet */
  uint32_t open_first,
      open_end; /* opened, in in_bytes, and not delivered yet */
  uint8_t gathered[SEAL_MOST];
  uint8_t out_bytes[ROOM], in_bytes[ROOM];
};

static struct seal *begin(const struct stream *s, bool by_dialer) {
  const struct lane_options *o = &s->lane->options;
  uint8_t key[HANDSHAKE_KEY];
  struct seal *seal = vault_take(o->vault, sizeof *seal);
  if (!seal)
    return NULL;
  handshake_seal(o->seal, s->number, by_dialer, key);
  seal_begin(seal, key, o->aes);
  if (o->bare)
    seal_bare(seal);
  explicit_bzero(key, sizeof key);
  return seal;
}

int sealed_open(struct stream *s) {
  s->sealed = aligned_alloc(_Alignof(struct sealed), sizeof *s->sealed);
  if (!s->sealed)
    return PERIGEE_NO_MEMORY;
  s->sealed->out_first = s->sealed->out_end = 0;
  s->sealed->in_first = s->sealed->in_end = 0;
  s->sealed->open_first = s->sealed->open_end = 0;
  s->sealed->out = begin(s, s->lane->options.dialed);
  s->sealed->in = begin(s, !s->lane->options.dialed);
  return s->sealed->out && s->sealed->in ? PERIGEE_OK : PERIGEE_NO_MEMORY;
}

static void end(const struct stream *s, struct seal *seal) {
  if (seal)
    seal_end(seal);
  vault_give(s->lane->options.vault, seal, sizeof *seal);
}

void sealed_close(struct stream *s) {
  end(s, s->sealed->out);
  end(s, s->sealed->in);
  explicit_bzero(s->sealed->gathered, sizeof s->sealed->gathered);
  explicit_bzero(s->sealed->in_bytes, sizeof s->sealed->in_bytes);
  free(s->sealed);
  s->sealed = NULL;
}

/* ---- Out ---------------------------------------------------------------- */

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
static uint32_t next_plain(struct sealed *x, struct walk *w,
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
  for (int i = 0; i < CHUNKS && (n = next_plain(x, &w, &plain)) > 0; i++) {
    x->out_end += seal_close(x->out, x->out_bytes + x->out_end, plain, n);
    taken += n;
  }
  /* If this fails, the next call reports it. */
  sealed_flush(s);
  return taken;
}

/* ---- In ----------------------------------------------------------------- */

int sealed_given(struct stream *s, const uint8_t *bytes, uint32_t length) {
  if (length > ROOM)
    return PERIGEE_PROTOCOL;
  if (length > 0)
    memcpy(s->sealed->in_bytes, bytes, length);
  s->sealed->in_end = length;
  return PERIGEE_OK;
}

static int64_t forged(struct stream *s) {
  tcp_break(s->lane, PERIGEE_PROTOCOL,
            "what came was not sealed by the peer, or was changed on the way");
  errno = EBADMSG;
  return -1;
}

static int64_t give_open(struct sealed *x, uint8_t *to, uint64_t room) {
  uint64_t n = x->open_end - x->open_first;
  if (n > room)
    n = room;
  memcpy(to, x->in_bytes + x->open_first, n);
  x->open_first += (uint32_t)n;
  return (int64_t)n;
}

/* If others can see the landing, only authenticated bytes are put there. */
static bool is_seen(const struct stream *s) {
  return s->sink == SINK_FETCH && s->fetch->careful;
}

/* Opens the first chunk if it is complete. Returns the bytes delivered, or
 * 0. */
static int64_t open_chunk(struct stream *s, uint8_t *to, uint64_t room) {
  struct sealed *x = s->sealed;
  uint8_t *chunk = x->in_bytes + x->in_first;
  uint32_t there = x->in_end - x->in_first;
  if (there < SEAL_HEAD)
    return 0;
  int length = seal_chunk(chunk);
  if (length < 0)
    return forged(s);
  if ((uint32_t)length > there)
    return 0;
  bool straight =
      room >= (uint64_t)length - SEAL_HEAD - SEAL_TAG && !is_seen(s);
  int plain = seal_open(x->in, straight ? to : chunk + SEAL_HEAD, chunk,
                        (uint32_t)length);
  if (plain < 0)
    return forged(s);
  x->open_first = x->in_first + SEAL_HEAD;
  x->open_end = x->open_first + (uint32_t)plain;
  x->in_first += (uint32_t)length;
  if (!straight)
    return give_open(x, to, room);
  x->open_first = x->open_end;
  return plain;
}

static int64_t read_more(struct stream *s) {
  struct sealed *x = s->sealed;
  memmove(x->in_bytes, x->in_bytes + x->in_first, x->in_end - x->in_first);
  x->in_end -= x->in_first;
  x->in_first = 0;
  int64_t got =
      recv(s->fd, x->in_bytes + x->in_end, ROOM - x->in_end, MSG_DONTWAIT);
  if (got > 0) { /* a part of a chunk is a sign of life, too */
    x->in_end += (uint32_t)got;
    s->lane->bytes_received += (uint64_t)got;
  }
  return got;
}

int64_t sealed_read(struct stream *s, uint8_t *to, uint64_t room) {
  int64_t n;
  if (s->sealed->open_first < s->sealed->open_end)
    return give_open(s->sealed, to, room);
  while ((n = open_chunk(s, to, room)) == 0) {
    n = read_more(s);
    if (n <= 0)
      return n;
  }
  return n;
}
