/* The interface: one table of offsets for its versions, handles, and the plugin that ours hands on to. */
#include "plugin.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
#define OWN "LOCKSTEP_NCCL_"

enum { NEWEST = 7, HASHED = 1024, MOST_PAIRS = 1 << 16, MOST_OF_NAME = 16 };
enum { TAG_COLLECTIVE = 1, TAG_KERNEL, TAG_PROXY, TAG_CONTEXT, TAG_PAIR, TAG_BITS = 4 };
typedef enum { NEVER, SAMPLED, ALWAYS } Kernels;

typedef void (*Logger)(int level, unsigned long system, const char *file, int line, const char *format, ...);
typedef struct {
    const char *name;
    int (*init)();
    int (*start)(void *context, void **handle, void *descriptor);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, void *arguments);
    int (*finalize)(void *context);
} Profiler;

#define V4_OFFSETS                                                                                        \
    .coll_sequence = 24, .coll_function = 32, .coll_count = 56, .coll_datatype = 72, .coll_channels = 80, \
    .p2p_function = 24, .p2p_datatype = 40, .p2p_count = 48, .p2p_peer = 56
#define V5_OFFSETS V4_OFFSETS, .is_wide = true, .coll_group = 104, .p2p_group = 64
static const Interface INTERFACES[NEWEST + 1] = {
    [3] = {.version = 3, .coll_hash = 32, .coll_sequence = 40, .coll_function = 48, .coll_count = 72,
           .coll_datatype = 88, .coll_channels = 96, .p2p_hash = 32, .p2p_function = 40, .p2p_datatype = 56,
           .p2p_count = 64, .p2p_peer = 72},
    [4] = {.version = 4, V4_OFFSETS},
    [5] = {.version = 5, V5_OFFSETS},
    [6] = {.version = 6, V5_OFFSETS},
    [7] = {.version = 7, V5_OFFSETS},
};

typedef struct {
    bool is_used, is_handed_on;
    void *next; /* context of the next plugin */
} Context;
/* A handle of two plugins. */
typedef struct {
    uint64_t number;
    void *own, *next;
} Pair;

Place place;
static pthread_mutex_t in_init = PTHREAD_MUTEX_INITIALIZER;
static Context contexts[MOST_COMMUNICATORS]; /* the first stands for those that are unknown */
static int num_contexts, taken_version;
static bool has_second; /* library in this process */
static char are_kernels_wanted, is_child; /* a fork has the mapping, and writes nothing */
static int *mask;
static int base_mask, next_mask;
static Kernels kernels;
static const Profiler *next;
static Pair *pairs;
static uint64_t num_pairs;
static struct {
    uint64_t key, count;
} peers[HASHED];

int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void *handle_of(uint64_t number, int tag)
{
    return (void *)(uintptr_t)(number << TAG_BITS | (uint64_t)tag);
}

static uint64_t number_of(const void *handle, int tag)
{
    uint64_t word = (uintptr_t)handle;
    return (word & ((1 << TAG_BITS) - 1)) == (uint64_t)tag ? word >> TAG_BITS : 0;
}

static void renew_mask(void)
{
    int *of_library = LOAD(mask), kernel_events = LOAD(are_kernels_wanted) ? EVENT_KERNEL_CHANNEL : 0;
    int wanted = base_mask | kernel_events | LOAD(next_mask);
    if (of_library != NULL && LOAD(*of_library) != wanted)
        STORE(*of_library, wanted);
}

void set_kernel_events(bool are_wanted)
{
    if (kernels != SAMPLED)
        return;
    STORE(are_kernels_wanted, are_wanted);
    renew_mask();
}

bool kernel_events_are_sampled(void)
{
    return kernels == SAMPLED;
}

