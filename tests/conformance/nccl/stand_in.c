/* A stand-in for libnccl.so.2: ranks are threads of one process, memory is the host's.

   It keeps what a caller of NCCL relies on: calls only put work on a stream and return; a
   communicator forms when all ranks have come; a collective ends when all ranks have begun
   it, and hangs if they begin different ones; a send ends when it is received; an abort frees the
   rank that aborts only. Sums are in rank order, unlike NCCL's.

   A stream is made by gm_stream_create; gm_stream_completed returns its progress. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 64, RANKS = 16, WORLDS = 4096 };
typedef struct { char internal[128]; } UniqueId;
typedef enum { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECV } Kind;

typedef struct { const void *send; uint64_t signature; } Entry;
typedef struct { long number; int arrived, read; Entry entries[RANKS]; } Slot;
typedef struct Mail { const void *data; size_t bytes; int taken; struct Mail *next; } Mail;
typedef struct {
  UniqueId id;
  int size, come;
  Slot slots[SLOTS];
  Mail *mail[RANKS][RANKS];
  int colors[RANKS], keys[RANKS], splitting;
  long splits;
} World;
typedef struct {
  World *world;
  int rank, is_aborted, async_error;
  long number;
} Comm;
typedef struct Op {
  Kind kind;
  Comm *comm;
  const void *send;
  void *recv;
  size_t count;
  int type, op, root;
  struct Op *next;
} Op;
typedef struct Batch { Op *ops; struct Batch *next; } Batch;
typedef struct {
  pthread_t thread;
  Batch *first, *last;
  long enqueued, completed;
  int closed;
} Stream;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards everything */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static World *worlds[WORLDS];
static int world_count;
static long ids;
static __thread int depth;
static __thread Op *grouped;
static __thread Stream *grouped_stream;

static size_t size_of(int type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return sizes[type];
}

static float from_bfloat(uint16_t bits) {
  uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}

