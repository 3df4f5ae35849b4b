/* SPDX-License-Identifier: Apache-2.0
 *
 * park.pml - a session that leaves the list of polled sessions (engine/poll.c). No
 * record may be left in its ring. The buffers are those of wakeup.pml, but here
 * the consumer does not sleep. It parks the session (arms, looks once more,
 * leaves the list). From then on it sees only the session's socket, which it
 * also looks at at any other time.
 *
 * A record that is left behind shows as a consumer that waits for the socket
 * for ever: an invalid end state. Without any one of these there is such a
 * state:
 *   -DNO_PRODUCER_FENCE  -DNO_CONSUMER_FENCE  -DNO_RECHECK  -DNO_SECOND_LOOK
 *   -DNO_NEW_NUMBER  it parks under the number of the last parking, for which a
 *                    kick was already sent
 *   -DNO_ORDER       it looks at the socket between the last poll and leaving
 *                    the list, while the session still seems to be in the list
 *   -DNO_ROOM        the last poll counts though it took no request, for lack
 *                    of room, or because an earlier one was still to land
 */
#define RECORDS 3
#define ROOMLESS 4

byte ring;  /* records whose words are in memory */
byte armed; /* the number of the parking, 0 while polled */

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
    :: full(socket) /* it is readable anyway */
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
  byte taken, number;
  bool room;
  do
  :: taken == RECORDS -> break
  :: taken < RECORDS && ring > taken -> taken++ /* a poll */
  :: taken < RECORDS && nempty(socket) -> socket ? _ /* it is hot anyway */
  :: taken < RECORDS && ring == taken -> /* it was quiet for a while: park */
    if
    :: room = true
    :: number < ROOMLESS -> room = false
    fi;
#ifdef NO_NEW_NUMBER
    number = 1;
#else
    number++;
#endif
    armed_buffer ! number;
#ifndef NO_CONSUMER_FENCE
    fence(armed_buffer);
#endif
#ifndef NO_RECHECK
    if
    :: room && ring != taken -> goto hot
    :: room && ring == taken
#ifdef NO_ROOM
    :: !room
#else
    :: !room -> goto hot
#endif
    fi;
#endif
#ifdef NO_ORDER
    do
    :: socket ? _
    :: empty(socket) -> break
    od;
#endif
    socket ? _; /* parked */
hot:
    armed_buffer ! 0
  od
}
