/* SPDX-License-Identifier: Apache-2.0
 *
 * pieces.h - what a lane moves, as the core and the transport know it both: an
 * exposed payload, a payload that is fetched, a device's job, a region of ours
 * and one of the peer.
 */
#ifndef TRANSPORT_PIECES_H
#define TRANSPORT_PIECES_H

#include "transport/lane.h"

/* Bytes of private areas of transports. */
enum { EXPOSURE_OWN = 24, FETCH_OWN = 112, WINDOW_OWN = 8 };

/* A payload of an operation of ours that the peer can reach. */
struct exposure {
  struct source source;    /* for the record */
  struct payload *payload; /* to be fed from; NULL: nothing to feed */
  uint16_t operation;
  uint8_t part; /* 0: head, 1: slice */
  bool at_once; /* by expose: one feed behind the record moves all of it */
  uint32_t generation;
  uint64_t fed;       /* bytes staged or sent so far */
  uint64_t footprint; /* bytes of memory that the exposure takes */
  /* Private area of the transport, zeroed before expose. It is of characters,
   * which may alias whatever the transport puts there. */
  _Alignas(8) unsigned char own[EXPOSURE_OWN];
};

/* Copies that a device does for a part or a transfer. All zero: none. */
struct job {
  uint32_t pending;      /* work requests posted and not completed */
  int status;            /* the first error */
  uint64_t posted, done; /* bytes */
  int64_t quiescing;     /* when quiesce was first called; 0: never */
  uint16_t operation;    /* of the peer: its mark is read after the bytes */
  uint32_t generation;   /* of that operation; 0: no mark is read */
  uint32_t marks;        /* marks that were read and live */
};

/* A payload of the peer that is being brought here. */
struct fetch {
  struct source source;
  struct payload *into;
  uint16_t operation; /* of the peer */
  uint8_t part;
  uint32_t generation; /* under which it is exposed */
  uint64_t total, done;
  /* Others can see the destination: a byte goes there only after a mark was
   * found live that was read after the byte was. */
  bool careful;
  int64_t delayed_until; /* by fault injection */
  /* The transport's own, as in an exposure; zeros before the first step. */
  _Alignas(8) unsigned char own[FETCH_OWN];
};

/* A region of ours, for the peer. */
struct grant {
  uint32_t slot;
  uint64_t generation;
  struct area *area;
  int access; /* enum perigee_access */
  int file;   /* a memfd, of sealed size, that begins with its bytes; or -1 */
};

/* Our lane's word about such a region to the peer's, as a packed rkey is in
 * UCX: bytes and descriptors that nobody between the two looks into. */
enum { KEY_MAX = 128, KEY_FDS = 4 };
struct region_key {
  uint8_t bytes[KEY_MAX];
  uint32_t length;
  uint32_t fd_count;
  int fds[KEY_FDS];
};

/* A region of the peer: what the peer has said of it, and what attach made of
 * its key. */
struct window {
  uint32_t slot; /* the peer's region slot */
  int access;
  uint64_t generation;
  uint64_t length;
  uint8_t *pointer; /* NULL: no CPU reaches it */
  bool attached;    /* the lane reaches it by itself */
  /* The transport's own, as in an exposure; zeros before attach. */
  _Alignas(8) unsigned char own[WINDOW_OWN];
};

#endif
