/* SPDX-License-Identifier: Apache-2.0
 *
 * pause.h - between two looks at a line that another core will write.
 */
#ifndef PAUSE_H
#define PAUSE_H

/* Some ten to a hundred cycles in which the core looks at nothing. On aarch64 that
 * is `isb`: its `yield` does nothing on most processors. */
static inline void pause_moment(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

#endif
