/* The calls that list a device's processes, and the field values. */
#define _GNU_SOURCE
#include "core.h"

#include <string.h>

#define FIELD_UINT 1u
#define FIELD_ULL 3u
#define FIELD_INT 5u

static nvmlReturn_t list_processes(const struct pls_device *d, unsigned int *count, nvmlProcessInfo_t *out) {
    struct pls_process running[PLS_PROCESSES];
    unsigned int room = count ? *count : 0, alive = pls_processes(d, running);
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    *count = alive;
    if (alive == 0) return NVML_SUCCESS;
    if (!out || room < alive) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < alive; i++)
        out[i] = (nvmlProcessInfo_t){running[i].pid, running[i].memory_bytes, 0xFFFFFFFFu, 0xFFFFFFFFu};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *out) {
    struct pls_device d;
    nvmlReturn_t error = pls_enter(device, "nvmlDeviceGetComputeRunningProcesses", &d);
    return error ? error : list_processes(&d, count, out);
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *out) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, out);
}

/* Nothing draws on a data-center GPU, and MPS is not simulated. */
static nvmlReturn_t no_processes(nvmlDevice_t device, const char *call, unsigned int *count) {
    struct pls_device d;
    nvmlReturn_t error = pls_enter(device, call, &d);
    if (!error) *count = 0;
    return error;
}

API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *out) {
    (void)out;
    return no_processes(device, "nvmlDeviceGetGraphicsRunningProcesses", count);
}

API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *out) {
    return nvmlDeviceGetGraphicsRunningProcesses_v3(device, count, out);
}

API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *out) {
    (void)out;
    return no_processes(device, "nvmlDeviceGetMPSComputeRunningProcesses", count);
}

API nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *out) {
    struct pls_device d;
    struct pls_process running[PLS_PROCESSES];
    nvmlReturn_t error = pls_enter(device, "nvmlDeviceGetProcessesUtilizationInfo", &d);
    if (error) return error;
    if (out->version != 0x01000018u) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    unsigned int room = out->count, alive = pls_processes(&d, running);
    out->count = alive;
    if (alive == 0) return NVML_ERROR_NOT_FOUND;
    if (!out->samples || room < alive) return NVML_ERROR_INSUFFICIENT_SIZE;
    unsigned int share = pls_load_pct(&d) / alive;
    for (unsigned int i = 0; i < alive; i++)
        out->samples[i] = (nvmlProcessUtilizationInfo_t){pls_now_ns() / 1000, running[i].pid, share, share * 6 / 10, 0, 0, 0, 0};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out, unsigned int *count,
                                                 unsigned long long last_seen_us) {
    struct pls_device d;
    struct pls_process running[PLS_PROCESSES];
    (void)last_seen_us;
    nvmlReturn_t error = pls_enter(device, "nvmlDeviceGetProcessUtilization", &d);
    if (error) return error;
    unsigned int room = *count, alive = pls_processes(&d, running);
    *count = alive;
    if (alive == 0) return NVML_ERROR_NOT_FOUND;
    if (!out || room < alive) return NVML_ERROR_INSUFFICIENT_SIZE;
    unsigned int share = pls_load_pct(&d) / alive;
    for (unsigned int i = 0; i < alive; i++)
        out[i] = (nvmlProcessUtilizationSample_t){running[i].pid, pls_now_ns() / 1000, share, share * 6 / 10, 0, 0};
    return NVML_SUCCESS;
}

static void as_uint(nvmlFieldValue_t *f, unsigned int value) {
    f->value_type = FIELD_UINT;
    f->value.ui = value;
}

static void as_ull(nvmlFieldValue_t *f, unsigned long long value) {
    f->value_type = FIELD_ULL;
    f->value.ull = value;
}

static void as_int(nvmlFieldValue_t *f, int value) {
    f->value_type = FIELD_INT;
    f->value.si = value;
}

static nvmlReturn_t power_field(const struct pls_device *d, nvmlFieldValue_t *f) {
    switch (f->field_id) {
    case 185: case 186: as_uint(f, pls_power_mw(d)); return NVML_SUCCESS; /* average over 1 s, instant */
    case 187: as_uint(f, d->power_min_mw); return NVML_SUCCESS;
    case 188: case 189: as_uint(f, d->power_max_mw); return NVML_SUCCESS;
    case 190: case 192: as_uint(f, d->power_cap_mw); return NVML_SUCCESS;
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
}

/* Distances to the limits, in °C, as H100 reports them. */
static nvmlReturn_t heat_field(const struct pls_device *d, nvmlFieldValue_t *f) {
    switch (f->field_id) {
    case 82: as_uint(f, pls_temperature_c(d) + 6); return NVML_SUCCESS; /* memory runs hotter than the core */
    case 193: as_int(f, -5); return NVML_SUCCESS;
    case 194: as_int(f, -2); return NVML_SUCCESS;
    case 195: case 196: as_int(f, 0); return NVML_SUCCESS;
    case 74: case 75: as_ull(f, 0); return NVML_SUCCESS;
    case 269: as_ull(f, d->throttle_sw_thermal_ns); return NVML_SUCCESS;
    case 270: as_ull(f, pls_throttled_ns(d, 0x40, d->throttle_hw_thermal_ns)); return NVML_SUCCESS;
    case 271: as_ull(f, pls_throttled_ns(d, 0x80, d->throttle_power_brake_ns)); return NVML_SUCCESS;
    default: return power_field(d, f);
    }
}

static nvmlReturn_t field(nvmlDevice_t device, const struct pls_device *d, nvmlFieldValue_t *f) {
    if (d->mig_mode && f->field_id >= 142 && f->field_id <= 145) return NVML_ERROR_NOT_SUPPORTED;
    switch (f->field_id) {
    case 1: case 2: as_uint(f, 1); return NVML_SUCCESS; /* ECC mode now, and after the next reboot */
    case 3: case 11: as_ull(f, d->ecc_corrected); return NVML_SUCCESS;
    case 4: case 12: as_ull(f, d->ecc_uncorrected); return NVML_SUCCESS;
    case 5: case 22: as_ull(f, d->ecc_corrected_total); return NVML_SUCCESS;
    case 6: case 23: as_ull(f, d->ecc_uncorrected_total); return NVML_SUCCESS;
    case 83: as_ull(f, pls_energy_mj(device, d)); return NVML_SUCCESS;
    case 94: as_uint(f, (unsigned int)d->pcie_replays); return NVML_SUCCESS;
    case 142: as_uint(f, d->remap_corrected); return NVML_SUCCESS;
    case 143: as_uint(f, d->remap_uncorrected); return NVML_SUCCESS;
    case 144: as_uint(f, d->remap_pending); return NVML_SUCCESS;
    case 145: as_uint(f, d->remap_failed); return NVML_SUCCESS;
    case 173: case 174: case 175: case 176: case 177: case 178: case 179: case 180: case 181: case 182: case 183:
        as_uint(f, 0); /* PCIe error counters */
        return NVML_SUCCESS;
    case 230: as_uint(f, d->recovery_action); return NVML_SUCCESS;
    default: return heat_field(d, f);
    }
}

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    struct pls_device d;
    nvmlReturn_t error = pls_enter(device, "nvmlDeviceGetFieldValues", &d);
    if (error) return error;
    if (count < 0 || !values) return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        uint64_t start = pls_now_ns();
        values[i].result = field(device, &d, &values[i]);
        values[i].timestamp_us = (long long)(start / 1000);
        values[i].latency_us = (long long)((pls_now_ns() - start) / 1000);
    }
    return NVML_SUCCESS;
}
