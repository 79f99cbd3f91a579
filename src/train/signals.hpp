// Save-and-stop signals: USR1, USR2, and TERM, INT in the seconds they leave.
#pragma once

namespace orthant {

/// Installs the handlers. A second TERM or INT ends the process as usual.
void watch_signals();
/// The last signal seen, or 0.
int signal_seen();

}  // namespace orthant
