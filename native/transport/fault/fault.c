/* SPDX-License-Identifier: Apache-2.0
 *
 * fault.c - a transport's functions with faults injected (fault.h tells which
 * faults, and what they mean). All are injected at the receiving side: what the
 * transport has delivered is kept here until the time at which it may be seen. The
 * script that says which is parsed here, too.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"

/* ---- The script ---------------------------------------------------------- */

enum { WORD = 64 };
static const int64_t DELAY_MAX = INT64_C(60000000000);
#define KNOWN "seed, drop, delay, duplicate, truncate, reorder and cut"

/* clang-format off */
static const struct chance {
  const char *name;
  size_t offset;
} chances[] = {
    {"drop", offsetof(struct script, drop)},
    {"duplicate", offsetof(struct script, duplicate)},
    {"truncate", offsetof(struct script, truncate)},
    {"reorder", offsetof(struct script, reorder)},
    {"cut", offsetof(struct script, cut)},
};
/* clang-format on */
enum { CHANCES = sizeof chances / sizeof *chances, SEED = CHANCES, DELAY };

static double *script_chance(struct script *script, size_t i) {
  return (double *)(void *)((char *)script + chances[i].offset);
}

static int script_wrong(char reason[REASON], const char *word,
                        const char *why) {
  snprintf(reason, REASON, "faults: \"%s\": %s", word, why);
  return PERIGEE_INVALID;
}

/* Parses digits with at most one point, and tells where they end. */
static bool script_decimal(const char *text, double *value, const char **end) {
  double scale = 0;
  size_t digits = 0;
  for (*value = 0; isdigit((uint8_t)*text) || (*text == '.' && scale == 0);
       text++) {
    if (*text == '.') {
      scale = 1;
      continue;
    }
    digits++;
    *value = *value * 10 + (*text - '0');
    scale *= 10;
  }
  *end = text;
  if (scale > 0)
    *value /= scale;
  return digits > 0 && digits < 19;
}

static const struct {
  const char *name;
  int64_t ns;
} units[] = {{"s", 1000000000}, {"ms", 1000000}, {"us", 1000}, {"ns", 1}};

static bool script_time(const char *text, int64_t *out) {
  double value;
  const char *unit;
  if (!script_decimal(text, &value, &unit))
    return false;
  for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
    if (strcmp(unit, units[i].name) != 0)
      continue;
    *out =
        value * units[i].ns > 1e18 ? INT64_MAX : (int64_t)(value * units[i].ns);
    return *out <= DELAY_MAX;
  }
  return false;
}

static bool script_seed(const char *text, uint64_t *seed) {
  if (!isdigit((uint8_t)*text) || strlen(text) > 19)
    return false;
  char *end;
  *seed = strtoull(text, &end, 10);
  return *end == 0 && *seed <= UINT64_C(1) << 63;
}

static int script_set(struct script *script, size_t key, const char *word,
                      const char *value, char reason[REASON]) {
  const char *end;
  if (key == SEED) {
    script->seeded = true;
    return script_seed(value, &script->seed)
               ? PERIGEE_OK
               : script_wrong(reason, word, "a seed is a number, 0 to 2^63");
  }
  if (key == DELAY)
    return script_time(value, &script->delay)
               ? PERIGEE_OK
               : script_wrong(
                     reason, word,
                     "a delay is a time like 5ms, 200us or 1s, at most 60s");
  double *chance = script_chance(script, key);
  if (!script_decimal(value, chance, &end) || *end || *chance > 1)
    return script_wrong(reason, word, "a probability is a number, 0 to 1");
  return PERIGEE_OK;
}

static size_t script_key(const char *word, size_t length) {
  size_t i = 0;
  while (i < CHANCES && (strlen(chances[i].name) != length ||
                         memcmp(chances[i].name, word, length) != 0))
    i++;
  if (i < CHANCES)
    return i;
  if (length == 4 && memcmp(word, "seed", 4) == 0)
    return SEED;
  return length == 5 && memcmp(word, "delay", 5) == 0 ? DELAY : DELAY + 1;
}

