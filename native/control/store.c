/* SPDX-License-Identifier: Apache-2.0
 *
 * store.c - a file of SQLite's: statements that are prepared once, parameters
 * and columns. Statements belong to their store, and end with it.
 */
#include "control/control.h"
#include "perigee.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct perigee_store {
  sqlite3 *file;
  int lock;      /* a descriptor, or -1 */
  char why[128]; /* what perigee_store_own failed with */
};

/* A perigee_statement is a sqlite3_stmt. */
static sqlite3_stmt *store_statement_in(struct perigee_statement *statement) {
  return (sqlite3_stmt *)statement;
}

static int store_status_of(int code) {
  switch (code & 0xff) {
  case SQLITE_OK:
    return PERIGEE_OK;
  case SQLITE_NOMEM:
  case SQLITE_FULL:
    return PERIGEE_NO_MEMORY;
  case SQLITE_BUSY:
  case SQLITE_LOCKED:
    return PERIGEE_TIMEOUT;
  case SQLITE_PERM:
  case SQLITE_READONLY:
  case SQLITE_AUTH:
  case SQLITE_CANTOPEN:
    return PERIGEE_DENIED;
  case SQLITE_TOOBIG:
    return PERIGEE_TOO_LARGE;
  default:
    return PERIGEE_SYSTEM;
  }
}

/* SQLite makes its other files with the mode of this one. A file that is there
 * is not opened: its closing would end the locks that another store of this
 * process has on it. */
static void make_private(const char *path) {
  int file =
      open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file >= 0)
    close(file);
}

int perigee_store_open(struct perigee_store **opened, const char *path) {
  struct perigee_store *store = *opened = calloc(1, sizeof *store);
  if (!store)
    return PERIGEE_NO_MEMORY;
  store->lock = -1;
  make_private(path);
  int code = sqlite3_open_v2(path, &store->file,
                             SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
  if (code != SQLITE_OK)
    return store_status_of(code);
  sqlite3_busy_timeout(store->file, 5000);
  return perigee_store_run(store, "PRAGMA journal_mode = WAL;"
                                  "PRAGMA synchronous = FULL;"
                                  "PRAGMA trusted_schema = OFF");
}

const char *perigee_store_why(const struct perigee_store *store) {
  return store->why[0] ? store->why : sqlite3_errmsg(store->file);
}

void perigee_store_close(struct perigee_store *store) {
  if (!store)
    return;
  sqlite3_stmt *each = NULL;
  while (store->file && (each = sqlite3_next_stmt(store->file, NULL)))
    sqlite3_finalize(each);
  sqlite3_close(store->file);
  if (store->lock >= 0)
    close(store->lock);
  free(store);
}

int perigee_store_own(struct perigee_store *store, const char *lock) {
  int file = open(lock, O_CREAT | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file < 0 || flock(file, LOCK_EX | LOCK_NB) != 0) {
    snprintf(store->why, sizeof store->why, "%s",
             file < 0 ? strerror(errno) : "another process serves it");
    if (file >= 0)
      close(file);
    return file < 0 ? PERIGEE_SYSTEM : PERIGEE_NAME_TAKEN;
  }
  store->lock = file;
  store->why[0] = 0;
  return PERIGEE_OK;
}

int perigee_store_run(struct perigee_store *store, const char *sql) {
  return store_status_of(sqlite3_exec(store->file, sql, NULL, NULL, NULL));
}

/* ---- Statements ---------------------------------------------------------- */

struct perigee_statement *perigee_store_prepare(struct perigee_store *store,
                                                const char *sql) {
  sqlite3_stmt *made = NULL;
  sqlite3_prepare_v3(store->file, sql, -1, SQLITE_PREPARE_PERSISTENT, &made,
                     NULL);
  return (struct perigee_statement *)made;
}

int perigee_statement_text(struct perigee_statement *statement, int at,
                           const char *text, uint64_t length) {
  return store_status_of(sqlite3_bind_text64(store_statement_in(statement), at,
                                             text, length, SQLITE_TRANSIENT,
                                             SQLITE_UTF8));
}

int perigee_statement_number(struct perigee_statement *statement, int at,
                             int64_t value) {
  return store_status_of(
      sqlite3_bind_int64(store_statement_in(statement), at, value));
}

int perigee_statement_step(struct perigee_statement *statement) {
  int code = sqlite3_step(store_statement_in(statement));
  if (code == SQLITE_ROW)
    return 1;
  return code == SQLITE_DONE ? PERIGEE_OK : store_status_of(code);
}

void perigee_statement_reset(struct perigee_statement *statement) {
  sqlite3_reset(store_statement_in(statement));
}

const char *perigee_statement_column(struct perigee_statement *statement,
                                     int at, uint64_t *length) {
  const char *text =
      (const char *)sqlite3_column_text(store_statement_in(statement), at);
  *length = (uint64_t)sqlite3_column_bytes(store_statement_in(statement), at);
  return text;
}

int64_t perigee_statement_integer(struct perigee_statement *statement, int at) {
  return sqlite3_column_int64(store_statement_in(statement), at);
}
