/* SPDX-License-Identifier: Apache-2.0
 *
 * name.c - private folders, and names that agents own in them.
 *
 * A name is owned by a lock on "folder/name.lock", which the kernel drops when
 * the owner dies, however it dies. The owner of the lock also owns "name.sock":
 * it removes a dead owner's socket, and its own before it releases the lock. If
 * a file was unlinked between our open and our lock, it is what the last owner
 * left: the lock on it is worth nothing, and we try again.
 *
 * An owner that yields its name stays in place until another takes it: it gives
 * up that lock, and keeps the one on its entry (entry.c), by which readers see it
 * live. Whoever takes the name finds the first lock free and the second held, and
 * puts a new file in the place of the old one. The old owner removes files only
 * with the first lock on the file that is there: then they are its own, and
 * nobody is taking the name.
 *
 * The one exception to "no global state": the names that this process owns are
 * listed, so that an exit without release leaves no files behind. A child made
 * by fork neither owns nor removes its parent's names (but a child that keeps
 * running without exec keeps the lock alive).
 */
#include "base/detail.h"
#include "base/system.h"
#include "host/entry.h"
#include "perigee.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Folders ------------------------------------------------------------ */

static bool is_private(const struct stat *entry) {
  return S_ISDIR(entry->st_mode) && entry->st_uid == geteuid() &&
         (entry->st_mode & 077) == 0;
}

/* Where others can write, somebody else could have made the entry. */
static bool is_trusted(const struct stat *entry, bool open_parent) {
  return !open_parent || entry->st_uid == geteuid() || entry->st_uid == 0;
}

/* Makes or checks one folder of the path. open_parent says whether others may
 * create entries beside it, and is then set for the folder itself. */
static int folder_step(const char *path, bool last, bool *open_parent) {
  struct stat entry;
  bool made = mkdir(path, 0700) == 0;
  if (!made && errno != EEXIST)
    return PERIGEE_SYSTEM;
  if (lstat(path, &entry) != 0)
    return PERIGEE_SYSTEM;
  bool good =
      made || last ? is_private(&entry) : is_trusted(&entry, *open_parent);
  if (!good)
    return PERIGEE_DENIED;
  if (S_ISLNK(entry.st_mode) && stat(path, &entry) != 0)
    return PERIGEE_SYSTEM;
  *open_parent = entry.st_mode & 022;
  return PERIGEE_OK;
}

int perigee_folder(const char *path) {
  char part[PATH_MAX];
  struct stat start;
  size_t length = path ? strlen(path) : 0;
  while (length > 1 && path[length - 1] == '/')
    length--;
  if (length == 0)
    return PERIGEE_INVALID;
  if (length >= sizeof part)
    return PERIGEE_TOO_LARGE;
  if (stat(path[0] == '/' ? "/" : ".", &start) != 0)
    return PERIGEE_SYSTEM;
  bool open_parent = start.st_mode & 022;
  for (size_t end = 1; end <= length; end++) {
    if (end < length && (path[end] != '/' || path[end - 1] == '/'))
      continue;
    memcpy(part, path, end);
    part[end] = '\0';
    int status = folder_step(part, end == length, &open_parent);
    if (status != PERIGEE_OK)
      return status;
  }
  return PERIGEE_OK;
}

int perigee_folder_look(const char *path) {
  struct stat entry;
  if (!path)
    return PERIGEE_INVALID;
  if (lstat(path, &entry) != 0)
    return errno == ENOENT ? PERIGEE_NOT_FOUND : PERIGEE_DENIED;
  bool own = S_ISDIR(entry.st_mode) && entry.st_uid == geteuid();
  return own ? PERIGEE_OK : PERIGEE_DENIED;
}

/* ---- Names that are owned ------------------------------------------------ */

struct name_lock {
  struct name_lock *next;
  pid_t owner;
  int descriptor;
  bool yielded;
  char lock[PATH_MAX], socket[PATH_MAX];
};

static pthread_mutex_t name_locks_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct name_lock *name_locks;

static void name_lock_put(struct name_lock *owned) {
  pthread_mutex_lock(&name_locks_mutex);
  owned->next = name_locks;
  name_locks = owned;
  pthread_mutex_unlock(&name_locks_mutex);
}

/* Unlists the name with this descriptor, any name if it is negative. */
static struct name_lock *name_lock_take(int descriptor) {
  pthread_mutex_lock(&name_locks_mutex);
  struct name_lock **link = &name_locks, *owned;
  while ((owned = *link) && descriptor >= 0 && owned->descriptor != descriptor)
    link = &owned->next;
  if (owned)
    *link = owned->next;
  pthread_mutex_unlock(&name_locks_mutex);
  return owned;
}

