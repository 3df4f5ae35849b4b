/* SPDX-License-Identifier: Apache-2.0
 *
 * status.c - the one table of statuses: name (err.kind in Lua) and sentence; the
 * calling thread's own sentence; and the status of a failed system call.
 */
#include "status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "perigee.h"

/* clang-format off */
#define STATUSES(entry)                                                        \
  entry(OK, "ok", "it succeeded")                                              \
  entry(TIMEOUT, "timeout", "it did not end within its timeout")               \
  entry(CANCELLED, "cancelled", "it was cancelled by its caller")              \
  entry(PEER_LOST, "peer_lost", "the peer died, or the connection to it did")  \
  entry(REMOTE, "remote", "the remote handler failed")                         \
  entry(DENIED, "denied", "the owner has not granted this access")             \
  entry(RANGE, "range", "it reaches outside of the memory that it names")      \
  entry(STALE, "stale", "the memory that it names has been closed since")      \
  entry(NO_SERVICE, "no_service", "the peer has no service of this name")      \
  entry(NO_METHOD, "no_method", "the service has no method of this name")      \
  entry(VERSION, "version", "the two sides have no version in common")         \
  entry(TOO_LARGE, "too_large", "it is larger than a limit allows")            \
  entry(UNSUPPORTED, "unsupported", "it cannot be done here")                  \
  entry(PROTOCOL, "protocol", "the peer broke the rules of the protocol")      \
  entry(NO_MEMORY, "no_memory", "there is no memory left for it")              \
  entry(CLOSED, "closed", "it was closed on this side")                        \
  entry(NAME_TAKEN, "name_taken", "the name is held by a live owner")          \
  entry(NOT_FOUND, "not_found", "there is nothing of this name")               \
  entry(AGAIN, "again", "not possible now, poll and try again")                \
  entry(INVALID, "invalid", "the caller gave a wrong argument")                \
  entry(SYSTEM, "system", "the operating system refused")                      \
  entry(FORKED, "forked", "a child process used what its parent opened")       \
  entry(DRAINING, "draining", "the peer is draining and takes no new calls")
/* clang-format on */

struct status {
  const char *name, *text;
};

/* Indexed by the negated status. */
static const struct status statuses[] = {
#define ENTRY(symbol, name, text) [-PERIGEE_##symbol] = {name, text},
    STATUSES(ENTRY)
#undef ENTRY
};

static const struct status *status_find(int status) {
  static const struct status unknown = {"unknown", "an unknown status"};
  static const int count = sizeof statuses / sizeof *statuses;
  return status <= 0 && status > -count ? &statuses[-status] : &unknown;
}

const char *perigee_status_name(int status) {
  return status_find(status)->name;
}

const char *perigee_status_text(int status) {
  return status_find(status)->text;
}

/* ---- The sentence that explains one -------------------------------------- */

static _Thread_local char here[DETAIL];

char *detail_here(void) {
  return here;
}

int detail_fail(int status, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(here, sizeof here, format, list);
  va_end(list);
  return status;
}

/* ---- What a failed system call means ------------------------------------- */

bool system_scarce(int error) {
  return error == EMFILE || error == ENFILE;
}

int system_status(int error) {
  return system_scarce(error) || error == ENOMEM ? PERIGEE_NO_MEMORY
                                                 : PERIGEE_SYSTEM;
}

const char *system_text(int error) {
  if (error == ENFILE)
    return "this host has no descriptors left (sysctl fs.file-max)";
  return error == EMFILE ? NO_DESCRIPTORS : strerror(error);
}