int script_parse(const char *text, struct script *script, char reason[REASON]) {
  uint32_t seen = 0;
  *script = (struct script){0};
  for (;;) {
    char word[WORD];
    text += strspn(text, ", \t\n");
    size_t length = strcspn(text, ", \t\n");
    if (length == 0)
      return PERIGEE_OK;
    snprintf(word, sizeof word, "%.*s",
             (int)(length < WORD ? length : WORD - 1), text);
    text += length;
    size_t name = strcspn(word, "="), key = script_key(word, name);
    if (key > DELAY || !word[name])
      return script_wrong(reason, word,
                          "each word is name=value; known are " KNOWN);
    if (seen & 1u << key)
      return script_wrong(reason, word, "it is said twice");
    seen |= 1u << key;
    int status = script_set(script, key, word, word + name + 1, reason);
    if (status < 0)
      return status;
  }
}

void script_text(const struct script *script, char text[SCRIPT_TEXT]) {
  int n = snprintf(text, SCRIPT_TEXT, "seed=%llu",
                   (unsigned long long)script->seed);
  size_t u = 0;
  while (script->delay % units[u].ns != 0)
    u++;
  if (script->delay > 0)
    n += snprintf(text + n, SCRIPT_TEXT - (size_t)n, " delay=%lld%s",
                  (long long)(script->delay / units[u].ns), units[u].name);
  struct script copy = *script;
  for (size_t i = 0; i < CHANCES && n < SCRIPT_TEXT; i++)
    if (*script_chance(&copy, i) > 0)
      n += snprintf(text + n, SCRIPT_TEXT - (size_t)n, " %s=%.9g",
                    chances[i].name, *script_chance(&copy, i));
}

/* ---- Faults -------------------------------------------------------------- */

enum { WRAPPED = 16, DELAYED_MAX = 256 << 10 };
static const int64_t A_WHILE = 1000000; /* ns, if the script has no delay */

/* A record that has arrived and may be seen at the time `due`. */
struct delayed {
  struct delayed *next;
  int64_t due;
  uint64_t length;
  uint8_t *bytes;
};

/* A transport's tables, as lanes with faults see them. */
struct wrapped {
  struct perigee_transport table;
  struct transport_records records;
  struct transport_payloads payloads;
  struct transport_copies copies;
  struct transport_jobs jobs;
  struct transport_frames frames;
  const struct perigee_transport *inner;
  struct faults *faults;
};

struct faults {
  struct script script;
  int64_t (*clock)(void *context);
  void *context;
  uint64_t lanes; /* made so far */
  int64_t due;
  struct wrapped wrapped[WRAPPED];
  int count;
};

/* The head of a lane with faults points to this. */
struct fault_lane {
  const struct wrapped *by;
  uint64_t dice;
  bool cut;
  struct delayed *queue[RINGS]; /* sorted by time */
  int64_t last[RINGS];          /* when the last record in order may be seen */
  struct delayed *given[RINGS]; /* peeked, and not released yet */
  uint64_t bytes;               /* of all records that are kept here */
  int64_t words;                /* when the session's frames may go on */
  uint64_t dropped, twice, cut_short, overtaken;
};

static struct fault_lane *fault_of(const struct lane *lane) {
  return ((const struct lane_head *)lane)->faults;
}

static const struct perigee_transport *fault_inner(const struct lane *lane) {
  return fault_of(lane)->by->inner;
}

/* ---- Dice and time ------------------------------------------------------- */