/* Is the file that we have locked still the one at that path? */
static bool is_current(int descriptor, const char *path) {
  struct stat ours, there;
  return fstat(descriptor, &ours) == 0 && lstat(path, &there) == 0 &&
         ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

/* Are the files at its paths its own, and nobody's else until they are gone? */
static bool name_lock_has_files(const struct name_lock *owned) {
  return owned->owner == getpid() &&
         (!owned->yielded ||
          (flock(owned->descriptor, LOCK_EX | LOCK_NB) == 0 &&
           is_current(owned->descriptor, owned->lock)));
}

/* Removes the files before the lock is dropped, while they are surely ours. */
static void name_lock_end(struct name_lock *owned) {
  if (name_lock_has_files(owned)) {
    unlink(owned->socket);
    unlink(owned->lock);
  }
  close(owned->descriptor);
  free(owned);
}

__attribute__((destructor)) static void name_lock_end_all(void) {
  for (struct name_lock *owned; (owned = name_lock_take(-1));)
    name_lock_end(owned);
}

static bool is_name(const char *name) {
  static const char allowed[] = "abcdefghijklmnopqrstuvwxyz"
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-";
  size_t length = strspn(name, allowed);
  return length >= 1 && length <= 64 && !name[length] && name[0] != '.';
}

static bool is_path(char *path, const char *folder, const char *name,
                    const char *suffix) {
  int length = snprintf(path, PATH_MAX, "%s/%s%s", folder, name, suffix);
  return length > 0 && length < PATH_MAX;
}

/* Returns a locked descriptor, or PERIGEE_AGAIN if its file was unlinked since,
 * or has been now: its owner has yielded the name. */
static int lock_once(const char *path) {
  int status = PERIGEE_AGAIN;
  int descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (descriptor < 0)
    return errno == ELOOP
               ? PERIGEE_DENIED
               : detail_fail(system_status(errno), "%s", system_text(errno));
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0)
    status = errno == EWOULDBLOCK ? PERIGEE_NAME_TAKEN : PERIGEE_SYSTEM;
  else if (is_current(descriptor, path)) {
    status = entry_begin(descriptor);
    if (status == PERIGEE_OK)
      return descriptor;
    if (status == PERIGEE_NAME_TAKEN && unlink(path) == 0)
      status = PERIGEE_AGAIN;
  }
  close(descriptor);
  return status;
}

static int lock(const char *path) {
  int result;
  do
    result = lock_once(path);
  while (result == PERIGEE_AGAIN);
  return result;
}

int perigee_name_hold(const char *folder, const char *name) {
  if (!folder || !name || !is_name(name))
    return PERIGEE_INVALID;
  struct name_lock *owned = calloc(1, sizeof *owned);
  if (!owned)
    return detail_fail(PERIGEE_NO_MEMORY, "%s", system_text(ENOMEM));
  int result = PERIGEE_TOO_LARGE;
  if (!is_path(owned->lock, folder, name, ".lock") ||
      !is_path(owned->socket, folder, name, ".sock"))
    goto fail;
  result = lock(owned->lock);
  if (result < 0)
    goto fail;
  unlink(owned->socket);
  owned->owner = getpid();
  owned->descriptor = result;
  name_lock_put(owned);
  return result;
fail:
  free(owned);
  return result;
}

/* ---- What dead owners left ----------------------------------------------- */

/* Removes the files of a name whose lock is free: its owner is dead. A process
 * that takes the name meanwhile finds it taken, for a moment. */
static bool sweep(const char *folder, const char *name) {
  char path[PATH_MAX], socket[PATH_MAX];
  if (!is_path(path, folder, name, ".lock") ||
      !is_path(socket, folder, name, ".sock"))
    return false;
  int descriptor = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  bool dead = descriptor >= 0 && flock(descriptor, LOCK_EX | LOCK_NB) == 0 &&
              is_current(descriptor, path);
  if (dead) {
    unlink(socket);
    unlink(path);
  }
  if (descriptor >= 0)
    close(descriptor);
  return dead;
}

/* Cuts ".lock" off a name that begins with the prefix; false for other
 * names. */
static bool is_lock(char *name, const char *prefix) {
  size_t length = strlen(name), end = strlen(".lock");
  if (strncmp(name, prefix, strlen(prefix)) != 0 || length <= end ||
      strcmp(name + length - end, ".lock") != 0)
    return false;
  name[length - end] = 0;
  return is_name(name);
}

int perigee_names_sweep(const char *folder, const char *prefix) {
  enum { LOOKS = 256 };
  DIR *all = folder && prefix ? opendir(folder) : NULL;
  struct dirent *entry;
  int swept = 0, looks = 0;
  while (all && looks < LOOKS && (entry = readdir(all)))
    if (is_lock(entry->d_name, prefix)) {
      looks++;
      swept += sweep(folder, entry->d_name);
    }
  if (all)
    closedir(all);
  return swept;
}

void perigee_name_release(int descriptor) {
  struct name_lock *owned = descriptor < 0 ? NULL : name_lock_take(descriptor);
  if (owned)
    name_lock_end(owned);
}

int perigee_name_yield(int descriptor) {
  int status = PERIGEE_NOT_FOUND;
  pthread_mutex_lock(&name_locks_mutex);
  struct name_lock *owned = name_locks;
  while (owned && (descriptor < 0 || owned->descriptor != descriptor))
    owned = owned->next;
  if (owned) {
    owned->yielded = true;
    status = flock(descriptor, LOCK_UN) == 0 ? PERIGEE_OK : PERIGEE_SYSTEM;
  }
  pthread_mutex_unlock(&name_locks_mutex);
  return status;
}
