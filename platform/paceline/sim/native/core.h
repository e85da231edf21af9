/* What the parts of the simulated driver share: the mapped state, entry checks with fault injection, derived readings. */
#ifndef PACELINE_CORE_H
#define PACELINE_CORE_H

#include "nvml_abi.h"
#include "nvml_state.h"

#define API __attribute__((visibility("default")))

struct pls_state *pls_map(void); /* the mapped state, or NULL while NVML is not initialised */
uint64_t pls_now_ns(void);
int pls_slot(nvmlDevice_t device); /* -1 if this is no handle of ours */
unsigned int pls_index(const struct pls_state *state, int slot); /* NVML's index: counts the present devices only */

/* Entry of each call: checks, hangs, injected errors. `call` is the name without its version suffix. */
nvmlReturn_t pls_enter_host(const char *call);
nvmlReturn_t pls_enter(nvmlDevice_t device, const char *call, struct pls_device *out);

/* Readings of a snapshot. */
unsigned int pls_processes(const struct pls_device *d, struct pls_process out[PLS_PROCESSES]);
unsigned int pls_load_pct(const struct pls_device *d);
unsigned int pls_power_mw(const struct pls_device *d);
unsigned int pls_temperature_c(const struct pls_device *d);
unsigned int pls_sm_clock_mhz(const struct pls_device *d);
unsigned long long pls_throttle_reasons(const struct pls_device *d);
unsigned long long pls_throttled_ns(const struct pls_device *d, unsigned long long bit, uint64_t before_ns);
unsigned int pls_pcie_gen(const struct pls_device *d);
unsigned long long pls_memory_used(const struct pls_device *d);
unsigned long long pls_energy_mj(nvmlDevice_t device, const struct pls_device *d);

#define PLS_MEMORY_RESERVED (612ULL << 20) /* what an idle H100 holds back, in bytes */

#endif
