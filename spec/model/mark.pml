/* SPDX-License-Identifier: Apache-2.0
 *
 * mark.pml - a receiver pulls a payload out of its peer's memory while the
 * operation ends. It must never deliver bytes that were written after the end.
 * The loads and stores are those of shm.c (mark and peer_mark).
 *
 * Memory behaves as in wakeup.pml, but stores to different places may pass each
 * other, and so may the loads of a reader, unless a fence is between them.
 *
 * Without either fence such bytes are delivered:
 *   -DNO_OWNER_FENCE  -DNO_READER_FENCE
 */
byte mark = 1;    /* the operation's generation; 0: ended */
byte payload = 1; /* 1: the operation's; 2: written by its owner afterwards */

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
