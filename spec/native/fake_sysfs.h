/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_sysfs.h - a made-up /sys with RDMA devices, for tests of the code that
 * reads the real one.
 */
#ifndef FAKE_SYSFS_H
#define FAKE_SYSFS_H

#define V1 "IB/RoCE v1"
#define V2 "RoCE v2"
#define EMPTY "0000:0000:0000:0000:0000:0000:0000:0000"
#define LOCAL "fe80:0000:0000:0000:0000:00ff:fe00:0001"
#define GLOBAL "2001:0db8:0000:0000:0000:0000:0000:0001"
#define IPV4 "0000:0000:0000:0000:0000:ffff:0a4d:0001"
#define IPV4_LOCAL "0000:0000:0000:0000:0000:ffff:a9fe:0102"

extern char fake_root[64];

/* For before and after each test: an empty /sys of its own. */
int fake_make(void **state);
int fake_remove(void **state);

/* Writes one line to a file, and creates the folders above it. */
void fake_put(const char *line, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void fake_port(const char *name, int port, const char *state, const char *link,
               const char *rate);
/* type NULL: the type of InfiniBand. */
void fake_gid(const char *name, int port, int index, const char *gid,
              const char *type);
/* An active port with four GIDs, of which 3 is the best. */
void fake_roce(const char *name, const char *rate);

#endif
