/* SPDX-License-Identifier: Apache-2.0
 *
 * transport.c - gives lanes their tables.
 */
#include "transport/transport.h"

static void nothing(struct lane *lane) {
  (void)lane;
}

static bool never(struct lane *lane) {
  (void)lane;
  return false;
}

/* For transports without the group, so that no caller has to ask after each
 * record. */
static const struct transport_sleep awake = {nothing, nothing, never};

void lane_by(struct lane *lane, const struct perigee_transport *transport) {
  struct lane_head *head = (struct lane_head *)lane;
  head->transport = transport;
  head->records = transport->records;
  head->payloads = transport->payloads;
  head->sleep = transport->sleep ? transport->sleep : &awake;
  head->in = NULL;
  head->out = NULL;
}