/* Bytes of one number of a type, by the bits in its name: ncclFloat16, ncclFloat8e4m3. */
static uint64_t bytes_of(const char *type)
{
    if (type == NULL)
        return 1;
    uint64_t bits = 0;
    int at = 0;
    while (at < MOST_OF_NAME && type[at] && (type[at] < '0' || type[at] > '9'))
        at++;
    for (; at < MOST_OF_NAME && type[at] >= '0' && type[at] <= '9'; at++)
        bits = bits * 10 + (uint64_t)(type[at] - '0');
    return bits > 8 ? bits / 8 : 1;
}

static int code_of(const char *function)
{
    static const char *const NAMES[] = {FUNCTION_NAMES};
    for (int code = 1; function != NULL && code < (int)(sizeof NAMES / sizeof *NAMES); code++)
        if (strcmp(function, NAMES[code]) == 0)
            return code;
    return FUNCTION_INVALID;
}

#define READ(type, name, offset)                                                                          \
    type name;                                                                                            \
    memcpy(&name, descriptor + (offset), sizeof name)

static int context_index(const void *context)
{
    uint64_t index = number_of(context, TAG_CONTEXT);
    return index < MOST_COMMUNICATORS ? (int)index : 0;
}

/* Sends and receives have no number: theirs is counted for each peer and direction. */
static uint64_t count_peer(int communicator, int peer, int function)
{
    uint64_t id = LOAD(communicators()[communicator].communicator);
    uint64_t key = (id * 31 + (uint64_t)(uint32_t)peer * 16 + (uint64_t)function + 1) * 0x9E3779B97F4A7C15u;
    uint64_t at = key >> 32;
    for (int n = 0; n < 8; n++, at++) {
        uint64_t free = 0, *place_of_key = &peers[at % HASHED].key;
        if (LOAD(*place_of_key) == key
            || __atomic_compare_exchange_n(place_of_key, &free, key, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)
            || free == key)
            return ADD(peers[at % HASHED].count, 1);
    }
    return 0;
}

static void name_communicator(int communicator, uint64_t hash)
{
    Communicator *group = communicators() + communicator;
    if (hash && communicator && LOAD(group->communicator) != hash)
        STORE(group->communicator, hash);
}

static void *start_coll(const Interface *interface, void *context, const char *descriptor)
{
    int communicator = context_index(context);
    READ(int, rank, 16);
    READ(uint64_t, sequence, interface->coll_sequence);
    READ(const char *, function, interface->coll_function);
    READ(uint64_t, count, interface->coll_count);
    READ(const char *, datatype, interface->coll_datatype);
    READ(uint8_t, channels, interface->coll_channels);
    if (interface->coll_hash) {
        READ(uint64_t, hash, interface->coll_hash);
        name_communicator(communicator, hash);
    }
    return handle_of(note_arrival(communicator, sequence, code_of(function), count * bytes_of(datatype), rank,
                                  -1, channels ? channels : 256), /* RCCL has so many, and a byte holds them */
                     TAG_COLLECTIVE);
}

static void *start_p2p(const Interface *interface, void *context, const char *descriptor)
{
    int communicator = context_index(context);
    READ(int, rank, 16);
    READ(const char *, function, interface->p2p_function);
    READ(uint64_t, count, interface->p2p_count);
    READ(const char *, datatype, interface->p2p_datatype);
    READ(int, peer, interface->p2p_peer);
    if (interface->p2p_hash) {
        READ(uint64_t, hash, interface->p2p_hash);
        name_communicator(communicator, hash);
    }
    int code = code_of(function);
    return handle_of(note_arrival(communicator, count_peer(communicator, peer, code), code,
                                  count * bytes_of(datatype), rank, peer, 0),
                     TAG_COLLECTIVE);
}

/* A copy-engine collective: as a coll of v4, whose type of data lies where that one has it too. */
static void *start_copies(void *context, const char *descriptor)
{
    READ(int, rank, 16);
    READ(uint64_t, sequence, 24);
    READ(const char *, function, 32);
    READ(uint64_t, count, 56);
    READ(const char *, datatype, 72);
    return handle_of(note_arrival(context_index(context), sequence, code_of(function),
                                  count * bytes_of(datatype), rank, -1, 0),
                     TAG_COLLECTIVE);
}

