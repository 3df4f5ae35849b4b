/* SPDX-License-Identifier: Apache-2.0
 *
 * devices_gpus.c - the GPUs that CUDA shows this process, for programs. CUDA's
 * driver tells what they are, sysfs where they are on the PCI bus and which NICs
 * are near. No context is made.
 *
 * A question that the driver does not answer leaves its field empty: a GPU is
 * listed as long as the driver counts it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"
#include "base/versions.h"
#include "devices.h"
#include "memory/cuda/driver.h"

enum { REACHED = 64, NEAREST = 4 };

_Static_assert(sizeof((struct perigee_gpu *)0)->nics == NEAREST * RDMA_NAME,
               "a place for each of the nearest NICs");

/* All that is asked: the driver, and the NICs that may be used. */
struct gpu_survey {
  const struct cuda_driver *cuda;
  const char *sysfs;
  struct perigee_device *ports;
  int port_count, count;
};

/* ---- What the driver tells ------------------------------------------------ */

static uint32_t gpu_attribute(const struct cuda_driver *cuda, CUdevice device,
                              CUdevice_attribute attribute) {
  int value = 0;
  CUresult result = cuda->cuDeviceGetAttribute(&value, attribute, device);
  return result == CUDA_SUCCESS && value > 0 ? (uint32_t)value : 0;
}

/* Writes "GPU-8f2b0c1d-0203-0405-0607-08090a0b0c0d". */
static void gpu_uuid(const CUuuid *uuid, char *out, size_t size) {
  size_t used = (size_t)snprintf(out, size, "GPU");
  for (int i = 0; i < 16 && used + 3 < size; i++) {
    bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    used += (size_t)snprintf(out + used, size - used, "%s%02x", dash ? "-" : "",
                             (uint8_t)uuid->bytes[i]);
  }
}

/* Writes the address as sysfs has it: the driver has capital letters. */
static void gpu_pci(const char *told, char *out, size_t size) {
  unsigned domain, bus, slot, function;
  if (sscanf(told, "%x:%x:%x.%x", &domain, &bus, &slot, &function) == 4)
    snprintf(out, size, "%04x:%02x:%02x.%x", domain, bus & 0xff, slot & 0xff,
             function & 0xf);
}

