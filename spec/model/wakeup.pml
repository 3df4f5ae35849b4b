/* SPDX-License-Identifier: Apache-2.0
 *
 * wakeup.pml - waking a sleeping peer over shared memory: no wake-up may be
 * lost. The loads and stores are those of ring.h (publish, peek), shm.c (arm,
 * disarm, wanted) and lanes.h (session_wake_soon, session_sure). The last poll
 * before the sleep (wait.c) reads the socket, on which the kick is a frame, and
 * then the ring (session_poll.c).
 *
 * Memory: a store goes to the store buffer of its process and reaches memory at
 * any later time (process `memory`). A fence waits until the buffer is empty. A
 * load reads memory; no process loads what it stores itself. This is x86's
 * order. It also covers weaker orders, in which a load may come early: to the
 * other side that looks the same as a store that comes late.
 *
 * A lost wake-up shows as a consumer that sleeps for ever: an invalid end
 * state. Without any one of these there is such a state:
 *   -DNO_PRODUCER_FENCE  -DNO_CONSUMER_FENCE  -DNO_RECHECK  -DNO_SECOND_LOOK
 *   -DNO_PROGRESS  a kick that the last poll reads does not count as progress:
 *                  it may be for a record taken before, but no other will be
 *                  sent for this sleep's number
 */
#define RECORDS 3

byte ring;  /* records whose words are in memory */
byte armed; /* the number of the sleep, 0 while awake */

chan ring_buffer = [RECORDS] of { byte };
chan armed_buffer = [2] of { byte };
chan socket = [1] of { bit };

#define fence(buffer) empty(buffer)

active proctype memory() {
end:
  do
  :: ring_buffer ? ring
  :: armed_buffer ? armed
  od
}

inline look() {
#ifndef NO_PRODUCER_FENCE
  fence(ring_buffer);
#endif
  seen = armed;
  if
  :: seen != 0 && seen != kicked ->
    kicked = seen;
    if
    :: socket ! 1
    :: full(socket) /* it will wake anyway */
    fi
  :: else
  fi
}

/* If the consumer seems awake, the producer looks again in its next poll
 * (lanes.h). */
active proctype producer() {
  byte published, seen, kicked;
  bool unsure;
  do
  :: published == RECORDS && !unsure -> break
  :: published < RECORDS ->
    published++;
    ring_buffer ! published;
    if
    :: armed != 0 -> look()
    :: armed == 0
#ifndef NO_SECOND_LOOK
      -> unsure = true
#endif
    fi
  :: unsure -> unsure = false; look()
  od
}

active proctype consumer() {
  byte taken, sleeps;
  bool kicked;
  do
  :: taken == RECORDS -> break
  :: taken < RECORDS && ring > taken -> taken++
  :: taken < RECORDS && ring == taken ->
    sleeps++;
    armed_buffer ! sleeps;
#ifndef NO_CONSUMER_FENCE
    fence(armed_buffer);
#endif
    kicked = false;
    do
    :: socket ? _ -> kicked = true
    :: empty(socket) -> break
    od;
#ifndef NO_PROGRESS
    if
    :: kicked -> goto awake
    :: !kicked
    fi;
#endif
#ifndef NO_RECHECK
    if
    :: ring != taken -> goto awake
    :: ring == taken
    fi;
#endif
    socket ? _;
awake:
    armed_buffer ! 0
  od
}
