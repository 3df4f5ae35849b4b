/* SPDX-License-Identifier: Apache-2.0
 *
 * devices_library.c - loads libibverbs when RDMA is first asked for, so that
 * the core runs where it is not installed.
 *
 * The library has state of its own, once in a process, and loads the drivers of
 * all devices, so it is never unloaded.
 */
#include <errno.h>
#include <stdio.h>

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include "devices.h"

static struct verbs_library functions;
static char trouble[256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool library_load_function(void *handle, const char *name, void *to) {
  void *function = dlsym(handle, name);
  if (!function && !trouble[0])
    snprintf(trouble, sizeof trouble,
             "libibverbs.so.1 has no %s: install a newer libibverbs", name);
  memcpy(to, &function, sizeof function);
  return function;
}

static void library_load(void) {
  void *handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char *why = dlerror();
    snprintf(trouble, sizeof trouble,
             "libibverbs cannot be loaded (%.120s): install libibverbs1 and "
             "ibverbs-providers",
             why ? why : "no reason given");
    return;
  }
#define LOAD(name) library_load_function(handle, "ibv_" #name, &functions.name);
  VERBS_OPTIONAL(LOAD)
  trouble[0] = 0;
  VERBS_FUNCTIONS(LOAD)
#undef LOAD
}

const struct verbs_library *verbs_library(const char **why) {
  pthread_once(&once, library_load);
  if (why)
    *why = trouble;
  return trouble[0] ? NULL : &functions;
}

/* ---- May this process use the device? ------------------------------------ */

static struct ibv_device *
library_find_device(const struct verbs_library *library,
                    struct ibv_device **list, const char *name) {
  for (struct ibv_device **d = list; d && *d; d++)
    if (strcmp(library->get_device_name(*d), name) == 0)
      return *d;
  return NULL;
}

/* The library lists devices with a user-space driver and a uverbs device. */
static bool library_device_usable(const struct verbs_library *library,
                                  const char *name, char *reason, size_t size) {
  struct ibv_device **list = library->get_device_list(NULL);
  struct ibv_device *device = library_find_device(library, list, name);
  char path[128] = "";
  if (device)
    snprintf(path, sizeof path, "/dev/infiniband/%s", device->dev_name);
  if (list)
    library->free_device_list(list);
  if (!device) {
    snprintf(reason, size,
             "libibverbs does not know %s: install ibverbs-providers, and "
             "load the kernel's ib_uverbs",
             name);
    return false;
  }
  if (access(path, R_OK | W_OK) == 0)
    return true;
  snprintf(reason, size,
           "%s may not be opened by this process (%s: %s): give its user, or "
           "its container, access",
           name, path, strerror(errno));
  return false;
}

const char *verbs_obstacle(const char *device, char *reason, size_t size) {
  const char *why;
  const struct verbs_library *library = verbs_library(&why);
  if (library)
    return library_device_usable(library, device, reason, size) ? NULL : reason;
  snprintf(reason, size, "%s", why);
  return reason;
}

/* ---- MTUs, which only the opened device tells ---------------------------- */

static uint32_t mtu_bytes(enum ibv_mtu mtu) {
  return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << mtu : 0;
}

static void library_measure(const struct verbs_library *library,
                            struct ibv_context *context,
                            struct perigee_device *port) {
  struct ibv_port_attr attributes;
  if (verbs_query_port(library, context, (uint8_t)port->port, &attributes))
    return;
  port->mtu = mtu_bytes(attributes.active_mtu);
  port->max_mtu = mtu_bytes(attributes.max_mtu);
}

/* Opens each device once, as the ports of one device are adjacent in the
 * list. */
void verbs_measure(struct perigee_device *list, int count) {
  const struct verbs_library *library = count > 0 ? verbs_library(NULL) : NULL;
  struct ibv_device **known = library ? library->get_device_list(NULL) : NULL;
  struct ibv_context *context = NULL;
  for (int i = 0; known && i < count; i++) {
    if (i == 0 || strcmp(list[i - 1].name, list[i].name) != 0) {
      struct ibv_device *device =
          library_find_device(library, known, list[i].name);
      if (context)
        library->close_device(context);
      context = device ? library->open_device(device) : NULL;
    }
    if (context)
      library_measure(library, context, &list[i]);
  }
  if (context)
    library->close_device(context);
  if (known)
    library->free_device_list(known);
}
