/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp.h"

int sealed_open(struct stream *s) {
  (void)s;
  return PERIGEE_UNSUPPORTED;
}
void sealed_close(struct stream *s) {
  (void)s;
}
int64_t sealed_write(struct stream *s, const struct iovec *v, int count) {
  (void)s, (void)v, (void)count;
  return -1;
}
int64_t sealed_flush(struct stream *s) {
  (void)s;
  return -1;
}
bool sealed_waiting(const struct stream *s) {
  (void)s;
  return false;
}
int64_t sealed_read(struct stream *s, uint8_t *to, uint64_t room) {
  (void)s, (void)to, (void)room;
  return -1;
}
int sealed_given(struct stream *s, const uint8_t *bytes, uint32_t length) {
  (void)s, (void)bytes, (void)length;
  return -1;
}
