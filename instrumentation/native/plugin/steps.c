/* Steps of a sequence of collectives, and their rows in the page.
 *
 * A step ends with its anchor: a kind of collective (size of its communicator, function, bytes), or a
 * change of kinds after a run, that comes again after as many collectives as the time before. Of two
 * anchors the rarer one ends the step where the other leaves much unexplained, where it has traffic of
 * its own, or where it divides the step into up to 64 micro-batches, but not five or ten, as logging does.
 * All of it follows from the sequence alone: ranks that do the same number their steps alike.
 *
 * All functions here run under `tracking`, which is tried and never waited for.
 */
#include "plugin.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    NUM_KINDS_SEEN = 512,
    STEADY = 3,         /* equal distances that make a candidate */
    STEADY_ALONE = 7,   /* of one that comes every time */
    LONG_RUN = 4,
    LONGEST_RUN = 1024, /* of others, as of the layers of a model */
    MOST_PARTS = 64,    /* micro-batches of a step */
    USUAL_INTERVAL = 5, /* of logging and evaluation */
    PENDING = 512,      /* rows that are held, or whose ends are waited for: */
    MOST_WAITING = 32,
    MOST_AT_ONCE = 64, /* collectives that one call takes in */
    HOLD_EVENTS = 256,
    STRIDE = 2, /* steps of which one is sampled */
};
static const int64_t HOLD_NS = 1000000000, LOCK_EVERY_NS = 1000000000;
static const double WHOLE_RATIO = 0.75, TRAFFIC_RATIO = 1e-4;

typedef struct {
    uint64_t key, family;           /* 0: free; function and size of the communicator */
    uint64_t count, last, distance; /* collectives from one to the next, as usual; an anchor's stays */
    uint64_t recent, since_bytes;   /* distance, and bytes of all since it came before */
    uint64_t anchored_before;       /* steps until it came */
    uint64_t explained, total;      /* that came at about that distance, and all; of an anchor */
    uint64_t bytes_before;          /* of all that came until it did */
    double traffic_ratio;           /* of the bytes since it came before, its own */
    int steady;                     /* equal distances, the last ones */
} Kind;

typedef struct {
    uint64_t first, last; /* numbers: after the anchor before, up to the own one */
    int64_t step;
    bool is_sampled;
} Pending;

static char tracking, has_news, are_launches_unseen;
static Kind kinds[NUM_KINDS_SEEN];
static Kind *anchor;
static uint64_t sum_bytes, tracked, previous_key, run_length, since_anchor, last_anchor_number, num_anchored;
static int64_t anchor_since_ns, locked_ns, queued_ns, core_ns, waited_ns;
static int schedule = -1; /* what the kernel says of the thread that made the first communicator */
static enum { UNSAMPLED, BEFORE_SAMPLE, IN_SAMPLE, AFTER_SAMPLE } sampling;
static Pending pending[PENDING];
static uint64_t pending_first, pending_count;
static Slot slot;
static Periodic periodic;
static double waiting_ratio; /* of the row that was timed last */

static uint64_t mixed(uint64_t key, uint64_t value)
{
    key = (key ^ value) * 0x9E3779B97F4A7C15u;
    return key ^ key >> 29;
}

static void commit(int64_t when_ns)
{
    slot.sequence++;
    slot.written_ns = when_ns;
    slot.checksum = checksum_of(&slot, offsetof(Slot, checksum) / 4);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    memcpy(place.page + (slot.sequence & 1 ? SLOT_OFFSET_1 : SLOT_OFFSET_0), &slot, sizeof slot);
}

static void commit_periodic(int64_t when_ns)
{
    periodic.sequence++;
    periodic.written_ns = when_ns;
    periodic.checksum = checksum_of(&periodic, offsetof(Periodic, checksum) / 4);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    memcpy(place.page + (periodic.sequence & 1 ? PERIODIC_OFFSET_1 : PERIODIC_OFFSET_0), &periodic,
           sizeof periodic);
}

