/* SPDX-License-Identifier: Apache-2.0 */
#include "samples.h"

#include <string.h>

static struct frame hello(void) {
  struct frame frame = {.type = FRAME_HELLO};
  frame.hello = (struct hello){.magic = HELLO_MAGIC,
                               .version_min = 1,
                               .version_max = PROTOCOL_MAX,
                               .nonce = 0x1122334455667788,
                               .public_key = {9}};
  return frame;
}

static struct frame terms(void) {
  struct frame frame = {.type = FRAME_TERMS};
  frame.terms = (struct terms){.flags = TERMS_AES,
                               .user = 1000,
                               .epoch = 0x1122334455667788,
                               .ring = 65536,
                               .transports = 2};
  memcpy(frame.terms.transport, "shm\0............tcp", 20);
  return frame;
}

struct frame sample(int type) {
  struct frame frame = {.type = (uint16_t)type};
  if (type == FRAME_HELLO)
    return hello();
  if (type == FRAME_TERMS)
    return terms();
  if (type == FRAME_OFFER)
    frame.offer.length = 24;
  else if (type == FRAME_REFUSE)
    frame.refuse = (struct refuse){PERIGEE_VERSION, "no version in common"};
  else if (type == FRAME_LOOKUP)
    frame.lookup = (struct lookup){7, 8, "kv"};
  else if (type == FRAME_FOUND)
    frame.found = (struct found){.operation = 7, .length = 4096};
  else if (type == FRAME_PROOF)
    memset(frame.proof, 0x5a, sizeof frame.proof);
  else if (type == FRAME_ATTACH)
    frame.attach = (struct attach){.session = 9, .index = 3, .mac = {1, 2}};
  else if (type == FRAME_EXTRA)
    frame.extra = (struct extra){.lane = 1,
                                 .word = EXTRA_WORD_LANE,
                                 .offer = {.length = 3, .bytes = "lie"}};
  else if (type == FRAME_DRAIN)
    frame.drain = (struct drain){DRAIN_WORD_TAKEN, 0, 7};
  else if (type == FRAME_MOVE)
    frame.move = (struct move){.ticket = 9, .key = {1, 2}, .port = 7471};
  return frame;
}
