// Text files -> one dataset, on any number of ranks.
#include "data/tokenize_files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>

#include "data/json_line.hpp"
#include "data/text_input.hpp"
#include "data/token_file.hpp"
#include "orthant/error.hpp"
#include "support/agree.hpp"

namespace orthant {

using std::to_string;

namespace {

constexpr int64_t none_yet = std::numeric_limits<int64_t>::max();

/// Documents of this rank: their tokens in a file, their lengths in memory.
struct Part {
  Part(const std::string& path, TokenType type) : file(path, type) {}
  TokenFile file;
  std::vector<int32_t> lengths;
  int64_t open = 0;
};

class Worker {
 public:
  Worker(const TokenizeJob& job, Part& part, TokenizeCounts& counts, int64_t& first_invalid)
      : job_(job), part_(part), counts_(counts), first_invalid_(first_invalid) {}

  /// The documents that begin in bytes [begin, end) of a file of JSON lines, which starts at `base` of all input.
  void lines(const InputFile& file, int64_t begin, int64_t end, int64_t base) {
    const int64_t mark = begin == 0 ? file.mark_bytes() : 0;
    counts_.marks += mark > 0;
    LineReader reader(file, begin, end);
    std::string_view line;
    int64_t offset = 0;
    while (reader.next(line, offset)) {
      if (offset == 0) line.remove_prefix(static_cast<size_t>(mark));
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
        ++counts_.blank_lines;
        continue;
      }
      try {
        counts_.surrogates += json_text(line, job_.key, text_);
        if (!valid_utf8(text_)) note_invalid(base + offset);
        piece(text_, file);
        end_document(text_.empty());
      } catch (const JsonLineError& error) {
        throw DataError(file.path() + ":" + to_string(line_number(file, offset)) + ": " + error.what());
      }
    }
  }

  void plain(const InputFile& file, int64_t base) {
    const int64_t mark = file.mark_bytes(), left = file.size() - mark;
    counts_.marks += mark > 0;
    const int64_t step = job_.tokenizer->cuts_anywhere() ? int64_t{16} << 20 : std::max<int64_t>(left, 1);
    bool valid = true;
    std::string tail;  // the start of a character that a cut has split
    for (int64_t at = 0; at < left; at += step) {
      text_.resize(static_cast<size_t>(std::min(step, left - at)));
      if (file.read(mark + at, text_.data(), static_cast<int64_t>(text_.size())) !=
          static_cast<int64_t>(text_.size()))
        throw DataError(file.path() + ": became shorter while it was read (" + to_string(file.size()) +
                        " bytes at first)");
      if (valid) {
        tail += text_;
        size_t whole = tail.size();
        if (at + step < left) {  // leave an unfinished character for the next piece
          for (size_t back = 1; back <= 3 && back <= tail.size(); ++back) {
            const auto c = static_cast<unsigned char>(tail[tail.size() - back]);
            if (c >= 0xC0) whole = tail.size() - back;
            if (c >= 0xC0 || c < 0x80) break;
          }
        }
        valid = valid_utf8(std::string_view(tail).substr(0, whole));
        tail.erase(0, whole);
      }
      piece(text_, file);
    }
    if (!valid) note_invalid(base);
    end_document(left == 0);
  }

 private:
  void note_invalid(int64_t where) {
    ++counts_.invalid;
    first_invalid_ = std::min(first_invalid_, where);
  }

  void piece(const std::string& text, const InputFile& file) {
    ids_.clear();
    job_.tokenizer->encode(text, ids_);
    if (part_.open + static_cast<int64_t>(ids_.size()) >= std::numeric_limits<int32_t>::max())
      throw DataError(
          file.path() +
          ": a document has more than 2147483646 tokens, the most the format can hold; cut it into several");
    part_.file.append(ids_.data(), static_cast<int64_t>(ids_.size()));
    part_.open += static_cast<int64_t>(ids_.size());
  }

  void end_document(bool empty) {
    counts_.empty += empty;
    if (job_.eod) {
      part_.file.append(&*job_.eod, 1);
      ++part_.open;
    }
    if (part_.open > 0) {
      ++counts_.documents;
      counts_.tokens += part_.open;
      part_.lengths.push_back(static_cast<int32_t>(part_.open));
    }
    part_.open = 0;
  }

