// main of every unit test: starts MPI, runs GoogleTest on every rank, fails if any rank failed.
#include <gtest/gtest.h>
#include <mpi.h>

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  ::testing::InitGoogleTest(&argc, argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank != 0) {  // one voice; failures of other ranks are printed with their rank below
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    class Quiet : public ::testing::EmptyTestEventListener {
     public:
      explicit Quiet(int r) : rank_(r) {}
      void OnTestPartResult(const ::testing::TestPartResult& result) override {
        if (result.failed()) std::fprintf(stderr, "rank %d: %s:%d: %s\n", rank_, result.file_name() ? result.file_name() : "?", result.line_number(), result.summary());
      }
     private:
      int rank_;
    };
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new Quiet(rank));
  }
  int mine = RUN_ALL_TESTS(), any = 0;
  MPI_Allreduce(&mine, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return any;
}
