// Deck section device: what computes.
#pragma once

#include "orthant/deck.hpp"

namespace orthant::keys::device {

inline const auto backend = add_key<std::string>(
    {.name = "device.backend",
     .value = "auto",
     .choices = {"auto", "cpu", "cuda", "debug"},
     .on_resume = OnResume::free,
     .help = "auto = cuda where there is a device, else cpu, and says which; cuda without a device is an error"});

}  // namespace orthant::keys::device
