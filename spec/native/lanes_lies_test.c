/* SPDX-License-Identifier: Apache-2.0
 *
 * lanes_lies_test.c - sessions whose second lane is missing at one side, and
 * peers that lie about it.
 */
#include <stdio.h>
#include <unistd.h>

#include "core/lanes.h"
#include "lanes_support.h"
#include "net/wire.h"
#include "transport/transport.h"

static const struct variant over_sealed = {"sealed", "tcp", "opaque", 1,
                                           "sealed"};
static const struct perigee_transport *const without[] = {
    &perigee_transport_inproc, NULL};

static void a_peer_without_it_has_the_first_lane_only(void **state) {
  const struct variant *v = *state;
  for (int side = 0; side < 2; side++)
    for (int how = 0; how < 2; how++) {
      struct perigee_options o[2];
      struct pair p;
      link_options(v, &o[0]);
      link_options(v, &o[1]);
      if (how == 0)
        o[side].transports = without;
      else
        o[side].features = "-lanes";
      link_open_between(&p, v, &o[0], &o[1]);
      link_says(&p, !side, "link: the peer does not have it");
      link_round_trip(&p, LARGE);
      pair_close(&p);
    }
}

static void it_is_left_out_where_all_is_sealed(void **state) {
  struct pair p;
  link_open(&p, *state);
  link_says(&p, 0, "link: what it carries is neither encrypted nor has MACs");
  link_round_trip(&p, LARGE);
  pair_close(&p);
}

/* One side cannot open its half, or cannot join. */
static struct perigee_transport failing;

static int fails_to_open(const struct lane_options *options, struct lane **lane,
                         struct offer *offer, char reason[REASON]) {
  (void)options, (void)lane, (void)offer;
  snprintf(reason, REASON, "there is no cable");
  return PERIGEE_UNSUPPORTED;
}

static int fails_to_join(struct lane *lane, const struct offer *offer,
                         char reason[REASON]) {
  perigee_transport_inproc.join(lane, offer, reason); /* its end is told */
  snprintf(reason, REASON, "there is no cable");
  return PERIGEE_UNSUPPORTED;
}

static void where_a_half_fails_the_session_goes_on_without(void **state) {
  const struct variant *v = *state;
  const struct perigee_transport *const list[] = {&perigee_transport_inproc,
                                                  &failing, NULL};
  for (int how = 0; how < 4; how++) {
    struct perigee_options o[2];
    struct pair p;
    failing = perigee_transport_inproc_additional;
    link_options(v, &o[0]);
    link_options(v, &o[1]);
    o[how & 1].transports = list;
    if (how & 2)
      failing.open = fails_to_open;
    else
      failing.join = fails_to_join;
    link_open_between(&p, v, &o[0], &o[1]);
    link_says(&p, how & 1, "link: the lane link is lost: there is no cable");
    link_says(&p, !(how & 1),
              "link: the lane link is lost: the peer: there is no cable");
    link_round_trip(&p, LARGE);
    pair_close(&p);
  }
}

static struct perigee_transport lying;
static struct transport_payloads lies;

static uint64_t number_told;

static int lie(struct lane *lane, struct exposure *exposure,
               struct payload *payload) {
  int status =
      perigee_transport_inproc.payloads->expose(lane, exposure, payload);
  exposure->source.kind |= number_told << SOURCE_LANE;
  return status;
}

static int open_lying(const struct lane_options *options, struct lane **lane,
                      struct offer *offer, char reason[REASON]) {
  int status = perigee_transport_inproc.open(options, lane, offer, reason);
  if (status == PERIGEE_OK)
    lane_by(*lane, &lying);
  return status;
}

/* A second lane with jobs alone. */
static struct perigee_transport bare;

static int open_bare(const struct lane_options *options, struct lane **lane,
                     struct offer *offer, char reason[REASON]) {
  int status =
      perigee_transport_inproc_additional.open(options, lane, offer, reason);
  if (status == PERIGEE_OK)
    lane_by(*lane, &bare);
  return status;
}