  const TokenizeJob& job_;
  Part& part_;
  TokenizeCounts& counts_;
  int64_t& first_invalid_;
  std::string text_;
  std::vector<int32_t> ids_;
};

/// Where each input starts in the row of all bytes; the last entry is their number. Rank 0 decides: a file that grows
/// meanwhile must not be cut differently on different ranks.
std::vector<int64_t> starts_of(const std::vector<std::string>& files, MPI_Comm comm, int rank) {
  std::vector<int64_t> starts(files.size() + 1, 0);
  collectively(comm, [&] {
    for (const auto& path : files) refuse_compressed(path);
    if (rank != 0) return;
    for (size_t f = 0; f < files.size(); ++f) starts[f + 1] = starts[f] + InputFile(files[f]).size();
  });
  ORTHANT_MPI(MPI_Bcast(starts.data(), static_cast<int>(starts.size()), MPI_INT64_T, 0, comm));
  return starts;
}

void tokenize_range(const TokenizeJob& job, const std::vector<int64_t>& starts, int rank, int ranks, Worker& worker) {
  const int64_t total = starts.back();
  // total x rank may pass 2^63 for no input that exists, but the quotient first costs nothing
  auto bound = [&](int64_t r) { return total / ranks * r + total % ranks * r / ranks; };
  const int64_t low = bound(rank), high = bound(rank + 1);
  for (size_t f = 0; f < job.files.size(); ++f) {
    const int64_t base = starts[f], size = starts[f + 1] - base;
    if (has_json_lines(job.files[f])) {
      const int64_t begin = std::max<int64_t>(low - base, 0), end = std::min(high - base, size);
      if (begin < end) worker.lines(InputFile(job.files[f]), begin, end, base);
      continue;
    }
    int64_t owner = 0;  // the first rank whose range ends behind the file's start (an empty file has a start only)
    while (owner < ranks - 1 && base >= bound(owner + 1)) ++owner;
    if (owner == rank) worker.plain(InputFile(job.files[f]), base);
  }
}

/// Copies a finished part to its place in the common file.
void copy_part(const std::string& from, const std::string& to, int64_t at, int64_t bytes) {
  const InputFile part(from);
  const int fd = ::open(to.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) throw DataError(to + ": cannot be opened for writing: " + std::strerror(errno));
  try {
    std::string block(size_t{4} << 20, '\0');
    for (int64_t done = 0; done < bytes;) {
      const int64_t got = part.read(done, block.data(), static_cast<int64_t>(block.size()));
      if (got == 0)
        throw DataError(from + ": is shorter than the " + std::to_string(bytes) + " bytes just written to it");
      write_fully(fd, to, block.data(), got, at + done);
      done += got;
    }
  } catch (...) {
    ::close(fd);
    throw;
  }
  sync_and_close(fd, to);
}

/// All lengths on rank 0, in the order of ranks. In pieces, as an MPI count is an int.
void gather_lengths(std::vector<int32_t>& lengths, MPI_Comm comm, int rank, int ranks) {
  constexpr int64_t piece = int64_t{1} << 28;
  auto count = static_cast<int64_t>(lengths.size());
  std::vector<int64_t> all(static_cast<size_t>(ranks));
  ORTHANT_MPI(MPI_Gather(&count, 1, MPI_INT64_T, all.data(), 1, MPI_INT64_T, 0, comm));
  for (int r = 1; r < ranks && rank == 0; ++r) {
    const size_t before = lengths.size();
    lengths.resize(before + static_cast<size_t>(all[static_cast<size_t>(r)]));
    for (int64_t k = 0; k < all[static_cast<size_t>(r)]; k += piece)
      ORTHANT_MPI(MPI_Recv(lengths.data() + before + k,
                           static_cast<int>(std::min(piece, all[static_cast<size_t>(r)] - k)), MPI_INT32_T, r, 0,
                           comm, MPI_STATUS_IGNORE));
  }
  for (int64_t k = 0; k < count && rank != 0; k += piece)
    ORTHANT_MPI(MPI_Send(lengths.data() + k, static_cast<int>(std::min(piece, count - k)), MPI_INT32_T, 0, 0, comm));
}

std::string place_of(const std::vector<std::string>& files, const std::vector<int64_t>& starts, int64_t where) {
  const auto f = static_cast<size_t>(std::upper_bound(starts.begin(), starts.end() - 1, where) - starts.begin() - 1);
  if (!has_json_lines(files[f])) return files[f];
  return files[f] + ":" + to_string(line_number(InputFile(files[f]), where - starts[f]));
}

}  // namespace

