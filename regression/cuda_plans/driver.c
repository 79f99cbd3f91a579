/* A libcuda.so.1 that does nothing, for plans without a device: the engines of cuDNN load the driver's library before they compile a
 * kernel, and hand the kernel to it afterwards. Loading a kernel works here; whatever would need a device fails as it does in
 * the stub of the CUDA toolkit (CUDA_ERROR_STUB_LIBRARY). */

enum { success = 0, stub_library = 34 };

/* calls that give out a handle as their first argument, and those that give out nothing */
#define GIVES(name) int name(void** handle) { *handle = (void*)16; return success; }
#define DOES(name) int name(void) { return success; }
#define FAILS(name) int name(void) { return stub_library; }

GIVES(cuLibraryLoadData)
GIVES(cuLibraryGetKernel)
GIVES(cuKernelGetFunction)
GIVES(cuModuleLoadData)
GIVES(cuModuleGetFunction)
DOES(cuLibraryUnload)
DOES(cuModuleUnload)
DOES(cuKernelSetAttribute)
DOES(cuFuncSetAttribute)

FAILS(cuCtxGetCurrent)
FAILS(cuCtxGetDevice)
FAILS(cuCtxGetLimit)
FAILS(cuCtxPopCurrent)
FAILS(cuCtxPushCurrent)
FAILS(cuDeviceGet)
FAILS(cuDeviceGetAttribute)
FAILS(cuDeviceGetCount)
FAILS(cuDevicePrimaryCtxRelease)
FAILS(cuDevicePrimaryCtxReset)
FAILS(cuDevicePrimaryCtxRetain)
FAILS(cuDriverGetVersion)
FAILS(cuFuncGetAttribute)
FAILS(cuGetErrorName)
FAILS(cuGetErrorString)
FAILS(cuInit)
FAILS(cuKernelGetAttribute)
FAILS(cuLaunchCooperativeKernel)
FAILS(cuLaunchKernel)
FAILS(cuLaunchKernelEx)
FAILS(cuLibraryLoadFromFile)
FAILS(cuLinkAddData)
FAILS(cuLinkAddData_v2)
FAILS(cuLinkAddFile_v2)
FAILS(cuLinkComplete)
FAILS(cuLinkCreate)
FAILS(cuLinkCreate_v2)
FAILS(cuLinkDestroy)
FAILS(cuMemcpyDtoH_v2)
FAILS(cuModuleGetGlobal_v2)
FAILS(cuModuleLoadDataEx)
FAILS(cuModuleLoadFatBinary)
FAILS(cuOccupancyMaxActiveBlocksPerMultiprocessor)
FAILS(cuOccupancyMaxPotentialClusterSize)
FAILS(cuStreamGetCtx)
FAILS(cuStreamSynchronize)
FAILS(cuTensorMapEncodeTiled)
