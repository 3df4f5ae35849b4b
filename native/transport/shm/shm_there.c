/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_there.c - which pages of a peer's memory are there.
 *
 * A file in memory may have holes. Whoever reads a hole where it is mapped makes
 * a page of it, which counts as the reader's memory and stays as long as anybody
 * keeps the file. So a peer that hands over a large file without a page in it
 * would have this side pay for all that it reads. A read by a call makes no
 * page.
 *
 * So only pages that are there are read where they are mapped. mincore tells,
 * and makes none. A page that was there once stays, as the seal that keeps this
 * side from writing keeps the peer from punching holes: it is looked at once.
 *
 *   page                         mincore   so it is
 *   written by the peer          there     read in place
 *   swapped out, or just moved   not       copied by a call
 *   a hole                       not       copied by a call: zeros
 *
 * Where mincore is not to be had, all pages count as there.
 */
#include <errno.h>
#include <sys/mman.h>

#include "shm.h"

/* Pages of one call, and as how many the call itself counts. */
enum { CHUNK = 512, CALL = 8 };

static bool is_known(const uint64_t *bits, uint64_t page) {
  return bits[page / 64] >> (page % 64) & 1;
}

static uint64_t least(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

/* Looks at n pages; returns how many of them, from the first on, are there. */
static uint64_t look(const uint8_t *base, uint64_t *bits, uint64_t page,
                     uint64_t n, uint32_t *known) {
  unsigned char there[CHUNK];
  void *at = (uint8_t *)(uintptr_t)base + page * SHM_PAGE;
  bool told = mincore(at, n * SHM_PAGE, there) == 0;
  if (!told && errno == EAGAIN)
    return 0;
  for (uint64_t i = 0; i < n; i++) {
    if (told && !(there[i] & 1))
      return i;
    *known += !is_known(bits, page + i);
    bits[(page + i) / 64] |= UINT64_C(1) << ((page + i) % 64);
  }
  return n;
}

static uint64_t skip_known(const uint64_t *bits, uint64_t page, uint64_t end) {
  while (page < end) {
    uint64_t unknown = ~bits[page / 64] >> (page % 64);
    if (unknown)
      return least(page + (uint64_t)__builtin_ctzll(unknown), end);
    page = (page / 64 + 1) * 64;
  }
  return end;
}

enum there there_range(const uint8_t *base, uint64_t *bits, uint64_t from,
                       uint64_t to, uint32_t *looks, uint32_t *known) {
  uint64_t page = from / SHM_PAGE, end = (to + SHM_PAGE - 1) / SHM_PAGE;
  while ((page = skip_known(bits, page, end)) < end) {
    uint64_t n = least(least(end - page, CHUNK), *looks);
    if (n == 0)
      return THERE_LATER;
    *looks -= (uint32_t)least(n + CALL, *looks);
    if (look(base, bits, page, n, known) < n)
      return THERE_NOT;
    page += n;
  }
  return THERE;
}

bool there_all(const uint64_t *bits, uint64_t from, uint64_t to) {
  uint64_t end = (to + SHM_PAGE - 1) / SHM_PAGE;
  return skip_known(bits, from / SHM_PAGE, end) >= end;
}

void there_want(const uint8_t *base, uint64_t at) {
  void *page = (uint8_t *)(uintptr_t)base + at / SHM_PAGE * SHM_PAGE;
  madvise(page, SHM_PAGE, MADV_WILLNEED);
}

/* A word that was written lately is there. So is a page that was swapped out,
 * soon after the system was asked for it. */
bool there_word(struct lane *lane, const void *word) {
  const uint8_t *base = (const uint8_t *)lane->peer;
  uint64_t at = (uint64_t)((const uint8_t *)word - base);
  uint32_t looks = 1, known = 0;
  if (is_known(lane->peer_known, at / SHM_PAGE) ||
      there_range(base, lane->peer_known, at, at + 1, &looks, &known) == THERE)
    return true;
  there_want(base, at);
  return false;
}
