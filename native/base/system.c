/* SPDX-License-Identifier: Apache-2.0 */
#include "system.h"
#include "perigee.h"

#include <errno.h>
#include <string.h>

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
