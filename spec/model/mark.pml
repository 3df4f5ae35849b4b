/* SPDX-License-Identifier: Apache-2.0
 *
 * mark.pml - a receiver pulls a payload out of its peer's memory while the
 * operation ends: are bytes that were written after the end ever delivered?
 * The loads and stores are those of shm.c (mark and peer_mark).
 *
 * Memory. As in wakeup.pml, but stores to different places may pass each
 * other, and so may the loads of a reader, unless a fence is between them.
 *
 * Take out either fence, and they are: -DNO_OWNER_FENCE  -DNO_READER_FENCE
 */
byte mark = 1;    /* the operation's generation; 0: ended */
byte payload = 1; /* 1: the operation's; 2: what its owner wrote afterwards */

chan mark_buffer = [1] of { byte };
chan payload_buffer = [1] of { byte };

active proctype memory() {
end:
  do
  :: mark_buffer ? mark
  :: payload_buffer ? payload
  od
}

active proctype owner() {
  mark_buffer ! 0;
#ifndef NO_OWNER_FENCE
  empty(mark_buffer);
#endif
  payload_buffer ! 2
}

active proctype reader() {
  byte copy, seen;
  if
  :: copy = payload; seen = mark
#ifdef NO_READER_FENCE
  :: seen = mark; copy = payload
#endif
  fi;
  assert(seen != 1 || copy == 1)
}
