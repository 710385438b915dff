//! serve: to come.