/* Nanoseconds that the thread has had a core, and has waited for one. */
static bool read_schedule(int64_t *core, int64_t *waited)
{
    char text[96];
    ssize_t length = schedule < 0 ? -1 : pread(schedule, text, sizeof text - 1, 0);
    if (length <= 0)
        return false;
    text[length] = 0;
    char *rest;
    *core = strtoll(text, &rest, 10);
    *waited = strtoll(rest, NULL, 10);
    return true;
}

static void put_extra(Row *row, int extra, double number)
{
    row->extras[extra] = number;
    row->present |= (uint32_t)FIRST_EXTRA_BIT << extra;
}

static void take_schedule(Row *row, int64_t when_ns)
{
    int64_t core, waited;
    if (when_ns - queued_ns < RUN_QUEUE_EVERY_NS || !read_schedule(&core, &waited))
        return;
    if (queued_ns) { /* before the first row lies what no row holds */
        put_extra(row, EXTRA_RUN_QUEUE_SECONDS, (double)(waited - waited_ns) * 1e-9);
        put_extra(row, EXTRA_CORE_SECONDS, (double)(core - core_ns) * 1e-9);
    }
    queued_ns = when_ns;
    core_ns = core;
    waited_ns = waited;
}

void start_rows(void)
{
    schedule = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    periodic.present = PERIODIC_HAS_UNSEEN | PERIODIC_HAS_UNPHASED_RATIO;
    periodic.unseen = UNSEEN_PLUGIN | UNSEEN_WAITS;
    periodic.unphased_ratio = 1.0;
    commit_periodic(now_ns());
    commit(now_ns());
}

void note_unseen_launches(void)
{
    if (!LOAD(are_launches_unseen)) {
        STORE(are_launches_unseen, 1);
        track();
    }
}

/* The place of a kind; the longest unseen of a few places where it is new. */
static Kind *kind_of(uint64_t key)
{
    Kind *oldest = NULL;
    for (uint64_t n = 0; n < 8; n++) {
        Kind *kind = kinds + (key + n) % NUM_KINDS_SEEN;
        if (kind->key == key)
            return kind;
        if (kind != anchor && (oldest == NULL || kind->last < oldest->last))
            oldest = kind;
    }
    memset(oldest, 0, sizeof *oldest);
    oldest->key = key;
    return oldest;
}

static bool is_outer(const Kind *kind)
{
    if (kind->distance < 2 * anchor->distance)
        return false;
    if (anchor->total && (double)anchor->explained < WHOLE_RATIO * (double)anchor->total)
        return true;
    if (kind->traffic_ratio >= TRAFFIC_RATIO && (kind->family != anchor->family || anchor->distance == 1))
        return true;
    uint64_t parts = num_anchored - kind->anchored_before;
    return parts <= MOST_PARTS && parts % USUAL_INTERVAL != 0;
}

/* Rows begin anew: those of another anchor number other steps. */
static void choose(Kind *kind, int64_t when_ns)
{
    anchor = kind;
    anchor->explained = anchor->total = 0;
    anchor_since_ns = when_ns;
    since_anchor = last_anchor_number = pending_count = 0;
    slot.steps = slot.settled_steps = 0;
    slot.step_seconds_sum = 0.0;
    memset(slot.step_buckets, 0, sizeof slot.step_buckets);
    sampling = UNSAMPLED;
    set_kernel_events(false);
}

static bool are_alike(uint64_t usual, uint64_t now)
{
    return (now > usual ? now - usual : usual - now) <= usual / 8;
}

static void note_distance(Kind *kind, uint64_t distance, uint64_t since_bytes)
{
    bool is_same = are_alike(kind->distance, distance);
    kind->recent = distance;
    kind->total += distance; /* an evaluation has many collectives, and few bytes */
    kind->explained += is_same || are_alike(kind->since_bytes, since_bytes) ? distance : 0;
    kind->steady = is_same ? kind->steady + 1 : 0;
    if (kind != anchor)
        kind->since_bytes = since_bytes;
    if (!is_same && kind != anchor)
        kind->distance = distance;
}

