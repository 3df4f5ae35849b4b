/* SPDX-License-Identifier: Apache-2.0
 *
 * ptx.h - an interpreter of PTX, as much as the copy kernel is written in
 * (memory/cuda/kernel.c): so a test can run that kernel without a GPU. Threads
 * run one after another, as none of the kernel's waits for another one. The test
 * fails at an instruction that is not known, an operand of another width than
 * the instruction's, a register that is read before it is written, and an
 * address that is no multiple of what is loaded or stored there.
 */
#ifndef PTX_H
#define PTX_H

#include <stdbool.h>
#include <stdint.h>

struct ptx;

/* What the kernel is given, and the memory that it finds. */
struct ptx_run {
  uint32_t blocks, threads;
  const char *names[2]; /* of its parameters */
  uint64_t values[2];
  void *memory;
  void (*load)(void *memory, uint64_t at, void *to, uint32_t bytes);
  void (*store)(void *memory, uint64_t at, const void *from, uint32_t bytes);
};

struct ptx *ptx_parse(const char *text);
void ptx_free(struct ptx *ptx);
/* Runs all threads of all blocks. */
void ptx_run(const struct ptx *ptx, const struct ptx_run *run);

#endif
