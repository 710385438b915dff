//! sim: to come.