static void names_wrong(const struct perigee_transport *second,
                        const struct perigee_transport *other,
                        uint64_t number) {
  const struct perigee_transport *const list[2][3] = {
      {&lying, second, NULL}, {&perigee_transport_inproc, other, NULL}};
  struct perigee_options o[2];
  struct pair p;
  struct places s;
  number_told = number;
  lying = perigee_transport_inproc;
  lies = *perigee_transport_inproc.payloads;
  lies.expose = lie;
  lying.payloads = &lies;
  lying.open = open_lying;
  for (int i = 0; i < 2; i++) {
    link_options(&over_inproc, &o[i]);
    o[i].transports = list[i];
  }
  link_open_between(&p, &over_inproc, &o[0], &o[1]);
  places_open(&p, &s, LEAST - 1);
  struct perigee_slice from = all_of(s.from, s.length);
  struct perigee_message m = typed_message(&from, NULL);
  perigee_call(p.session[0], &m);
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_LOST);
  assert_int_equal(e.status, PERIGEE_PROTOCOL);
  until(&p, 0, PERIGEE_EVENT_REPLY);
  until(&p, 0, PERIGEE_EVENT_LOST);
  link_close_places(&p, &s);
}

static void a_source_of_no_lane_ends_the_session(void **state) {
  (void)state;
  const struct perigee_transport *link = &perigee_transport_inproc_additional;
  names_wrong(link, link, 2);
  names_wrong(NULL, link, 2);
}

static void a_source_of_a_lane_without_payloads_ends_the_session(void **state) {
  (void)state;
  bare = perigee_transport_inproc_additional;
  bare.payloads = NULL;
  bare.open = open_bare;
  names_wrong(&bare, &bare, 1);
}

/* Frames that a session of side 0 sends end that of side 1. */
static void says_wrong(void **state, const struct frame *f) {
  struct pair p;
  link_open(&p, *state);
  assert_true(p.session[0]->up->send(p.session[0], f, NULL, 0));
  struct perigee_event e = until(&p, 1, PERIGEE_EVENT_LOST);
  assert_int_equal(e.status, PERIGEE_PROTOCOL);
  until(&p, 0, PERIGEE_EVENT_LOST);
  pair_close(&p);
}

static void words_of_no_lane_end_the_session(void **state) {
  struct frame f = {.type = FRAME_EXTRA,
                    .extra = {.lane = 2, .word = EXTRA_WORD_LANE}};
  says_wrong(state, &f);
  f.extra.word = EXTRA_WORD_OFFER;
  says_wrong(state, &f);
  f.extra.lane = 1; /* once is enough */
  says_wrong(state, &f);
  f.extra.lane = 0;
  says_wrong(state, &f);
  f.extra.lane = 2;
  f.extra.word = EXTRA_WORD_LOST;
  f.extra.status = PERIGEE_PEER_LOST;
  says_wrong(state, &f);
  struct frame found = {.type = FRAME_FOUND,
                        .found = {.keys = 1, .key = {{.lane = 2}}}};
  says_wrong(state, &found);
}

static void a_word_that_its_transport_does_not_know_loses_it(void **state) {
  struct pair p;
  link_open(&p, *state);
  struct frame f = {.type = FRAME_EXTRA,
                    .extra = {.lane = 1, .word = EXTRA_WORD_LANE}};
  assert_true(p.session[0]->up->send(p.session[0], &f, NULL, 0));
  link_goes_on(&p);
  link_says(&p, 0,
            "lost: the peer: the peer's half said what is no word of it");
  pair_close(&p);
}

static void
a_pair_of_descriptors_that_its_transport_does_not_take_loses_it(void **state) {
  struct pair p;
  int before = descriptors();
  link_open(&p, *state);
  const int fds[EXTRA_FDS] = {STDIN_FILENO, STDIN_FILENO};
  struct frame f = {.type = FRAME_EXTRA,
                    .extra = {.lane = 1, .word = EXTRA_WORD_LANE}};
  f.extra.offer.fd_count = EXTRA_FDS;
  assert_true(p.session[0]->up->send(p.session[0], &f, fds, EXTRA_FDS));
  link_goes_on(&p);
  link_says(&p, 0,
            "lost: the peer: the peer's half said what is no word of it");
  pair_close(&p);
  assert_int_equal(descriptors(), before);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      OVER_ALL(a_peer_without_it_has_the_first_lane_only),
      OVER_ALL(where_a_half_fails_the_session_goes_on_without),
      OVER(over_sealed, it_is_left_out_where_all_is_sealed),
      cmocka_unit_test(a_source_of_no_lane_ends_the_session),
      cmocka_unit_test(a_source_of_a_lane_without_payloads_ends_the_session),
      OVER_ALL(words_of_no_lane_end_the_session),
      OVER_ALL(a_word_that_its_transport_does_not_know_loses_it),
      OVER(over_shm,
           a_pair_of_descriptors_that_its_transport_does_not_take_loses_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
