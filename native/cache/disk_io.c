/* SPDX-License-Identifier: Apache-2.0
 *
 * disk_io.c - what is under way on a disk. By io_uring, or, where the kernel
 * refuses that (or Perigee was built without liburing), by threads that wait
 * for work. Both do the same for an op: a read or write by up to two parts of
 * memory, which goes on behind what it has done of it.
 *
 *   an op is    event                          becomes
 *   free        disk_read, disk_write          prepared
 *   prepared    disk_go                        under way
 *   under way   a part of it is done           prepared, with the rest
 *   under way   all is done, or it failed      ended
 *   ended       disk_poll                      free
 *
 * Memory that the file cannot take as it is goes by the op's own: a whole value
 * of DISK_BOUNCE bytes at most, or what is left behind the last whole block.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef PERIGEE_URING
#include <liburing.h>
#endif

#include "cache/disk.h"
#include "perigee.h"

/* ---- Ops --------------------------------------------------------------- */

static struct disk_op *op_take(struct perigee_cache_disk *d, uint64_t token,
                               uint64_t offset, bool write) {
  struct disk_op *op = &d->ops[d->free_op - 1];
  d->free_op = op->next;
  d->busy++;
  op->token = token;
  op->offset = offset;
  op->write = write;
  op->to = NULL;
  op->bounced = 0;
  op->status = PERIGEE_OK;
  return op;
}

static void op_give(struct perigee_cache_disk *d, struct disk_op *op) {
  op->next = d->free_op;
  d->free_op = (uint32_t)(op - d->ops) + 1;
  d->busy--;
}

static uint64_t whole_blocks(uint64_t length) {
  return (length + DISK_BLOCK - 1) & ~(uint64_t)(DISK_BLOCK - 1);
}

/* Cuts memory into what goes as it is, and what goes by the bounce. */
static void op_cut(const struct perigee_cache_disk *d, struct disk_op *op,
                   uint8_t *memory, uint64_t length) {
  uint64_t straight = length & ~(uint64_t)(DISK_BLOCK - 1);
  if ((uintptr_t)memory % d->align != 0)
    straight = 0;
  op->bounced = (uint32_t)(length - straight);
  op->to = memory + straight;
  op->parts[0] = (struct iovec){.iov_base = memory, .iov_len = straight};
  op->parts[1] = (struct iovec){.iov_base = op->bounce,
                                .iov_len = whole_blocks(op->bounced)};
  if (!op->write || op->bounced == 0)
    return;
  memcpy(op->bounce, op->to, op->bounced);
  memset(op->bounce + op->bounced, 0, op->parts[1].iov_len - op->bounced);
}

/* Returns whether more than nothing is left. */
static bool op_advance(struct disk_op *op, uint64_t done) {
  op->offset += done;
  for (int i = 0; i < 2; i++) {
    struct iovec *v = &op->parts[i];
    uint64_t part = done < v->iov_len ? done : v->iov_len;
    v->iov_base = (uint8_t *)v->iov_base + part;
    v->iov_len -= part;
    done -= part;
  }
  return op->parts[0].iov_len + op->parts[1].iov_len > 0;
}

/* Takes in what one read or write returned, or -errno. Returns whether the op
 * has ended. */
static bool op_result(struct disk_op *op, int64_t result) {
  if (result == -EINTR || result == -EAGAIN)
    return false;
  if (result > 0 && op_advance(op, (uint64_t)result))
    return false;
  if (result == 0)
    op->status = PERIGEE_CACHE_IO;
  else if (result < 0)
    op->status = result == -ENOSPC || result == -EDQUOT ? PERIGEE_CACHE_NO_SPACE
                                                        : PERIGEE_CACHE_IO;
  return true;
}

/* The kernel takes empty parts, but not at places that it cannot. */
static int op_parts(struct disk_op *op, struct iovec **first) {
  *first = op->parts[0].iov_len ? &op->parts[0] : &op->parts[1];
  return (op->parts[0].iov_len > 0) + (op->parts[1].iov_len > 0);
}

/* ---- By io_uring ------------------------------------------------------- */

#ifdef PERIGEE_URING

struct disk_ring {
  struct io_uring ring;
};

/* A ring whose completions wait until they are asked for does not disturb the
 * thread's other system calls. Older kernels do not have all of that. */
static const unsigned ring_flags[] = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
        IORING_SETUP_TASKRUN_FLAG,
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, 0};

