//! `noop`: nothing in, nothing out. The queue's own cost, for `doctor --round-trip` and the benchmarks.
