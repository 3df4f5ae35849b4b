/* SPDX-License-Identifier: Apache-2.0
 *
 * list.h - an intrusive doubly linked list. A node that is in no list has
 * next == NULL.
 */
#ifndef LIST_H
#define LIST_H

#include <stdbool.h>
#include <stddef.h>

struct node {
  struct node *next, *previous;
};

#define CONTAINER(pointer, type, member)                                       \
  ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

static inline void list_open(struct node *head) {
  head->next = head->previous = head;
}

static inline bool list_empty(const struct node *head) {
  return head->next == head;
}

static inline void list_append(struct node *head, struct node *node) {
  node->next = head;
  node->previous = head->previous;
  head->previous->next = node;
  head->previous = node;
}

static inline void list_prepend(struct node *head, struct node *node) {
  list_append(head->next, node);
}

static inline void list_remove(struct node *node) {
  if (!node->next)
    return;
  node->previous->next = node->next;
  node->next->previous = node->previous;
  node->next = NULL;
}

static inline struct node *list_pop(struct node *head) {
  struct node *first = head->next;
  if (first == head)
    return NULL;
  head->next = first->next;
  first->next->previous = head;
  first->next = NULL;
  return first;
}

#endif