static struct disk_ring *ring_begin(struct perigee_cache_disk *d) {
  struct disk_ring *r = calloc(1, sizeof *r);
  int status = -EINVAL;
  for (int i = 0; r && status == -EINVAL && i < 3; i++)
    status = io_uring_queue_init(d->depth, &r->ring, ring_flags[i]);
  if (r && status == 0) {
    if (io_uring_register_eventfd(&r->ring, d->event) == 0)
      return r;
    io_uring_queue_exit(&r->ring);
  }
  free(r);
  return NULL;
}

static void ring_end(struct disk_ring *r) {
  io_uring_queue_exit(&r->ring);
  free(r);
}

/* There is an entry for each op. */
static void ring_prepare(struct perigee_cache_disk *d, struct disk_op *op) {
  struct io_uring_sqe *e = io_uring_get_sqe(&d->ring->ring);
  struct iovec *first;
  int parts = op_parts(op, &first);
  if (op->write)
    io_uring_prep_writev(e, d->file, first, (unsigned)parts, op->offset);
  else
    io_uring_prep_readv(e, d->file, first, (unsigned)parts, op->offset);
  io_uring_sqe_set_data64(e, (uint64_t)(op - d->ops));
}

/* Returns false if the kernel takes some the next time only. */
static bool ring_go(struct disk_ring *r) {
  return io_uring_sq_ready(&r->ring) == 0 || io_uring_submit(&r->ring) >= 0;
}

/* Returns an op that has ended, or NULL: there is none now. */
static struct disk_op *ring_ended(struct perigee_cache_disk *d) {
  struct io_uring_cqe *e;
  while (io_uring_peek_cqe(&d->ring->ring, &e) == 0) {
    struct disk_op *op = &d->ops[io_uring_cqe_get_data64(e)];
    int32_t result = e->res;
    io_uring_cqe_seen(&d->ring->ring, e);
    if (op_result(op, result))
      return op;
    ring_prepare(d, op);
  }
  return NULL;
}

#else

static struct disk_ring *ring_begin(struct perigee_cache_disk *d) {
  (void)d;
  return NULL;
}
static void ring_end(struct disk_ring *r) {
  (void)r;
}
static void ring_prepare(struct perigee_cache_disk *d, struct disk_op *op) {
  (void)d;
  (void)op;
}
static bool ring_go(struct disk_ring *r) {
  (void)r;
  return true;
}
static struct disk_op *ring_ended(struct perigee_cache_disk *d) {
  (void)d;
  return NULL;
}

#endif

/* ---- By threads -------------------------------------------------------- */

struct op_queue {
  uint32_t first, last; /* number + 1 */
};

struct disk_threads {
  struct perigee_cache_disk *d;
  pthread_mutex_t lock;
  pthread_cond_t work;
  struct op_queue wanted, ended;
  bool stop;
  uint32_t count;
  pthread_t ids[];
};

static void queue_put(struct perigee_cache_disk *d, struct op_queue *q,
                      struct disk_op *op) {
  uint32_t number = (uint32_t)(op - d->ops) + 1;
  op->next = 0;
  if (q->last)
    d->ops[q->last - 1].next = number;
  else
    q->first = number;
  q->last = number;
}

static struct disk_op *queue_take(struct perigee_cache_disk *d,
                                  struct op_queue *q) {
  struct disk_op *op = q->first ? &d->ops[q->first - 1] : NULL;
  if (op) {
    q->first = op->next;
    q->last = q->first ? q->last : 0;
  }
  return op;
}

static void op_do(const struct perigee_cache_disk *d, struct disk_op *op) {
  int64_t result;
  do {
    struct iovec *first;
    int parts = op_parts(op, &first);
    result = op->write ? pwritev(d->file, first, parts, (off_t)op->offset)
                       : preadv(d->file, first, parts, (off_t)op->offset);
    result = result < 0 ? -errno : result;
  } while (!op_result(op, result));
}

void disk_tell(const struct perigee_cache_disk *d) {
  uint64_t one = 1;
  while (write(d->event, &one, sizeof one) < 0 && errno == EINTR)
    ;
}

static void *thread_run(void *with) {
  struct disk_threads *t = with;
  struct disk_op *op;
  pthread_mutex_lock(&t->lock);
  while (!t->stop) {
    if (!(op = queue_take(t->d, &t->wanted))) {
      pthread_cond_wait(&t->work, &t->lock);
      continue;
    }
    pthread_mutex_unlock(&t->lock);
    op_do(t->d, op);
    pthread_mutex_lock(&t->lock);
    queue_put(t->d, &t->ended, op);
    disk_tell(t->d);
  }
  pthread_mutex_unlock(&t->lock);
  return NULL;
}