static void *start_own(const Interface *interface, void *context, const void *parent, const char *descriptor)
{
    uint64_t type = (uint8_t)descriptor[0];
    if (interface->is_wide)
        memcpy(&type, descriptor, sizeof type);
    void *handle = NULL;
    if (type & (EVENT_COLL | EVENT_P2P | EVENT_CE_COLL) && context_index(context) == 0)
        return NULL; /* of a communicator that is another's, or one too many */
    switch (type) {
    case EVENT_COLL:
        handle = start_coll(interface, context, descriptor);
        break;
    case EVENT_P2P:
        handle = start_p2p(interface, context, descriptor);
        break;
    case EVENT_CE_COLL:
        handle = start_copies(context, descriptor);
        break;
    case EVENT_GROUP_API:
    case EVENT_COLL_API: {
        READ(bool, is_captured, type == EVENT_COLL_API ? 64 : 24);
        if (is_captured) /* what a graph replays is not seen */
            note_unseen_launches();
        return NULL;
    }
    case EVENT_PROXY_OP: {
        READ(int, pid, 24);
        uint64_t number = pid == place.pid ? number_of(parent, TAG_COLLECTIVE) : 0;
        return number && begin_part(number, false) ? handle_of(number, TAG_PROXY) : NULL;
    }
    case EVENT_KERNEL_CHANNEL: {
        uint64_t number = number_of(parent, TAG_COLLECTIVE);
        return number && begin_part(number, true) ? handle_of(number, TAG_KERNEL) : NULL;
    }
    default:
        return NULL;
    }
    track();
    return handle;
}

static void stop_own(const void *handle)
{
    uint64_t kernel = number_of(handle, TAG_KERNEL), proxy = number_of(handle, TAG_PROXY);
    if (!kernel && !proxy)
        return;
    end_part(kernel ? kernel : proxy, kernel != 0);
    Collective *collective = collective_of(kernel ? kernel : proxy);
    if (collective != NULL && has_ended(collective))
        track();
}

static bool is_on(void)
{
    return place.page != NULL && !is_child;
}

/* The next plugin's handle of an event, or its context of a communicator. */
static Pair *pair_of(const void *handle)
{
    uint64_t number = number_of(handle, TAG_PAIR);
    Pair *pair = number ? pairs + number % MOST_PAIRS : NULL;
    return pair != NULL && __atomic_load_n(&pair->number, __ATOMIC_ACQUIRE) == number ? pair : NULL;
}

/* Calls the next plugin with its own handles in the descriptor, which is then as it was. */
static void *start_next(const Interface *interface, void *context, char *descriptor)
{
    uint64_t type = (uint8_t)descriptor[0];
    int group = type == EVENT_COLL ? interface->coll_group : type == EVENT_P2P ? interface->p2p_group : 0;
    READ(void *, parent, 8);
    void *group_parent = NULL, *handle = NULL;
    Pair *pair = pair_of(parent);
    void *translated = pair == NULL ? NULL : pair->next;
    memcpy(descriptor + 8, &translated, sizeof translated);
    if (group) {
        memcpy(&group_parent, descriptor + group, sizeof group_parent);
        Pair *group_pair = pair_of(group_parent);
        translated = group_pair == NULL ? NULL : group_pair->next;
        memcpy(descriptor + group, &translated, sizeof translated);
    }
    next->start(contexts[context_index(context)].next, &handle, descriptor);
    memcpy(descriptor + 8, &parent, sizeof parent);
    if (group)
        memcpy(descriptor + group, &group_parent, sizeof group_parent);
    return handle;
}