/* Takes in that a kind has come; whether it ends a step. */
static bool note_kind(uint64_t key, uint64_t family, uint64_t number, uint64_t size_bytes, int64_t when_ns)
{
    Kind *kind = kind_of(key);
    kind->family = family;
    uint64_t since = sum_bytes - kind->bytes_before;
    if (kind->count++)
        note_distance(kind, number - kind->last, since);
    kind->last = number;
    kind->traffic_ratio = since ? (double)size_bytes / (double)since : 0.0;
    kind->bytes_before = sum_bytes;
    bool is_end = kind == anchor, is_steady = kind->steady >= (kind->distance == 1 ? STEADY_ALONE : STEADY);
    if (!is_end && is_steady
        && (anchor == NULL || is_outer(kind) || number - anchor->last > 8 * anchor->distance + LONGEST_RUN)) {
        choose(kind, when_ns);
        is_end = true;
    }
    num_anchored += is_end;
    kind->anchored_before = num_anchored;
    return is_end;
}

/* Seconds inside of collectives from one time to another: their union. They are in order of arrival. */
static double waited_seconds(const Pending *row, int64_t start_ns, int64_t end_ns)
{
    int64_t sum_ns = 0, until_ns = start_ns;
    for (uint64_t number = row->first; number <= row->last; number++) {
        Collective *collective = collective_of(number);
        if (collective == NULL)
            continue;
        int64_t begin_ns = LOAD(collective->begin_ns), last_ns = LOAD(collective->end_ns);
        begin_ns = begin_ns ? begin_ns : LOAD(collective->arrival_ns);
        begin_ns = begin_ns > until_ns ? begin_ns : until_ns;
        last_ns = last_ns < end_ns ? last_ns : end_ns;
        if (last_ns > begin_ns) {
            sum_ns += last_ns - begin_ns;
            until_ns = last_ns;
        }
    }
    return (double)sum_ns * 1e-9;
}

static bool have_ended(const Pending *row)
{
    /* With the anchor before: its end is the row's begin. */
    for (uint64_t number = row->first - 1; number <= row->last; number++) {
        Collective *collective = collective_of(number);
        if (collective == NULL || !has_ended(collective))
            return false;
    }
    return true;
}

static const int8_t KIND_OF[] = { /* and one more; 0 for none */
    [FUNCTION_ALLREDUCE] = KIND_ALL_REDUCE + 1,
    [FUNCTION_ALLGATHER] = KIND_ALL_GATHER + 1,
    [FUNCTION_REDUCESCATTER] = KIND_REDUCE_SCATTER + 1,
    [FUNCTION_ALLTOALL] = KIND_ALL_TO_ALL + 1,
    [FUNCTION_BROADCAST] = KIND_BROADCAST + 1,
    [FUNCTION_SEND] = KIND_SEND_RECV + 1,
    [FUNCTION_RECV] = KIND_SEND_RECV + 1,
    [FUNCTION_SENDRECV] = KIND_SEND_RECV + 1,
};

/* Counts the collectives of a step; the seconds of a sampled one stand for those up to the next. */
static void count_collectives(const Pending *row, bool is_timed)
{
    for (uint64_t number = row->first; number <= row->last; number++) {
        Collective *collective = collective_of(number);
        int kind = (collective == NULL ? 0 : KIND_OF[LOAD(collective->function)]) - 1;
        if (kind < 0)
            continue;
        slot.collectives[kind]++;
        slot.collective_bytes[kind] += LOAD(collective->size_bytes);
        int64_t begin_ns = LOAD(collective->begin_ns);
        begin_ns = begin_ns ? begin_ns : LOAD(collective->arrival_ns);
        if (is_timed)
            slot.collective_seconds[kind] += (double)(LOAD(collective->end_ns) - begin_ns) * 1e-9
                                             * (double)(row->is_sampled ? periodic.device_stride : 1);
    }
}

static void settle(double seconds)
{
    int bucket = 0;
    while (bucket < NUM_BUCKETS && STEP_BUCKETS[bucket] < seconds)
        bucket++;
    slot.settled_steps++;
    slot.step_buckets[bucket]++;
    slot.step_seconds_sum += seconds;
}

