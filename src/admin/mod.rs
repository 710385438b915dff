//! admin: to come.
