/* SPDX-License-Identifier: Apache-2.0 */
#include "ptx.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

enum { INSTRUCTIONS = 256, REGISTERS = 64, LABELS = 32, OPERANDS = 4 };
enum { NAME = 48, STEPS = 1 << 20 };

/* What an instruction does beside arithmetic. */
enum act { ARITHMETIC, LOAD, STORE, PARAMETER, BRANCH, RETURN };

/* One that is known. `shape` has a letter for each operand: d, w, h, p is a
 * register of 64, 32 or 16 bits, or a predicate; D, W may be a number instead;
 * s is a special register, m memory, v two registers of 64 bits, n a name. */
struct known {
  const char *name, *shape;
  enum act act;
  uint32_t bytes; /* of a load or store */
  uint64_t (*value)(uint64_t a, uint64_t b, uint64_t c);
};

struct operand {
  int registers[2]; /* -1: none */
  uint64_t number;  /* or what is added to an address */
  char name[NAME];
};

struct instruction {
  const struct known *known;
  int guard; /* -1: it is always done */
  int target;
  struct operand operands[OPERANDS];
};

struct ptx {
  char registers[REGISTERS][NAME], widths[REGISTERS];
  char labels[LABELS][NAME];
  int at[LABELS];
  int register_count, label_count, count;
  struct instruction instructions[INSTRUCTIONS];
};

/* ---- Instructions --------------------------------------------------------- */

#define VALUE(name, expression)                                                \
  static uint64_t name(uint64_t a, uint64_t b, uint64_t c) {                   \
    (void)a, (void)b, (void)c;                                                 \
    return expression;                                                         \
  }
VALUE(of_same, a)
VALUE(of_sum, a + b)
VALUE(of_difference, a - b)
VALUE(of_product, (a) * (b))
VALUE(of_product_and_sum, (a) * (b) + c)
VALUE(of_either, a ^ b)
VALUE(of_both, (a) & (b))
VALUE(of_complement, ~a)
VALUE(of_negative, -a)
VALUE(of_least, a < b ? a : b)
VALUE(of_shifted, b > 63 ? 0 : a << b)
VALUE(of_is_at_least, a >= b)
VALUE(of_is_other, a != b)
VALUE(of_is_equal, a == b)

static const struct known known[] = {
    {"ld.param.u64", "dn", PARAMETER, 0, NULL},
    {"ld.param.u32", "wn", PARAMETER, 0, NULL},
    {"ld.global.u8", "hm", LOAD, 1, NULL},
    {"ld.global.u32", "wm", LOAD, 4, NULL},
    {"ld.global.u64", "dm", LOAD, 8, NULL},
    {"ld.global.v2.u64", "vm", LOAD, 16, NULL},
    {"st.global.u8", "mh", STORE, 1, NULL},
    {"st.global.u32", "mw", STORE, 4, NULL},
    {"st.global.u64", "md", STORE, 8, NULL},
    {"st.global.v2.u64", "mv", STORE, 16, NULL},
    {"bra", "n", BRANCH, 0, NULL},
    {"ret", "", RETURN, 0, NULL},
    {"cvta.to.global.u64", "dd", ARITHMETIC, 0, of_same},
    {"cvt.u64.u32", "dw", ARITHMETIC, 0, of_same},
    {"mov.u32", "ws", ARITHMETIC, 0, of_same},
    {"mov.u64", "dD", ARITHMETIC, 0, of_same},
    {"add.u64", "ddD", ARITHMETIC, 0, of_sum},
    {"add.u32", "wwW", ARITHMETIC, 0, of_sum},
    {"sub.u64", "ddD", ARITHMETIC, 0, of_difference},
    {"mul.wide.u32", "dwW", ARITHMETIC, 0, of_product},
    {"mad.lo.u64", "ddDd", ARITHMETIC, 0, of_product_and_sum},
    {"xor.b64", "ddD", ARITHMETIC, 0, of_either},
    {"and.b64", "ddD", ARITHMETIC, 0, of_both},
    {"not.b64", "dd", ARITHMETIC, 0, of_complement},
    {"neg.s64", "dd", ARITHMETIC, 0, of_negative},
    {"min.u64", "ddD", ARITHMETIC, 0, of_least},
    {"shl.b64", "ddW", ARITHMETIC, 0, of_shifted},
    {"setp.ge.u32", "pwW", ARITHMETIC, 0, of_is_at_least},
    {"setp.ge.u64", "pdD", ARITHMETIC, 0, of_is_at_least},
    {"setp.ne.u64", "pdD", ARITHMETIC, 0, of_is_other},
    {"setp.eq.u64", "pdD", ARITHMETIC, 0, of_is_equal},
};

static const struct known *known_named(const char *name) {
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strcmp(known[i].name, name) == 0)
      return &known[i];
  fail_msg("no instruction \"%s\" is known", name);
  return NULL;
}

/* ---- Reading -------------------------------------------------------------- */

