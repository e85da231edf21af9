/* A libnvidia-ml.so.1 for simulated GPU hosts: answers from the state file named by PACELINE_SIM_STATE.
 *
 * It answers the calls that monitoring makes; any other symbol is absent, which callers see as "function not found", as with
 * an older driver. Without PACELINE_SIM_STATE every init says "driver not loaded".
 */
#define _GNU_SOURCE
#include "core.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define H100_PCI_ID 0x233010DEu
#define H100_PCI_SUBSYSTEM 0x16C110DEu
#define TEMPERATURE_SHUTDOWN_C 92
#define TEMPERATURE_SLOWDOWN_C 89
#define TEMPERATURE_MEMORY_MAX_C 95
#define TEMPERATURE_GPU_MAX_C 87
#define ALL_THROTTLE_REASONS 0x1FFULL

/* A call that needs a device: checks it, then runs the block with the snapshot `d`. */
#define DEVICE_CALL(name, call, args, ...)                                                                             \
    API nvmlReturn_t name args {                                                                                       \
        struct pls_device d;                                                                                           \
        nvmlReturn_t error = pls_enter(device, call, &d);                                                              \
        if (error) return error;                                                                                       \
        __VA_ARGS__ return NVML_SUCCESS;                                                                                     \
    }
#define READING(name, type, value)                                                                                     \
    DEVICE_CALL(name, #name, (nvmlDevice_t device, type *out), {                                                       \
        if (!out) return NVML_ERROR_INVALID_ARGUMENT;                                                                  \
        *out = (type)(value);                                                                                          \
    })
#define UNSUPPORTED(name, args)                                                                                        \
    DEVICE_CALL(name, #name, args, { return NVML_ERROR_NOT_SUPPORTED; })

static nvmlReturn_t copy_text(const char *from, char *to, unsigned int size) {
    if (!to) return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(from) + 1 > size) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, from);
    return NVML_SUCCESS;
}

API const char *nvmlErrorString(nvmlReturn_t error) {
    static const char *const text[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized",
        "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
        "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
        "Operating System Error", "Driver/library version mismatch", "In use by another client", "Insufficient Memory", "No data",
        "VGPU ECC not supported", "Insufficient Resources", "Frequency not supported", "Argument version mismatch", "Deprecated",
        "Not ready", "GPU not found", "Invalid state", "Reset type not supported"};
    return error < sizeof(text) / sizeof(text[0]) ? text[error] : "Unknown Error";
}

/* ---- the system ---- */

API nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned int size) {
    nvmlReturn_t error = pls_enter_host("nvmlSystemGetDriverVersion");
    return error ? error : copy_text(pls_map()->driver_version, out, size);
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned int size) {
    nvmlReturn_t error = pls_enter_host("nvmlSystemGetNVMLVersion");
    return error ? error : copy_text(pls_map()->nvml_version, out, size);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *out) {
    nvmlReturn_t error = pls_enter_host("nvmlSystemGetCudaDriverVersion");
    if (!error) *out = (int)pls_map()->cuda_version;
    return error;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out) { return nvmlSystemGetCudaDriverVersion(out); }

API nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *out, unsigned int size) {
    nvmlReturn_t error = pls_enter_host("nvmlSystemGetProcessName");
    if (error) return error;
    char path[64];
    snprintf(path, sizeof(path), "/proc/%u/comm", pid);
    FILE *file = fopen(path, "r");
    if (!file) return NVML_ERROR_NOT_FOUND;
    char *line = fgets(out, (int)size, file);
    fclose(file);
    if (!line) return NVML_ERROR_UNKNOWN;
    out[strcspn(out, "\n")] = 0;
    return NVML_SUCCESS;
}

