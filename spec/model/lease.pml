/* SPDX-License-Identifier: Apache-2.0
 *
 * lease.pml - a client of a cache reads an entry under a lease, and the cache
 * uses the entry's space again. No bytes of another entry may be taken for
 * those of the entry. Time goes by in ticks, and each side has a clock of its
 * own. The client's is slower by up to SLOWER ticks within a lease; the cache's
 * is right. The client's lease runs from when it sent its request, the cache's
 * from when it granted the lease. A message, and a client that is stopped, may
 * take any time.
 *
 * Bytes are taken that are none: without the margin of the cache, which is as
 * long as the clock may be slower; if the client does not look at its clock
 * again after the copy; or if its lease runs from when the answer came.
 * -DNO_MARGIN -DNO_LOOK_AFTER -DNO_SENT_TIME
 */
#define LEASE 3
#define SLOWER 1
#define LONGEST 12

#ifdef NO_MARGIN
#define MARGIN 0
#else
#define MARGIN SLOWER
#endif

byte cache_clock, client_clock, slow;
byte ends;              /* by the cache's clock; 0: there is no lease */
bool asked, answered, reused, other;

/* A tick of the cache's clock; the client's goes on, too, or is slower. */
active proctype time() {
  do
  :: cache_clock < LONGEST ->
    if
    :: atomic { cache_clock++; client_clock++ }
    :: atomic { slow < SLOWER -> cache_clock++; slow++ }
    fi
  :: cache_clock == LONGEST -> break
  od
}

/* The entry is deleted at once, and its space is wanted. */
active proctype cache() {
end1:
  asked;
  atomic { ends = cache_clock + LEASE + MARGIN; answered = true };
end2:
  atomic { cache_clock >= ends -> reused = true }
}

active proctype client() {
  byte from = client_clock;
  asked = true;
end:
  answered;
#ifdef NO_SENT_TIME
  from = client_clock;
#endif
  if
  :: client_clock - from >= LEASE -> goto done
  :: else
  fi;
  /* The copy: its bytes are another entry's if any of it is read then. */
  other = reused;
#ifndef NO_LOOK_AFTER
  if
  :: client_clock - from >= LEASE -> goto done
  :: else
  fi;
#endif
  assert(!other);
done:
  skip
}