/* Takes a word of such characters off the text's front. */
static bool word_take(const char **text, const char *others, char *word) {
  size_t n = 0;
  *text += strspn(*text, " \t");
  while (isalnum((unsigned char)(*text)[n]) ||
         ((*text)[n] && strchr(others, (*text)[n])))
    n++;
  assert_true(n < NAME);
  memcpy(word, *text, n);
  word[n] = 0;
  *text += n;
  return n > 0;
}

static void sign_take(const char **text, char sign) {
  *text += strspn(*text, " \t");
  if (**text != sign)
    fail_msg("no '%c' at \"%s\"", sign, *text);
  ++*text;
}

static int register_named(const struct ptx *p, const char *name, char width) {
  int i = 0;
  while (i < p->register_count && strcmp(p->registers[i], name) != 0)
    i++;
  if (i == p->register_count || p->widths[i] != width)
    fail_msg("no register %s of the width %c", name, width);
  return i;
}

static char register_width(const char *type) {
  static const struct {
    const char *type;
    char width;
  } all[] = {{".b64", 'd'}, {".b32", 'w'}, {".b16", 'h'}, {".pred", 'p'}};
  for (int i = 0; i < 4; i++)
    if (strcmp(all[i].type, type) == 0)
      return all[i].width;
  fail_msg("no registers of type %s", type);
  return 0;
}

static void registers_read(struct ptx *p, const char *text) {
  char type[NAME];
  assert_true(word_take(&text, ".", type));
  do {
    assert_true(p->register_count < REGISTERS);
    p->widths[p->register_count] = register_width(type);
    assert_true(word_take(&text, "%", p->registers[p->register_count++]));
    text += strspn(text, " ");
  } while (*text++ == ',');
}

static void address_read(const struct ptx *p, const char **text,
                         struct operand *o) {
  char word[NAME];
  sign_take(text, '[');
  assert_true(word_take(text, "%", word));
  o->registers[0] = register_named(p, word, 'd');
  if (**text == '+')
    o->number = strtoull(*text + 1, (char **)text, 10);
  sign_take(text, ']');
}

static void pair_read(const struct ptx *p, const char **text,
                      struct operand *o) {
  char word[NAME];
  for (int i = 0; i < 2; i++) {
    sign_take(text, i == 0 ? '{' : ',');
    assert_true(word_take(text, "%", word));
    o->registers[i] = register_named(p, word, 'd');
  }
  sign_take(text, '}');
}

static void name_read(const char **text, struct operand *o) {
  bool boxed = *(*text += strspn(*text, " ")) == '[';
  if (boxed)
    sign_take(text, '[');
  assert_true(word_take(text, "_.%", o->name));
  if (boxed)
    sign_take(text, ']');
}

static void operand_read(const struct ptx *p, const char **text, char shape,
                         struct operand *o) {
  char word[NAME];
  o->registers[0] = o->registers[1] = -1;
  if (shape == 'm')
    address_read(p, text, o);
  else if (shape == 'v')
    pair_read(p, text, o);
  else if (shape == 'n' || shape == 's')
    name_read(text, o);
  else if (word_take(text, "%", word) && isdigit((unsigned char)*word) &&
           isupper((unsigned char)shape))
    o->number = strtoull(word, NULL, 10);
  else
    o->registers[0] =
        register_named(p, word, (char)tolower((unsigned char)shape));
}

static void instruction_read(struct ptx *p, const char *text) {
  struct instruction *n = &p->instructions[p->count++];
  char word[NAME];
  assert_true(p->count < INSTRUCTIONS);
  n->guard = -1;
  if (*text == '@') {
    text++;
    assert_true(word_take(&text, "%", word));
    n->guard = register_named(p, word, 'p');
  }
  assert_true(word_take(&text, ".", word));
  n->known = known_named(word);
  for (int i = 0; n->known->shape[i]; i++) {
    if (i > 0)
      sign_take(&text, ',');
    operand_read(p, &text, n->known->shape[i], &n->operands[i]);
  }
  assert_string_equal(text, ";");
}

static int label_named(const struct ptx *p, const char *name) {
  for (int i = 0; i < p->label_count; i++)
    if (strcmp(p->labels[i], name) == 0)
      return p->at[i];
  fail_msg("no label %s", name);
  return -1;
}

/* Directives other than .reg are the assembler's business. */
static void line_read(struct ptx *p, const char *line) {
  size_t length = strlen(line);
  if (strncmp(line, ".reg ", 5) == 0) {
    registers_read(p, line + 5);
  } else if (length > 1 && line[length - 1] == ':') {
    assert_true(p->label_count < LABELS && length < NAME);
    memcpy(p->labels[p->label_count], line, length - 1);
    p->at[p->label_count++] = p->count;
  } else if (*line && !strchr(".(){}", *line)) {
    instruction_read(p, line);
  }
}

