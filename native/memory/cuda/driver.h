/* SPDX-License-Identifier: Apache-2.0
 *
 * driver.h - CUDA's driver library, as far as it is used: declarations of our
 * own, so that no toolkit is needed to build. driver.c opens the library when a
 * program first asks for memory of a GPU.
 *
 * Types, numbers and the sizes of structures are those of cuda.h of CUDA 12.4
 * to 13.0, 64-bit Linux (make check-cuda-headers compares them).
 */
#ifndef CUDA_DRIVER_H
#define CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Numbers by their names. */
#define CUDA_NUMBERS(N)                                                        \
  N(CUDA_SUCCESS, 0)                                                           \
  N(CUDA_ERROR_INVALID_VALUE, 1)                                               \
  N(CUDA_ERROR_OUT_OF_MEMORY, 2)                                               \
  N(CUDA_ERROR_NO_DEVICE, 100)                                                 \
  N(CUDA_ERROR_INVALID_CONTEXT, 201)                                           \
  N(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217)                                   \
  N(CUDA_ERROR_INVALID_HANDLE, 400)                                            \
  N(CUDA_ERROR_NOT_READY, 600)                                                 \
  N(CUDA_ERROR_NOT_PERMITTED, 800)                                             \
  N(CUDA_ERROR_NOT_SUPPORTED, 801)                                             \
  N(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)                                \
  N(CU_DEVICE_ATTRIBUTE_MAX_PITCH, 11)                                         \
  N(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)                          \
  N(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)                          \
  N(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 91)           \
  N(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 99)                           \
  N(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102)              \
  N(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 103)      \
  N(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 110)          \
  N(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 122)                    \
  N(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 128)                     \
  N(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 2)                                       \
  N(CU_POINTER_ATTRIBUTE_BUFFER_ID, 7)                                         \
  N(CU_POINTER_ATTRIBUTE_IS_MANAGED, 8)                                        \
  N(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9)                                    \
  N(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, 10)                       \
  N(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, 14)                             \
  N(CU_MEMORYTYPE_DEVICE, 2)                                                   \
  N(CU_MEMORYTYPE_UNIFIED, 4)                                                  \
  N(CU_EVENT_DISABLE_TIMING, 2)                                                \
  N(CU_STREAM_NON_BLOCKING, 1)                                                 \
  N(CU_STREAM_CAPTURE_MODE_RELAXED, 2)                                         \
  N(CU_STREAM_WRITE_VALUE_DEFAULT, 0)                                          \
  N(CU_MEM_ALLOCATION_TYPE_PINNED, 1)                                          \
  N(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1)                               \
  N(CU_MEM_HANDLE_TYPE_FABRIC, 8)                                              \
  N(CU_MEM_LOCATION_TYPE_DEVICE, 1)                                            \
  N(CU_MEM_ACCESS_FLAGS_PROT_READ, 1)                                          \
  N(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3)                                     \
  N(CU_MEM_ALLOC_GRANULARITY_MINIMUM, 0)                                       \
  N(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, 1)

/* CUDA_HEADERS: those of CUDA are included, to be compared. */
#ifndef CUDA_HEADERS

#define CUDA_NUMBER(name, value) name = (value),
enum { CUDA_NUMBERS(CUDA_NUMBER) };

#define CU_MEMHOSTALLOC_PORTABLE 1
#define CU_MEMHOSTALLOC_DEVICEMAP 2
#define CU_MEMHOSTREGISTER_PORTABLE 1
#define CU_MEMHOSTREGISTER_READ_ONLY 8

typedef int CUresult, CUdevice, CUdevice_attribute, CUpointer_attribute,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUstreamCaptureMode;
typedef unsigned long long CUdeviceptr, CUmemGenericAllocationHandle;
typedef uint64_t cuuint64_t;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef void (*CUhostFn)(void *with);

typedef struct {
  char bytes[16];
} CUuuid;

typedef struct {
  char reserved[64];
} CUipcMemHandle;

typedef struct {
  unsigned char data[64];
} CUmemFabricHandle;

typedef struct {
  int type, id;
} CUmemLocation;