TokenizeCounts tokenize_files(const TokenizeJob& job, MPI_Comm comm) {
  int rank = 0, ranks = 1;
  ORTHANT_MPI(MPI_Comm_rank(comm, &rank));
  ORTHANT_MPI(MPI_Comm_size(comm, &ranks));
  const auto starts = starts_of(job.files, comm, rank);
  const std::string common = writing_name(job.output, ".bin");
  TokenizeCounts counts;
  counts.type = token_type_for(job.tokenizer->vocab());
  int64_t first_invalid = none_yet;

  collectively(comm, [&] {
    const auto folder = std::filesystem::path(job.output).parent_path();
    std::error_code error;
    if (rank == 0 && !folder.empty()) std::filesystem::create_directories(folder, error);
    if (error) throw DataError(folder.string() + ": the folder of --output cannot be created: " + error.message());
  });
  std::unique_ptr<Part> part;
  collectively(comm, [&] {
    // rank 0's part comes first, so it is the beginning of the common file itself
    part = std::make_unique<Part>(rank == 0 ? common : writing_name(job.output, ".bin.part" + to_string(rank)),
                                  counts.type);
    Worker worker(job, *part, counts, first_invalid);
    tokenize_range(job, starts, rank, ranks, worker);
    part->file.flush();
  });

  int64_t sums[] = {counts.documents, counts.tokens,  counts.empty,     counts.blank_lines,
                    counts.marks,     counts.invalid, counts.surrogates};
  ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, sums, 7, MPI_INT64_T, MPI_SUM, comm));
  ORTHANT_MPI(MPI_Allreduce(MPI_IN_PLACE, &first_invalid, 1, MPI_INT64_T, MPI_MIN, comm));
  const int64_t seen = job.eod ? sums[0] : sums[0] + sums[2];
  if (seen == sums[2])
    throw DataError(
        (seen == 0 ? "the input holds no document" : "all " + to_string(seen) + " documents of the input are empty") +
            " (" + job.files.front() +
            (job.files.size() > 1 ? " and " + to_string(job.files.size() - 1) + " more" : "") + ", " +
            to_string(starts.back()) + " bytes, " + to_string(sums[3]) + " blank lines); no dataset was written",
        true);

  const int64_t mine = part->file.bytes();
  int64_t before = 0;
  ORTHANT_MPI(MPI_Exscan(&mine, &before, 1, MPI_INT64_T, MPI_SUM, comm));
  collectively(comm, [&] {
    if (rank != 0 && mine > 0) copy_part(part->file.path(), common, before, mine);
  });
  gather_lengths(part->lengths, comm, rank, ranks);
  collectively(comm, [&] {
    if (rank != 0) return;
    std::vector<int64_t> boundaries(part->lengths.size() + 1);
    for (size_t d = 0; d < boundaries.size(); ++d) boundaries[d] = static_cast<int64_t>(d);
    part->file.close();
    write_index(writing_name(job.output, ".idx"), counts.type, part->lengths, boundaries);
    try {
      publish(job.output);
    } catch (...) {
      remove_unfinished(job.output);
      throw;
    }
    part->file.keep();
    if (first_invalid != none_yet) counts.first_invalid = place_of(job.files, starts, first_invalid);
  });
  counts.documents = sums[0], counts.tokens = sums[1], counts.empty = sums[2], counts.blank_lines = sums[3];
  counts.marks = sums[4], counts.invalid = sums[5], counts.surrogates = sums[6];
  return counts;
}

}  // namespace orthant