/* ---- finding devices ---- */

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *out) {
    nvmlReturn_t error = pls_enter_host("nvmlDeviceGetCount");
    if (error) return error;
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    *out = pls_index(pls_map(), (int)pls_map()->device_count);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCount(unsigned int *out) { return nvmlDeviceGetCount_v2(out); }

static nvmlReturn_t found(struct pls_device *device, const char *call, nvmlDevice_t *out) {
    struct pls_device d;
    nvmlReturn_t error = pls_enter(device, call, &d);
    if (!error) *out = device;
    return error;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *out) {
    nvmlReturn_t error = pls_enter_host("nvmlDeviceGetHandleByIndex");
    if (error) return error;
    struct pls_state *s = pls_map();
    for (unsigned int slot = 0; slot < s->device_count; slot++)
        if (s->devices[slot].present && pls_index(s, (int)slot) == index)
            return found(&s->devices[slot], "nvmlDeviceGetHandleByIndex", out);
    return NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *out) {
    return nvmlDeviceGetHandleByIndex_v2(index, out);
}

/* NVML prints 8 digits of domain and accepts 4: what follows the domain is compared first. */
static int same_pci(const char *a, const char *b) {
    const char *rest_a = strchr(a, ':'), *rest_b = strchr(b, ':');
    return rest_a && rest_b && strcasecmp(rest_a, rest_b) == 0 && strtoul(a, NULL, 16) == strtoul(b, NULL, 16);
}

static int same_text(const char *a, const char *b) { return strcmp(a, b) == 0; }

static nvmlReturn_t find(const char *call, const char *key, size_t offset, int (*same)(const char *, const char *), nvmlDevice_t *out) {
    nvmlReturn_t error = pls_enter_host(call);
    if (error) return error;
    if (!key || !out) return NVML_ERROR_INVALID_ARGUMENT;
    struct pls_state *s = pls_map();
    for (unsigned int slot = 0; slot < s->device_count; slot++)
        if (same((const char *)&s->devices[slot] + offset, key)) return found(&s->devices[slot], call, out);
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out) {
    return find("nvmlDeviceGetHandleByUUID", uuid, offsetof(struct pls_device, uuid), same_text, out);
}

API nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *out) {
    return find("nvmlDeviceGetHandleBySerial", serial, offsetof(struct pls_device, serial), same_text, out);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *out) {
    return find("nvmlDeviceGetHandleByPciBusId", bus_id, offsetof(struct pls_device, pci_bus_id), same_pci, out);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *out) {
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, out);
}

/* ---- identity ---- */

DEVICE_CALL(nvmlDeviceGetName, "nvmlDeviceGetName", (nvmlDevice_t device, char *out, unsigned int size), { return copy_text(d.product, out, size); })
DEVICE_CALL(nvmlDeviceGetUUID, "nvmlDeviceGetUUID", (nvmlDevice_t device, char *out, unsigned int size), { return copy_text(d.uuid, out, size); })
DEVICE_CALL(nvmlDeviceGetSerial, "nvmlDeviceGetSerial", (nvmlDevice_t device, char *out, unsigned int size), { return copy_text(d.serial, out, size); })
READING(nvmlDeviceGetIndex, unsigned int, pls_index(pls_map(), pls_slot(device)))
READING(nvmlDeviceGetMinorNumber, unsigned int, pls_slot(device))
READING(nvmlDeviceGetBrand, unsigned int, 14) /* NVML_BRAND_NVIDIA */
READING(nvmlDeviceGetArchitecture, unsigned int, 9) /* Hopper */
READING(nvmlDeviceGetPersistenceMode, unsigned int, 1)
READING(nvmlDeviceGetComputeMode, unsigned int, 0)
DEVICE_CALL(nvmlDeviceGetCudaComputeCapability, "nvmlDeviceGetCudaComputeCapability", (nvmlDevice_t device, int *major, int *minor), {
    *major = 9;
    *minor = 0;
})

DEVICE_CALL(nvmlDeviceGetPciInfo_v3, "nvmlDeviceGetPciInfo", (nvmlDevice_t device, nvmlPciInfo_t *out), {
    memset(out, 0, sizeof(*out));
    if (sscanf(d.pci_bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3) return NVML_ERROR_UNKNOWN;
    snprintf(out->bus_id_legacy, sizeof(out->bus_id_legacy), "%04X:%02X:%02X.0", out->domain & 0xFFFF, out->bus & 0xFF, out->device & 0xFF);
    snprintf(out->bus_id, sizeof(out->bus_id), "%.31s", d.pci_bus_id);
    out->pci_device_id = H100_PCI_ID;
    out->pci_subsystem_id = H100_PCI_SUBSYSTEM;
})
API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *out) { return nvmlDeviceGetPciInfo_v3(device, out); }
API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *out) { return nvmlDeviceGetPciInfo_v3(device, out); }

/* ---- MIG, links, fans: present on the board or not at all ---- */

DEVICE_CALL(nvmlDeviceGetMigMode, "nvmlDeviceGetMigMode", (nvmlDevice_t device, unsigned int *current, unsigned int *pending), { *current = *pending = d.mig_mode; })
READING(nvmlDeviceGetMaxMigDeviceCount, unsigned int, d.mig_mode ? 7 : 0)
READING(nvmlDeviceIsMigDeviceHandle, unsigned int, 0)
UNSUPPORTED(nvmlDeviceGetFanSpeed, (nvmlDevice_t device, unsigned int *out __attribute__((unused))))
UNSUPPORTED(nvmlDeviceGetFanSpeed_v2, (nvmlDevice_t device, unsigned int fan __attribute__((unused)), unsigned int *out __attribute__((unused))))
UNSUPPORTED(nvmlDeviceGetNvLinkState, (nvmlDevice_t device, unsigned int link __attribute__((unused)), unsigned int *out __attribute__((unused))))
READING(nvmlDeviceGetNumFans, unsigned int, 0)
READING(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, pls_pcie_gen(&d))
READING(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, d.pcie_gen_max)
READING(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int, 5)
READING(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, d.pcie_width)
READING(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, d.pcie_width_max)
READING(nvmlDeviceGetPcieReplayCounter, unsigned int, d.pcie_replays)
DEVICE_CALL(nvmlDeviceGetPcieThroughput, "nvmlDeviceGetPcieThroughput", (nvmlDevice_t device, unsigned int counter, unsigned int *kb_per_s), {
    if (counter > 1) return NVML_ERROR_INVALID_ARGUMENT;
    *kb_per_s = pls_load_pct(&d) * 4000u;
})