static uint64_t fault_roll(struct fault_lane *f) { /* splitmix64 */
  uint64_t z = f->dice += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

static bool fault_hit(struct fault_lane *f, double chance) {
  return chance > 0 && (double)(fault_roll(f) >> 11) < chance * 0x1p53;
}

static const struct script *fault_script(const struct fault_lane *f) {
  return &f->by->faults->script;
}

static int64_t fault_now(const struct fault_lane *f) {
  return f->by->faults->clock(f->by->faults->context);
}

/* Returns 0 to the script's delay, or 1 to the larger of `least` and the
 * delay. */
static int64_t fault_some_time(struct fault_lane *f, int64_t least) {
  int64_t most = fault_script(f)->delay;
  if (most < least)
    most = least;
  if (most == 0)
    return 0;
  return (least > 0) + (int64_t)(fault_roll(f) % (uint64_t)most);
}

/* Is `due` still to come? The engine has to poll again at that time. */
static bool fault_waits(struct fault_lane *f, int64_t due) {
  struct faults *all = f->by->faults;
  int64_t time = due > 0 ? fault_now(f) : 0;
  if (due <= time)
    return false;
  if (all->due <= time || due < all->due)
    all->due = due;
  return true;
}

int64_t faults_due(const struct faults *faults, int64_t time) {
  return faults->due > time && faults->due != INT64_MAX ? faults->due : -1;
}

static bool fault_cut(struct lane *lane) {
  struct fault_lane *f = fault_of(lane);
  if (!f->cut && fault_hit(f, fault_script(f)->cut))
    f->cut = ((struct lane_head *)lane)->ending = true;
  return f->cut;
}

/* ---- Records ------------------------------------------------------------- */

static void delayed_let_go(struct fault_lane *f, struct delayed **list) {
  while (*list) {
    struct delayed *h = *list;
    *list = h->next;
    f->bytes -= h->length;
    free(h->bytes);
    free(h);
  }
}

static int delayed_hold(struct fault_lane *f, enum ring ring, int64_t due,
                        const uint8_t *bytes, uint64_t length) {
  struct delayed *h = malloc(sizeof *h), **at = &f->queue[ring];
  void *copy = NULL;
  if (!h || posix_memalign(&copy, 64, length ? length : 1) != 0) {
    free(h);
    return PERIGEE_NO_MEMORY;
  }
  memcpy(copy, bytes, length);
  while (*at && (*at)->due <= due)
    at = &(*at)->next;
  *h = (struct delayed){*at, due, length, copy};
  *at = h;
  f->bytes += length;
  return PERIGEE_OK;
}

static int fault_take_record(struct fault_lane *f, enum ring ring,
                             const uint8_t *bytes, uint64_t length) {
  const struct script *s = fault_script(f);
  if (fault_hit(f, s->drop)) {
    f->dropped++;
    return PERIGEE_OK;
  }
  if (length > 0 && fault_hit(f, s->truncate)) {
    length = fault_roll(f) % length;
    f->cut_short++;
  }
  int64_t due = fault_now(f) + fault_some_time(f, 0);
  if (due < f->last[ring])
    due = f->last[ring];
  if (fault_hit(f, s->duplicate)) {
    f->twice++;
    if (delayed_hold(f, ring, due + fault_some_time(f, A_WHILE), bytes,
                     length) < 0)
      return PERIGEE_NO_MEMORY;
  }
  if (fault_hit(f, s->reorder)) {
    f->overtaken++;
    return delayed_hold(f, ring, due + fault_some_time(f, A_WHILE), bytes,
                        length);
  }
  f->last[ring] = due;
  return delayed_hold(f, ring, due, bytes, length);
}

/* Takes all records that have arrived, as far as there is room for them
 * here. */
static int fault_take_in(struct lane *lane, enum ring ring) {
  struct fault_lane *f = fault_of(lane);
  const uint8_t *bytes;
  uint64_t length;
  int status = 0;
  while (f->bytes < DELAYED_MAX &&
         (status = fault_inner(lane)->records->peek(lane, ring, &bytes,
                                                    &length)) > 0 &&
         !fault_cut(lane))
    if ((status = fault_take_record(f, ring, bytes, length)) < 0)
      break;
  return status;
}

static int fault_peek(struct lane *lane, enum ring ring, const uint8_t **bytes,
                      uint64_t *length) {
  struct fault_lane *f = fault_of(lane);
  if (f->cut)
    return 0;
  int status = fault_take_in(lane, ring);
  struct delayed *h = f->queue[ring];
  if (f->cut || !h || fault_waits(f, h->due))
    return f->cut || status > 0 ? 0 : status;
  f->queue[ring] = h->next;
  h->next = f->given[ring];
  f->given[ring] = h;
  *bytes = h->bytes;
  *length = h->length;
  return 1;
}

static bool fault_release(struct lane *lane) {
  struct fault_lane *f = fault_of(lane);
  for (int i = 0; i < RINGS; i++)
    delayed_let_go(f, &f->given[i]);
  return fault_inner(lane)->records->release(lane);
}

static uint8_t *fault_reserve(struct lane *lane, enum ring ring,
                              uint64_t length) {
  return fault_of(lane)->cut
             ? NULL
             : fault_inner(lane)->records->reserve(lane, ring, length);
}

/* ---- Payloads and copies ------------------------------------------------- */

enum { BEGUN = -1 }; /* delayed no more; other faults of a step may follow */

/* True if the fetch has begun to fill memory that copies asynchronously. Such
 * memory is filled in order, and later fetches wait for the first one, so that
 * one must not be delayed again. */
static bool fetch_has_begun(const struct fetch *fetch) {
  const struct payload *into = fetch->into;
  return !into->memory->direct &&
         (payload_busy(into) || into->done || fetch->delayed_until == BEGUN);
}

/* Each fetch is delayed once, before its first step. Fetches that are in
 * progress at the same time are delayed at the same time, as by a long wire. */
static int64_t fault_fetch(struct lane *lane, struct fetch *fetch) {
  struct fault_lane *f = fault_of(lane);
  const struct script *s = fault_script(f);
  if (f->cut)
    return PERIGEE_PEER_LOST;
  if (fetch->delayed_until <= 0 && !fetch_has_begun(fetch)) {
    if (fault_cut(lane))
      return PERIGEE_PEER_LOST;
    if (fault_hit(f, s->truncate)) {
      f->cut_short++;
      return PERIGEE_PROTOCOL;
    }
    fetch->delayed_until = fetch->delayed_until == 0
                               ? fault_now(f) + fault_some_time(f, 0)
                               : fault_now(f);
    if (fault_hit(f, s->drop)) {
      f->dropped++;
      fetch->delayed_until = INT64_MAX;
    }
  }
  if (fetch->delayed_until == INT64_MAX || fault_waits(f, fetch->delayed_until))
    return 0;
  int64_t moved = fault_inner(lane)->payloads->fetch(lane, fetch);
  if (moved != 0)
    fetch->delayed_until = BEGUN;
  return moved;
}

/* Returns 1 if the copy may go on, 0 if not yet, or a status. */
static int fault_copy_goes_on(struct lane *lane, struct payload *local) {
  struct fault_lane *f = fault_of(lane);
  if (f->cut)
    return PERIGEE_PEER_LOST;
  if (local->delayed_until == 0)
    local->delayed_until = fault_now(f) + fault_some_time(f, 0);
  if (fault_waits(f, local->delayed_until))
    return 0;
  if (fault_cut(lane))
    return PERIGEE_PEER_LOST;
  if (!fault_hit(f, fault_script(f)->truncate))
    return 1;
  f->cut_short++;
  return PERIGEE_PROTOCOL;
}

static int64_t fault_copy(struct lane *lane, const struct window *window,
                          struct payload *remote, struct payload *local,
                          uint64_t limit, bool write) {
  struct fault_lane *f = fault_of(lane);
  bool under_way = payload_busy(remote) || payload_busy(local);
  bool asks = limit == 0; /* whether the window is granted: wants an answer */
  int go = under_way || (asks && !f->cut) ? 1 : fault_copy_goes_on(lane, local);
  if (go <= 0)
    return go;
  if (!under_way && limit > 1 && fault_hit(f, fault_script(f)->reorder))
    limit = 1 + fault_roll(f) % limit;
  return fault_inner(lane)->copies->copy(lane, window, remote, local, limit,
                                         write);
}

static int fault_post(struct lane *lane, struct job *job,
                      const struct window *window, struct payload *remote,
                      struct payload *local, bool write) {
  int go = fault_copy_goes_on(lane, local);
  if (go <= 0)
    return go;
  return fault_inner(lane)->jobs->post(lane, job, window, remote, local, write);
}

/* ---- The session's frames, where the lane carries them ------------------- */

static int fault_say(struct lane *lane, const uint8_t *bytes, uint32_t length) {
  return fault_of(lane)->cut
             ? PERIGEE_PEER_LOST
             : fault_inner(lane)->frames->say(lane, bytes, length);
}

static uint32_t fault_hear(struct lane *lane, uint8_t *bytes, uint32_t room) {
  struct fault_lane *f = fault_of(lane);
  if (f->cut || fault_waits(f, f->words))
    return 0;
  uint32_t got = fault_inner(lane)->frames->hear(lane, bytes, room);
  if (got > 0 && fault_script(f)->delay)
    f->words = fault_now(f) + fault_some_time(f, 0);
  return got;
}

/* ---- The lane ------------------------------------------------------------ */

static int fault_broken(const struct lane *lane, const char **reason) {
  if (fault_of(lane)->cut) {
    *reason = "faults on purpose: the lane was cut";
    return PERIGEE_PEER_LOST;
  }
  return fault_inner(lane)->broken ? fault_inner(lane)->broken(lane, reason)
                                   : PERIGEE_OK;
}

/* The faults come first, as there may not be room for all. */
static void fault_describe(const struct lane *lane, struct lane_facts *facts) {
  const struct fault_lane *f = fault_of(lane);
  char script[SCRIPT_TEXT];
  script_text(fault_script(f), script);
  fact_text(facts, "faults_on_purpose", "%s", script);
  fact_number(facts, "dropped", f->dropped);
  fact_number(facts, "twice", f->twice);
  fact_number(facts, "cut_short", f->cut_short);
  fact_number(facts, "overtaken", f->overtaken);
  if (fault_inner(lane)->describe)
    fault_inner(lane)->describe(lane, facts);
}

static void fault_close(struct lane *lane) {
  struct fault_lane *f = fault_of(lane);
  const struct perigee_transport *t = fault_inner(lane);
  for (int i = 0; i < RINGS; i++) {
    delayed_let_go(f, &f->queue[i]);
    delayed_let_go(f, &f->given[i]);
  }
  free(f);
  t->close(lane);
}

/* ---- What an engine asked for -------------------------------------------- */

int faults_open(const struct script *script, int64_t (*clock)(void *),
                void *context, struct faults **out) {
  struct faults *faults = calloc(1, sizeof *faults);
  if (!faults)
    return PERIGEE_NO_MEMORY;
  faults->script = *script;
  faults->clock = clock;
  faults->context = context;
  *out = faults;
  return PERIGEE_OK;
}

void faults_close(struct faults *faults) {
  free(faults);
}

/* Copies one of the inner transport's tables, to be changed. A group that the
 * transport does not have is absent with faults, too. */
#define TAKE_OVER(w, group)                                                    \
  if ((w)->inner->group) {                                                     \
    (w)->group = *(w)->inner->group;                                           \
    (w)->table.group = &(w)->group;                                            \
  }

static void wrapped_inject(struct wrapped *w) {
  TAKE_OVER(w, records);
  TAKE_OVER(w, payloads);
  TAKE_OVER(w, copies);
  TAKE_OVER(w, jobs);
  TAKE_OVER(w, frames);
  w->table.rests = NULL; /* delayed records come by time, without an event */
  w->table.broken = fault_broken;
  w->table.describe = fault_describe;
  w->table.close = fault_close;
  w->records.peek = fault_peek;
  w->records.release = fault_release;
  w->records.reserve = fault_reserve;
  w->records.lend = NULL;
  w->records.unlend = NULL;
  w->payloads.fetch = fault_fetch;
  w->copies.copy = fault_copy;
  w->copies.immediate = false;
  w->jobs.post = fault_post;
  w->frames.say = fault_say;
  w->frames.hear = fault_hear;
}

static const struct wrapped *
faults_wrap(struct faults *faults, const struct perigee_transport *inner) {
  for (int i = 0; i < faults->count; i++)
    if (faults->wrapped[i].inner == inner)
      return &faults->wrapped[i];
  if (faults->count == WRAPPED)
    return NULL;
  struct wrapped *w = &faults->wrapped[faults->count++];
  *w = (struct wrapped){.table = *inner, .inner = inner, .faults = faults};
  wrapped_inject(w);
  return w;
}

const struct perigee_transport *faults_join(struct faults *faults,
                                            struct lane *lane) {
  struct lane_head *head = (struct lane_head *)lane;
  const struct wrapped *by = faults_wrap(faults, head->transport);
  struct fault_lane *f = by ? calloc(1, sizeof *f) : NULL;
  if (!f)
    return NULL;
  f->by = by;
  f->dice = faults->script.seed + (faults->lanes++ << 32);
  lane_by(lane, &by->table);
  head->faults = f;
  return &by->table;
}
