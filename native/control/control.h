/* SPDX-License-Identifier: Apache-2.0
 *
 * control.h - the whole interface of perigee/control.so, which speaks other
 * servers' protocols by their libraries. It is a second shared object so that
 * the core needs none of these libraries. Its ffi.cdef is made of this file.
 *
 * Nothing here calls back, and only two things block: perigee_web_open looks up
 * its host's name, and a store waits for its disk, and up to 5 seconds for
 * another process that writes. The program steps a stream, or a client of HTTP
 * servers, whenever the descriptor that it names is ready, and waits for that
 * by its own means (perigee_watch). Statuses are perigee_status.
 */
#ifndef PERIGEE_CONTROL_H
#define PERIGEE_CONTROL_H

#ifdef PERIGEE_CDEF
#define PERIGEE_API
#else
#include <stdint.h>
#define PERIGEE_API __attribute__((visibility("default")))
#endif

/* Raised when a declaration below changes; Lua refuses an object with another
 * number. */
enum { PERIGEE_CONTROL_ABI = 6 };
PERIGEE_API int perigee_control_abi(void);

/* ---- Streams ------------------------------------------------------------- */

struct perigee_stream;

/* Where to connect. path: a Unix socket, or NULL for host (a name is looked up,
 * and its addresses are tried side by side) and port. milliseconds: how long
 * the program will wait (0: as long as it takes), in which each address gets
 * its turn. tls: 1 encrypts, and checks the server's certificate for host
 * against authorities (a file; NULL: the system's). certificate and key: files
 * with this side's own, or NULL. */
struct perigee_stream_to {
  const char *path, *host;
  uint32_t milliseconds;
  uint16_t port;
  uint8_t tls;
  const char *authorities, *certificate, *key;
};

/* The next event that a stream waits for: its descriptor is readable or
 * writable, or that many milliseconds have passed, whichever comes first. */
struct perigee_stream_wait {
  int32_t descriptor, milliseconds; /* each -1: none */
  uint8_t readable, writable;
};

/* Begins to connect; returns NULL if there is no memory. Copies what `to`
 * points to. */
PERIGEE_API struct perigee_stream *
perigee_stream_open(const struct perigee_stream_to *to);
/* Goes on connecting. Returns 1: connected; 0: waiting, as `wait` says; else
 * the status of the failure. */
PERIGEE_API int perigee_stream_step(struct perigee_stream *stream,
                                    struct perigee_stream_wait *wait);
/* Returns what went wrong, in words. */
PERIGEE_API const char *perigee_stream_why(const struct perigee_stream *stream);
/* Returns the present descriptor, which changes while the stream connects. The
 * program must stop waiting for a descriptor before the stream closes it. */
PERIGEE_API int perigee_stream_descriptor(const struct perigee_stream *stream);
PERIGEE_API void perigee_stream_close(struct perigee_stream *stream);

/* ---- Redis --------------------------------------------------------------- */

struct perigee_redis;
struct perigee_reply;

/* Speaks to the server at the other end of a connected stream, and owns the
 * stream from then on. Returns NULL if there is no memory. */
PERIGEE_API struct perigee_redis *
perigee_redis_open(struct perigee_stream *stream);
PERIGEE_API void perigee_redis_close(struct perigee_redis *redis);

/* Queues a command of `words` words. */
PERIGEE_API int perigee_redis_put(struct perigee_redis *redis, int words,
                                  const char **word, const uint64_t *length);
/* Sends what is queued. Returns 1: all was sent; 0: waiting; else the stream
 * has ended. */
PERIGEE_API int perigee_redis_flush(struct perigee_redis *redis,
                                    struct perigee_stream_wait *wait);
/* Takes the next reply. Returns 1, and *reply, which the caller frees; 0:
 * waiting; else the stream has ended, or the server does not speak Redis'
 * protocol. */
PERIGEE_API int perigee_redis_get(struct perigee_redis *redis,
                                  struct perigee_reply **reply,
                                  struct perigee_stream_wait *wait);
PERIGEE_API const char *perigee_redis_why(const struct perigee_redis *redis);

