/* Mapping of the state file, entry checks with fault injection, readings derived from the load. */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HANG_POLL_NS 10000000L /* a cleared hang is noticed within 10 ms */
#define SEQUENCE_TRIES 100000  /* a writer that died half way must not hang its readers */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pls_state *state;
static dev_t state_dev;
static ino_t state_ino;
static int references;

uint64_t pls_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

static int is_ours(const struct pls_state *s, off_t bytes) {
    return bytes >= (off_t)sizeof(*s) && s->magic == PLS_MAGIC && s->version == PLS_VERSION && s->file_bytes == sizeof(*s);
}

/* An older mapping is left in place when the file was replaced: handles that point into it must stay readable. */
static nvmlReturn_t map_state(void) {
    const char *path = getenv("PACELINE_SIM_STATE");
    struct stat info;
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return path && errno == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_DRIVER_NOT_LOADED;
    if (fstat(fd, &info) != 0 || info.st_size < (off_t)sizeof(struct pls_state)) {
        close(fd);
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    }
    if (state && info.st_dev == state_dev && info.st_ino == state_ino) {
        close(fd);
        return NVML_SUCCESS;
    }
    struct pls_state *mapped = mmap(NULL, sizeof(*mapped), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED) return NVML_ERROR_MEMORY;
    if (!is_ours(mapped, info.st_size)) {
        munmap(mapped, sizeof(*mapped));
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    }
    state = mapped;
    state_dev = info.st_dev;
    state_ino = info.st_ino;
    return NVML_SUCCESS;
}

struct pls_state *pls_map(void) {
    return __atomic_load_n(&references, __ATOMIC_ACQUIRE) > 0 ? state : NULL;
}

int pls_slot(nvmlDevice_t device) {
    struct pls_state *s = pls_map();
    if (!s || device < s->devices || device >= s->devices + s->device_count) return -1;
    return (int)(device - s->devices);
}

unsigned int pls_index(const struct pls_state *s, int slot) {
    unsigned int index = 0;
    for (int i = 0; i < slot; i++) index += s->devices[i].present != 0;
    return index;
}

/* Copies a record that starts at `from` and is guarded by `sequence`. */
static void read_record(const uint32_t *sequence, const void *from, void *to, size_t bytes) {
    for (int i = 0; i < SEQUENCE_TRIES; i++) {
        uint32_t before = __atomic_load_n(sequence, __ATOMIC_ACQUIRE);
        memcpy(to, from, bytes);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (!(before & 1u) && before == __atomic_load_n(sequence, __ATOMIC_RELAXED)) return;
        sched_yield();
    }
}

static void hang(struct pls_fault *live) {
    struct timespec nap = {0, HANG_POLL_NS};
    uint64_t first = pls_now_ns();
    if (first >= __atomic_load_n(&live->hang_until_ns, __ATOMIC_ACQUIRE)) return;
    __atomic_add_fetch(&live->fired, 1, __ATOMIC_RELAXED);
    while (pls_now_ns() < __atomic_load_n(&live->hang_until_ns, __ATOMIC_ACQUIRE)) nanosleep(&nap, NULL);
}

/* `seen` is a consistent copy of the slots; the counters are kept in the `live` ones. */
static nvmlReturn_t injected(const struct pls_fault *seen, struct pls_fault *live, const char *call) {
    nvmlReturn_t error = NVML_SUCCESS;
    for (int i = 0; i < PLS_FAULTS; i++) {
        if (!seen[i].call[0] || (strcmp(seen[i].call, "*") != 0 && strcmp(seen[i].call, call) != 0)) continue;
        if (seen[i].hang_until_ns) hang(&live[i]);
        if (!seen[i].error) continue;
        __atomic_add_fetch(&live[i].fired, 1, __ATOMIC_RELAXED);
        if (!error) error = seen[i].error;
    }
    return error;
}

static nvmlReturn_t host_faults(struct pls_state *s, const char *call) {
    struct pls_fault seen[PLS_FAULTS];
    read_record(&s->sequence, s->faults, seen, sizeof(seen));
    return injected(seen, s->faults, call);
}

nvmlReturn_t pls_enter_host(const char *call) {
    struct pls_state *s = pls_map();
    if (!s) return NVML_ERROR_UNINITIALIZED;
    __atomic_add_fetch(&s->calls, 1, __ATOMIC_RELAXED);
    return host_faults(s, call);
}

nvmlReturn_t pls_enter(nvmlDevice_t device, const char *call, struct pls_device *out) {
    struct pls_state *s = pls_map();
    if (!s) return NVML_ERROR_UNINITIALIZED;
    if (pls_slot(device) < 0) return NVML_ERROR_INVALID_ARGUMENT;
    __atomic_add_fetch(&device->calls, 1, __ATOMIC_RELAXED);
    nvmlReturn_t error = host_faults(s, call);
    if (error) return error;
    read_record(&device->sequence, device, out, sizeof(*out));
    error = injected(out->faults, device->faults, call);
    if (error) return error;
    return out->present ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
}

API nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    nvmlReturn_t result = references > 0 ? NVML_SUCCESS : map_state();
    if (!result) __atomic_add_fetch(&references, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    if (result) return result;
    result = host_faults(state, "nvmlInit");
    if (result) __atomic_sub_fetch(&references, 1, __ATOMIC_RELEASE);
    return result;
}

API nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }
API nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

API nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    nvmlReturn_t result = references > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (!result) __atomic_sub_fetch(&references, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return result;
}

static uint64_t mix(uint64_t x) { /* splitmix64's finaliser */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

static uint64_t identity(const struct pls_device *d) {
    uint64_t hash = 1469598103934665603ULL; /* FNV-1a */
    for (const char *c = d->uuid; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211ULL;
    return hash;
}

/* A number in [-1, 1) that changes each second and differs between devices. */
static double wobble(const struct pls_device *d, uint64_t salt) {
    uint64_t second = pls_now_ns() / 1000000000ULL;
    return (double)(mix(identity(d) + second * 2654435761ULL + salt) >> 11) / (double)(1ULL << 52) - 1.0;
}

unsigned int pls_processes(const struct pls_device *d, struct pls_process out[PLS_PROCESSES]) {
    unsigned int alive = 0;
    for (uint32_t i = 0; i < d->process_count && i < PLS_PROCESSES; i++)
        if (kill((pid_t)d->processes[i].pid, 0) == 0 || errno == EPERM) out[alive++] = d->processes[i];
    return alive;
}

unsigned int pls_load_pct(const struct pls_device *d) {
    struct pls_process running[PLS_PROCESSES];
    if (d->utilisation_pct != PLS_AUTO32) return d->utilisation_pct;
    return pls_processes(d, running) ? (unsigned int)(96.0 + 3.0 * wobble(d, 1)) : 0;
}

unsigned int pls_power_mw(const struct pls_device *d) {
    if (d->power_mw != PLS_AUTO32) return d->power_mw;
    double span = (double)d->power_cap_mw - d->power_idle_mw;
    double drawn = d->power_idle_mw + 0.95 * span * pls_load_pct(d) / 100.0;
    return (unsigned int)(drawn * (1.0 + 0.01 * wobble(d, 2)));
}

unsigned int pls_temperature_c(const struct pls_device *d) {
    if (d->temperature_c != PLS_AUTO32) return d->temperature_c;
    double rise = 40.0 * pls_power_mw(d) / d->power_cap_mw; /* air-cooled HGX: about 65 °C at the cap */
    return (unsigned int)(d->ambient_c + rise + (double)(identity(d) % 4));
}

/* A slow device holds a lower clock under load; SC'22 "Not All GPUs Are Created Equal" saw the two go together. */
unsigned int pls_sm_clock_mhz(const struct pls_device *d) {
    if (d->sm_clock_mhz != PLS_AUTO32) return d->sm_clock_mhz;
    if (!pls_load_pct(d)) return d->sm_clock_idle_mhz;
    double pace = d->pace > 1.0 ? d->pace : 1.0;
    return (unsigned int)(d->sm_clock_max_mhz / pace);
}

unsigned long long pls_throttle_reasons(const struct pls_device *d) {
    if (d->throttle_reasons != PLS_AUTO64) return d->throttle_reasons;
    return pls_load_pct(d) ? 0x0 : 0x1; /* none, or idle */
}

/* Time that the clocks were held down for `bit`, as the driver counts it: `before_ns`, and what runs since then. */
unsigned long long pls_throttled_ns(const struct pls_device *d, unsigned long long bit, uint64_t before_ns) {
    uint64_t now = pls_now_ns();
    int runs = d->throttle_since_ns && now > d->throttle_since_ns && (pls_throttle_reasons(d) & bit);
    return before_ns + (runs ? now - d->throttle_since_ns : 0);
}

unsigned int pls_pcie_gen(const struct pls_device *d) {
    if (d->pcie_gen != PLS_AUTO32) return d->pcie_gen;
    return pls_load_pct(d) ? d->pcie_gen_max : 1; /* the link sleeps when idle */
}

unsigned long long pls_memory_used(const struct pls_device *d) {
    struct pls_process running[PLS_PROCESSES];
    unsigned long long used = 0;
    if (d->memory_used_bytes != PLS_AUTO64) return d->memory_used_bytes;
    unsigned int count = pls_processes(d, running);
    for (unsigned int i = 0; i < count; i++) used += running[i].memory_bytes;
    unsigned long long most = d->memory_bytes - PLS_MEMORY_RESERVED;
    return used < most ? used : most;
}

/* Never falls: each caller adds the power since the last reading, and only one caller gets each stretch of time. */
unsigned long long pls_energy_mj(nvmlDevice_t device, const struct pls_device *d) {
    uint64_t now = pls_now_ns();
    uint64_t last = __atomic_load_n(&device->energy_at_ns, __ATOMIC_RELAXED);
    if (now > last && __atomic_compare_exchange_n(&device->energy_at_ns, &last, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        double mj = (double)pls_power_mw(d) * (double)(now - last) / 1e9;
        __atomic_add_fetch(&device->energy_mj, (uint64_t)mj, __ATOMIC_RELAXED);
    }
    return __atomic_load_n(&device->energy_mj, __ATOMIC_RELAXED);
}