static int start(const Interface *interface, void *context, void **handle, char *descriptor)
{
    READ(void *, parent, 8);
    if (next == NULL) {
        *handle = is_on() ? start_own(interface, context, parent, descriptor) : NULL;
        return 0;
    }
    Pair *above = pair_of(parent);
    void *own = is_on() ? start_own(interface, context, above == NULL ? NULL : above->own, descriptor) : NULL;
    bool is_handed_on = contexts[context_index(context)].is_handed_on;
    void *theirs = is_handed_on ? start_next(interface, context, descriptor) : NULL;
    *handle = NULL;
    if (own == NULL && theirs == NULL)
        return 0;
    uint64_t number = ADD(num_pairs, 1) + 1;
    Pair *pair = pairs + number % MOST_PAIRS;
    STORE(pair->number, 0);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    STORE(pair->own, own);
    STORE(pair->next, theirs);
    __atomic_store_n(&pair->number, number, __ATOMIC_RELEASE);
    *handle = handle_of(number, TAG_PAIR);
    return 0;
}

static int stop(void *handle)
{
    Pair *pair = next == NULL ? NULL : pair_of(handle);
    if (is_on())
        stop_own(next == NULL ? handle : pair == NULL ? NULL : LOAD(pair->own));
    if (pair != NULL && LOAD(pair->next) != NULL)
        next->stop(LOAD(pair->next));
    return 0;
}

static int record(void *handle, int state, void *arguments)
{
    Pair *pair = next == NULL ? NULL : pair_of(handle);
    if (pair != NULL && LOAD(pair->next) != NULL)
        next->record(LOAD(pair->next), state, arguments);
    return 0;
}

static void in_child(void)
{
    is_child = 1;
    in_init = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; /* whoever held it is not here */
}

static void at_exit(int status, void *unused)
{
    (void)unused;
    if (!is_on() || getpid() != place.pid)
        return;
    flush_rows();
    beat(now_ns(), status == 0 ? PHASE_DONE : PHASE_FAILED);
}