enum perigee_reply_kind {
  PERIGEE_REPLY_NIL,
  PERIGEE_REPLY_TEXT,
  PERIGEE_REPLY_INTEGER,
  PERIGEE_REPLY_LIST,
  PERIGEE_REPLY_STATUS, /* a text */
  PERIGEE_REPLY_FAILURE /* a text */
};
PERIGEE_API int perigee_reply_kind(const struct perigee_reply *reply);
PERIGEE_API int64_t perigee_reply_integer(const struct perigee_reply *reply);
PERIGEE_API const char *perigee_reply_text(const struct perigee_reply *reply,
                                           uint64_t *length);
PERIGEE_API uint64_t perigee_reply_count(const struct perigee_reply *reply);
/* Returns an entry of the reply's list, valid as long as the reply. */
PERIGEE_API const struct perigee_reply *
perigee_reply_at(const struct perigee_reply *reply, uint64_t index);
PERIGEE_API void perigee_reply_free(struct perigee_reply *reply);

/* ---- HTTP ---------------------------------------------------------------- */

/* A client of HTTP servers: it keeps connections, and runs any number of calls
 * at once. A call is one request and its answer. The program steps the client
 * whenever the client's descriptor is readable, asks it which calls have news,
 * and looks at these. Lua's side is perigee.control.http. */
struct perigee_http;
struct perigee_http_call;

/* All texts are copied. Nothing is taken from the environment, and no redirect
 * is followed. A request on a kept connection that turns out to be closed is
 * sent once more on a new one, so a server may get it twice. */
struct perigee_http_request {
  const char *method, *url;  /* http:// or https://, with no user in it */
  const char *path;          /* a Unix socket for url's host; or NULL */
  const char *const *header; /* lines "Name: value", up to a NULL; or NULL */
  const char *body;          /* or NULL: none */
  uint64_t length;           /* of body */
  /* TLS: files, as of perigee_stream_to, each may be NULL. */
  const char *authorities, *certificate, *key;
  const char *proxy;         /* its URL; NULL: none */
  int32_t connecting, total; /* milliseconds at most; 0: without limit */
  /* The answer's bytes at most; a longer one fails with PERIGEE_TOO_LARGE. Of a
   * streamed one so many that are not taken; then its sender has to wait. */
  uint64_t limit;
  uint64_t tag; /* by which the call is named in news: any number but 0 */
  uint8_t streamed;
};

/* The part of an answer that has come. All is valid until the next step, take
 * or end. */
struct perigee_http_answer {
  int32_t status;   /* HTTP's; 0: the head is not complete yet */
  int32_t result;   /* 0: goes on; 1: complete; else the failure's status */
  const char *head; /* the status line and the header's lines, with CR LF */
  const char *body; /* what was not taken */
  const char *why;  /* what failed, in words */
  uint64_t head_length, length;
};

/* Returns NULL if there is no memory, or no descriptor. */
PERIGEE_API struct perigee_http *perigee_http_open(void);
/* Ends all calls that are left. */
PERIGEE_API void perigee_http_close(struct perigee_http *http);
/* Returns the descriptor, the same for the client's whole life, that is
 * readable when there is something to do. */
PERIGEE_API int perigee_http_descriptor(const struct perigee_http *http);
/* Goes on with all calls, without blocking. Returns a status. */
PERIGEE_API int perigee_http_step(struct perigee_http *http);
/* Returns the tag of a call of which something has come that the program was
 * not told of; 0: none. */
PERIGEE_API uint64_t perigee_http_news(struct perigee_http *http);
/* Begins a call; PERIGEE_INVALID: the method or a header's line is not valid.
 * An address that is not valid fails the call. */
PERIGEE_API int perigee_http_send(struct perigee_http *http,
                                  const struct perigee_http_request *request,
                                  struct perigee_http_call **call);
PERIGEE_API void perigee_http_look(const struct perigee_http_call *call,
                                   struct perigee_http_answer *answer);
/* Takes the first bytes of the body away, and lets more come. */
PERIGEE_API void perigee_http_take(struct perigee_http_call *call,
                                   uint64_t length);
