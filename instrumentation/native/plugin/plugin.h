/* NCCL's and RCCL's profiler plugin: the steps of a job that has no line of ours, as a rank page.
 *
 * Threads. NCCL calls from any of its threads and the user's, several at once. The path of a collective
 * is one fetch-and-add for a place in the ring, stores, and a try of `tracking`: who gets it takes in
 * what is new, who does not goes on. Nothing waits, allocates, or calls the kernel but for the clock.
 *
 * Handles are numbers and no pointers: one that is stale, foreign or garbage finds no place. The
 * library pins itself, so that its state and late calls outlive dlclose.
 */
#ifndef LOCKSTEP_PLUGIN_H
#define LOCKSTEP_PLUGIN_H

#define _GNU_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../checksum.h"
#include "../page_layout.h"

#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_RELAXED)
#define STORE(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELAXED)
#define ADD(place, value) __atomic_fetch_add(&(place), (value), __ATOMIC_RELAXED)

enum { /* types of events, as bits of the mask */
    EVENT_COLL = 0x2,
    EVENT_P2P = 0x4,
    EVENT_PROXY_OP = 0x8,
    EVENT_KERNEL_CHANNEL = 0x40,
    EVENT_GROUP_API = 0x100,
    EVENT_COLL_API = 0x200,
    EVENT_CE_COLL = 0x1000,
};

/* Where the members lie that are read of a descriptor, in bytes; 0 where there is none. */
typedef struct {
    int version;
    bool is_wide; /* the type has 64 bits */
    int coll_hash, coll_sequence, coll_function, coll_count, coll_datatype, coll_channels;
    int p2p_hash, p2p_function, p2p_count, p2p_datatype, p2p_peer;
    int coll_group, p2p_group; /* a second parent */
} Interface;

/* What a process has of us; all of it is zero until the first communicator. */
typedef struct {
    char *page;      /* mapped */
    char *launches;  /* mapped */
    uint64_t rows;
    int descriptor;  /* of the page, for its lock */
    int pid;
} Place;

/* What init knows of a communicator. */
typedef struct {
    uint64_t id;
    int nodes, ranks, rank; /* 0, 0 and -1 where unknown */
} Group;

/* place.c: makes page and launches; a sentence on why not, or NULL. */
const char *make_place(const Group *group, int version);

/* plugin.c */
extern Place place;
int64_t now_ns(void);
void set_kernel_events(bool are_wanted); /* in NCCL's mask */
bool kernel_events_are_sampled(void);

/* events.c */
extern uint64_t newest;
extern char sees_parts; /* ends of collectives */
uint64_t note_arrival(int communicator, uint64_t sequence, int function, uint64_t size_bytes, int rank,
                      int peer, int channels);
bool begin_part(uint64_t number, bool is_kernel);
void end_part(uint64_t number, bool is_kernel);
Collective *collective_of(uint64_t number); /* NULL where it is overwritten */
Communicator *communicators(void);
bool has_ended(const Collective *collective);
void beat(int64_t when_ns, int phase);

/* steps.c: takes in what is new, unless another thread does. */
void track(void);
void note_unseen_launches(void); /* so that standing still proves nothing */
void start_rows(void);
void flush_rows(void);

#endif
