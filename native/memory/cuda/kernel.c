/* SPDX-License-Identifier: Apache-2.0
 *
 * kernel.c - the copy kernel, by which many small pieces are copied with one
 * call: as text for the driver, which compiles it for its device, and tables of
 * pieces in pinned memory, which the kernel reads.
 *
 * A block of threads copies one piece at a time, in words of 16, 8 or 4 bytes,
 * as both addresses allow; what is left at either end of a piece, and pieces
 * whose sides allow no words, in bytes. No thread waits for another one.
 *
 *   table   event                                        becomes
 *   free    a batch is written to it, and launched       in use
 *   in use  the stream has told the number behind that   free
 *
 * Several versions of NVIDIA's assembler take the text (make
 * check-cuda-kernel), and cuda_kernel_test.c runs it by an interpreter. Of GPUs
 * an H200 has run it, by which pieces of 16 KiB went at 1 TB/s.
 */
#include "cuda.h"

/* ---- The text ------------------------------------------------------------ */

/* Of a version that every driver with our other functions knows, for devices
 * from Maxwell (5.0) on. */
const char kernel_text[] =
    ".version 6.0\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".visible .entry perigee_copy(\n"
    "  .param .u64 perigee_copy_table,\n"
    "  .param .u32 perigee_copy_count\n"
    ")\n"
    "{\n"
    "  .reg .pred %p;\n"
    "  .reg .b16 %byte;\n"
    "  .reg .b32 %count, %piece, %blocks, %r, %word;\n"
    "  .reg .b64 %table, %thread, %threads, %to, %from, %bytes;\n"
    "  .reg .b64 %mask, %keep, %head, %body, %end, %i, %t;\n"
    "  .reg .b64 %step, %a, %b, %c, %d;\n"
    "  .reg .b64 %x0, %y0, %x1, %y1, %x2, %y2, %x3, %y3;\n"
    "  ld.param.u64 %table, [perigee_copy_table];\n"
    "  ld.param.u32 %count, [perigee_copy_count];\n"
    "  cvta.to.global.u64 %table, %table;\n"
    /* Who this thread is. */
    "  mov.u32 %r, %tid.x;\n"
    "  cvt.u64.u32 %thread, %r;\n"
    "  mov.u32 %r, %ntid.x;\n"
    "  cvt.u64.u32 %threads, %r;\n"
    "  mov.u32 %blocks, %nctaid.x;\n"
    "  mov.u32 %piece, %ctaid.x;\n"
    /* A block takes the pieces ctaid, ctaid + nctaid, and so on. */
    "PIECE:\n"
    "  setp.ge.u32 %p, %piece, %count;\n"
    "  @%p bra OVER;\n"
    "  mul.wide.u32 %t, %piece, 24;\n"
    "  add.u64 %t, %t, %table;\n"
    "  ld.global.u64 %to, [%t];\n"
    "  ld.global.u64 %from, [%t+8];\n"
    "  ld.global.u64 %bytes, [%t+16];\n"
    "  cvta.to.global.u64 %to, %to;\n"
    "  cvta.to.global.u64 %from, %from;\n"
    /* %mask: the length of a word, less 1. */
    "  xor.b64 %t, %to, %from;\n"
    "  mov.u64 %mask, 15;\n"
    "  and.b64 %i, %t, 15;\n"
    "  setp.ne.u64 %p, %i, 0;\n"
    "  @%p mov.u64 %mask, 7;\n"
    "  and.b64 %i, %t, 7;\n"
    "  setp.ne.u64 %p, %i, 0;\n"
    "  @%p mov.u64 %mask, 3;\n"
    "  and.b64 %i, %t, 3;\n"
    "  setp.ne.u64 %p, %i, 0;\n"
    "  @%p mov.u64 %mask, 0;\n"
    /* %head: bytes before the first word. %body: bytes of words. */
    "  not.b64 %keep, %mask;\n"
    "  @%p mov.u64 %keep, 0;\n"
    "  neg.s64 %head, %to;\n"
    "  and.b64 %head, %head, %mask;\n"
    "  min.u64 %head, %head, %bytes;\n"
    "  sub.u64 %body, %bytes, %head;\n"
    "  and.b64 %body, %body, %keep;\n"
    /* Thread number n copies bytes n, n + ntid, and so on. */
    "  mov.u64 %i, %thread;\n"
    "HEAD:\n"
    "  setp.ge.u64 %p, %i, %head;\n"
    "  @%p bra WORDS;\n"
    "  add.u64 %a, %from, %i;\n"
    "  add.u64 %b, %to, %i;\n"
    "  ld.global.u8 %byte, [%a];\n"
    "  st.global.u8 [%b], %byte;\n"
    "  add.u64 %i, %i, %threads;\n"
    "  bra HEAD;\n"
    "WORDS:\n"
    "  add.u64 %from, %from, %head;\n"
    "  add.u64 %to, %to, %head;\n"
    "  sub.u64 %end, %bytes, %head;\n"
    "  setp.eq.u64 %p, %mask, 7;\n"
    "  @%p bra EIGHTS;\n"
    "  setp.eq.u64 %p, %mask, 3;\n"
    "  @%p bra FOURS;\n"
    "  setp.eq.u64 %p, %mask, 0;\n"
    "  @%p bra TAIL;\n"
    /* Four words at a time, as long as all four are there. */
    "  shl.b64 %i, %thread, 4;\n"
    "  shl.b64 %step, %threads, 4;\n"
    "SIXTEENS:\n"
    "  mad.lo.u64 %t, %step, 3, %i;\n"
    "  setp.ge.u64 %p, %t, %body;\n"
    "  @%p bra SIXTEEN;\n"
    "  add.u64 %a, %from, %i;\n"
    "  add.u64 %b, %a, %step;\n"
    "  add.u64 %c, %b, %step;\n"
    "  add.u64 %d, %c, %step;\n"
    "  ld.global.v2.u64 {%x0, %y0}, [%a];\n"
    "  ld.global.v2.u64 {%x1, %y1}, [%b];\n"
    "  ld.global.v2.u64 {%x2, %y2}, [%c];\n"
    "  ld.global.v2.u64 {%x3, %y3}, [%d];\n"
    "  add.u64 %a, %to, %i;\n"
    "  add.u64 %b, %a, %step;\n"
    "  add.u64 %c, %b, %step;\n"
    "  add.u64 %d, %c, %step;\n"
    "  st.global.v2.u64 [%a], {%x0, %y0};\n"
    "  st.global.v2.u64 [%b], {%x1, %y1};\n"
    "  st.global.v2.u64 [%c], {%x2, %y2};\n"
    "  st.global.v2.u64 [%d], {%x3, %y3};\n"
    "  add.u64 %i, %t, %step;\n"
    "  bra SIXTEENS;\n"
    "SIXTEEN:\n"
    "  setp.ge.u64 %p, %i, %body;\n"
    "  @%p bra TAIL;\n"
    "  add.u64 %a, %from, %i;\n"
    "  add.u64 %b, %to, %i;\n"
    "  ld.global.v2.u64 {%x0, %y0}, [%a];\n"
    "  st.global.v2.u64 [%b], {%x0, %y0};\n"
    "  add.u64 %i, %i, %step;\n"
    "  bra SIXTEEN;\n"
    "EIGHTS:\n"
    "  shl.b64 %i, %thread, 3;\n"
    "  shl.b64 %step, %threads, 3;\n"
    "EIGHT:\n"
    "  setp.ge.u64 %p, %i, %body;\n"
    "  @%p bra TAIL;\n"
    "  add.u64 %a, %from, %i;\n"
    "  add.u64 %b, %to, %i;\n"
    "  ld.global.u64 %x0, [%a];\n"
    "  st.global.u64 [%b], %x0;\n"
    "  add.u64 %i, %i, %step;\n"
    "  bra EIGHT;\n"
    "FOURS:\n"
    "  shl.b64 %i, %thread, 2;\n"
    "  shl.b64 %step, %threads, 2;\n"
    "FOUR:\n"
    "  setp.ge.u64 %p, %i, %body;\n"
    "  @%p bra TAIL;\n"
    "  add.u64 %a, %from, %i;\n"
    "  add.u64 %b, %to, %i;\n"
    "  ld.global.u32 %word, [%a];\n"
    "  st.global.u32 [%b], %word;\n"
    "  add.u64 %i, %i, %step;\n"
    "  bra FOUR;\n"
    "TAIL:\n"
    "  add.u64 %i, %body, %thread;\n"
    "BYTE:\n"
    "  setp.ge.u64 %p, %i, %end;\n"
    "  @%p bra NEXT;\n"
    "  add.u64 %a, %from, %i;\n"
    "  add.u64 %b, %to, %i;\n"
    "  ld.global.u8 %byte, [%a];\n"
    "  st.global.u8 [%b], %byte;\n"
    "  add.u64 %i, %i, %threads;\n"
    "  bra BYTE;\n"
    "NEXT:\n"
    "  add.u32 %piece, %piece, %blocks;\n"
    "  bra PIECE;\n"
    "OVER:\n"
    "  ret;\n"
    "}\n";

/* ---- The kernel ---------------------------------------------------------- */

static const char kernel_name[] = "perigee_copy";

enum { WARP = 32, THREADS_MOST = 256, BLOCKS_MOST = 2048 };

/* Portable, as the slots of copies are. */
CUresult kernel_pin(const struct cuda *c, struct kernel *k) {
  CUresult result = c->driver->cuMemHostAlloc(
      (void **)&k->tables,
      sizeof(struct piece) * TABLES * TABLE_PIECES + sizeof(uint64_t),
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  return result == CUDA_SUCCESS
             ? c->driver->cuMemHostGetDevicePointer(&k->device, k->tables, 0)
             : result;
}

CUresult kernel_compile(const struct cuda *c, struct kernel *k) {
  CUresult result = c->driver->cuModuleLoadData(&k->module, kernel_text);
  return result == CUDA_SUCCESS ? c->driver->cuModuleGetFunction(
                                      &k->function, k->module, kernel_name)
                                : result;
}

void kernel_drop(const struct cuda *c, struct kernel *k) {
  if (k->module)
    c->driver->cuModuleUnload(k->module);
  if (k->tables)
    c->driver->cuMemFreeHost(k->tables);
  *k = (struct kernel){0};
}

/* Returns the threads of a block: each copies four words at a time. */
static unsigned kernel_threads(uint64_t mean) {
  uint64_t threads = (mean / 64 + WARP - 1) / WARP * WARP;
  return threads < WARP           ? WARP
         : threads > THREADS_MOST ? THREADS_MOST
                                  : (unsigned)threads;
}

CUresult kernel_launch(const struct cuda *c, const struct kernel *k, int table,
                       uint32_t count, uint64_t bytes, CUstream stream) {
  CUdeviceptr at =
      k->device + sizeof(struct piece) * TABLE_PIECES * (CUdeviceptr)table;
  void *arguments[] = {&at, &count};
  unsigned blocks = count < BLOCKS_MOST ? count : BLOCKS_MOST;
  return c->driver->cuLaunchKernel(k->function, blocks, 1, 1,
                                   kernel_threads(bytes / count), 1, 1, 0,
                                   stream, arguments, NULL);
}

/* ---- Tables -------------------------------------------------------------- */

uint32_t kernel_free(const struct kernel *k, uint64_t number) {
  uint32_t count = 0;
  for (int i = 0; i < TABLES; i++)
    count += k->numbers[i] <= number;
  return count;
}

int kernel_take(struct kernel *k, const struct stream *s) {
  uint64_t done = atomic_load_explicit(s->done, memory_order_acquire);
  int table = 0;
  while (k->numbers[table] > done)
    table++;
  k->numbers[table] = s->asked + 1;
  return table;
}

struct piece *kernel_table(const struct kernel *k, int table) {
  return k->tables + (size_t)table * TABLE_PIECES;
}