/* Ends a call, whatever it is at, and frees it. */
PERIGEE_API void perigee_http_end(struct perigee_http_call *call);
/* Returns the seconds since 1970 of a date as in HTTP's headers; -1: it is none.
 */
PERIGEE_API int64_t perigee_http_date(const char *text);

/* ---- JSON ---------------------------------------------------------------- */

/* A scan of JSON that others have written, for a decoder that makes values of
 * its tokens. It goes piece by piece, and refuses what a decoder would need too
 * much memory for before the decoder has made anything of it. */
struct perigee_json;

enum perigee_json_kind {
  PERIGEE_JSON_NULL,
  PERIGEE_JSON_FALSE,
  PERIGEE_JSON_TRUE,
  PERIGEE_JSON_NUMBER,
  PERIGEE_JSON_TEXT,
  PERIGEE_JSON_KEY,    /* its value is the next token */
  PERIGEE_JSON_LIST,   /* what is in it follows, up to its end */
  PERIGEE_JSON_OBJECT, /* as well */
  PERIGEE_JSON_END
};

/* text and length: of a text or a key, whose escapes are replaced; valid until
 * the next call, and as long as the piece. */
struct perigee_json_token {
  const char *text;
  uint64_t length;
  double number;
  int32_t kind;
};

/* memory: bytes, about, that the values may take in all. Returns NULL if there
 * is no memory. */
PERIGEE_API struct perigee_json *perigee_json_open(uint64_t memory);
PERIGEE_API void perigee_json_close(struct perigee_json *json);
/* Gives it the next piece, which has to stay until it is used up. */
PERIGEE_API void perigee_json_feed(struct perigee_json *json, const char *piece,
                                   uint64_t length);
/* Returns 1: there is a token; 0: the piece is used up; else why the scan has
 * failed: PERIGEE_PROTOCOL, PERIGEE_TOO_LARGE or PERIGEE_NO_MEMORY. A number
 * ends with what follows, so a blank ends one that is all there is. */
PERIGEE_API int perigee_json_next(struct perigee_json *json,
                                  struct perigee_json_token *token);
/* Returns 1 if that was a whole value. */
PERIGEE_API int perigee_json_ended(const struct perigee_json *json);
/* Returns what is wrong, in words. */
PERIGEE_API const char *perigee_json_why(const struct perigee_json *json);

/* ---- Base64 -------------------------------------------------------------- */

/* RFC 4648 with padding, by libsodium. Both return the length of what they have
 * written, or -1 if it does not fit or `from` is not valid. */
PERIGEE_API int64_t perigee_base64(char *into, uint64_t capacity,
                                   const char *from, uint64_t length);
PERIGEE_API int64_t perigee_from_base64(char *into, uint64_t capacity,
                                        const char *from, uint64_t length);

/* ---- An HTTP server ------------------------------------------------------ */

struct perigee_web;

/* The settings of a server. It listens at host (a name or a number) and port
 * (0: a free one). certificate and key: texts in PEM, for TLS 1.2 or 1.3; or
 * NULL for a server without TLS. A connection that has not sent a whole
 * request, or taken an answer, within `patience` seconds is closed, whatever it
 * has sent or taken of it; one that has sent no head at all within 5. Beyond
 * `connections` the address that has most silent ones loses its oldest one. */
struct perigee_web_to {
  const char *host, *certificate, *key;
  uint16_t port;
  uint32_t connections, per_host; /* at most; per_host 0: as connections */
  uint32_t head, body;            /* bytes of a request at most; a connection
                                   * has head and a half of memory, and at
                                   * least 1024 more than head */
  uint32_t patience;              /* seconds */
  uint32_t queued;  /* bytes that a stream's client may be behind */
  uint64_t backlog; /* bytes that all are together; 0: any number */
  uint64_t answers; /* bytes of answers that clients have not taken, together,
                     * beyond which perigee_web_room is none; 0: any number */
  /* The hosts that a request may name, separated by spaces, besides localhost,
   * `host`, those of the certificate, and addresses: of loopback alone if it
   * listens there. NULL: any. With it, a page of another origin is refused. */
  const char *names;
};

