/* SPDX-License-Identifier: Apache-2.0
 *
 * driver.c - opens CUDA's driver library. Its name is libcuda.so.1, or what
 * PERIGEE_CUDA_LIBRARY says. It stays open until the process ends.
 *
 * A function is asked for with the version that its declaration is of
 * (cuGetProcAddress), because some change their arguments from one version to
 * another. Drivers before 11.3 cannot be asked; they export it by its name.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

#define CUDA_FUNCTION_ROW(name, version, exported, arguments)                  \
  {#name, exported, version, offsetof(struct cuda_driver, name), false},
#define CUDA_LATER_ROW(name, version, exported, arguments)                     \
  {#name, exported, version, offsetof(struct cuda_driver, name), true},

static const struct wanted {
  const char *name, *exported;
  int version;
  size_t at;
  bool later; /* it may be missing */
} functions[] = {CUDA_FUNCTIONS(CUDA_FUNCTION_ROW) CUDA_LATER(CUDA_LATER_ROW)};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_driver opened;
static char trouble[CUDA_REASON];
static enum driver_state { NOT_TRIED, WORKS, WORKS_NOT, MISSING } state;
static pid_t opener; /* CUDA does not work in a child that it forks */

typedef CUresult (*ask_v2)(const char *, void **, int, uint64_t, int *);
typedef CUresult (*ask_v1)(const char *, void **, int, uint64_t);

static const char *library_name(void) {
  const char *name = getenv("PERIGEE_CUDA_LIBRARY");
  return name && *name ? name : "libcuda.so.1";
}

/* Returns the function, or NULL: a driver that has none says so in two ways. */
static void *library_ask(void *library, const struct wanted *w) {
  void *found = NULL;
  int status;
  ask_v2 newer;
  ask_v1 older;
  *(void **)&newer = dlsym(library, "cuGetProcAddress_v2");
  *(void **)&older = dlsym(library, "cuGetProcAddress");
  if (!newer && !older)
    return dlsym(library, w->exported);
  CUresult result = newer ? newer(w->name, &found, w->version, 0, &status)
                          : older(w->name, &found, w->version, 0);
  return result == CUDA_SUCCESS ? found : NULL;
}

static bool library_resolve(void *library) {
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    const struct wanted *w = &functions[i];
    void *f = library_ask(library, w);
    if (!f && !w->later) {
      snprintf(trouble, sizeof trouble,
               "CUDA's driver is too old: it has no %s", w->name);
      return false;
    }
    memcpy((char *)&opened + w->at, &f, sizeof f);
  }
  return true;
}

static enum driver_state library_open(void) {
  void *library = dlopen(library_name(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(trouble, sizeof trouble, "CUDA's driver cannot be loaded: %s",
             dlerror());
    return MISSING;
  }
  if (!library_resolve(library))
    return WORKS_NOT;
  CUresult result = opened.cuInit(0);
  if (result == CUDA_SUCCESS)
    return WORKS;
  cuda_explain(&opened, "CUDA cannot be initialized", result, trouble);
  return result == CUDA_ERROR_NO_DEVICE ? MISSING : WORKS_NOT;
}

/* Devices' files: of Linux, of its subsystem on Windows, of boards with
 * Tegra. */
bool cuda_driver_could(void) {
  const char *name = getenv("PERIGEE_CUDA_LIBRARY");
  if (name && *name)
    return access(name, F_OK) == 0;
  return access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0 ||
         access("/dev/nvhost-ctrl", F_OK) == 0;
}

/* The driver makes a file for each channel of IMEX. */
bool cuda_driver_could_fabric(void) {
  const char *name = getenv("PERIGEE_CUDA_LIBRARY");
  return name && *name ? access(name, F_OK) == 0
                       : access("/dev/nvidia-caps-imex-channels", F_OK) == 0;
}

/* The caller has the lock. */
static void driver_try(void) {
  if (state == NOT_TRIED) {
    state = library_open();
    opener = getpid();
  }
  if (state == WORKS && opener != getpid()) {
    state = WORKS_NOT;
    snprintf(trouble, sizeof trouble,
             "CUDA was initialized before this process was forked, and does "
             "not work in a forked child: fork before its first use, or start "
             "another program");
  }
}

const struct cuda_driver *cuda_driver(char reason[CUDA_REASON]) {
  pthread_mutex_lock(&lock);
  driver_try();
  bool works = state == WORKS;
  if (!works)
    memcpy(reason, trouble, CUDA_REASON);
  pthread_mutex_unlock(&lock);
  return works ? &opened : NULL;
}

bool cuda_driver_is_missing(void) {
  pthread_mutex_lock(&lock);
  bool missing = state == MISSING;
  pthread_mutex_unlock(&lock);
  return missing;
}

const struct cuda_driver *cuda_driver_there(void) {
  char reason[CUDA_REASON];
  void *library = dlopen(library_name(), RTLD_LAZY | RTLD_NOLOAD);
  if (!library)
    return NULL;
  const struct cuda_driver *cuda = cuda_driver(reason);
  dlclose(library);
  return cuda;
}

void cuda_explain(const struct cuda_driver *cuda, const char *what,
                  CUresult result, char reason[CUDA_REASON]) {
  const char *name = NULL, *text = NULL;
  cuda->cuGetErrorName(result, &name);
  cuda->cuGetErrorString(result, &text);
  snprintf(reason, CUDA_REASON, "%s: %s, %s", what, name ? name : "error",
           text ? text : "unknown to the driver");
}
