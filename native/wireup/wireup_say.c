/* SPDX-License-Identifier: Apache-2.0
 *
 * wireup_say.c - the frames of the handshake that this side sends.
 */
#include <stdio.h>
#include <unistd.h>

#include "session/migrate.h"
#include "session/unauth.h"
#include "wireup.h"

void wireup_say(struct perigee_session *s, const struct frame *f) {
  proof_word(s, true, f);
  session_send(s, f, NULL, 0);
}

void wireup_say_hello(struct perigee_session *s) {
  struct frame f = {.type = FRAME_HELLO};
  if (s->tcp && !proof_begin(s))
    return;
  hello_own(s, &f.hello);
  wireup_say(s, &f);
}

/* Only an authenticated peer can make this side look for devices. */
void wireup_say_terms(struct perigee_session *s) {
  struct frame f = {.type = FRAME_TERMS};
  if (s->tcp)
    choice_fabrics(s);
  terms_own(s, &f.terms);
  wireup_say(s, &f);
}

int wireup_refuse(struct perigee_session *s, int status, const char *reason) {
  struct frame f = {.type = FRAME_REFUSE, .refuse = {.status = status}};
  snprintf(f.refuse.text, sizeof f.refuse.text, "%s", reason);
  session_tell(s, &f, NULL, 0);
  session_end(s, status, reason);
  return PERIGEE_OK;
}

void wireup_say_offer(struct perigee_session *s) {
  struct frame f = {.type = FRAME_OFFER};
  char reason[REASON];
  int status = choice_open(s, &f.offer, reason);
  if (status < 0) {
    wireup_refuse(s, status, reason);
    return;
  }
  if (s->tcp && (s->engine->secret->set || session_moved(s)))
    unauth_leave(s); /* from here on the peer's share counts it */
  proof_word(s, true, &f);
  session_send(s, &f, f.offer.fds, f.offer.fd_count);
  for (uint32_t i = 0; i < f.offer.fd_count; i++)
    close(f.offer.fds[i]);
  lanes_offer(s);
}
