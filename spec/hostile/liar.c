/* SPDX-License-Identifier: Apache-2.0
 *
 * liar.c - the lying peer of the C tests as a program, to attack whole agents:
 * liar ADDRESS LIE SEED NANOSECONDS.
 */
#include "../native/liar.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
  if (argc != 5) {
    fprintf(stderr, "liar ADDRESS LIE SEED NANOSECONDS\n");
    return 2;
  }
  liar_run(argv[1], (enum lie)atoi(argv[2]), strtoull(argv[3], NULL, 10),
           strtoll(argv[4], NULL, 10));
}
