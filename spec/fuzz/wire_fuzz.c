/* SPDX-License-Identifier: Apache-2.0
 *
 * wire_fuzz.c - any bytes from a session's socket, or as an endpoint's text. A
 * decoded frame must keep the promises of wire.h, encode to a frame that
 * decodes to the same, and not depend on the pieces in which it arrived.
 *
 * decoder: native/net/frames.c
 * decoder: native/net/wire.c
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/wire.h"
#include "perigee.h"

enum { ROOM = FRAME_HEAD + FRAME_BODY };

static void require(bool holds) {
  if (!holds)
    abort();
}

static bool ends(const char *text, size_t room) {
  return memchr(text, 0, room) != NULL;
}

/* Lanes are in order, lengths within bounds, and descriptors counted right. */
static void promised_of_keys(const struct found *found) {
  uint32_t fds = 0;
  require(found->keys <= FOUND_KEYS);
  for (uint32_t i = 0; i < found->keys; i++) {
    const struct found_key *k = &found->key[i];
    require(k->key.length <= KEY_MAX && k->key.fd_count <= KEY_FDS);
    require(i == 0 || k->lane > found->key[i - 1].lane);
    fds += k->key.fd_count;
  }
  require(fds == found->fds);
}

static void promised(const struct frame *frame) {
  require(frame->type > 0 && frame->type < FRAME_TYPES);
  require(wire_fds(frame) <= WIRE_FDS);
  if (frame->type == FRAME_HELLO) {
    require(frame->hello.magic == HELLO_MAGIC);
  } else if (frame->type == FRAME_TERMS) {
    require(frame->terms.transports <= TRANSPORTS_MAX);
    for (uint32_t i = 0; i < frame->terms.transports; i++)
      require(ends(frame->terms.transport[i], TRANSPORT_NAME));
    require(ends(frame->terms.name, TERMS_NAME));
  } else if (frame->type == FRAME_OFFER) {
    require(frame->offer.length <= OFFER_MAX);
    require(frame->offer.fd_count <= OFFER_FDS);
  } else if (frame->type == FRAME_EXTRA) {
    require(frame->extra.lane > 0);
    require(frame->extra.offer.length <= OFFER_MAX);
    require(frame->extra.offer.fd_count <= OFFER_FDS);
  } else if (frame->type == FRAME_REFUSE) {
    require(ends(frame->refuse.text, REFUSE_TEXT));
  } else if (frame->type == FRAME_LOOKUP) {
    require(ends(frame->lookup.name, sizeof frame->lookup.name));
  } else if (frame->type == FRAME_FOUND) {
    promised_of_keys(&frame->found);
  }
}

/* Encoding a decoded frame gives a fixed sequence of bytes. Of a hello of
 * another version only the beginning was decoded. */
static void encodes(const struct frame *frame, uint32_t used) {
  static uint8_t once[ROOM], twice[ROOM];
  static struct frame again;
  if (frame->type == FRAME_HELLO && wire_foreign(&frame->hello))
    used = FRAME_HEAD + sizeof(struct hello);
  require(wire_encode(frame, once) == used);
  require(wire_frame(once, used, &again) == (int)used);
  require(wire_encode(&again, twice) == used);
  require(memcmp(once, twice, used) == 0);
}

/* Decodes the frames as from a socket, `step` bytes at a time. */
static uint32_t frames(const uint8_t *data, size_t size, size_t step) {
  static struct wire wire;
  static struct frame frame;
  uint32_t count = 0;
  wire.length = 0;
  while (size > 0) {
    size_t room = sizeof wire.bytes - wire.length;
    size_t piece = size < step ? size : step;
    require(room > 0);
    piece = piece < room ? piece : room;
    memcpy(wire.bytes + wire.length, data, piece);
    wire.length += (uint32_t)piece;
    data += piece;
    size -= piece;
    int status;
    while ((status = wire_next(&wire, &frame)) > 0)
      count++;
    if (status < 0)
      break;
  }
  return count;
}

/* The same through a real socket pair, which is made once. */
static uint32_t frames_of_socket(const uint8_t *data, size_t size) {
  static int pair[2] = {-1, -1};
  static struct wire wire;
  static struct frame frame;
  uint32_t count = 0;
  int got, status = 0;
  if (pair[0] < 0)
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  wire_close(&wire);
  require(write(pair[1], data, size) == (ssize_t)size);
  while ((got = wire_read(pair[0], &wire)) > 0) {
    while (status >= 0 && (status = wire_next(&wire, &frame)) > 0)
      count++;
    if (status < 0)
      wire_close(&wire);
  }
  require(got == PERIGEE_AGAIN);
  return count;
}

/* A text that was read is written as a text that reads the same. */
static void reads(const char *text) {
  static char once[INFO_TEXT], twice[INFO_TEXT];
  static struct frame hello = {.type = FRAME_HELLO},
                      terms = {.type = FRAME_TERMS},
                      offer = {.type = FRAME_OFFER};
  if (info_read(text, &hello.hello, &terms.terms, &offer.offer) != PERIGEE_OK)
    return;
  promised(&hello);
  promised(&terms);
  promised(&offer);
  require(offer.offer.fd_count == 0);
  info_write(&hello.hello, &terms.terms, &offer.offer, once);
  require(info_read(once, &hello.hello, &terms.terms, &offer.offer) ==
          PERIGEE_OK);
  info_write(&hello.hello, &terms.terms, &offer.offer, twice);
  require(strcmp(once, twice) == 0);
}

/* Reads the data as a text, and as the content of a text with a right
 * checksum. */
static void texts(const uint8_t *data, size_t size) {
  static char text[INFO_TEXT + 1];
  size_t n = size < INFO_TEXT ? size : INFO_TEXT;
  memcpy(text, data, n);
  text[n] = 0;
  reads(text);
  info_text(data, (uint32_t)(size < INFO_BYTES ? size : INFO_BYTES), text);
  reads(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct frame frame;
  int used = wire_frame(data, (uint32_t)size, &frame);
  require(used <= (int)size && (used >= 0 || used == PERIGEE_PROTOCOL));
  if (used > 0) {
    promised(&frame);
    encodes(&frame, (uint32_t)used);
  }
  uint32_t count = frames(data, size, ROOM);
  require(frames(data, size, 1 + size % 7) == count);
  texts(data, size);
  if (size > 0)
    require(frames_of_socket(data, size) == count);
  return 0;
}
