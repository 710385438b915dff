//! cli: to come.
