// The one out-of-line piece of error.hpp.
#include "orthant/error.hpp"

namespace orthant {

void ensure_failed(const char* condition, const char* file, int line, const std::string& message) {
  throw LogicError(std::string("internal error: ") + message + " (" + condition + " does not hold, " + file + ":" +
                   std::to_string(line) + ")");
}

}  // namespace orthant
