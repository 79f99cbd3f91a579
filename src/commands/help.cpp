// orthant help deck [section] · orthant help megatron
#include "deck/help_text.hpp"

#include <iostream>

#include "orthant/command.hpp"
#include "orthant/error.hpp"

namespace orthant {

static const bool added = add_command({.name = "help",
                                       .summary = "deck parameters, and Megatron-LM options in our terms",
                                       .needs_mpi = false,
                                       .many_ranks = false,
                                       .run = [](const CommandArgs& given) {
                                         std::cout << help_text(given.args);
                                         return static_cast<int>(Exit::done);
                                       }});

}  // namespace orthant
