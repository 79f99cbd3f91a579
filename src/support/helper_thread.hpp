// Threads beside the training thread: the I/O thread of saves, the watchdog.
#pragma once

#include <functional>
#include <thread>

namespace orthant {

/// True if the MPI library lets two threads communicate at once.
bool threads_may_communicate();

/// A thread that no signal interrupts: handlers are the training thread's, and must not break off a write half-way.
/// FaultError if the system has no thread to give; `purpose` says what it was for.
std::thread helper_thread(const char* purpose, std::function<void()> work);

}  // namespace orthant