/* ---- clocks, heat, power ---- */

static nvmlReturn_t clock_of(const struct pls_device *d, unsigned int type, int most, unsigned int *mhz) {
    if (!mhz || type > 3) return NVML_ERROR_INVALID_ARGUMENT;
    unsigned int sm = most ? d->sm_clock_max_mhz : pls_sm_clock_mhz(d);
    *mhz = type == 2 ? d->memory_clock_mhz : type == 3 ? sm * 9 / 10 : sm; /* 2 memory, 3 video */
    return NVML_SUCCESS;
}

DEVICE_CALL(nvmlDeviceGetClockInfo, "nvmlDeviceGetClockInfo", (nvmlDevice_t device, unsigned int type, unsigned int *mhz), { return clock_of(&d, type, 0, mhz); })
DEVICE_CALL(nvmlDeviceGetMaxClockInfo, "nvmlDeviceGetMaxClockInfo", (nvmlDevice_t device, unsigned int type, unsigned int *mhz), { return clock_of(&d, type, 1, mhz); })
DEVICE_CALL(nvmlDeviceGetClock, "nvmlDeviceGetClock", (nvmlDevice_t device, unsigned int type, unsigned int id, unsigned int *mhz), { return clock_of(&d, type, id != 0, mhz); })

READING(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, pls_throttle_reasons(&d))
READING(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, pls_throttle_reasons(&d))
READING(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, ALL_THROTTLE_REASONS)
READING(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, ALL_THROTTLE_REASONS)
READING(nvmlDeviceGetPerformanceState, unsigned int, 0)
READING(nvmlDeviceGetPowerState, unsigned int, 0)

DEVICE_CALL(nvmlDeviceGetTemperature, "nvmlDeviceGetTemperature", (nvmlDevice_t device, unsigned int sensor, unsigned int *c), {
    if (sensor != 0 || !c) return NVML_ERROR_INVALID_ARGUMENT;
    *c = pls_temperature_c(&d);
})
DEVICE_CALL(nvmlDeviceGetTemperatureV, "nvmlDeviceGetTemperatureV", (nvmlDevice_t device, nvmlTemperature_t *t), {
    if (t->version != 0x100000Cu) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (t->sensor != 0) return NVML_ERROR_INVALID_ARGUMENT;
    t->temperature = (int)pls_temperature_c(&d);
})
DEVICE_CALL(nvmlDeviceGetMarginTemperature, "nvmlDeviceGetMarginTemperature", (nvmlDevice_t device, nvmlMarginTemperature_t *t), {
    if (t->version != 0x1000008u) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    t->margin = TEMPERATURE_GPU_MAX_C - (int)pls_temperature_c(&d);
})
DEVICE_CALL(nvmlDeviceGetTemperatureThreshold, "nvmlDeviceGetTemperatureThreshold", (nvmlDevice_t device, unsigned int which, unsigned int *c), {
    static const unsigned int limits[] = {TEMPERATURE_SHUTDOWN_C, TEMPERATURE_SLOWDOWN_C, TEMPERATURE_MEMORY_MAX_C, TEMPERATURE_GPU_MAX_C};
    if (which > 7 || !c) return NVML_ERROR_INVALID_ARGUMENT;
    if (which > 3) return NVML_ERROR_NOT_SUPPORTED; /* acoustic and GPS limits: desktop boards */
    *c = limits[which];
})

READING(nvmlDeviceGetPowerUsage, unsigned int, (pls_energy_mj(device, &d), pls_power_mw(&d)))
READING(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, pls_energy_mj(device, &d))
READING(nvmlDeviceGetPowerManagementMode, unsigned int, 1)
READING(nvmlDeviceGetPowerManagementLimit, unsigned int, d.power_cap_mw)
READING(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, d.power_max_mw)
READING(nvmlDeviceGetEnforcedPowerLimit, unsigned int, d.power_cap_mw)
DEVICE_CALL(nvmlDeviceGetPowerManagementLimitConstraints, "nvmlDeviceGetPowerManagementLimitConstraints", (nvmlDevice_t device, unsigned int *least, unsigned int *most), {
    *least = d.power_min_mw;
    *most = d.power_max_mw;
})