static void keep_locked(int64_t when_ns)
{
    if (when_ns - locked_ns < LOCK_EVERY_NS)
        return;
    locked_ns = when_ns; /* who closes the page in this process drops the lock */
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    fcntl(place.descriptor, F_SETLK, &lock);
}

static bool times_of(const Pending *row, bool is_timed, int64_t *start_ns, int64_t *end_ns)
{
    Collective *before = collective_of(row->first - 1), *last = collective_of(row->last);
    if (before == NULL || last == NULL)
        return false;
    *start_ns = is_timed ? LOAD(before->end_ns) : LOAD(before->arrival_ns);
    *end_ns = is_timed ? LOAD(last->end_ns) : LOAD(last->arrival_ns);
    return *end_ns > *start_ns;
}

static void write_row(const Pending *pended, bool is_timed)
{
    int64_t start_ns, end_ns, when_ns = now_ns();
    is_timed = is_timed && times_of(pended, true, &start_ns, &end_ns);
    if (!is_timed && !times_of(pended, false, &start_ns, &end_ns))
        return;
    Collective *first = collective_of(pended->first);
    double seconds = (double)(end_ns - start_ns) * 1e-9;
    double waited = is_timed ? waited_seconds(pended, start_ns, end_ns) : 0.0;
    Row row = {.number = (uint32_t)slot.steps, .step = pended->step, .start_ns = start_ns};
    row.seconds = (float)seconds;
    row.phase_seconds[PHASE_SYNC - FIRST_STEP_PHASE] = (float)waited;
    row.phase_seconds[PHASE_OTHER - FIRST_STEP_PHASE] = (float)(seconds - waited);
    row.first_arrival_ns = first == NULL ? start_ns : LOAD(first->arrival_ns);
    row.last_arrival_ns = is_timed ? end_ns - (int64_t)(waited * 1e9) : end_ns;
    row.present = ROW_HAS_FIRST_ARRIVAL_NS | ROW_HAS_LAST_ARRIVAL_NS;
    bool by_device = is_timed && first != NULL && LOAD(first->kernels_begun);
    if (by_device)
        row.flags = FLAG_DEVICE;
    if (is_timed) {
        waiting_ratio = waited / seconds;
        periodic.unseen &= ~(int64_t)UNSEEN_WAITS;
        periodic.device_steps += by_device;
    }
    take_schedule(&row, when_ns);
    row.checksum = checksum_of(&row, offsetof(Row, checksum) / 4);
    Row *rows = (Row *)(place.page + RING_OFFSET);
    memset(rows + (slot.steps + 1) % place.rows, 0, sizeof row); /* of an anchor before: readers look one ahead */
    memcpy(rows + slot.steps % place.rows, &row, sizeof row);
    slot.steps++;
    slot.present |= SLOT_HAS_STEP;
    slot.step = pended->step;
    /* Steps that nothing timed wait as much as the last one that was. */
    waited = seconds * waiting_ratio;
    slot.phase_seconds[PHASE_SYNC] += waited;
    slot.phase_seconds[PHASE_OTHER] += seconds - waited;
    count_collectives(pended, is_timed);
    settle(seconds);
    if (is_timed)
        commit_periodic(when_ns);
    commit(when_ns);
    keep_locked(when_ns);
}

/* Writes the rows that are complete, in order; those that wait for too long without their ends. */
static void write_rows(bool are_all)
{
    if (pending_count == 0)
        return;
    /* A run of one kind in the first forward looks like steps, until something else comes. */
    bool are_held = since_anchor < HOLD_EVENTS && now_ns() - anchor_since_ns < HOLD_NS;
    while (pending_count) {
        const Pending *row = pending + pending_first % PENDING;
        bool may_end = row->is_sampled || (LOAD(sees_parts) && !kernel_events_are_sampled());
        bool is_timed = may_end && have_ended(row);
        bool is_old = pending_count >= (are_held ? PENDING : MOST_WAITING)
                      || LOAD(newest) - row->first > MOST_COLLECTIVES / 2;
        if ((are_held || (may_end && !is_timed)) && !is_old && !are_all)
            return;
        write_row(row, is_timed);
        pending_first++;
        pending_count--;
    }
}

