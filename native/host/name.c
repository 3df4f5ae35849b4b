/* SPDX-License-Identifier: Apache-2.0
 *
 * name.c - private folders, the names that agents own in them, the texts that
 * owners publish, and notice of changes to these.
 *
 * A name is owned by a lock on "folder/name.lock", which the kernel drops when
 * the owner dies, however it dies. The owner of the lock also owns "name.sock":
 * it removes a dead owner's socket, and its own before it releases the lock. A
 * file that was unlinked between our open and our lock was left by the last
 * owner. The lock on it is worth nothing, and we try again.
 *
 * An owner that yields its name stays in place until another takes it: it gives
 * up that lock, and keeps the one on its entry (below), by which readers see it
 * live. The process that takes the name finds the first lock free and the
 * second held, and puts a new file in the place of the old one. The old owner
 * removes files only with the first lock on the file that is there: then they
 * are its own, and nobody is taking the name.
 *
 * The one exception to "no global state": the names that this process owns are
 * listed, so that an exit without release leaves no files behind. A child made
 * by fork neither owns nor removes its parent's names (but a child that keeps
 * running without exec keeps the lock alive).
 *
 * Texts. The entry that the holder of a name publishes is in the name's lock
 * file, so it disappears with the name and needs no cleanup of its own. The
 * file has 8 bytes of length, 8 of a checksum, and the text. A reader that
 * meets a write under way sees a wrong checksum and reads again.
 *
 * The holder also has a lock of its open file description on the file. Readers
 * can ask whether it is held without taking it, so they never get in the way of
 * a process that takes a name. The kernel drops the lock when the holder ends.
 * A holder that has yielded its name has this lock alone.
 *
 * Builds from before there were such texts have only the lock of their owner on
 * their names, and leave the file empty. Readers can tell only by trying that
 * lock whether it is held. They do so where the file is empty and the name's
 * socket is there, so nobody else's name is touched; a process that takes the
 * name of a dead holder of that kind at that moment may find it taken.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/status.h"
#include "host/name.h"
#include "host/sized.h"
#include "host/standard.h"
#include "perigee.h"

/* ---- Folders ------------------------------------------------------------- */

static bool folder_is_private(const struct stat *entry) {
  return S_ISDIR(entry->st_mode) && entry->st_uid == geteuid() &&
         (entry->st_mode & 077) == 0;
}

/* Somebody else could have made the entry where others can write. */
static bool folder_is_trusted(const struct stat *entry, bool open_parent) {
  return !open_parent || entry->st_uid == geteuid() || entry->st_uid == 0;
}

static int folder_failed(void) {
  bool denied = errno == EACCES || errno == EPERM;
  return detail_fail(denied ? PERIGEE_DENIED : system_status(errno), "%s",
                     system_text(errno));
}

static int folder_refused(int status) {
  return detail_fail(status, "%s", perigee_status_text(status));
}

/* Makes or checks one folder of the path. open_parent says whether others may
 * create entries beside it, and is then set for the folder itself. */