typedef struct {
  int type, requestedHandleTypes;
  CUmemLocation location;
  void *win32HandleMetaData;
  struct {
    unsigned char compressionType, gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
} CUmemAllocationProp;

typedef struct {
  CUmemLocation location;
  int flags;
} CUmemAccessDesc;

typedef struct {
  size_t srcXInBytes, srcY;
  int srcMemoryType;
  const void *srcHost;
  CUdeviceptr srcDevice;
  void *srcArray;
  size_t srcPitch;
  size_t dstXInBytes, dstY;
  int dstMemoryType;
  void *dstHost;
  CUdeviceptr dstDevice;
  void *dstArray;
  size_t dstPitch;
  size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

#endif

/* Of CUDA 12.8 and later. */
#if !defined(CUDA_HEADERS) || CUDA_VERSION < 12080
typedef struct {
  int srcAccessOrder;
  CUmemLocation srcLocHint, dstLocHint;
  unsigned flags;
} CUmemcpyAttributes;
enum { CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1 };
#endif

/* The places of fields that are used. */
_Static_assert(sizeof(CUmemAllocationProp) == 32 &&
                   offsetof(CUmemAllocationProp, location) == 8 &&
                   offsetof(CUmemAllocationProp, allocFlags) == 24 &&
                   sizeof(CUmemAccessDesc) == 12 &&
                   offsetof(CUmemAccessDesc, flags) == 8 &&
                   sizeof(CUuuid) == 16 && sizeof(CUipcMemHandle) == 64 &&
                   sizeof(CUmemFabricHandle) == 64 &&
                   sizeof(CUmemcpyAttributes) == 24 &&
                   sizeof(CUDA_MEMCPY2D) == 128 &&
                   offsetof(CUDA_MEMCPY2D, srcDevice) == 32 &&
                   offsetof(CUDA_MEMCPY2D, srcPitch) == 48 &&
                   offsetof(CUDA_MEMCPY2D, dstMemoryType) == 72 &&
                   offsetof(CUDA_MEMCPY2D, dstDevice) == 88 &&
                   offsetof(CUDA_MEMCPY2D, WidthInBytes) == 112,
               "structures are laid out as the driver's");

/* The functions, each with the version that is asked for and the name under
 * which the library exports that one (some exports without a suffix are of 32
 * bits). */
#define CUDA_FUNCTIONS(F)                                                      \
  F(cuInit, 2000, "cuInit", (unsigned flags))                                  \
  F(cuDriverGetVersion, 2020, "cuDriverGetVersion", (int *version))            \
  F(cuGetErrorName, 6000, "cuGetErrorName",                                    \
    (CUresult error, const char **name))                                       \
  F(cuGetErrorString, 6000, "cuGetErrorString",                                \
    (CUresult error, const char **text))                                       \
  F(cuDeviceGetCount, 2000, "cuDeviceGetCount", (int *count))                  \
  F(cuDeviceGet, 2000, "cuDeviceGet", (CUdevice * device, int ordinal))        \
  F(cuDeviceGetAttribute, 2000, "cuDeviceGetAttribute",                        \
    (int *value, CUdevice_attribute attribute, CUdevice device))               \
  F(cuDeviceGetName, 2000, "cuDeviceGetName",                                  \
    (char *name, int length, CUdevice device))                                 \
  F(cuDeviceGetUuid, 11040, "cuDeviceGetUuid_v2",                              \
    (CUuuid * uuid, CUdevice device))                                          \
  F(cuDeviceTotalMem, 3020, "cuDeviceTotalMem_v2",                             \
    (size_t * bytes, CUdevice device))                                         \
  F(cuDeviceGetPCIBusId, 4010, "cuDeviceGetPCIBusId",                          \
    (char *id, int length, CUdevice device))                                   \
  F(cuDeviceCanAccessPeer, 4000, "cuDeviceCanAccessPeer",                      \
    (int *can, CUdevice device, CUdevice peer))                                \
  F(cuDevicePrimaryCtxRetain, 7000, "cuDevicePrimaryCtxRetain",                \
    (CUcontext * context, CUdevice device))                                    \
  F(cuDevicePrimaryCtxRelease, 11000, "cuDevicePrimaryCtxRelease_v2",          \
    (CUdevice device))                                                         \
  F(cuCtxPushCurrent, 4000, "cuCtxPushCurrent_v2", (CUcontext context))        \
  F(cuCtxPopCurrent, 4000, "cuCtxPopCurrent_v2", (CUcontext * context))        \
  F(cuMemAlloc, 3020, "cuMemAlloc_v2", (CUdeviceptr * pointer, size_t bytes))  \
  F(cuMemFree, 3020, "cuMemFree_v2", (CUdeviceptr pointer))                    \
  F(cuMemHostAlloc, 2020, "cuMemHostAlloc",                                    \
    (void **pointer, size_t bytes, unsigned flags))                            \
  F(cuMemFreeHost, 2000, "cuMemFreeHost", (void *pointer))                     \
  F(cuMemHostGetDevicePointer, 3020, "cuMemHostGetDevicePointer_v2",           \
    (CUdeviceptr * device, void *pointer, unsigned flags))                     \
  F(cuMemHostRegister, 6050, "cuMemHostRegister_v2",                           \
    (void *pointer, size_t bytes, unsigned flags))                             \
  F(cuMemHostUnregister, 4000, "cuMemHostUnregister", (void *pointer))         \
  F(cuMemGetAddressRange, 3020, "cuMemGetAddressRange_v2",                     \
    (CUdeviceptr * base, size_t * bytes, CUdeviceptr pointer))                 \
  F(cuIpcGetMemHandle, 4010, "cuIpcGetMemHandle",                              \
    (CUipcMemHandle * handle, CUdeviceptr pointer))                            \
  F(cuIpcOpenMemHandle, 11000, "cuIpcOpenMemHandle_v2",                        \
    (CUdeviceptr * pointer, CUipcMemHandle handle, unsigned flags))            \
  F(cuIpcCloseMemHandle, 4010, "cuIpcCloseMemHandle", (CUdeviceptr pointer))   \
  F(cuMemGetAllocationGranularity, 10020, "cuMemGetAllocationGranularity",     \
    (size_t * granularity, const CUmemAllocationProp *prop,                    \
     CUmemAllocationGranularity_flags option))                                 \
  F(cuMemCreate, 10020, "cuMemCreate",                                         \
    (CUmemGenericAllocationHandle * handle, size_t size,                       \
     const CUmemAllocationProp *prop, unsigned long long flags))               \
  F(cuMemRelease, 10020, "cuMemRelease",                                       \
    (CUmemGenericAllocationHandle handle))                                     \
  F(cuMemAddressReserve, 10020, "cuMemAddressReserve",                         \
    (CUdeviceptr * pointer, size_t size, size_t alignment,                     \
     CUdeviceptr address, unsigned long long flags))                           \
  F(cuMemAddressFree, 10020, "cuMemAddressFree",                               \
    (CUdeviceptr pointer, size_t size))                                        \
  F(cuMemMap, 10020, "cuMemMap",                                               \
    (CUdeviceptr pointer, size_t size, size_t offset,                          \
     CUmemGenericAllocationHandle handle, unsigned long long flags))           \
  F(cuMemUnmap, 10020, "cuMemUnmap", (CUdeviceptr pointer, size_t size))       \
  F(cuMemSetAccess, 10020, "cuMemSetAccess",                                   \
    (CUdeviceptr pointer, size_t size, const CUmemAccessDesc *list,            \
     size_t count))                                                            \
  F(cuMemExportToShareableHandle, 10020, "cuMemExportToShareableHandle",       \
    (void *shareable, CUmemGenericAllocationHandle handle,                     \
     CUmemAllocationHandleType type, unsigned long long flags))                \
  F(cuMemImportFromShareableHandle, 10020, "cuMemImportFromShareableHandle",   \
    (CUmemGenericAllocationHandle * handle, void *shareable,                   \
     CUmemAllocationHandleType type))                                          \
  F(cuMemRetainAllocationHandle, 11000, "cuMemRetainAllocationHandle",         \
    (CUmemGenericAllocationHandle * handle, void *address))                    \
  F(cuMemcpyAsync, 4000, "cuMemcpyAsync",                                      \
    (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))         \
  F(cuMemcpyPeerAsync, 4000, "cuMemcpyPeerAsync",                              \
    (CUdeviceptr to, CUcontext to_context, CUdeviceptr from,                   \
     CUcontext from_context, size_t bytes, CUstream stream))                   \
  F(cuMemcpy2DAsync, 3020, "cuMemcpy2DAsync_v2",                               \
    (const CUDA_MEMCPY2D *copy, CUstream stream))                              \
  F(cuMemsetD8Async, 3020, "cuMemsetD8Async",                                  \
    (CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream))      \
  F(cuPointerGetAttributes, 7000, "cuPointerGetAttributes",                    \
    (unsigned count, CUpointer_attribute *attributes, void **data,             \
     CUdeviceptr pointer))                                                     \
  F(cuStreamCreate, 2000, "cuStreamCreate",                                    \
    (CUstream * stream, unsigned flags))                                       \
  F(cuStreamDestroy, 4000, "cuStreamDestroy_v2", (CUstream stream))            \
  F(cuStreamSynchronize, 2000, "cuStreamSynchronize", (CUstream stream))       \
  F(cuStreamQuery, 2000, "cuStreamQuery", (CUstream stream))                   \
  F(cuStreamWaitEvent, 3020, "cuStreamWaitEvent",                              \
    (CUstream stream, CUevent event, unsigned flags))                          \
  F(cuEventCreate, 2000, "cuEventCreate", (CUevent * event, unsigned flags))   \
  F(cuEventDestroy, 4000, "cuEventDestroy_v2", (CUevent event))                \
  F(cuEventRecord, 2000, "cuEventRecord", (CUevent event, CUstream stream))    \
  F(cuLaunchHostFunc, 10000, "cuLaunchHostFunc",                               \
    (CUstream stream, CUhostFn function, void *with))                          \
  F(cuStreamWriteValue64, 11070, "cuStreamWriteValue64_v2",                    \
    (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags))  \
  F(cuThreadExchangeStreamCaptureMode, 10010,                                  \
    "cuThreadExchangeStreamCaptureMode", (CUstreamCaptureMode * mode))         \
  F(cuModuleLoadData, 2000, "cuModuleLoadData",                                \
    (CUmodule * module, const void *text))                                     \
  F(cuModuleGetFunction, 2000, "cuModuleGetFunction",                          \
    (CUfunction * function, CUmodule module, const char *name))                \
  F(cuModuleUnload, 2000, "cuModuleUnload", (CUmodule module))                 \
  F(cuLaunchKernel, 4000, "cuLaunchKernel",                                    \
    (CUfunction function, unsigned blocks, unsigned blocks_y,                  \
     unsigned blocks_z, unsigned threads, unsigned threads_y,                  \
     unsigned threads_z, unsigned shared, CUstream stream, void **arguments,   \
     void **extra))

/* NULL where the driver is older. */
#define CUDA_LATER(F)                                                          \
  F(cuMemcpyBatchAsync, 12080, "cuMemcpyBatchAsync",                           \
    (CUdeviceptr * to, CUdeviceptr * from, size_t * bytes, size_t count,       \
     CUmemcpyAttributes * attributes, size_t * firsts, size_t attribute_count, \
     size_t * failed, CUstream stream))

#define CUDA_FUNCTION_FIELD(name, version, exported, arguments)                \
  CUresult(*name) arguments; /* NOLINT(bugprone-macro-parentheses) */

struct cuda_driver {
  CUDA_FUNCTIONS(CUDA_FUNCTION_FIELD)
  CUDA_LATER(CUDA_FUNCTION_FIELD)
};

enum { CUDA_REASON = 200 };

/* Returns the driver of this process, which it opens and initializes at the
 * first call; NULL and a reason: there is none, or it does not work. Safe in
 * any thread. */
const struct cuda_driver *cuda_driver(char reason[CUDA_REASON]);
/* After cuda_driver has failed: is there no driver, or none of its devices that
 * this process may see? False: there is a driver, and it does not work. */
bool cuda_driver_is_missing(void);
/* As cuda_driver if the process has opened the library by now, whoever did; else
 * NULL: no pointer is of its memory then. */
const struct cuda_driver *cuda_driver_there(void);
/* Might there be a driver? Opens nothing. */
bool cuda_driver_could(void);
/* The same, of one that gives this process fabric handles. */
bool cuda_driver_could_fabric(void);
/* Writes "WHAT: CUDA_ERROR_NAME, text". */
void cuda_explain(const struct cuda_driver *cuda, const char *what,
                  CUresult result, char reason[CUDA_REASON]);

#endif