static void end_step(uint64_t number)
{
    int64_t step = (int64_t)anchor->count - 1; /* the same on ranks of one anchor, whenever it was chosen */
    if (last_anchor_number) {
        Pending *row = pending + (pending_first + pending_count++) % PENDING;
        *row = (Pending){last_anchor_number + 1, number, step, sampling == IN_SAMPLE};
    }
    last_anchor_number = number;
    sampling = sampling == BEFORE_SAMPLE || sampling == IN_SAMPLE ? sampling + 1 : UNSAMPLED;
}

/* Kernel events for one step in so many: from the anchor before it, by whose end it begins, to its own. */
static void sample(uint64_t number)
{
    if (sampling == AFTER_SAMPLE && number != anchor->last) {
        set_kernel_events(false);
        sampling = UNSAMPLED;
    }
    /* The next collective is the last one of the step before. */
    bool is_next = anchor != NULL && number - anchor->last + 1 >= anchor->recent;
    if (sampling != UNSAMPLED || !kernel_events_are_sampled() || !is_next || (anchor->count + 1) % STRIDE)
        return;
    periodic.present |= PERIODIC_HAS_DEVICE_STRIDE;
    periodic.device_stride = STRIDE;
    sampling = BEFORE_SAMPLE;
    set_kernel_events(true);
}

static void take_in(const Collective *collective, uint64_t number)
{
    int64_t when_ns = LOAD(collective->arrival_ns);
    /* The same on all ranks that do the same: without the communicator's name. */
    uint64_t family = mixed(LOAD(collective->function) + 1, (uint64_t)(uint32_t)LOAD(collective->ranks));
    uint64_t key = mixed(family, LOAD(collective->size_bytes)) | 1;
    uint64_t size_bytes = LOAD(collective->size_bytes);
    sum_bytes += size_bytes;
    bool ends = note_kind(key, family, number, size_bytes, when_ns);
    if (key != previous_key && run_length >= LONG_RUN)
        ends |= note_kind(mixed(previous_key, key) | 1, family, number, 0, when_ns);
    run_length = key == previous_key ? run_length + 1 : 1;
    previous_key = key;
    since_anchor++;
    if (ends)
        end_step(number);
    sample(number);
}

static void take_in_news(void)
{
    if (LOAD(are_launches_unseen) && !(periodic.unseen & UNSEEN_LAUNCHES)) {
        periodic.unseen |= UNSEEN_LAUNCHES;
        commit_periodic(now_ns());
    }
    for (int n = 0; n < MOST_AT_ONCE; n++) {
        uint64_t last = LOAD(newest);
        if (last > tracked + MOST_COLLECTIVES / 2)
            tracked = last - MOST_COLLECTIVES / 4; /* far behind: the rest may be overwritten */
        Collective *collective = collective_of(tracked + 1);
        if (collective == NULL)
            break;
        take_in(collective, ++tracked);
        if (pending_count == PENDING)
            write_rows(false);
    }
    write_rows(false);
}

void track(void)
{
    /* Who finds it taken leaves its news to who has it, who looks again after it let go. */
    __atomic_store_n(&has_news, 1, __ATOMIC_SEQ_CST);
    for (int n = 0; n < 4 && __atomic_load_n(&has_news, __ATOMIC_SEQ_CST); n++) {
        if (__atomic_test_and_set(&tracking, __ATOMIC_SEQ_CST))
            return;
        __atomic_store_n(&has_news, 0, __ATOMIC_SEQ_CST);
        take_in_news();
        __atomic_clear(&tracking, __ATOMIC_SEQ_CST);
    }
}

void flush_rows(void)
{
    if (__atomic_test_and_set(&tracking, __ATOMIC_ACQUIRE))
        return;
    write_rows(true);
    __atomic_clear(&tracking, __ATOMIC_RELEASE);
}