/* ---- memory and its errors ---- */

DEVICE_CALL(nvmlDeviceGetMemoryInfo, "nvmlDeviceGetMemoryInfo", (nvmlDevice_t device, nvmlMemory_t *m), {
    m->total = d.memory_bytes;
    m->used = pls_memory_used(&d) + PLS_MEMORY_RESERVED; /* v1 counts the reserve as used */
    if (m->used > m->total) m->used = m->total;
    m->free = m->total - m->used;
})
DEVICE_CALL(nvmlDeviceGetMemoryInfo_v2, "nvmlDeviceGetMemoryInfo", (nvmlDevice_t device, nvmlMemory_v2_t *m), {
    if (m->version != 0x02000028u) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    m->total = d.memory_bytes;
    m->reserved = PLS_MEMORY_RESERVED;
    m->used = pls_memory_used(&d);
    if (m->used > m->total - m->reserved) m->used = m->total - m->reserved;
    m->free = m->total - m->reserved - m->used;
})
DEVICE_CALL(nvmlDeviceGetBAR1MemoryInfo, "nvmlDeviceGetBAR1MemoryInfo", (nvmlDevice_t device, nvmlBAR1Memory_t *m), {
    m->bar1_total = 128ULL << 30;
    m->bar1_used = 1ULL << 20;
    m->bar1_free = m->bar1_total - m->bar1_used;
})
DEVICE_CALL(nvmlDeviceGetEccMode, "nvmlDeviceGetEccMode", (nvmlDevice_t device, unsigned int *current, unsigned int *pending), { *current = *pending = 1; })

static nvmlReturn_t ecc_of(const struct pls_device *d, unsigned int type, unsigned int counter, unsigned long long *out) {
    if (!out || type > 1 || counter > 1) return NVML_ERROR_INVALID_ARGUMENT;
    if (type == 0) *out = counter == 0 ? d->ecc_corrected : d->ecc_corrected_total;
    if (type == 1) *out = counter == 0 ? d->ecc_uncorrected : d->ecc_uncorrected_total;
    return NVML_SUCCESS;
}

DEVICE_CALL(nvmlDeviceGetTotalEccErrors, "nvmlDeviceGetTotalEccErrors", (nvmlDevice_t device, unsigned int type, unsigned int counter, unsigned long long *out), { return ecc_of(&d, type, counter, out); })
DEVICE_CALL(nvmlDeviceGetMemoryErrorCounter, "nvmlDeviceGetMemoryErrorCounter", (nvmlDevice_t device, unsigned int type, unsigned int counter, unsigned int place, unsigned long long *out), {
    if (place > 7) return NVML_ERROR_INVALID_ARGUMENT;
    if (place == 2) return ecc_of(&d, type, counter, out); /* device memory: all errors of the simulation lie there */
    *out = 0;
})
DEVICE_CALL(nvmlDeviceGetDetailedEccErrors, "nvmlDeviceGetDetailedEccErrors", (nvmlDevice_t device, unsigned int type, unsigned int counter, nvmlEccErrorCounts_t *out), {
    memset(out, 0, sizeof(*out));
    return ecc_of(&d, type, counter, &out->device);
})
DEVICE_CALL(nvmlDeviceGetSramEccErrorStatus, "nvmlDeviceGetSramEccErrorStatus", (nvmlDevice_t device, nvmlEccSramErrorStatus_t *out), {
    if (out->version != 0x1000068u) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memset(out, 0, sizeof(*out));
    out->version = 0x1000068u;
    out->threshold_exceeded = d.sram_threshold_exceeded;
})
DEVICE_CALL(nvmlDeviceGetRemappedRows, "nvmlDeviceGetRemappedRows", (nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending, unsigned int *failed), {
    if (d.mig_mode) return NVML_ERROR_NOT_SUPPORTED;
    *corrected = d.remap_corrected;
    *uncorrected = d.remap_uncorrected;
    *pending = d.remap_pending;
    *failed = d.remap_failed;
})
/* Pages are retired up to Volta; newer devices remap rows instead. */
UNSUPPORTED(nvmlDeviceGetRetiredPages, (nvmlDevice_t device, unsigned int cause __attribute__((unused)), unsigned int *count __attribute__((unused)), unsigned long long *pages __attribute__((unused))))
UNSUPPORTED(nvmlDeviceGetRetiredPagesPendingStatus, (nvmlDevice_t device, unsigned int *out __attribute__((unused))))

DEVICE_CALL(nvmlDeviceGetUtilizationRates, "nvmlDeviceGetUtilizationRates", (nvmlDevice_t device, nvmlUtilization_t *out), {
    if (d.mig_mode) return NVML_ERROR_NOT_SUPPORTED;
    out->gpu = pls_load_pct(&d);
    out->memory = out->gpu * 6 / 10;
})