/* Late calls and the next load find this library and its state where they were. */
static void pin(void)
{
    Dl_info info;
    if (dladdr(&place, &info) && info.dli_fname != NULL)
        dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

static void load_next(int version)
{
    const char *path = getenv(OWN "NEXT_PLUGIN");
    if (path == NULL || *path == 0)
        return;
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const Profiler *profiler = library == NULL ? NULL : dlsym(library, symbol);
    pairs = profiler == NULL ? NULL : calloc(MOST_PAIRS, sizeof *pairs);
    if (pairs == NULL)
        fprintf(stderr, "lockstep: %s=%.300s has no %s, so nothing is handed on\n", OWN "NEXT_PLUGIN", path, symbol);
    else
        next = profiler;
}

static void begin(const Group *group, int version)
{
    taken_version = version;
    pin();
    load_next(version);
    const char *wanted = getenv(OWN "KERNEL_EVENTS");
    /* Only from 2.27 to 2.30 they may be switched in a run; later ones cost up to 13 % of bandwidth. */
    kernels = version >= 4 && version <= 6 ? SAMPLED : NEVER;
    if (wanted != NULL && strcmp(wanted, "off") == 0)
        kernels = NEVER;
    if (wanted != NULL && strcmp(wanted, "always") == 0)
        kernels = ALWAYS;
    are_kernels_wanted = kernels == ALWAYS;
    base_mask = EVENT_COLL | EVENT_P2P | EVENT_PROXY_OP;
    base_mask |= version >= 5 ? EVENT_COLL_API : 0;
    base_mask |= version >= 6 ? EVENT_CE_COLL : 0;
    const char *problem = make_place(group, version);
    if (problem != NULL) {
        fprintf(stderr, "lockstep: NCCL's plugin is off: %s\n", problem);
        base_mask = 0;
        return;
    }
    start_rows();
    if (version < 5) /* which does not say what is captured */
        note_unseen_launches();
    pthread_atfork(NULL, NULL, in_child);
    on_exit(at_exit, NULL);
}

static int add_context(const Group *group)
{
    for (int index = 1; index < MOST_COMMUNICATORS; index++) {
        if (contexts[index].is_used)
            continue;
        contexts[index] = (Context){.is_used = true};
        num_contexts++;
        if (is_on()) {
            Communicator *communicator = communicators() + index;
            STORE(communicator->communicator, group->id ? group->id : (uint64_t)index);
            STORE(communicator->launched, 0);
            STORE(communicator->ranks, group->ranks);
            STORE(communicator->rank, group->rank);
        }
        return index;
    }
    if (is_on())
        note_unseen_launches();
    return 0;
}

static int finalize(void *context)
{
    int index = context_index(context);
    pthread_mutex_lock(&in_init);
    if (contexts[index].is_handed_on && contexts[index].next != NULL)
        next->finalize(contexts[index].next);
    if (index && contexts[index].is_used) {
        contexts[index].is_used = false;
        if (--num_contexts == 0 && is_on())
            flush_rows();
    }
    pthread_mutex_unlock(&in_init);
    return 0;
}

/* Index of the new communicator's context; 0 for none. */
static int take_context(int version, int *eventMask, const Group *group)
{
    if (taken_version == 0)
        begin(group, version);
    if (version != taken_version) {
        if (!has_second && is_on()) {
            fputs("lockstep: NCCL's plugin is off in the second library of this process\n", stderr);
            note_unseen_launches();
        }
        has_second = true;
        return 0;
    }
    if (!is_on() && next == NULL)
        return 0;
    if (eventMask != NULL)
        STORE(mask, eventMask);
    return add_context(group);
}

static int init(int version, void **context, int *eventMask, const Group *group, const char *name, Logger logger)
{
    int result = 0;
    pthread_mutex_lock(&in_init);
    int index = take_context(version, eventMask, group);
    pthread_mutex_unlock(&in_init);
    *context = index ? handle_of((uint64_t)index, TAG_CONTEXT) : NULL;
    if (index == 0)
        return 0;
    void *theirs = NULL;
    if (next != NULL && version == 3)
        result = next->init(&theirs, &next_mask);
    else if (next != NULL && version == 4)
        result = next->init(&theirs, &next_mask, name, group->id, group->nodes, group->ranks, group->rank, logger);
    else if (next != NULL)
        result = next->init(&theirs, group->id, &next_mask, name, group->nodes, group->ranks, group->rank, logger);
    contexts[index].next = theirs;
    contexts[index].is_handed_on = next != NULL && result == 0;
    renew_mask();
    return 0;
}

static int init_v3(void **context, int *eventMask)
{
    return init(3, context, eventMask, &(Group){.rank = -1}, NULL, NULL);
}

static int init_v4(void **context, int *eventMask, const char *name, uint64_t hash, int nodes, int ranks,
                   int rank, Logger logger)
{
    return init(4, context, eventMask, &(Group){hash, nodes, ranks, rank}, name, logger);
}

#define STARTS(n)                                                                                         \
    static int start_v##n(void *context, void **handle, void *descriptor)                                 \
    {                                                                                                     \
        return start(&INTERFACES[n], context, handle, descriptor);                                        \
    }
#define INITS(n)                                                                                          \
    static int init_v##n(void **context, uint64_t id, int *eventMask, const char *name, int nodes,        \
                         int ranks, int rank, Logger logger)                                              \
    {                                                                                                     \
        return init(n, context, eventMask, &(Group){id, nodes, ranks, rank}, name, logger);               \
    }
#define EXPORT(n, init, start) EXPORTED Profiler ncclProfiler_v##n = {"lockstep", (int (*)())init, start, stop, record, finalize};
STARTS(3)
STARTS(4)
STARTS(5)
STARTS(6)
STARTS(7)
INITS(5)
INITS(6)
INITS(7)
EXPORT(3, init_v3, start_v3)
EXPORT(4, init_v4, start_v4)
EXPORT(5, init_v5, start_v5)
EXPORT(6, init_v6, start_v6)
EXPORT(7, init_v7, start_v7)
