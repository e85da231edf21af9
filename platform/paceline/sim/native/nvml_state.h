/* The state file of one simulated GPU host, mapped by every process of that host.
 *
 * Writers (paceline.sim.state) hold an exclusive flock on the file. A record is read under its sequence number: odd while
 * it is being written, so that a reader never mixes an old record with a new one. Fields marked "live" are single aligned
 * words that the library itself updates with atomic operations; they lie outside the sequence lock.
 *
 * paceline/sim/layout.py mirrors this file field by field; tests/unit/sim/test_sim_layout.py compares the two.
 */
#ifndef PACELINE_NVML_STATE_H
#define PACELINE_NVML_STATE_H

#include <stdint.h>

#define PLS_MAGIC 0x544154534d495350ULL /* "PSIMSTAT", little endian */
#define PLS_VERSION 3u
#define PLS_DEVICES 16   /* the largest host sold (HGX, DGX-2) has 16 */
#define PLS_PROCESSES 32 /* per device */
#define PLS_FAULTS 16    /* per device, and again for the host */
#define PLS_EVENTS 512   /* ring; a waiter that falls further behind loses the oldest, as with the driver */
#define PLS_AUTO32 0xFFFFFFFFu
#define PLS_AUTO64 0xFFFFFFFFFFFFFFFFULL

/* A fault on one call ("nvmlDeviceGetName", without _v2) or on all calls ("*"). Free slot: call[0] == 0. */
struct pls_fault {
    char call[56];
    uint32_t error;         /* NVML error to return, 0: none */
    uint32_t reserved;
    uint64_t hang_until_ns; /* live: the call sleeps until this unix time, or until it is 0 */
    uint64_t fired;         /* live: how often this fault took effect */
};

struct pls_process {
    uint32_t pid; /* a process that no longer runs is not reported, as with the driver */
    uint32_t reserved;
    uint64_t memory_bytes;
};

/* Readings that are PLS_AUTO32/64 are computed from the load: running processes make a device busy. */
struct pls_device {
    uint32_t sequence;
    uint32_t present; /* 0: fell off the bus */
    char uuid[48];
    char serial[32];
    char pci_bus_id[32];
    char product[96];
    uint64_t memory_bytes;
    uint64_t memory_used_bytes;
    double pace; /* time of a step relative to the median device */
    uint32_t power_cap_mw;
    uint32_t power_max_mw;
    uint32_t power_min_mw;
    uint32_t power_idle_mw;
    uint32_t sm_clock_max_mhz;
    uint32_t sm_clock_idle_mhz;
    uint32_t memory_clock_mhz;
    uint32_t ambient_c;
    uint32_t sm_clock_mhz;
    uint32_t temperature_c;
    uint32_t power_mw;
    uint32_t utilisation_pct;
    uint64_t throttle_reasons;
    uint64_t ecc_corrected;
    uint64_t ecc_uncorrected;
    uint64_t ecc_corrected_total; /* aggregate: survives a reset */
    uint64_t ecc_uncorrected_total;
    uint64_t throttle_sw_thermal_ns;
    uint64_t throttle_hw_thermal_ns;
    uint64_t throttle_power_brake_ns;
    uint64_t throttle_since_ns; /* unix time since when the bits of throttle_reasons add to the two above; 0: they do not */
    uint64_t pcie_replays;
    uint32_t remap_corrected;
    uint32_t remap_uncorrected;
    uint32_t remap_pending;
    uint32_t remap_failed;
    uint32_t recovery_action;
    uint32_t sram_threshold_exceeded;
    uint32_t process_count;
    uint32_t mig_mode; /* 1: on; rows and utilisation of the parent cannot be queried then */
    uint32_t pcie_gen; /* PLS_AUTO32: sleeps at 1 when idle */
    uint32_t pcie_gen_max;
    uint32_t pcie_width;
    uint32_t pcie_width_max;
    struct pls_process processes[PLS_PROCESSES];
    struct pls_fault faults[PLS_FAULTS];
    uint64_t calls;        /* live: answered or refused calls on this device */
    uint64_t energy_mj;    /* live: integrated at each reading of power or energy */
    uint64_t energy_at_ns; /* live */
};

struct pls_event {
    uint64_t number; /* live: 1 for the first event ever; written last */
    uint64_t type;
    uint64_t data;
    uint64_t at_ns;
    uint32_t slot; /* of the device, counted from 0 as the host was built; not NVML's index */
    uint32_t reserved;
};

struct pls_state {
    uint64_t magic;
    uint32_t version;
    uint32_t device_count;
    uint64_t file_bytes;
    uint64_t created_ns;
    double nominal_step_s; /* step time of the median device in a paced training run */
    double link_pace;      /* time of an exchange between its devices over that of a sound machine */
    char host[64];
    char driver_version[32];
    char nvml_version[32];
    uint32_t cuda_version;
    uint32_t sequence; /* of `faults` below */
    struct pls_fault faults[PLS_FAULTS];
    uint64_t calls;  /* live: calls that concern no one device */
    uint64_t events; /* live: events ever posted; the newest is in slot (events - 1) % PLS_EVENTS */
    struct pls_event ring[PLS_EVENTS];
    struct pls_device devices[PLS_DEVICES];
};

#endif