static void gpu_describe(const struct cuda_driver *cuda, CUdevice device,
                         struct perigee_gpu *out) {
  CUuuid uuid;
  size_t bytes = 0;
  char told[32] = "";
  if (cuda->cuDeviceGetName(out->name, sizeof out->name - 1, device))
    out->name[0] = 0;
  if (cuda->cuDeviceGetUuid(&uuid, device) == CUDA_SUCCESS)
    gpu_uuid(&uuid, out->uuid, sizeof out->uuid);
  if (cuda->cuDeviceTotalMem(&bytes, device) == CUDA_SUCCESS)
    out->memory = bytes;
  if (cuda->cuDeviceGetPCIBusId(told, sizeof told - 1, device) == CUDA_SUCCESS)
    gpu_pci(told, out->pci, sizeof out->pci);
  out->major =
      gpu_attribute(cuda, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  out->minor =
      gpu_attribute(cuda, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
}

static uint64_t gpu_reaches(const struct gpu_survey *survey, CUdevice device,
                            int index) {
  uint64_t reached = 0;
  for (int i = 0; i < survey->count && i < REACHED; i++) {
    CUdevice other;
    int can = 0;
    if (i != index && survey->cuda->cuDeviceGet(&other, i) == CUDA_SUCCESS &&
        survey->cuda->cuDeviceCanAccessPeer(&can, device, other) ==
            CUDA_SUCCESS &&
        can)
      reached |= UINT64_C(1) << i;
  }
  return reached;
}

/* ---- Which NICs are near -------------------------------------------------- */

/* Returns how many folders two paths share, from the outermost on. */
static int place_shared(const char *a, const char *b) {
  int folders = 0;
  for (; *a && *a == *b; a++, b++)
    folders += *a == '/';
  return folders;
}

/* Scores compare NICs: more is nearer, 0 is unknown. */
static int nic_score(const struct gpu_survey *survey, const char *place,
                     int32_t numa, const struct perigee_device *nic) {
  char there[SYSFS_PLACE];
  if (!sysfs_pci_place(survey->sysfs, nic->pci, there))
    return 0;
  return 2 * place_shared(place, there) + (numa >= 0 && numa == nic->numa);
}

/* The ports of one NIC are adjacent in the list. */
static bool nic_is_told(const struct gpu_survey *survey, int port) {
  return port > 0 &&
         strcmp(survey->ports[port - 1].name, survey->ports[port].name) == 0;
}

static void gpu_nics(const struct gpu_survey *survey, struct perigee_gpu *out) {
  char place[SYSFS_PLACE];
  int best = 1, found = 0;
  if (!sysfs_pci_place(survey->sysfs, out->pci, place))
    return;
  for (int i = 0; i < survey->port_count; i++) {
    const struct perigee_device *nic = &survey->ports[i];
    int score =
        nic_is_told(survey, i) ? 0 : nic_score(survey, place, out->numa, nic);
    if (score > best) {
      memset(out->nics, 0, sizeof out->nics);
      found = 0;
      best = score;
    }
    if (score == best && found < NEAREST)
      memcpy(out->nics[found++], nic->name, sizeof nic->name);
  }
}

/* ---- For programs --------------------------------------------------------- */

static CUresult gpu_read(const struct gpu_survey *survey, int index,
                         struct perigee_gpu *out) {
  CUdevice device;
  memset(out, 0, sizeof *out);
  CUresult result = survey->cuda->cuDeviceGet(&device, index);
  if (result != CUDA_SUCCESS)
    return result;
  out->index = (uint32_t)index;
  gpu_describe(survey->cuda, device, out);
  out->reaches = gpu_reaches(survey, device, index);
  out->numa = sysfs_pci_numa(survey->sysfs, out->pci);
  gpu_nics(survey, out);
  return CUDA_SUCCESS;
}

static int gpus_fill(const struct gpu_survey *survey, void *list, uint64_t each,
                     int capacity) {
  char reason[CUDA_REASON];
  struct perigee_gpu gpu;
  for (int i = 0; i < survey->count && i < capacity; i++) {
    CUresult result = gpu_read(survey, i, &gpu);
    if (result != CUDA_SUCCESS) {
      cuda_explain(survey->cuda, "finding a device", result, reason);
      return detail_fail(PERIGEE_SYSTEM, "cuda:%d: %s", i, reason);
    }
    version_give(devices_entry(list, each, i), each, &gpu, sizeof gpu);
  }
  return survey->count;
}

/* Counts the devices; 0, or a status, with its sentence. */
static int gpus_count(const struct cuda_driver **cuda) {
  char reason[CUDA_REASON];
  int count = 0;
  *cuda = cuda_driver(reason);
  if (!*cuda)
    return detail_fail(cuda_driver_is_missing() ? 0 : PERIGEE_UNSUPPORTED, "%s",
                       reason);
  CUresult result = (*cuda)->cuDeviceGetCount(&count);
  if (result == CUDA_SUCCESS)
    return count > 0 ? count : detail_fail(0, "CUDA shows no device");
  cuda_explain(*cuda, "counting devices", result, reason);
  return detail_fail(PERIGEE_SYSTEM, "%s", reason);
}

int perigee_gpus(const char *sysfs, struct perigee_gpu *list, uint64_t each,
                 int capacity) {
  char reason[256];
  struct gpu_survey survey = {.sysfs = sysfs ? sysfs : SYSFS};
  if (!list && capacity > 0)
    return detail_fail(PERIGEE_INVALID, "there is no list: it is NULL");
  if (!version_size_is_right("perigee_gpu", each))
    return PERIGEE_INVALID;
  survey.count = gpus_count(&survey.cuda);
  if (survey.count <= 0)
    return survey.count;
  survey.port_count =
      rdma_ports(survey.sysfs, &survey.ports, reason, sizeof reason);
  if (survey.port_count < 0)
    return detail_fail(survey.port_count, "%s", reason);
  int count = gpus_fill(&survey, list, each, capacity);
  free(survey.ports);
  return count;
}