struct ptx *ptx_parse(const char *text) {
  struct ptx *p = calloc(1, sizeof *p);
  char *copy = strdup(text), *rest = copy;
  if (!p || !copy)
    abort();
  for (char *line; (line = strsep(&rest, "\n"));)
    line_read(p, line + strspn(line, " "));
  free(copy);
  for (int i = 0; i < p->count; i++) {
    struct instruction *n = &p->instructions[i];
    if (n->known->act == BRANCH)
      n->target = label_named(p, n->operands[0].name);
  }
  return p;
}

void ptx_free(struct ptx *p) {
  free(p);
}

/* ---- Running -------------------------------------------------------------- */

struct thread {
  const struct ptx *ptx;
  const struct ptx_run *run;
  uint32_t block, number;
  uint64_t values[REGISTERS];
  bool set[REGISTERS];
  int next;
};

static uint64_t register_get(const struct thread *t, int i) {
  if (!t->set[i])
    fail_msg("%s is read before it is written", t->ptx->registers[i]);
  return t->values[i];
}

static void register_set(struct thread *t, int i, uint64_t value) {
  char width = t->ptx->widths[i];
  t->set[i] = true;
  t->values[i] = width == 'd'   ? value
                 : width == 'w' ? (uint32_t)value
                 : width == 'h' ? (uint16_t)value
                                : value & 1;
}

static uint64_t special_get(const struct thread *t, const char *name) {
  const struct {
    const char *name;
    uint64_t value;
  } all[] = {{"%tid.x", t->number},
             {"%ntid.x", t->run->threads},
             {"%ctaid.x", t->block},
             {"%nctaid.x", t->run->blocks}};
  for (int i = 0; i < 4; i++)
    if (strcmp(all[i].name, name) == 0)
      return all[i].value;
  fail_msg("no special register %s", name);
  return 0;
}

static uint64_t operand_get(const struct thread *t, const struct operand *o) {
  if (*o->name)
    return special_get(t, o->name);
  return o->registers[0] < 0 ? o->number : register_get(t, o->registers[0]);
}

static uint64_t parameter_get(const struct thread *t, const char *name) {
  for (int i = 0; i < 2; i++)
    if (strcmp(t->run->names[i], name) == 0)
      return t->run->values[i];
  fail_msg("no parameter %s", name);
  return 0;
}

static uint64_t address_of(const struct thread *t, const struct operand *o,
                           uint32_t bytes) {
  uint64_t at = register_get(t, o->registers[0]) + o->number;
  if (at % bytes)
    fail_msg("%u bytes at an address that is no multiple of it", bytes);
  return at;
}

static void thread_load(struct thread *t, const struct instruction *n) {
  const struct operand *to = &n->operands[0];
  uint32_t bytes = n->known->bytes;
  uint64_t values[2] = {0, 0};
  t->run->load(t->run->memory, address_of(t, &n->operands[1], bytes), values,
               bytes);
  for (int i = 0; i < 2 && to->registers[i] >= 0; i++)
    register_set(t, to->registers[i], values[i]);
}

static void thread_store(struct thread *t, const struct instruction *n) {
  const struct operand *from = &n->operands[1];
  uint32_t bytes = n->known->bytes;
  uint64_t values[2] = {0, 0};
  for (int i = 0; i < 2 && from->registers[i] >= 0; i++)
    values[i] = register_get(t, from->registers[i]);
  t->run->store(t->run->memory, address_of(t, &n->operands[0], bytes), values,
                bytes);
}

static void thread_compute(struct thread *t, const struct instruction *n) {
  uint64_t a[3] = {0, 0, 0};
  for (int i = 1; n->known->shape[i]; i++)
    a[i - 1] = operand_get(t, &n->operands[i]);
  register_set(t, n->operands[0].registers[0],
               n->known->value(a[0], a[1], a[2]));
}

static void thread_do(struct thread *t, const struct instruction *n) {
  if (n->known->act == LOAD)
    thread_load(t, n);
  else if (n->known->act == STORE)
    thread_store(t, n);
  else if (n->known->act == PARAMETER)
    register_set(t, n->operands[0].registers[0],
                 parameter_get(t, n->operands[1].name));
  else if (n->known->act == BRANCH)
    t->next = n->target;
  else if (n->known->act == ARITHMETIC)
    thread_compute(t, n);
  else
    t->next = t->ptx->count;
}

static void thread_run(struct thread *t) {
  for (int step = 0; t->next < t->ptx->count; step++) {
    const struct instruction *n = &t->ptx->instructions[t->next++];
    if (step == STEPS)
      fail_msg("a thread does not end");
    if (n->guard < 0 || register_get(t, n->guard))
      thread_do(t, n);
  }
}

void ptx_run(const struct ptx *p, const struct ptx_run *run) {
  for (uint32_t block = 0; block < run->blocks; block++)
    for (uint32_t number = 0; number < run->threads; number++) {
      struct thread t = {
          .ptx = p, .run = run, .block = block, .number = number};
      thread_run(&t);
    }
}