static int folder_step(const char *path, bool last, bool *open_parent) {
  struct stat entry;
  bool made = mkdir(path, 0700) == 0;
  if (!made && errno != EEXIST)
    return folder_failed();
  if (lstat(path, &entry) != 0)
    return folder_failed();
  bool good = made || last ? folder_is_private(&entry)
                           : folder_is_trusted(&entry, *open_parent);
  if (!good)
    return detail_fail(PERIGEE_DENIED,
                       "it must be a folder of this user's, with no access "
                       "for others");
  if (S_ISLNK(entry.st_mode) && stat(path, &entry) != 0)
    return folder_failed();
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
    return folder_refused(PERIGEE_INVALID);
  if (length >= sizeof part)
    return folder_refused(PERIGEE_TOO_LARGE);
  if (stat(path[0] == '/' ? "/" : ".", &start) != 0)
    return folder_failed();
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

static const char suffix[] = ".lock", stats_suffix[] = ".stats";

/* ---- Texts of holders ---------------------------------------------------- */

struct head {
  uint64_t length, sum;
};

uint64_t entry_sum(const uint8_t *data, uint64_t length) {
  uint64_t sum = 0xcbf29ce484222325 ^ length;
  for (uint64_t i = 0; i < length; i++)
    sum = (sum ^ data[i]) * 0x100000001b3;
  return sum;
}

static struct flock entry_whole_file(void) {
  return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
}

/* Locks the file of a name that was just taken, so that readers see that it is
 * held, and removes the text of a dead holder. NAME_TAKEN: a live holder has
 * that lock, who has yielded the name. */
static int entry_lock(int descriptor) {
  struct flock whole = entry_whole_file();
  if (fcntl(descriptor, F_OFD_SETLK, &whole) != 0)
    return errno == EAGAIN || errno == EACCES ? PERIGEE_NAME_TAKEN
                                              : PERIGEE_SYSTEM;
  return ftruncate(descriptor, 0) == 0 ? PERIGEE_OK : PERIGEE_SYSTEM;
}

int perigee_entry_write(int descriptor, const void *text, uint64_t length) {
  if (descriptor < 0 || (!text && length) || length > PERIGEE_ENTRY_MAX)
    return PERIGEE_INVALID;
  struct head head = {length, entry_sum(text, length)};
  struct iovec parts[] = {{&head, sizeof head}, {(void *)text, length}};
  ssize_t whole = (ssize_t)(sizeof head + length);
  if (!sized_may((uint64_t)whole))
    return PERIGEE_NO_MEMORY;
  if (pwritev(descriptor, parts, 2, 0) != whole ||
      ftruncate(descriptor, whole) != 0)
    return PERIGEE_SYSTEM;
  return PERIGEE_OK;
}

static bool entry_is_held(int descriptor) {
  struct flock whole = entry_whole_file();
  return fcntl(descriptor, F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
}

/* Returns the text's length; AGAIN: a write is under way. */
static int64_t entry_read_text(int descriptor, void *text, uint64_t capacity) {
  struct head head;
  struct iovec parts[] = {{&head, sizeof head}, {text, capacity}};
  ssize_t n = preadv(descriptor, parts, 2, 0);
  if (n < (ssize_t)sizeof head)
    return n < 0 ? PERIGEE_SYSTEM : PERIGEE_AGAIN;
  if (head.length > PERIGEE_ENTRY_MAX)
    return PERIGEE_PROTOCOL;
  if (head.length > capacity)
    return PERIGEE_TOO_LARGE;
  if ((uint64_t)n - sizeof head < head.length ||
      entry_sum(text, head.length) != head.sum)
    return PERIGEE_AGAIN;
  return (int64_t)head.length;
}

static int64_t entry_read_open(int descriptor, void *text, uint64_t capacity) {
  enum { ATTEMPTS = 100 };
  int64_t length = PERIGEE_NOT_FOUND;
  for (int i = 0; i < ATTEMPTS && entry_is_held(descriptor); i++) {
    length = entry_read_text(descriptor, text, capacity);
    if (length != PERIGEE_AGAIN)
      return length;
    sched_yield();
  }
  return length;
}

/* True if a live process of an older build has the name (above). */
static bool entry_is_held_by_older(int descriptor, const char *folder,
                                   const char *name) {
  char socket[PATH_MAX];
  struct stat file, there;
  snprintf(socket, sizeof socket, "%s/%s.sock", folder, name);
  return fstat(descriptor, &file) == 0 && file.st_size == 0 &&
         lstat(socket, &there) == 0 &&
         flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

static int entry_not_opened(void) {
  if (errno == ENOENT)
    return PERIGEE_NOT_FOUND;
  return detail_fail(system_status(errno), "%s", system_text(errno));
}

int64_t perigee_entry_read(const char *folder, const char *name, void *text,
                           uint64_t capacity) {
  char path[PATH_MAX];
  if (!folder || !name || !text || strchr(name, '/'))
    return PERIGEE_INVALID;
  int n = snprintf(path, sizeof path, "%s/%s%s", folder, name, suffix);
  if (n < 0 || n >= (int)sizeof path)
    return PERIGEE_TOO_LARGE;
  int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0)
    return entry_not_opened();
  int64_t length = entry_read_open(descriptor, text, capacity);
  if (length == PERIGEE_NOT_FOUND &&
      entry_is_held_by_older(descriptor, folder, name))
    length = PERIGEE_AGAIN;
  close(descriptor);
  return length;
}

/* ---- Listing names ------------------------------------------------------- */

/* The length of the name whose lock file this is, or 0. */
static size_t entry_name_length(const char *file) {
  size_t length = strlen(file), end = sizeof suffix - 1;
  if (file[0] == '.' || length <= end || length > 64 + end ||
      strcmp(file + length - end, suffix) != 0)
    return 0;
  return length - end;
}

struct list {
  char *into;
  uint64_t capacity, length;
};

static void names_append(struct list *list, const char *file, size_t length) {
  if (length == 0)
    return;
  if (list->into && list->length + length + 1 <= list->capacity) {
    memcpy(list->into + list->length, file, length);
    list->into[list->length + length] = '\n';
  }
  list->length += length + 1;
}

static size_t names_of_lock(DIR *all, const struct dirent *entry) {
  (void)all;
  return entry_name_length(entry->d_name);
}

/* A scope is a folder with a name that can be one's. */
static size_t names_of_scope(DIR *all, const struct dirent *entry) {
  struct stat there;
  if (entry->d_name[0] == '.' || strchr(entry->d_name, '\n') ||
      fstatat(dirfd(all), entry->d_name, &there, AT_SYMLINK_NOFOLLOW) != 0)
    return 0;
  return S_ISDIR(there.st_mode) ? strlen(entry->d_name) : 0;
}

/* Lists what is in a folder, as length_of has it. */
static int64_t names_list(const char *folder, char *into, uint64_t capacity,
                          size_t (*length_of)(DIR *, const struct dirent *)) {
  if (!folder || (!into && capacity))
    return PERIGEE_INVALID;
  struct list list = {into, capacity, 0};
  struct dirent *entry;
  DIR *all = opendir(folder);
  if (!all)
    return entry_not_opened();
  while ((entry = readdir(all)))
    names_append(&list, entry->d_name, length_of(all, entry));
  closedir(all);
  return (int64_t)list.length;
}

int64_t perigee_names(const char *folder, char *into, uint64_t capacity) {
  return names_list(folder, into, capacity, names_of_lock);
}

int64_t perigee_scopes(const char *folder, char *into, uint64_t capacity) {
  return names_list(folder, into, capacity, names_of_scope);
}

/* ---- News of names ------------------------------------------------------- */

static int names_no_watches(void) {
  return detail_fail(PERIGEE_NO_MEMORY, "too many folders are watched (sysctl "
                                        "fs.inotify.max_user_watches)");
}

int perigee_names_watch(const char *folder) {
  if (!folder)
    return PERIGEE_INVALID;
  int descriptor = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  if (descriptor < 0)
    return detail_fail(system_status(errno),
                       "%s, or too many instances of "
                       "inotify (sysctl fs.inotify.max_user_instances)",
                       system_text(errno));
  uint32_t mask = IN_MODIFY | IN_CLOSE_WRITE | IN_DELETE | IN_ONLYDIR;
  if (inotify_add_watch(descriptor, folder, mask) >= 0)
    return descriptor;
  int status = errno == ENOENT   ? PERIGEE_NOT_FOUND
               : errno == ENOSPC ? names_no_watches()
                                 : PERIGEE_SYSTEM;
  close(descriptor);
  return status;
}

/* True if the folder is gone or the kernel dropped events. */
static bool names_is_end(const struct inotify_event *event) {
  return event->mask & (IN_IGNORED | IN_UNMOUNT | IN_Q_OVERFLOW);
}

int64_t perigee_names_changed(int descriptor, char *into, uint64_t capacity) {
  alignas(struct inotify_event) char events[PERIGEE_CHANGED_MIN];
  if (descriptor < 0 || !into || capacity < PERIGEE_CHANGED_MIN)
    return PERIGEE_INVALID;
  struct list list = {into, capacity, 0};
  ssize_t n = read(descriptor, events, sizeof events);
  if (n < 0)
    return errno == EAGAIN || errno == EINTR ? 0 : PERIGEE_SYSTEM;
  const struct inotify_event *event;
  for (ssize_t at = 0; at < n; at += (ssize_t)(sizeof *event + event->len)) {
    event = (const struct inotify_event *)(events + at);
    if (names_is_end(event))
      return PERIGEE_CLOSED;
    if (event->len > 0)
      names_append(&list, event->name, entry_name_length(event->name));
  }
  return (int64_t)list.length;
}

void perigee_names_unwatch(int descriptor) {
  if (descriptor >= 0)
    close(descriptor);
}

/* ---- Names that are owned ------------------------------------------------ */

enum { NOBODYS = 0 }; /* the owner of one that is a forked parent's */
struct name_lock {
  struct name_lock *next;
  pid_t owner;
  int descriptor; /* -1: it is closed */
  bool yielded;
  char lock[PATH_MAX], socket[PATH_MAX], stats[PATH_MAX];
};

static pthread_mutex_t name_locks_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct name_lock *name_locks;

/* ---- Children by fork ------------------------------------------------------ */

static void names_fork(void) {
  pthread_mutex_lock(&name_locks_mutex);
}

static void names_forked(void) {
  pthread_mutex_unlock(&name_locks_mutex);
}

/* A lock is held as long as any process has its descriptor, and so a dead agent's
 * name for as long as a child lived. The number stays taken: the child may still
 * use it for the name. */
static void names_forked_child(void) {
  int none = name_locks ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;
  for (struct name_lock *owned = name_locks; owned; owned = owned->next) {
    if (owned->owner == NOBODYS)
      continue; /* a child of a child: the number may be another file's */
    if (none < 0 || dup3(none, owned->descriptor, O_CLOEXEC) < 0) {
      close(owned->descriptor);
      owned->descriptor = -1;
    }
    owned->owner = NOBODYS;
  }
  if (none >= 0)
    close(none);
  names_forked();
}

static void names_watch_forks(void) {
  pthread_atfork(names_fork, names_forked, names_forked_child);
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
static bool name_is_current(int descriptor, const char *path) {
  struct stat ours, there;
  return fstat(descriptor, &ours) == 0 && lstat(path, &there) == 0 &&
         ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

/* Are the files at its paths its own, and nobody's else until they are gone? */
static bool name_lock_has_files(const struct name_lock *owned) {
  return owned->owner == getpid() &&
         (!owned->yielded ||
          (flock(owned->descriptor, LOCK_EX | LOCK_NB) == 0 &&
           name_is_current(owned->descriptor, owned->lock)));
}

/* Removes the files before the lock is dropped, while they are surely ours. */
static void name_lock_end(struct name_lock *owned) {
  if (name_lock_has_files(owned)) {
    unlink(owned->socket);
    unlink(owned->lock);
  }
  if (owned->descriptor >= 0)
    close(owned->descriptor);
  free(owned);
}

/* An engine that was closed has removed its stats file, so this one belongs to
 * an engine that is still open. Not for names that are released: there it may be
 * that of a dead owner, which tells how it ended. */
static void name_lock_remove_stats(const struct name_lock *owned) {
  if (name_lock_has_files(owned))
    unlink(owned->stats);
}

__attribute__((destructor)) static void name_lock_end_all(void) {
  for (struct name_lock *owned; (owned = name_lock_take(-1));) {
    name_lock_remove_stats(owned);
    if (owned->owner == NOBODYS)
      owned->descriptor = -1; /* the number may be another file's */
    name_lock_end(owned);
  }
}

bool name_is_valid(const char *name) {
  static const char allowed[] = "abcdefghijklmnopqrstuvwxyz"
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-";
  size_t length = strspn(name, allowed);
  return length >= 1 && length <= 64 && !name[length] && name[0] != '.';
}

static bool name_path(char *path, const char *folder, const char *name,
                      const char *suffix) {
  int length = snprintf(path, PATH_MAX, "%s/%s%s", folder, name, suffix);
  return length > 0 && length < PATH_MAX;
}

/* Returns a locked descriptor, or PERIGEE_AGAIN if its file was unlinked since,
 * or has been now: its owner has yielded the name. */
static int name_lock_once(const char *path) {
  int status = PERIGEE_AGAIN;
  int descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (descriptor < 0)
    return errno == ELOOP
               ? PERIGEE_DENIED
               : detail_fail(system_status(errno), "%s", system_text(errno));
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0)
    status = errno == EWOULDBLOCK ? PERIGEE_NAME_TAKEN : PERIGEE_SYSTEM;
  else if (name_is_current(descriptor, path)) {
    status = entry_lock(descriptor);
    if (status == PERIGEE_OK)
      return descriptor;
    if (status == PERIGEE_NAME_TAKEN && unlink(path) == 0)
      status = PERIGEE_AGAIN;
  }
  close(descriptor);
  return status;
}

static int name_lock_file(const char *path) {
  int result;
  do
    result = name_lock_once(path);
  while (result == PERIGEE_AGAIN);
  return result;
}

/* Locks and lists a name at once, so that no child is forked in between. */
static int name_lock_list(struct name_lock *owned) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, names_watch_forks);
  pthread_mutex_lock(&name_locks_mutex);
  int result = name_lock_file(owned->lock);
  if (result >= 0) {
    unlink(owned->socket);
    owned->owner = getpid();
    owned->descriptor = result;
    owned->next = name_locks;
    name_locks = owned;
  }
  pthread_mutex_unlock(&name_locks_mutex);
  return result;
}

int perigee_name_hold(const char *folder, const char *name) {
  if (!folder || !name || !name_is_valid(name))
    return PERIGEE_INVALID;
  standard_fill();
  struct name_lock *owned = calloc(1, sizeof *owned);
  if (!owned)
    return detail_fail(PERIGEE_NO_MEMORY, "%s", system_text(ENOMEM));
  int result = PERIGEE_TOO_LARGE;
  if (!name_path(owned->lock, folder, name, ".lock") ||
      !name_path(owned->socket, folder, name, ".sock") ||
      !name_path(owned->stats, folder, name, stats_suffix))
    goto fail;
  result = name_lock_list(owned);
  if (result >= 0)
    return result;
fail:
  free(owned);
  return result;
}

/* ---- What dead owners left ----------------------------------------------- */

static void names_remove(const char *folder, const char *name,
                         const char *end) {
  char path[PATH_MAX];
  if (name_path(path, folder, name, end))
    unlink(path);
}

/* Removes the files of a name whose lock is free: its owner is dead. A process
 * that takes the name meanwhile finds it taken, for a moment. */
static bool name_sweep(const char *folder, const char *name) {
  char path[PATH_MAX], socket[PATH_MAX];
  if (!name_path(path, folder, name, ".lock") ||
      !name_path(socket, folder, name, ".sock"))
    return false;
  int descriptor = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  bool dead = descriptor >= 0 && flock(descriptor, LOCK_EX | LOCK_NB) == 0 &&
              name_is_current(descriptor, path);
  if (dead) {
    unlink(socket);
    names_remove(folder, name, stats_suffix);
    unlink(path);
  }
  if (descriptor >= 0)
    close(descriptor);
  return dead;
}

static bool name_ends_in(const char *name, const char *end) {
  size_t length = strlen(name);
  return length > strlen(end) && strcmp(name + length - strlen(end), end) == 0;
}

/* A process that takes a name meanwhile makes the folder again, or finds it. */
void perigee_names_end(const char *folder) {
  static const char LAST[] = ".stats.last";
  DIR *all = folder ? opendir(folder) : NULL;
  struct dirent *entry;
  bool held = false;
  while (all && !held && (entry = readdir(all)))
    held = name_ends_in(entry->d_name, suffix);
  if (all && !held) {
    rewinddir(all);
    while ((entry = readdir(all)))
      if (name_ends_in(entry->d_name, LAST))
        names_remove(folder, entry->d_name, "");
  }
  if (all)
    closedir(all);
  if (folder && !held)
    rmdir(folder);
}

/* Cuts ".lock" off a name that begins with the prefix; false for other
 * names. */
static bool name_is_lock(char *name, const char *prefix) {
  size_t length = strlen(name), end = strlen(".lock");
  if (strncmp(name, prefix, strlen(prefix)) != 0 || length <= end ||
      strcmp(name + length - end, ".lock") != 0)
    return false;
  name[length - end] = 0;
  return name_is_valid(name);
}

int perigee_names_sweep(const char *folder, const char *prefix) {
  enum { LOOKS = 256 };
  DIR *all = folder && prefix ? opendir(folder) : NULL;
  struct dirent *entry;
  int swept = 0, looks = 0;
  while (all && looks < LOOKS && (entry = readdir(all)))
    if (name_is_lock(entry->d_name, prefix)) {
      looks++;
      swept += name_sweep(folder, entry->d_name);
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