/* A complete request. The texts belong to it. */
struct perigee_web_request {
  const char *method, *target; /* target: the path and the query, as sent */
  const char *body;
  uint64_t length;
  uint8_t excess; /* the body is not here: it was larger than allowed (1), or
                   * there was no memory for long ones (2) */
  uint8_t gone;   /* a stream's client has gone, or was cut off */
};

/* An answer. header: names and values in turn, up to a NULL; copied, as the
 * body is. */
struct perigee_web_reply {
  uint32_t status;
  const char *header[13];
  const char *body;
  uint64_t length;
};

/* Returns a status, and in *web the server, or in why what went wrong. */
PERIGEE_API int perigee_web_open(struct perigee_web **web,
                                 const struct perigee_web_to *to, char *why,
                                 uint64_t capacity);
/* Closes all connections, and frees all requests. */
PERIGEE_API void perigee_web_close(struct perigee_web *web);
PERIGEE_API uint16_t perigee_web_port(const struct perigee_web *web);
/* Writes the address that it listens at, in numbers, and a NUL. */
PERIGEE_API void perigee_web_address(const struct perigee_web *web,
                                     char text[64]);
/* Returns the descriptor that is readable when perigee_web_run has work. */
PERIGEE_API int perigee_web_descriptor(const struct perigee_web *web);
/* Reads and writes what can be read and written now. Returns the milliseconds
 * after which it must be called again even if the descriptor is not readable;
 * -1: never. Call it again after answers, before waiting. */
PERIGEE_API int perigee_web_run(struct perigee_web *web);
/* Returns a request that waits for its answer, the oldest first, or NULL. The
 * program owns it until it is answered, or its stream ended. */
PERIGEE_API struct perigee_web_request *
perigee_web_next(struct perigee_web *web);
/* Returns the value of a request's header, or NULL. Several are joined by
 * commas. Valid until the next call, and the answer. */
PERIGEE_API const char *
perigee_web_header(const struct perigee_web_request *request, const char *name);
/* Answers the request, which is gone for the program then. */
PERIGEE_API void perigee_web_answer(struct perigee_web_request *request,
                                    const struct perigee_web_reply *reply);
/* Returns the bytes that an answer may have now so that there is room for
 * others. A longer one is sent, too; the program better waits with it until the
 * server has run again. */
PERIGEE_API uint64_t perigee_web_room(const struct perigee_web *web);
/* Counts its connections, and those of them that are streams. */
PERIGEE_API void perigee_web_count(const struct perigee_web *web,
                                   uint32_t *connections, uint32_t *streams);
/* Is there a place for a stream? trusted: whose it is, is known. Strangers have
 * half of the places of which streams have some at most. */
PERIGEE_API int
perigee_web_may_stream(const struct perigee_web_request *request, int trusted);
/* Answers it with a stream of parts, until perigee_web_end. Returns a status;
 * if it fails the request is gone. */
PERIGEE_API int perigee_web_stream(struct perigee_web_request *request,
                                   const struct perigee_web_reply *reply,
                                   int trusted);
/* Returns the bytes that were told and not sent; UINT64_MAX while those of all
 * streams are more than half of what they may be. */
PERIGEE_API uint64_t
perigee_web_behind(const struct perigee_web_request *request);
/* Adds a part, which is copied. A client that has not taken all before, and
 * with this part is too far behind, loses its stream, and is gone. So do those
 * that have been behind for longest, while all are too far behind together. */
PERIGEE_API void perigee_web_tell(struct perigee_web_request *request,
                                  const char *part, uint64_t length);
/* Ends the stream after what was told, and gives up the request. */
PERIGEE_API void perigee_web_end(struct perigee_web_request *request);

/* ---- SQLite -------------------------------------------------------------- */

struct perigee_store;
struct perigee_statement;

/* Opens a file of SQLite's, or makes it (mode 0600), with a write-ahead log
 * that is synced at each commit. Returns a status; *store is NULL only without
 * memory, and else tells why it failed and must be closed. */
