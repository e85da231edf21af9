/* Event sets. Each set reads the ring with its own cursor, so every waiting process sees every event. */
#define _GNU_SOURCE
#include "core.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SET_MAGIC 0x5345544eU
#define WAIT_POLL_NS 50000000L /* an event is seen within 50 ms; shorter naps would be most of what an idle reader costs */

struct event_set {
    unsigned int magic;
    struct pls_state *state;
    uint64_t cursor;             /* events before this number were looked at */
    uint64_t since[PLS_DEVICES]; /* events up to this number came before the registration: lost */
    unsigned long long types[PLS_DEVICES];
};

API nvmlReturn_t nvmlEventSetCreate(struct event_set **out) {
    nvmlReturn_t error = pls_enter_host("nvmlEventSetCreate");
    if (error) return error;
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    struct event_set *set = calloc(1, sizeof(*set));
    if (!set) return NVML_ERROR_MEMORY;
    set->magic = SET_MAGIC;
    set->state = pls_map();
    set->cursor = __atomic_load_n(&set->state->events, __ATOMIC_ACQUIRE);
    *out = set;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlEventSetFree(struct event_set *set) {
    if (!set || set->magic != SET_MAGIC) return NVML_ERROR_INVALID_ARGUMENT;
    set->magic = 0;
    free(set);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *out) {
    struct pls_device d;
    nvmlReturn_t error = pls_enter(device, "nvmlDeviceGetSupportedEventTypes", &d);
    if (!error) *out = NVML_EVENTS_SUPPORTED;
    return error;
}

API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, struct event_set *set) {
    struct pls_device d;
    nvmlReturn_t error = pls_enter(device, "nvmlDeviceRegisterEvents", &d);
    if (error) return error;
    if (!set || set->magic != SET_MAGIC || set->state != pls_map()) return NVML_ERROR_INVALID_ARGUMENT;
    if (types & ~NVML_EVENTS_SUPPORTED) return NVML_ERROR_NOT_SUPPORTED;
    int slot = pls_slot(device);
    set->since[slot] = __atomic_load_n(&set->state->events, __ATOMIC_ACQUIRE);
    set->types[slot] |= types;
    return NVML_SUCCESS;
}

/* Reads event `number`; 0 if the ring has already overwritten it. */
static int read_event(const struct pls_state *s, uint64_t number, struct pls_event *out) {
    const struct pls_event *slot = &s->ring[(number - 1) % PLS_EVENTS];
    if (__atomic_load_n(&slot->number, __ATOMIC_ACQUIRE) != number) return 0;
    memcpy(out, slot, sizeof(*out));
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(&slot->number, __ATOMIC_RELAXED) == number;
}

static int next_event(struct event_set *set, struct pls_event *out) {
    uint64_t posted = __atomic_load_n(&set->state->events, __ATOMIC_ACQUIRE);
    if (posted > PLS_EVENTS && set->cursor < posted - PLS_EVENTS) set->cursor = posted - PLS_EVENTS;
    while (set->cursor < posted) {
        uint64_t number = ++set->cursor;
        if (!read_event(set->state, number, out) || out->slot >= PLS_DEVICES) continue;
        if ((set->types[out->slot] & out->type) && number > set->since[out->slot]) return 1;
    }
    return 0;
}

static nvmlReturn_t wait_event(struct event_set *set, struct pls_event *event, unsigned int timeout_ms) {
    nvmlReturn_t error = pls_enter_host("nvmlEventSetWait");
    if (error) return error;
    if (!set || set->magic != SET_MAGIC) return NVML_ERROR_INVALID_ARGUMENT;
    struct timespec nap = {0, WAIT_POLL_NS}, now, first;
    clock_gettime(CLOCK_MONOTONIC, &first);
    for (;;) {
        if (next_event(set, event)) return NVML_SUCCESS;
        clock_gettime(CLOCK_MONOTONIC, &now);
        long long waited_ms = (now.tv_sec - first.tv_sec) * 1000LL + (now.tv_nsec - first.tv_nsec) / 1000000LL;
        if (waited_ms >= (long long)timeout_ms) return NVML_ERROR_TIMEOUT;
        nanosleep(&nap, NULL);
    }
}

static void fill(struct event_set *set, nvmlEventData_t *data, const struct pls_event *event) {
    data->device = &set->state->devices[event->slot];
    data->event_type = event->type;
    data->event_data = event->data;
}

API nvmlReturn_t nvmlEventSetWait(struct event_set *set, nvmlEventData_t *data, unsigned int timeout_ms) {
    struct pls_event event;
    nvmlReturn_t error = wait_event(set, &event, timeout_ms);
    if (!error) fill(set, data, &event);
    return error;
}

API nvmlReturn_t nvmlEventSetWait_v2(struct event_set *set, nvmlEventData_t *data, unsigned int timeout_ms) {
    struct pls_event event;
    nvmlReturn_t error = wait_event(set, &event, timeout_ms);
    if (error) return error;
    fill(set, data, &event);
    data->gpu_instance = data->compute_instance = 0xFFFFFFFFu; /* not a MIG instance */
    return NVML_SUCCESS;
}
