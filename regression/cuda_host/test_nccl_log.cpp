// What NCCL's log says of its network: lines of several of its versions, and of a run that asked for the log.
// ranks: 2
#include "backends/cuda/nccl_log.hpp"

#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "backends/registry.hpp"
#include "mesh/transports.hpp"

namespace orthant {
namespace {

std::string said(const std::string& log) {
  std::istringstream in(log);
  return text_of(cuda::parse_nccl_log(in));
}

TEST(NcclLog, NamesTheNetworkAndGpuDirectInTheWordsOfEachVersion) {
  // 2.28, adapters near the device
  EXPECT_EQ(said("n1:71:71 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.1.0.1<0>\n"
                 "n1:71:71 [0] NCCL INFO Initialized NET plugin IB\n"
                 "n1:71:71 [0] NCCL INFO Using network IB\n"
                 "n1:71:71 [0] NCCL INFO DMA-BUF is available on GPU device 0\n"
                 "n1:71:71 [0] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'\n"
                 "n1:71:71 [0] NCCL INFO GPU Direct RDMA Enabled for GPU 0 / HCA 0 (distance 4 <= 5), read 1 mode Default\n"
                 "n1:71:71 [0] NCCL INFO GPU Direct RDMA Disabled for GPU 0 / HCA 1 (distance 9 > 5)\n"),
            "network IB with GPUDirect RDMA");
  // 2.19, an adapter that is able but across the sockets
  EXPECT_EQ(said("n1:71:71 [0] NCCL INFO Using network IB\n"
                 "n1:71:71 [0] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'\n"
                 "n1:71:71 [0] NCCL INFO GPU Direct RDMA Disabled for GPU 1 / HCA 0 (distance 8 > 5)\n"),
            "network IB without GPUDirect RDMA");
  // 2.8: devices by their bus
  EXPECT_EQ(said("n1:71:71 [0] NCCL INFO Using network IB\n"
                 "n1:71:71 [0] NCCL INFO GPU Direct RDMA Enabled for GPU 7000 / HCA 0 (distance 4 < 4), read 1\n"),
            "network IB with GPUDirect RDMA");
  // 2.4: no module for it
  EXPECT_EQ(said("n1:71:71 [0] NCCL INFO Using network IB\n"
                 "n1:71:71 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for GPU 0 / HCA mlx5_0 (no module or not supported by GPU)\n"),
            "network IB without GPUDirect RDMA");
  EXPECT_EQ(said("n1:71:71 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'\nn1:71:71 [0] NCCL INFO Using network IB\n"), "network IB without GPUDirect RDMA");
  EXPECT_EQ(said("n1:71:71 [0] NCCL INFO Using network IB\nn1:71:80 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA\n"), "network IB with GPUDirect RDMA");
  // sockets cannot; a plugin's name may have blanks, and what it does is not told here
  EXPECT_EQ(said("n1:71:71 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>\nn1:71:71 [0] NCCL INFO Using network Socket\r\n"), "network Socket without GPUDirect RDMA");
  EXPECT_EQ(said("n1:71:71 [0] NCCL INFO Using network AWS Libfabric\n"), "network AWS Libfabric, GPUDirect RDMA unknown: NCCL's log does not tell");
  EXPECT_EQ(said(""), "network unknown: NCCL's log does not name it");
}

/// NCCL is asked once in a process, so this is one test.
TEST(NcclLog, TheFirstCommunicatorsLogIsReadAndGone) {
  setenv("ORTHANT_CUDA_HOST_DEVICES", "2", 1);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  setenv("ORTHANT_CUDA_HOST_NETWORK", rank == 0 ? "IB" : "Socket", 1);  // a node whose plugin is missing
  for (const char* name : {"NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"}) unsetenv(name);
  std::string file;
  {
    const cuda::NcclLog log;
    ASSERT_STREQ(std::getenv("NCCL_DEBUG"), "INFO");
    file = std::getenv("NCCL_DEBUG_FILE");
    std::ofstream(file) << "";
    EXPECT_TRUE(std::filesystem::exists(file));
  }
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(file).parent_path()));
  EXPECT_EQ(std::getenv("NCCL_DEBUG"), nullptr);

  ASSERT_EQ(choose_backend("cuda", MPI_COMM_WORLD).name, "cuda");
  const auto backend = make_backend("cuda");
  for (int again = 0; again < 2; ++again) {
    const Transports transports(*backend, MPI_COMM_WORLD, "nccl", "auto");
    if (rank == 0)
      EXPECT_EQ(transports.text(), "NCCL 2.28.3 between devices, network IB with GPUDirect RDMA on 1 rank; network Socket without GPUDirect RDMA on 1 rank");
  }
  EXPECT_EQ(std::getenv("NCCL_DEBUG_FILE"), nullptr);
}

}  // namespace
}  // namespace orthant
