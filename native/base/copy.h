/* SPDX-License-Identifier: Apache-2.0
 *
 * copy.h - copies of what goes into a ring and comes out of it
 *
 * Few bytes are copied inline: a call of memcpy() costs more than such a copy, as
 * the caller first stores all that it has in registers.
 *
 * COPY_BY_LINES bytes and more of a record that is alone in its ring are copied
 * from the end to the beginning (copy_lines), which takes less time
 * (bench/history/tried.md, "Records of 1 to 16 KiB"). We believe that there are
 * two reasons. A processor that copies up also fetches lines behind the record,
 * which the peer is about to write. And it has a load wait for a store before it
 * if the two addresses agree in their lowest 12 bits, as it takes them for the
 * same: so does each load of a copy up to where the other ring is at nearly the
 * same place in its page. glibc 2.36 copies so many bytes by one instruction
 * (`rep movsb`), which goes up.
 *
 * On AMD that instruction takes up to 25 times as long if `to` is 1 to 15 bytes
 * behind `from` in its page, up to twice as long for some tens of bytes more, as
 * malloc's long blocks are behind pages, and up to twice as long by chance if
 * another core has the lines of `from` (bench/history/tried.md, "Copies that
 * stall"). Later versions of glibc copy by vectors there.
 *
 * What a program copies to a loan (perigee_copy) goes past the caches if the peer
 * that reads it has a far core. Only the lane knows that, and only the address is
 * known here, so a lane tells where its blocks are while they are far. There is
 * room for COPY_FAR lanes of a process; loans of more are copied as near ones.
 */
#ifndef COPY_H
#define COPY_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { COPY_HALF = 16, COPY_INLINE = 4 * COPY_HALF, COPY_BY_LINES = 2 << 10 };

/* As memcpy(), of at least 128 bytes. */
void copy_lines(void *to, const void *from, uint64_t length);
/* As memcpy(), of COPY_BY_LINES bytes and more: by lines if memcpy() is known to
 * take longer between these addresses. */
void copy_long(void *to, const void *from, uint64_t length);
/* The same for what a program copies to a loan: from lines of another core. */
void copy_loan(void *to, const void *from, uint64_t length);

enum { COPY_FAR = 64 };
/* The memory is far from its reader from now on, until copy_near(). False: there is
 * no room to note that. Any thread; so are the next two. */
bool copy_far(const void *begin, uint64_t length);
void copy_near(const void *begin);
bool copy_is_far(const void *to);

/* As memcpy(), of any length. */
static inline void copy_any(void *to, const void *from, uint64_t length) {
  if (__builtin_expect(length < COPY_BY_LINES, 1))
    memcpy(to, from, length);
  else
    copy_long(to, from, length);
}

/* The same. From 16 to 64 bytes take two or four pieces, which may overlap. */
static inline __attribute__((always_inline)) void
copy_bytes(uint8_t *to, const uint8_t *from, uint64_t length) {
  if (length - COPY_HALF > COPY_INLINE - COPY_HALF) {
    copy_any(to, from, length);
    return;
  }
  uint64_t last = length - COPY_HALF;
  memcpy(to, from, COPY_HALF);
  if (length > 2 * COPY_HALF) {
    memcpy(to + COPY_HALF, from + COPY_HALF, COPY_HALF);
    memcpy(to + last - COPY_HALF, from + last - COPY_HALF, COPY_HALF);
  }
  memcpy(to + last, from + last, COPY_HALF);
}

#endif