PERIGEE_API int perigee_store_open(struct perigee_store **store,
                                   const char *path);
/* Returns why the last function, also of a statement, failed. Valid until the
 * next. */
PERIGEE_API const char *perigee_store_why(const struct perigee_store *store);
PERIGEE_API void perigee_store_close(struct perigee_store *store);
/* Takes the lock of the file `lock` for the store's life. `name_taken`: another
 * process, or store, has it. */
PERIGEE_API int perigee_store_own(struct perigee_store *store,
                                  const char *lock);
/* Runs statements that give no rows. Returns a status: `no_memory` also where
 * the disk is full. */
PERIGEE_API int perigee_store_run(struct perigee_store *store, const char *sql);
/* Prepares a statement, which lives as long as the store. NULL: it failed. */
PERIGEE_API struct perigee_statement *
perigee_store_prepare(struct perigee_store *store, const char *sql);
/* Sets a parameter, the first is 1. The text is copied. */
PERIGEE_API int perigee_statement_text(struct perigee_statement *statement,
                                       int at, const char *text,
                                       uint64_t length);
PERIGEE_API int perigee_statement_number(struct perigee_statement *statement,
                                         int at, int64_t value);
/* Returns 1: there is a row; 0: there is no more; else a status. */
PERIGEE_API int perigee_statement_step(struct perigee_statement *statement);
/* Makes it ready for other parameters. */
PERIGEE_API void perigee_statement_reset(struct perigee_statement *statement);
/* Returns a column of the row, the first is 0; NULL if it is null. Valid until
 * the next step or reset. */
PERIGEE_API const char *
perigee_statement_column(struct perigee_statement *statement, int at,
                         uint64_t *length);
PERIGEE_API int64_t
perigee_statement_integer(struct perigee_statement *statement, int at);

/* ---- What a server knows -------------------------------------------------- */

/* The texts of a record. */
enum perigee_known_part {
  PERIGEE_KNOWN_NAME,
  PERIGEE_KNOWN_TEXT,
  PERIGEE_KNOWN_KIND,
  PERIGEE_KNOWN_EPOCH,
  PERIGEE_KNOWN_SERVICES,
  PERIGEE_KNOWN_PARTS
};

/* A record, outside of Lua's heap: a server has many, for long, and memory that
 * Lua's heap has had it does not give back. The numbers are the program's. at:
 * where a part is in `bytes`; length: its bytes, or -1: there is none. */
struct perigee_known {
  double revision, ttl, began, deadline, slot, taken;
  uint32_t of; /* the number of its collection */
  int32_t at[PERIGEE_KNOWN_PARTS], length[PERIGEE_KNOWN_PARTS];
  char bytes[];
};

/* The parts of a record; a part may be NULL. */
struct perigee_known_from {
  const char *part[PERIGEE_KNOWN_PARTS];
  uint32_t length[PERIGEE_KNOWN_PARTS];
};

/* Copies the parts; all numbers are 0. NULL without memory. */
PERIGEE_API struct perigee_known *
perigee_known_new(const struct perigee_known_from *from);
PERIGEE_API void perigee_known_free(struct perigee_known *known);
/* Gives memory that was freed back to the system. */
PERIGEE_API void perigee_known_trim(void);

/* ---- Private files ------------------------------------------------------- */

/* Reads a file of this user's, or root's, that others cannot read nor write; a
 * group may read it if `group`. Returns its length; or a status: `denied` also
 * where others can. */
PERIGEE_API int64_t perigee_private_read(const char *path, int group,
                                         char *into, uint64_t capacity);
/* Writes such a file, of mode 0600, in place of what is there, at once. */
PERIGEE_API int perigee_private_write(const char *path, const char *text,
                                      uint64_t length);

/* ---- Tokens -------------------------------------------------------------- */

/* Writes a text of 43 random characters (256 bits), and a NUL. */
PERIGEE_API int perigee_token_make(char text[44]);
/* Writes the hash of a text: 64 hexadecimal characters, and a NUL. */
PERIGEE_API int perigee_token_hash(char hash[65], const char *text,
                                   uint64_t length);

#endif
