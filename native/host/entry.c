/* SPDX-License-Identifier: Apache-2.0
 *
 * entry.c - the text that the holder of a name (name.c) publishes, and notice
 * of changes to it.
 *
 * The text is in the name's lock file, so it disappears with the name and needs
 * no cleanup of its own. The file has 8 bytes of length, 8 of a checksum, and
 * the text. A reader that meets a write under way sees a wrong checksum and
 * reads again.
 *
 * The holder also has a lock of its open file description on the file. Readers
 * can ask whether it is held without taking it, so they never get in the way of
 * a process that takes a name. The kernel drops the lock when the holder ends. A
 * holder that has yielded its name (name.c) has this lock alone.
 *
 * Builds from before there were such texts have only the lock of name.c on their
 * names, and leave the file empty. Whether that one is held, readers can tell
 * only by trying it. They do so where the file is empty and the name's socket is
 * there, so nobody else's name is touched; a process that takes the name of a
 * dead holder of that kind at that moment may find it taken.
 */
#include "base/detail.h"
#include "base/system.h"
#include "host/entry.h"
#include "host/sized.h"
#include "perigee.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
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

static const char suffix[] = ".lock";

/* ---- Texts --------------------------------------------------------------- */

struct head {
  uint64_t length, sum;
};

/* FNV-1a, with the length before the text. */
static uint64_t sum_of(const uint8_t *text, uint64_t length) {
  uint64_t sum = 0xcbf29ce484222325 ^ length;
  for (uint64_t i = 0; i < length; i++)
    sum = (sum ^ text[i]) * 0x100000001b3;
  return sum;
}

static struct flock whole_file(void) {
  return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
}

int entry_begin(int descriptor) {
  struct flock whole = whole_file();
  if (fcntl(descriptor, F_OFD_SETLK, &whole) != 0)
    return errno == EAGAIN || errno == EACCES ? PERIGEE_NAME_TAKEN
                                              : PERIGEE_SYSTEM;
  return ftruncate(descriptor, 0) == 0 ? PERIGEE_OK : PERIGEE_SYSTEM;
}

int perigee_entry_write(int descriptor, const void *text, uint64_t length) {
  if (descriptor < 0 || (!text && length) || length > PERIGEE_ENTRY_MAX)
    return PERIGEE_INVALID;
  struct head head = {length, sum_of(text, length)};
  struct iovec parts[] = {{&head, sizeof head}, {(void *)text, length}};
  ssize_t whole = (ssize_t)(sizeof head + length);
  if (!sized_may((uint64_t)whole))
    return PERIGEE_NO_MEMORY;
  if (pwritev(descriptor, parts, 2, 0) != whole ||
      ftruncate(descriptor, whole) != 0)
    return PERIGEE_SYSTEM;
  return PERIGEE_OK;
}

static bool is_held(int descriptor) {
  struct flock whole = whole_file();
  return fcntl(descriptor, F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
}

/* Returns the text's length; AGAIN: a write is under way. */
static int64_t read_text(int descriptor, void *text, uint64_t capacity) {
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
      sum_of(text, head.length) != head.sum)
    return PERIGEE_AGAIN;
  return (int64_t)head.length;
}

static int64_t read_open(int descriptor, void *text, uint64_t capacity) {
  enum { ATTEMPTS = 100 };
  int64_t length = PERIGEE_NOT_FOUND;
  for (int i = 0; i < ATTEMPTS && is_held(descriptor); i++) {
    length = read_text(descriptor, text, capacity);
    if (length != PERIGEE_AGAIN)
      return length;
    sched_yield();
  }
  return length;
}

/* True if a live process of an older build has the name (above). */
static bool is_held_by_older(int descriptor, const char *folder,
                             const char *name) {
  char socket[PATH_MAX];
  struct stat file, there;
  snprintf(socket, sizeof socket, "%s/%s.sock", folder, name);
  return fstat(descriptor, &file) == 0 && file.st_size == 0 &&
         lstat(socket, &there) == 0 &&
         flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

static int not_opened(void) {
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
    return not_opened();
  int64_t length = read_open(descriptor, text, capacity);
  if (length == PERIGEE_NOT_FOUND && is_held_by_older(descriptor, folder, name))
    length = PERIGEE_AGAIN;
  close(descriptor);
  return length;
}

/* ---- Names --------------------------------------------------------------- */

/* The length of the name whose lock file this is, or 0. */
static size_t name_length(const char *file) {
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

static void append(struct list *list, const char *file) {
  size_t length = name_length(file);
  if (length == 0)
    return;
  if (list->into && list->length + length + 1 <= list->capacity) {
    memcpy(list->into + list->length, file, length);
    list->into[list->length + length] = '\n';
  }
  list->length += length + 1;
}

int64_t perigee_names(const char *folder, char *into, uint64_t capacity) {
  if (!folder || (!into && capacity))
    return PERIGEE_INVALID;
  struct list list = {into, capacity, 0};
  struct dirent *entry;
  DIR *all = opendir(folder);
  if (!all)
    return not_opened();
  while ((entry = readdir(all)))
    append(&list, entry->d_name);
  closedir(all);
  return (int64_t)list.length;
}

/* ---- News ---------------------------------------------------------------- */

static int no_watches(void) {
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
               : errno == ENOSPC ? no_watches()
                                 : PERIGEE_SYSTEM;
  close(descriptor);
  return status;
}

/* True if the folder is gone or the kernel dropped events. */
static bool is_end(const struct inotify_event *event) {
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
    if (is_end(event))
      return PERIGEE_CLOSED;
    if (event->len > 0)
      append(&list, event->name);
  }
  return (int64_t)list.length;
}

void perigee_names_unwatch(int descriptor) {
  if (descriptor >= 0)
    close(descriptor);
}
