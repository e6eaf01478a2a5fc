/* The ring of collectives: arrivals, and the ends of their parts, which other threads tell. */
#include "plugin.h"

uint64_t newest; /* number of the collective that arrived last */
char sees_parts;

Communicator *communicators(void)
{
    return (Communicator *)(place.launches + COMMUNICATORS_OFFSET);
}

static Collective *place_of(uint64_t number)
{
    return (Collective *)(place.launches + LAUNCHES_OFFSET) + (number - 1) % MOST_COLLECTIVES;
}

Collective *collective_of(uint64_t number)
{
    Collective *collective = place_of(number);
    return number && __atomic_load_n(&collective->number, __ATOMIC_ACQUIRE) == number ? collective : NULL;
}

void beat(int64_t when_ns, int phase)
{
    STORE(*(uint64_t *)(place.page + HEARTBEAT_OFFSET), (uint64_t)when_ns << 4 | (uint64_t)phase);
}

uint64_t note_arrival(int communicator, uint64_t sequence, int function, uint64_t size_bytes, int rank,
                      int peer, int channels)
{
    Communicator *group = communicators() + communicator;
    uint64_t number = ADD(newest, 1) + 1;
    int64_t arrival_ns = now_ns();
    Collective *collective = place_of(number);
    STORE(collective->number, 0);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    STORE(collective->arrival_ns, arrival_ns);
    STORE(collective->begin_ns, 0);
    STORE(collective->end_ns, 0);
    STORE(collective->communicator, LOAD(group->communicator));
    STORE(collective->sequence, sequence);
    STORE(collective->size_bytes, size_bytes);
    STORE(collective->kernels_begun, 0);
    STORE(collective->kernels_ended, 0);
    STORE(collective->proxies_begun, 0);
    STORE(collective->proxies_ended, 0);
    STORE(collective->rank, rank);
    STORE(collective->ranks, LOAD(group->ranks));
    STORE(collective->peer, peer);
    STORE(collective->channels, (uint16_t)channels);
    STORE(collective->function, (uint16_t)function);
    __atomic_store_n(&collective->number, number, __ATOMIC_RELEASE);
    ADD(group->launched, 1);
    beat(arrival_ns, PHASE_SYNC);
    return number;
}

bool has_ended(const Collective *collective)
{
    uint32_t kernels = LOAD(collective->kernels_begun), kernels_ended = LOAD(collective->kernels_ended);
    uint32_t proxies = LOAD(collective->proxies_begun), channels = LOAD(collective->channels);
    if (kernels == 0 && proxies == 0)
        return false;
    if (kernels_ended < kernels || LOAD(collective->proxies_ended) < proxies)
        return false;
    return kernels == 0 || kernels_ended >= channels;
}

bool begin_part(uint64_t number, bool is_kernel)
{
    Collective *collective = collective_of(number);
    if (collective == NULL)
        return false;
    ADD(*(is_kernel ? &collective->kernels_begun : &collective->proxies_begun), 1);
    int64_t unknown = 0;
    if (is_kernel)
        __atomic_compare_exchange_n(&collective->begin_ns, &unknown, now_ns(), false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED);
    if (!LOAD(sees_parts))
        STORE(sees_parts, 1);
    return true;
}

void end_part(uint64_t number, bool is_kernel)
{
    Collective *collective = collective_of(number);
    if (collective == NULL)
        return;
    uint64_t *heartbeat = (uint64_t *)(place.page + HEARTBEAT_OFFSET);
    uint64_t before = LOAD(*heartbeat);
    int64_t end_ns = now_ns(), last_ns = LOAD(collective->end_ns);
    while (last_ns < end_ns
           && !__atomic_compare_exchange_n(&collective->end_ns, &last_ns, end_ns, false, __ATOMIC_RELAXED,
                                           __ATOMIC_RELAXED)) {
    }
    ADD(*(is_kernel ? &collective->kernels_ended : &collective->proxies_ended), 1);
    if (number != LOAD(newest) || !has_ended(collective))
        return;
    /* Own work begins, unless the next collective has arrived meanwhile. */
    uint64_t word = (uint64_t)end_ns << 4 | PHASE_OTHER;
    __atomic_compare_exchange_n(heartbeat, &before, word, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