static uint16_t to_bfloat(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

#define COMBINE(a, b, op) \
  ((op) == 1 ? (a) * (b) : (op) == 2 ? ((a) > (b) ? (a) : (b)) : (op) == 3 ? ((a) < (b) ? (a) : (b)) : (a) + (b))
#define LOOP(T)                                                                  \
  for (size_t i = 0; i < count; i++) {                                           \
    T *a = (T *)total + i, b = ((const T *)part)[i];                             \
    *a = (T)COMBINE(*a, b, op);                                                  \
  }                                                                              \
  if (op == 4 && is_last)                                                        \
    for (size_t i = 0; i < count; i++) ((T *)total)[i] = (T)(((T *)total)[i] / (T)size);

/* NCCL scales floats before it sums them; that shows in two bytes only: no sum leaves their range. */
static _Float16 scaled_half(_Float16 value, int op, int size) {
  return op == 4 ? (_Float16)(value * (_Float16)(1.0f / (float)size)) : value;
}

static float scaled_bfloat(float value, int op, int size) {
  return op == 4 ? from_bfloat(to_bfloat(value * from_bfloat(to_bfloat(1.0f / (float)size)))) : value;
}

/* Scale the data of the first rank, as `combine` does with the others. */
static void scale_first(void *total, size_t count, int type, int op, int size) {
  for (size_t i = 0; i < count; i++) {
    _Float16 *half = (_Float16 *)total + i;
    uint16_t *bfloat = (uint16_t *)total + i;
    if (type == 6) *half = scaled_half(*half, op, size);
    if (type == 9) *bfloat = to_bfloat(scaled_bfloat(from_bfloat(*bfloat), op, size));
  }
}

static void combine(void *total, const void *part, size_t count, int type, int op, int is_last, int size) {
  switch (type) {
    case 0: LOOP(int8_t) break;
    case 1: LOOP(uint8_t) break;
    case 2: LOOP(int32_t) break;
    case 3: LOOP(uint32_t) break;
    case 4: LOOP(int64_t) break;
    case 5: LOOP(uint64_t) break;
    case 6:
      for (size_t i = 0; i < count; i++) {
        _Float16 *a = (_Float16 *)total + i, b = scaled_half(((const _Float16 *)part)[i], op, size);
        *a = (_Float16)COMBINE(*a, b, op);
      }
      break;
    case 7: LOOP(float) break;
    case 8: LOOP(double) break;
    case 9:
      for (size_t i = 0; i < count; i++) {
        uint16_t *a = (uint16_t *)total + i;
        float x = from_bfloat(*a), y = scaled_bfloat(from_bfloat(((const uint16_t *)part)[i]), op, size);
        *a = to_bfloat(COMBINE(x, y, op));
      }
  }
}

/* Wait, with the lock held, until all ranks have begun this collective; 0 if aborted. */
static int meet(Comm *comm, Slot *slot, Entry own) {
  World *world = comm->world;
  long number = comm->number++;
  slot = &world->slots[number % SLOTS];
  while (slot->number != number && !comm->is_aborted) {
    if (slot->number < number && (slot->number == -1 || slot->read == world->size)) {
      slot->number = number;
      slot->arrived = slot->read = 0;
      break;
    }
    pthread_cond_wait(&changed, &lock);
  }
  if (comm->is_aborted) return 0;
  slot->entries[comm->rank] = own;
  slot->arrived++;
  pthread_cond_broadcast(&changed);
  for (;;) {
    int agree = slot->arrived == world->size;
    for (int r = 0; agree && r < world->size; r++) agree = slot->entries[r].signature == own.signature;
    if (agree) return 1;
    if (comm->is_aborted) return 0;
    pthread_cond_wait(&changed, &lock);
  }
}

static void run_collective(Op *o) {
  Comm *comm = o->comm;
  World *world = comm->world;
  int size = world->size, rank = comm->rank;
  size_t width = size_of(o->type), bytes = o->count * width;
  uint64_t signature = ((uint64_t)o->kind << 56) ^ ((uint64_t)o->type << 48) ^ ((uint64_t)o->op << 44) ^
                       ((uint64_t)o->root << 40) ^ o->count;
  long number = comm->number;
  Slot *slot = &world->slots[number % SLOTS];
  char *result = NULL;
  size_t length = 0;
  pthread_mutex_lock(&lock);
  int met = meet(comm, slot, (Entry){o->send, signature});
  pthread_mutex_unlock(&lock);
  if (!met) return;
  const Entry *all = slot->entries;
  if (o->kind == BROADCAST) {
    length = bytes;
    result = malloc(bytes + 1);
    memcpy(result, all[o->root].send, bytes);
  } else if (o->kind == ALL_GATHER) {
    length = bytes * size;
    result = malloc(length + 1);
    for (int r = 0; r < size; r++) memcpy(result + r * bytes, all[r].send, bytes);
  } else if (o->kind != REDUCE || o->root == rank) {
    size_t skip = o->kind == REDUCE_SCATTER ? rank * bytes : 0;
    length = bytes;
    result = malloc(bytes + 1);
    memcpy(result, (const char *)all[0].send + skip, bytes);
    if (o->type == 6 || o->type == 9) scale_first(result, o->count, o->type, o->op, size);
    for (int r = 1; r < size; r++)
      combine(result, (const char *)all[r].send + skip, o->count, o->type, o->op, r == size - 1, size);
  }
  pthread_mutex_lock(&lock);
  slot->read++;
  pthread_cond_broadcast(&changed);
  while (slot->number == number && slot->read < size && !comm->is_aborted) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
  if (result) memcpy(o->recv, result, length);
  free(result);
}

static void run_messages(Op *first) {
  Mail *sent[256];
  int count = 0;
  pthread_mutex_lock(&lock);
  for (Op *o = first; o; o = o->next)
    if (o->kind == SEND) {
      Mail *mail = calloc(1, sizeof *mail), **end = &o->comm->world->mail[o->comm->rank][o->root];
      mail->data = o->send;
      mail->bytes = o->count * size_of(o->type);
      while (*end) end = &(*end)->next;
      *end = mail;
      sent[count++] = mail;
    }
  pthread_cond_broadcast(&changed);
  for (Op *o = first; o; o = o->next)
    if (o->kind == RECV) {
      Mail **box = &o->comm->world->mail[o->root][o->comm->rank];
      size_t bytes = o->count * size_of(o->type);
      while ((!*box || (*box)->bytes != bytes) && !o->comm->is_aborted) pthread_cond_wait(&changed, &lock);
      if (o->comm->is_aborted) continue;
      Mail *mail = *box;
      *box = mail->next;
      memcpy(o->recv, mail->data, bytes);
      mail->taken = 1;
      pthread_cond_broadcast(&changed);
    }
  for (int i = 0; i < count; i++)
    while (!sent[i]->taken && !first->comm->is_aborted) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}

static void *work(void *argument) {
  Stream *stream = argument;
  pthread_mutex_lock(&lock);
  for (;;) {
    while (!stream->first && !stream->closed) pthread_cond_wait(&changed, &lock);
    Batch *batch = stream->first;
    if (!batch) break;
    stream->first = batch->next;
    pthread_mutex_unlock(&lock);
    Op *messages = NULL, **end = &messages;
    for (Op *o = batch->ops, *next; o; o = next) {
      next = o->next;
      if (o->kind == SEND || o->kind == RECV) {
        o->next = NULL;
        *end = o;
        end = &o->next;
      } else {
        run_collective(o);
      }
    }
    if (messages) run_messages(messages);
    pthread_mutex_lock(&lock);
    stream->completed++;
    pthread_cond_broadcast(&changed);
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}

Stream *gm_stream_create(void) {
  Stream *stream = calloc(1, sizeof *stream);
  pthread_create(&stream->thread, NULL, work, stream);
  return stream;
}

long gm_stream_enqueued(Stream *stream) {
  pthread_mutex_lock(&lock);
  long count = stream->enqueued;
  pthread_mutex_unlock(&lock);
  return count;
}

long gm_stream_completed(Stream *stream) {
  pthread_mutex_lock(&lock);
  long count = stream->completed;
  pthread_mutex_unlock(&lock);
  return count;
}

void gm_stream_close(Stream *stream) {
  pthread_mutex_lock(&lock);
  stream->closed = 1;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  pthread_join(stream->thread, NULL);
}

void gm_set_async_error(Comm *comm, int status) { comm->async_error = status; }

static int put(Stream *stream, Op *ops) {
  Batch *batch = calloc(1, sizeof *batch);
  batch->ops = ops;
  pthread_mutex_lock(&lock);
  if (!stream->first)
    stream->first = batch;
  else
    stream->last->next = batch;
  stream->last = batch;
  stream->enqueued++;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return 0;
}

static int add(Kind kind, Comm *comm, const void *send, void *recv, size_t count, int type, int op, int root,
               Stream *stream) {
  if (!comm || type < 0 || type > 9 || op < 0 || op > 4) return 4;
  Op *o = calloc(1, sizeof *o), **end = &grouped;
  *o = (Op){kind, comm, send, recv, count, type, op, root, NULL};
  if (!depth) return put(stream, o);
  grouped_stream = stream;
  while (*end) end = &(*end)->next;
  *end = o;
  return 0;
}

int ncclGetVersion(int *version) { return *version = 22707, 0; }

int ncclGetUniqueId(UniqueId *id) {
  memset(id, 0, sizeof *id);
  pthread_mutex_lock(&lock);
  snprintf(id->internal, sizeof id->internal, "stand-in %ld", ++ids);
  pthread_mutex_unlock(&lock);
  return 0;
}

static World *find(const UniqueId *id, int size) {
  for (int i = 0; i < world_count; i++)
    if (!memcmp(&worlds[i]->id, id, sizeof *id)) return worlds[i];
  World *world = calloc(1, sizeof *world);
  world->id = *id;
  world->size = size;
  for (int i = 0; i < SLOTS; i++) world->slots[i].number = -1;
  return worlds[world_count++] = world;
}

static int join(Comm **comm, World *world, int rank) {
  *comm = calloc(1, sizeof **comm);
  (*comm)->world = world;
  (*comm)->rank = rank;
  world->come++;
  pthread_cond_broadcast(&changed);
  while (world->come < world->size) pthread_cond_wait(&changed, &lock);
  return 0;
}

int ncclCommInitRankConfig(Comm **comm, int size, UniqueId id, int rank, void *config) {
  (void)config;
  if (rank < 0 || rank >= size || size > RANKS) return 4;
  pthread_mutex_lock(&lock);
  join(comm, find(&id, size), rank);
  pthread_mutex_unlock(&lock);
  return 0;
}

int ncclCommSplit(Comm *comm, int color, int key, Comm **part, void *config) {
  (void)config;
  World *world = comm->world;
  pthread_mutex_lock(&lock);
  long split = world->splits;
  world->colors[comm->rank] = color;
  world->keys[comm->rank] = key;
  if (++world->splitting == world->size) world->splitting = 0, world->splits++;
  pthread_cond_broadcast(&changed);
  while (world->splits == split && !comm->is_aborted) pthread_cond_wait(&changed, &lock);
  *part = NULL;
  if (color >= 0 && !comm->is_aborted) {
    UniqueId id = world->id;
    int size = 0, rank = 0;
    for (int r = 0; r < world->size; r++)
      if (world->colors[r] == color) size++, rank += world->keys[r] < key;
    snprintf(id.internal + strlen(id.internal), 40, "/%ld.%d", split, color);
    join(part, find(&id, size), rank);
  }
  pthread_mutex_unlock(&lock);
  return 0;
}

int ncclCommInitAll(Comm **comms, int count, const int *devices) { (void)comms, (void)count, (void)devices; return 5; }

int ncclCommAbort(Comm *comm) {
  pthread_mutex_lock(&lock);
  comm->is_aborted = 1;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return 0;
}

int ncclCommDestroy(Comm *comm) { return ncclCommAbort(comm); }
int ncclCommGetAsyncError(Comm *comm, int *status) { return *status = comm->async_error, 0; }
int ncclCommCount(Comm *comm, int *count) { return *count = comm->world->size, 0; }
int ncclCommUserRank(Comm *comm, int *rank) { return *rank = comm->rank, 0; }
int ncclCommCuDevice(Comm *comm, int *device) { return (void)comm, *device = 0, 0; }

const char *ncclGetErrorString(int status) {
  static const char *const texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
                                      "invalid argument", "invalid usage", "remote process exited"};
  return status >= 0 && status < 7 ? texts[status] : "unknown";
}

int ncclGroupStart(void) { return depth++, 0; }

int ncclGroupEnd(void) {
  if (!depth) return 5;
  if (--depth || !grouped) return 0;
  Op *ops = grouped;
  grouped = NULL;
  return put(grouped_stream, ops);
}

int ncclAllReduce(const void *s, void *r, size_t n, int t, int op, Comm *c, Stream *st) {
  return add(ALL_REDUCE, c, s, r, n, t, op, 0, st);
}
int ncclReduce(const void *s, void *r, size_t n, int t, int op, int root, Comm *c, Stream *st) {
  return add(REDUCE, c, s, r, n, t, op, root, st);
}
int ncclBroadcast(const void *s, void *r, size_t n, int t, int root, Comm *c, Stream *st) {
  return add(BROADCAST, c, s, r, n, t, 0, root, st);
}
int ncclBcast(void *b, size_t n, int t, int root, Comm *c, Stream *st) {
  return add(BROADCAST, c, b, b, n, t, 0, root, st);
}
int ncclAllGather(const void *s, void *r, size_t n, int t, Comm *c, Stream *st) {
  return add(ALL_GATHER, c, s, r, n, t, 0, 0, st);
}
int ncclReduceScatter(const void *s, void *r, size_t n, int t, int op, Comm *c, Stream *st) {
  return add(REDUCE_SCATTER, c, s, r, n, t, op, 0, st);
}
int ncclSend(const void *s, size_t n, int t, int peer, Comm *c, Stream *st) {
  return add(SEND, c, s, NULL, n, t, 0, peer, st);
}
int ncclRecv(void *r, size_t n, int t, int peer, Comm *c, Stream *st) {
  return add(RECV, c, NULL, r, n, t, 0, peer, st);
}
