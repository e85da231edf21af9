/* The part of NVML's public binary interface that the simulated driver answers (NVIDIA, nvml.h, CUDA 13). */
#ifndef PACELINE_NVML_ABI_H
#define PACELINE_NVML_ABI_H

#include <stdint.h>

typedef unsigned int nvmlReturn_t;
typedef struct pls_device *nvmlDevice_t; /* opaque to callers */

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999
};

typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { unsigned long long bar1_total, bar1_free, bar1_used; } nvmlBAR1Memory_t;
typedef struct {
    char bus_id_legacy[16];
    unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} nvmlPciInfo_t;
typedef struct { unsigned int version, sensor; int temperature; } nvmlTemperature_t;
typedef struct { unsigned int version; int margin; } nvmlMarginTemperature_t;
typedef struct {
    unsigned int pid;
    unsigned long long used_memory;
    unsigned int gpu_instance, compute_instance;
} nvmlProcessInfo_t; /* v2 and v3 alike */
typedef struct {
    unsigned long long timestamp_us;
    unsigned int pid, sm, memory, encoder, decoder, jpeg, ofa;
} nvmlProcessUtilizationInfo_t;
typedef struct {
    unsigned int version, count;
    unsigned long long last_seen_us;
    nvmlProcessUtilizationInfo_t *samples;
} nvmlProcessesUtilizationInfo_t;
typedef struct {
    unsigned int pid;
    unsigned long long timestamp_us;
    unsigned int sm, memory, encoder, decoder;
} nvmlProcessUtilizationSample_t;
typedef struct { unsigned long long l1, l2, device, registers; } nvmlEccErrorCounts_t;
typedef struct {
    unsigned int version;
    unsigned long long aggregate_parity, aggregate_secded, aggregate_corrected;
    unsigned long long volatile_parity, volatile_secded, volatile_corrected;
    unsigned long long bucket_l2, bucket_sm, bucket_pcie, bucket_mcu, bucket_other;
    unsigned int threshold_exceeded;
} nvmlEccSramErrorStatus_t;
typedef struct {
    unsigned int field_id, scope_id;
    long long timestamp_us, latency_us;
    unsigned int value_type;
    nvmlReturn_t result;
    union { double d; unsigned int ui; unsigned long long ull; int si; } value;
} nvmlFieldValue_t;
typedef struct {
    nvmlDevice_t device;
    unsigned long long event_type, event_data;
    unsigned int gpu_instance, compute_instance; /* v2 only: a v1 caller's struct ends before them */
} nvmlEventData_t;

#define NVML_EVENT_SBE 0x1ULL
#define NVML_EVENT_DBE 0x2ULL
#define NVML_EVENT_XID 0x8ULL
#define NVML_EVENT_SBE_STORM 0x200ULL
#define NVML_EVENT_DRAM_RETIREMENT 0x400ULL
#define NVML_EVENT_DRAM_RETIREMENT_FAILURE 0x800ULL
#define NVML_EVENT_GPU_UNAVAILABLE 0x4000ULL
#define NVML_EVENT_RECOVERY_ACTION 0x8000ULL
#define NVML_EVENTS_SUPPORTED                                                                                          \
    (NVML_EVENT_SBE | NVML_EVENT_DBE | NVML_EVENT_XID | NVML_EVENT_SBE_STORM | NVML_EVENT_DRAM_RETIREMENT |            \
     NVML_EVENT_DRAM_RETIREMENT_FAILURE | NVML_EVENT_GPU_UNAVAILABLE | NVML_EVENT_RECOVERY_ACTION)

#endif
