/* SPDX-License-Identifier: Apache-2.0
 *
 * region.pml - the owner closes a region while a peer copies in it. Its memory
 * must never be given up while the peer is inside. The loads and stores are
 * those of shm.c (copy against grant and inside). Memory is as in wakeup.pml.
 *
 * Without either fence it is given up: -DNO_COPIER_FENCE -DNO_OWNER_FENCE
 */
#define COPIES 2

byte generation = 1; /* as the owner granted it; 0: closed */
byte inside;         /* the slot that the copier is in, 0: none */
bool copying, given_up;

chan generation_buffer = [1] of { byte };
chan inside_buffer = [2] of { byte };

#define fence(buffer) empty(buffer)

active proctype memory() {
end:
  do
  :: generation_buffer ? generation
  :: inside_buffer ? inside
  od
}

active proctype copier() {
  byte copies;
  do
  :: copies == COPIES -> break
  :: copies < COPIES ->
    copies++;
    inside_buffer ! 1;
#ifndef NO_COPIER_FENCE
    fence(inside_buffer);
#endif
    if
    :: generation == 1 ->
      copying = true;
      assert(!given_up);
      copying = false
    :: generation != 1
    fi;
    inside_buffer ! 0
  od
}

active proctype owner() {
  generation_buffer ! 0;
#ifndef NO_OWNER_FENCE
  fence(generation_buffer);
#endif
  inside == 0; /* polled until it is */
  given_up = true;
  assert(!copying)
}