static void threads_end(struct disk_threads *t) {
  pthread_mutex_lock(&t->lock);
  t->stop = true;
  pthread_cond_broadcast(&t->work);
  pthread_mutex_unlock(&t->lock);
  for (uint32_t i = 0; i < t->count; i++)
    pthread_join(t->ids[i], NULL);
  pthread_cond_destroy(&t->work);
  pthread_mutex_destroy(&t->lock);
  free(t);
}

/* The threads take no signals of the program's. */
static struct disk_threads *threads_begin(struct perigee_cache_disk *d,
                                          uint32_t count) {
  struct disk_threads *t = calloc(1, sizeof *t + count * sizeof *t->ids);
  sigset_t all, before;
  if (!t)
    return NULL;
  t->d = d;
  pthread_mutex_init(&t->lock, NULL);
  pthread_cond_init(&t->work, NULL);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (t->count < count &&
         pthread_create(&t->ids[t->count], NULL, thread_run, t) == 0)
    t->count++;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (t->count > 0)
    return t;
  threads_end(t);
  return NULL;
}

static void threads_want(struct disk_threads *t, struct disk_op *op) {
  pthread_mutex_lock(&t->lock);
  queue_put(t->d, &t->wanted, op);
  pthread_cond_signal(&t->work);
  pthread_mutex_unlock(&t->lock);
}

static struct disk_op *threads_ended(struct disk_threads *t) {
  pthread_mutex_lock(&t->lock);
  struct disk_op *op = queue_take(t->d, &t->ended);
  pthread_mutex_unlock(&t->lock);
  return op;
}

/* ---- Both -------------------------------------------------------------- */

int disk_begin(struct perigee_cache_disk *d, bool by_threads,
               uint32_t threads) {
  d->ring = by_threads ? NULL : ring_begin(d);
  d->threads = d->ring ? NULL : threads_begin(d, threads);
  return d->ring || d->threads ? PERIGEE_OK : PERIGEE_NO_MEMORY;
}

void disk_stop(struct perigee_cache_disk *d) {
  if (d->ring)
    ring_end(d->ring);
  if (d->threads)
    threads_end(d->threads);
}

static int disk_add(struct perigee_cache_disk *d, uint8_t *memory,
                    uint64_t length, uint64_t offset, uint64_t token,
                    bool write) {
  if (length == 0 || offset % DISK_BLOCK != 0 || offset > d->size ||
      whole_blocks(length) > d->size - offset ||
      (length > DISK_BOUNCE && (uintptr_t)memory % DISK_BLOCK != 0))
    return PERIGEE_INVALID;
  if (!d->free_op)
    return PERIGEE_AGAIN;
  struct disk_op *op = op_take(d, token, offset, write);
  op_cut(d, op, memory, length);
  if (d->ring)
    ring_prepare(d, op);
  else
    threads_want(d->threads, op);
  return PERIGEE_OK;
}

int disk_read(struct perigee_cache_disk *d, void *to, uint64_t length,
              uint64_t offset, uint64_t token) {
  return disk_add(d, to, length, offset, token, false);
}

int disk_write(struct perigee_cache_disk *d, const void *from, uint64_t length,
               uint64_t offset, uint64_t token) {
  return disk_add(d, (uint8_t *)(uintptr_t)from, length, offset, token, true);
}

void disk_go(struct perigee_cache_disk *d) {
  if (d->ring && !ring_go(d->ring))
    disk_tell(d);
}

/* The event is cleared before the ends are read, so none comes unseen in
 * between. One that was read may be told of after that: then a poll finds
 * nothing. */
static void event_clear(const struct perigee_cache_disk *d) {
  uint64_t count;
  while (read(d->event, &count, sizeof count) < 0 && errno == EINTR)
    ;
}

uint32_t disk_poll(struct perigee_cache_disk *d, struct disk_end *ends,
                   uint32_t most) {
  uint32_t n = 0;
  struct disk_op *op;
  event_clear(d);
  while (n < most &&
         (op = d->ring ? ring_ended(d) : threads_ended(d->threads))) {
    if (!op->write && op->status == PERIGEE_OK && op->bounced)
      memcpy(op->to, op->bounce, op->bounced);
    ends[n++] = (struct disk_end){.token = op->token, .status = op->status};
    op_give(d, op);
  }
  if (n == most)
    disk_tell(d);
  disk_go(d);
  return n;
}
