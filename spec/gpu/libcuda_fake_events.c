/* SPDX-License-Identifier: Apache-2.0
 *
 * libcuda_fake_events.c - events of the fake of CUDA's driver, for which other
 * streams wait, and functions of the host that streams call.
 */
#include <stdlib.h>
#include <time.h>

#include "libcuda_fake.h"

/* ---- Events ---------------------------------------------------------------
 * */

/* One that is destroyed stays, as streams may still name it. */
struct CUevent_st {
  struct CUevent_st *next;
  CUcontext context;
  uint64_t recorded, passed; /* how often */
  bool destroyed;
};
static CUevent events;

static void event_check(CUevent event, const char *what) {
  pthread_mutex_lock(&fake_lock);
  CUevent e = events;
  while (e && e != event)
    e = e->next;
  if (!e || e->destroyed)
    fake_fatal("%s of an event that there is not", what);
  pthread_mutex_unlock(&fake_lock);
}

CUresult cuEventCreate(CUevent *event, unsigned flags) {
  CUcontext c = fake_current("cuEventCreate");
  BEGIN("cuEventCreate");
  if (flags & ~7u)
    return INVALID_VALUE;
  CUevent e = calloc(1, sizeof *e);
  if (!e)
    fake_fatal("no memory");
  e->context = c;
  pthread_mutex_lock(&fake_lock);
  e->next = events;
  events = e;
  pthread_mutex_unlock(&fake_lock);
  *event = e;
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
  COUNT("cuEventDestroy", 1);
  event_check(event, "cuEventDestroy");
  event->destroyed = true;
  return CUDA_SUCCESS;
}

/* The event has passed `number` records, or waits for as many. */
struct event_task {
  struct task task;
  CUevent event;
  uint64_t number;
};

static void event_nothing(struct task *task) {
  (void)task;
}

static void event_passes(struct task *task) {
  struct event_task *t = (struct event_task *)task;
  t->event->passed = t->number;
  free(t);
}

static void event_await(struct task *task) {
  const struct event_task *t = (const struct event_task *)task;
  for (bool passed = false; !passed;) {
    pthread_mutex_lock(&fake_lock);
    passed = t->event->passed >= t->number;
    pthread_mutex_unlock(&fake_lock);
    if (!passed)
      nanosleep(&(struct timespec){0, 20000}, NULL);
  }
}

static void event_over(struct task *task) {
  free(task);
}

static struct event_task *event_task(CUevent event) {
  struct event_task *t = calloc(1, sizeof *t);
  if (!t)
    fake_fatal("no memory");
  t->task.quick = true;
  t->event = event;
  return t;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  BEGIN("cuEventRecord");
  fake_stream_check(stream);
  event_check(event, "cuEventRecord");
  if (event->context != fake_stream_context(stream))
    fake_fatal("cuEventRecord of an event of another context than the stream");
  struct event_task *t = event_task(event);
  t->task.run = event_nothing;
  t->task.end = event_passes;
  pthread_mutex_lock(&fake_lock);
  t->number = ++event->recorded;
  pthread_mutex_unlock(&fake_lock);
  fake_stream_give(stream, &t->task);
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  BEGIN("cuStreamWaitEvent");
  fake_stream_check(stream);
  event_check(event, "cuStreamWaitEvent");
  if (flags)
    return INVALID_VALUE;
  struct event_task *t = event_task(event);
  t->task.run = event_await;
  t->task.end = event_over;
  pthread_mutex_lock(&fake_lock);
  t->number = event->recorded;
  pthread_mutex_unlock(&fake_lock);
  fake_stream_give(stream, &t->task);
  return CUDA_SUCCESS;
}

/* ---- Host functions -------------------------------------------------------
 * */

struct host_task {
  struct task task;
  CUhostFn function;
  void *with;
};

static void host_run(struct task *task) {
  const struct host_task *t = (const struct host_task *)task;
  if (fake_set.deaf)
    return;
  fake_in_host_function = true;
  t->function(t->with);
  fake_in_host_function = false;
}

/* A device that broke does not call it (work_breaks). */
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *with) {
  BEGIN("cuLaunchHostFunc");
  fake_stream_check(stream);
  if (!function)
    return INVALID_VALUE;
  struct host_task *t = calloc(1, sizeof *t);
  if (!t)
    fake_fatal("no memory");
  *t = (struct host_task){
      .task = {.run = host_run, .end = event_over, .quick = true},
      .function = function,
      .with = with};
  fake_stream_give(stream, &t->task);
  return CUDA_SUCCESS;
}
